//! `ashlar demo`: what the product does, shown in a temporary folder: three devices die, data are
//! read, redundancy returns, a fourth device lies, the daemon is killed while it writes; and every
//! byte is compared every time.
//!
//! **Invariants**: nothing is claimed that was not checked in this run; the daemons are real ones
//! of this very program; everything is taken away at the end, however it ends.

mod content;
mod kernel;
mod show;
mod stage;
mod traffic;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ashlar_engine::status::{ArrayStatus, DeviceStatus};
use ashlar_rt::Buf;
use serde_json::json;

use crate::api::{Call, Create, CreateReply, FrontendSpec, StatusReply, WaitReply};
use crate::cli::DemoArgs;
use crate::demo::content::Content;
use crate::demo::show::{Show, show_text};
use crate::demo::stage::{ARRAY, Stage};
use crate::demo::traffic::{Done, Traffic};
use crate::failure::Failure;
use crate::print::document;
use crate::units::{rate_over, size};
use crate::view::picture::{More, picture};
use crate::view::{Style, Tone};

/// Device files.
const DEVICES: usize = 14;
/// Those that die.
const DEAD: [usize; 3] = [2, 7, 11];
/// The one that lies.
const LIAR: usize = 5;
/// How the array is laid out.
const LAYOUT: &str = "ec8+3";
/// How long the picture at the end waits until what was written last is counted.
const COUNTED: Duration = Duration::from_secs(5);
/// The volume.
const VOLUME: &str = "files";

/// `demo`.
///
/// # Errors
/// The first promise that was not kept, or what kept the demonstration from running.
pub(crate) fn run(args: &DemoArgs, json: bool) -> Result<(), Failure> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    check_room(&parent, args.size)?;
    let stage = Rc::new(Stage::new(&parent)?);
    let mut show = Show {
        started: Instant::now(),
        step: 0,
        style: Style::detect(false),
        json,
        steps: Vec::new(),
    };
    let outcome = perform(&stage, args, &mut show);
    if let Err(failure) = &outcome {
        let _ = show.say(&show.style.paint(Tone::Bad, &format!("FAILED: {failure}")));
        let _ = writeln!(
            std::io::stderr(),
            "ashlar: the daemon's last line: {}",
            stage.last_log()
        );
    }
    outcome
}

/// How large the device files are, for so much data.
fn device_bytes(data_bytes: u64) -> u64 {
    let each = data_bytes.saturating_mul(6) / DEVICES as u64;
    each.min(1 << 60).next_multiple_of(16 << 20).max(64 << 20)
}

/// What the sparse files will take: data with parity, what is written again after losses and by the crash, the
/// noise on one device, journals and the kernel's volume.
fn room_needed(data_bytes: u64) -> u64 {
    let data = data_bytes.saturating_mul(17) / 8;
    data.saturating_add(device_bytes(data_bytes) + (160 << 20))
}

/// Refuses a place without the room.
fn check_room(parent: &Path, data_bytes: u64) -> Result<(), Failure> {
    let there = rustix::fs::statvfs(parent)
        .map_err(|e| Failure::broken(format!("{}: {e}; give --dir DIR", parent.display())))?;
    let (free, need) = (
        there.f_bavail.saturating_mul(there.f_frsize),
        room_needed(data_bytes),
    );
    if free < need {
        return Err(Failure::refused(format!(
            "{}: the demonstration takes about {}, and {} are free; give --dir DIR with more room, or a smaller --size",
            parent.display(),
            size(need),
            size(free)
        )));
    }
    Ok(())
}

fn perform(stage: &Rc<Stage>, args: &DemoArgs, show: &mut Show) -> Result<(), Failure> {
    let device_bytes = device_bytes(args.size);
    show.say(&format!(
        "Ashlar in {}: {DEVICES} device files of {}, any 3 may fail\n",
        stage.dir.display(),
        size(device_bytes)
    ))?;
    stage.start_daemon()?;
    let socket = create(stage, show, device_bytes, args.size)?;
    let content = show.timed(
        "read",
        |_| Ok(Content::collect(args.size)),
        |content| {
            let generated = match content.generated {
                0 => String::new(),
                bytes => format!(" and {} generated", size(bytes)),
            };
            format!(
                "{} real files of this machine{generated}, {}",
                content.files,
                size(content.bytes())
            )
        },
    )?;
    let traffic = Traffic::connect(&socket, &format!("{ARRAY}/{VOLUME}"))?;
    let write = |_: &mut Show| traffic.write_all(&content.pieces);
    show.timed("write", write, |done| moved("all of it, over NBD", done))?;

    kill_devices(stage, show)?;
    let read = |_: &mut Show| traffic.verify_all(&content.pieces);
    show.timed("read", read, |done| {
        moved("every byte compared, three devices failed", done)
    })?;
    reconstruct(stage, show)?;
    lie(stage, show, device_bytes)?;
    show.timed("read", read, |done| {
        moved("every byte compared, a fourth device corrupt", done)
    })?;
    heal(stage, show, &traffic, &content)?;
    crash(stage, show, traffic, &socket, content)?;
    kernel::ext4(stage, show)?;
    finish(stage, show)
}

