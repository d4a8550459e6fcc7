"""What the comparisons stand on: a private place for members, processor time, fio, tables.

Invariants: members and mounts lie in a mount namespace of this process, so that nothing of them is left when it
ends, however it ends; every program that is started dies with it; processor time is that of the programs of a
measurement and of all kernel threads, never of the rest of the machine.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TICK = os.sysconf("SC_CLK_TCK")
KERNEL_THREAD = 0x00200000  # PF_KTHREAD
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """One line: what failed, and what to do."""


def _dies_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def need(programs):
    """Refuses to start without these programs, and without root."""
    missing = [p for p in programs if not shutil.which(p)]
    if missing:
        raise Failed(f"{', '.join(missing)}: not found; on Debian: apt-get install fio btrfs-progs xfsprogs e2fsprogs")
    if os.geteuid() != 0:
        raise Failed("mounting takes root; run it as root")


def in_own_namespace():
    """Starts this program again in a mount namespace of its own."""
    if os.environ.get("ASHLAR_COMPARE") == "inside":
        return
    os.environ["ASHLAR_COMPARE"] = "inside"
    line = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
    os.execvp(line[0], line)


def on_signals():
    """Ends in order: what was started is stopped, what was mounted is unmounted."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))


def start(line, **more):
    """Starts a program that dies with this one."""
    return subprocess.Popen(line, preexec_fn=_dies_with_parent, **more)


def run(*line, check=True, **more):
    """Runs a program to its end: what it printed."""
    process = start(
        [str(word) for word in line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )
    out, error = process.communicate()
    if check and process.returncode != 0:
        last = (error or out).strip().splitlines()
        raise Failed(f"{' '.join(map(str, line))}: {last[-1] if last else process.returncode}")
    return out


class Members:
    """A folder in memory, or in a folder that was given, gone with the `with`."""

    def __init__(self, size, under=None):
        self.size, self.under = size, under

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="ashlar-compare-", dir=self.under)
        if not self.under:
            run("mount", "-t", "tmpfs", "-o", f"size={self.size}", "none", self.path)
        return self

    def __exit__(self, *_):
        if not self.under:
            run("umount", self.path, check=False)
            run("umount", "-l", self.path, check=False)
        shutil.rmtree(self.path, ignore_errors=True)

    def file(self, name):
        return os.path.join(self.path, name)


class SmallCache:
    """What is started within has `size` bytes of page cache, and uses its own pages again, where the kernel limits the
    memory of groups. Without, each page of a cold read is memory that nobody used for a while: on a virtual machine
    that costs up to four times as much as all the rest, on one side of a comparison or on both."""

    def __init__(self, size=96 << 20):
        self.size = size

    def __enter__(self):
        self.group = None
        with open("/proc/self/cgroup") as file:
            lines = [line.strip().split(":", 2) for line in file]
        for mount, members, limit in (("memory", "tasks", "memory.limit_in_bytes"), ("", "cgroup.procs", "memory.max")):
            own = next((path for _, names, path in lines if mount in names.split(",")), None)
            if own is None:
                continue
            at = os.path.join("/sys/fs/cgroup", mount, own.strip("/"))
            group = os.path.join(at, f"ashlar-compare{os.getpid()}")
            try:
                os.mkdir(group)
            except OSError:
                continue
            try:
                _write(os.path.join(group, limit), self.size)
                _write(os.path.join(group, members), os.getpid())
            except OSError:
                os.rmdir(group)
                continue
            self.group, self.home = group, os.path.join(at, members)
            return self
        note("the memory of groups cannot be limited here: cold reads through the page cache vary with the machine")
        return self

    def __exit__(self, *_):
        if self.group:
            _write(self.home, os.getpid())
            os.rmdir(self.group)


def _write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


# ---- processor time -------------------------------------------------------------------------------


