#!/bin/sh
# Installs, uses, crashes, upgrades and purges a package in a Debian that is booted with its own systemd:
#   run.sh PACKAGE.deb SUITE FOLDER [EARLIER.deb]
# SUITE is bookworm, trixie, ...; FOLDER keeps the root that debootstrap makes, to be used again; it is never changed, an
# overlay is. Wants root, debootstrap, systemd-nspawn, nbdinfo and nbdcopy, loop devices and FUSE. The kernel is this
# machine's, whose devices udev inside hears of as they change; it is told of none that was there before, and loads no
# module. With EARLIER.deb that one is installed, used, and upgraded to PACKAGE.deb; else the same
# package is. Ends with 0 if every check passed.
set -eu
deb=$(realpath "$1"); suite=$2; folder=$3
earlier=$(realpath "${4:-$1}")
dir=$(dirname "$(realpath "$0")")
mkdir -p "$folder"; folder=$(realpath "$folder")
base=$folder/$suite; work=$folder/$suite.work; top=$work/root
version=$(dpkg-deb -f "$deb" Version)
if [ ! -e "$base/.done" ]; then
    rm -rf "$base"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,udev,dbus,e2fsprogs,procps "$suite" "$base" >"$folder/$suite.log"
    touch "$base/.done"
fi
clean() {
    trap - EXIT INT TERM
    if [ -n "${nspawn:-}" ]; then
        # The second TERM ends it at once.
        kill -TERM "$nspawn" 2>/dev/null || true
        for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$nspawn" 2>/dev/null && sleep 1; done
        kill -TERM "$nspawn" 2>/dev/null || true
        wait "$nspawn" 2>/dev/null || true
    fi
    umount "$top" 2>/dev/null || umount -l "$top" 2>/dev/null || true
    rm -rf "$work"
}
rm -rf "$work"
mkdir -p "$work/upper" "$work/tmp" "$top"
trap 'clean' EXIT
trap 'clean; exit 1' INT TERM
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/tmp" "$top"
mkdir -p "$top/etc/systemd/system" "$top/etc/udev/rules.d"
ln -s /dev/null "$top/etc/systemd/system/systemd-udev-trigger.service"
ln -s /dev/null "$top/etc/udev/rules.d/80-drivers.rules"
# The device files of the array lie on this machine's file system: an overlay may not take O_DIRECT.
mkdir -p "$top/root/trial" "$work/trial"
cp "$dir/inside.sh" "$dir/../../README.md" "$work/trial/"
cp "$earlier" "$work/trial/old.deb"
# One version later, whatever it says of itself.
dpkg-deb -R "$deb" "$work/repack"
sed -i "s/^Version: .*/Version: $version+trial1/" "$work/repack/DEBIAN/control"
dpkg-deb --root-owner-group -b "$work/repack" "$work/trial/new.deb" >/dev/null
binds=""
for loop in /dev/loop[0-9] /dev/loop[0-9][0-9]; do [ -b "$loop" ] && binds="$binds --bind=$loop"; done
# shellcheck disable=SC2086
SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 systemd-nspawn -q -D "$top" --boot --register=no --keep-unit --capability=all --private-network \
    --bind="$work/trial:/root/trial" --bind=/dev/fuse --bind=/dev/loop-control $binds --console=pipe \
    </dev/null >"$work/boot.log" 2>&1 &
nspawn=$!
leader=
for _ in $(seq 60); do
    leader=$(ps -o pid= --ppid "$nspawn" | head -n 1 | tr -d ' ')
    [ -n "$leader" ] && nsenter -t "$leader" -m -u -i -n -p systemctl is-system-running 2>/dev/null | grep -qE 'running|degraded' && break
    sleep 1
done
inside() { nsenter -t "$leader" -m -u -i -n -p -C sh /root/trial/inside.sh "$1"; }
failures=0
stage() { echo "-- $suite: $1"; inside "$1" || failures=$((failures + $?)); }
nsenter -t "$leader" -m -u -i -n -p systemctl --version | head -n 1
if [ "$earlier" != "$deb" ]; then
    stage earlier
else
    stage install
    stage readme
    stage use
    # Clients on this side, through the socket.
    uri="nbd+unix:///tank/net?socket=$work/trial/nbd.sock"
    head -c 16777216 /dev/urandom >"$work/written"
    truncate -s 32M "$work/written"
    if nbdcopy "$work/written" "$uri" && nbdcopy "$uri" "$work/read" && cmp "$work/written" "$work/read"; then
        echo "ok      32M over NBD, written and read back"
    else
        echo "FAILED  NBD"; failures=$((failures + 1))
    fi
    stage crash
fi
stage upgrade
stage fstab
stage purge
nsenter -t "$leader" -m -u -i -n -p journalctl -u ashlar --no-pager >"$folder/$suite.journal" || true
echo "-- $suite: $failures failed"
[ "$failures" = 0 ]