fn moved(what: &str, done: &Done) -> String {
    format!(
        "{what}: {} at {}",
        size(done.bytes),
        rate_over(done.bytes, done.seconds)
    )
}

fn device(stage: &Stage, index: usize) -> PathBuf {
    stage.path(&format!("device{index}.img"))
}

fn create(
    stage: &Stage,
    show: &mut Show,
    device_bytes: u64,
    data_bytes: u64,
) -> Result<PathBuf, Failure> {
    let socket = stage.path("nbd.sock");
    let text = |path: &Path| path.display().to_string();
    let call = Call::Create(Create {
        array: ARRAY.to_string(),
        layout: LAYOUT.to_string(),
        spare: 0,
        strip_bytes: None,
        slot_bytes: None,
        domains: Vec::new(),
        file_bytes: Some(device_bytes),
        // Room for the data; the rest is left to the volume that the kernel gets.
        volume: Some((
            VOLUME.to_string(),
            Some((data_bytes * 3 / 2).next_multiple_of(1 << 20)),
        )),
        attach: Some(FrontendSpec::Nbd(format!("unix:{}", text(&socket)))),
        dry_run: false,
        force: false,
        devices: (0..DEVICES).map(|i| text(&device(stage, i))).collect(),
    });
    let client = stage.client()?;
    let ask = |_: &mut Show| client.call::<CreateReply>(&call);
    show.timed("create", ask, |reply| {
        format!(
            "array {ARRAY}, ec8+3, {} usable",
            size(reply.array.capacity.usable_bytes)
        )
    })?;
    Ok(socket)
}

fn reply(stage: &Stage) -> Result<StatusReply, Failure> {
    let call = Call::Status {
        array: Some(ARRAY.to_string()),
    };
    stage.client()?.call(&call)
}

fn array_of(reply: &StatusReply) -> Result<&ArrayStatus, Failure> {
    let none = || Failure::broken("the daemon lists no array");
    reply.arrays.first().ok_or_else(none)
}

fn status(stage: &Stage) -> Result<ArrayStatus, Failure> {
    array_of(&reply(stage)?).cloned()
}

/// Three devices go: their files' bytes are overwritten with noise and they are declared failed.
fn kill_devices(stage: &Stage, show: &mut Show) -> Result<(), Failure> {
    let client = stage.client()?;
    let kill = |_: &mut Show| {
        for index in DEAD {
            let path = device(stage, index);
            let array = ARRAY.to_string();
            let device = path.display().to_string();
            client.call_value(&Call::Fail {
                array,
                device,
                force: false,
            })?;
            let gone = File::options()
                .write(true)
                .open(&path)
                .and_then(|f| f.set_len(0));
            gone.map_err(|e| Failure::broken(format!("{}: {e}", path.display())))?;
        }
        Ok(())
    };
    show.timed("kill", kill, |()| {
        format!("devices {DEAD:?} fail; their contents are gone")
    })
}

/// Waits for background work of one kind.
fn wait_for(stage: &Stage, kind: &str, longest: Duration) -> Result<ArrayStatus, Failure> {
    let (client, started) = (stage.client()?, Instant::now());
    loop {
        let call = Call::Wait {
            array: ARRAY.to_string(),
            kinds: vec![kind.to_string()],
            seconds: 5,
        };
        let reply: WaitReply = client.call(&call)?;
        if let (true, Some(array)) = (reply.done, reply.array) {
            return Ok(array);
        }
        if started.elapsed() > longest {
            return Err(Failure::broken(format!("{kind} does not end")));
        }
    }
}

fn reconstruct(stage: &Stage, show: &mut Show) -> Result<(), Failure> {
    let before = status(stage)?;
    let started = Instant::now();
    let wait = |_: &mut Show| wait_for(stage, "reconstruct", Duration::from_secs(120));
    let exposed = |a: &ArrayStatus| -> u64 {
        a.exposure
            .iter()
            .filter(|e| e.redundancy < a.m)
            .map(|e| e.bytes)
            .sum()
    };
    let exposed_before = exposed(&before);
    let after = show.timed("rebuild", wait, |after| {
        let rebuilt = exposed_before.saturating_sub(exposed(after));
        let rate = rate_over(rebuilt, started.elapsed().as_secs_f64());
        format!(
            "{} of data rebuilt to full redundancy, into free space, at {rate}",
            size(rebuilt)
        )
    })?;
    match exposed(&after) {
        0 => Ok(()),
        bytes => Err(Failure::broken(format!(
            "{} of data is degraded after the rebuild",
            size(bytes)
        ))),
    }
}

