r"""Sketch attention: attention over the keys that hash tables return.

.. math:: O_R = \operatorname{softmax}(s\, q K_R^\top)\, V_R, \qquad
          R = \{\, i : h_t(k_i) = h_t(q) \text{ for some table } t \,\}
"""

import math
from typing import Annotated, Any

from attnbook.arrays.arguments import (
    Array,
    array_namespace,
    check_choice,
    check_int,
    check_number,
)
from attnbook.sketch.answers import (
    FIELDS,
    Answer,
    Visible,
    answer,
    blocks,
    candidates,
    joined,
    near,
    stacked,
)
from attnbook.sketch._checked import check_query, check_update
from attnbook.sketch.summary import Far
from attnbook.sketch.engines import IMPLS
from attnbook.sketch.growing_rows import Rows
from attnbook.sketch.estimators import ESTIMATORS
from attnbook.sketch.evidence import Evidence
from attnbook.hashing.given_hash import check_hash

TAILS = ("none", "moments", "uniform")
EVERYTHING = Visible()
NO_ROW = 2**62  # sorts behind every row


class SketchAttention:
    r"""A growing set of keys and values, asked through hash tables.

    .. math:: R = \{\, i : h_t(k_i) = h_t(q) \text{ for some } t \,\}, \qquad
              \hat O = \sum_{i \in R} w_i v_i

    Parameters
    ----------
    hash : SimHash, StableHash, LiftedHash, GivenHash or your own
        Its `signatures` put keys and queries into the buckets of `n_tables` tables. A `plan` draws
        one that keeps a promise.
    estimator : str
        How weights come from what the tables return: ``"union"``, ``"importance"``,
        ``"duplicates"``, ``"per_table_mean"`` or ``"per_table_sum"``; `estimators` has a function
        for each.
    tail : str
        What stands for the keys that were not found, with ``"union"`` only: ``"none"``; or
        ``"moments"``, a closed form from their mean and covariance; or ``"uniform"``, a random
        sample of them.
    scale : float, optional
        Multiplies the scores; 1/√d by default, as in `attention`.
    n_heavy : int
        So many keys, those of largest length, are scored for every query.
    n_cells : int
        Cells of the tail ``"moments"``.
    n_samples : int
        Keys that the tail ``"uniform"`` draws, for all queries together.
    delta : float
        Chance that the error exceeds the bound of the tail ``"uniform"``, up to 0.2.
    max_bucket : int, optional
        At most so many keys of a bucket are taken, those added first. Many identical vectors share
        a bucket, and a query that meets it costs as much as there are. What is left out counts as
        not found, so the promise of a plan does not hold for it.
    seed : int
        Of everything random here: the tables' own hash, the sample of a tail, the cells.
    impl : str
        ``"reference"``: any array library, buckets found by binary search. ``"numba"``: NumPy
        arrays, Robin Hood tables and compiled loops. ``"cupy"``: CuPy arrays, CUDA kernels.

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type, unknown or does not fit the others; the message lists
        the choices.
    ImportError
        If `impl` needs a library that is not installed; the message says how to get it.

    Notes
    -----
    The arrays of the first `update` are kept, not copied: do not write into them.
    Cost of a query: O(d L K) for the hash, and O(d + d_v) for each candidate.

    References
    ----------
    Chapter `sketch`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook.sketch import SimHash
    >>> rng = np.random.default_rng(0)
    >>> key = rng.standard_normal((1000, 16))
    >>> sketch = SketchAttention(SimHash.init(0, 16, n_tables=4, n_projections=6))
    >>> ids = sketch.update(key)
    >>> output, evidence = sketch.attention_output(key[:3], return_evidence=True)
    >>> output.shape, bool((evidence.candidates < 200).all())
    ((3, 16), True)
    """

    def __init__(
        self,
        hash: Any,
        *,
        estimator: str = "union",
        tail: str = "none",
        scale: float | None = None,
        n_heavy: int = 0,
        n_cells: int = 1,
        n_samples: int = 128,
        delta: float = 0.05,
        max_bucket: int | None = None,
        seed: int = 0,
        impl: str = "reference",
    ):
        check_hash(hash)
        check_choice("estimator", estimator, tuple(ESTIMATORS))
        check_choice("tail", tail, TAILS)
        check_choice("impl", impl, tuple(IMPLS))
        for name, count, least in (
            ("n_heavy", n_heavy, 0),
            ("n_cells", n_cells, 1),
            ("n_samples", n_samples, 2),
            ("seed", seed, 0),
        ):
            check_int(name, count, at_least=least)
        if max_bucket is not None:
            check_int("max_bucket", max_bucket, at_least=1)
        if scale is not None:
            check_number("scale", scale)
        if not 0 < check_number("delta", delta) <= 0.2:
            raise ValueError(f"delta must be above 0 and at most 0.2, got {delta}")
        if tail == "uniform" and max_bucket is not None:
            raise ValueError(
                "max_bucket must be None with tail 'uniform', which has to know what was found, "
                f"got {max_bucket}"
            )
        if (tail != "none" or n_heavy) and estimator != "union":
            raise ValueError(
                f"estimator must be 'union' with a tail or heavy keys, got {estimator!r}"
            )
        if estimator == "importance" and not hasattr(hash, "retrieval_probability"):
            raise ValueError(
                "hash must have retrieval_probability for estimator 'importance', "
                f"got {type(hash).__name__}"
            )
        if impl != "reference" and estimator.startswith("per_table"):
            raise ValueError(
                f"estimator must be union, importance or duplicates for impl {impl!r}, "
                f"got {estimator!r}"
            )
        self.hash, self.estimator, self.tail, self.impl = hash, estimator, tail, impl
        self.scale, self.n_heavy, self.n_cells = scale, n_heavy, n_cells
        self.n_samples, self.delta, self.max_bucket, self.seed = n_samples, delta, max_bucket, seed
        self._impl = IMPLS[impl](hash)
        self.initialize()

    def __len__(self) -> int:
        """Return how many keys there are, without the removed ones."""
        return 0 if self._index is None else self._index.n

    @property
    def memory_bytes(self) -> int:
        """Bytes of the tables; keys and values are not counted."""
        return 0 if self._index is None else self._index.memory_bytes

    def initialize(self) -> "SketchAttention":
        """Forget all keys; return the sketch itself, empty."""
        self._key, self._value = Rows(), Rows()
        self._stored = (self._key, self._value)
        self._index: Any = None
        self._far = Far()
        return self

    def update(
        self,
        key: Annotated[Array, "m d"],
        value: Annotated[Array, "m d_v"] | None = None,
    ) -> Annotated[Array, "m"]:
        """Add keys with their values.

        Parameters
        ----------
        key : array, shape (m, d)
        value : array, shape (m, d_v), optional
            `key` by default: one context, as in the sources.

        Returns
        -------
        int64 array, shape (m,)
            Their ids, counted from 0 in the order of their addition, never used twice.

        Raises
        ------
        TypeError, ValueError
            If the arrays are not finite floats of one library, device and dtype, do not fit one
            another or what is there, or if the hash refuses the keys. The sketch is then as it
            was.

        Notes
        -----
        Amortised O(d L K + L) a key.
        """
        value = key if value is None else value
        check_update(self, key, value)
        signatures = self._signatures(key)
        index = self._index
        if index is None:
            index = self._impl.new_index(self.seed)
        rooms = [held.with_room(x) for held, x in zip(self._stored, (key, value), strict=True)]
        rows = index.add(signatures)  # the last step that can fail
        self._index = index
        for held, x, room in zip(self._stored, (key, value), rooms, strict=True):
            held.append(x, room)
        self._far.add(self, rows)
        return rows

    def remove(self, ids: Annotated[Array, "m"]) -> None:
        """Take keys away.

        Parameters
        ----------
        ids : integer array, shape (m,)
            As `update` returned them.

        Raises
        ------
        TypeError, ValueError
            If they are no such integers, or one is not there. The sketch is then as it was.
        """
        if self._index is None:
            raise ValueError("ids must be of keys that are there, and there is none")
        self._index.remove(ids)
        self._far.forget()

    def merge(self) -> None:
        """Sort what was added lately into the tables. It happens by itself now and then."""
        if self._index is not None:
            self._index.merge()

    def query(
        self, query: Annotated[Array, "n_q d"]
    ) -> tuple[Annotated[Array, "n_q M"], Annotated[Array, "n_q M"]]:
        """Return the different keys that the tables have for each query.

        Parameters
        ----------
        query : array, shape (n_q, d)

        Returns
        -------
        ids : int64 array, shape (n_q, M)
            In ascending order, then −1 where a query has fewer than M.
        found : boolean array, shape (n_q, M)
            Where there is an id.

        Raises
        ------
        TypeError, ValueError
            If `query` is not a finite array of floats of the library, device, dtype and width of
            the keys.
        """
        check_query(self, query)
        xp = array_namespace(query)
        if self._index is None:
            nothing = xp.zeros_like(query[:, :0], dtype=xp.int64)
            return nothing, nothing > 0
        signatures = self._signatures(query, of_queries=True)
        found = [candidates(self, signatures[p, :], EVERYTHING) for p in blocks(self, signatures)]
        parts = [
            xp.sort(
                xp.reshape(
                    xp.where(block.distinct, block.rows, xp.full_like(block.rows, NO_ROW)),
                    (block.rows.shape[0], block.rows.shape[1] * block.rows.shape[2]),
                ),
                axis=-1,
            )
            for block in found
        ]
        ids = stacked(parts, NO_ROW)
        there = ids < NO_ROW
        most = int(xp.max(xp.count_nonzero(there, axis=-1))) if 0 not in ids.shape else 0
        ids = xp.where(there, ids, xp.full_like(ids, -1))
        return ids[:, :most], there[:, :most]

    def attention_weights(
        self, query: Annotated[Array, "n_q d"]
    ) -> tuple[Annotated[Array, "n_q M"], Annotated[Array, "n_q M"]]:
        """Return the keys that were scored, and their weights.

        Parameters
        ----------
        query : array, shape (n_q, d)

        Returns
        -------
        ids : int64 array, shape (n_q, M)
            With the estimators ``"duplicates"``, ``"per_table_mean"`` and ``"per_table_sum"`` a key
            appears once for each table that returned it. −1 at places without a key.
        weights : array, shape (n_q, M)
            0 at those places. They sum to 1; to the number of buckets that hold a key with
            ``"per_table_sum"``; to less than 1 with a tail, which has the rest; to 0 where nothing
            was found.

        Raises
        ------
        TypeError, ValueError
            As `query`.
        """
        check_query(self, query)
        xp = array_namespace(query)
        if self._index is None:
            return xp.zeros_like(query[:, :0], dtype=xp.int64), query[:, :0]
        answers = self.answers(query, EVERYTHING, near_of=near)
        rows = stacked([a.rows for a in answers], -1)
        weights = stacked([a.weights for a in answers], 0)
        return rows, xp.astype(weights, query.dtype, copy=False)

    def attention_output(
        self, query: Annotated[Array, "n_q d"], *, return_evidence: bool = False
    ) -> Any:
        """Return the mix of values for each query.

        Parameters
        ----------
        query : array, shape (n_q, d)
        return_evidence : bool
            Also return what the sketch knows of the quality of this answer.

        Returns
        -------
        array, shape (n_q, d_v)
            Of the dtype of `query`; zeros where nothing was found and there is no tail, and zeros
            as wide as `query` as long as no key was ever added.
            With `return_evidence` a pair of it and `Evidence`.

        Raises
        ------
        TypeError, ValueError
            As `query`.
        """
        check_query(self, query)
        return self._output(query, EVERYTHING, return_evidence)

    def save(self, path: Any) -> None:
        """Write all of it to a file; `attnbook.sketch.store.save_sketch` says how."""
        from attnbook.sketch import store

        store.save_sketch(path, self)

    @classmethod
    def load(cls, path: Any, library: str | None = None, **options: Any) -> "SketchAttention":
        """Return the sketch of a file; `attnbook.sketch.store.load_sketch` says how."""
        from attnbook.sketch import store

        return store.load_sketch(path, library, **options)

    # The steps. `_answer` holds what a block of queries goes through.

    def _output(self, query, visible, return_evidence):
        xp = array_namespace(query)
        if self._index is None:
            zeros = xp.zeros_like(query)
            none = xp.zeros_like(query[:, 0])
            count = xp.astype(none, xp.int64)
            empty = Evidence(0, count, xp.full_like(none, xp.nan), none, none)
            return (zeros, empty) if return_evidence else zeros
        whole = joined(self.answers(query, visible, return_evidence))
        output = xp.astype(whole.output, query.dtype, copy=False)
        if not return_evidence:
            return output
        return output, Evidence(len(self), *(getattr(whole, name) for name in FIELDS))

    def answers(
        self,
        query: Array,
        visible: Visible,
        with_evidence: bool = False,
        *,
        near_of: Any = None,
        **others: Any,
    ) -> list[Answer]:
        """Return the answers to blocks of queries, `near_of` in place of the kernel if given."""
        signatures = self._signatures(query, of_queries=True)
        parts = blocks if near_of is near else self._impl.blocks
        return [
            answer(
                self,
                query[part, :],
                signatures[part, :],
                visible.of(part),
                near_of or self._impl.near,
                with_evidence=with_evidence,
                **{name: _of(x, part) for name, x in others.items()},
            )
            for part in parts(self, signatures)
        ]

    def _signatures(self, x, of_queries=False):
        return self._impl.signatures(x, of_queries)

    def scale_of(self, query: Array) -> float:
        """Return what multiplies the scores."""
        return 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale


def _of(x, part):
    """Return what belongs to some of the queries: of a pair of arrays their rows."""
    return tuple(array[part, ...] for array in x) if isinstance(x, tuple) else x
