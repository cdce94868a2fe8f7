"""SGD, AdamW and clipping against those of PyTorch, in every library."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import need, shaken
from error_table import assert_raises, error_rows

import attnbook
from attnbook import LayerNormWeights, TransformerWeights
from attnbook.training import SGD, AdamW, clip_gradients

RATES = (0.1, 0.0, 0.03, 0.2, 0.01)


def weights_and_gradients(seed=0):
    """Return weights with matrices, biases and gains, and a gradient for each of some steps."""
    sizes = {"d_model": 4, "n_heads": 2, "d_ff": 3, "n_layers": 1, "n_encoder_layers": 0}
    weights = shaken(TransformerWeights.init(0, 5, **sizes), seed)
    rng = np.random.default_rng(seed)

    def drawn():
        grads = {n: rng.standard_normal(x.shape) for n, x in weights.arrays().items()}
        grads["target_embedding"][3] = 0  # a token that never occurs
        return weights.with_arrays(grads)

    return weights, [drawn() for _ in RATES]


def by_torch(weights, steps, make):
    """Return the weights after `steps` with an optimizer of PyTorch, whose matrices alone decay."""
    leaves = {n: torch.tensor(x, requires_grad=True) for n, x in weights.arrays().items()}
    optimizer = make(
        [
            {"params": [x for x in leaves.values() if x.ndim == 2]},
            {"params": [x for x in leaves.values() if x.ndim == 1], "weight_decay": 0.0},
        ]
    )
    for grads, lr in zip(steps, RATES, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, x in leaves.items():
            x.grad = torch.tensor(grads.arrays()[name])
        optimizer.step()
    return {name: x.detach().numpy() for name, x in leaves.items()}


OPTIMIZERS = {
    "sgd": (lambda weights: SGD(), lambda groups: torch.optim.SGD(groups)),
    "sgd, decay": (
        lambda weights: SGD(weight_decay=0.3),
        lambda groups: torch.optim.SGD(groups, weight_decay=0.3),
    ),
    "adamw": (
        AdamW,
        lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0),
    ),
    "adamw, all": (
        lambda weights: AdamW(weights, betas=(0.8, 0.95), epsilon=0.01, weight_decay=0.3),
        lambda groups: torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=0.01, weight_decay=0.3),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_pytorch(library, name, dtype):
    ours, theirs = OPTIMIZERS[name]
    weights, steps = weights_and_gradients()
    expected = by_torch(weights, steps, theirs)
    weights = library.place(weights, dtype)
    optimizer = ours(weights)
    for grads, lr in zip(steps, RATES, strict=True):
        weights = optimizer.step(weights, library.place(grads, dtype), lr=lr)
    tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype]
    for key, x in weights.arrays().items():
        assert str(x.dtype).endswith(dtype)
        np.testing.assert_allclose(
            library.numpy(x), expected[key], rtol=tolerance, atol=tolerance, err_msg=key
        )


def test_the_state_is_in_the_open_and_no_array_is_written_to():
    weights, steps = weights_and_gradients()  # all arrays are read-only
    optimizer = AdamW(weights, betas=(0.5, 0.75))
    first = optimizer.means
    assert not any(x.any() for x in first.arrays().values())
    optimizer.step(weights, steps[0], lr=0.1)
    assert optimizer.n_steps == 1
    for name, grad in steps[0].arrays().items():
        np.testing.assert_allclose(optimizer.means.arrays()[name], 0.5 * grad)
        np.testing.assert_allclose(optimizer.squares.arrays()[name], 0.25 * grad**2)
    assert not any(x.any() for x in first.arrays().values())


@pytest.mark.parametrize("longest", [None, 1e-3, 1.0, 1e6])
def test_clipping_is_that_of_pytorch(library, longest):
    _, (grads, *_) = weights_and_gradients()
    leaves = [torch.zeros(x.shape, dtype=torch.float64) for x in grads.arrays().values()]
    for leaf, grad in zip(leaves, grads.arrays().values(), strict=True):
        leaf.grad = torch.tensor(grad)
    limit = float("inf") if longest is None else longest
    expected = torch.nn.utils.clip_grad_norm_(leaves, limit).item()
    clipped, norm = clip_gradients(library.place(grads), longest)
    assert isinstance(norm, float)
    np.testing.assert_allclose(norm, expected, rtol=1e-12)
    assert type(clipped) is type(grads)
    for leaf, got in zip(leaves, clipped.arrays().values(), strict=True):
        np.testing.assert_allclose(library.numpy(got), leaf.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("float16", [300.0, 0.0]),
        ("float16", [1e-4, 2e-4]),
        ("float32", [1e20, -2e20]),
        ("float64", [3e-200, 4e-200]),
    ],
)
def test_no_square_of_a_gradient_overflows_or_vanishes(library, dtype, numbers):
    need(library, dtype)
    grads = library.place(LayerNormWeights(np.array(numbers)), dtype)
    exact = math.hypot(*library.numpy(grads.gain).tolist())
    clipped, norm = clip_gradients(grads, exact / 2)
    assert norm == pytest.approx(exact, rel=1e-6)
    size = math.hypot(*library.numpy(clipped.gain).tolist())
    assert size == pytest.approx(exact / 2 / max(1, (exact + 1e-6) / exact), rel=2e-2)


def test_nothing_to_clip():
    empty, no_gain = LayerNormWeights(np.zeros(0)), LayerNormWeights(np.zeros(3))
    assert clip_gradients(empty, 1.0)[1] == clip_gradients(no_gain, 1.0)[1] == 0
    assert math.isnan(clip_gradients(LayerNormWeights(np.array([np.nan, 1.0])), None)[1])
    assert clip_gradients(LayerNormWeights(np.array([np.inf, 1.0])), None)[1] == math.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(library, dtype):
    need(library, dtype)
    weights = library.place(LayerNormWeights(np.array([1.0, 2.0, 3.0])), dtype)
    grads = library.place(LayerNormWeights(np.array([0.0, 1e-4, -7.0])), dtype)
    optimizer, wide = AdamW(weights), AdamW(weights.to(library.name, dtype="float32"))
    in_float32 = grads.to(library.name, dtype="float32")
    for _ in range(3):
        expected = wide.step(weights.to(library.name, dtype="float32"), in_float32, 0.1)
        weights = optimizer.step(weights, grads, 0.1)
        assert library.same_kind(weights.gain, grads.gain)
        rounded = expected.to(library.name, dtype=dtype)
        np.testing.assert_array_equal(library.numpy(weights.gain), library.numpy(rounded.gain))


@pytest.mark.parametrize("number", [np.float64(0.5), Fraction(1, 2), np.float32(0.5)])
def test_numbers_of_any_kind_keep_the_dtype(number):
    weights = LayerNormWeights(np.ones(2, np.float32))
    norm = weights.filled({"gain": np.ones((2, 2), np.float32)})
    for optimizer in (
        *(AdamW(weights, betas=(number, number), epsilon=number), SGD(weight_decay=number)),
        AdamW(weights, weight_decay=number),
    ):
        assert optimizer.step(weights, weights, number).gain.dtype == np.float32
    assert clip_gradients(weights, number)[0].gain.dtype == np.float32
    assert SGD(weight_decay=number).step(norm, norm, 0.1).gain.dtype == np.float32


ERRORS = """
AdamW([1.0])
    TypeError: weights must be Weights, got list
