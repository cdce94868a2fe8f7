"""The block of a decoder-only model in steps: its two norms, its attention, its gated network."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine import documented
from attnbook.check.gate import STEPS as GATE_STEPS
from attnbook.check.gate import gated
from attnbook.check.hidden_layer import same
from attnbook.check.modes import run_in_modes
from attnbook.check.report import Report
from attnbook.check.root_mean_square import RMS_STEPS, normalize
from attnbook.check.sentences import mistakes
from attnbook.check.standardization import earlier_rows_stay
from attnbook.check.steps import Case, Check, Stage, draw, each


@documented
def decoder_only_block(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a pre-norm block with RMSNorm, causal rotary attention, grouped heads and SwiGLU.

    Runs `f` on several sizes, with as many heads of keys as of queries and with fewer, on one
    token, in float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, weights)``, by position, on (n, d_model) and
        `attnbook.DecoderLayerWeights` without cross-attention and biases, with `RMSNormWeights` of
        ε = 1e-5 and `GatedFeedForwardWeights`. It hides the future, and rotates pairs of features
        half a head apart. It returns an array (n, d_model). It may be for one sequence alone. Or a
        class or `torch.nn.Module` that is built from the weights, ``f(weights)``, and called on x.

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


def _turn(x, **options):
    return attnbook.positions.rotary(x, **options)


def _turned_back(x):
    """Rotate in the other direction: with the second of each pair negated before and after."""
    signs = np.repeat([1.0, -1.0], x.shape[-1] // 2)
    return signs * _turn(signs * x)


def _turn_by_head(x):
    """Rotate by the number of the head, as where heads stand in the place of the tokens."""
    return np.swapaxes(_turn(np.swapaxes(x, -3, -2)), -3, -2)


def _turn_merged(x):
    """Rotate features as if all heads were one."""
    return _split(_turn(_merge(x)), x.shape[-3])


def _causal(n):
    return np.tri(n, dtype=bool)


STEPS: dict[str, Any] = {
    "order": lambda: "pre",
    "norms": lambda first, second: (first, second),
    "turn_input": same,
    "turn_query": _turn,
    "turn_key": _turn,
    "turn_value": same,
    "share": lambda x, times: np.repeat(x, times, axis=-3),
    "width": lambda d_k, d_model: d_k,
    "seen": _causal,
    "project": np.matmul,
    "join_attention": lambda x, entered, made: x + made,
    "join_feed": lambda x, entered, made, start: x + made,
    "enter_feed": lambda x, start: x,
    "attention": same,
    "feed": same,
    **RMS_STEPS,
    **GATE_STEPS,
}


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


def _tiled(x, times):
    return np.concatenate([x] * times, axis=-3)


_EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12)

MISTAKES = mistakes(
    """
    post-norm for pre-norm: You normalise the sum, norm(x + f(x)). This block is pre-norm: x +
        f(norm(x)).
    no normalisation: You never normalise. Each sublayer reads the stream through a norm of its own.
    feed-forward network not normalised: The feed-forward network reads the stream as it is. It has
        a norm of its own, feed_forward_norm.
    norms swapped: Your two normalisations are exchanged: self_attention_norm belongs to the
        self-attention, feed_forward_norm to the feed-forward network.
    one norm for both: Both your normalisations use the same gain. Each sublayer has its own.
    layer norm for RMSNorm: You subtract the mean of each row. RMSNorm only divides by the root of
        the mean of the squares.
    gain forgotten: You normalise and never multiply by the gain.
    no positions: You rotate neither queries nor keys, so the block knows no places.
    queries alone rotated: You rotate the queries and not the keys. Scores then depend on the place
        of the query, not on the distance.
    keys alone rotated: You rotate the keys and not the queries. Scores then depend on the place of
        the key, not on the distance.
    values rotated: You rotate the values too. Only queries and keys are rotated: what is handed
        over does not depend on places.
    neighbours rotated: You rotate pairs of neighbours, features 2l and 2l + 1. These weights pair
        halves: l with l + d_k/2.
    heads rotated as one: You rotate before you split into heads. Each head has d_k features, and
        its own pairs.
    heads tiled: You repeat the key heads as 0 1 0 1. The first query heads share the first key
        head: 0 0 1 1, as np.repeat does and np.tile does not.
    scale of the model: You divide the scores by √d_model. It is √d_k, the width of a head.
    no scale: You do not divide the scores by √d_k.
    no causal mask: Each token sees the later ones. Hide them: query i sees key j if j ≤ i.
    mask one too high: Each token sees the next one, which is its answer. Query i sees key j if j ≤
        i.
    own place hidden: No token sees itself. Query i sees key j if j ≤ i, not j < i.
    keys turned back: You turn queries and keys in opposite directions, so a score depends on the
        sum of their places. Turn both alike: then it depends on the difference.
    other angles: Your rotation turns by other angles than 10000^(−2i/d) a place: with another base,
        or with i/d for 2i/d.
    one place apart: The query and the key of one token are rotated for different places.
    sum for the mean: You divide by the root of the sum of the squares. RMS normalisation takes the
        mean of the squares.
    another epsilon: The ε of your normalisation is not 1e-5, or it stands outside the root.
    mask inverted: Your mask works the wrong way round: each token sees the later ones alone.
    W_O forgotten: You join the heads and do not multiply by W_O.
    no residuals: You return what the sublayers make and never add what they were given: x +
        f(norm(x)).
    no residual around self-attention: You never add x to what the self-attention returns.
    no residual around the feed-forward network: The residual around the feed-forward network is
        missing: add its input to what it returns.
    residual from the normalised input: You add the normalised x. The residual carries x itself: x +
        f(norm(x)), not norm(x) + f(norm(x)).
    residual from the input of the block: Around the feed-forward network you add the input of the
        whole block, so what attention has added is lost.
    sublayers side by side: Your feed-forward network reads the input of the block. It reads what
        attention, residual and all, has made.
    self-attention missing: There is no self-attention in your block: no token sees another.
    feed-forward network missing: Your block ends before its feed-forward network.
    activation on the wrong branch: Your SiLU stands on x W_1, or W_gate and W_1 are exchanged. It
        stands on the gate: silu(x W_gate) · (x W_1).
    no activation: There is no SiLU on your gate.
    another activation: On your gate stands another function: GELU, ReLU or a sigmoid. It is h ·
        σ(h), silu.
    rotated before the projection: You rotate the tokens, and multiply by W_Q and W_K then. The
        matrices mix what was turned: project first, and rotate the queries and the keys.
    rotated by the head: You rotate by the number of the head: heads stand where the rotation counts
        places. Rotate (h, n, d), where the tokens are the last axis but one.
    """,
    {
        "post-norm for pre-norm": each("order", lambda: "post"),
        "no normalisation": each("order", lambda: "none"),
        "feed-forward network not normalised": each("order", lambda: "first"),
        "norms swapped": each("norms", lambda first, second: (second, first)),
        "one norm for both": each(
            "norms", lambda first, second: (first, first), lambda first, second: (second, second)
        ),
        "layer norm for RMSNorm": each(
            "enter_norm", lambda x, gain: x - np.mean(x, axis=-1, keepdims=True)
        ),
        "gain forgotten": each("scale", same),
        "no positions": {"turn_query": same, "turn_key": same},
        "queries alone rotated": each("turn_key", same),
        "keys alone rotated": each("turn_query", same),
        "values rotated": each("turn_value", _turn),
        "neighbours rotated": dict.fromkeys(
            ("turn_query", "turn_key"), lambda x: _turn(x, interleaved=True)
        ),
        "heads rotated as one": dict.fromkeys(("turn_query", "turn_key"), _turn_merged),
        "rotated before the projection": {
            "turn_input": _turn,
            "turn_query": same,
            "turn_key": same,
        },
        "rotated by the head": dict.fromkeys(("turn_query", "turn_key"), _turn_by_head),
        "heads tiled": each("share", _tiled),
        "scale of the model": each("width", lambda d_k, d_model: d_model),
        "no scale": each("width", lambda d_k, d_model: 1),
        "no causal mask": each("seen", lambda n: np.ones((n, n), dtype=bool)),
        "mask one too high": each("seen", lambda n: np.tri(n, k=1, dtype=bool)),
        "own place hidden": each("seen", lambda n: np.tri(n, k=-1, dtype=bool)),
        "keys turned back": each("turn_key", _turned_back),
        "other angles": tuple(
            {"turn_query": partial(_turn, base=b), "turn_key": partial(_turn, base=b)}
            for b in (5e5, 100.0, 1e5, 1e6, 1e3)
        ),
        "one place apart": (
            {"turn_query": partial(_turn, start=1)},
            {"turn_key": partial(_turn, start=1)},
        ),
        "sum for the mean": each("mean", lambda x, axis: np.sum(x, axis=axis, keepdims=True)),
        "another epsilon": (
            *each("epsilon", *(lambda e, x=x: x for x in (0.0, *_EPSILONS))),
            {"size": lambda mean, epsilon: np.sqrt(mean) + epsilon},
        ),
        "mask inverted": each("seen", lambda n: ~_causal(n), lambda n: _causal(n).T),
        "W_O forgotten": each("project", same),
        "no residuals": {
            "join_attention": lambda x, entered, made: made,
            "join_feed": lambda x, entered, made, start: made,
        },
        "no residual around self-attention": each("join_attention", lambda x, entered, made: made),
        "no residual around the feed-forward network": each(
            "join_feed", lambda x, entered, made, start: made
        ),
        "residual from the normalised input": (
            {
                "join_attention": lambda x, entered, made: entered + made,
                "join_feed": lambda x, entered, made, start: entered + made,
            },
            {"join_attention": lambda x, entered, made: entered + made},
            {"join_feed": lambda x, entered, made, start: entered + made},
        ),
        "residual from the input of the block": each(
            "join_feed", lambda x, entered, made, start: start + made
        ),
        "sublayers side by side": each("enter_feed", lambda x, start: start),
        "self-attention missing": each("attention", lambda made: 0 * made),
        "feed-forward network missing": each("feed", lambda made: 0 * made),
        "activation on the wrong branch": {"open": same, "pass_on": GATE_STEPS["open"]},
        "no activation": each("open", same),
        "another activation": each(
            "open",
            attnbook.gelu,
            attnbook.gelu_tanh,
            lambda h: np.maximum(h, 0),
            lambda h: 0.5 * (1 + np.tanh(h / 2)),
        ),
    },
)


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
    steps=STEPS,
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
    mistakes=MISTAKES,
    properties=(_future_is_hidden,),
)
