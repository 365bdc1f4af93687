"""What happens to clients, fronts, coordinators and devices that misbehave or die.

    trials.py SHMCCL SHMCCL_GRPC [STEP...]

SHMCCL_LONG=1 takes more rounds.
"""

import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import grpc

import gpu_sim_pb2 as pb
import gpu_sim_pb2_grpc as course
from pool import Pool
from replay import (
    FAILED, IN_PROGRESS, MIN, OPTIONS, SUCCESS, Client, Code, packed, receive, refused, send, stream_status)
from shmccl.v1 import pool_pb2 as v1

HEADERS, GO_AWAY, END_STREAM = 1, 7, 1
LONG = bool(os.environ.get("SHMCCL_LONG"))
SEED = int(os.environ.get("SHMCCL_SEED", random.randrange(1 << 32)))


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def limits(pool):
    """A message that is too long is refused, and whoever asks in vain is told why."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    made = client.init(2)
    with refused(Code.RESOURCE_EXHAUSTED):
        client.put(made.devices[0], MIN, bytes(65 << 20))
    before = resident(front)
    announce(front.addresses[0], 0xFFFFFFFF)
    assert resident(front) < before + (16 << 20), "nothing is allocated for what is only announced"
    with refused(Code.UNIMPLEMENTED):
        client.stub.CommRemoveDevice(pb.CommRemoveDeviceRequest(commId=made.commId))
    with refused(Code.UNIMPLEMENTED):
        client.channel.unary_unary("/gpu_sim.Nothing/At")(b"")
    with refused(Code.INVALID_ARGUMENT):
        client.reduce(made.commId, 1, 4)
    with refused(Code.OUT_OF_RANGE):
        client.reduce(made.commId, 1 << 61)
    client.destroy(made.commId)
    kill(front)


def announce(address, length):
    """Sends the beginning of a message that says it has this length, and awaits the answer."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(20)
        connection.sendall(http2_call("/gpu_sim.GPUCoordinator/Memcpy", b"\x00" + struct.pack(">I", length) + b"x"))
        answer = connection.makefile("rb")
        kind = None
        while kind != HEADERS:
            head = answer.read(9)
            kind = head[3]
            answer.read(int.from_bytes(head[:3], "big"))


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def http2_call(path, body, more=(), flags=0):
    """The bytes of a connection with one call, its headers in literals."""
    def literal(name, value):
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = b"".join(literal(*pair) for pair in [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more])
    return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 4, 1, headers)
            + frame(0, flags, 1, body))


def deadlines(pool):
    """A deadline ends the call, and not the group."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    made = client.init(2)
    client.put(made.devices[0], MIN, packed([1.0] * 400_000))
    stopped = made.devices[1].deviceId.value
    client.start(made.commId)
    client.reduce(made.commId, 400_000)
    os.kill(stopped, signal.SIGSTOP)
    with refused(Code.DEADLINE_EXCEEDED):
        client.end(made.commId, timeout=0.2)
    assert client.status(made.commId) == IN_PROGRESS
    os.kill(stopped, signal.SIGCONT)
    Pool.until(lambda: client.status(made.commId) == SUCCESS)
    assert client.get(made.devices[1], MIN, 8) == packed([1.0])
    client.destroy(made.commId)
    kill(front)


def crowds(pool):
    """Writers that have stalled, and calls that wait, keep nobody else from being served."""
    front = pool.front("handout")
    clients = [Client(front.addresses[0]) for _ in range(4)]
    client = clients[0]
    made = client.init(2)
    device, leave = made.devices[0], threading.Event()

    def stalled(*first):
        yield from first
        leave.wait()

    first = lambda at: v1.WriteRequest(device=device.deviceId.value, address=MIN + at, data=b"x")
    writers = [clients[1].pool.Write.future(stalled(first(at))) for at in range(100)]
    Pool.until(lambda: client.get(device, MIN, 100, timeout=60) == b"x" * 100)
    writers += [it.pool.Write.future(stalled()) for it in clients[2:] for _ in range(100)]
    health = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    for _ in range(20):
        assert client.status(made.commId, timeout=60) == IN_PROGRESS
        assert health(b"", timeout=60)
    client.reduce(made.commId, 1)
    [it.cancel() for it in writers]
    leave.set()
    assert client.get(device, MIN + 8, 8, timeout=60) == b"x" * 8, "their places are free again"
    client.destroy(made.commId)
    kill(front)


def lasting(pool):
    """Calls that last are bounded, and end with their deadlines."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    made = client.init(1)
    watch = lambda: client.pool.Watch(v1.WatchRequest(comm=made.commId))
    all_watches = [watch() for _ in range(64)]
    assert all(next(it).comm == made.commId for it in all_watches)
    with refused(Code.RESOURCE_EXHAUSTED):
        next(watch())
    [it.cancel() for it in all_watches]
    Pool.until(lambda: watches(watch()))
    host, port = front.addresses[0].rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(60)
        connection.sendall(http2_call("/shmccl.v1.Pool/Watch", bytes(5), [(b"grpc-timeout", b"200m")], END_STREAM))
        answer, is_over = connection.makefile("rb"), False
        while not is_over:
            head = answer.read(9)
            is_over = head[3] == HEADERS and bool(head[4] & END_STREAM)
            answer.read(int.from_bytes(head[:3], "big"))
    client.destroy(made.commId)
    kill(front)


