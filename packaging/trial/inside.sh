#!/bin/sh
# What is tried of the package inside a booted Debian: inside.sh STAGE. Each line says ok or FAILED; the exit status is
# the number of failures. The folder /root/trial has the packages, and is the working folder.
set -u
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
cd /root/trial || exit 99
failures=0
# check WHAT COMMAND...: the command succeeds.
check() {
    what=$1; shift
    if output=$("$@" 2>&1); then
        echo "ok      $what"
    else
        echo "FAILED  $what: $*"; echo "$output" | tail -n 20 | sed 's/^/        /'
        failures=$((failures + 1))
    fi
}
soon() { for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "$@" >/dev/null 2>&1 && return 0; sleep 0.5; done; "$@"; }
main_pid() { systemctl show -p MainPID --value ashlar; }
said() { "$@" 2>&1 | grep -q "$pattern"; }
same() { [ "$1" = "$2" ]; }
not() { ! "$@"; }
mode() { [ "$(stat -c %A:%U:%G "$2")" = "$1" ]; }
digest() { sha256sum < "$1" | cut -d' ' -f1; }
# All names in the root, but those that every installation and the boot change.
names() {
    find / -xdev \( -path /root/trial -o -path /tmp -o -path '/var/tmp' -o -path /var/log -o -path /var/lib/dpkg \
        -o -path /var/cache -o -path /run -o -path /var/lib/systemd -o -path /proc -o -path /sys -o -path /dev \
        -o -path /var/lib/deb-systemd-helper-masked \) -prune -o -print | sort
}
completes() {
    bash -c '. /usr/share/bash-completion/completions/ashlar
        f=$(complete -p ashlar | sed "s/.*-F \([^ ]*\).*/\1/"); COMP_WORDS=(ashlar status t); COMP_CWORD=2
        COMP_TYPE=9; $f ashlar t status; echo "${COMPREPLY[@]}"' | grep -qw tank
}

install_() {
    names > before
    check "the package installs" dpkg -i old.deb
    check "nothing is half installed" dpkg --audit
    check "the daemon is enabled" systemctl is-enabled ashlar
    check "the daemon runs" systemctl is-active ashlar
    check "the group is there" getent group ashlar
    check "the socket is the group's" mode srw-rw----:root:ashlar /run/ashlar/ashlar.sock
    check "the state directory is root's" mode drwx------:root:root /var/lib/ashlar
    pattern='^Seccomp:.2'
    check "system calls are filtered" said cat "/proc/$(main_pid)/status"
    check "systemd-analyze verify has nothing to say" sh -c '! systemd-analyze verify ashlar.service 2>&1 | grep ashlar | grep -v "man ashlar"'
    udevadm verify --help >/dev/null 2>&1 && check "udevadm verify takes the rules" udevadm verify /usr/lib/udev/rules.d/60-ashlar.rules
    for page in ashlar ashlar-create ashlar-volume-attach; do
        check "the man page $page is there" test -s "/usr/share/man/man1/$page.1.gz"
    done
    # From here on a call that the filter refuses kills the daemon, instead of giving it EPERM.
    mkdir -p /etc/systemd/system/ashlar.service.d
    printf '[Service]\nSystemCallErrorNumber=\nLimitCORE=0\n' > /etc/systemd/system/ashlar.service.d/kill.conf
    systemctl daemon-reload
    check "the daemon restarts" systemctl restart ashlar
}

# An earlier version, and what an administrator has with it.
earlier() {
    names > before
    check "the earlier package installs" dpkg -i old.deb
    check "the daemon runs" soon ashlar list
    check "an array with a kernel device" ashlar create tank --layout ec4+2 --file-size 256M --volume home=200M --attach loop d0 d1 d2 d3 d4 d5 d6 d7
    check "mkfs" mkfs.ext4 -q /dev/ashlar/tank/home
    mkdir -p /mnt/home
    check "mount" mount /dev/ashlar/tank/home /mnt/home
    check "write" sh -c 'head -c 60000000 /dev/urandom > /mnt/home/data; sync -f /mnt/home'
    digest /mnt/home/data > sum
    check "a device is lost, what it held rebuilt" ashlar fail tank d2 -w
    check "unmount" umount /mnt/home
}

