"""Programs as people write them for mpi4py, each for any number of ranks: `shmccl run -n 3 -- python mpi_programs.py NAME`."""

import random
import sys
import threading
from array import array

import numpy as np
import shmccl
from shmccl import mpi as MPI


def ring():
    """The ranks on either side, in a ring."""
    comm = MPI.COMM_WORLD
    return comm, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def objects_go_from_rank_to_rank():
    comm, right, left = ring()
    for size in (0, 1, 1000, 300_000):
        sent = {"from": comm.rank, "text": "x" * size, "numbers": [1.5, 2 + 3j]}
        request = comm.isend(sent, dest=right, tag=size)
        got = comm.recv(source=left, tag=size)
        request.wait()
        assert got == sent | {"from": left}
        assert comm.sendrecv(sent, right, source=left)["from"] == left


def objects_are_received_by_a_request():
    comm, right, left = ring()
    request = comm.irecv(source=left, tag=11)
    assert request and request != MPI.REQUEST_NULL
    comm.send(("any", comm.rank), right, 11)
    assert request.wait() == ("any", left)
    assert not request and request == MPI.REQUEST_NULL and request.wait() is None
    requests = [comm.irecv(source=left, tag=tag) for tag in range(3)]
    for tag in reversed(range(3)):
        comm.send(tag, right, tag)
    assert MPI.Request.waitall(requests) == [0, 1, 2]


def arrays_are_sent_with_their_type_or_without():
    comm, right, left = ring()
    for count in (0, 1, 29, 30, 100_000):
        sent, got = np.arange(count, dtype="i") + comm.rank, np.full(count + 5, -1, dtype="i")
        request = comm.Irecv([got, MPI.INT], source=left, tag=77)
        comm.Send([sent, count, MPI.INT], dest=right, tag=77)
        status = MPI.Status()
        request.Wait(status)
        assert got.tolist() == [at + left for at in range(count)] + [-1] * 5
        assert status.Get_count(MPI.INT) == count and status.Get_source() == left and status.Get_tag() == 77
        double = np.empty(count)
        comm.Sendrecv(np.full(count, comm.rank / 2), right, 13, double, left, 13)
        assert (double == left / 2).all()


def a_dictionary_is_broadcast():
    comm = MPI.COMM_WORLD
    for root in range(comm.size):
        for length in (1, 999, 50_000):
            told = {"key": "v" * length, "pair": ("abc", 2.72)} if comm.rank == root else None
            assert comm.bcast(told, root=root) == {"key": "v" * length, "pair": ("abc", 2.72)}


def objects_are_scattered_and_gathered():
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    root = size - 1
    parts = [[number] * number for number in range(size)] if rank == root else None
    own = comm.scatter(parts, root=root)
    assert own == [rank] * rank
    assert comm.gather(own, root=root) == parts
    assert comm.allgather({"rank": rank}) == [{"rank": number} for number in range(size)]
    assert comm.alltoall([(rank, to) for to in range(size)]) == [(source, rank) for source in range(size)]


def arrays_are_broadcast_scattered_and_gathered():
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    table = np.arange(size * 10, dtype="i").reshape(size, 10)
    row, whole = np.empty(10, "i"), np.zeros((size, 10), "i") if rank == 0 else None
    comm.Scatter(table if rank == 0 else None, row, root=0)
    assert (row == table[rank]).all()
    comm.Gather(row, whole, root=0)
    assert rank or (whole == table).all()
    # A count is that of each rank.
    got = np.full((size, 12), -1, "i")
    comm.Allgather([row, 2, MPI.INT], [got, 2, MPI.INT])
    assert got.ravel()[: 2 * size].tolist() == table[:, :2].ravel().tolist() and got.ravel()[2 * size] == -1
    comm.Alltoall([table, 1, MPI.INT], [got, 1, MPI.INT])
    assert got.ravel()[:size].tolist() == [rank] * size
    text = np.zeros(3) if rank else np.array([1.0, 2.0, 3.0])
    comm.Bcast(text)
    assert text.tolist() == [1.0, 2.0, 3.0]


