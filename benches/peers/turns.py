"""Has the peers take turns at the same sizes, and writes down what each of them took and what the cores were meanwhile.

Every peer is started once and then sleeps but for its turns, so that they follow each other within milliseconds.
"""

import argparse
import json
import os
import pathlib
import select
import shutil
import struct
import subprocess
import sys
import time

import settings

PATIENCE = 120  # seconds that a turn, or starting, may take


class Peer:
    """All ranks of one program: asleep, each at a pipe of its own, but for their turn."""

    def __init__(self, name, plan, spec):
        self.name, self.ranks = name, plan.ranks
        self.memories = ["heap", "ordinary"] if name.startswith("shmccl") else [""]
        self.is_slow = name == "mpich" and settings.is_crowded(plan.ranks) and not plan.patient
        directory = pathlib.Path(plan.work) / "pipes" / self.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.turns = [self.pipe(directory / f"turns.{rank}") for rank in range(self.ranks)]
        self.rows = self.pipe(directory / "rows")
        self.log = directory / "log"
        command = [*spec["command"], plan.op, str(plan.sizes[-1]), str(directory)]
        command += [spec["place"]] if spec["place"] else []
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **spec["environment"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @staticmethod
    def pipe(path):
        os.mkfifo(path)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def takes(self, size, turn):
        """Whether it is measured at this size in this pass."""
        return not self.is_slow or (turn == 0 and size <= settings.MPICH_MOST)

    def turn(self, size, memory, warm_ms, slice_ms):
        """Measures; returns the row that rank 0 answers with."""
        words = struct.pack("4Q", size, int(warm_ms * 1e6), int(slice_ms * 1e6), memory == "ordinary")
        for pipe in self.turns:
            os.write(pipe, words)
        answer, until = b"", time.monotonic() + PATIENCE
        while not answer.endswith(b"\n"):
            if select.select([self.rows], [], [], 0.2)[0]:
                answer += os.read(self.rows, 4096)
            elif self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"peers: {self.name} with {self.ranks} ranks failed at {size} bytes: {self.complaint()}")
        word, _, ranks, bytes_, _, samples, p10, p50, p90, wrong = answer.decode().strip().split(",")
        if (word, int(ranks), int(bytes_)) != ("row", self.ranks, size) or int(wrong):
            sys.exit(f"peers: {self.name} with {self.ranks} ranks: wrong data or size: {answer.decode().strip()}")
        return {"samples": int(samples), "p10_ns": float(p10), "p50_ns": float(p50), "p90_ns": float(p90)}

    def complaint(self):
        """The first line that says something."""
        lines = (line.strip() for line in self.log.read_text(errors="replace").splitlines())
        said = next((line for line in lines if any(map(str.isalnum, line))), "it says nothing")
        return f"{said} ({self.log})"

    def end(self):
        """Closes the pipes, at which the ranks end."""
        for pipe in [*self.turns, self.rows]:
            os.close(pipe)
        for insist in [self.process.terminate, self.process.kill]:
            try:
                return self.process.wait(20)
            except subprocess.TimeoutExpired:
                insist()
        return self.process.wait()


class Probe:
    """What a flag takes from core to core, when it is asked."""

    def __init__(self, command):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe)

    def ask(self):
        self.process.stdin.write(b"?")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def rotation(plan, peers, size, turn):
    """Who takes a turn at this size in this pass, beginning with another one each time."""
    order = [(peer, memory) for peer in peers if peer.takes(size, turn) for memory in peer.memories]
    first = (turn + plan.round) % max(len(order), 1)
    return order[first:] + order[:first]


def measure(plan, peers, probe, rows):
    for turn in range(plan.passes):
        for size in plan.sizes:
            before = probe.ask()
            for peer, memory in rotation(plan, peers, size, turn):
                row = {"op": plan.op, "ranks": peer.ranks, "bytes": size, "round": plan.round, "pass": turn}
                row["column"] = memory or peer.name
                row.update(peer.turn(size, memory, plan.warm_ms, plan.slice_ms))
                after = probe.ask()
                row.update(before_ns=before, after_ns=after)
                before = after
                rows.write(json.dumps(row) + "\n")
        rows.flush()


def sizes(least, most, factor):
    """From `least` to `most`, both included."""
    found = [least]
    while found[-1] < most:
        found.append(min(found[-1] * factor, most))
    return found


def wanted():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--least", type=int, required=True, help="bytes")
    parser.add_argument("--most", type=int, required=True, help="bytes")
    parser.add_argument("--factor", type=int, required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--warm-ms", type=float, default=3)
    parser.add_argument("--slice-ms", type=float, default=20)
    parser.add_argument("--peers", required=True, help="names and commas")
    parser.add_argument("--patient", action="store_true", help="measure what is slow at all sizes, too")
    parser.add_argument("--shmccl", required=True, help="the launcher")
    parser.add_argument("--peer", required=True, help="the program of collective.rs")
    parser.add_argument("--work", required=True)
    parser.add_argument("--rows", required=True, help="the file to append to")
    plan = parser.parse_args()
    # Blocks of the operations that have one for each rank are whole elements.
    block = 4 * plan.ranks if plan.op in ("all_gather", "reduce_scatter", "all_to_all") else 4
    plan.sizes = [size for size in sizes(plan.least, plan.most, plan.factor) if size % block == 0]
    return plan


def spec_of(name, plan):
    if name == "shmccl":
        return settings.shmccl(plan.shmccl, plan.peer, plan.ranks, plan.sizes[-1])
    return getattr(settings, name)(plan.work, plan.ranks)


def main():
    plan = wanted()
    peers, probe = [], Probe([f"{plan.work}/probe"])
    try:
        for name in plan.peers.split(",") if plan.sizes else []:
            peers.append(Peer(name, plan, spec_of(name, plan)))
        with open(plan.rows, "a") as rows:
            measure(plan, peers, probe, rows)
    finally:
        probe.process.stdin.close()
        probe.process.wait()
        for peer in peers:
            peer.end()


main()
