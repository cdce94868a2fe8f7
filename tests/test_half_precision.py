"""Half precision: whatever is summed over a vocabulary or a sequence is summed in float32."""

import traceback

import numpy as np
import pytest
import torch
from cases import Fixed
from public_calls import public_calls
from torch.utils._python_dispatch import TorchDispatchMode

import attnbook as ab
from attnbook import decoding, models
from attnbook.arrays.weights import Weights
from attnbook.decoding import Prefix
from attnbook.models.heads import head_scores

HALF = (torch.float16, torch.bfloat16)
SUMS = {"sum", "mean", "cumsum", "cumprod", "prod", "logsumexp", "_softmax", "_log_softmax"}
SUMS |= {"norm", "linalg_vector_norm", "var", "std", "var_mean"}
"""The sums of PyTorch. Its matrix products keep their sums in float32, as those of NumPy do."""

START = [Prefix(np.zeros(1, dtype=int), np.zeros(0, dtype=int))]


class Sums(TorchDispatchMode):
    """Notes every sum of half precision that is not told to add in another dtype."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        halves = any(isinstance(x, torch.Tensor) and x.dtype in HALF for x in args)
        if name in SUMS and halves and kwargs.get("dtype") in (None, *HALF):
            frames = [x for x in traceback.extract_stack() if "/attnbook/" in x.filename]
            self.found.append((name, f"{frames[-1].filename}:{frames[-1].lineno}"))
        return function(*args, **kwargs)


def in_half(x, dtype):
    """Return what holds floating numbers in PyTorch and in `dtype`; all else as it is."""
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(x.copy())
        return x.to(dtype) if x.is_floating_point() else x
    if isinstance(x, Weights):
        return x.to("torch", dtype=str(dtype).removeprefix("torch."))
    return {name: in_half(y, dtype) for name, y in x.items()} if isinstance(x, dict) else x


def calls():
    everything = public_calls()
    kept = {"AdamW.step", "SGD.step", "gradients", "sketch_attention"}  # refuse half, or lack it
    rng = np.random.default_rng(0)
    A, scores = np.tril(np.ones((7, 7))) / 7, rng.normal(size=(3, 11))
    prefixes = START * 3
    more = {
        "head_scores": (head_scores, {"A": A, "targets": np.eye(7, dtype=bool)}),
        "sampler": (decoding.sampler(0, top_p=0.9), {"log_p": scores, "prefixes": prefixes}),
    }
    for name, number in (("temperature", 0.5), ("top_k", 3), ("top_p", 0.9), ("min_p", 0.1)):
        process = getattr(decoding, name)(number)
        more[f"{name}(log_p)"] = (process, {"log_p": scores, "prefixes": prefixes})
    return {name: call for name, call in (everything | more).items() if name not in kept}


CALLS = calls()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_no_public_function_sums_in_half_precision(name, dtype):
    function, given = CALLS[name]
    with Sums() as sums:
        function(*(in_half(x, dtype) for x in given.values())) if "log_p" in given else function(
            **{key: in_half(x, dtype) for key, x in given.items()}
        )
    assert not sums.found


def vocabulary(dtype, n=32_000):
    """Return scores of n tokens in half precision, and their float64 probabilities."""
    scores = torch.from_numpy(np.random.default_rng(0).normal(0, 2, size=(1, n))).to(dtype)
    p = ab.softmax(scores.double().numpy())[0]
    order = np.argsort(-p, kind="stable")
    return scores, p, order, np.cumsum(p[order])


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_draw_falls_where_the_exact_probabilities_say(dtype, kind):
    if kind == "numpy" and dtype == torch.bfloat16:
        pytest.skip("NumPy has no bfloat16")
    scores, _, order, total = vocabulary(dtype)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    given = scores.numpy() if kind == "numpy" else scores
    for u in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        found = rank[int(decoding.sampler(Fixed(u))(given, START)[0])]
        assert abs(total[found] - u) < 2e-3  # one of the tokens where the exact sum passes u
        assert found == pytest.approx(np.searchsorted(total, u), rel=0.01, abs=2)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.99])
def test_the_nucleus_has_its_probability(dtype, p):
    scores, exact, _, total = vocabulary(dtype)
    kept = (decoding.top_p(p)(scores, START) > -np.inf).numpy()[0]
    assert exact[kept].sum() == pytest.approx(p, abs=2e-3)
    assert kept.sum() == pytest.approx(np.searchsorted(total, p) + 1, rel=0.001, abs=1)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("banned", [0, 30_000])
def test_the_other_cuts_are_those_of_float64(dtype, banned):
    scores = vocabulary(dtype)[0]
    scores[:, :banned] = -torch.inf
    for process in (decoding.top_k(50), decoding.min_p(0.1), decoding.min_p(0.5)):
        kept, exact = (process(x, START) > -torch.inf for x in (scores, scores.double()))
        assert bool((kept == exact).all())
    cold = decoding.temperature(1e-30)(scores, START)
    assert bool(torch.isfinite(cold[scores == scores.max()]).all())


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_what_a_processor_returns_in_half_precision_is_widened(dtype):
    """It draws what the same numbers give in float64, and so does a later processor."""
    scores, _, order, total = vocabulary(dtype, 4000)
    weights = ab.TransformerWeights.init(
        0, 4000, d_model=4, n_heads=1, d_ff=4, n_layers=1, n_encoder_layers=0
    ).to("torch", dtype="float32")
    prompt, seen = torch.zeros((1, 1), dtype=torch.int64), []

    def narrow(log_p, prefixes):
        return scores

    def watch(log_p, prefixes):
        seen.append(log_p.dtype)
        return log_p

    for way, more in (("greedy_decode", {}), ("sample", {"rng": 0}), ("beam_search", {})):
        more |= {"n_beams": 1} if way == "beam_search" else {}
        found = getattr(decoding, way)(
            weights, prompt=prompt, max_length=1, processors=[narrow, watch], **more
        )
        if way != "sample":
            assert int(found.tokens.ravel()[0]) == order[0]
    assert seen == [torch.float32] * 3
    u = np.random.default_rng(0).spawn(1)[0].random()
    drawn = decoding.sample(weights, prompt=prompt, max_length=1, processors=[narrow], rng=0)
    place = np.flatnonzero(order == int(drawn.tokens[0, 0]))[0]
    assert total[place] == pytest.approx(u, abs=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("as_logits", [False, True])
@pytest.mark.parametrize(
    ("row", "p", "n"),
    [
        ([0.3, 0.1, 0.1, 0.5], 0.8, 2),  # 0.5 + 0.3, none of which is exact
        ([0.3, 0.1, 0.1, 0.5], 0.9, 3),
        ([0.3, 0.1, 0.1, 0.5], 0.81, 3),
        ([0.3, 0.1, 0.1, 0.5], 0.79, 2),
        ([0.7, 0.2, 0.1], 0.9, 2),
        ([0.4, 0.3, 0.2, 0.1], 0.7, 2),
        ([0.1] * 10, 0.3, 3),
        ([0.1] * 10, 0.7, 7),
        ([0.05] * 20, 0.95, 19),
        ([1 / 3] * 3, 2 / 3, 2),
        ([1e-3] * 1000, 0.9, 900),
    ],
)
def test_a_sum_that_reaches_p_up_to_rounding_is_enough(dtype, as_logits, row, p, n):
    scores = np.log(np.array([row], dtype)) + (7.0 if as_logits else 0.0)
    kept = decoding.top_p(p)(scores.astype(dtype), START) > -np.inf
    assert kept.sum() == n


def stream_weights(size):
    """Return an encoder like that of T5: what the feed-forward network adds is large."""
    weights = ab.EncoderWeights.init(0, 3, d_model=16, n_heads=2, d_ff=32, normalization="rms")
    arrays = weights.arrays().items()
    return weights.with_arrays(
        {name: x * size if name.endswith("W_2") else x for name, x in arrays}
    )


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_residual_stream_beyond_float16_says_so(kind):
    x = np.random.default_rng(0).normal(size=(2, 5, 16))
    large = stream_weights(1e5)
    message = r"^x must keep the residual stream within float16, which ends at 65504, got an over"
    half, wide = (
        (ab.move(x, kind, dtype=dtype), large.to(kind, dtype=dtype))
        for dtype in ("float16", "float32")
    )
    with pytest.raises(ValueError, match=message), np.errstate(all="ignore"):
        ab.encoder(*half)
    with pytest.raises(ValueError, match=message), np.errstate(all="ignore"):
        ab.encoder_layer(half[0], half[1].layers[0])
    assert np.isfinite(ab.move(ab.encoder(*wide), "numpy")).all()
    small = stream_weights(1.0).to(kind, dtype="float16")
    found = ab.move(ab.encoder(half[0], small), "numpy").astype(np.float32)
    exact = ab.encoder(x, stream_weights(1.0))
    np.testing.assert_allclose(found, exact, atol=0.02)
    half[0][0, 0, 0] = np.nan  # what is not finite before stays the caller's
    with np.errstate(all="ignore"):
        assert np.isnan(ab.move(ab.encoder(half[0], small), "numpy")).any()


def test_a_residual_stream_in_bfloat16_and_in_vmap_is_left_alone():
    x = torch.randn((2, 5, 16), generator=torch.Generator().manual_seed(0))
    large = stream_weights(1e5)
    wide = ab.encoder(x.bfloat16(), large.to("torch", dtype="bfloat16"))
    assert bool(torch.isfinite(wide).all())
    weights = stream_weights(1.0).to("torch", dtype="float16")
    together = torch.vmap(lambda one: ab.encoder(one, weights))(x.half())
    torch.testing.assert_close(together, ab.encoder(x.half(), weights), atol=0.01, rtol=0.01)


def test_the_cost_of_a_text_is_summed_wide():
    """Bits of a whole text may be beyond 65504, and each must be as exact as the logits."""
    writer = models.writer()
    weights = writer.weights.to("torch", dtype="bfloat16")
    narrow = models.LanguageModel(weights, writer.tokenizer, context=writer.context)
    text = "the king and the queen of all the land "
    exact, found = writer.surprisal(text), narrow.surprisal(text)
    assert found.dtype == np.float32
    assert len(set(found)) == len(found)  # bfloat16 has few numbers
    np.testing.assert_allclose(found.sum(), exact.sum(), rtol=0.03)
