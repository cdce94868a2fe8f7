"""The keys and values of the tokens that a decoder has read, so that it reads each token once."""

import math
from typing import Annotated, Any

from array_api_compat import device

from attnbook.arrays.arguments import check_array, check_floats, check_int
from attnbook.arrays.array import Array, array_namespace
from attnbook.kernels import Impl
from attnbook.transformers.weights import TransformerWeights

BLOCK = 64
"""The space for tokens is a multiple of this, unless a subclass has another one."""


class KVCache:
    """The keys and values of every layer of a decoder, in arrays that grow in place.

    ``len(cache)`` is the number of tokens that all layers hold. Each layer has one array of keys
    and one array of values, with free space behind the last token. New tokens are written into this
    space. When it is full, the layer moves to arrays with space for at least twice as many tokens,
    so n steps copy O(n) tokens in all instead of O(n²).

    With ``cache=True`` the decoding functions make their own cache. Pass ``cache=KVCache()`` to
    look at the cache afterwards, or an instance of a subclass to change what it does.

    Notes
    -----
    The cache is written in place, which PyTorch's gradients do not allow, so keys and values that
    require a gradient are rejected. Decode under ``torch.no_grad()``.

    References
    ----------
    Chapter `decoding`.

    Examples
    --------
    >>> import numpy as np
    >>> cache = KVCache()
    >>> keys, values = cache.append(0, np.ones((2, 3, 5)), np.ones((2, 3, 7)))
    >>> keys, values = cache.append(0, np.zeros((2, 1, 5)), np.zeros((2, 1, 7)))
    >>> len(cache), keys.shape, values.shape
    (4, (2, 4, 5), (2, 4, 7))
    """

    block = BLOCK  # the space for tokens is a multiple of this
    takes_masks = True  # of new tokens; a subclass that itself chooses what they read takes none

    def __init__(self):
        self._rooms: list[tuple[Array, ...]] = []  # for each layer, keys and values, or its state
        self._lengths: list[int] = []
        self._with_state: set[int] = set()  # the layers that keep a state instead

    def __len__(self) -> int:
        return min(self._lengths, default=0)

    @property
    def n_layers(self) -> int:
        """The number of layers that have written."""
        return len(self._rooms)

    @property
    def nbytes(self) -> int:
        """The memory of all arrays in bytes, including the free space."""
        arrays = [x for room in self._rooms for x in room]
        return sum(math.prod(x.shape) * array_namespace(x).finfo(x.dtype).bits // 8 for x in arrays)

    def keys(self, layer: int) -> Annotated[Array, "... n d_k"]:
        """Return the keys of a layer so far, as a view that you must not write into."""
        return self._held(layer)[0]

    def values(self, layer: int) -> Annotated[Array, "... n d_v"]:
        """Return the values of a layer so far, as a view that you must not write into."""
        return self._held(layer)[1]

    def _held(self, layer):
        self._check_held(layer)
        (keys, values), n = self._rooms[layer], self._lengths[layer]
        return keys[..., :n, :], values[..., :n, :]

    def _check_held(self, layer):
        """Raise unless a layer has keys and values."""
        if check_int("layer", layer) >= len(self._rooms):
            raise ValueError(
                f"layer must be below the number of layers, {len(self._rooms)}, got {layer}"
            )
        if layer in self._with_state:
            raise ValueError(f"layer must keep keys and values, got {layer}, which keeps a state")

    def append(
        self, layer: int, keys: Annotated[Array, "... m d_k"], values: Annotated[Array, "... m d_v"]
    ) -> tuple[Annotated[Array, "... n d_k"], Annotated[Array, "... n d_v"]]:
        """Write the keys and values of m new tokens of a layer, and return those of all n so far.

        Parameters
        ----------
        layer : int
            The index of the layer, at most the number of layers that have written.
        keys : array, shape (..., m, d_k)
            The new keys.
        values : array, shape (..., m, d_v)
            The new values. Apart from m, both must match the shape, dtype, library and device of
            what the layer holds.

        Returns
        -------
        pair of arrays, shapes (..., n, d_k) and (..., n, d_v)
            Views of the cache that you must not write into.

        Raises
        ------
        TypeError
            If keys or values are not arrays, or have different libraries or dtypes.
        ValueError
            If a shape does not fit, the layer is not the next one, or PyTorch records a graph.
        """
        self._check_new(layer, keys, values)
        if layer == len(self._rooms):
            self._rooms.append((keys, values))
            self._lengths.append(0)
        held, n = self._rooms[layer], self._lengths[layer]
        total = n + keys.shape[-2]
        if n == 0 or total > held[0].shape[-2]:
            capacity = -(-max(total, 2 * n) // self.block) * self.block
            held = self._rooms[layer] = moved(held, n, capacity)
        held[0][..., n:total, :] = keys
        held[1][..., n:total, :] = values
        self._lengths[layer] = total
        return held[0][..., :total, :], held[1][..., :total, :]

    def _check_new(self, layer, keys, values):
        """Raise unless keys and values of new tokens fit a layer."""
        if not isinstance(layer, int):
            check_int("layer", layer)
        if not 0 <= layer <= len(self._rooms):
            raise ValueError(f"layer must be from 0 to {len(self._rooms)}, got {layer}")
        is_first = layer == len(self._rooms)
        if is_first:
            check_floats(keys=keys, values=values)
        held = (keys, values) if is_first else self._rooms[layer]
        for name, x, like in (("keys", keys, held[0]), ("values", values, held[1])):
            if not hasattr(x, "ndim"):
                check_array(name, x)
            if x.ndim < 2:
                raise ValueError(f"{name} must have shape (..., m, d), got {tuple(x.shape)}")
            if x.dtype != like.dtype or device(x) != device(like):
                check_floats(cache=like, **{name: x})
            shape = (*like.shape[:-2], keys.shape[-2], like.shape[-1])
            if x.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
            if getattr(x, "requires_grad", False):
                raise ValueError(f"{name} must need no gradient: decode under torch.no_grad()")
        if layer in self._with_state:
            raise ValueError(f"layer must keep keys and values, got {layer}, which keeps a state")

    def state(self, layer: int) -> tuple[Array, ...] | None:
        """Return the state of a layer that keeps one, or None before its first token."""
        return self._rooms[layer] if layer in self._with_state else None

    def keep_state(self, layer: int, state: tuple[Array, ...], m: int) -> None:
        """Keep the state of a layer after m new tokens, in the place of keys and values.

        Parameters
        ----------
        layer : int
            The index of the layer, at most the number of layers that have written.
        state : tuple of arrays
            Such as a `linear_attention.LayerState`, whose size does not depend on the tokens read.
        m : int

        Raises
        ------
        ValueError
            If the layer is not the next one, or holds keys and values.
        """
        if not 0 <= check_int("layer", layer) <= len(self._rooms):
            raise ValueError(f"layer must be from 0 to {len(self._rooms)}, got {layer}")
        if layer == len(self._rooms):
            self._rooms.append(state)
            self._lengths.append(0)
            self._with_state.add(layer)
        if layer not in self._with_state:
            raise ValueError(f"layer must keep a state, got {layer}, which keeps keys and values")
        self._rooms[layer] = state
        self._lengths[layer] += check_int("m", m)

    def impl_for(self, layer: int, impl: Impl) -> Impl:
        """Return the implementation of attention for the next tokens of a layer: `impl` itself."""
        return impl

    def take_in(
        self, layer: int, heads: tuple[Array, Array], impl: Impl, weights: Any
    ) -> tuple[tuple[Array, Array], Impl]:
        """Write new keys and values; return what the new tokens attend to, and who attends.

        `weights` are those of the attention of the layer.
        """
        impl = self.impl_for(layer, impl)
        return self.append(layer, *heads), impl

    def check_weights(self, weights: TransformerWeights) -> None:
        """Raise unless the cache fits a model with these weights; the decoding functions ask."""

    def truncate(self, n: int) -> None:
        """Cut every layer back to its first n tokens.

        Speculative decoding removes rejected tokens in this way. Raises a TypeError or a ValueError
        if `n` is not an int from 0 to ``len(cache)``, and a ValueError if a layer keeps a state,
        which cannot forget tokens. Arrays that `append` returned earlier keep
        their length, and later tokens may overwrite their content.

        >>> import numpy as np
        >>> cache = KVCache()
        >>> keys, values = cache.append(0, np.ones((2, 3, 5)), np.ones((2, 3, 7)))
        >>> cache.truncate(1)
        >>> len(cache), cache.keys(0).shape
        (1, (2, 1, 5))
        """
        n = check_int("n", n)
        if n > len(self):
            raise ValueError(f"n must be from 0 to {len(self)}, the tokens of the cache, got {n}")
        if self._with_state and n < max(self._lengths):
            raise ValueError(
                f"n must be {len(self)}, since layer {min(self._with_state)} keeps a state, which "
                f"cannot forget its last tokens, got {n}"
            )
        self._lengths = [n] * len(self._lengths)

    def reorder(self, index: Annotated[Array, "batch m"]) -> None:
        """Reorder the sequences of every layer: sequence i of row b was `index[b, i]` before.

        Arrays of keys have the axes (batch, beams, ...), and m may differ from the number of beams.
        Raises a ValueError if `index` does not have the axes (batch, m).
        """
        check_array("index", index)
        for layer, held in enumerate(self._rooms):
            if index.ndim != 2 or index.shape[0] != held[0].shape[0]:
                shape = tuple(index.shape)
                raise ValueError(f"index must have shape ({held[0].shape[0]}, m), got {shape}")
            if layer in self._with_state:
                parts = [gather(x, index) for x in held]
                self._rooms[layer] = held._make(parts) if hasattr(held, "_make") else tuple(parts)
                continue
            keys, values = held
            n = self._lengths[layer] + 1  # with a place for the next
            room = -(-n // self.block) * self.block
            keys, values = keys[..., :room, :], values[..., :room, :]
            self._rooms[layer] = gather(keys, index), gather(values, index)


def moved(room, n, capacity):
    """Return arrays with space for `capacity` tokens that hold the `n` tokens of `room`."""
    xp, larger = array_namespace(room[0]), []
    for x in room:
        shape = (*x.shape[:-2], capacity, x.shape[-1])
        larger.append(xp.empty(shape, dtype=x.dtype, device=device(x)))
        larger[-1][..., :n, :] = x[..., :n, :]
    return tuple(larger)


def gather(
    x: Annotated[Array, "batch n ..."], index: Annotated[Array, "batch m"]
) -> Annotated[Array, "batch m ..."]:
    """Return x[b, index[b, i]] at [b, i]."""
    xp = array_namespace(x)
    batch, n, *rest = x.shape
    rows = xp.expand_dims(xp.arange(batch, device=device(x)) * n, axis=1)
    flat = xp.reshape(x, (batch * n, *rest))
    picked = xp.take(flat, xp.reshape(rows + index, (-1,)), axis=0)
    return xp.reshape(picked, (batch, index.shape[1], *rest))
