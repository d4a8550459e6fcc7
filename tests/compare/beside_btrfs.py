#!/usr/bin/env python3
"""Ashlar beside btrfs raid6: a file system on the same members, the same work.

    tests/compare/beside_btrfs.py ASHLAR [--repeat 3] [--fs ext4] [--rows WORD,...] [--members DIR]

ASHLAR is an `ashlar` program, a release build. Both have ten members of 1 GiB for two losses: sparse files on tmpfs, or
in DIR. btrfs has them as loop devices, since it takes no files; Ashlar takes the files, and serves a volume with
`--loop` that has an ext4 or XFS file system. A cell is the median rate, and the processor time of all programs (fio,
tar, daemon) and of all kernel threads: seconds a GiB for sequential rows, else microseconds an operation or a file.
`--rows` takes words that a row's name has, for example `read` or `degraded`. Caches of the whole machine are dropped
before cold reads.
"""

import argparse
import contextlib
import os
import random
import statistics
import time

import machine
from ashlar import Daemon
from machine import Failed, Fio, Members, Result, SmallCache, Spent, cost_text, note, rate_text, run, table

MEMBERS, SIZE = 10, "1G"
FILE = ["size=512M"]
ONE, TWO = "runtime=1 time_based", "runtime=2 time_based"
#: Name, whether caches are dropped before it, fio's options.
ROWS = [
    ("128K sequential write, page cache, fsync at the end", False, "rw=write bs=128k ioengine=psync end_fsync=1"),
    ("128K sequential write, direct, depth 8", False, "rw=write bs=128k ioengine=libaio iodepth=8 direct=1"),
    ("128K sequential read, page cache, cold", True, "rw=read bs=128k ioengine=psync"),
    ("128K sequential read, direct, depth 8", True, "rw=read bs=128k ioengine=libaio iodepth=8 direct=1"),
    ("4K random read, direct, depth 1", True, f"rw=randread bs=4k ioengine=libaio iodepth=1 direct=1 {ONE}"),
    ("4K random read, direct, depth 32", True, f"rw=randread bs=4k ioengine=libaio iodepth=32 direct=1 {ONE}"),
    ("4K random write, fsync every 32", False, f"rw=randwrite bs=4k ioengine=psync fsync=32 {TWO}"),
    ("4K random write 64 MiB, fsync at the end", False, "rw=randwrite bs=4k io_size=64M ioengine=psync end_fsync=1"),
    ("4K random write, direct, depth 32", False, f"rw=randwrite bs=4k ioengine=libaio iodepth=32 direct=1 {TWO}"),
    ("4K random 70 % read, direct, depth 32", False,
     f"rw=randrw rwmixread=70 bs=4k ioengine=libaio iodepth=32 direct=1 {TWO}"),
]
TREE = ["untar, sync", "read the tree, cold", "copy the tree, cold, sync", "remove the copy, sync"]
DEGRADED = [3, 5, 6, 8]  # of ROWS
REBUILD = "rebuild of two devices"


def degraded_name(row):
    return f"degraded by two: {row[0]}"


def all_names():
    return [*(r[0] for r in ROWS), *TREE, *(degraded_name(ROWS[i]) for i in DEGRADED), REBUILD]


# ---- the two systems ------------------------------------------------------------------------------


class Btrfs:
    """btrfs raid6, metadata raid1c3."""

    def __init__(self, folder, options):
        self.folder, self.mount = folder, os.path.join(folder, "mnt")
        self.loops = []

    def __enter__(self):
        os.makedirs(self.mount, exist_ok=True)
        self.loops = [self._loop(f"m{i}.img") for i in range(MEMBERS)]
        run("mkfs.btrfs", "-q", "-f", "-d", "raid6", "-m", "raid1c3", *self.loops)
        self._mount(self.loops)
        return self

    def __exit__(self, *_):
        run("umount", self.mount, check=False)
        for loop in self.loops:
            run("losetup", "-d", loop, check=False)
            run("btrfs", "device", "scan", "--forget", loop, check=False)

    def _loop(self, name):
        path = os.path.join(self.folder, name)
        run("truncate", "-s", SIZE, path)
        return run("losetup", "-f", "--show", path).strip()

    def _mount(self, loops, *options):
        how = ",".join(["noatime", *options, *(f"device={loop}" for loop in loops)])
        run("mount", "-t", "btrfs", "-o", how, loops[0], self.mount)

    @property
    def pids(self):
        return []  # all of it is kernel threads, and the programs that ask

    def degrade(self):
        """Takes two members away."""
        run("umount", self.mount)
        gone, self.loops = self.loops[:2], self.loops[2:]
        for loop in gone:
            run("losetup", "-d", loop)
            run("btrfs", "device", "scan", "--forget", loop, check=False)
        self._mount(self.loops, "degraded")

    def rebuild(self):
        """Rebuilds both, one after the other, which is all that it can."""
        with Spent() as spent:
            for index, name in ((1, "new0.img"), (2, "new1.img")):
                new = self._loop(name)
                self.loops.append(new)
                run("btrfs", "replace", "start", "-f", "-B", str(index), new, self.mount)
        return spent