def a_matrix_is_multiplied_by_rows():
    comm = MPI.COMM_WORLD
    n = 3 * comm.size
    matrix, vector = np.arange(n * n, dtype="d").reshape(n, n), np.ones(n)
    rows = slice(3 * comm.rank, 3 * comm.rank + 3)
    gathered = np.zeros(n)
    comm.Allgather([vector[rows], MPI.DOUBLE], [gathered, MPI.DOUBLE])
    product = np.zeros(n)
    comm.Allgather(matrix[rows] @ gathered, product)
    assert (product == matrix.sum(axis=1)).all()


def pi_is_a_sum_of_parts():
    comm = MPI.COMM_WORLD
    n = np.array(1000 if comm.rank == 0 else 0, "i")
    comm.Bcast([n, MPI.INT], root=0)
    places = np.arange(comm.rank, n, comm.size)
    part = np.array((4 / (1 + ((places + 0.5) / n) ** 2)).sum() / n)
    pi = np.array(0.0)
    comm.Reduce([part, MPI.DOUBLE], [pi, MPI.DOUBLE], op=MPI.SUM, root=0)
    assert comm.rank or abs(pi - np.pi) < 1e-5
    assert abs(comm.allreduce(float(part)) - np.pi) < 1e-5


def a_probe_tells_the_length():
    comm, right, left = ring()
    for length in (3, 5000):
        request = comm.Isend(np.full(length, 0.5), right, 4)
        status = MPI.Status()
        comm.Probe(left, MPI.ANY_TAG, status)
        assert status.Get_count(MPI.DOUBLE) == length and comm.Iprobe(left, 4) and not comm.Iprobe(left, 5)
        got = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(got, status.source, status.tag)
        assert (got == 0.5).all()
        request.Wait()
        request = comm.isend("matched", right)
        message = comm.mprobe(left)
        assert not comm.iprobe(left, tag=0)
        assert message.recv() == "matched" and message == MPI.MESSAGE_NULL
        request.wait()
        # Else a message of the next turn may be there for the probe.
        comm.Barrier()


def a_master_hands_out_work():
    comm, status = MPI.COMM_WORLD, MPI.Status()
    work, stop = 1, 2
    if comm.rank == 0:
        left, results = list(range(20)), []
        n_busy = comm.size - 1
        while n_busy:
            result = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
            if result is not None:
                results.append(result)
            if left:
                comm.send(left.pop(), status.Get_source(), work)
            else:
                comm.send(None, status.Get_source(), stop)
                n_busy -= 1
        assert sorted(results) == [number**2 for number in range(20)] or comm.size == 1
        return
    result = None
    while True:
        comm.send(result, 0)
        task = comm.recv(source=0, status=status)
        if status.tag == stop:
            return
        result = task**2


def long_messages_cross():
    """All send before they receive, and before they look after what they have posted."""
    comm, right, left = ring()
    sent, got = np.full(1_000_000, comm.rank), np.empty(1_000_000, int)
    request = comm.Irecv(got, left)
    comm.Send(sent, right)
    request.Wait()
    assert (got == left).all()
    twin = comm.Dup()
    requests = [twin.Irecv(got, left), comm.Isend(sent, right)]
    other = np.empty_like(got)
    comm.Recv(other, left)
    twin.Send(sent, right)
    MPI.Request.Waitall(requests)
    assert (got == left).all() and (other == left).all()
    twin.Free()


def a_short_message_passes_long_ones():
    comm, right, left = ring()
    long, got = np.ones(1_000_000, "u1"), np.zeros(1_000_000, "u1")
    requests = [comm.Isend(long, right, 1) for _ in range(60)]
    requests.append(comm.isend("short", right, 2))
    assert comm.recv(source=left, tag=2) == "short"
    for _ in range(60):
        comm.Recv(got, left, 1)
        assert got.all()
    MPI.Request.Waitall(requests)


def a_receive_is_posted_before_a_barrier():
    comm, right, left = ring()
    got = np.zeros(500_000)
    request = comm.Irecv(got, left, 3)
    comm.Barrier()
    comm.Send(np.ones(500_000), right, 3)
    assert comm.allreduce(1) == comm.size
    request.Wait()
    assert got.all()


def messages_go_to_oneself():
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        request = comm.irecv(source=comm.rank, tag=1)
        comm.send([1, 2], comm.rank, 1)
        assert request.wait() == [1, 2]
        synchronous = comm.issend("later", comm.rank)
        assert not synchronous.Test()
        assert comm.recv() == "later" and synchronous.Test()
        own = np.zeros(100_000)
        comm.Sendrecv(np.ones(100_000), comm.rank, 0, own, comm.rank)
        assert own.all()
    assert MPI.COMM_SELF.size == 1 and MPI.COMM_SELF.allreduce(7) == 7


