"""`Recorder`: the reference, and the weights of each of its calls."""

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, every_day, need, recorded
from test_impl import CALLS, HEADS, IDS, model, some, tokens

import attnbook
from attnbook import kernels, nn
from attnbook.decoding import greedy_decode

MASKS = {"none": None, "random": some(5, 7, 13), "empty row": np.arange(7)[:, None] > 2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_it_keeps_the_weights_of_the_reference_bit_for_bit(library, dtype, mask, is_causal):
    need(library, dtype)
    query, key, value = (
        library.array(tokens(*shape), dtype) for shape in ((5, 7, 3), (1, 13, 3), (13, 2))
    )
    bias = library.array(tokens(7, 13, seed=2), dtype)
    mask = None if MASKS[mask] is None else library.array(MASKS[mask])
    how = {"mask": mask, "bias": bias, "scale": 0.3, "is_causal": is_causal}
    output, [A] = recorded(attnbook.attention, query, key, value, **how)
    for got, wanted in (
        (output, attnbook.attention(query, key, value, **how)),
        (A, attnbook.attention_weights(query, key, **how)),
    ):
        assert library.same_kind(got, query)
        np.testing.assert_array_equal(library.numpy(got), library.numpy(wanted))


@pytest.mark.parametrize("name", CALLS)
def test_outputs_inside_everything_are_those_of_the_reference_bit_for_bit(library, name):
    function, arrays, weights, masks, options = CALLS[name]
    arguments = (*map(library.array, arrays), library.place(weights), *map(library.array, masks))
    output, A = recorded(function, *arguments, **options)
    wanted = library.numpy(function(*arguments, **options))
    np.testing.assert_array_equal(library.numpy(output), wanted)
    totals = [library.numpy(x).sum(axis=-1) for x in A]
    assert totals
    for total in totals:
        assert np.all((np.abs(total - 1) < 1e-12) | (total == 0))


def test_grouped_heads_that_look_elsewhere_have_weights_of_their_own(library):
    query, key = tokens(5, 7, 12), tokens(5, 13, 12, seed=1)
    mask = some(5, 1, 7, 13)
    _, exact = oracle.heads_of(query, key, HEADS, mask)
    arguments = (library.array(query), *[library.array(key)] * 2, library.place(HEADS))
    _, [A] = recorded(attnbook.multi_head_attention, *arguments, library.array(mask))
    assert tuple(A.shape) == (5, 6, 7, 13)  # 6 heads share 2 key heads
    np.testing.assert_allclose(library.numpy(A), exact, atol=1e-12)


@pytest.mark.parametrize("cache", every_day([True], [True, False]))
def test_decoding_adds_the_calls_of_every_step(cache):
    recorder, weights = kernels.Recorder(), model()  # 2 layers on either side
    how = {"prompt": 3, "max_length": 4, "cache": cache}
    found = greedy_decode(weights, IDS, **how, impl=recorder)
    np.testing.assert_array_equal(found.tokens, greedy_decode(weights, IDS, **how).tokens)
    encoder, steps = recorder.weights[:2], recorder.weights[2:]
    assert [A.shape for A in encoder] == [(2, 6, 4, 4)] * 2
    n = found.tokens.shape[-1]
    n_queries = [1 if cache else i for i in range(1, n + 1) for _ in range(4)]
    assert [A.shape[-2] for A in steps] == n_queries
    assert [A.shape[-1] for A in steps[::2]] == [i for i in range(1, n + 1) for _ in range(2)]


def test_gradients_go_through_the_weights():
    recorder = kernels.Recorder()
    module = nn.MultiHeadAttention(HEADS, impl=recorder)
    assert "impl=Recorder()" in repr(module)
    module(torch.tensor(tokens(7, 12)))
    recorder.weights[0].square().sum().backward()
    assert bool(module.W_Q.grad.any())
    assert bool(module.W_K.grad.any())
    assert module.W_V.grad is None  # the weights do not depend on the values


def test_two_recorders_keep_apart_and_neither_pulls_gradients_back():
    one, other = kernels.Recorder(), kernels.Recorder()
    x = np.ones((3, 2))
    attnbook.attention(x, x, x, impl=one)
    assert (len(one.weights), len(other.weights)) == (1, 0)
    with pytest.raises(TypeError, match=r"^impl must be a str to have a backward pass, got Recor"):
        attnbook.attention_vjp(x, x, x, x, impl=one)