AdamW(weights, betas=0.9)
    TypeError: betas must be a pair of numbers, got 0.9
AdamW(weights, betas=(0.9, 1.0))
    ValueError: betas[1] must be below 1, got 1.0
AdamW(weights, betas=(-0.5, 0.9))
    ValueError: betas[0] must be finite and at least 0, got -0.5
AdamW(weights, epsilon=-1)
    ValueError: epsilon must be finite and at least 0, got -1.0
AdamW(weights, weight_decay="no")
    TypeError: weight_decay must be a real number, got str
SGD(weight_decay=-1)
    ValueError: weight_decay must be finite and at least 0, got -1.0
AdamW(weights).step(weights, weights, lr=-1)
    ValueError: lr must be finite and at least 0, got -1.0
AdamW(weights).step(weights, [1.0], lr=1)
    TypeError: gradients must be LayerNormWeights, got list
AdamW(weights).step(others, others, lr=1)
    TypeError: weights must be LayerNormWeights, got RMSNormWeights
SGD().step(weights, longer, lr=1)
    ValueError: gain must have shape (2,), got (3,)
SGD().step(weights, bare, lr=1)
    ValueError: arrays must have the 1 names of these weights, got gain missing and none unknown
SGD().step(weights, weights.to("torch"), lr=1)
    TypeError: gradients must be an array of the same library as weights (numpy), got torch
SGD().step([1.0], weights, lr=1)
    TypeError: weights must be Weights, got list
clip_gradients([1.0], 1)
    TypeError: gradients must be Weights, got list
clip_gradients(weights, 0)
    ValueError: longest must be above 0, got 0.0
clip_gradients(weights, -1)
    ValueError: longest must be finite and at least 0, got -1.0
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_errors_say_what_is_wrong(call, kind, message):
    names = {"AdamW": AdamW, "SGD": SGD, "clip_gradients": clip_gradients}
    names |= {"weights": LayerNormWeights(np.ones(2)), "longer": LayerNormWeights(np.ones(3))}
    names |= {"bare": LayerNormWeights(), "others": attnbook.RMSNormWeights(np.ones(2))}
    assert_raises(call, kind, message, names)
