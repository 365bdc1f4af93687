"""Groups: ranks of a job in an order of their own."""

from ._constants import IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL


class Group:
    """Ranks of the job, by their numbers there, and this process's own."""

    def __init__(self, members=(), own=None):
        self._members, self._own = tuple(members), own

    def _of(self, members):
        return Group(members, self._own)

    def Get_size(self):
        return len(self._members)

    def Get_rank(self):
        return self._members.index(self._own) if self._own in self._members else UNDEFINED

    size, rank = property(Get_size), property(Get_rank)

    def Incl(self, ranks):
        return self._of(self._members[rank] for rank in ranks)

    def Excl(self, ranks):
        left_out = {self._members[rank] for rank in ranks}
        return self._of(member for member in self._members if member not in left_out)

    def Range_incl(self, ranks):
        return self.Incl(_spread(ranks))

    def Range_excl(self, ranks):
        return self.Excl(_spread(ranks))

    def Union(self, other):
        return self._of(self._members + tuple(member for member in other._members if member not in self._members))

    def Intersection(self, other):
        return self._of(member for member in self._members if member in other._members)

    def Difference(self, other):
        return self._of(member for member in self._members if member not in other._members)

    def Translate_ranks(self, ranks=None, group=None):
        """Returns the numbers in `group` of what `ranks` are here; of all, without them."""
        members = self._members if ranks is None else [None if rank == PROC_NULL else self._members[rank] for rank in ranks]
        found = {member: rank for rank, member in enumerate((group or self)._members)}
        return [PROC_NULL if member is None else found.get(member, UNDEFINED) for member in members]

    def Compare(self, other):
        if self._members == other._members:
            return IDENT
        return SIMILAR if set(self._members) == set(other._members) else UNEQUAL

    def Dup(self):
        return self._of(self._members)

    def Free(self):
        pass

    def __eq__(self, other):
        return isinstance(other, Group) and self._members == other._members

    __hash__ = object.__hash__


def _spread(ranges):
    """Returns the ranks of ranges (first, last, step), which include the last."""
    return [rank for first, last, step in ranges for rank in range(first, last + (1 if step > 0 else -1), step)]


GROUP_EMPTY = Group()
