"""The block of a decoder-only model in steps: its two norms, its attention, its gated network."""

from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.modules import run_in_modes
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.gated_feed_forward import gated
from attnbook.check.exercises.layer_norm import earlier_rows_stay
from attnbook.check.exercises.rms_norm import normalize


@documented
def decoder_only_block(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a pre-norm block with RMSNorm, causal grouped-query attention, RoPE and SwiGLU.

    Runs `f` on several sizes, with as many KV heads as query heads and with fewer, on one token, in
    float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, weights)``, by position, on (n, d_model) and
        `attnbook.DecoderLayerWeights` without cross-attention and biases, with `RMSNormWeights` of
        ε = 1e-5 and `GatedFeedForwardWeights`. It hides the future, and rotates pairs of features
        half a head apart. It returns an array (n, d_model). It may be written only for one
        sequence. It can also be a class or a `torch.nn.Module` that is built from the weights,
        ``f(weights)``, and called on x.

    Examples
    --------
    >>> import attnbook as ab
    >>> from attnbook import check
    >>> def my_block(x, weights):
    ...     return ab.decoder_layer(x, None, weights, ab.masking.causal(x.shape[-2], like=x))
    >>> check.decoder_only_block(my_block).mistake
    'no positions'
    """
    return run_in_modes(DECODER_ONLY_BLOCK, f, time_limit)


def _split(x, n_heads):
    return np.swapaxes(x.reshape(*x.shape[:-1], n_heads, -1), -3, -2)


def _merge(x):
    x = np.swapaxes(x, -3, -2)
    return x.reshape(*x.shape[:-2], -1)


def rotated(x, **options):
    return attnbook.positions.rotary(x, **options)


def rotated_back(x):
    """Rotate in the other direction: with the second of each pair negated before and after."""
    signs = np.repeat([1.0, -1.0], x.shape[-1] // 2)
    return signs * rotated(signs * x)


def rotated_by_head(x):
    """Rotate by the number of the head, as where heads stand in the place of the tokens."""
    return np.swapaxes(rotated(np.swapaxes(x, -3, -2)), -3, -2)


def rotated_as_one(x):
    """Rotate features as if all heads were one."""
    return _split(rotated(_merge(x)), x.shape[-3])


def _attend(s, x, w):
    y = s.turn_input(x)
    q, k, v = (
        _split(z @ W, n)
        for z, W, n in ((y, w.W_Q, w.n_heads), (y, w.W_K, w.n_kv_heads), (x, w.W_V, w.n_kv_heads))
    )
    q, k, v = s.turn_query(q), s.turn_key(k), s.turn_value(v)
    k, v = (s.share(y, w.n_heads // w.n_kv_heads) for y in (k, v))
    scale = 1 / np.sqrt(s.width(q.shape[-1], x.shape[-1]))
    made = attnbook.attention(q, k, v, s.seen(x.shape[-2]), scale=scale)
    return s.project(_merge(made), w.W_O)


def _block(s: Any, x, weights):
    """Compute the block from its steps."""
    start, order = x, s.order()
    first, second = s.norms(weights.self_attention_norm, weights.feed_forward_norm)
    net = weights.feed_forward

    def norm(y, w):
        return normalize(s, y, w.gain, w.epsilon)

    def attend(y):
        return s.attention(_attend(s, y, weights.self_attention))

    def think(y):
        return s.feed(gated(s, y, net.W_gate, net.W_1, net.W_2))

    if order == "post":
        x = norm(x + attend(x), first)
        return norm(x + think(x), second)
    entered = x if order == "none" else norm(x, first)
    x = s.join_attention(x, entered, attend(entered))
    y = s.enter_feed(x, start)
    entered = y if order in ("none", "first") else norm(y, second)
    return s.join_feed(x, entered, think(entered), start)


def tiled(x, times):
    return np.concatenate([x] * times, axis=-3)


_EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12)

TEXT = Text(globals())

_future_is_hidden = earlier_rows_stay(
    "A change of the last token must move no earlier row; it moves yours."
)


def _case(n, d_model, n_heads, n_kv_heads, d_ff, *leading, dtype="float64") -> Case:
    weights = attnbook.DecoderLayerWeights.init(
        0,
        d_model,
        n_heads,
        d_ff,
        cross=False,
        bias=False,
        n_kv_heads=n_kv_heads,
        normalization="rms",
        gated=True,
        activation="silu",
    )
    drawn = {
        name: draw(60 + i, *x.shape) / np.sqrt(x.shape[0]) + name.endswith("gain")
        for i, (name, x) in enumerate(weights.arrays().items())
    }
    weights = weights.with_arrays(drawn).to(dtype=dtype)
    x = (draw(59, *leading, n, d_model) + 0.5).astype(dtype)  # not centred
    return Case({"x": x, "weights": weights}, {}, f", {n_heads} heads, {n_kv_heads} of keys")


DECODER_ONLY_BLOCK = Check(
    name="decoder_only_block",
    parameters=("x", "weights"),
    results={"output": "(..., n, d_model)"},
    compute=_block,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                _case(5, 12, 3, 3, 7),
                _case(7, 24, 6, 2, 11),
                _case(3, 8, 4, 2, 5),
                _case(1, 8, 2, 1, 3),
            )
        ),
        Stage((_case(5, 24, 6, 2, 11, dtype="float32"),)),
        Stage((_case(5, 16, 4, 2, 11, 3),), may_raise="a batch (leading axes)"),
    ),
    mistakes=TEXT.mistakes,
    properties=(_future_is_hidden,),
)
