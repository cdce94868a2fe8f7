"""Cross-entropy against the loop and PyTorch, in every library and dtype."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, close, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import cross_entropy

SHAPES = st.sampled_from(((1,), (5,), (2, 3), (3, 1, 2), (0,), (2, 0)))
SMOOTHING = st.sampled_from((0, 0.0, 0.1, 0.5, 1))


def inputs(seed, shape, n_known, spread=3.0):
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((*shape, n_known))
    return logits, rng.integers(0, n_known, shape), rng.random(shape) < 0.6


@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, st.sampled_from((1, 2, 7)), SMOOTHING, st.booleans(), st.integers(0, 99))
def test_agrees_with_the_loop(library, dtype, shape, n_known, smoothing, masked, seed):
    need(library, dtype)
    logits, targets, mask = inputs(seed, shape, n_known)
    given = [library.array(logits, dtype), library.array(targets)]
    given += [library.array(mask)] if masked else []
    before = [library.numpy(x).copy() for x in given]
    got = cross_entropy(*given, label_smoothing=smoothing)
    assert library.same_kind(got, given[0])
    exact = oracle.cross_entropy(before[0], targets, mask if masked else None, smoothing)
    close(library.numpy(got), np.asarray(exact), dtype, size=30)
    for x, old in zip(given, before, strict=True):
        np.testing.assert_array_equal(library.numpy(x), old)


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8"])
def test_targets_of_every_integer_dtype(library, kind):
    logits, targets, mask = inputs(0, (2, 3), 7)
    arrays = library.array(logits), library.array(targets, kind), library.array(mask)
    exact = oracle.cross_entropy(logits, targets, mask)
    np.testing.assert_allclose(library.numpy(cross_entropy(*arrays)), exact)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(st.integers(0, 99), st.sampled_from((0.0, 0.1, 0.7)), st.booleans())
def test_agrees_with_torch_and_has_its_gradients(dtype, seed, smoothing, masked):
    logits, targets, mask = inputs(seed, (2, 5), 7)
    mask[0, 0] = True
    z = torch.tensor(logits, dtype=getattr(torch, dtype), requires_grad=True)
    ids = torch.tensor(targets)
    if masked:
        ids[~torch.tensor(mask)] = -100
    ours = cross_entropy(z, ids, torch.tensor(mask) if masked else None, label_smoothing=smoothing)
    theirs = torch.nn.functional.cross_entropy(
        z.reshape(-1, 7), ids.reshape(-1), ignore_index=-100, label_smoothing=smoothing
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in (ours, theirs)))


def test_what_the_mask_leaves_out_may_be_anything(library):
    logits, targets, _ = inputs(0, (2, 3), 7)
    mask = np.array([[True, True, False], [True, False, False]])
    expected = oracle.cross_entropy(logits, targets, mask)
    for rubbish in (-100, 7, 10**6):
        changed, noisy = np.where(mask, targets, rubbish), logits.copy()
        noisy[~mask] = [math.inf, -math.inf, math.nan, 0, 0, 0, 0]
        arrays = (library.array(x) for x in (noisy, changed, mask))
        with np.errstate(invalid="ignore"):
            got = library.numpy(cross_entropy(*arrays, label_smoothing=0))
        np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_token_at_all_has_no_loss_and_no_gradient(library, dtype):
    need(library, dtype)
    logits, targets, _ = inputs(0, (2, 3), 7)
    z, ids = library.array(logits, dtype), library.array(targets)
    none = library.array(np.zeros((2, 3), bool))
    assert library.numpy(cross_entropy(z, ids, none)) == 0
    assert library.numpy(cross_entropy(z[:0, ...], ids[:0, ...])) == 0
    if library.name == "torch":
        z.requires_grad_()
        cross_entropy(z, ids, none).backward()
        assert bool((z.grad == 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_counts_in_float32(library, dtype):
    need(library, dtype)
    # 4099 equal tokens: in half precision their sum would stop at 2048 or at 256
    z, ids = library.array(np.zeros((4099, 2)), dtype), library.array(np.zeros(4099, int))
    got = library.numpy(cross_entropy(z, ids, library.array(np.ones(4099, bool))))
    np.testing.assert_allclose(got, math.log(2), rtol=4e-3)


@pytest.mark.parametrize("n_known", [1, 2, 10])
def test_a_uniform_guess_costs_log_v(library, n_known):
    ids = library.array(np.arange(3) % n_known)
    for value in (0.25, -1e4, 1e300):  # a shift of all logits does not matter, and none overflows
        z = library.array(np.full((3, n_known), value))
        for smoothing in (0.0, 0.3, 1.0):
            got = library.numpy(cross_entropy(z, ids, label_smoothing=smoothing))
            np.testing.assert_allclose(got, math.log(n_known), atol=1e-15)
    z = library.array(np.array([[1e4, 0.0], [0.0, -1e4]]), "float32")
    np.testing.assert_allclose(library.numpy(cross_entropy(z, library.array(np.ones(2, int)))), 1e4)


def test_it_stays_on_its_device():
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    arrays = [strict.asarray(x, device=device) for x in inputs(0, (2, 3), 7)]
    assert cross_entropy(*arrays, label_smoothing=0.1).device == device
    logits, targets, mask = (torch.tensor(x) for x in inputs(0, (2, 3), 7))
    assert cross_entropy(logits.to("meta"), targets.to("meta")).shape == ()
    mapped = torch.func.vmap(cross_entropy)(logits, targets, mask)
    each = [cross_entropy(*row) for row in zip(logits, targets, mask, strict=True)]
    torch.testing.assert_close(mapped, torch.stack(each))


# Errors.


def call(logits=(2, 3, 7), targets=(2, 3), mask=None, dtype="float64", **options):
    logits = np.zeros(logits, dtype) if isinstance(logits, tuple) else logits
    targets = np.zeros(targets, int) if isinstance(targets, tuple) else targets
    return cross_entropy(logits, targets, mask, **options)


ERRORS = r"""
call([[0.0]])
    TypeError: logits must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