class Ashlar:
    """A file system on a volume of an array `ec8+2`."""

    def __init__(self, folder, options):
        self.folder, self.fs = folder, options.fs
        self.mount = os.path.join(folder, "mnt")
        self.daemon = Daemon(options.ashlar, folder)

    def __enter__(self):
        os.makedirs(self.mount, exist_ok=True)
        self.daemon.__enter__()
        try:
            # Two more than the stripe is wide: room to rebuild two.
            spare = 2 if self.with_room else 0
            how = ["--volume", "v=4G", "--attach", "loop"]
            self.daemon.create("ec8+2", MEMBERS + spare, SIZE, *how)
            device = self.daemon.device("v")
            options = {"xfs": ["-q", "-m", "rmapbt=0"], "ext4": ["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]}
            run(f"mkfs.{self.fs}", *options[self.fs], device)
            run("mount", "-t", self.fs, "-o", "noatime", device, self.mount)
        except BaseException:
            self.__exit__()
            raise
        return self

    with_room = False

    @property
    def pids(self):
        return self.daemon.pids

    def __exit__(self, *_):
        run("umount", self.mount, check=False)
        self.daemon.do("volume", "detach", f"{self.daemon.array}/v", check=False)
        self.daemon.__exit__()

    def degrade(self):
        """Takes two members away; with ten there is no room to rebuild them."""
        for index in ("0", "1"):
            self.daemon.do("fail", self.daemon.array, index)

    def rebuild(self):
        """Two fail, and are rebuilt at once."""
        with Spent(self.pids) as spent:
            self.degrade()
            while self.daemon.status()["health"]["more_losses"] < 2:
                if time.monotonic() > spent.wall_before + 120:
                    raise Failed("two of twelve devices were not rebuilt in 120 s")
                self.daemon.do("wait", self.daemon.array, "--for", "reconstruct")
                time.sleep(0.05)
        return spent


class Roomy(Ashlar):
    """The same on two members more."""

    with_room = True


# ---- the work -------------------------------------------------------------------------------------


def drop_caches():
    run("sync")
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def make_tree(folder, files):
    """An archive of files of random bytes, of sizes as in a source tree: the same in each run."""
    source, archive = os.path.join(folder, "tree"), os.path.join(folder, "tree.tar")
    numbers = random.Random(1)
    for i in range(files):
        at = os.path.join(source, f"d{i // 400}", f"e{i // 20}")
        os.makedirs(at, exist_ok=True)
        size = min(int(numbers.lognormvariate(7.6, 1.4)), 1 << 20)
        with open(os.path.join(at, f"f{i}"), "wb") as file:
            file.write(numbers.randbytes(size))
    run("tar", "cf", archive, "-C", source, ".")
    run("rm", "-rf", source)
    return archive


def shell(system, line, cold, files):
    """A row of the tree: files, and what they cost."""
    if cold:
        drop_caches()
    with Spent(system.pids) as spent:
        run("sh", "-ec", line)
    return Result(files, "file", spent)


def tree_rows(system, archive, files, wanted):
    """The rows of the tree, which need each other."""
    if not any(wanted(name) for name in TREE):
        return
    at = system.mount
    lines = [
        (f"mkdir {at}/t; tar xf {archive} -C {at}/t; sync -f {at}", False),
        (f"tar cf - -C {at}/t . | cat > /dev/null", True),
        (f"cp -a {at}/t {at}/t2; sync -f {at}", True),
        (f"rm -rf {at}/t2; sync -f {at}", False),
    ]
    for name, (line, cold) in zip(TREE, lines):
        yield name, shell(system, line, cold, files)
    drop_caches()
    run("tar", "df", archive, "-C", f"{at}/t")  # fails if a byte differs


def file_rows(fio, system, rows):
    """Rows of fio on one file; a row that fails is one that the system cannot do."""
    job = [f"filename={system.mount}/file", *FILE]
    for name, cold, options in rows:
        if cold:
            drop_caches()
        small = cold and "direct=1" not in options
        result = None
        try:
            with SmallCache() if small else contextlib.nullcontext():
                result = fio.job([*job, *options.split()], system.pids)
        except Failed as failure:
            note(f"{name}: {failure}")
        yield name, result


def lay(fio, system):
    """The file, written once."""
    fio.job([f"filename={system.mount}/file", *FILE, *ROWS[0][2].split()], system.pids)


def rows_of(fio, kind, options, wanted, archive):
    """All rows of a system, once, each group on new members."""
    found = {}
    groups = [[r for r in ROWS if wanted(r[0])], [ROWS[i] for i in DEGRADED if wanted(degraded_name(ROWS[i]))]]
    if groups[0] or any(wanted(name) for name in TREE):
        with Members("14G", options.members) as members, kind(members.path, options) as system:
            if not wanted(ROWS[0][0]):
                lay(fio, system)  # else that row does
            found.update(file_rows(fio, system, groups[0]))
            found.update(tree_rows(system, archive, options.files, wanted))
    if groups[1]:
        with Members("14G", options.members) as members, kind(members.path, options) as system:
            lay(fio, system)
            run("sync")
            system.degrade()
            for name, result in file_rows(fio, system, groups[1]):
                found[degraded_name((name,))] = result
    if wanted(REBUILD):
        roomy = Roomy if kind is Ashlar else kind
        with Members("14G", options.members) as members, roomy(members.path, options) as system:
            lay(fio, system)
            run("sync")
            if kind is Btrfs:
                system.degrade()
            found[REBUILD] = Result(0.5, "GiB", system.rebuild())
    return found


def cell(results):
    """The median of a row, and how often it was measured."""
    good = [r for r in results if r is not None]
    if not good:
        return "I/O error"
    rate = statistics.median(r.rate() for r in good)
    each = statistics.median(r.each() for r in good)
    return f"{rate_text(good[0].unit, rate)}, {cost_text(good[0].unit, each)}"


def work():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ashlar")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--fs", choices=["ext4", "xfs"], default="ext4")
    parser.add_argument("--rows", default="", help="words, with commas: only rows whose name has one of them")
    parser.add_argument("--files", type=int, default=20_000, help="files of the tree")
    parser.add_argument("--members", help="a folder for the members, instead of tmpfs")
    options = parser.parse_args()
    options.ashlar = os.path.abspath(options.ashlar)
    words = [w for w in options.rows.split(",") if w]

    def wanted(name):
        return not words or any(word in name for word in words)

    names = [n for n in all_names() if wanted(n)]
    if not names:
        raise Failed(f"--rows {options.rows}: no row has one of these words")
    machine.need(["fio", "mkfs.btrfs", f"mkfs.{options.fs}", "unshare", "mount", "losetup", "tar"])
    machine.in_own_namespace()
    fio = Fio()
    found = {Btrfs: [], Ashlar: []}
    with Members("1G") as trees:
        archive = make_tree(trees.path, options.files) if any(n in TREE for n in names) else None
        for repetition in range(options.repeat):
            for kind in (Btrfs, Ashlar):
                note(f"{repetition + 1} of {options.repeat}: {kind.__name__.lower()}")
                found[kind].append(rows_of(fio, kind, options, wanted, archive))
    where = options.members or "tmpfs"
    print(f"Medians of {options.repeat}; ten members of {SIZE} on {where}; {machine.about()}\n")
    rows = [[n, *(cell([f.get(n) for f in found[kind]]) for kind in found)] for n in names]
    table(["row", "btrfs raid6", f"Ashlar ec8+2, {options.fs}"], rows)


if __name__ == "__main__":
    machine.main(work)
