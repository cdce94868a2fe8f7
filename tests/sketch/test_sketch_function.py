"""The function `sketch_attention` against attention with masks, and what it may not see."""

import re

import numpy as np
import pytest

from attnbook import attention, masking
from attnbook.hashing import GivenHash, SimHash
from attnbook.sketch import sketch_attention

N, D, D_V, N_Q = 211, 7, 5, 13
SIGNS = SimHash.init(1, D, 3, 4)


def drawn(n=N, n_q=N_Q):
    """Return queries, keys and values."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(size) for size in ((n_q, D), (n, D), (n, D_V))]


def everything(x):
    """Put all vectors into one bucket, in any library."""
    return (x[:, 0] * 0) != 0


def test_the_function_with_one_bucket_is_attention(library):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 11, D)), rng.standard_normal((3, 17, D))
    value = rng.standard_normal((2, 3, 17, D_V))
    arrays = [library.array(x, "float64") for x in (query, key, value)]
    got = sketch_attention(*arrays, hash=GivenHash(everything))
    assert library.same_kind(got, arrays[0])
    np.testing.assert_allclose(library.numpy(got), attention(query, key, value), atol=1e-13)
    for shape in ((17,), (1, 17), (11, 17), (3, 1, 17), (2, 1, 11, 17)):
        mask = rng.random(shape) < 0.5
        got = sketch_attention(*arrays, library.array(mask), hash=GivenHash(everything))
        np.testing.assert_allclose(
            library.numpy(got), attention(query, key, value, mask), atol=1e-13
        )
    rule = masking.FirstKeys([[4], [17]]) & masking.SlidingWindow(left=6, right=6)
    got = sketch_attention(*arrays, rule, hash=GivenHash(everything))
    mask = rule.dense(11, 17)
    np.testing.assert_allclose(library.numpy(got), attention(query, key, value, mask), atol=1e-13)


@pytest.mark.parametrize("n_q", [1, 23, 41, 60])
@pytest.mark.parametrize("window", [0, 1, 8, 100])
@pytest.mark.parametrize("masked", [False, True])
def test_causal_with_one_bucket_is_causal_attention(n_q, window, masked):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((n_q, D)), rng.standard_normal((41, D))
    value = rng.standard_normal((41, D_V))
    mask = rng.random((n_q, 41)) < 0.6 if masked else np.ones((1, 41), dtype=bool)
    output, evidence = sketch_attention(
        query, key, value, mask, hash=GivenHash(everything), is_causal=True, window=window,
        return_evidence=True,
    )  # fmt: skip
    wanted = attention(query, key, value, mask & masking.causal(n_q, 41))
    np.testing.assert_allclose(output, wanted, atol=1e-13)
    assert evidence.candidates.shape == (n_q,)


@pytest.mark.parametrize("window", [0, 10])
def test_causal_attention_and_its_evidence_against_a_loop(impl, window):
    """A window scores the run of the query and the run before it, whatever the tables say."""
    query, key, value = drawn(97, 97)
    output, evidence = sketch_attention(
        query, key, value, hash=SIGNS, is_causal=True, window=window, impl=impl,
        return_evidence=True,
    )  # fmt: skip
    theirs, ours = SIGNS.signatures(key), SIGNS.signatures(query)
    for i in range(97):
        first = max(i // window * window + 1 - window, 0) if window else i + 1
        found = {j for j in range(min(first, i + 1)) if (theirs[j] == ours[i]).any()}
        rows = sorted(found | set(range(first, i + 1)))
        wanted = attention(query[i : i + 1], key[rows], value[rows])[0]
        np.testing.assert_allclose(output[i], wanted, atol=1e-12)
        assert evidence.candidates[i] == len(rows)
        if rows:
            best = max(rows, key=lambda j: query[i] @ key[j])
            chance = SIGNS.retrieval_probability(query[i], key[best])
            exact = 1.0 if best >= first else chance
            assert evidence.found_probability[i] == pytest.approx(exact)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 16},
        {"estimator": "importance"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_the_future_does_not_leak(options):
    query, key, value = drawn(150, 150)
    changed = [x.copy() for x in (query, key, value)]
    rng = np.random.default_rng(1)
    for x in changed:
        x[100:] = 3 * rng.standard_normal(x[100:].shape)
    outputs = [
        sketch_attention(*x, hash=SIGNS, is_causal=True, **options)
        for x in ((query, key, value), changed)
    ]
    np.testing.assert_allclose(outputs[0][:100], outputs[1][:100], atol=1e-12)
    assert np.abs(outputs[0][100:] - outputs[1][100:]).max() > 0.1


@pytest.mark.parametrize("options", [{}, {"window": 8}])
def test_numba_is_causal_too(options):
    pytest.importorskip("numba")
    arrays = drawn(90, 90)
    one, other = (
        sketch_attention(*arrays, hash=SIGNS, is_causal=True, impl=impl, **options)
        for impl in ("reference", "numba")
    )
    np.testing.assert_allclose(one, other, atol=1e-11)


def test_gradients_flow_through_the_scores():
    torch = pytest.importorskip("torch")
    query, key, value = drawn(19, 5)
    hash = SIGNS.to("torch")
    inputs = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    for options in ({}, {"is_causal": True, "window": 4}):
        assert torch.autograd.gradcheck(
            lambda *x, options=options: sketch_attention(*x, hash=hash, **options),
            inputs,
            fast_mode=True,
        )


def test_the_function_checks_its_arguments():
    query, key, value = drawn()
    mask = np.ones((N_Q, N), dtype=bool)
    wrong = [
        ({"window": 3}, "window must be 0 without is_causal, got 3"),
        (
            {"window": 3, "is_causal": True, "estimator": "duplicates"},
            "estimator must be 'union' with a window, got 'duplicates'",
        ),
        ({"key": key[:, :3]}, "key must have shape (..., n_k, 7) to match query"),
    ]
    for options, message in wrong:
        arrays = {"query": query, "key": key, "value": value} | options
        with pytest.raises(ValueError, match=re.escape(message)):
            sketch_attention(**arrays, hash=SIGNS)
    mask[0, 0] = False
    with pytest.raises(ValueError, match="mask must be the same for all queries"):
        sketch_attention(query, key, value, mask, hash=SIGNS, impl="numba")
    for name in ("is_causal", "return_evidence"):
        with pytest.raises(TypeError, match=f"{name} must be a bool, got str"):
            sketch_attention(query, key, value, hash=SIGNS, **{name: "no"})


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_the_function_with_nothing_to_do(shape):
    batch, n_q = shape
    arrays = np.ones((batch, n_q, D)), np.ones((batch, 5, D)), np.ones((batch, 5, D_V))
    output, evidence = sketch_attention(*arrays, hash=SIGNS, return_evidence=True)
    assert output.shape == (batch, n_q, D_V)
    assert evidence.candidates.shape == (batch, n_q)
    assert evidence.n_keys == 5


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "window": 2}])
def test_the_function_without_keys(impl, options):
    x = np.random.default_rng(0).standard_normal((2, 7, D))
    options = {**options, "impl": impl, "hash": SIGNS, "return_evidence": True}
    nothing = x, x[:, :0], np.ones((2, 0, 3))
    for arrays, d_v in ((nothing, 3), ((x, x, x, np.zeros(7, dtype=bool)), D)):
        output, evidence = sketch_attention(*arrays, **options)
        assert np.array_equal(output, np.zeros((2, 7, d_v)))
        assert evidence.candidates.shape == (2, 7)
        assert np.isnan(evidence.found_probability).all()
        assert np.array_equal(evidence.missed_mass, np.zeros((2, 7)))
