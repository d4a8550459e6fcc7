#!/usr/bin/env python3
"""The life of an array on real loop devices: Ashlar beside btrfs and beside the devices without redundancy.

    tests/compare/real_lifecycle.py ASHLAR --out DIR [--members DIR] [--size 512M] [--threads 2] [--repeat 3] [--wait 30]
        [--tests write,read,...] [--beside fio] [--systems raw,btrfs,ashlar]

ASHLAR is an `ashlar` program, a release build. All three have ten loop devices of 1 GiB with O_DIRECT, each on a sparse
file in --members, which must lie on a disk: on tmpfs there is no device to look at. Ashlar has them as `ec8+2` with
ext4 on a volume, btrfs as raid6 with metadata raid1c3, `raw` is btrfs raid0. `ashlar bench files --direct` runs its
tests on each (state normal); then two devices are taken away, and the files that were written before are read again
(state down). What it finds is in DIR/raw, DIR/btrfs and DIR/ashlar; DIR/report.html and DIR/report.md have all of it.
--wait is how long each test waits for a quiet machine; --beside names a program that runs the same tests in the state
normal. Rows say themselves whether they may be used. A run of some systems only is reported with what DIR has of others.
"""

import argparse
import os

from ashlar import Daemon
from machine import Failed, Members, in_own_namespace, need, note, on_signals, run

DEVICES, DEVICE = 10, "1G"
LOST = 2
#: What Ashlar's engine may keep: a cache that counts, so the data must be twice that.
MEMORY = "192M"
TESTS = "write,rewrite,read,reread,random-read,random-write"


class Loops:
    """Loop devices with O_DIRECT, on sparse files."""

    def __init__(self, folder):
        self.folder, self.all = folder, []

    def __enter__(self):
        for index in range(DEVICES):
            path = os.path.join(self.folder, f"m{index}.img")
            run("truncate", "-s", DEVICE, path)
            found = run("losetup", "-f", "--show", "--direct-io=on", path).strip()
            self.all.append(found)
        return self

    def __exit__(self, *_):
        for device in self.all:
            run("losetup", "-d", device, check=False)
            run("btrfs", "device", "scan", "--forget", device, check=False)
        for index in range(DEVICES):
            os.unlink(os.path.join(self.folder, f"m{index}.img"))

    def take(self, count):
        """Takes the first away."""
        gone, self.all = self.all[:count], self.all[count:]
        for device in gone:
            run("losetup", "-d", device)
            run("btrfs", "device", "scan", "--forget", device, check=False)


class Btrfs:
    """btrfs with these profiles."""

    def __init__(self, folder, data, metadata):
        self.mount, self.loops = os.path.join(folder, "mnt"), Loops(folder)
        self.profiles = ["-d", data, "-m", metadata]
        self.can_lose = data == "raid6"
        self.socket = os.path.join(folder, "none.sock")

    def __enter__(self):
        os.makedirs(self.mount, exist_ok=True)
        self.loops.__enter__()
        run("mkfs.btrfs", "-q", "-f", *self.profiles, *self.loops.all)
        self._mount()
        return self

    def __exit__(self, *_):
        run("umount", self.mount, check=False)
        self.loops.__exit__()

    def _mount(self, *options):
        how = ",".join(["noatime", *options, *(f"device={loop}" for loop in self.loops.all)])
        run("mount", "-t", "btrfs", "-o", how, self.loops.all[0], self.mount)

    def degrade(self):
        run("umount", self.mount)
        self.loops.take(LOST)
        self._mount("degraded")


class Ashlar:
    """ext4 on a volume of an array `ec8+2`."""

    can_lose = True

    def __init__(self, program, folder):
        self.mount, self.loops = os.path.join(folder, "mnt"), Loops(folder)
        self.daemon = Daemon(program, folder, ["--memory", MEMORY])
        self.socket = self.daemon.socket

    def __enter__(self):
        os.makedirs(self.mount, exist_ok=True)
        self.loops.__enter__()
        self.daemon.__enter__()
        how = ["--layout", "ec8+2", "--volume", "v=4G", "--attach", "loop"]
        self.daemon.do("create", self.daemon.array, *how, *self.loops.all)
        device = self.daemon.device("v")
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        run("mount", "-t", "ext4", "-o", "noatime", device, self.mount)
        return self

    def __exit__(self, *_):
        run("umount", self.mount, check=False)
        self.daemon.do("volume", "detach", f"{self.daemon.array}/v", check=False)
        self.daemon.__exit__()
        self.loops.__exit__()

    def degrade(self):
        for index in range(LOST):
            self.daemon.do("fail", self.daemon.array, index)


def bench(options, system, name, out, *more):
    """Runs the tests on a system, and leaves their files."""
    line = [options.ashlar, "bench", "files", system.mount, "--direct", "--force", "--label", name]
    line += ["--threads", options.threads, "--size", options.size, "--repeat", options.repeat]
    line += ["--wait-quiet", options.wait, "--out", out, "--socket", system.socket, *more]
    note(f"{name}: {' '.join(map(str, more))}")
    run(*line)


def measure(options, name, system):
    """The life of one system."""
    first = os.path.join(options.out, name)
    bench(options, system, name, first, "--keep", "--tests", options.tests, "--beside", options.beside)
    if not system.can_lose:
        return
    system.degrade()
    second = f"{first}-down"
    reads = ",".join(test for test in options.tests.split(",") if test.endswith("read"))
    bench(options, system, name, second, "--existing", "--tests", reads, "--state", "down")


def main():
    about, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(description=about, epilog=rest, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ashlar")
    parser.add_argument("--out", required=True)
    parser.add_argument("--members", default="/var/tmp")
    parser.add_argument("--size", default="512M")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--wait", type=int, default=30)
    parser.add_argument("--tests", default=TESTS)
    parser.add_argument("--beside", default="none")
    parser.add_argument("--systems", default="raw,btrfs,ashlar")
    options = parser.parse_args()
    options.ashlar, options.out = os.path.abspath(options.ashlar), os.path.abspath(options.out)
    need(["btrfs", "mkfs.btrfs", "mkfs.ext4", "losetup"])
    in_own_namespace()
    on_signals()
    os.makedirs(options.out, exist_ok=True)
    systems = {
        "raw": lambda folder: Btrfs(folder, "raid0", "raid1"),
        "btrfs raid6": lambda folder: Btrfs(folder, "raid6", "raid1c3"),
        "ashlar ec8+2": lambda folder: Ashlar(options.ashlar, folder),
    }
    for name, make in systems.items():
        if name.split()[0] in options.systems.split(","):
            with Members(None, options.members) as members, make(members.path) as system:
                measure(options, name, system)
    folders = [os.path.join(options.out, name + state) for name in systems for state in ("", "-down")]
    found = [folder for folder in folders if os.path.exists(os.path.join(folder, "report.json"))]
    title = "Ashlar ec8+2, btrfs raid6 and no redundancy on ten real loop devices"
    page = [os.path.join(options.out, f"report.{kind}") for kind in ("html", "md")]
    run(options.ashlar, "bench", "report", *found, "--title", title, "--html", page[0], "--markdown", page[1])
    print(open(page[1]).read())


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        raise SystemExit(f"real_lifecycle: {failure}")
