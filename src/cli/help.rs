//! Examples and tables that `--help` shows under a verb's flags.
//!
//! **Invariants**: only what this version does is shown.

pub(super) const CREATE_EXAMPLES: &str = "Examples:
  ashlar create tank --layout ec8+3 --spare 1 /dev/sd[b-m]
  ashlar create tank --layout raid6 -n /dev/sd[b-m]                    dry run: changes nothing
  ashlar create toy --layout ec4+2 --file-size 1G --volume v --attach loop d{0..5}.img

Layouts:
  raid0 raid1 raid1:3 raid10 raid5 raid6 raid7.3 raid50:G raid60:G raid70:G jbod
  ecK+M (ec8+2, ec80+20, ec1+7)   draidM:Kd:Pc:Ss   grid:P(N+K+A)
";
pub(super) const IMPORT_EXAMPLES: &str = "Examples:
  ashlar import                          list what could be imported
  ashlar import tank
  ashlar import --all --scan /srv/images
  ashlar import 5f0c7a52-8f0e-4c53-9d0e-0f7f4a3f7a11 tank2      where another array is called tank
  ashlar import tank --degraded          even if writes may be lost with missing devices
";
pub(super) const STATUS_EXAMPLES: &str = "Examples:
  ashlar status
  ashlar status -x                       only what is wrong
  ashlar status tank --watch             repeat on the screen
  ashlar status --test && echo optimal   exit code: 0 optimal, 1 degraded, 2 critical, failed or
                                         refusing writes, 4 cannot tell
";
pub(super) const EVENTS_EXAMPLES: &str = "Examples:
  ashlar events tank -n 20
  ashlar events --since 2h
  ashlar events -f -j                    from now on, also over restarts of the daemon
  ashlar events -f -j --since 4711       what came after event 4711, then what comes
";
pub(super) const IOSTAT_EXAMPLES: &str = "Examples:
  ashlar iostat                          one report, over one second
  ashlar iostat tank -l 5                every 5 s, with the mean time of a request
  ashlar iostat tank -w 10 1             how many requests took how long, over 10 s
";
pub(super) const SET_HELP: &str = "Examples:
  ashlar set tank clean.reserve=15%
  ashlar set tank rebuild.narrow=never
  ashlar set tank accelerator=cpu
  ashlar set tank rebuild.min=default    what it is where nobody has set it

Settings:
  accelerator         where parity and missing data are computed: on a GPU where that is measured to
                      be cheaper, on the processor alone, on GPU N for all it can take
                      auto, cpu or cuda:N [default: auto]
  clean.reserve       space withheld from volumes, so that cleaning stays fast
                      2% to 50% [default: 10%]
  discard             whether devices are told at once which space is free; with off 'ashlar trim' tells them
                      on or off [default: on]
  notify.exec         a program to run for each event of severity warning or worse, and when the array
                      is optimal again; it gets the event in ASHLAR_TEXT and so on, and on standard input
                      a path, or nothing [default: nothing]
  notify.webhook      an address to which each such event is posted as JSON
                      http://HOST[:PORT]/PATH, or nothing [default: nothing]
  rebalance.max       what moves of data to other devices read and write at most
                      bytes a second and device, such as 10M, or none [default: none]
  rebalance.min       what they may have while clients are at work, beside the time that clients leave
                      bytes a second and device, such as 10M, or none [default: 10M]
  rebuild.delay       how long what lies on a missing device is not rebuilt, unless it has no redundancy
                      left: a device that is back by then brings most of it back
                      0s to 24h, such as 30s or 10m [default: 10m]
  rebuild.max         what a rebuild reads and writes at most
                      bytes a second and device, such as 10M, or none [default: none]
  rebuild.min         what it may have while clients are at work, beside the time that clients leave
                      bytes a second and device, such as 10M, or none [default: 20M]
  rebuild.narrow      with no device left to rebuild onto, which data is rewritten across fewer: data
                      with no redundancy left, all degraded data, none
                      critical, always or never [default: critical]
  scrub.every         how often a scrub starts by itself; one that was stopped does not count
                      1h to 365d, such as 30d, or never [default: 30d]
  scrub.max           what a scrub reads at most
                      bytes a second and device, such as 10M, or none [default: none]
  scrub.min           what it may have while clients are at work, beside the time that clients leave
                      bytes a second and device, such as 10M, or none [default: 10M]
  slow.timeout        how long a device may take to answer before the array goes on without it
                      1s to 30s, such as 2s [default: 2s]
  spare               devices' worth of space that is kept free for the data of lost devices, at first what
                      create --spare gave; K, M and these together are at most the devices of a group
                      a number of devices, such as 1 [default: 0]
  start.wait          how long the start of the daemon waits for devices that are not there yet; then the
                      array starts without them if it may
                      0s to 1h, such as 180s or 3m [default: 180s]
