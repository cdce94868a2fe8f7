r"""Sketch attention: attention over the keys that hash tables return.

.. math:: O_R = \operatorname{softmax}(\beta\, q K_R^\top)\, V_R, \qquad
          R = \{\, i : \operatorname{hash}_t(k_i) = \operatorname{hash}_t(q) \text{ for a } t \,\}
"""

from typing import Annotated, Any

from attnbook.arrays.arguments import check_bool
from attnbook.arrays.array import Array, array_namespace
from attnbook.sketch.answers import FIELDS, Evidence, answers, check_query, joined, stacked
from attnbook.sketch.engines import ENGINES, Reference
from attnbook.sketch.growth import update
from attnbook.sketch.near_keys import blocks, candidates
from attnbook.sketch.state import Settings, SketchState, Summary
from attnbook.sketch.visible import EVERYTHING

NO_ROW = 2**62  # sorts behind every row


class SketchAttention:
    r"""A growing set of keys and values, asked through hash tables.

    .. math::
        R = \{\, i : \operatorname{hash}_t(k_i) = \operatorname{hash}_t(q) \text{ for a } t \,\},
        \qquad \hat O = \sum_{i \in R} w_i v_i

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
        arrays and compiled loops. ``"cupy"``: CuPy arrays, CUDA kernels.
    n_probes : int
        Buckets that a query looks into in each table, by the `probes` of the hash: its own, and
        those that most likely hold a near key. With more than one, the chance that a key was found
        is not known: no estimator ``"importance"``, and NaN in the evidence. 1 with ``"cupy"``.

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
    Cost of a query: O(d L κ) for the hash, and O(d + d_v) for each candidate.

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
        n_probes: int = 1,
    ):
        self._settings = Settings(
            hash,
            estimator,
            tail,
            scale,
            n_heavy,
            n_cells,
            n_samples,
            delta,
            max_bucket,
            seed,
            impl,
            n_probes,
        )
        vars(self).update(vars(self._settings))  # to be read; the state has its own
        self._engine = ENGINES[impl](hash, n_probes)
        self.initialize()

    def __len__(self) -> int:
        """Return how many keys there are, without the removed ones."""
        return self.state.n

    @property
    def memory_bytes(self) -> int:
        """Bytes of the tables; keys and values are not counted."""
        return 0 if self.state.index is None else self.state.index.memory_bytes

    def initialize(self) -> "SketchAttention":
        """Forget all keys; return the sketch itself, empty."""
        self.state = SketchState(self._settings, self._engine)
        return self

    def update(
        self,
        key: Annotated[Array, "m d"],
        value: Annotated[Array, "m d_v"] | None = None,
    ) -> Annotated[Array, "m"]:
        """Add keys with their values, those of `key` by default: one context, as in the sources.

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
        Amortised O(d L κ + L) a key.
        """
        return update(self.state, key, key if value is None else value)

    def remove(self, ids: Annotated[Array, "m"]) -> None:
        """Take keys away by their ids, an integer array (m,) as `update` returned them.

        Raises TypeError or ValueError if they are no such integers, or one is not there. The sketch
        is then as it was.
        """
        if self.state.index is None:
            raise ValueError("ids must be of keys that are there, and there is none")
        self.state.index.remove(ids, name="ids")
        self.state.summary = Summary()

    def merge(self) -> None:
        """Sort what was added lately into the tables. It happens by itself now and then."""
        if self.state.index is not None:
            self.state.index.merge()

    def query(
        self, query: Annotated[Array, "n_q d"]
    ) -> tuple[Annotated[Array, "n_q M"], Annotated[Array, "n_q M"]]:
        """Return the different keys that the tables have for each query.

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
        state = self.state
        check_query(state, query)
        xp = array_namespace(query)
        if state.index is None:
            nothing = xp.zeros_like(query[:, :0], dtype=xp.int64)
            return nothing, nothing > 0
        signatures = state.engine.signatures(query, of_queries=True)
        found = [
            candidates(state, signatures[part, ...], EVERYTHING)
            for part in blocks(state, signatures)
        ]
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

        Returns
        -------
        ids : int64 array, shape (n_q, M)
            With the estimators ``"duplicates"``, ``"per_table_mean"`` and ``"per_table_sum"`` a key
            appears once for each table that returned it. −1 at places without a key.
        weights : array, shape (n_q, M)
            0 at those places. They sum to 1; to the number of buckets that hold a key with
            ``"per_table_sum"``; to less than 1 with a tail, which has the rest; to 0 where nothing
            was found. Raises as `query`.
        """
        check_query(self.state, query)
        xp = array_namespace(query)
        if self.state.index is None:
            return xp.zeros_like(query[:, :0], dtype=xp.int64), query[:, :0]
        plain = Reference(
            self._settings.hash, self._settings.n_probes
        )  # kernels keep rows and weights to themselves
        parts = answers(self.state, query, engine=plain)
        rows = stacked([a.rows for a in parts], -1)
        weights = stacked([a.weights for a in parts], 0)
        return rows, xp.astype(weights, query.dtype, copy=False)

    def attention_output(
        self, query: Annotated[Array, "n_q d"], *, return_evidence: bool = False
    ) -> Any:
        """Return the mix of values for each query.

        Returns
        -------
        array, shape (n_q, d_v)
            Of the dtype of `query`; zeros where nothing was found and there is no tail, and zeros
            as wide as `query` as long as no key was ever added. With `return_evidence` a pair of it
            and `Evidence`, which says what is known of the quality of this answer. Raises as
            `query`.
        """
        if return_evidence is False and self.state.index is not None:
            output = self._engine.output(self.state, query)
            if output is not None:
                return output
        check_query(self.state, query)
        check_bool("return_evidence", return_evidence)
        xp = array_namespace(query)
        if self.state.index is None:
            zeros = xp.zeros_like(query)
            return (zeros, Evidence.of_nothing(0, zeros[:, 0])) if return_evidence else zeros
        whole = joined(answers(self.state, query, with_evidence=return_evidence))
        output = xp.astype(whole.output, query.dtype, copy=False)
        if not return_evidence:
            return output
        return output, Evidence(len(self), *(getattr(whole, name) for name in FIELDS))

    def save(self, path: Any) -> None:
        """Write all of it to a file; `attnbook.sketch.store.save_sketch` says how."""
        from attnbook.sketch import state_file

        state_file.write(path, self.state)

    @classmethod
    def load(cls, path: Any, library: str | None = None, **options: Any) -> "SketchAttention":
        """Return the sketch of a file; `attnbook.sketch.store.load_sketch` says how."""
        from attnbook.sketch import state_file

        state = state_file.read(path, library, **options)
        sketch = cls(**vars(state.settings))
        sketch.state = state
        return sketch
