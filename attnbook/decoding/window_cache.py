"""A cache that forgets: layers with a window keep only the keys that a later token may see."""

from typing import Annotated

from attnbook.arrays.array import Array
from attnbook.arrays.weights import check_part
from attnbook.decoding.kv_cache import BLOCK, KVCache, moved
from attnbook.transformers.weights import TransformerWeights


class WindowCache(KVCache):
    """A `KVCache` whose layers with a window keep only the keys and values of their window.

    The memory of such a **local** layer is bounded, however long the text becomes, whereas that of
    a layer without a window, a **global** one, grows as in a `KVCache`. The text is the same.

    Parameters
    ----------
    weights : TransformerWeights
        The model that will read from the cache: the `window` of the self-attention of each layer
        says how many keys it keeps.

    Raises
    ------
    TypeError
        If `weights` are of another class.

    Notes
    -----
    ``len(cache)`` counts all tokens read. `keys` and `values` return those that are kept. The cache
    cannot be truncated because what it has forgotten does not come back, so speculative decoding
    needs a `KVCache`.
    Cost: a local layer with window w has space for at most w tokens and two blocks of 64, except
    while it reads a prompt, and it moves its w tokens to the front once in every 64 steps.

    References
    ----------
    Beltagy et al. (2020), "Longformer"; Jiang et al. (2023), "Mistral 7B", which calls it a rolling
    buffer cache.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import numpy as np
    >>> from attnbook import DecoderWeights
    >>> sizes = {"d_model": 8, "n_heads": 2, "d_ff": 16, "n_layers": 1, "n_encoder_layers": 0}
    >>> weights = TransformerWeights.init(0, 5, **sizes)
    >>> (layer,) = weights.decoder.layers
    >>> local = replace(layer, self_attention=replace(layer.self_attention, window=3))
    >>> cache = WindowCache(replace(weights, decoder=DecoderWeights((local,))))
    >>> keys, values = cache.append(0, np.ones((2, 100, 4)), np.ones((2, 100, 4)))
    >>> len(cache), cache.keys(0).shape
    (100, (2, 3, 4))
    """

    def __init__(self, weights: TransformerWeights):
        super().__init__()
        check_part("weights", weights, TransformerWeights)
        self._windows = _windows_of(weights)
        self._read: list[int] = []  # tokens read by each layer

    def __len__(self) -> int:
        return min(self._read, default=0)

    def check_weights(self, weights: TransformerWeights) -> None:
        """Raise ValueError unless the layers have the windows that the cache was made for."""
        if (windows := _windows_of(weights)) != self._windows:
            raise ValueError(
                f"cache must be made for layers with the windows {windows}, got {self._windows}"
            )

    def append(
        self, layer: int, keys: Annotated[Array, "... m d_k"], values: Annotated[Array, "... m d_v"]
    ) -> tuple[Annotated[Array, "... n d_k"], Annotated[Array, "... n d_v"]]:
        """Write the keys and values of m new tokens of a layer, and return what they may see.

        Arguments and errors are those of `KVCache.append`. For a layer with a window, the result
        begins at the latest with the first key that the first new token sees. Then the layer
        forgets what no later token sees.
        """
        seen = super().append(layer, keys, values)
        if layer == len(self._read):
            self._read.append(0)
        self._read[layer] += keys.shape[-2]
        window = self._windows[layer] if layer < len(self._windows) else None
        if window is not None and self._lengths[layer] >= window + BLOCK:
            n = self._lengths[layer]
            kept = tuple(x[..., n - window : n, :] for x in self._rooms[layer])
            self._rooms[layer] = moved(kept, window, (1 - -window // BLOCK) * BLOCK)
            self._lengths[layer] = window
        return seen

    def truncate(self, n: int) -> None:
        """Raise a ValueError unless n is the number of tokens read."""
        if n != len(self):
            raise ValueError(
                f"cache must be a KVCache to be truncated to {n} tokens, got a WindowCache of "
                f"{len(self)}"
            )


def _windows_of(weights: TransformerWeights) -> list[int | None]:
    layers = weights.decoder.layers
    return [getattr(layer.self_attention, "window", None) for layer in layers]