def _times(path):
    """Processor seconds of a process or thread, and its flags; `None` if it is gone."""
    try:
        with open(f"{path}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICK, int(fields[6])


def kernel_threads():
    """Processor seconds of every kernel thread, by its number."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        times = _times(f"/proc/{name}")
        if times is None or not times[1] & KERNEL_THREAD:
            continue
        try:
            with open(f"/proc/{name}/schedstat") as file:
                found[name] = int(file.read().split()[0]) / 1e9
        except (OSError, IndexError):
            found[name] = times[0]
    return found


def _children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Spent:
    """Processor seconds and wall seconds of what runs within: programs that ended there, those of `pids`, and all
    kernel threads."""

    def __init__(self, pids=()):
        self.pids = list(pids)

    def _of_pids(self):
        times = [_times(f"/proc/{pid}") for pid in self.pids]
        return sum(t[0] for t in times if t)

    def __enter__(self):
        self.kernel_before, self.served_before = kernel_threads(), self._of_pids()
        self.programs_before, self.wall_before = _children(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.wall = time.monotonic() - self.wall_before
        self.programs = _children() - self.programs_before
        self.served = self._of_pids() - self.served_before
        before = self.kernel_before
        self.kernel = sum(max(0.0, t - before.get(n, 0.0)) for n, t in kernel_threads().items())
        self.all = self.programs + self.served + self.kernel


# ---- fio ------------------------------------------------------------------------------------------

FIO = ["--thread", "--group_reporting", "--randrepeat=0", "--norandommap", "--fallocate=none", "--invalidate=1"]


class Result:
    """One measurement. `unit` is `GiB` or the thing that is counted; `amount` how many."""

    def __init__(self, amount, unit, spent, overhead=0.0, p99=None, wall=None):
        self.amount, self.unit, self.p99 = amount, unit, p99
        self.wall = wall or spent.wall
        self.processor = max(0.0, spent.all - overhead)
        self.served = spent.served

    def rate(self):
        return self.amount / self.wall

    def each(self):
        return self.processor / self.amount if self.amount else float("nan")


class Fio:
    """Runs fio jobs, and knows what fio's own start costs."""

    def __init__(self):
        line = ["fio", *FIO, "--name=start", "--ioengine=null", "--rw=read", "--size=4k"]
        costs = []
        for _ in range(3):
            with Spent() as spent:
                run(*line)
            costs.append(spent.programs)
        self.start = statistics.median(costs)

    def job(self, options, pids):
        """The result of a job. Sequential ones count GiB, others operations."""
        with Spent(pids) as spent:
            text = run("fio", *FIO, "--name=job", "--output-format=json", *[f"--{option}" for option in options])
        job = json.loads(text[text.index("{"):])["jobs"][0]
        if job["error"]:
            raise Failed(f"fio {' '.join(options)}: {os.strerror(job['error'])}")
        sides = [job["read"], job["write"]]
        sequential = any(o in ("rw=read", "rw=write") for o in options)
        if sequential:
            amount, unit = sum(s["io_bytes"] for s in sides) / 2**30, "GiB"
        else:
            amount, unit = sum(s["total_ios"] for s in sides), "op"
        busiest = max(sides, key=lambda s: s["total_ios"])
        p99 = busiest["clat_ns"].get("percentile", {}).get("99.000000")
        wall = max(s["runtime"] for s in sides) / 1e3
        return Result(amount, unit, spent, self.start, p99 and p99 / 1e6, wall)


# ---- tables ---------------------------------------------------------------------------------------


def rate_text(unit, rate):
    """`579 MB/s`, `42.1 K/s`."""
    if unit == "GiB":
        return f"{rate * 2**30 / 1e6:.0f} MB/s"
    return f"{rate / 1e3:.1f} K/s"


def cost_text(unit, each):
    """`2.52 s/GiB`, `32 us`."""
    return f"{each:.2f} s/GiB" if unit == "GiB" else f"{each * 1e6:.0f} us"


def table(head, rows):
    """Prints a table in Markdown."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def about():
    """What was measured on, in a line."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    kernel = os.uname().release.split("-")[0]
    model = models[0] if models else os.uname().machine
    return f"{os.cpu_count()} processors ({model}), Linux {kernel}, {run('fio', '--version').strip()}"


def note(text):
    """Says how far it is, beside the table."""
    print(text, file=sys.stderr, flush=True)


def main(work):
    """Runs `work`; a failure is one line."""
    on_signals()
    try:
        work()
    except Failed as failure:
        note(f"{os.path.basename(sys.argv[0])}: {failure}")
        sys.exit(1)