def neighbours_of_a_grid_exchange_their_edges():
    world = MPI.COMM_WORLD
    comm = world.Create_cart(MPI.Compute_dims(world.size, 2), periods=[True, False])
    rows, columns = comm.dims
    assert rows * columns == world.size and comm.Get_cart_rank(comm.coords) == comm.rank
    field = np.full((4, 6), comm.rank, dtype="d")
    column = MPI.DOUBLE.Create_vector(4, 1, 6).Commit()
    behind, ahead = comm.Shift(1, 1)
    status, edge = MPI.Status(), np.full(4, -1.0)
    # A column does not lie in one piece.
    comm.Sendrecv([field, 1, column], ahead, 0, edge, behind, 0, status)
    assert edge.tolist() == [-1.0 if behind == MPI.PROC_NULL else behind] * 4
    assert status.source == behind
    column.Free()
    line = comm.Sub([False, True])
    assert line.size == columns and line.rank == comm.coords[1]
    assert comm.Shift(0, rows)[0] == comm.rank


def requests_are_started_again_and_again():
    comm, right, left = ring()
    sent, got = np.zeros(3), np.zeros(3)
    requests = [comm.Send_init(sent, right, 5), comm.Recv_init(got, left, 5)]
    for turn in range(10):
        sent[:] = 10 * comm.rank + turn
        MPI.Prequest.Startall(requests)
        MPI.Prequest.Waitall(requests)
        assert got.tolist() == [10 * left + turn] * 3
    for request in requests:
        assert request != MPI.REQUEST_NULL
        request.Free()
        assert request == MPI.REQUEST_NULL
    total = np.zeros(3)
    request = comm.Allreduce_init(sent, total)
    for turn in range(3):
        sent[:] = turn
        request.Start()
        request.Wait()
        assert total.tolist() == [turn * comm.size] * 3


def whichever_request_is_done_is_taken():
    comm = MPI.COMM_WORLD
    if comm.rank:
        for tag in (3, 1, 2, 0):
            assert comm.recv(source=0) == "go"
            comm.send(tag, 0, tag)
        return
    requests = [comm.irecv(source=source, tag=tag) for source in range(1, comm.size) for tag in range(4)]
    seen = []
    for _ in range(4):
        for source in range(1, comm.size):
            comm.send("go", source)
        status = MPI.Status()
        for _ in range(1, comm.size):
            at, value = MPI.Request.waitany(requests, status)
            assert value == status.tag == at % 4
            seen.append(at)
    assert sorted(seen) == list(range(4 * (comm.size - 1)))
    assert MPI.Request.waitany(requests) == (MPI.UNDEFINED, None)
    assert MPI.Request.waitsome(requests) == (None, None) and MPI.Request.testany(requests)[1]


def objects_are_reduced_by_any_function():
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    assert comm.reduce([rank], op=MPI.SUM, root=0) == (list(range(size)) if rank == 0 else None)
    assert comm.allreduce((5.0, rank), op=MPI.MINLOC) == (5.0, 0)
    assert comm.allreduce((rank, rank), op=MPI.MAXLOC) == (size - 1, size - 1)
    assert comm.scan(rank + 1) == (rank + 1) * (rank + 2) // 2
    assert comm.exscan("x") == ("x" * rank or None)
    union = MPI.Op.Create(lambda x, y: x | y, commute=True)
    assert comm.allreduce({rank}, op=union) == set(range(size)) and union.Is_commutative()
    assert comm.allreduce(rank, op=lambda x, y: max(x, y)) == size - 1


