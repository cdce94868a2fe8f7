"""A cache that reads a few of its keys: the first, the newest, and what hash tables find."""

import importlib
import math
from typing import Annotated, Any, Literal

import numpy as np

from attnbook.arrays.arguments import check_choice, check_int, generator
from attnbook.arrays.array import Array, dtype_name, library
from attnbook.arrays.move import how_to_install
from attnbook.decoding.kv_cache import KVCache
from attnbook.hashing.collision import at_least_twice, log_chance
from attnbook.hashing.projections import angle_of
from attnbook.hashing.simhash import SimHash
from attnbook.kernels import Impl, naive
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.transformers.weights import TransformerWeights

MOST_BITS = 16
"""A directory has a place for each of the 2^κ buckets of each table."""


class HybridCache(KVCache):
    r"""A `KVCache` in which decoded tokens read the first, the newest, and keys found by hashing.

    .. math:: \hat O = \frac{\sum_{j \in N} e^{s_j} v_j + \sum_{j \in R} \frac{e^{s_j}}{P_j} v_j}
                            {\sum_{j \in N} e^{s_j} + \sum_{j \in R} \frac{e^{s_j}}{P_j}},
        \qquad P_j = P\{\text{two of } L \text{ tables or more return } j\}

    N consists of the **sinks**, which are the first keys, and of the **window**, which are the
    newest keys, including that of the token itself. R consists of those other keys that share the
    bucket of the query in at least two of L tables of κ signs (`SimHash`). Each of them counts as
    1/P_j keys, so that numerator and denominator have the correct expectation over the draw of the
    tables. Before keys are hashed, their **centre**, the mean of the prompt's keys, is subtracted,
    because a shift of all keys changes no weight.

    Pass one as ``cache=`` to `greedy_decode`, `sample`, `stream` or `speculative_sample`. The first
    pass, over the prompt, computes exact attention with the ``impl=`` of that function; every later
    token attends as above. A key enters the tables when it leaves the window.

    Parameters
    ----------
    sinks : int
        The number of first keys that every query reads, at least 0.
    window : int
        The number of newest keys that every query reads, at least 1.
    n_tables : int
        L, at least 2, or 0 for sinks and window only.
    n_projections : int
        κ, the number of signs per table, from 1 to 16.
    seed : int or numpy.random.Generator
        The seed of the directions, which all heads of all layers share.
    impl : "reference" or "numba"
        How keys are looked up: by NumPy, which compares all signatures, or by compiled loops, which
        read buckets.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    Keys and values are NumPy arrays of float32 or float64. Heads, KV heads and batches are leading
    axes. `truncate` works as in a `KVCache`, so speculative decoding works, too; truncating to 0
    tokens also forgets the centre. However, `reorder` is refused, and therefore `beam_search`. So
    are masks and biases (ALiBi), because the cache itself decides which keys to read.

    The compiled loops sum products in another order than the reference, so a key whose projection
    lies within rounding of 0 may fall into another bucket. They interpolate log P.

    Cost for each decoded token and query head: L κ d products for its signature, n bytes of
    counters, O(1) for each entry of its L buckets, and O(d_k + d_v) for each key in N or R; for
    each KV head, L κ d products for the key that leaves the window. The reference compares n L
    signatures instead of reading buckets. Memory in addition to the keys: with "numba" at least
    4 L bytes for each key in the tables and 8 L 2^κ bytes for each KV head; with "reference" 8 L
    bytes for each key.

    References
    ----------
    Chen et al. (2025), "MagicPIG: LSH sampling for efficient LLM generation"; Xiao et al. (2024)
    for the sinks; chapter `sketch`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cache = HybridCache(sinks=2, window=5, n_tables=20, n_projections=3)
    >>> _ = cache.append(0, rng.normal(size=(1, 100, 8)), rng.normal(size=(1, 100, 7)))
    >>> _ = cache.append(0, rng.normal(size=(1, 1, 8)), rng.normal(size=(1, 1, 7)))
    >>> cache.attend(0, rng.normal(size=(1, 1, 8)), scale=8**-0.5).shape
    (1, 1, 7)
    """

    takes_masks = False

    def __init__(
        self,
        sinks: int = 4,
        window: int = 50,
        *,
        n_tables: int = 256,
        n_projections: int = 12,
        seed: Any = 0,
        impl: Literal["reference", "numba"] = "reference",
    ):
        super().__init__()
        self.sinks = check_int("sinks", sinks)
        self.window = check_int("window", window, at_least=1)
        self.n_tables = check_int("n_tables", n_tables)
        self.n_projections = check_int("n_projections", n_projections, at_least=1)
        if n_tables == 1:
            raise ValueError("n_tables must be 0 or at least 2, since a key needs two hits, got 1")
        if n_projections > MOST_BITS:
            raise ValueError(f"n_projections must be at most {MOST_BITS}, got {n_projections}")
        self.impl = check_choice("impl", impl, ("reference", "numba"))
        self._rng = generator(seed, "seed")
        self._hashes: dict[int, SimHash] = {}  # by the width of keys
        self._layers: list[Any] = []  # what looks keys up in each of them

    @property
    def nbytes(self) -> int:
        """The memory of keys, values and tables in bytes, including unused capacity."""
        return super().nbytes + sum(layer.nbytes for layer in self._layers)

    def append(
        self, layer: int, keys: Annotated[Array, "... m d_k"], values: Annotated[Array, "... m d_v"]
    ) -> tuple[Annotated[Array, "... m d_k"], Annotated[Array, "... m d_v"]]:
        """Store the keys and values of m new tokens of a layer, and return only these.

        This is enough for the prompt, which is the first that a layer gets. For later tokens,
        `attend` reads what it needs from the cache. Arguments and errors are those of
        `KVCache.append`; in addition, a TypeError is raised unless both are NumPy arrays of float32
        or float64.
        """
        for name, x in (("keys", keys), ("values", values)):
            if library(x) != "numpy" or dtype_name(x.dtype) not in ("float32", "float64"):
                got = f"{library(x)} of {dtype_name(x.dtype)}"
                raise TypeError(
                    f"{name} must be a NumPy array of float32 or float64 for a HybridCache, "
                    f"got {got}"
                )
        super().append(layer, keys, values)
        if layer == len(self._layers):
            d = keys.shape[-1]
            if self.n_tables and d not in self._hashes:
                drawn = SimHash.init(self._rng, d, self.n_tables, self.n_projections)
                self._hashes[d] = drawn.to(dtype=dtype_name(keys.dtype))
            prompt: Any = keys
            centre = np.mean(prompt.reshape(-1, *keys.shape[-2:]), axis=1, keepdims=True)
            kind: Any = SignatureLayer
            if self.impl == "numba":
                try:
                    kind = importlib.import_module("attnbook.decoding.numba_hybrid").BucketLayer
                except ImportError as error:
                    raise ImportError(
                        f"impl='numba' needs numba: {error}; {how_to_install('numba')}"
                    ) from error
            own = kind(self._hashes.get(d), centre, self.sinks, self.window)
            own.enter(self._heads(layer)[0], keys.shape[-2] - self.window)
            self._layers.append(own)
        return keys, values

    def attend(
        self, layer: int, query: Annotated[Array, "... m d_k"], *, scale: float
    ) -> Annotated[Array, "... m d_v"]:
        """Return the outputs for the newest m tokens of a layer; no token sees a later one.

        Parameters
        ----------
        layer : int
            A layer that has stored the keys and values of these tokens.
        query : array, shape (..., h, m, d_k), of the dtype of the keys
            h is a multiple of h_kv if the keys have shape (..., h_kv, n, d_k). For keys (n, d_k)
            the shape is (m, d_k).
        scale : float
            β, by which the dot products of queries and keys are multiplied.

        Returns
        -------
        array, shape (..., h, m, d_v)

        Raises
        ------
        ValueError
            If the layer has not stored any keys, or the query does not match its keys.
        """
        keys = self.keys(layer)
        *lead, n, d = keys.shape
        m, groups = query.shape[-2], query.shape[-3] // max(lead[-1], 1) if lead else 1
        shape = (*lead[:-1], groups * lead[-1], m, d) if lead else (m, d)
        if query.shape != shape or m > n or query.dtype != keys.dtype:
            raise ValueError(
                f"query must have shape (..., h, m, {d}) and dtype {keys.dtype} to match keys of "
                f"shape {keys.shape}, got {query.shape} and {query.dtype}"
            )
        key, value = self._heads(layer)
        asked: Any = query
        asked = asked.reshape(len(key), groups, m, d)
        each = [
            self._layers[layer].attend(asked[:, :, i], key, value, n - m + i + 1, scale)
            for i in range(m)
        ]
        return np.stack(each, axis=2).reshape(*shape[:-1], value.shape[-1])

    def truncate(self, n: int) -> None:
        """Truncate every layer and its tables to the first n tokens; 0 also forgets the centre."""
        super().truncate(n)
        if n == 0:
            self._layers.clear()
        for layer in self._layers:
            layer.cut(n)

    def check_weights(self, weights: TransformerWeights) -> None:
        """Raise a ValueError if heads have latents, a window, sinks, a cap or a bias of scores."""
        for i, layer in enumerate(weights.decoder.layers):
            if not isinstance(layer.self_attention, MultiHeadWeights):
                kind = type(layer.self_attention).__name__
                raise ValueError(
                    f"cache must be a KVCache for weights without MultiHeadWeights, got a "
                    f"HybridCache and {kind} in layer {i}"
                )
            for name in ("window", "sinks", "cap"):
                if getattr(layer.self_attention, name, None) is not None:
                    raise ValueError(
                        f"cache must be a KVCache for weights with {name}, got a HybridCache and "
                        f"{name} in layer {i}"
                    )
            positions, own = weights.decoder.positions, layer.self_attention
            if positions is not None and positions.bias(own.n_heads, 1, 1, own.W_Q) is not None:
                raise ValueError(
                    f"cache must be a KVCache for weights whose positions are a bias, got a "
                    f"HybridCache and {type(positions).__name__}"
                )

    def reorder(self, index: Annotated[Array, "batch m"]) -> None:
        """Raise a ValueError, because the tables cannot follow beams."""
        raise ValueError("cache must be a KVCache to follow beams, got a HybridCache")

    def _heads(self, layer):
        """Return keys and values of a layer as (heads, room, d), with the free room."""
        return tuple(x.reshape(-1, *x.shape[-2:]) for x in self._rooms[layer])

    def impl_for(self, layer: int, impl: Impl) -> Impl:
        """Return the implementation for the next tokens of a layer, `impl` if they are a prompt."""
        if layer >= self.n_layers or self._lengths[layer] == 0:
            return impl

        def hybrid(query, key, value, mask, bias, scale, is_causal):
            if mask is not None or bias is not None:
                raise ValueError("mask and bias must be None for a HybridCache, got an array")
            return self.attend(layer, query, scale=scale)

        return hybrid