def watches(watch):
    try:
        return bool(next(watch))
    except grpc.RpcError as error:
        assert error.code() == Code.RESOURCE_EXHAUSTED, error
        return False


def copies_kept(pool):
    """A copy in pieces ends with its communicator, and touches nothing of the next one."""
    with Pool(pool.shmccl, pool.front_program, 1, memory="128MiB") as one:
        client = Client(one.front("handout").addresses[0])
        made = client.init(1)
        device, go_on = made.devices[0], threading.Event()
        number = device.deviceId.value

        def pieces():
            yield v1.WriteRequest(device=number, address=MIN, data=b"mine")
            go_on.wait()
            yield v1.WriteRequest(data=b"mine")

        writing = client.pool.Write.future(pieces())
        Pool.until(lambda: client.get(device, MIN, 4) == b"mine")
        reading = client.pool.Read(v1.ReadRequest(device=number, address=MIN, len=100 << 20))
        assert next(reading).data.startswith(b"mine")
        client.destroy(made.commId)
        assert client.init(1).devices[0].deviceId == device.deviceId
        go_on.set()
        with refused(Code.NOT_FOUND):
            writing.result()
        try:
            list(reading)
        except grpc.RpcError as error:
            # The device hangs up where bytes are on their way.
            assert error.code() in (Code.NOT_FOUND, Code.ABORTED), error
        else:
            raise AssertionError("the rest was read from the next communicator")
        assert client.get(device, MIN, 8) == bytes(8)


def streams_apart(pool):
    """Streams are those of their communicator: they meet no others, and end with it."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    Pool.until(lambda: len(pool.device_addresses(front)) == 4)
    at = pool.device_addresses(front)
    device = lambda it: course.GPUDeviceStub(grpc.insecure_channel(at[it.deviceId.value], OPTIONS))
    one, other = client.init(2), client.init(2)
    target, sender = device(one.devices[1]), device(other.devices[0])
    first = pb.StreamId(value=1)
    receive(target, first, MIN, 8, 0)
    assert [send(sender, MIN, 8, 1).value for _ in range(2)] == [1, 2]
    assert stream_status(client, target, first) == IN_PROGRESS
    with refused(Code.NOT_FOUND):
        stream_status(client, target, pb.StreamId(value=2))
    client.destroy(one.commId)
    with refused(Code.NOT_FOUND):
        stream_status(client, target, first)
    # Another one has ended the communicator.
    pool.ctl("destroy", other.commId)
    again = client.init(4)
    with refused(Code.NOT_FOUND):
        stream_status(client, sender, first)
    client.destroy(again.commId)
    kill(front)


def clients_gone(pool):
    """A communicator that was made for a client that has gone meanwhile is ended."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    pool.coordinator.send_signal(signal.SIGSTOP)
    with refused(Code.DEADLINE_EXCEEDED):
        client.stub.CommInit(pb.CommInitRequest(numDevices=4), timeout=0.3)
    pool.coordinator.send_signal(signal.SIGCONT)
    Pool.until(lambda: state_of(client, 1) == v1.DESTROYED)
    client.destroy(client.init(4).commId)
    kill(front)


def state_of(client, comm):
    try:
        return client.pool.Status(v1.StatusRequest(comm=comm)).state
    except grpc.RpcError as error:
        assert error.code() == Code.NOT_FOUND, error
        return None