call(dtype="int64")
    TypeError: logits must have a real floating dtype, got int64
call((7,), ())
    ValueError: logits must have shape (..., n, V), V >= 1, got (7,)
call((2, 3, 0))
    ValueError: logits must have shape (..., n, V), V >= 1, got (2, 3, 0)
call(targets=[0])
    TypeError: targets must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
call(targets=np.zeros((2, 3)))
    TypeError: targets must be an array of integers, got float64
call(targets=torch.zeros(2, 3, dtype=torch.int64))
    TypeError: targets must be an array of the same library as logits (numpy), got torch
call(targets=())
    ValueError: targets must have shape (..., n), got ()
call(targets=(3, 2))
    ValueError: targets must have shape (2, 3) to match logits, got (3, 2)
call(targets=(1, 3))
    ValueError: targets must have shape (2, 3) to match logits, got (1, 3)
call(targets=np.full((2, 3), 7))
    ValueError: targets must be from 0 to 6 to be known to logits, got 7
call(targets=np.full((2, 3), -100))
    ValueError: targets must be from 0 to 6 to be known to logits, got -100
call(targets=np.array([[0, -100, 0]] * 2), mask=np.array([[True, True, False]] * 2))
    ValueError: targets must be from 0 to 6 to be known to logits, got -100
call(mask=np.ones((2, 3)))
    TypeError: mask must be boolean, True = may attend, got float64; it looks like a boolean mask
    stored as numbers: pass mask == 1
call(mask=np.full((2, 3), -math.inf))
    TypeError: mask must be boolean, True = may attend, got float64; it looks like an additive mask:
    pass mask == 0, which is True where it allows
call(mask=[True])
    TypeError: mask must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
call(mask=torch.ones(2, 3, dtype=torch.bool))
    TypeError: mask must be an array of the same library as logits (numpy), got torch
call(mask=np.ones(3, bool))
    ValueError: mask must have shape (2, 3) to match logits, got (3,)
call(label_smoothing=1.5)
    ValueError: label_smoothing must be at most 1, got 1.5
call(label_smoothing=-0.1)
    ValueError: label_smoothing must be finite and at least 0, got -0.1
call(label_smoothing="0")
    TypeError: label_smoothing must be a real number, got str
"""

test_cross_entropy_refuses = error_test(ERRORS, globals())
