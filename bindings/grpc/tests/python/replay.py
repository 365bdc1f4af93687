"""What clients of the course do, written from the interface alone, against real processes.

    replay.py SHMCCL SHMCCL_GRPC [STEP...]
"""

import contextlib
import math
import os
import signal
import struct
import sys
import tempfile
import threading
import time

import grpc

import gpu_sim_pb2 as pb
import gpu_sim_pb2_grpc as course
from pool import Pool
from shmccl.v1 import pool_pb2 as v1
from shmccl.v1 import pool_pb2_grpc as pool_services

OPTIONS = [
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
    # A connection of its own for each channel, also after another one has failed.
    ("grpc.use_local_subchannel_pool", 1),
    # The server's HTTP library takes no path of a socket for an authority.
    ("grpc.default_authority", "localhost"),
]
MIN = 0x1000


def packed(values):
    return struct.pack(f"<{len(values)}d", *values)


def put_request(device, address, data):
    # Filled in place: a message that is given to the constructor of another one is copied.
    request = pb.MemcpyRequest()
    copy = request.hostToDevice
    copy.hostSrcData, copy.dstDeviceId.value, copy.dstMemAddr.value = data, device.deviceId.value, address
    return request


class Client:
    """A client of one listener. Numbers of enumerations and counts are what its dialect has."""

    def __init__(self, address, dialect=""):
        self.channel = grpc.insecure_channel(address, OPTIONS)
        self.stub = course.GPUCoordinatorStub(self.channel)
        self.pool = pool_services.PoolStub(self.channel)
        self.shift = 1 if "shifted" in dialect else 0
        self.unit = 8 if "bytes" in dialect or "shifted" in dialect else 1

    def init(self, n):
        answer = self.stub.CommInit(pb.CommInitRequest(numDevices=n))
        assert answer.success and len(answer.devices) == n
        assert len({device.deviceId.value for device in answer.devices}) == n
        for device in answer.devices:
            assert device.minMemAddr.value <= MIN < device.maxMemAddr.value
            assert device.maxMemAddr.value - device.minMemAddr.value >= 4 << 20
        return answer

    def put(self, device, address, data):
        assert self.stub.Memcpy(put_request(device, address, data)).hostToDevice.success

    def get(self, device, address, length, **options):
        request = pb.MemcpyDeviceToHostRequest(
            srcDeviceId=device.deviceId, srcMemAddr=pb.MemAddr(value=address), numBytes=length)
        data = self.stub.Memcpy(pb.MemcpyRequest(deviceToHost=request), **options).deviceToHost.dstData
        assert len(data) == length
        return data

    def start(self, comm):
        assert self.stub.GroupStart(pb.GroupStartRequest(commId=comm)).success

    def end(self, comm, **options):
        assert self.stub.GroupEnd(pb.GroupEndRequest(commId=comm), **options).success

    def reduce(self, comm, count, op=0, addresses=None):
        answer = self.stub.AllReduceRing(pb.AllReduceRingRequest(
            commId=comm, count=count * self.unit, op=op + self.shift,
            memAddrs={rank: pb.MemAddr(value=address) for rank, address in (addresses or {}).items()}))
        assert answer.success

    def status(self, comm, **options):
        return self.stub.GetCommStatus(pb.GetCommStatusRequest(commId=comm), **options).status - self.shift

    def finalize(self, comm):
        assert self.stub.CommFinalize(pb.CommFinalizeRequest(commId=comm)).success

    def destroy(self, comm):
        assert self.stub.CommDestroy(pb.CommDestroyRequest(commId=comm)).success


@contextlib.contextmanager
def refused(code):
    """Expects a call to be refused with this code, and a sentence."""
    try:
        yield
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()} and not {code}: {error.details()}"
        assert len(error.details()) > 10, error.details()
    else:
        raise AssertionError(f"it was not refused with {code}")


IN_PROGRESS, SUCCESS, FAILED = range(3)
Code = grpc.StatusCode