";
pub(super) const INSPECT_EXAMPLES: &str = "Examples:
  ashlar inspect /dev/sdf
  ashlar inspect disk3.img --slots
  ashlar inspect disk3.img --segment 17 -j
  ashlar inspect disk3.img --journal
";
pub(super) const VERIFY_EXAMPLES: &str = "Examples:
  ashlar verify /dev/sd[b-m]
  ashlar verify disk*.img -j

Give all devices of one array, which must not be in use. Nothing is written. The exit code is 0 only if
all is well: nothing damaged, missing or contradictory, and the array was exported. If it was not exported,
its journal is not replayed, so the newest writes are not checked.
";
pub(super) const VOLUME_CREATE_EXAMPLES: &str = "Examples:
  ashlar volume create tank/home --size 500G
  ashlar volume create tank/vm --size 2T --thin --block-size 16K
";
pub(super) const VOLUME_RESIZE_EXAMPLES: &str = "Examples:
  ashlar volume resize tank/home 1T
  ashlar volume resize tank/home 200G --yes    smaller; first make the file system on it smaller
";
pub(super) const ATTACH_EXAMPLES: &str = "Examples:
  ashlar volume attach tank/home --loop                      /dev/ashlar/tank/home
  ashlar volume attach tank/boot --loop --sector-size 512    for images of disks with 512-byte sectors
  ashlar volume attach tank/vm --nbd unix:/run/vm.sock       nbd+unix:///tank/vm?socket=/run/vm.sock
  ashlar volume attach tank/vm --nbd unix:/run/vm.sock --owner :libvirt-qemu
  ashlar volume attach tank/vm --nbd 127.0.0.1:10809
  ashlar volume attach tank/vm --fuse /run/vm                /run/vm/vm
";
pub(super) const DEVICE_SCAN_EXAMPLES: &str = "Examples:
  ashlar device scan
  ashlar device scan --scan /srv/images      files there too
  ashlar device scan -j | jq -r '.devices[] | select(.free) | .path'

FREE is 'yes' for what 'ashlar create' takes without --force. HOLDS says what is known to be on a device,
IN USE who has it. Devices below 16M, and kernel devices of the daemon's own volumes, are left out.
";
pub(super) const DEVICE_LOCATE_EXAMPLES: &str = "Examples:
  ashlar device locate /dev/sdf on
  ashlar device locate /dev/sdf off

The enclosure has to speak SES, and the kernel's module ses has to be loaded.
";
pub(super) const DEVICE_SET_EXAMPLES: &str = "Examples:
  ashlar device set tank /dev/sdf size=max   the LUN, partition or file has grown
  ashlar device set tank 5 domain=shelf2     it was moved to another enclosure
  ashlar device set tank 5 domain=           it fails with no other
";

pub(super) const DEVICE_CLEAR_EXAMPLES: &str = "Examples:
  ashlar device clear tank /dev/sdf
  ashlar device clear tank 5                 after a cable was changed: do errors come again?
";
pub(super) const DEVICE_WIPE_EXAMPLES: &str = "Examples:
  ashlar device wipe /dev/sdf                says what it holds; changes nothing
  ashlar device wipe /dev/sdf --yes

The first and the last 4 MiB are erased, of a partition of Ashlar's on it too, and read back. What lies between
stays on the device: this is no way to keep secrets.
";