def strangers(pool):
    """Another user is refused on TCP, and does not even reach the socket."""
    front = pool.front("handout")
    if os.geteuid() != 0:
        print("strangers: skipped, as only root can become another user")
        return
    program = (
        "import datetime, grpc, os, sys\n"
        "import gpu_sim_pb2 as pb, gpu_sim_pb2_grpc as s\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: s.GPUCoordinatorStub(grpc.insecure_channel(sys.argv[1], [('grpc.default_authority', 'localhost')])).CommInit(pb.CommInitRequest(numDevices=1))\n"
        "except grpc.RpcError as error: print(error.code().name, error.details())\n")
    path = os.path.join(pool.directory.name, "shmccl", "grpc")
    socket_front = pool.start(pool.front_program)
    Pool.until(lambda: os.path.exists(path))
    for address, code in [(front.addresses[0], "PERMISSION_DENIED"), (f"unix:{path}", "UNAVAILABLE")]:
        told = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True)
        assert told.stdout.startswith(code), told
    assert Client(f"unix:{path}").init(1).success
    [kill(it) for it in (front, socket_front)]


def secrets(pool):
    """Whoever comes from elsewhere needs TLS and the token."""
    made = lambda name: os.path.join(pool.directory.name, name)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", made("key"), "-out", made("certificate")],
        check=True, capture_output=True)
    with open(made("token"), "w") as token:
        token.write("0123456789abcdef\n")
    bare = pool.start(pool.front_program, "--listen", "0.0.0.0:0")
    assert bare.wait() == 1 and "--token-file" in pool.said(bare), pool.said(bare)
    front = pool.start(
        pool.front_program, "--listen", "0.0.0.0:0", "--tls-cert", made("certificate"), "--tls-key", made("key"),
        "--token-file", made("token"))
    Pool.until(lambda: "listens at 0.0.0.0" in pool.said(front))
    port = pool.said(front).split("0.0.0.0:")[1].split(":")[0]
    with open(made("certificate"), "rb") as certificate:
        credentials = grpc.ssl_channel_credentials(certificate.read())
    channel = grpc.secure_channel(f"localhost:{port}", credentials)
    call = channel.unary_unary("/gpu_sim.GPUCoordinator/CommInit", None, pb.CommInitResponse.FromString)
    request = pb.CommInitRequest(numDevices=1).SerializeToString()
    for metadata in ([], [("authorization", "Bearer 0123456789abcdeX")]):
        with refused(Code.UNAUTHENTICATED):
            call(request, metadata=metadata)
    assert call(request, metadata=[("authorization", "Bearer 0123456789abcdef")]).success
    assert was_told_to_go(port, made("certificate")), "whoever has no token keeps no connection"
    with refused(Code.UNAVAILABLE):
        Client(f"localhost:{port}").init(1)
    kill(front)


def was_told_to_go(port, certificate):
    """Makes a call without the token. Returns whether it is answered, and the connection ended."""
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("localhost", int(port))) as plain:
        plain.settimeout(20)
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(http2_call("/gpu_sim.GPUCoordinator/CommInit", bytes(5)))
            answer, awaited = connection.makefile("rb"), {HEADERS, GO_AWAY}
            while awaited and (head := answer.read(9)):
                awaited.discard(head[3])
                answer.read(int.from_bytes(head[:3], "big"))
            return not awaited


def descriptions(pool):
    """Reflection in both versions, and a health that follows the coordinator."""
    front = pool.front("handout")
    channel = grpc.insecure_channel(front.addresses[0], OPTIONS)
    for version in ("v1", "v1alpha"):
        ask = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        # List services; then the file of one symbol.
        listed, found = ask(iter([b"\x3a\x01*", b"\x22\x14shmccl.v1.CommStatus"]))
        for service in (b"gpu_sim.GPUCoordinator", b"shmccl.v1.Pool", b"grpc.health.v1.Health"):
            assert service in listed, listed
        assert found
    health = channel.unary_unary("/grpc.health.v1.Health/Check")
    serving, not_serving = b"\x08\x01", b"\x08\x02"
    Pool.until(lambda: health(b"") == serving)
    pool.coordinator.send_signal(signal.SIGSTOP)
    Pool.until(lambda: health(b"") == not_serving, patience=30)
    pool.coordinator.send_signal(signal.SIGCONT)
    Pool.until(lambda: health(b"") == serving)
    kill(pool.coordinator)
    Pool.until(lambda: health(b"") == not_serving)
    pool.coordinator = pool.start_coordinator()
    Pool.until(lambda: health(b"") == serving)
    kill(front)