def buffers_are_reduced_by_functions_of_python():
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    flags, all_set = np.array([1, rank == 0, 0], "i"), np.zeros(3, "i")
    comm.Allreduce(flags, all_set, op=MPI.LAND)
    assert all_set.tolist() == [1, int(size == 1), 0]
    comm.Reduce(flags, all_set, op=MPI.LXOR, root=0)
    assert rank or all_set.tolist() == [size % 2, 1, 0]

    def farther(before, behind, datatype):
        assert datatype == MPI.DOUBLE
        x, y = np.frombuffer(before), np.frombuffer(behind)
        y[:] = 2 * x + y

    op, got = MPI.Op.Create(farther), np.zeros(2)
    comm.Scan(np.full(2, rank + 1.0), got, op)
    expected = 0
    for number in range(rank + 1):
        expected = 2 * expected + number + 1
    assert got.tolist() == [expected] * 2
    product = np.ones(1, "D")
    comm.Allreduce(np.array([1j]), product, MPI.PROD)
    assert product[0] == 1j**size
    part = np.zeros(1, "i")
    comm.Reduce_scatter(np.arange(size, dtype="i"), part, [1] * size)
    assert part[0] == rank * size


def communicators_are_made_of_others():
    world = MPI.COMM_WORLD
    half = world.Split(world.rank % 2, -world.rank)
    assert half.allgather(world.rank) == [rank for rank in reversed(range(world.size)) if rank % 2 == world.rank % 2]
    assert world.Split(MPI.UNDEFINED) == MPI.COMM_NULL
    twin = world.Dup()
    assert twin != world and MPI.Comm.Compare(twin, world) == MPI.CONGRUENT == MPI.Comm.Compare(world, twin)
    request = world.irecv(source=0, tag=1)
    if world.rank == 0:
        for to in range(world.size):
            twin.send("of the twin", to, 1)
            world.send("of the world", to, 1)
    assert request.wait() == "of the world" and twin.recv() == "of the twin"
    group = world.Get_group()
    evens = group.Incl(range(0, world.size, 2))
    assert evens.Translate_ranks([0], group) == [0] and group.Difference(evens).size == world.size // 2
    made = world.Create(evens)
    assert made == MPI.COMM_NULL if world.rank % 2 else made.allreduce(1) == evens.Get_size()
    for comm in (half, twin, made):
        if comm != MPI.COMM_NULL:
            comm.Free()


class Named(MPI.Intracomm):
    """A communicator as programs derive it."""

    def __new__(cls, comm=None):
        return super().__new__(cls, comm)

    def twice(self):
        return self.allreduce(2)


def a_class_is_derived_from_a_communicator():
    comm = Named(MPI.COMM_WORLD)
    assert comm.twice() == 2 * comm.size and comm == MPI.COMM_WORLD and comm.Get_attr(MPI.TAG_UB) >= 32767


def a_synchronous_send_ends_when_it_is_received():
    comm, right, left = ring()
    request = comm.Issend(np.ones(2), right, 9)
    comm.Barrier()
    assert not request.Test()
    comm.Barrier()
    got = np.zeros(2)
    comm.Recv(got, left, 9)
    request.Wait()
    comm.Barrier()
    received = comm.irecv(source=left)
    comm.ssend("object", right)
    assert received.wait() == "object"


def threads_share_a_communicator():
    comm, right, left = ring()
    results = {}

    def exchange(number):
        for turn in range(20):
            request = comm.isend((number, turn), right, number)
            results[number, turn] = comm.recv(source=left, tag=number)
            request.wait()

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == {(number, turn): (number, turn) for number in range(4) for turn in range(20)}


def blocks_have_lengths_of_their_own():
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    counts = array("i", range(1, size + 1))
    own, whole = np.full(rank + 1, rank), np.full(sum(counts), -1)
    expected = [number for number in range(size) for _ in range(number + 1)]
    comm.Gatherv(sendbuf=own, recvbuf=(whole, counts), root=0)
    assert rank or whole.tolist() == expected
    back = np.empty(rank + 1, int)
    comm.Scatterv([whole, counts, None, MPI.LONG] if rank == 0 else None, back, root=0)
    assert back.tolist() == own.tolist()
    request = comm.Iallgatherv(own, [whole, (counts, None), MPI.LONG])
    request.Wait()
    assert whole.tolist() == expected
    request = comm.Ibarrier()
    while not request.Test():
        pass


def a_message_that_is_too_long_is_an_error():
    comm = MPI.COMM_WORLD
    for length in (20, 50_000):
        request, refused = comm.Isend(np.zeros(length), comm.rank), False
        try:
            comm.Recv(np.zeros(length - 1), comm.rank)
        except MPI.Exception as error:
            refused = "into a buffer of" in str(error)
        assert refused
        request.Wait()
    assert comm.sendrecv("goes on", comm.rank, source=comm.rank) == "goes on"


