"""Communicators whose ranks have places in a grid, the last dimension varying first."""

from ._comm import Intracomm
from ._constants import CART, PROC_NULL


class Cartcomm(Intracomm):
    """A communicator whose ranks have places in a grid."""

    def __new__(cls, comm, messages=None, dims=None, periods=None):
        self = super().__new__(cls, comm, messages)
        if dims is not None:
            self._dims, self._periods = dims, periods
        return self

    dim = ndim = property(lambda self: len(self._dims))
    dims = property(lambda self: list(self._dims))
    periods = property(lambda self: [int(period) for period in self._periods])
    coords = property(lambda self: self.Get_coords(self.rank))
    topo = property(lambda self: self.Get_topo())

    def Get_topology(self):
        return CART

    def Get_dim(self):
        return self.dim

    def Get_topo(self):
        return self.dims, self.periods, self.coords

    def Get_coords(self, rank):
        coords = []
        for extent in reversed(self._dims):
            rank, at = divmod(rank, extent)
            coords.append(at)
        return coords[::-1]

    def Get_cart_rank(self, coords):
        """Returns the rank of a place. Along a period, a place past the end is one from the begin on."""
        rank = 0
        for at, extent, is_period in zip(coords, self._dims, self._periods, strict=True):
            if not is_period and not 0 <= at < extent:
                raise ValueError(f"{list(coords)} is no place in a grid of {self.dims}")
            rank = rank * extent + at % extent
        return rank

    def Shift(self, direction, disp):
        """Returns the ranks that are `disp` places behind and ahead along a dimension; PROC_NULL for none."""
        return self._beside(direction, -disp), self._beside(direction, disp)

    def _beside(self, direction, disp):
        coords = self.coords
        coords[direction] += disp
        is_there = self._periods[direction] or 0 <= coords[direction] < self._dims[direction]
        return self.Get_cart_rank(coords) if is_there else PROC_NULL

    def Sub(self, remain_dims):
        """Divides the grid into grids of the dimensions that remain. All ranks call it."""
        kept = [at for at, remains in enumerate(remain_dims) if remains]
        coords, color, key = self.coords, 0, 0
        for at, extent in enumerate(self._dims):
            if at in kept:
                key = key * extent + coords[at]
            else:
                color = color * extent + coords[at]
        dims, periods = (tuple(values[at] for at in kept) for values in (self._dims, self._periods))
        return self._divide(color, key, Cartcomm, dims, periods)

    def Dup(self, info=None):
        return self._divide(0, self.rank, Cartcomm, self._dims, self._periods)

    Clone = Dup


def extents(dims, periods):
    """Returns how long a grid is in each dimension, and whether it begins anew at its end."""
    dims = tuple(int(extent) for extent in (dims if hasattr(dims, "__len__") else [dims]))
    if periods is None:
        periods = False
    periods = tuple(bool(period) for period in (periods if hasattr(periods, "__len__") else [periods] * len(dims)))
    if len(periods) != len(dims) or any(extent < 1 for extent in dims):
        raise ValueError(f"{list(dims)} and {list(periods)} are no grid: pass an extent and a period for each dimension")
    return dims, periods


def Compute_dims(nnodes, dims):
    """Returns extents as near each other as can be, in falling order. Those of `dims` that are not 0 are kept."""
    dims = [0] * dims if isinstance(dims, int) else list(dims)
    left = nnodes
    for extent in dims:
        left, rest = divmod(left, extent) if extent else (left, 0)
        if rest:
            raise ValueError(f"{nnodes} ranks are no grid with an extent of {extent}")
    found = _balanced(left, dims.count(0))
    if not found and left != 1:
        raise ValueError(f"{nnodes} ranks are more than a grid of {dims} has places")
    return [extent or found.pop(0) for extent in dims]


def _balanced(n, n_dims):
    """Returns factors of `n` in falling order, whose largest is as small as can be."""
    if n_dims <= 1:
        return [n] * n_dims
    largest = next(factor for factor in range(1, n + 1) if n % factor == 0 and factor**n_dims >= n)
    return [largest, *sorted(_balanced(n // largest, n_dims - 1), reverse=True)]
