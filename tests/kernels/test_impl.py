"""`impl=` in everything that attends: the functions, the modules, and decoding."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from cases import every_day, recorded

import attnbook
from attnbook import nn
from attnbook.decoding import beam_search, greedy_decode, sample, stream

SIZES = {"d_model": 12, "n_heads": 6, "d_ff": 5}
GROUPED = SIZES | {"n_kv_heads": 2}
tiled = {"impl": "tiled"}


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def model(**options):
    options = {"tied": False, "n_layers": 2, "positions": "rotary"} | GROUPED | options
    return attnbook.TransformerWeights.init(0, 13, 11, **options)


def some(*shape):
    return np.random.default_rng(1).random(shape) < 0.6


HEADS = attnbook.MultiHeadWeights.init(0, 12, 6, n_kv_heads=2, bias=True)
MASKS = {
    "none": None,
    "queries and keys": some(7, 13),
    "keys": some(13),
    "each head": some(1, 6, 7, 13),
    "heads alone": some(6, 1, 13),
    "each sequence": some(5, 1, 1, 13),
    "everything": some(5, 6, 7, 13),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_grouped_heads_are_not_repeated_and_agree(library, mask, is_causal):
    weights = library.place(HEADS)
    query, key = library.array(tokens(5, 7, 12)), library.array(tokens(1, 13, 12, seed=1))
    mask = None if MASKS[mask] is None else library.array(MASKS[mask])
    found = [
        attnbook.multi_head_attention(
            query, key, key, weights, mask, is_causal=is_causal, impl=impl
        )
        for impl in ("reference", "naive", "tiled")
    ]
    for got in found:
        np.testing.assert_allclose(library.numpy(got), library.numpy(found[0]), atol=1e-12)


def test_causal_is_the_causal_mask(library):
    weights, x = library.place(HEADS), library.array(tokens(7, 12))
    mask = attnbook.masking.causal(7, like=x)
    got, A = recorded(attnbook.multi_head_attention, x, x, x, weights, is_causal=True)
    wanted, A_masked = recorded(attnbook.multi_head_attention, x, x, x, weights, mask)
    for ours, theirs in zip((got, *A), (wanted, *A_masked), strict=True):
        np.testing.assert_array_equal(library.numpy(ours), library.numpy(theirs))


SINGLE = attnbook.SingleHeadWeights.init(0, 12, d_k=3, d_v=5, d_out=2)
ENCODER = attnbook.EncoderWeights.init(0, 2, 12, 6, 5, n_kv_heads=3)
DECODER = attnbook.DecoderWeights.init(0, 2, 12, 6, 5, n_kv_heads=3)
BLOCK = attnbook.TransformerBlockWeights.init(0, 12, 12, 3, 12)
IDS = np.array([[3, 1, 4, 1], [5, 9, 2, 6]])
CAUSAL = attnbook.masking.causal(7)
CALLS = {
    "one head": (attnbook.single_head_attention, (tokens(7, 12),) * 3, SINGLE, (CAUSAL,), {}),
    "heads": (attnbook.multi_head_attention, (tokens(7, 12),) * 3, HEADS, (CAUSAL,), {}),
    "encoder layer": (
        *(attnbook.encoder_layer, (tokens(2, 7, 12),), ENCODER.layers[0], ()),
        {"rotate": True},
    ),
    "encoder": (attnbook.encoder, (tokens(2, 7, 12),), ENCODER, (CAUSAL,), {}),
    "decoder layer": (
        *(attnbook.decoder_layer, (tokens(2, 7, 12), tokens(5, 12)), DECODER.layers[0]),
        *((CAUSAL, some(2, 1, 1, 5)), {"rotate": True}),
    ),
    "decoder": (attnbook.decoder, (tokens(2, 7, 12), tokens(2, 5, 12)), DECODER, (CAUSAL,), {}),
    "transformer": (attnbook.transformer, (IDS, IDS), model(), (), {}),
    "transformer, all seen": (attnbook.transformer, (IDS, IDS), model(), (), {"is_causal": False}),
    "block": (attnbook.transformer_block, (tokens(2, 7, 12),), BLOCK, (), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_function_agrees_with_the_reference(library, name):
    function, arrays, weights, masks, options = CALLS[name]
    arguments = (*map(library.array, arrays), library.place(weights), *map(library.array, masks))
    wanted = library.numpy(function(*arguments, **options))
    for impl in ("naive", "tiled"):
        got = function(*arguments, **options, impl=impl)
        np.testing.assert_allclose(library.numpy(got), wanted, atol=1e-11)


def of_my_own(query, key, value, mask, bias, scale, is_causal):
    """Attention as a reader writes it, for one array library or another."""
    xp = attnbook.arrays.array.array_namespace(query)
    scores = scale * xp.matmul(query, xp.matrix_transpose(key))
    scores = scores if bias is None else scores + bias
    allowed = xp.ones_like(scores) > 0 if mask is None else xp.logical_and(mask, scores == scores)
    if is_causal:
        n_q, n_k = scores.shape[-2:]
        late = attnbook.masking.causal(n_q, n_k, like=query)
        allowed = xp.logical_and(allowed, late)
    scores = xp.where(allowed, scores, xp.full_like(scores, -xp.inf))
    return xp.matmul(attnbook.softmax(scores), value)


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_your_own_runs_inside_everything(library, name):
    function, arrays, weights, masks, options = CALLS[name]
    arguments = (*map(library.array, arrays), library.place(weights), *map(library.array, masks))
    wanted = library.numpy(function(*arguments, **options))
    got = function(*arguments, **options, impl=of_my_own)
    np.testing.assert_allclose(library.numpy(got), wanted, atol=1e-11)
    last = function(*arguments, **options, impl=lambda q, k, v, *_: 0 * q[..., :1] + v[..., -1:, :])
    assert np.max(np.abs(library.numpy(last) - wanted)) > 1e-3


@pytest.mark.parametrize("mask", MASKS)
def test_a_function_gets_repeated_heads_and_all_arguments(library, mask):
    weights, seen = library.place(HEADS), []
    query, key = library.array(tokens(5, 7, 12)), library.array(tokens(1, 13, 12, seed=1))
    mask = None if MASKS[mask] is None else library.array(MASKS[mask])
    bias = library.array(tokens(6, 7, 13))
    given = {"mask": mask, "bias": bias, "is_causal": True}

    def spy(*arguments):
        seen.append(arguments)
        return of_my_own(*arguments)

    got = attnbook.multi_head_attention(query, key, key, weights, **given, impl=spy)
    wanted = attnbook.multi_head_attention(query, key, key, weights, **given)
    np.testing.assert_allclose(library.numpy(got), library.numpy(wanted), atol=1e-12)
    (q, k, v, *rest), *others = seen
    assert others == []
    shapes = [tuple(x.shape) for x in (q, k, v)]
    assert shapes == [(5, 6, 7, 2), (1, 6, 13, 2), (1, 6, 13, 2)]
    assert rest[:2] == [mask, bias]
    assert rest[2:] == [1 / np.sqrt(2), True]


def test_a_function_decodes_and_learns():
    weights = model()
    how = {"prompt": 3, "max_length": 9}
    for cache in (True, False):
        found = [greedy_decode(weights, IDS, **how, cache=cache, impl=impl).tokens
                 for impl in ("reference", of_my_own)]  # fmt: skip
        np.testing.assert_array_equal(*found)
    module, ids = nn.Transformer(weights, impl=of_my_own), torch.tensor(IDS)
    judge = nn.Transformer(weights)
    for one in (module, judge):
        one(ids, ids).square().sum().backward()
    for p, q in zip(module.parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert "impl=of_my_own" in repr(module)
    assert module.state_dict().keys() == judge.state_dict().keys()


def test_what_a_function_returns_must_fit():
    x = tokens(2, 7, 12)

    def attend(returned):
        return attnbook.multi_head_attention(x, x, x, HEADS, impl=lambda *given: returned)

    message = r"^impl must return the values that each query mixes, shape \(2, 6, 7, 2\), "
    with pytest.raises(ValueError, match=message + r"got \(2, 6, 7, 7\) from <lambda>$"):
        attend(np.ones((2, 6, 7, 7)))
    for wrong, kind in ((None, "an array of NumPy"), (torch.ones(2, 6, 7, 2), "an array of the")):
        with pytest.raises(TypeError, match=f"^the output of <lambda> must be {kind}"):
            attend(wrong)
    for dtype in (complex, object):
        message = "^the output of <lambda> must have a real floating dtype, got "
        with pytest.raises(TypeError, match=message + np.dtype(dtype).name):
            attend(np.ones((2, 6, 7, 2), dtype))
    assert attend(np.ones((2, 6, 7, 2), np.float32)).dtype == np.float64


@pytest.mark.parametrize("function", [len, int, lambda query, key, value: value])
def test_a_function_must_take_all_seven_arguments(function):
    message = (
        r"^impl must take \(query, key, value, mask, bias, scale, is_causal\) by position, got "
    )
    with pytest.raises(TypeError, match=message + function.__name__):
        attnbook.attention(*[np.ones((3, 2))] * 3, impl=function)


def test_what_a_function_raises_itself_stays_as_it_is():
    def attend(query, key, value, mask, bias, scale, is_causal):
        return len(scale)

    with pytest.raises(TypeError, match=r"^object of type 'float' has no len"):
        attnbook.attention(*[np.ones((3, 2))] * 3, impl=attend)


def test_a_function_has_no_backward_pass():
    given = [np.ones((3, 2))] * 4
    message = "^impl must be a str to have a backward pass, got of_my_own$"
    with pytest.raises(TypeError, match=message):
        attnbook.attention_vjp(*given, impl=of_my_own)


@pytest.mark.parametrize("name", CALLS)
def test_unknown_names_are_refused(name):
    function, arrays, weights, masks, options = CALLS[name]
    message = r"^impl must be one of reference, naive, .*, got 'fastest'$"
    with pytest.raises(ValueError, match=message):
        function(*arrays, weights, *masks, **options, impl="fastest")


def test_autocast_gives_what_it_gives_of_the_reference():
    weights = HEADS.to("torch", dtype="float32")
    x = torch.tensor(tokens(7, 12), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = attnbook.multi_head_attention(x, x, x, weights)
        got = attnbook.multi_head_attention(x, x, x, weights, **tiled)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, atol=0.05, rtol=0.05)


# Decoding.


@pytest.mark.parametrize("cache", every_day([True], [True, False]))
@pytest.mark.parametrize("encoder", [True, False])
def test_decoding_takes_an_impl(library, cache, encoder):
    alone = {"n_layers": 2, "n_encoder_layers": 0, "positions": "rotary"}
    weights = model() if encoder else attnbook.TransformerWeights.init(0, 13, **GROUPED, **alone)
    weights = library.place(weights)
    source = library.array(IDS) if encoder else None
    prompt = library.array(IDS[:, :3])
    more = {"prompt": prompt, "max_length": 4, "cache": cache}
    ways = [greedy_decode, lambda *a, **o: beam_search(*a, n_beams=3, **o)]
    ways.append(lambda *a, **o: sample(*a, rng=0, **o))
    for way in ways:
        wanted, got = (way(weights, source, **more, impl=i) for i in ("reference", "tiled"))
        np.testing.assert_array_equal(library.numpy(got.tokens), library.numpy(wanted.tokens))
        np.testing.assert_allclose(
            library.numpy(got.scores), library.numpy(wanted.scores), atol=1e-10
        )
    for way in (greedy_decode, stream):
        with pytest.raises(ValueError, match=r"^impl must be one of .*, got 'fastest'$"):
            way(weights, source, **more, impl="fastest")


# Modules.

MODULES = {
    "one head": (nn.Attention, SINGLE),
    "heads": (nn.MultiHeadAttention, HEADS),
    "encoder layer": (nn.EncoderLayer, ENCODER.layers[0]),
    "encoder": (nn.Encoder, ENCODER),
    "decoder layer": (nn.DecoderLayer, DECODER.layers[0]),
    "decoder": (nn.Decoder, DECODER),
    "transformer": (nn.Transformer, model()),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_keep_their_impl_outside_of_the_state(name):
    kind, weights = MODULES[name]
    plain, made = kind(weights), kind(weights, **tiled)
    assert plain.impl == "reference"
    assert "impl=" not in repr(plain)
    assert "impl='tiled'" in repr(made)
    attending = [x for x in made.modules() if hasattr(x, "impl")]
    assert attending
    assert {x.impl for x in attending} == {"tiled"}
    assert list(plain.state_dict()) == list(made.state_dict())
    plain.load_state_dict(made.state_dict())
    assert plain.impl == "reference"
    kept = io.BytesIO()
    torch.save(made, kept)
    kept.seek(0)
    copies = (copy.deepcopy(made), pickle.loads(pickle.dumps(made)))
    for twin in (*copies, torch.load(kept, weights_only=False), made.double().train()):
        assert twin.impl == "tiled"
    with pytest.raises(ValueError, match=r"^impl must be one of .*, got 'fastest'$"):
        kind(weights, impl="fastest")
    with pytest.raises(TypeError, match=r"^impl must be a str or a function, got NoneType$"):
        kind(weights, impl=None)


@pytest.mark.parametrize("name", ["one head", "heads", "encoder layer", "encoder"])
def test_modules_pass_their_impl_on(name):
    kind, weights = MODULES[name]
    x = torch.tensor(tokens(2, 7, 12))
    made = kind(weights, **tiled)
    torch.testing.assert_close(made(x), kind(weights)(x))
    if name in ("one head", "heads"):
        wanted = kind(weights)(x, mask=torch.tensor(CAUSAL))
        torch.testing.assert_close(made(x, is_causal=True), wanted)
    made.impl = "reference"  # that of the module that is called: its parts do not decide
    torch.testing.assert_close(made(x), kind(weights)(x), rtol=0, atol=0)


def test_copies_of_torch_modules_begin_with_the_reference():
    theirs = torch.nn.TransformerEncoderLayer(12, 3, 5, batch_first=True)
    assert nn.EncoderLayer.from_torch(theirs).impl == "reference"
    state = nn.EncoderLayer(ENCODER.layers[0], **tiled).state_dict()
    assert not any("impl" in name for name in state)


def gradients(impl, dtype=torch.float64, drop=0.3):
    module = nn.Transformer(model(), dropout=drop, impl=impl).to(dtype)
    torch.manual_seed(2)  # the same numbers are dropped
    source_mask = torch.tensor([4, 3])[:, None, None, None] > torch.arange(4)
    logits = module(torch.tensor(IDS), torch.tensor(IDS), source_mask=source_mask)
    logits.square().mean().backward()
    return {name: x.grad for name, x in module.named_parameters()}


@pytest.mark.parametrize("impl", ["naive", "tiled"])
def test_training_has_the_gradients_of_the_reference(impl):
    wanted, got = gradients("reference"), gradients(impl)
    assert got.keys() == wanted.keys()
    for name, grad in got.items():
        torch.testing.assert_close(grad, wanted[name], msg=name)


def test_training_with_compiled_kernels():
    pytest.importorskip("numba", reason="numba is not installed")
    wanted, got = (gradients(i, torch.float32) for i in ("reference", "packed"))
    for name, grad in got.items():
        torch.testing.assert_close(grad, wanted[name], atol=1e-5, rtol=1e-3, msg=name)