def fronts_killed(pool):
    """A front is killed with groups in progress: the next one goes on at once."""
    rounds = 200 if LONG else 10
    front = pool.front("handout")
    port = front.addresses[0].rsplit(":", 1)[1]
    client = Client(front.addresses[0])
    comm = client.init(3)
    count, draw, slowest = 50_000, random.Random(SEED), 0.0
    for turn in range(rounds):
        client = Client(front.addresses[0])
        for rank, device in enumerate(comm.devices):
            client.put(device, MIN, packed([float(turn + rank)]) * count)
        noticed = []

        def work():
            try:
                client.start(comm.commId)
                client.reduce(comm.commId, count)
                client.end(comm.commId)
            except grpc.RpcError as error:
                noticed.append((error.code(), time.monotonic()))

        worker = threading.Thread(target=work)
        worker.start()
        time.sleep(draw.random() * 0.008)
        kill(front)
        killed_at = time.monotonic()
        worker.join()
        assert all(code == Code.UNAVAILABLE for code, _ in noticed), noticed
        slowest = max([slowest, *(at - killed_at for _, at in noticed)])
        front = pool.front("handout", ports=[port])
        following = Client(front.addresses[0])
        sums = packed([float(3 * turn + 3)]) * count
        inputs = packed([float(turn)]) * count
        leave_no_group_open(following, comm.commId)
        result = following.get(comm.devices[0], MIN, 8 * count)
        assert result in (sums, inputs), f"round {turn}: {struct.unpack('<d', result[:8])}"
    following.destroy(comm.commId)
    assert slowest < 1 or not LONG, f"a typed status took {slowest} s"
    print(f"fronts_killed: {rounds} rounds, the slowest status after {slowest * 1000:.0f} ms, seed {SEED}")
    kill(front)


def leave_no_group_open(client, comm):
    """Ends the group that the killed front has left open, if it has."""
    try:
        client.end(comm)
    except grpc.RpcError as error:
        assert error.code() == Code.FAILED_PRECONDITION, error


def coordinators_killed(pool):
    """A coordinator is killed: calls are UNAVAILABLE until the next one serves the same devices."""
    front = pool.front("handout", "restart")
    client = Client(front.addresses[0])
    made = client.init(3)
    rounds, slowest = 20 if LONG else 2, 0.0
    for turn in range(1, rounds + 1):
        for device in made.devices:
            client.put(device, MIN, packed([float(turn)]))
        kill(pool.coordinator)
        began = time.monotonic()
        with refused(Code.UNAVAILABLE):
            client.status(made.commId)
        slowest = max(slowest, time.monotonic() - began)
        pool.coordinator = pool.start_coordinator()
        Pool.until(lambda: serves(client, made.commId))
        assert client.get(made.devices[0], MIN, 8) == packed([float(turn)])
        client.reduce(made.commId, 1)
        client.reduce(made.commId, 0)
        assert client.get(made.devices[2], MIN, 8) == packed([3.0 * turn])
    client.destroy(made.commId)
    group_gone(pool, front)
    assert slowest < 1 or not LONG, f"a typed status took {slowest} s"
    print(f"coordinators_killed: {rounds} rounds, the slowest status after {slowest * 1000:.0f} ms")
    kill(front)