def a_receive_is_withdrawn():
    comm, right, left = ring()
    request, status = comm.irecv(source=left, tag=1), MPI.Status()
    assert request.test() == (False, None)
    request.Cancel()
    request.Wait(status)
    assert status.Is_cancelled()
    comm.Barrier()
    comm.send("kept", right, 1)
    assert comm.recv(source=left, tag=1) == "kept"


def types_are_made_of_types():
    comm, right, left = ring()
    square = np.arange(36, dtype="d").reshape(6, 6) + 100 * comm.rank
    upper = MPI.DOUBLE.Create_indexed([6 - row for row in range(6)], [7 * row for row in range(6)]).Commit()
    got = np.zeros((6, 6))
    comm.Sendrecv([square, 1, upper], right, 0, [got, 1, upper], left)
    assert (got == np.triu(np.arange(36).reshape(6, 6) + 100 * left)).all()
    block = MPI.DOUBLE.Create_subarray([6, 6], [2, 3], [1, 2])
    flat, status = np.zeros(6), MPI.Status()
    comm.Sendrecv([square, block], right, 0, flat, left, 0, status)
    assert flat.tolist() == (np.arange(36).reshape(6, 6)[1:3, 2:5] + 100 * left).ravel().tolist()
    assert status.Get_count(block) == 1 and status.Get_count(MPI.DOUBLE) == 6
    pair = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.CHAR])
    assert (pair.size, pair.extent) == (9, 16)
    in_columns = np.asfortranarray(square)
    got = np.zeros((6, 6), order="F")
    comm.Sendrecv(in_columns, right, 0, got, left)
    assert (got == np.arange(36).reshape(6, 6) + 100 * left).all()


def nobody_is_a_source_and_a_target():
    comm, status = MPI.COMM_WORLD, MPI.Status()
    comm.send("lost", MPI.PROC_NULL)
    assert comm.recv(source=MPI.PROC_NULL, status=status) is None
    assert (status.source, status.tag, status.count) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    comm.Sendrecv(None, MPI.PROC_NULL, 0, None, MPI.PROC_NULL)
    assert comm.mprobe(MPI.PROC_NULL) == MPI.MESSAGE_NO_PROC
    for rank in (comm.size, -7):
        try:
            comm.send("nowhere", rank)
        except MPI.Exception as error:
            assert "is none of" in str(error)
        else:
            raise AssertionError("a rank that is none was taken")


def a_rank_ends_with_what_it_has_begun():
    """Messages that were begun arrive, and receives that nothing comes for keep nobody."""
    comm, right, left = ring()
    comm.irecv(source=left, tag=99)
    comm.Iprobe()
    comm.isend("last", right, 1)
    assert comm.recv(source=left, tag=1) == "last"
    MPI.COMM_WORLD.Dup().irecv()


def ranks_go_on_when_one_has_ended():
    """The last one ends while the others have looked for messages."""
    comm = MPI.COMM_WORLD
    last = comm.size - 1
    twin = comm.Dup()
    if comm.rank == last:
        comm.send("last words", 0, 3)
        comm.Barrier()
        return
    open_one = comm.irecv(source=last, tag=8)
    assert not comm.Iprobe() or comm.rank == 0
    assert not twin.Iprobe()
    comm.Barrier()
    failed = []
    for call in (
        open_one.wait,
        lambda: comm.recv(source=last, tag=9),
        lambda: twin.recv(source=last),
        lambda: comm.probe(last, 9),
        lambda: comm.ssend("never matched", last),
        lambda: comm.send("short", last),
        lambda: comm.Send(np.zeros(1000), last),
        lambda: comm.isend("short", last),
    ):
        try:
            call()
        except shmccl.PeerLostError as error:
            failed.append(error.rank)
    assert failed == [last] * 8
    if comm.rank == 0:
        # With a tag: the rank before the last one may have sent what comes below already.
        assert comm.recv(source=MPI.ANY_SOURCE, tag=3) == "last words"
    if last > 1:
        comm.send(comm.rank, (comm.rank + 1) % last, 4)
        assert comm.recv(tag=4) == (comm.rank - 1) % last
    elif last == 1:
        try:
            comm.recv()
        except shmccl.PeerLostError as error:
            failed.append(error.rank)
        assert failed == [1] * 9


