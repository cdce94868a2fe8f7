"""A KV cache in a few bits per number: keys by channel, values by token, the newest ones as are."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

from attnbook.arrays.arguments import check_int
from attnbook.arrays.array import Array, array_namespace
from attnbook.decoding.kv_cache import BLOCK, KVCache, _moved, gather
from attnbook.decoding.quantization import (
    Quantized,
    check_bits,
    check_finite,
    dequantized,
    quantized,
)

Pair = tuple[Quantized, Quantized]


class QuantizedCache(KVCache):
    r"""A `KVCache` that holds keys and values as codes of 2, 4 or 8 bits, as KIVI does.

    .. math:: c = \operatorname{round}\Bigl(\frac{x - z}{s}\Bigr), \qquad \hat x = z + s\,c

    The keys of a block of tokens share one z and one s in each channel, and the values of a token
    share one z and one s in each KV head (`quantize`). The newest tokens, which do not fill a block
    yet, keep all their digits.

    Pass one as ``cache=`` to any decoding function. A pass reads its own new keys and values in
    full precision, so the first pass, over the prompt, is exact. The blocks that it has filled are
    quantised at its end, and later passes read the numbers that the codes stand for.

    Parameters
    ----------
    bits : int
        The width of a code: 2, 4 or 8.
    block : int
        How many tokens share the steps of their keys, at least 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    The array library is that of the keys. Keys and values must be finite where a block is filled;
    otherwise `append` raises a ValueError. `keys` and `values` return copies.

    `reorder` reorders codes, so `beam_search` works. `truncate` works, too, and therefore
    speculative decoding: when it cuts a block, the tokens that remain of it go on as the numbers
    that their codes stand for, and they are quantised again when the block is full again.

    Memory per token and KV head, with numbers of w bytes: (d_k + d_v) b/8 bytes of codes, 2 w
    d_k / block for the keys and 2 w for the values. The newest tokens have space for one block in
    full precision.
    Cost per pass: all codes of a layer are dequantised into an array of the full size, which lives
    until the layer has attended. A kernel that reads codes would not need this array.

    References
    ----------
    Liu et al. (2024), "KIVI: A tuning-free asymmetric 2bit quantization for KV cache"; chapter
    `variants`.

    Examples
    --------
    >>> import numpy as np
    >>> rng, cache, full = np.random.default_rng(0), QuantizedCache(bits=4), KVCache()
    >>> keys, values = rng.normal(size=(2, 6400, 32)), rng.normal(size=(2, 6400, 32))
    >>> for one in (cache, full):
    ...     _ = one.append(0, keys, values)
    >>> len(cache), round(full.nbytes / cache.nbytes, 1)
    (6400, 8.4)
    >>> bool(np.max(np.abs(cache.keys(0) - keys)) < 0.25)
    True
    """

    def __init__(self, bits: int = 8, *, block: int = BLOCK):
        super().__init__()  # whose arrays hold the newest tokens
        self.bits = check_bits(bits)
        self.block = check_int("block", block, at_least=1)
        self._packed: list[Pair | None] = []  # for each layer, the whole blocks

    def __len__(self) -> int:
        newest = enumerate(self._lengths)
        return min((self._n_packed(layer) + n for layer, n in newest), default=0)

    @property
    def nbytes(self) -> int:
        """The memory of codes, steps, zeros and the newest tokens, including their free space."""
        pairs = [pair for pair in self._packed if pair is not None]
        return super().nbytes + sum(q.nbytes for pair in pairs for q in pair)

    def append(
        self, layer: int, keys: Annotated[Array, "... m d_k"], values: Annotated[Array, "... m d_v"]
    ) -> tuple[Annotated[Array, "... n d_k"], Annotated[Array, "... n d_v"]]:
        """Add the keys and values of m new tokens of a layer, and return those of all n so far.

        What was quantised before is returned as the codes say, and the rest in full precision.
        Arguments and errors are those of `KVCache.append`; in addition, a ValueError is raised if
        keys or values that fill a block are not finite.
        """
        newest = super().append(layer, keys, values)
        if layer == len(self._packed):
            self._packed.append(None)
        whole = self._joined(layer, newest)
        n = newest[0].shape[-2]
        if n >= self.block:
            self._pack(layer, newest, n - n % self.block)
        return whole

    def _held(self, layer):
        return self._joined(layer, super()._held(layer))

    def _n_packed(self, layer):
        pair = self._packed[layer] if layer < len(self._packed) else None
        return 0 if pair is None else pair[0].codes.shape[-2] * self.block

    def _joined(self, layer, newest):
        """Return keys and values of all tokens: what the codes stand for, then the newest."""
        pair = self._packed[layer]
        if pair is None:
            return newest
        xp = array_namespace(newest[0])
        keys, values = (
            xp.concat([dequantized(q), x], axis=-2) for q, x in zip(pair, newest, strict=True)
        )
        return keys, values

    def _pack(self, layer, newest, n):
        """Quantise the first n of the newest tokens, and keep the others as they are."""
        keys, values = newest
        check_finite("keys", keys[..., :n, :])
        check_finite("values", values[..., :n, :])
        new = (
            quantized(keys[..., :n, :], self.bits, -2, self.block),
            quantized(values[..., :n, :], self.bits, -1, values.shape[-1]),
        )
        old = self._packed[layer]
        if old is not None:
            xp = array_namespace(keys)
            new = (
                _changed([old[0], new[0]], lambda *x: xp.concat(x, axis=-2)),
                _changed([old[1], new[1]], lambda *x: xp.concat(x, axis=-3)),
            )
        self._packed[layer] = new
        self._keep(layer, tuple(x[..., n:, :] for x in newest))

    def _keep(self, layer, newest):
        n = newest[0].shape[-2]
        self._rooms[layer] = _moved(newest, n, self.block)
        self._lengths[layer] = n

    def truncate(self, n: int) -> None:
        """Cut every layer back to its first n tokens, as `KVCache.truncate` does.

        The remaining tokens of a block that is cut stay as the numbers that their codes stand for.

        >>> import numpy as np
        >>> cache = QuantizedCache(4, block=2)
        >>> _ = cache.append(0, np.eye(5), np.ones((5, 7)))
        >>> cache.truncate(3)
        >>> len(cache), cache.keys(0).shape
        (3, (3, 5))
        """
        n = check_int("n", n)
        if n > len(self):
            raise ValueError(f"n must be from 0 to {len(self)}, the tokens of the cache, got {n}")
        for layer, pair in enumerate(self._packed):
            whole = self._n_packed(layer)
            if n >= whole:
                self._lengths[layer] = n - whole
                continue
            blocks = n // self.block
            start = blocks * self.block
            cut = self._cut(pair, blocks, whole // self.block)
            self._keep(layer, tuple(dequantized(q)[..., : n - start, :] for q in cut))
            self._packed[layer] = self._cut(pair, 0, blocks) if blocks else None

    def _cut(self, pair, start, stop):
        """Return the codes of the blocks from `start` to `stop`."""
        first, last = start * self.block, stop * self.block
        return (
            _changed([pair[0]], lambda x: x[..., start:stop, :]),
            _changed([pair[1]], lambda x: x[..., first:last, :, :]),
        )

    def reorder(self, index: Annotated[Array, "batch m"]) -> None:
        """Reorder the sequences of every layer, as `KVCache.reorder` does."""
        super().reorder(index)
        for layer, pair in enumerate(self._packed):
            if pair is not None:
                keys, values = (_changed([q], lambda x: gather(x, index)) for q in pair)
                self._packed[layer] = keys, values


def _changed(parts: list[Quantized], function: Callable[..., Array]) -> Quantized:
    """Return codes, steps and zeros as `function` makes them of those of the parts."""
    names = ("codes", "step", "zero")
    made = {name: function(*(getattr(part, name) for part in parts)) for name in names}
    return dataclasses.replace(parts[0], **made)