/// Past the page cache where the file system can: the daemon does the same, and the two do not mix.
fn open_direct(path: &Path) -> std::io::Result<File> {
    let direct = rustix::fs::OFlags::DIRECT.bits();
    let flags = i32::try_from(direct).unwrap_or(0);
    let mut options = File::options();
    options.write(true);
    options
        .clone()
        .custom_flags(flags)
        .open(path)
        .or_else(|_| options.open(path))
}

/// Where the data lies on each device: from its first slot to the end of its last.
fn slots(device_bytes: u64) -> Result<(u64, u64), Failure> {
    let options = ashlar_engine::Create {
        name: ARRAY.to_string(),
        layout: LAYOUT
            .parse()
            .map_err(|e| Failure::broken(format!("{LAYOUT}: {e}")))?,
        strip_bytes: None,
        slot_bytes: None,
        spare: 0,
        domains: Vec::new(),
        settings: ashlar_engine::Settings::default(),
    };
    let plan = ashlar_engine::plan(&[device_bytes; DEVICES], &options)
        .map_err(|e| Failure::broken(e.to_string()))?;
    let liar = &plan.devices[LIAR];
    Ok((liar.slot_offset(0), liar.slot_offset(liar.slots)))
}

/// A fourth device gives wrong bytes and no error: all its data is overwritten with noise.
fn lie(stage: &Stage, show: &mut Show, device_bytes: u64) -> Result<(), Failure> {
    let path = device(stage, LIAR);
    let (from, to) = slots(device_bytes)?;
    let corrupt = |_: &mut Show| {
        let write = || -> std::io::Result<()> {
            let file = open_direct(&path)?;
            for at in (from..to).step_by(1 << 20) {
                let mut noise = Buf::zeroed(1 << 20);
                content::fill(at, &mut noise);
                let length = usize::try_from(to - at)
                    .unwrap_or(usize::MAX)
                    .min(noise.len());
                file.write_all_at(&noise[..length], at)?;
            }
            file.sync_all()
        };
        write().map_err(|e| Failure::broken(format!("{}: {e}", path.display())))
    };
    show.timed("corrupt", corrupt, |()| {
        format!(
            "{} of device {LIAR} overwritten with noise, silently",
            size(to - from)
        )
    })
}

/// The wrong blocks were counted on the device that gave them, and are right again.
fn heal(
    stage: &Stage,
    show: &mut Show,
    traffic: &Traffic,
    content: &Content,
) -> Result<(), Failure> {
    let errors = |a: &ArrayStatus| a.devices[LIAR].errors.digest;
    let found = errors(&status(stage)?);
    if found == 0 {
        return Err(Failure::broken(format!(
            "no wrong block was counted on device {LIAR}"
        )));
    }
    for device in &status(stage)?.devices {
        let (index, wrong) = (usize::from(device.index), device.errors.digest);
        if index != LIAR && wrong > 0 {
            return Err(Failure::broken(format!(
                "{wrong} wrong blocks were counted on device {index}, which is not corrupt"
            )));
        }
    }
    let settle = |_: &mut Show| {
        wait_for(stage, "heal", Duration::from_secs(60))?;
        let before = errors(&status(stage)?);
        traffic.verify_all(&content.pieces)?;
        let after = status(stage)?;
        let new = errors(&after) - before;
        if new > 0 {
            return Err(Failure::broken(format!(
                "{new} wrong blocks are found again"
            )));
        }
        let task = after.tasks.iter().find(|t| t.kind == "heal");
        let (bad, healed) = task.map_or((0, 0), |t| (t.found, t.healed));
        if bad == 0 || healed < bad {
            return Err(Failure::broken(format!(
                "{healed} of {bad} wrong blocks are repaired"
            )));
        }
        Ok(())
    };
    show.timed("repair", settle, |()| {
        format!("{found} wrong blocks found on device {LIAR} alone, all repaired: reading again finds none")
    })
}

/// The blocks of which a daemon's log says `what`: device, segment, column, stripe and block. Not those of events that
/// sum up others: these come up to minutes later, and name the last one again.
fn blocks(log: &str, what: &str) -> BTreeSet<String> {
    let place = |line: &str| {
        let (start, end) = (line.find("device ")?, line.find(what)?);
        line.get(start..end).map(str::to_string)
    };
    let single = |line: &&str| !line.contains(" more like it");
    log.lines().filter(single).filter_map(place).collect()
}