def finalize_ends_the_job():
    comm, right, left = ring()
    assert MPI.Is_initialized() and not MPI.Is_finalized() and MPI.Query_thread() == MPI.THREAD_MULTIPLE
    assert comm.sendrecv(comm.rank, right, source=left) == left
    MPI.Finalize()
    assert MPI.Is_finalized()


def messages_of_one_source_and_tag_stay_in_order():
    """Random sends and receives in an order of each rank's own, with probes and a reduction among them."""
    comm = MPI.COMM_WORLD
    for seed in range(12):
        # The same on all ranks: source, target, tag, length, and how it is sent.
        plan, own = random.Random(seed), random.Random(f"{seed} {comm.rank}")
        sizes, kinds = [0, 1, 180, 300, 5000, 200_000, 3_000_000], ["isend", "issend"]
        messages = [
            (plan.randrange(comm.size), plan.randrange(comm.size), plan.randrange(3), plan.choice(sizes), plan.choice(kinds))
            for _ in range(plan.choice([5, 30, 80]))
        ]
        takes_any = plan.random() < 0.5
        sent = [message for message in messages if message[0] == comm.rank]
        to_come = [message for message in messages if message[1] == comm.rank]
        expected, requests, received = list(to_come), [], []
        while sent or to_come:
            if own.random() < 0.2:
                comm.Iprobe()
            if sent and (not to_come or own.random() < 0.5):
                message = sent.pop(0)
                requests.append(getattr(comm, message[4])((message, "x" * message[3]), message[1], message[2]))
            else:
                source, _, tag, *_ = to_come.pop(0)
                received.append(comm.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) if takes_any else comm.irecv(None, source, tag))
        assert comm.allreduce(1) == comm.size
        got = [request.wait() for request in received]
        MPI.Request.waitall(requests)
        assert all(len(text) == message[3] for message, text in got), seed
        # One source and one tag: the first and the third field.
        for key in {message[:3:2] for message in expected}:
            in_order = [message for message, _ in got if message[:3:2] == key]
            assert in_order == [message for message in expected if message[:3:2] == key], (seed, key)
        comm.Barrier()


def many_short_messages_run_ahead_of_their_receives():
    comm = MPI.COMM_WORLD
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for number in range(40):
        comm.send(number, right)
    comm.Barrier()
    assert [comm.recv(source=left) for _ in range(40)] == list(range(40))


def a_communicator_is_made_while_a_long_message_is_awaited():
    comm = MPI.COMM_WORLD
    got, request = np.zeros(1 << 17), None
    if comm.rank == 1:
        request = comm.Irecv(got, 0)
    if comm.rank == 0 and comm.size > 1:
        comm.Send(np.full(1 << 17, 7.0), 1)
    comm.Dup().Free()
    if request is not None:
        request.Wait()
        assert (got == 7).all()


def what_is_sent_beside_a_receive_is_sent_when_that_is_done():
    comm = MPI.COMM_WORLD
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sent, got = np.full(1 << 17, float(comm.rank)), np.zeros(1 << 17)
    comm.Isendrecv(sent, right, 0, got, left).Wait()
    sent[:] = -1
    comm.Barrier()
    assert (got == left).all()
    request = comm.Isendrecv(sent, right, 0, got, MPI.PROC_NULL)
    assert comm.Recv(got, left) == left and request.Wait()


def a_freed_communicator_receives_nothing_more():
    comm, right, left = ring()
    twin = comm.Dup()
    twin.Free()
    for call in (lambda: twin.Irecv(np.zeros(3), left), lambda: twin.Probe(left)):
        try:
            call()
            raise AssertionError("it was posted")
        except RuntimeError as error:
            assert "closed" in str(error)
    assert comm.sendrecv(comm.rank, right, source=left) == left


def a_receive_that_cannot_be_written_fails_for_whoever_waits():
    comm = MPI.COMM_WORLD
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    locked = np.zeros(3)
    locked.flags.writeable = False
    request = comm.Irecv(locked, left)
    comm.Send(np.ones(3), right)
    comm.Barrier()
    try:
        request.Wait()
        raise AssertionError("it was written")
    except ValueError:
        pass


def grids_are_as_near_to_cubes_as_can_be():
    for n, dims in {24: [4, 3, 2], 60: [5, 4, 3], 20: [5, 2, 2], 28: [7, 2, 2], 7: [7, 1, 1], 64: [4, 4, 4]}.items():
        assert MPI.Compute_dims(n, 3) == dims