def handout(client, n=4, count=1000):
    """The handout's flow: communicator, copies, a group, its status, copies back."""
    made = client.init(n)
    comm = made.commId
    assert client.status(comm) == IN_PROGRESS
    for rank, device in enumerate(made.devices):
        client.put(device, MIN, packed([rank + 1.0 + i for i in range(count)]))
    client.start(comm)
    client.reduce(comm, count, 0, {rank: MIN for rank in range(n)})
    client.end(comm)
    assert client.status(comm) == SUCCESS
    expected = packed([sum(range(1, n + 1)) + n * float(i) for i in range(count)])
    for device in made.devices:
        assert client.get(device, MIN, 8 * count) == expected
    return made


def integration(client, devices_at):
    """The nine steps of an integration test."""
    made = client.init(4)
    comm, first = made.commId, made.devices[0]
    for length in (4099, 5_000_003):
        data = os.urandom(length)
        client.put(first, MIN, data)
        assert client.get(first, MIN, length) == data
    for rank, device in enumerate(made.devices):
        client.put(device, MIN, packed([float(rank)] * 4))
    client.start(comm)
    client.reduce(comm, 4, 0, {rank: MIN for rank in range(4)})
    client.end(comm)
    assert all(client.get(device, MIN, 32) == packed([6.0] * 4) for device in made.devices)
    with refused(Code.RESOURCE_EXHAUSTED):
        client.init(10)
    with refused(Code.INVALID_ARGUMENT):
        client.init(0)
    with refused(Code.OUT_OF_RANGE):
        client.put(first, 0xFFFFFFFFF, b"x")
    with refused(Code.OUT_OF_RANGE):
        client.get(first, first.maxMemAddr.value - 1, 2)
    device_to_device(client, made, devices_at)
    client.put(first, MIN, b"")
    assert client.get(first, MIN, 0) == b""
    with refused(Code.INVALID_ARGUMENT):
        client.stub.Memcpy(pb.MemcpyRequest())
    with refused(Code.NOT_FOUND):
        client.get(pb.DeviceMetadata(deviceId=pb.DeviceId(value=1)), MIN, 1)
    with refused(Code.INVALID_ARGUMENT):
        client.reduce(comm, 4, 0, {4: MIN})
    client.start(comm)
    with refused(Code.FAILED_PRECONDITION):
        client.start(comm)
    client.end(comm)
    with refused(Code.FAILED_PRECONDITION):
        client.end(comm)
    client.finalize(comm)
    for use in (client.start, client.status, client.finalize, client.destroy):
        with refused(Code.NOT_FOUND):
            use(comm)
    with refused(Code.NOT_FOUND):
        client.status(0)
    again = client.init(4)
    assert client.get(again.devices[0], MIN, 4096) == bytes(4096), "memory that is handed out again is zero"
    client.destroy(again.commId)


