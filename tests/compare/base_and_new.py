#!/usr/bin/env python3
"""Two builds of Ashlar beside each other: the same work, in turns, and the ratio of what it costs.

    tests/compare/base_and_new.py BASE NEW [--pairs 5] [--rows loop,nbd,rebuild] [--limit 'ROW=RATIO']...

BASE and NEW are `ashlar` programs, release builds. Each pair runs both, members on tmpfs, in alternating order. A row
gives processor seconds of all programs (fio, daemon) and of all kernel threads, as medians, and the median, least and
greatest of the pairs' ratios new to base; `p99` rows give milliseconds. A first run is not counted. It exits with 1 if
a ratio is above its `--limit`.
"""

import argparse
import contextlib
import os
import statistics
import time

import machine
from ashlar import Daemon
from machine import Failed, Fio, Members, Result, SmallCache, Spent, cost_text, note, rate_text, table

LOOP = [
    ("loop 128K write, direct, depth 8", "rw=write", "bs=128k", "ioengine=libaio", "iodepth=8", "direct=1"),
    ("loop 128K read, direct, depth 8", "rw=read", "bs=128k", "ioengine=libaio", "iodepth=8", "direct=1"),
    ("loop 128K read, page cache, cold", "rw=read", "bs=128k", "ioengine=psync"),
]
NBD = [
    ("NBD 128K write, depth 32", "rw=write", "bs=128k", "iodepth=32"),
    ("NBD 128K read, depth 32", "rw=read", "bs=128k", "iodepth=32"),
    ("NBD 4K write, depth 32", "rw=randwrite", "bs=4k", "iodepth=32"),
    ("NBD 4K read, depth 32", "rw=randread", "bs=4k", "iodepth=32"),
]
P99 = "NBD 128K write, depth 32: p99"
REBUILD = "rebuild of two devices"


def served_rows(fio, program, options, members):
    """The rows over `--loop` and NBD, on one array."""
    size, small = f"size={options.size}M", f"io_size={options.small}M"
    with Daemon(program, members.path) as daemon:
        daemon.create("ec8+2", 10, "1G")
        if "loop" in options.rows:
            daemon.volume("l", f"{options.size}M", "--loop")
            for name, *job in LOOP:
                with contextlib.nullcontext() if "direct=1" in job else SmallCache():
                    result = fio.job([*job, size, f"filename={daemon.device('l')}"], daemon.pids)
                yield name, result
            daemon.do("volume", "detach", f"{daemon.array}/l")
        if "nbd" in options.rows:
            daemon.volume("n", f"{options.size}M", "--nbd", f"unix:{daemon.nbd}")
            for name, *job in NBD:
                random = [small] if "bs=4k" in job else []
                line = ["ioengine=nbd", f"uri={daemon.uri('n')}", size, *random, *job]
                yield name, fio.job(line, daemon.pids)


def rebuild_row(fio, program, options, members):
    """Two of twelve devices fail; what was on them is computed into free space."""
    with Daemon(program, members.path) as daemon:
        daemon.create("ec8+2", 12, "1G")
        daemon.volume("n", f"{options.size}M", "--nbd", f"unix:{daemon.nbd}")
        fill = ["ioengine=nbd", f"uri={daemon.uri('n')}", f"size={options.size}M", "rw=write", "bs=128k", "iodepth=8"]
        fio.job(fill, daemon.pids)
        with Spent(daemon.pids) as spent:
            daemon.do("fail", daemon.array, "0")
            daemon.do("fail", daemon.array, "1")
            daemon.do("wait", daemon.array, "--for", "reconstruct")
            # The second may begin a moment later.
            while daemon.status()["health"]["more_losses"] < 2 and time.monotonic() < spent.wall_before + 120:
                daemon.do("wait", daemon.array, "--for", "reconstruct")
                time.sleep(0.05)
        if daemon.status()["health"]["more_losses"] < 2:
            raise Failed(f"{program}: two of twelve devices were not rebuilt in 120 s")
        yield REBUILD, Result(options.size / 1024, "GiB", spent)


def one_run(fio, program, options):
    """All rows of one program: results by row, in order."""
    found = {}
    for rows in (served_rows, rebuild_row):
        if rows is rebuild_row and "rebuild" not in options.rows:
            continue
        if rows is served_rows and not {"loop", "nbd"} & set(options.rows):
            continue
        with Members("12G") as members:
            found.update(rows(fio, program, options, members))
    return found


def print_table(found, limits):
    """Prints all rows: those above their limit."""
    rows, above = [], []

    def row(name, base, new, text, rates):
        ratios = [n / b for b, n in zip(base, new) if b > 0]
        ratio = statistics.median(ratios)
        limit = limits.get(name)
        if limit is not None and ratio > limit:
            above.append(name)
        wanted = "" if limit is None else f"{limit:.2f}{'' if ratio <= limit else ' MISSED'}"
        spread = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        medians = [text(statistics.median(base)), text(statistics.median(new))]
        rows.append([name, *medians, spread, wanted, *rates])

    for name in found[0][0]:
        base, new = ([pair[side][name] for pair in found] for side in (0, 1))
        unit = base[0].unit
        rates = [rate_text(unit, statistics.median(r.rate() for r in side)) for side in (base, new)]
        each = [[r.each() for r in side] for side in (base, new)]
        row(name, *each, lambda v, unit=unit: cost_text(unit, v), rates)
        if name == NBD[0][0]:
            late = [[r.p99 for r in side] for side in (base, new)]
            row(P99, *late, lambda v: f"{v:.1f} ms", ["", ""])
    table(["row", "base", "new", "new to base", "limit", "base's rate", "new's rate"], rows)
    return above


def limits_of(words):
    """`ROW=RATIO`, by row."""
    limits = {}
    for word in words:
        name, _, ratio = word.rpartition("=")
        if name not in [*(r[0] for r in LOOP + NBD), P99, REBUILD]:
            raise Failed(f"--limit {word}: no such row; the table's first column names them")
        limits[name] = float(ratio)
    return limits


def work():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", default="loop,nbd,rebuild", type=lambda text: text.split(","))
    parser.add_argument("--size", type=int, default=512, help="MiB of a volume")
    parser.add_argument("--small", type=int, default=128, help="MiB read or written in pieces of 4K")
    parser.add_argument("--limit", action="append", default=[], metavar="ROW=RATIO")
    options = parser.parse_args()
    limits = limits_of(options.limit)
    machine.need(["fio", "unshare", "mount", "losetup"])
    if "nbd" not in machine.run("fio", "--enghelp").split():
        raise Failed("fio was built without its nbd engine; Debian's package has it")
    programs = [os.path.abspath(p) for p in (options.base, options.new)]
    machine.in_own_namespace()
    fio = Fio()
    note("once for nothing: the kernel finds memory")
    one_run(fio, programs[0], options)
    found = []
    for pair in range(options.pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        results = [None, None]
        for side in order:
            note(f"pair {pair + 1} of {options.pairs}: {('base', 'new')[side]}")
            results[side] = one_run(fio, programs[side], options)
        found.append(results)
    print(f"{options.pairs} pairs, ec8+2, members on tmpfs; {machine.about()}\n")
    above = print_table(found, limits)
    if above:
        raise Failed(f"above the limit: {'; '.join(above)}")


if __name__ == "__main__":
    machine.main(work)