class SignatureLayer:
    """The signatures of all keys of a layer that its tables hold: of the rows sinks … stop."""

    def __init__(self, hash: SimHash | None, centre: np.ndarray, sinks: int, window: int):
        self.hash, self.centre, self.sinks, self.window = hash, centre, sinks, window
        n_tables = 0 if hash is None else hash.n_tables
        self.signatures = np.empty((len(centre), 0, n_tables), np.int64)

    @property
    def nbytes(self) -> int:
        """The memory of the signatures."""
        return self.signatures.nbytes

    def enter(self, key: np.ndarray, stop: int) -> None:
        """Put all keys (heads, n, d) before row `stop` into the tables that are in none yet."""
        start = self.sinks + self.signatures.shape[1]
        if self.hash is not None and start < stop:
            new = self.hash.signatures(key[:, start:stop] - self.centre)
            self.signatures = np.concatenate([self.signatures, new], axis=1)

    def cut(self, n: int) -> None:
        """Take all rows from n on out of the tables."""
        self.signatures = self.signatures[:, : max(n - self.sinks, 0)]

    def attend(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, n: int, scale: float
    ) -> np.ndarray:
        """Return the output of one token, (heads, groups, d_v), which sees the first n rows."""
        self.enter(key, n - self.window)
        last = max(n - self.window, min(self.sinks, n))  # the window begins here
        near = np.concatenate([np.arange(min(self.sinks, n)), np.arange(last, n)])
        output = np.empty((*query.shape[:2], value.shape[-1]), value.dtype)
        for h, g in np.ndindex(query.shape[:2]):
            found, bias = self._found(query[h, g], key[h], self.centre[h], self.signatures[h], last)
            rows = np.concatenate([near, found])
            bias = np.concatenate([np.zeros(len(near), bias.dtype), bias])
            one = query[h, g, None], key[h, rows], value[h, rows], None, bias[None], scale, False
            output[h, g] = naive.attention(*one)[0]
        return output

    def _found(self, query, key, centre, signatures, last):
        """Return the rows before `last` that share two buckets with a query, and their -log P."""
        if self.hash is None:
            return np.empty(0, np.int64), np.empty(0, query.dtype)
        hits = np.sum(signatures == self.hash.signatures(query), axis=-1)
        rows = self.sinks + np.flatnonzero(hits >= 2)
        rows = rows[rows < last]  # after a cut, later ones are back in the window
        agree = 1 - angle_of(query, key[rows] - centre) / math.pi
        P = at_least_twice(agree, self.hash.n_tables, self.hash.n_projections)
        return rows, -log_chance(P)
