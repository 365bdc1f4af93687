"""A pool and its fronts as real processes, in a runtime directory of their own."""

import os
import signal
import subprocess
import tempfile
import time


class Pool:
    """A coordinator with devices, and fronts that listen at free ports, by the name of a dialect."""

    def __init__(self, shmccl, front, devices=4, flags=(), memory="8MiB"):
        self.shmccl, self.front_program = shmccl, front
        self.directory = tempfile.TemporaryDirectory(prefix="shmccl-grpc-")
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=self.directory.name)
        self.processes = []
        self.coordinator_flags = ["-n", str(devices), "--memory", memory, *flags]
        self.coordinator = self.start_coordinator()
        self.until(lambda: self.ctl("devices").count("0x1000") == devices)

    def start(self, *command):
        log = open(os.path.join(self.directory.name, f"log-{len(self.processes)}"), "w+")
        process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        process.log = log
        self.processes.append(process)
        return process

    def start_coordinator(self):
        return self.start(self.shmccl, "coordinator", *self.coordinator_flags)

    def ctl(self, *arguments):
        command = [self.shmccl, "ctl", *map(str, arguments)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout

    def front(self, *dialects, ports=None):
        """Starts a front with a listener for each dialect. Returns it and their addresses."""
        places = [f"127.0.0.1:{port}" for port in ports or [0] * len(dialects)]
        listens = [word for place, dialect in zip(places, dialects) for word in ("--listen", f"{place},{dialect}")]
        front = self.start(self.front_program, *listens)
        self.until(lambda: self.said(front).count("listens at 127.0.0.1") >= len(dialects))
        lines = [line for line in self.said(front).splitlines() if "shmccl-grpc: listens at" in line]
        front.addresses = [line.split(" at ")[1].split(": ")[0] for line in lines]
        return front

    def said(self, process):
        with open(process.log.name) as log:
            return log.read()

    def device_addresses(self, front):
        """Where devices listen, by number; of the first listener."""
        found = {}
        for line in self.said(front).splitlines():
            words = line.split()
            if " listens at " in line and words[1] == "device":
                found.setdefault(int(words[2]), words[-1])
        return found

    @staticmethod
    def until(holds, patience=60):
        end = time.monotonic() + patience
        while not holds():
            if time.monotonic() > end:
                raise AssertionError("it does not come about")
            time.sleep(0.02)

    def close(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                # One that a failed step has left stopped ends as well.
                process.send_signal(signal.SIGCONT)
        for process in reversed(self.processes):
            process.wait()
            process.log.close()
        self.directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
