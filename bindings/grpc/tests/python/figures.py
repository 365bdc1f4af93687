"""Figures of the front, each beside a limit of the same run.

    figures.py SHMCCL SHMCCL_GRPC ECHO
"""

import os
import socket
import statistics
import subprocess
import sys
import threading
import time

import grpc

import gpu_sim_pb2 as pb
from pool import Pool
from replay import MIN, OPTIONS, Client, packed, put_request
from shmccl.v1 import pool_pb2 as v1

GROUPS = {1_000: 2.0, 50_000: 3.5, 100_000: 3.5, 200_000: 5.0, 450_000: 9.0}


def p50(action, rounds):
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append((time.perf_counter() - began) * 1e3)
    times.sort()
    return times[len(times) // 2], times[0], times[-1]


def groups(client):
    made = client.init(4)
    for count, most in GROUPS.items():
        for device in made.devices:
            client.put(device, MIN, packed([0.0]) * count)

        def group():
            client.start(made.commId)
            client.reduce(made.commId, count, 0, {rank: MIN for rank in range(4)})
            client.end(made.commId)

        group()
        middle, least, longest = p50(group, 60)
        print(f"group of all_reduce, 4 devices, {count} float64: p50 {middle:.2f} ms of {most} at most "
              f"(min {least:.2f}, max {longest:.2f})", flush=True)
    client.destroy(made.commId)


def copies(client, echo):
    made = client.init(1)
    device, data = made.devices[0], os.urandom(3_600_000)
    call = echo.unary_unary("/echo/Unary", pb.MemcpyRequest.SerializeToString, pb.MemcpyRequest.FromString)

    def there_and_back():
        client.put(device, MIN, data)
        client.get(device, MIN, len(data))

    # What the client itself does with a message is the same in both.
    def echoed():
        assert len(call(put_request(device, MIN, data)).hostToDevice.hostSrcData) == len(data)

    pairs = [(p50(there_and_back, 1)[0], p50(echoed, 1)[0]) for _ in range(41)]
    mine, bare = (statistics.median(side) for side in zip(*pairs))
    print(f"Memcpy of 3.6 MB there and back: p50 {mine:.2f} ms, an echo {bare:.2f} ms: {mine / bare:.2f} x", flush=True)

    chunk, n = os.urandom(1 << 20), 64
    chunks = [v1.WriteRequest(device=device.deviceId.value, address=MIN, data=chunk)] + [v1.WriteRequest(data=chunk)] * (n - 1)
    up = echo.stream_unary("/echo/Up", v1.WriteRequest.SerializeToString, v1.WriteResponse.FromString)
    down = echo.unary_stream("/echo/Down", v1.ReadRequest.SerializeToString, v1.ReadResponse.FromString)
    wanted = v1.ReadRequest(device=device.deviceId.value, address=MIN, len=n << 20)
    for name, mine, bare in [
            ("Write", lambda: client.pool.Write(iter(chunks)), lambda: up(iter(chunks))),
            ("Read", lambda: sum(1 for _ in client.pool.Read(wanted)), lambda: sum(1 for _ in down(wanted)))]:
        pairs = [(p50(mine, 1)[0], p50(bare, 1)[0]) for _ in range(9)]
        times = [statistics.median(side) for side in zip(*pairs)]
        print(f"{name} of 64 MiB: {times[0]:.0f} ms, a bare stream {times[1]:.0f} ms: {times[1] / times[0]:.2f} x its speed", flush=True)
    client.destroy(made.commId)


class Counter:
    """Passes one connection on, and counts its bytes."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.bytes = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, args=(host, int(port)), daemon=True).start()

    def serve(self, host, port):
        here, _ = self.listener.accept()
        there = socket.create_connection((host, port))
        for one, other in ((here, there), (there, here)):
            threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, one, other):
        while got := one.recv(1 << 16):
            self.bytes += len(got)
            other.sendall(got)


def loopback(address):
    counter = Counter(address)
    client = Client(counter.address)
    made = client.init(2)
    took = []
    for count in (8 << 20, 1):
        before = counter.bytes
        client.start(made.commId)
        client.reduce(made.commId, count, 0, {0: MIN, 1: MIN})
        client.end(made.commId)
        took.append(counter.bytes - before)
    print(f"bytes on the connection: {took[0]} for an all_reduce of 64 MiB, {took[1]} for one of 8 B")
    assert abs(took[0] - took[1]) < 1024
    client.destroy(made.commId)


def main(shmccl, front, echo_program):
    echo = subprocess.Popen([echo_program], stdout=subprocess.PIPE, text=True)
    try:
        channel = grpc.insecure_channel(echo.stdout.readline().strip(), OPTIONS)
        with Pool(shmccl, front, 4, memory="64MiB") as pool:
            server = pool.front("handout")
            groups(Client(server.addresses[0]))
            copies(Client(server.addresses[0]), channel)
            loopback(server.addresses[0])
    finally:
        echo.kill()
        echo.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