fn crash(
    stage: &Rc<Stage>,
    show: &mut Show,
    traffic: Traffic,
    socket: &Path,
    content: Content,
) -> Result<(), Failure> {
    let first = stage.log();
    let healed = blocks(&first, " was repaired");
    let total = content.bytes();
    let killer = stage.clone();
    let write =
        |_: &mut Show| traffic.write_until_killed(total, total / 8, move || killer.kill_daemon());
    let crash = show.timed("kill -9", write, |crash| {
        format!(
            "the daemon, while it overwrites: {} acknowledged, {} in flight",
            size(crash.acknowledged_bytes()),
            size(crash.open_bytes())
        )
    })?;
    drop(traffic);
    let restart = |_: &mut Show| {
        stage.start_daemon()?;
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match Traffic::connect(socket, &format!("{ARRAY}/{VOLUME}")) {
                Ok(traffic) => return Ok(traffic),
                Err(failure) if Instant::now() > until => return Err(failure),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    };
    let traffic = show.timed("import", restart, |_| {
        "a new daemon imports the array and serves the volume again".to_string()
    })?;
    let check = |_: &mut Show| {
        let read = traffic.verify_crash(&crash, &content.pieces)?;
        // Metadata on the liar that nobody had read before is found by the import; nothing else is.
        let again = blocks(
            stage.log().get(first.len()..).unwrap_or_default(),
            " is bad",
        );
        if let Some(block) = again.intersection(&healed).next() {
            return Err(Failure::broken(format!(
                "{block} is wrong after the crash, though it had been repaired"
            )));
        }
        let innocent = |d: &&DeviceStatus| usize::from(d.index) != LIAR && d.errors.digest > 0;
        if let Some(device) = status(stage)?.devices.iter().find(innocent) {
            return Err(Failure::broken(format!(
                "{} wrong blocks were counted on device {}, which is not corrupt",
                device.errors.digest, device.index
            )));
        }
        Ok(read)
    };
    show.timed("read", check, |(_, done)| {
        moved(
            "every acknowledged byte is there, the rest is old or new, none torn; what was repaired stayed so",
            done,
        )
    })?;
    Ok(())
}

fn finish(stage: &Stage, show: &mut Show) -> Result<(), Failure> {
    let seconds = show.started.elapsed().as_secs_f64();
    // What was written last is counted in a moment.
    let until = Instant::now() + COUNTED;
    let mut now = reply(stage)?;
    while now.volumes.iter().any(|v| v.counting) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
        now = reply(stage)?;
    }
    let array = array_of(&now)?;
    let more = More {
        volumes: &now.volumes,
        ..More::default()
    };
    if show.json {
        let value = json!({ "steps": show.steps, "seconds": seconds, "array": array });
        return show_text(&document("demo", &value)?);
    }
    show_text(&format!(
        "\n{}\nAll of it verified in {seconds:.0} s. For a real array:\n\
         \x20 ashlar daemon &                                           the service, as root\n\
         \x20 ashlar create tank --layout ec8+3 --spare 1 -n /dev/sd[b-o]   what it would give\n\
         \x20 ashlar create tank --layout ec8+3 --spare 1 --volume v /dev/sd[b-o]\n\
         \x20 ashlar volume attach tank/v --loop\n\
         \x20 mkfs.xfs /dev/ashlar/tank/v && mount /dev/ashlar/tank/v /mnt\n",
        picture(array, show.style, &more)
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn blocks_are_found_in_a_log() {
        let log = "T DEBUG device 5: segment 3 column 2 stripe 1 block 0 is bad; it is read kind=\"bad-block\"\n\
                   T DEBUG device 5: segment 3 column 2 stripe 1 block 0 was repaired and read back\n\
                   T  INFO device 1 failed\n\
                   T  INFO 9 more like it, the last: device 5: segment 4 column 2 stripe 1 block 0 is bad; it is read\n";
        let block = "device 5: segment 3 column 2 stripe 1 block 0".to_string();
        assert_eq!(blocks(log, " is bad"), BTreeSet::from([block.clone()]));
        assert_eq!(blocks(log, " was repaired"), BTreeSet::from([block]));
    }

    #[test]
    fn no_room_is_said_before_anything_is_made() {
        let parent = std::env::temp_dir();
        let failure = check_room(&parent, 1 << 60).unwrap_err();
        assert!(failure.text.contains("--size"), "{failure}");
        check_room(&parent, 1 << 20).unwrap();
        check_room(Path::new("/no/such/dir"), 1 << 20).unwrap_err();
    }

    #[test]
    fn the_noise_begins_with_the_data() {
        for data in [1 << 20, 32 << 20, 256 << 20, 4 << 30] {
            let bytes = device_bytes(data);
            let (from, to) = slots(bytes).unwrap();
            assert!(
                from < bytes / 8 && to > bytes * 7 / 8 && to < bytes,
                "{from} {to}"
            );
        }
    }
}
