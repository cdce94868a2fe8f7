r"""Lifting: one more coordinate turns the inner product into a cosine.

.. math:: \tilde k = \bigl(k / k_{\max},\; \sqrt{1 - \lVert k \rVert^2 / k_{\max}^2}\bigr), \quad
          \tilde q = (q / \lVert q \rVert,\; 0), \qquad
          \cos(\tilde q, \tilde k) = \frac{q \cdot k}{\lVert q \rVert\, k_{\max}}
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from attnbook.arrays.arguments import check_float, check_number, check_positive
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.move import move
from attnbook.hashing.given_hash import check_hash
from attnbook.hashing.projections import root, unit


def lift_keys(
    key: Annotated[Array, "... n_k d"], longest: float | None = None
) -> Annotated[Array, "... n_k d+1"]:
    r"""Return unit vectors of one more coordinate, so that hashes see the inner product.

    .. math:: \tilde k = \bigl(k / k_{\max},\; \sqrt{1 - \lVert k \rVert^2 / k_{\max}^2}\bigr)

    Of two keys in the same direction the longer has the larger score, but a hash of angles cannot
    tell them apart and a hash of distances may prefer the shorter. After lifting, the key with the
    largest inner product is the one at the smallest angle, and at the smallest distance.

    Parameters
    ----------
    key : array, shape (..., n_k, d)
    longest : float, optional
        k_max, at least the length of every key. By default it is the largest length.

    Returns
    -------
    array, shape (..., n_k, d + 1)
        Of the library, device and dtype of `key`.

    Raises
    ------
    TypeError, ValueError
        If `key` is not such an array of finite floats, or a key is longer than `longest`.

    Notes
    -----
    All lifted keys of one collection need one k_max. One long key pushes all others towards the
    new axis, where they look alike. If there are a few long keys, score them apart. Cost: O(n_k d).

    References
    ----------
    Neyshabur and Srebro (2015), "On symmetric and asymmetric LSHs for inner product search".

    Examples
    --------
    >>> import numpy as np
    >>> lift_keys(np.array([[3.0, 0.0], [0.0, 5.0]]))
    array([[0.6, 0. , 0.8],
           [0. , 1. , 0. ]])
    """
    x = _wide("key", key)
    xp = array_namespace(x)
    entry = float(move(xp.max(xp.abs(x)), "numpy")) if 0 not in x.shape else 0.0
    squares = xp.sum((x / (entry or 1.0)) ** 2, axis=-1)  # no square overflows or vanishes
    largest = entry * math.sqrt(float(move(xp.max(squares), "numpy"))) if entry else 0.0
    # room for rounding, so that k_max taken from the same keys in another order is accepted
    if longest is None:
        longest = largest
    elif check_number("longest", longest) * (1 + 1e-6) < largest:
        raise ValueError(
            f"longest must be at least the length of every key, {largest:.6g}, got {longest:.6g}"
        )
    beyond = max(1.0, longest / float(xp.finfo(x.dtype).max))  # k_max in numbers that x may hold
    scaled = x / ((longest or 1.0) / beyond) / beyond  # keys of length 0 alone: all on the new axis
    rest = 1 - xp.sum(scaled * scaled, axis=-1, keepdims=True)
    height = root(rest)
    return xp.astype(xp.concat([scaled, height], axis=-1), key.dtype, copy=False)


def lift_queries(query: Annotated[Array, "... n_q d"]) -> Annotated[Array, "... n_q d+1"]:
    r"""Return queries of length 1 with a 0 appended, to be hashed beside lifted keys.

    .. math:: \tilde q = (q / \lVert q \rVert,\; 0)

    Parameters
    ----------
    query : array, shape (..., n_q, d)

    Returns
    -------
    array, shape (..., n_q, d + 1)
        Of the library, device and dtype of `query`; a query of zeros stays zero.

    Raises
    ------
    TypeError, ValueError
        If `query` is not such an array of finite floats.

    Examples
    --------
    >>> import numpy as np
    >>> lift_queries(np.array([[0.0, 2.0]]))
    array([[0., 1., 0.]])
    """
    x = _wide("query", query)
    xp = array_namespace(x)
    lifted = xp.concat([unit(x), xp.zeros_like(x[..., :1])], axis=-1)
    return xp.astype(lifted, query.dtype, copy=False)


def _wide(name, x):
    check_float(name, x)
    if x.ndim < 2 or x.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., n, d) with d >= 1, got {tuple(x.shape)}")
    xp = array_namespace(x)
    if not bool(xp.all(xp.isfinite(x))):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return to_accumulate(x)


@dataclass(frozen=True, eq=False)
class LiftedHash:
    """A hash that sees keys and queries lifted, for the largest inner products.

    Attributes
    ----------
    hash : SimHash or StableHash
        Of vectors one wider than the keys.
    longest : float
        k_max, at least the length of every key that will be added.

    Raises
    ------
    TypeError, ValueError
        If `hash` has no `signatures` or no `retrieval_probability`, or `longest` is not a finite
        number above 0.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook.hashing.simhash import SimHash
    >>> lifted = LiftedHash(SimHash.init(0, d=3, n_tables=2), longest=5.0)
    >>> lifted.signatures(np.array([[3.0, 4.0]])).shape
    (1, 2)
    """

    hash: Any
    longest: float

    def __post_init__(self):
        check_hash(self.hash)
        if not hasattr(self.hash, "retrieval_probability"):
            raise TypeError(
                "hash must be SimHash, StableHash or another that has retrieval_probability, got "
                f"{type(self.hash).__name__}"
            )
        object.__setattr__(self, "longest", check_positive("longest", self.longest))

    @property
    def n_tables(self) -> int:
        """L."""
        return self.hash.n_tables

    def to(self, *args: Any, **kwargs: Any) -> "LiftedHash":
        """Return the same hash in another library or device; parameters as `attnbook.move`."""
        return LiftedHash(self.hash.to(*args, **kwargs), self.longest)

    def signatures(self, key: Annotated[Array, "n d"]) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of keys; raises ValueError for one longer than `longest`."""
        return self.hash.signatures(lift_keys(key, self.longest))

    def query_signatures(self, query: Annotated[Array, "n d"]) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of queries."""
        return self.hash.signatures(lift_queries(query))

    def probes(
        self, query: Annotated[Array, "n d"], n_probes: int
    ) -> Annotated[Array, "n n_tables n_probes"]:
        """Return the signatures of the buckets that queries look into, by the hash within."""
        return self.hash.probes(lift_queries(query), n_probes)

    def retrieval_probability(
        self, query: Annotated[Array, "... n d"], key: Annotated[Array, "... n d"]
    ) -> Annotated[Array, "... n"]:
        """Return the probability that `key` is found by `query` in at least one table."""
        return self.hash.retrieval_probability(lift_queries(query), lift_keys(key, self.longest))
