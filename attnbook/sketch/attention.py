r"""Sketch attention: attention over the keys that hash tables return.

.. math:: O_R = \operatorname{softmax}(\beta\, q K_R^\top)\, V_R, \qquad
          R = \{\, i : \operatorname{hash}_t(k_i) = \operatorname{hash}_t(q) \text{ for a } t \,\}
"""

from typing import Annotated, Any

from attnbook.arrays.arguments import check_bool
from attnbook.arrays.array import Array, array_namespace
from attnbook.sketch.engines import ENGINES
from attnbook.sketch.evidence import Evidence
from attnbook.sketch.queries import answer, check_query
from attnbook.sketch.reference_query import blocks, candidates, near_in_blocks
from attnbook.sketch.state import Settings, SketchState
from attnbook.sketch.updates import update
from attnbook.sketch.visible_keys import EVERYTHING

NO_ROW = 2**62  # sorts behind every row


class SketchAttention:
    r"""A growing set of keys and values that queries reach through hash tables.

    .. math::
        R = \{\, i : \operatorname{hash}_t(k_i) = \operatorname{hash}_t(q) \text{ for a } t \,\},
        \qquad \hat O = \sum_{i \in R} w_i v_i

    Parameters
    ----------
    hash : SimHash, StableHash, LearnedCells, LiftedHash, GivenHash or your own
        Its `signatures` put keys and queries into the buckets of `n_tables` tables. A `plan` draws
        one that keeps a promise, and one table of `LearnedCells` is an inverted file. It is of the
        library of the keys; with impl ``"cupy"`` a `SimHash` or `StableHash` may be of any.
    estimator : str
        How weights come from what the tables return: ``"union"``, ``"importance"``,
        ``"duplicates"``, ``"per_table_mean"`` or ``"per_table_sum"``. The module `estimators` has a
        function for each.
    scale : float, optional
        The number that multiplies the scores; 1/√d by default, as in `attention`.
    seed : int
        It fixes all that is random here, which is the scattering hash of the tables.
    impl : str
        ``"reference"`` takes arrays of any library and finds buckets by binary search, ``"numba"``
        runs compiled loops on NumPy arrays, ``"cupy"`` runs CUDA kernels on CuPy arrays.
    n_probes : int
        How many buckets a query looks into in each table: its own, and by the `probes` of the hash
        those that most likely hold a near key. With more than one the probability that a key was
        found is not known. So the estimator ``"importance"`` is refused, and the evidence is
        NaN. The kernels of ``"cupy"`` look into only one bucket.

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type, unknown or does not fit the others; the message lists
        the choices.
    ImportError
        If `impl` needs a library that is not installed; the message says how to get it.

    Notes
    -----
    The arrays of the first `update` are kept and not copied: do not write into them.
    A query costs O(d L κ) for the hash, and O(d + d_v) for each candidate. Many identical vectors
    share a bucket, and a query that meets it reads all of them. On a GPU a batch without evidence
    takes one launch and one wait. To let the keys that were not found count too, mix the answer
    with a tail of `Moments` or `uniform_tail`, as chapter `estimators` does.

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
        scale: float | None = None,
        seed: int = 0,
        impl: str = "reference",
        n_probes: int = 1,
    ):
        self._settings = Settings(hash, estimator, scale, seed, impl, n_probes)
        vars(self).update(vars(self._settings))  # to be read; the state has its own
        self._engine = ENGINES[impl](hash, n_probes)
        self.initialize()

    def __len__(self) -> int:
        """Return the number of keys that were not removed."""
        return self.state.n

    @property
    def memory_bytes(self) -> int:
        """Bytes of the tables; keys and values are not counted."""
        return 0 if self.state.index is None else self.state.index.memory_bytes

    def initialize(self) -> "SketchAttention":
        """Forget all keys, and return the sketch itself."""
        self.state = SketchState(self._settings, self._engine)
        return self

    def update(
        self,
        key: Annotated[Array, "m d"],
        value: Annotated[Array, "m d_v"] | None = None,
    ) -> Annotated[Array, "m"]:
        """Add keys with their values. By default the keys are the values, as in the notes.

        Returns
        -------
        int64 array, shape (m,)
            Their ids. They count from 0 in the order of addition, and none is used twice.

        Raises
        ------
        TypeError, ValueError
            If the arrays are not finite floats of one library, device and dtype, if they do not fit
            one another or what is there, or if the hash refuses the keys. The sketch is then as it
            was.

        Notes
        -----
        A key costs O(d L κ) for the hash. The indices say what the tables cost.
        """
        return update(self.state, key, key if value is None else value)

    def remove(self, ids: Annotated[Array, "m"]) -> None:
        """Remove the keys with these ids, an integer array (m,) that `update` returned.

        Raises TypeError or ValueError if they are no such integers, or if one of them is not there.
        The sketch is then as it was.
        """
        if self.state.index is None:
            raise ValueError("ids must be of keys that are there, and there is none")
        self.state.index.remove(ids, name="ids")
        self.state.box = None

    def merge(self) -> None:
        """Sort the newest keys into the tables now. Otherwise this is done when it pays."""
        if self.state.index is not None:
            self.state.index.merge()

    def query(
        self, query: Annotated[Array, "n_q d"]
    ) -> tuple[Annotated[Array, "n_q M"], Annotated[Array, "n_q M"]]:
        """Return the distinct keys that the tables return for each query.

        Returns
        -------
        ids : int64 array, shape (n_q, M)
            Ascending, and then −1 where a query has fewer than M.
        found : boolean array, shape (n_q, M)
            True where there is an id.

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
        columns = state.tables().columns(state.engine.signatures(query, of_queries=True))
        parts = []
        for part in blocks(state, columns):
            found = candidates(state, columns[part, :], EVERYTHING)
            rows = xp.where(found.distinct, found.rows, xp.full_like(found.rows, NO_ROW))
            n_q, n_buckets, width = rows.shape
            parts.append(xp.sort(xp.reshape(rows, (n_q, n_buckets * width)), axis=-1))
        ids = _stacked(parts, NO_ROW)
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
            −1 at places without a key. With the estimators ``"duplicates"``, ``"per_table_mean"``
            and ``"per_table_sum"`` a key appears once for each table that returned it.
        weights : array, shape (n_q, M)
            0 at places without a key. They sum to 1; with ``"per_table_sum"`` to the number of
            buckets that hold a key; and to 0 where nothing was found.

        Raises
        ------
        TypeError, ValueError
            As `query`.
        """
        check_query(self.state, query)
        xp = array_namespace(query)
        if self.state.index is None:
            return xp.zeros_like(query[:, :0], dtype=xp.int64), query[:, :0]
        # the plain functions, since kernels keep rows and weights to themselves
        parts = [near for _, near in near_in_blocks(self.state, query, EVERYTHING, weigh=False)]
        rows = _stacked([near.rows for near in parts], -1)
        weights = _stacked([near.weights for near in parts], 0)
        return rows, xp.astype(weights, query.dtype, copy=False)

    def attention_output(
        self, query: Annotated[Array, "n_q d"], *, return_evidence: bool = False
    ) -> Any:
        """Return the mix of values for each query.

        Returns
        -------
        array, shape (n_q, d_v)
            In the dtype of `query`. It is zeros where nothing was found, and zeros as wide as
            `query` if no key was ever added. With `return_evidence` it comes in a pair with
            `Evidence`, which says what is known of the quality of this answer.

        Raises
        ------
        TypeError, ValueError
            As `query`.
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
        whole = answer(self.state, query, with_evidence=return_evidence)
        output = xp.astype(whole.output, query.dtype, copy=False)
        if not return_evidence:
            return output
        return output, Evidence(len(self), *whole.evidence)

    def save(self, path: Any) -> None:
        """Write the sketch to a file: hash, settings, keys, values and their signatures.

        Parameters
        ----------
        path : str or path
            A file that is there is replaced, as a whole or not at all.

        Raises
        ------
        OSError
            If the file cannot be written.

        Notes
        -----
        A hash of your own is code and is not written, so `load` asks for it. The file holds the
        signatures instead of the tables, which are sorted again from them. That is faster than
        hashing again, and the same to the last bit. bfloat16 is stored as float32, which holds it
        exactly. Removed keys are written, too, so that ids stay.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from attnbook.sketch import SimHash
        >>> sketch = SketchAttention(SimHash.init(0, 4, n_tables=3))
        >>> ids = sketch.update(np.eye(4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sketch.save(f"{folder}/sketch.safetensors")
        ...     again = SketchAttention.load(f"{folder}/sketch.safetensors")
        >>> len(again), again.hash.n_tables
        (4, 3)
        """
        from attnbook.sketch import state_file

        state_file.write(path, self.state)

    @classmethod
    def load(
        cls,
        path: Any,
        library: str | None = None,
        *,
        impl: str | None = None,
        hash: Any = None,
    ) -> "SketchAttention":
        """Return the sketch of a file that `save` wrote. Its answers and ids are the same.

        Parameters
        ----------
        path : str or path
        library : str, optional
            The library of the arrays: ``"numpy"``, ``"torch"`` or ``"cupy"``. By default it is the
            one that `impl` needs, or NumPy.
        impl : str, optional
            By default what was saved. ``"cupy"`` takes no sketch with several probes.
        hash : optional
            Your own hash, if the sketch was saved with one of your own. It has to be the same.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If the file is damaged or holds something else, if it sets an option that a sketch no
            longer has, if `hash` is missing or has another number of tables, or if `library` or
            `impl` is unknown or does not fit.
        TypeError
            If `hash` is no hash, or if it is given for a sketch that has one.
        ImportError
            If `impl` or `library` is not installed.

        Notes
        -----
        Only classes of this package are built, whatever the file says, and no code from it runs.
        """
        from attnbook.sketch import state_file

        return state_file.read(cls, path, library, impl=impl, hash=hash)


def _stacked(parts: list[Array], filler: Any) -> Array:
    """Return blocks (n, M) of different widths M as one array, padded with `filler`."""
    xp = array_namespace(parts[0])
    width = max(x.shape[1] for x in parts)
    filled = []
    for x in parts:
        blank = xp.zeros_like(x[:, :1]) if x.shape[1] else xp.sum(x, axis=1, keepdims=True)
        blank = xp.full_like(xp.broadcast_to(blank, (x.shape[0], width - x.shape[1])), filler)
        filled.append(xp.concat([x, blank], axis=1))
    return xp.concat(filled, axis=0)
