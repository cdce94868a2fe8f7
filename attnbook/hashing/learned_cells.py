r"""Learned cells: a key's bucket is the nearest of some centres, which k-means finds on a sample.

.. math:: \operatorname{hash}(x) = \operatorname*{arg\,min}_c \lVert x - m_c \rVert
          = \operatorname*{arg\,max}_c \bigl(m_c \cdot x - \tfrac12 \lVert m_c \rVert^2\bigr)
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_float, check_int, generator
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.hashing.k_means import centres as k_means
from attnbook.hashing.probing import check_probes
from attnbook.hashing.projections import VectorHash, widened


@dataclass(frozen=True, eq=False)
class LearnedCells(VectorHash):
    r"""L tables whose buckets are the cells of centres m_c that were learned from keys.

    A signature is the number of the nearest centre. With one table and several probes this is an
    **inverted file** (IVF): a query reads the cells of its nearest centres. Random hashes know
    nothing of the keys; cells follow them, so fewer candidates hold the same neighbours. In return
    no chance to find a key is known, and keys unlike the sample fill a few cells.

    Attributes
    ----------
    centres : array, shape (n_tables, n_cells, d)

    Raises
    ------
    TypeError, ValueError
        If `centres` is not such an array of finite floats.

    Notes
    -----
    The nearest centre counts by Euclidean distance; of equal ones the first. A vector within
    rounding of two cells may be put into either by different libraries, dtypes and batch sizes.
    A `SketchAttention` with impl ``"numba"`` and one table keeps a second copy of keys and values,
    cell by cell, so that a query reads each of its cells from end to end.

    References
    ----------
    Sivic and Zisserman (2003), "Video Google"; Lloyd (1982), "Least squares quantization in PCM";
    chapter `hashing`.

    Examples
    --------
    >>> cells = LearnedCells(np.array([[[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]]]))
    >>> cells.signatures(np.array([[3.0, 1.0], [0.0, 1.0]]))
    array([[1],
           [0]])
    >>> cells.probes(np.array([[3.0, 1.0]]), 2)
    array([[[1, 0]]])
    """

    centres: Annotated[Array, "n_tables n_cells d"]

    def __post_init__(self):
        check_float("centres", self.centres)
        if self.centres.ndim != 3 or 0 in self.centres.shape:
            raise ValueError(
                "centres must have shape (n_tables, n_cells, d) with each at least 1, "
                f"got {tuple(self.centres.shape)}"
            )
        xp = array_namespace(self.centres)
        if not bool(xp.all(xp.isfinite(self.centres))):
            raise ValueError("centres must be finite, got NaN or infinity")

    @classmethod
    def fit(
        cls,
        rng: Any,
        key: Annotated[Array, "n d"],
        n_cells: int,
        n_tables: int = 1,
        *,
        n_steps: int = 10,
    ) -> "LearnedCells":
        """Learn cells from keys like those that the tables will hold.

        Parameters
        ----------
        rng : numpy.random.Generator or seed
            It draws the first centres, which are keys, and a sample of 64 keys per cell.
        key : array, shape (n, d)
            At least `n_cells` finite keys.
        n_cells, n_tables : int
            C and L. About √n to 4 √n cells balance the centres and the keys that a query reads.
        n_steps : int
            Steps of Lloyd's algorithm. A cell that loses all its keys keeps its centre.

        Returns
        -------
        LearnedCells
            In the library and dtype and on the device of `key`, float32 for half precision.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.

        Notes
        -----
        Cost: O(L n_steps C² d), whatever n is.

        Examples
        --------
        >>> key = np.random.default_rng(0).standard_normal((1000, 8))
        >>> LearnedCells.fit(0, key, 16).centres.shape
        (1, 16, 8)
        """
        rng = generator(rng)
        check_float("key", key)
        if key.ndim != 2 or key.shape[1] == 0:
            raise ValueError(f"key must have shape (n, d), got {tuple(key.shape)}")
        check_int("n_cells", n_cells, at_least=1)
        check_int("n_tables", n_tables, at_least=1)
        check_int("n_steps", n_steps)
        xp = array_namespace(key)
        if key.shape[0] < n_cells:
            raise ValueError(f"key must have at least n_cells = {n_cells} rows, got {key.shape[0]}")
        if not bool(xp.all(xp.isfinite(key))):
            raise ValueError("key must be finite, got NaN or infinity")
        wide = to_accumulate(key)
        return cls(xp.stack([k_means(wide, n_cells, rng, n_steps) for _ in range(n_tables)]))

    @property
    def n_tables(self) -> int:
        """L."""
        return int(self.centres.shape[0])

    @property
    def n_cells(self) -> int:
        """C, the number of cells of a table."""
        return int(self.centres.shape[1])

    @property
    def d(self) -> int:
        """Width of the vectors."""
        return int(self.centres.shape[2])

    @property
    def multipliers(self) -> np.ndarray:
        """The number 1, int64: a table has one code, which is its signature."""
        return np.ones(1, dtype=np.int64)

    def codes(self, x: Annotated[Array, "... d"]) -> Annotated[Array, "... n_tables 1"]:
        """Return the nearest centre of each table, int64.

        Raises TypeError or ValueError as `signatures`. Cost: O(d L C) per vector.
        """
        near = self._nearness(x)
        xp = array_namespace(near)
        return xp.astype(xp.argmax(near, axis=-1, keepdims=True), xp.int64)

    def probes(
        self, x: Annotated[Array, "... d"], n_probes: int
    ) -> Annotated[Array, "... n_tables n_probes"]:
        """Return the nearest centres of each table, int64, from the nearest on.

        Raises TypeError or ValueError as `signatures`, or if `n_probes` is not an int from 1 to the
        number of cells, or exceeds 1,024. Cost: O(d L C) per vector, and a sort of C numbers.
        """
        check_probes(n_probes, self.n_cells, "the buckets")
        near = self._nearness(x)
        xp = array_namespace(near)
        order = xp.argsort(-near, axis=-1, stable=True)[..., :n_probes]
        return xp.astype(order, xp.int64, copy=False)

    def _nearness(self, x):
        """Return m_c·x - ‖m_c‖² / 2, of which the largest belongs to the nearest centre."""
        x, centres = widened("x", x, self.centres)
        xp = array_namespace(x)
        bad = ValueError("x must be finite and have finite products, got NaN or infinity")
        if not bool(xp.all(xp.isfinite(x))):
            raise bad
        n_tables, n_cells, d = centres.shape
        flat = xp.reshape(centres, (n_tables * n_cells, d))
        near = xp.matmul(xp.reshape(x, (-1, d)), xp.matrix_transpose(flat))
        near = near - 0.5 * xp.sum(flat * flat, axis=-1)
        if not bool(xp.all(xp.isfinite(near))):
            raise bad
        return xp.reshape(near, (*x.shape[:-1], n_tables, n_cells))