def device_to_device(client, made, devices_at):
    """Bytes from one device to another: begun on either side first."""
    source, target = made.devices[1], made.devices[2]
    stubs = [course.GPUDeviceStub(grpc.insecure_channel(devices_at[device.deviceId.value])) for device in
             (source, target)]
    metadata = stubs[0].GetDeviceMetadata(pb.GetDeviceMetadataRequest()).metadata
    assert metadata.deviceId == source.deviceId and metadata.maxMemAddr == source.maxMemAddr
    data = os.urandom(100_003)
    client.put(source, MIN, data)
    stream = send(stubs[0], MIN, len(data), 2)
    assert stream_status(client, stubs[0], stream) == IN_PROGRESS
    receive(stubs[1], stream, 0x8000, len(data), 1)
    assert settled(client, stubs[1], stream) == SUCCESS
    assert client.get(target, 0x8000, len(data)) == data
    receive(stubs[1], stream.__class__(value=stream.value + 1), 0x40000, 5, 1)
    later = send(stubs[0], MIN, 5, 2)
    assert later.value == stream.value + 1 and settled(client, stubs[0], later) == SUCCESS
    wrong = send(stubs[0], MIN, 5, 2)
    receive(stubs[1], wrong, MIN, 6, 1)
    assert settled(client, stubs[1], wrong) == FAILED
    with refused(Code.NOT_FOUND):
        stream_status(client, stubs[0], pb.StreamId(value=1 << 40))
    with refused(Code.OUT_OF_RANGE):
        send(stubs[0], source.maxMemAddr.value, 1, 2)
    outside = pb.StreamId(value=wrong.value + 1)
    receive(stubs[1], outside, 0x60000, 6, 1)
    chunks = [pb.DataChunk(data=b"abc", streamId=outside), pb.DataChunk(data=b"def")]
    with refused(Code.UNIMPLEMENTED):
        stubs[1].StreamSend(iter(chunks), metadata=[("reduceop", "SUM")])
    assert stubs[1].StreamSend(iter(chunks), metadata=[("reduceop", "WRITE")]).success
    assert client.get(target, 0x60000, 6) == b"abcdef"
    received = lambda stream: stubs[1].StreamReceive(pb.StreamReceiveRequest(
        streamId=stream, recvBuffAddr=pb.MemAddr(value=0x60000), numBytes=6))
    assert b"".join(chunk.data for chunk in received(outside)) == b"abcdef"
    with refused(Code.NOT_FOUND):
        list(received(pb.StreamId(value=1 << 40)))
    copied = stubs[1].MemcpyHostToDevice(iter([pb.DataChunk(data=b"xy")]), metadata=[("dstmemaddr", str(0x60001))])
    assert copied.success
    read = stubs[1].MemcpyDeviceToHost(pb.MemcpyDeviceToHostRequest(srcMemAddr=pb.MemAddr(value=0x60000), numBytes=6))
    assert b"".join(chunk.data for chunk in read) == b"axydef"
    with refused(Code.INVALID_ARGUMENT):
        list(stubs[1].MemcpyDeviceToHost(pb.MemcpyDeviceToHostRequest(
            srcDeviceId=source.deviceId, srcMemAddr=pb.MemAddr(value=MIN), numBytes=1)))


def send(stub, address, length, rank):
    answer = stub.BeginSend(pb.BeginSendRequest(
        sendBuffAddr=pb.MemAddr(value=address), numBytes=length, dstRank=pb.Rank(value=rank)))
    assert answer.initiated
    return answer.streamId


def receive(stub, stream, address, length, rank):
    assert stub.BeginReceive(pb.BeginReceiveRequest(
        streamId=stream, recvBuffAddr=pb.MemAddr(value=address), numBytes=length, srcRank=pb.Rank(value=rank))).initiated


def stream_status(client, stub, stream):
    return stub.GetStreamStatus(pb.GetStreamStatusRequest(streamId=stream)).status - client.shift


def settled(client, stub, stream):
    Pool.until(lambda: stream_status(client, stub, stream) != IN_PROGRESS)
    return stream_status(client, stub, stream)


def counts(client):
    """Counts and operators on three devices: the same bits on all, and no byte outside changed."""
    made = client.init(3)
    operators = [sum, math.prod, min, max]
    for op, operator in enumerate(operators):
        for count in (1, 0, 3, 17, 1000):
            inputs = [[float((rank + 2) * (i % 7 + 1)) for i in range(count)] for rank in range(3)]
            guard = os.urandom(64)
            starts = [MIN + 64 * rank + 64 for rank in range(3)]
            for device, start, values in zip(made.devices, starts, inputs):
                client.put(device, start - 64, guard + packed(values) + guard)
            client.start(made.commId)
            client.reduce(made.commId, count, op, dict(enumerate(starts)))
            client.end(made.commId)
            expected = guard + packed([operator(column) for column in zip(*inputs)] if count else []) + guard
            for device, start in zip(made.devices, starts):
                assert client.get(device, start - 64, len(expected)) == expected, (op, count)
    client.finalize(made.commId)


