"""Sorted buckets: the rows of equal signature side by side, in any array library.

The flat form of a table of buckets, known as CSR: the distinct signatures in ascending order, where
the bucket of each one starts, and all rows in one array. A look-up is a binary search.
"""

from dataclasses import dataclass
from typing import Annotated

from attnbook.arrays.arguments import check_array, check_same_home
from attnbook.arrays.array import Array, array_namespace, dtype_name


@dataclass(frozen=True, eq=False)
class Buckets:
    """The rows of each signature, side by side.

    The bucket of ``signatures[i]`` is ``order[starts[i]:starts[i + 1]]``; in it rows ascend.

    Attributes
    ----------
    signatures : int64 array, shape (m,)
        Distinct and ascending.
    starts : int64 array, shape (m + 1,)
        The last one is n.
    order : int64 array, shape (n,)
        Every row from 0 to n - 1 once, by signature.

    Examples
    --------
    >>> import numpy as np
    >>> buckets = sort_buckets(np.array([7, -2, 7, 7, -2]))
    >>> buckets.signatures, buckets.starts, buckets.order
    (array([-2,  7]), array([0, 2, 5]), array([1, 4, 0, 2, 3]))
    >>> buckets.find(np.array([7, 5]))
    (array([2, 0]), array([3, 0]))
    """

    signatures: Annotated[Array, "m"]
    starts: Annotated[Array, "m_1"]
    order: Annotated[Array, "n"]

    def find(
        self, signatures: Annotated[Array, "n_q"]
    ) -> tuple[Annotated[Array, "n_q"], Annotated[Array, "n_q"]]:
        """Return where in `order` the bucket of each signature starts, and how many rows it has.

        Both are int64 arrays (n_q,), and 0 for a signature without a bucket. Raises TypeError or
        ValueError if `signatures` is not such an array of the library and on the device of the
        buckets. Cost: O(log m) a signature.
        """
        check_signatures("signatures", signatures)
        check_same_home("signatures", signatures, "the buckets", self.order)
        return self.places_of(signatures)

    def places_of(self, signatures: Array) -> tuple[Array, Array]:
        """Return what `find` returns, for checked signatures."""
        xp = array_namespace(signatures)
        m = self.signatures.shape[0]
        if m == 0:
            return xp.zeros_like(signatures), xp.zeros_like(signatures)
        # + 0 for a contiguous copy: PyTorch warns of the columns of a matrix
        place = xp.searchsorted(self.signatures, signatures + 0)
        place = xp.where(place < m, place, m - 1)
        starts, ends = xp.take(self.starts, place), xp.take(self.starts, place + 1)
        here = xp.take(self.signatures, place) == signatures
        nothing = xp.zeros_like(starts)
        return xp.where(here, starts, nothing), xp.where(here, ends - starts, nothing)


def sort_buckets(signatures: Annotated[Array, "n"]) -> Buckets:
    """Sort rows into buckets by their signature.

    Parameters
    ----------
    signatures : int64 array, shape (n,)
        Of any Array API library; row i has signature i.

    Returns
    -------
    Buckets
        In the same library and on the same device.

    Raises
    ------
    TypeError, ValueError
        If `signatures` is not such an array.

    Notes
    -----
    Cost: O(n log n) for one stable sort, however the rows fall into buckets.

    Examples
    --------
    >>> import numpy as np
    >>> sort_buckets(np.array([3, 1, 3])).order
    array([1, 0, 2])
    """
    check_signatures("signatures", signatures)
    return buckets_of(signatures)


def buckets_of(signatures: Array) -> Buckets:
    """Return the sorted buckets of checked signatures (n,)."""
    xp, n = array_namespace(signatures), signatures.shape[0]
    if n == 0:
        starts = xp.zeros((1,), dtype=xp.int64, device=signatures.device)
        return Buckets(signatures, starts, xp.zeros_like(signatures))
    order = xp.argsort(signatures, stable=True)
    ordered = xp.take(signatures, order)
    new = xp.concat([xp.ones_like(order[:1]), xp.astype(ordered[1:] != ordered[:-1], xp.int64)])
    m = int(xp.sum(new))
    # the i-th start is the first place up to which i + 1 buckets have begun
    wanted = xp.arange(1, m + 2, dtype=xp.int64, device=signatures.device)
    starts = xp.astype(xp.searchsorted(xp.cumulative_sum(new), wanted), xp.int64, copy=False)
    return Buckets(xp.take(ordered, starts[:-1]), starts, xp.astype(order, xp.int64, copy=False))


def check_signatures(name: str, x: Array, n_tables: int | None = None) -> None:
    """Raise unless `x` is an int64 array of shape (n,), or (n, n_tables) if that is given."""
    check_array(name, x)
    if dtype_name(x.dtype) != "int64":
        raise TypeError(f"{name} must have dtype int64, got {dtype_name(x.dtype)}")
    wanted, shape = "(n,)" if n_tables is None else f"(n, {n_tables})", tuple(x.shape)
    if len(shape) != (1 if n_tables is None else 2) or n_tables not in (None, shape[-1]):
        raise ValueError(f"{name} must have shape {wanted}, got {shape}")