# What the README has a newcomer type, every line of it.
readme() {
    systemctl stop ashlar
    sed -n '/^## Use it/,/^## How/s/^# //p' README.md > readme.bash
    check "the README has commands" grep -q "ashlar create" readme.bash
    check "every one of them works" bash -e readme.bash
    check "nothing is left of it" test ! -e disk0.img -a ! -e /dev/ashlar
    rm -rf mnt
    systemctl start ashlar
}

use() {
    check "an array with a kernel device" ashlar create tank --layout ec4+2 --file-size 256M --volume home=200M --attach loop d0 d1 d2 d3 d4 d5 d6 d7
    check "its link is there" test -b /dev/ashlar/tank/home
    check "completions know the array" completes
    check "mkfs" mkfs.ext4 -q /dev/ashlar/tank/home
    mkdir -p /mnt/home fuse
    check "mount" mount /dev/ashlar/tank/home /mnt/home
    check "write" sh -c 'head -c 60000000 /dev/urandom > /mnt/home/data; sync -f /mnt/home'
    digest /mnt/home/data > sum
    check "a file over FUSE" ashlar volume create tank/file --size 32M --thin
    check "it is served" ashlar volume attach tank/file --fuse fuse
    check "it is written" dd if=/dev/urandom of=fuse/file bs=1M count=16 conv=notrunc,fsync status=none
    check "a volume over NBD" ashlar volume create tank/net --size 32M
    check "its socket" ashlar volume attach tank/net --nbd unix:/root/trial/nbd.sock --owner :ashlar
    check "NBD over TCP" ashlar volume attach tank/net --nbd 127.0.0.1:10809
    printf '#!/bin/sh\nenv | grep ASHLAR_ >> /root/trial/told\n' > tell; chmod +x tell
    check "events run a program" ashlar set tank notify.exec=/root/trial/tell
    check "notify test" ashlar notify test
    check "it was told" soon test -s told
    check "status" ashlar status -v
    check "device list" ashlar device list
    check "iostat" ashlar iostat 1 1
    check "events" ashlar events -n 5
    check "history" ashlar history tank
    check "support" ashlar support all.tar.gz
    check "volumes are destroyed" sh -c 'ashlar volume create tank/x --size 8M && ashlar volume destroy tank/x --yes'
    check "reload" systemctl reload ashlar
    check "members of the group may ask" setpriv --reuid nobody --regid ashlar --clear-groups ashlar list
    check "nobody else may" not setpriv --reuid nobody --regid nogroup --clear-groups ashlar list
    check "the daemon has not died" same "$(systemctl show -p NRestarts --value ashlar)" 0
}

# The line of the handbook in /etc/fstab: the mount starts the daemon, waits for the volume's name, which systemd has from
# udev by the packed rule, and ends before the daemon does.
fstab() {
    known() { systemctl is-active dev-ashlar-tank-home.device; }
    check "udev runs" systemctl is-active systemd-udevd
    # In a container systemd begins before udev does, and listens to it only if it begins anew.
    systemctl daemon-reexec
    check "systemd knows the volume by its name" soon known
    had=$(test -e /etc/fstab && echo yes)
    grep '^/dev/ashlar/tank/home ' /usr/share/doc/ashlar/operating.md > line
    check "the handbook has one line" same "$(grep -c . line)" 1
    cat line >> /etc/fstab
    systemctl daemon-reload
    check "the daemon stops" systemctl stop ashlar
    check "systemd has heard that the name is gone" soon not known
    check "the mount starts the daemon, and waits" systemctl start home.mount
    check "it is the volume" same "$(digest /home/data)" "$(cat sum)"
    check "it is written to" sh -c 'head -c 3000000 /dev/urandom > /home/more'
    more=$(digest /home/more)
    check "the daemon stops again" systemctl stop ashlar
    check "it was unmounted before" not mountpoint -q /home
    check "mount" systemctl start home.mount
    check "what was not synced is there" same "$(digest /home/more)" "$more"
    rm -f /home/more
    check "unmount" systemctl stop home.mount
    check "the file system is clean" e2fsck -fn /dev/ashlar/tank/home
    if [ "$had" ]; then sed -i '/^.dev.ashlar/d' /etc/fstab; else rm -f /etc/fstab; fi
    systemctl daemon-reload
}

