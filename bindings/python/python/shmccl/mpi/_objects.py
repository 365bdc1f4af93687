"""The collective calls of a communicator on objects: the names in lower case.

Pickles have lengths of their own, so the lengths go first.
"""

from array import array

from ._collectives import _Calls, run
from ._ops import SUM, fold_objects, taken
from ._pickling import pickle

# The bytes of a broadcast that go with its length.
_TOGETHER = 1016
_LENGTH = 8


class Objects:
    """Collective calls on objects."""

    def barrier(self):
        self.Barrier()

    def bcast(self, obj, root=0):
        pickled = pickle.dumps(obj) if self.rank == root else b""
        first = bytearray(len(pickled).to_bytes(_LENGTH, "little") + pickled[:_TOGETHER].ljust(_TOGETHER, b"\0"))
        run(self, _Calls.bcast, first, root)
        length = int.from_bytes(first[:_LENGTH], "little")
        if length > _TOGETHER:
            rest = bytearray(pickled[_TOGETHER:] if self.rank == root else length - _TOGETHER)
            run(self, _Calls.bcast, rest, root)
        else:
            rest = b""
        return obj if self.rank == root else pickle.loads(first[_LENGTH : _LENGTH + min(length, _TOGETHER)] + rest)

    def gather(self, sendobj, root=0):
        pickled = pickle.dumps(sendobj)
        lengths = array("q", [0] * self.size if self.rank == root else [])
        run(self, _Calls.gather, array("q", [len(pickled)]), lengths, root)
        whole = bytearray(sum(lengths))
        run(self, _Calls.gatherv, pickled, [whole, list(lengths), "B"] if self.rank == root else None, root)
        return _unpickled(whole, lengths) if self.rank == root else None

    def allgather(self, sendobj):
        pickled = pickle.dumps(sendobj)
        lengths = array("q", [0] * self.size)
        run(self, _Calls.allgather, array("q", [len(pickled)]), lengths)
        whole = bytearray(sum(lengths))
        run(self, _Calls.allgatherv, pickled, [whole, list(lengths), "B"])
        return _unpickled(whole, lengths)

    def scatter(self, sendobj, root=0):
        pickles = self._one_each(sendobj) if self.rank == root else []
        lengths, length = array("q", map(len, pickles)), array("q", [0])
        run(self, _Calls.scatter, lengths, length, root)
        own = bytearray(length[0])
        run(self, _Calls.scatterv, [b"".join(pickles), list(lengths), "B"] if self.rank == root else None, own, root)
        return pickle.loads(own)

    def alltoall(self, sendobj):
        pickles = self._one_each(sendobj)
        sent, received = array("q", map(len, pickles)), array("q", [0] * self.size)
        run(self, _Calls.alltoall, sent, received)
        whole = bytearray(sum(received))
        run(self, _Calls.alltoallv, [b"".join(pickles), list(sent), "B"], [whole, list(received), "B"])
        return _unpickled(whole, received)

    def _one_each(self, objects):
        objects = [None] * self.size if objects is None else list(objects)
        if len(objects) != self.size:
            raise ValueError(f"expected an object for each of {self.size} ranks, not {len(objects)}")
        return [pickle.dumps(obj) for obj in objects]

    # Reductions: every rank that has a result computes it, in the order of the ranks ----------------------------------

    def reduce(self, sendobj, op=SUM, root=0):
        objects = self.gather(sendobj, root)
        return fold_objects(taken(op), objects) if self.rank == root else None

    def allreduce(self, sendobj, op=SUM):
        return fold_objects(taken(op), self.allgather(sendobj))

    def scan(self, sendobj, op=SUM):
        return fold_objects(taken(op), self.allgather(sendobj)[: self.rank + 1])

    def exscan(self, sendobj, op=SUM):
        before = self.allgather(sendobj)[: self.rank]
        return fold_objects(taken(op), before) if before else None


def _unpickled(whole, lengths):
    """Returns the objects whose pickles follow each other."""
    view, ends = memoryview(whole), [sum(lengths[: rank + 1]) for rank in range(len(lengths))]
    return [pickle.loads(view[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