def a_type_begins_where_its_first_element_does():
    comm = MPI.COMM_WORLD
    fourth = MPI.DOUBLE.Create_indexed([1], [3])
    assert (fourth.lb, fourth.extent) == (24, 8)
    got = np.zeros(2)
    comm.Sendrecv([np.arange(6.0), 2, fourth], comm.rank, 0, got, comm.rank)
    assert got.tolist() == [3, 4]


def groups_that_were_empty_know_their_rank():
    world = MPI.COMM_WORLD.group
    assert MPI.GROUP_EMPTY.Union(world).rank == world.rank


def copies_of_oneself_have_the_same_group():
    own, world = MPI.COMM_SELF, MPI.COMM_WORLD
    twin = own.Dup()
    for made in (twin, twin.Split(0)):
        assert made.group == own.group and made.group.Translate_ranks([0], world.group) == [world.rank]
        made.Free()


def long_messages_that_nobody_receives_yet_are_passed():
    comm, right, left = ring()
    long, short = np.ones(17 << 20, "u1"), np.full(1 << 20, 7, "u1")
    requests = [comm.Isend(long, right, 1) for _ in range(3)] + [comm.Isend(short, right, 2)]
    got = np.zeros(1 << 20, "u1")
    comm.Recv(got, left, 2)
    assert (got == 7).all()
    for _ in range(3):
        got = np.zeros(17 << 20, "u1")
        comm.Recv(got, left, 1)
        assert got.all()
    MPI.Request.Waitall(requests)


def receives_are_open_when_a_communicator_is_freed():
    comm, right, left = ring()
    twin, got = comm.Dup(), np.zeros(1 << 17)
    long, short, never = twin.Irecv(got, left, 1), twin.irecv(source=left, tag=2), twin.irecv(source=left, tag=3)
    sent = twin.Isend(np.ones(1 << 17), right, 1)
    twin.send("short", right, 2)
    twin.Free()
    sent.Wait()
    long.Wait()
    assert got.all() and short.wait() == "short"
    try:
        never.wait()
        raise AssertionError("it has received something")
    except shmccl.UnavailableError as error:
        assert "was freed" in str(error)


def short_messages_are_sent_when_they_are_copied():
    """The requests of all of them are done before any is received."""
    comm, right, left = ring()
    for n in (10, 260):
        for begin in (comm.isend, comm.ibsend):
            MPI.Request.waitall([begin(number, right, 1) for number in range(n)])
            assert [comm.recv(source=left, tag=1) for _ in range(n)] == list(range(n))
        for number in range(n):
            comm.send(number, right, 2)
        assert [comm.recv(source=left, tag=2) for _ in range(n)] == list(range(n))


def two_threads_send_short_and_long_messages():
    comm, right, left = ring()
    long = np.arange(300.0)

    def send(tag):
        for number in range(20):
            comm.send(number, right, tag)
            comm.Isend(long, right, tag + 2)

    threads = [threading.Thread(target=send, args=(tag,)) for tag in range(2)]
    for thread in threads:
        thread.start()
    for number in range(20):
        for tag in range(2):
            assert comm.recv(source=left, tag=tag) == number
            got = np.zeros(300)
            comm.Recv(got, left, tag + 2)
            assert (got == long).all()
    for thread in threads:
        thread.join()


def a_thread_aborts():
    """The job ends with the code of a thread, whatever the others of the process wait for."""
    comm = MPI.COMM_WORLD
    if comm.rank == comm.size - 1:
        # Output that cannot be written keeps nobody from it.
        sys.stdout = None
        threading.Thread(target=comm.Abort, args=(7,)).start()
    comm.recv()


ENDS = [a_rank_ends_with_what_it_has_begun, finalize_ends_the_job, ranks_go_on_when_one_has_ended]
OTHERS = [value for name, value in list(globals().items()) if "_" in name and getattr(value, "__module__", "") == __name__]
OTHERS = [program for program in OTHERS if program not in [*ENDS, a_thread_aborts]]

if __name__ == "__main__":
    if sys.argv[1] != "others":
        globals()[sys.argv[1]]()
        sys.exit()
    for program in OTHERS:
        program()
        # Else a receive from any rank may take a message of the next program.
        MPI.COMM_WORLD.Barrier()