crash() {
    pid=$(main_pid)
    umount /mnt/home
    check "the file system is read back before" sh -c 'mount /dev/ashlar/tank/home /mnt/home && sha256sum < /mnt/home/data | grep -qf sum; umount /mnt/home'
    kill -9 "$pid"
    check "systemd starts it again" soon sh -c "systemctl is-active ashlar && [ \$(systemctl show -p MainPID --value ashlar) != $pid ]"
    check "every volume is served again" soon test -b /dev/ashlar/tank/home
    check "status --test" soon ashlar status --test
    check "mount" mount /dev/ashlar/tank/home /mnt/home
    check "all data is there" same "$(digest /mnt/home/data)" "$(cat sum)"
    umount /mnt/home
    check "an orderly restart" systemctl restart ashlar
    check "the device is there when systemctl returns" test -b /dev/ashlar/tank/home
    check "mount" mount /dev/ashlar/tank/home /mnt/home
    check "all data is there" same "$(digest /mnt/home/data)" "$(cat sum)"
    umount /mnt/home
    check "nothing is left to do" ashlar wait tank
    check "export" sh -c 'for v in home file net; do ashlar volume detach tank/$v; done; ashlar export tank'
    check "verify" ashlar verify d0 d1 d2 d3 d4 d5 d6 d7
    check "import" ashlar import tank --scan .
    check "attach" ashlar volume attach tank/home --loop
    check "a device is given up, what it held rebuilt" ashlar fail tank d3 -w
    check "status --test" ashlar status --test
    check "no system call was refused" sh -c '! journalctl -u ashlar --no-pager | grep -qE "SYS|core-dump|Operation not permitted"'
    check "one restart, the one after kill -9" same "$(journalctl -u ashlar --no-pager | grep -c 'Scheduled restart')" 1
}

upgrade() {
    pid=$(main_pid)
    pattern="still runs the version before"
    check "an upgrade says that the old one runs" said dpkg -i new.deb
    check "the daemon was left running" same "$(main_pid)" "$pid"
    check "the array too" test -b /dev/ashlar/tank/home
    check "restarted" systemctl restart ashlar
    check "the array is back" soon test -b /dev/ashlar/tank/home
    systemctl disable -q ashlar
    check "a reinstallation" dpkg -i new.deb
    check "what was disabled stays so" not systemctl is-enabled ashlar
    systemctl enable -q ashlar
}

purge() {
    check "volume detach" ashlar volume detach tank/home
    check "removal" dpkg -r ashlar
    check "the daemon is gone" not pgrep -x ashlar
    check "the list of arrays stays" test -d /var/lib/ashlar
    check "installed again" dpkg -i new.deb
    check "it runs, with the array" soon sh -c 'ashlar list | grep -q tank'
    check "purge" dpkg -P ashlar
    rm -rf /etc/systemd/system/ashlar.service.d; systemctl daemon-reload; rmdir /mnt/home
    check "the daemon is gone" not pgrep -x ashlar
    check "the group is gone" not getent group ashlar
    check "nothing in /run" test ! -e /run/ashlar
    check "nothing in /dev" test ! -e /dev/ashlar
    names > after
    check "no other name is left or gone" diff before after
    check "the devices still are an array" sh -c 'ls d0 d7'
}

case $1 in
install) install_ ;;
earlier | readme | use | fstab | crash | upgrade | purge) "$1" ;;
*) echo "no stage $1" >&2; exit 99 ;;
esac
exit "$failures"
