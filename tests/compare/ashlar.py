"""An Ashlar daemon of its own, for a comparison.

Invariants: its socket, state and members lie in one folder that is given; the array's name is one that nobody else
on the machine has, since /dev/ashlar is the machine's; it has ended when the `with` has.
"""

import json
import os
import subprocess
import time

from machine import Failed, run, start


class Daemon:
    """A daemon of program `program` with everything of it in `folder`."""

    def __init__(self, program, folder, arguments=()):
        self.program, self.folder, self.arguments = program, folder, list(arguments)
        self.socket = os.path.join(folder, "control.sock")
        self.nbd = os.path.join(folder, "nbd.sock")
        self.array = f"compare{os.getpid()}"

    def __enter__(self):
        if not os.access(self.program, os.X_OK):
            raise Failed(f"{self.program}: no such program; give the path of a release build of ashlar")
        self.log = open(os.path.join(self.folder, "daemon.log"), "w")
        state = os.path.join(self.folder, "state")
        line = [self.program, "daemon", "--socket", self.socket, "--state", state, *self.arguments]
        self.process = start(line, stdout=self.log, stderr=self.log)
        for _ in range(200):
            if os.path.exists(self.socket):
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.__exit__()
        raise Failed(f"{self.program} daemon: it did not start; the last of its log: {self._last()}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            run(self.program, "export", self.array, "--socket", self.socket, check=False)
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def _last(self):
        with open(self.log.name) as file:
            lines = file.read().strip().splitlines()
        return lines[-1] if lines else "empty"

    @property
    def pids(self):
        return [self.process.pid]

    def do(self, *words, check=True):
        """Runs a verb."""
        return run(self.program, *words, "--socket", self.socket, check=check)

    def status(self):
        """The array, as `status -j` has it."""
        return json.loads(self.do("status", self.array, "-j"))["arrays"][0]

    def create(self, layout, members, size, *more):
        """An array on `members` sparse files of `size`: their paths."""
        files = [os.path.join(self.folder, f"m{i}.img") for i in range(members)]
        self.do("create", self.array, "--layout", layout, "--file-size", size, *more, *files)
        return files

    def volume(self, name, size, *how):
        """A volume, served as `how` says."""
        self.do("volume", "create", f"{self.array}/{name}", "--size", size)
        self.do("volume", "attach", f"{self.array}/{name}", *how)

    def device(self, name):
        """The block device of a volume attached as loop."""
        return os.path.realpath(f"/dev/ashlar/{self.array}/{name}")

    def uri(self, name):
        """The address of a volume attached to `self.nbd`."""
        return f"nbd+unix:///{self.array}/{name}?socket={self.nbd}"