def untold(pool):
    """What is under way when the coordinator is killed goes on, and is not said to be free to be called again."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    made = client.init(2)
    comm, stopped = made.commId, made.devices[1].deviceId.value
    client.reduce(comm, 1)
    for is_grouped in (True, False):
        for device in made.devices:
            client.put(device, MIN, packed([1.0]))
        if is_grouped:
            client.start(comm)
            client.reduce(comm, 1)
        os.kill(stopped, signal.SIGSTOP)
        outcomes = []

        def execute():
            try:
                client.end(comm) if is_grouped else client.reduce(comm, 1)
            except grpc.RpcError as error:
                outcomes.append((error.code(), "GetCommStatus" in error.details()))

        worker = threading.Thread(target=execute)
        worker.start()
        Pool.until(lambda: client.status(comm) == IN_PROGRESS)
        kill(pool.coordinator)
        worker.join()
        os.kill(stopped, signal.SIGCONT)
        pool.coordinator = pool.start_coordinator()
        assert outcomes == [(Code.UNKNOWN, True)], outcomes
        Pool.until(lambda: serves(client, comm))
        Pool.until(lambda: client.status(comm) != IN_PROGRESS)
        assert client.status(comm) == SUCCESS
        assert all(client.get(device, MIN, 8) == packed([2.0]) for device in made.devices), "it was done once"
        with refused(Code.FAILED_PRECONDITION):
            client.end(comm)
    client.destroy(comm)
    kill(front)


def group_gone(pool, front):
    """A group that has gone with its coordinator is not said to have been executed."""
    client = Client(front.addresses[1])
    made = client.init(2)
    client.pool.Grow(v1.GrowRequest(comm=made.commId, devices=1))
    client.start(made.commId)
    client.reduce(made.commId, 1)
    kill(pool.coordinator)
    with refused(Code.UNAVAILABLE):
        client.end(made.commId)
    pool.coordinator = pool.start_coordinator()
    Pool.until(lambda: serves(client, made.commId))
    with refused(Code.FAILED_PRECONDITION):
        client.end(made.commId)
    client.destroy(made.commId)


def serves(client, comm):
    try:
        client.status(comm)
        return True
    except grpc.RpcError as error:
        assert error.code() == Code.UNAVAILABLE, error
        return False


def devices_killed(pool):
    """A device is killed in the middle of a group that restarts: sums of the survivors' inputs."""
    front = pool.front("restart")
    client, draw = Client(front.addresses[0]), random.Random(SEED)
    count, kinds = 50_000, {}
    for turn in range(200 if LONG else 8):
        Pool.until(lambda: free_devices(pool) >= 3)
        made = client.init(3)
        for rank, device in enumerate(made.devices):
            client.put(device, MIN, packed([10.0 ** rank]) * count)
        client.start(made.commId)
        client.reduce(made.commId, count)
        victim = made.devices[draw.randrange(3)].deviceId.value
        killer = threading.Timer(draw.random() * 0.006, os.kill, (victim, signal.SIGKILL))
        killer.start()
        client.end(made.commId)
        killer.join()
        left = [rank for rank, device in enumerate(made.devices) if device.deviceId.value != victim]
        whole, survivors = packed([111.0]) * count, packed([sum(10.0 ** rank for rank in left)]) * count
        results = [client.get(made.devices[rank], MIN, 8 * count) for rank in left]
        assert results[0] == results[1] and results[0] in (whole, survivors), (turn, results[0][:8])
        kinds[results[0] == whole] = kinds.get(results[0] == whole, 0) + 1
        client.destroy(made.commId)
    print(f"devices_killed: {kinds.get(False, 0)} times without the dead, {kinds.get(True, 0)} times before, seed {SEED}")
    kill(front)


def lost_while_open(pool):
    """A device dies in a group that takes calls: it takes more, and those that are left execute it once."""
    front = pool.front("restart")
    client, count = Client(front.addresses[0]), 1000
    made = client.init(3)
    comm, second = made.commId, MIN + 8 * count
    for rank, device in enumerate(made.devices):
        client.put(device, MIN, packed([10.0 ** rank]) * (2 * count))
    client.start(comm)
    client.reduce(comm, count)
    os.kill(made.devices[1].deviceId.value, signal.SIGKILL)
    Pool.until(lambda: client.pool.Status(v1.StatusRequest(comm=comm)).epoch == 2)
    client.reduce(comm, count, 0, {0: second, 1: second, 2: second})
    client.end(comm)
    assert client.status(comm) == SUCCESS
    for rank in (0, 2):
        assert client.get(made.devices[rank], MIN, 16 * count) == packed([101.0]) * (2 * count), rank
    client.destroy(comm)
    kill(front)


def copies_cut(pool):
    """A device is killed while it is copied from: all of it comes, or a typed status does."""
    front = pool.front("handout")
    client, draw = Client(front.addresses[0]), random.Random(SEED)
    data, ends = os.urandom(8_000_000), {}
    for _ in range(40 if LONG else 8):
        Pool.until(lambda: free_devices(pool) >= 1)
        device = client.init(1).devices[0]
        client.put(device, MIN, data)
        killer = threading.Timer(draw.random() * 0.02, os.kill, (device.deviceId.value, signal.SIGKILL))
        killer.start()
        try:
            assert client.get(device, MIN, len(data)) == data
            end = "whole"
        except grpc.RpcError as error:
            end = error.code().name
        killer.join()
        ends[end] = ends.get(end, 0) + 1
    print(f"copies_cut: {ends}, seed {SEED}")
    assert set(ends) <= {"whole", "ABORTED", "NOT_FOUND"}
    kill(front)