def in_order(client):
    """Calls of a group on the same memory, and on parts of it on one device: each reads what the one before wrote."""
    for n in (2, 3):
        made = client.init(n)
        for count in (1, 64, 1000, 20_000):
            low, top, every = 1.0, float(n), float(n * (n + 1) // 2)
            for first, second, expected in ((2, 0, low * n), (0, 3, every), (0, 0, every * n)):
                for rank, device in enumerate(made.devices):
                    client.put(device, MIN, packed([rank + 1.0] * count))
                client.start(made.commId)
                client.reduce(made.commId, count, first, {rank: MIN for rank in range(n)})
                client.reduce(made.commId, count, second, {rank: MIN for rank in range(n)})
                client.end(made.commId)
                for device in made.devices:
                    assert client.get(device, MIN, 8 * count) == packed([expected] * count), (n, count, first, second)
            # On the last device alone the second call begins in the middle of what the first one writes.
            starts = [MIN + 16 * count] * (n - 1) + [MIN + 8 * (count // 2)]
            for rank, device in enumerate(made.devices):
                client.put(device, MIN, packed([rank + 1.0] * (4 * count)))
            client.start(made.commId)
            client.reduce(made.commId, count, 0, {rank: MIN for rank in range(n)})
            client.reduce(made.commId, count, 0, dict(enumerate(starts)))
            client.end(made.commId)
            before = every - top
            expected = [before + every] * (count - count // 2) + [every] * (count // 2)
            for device, start in zip(made.devices, starts):
                assert client.get(device, start, 8 * count) == packed(expected), (n, count)
        client.destroy(made.commId)


def one_after_another(client):
    """Communicators that nobody gives back, from a pool that has devices for one."""
    for _ in range(26):
        made = client.init(4)
        client.reduce(made.commId, 3)
    with refused(Code.RESOURCE_EXHAUSTED):
        client.init(5)
    client.reduce(made.commId, 3)
    client.destroy(made.commId)


def in_vain(client, strict):
    """Too few idle devices end no communicator, and no open group takes calls that are to be executed at once."""
    kept, busy = client.init(1), strict.init(2)
    with refused(Code.RESOURCE_EXHAUSTED):
        client.init(3)
    client.put(kept.devices[0], MIN, packed([5.0]))
    assert client.get(kept.devices[0], MIN, 8) == packed([5.0]), "it was not ended in vain"
    strict.start(busy.commId)
    with refused(Code.FAILED_PRECONDITION):
        client.reduce(busy.commId, 1)
    strict.destroy(busy.commId)
    client.destroy(kept.commId)


def killed(client, restarting):
    """A device is killed in the middle of groups: the group fails, or is done by those that are left."""
    made = client.init(3)
    os.kill(made.devices[1].deviceId.value, signal.SIGKILL)
    Pool.until(lambda: client.status(made.commId) == FAILED)
    with refused(Code.FAILED_PRECONDITION):
        client.start(made.commId)
    client.destroy(made.commId)

    made = restarting.init(3)
    count = 200_000
    for rank, device in enumerate(made.devices):
        restarting.put(device, MIN, packed([10.0 ** rank]) * count)
    killer = threading.Timer(0.01, os.kill, (made.devices[1].deviceId.value, signal.SIGKILL))
    restarting.start(made.commId)
    restarting.reduce(made.commId, count)
    killer.start()
    restarting.end(made.commId)
    killer.join()
    survivors = [made.devices[0], made.devices[2]]
    results = [restarting.get(device, MIN, 8 * count) for device in survivors]
    assert results[0] == results[1]
    assert results[0] in (packed([101.0]) * count, packed([111.0]) * count), results[0][:16]
    restarting.start(made.commId)
    restarting.reduce(made.commId, 1, 0, {0: MIN, 1: MIN, 2: MIN})
    restarting.end(made.commId)
    assert restarting.status(made.commId) == SUCCESS
    # A loss of before makes no group of none.
    with refused(Code.FAILED_PRECONDITION):
        restarting.end(made.commId)
    grown = restarting.pool.Grow(v1.GrowRequest(comm=made.commId, devices=1))
    newcomer = pb.DeviceMetadata(deviceId=pb.DeviceId(value=grown.devices[-1]))
    addresses = {0: MIN, 1: 0x7000, 2: MIN, 3: 0x8000}
    for device, address in ((survivors[0], MIN), (survivors[1], MIN), (newcomer, 0x8000)):
        restarting.put(device, address, packed([2.0]))
    restarting.reduce(made.commId, 1, 0, addresses)
    assert restarting.get(newcomer, 0x8000, 8) == packed([6.0]), "it has the rank behind all that there were"
    with refused(Code.FAILED_PRECONDITION):
        restarting.end(made.commId)
    restarting.destroy(made.commId)


def joining(client):
    """Devices that join, broadcast, addresses that count from the lowest; all typed."""
    made = client.pool.Init(v1.InitRequest(devices=2))
    grown = client.pool.Grow(v1.GrowRequest(comm=made.comm, devices=1))
    assert grown.state == v1.READY and grown.epoch == made.epoch + 1 and len(grown.devices) == 3
    data = os.urandom(3 << 20)
    written = client.pool.Write(iter(
        v1.WriteRequest(device=grown.devices[0], address=MIN, data=data[at:at + (1 << 20)])
        for at in range(0, len(data), 1 << 20)))
    assert written.len == len(data)
    called = client.pool.Call(v1.CallRequest(
        comm=made.comm, collective=v1.BROADCAST, data_type=v1.UINT8, root=0, count=len(data), send=[0], relative=True))
    assert called.group > 0 and not called.queued
    done = client.pool.Status(v1.StatusRequest(comm=made.comm, settled=True))
    assert done.last_group == called.group and not done.failure
    for device in grown.devices:
        read = client.pool.Read(v1.ReadRequest(device=device, address=MIN, len=len(data)))
        assert b"".join(piece.data for piece in read) == data
    group = client.pool.GroupStart(v1.GroupRequest(comm=made.comm)).group
    queued = client.pool.Call(v1.CallRequest(
        comm=made.comm, collective=v1.ALL_REDUCE, count=1, send=[MIN], recv=[MIN + 8], group=group))
    assert queued.queued
    client.pool.GroupCancel(v1.GroupRequest(comm=made.comm, group=group))
    with refused(Code.FAILED_PRECONDITION):
        client.pool.GroupEnd(v1.GroupRequest(comm=made.comm, group=group))
    with refused(Code.INVALID_ARGUMENT):
        client.pool.Call(v1.CallRequest(comm=made.comm))
    return made.comm, grown.devices, data


def prefixes(client):
    """Prefixes, and blocks of a root, in a group on the same memory."""
    comm = client.pool.Init(v1.InitRequest(devices=3))
    there = {"comm": comm.comm, "data_type": v1.INT16, "count": 1, "relative": True}
    for rank, device in enumerate(comm.devices):
        client.pool.Write(iter([v1.WriteRequest(device=device, address=MIN, data=struct.pack("<4h", rank + 1, -1, -1, -1))]))
    group = client.pool.GroupStart(v1.GroupRequest(comm=comm.comm)).group
    for collective, at, to in [(v1.SCAN, 0, 2), (v1.EXSCAN, 2, 0), (v1.GATHER, 0, 2), (v1.SCATTER, 2, 0)]:
        assert client.pool.Call(v1.CallRequest(**there, collective=collective, root=2, send=[at], recv=[to], group=group)).queued
    client.pool.GroupEnd(v1.GroupRequest(comm=comm.comm, group=group))
    assert not client.pool.Status(v1.StatusRequest(comm=comm.comm, settled=True)).failure
    read = [client.pool.Read(v1.ReadRequest(device=device, address=MIN, len=8)) for device in comm.devices]
    found = [struct.unpack("<4h", b"".join(piece.data for piece in pieces)) for pieces in read]
    assert found == [(1, 1, -1, -1), (1, 3, -1, -1), (4, 1, 1, 4)], found
    with refused(Code.INVALID_ARGUMENT):
        client.pool.Call(v1.CallRequest(
            comm=comm.comm, collective=v1.SCAN, data_type=v1.COMPLEX64, op=v1.MAX, count=1, send=[MIN]))
    client.pool.Destroy(v1.CommRequest(comm=comm.comm))


def checkpoint(client):
    """Memory on disk and back, and a watch that sees the end."""
    comm, devices, data = joining(client)
    watch = client.pool.Watch(v1.WatchRequest(comm=comm))
    assert next(watch).state == v1.READY
    with tempfile.TemporaryDirectory() as directory:
        written = client.pool.Checkpoint(v1.CheckpointRequest(comm=comm, directory=directory)).number
        list_of = client.pool.Devices(v1.DevicesRequest()).devices
        assert {device.id for device in list_of if device.comm == comm} == set(devices)
        client.pool.Write(iter([v1.WriteRequest(device=devices[1], address=MIN, data=bytes(1 << 20))]))
        assert client.pool.Restore(v1.CheckpointRequest(comm=comm, directory=directory)).number == written
        read = client.pool.Read(v1.ReadRequest(device=devices[1], address=MIN, len=len(data)))
        assert b"".join(piece.data for piece in read) == data
    with refused(Code.INVALID_ARGUMENT):
        client.pool.Checkpoint(v1.CheckpointRequest(comm=comm, directory="here"))
    client.pool.Finalize(v1.CommRequest(comm=comm))
    states = [status.state for status in watch]
    assert states[-1] == v1.FINALIZED, states


def removed(client):
    """A device that is taken out on purpose has no part in sums, and keeps its memory."""
    made = client.init(3)
    for rank, device in enumerate(made.devices):
        client.put(device, MIN, packed([10.0 ** rank]))
    removal = pb.CommRemoveDeviceRequest(commId=made.commId, rank=pb.Rank(value=1))
    assert client.stub.CommRemoveDevice(removal).success
    client.start(made.commId)
    client.reduce(made.commId, 1)
    assert client.status(made.commId) == SUCCESS, "its calls are executed at once"
    client.end(made.commId)
    values = [client.get(device, MIN, 8) for device in made.devices]
    assert values == [packed([101.0]), packed([10.0]), packed([101.0])], values
    client.destroy(made.commId)


def eight_at_once(front, dialects):
    """Clients of all dialects, at the same time."""
    failures = []

    def flow(address, dialect):
        try:
            client = Client(address, dialect)
            for _ in range(5):
                client.destroy(handout(client, 2, 500).commId)
        except Exception as error:
            failures.append((dialect, repr(error)))

    both = list(zip(front.addresses, dialects)) * 2
    threads = [threading.Thread(target=flow, args=pair) for pair in both[:8]]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures


DIALECTS = ["handout", "bytes", "shifted", "restart"]


def replay(shmccl, program, wanted, through=lambda address: address):
    """Takes all steps, or those that are wanted, each timed."""
    with Pool(shmccl, program, 16, ["--restart", "64"]) as pool:
        front = pool.front(*DIALECTS)
        handout_at, bytes_at, shifted_at, restart_at = map(through, front.addresses)
        plain, lax = Client(handout_at), Client(bytes_at, "bytes")
        shifted, restarting = Client(shifted_at, "shifted"), Client(restart_at)

        def with_four(step):
            with Pool(shmccl, program, 4, ["--restart", "64"]) as few:
                only = few.front("handout", "bytes")
                few.until(lambda: len(few.device_addresses(only)) == 4)
                addresses = list(map(through, only.addresses))
                step(Client(addresses[0]), Client(addresses[1], "bytes"), few.device_addresses(only))

        steps = {
            "handout": lambda: [client.destroy(handout(client).commId) for client in (plain, lax, shifted, restarting)],
            "integration": lambda: with_four(lambda client, _, at: integration(client, at)),
            "counts": lambda: [counts(client) for client in (plain, lax, shifted, restarting)],
            "in_order": lambda: [in_order(client) for client in (plain, lax)],
            "one_after_another": lambda: with_four(lambda _, client, at: one_after_another(client)),
            "in_vain": lambda: with_four(lambda strict, client, at: in_vain(client, strict)),
            "killed": lambda: killed(plain, restarting),
            "prefixes": lambda: prefixes(plain),
            "checkpoint": lambda: checkpoint(plain),
            "removed": lambda: [removed(client) for client in (lax, shifted)],
            "eight_at_once": lambda: eight_at_once(front, DIALECTS),
        }
        for name in wanted or steps:
            began = time.monotonic()
            steps[name]()
            print(f"{name}: ok, {time.monotonic() - began:.2f} s", flush=True)


if __name__ == "__main__":
    replay(sys.argv[1], sys.argv[2], sys.argv[3:])