def free_devices(pool):
    return sum(1 for line in pool.ctl("devices").splitlines() if "free" in line)


def devices_stopped(pool):
    """A device that stands still for less than X of Y goes on; for more it is lost."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    made = client.init(2)
    still = made.devices[0].deviceId.value
    os.kill(still, signal.SIGSTOP)
    time.sleep(0.2)
    os.kill(still, signal.SIGCONT)
    client.reduce(made.commId, 3)
    assert client.status(made.commId) == SUCCESS
    os.kill(still, signal.SIGSTOP)
    Pool.until(lambda: client.status(made.commId) == FAILED)
    client.destroy(made.commId)
    kill(front)


def fuzz(pool):
    """Bytes at random, in whole and in broken frames: the front answers afterwards."""
    front = pool.front("handout", "shifted")
    ends, draw = time.monotonic() + (60 if LONG else 3), random.Random(SEED)
    paths = [f"/gpu_sim.GPUCoordinator/{name}" for name in
             ("CommInit", "AllReduceRing", "Memcpy", "GroupEnd", "GetCommStatus")] + ["/shmccl.v1.Pool/Write", "/"]
    sent = 0
    while time.monotonic() < ends:
        host, port = draw.choice(front.addresses).rsplit(":", 1)
        body = draw.randbytes(draw.randrange(200))
        call = http2_call(draw.choice(paths), draw.choice([
            body, b"\x00" + struct.pack(">I", len(body)) + body, b"\x01" + struct.pack(">I", 1 << 31) + body]))
        if draw.random() < 0.5:
            call = bytearray(call)
            for _ in range(draw.randrange(1, 9)):
                call[draw.randrange(len(call))] = draw.randrange(256)
        if draw.random() < 0.3:
            call = draw.randbytes(draw.randrange(1, 4000))
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(0.002)
            try:
                connection.sendall(call)
                connection.recv(4096)
            except OSError:
                pass
        sent += 1
    assert front.poll() is None, "the front has ended"
    client = Client(front.addresses[0])
    made = client.init(1)
    client.destroy(made.commId)
    assert resident(front) < 128 << 20
    print(f"fuzz: {sent} connections, seed {SEED}")
    kill(front)


def stops(pool):
    """A front that is told to end leaves no socket behind."""
    directory = os.path.join(pool.directory.name, "shmccl")
    for _ in range(100 if LONG else 10):
        front = pool.start(pool.front_program)
        Pool.until(lambda: pool.said(front).count("listens at") == 5)
        front.terminate()
        assert front.wait() == 0
        left = [name for name in os.listdir(directory) if name.startswith("grpc")]
        assert not left, left


def resident(process):
    """The resident memory of a process, in bytes."""
    with open(f"/proc/{process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_time(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        words = stat.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def idle(pool):
    """A front that nobody asks takes hardly any time, and little memory."""
    front = pool.front("handout")
    client = Client(front.addresses[0])
    client.destroy(client.init(2).commId)
    client.channel.close()
    before = processor_time(front)
    time.sleep(10 if LONG else 2)
    took, memory = processor_time(front) - before, resident(front)
    print(f"idle: {took:.2f} s of processor time, {memory / 2 ** 20:.1f} MiB")
    assert took < 0.1 and memory < 20 << 20
    kill(front)


STEPS = [
    limits, deadlines, crowds, lasting, copies_kept, streams_apart, clients_gone, strangers, secrets, descriptions,
    fronts_killed, coordinators_killed, untold, copies_cut, devices_killed, lost_while_open, devices_stopped, stops,
    fuzz, idle]


def main(shmccl, front, *wanted):
    for step in STEPS:
        if wanted and step.__name__ not in wanted:
            continue
        began = time.monotonic()
        # Only where devices are to be found to hang does one that stands still count as lost.
        hangs = ["5/10", "--heartbeat", "1s"] if step is devices_stopped else ["never", "--patience", "60s"]
        with Pool(shmccl, front, 4, ["--restart", "512", "--hung-after", *hangs]) as pool:
            step(pool)
        print(f"{step.__name__}: ok, {time.monotonic() - began:.2f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
