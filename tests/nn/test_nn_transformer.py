"""The modules of the transformer: the functions with parameters, and PyTorch's own modules."""

import copy
import functools
import io
import pickle
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import WEEKLY, every_day, examples, recorded, shaken
from error_table import error_test
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook as ab
from attnbook import kernels, masking, nn
from attnbook.nn.module import WeightsModule

# PyTorch says so each time that its fast path cannot be taken
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")

SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 5}


def features(*shape, seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def ids(*shape, seed=1, n=11):
    return torch.randint(n, shape, generator=torch.Generator().manual_seed(seed))


def model_weights(n_encoder_layers=None, **options):
    options = {"n_layers": 2, **SIZES} | options
    vocabulary = options.pop("source_vocabulary", None)
    made = ab.TransformerWeights.init(
        0, 11, vocabulary, n_encoder_layers=n_encoder_layers, **options
    )
    return shaken(made)


X, MEMORY = features(3, 5, 8), features(3, 7, 8, seed=2)
SOURCE, TARGET = ids(3, 7), ids(3, 5, seed=2)
PADDING = masking.padding(torch.tensor([[7], [2], [4]]), 7)  # (3, 1, 1, 7)
CAUSAL = masking.causal(5, like=X)
SEEN = torch.tensor([[True] * 7, [False] * 7, [True, False] * 3 + [True], *[[True] * 7] * 2])
LAYER = {"rotate": True}
MODEL = {"source_mask": PADDING, "target_mask": CAUSAL, "is_causal": False}

# of each module: its weights, what it is called with, the function it must equal, and where that
# takes its weights
CASES = {
    "LayerNorm": (ab.LayerNormWeights.init(8), (X,), {}, "layer_norm", None),
    "RMSNorm": (ab.RMSNormWeights.init(8), (X,), {}, "rms_norm", None),
    "FeedForward": (
        ab.FeedForwardWeights.init(0, 8, 5, activation="gelu"), (X,), {}, "feed_forward", 1
    ),
    "GatedFeedForward": (ab.GatedFeedForwardWeights.init(0, 8, 5), (X,), {}, "feed_forward", 1),
    "Attention": (
        ab.SingleHeadWeights.init(0, 8, d_k=3, d_v=5, d_out=7),
        (X, MEMORY, MEMORY, SEEN), {"is_causal": True}, "single_head_attention", 3
    ),
    "MultiHeadAttention": (
        ab.MultiHeadWeights.init(0, 8, 2, n_kv_heads=1, bias=True),
        (X, MEMORY, MEMORY, SEEN), {"is_causal": True}, "multi_head_attention", 3
    ),
    "EncoderLayer": (
        ab.EncoderLayerWeights.init(0, **SIZES), (X, CAUSAL), LAYER, "encoder_layer", 1
    ),
    "DecoderLayer": (
        ab.DecoderLayerWeights.init(0, **SIZES, norm="post"),
        (X, MEMORY, CAUSAL, PADDING), LAYER, "decoder_layer", 2
    ),
    "Encoder": (ab.EncoderWeights.init(0, 2, **SIZES), (X, CAUSAL), LAYER, "encoder", 1),
    "Decoder": (
        ab.DecoderWeights.init(0, 2, **SIZES), (X, MEMORY, CAUSAL, PADDING), LAYER, "decoder", 2
    ),
    "Transformer": (
        model_weights(n_encoder_layers=1, tied=False, source_vocabulary=13),
        (SOURCE, TARGET), MODEL, "transformer", 2
    ),
}  # fmt: skip
cases = pytest.mark.parametrize("name", CASES)
ATTENDING = [name for name in CASES if not name.endswith(("Norm", "FeedForward"))]
DROPPING = [name for name in ATTENDING if not name.endswith("Attention")]


def flat(result):
    """Return all arrays of a result, however they are nested."""
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [x for part in parts if part is not None for x in flat(part)]


def same(a, b, **tolerance):
    a, b = flat(a), flat(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, **tolerance)


def case(name):
    weights, arguments, options, function, place = CASES[name]

    def call(w, *arguments, **options):
        if place is None:
            return getattr(ab, function)(*arguments, *w.arrays().values(), epsilon=w.epsilon)
        arguments = (*arguments[:place], w, *arguments[place:])
        return getattr(ab, function)(*arguments, **options)

    return getattr(nn, name), shaken(weights), arguments, options, call


# A module holds parameters and calls its function.


@cases
def test_agrees_with_the_function(name):
    cls, weights, arguments, options, function = case(name)
    module = cls(weights)
    leaves = {n: x.requires_grad_() for n, x in weights.to("torch").arrays().items()}
    expected = function(weights.to("torch").with_arrays(leaves), *arguments, **options)
    result = module(*arguments, **options)
    same(result, expected, rtol=0, atol=0)
    same(module.eval()(*arguments, **options), expected, rtol=0, atol=0)
    flat(result)[0].square().sum().backward()
    flat(expected)[0].square().sum().backward()
    for n, p in module.named_parameters():
        torch.testing.assert_close(p.grad, leaves[n].grad)
    assert bool(next(module.parameters()).grad.any())
    if name in ATTENDING:
        module.impl = kernels.Recorder()
        same(module(*arguments, **options), result, rtol=0, atol=0)
        _, A = recorded(function, weights.to("torch"), *arguments, **options)
        same(module.impl.weights, A, rtol=0, atol=0)


@cases
def test_weights_are_held_and_given_back_under_their_names(name):
    cls, weights, *_ = case(name)
    module = cls(weights)
    back = module.weights
    assert type(back) is type(weights)
    assert list(back.arrays()) == list(weights.arrays())
    parameters = dict(module.named_parameters())
    assert all(x is parameters[n] for n, x in back.arrays().items())
    assert all(p.is_leaf and p.requires_grad and p.is_contiguous() for p in module.parameters())
    assert set(module.state_dict()) == set(parameters) == set(weights.arrays())
    again = cls(back.to("numpy"))  # through every check
    assert repr(again) == repr(module)

    def plain(w):
        return {
            n: plain(x)
            if hasattr(x, "arrays")
            else [plain(y) for y in x]
            if type(x) is tuple
            else x
            for n, x in vars(w).items()
            if not hasattr(x, "shape")
        }

    assert plain(back) == plain(weights)


@cases
def test_arrays_are_copied(name):
    cls, weights, *_ = case(name)
    for start in (weights, weights.to("torch")):
        before = {n: np.asarray(x).copy() for n, x in start.arrays().items()}
        with torch.no_grad():
            for p in cls(start).parameters():
                p.zero_()
        for n, x in start.arrays().items():
            np.testing.assert_array_equal(np.asarray(x), before[n])


@cases
def test_saved_loaded_copied_and_pickled(name):
    cls, weights, arguments, options, _ = case(name)
    module = cls(weights)
    expected = module(*arguments, **options)
    other = cls(shaken(weights, seed=8))
    assert not torch.equal(flat(other(*arguments, **options))[0], flat(expected)[0])
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        same(twin(*arguments, **options), expected, rtol=0, atol=0)
        with torch.no_grad():
            next(twin.parameters()).zero_()
    same(module(*arguments, **options), expected, rtol=0, atol=0)


@cases
def test_dtypes_and_devices(name):
    cls, weights, arguments, options, _ = case(name)
    small = cls(weights.to(dtype="float32"))
    assert {p.dtype for p in small.parameters()} == {torch.float32}
    module = cls(weights).to(torch.float32)
    floats = [x.float() if x.is_floating_point() else x for x in arguments]
    result = flat(module(*floats, **options))
    assert {x.dtype for x in result} == {torch.float32}
    same(small(*floats, **options), result, rtol=0, atol=0)
    exact = flat(cls(weights)(*arguments, **options))
    same([x.double() for x in result], exact, rtol=1e-4, atol=1e-4)
    for meta in (cls(weights.to("torch", device="meta", dtype="float32")), module.to("meta")):
        assert {p.device.type for p in meta.parameters()} == {"meta"}
        placed = {n: x.to("meta") if hasattr(x, "shape") else x for n, x in options.items()}
        shapes = [x.shape for x in flat(meta(*(x.to("meta") for x in floats), **placed))]
        assert shapes == [x.shape for x in result]


@cases
def test_anything_but_its_weights_is_refused(name):
    cls, weights, *_ = case(name)
    for wrong in (None, weights.arrays(), ab.TransformerBlockWeights.init(0, 4, 4, 2, 4)):
        message = f"weights must be {type(weights).__name__}, got {type(wrong).__name__}"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            cls(wrong)


def test_a_change_of_a_parameter_is_seen_at_once():
    model = nn.Transformer(model_weights())
    before = model(SOURCE, TARGET)
    with torch.no_grad():
        model.decoder.layers[1].cross_attention.W_V.mul_(2)
    assert not torch.allclose(model(SOURCE, TARGET), before)
    model.decoder.layers[1].cross_attention.W_V = torch.nn.Parameter(
        model.decoder.layers[1].cross_attention.W_V.detach() / 2
    )
    torch.testing.assert_close(model(SOURCE, TARGET), before)


def test_what_is_shared_is_held_once():
    model = nn.Transformer(model_weights())
    own = [n for n, _ in model.named_parameters(recurse=False)]
    assert own == ["target_embedding"]
    model(SOURCE, TARGET).square().sum().backward()
    whole = model.target_embedding.grad.clone()
    apart = model_weights()
    apart = replace(
        apart, source_embedding=apart.target_embedding, output=apart.target_embedding.T.copy()
    )
    parts = nn.Transformer(apart)
    parts(SOURCE, TARGET).square().sum().backward()
    pieces = (parts.target_embedding.grad, parts.source_embedding.grad, parts.output.grad.T)
    torch.testing.assert_close(whole, sum(pieces))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_array_in_two_fields_becomes_two_parameters_in_a_module_and_two_arrays_in_a_file(
    tmp_path, library
):
    weights = model_weights(source_vocabulary=11).to(library)
    stack, one = weights.decoder, weights.decoder.layers[0]
    weights = replace(
        weights,
        source_embedding=weights.target_embedding,
        decoder=replace(stack, layers=(one, one)),
    )
    pairs = [
        ("source_embedding", "target_embedding"),
        ("decoder.layers.0.self_attention.W_Q", "decoder.layers.1.self_attention.W_Q"),
    ]
    ab.training.save_weights(tmp_path / "weights", weights)
    loaded = ab.training.load_weights(tmp_path / "weights", "torch").arrays()
    model = nn.Transformer(weights)
    for first, second in pairs:
        assert weights.arrays()[first] is weights.arrays()[second]
        for held in (dict(model.named_parameters()), dict(model.weights.arrays()), loaded):
            torch.testing.assert_close(held[first], held[second])
            held[first].data[0] += 1
            assert not torch.equal(held[first], held[second])
            held[first].data[0] -= 1
    assert len(list(model.parameters())) == len(weights.arrays())
    model(SOURCE, TARGET).square().sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    trained = dict(model.named_parameters())
    assert not any(torch.equal(trained[first], trained[second]) for first, second in pairs)


def test_repr_tells_the_structure():
    weights = ab.EncoderWeights.init(0, 1, 4, 2, 3, norm="post", bias=False)
    text = repr(nn.Encoder(weights, dropout=0.25))
    assert text.splitlines()[0] == "Encoder("
    for part in (
        "(0): EncoderLayer(\n      norm=post, dropout=0.25\n",
        "(self_attention): MultiHeadAttention(n_heads=2, n_kv_heads=2, W_Q=(4, 4)",
        "(feed_forward): FeedForward(activation=relu, W_1=(4, 3), W_2=(3, 4))",
        "(self_attention_norm): LayerNorm(epsilon=1e-05, gain=(4,))",
    ):
        assert part in text
    one = ab.SingleHeadWeights.init(0, 5, 3, 7, d_k=2, d_v=4)
    assert repr(nn.Attention(one)) == "Attention(W_Q=(5, 2), W_K=(3, 2), W_V=(7, 4))"
    assert repr(nn.Attention(one, impl="tiled")).endswith(", impl='tiled')")


def test_every_module_is_public_and_documented():
    held = {cls.__name__ for cls in WeightsModule._classes.values()}
    assert held == set(nn.__all__)
    assert nn.__all__ == sorted(nn.__all__)
    assert all(getattr(nn, name).__doc__ for name in nn.__all__)


# Dropout.


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_in_train_mode_alone(name):
    cls, weights, arguments, options, function = case(name)
    module = cls(weights, dropout=0.4)
    calm = cls(weights)(*arguments, **options)
    same(module.eval()(*arguments, **options), calm, rtol=0, atol=0)
    module.train()
    torch.manual_seed(3)
    dropped = module(*arguments, **options)
    drop = functools.partial(torch.nn.functional.dropout, p=0.4)
    torch.manual_seed(3)
    same(dropped, function(weights.to("torch"), *arguments, drop=drop, **options), rtol=0, atol=0)
    assert not torch.allclose(flat(dropped)[0], flat(calm)[0])


def test_the_rate_is_that_of_all_parts_and_the_mode_that_of_the_called():
    model = nn.Transformer(model_weights(), dropout=0.5)
    rates = [m.dropout for m in model.modules() if hasattr(m, "dropout")]
    assert rates == [0.5] * 7
    calm = model.eval()(SOURCE, TARGET)
    model.encoder.train()
    torch.testing.assert_close(model(SOURCE, TARGET), calm, rtol=0, atol=0)
    assert not torch.allclose(model.encoder(X), model.encoder.eval()(X))


# PyTorch's tools.


COMPILED = {
    "sinusoidal": {},
    "rotary": {"n_encoder_layers": 0, "positions": "rotary", "n_kv_heads": 1},
}


# Dynamo sees through a cache in array-api-compat and says so
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.parametrize("kind", every_day(["rotary"], COMPILED))
def test_compiles_into_one_graph(kind):
    # "eager" traces as the default does, and leaves out what takes long
    weights = model_weights(**{"n_layers": 1} | COMPILED[kind])
    model, twin = nn.Transformer(weights), nn.Transformer(weights)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    source, mask = (None, None) if model.encoder is None else (SOURCE, PADDING)
    lengths = (5, 4) if WEEKLY and mask is None else (5,)
    for n_t in lengths:  # at the second, any length is compiled for
        logits = compiled(source, TARGET[:, :n_t], source_mask=mask)
        expected = twin(source, TARGET[:, :n_t], source_mask=mask)
        torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_functional_call_gradients_and_vmap_over_models():
    models = [nn.Transformer(shaken(model_weights(n_layers=1), seed)) for seed in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)

    def loss(parameters):
        call = torch.func.functional_call(models[0], (parameters, buffers), (SOURCE, TARGET))
        return call.square().mean()

    gradients, losses = torch.func.vmap(torch.func.grad_and_value(loss))(parameters)
    for i, model in enumerate(models):
        value = model(SOURCE, TARGET).square().mean()
        torch.testing.assert_close(losses[i], value)
        value.backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(gradients[name][i], p.grad)


def test_autocast():
    model = nn.Transformer(model_weights(norm="post", activation="gelu").to(dtype="float32"))
    exact = model(SOURCE, TARGET, source_mask=PADDING)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(SOURCE, TARGET, source_mask=PADDING)
        loss = logits.float().square().mean()
    loss.backward()
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), exact, rtol=0.1, atol=0.3)
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


# PyTorch's own modules.


def randomized(module, seed=2):
    """Put random numbers everywhere, gains and biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(noise / 8**0.5 + (p.ndim == 1))
    return module


def torch_parts(depths=(1, 2), d_model=8, h=2, d_ff=5, dtype=torch.float64, **options):
    """Return PyTorch's encoder layer, decoder layer, encoder, decoder and transformer."""
    options = {"dropout": 0.0, "batch_first": True, "dtype": dtype} | options
    encoder_layer = torch.nn.TransformerEncoderLayer(d_model, h, d_ff, **options)
    decoder_layer = torch.nn.TransformerDecoderLayer(d_model, h, d_ff, **options)
    norm = torch.nn.LayerNorm(d_model, eps=0.01, dtype=dtype)
    parts = {
        "EncoderLayer": encoder_layer,
        "DecoderLayer": decoder_layer,
        "Encoder": torch.nn.TransformerEncoder(
            encoder_layer, depths[0], enable_nested_tensor=False
        ),
        "Decoder": torch.nn.TransformerDecoder(decoder_layer, depths[1], norm),
        "LayerNorm": norm,
        "MultiHeadAttention": encoder_layer.self_attn,
        "Transformer": torch.nn.Transformer(d_model, h, *depths, d_ff, **options),
    }
    return {name: randomized(copy.deepcopy(part)) for name, part in parts.items()}


def parameters_as_theirs(ours, gradients=False):
    """Return the parameters, or their gradients, under PyTorch's names."""
    arrays = {n: p.grad if gradients else p for n, p in ours.named_parameters()}
    return type(ours)(ours.weights.with_arrays(arrays)).torch_state_dict()


INPUTS = {
    "LayerNorm": (X,),
    "MultiHeadAttention": (X, MEMORY, MEMORY),
    "EncoderLayer": (X,),
    "DecoderLayer": (X, MEMORY),
    "Encoder": (X,),
    "Decoder": (X, MEMORY),
    "Transformer": (MEMORY, X),
}
FREE = {"Transformer": {"is_causal": False}}
OPTIONS = {
    "post, relu": {},
    "pre, gelu": {"norm_first": True, "activation": "gelu"},
    "no bias": {"bias": False, "layer_norm_eps": 0.1},
    "modules": {"activation": torch.nn.GELU(), "norm_first": True, "bias": False},
}


@pytest.mark.parametrize("part", INPUTS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_from_torch_and_back_and_by_a_state_dict(part, kind):
    theirs, cls = torch_parts(**OPTIONS[kind])[part], getattr(nn, part)
    ours, x, free = cls.from_torch(theirs), INPUTS[part], FREE.get(part, {})
    assert type(ours) is cls
    expected = flat(theirs(*x))[0]
    torch.testing.assert_close(ours(*x, **free), expected)
    back = ours.to_torch()
    assert type(back) is type(theirs)
    torch.testing.assert_close(flat(back(*x))[0], expected, rtol=0, atol=0)
    state, given_back = theirs.state_dict(), ours.torch_state_dict()
    kept = {name: value.clone() for name, value in state.items()}
    assert set(back.state_dict()) == set(state) == set(given_back)
    for name, value in state.items():
        assert torch.equal(back.state_dict()[name], value)
        assert torch.equal(given_back[name], value)
        assert given_back[name].is_contiguous()
        given_back[name].zero_()  # a copy, which the module does not feel
    torch.testing.assert_close(ours(*x, **free), expected)
    other = cls.from_torch(randomized(copy.deepcopy(theirs), seed=5))
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    torch.testing.assert_close(other(*x, **free), expected)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert list(state) == list(kept)  # what was given is left alone
    assert all(torch.equal(state[name], value) for name, value in kept.items())


def test_their_stacks_fill_a_model_with_embeddings():
    theirs = torch_parts(depths=(2, 2), norm_first=True)["Transformer"]
    ours = nn.Transformer(model_weights(norm="pre"))
    result = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert result.missing_keys == ["target_embedding"]
    assert result.unexpected_keys == []
    table = ours.target_embedding

    def embedded(tokens):
        x = ab.embed(tokens, table)
        return x + ab.positions.sinusoidal(x.shape[-2], 8, like=x)

    expected = theirs(embedded(SOURCE), embedded(TARGET), tgt_mask=~CAUSAL) @ table.mT
    torch.testing.assert_close(ours(SOURCE, TARGET), expected)


@st.composite
def configurations(draw):
    """Draw the options of a `torch.nn.Transformer`, and sizes and masks of a call."""
    h = draw(st.integers(1, 3))
    return {
        "sizes": {
            "depths": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
            "d_model": h * draw(st.integers(2, 4)),
            "h": h,
            "d_ff": draw(st.integers(1, 9)),
        },
        "options": {
            "norm_first": draw(st.booleans()),
            "activation": draw(st.sampled_from(["relu", "gelu"])),
            "bias": draw(st.booleans()),
            "layer_norm_eps": draw(st.sampled_from([1e-5, 1e-2])),
            "batch_first": draw(st.booleans()),
            "dtype": draw(st.sampled_from([torch.float64, torch.float64, torch.float32])),
        },
        "masks": draw(st.sampled_from(["none", "causal", "padding", "heads"])),
        "train": draw(st.booleans()),
        "shape": (draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        "seed": draw(st.integers(0, 999)),
    }


def masks_for_both(kind, shape, h, seed):
    """Return masks as our function takes them, and as `torch.nn.Transformer` does."""
    b, n_s, n_t = shape
    rng = np.random.default_rng(seed)
    if kind == "none":
        return {"is_causal": False}, {}
    if kind == "causal":
        return {}, {"tgt_mask": ~masking.causal(n_t, like=X)}
    lengths = torch.from_numpy(rng.integers(1, n_s + 1, size=(b, 1)))
    padding = masking.padding(lengths, n_s)
    hidden = ~padding[:, 0, 0]
    if kind == "padding":
        theirs = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
        return {"source_mask": padding}, theirs | {"tgt_mask": ~masking.causal(n_t, like=X)}
    free = {}
    for name, n_q, n_k in (("source", n_s, n_s), ("target", n_t, n_t), ("memory", n_t, n_s)):
        free[name] = torch.from_numpy(rng.random((b, h, n_q, n_k)) < 0.6)
        free[name][..., 0] = True  # a row that sees nothing is NaN in PyTorch
    ours = {f"{name}_mask": x for name, x in free.items()} | {"is_causal": False}
    names = {"source": "src_mask", "target": "tgt_mask", "memory": "memory_mask"}
    return ours, {names[name]: ~x.flatten(0, 1) for name, x in free.items()}


@settings(max_examples=examples(30))
@given(configurations())
def test_equals_torch_transformer(made):
    theirs = torch_parts(**made["sizes"], **made["options"])["Transformer"].train(made["train"])
    ours = nn.Transformer.from_torch(theirs)
    assert ours.training == made["train"]
    (b, n_s, n_t), dtype = made["shape"], made["options"]["dtype"]
    d_model, first = made["sizes"]["d_model"], made["options"]["batch_first"]
    mine, yours = masks_for_both(made["masks"], made["shape"], made["sizes"]["h"], made["seed"])
    inputs = [features(b, n, d_model, seed=made["seed"] + n, dtype=dtype) for n in (n_s, n_t)]
    held = [x.clone().requires_grad_() for x in inputs]
    theirs_held = [x.clone().requires_grad_() for x in inputs]
    output = ours(*held, **mine)
    turned = [x if first else x.transpose(0, 1) for x in theirs_held]
    expected = theirs(*turned, **yours)
    expected = expected if first else expected.transpose(0, 1)
    wide = {torch.float64: 1e-9, torch.float32: 2e-3}[dtype]
    close = {"rtol": wide, "atol": wide}
    torch.testing.assert_close(output, expected, **close)
    by = features(*output.shape, seed=9, dtype=dtype)
    (output * by).sum().backward()
    (expected * by).sum().backward()
    for x, y in zip(held, theirs_held, strict=True):
        torch.testing.assert_close(x.grad, y.grad, **close)
    gradients = parameters_as_theirs(ours, gradients=True)
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, **close)


@pytest.mark.parametrize(("norm_first", "activation"), [(False, "relu"), (True, "gelu")])
@pytest.mark.parametrize("part", ["EncoderLayer", "Encoder"])
def test_equals_the_fast_path_of_torch(part, norm_first, activation, monkeypatch):
    theirs = torch_parts(norm_first=norm_first, activation=activation)[part].eval()
    ours = getattr(nn, part).from_torch(theirs)
    fast, calls = torch._transformer_encoder_layer_fwd, []
    monkeypatch.setattr(
        *(torch, "_transformer_encoder_layer_fwd"), lambda *a: calls.append(1) or fast(*a)
    )
    with torch.no_grad():
        hidden = ~PADDING[:, 0, 0]
        torch.testing.assert_close(ours(MEMORY), theirs(MEMORY))
        expected = theirs(MEMORY, src_key_padding_mask=hidden)
        torch.testing.assert_close(ours(MEMORY, PADDING)[~hidden], expected[~hidden])
        assert len(calls) == 2
        again = ours.to_torch()
        assert not again.training
        torch.testing.assert_close(again(MEMORY), theirs(MEMORY))


def test_nested_tensors_of_torch_agree_on_what_is_no_padding():
    layer = torch_parts()["EncoderLayer"]
    norm = randomized(torch.nn.LayerNorm(8, dtype=torch.float64))
    theirs = torch.nn.TransformerEncoder(layer, 2, norm).eval()
    ours, hidden = nn.Encoder.from_torch(theirs), ~PADDING[:, 0, 0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of nested tensors, once in a process
        expected = theirs(MEMORY, src_key_padding_mask=hidden)
    torch.testing.assert_close(ours(MEMORY, PADDING)[~hidden], expected[~hidden])
    assert torch.equal(expected[hidden], norm.bias.expand(int(hidden.sum()), 8))


def test_dropout_rate_and_mode_go_along():
    theirs = torch_parts(dropout=0.3)["Transformer"]
    ours = nn.Transformer.from_torch(theirs.eval())
    assert ours.dropout == ours.decoder.layers[0].dropout == 0.3
    torch.testing.assert_close(ours(MEMORY, X, is_causal=False), theirs(MEMORY, X))
    assert not any(m.training for m in ours.modules())
    back = ours.to_torch()
    assert not any(m.training for m in back.modules())
    assert {m.p for m in back.modules() if isinstance(m, torch.nn.Dropout)} == {0.3}
    assert back.decoder.layers[1].multihead_attn.dropout == 0.3
    assert nn.Encoder.from_torch(theirs.encoder.train()).training
    bare = torch.nn.TransformerEncoder(theirs.encoder.layers[0], num_layers=0)
    assert nn.Encoder.from_torch(bare).dropout == 0
    theirs.encoder.layers[0].dropout1.p = 0.1
    with pytest.raises(ValueError, match=re.escape("module must drop at one rate, got [0.1, 0.3]")):
        nn.Transformer.from_torch(theirs)


def test_every_normalisation_keeps_its_epsilon():
    theirs = torch_parts()["DecoderLayer"]
    for i, norm in enumerate((theirs.norm1, theirs.norm2, theirs.norm3)):
        norm.eps = 0.1 * (i + 1)
    ours = nn.DecoderLayer.from_torch(theirs)
    assert ours.cross_attention_norm.epsilon == 0.2
    torch.testing.assert_close(ours(X, MEMORY), theirs(X, MEMORY))
    back = ours.to_torch()
    assert [back.norm1.eps, back.norm2.eps, back.norm3.eps] == [0.1, 0.2, 0.1 * 3]


def test_a_model_of_ours_in_torch():
    weights = replace(model_weights(1, positions="none"), target_embedding=None)
    ours = nn.Transformer(weights.to(dtype="float32"))
    theirs = ours.to_torch()
    assert {p.dtype for p in theirs.parameters()} == {torch.float32}
    assert (theirs.d_model, theirs.nhead, theirs.batch_first) == (8, 2, True)
    source, target = MEMORY.float(), X.float()
    expected = ours(source, target)
    torch.testing.assert_close(
        theirs(source, target, tgt_mask=~CAUSAL), expected, rtol=1e-4, atol=1e-5
    )
    theirs = nn.Transformer(weights.to("torch", device="meta")).to_torch()
    assert {p.device.type for p in theirs.parameters()} == {"meta"}


def without(part, **changes):
    theirs = torch_parts()[part]
    for name, value in changes.items():
        setattr(theirs, name, value)
    return theirs


REFUSED = """
nn.Decoder.from_torch(torch.nn.Linear(2, 2))
    TypeError: module must be a torch.nn.TransformerDecoder, got Linear
nn.EncoderLayer.from_torch(without("EncoderLayer", activation="elu"))
    ValueError: activation must be ReLU, GELU or SiLU, got 'elu'
nn.DecoderLayer.from_torch(without("DecoderLayer", activation=torch.nn.Tanh()))
    ValueError: activation must be ReLU, GELU or SiLU, got Tanh()
nn.Transformer.from_torch(without("Transformer", encoder=torch.nn.Identity()))
    TypeError: module must be a torch.nn.TransformerEncoder, got Identity
nn.Encoder.from_torch(without("Encoder", norm=torch.nn.BatchNorm1d(8)))
    TypeError: module must be a torch.nn.LayerNorm, got BatchNorm1d
nn.LayerNorm.from_torch(torch.nn.LayerNorm((3, 8)))
    ValueError: module must normalise the last axis alone, got shape (3, 8)
# to PyTorch's own modules
nn.Transformer(model_weights(tied=False)).to_torch()
    ValueError: target_embedding, output, b_out must be None to fit torch.nn.Transformer, which
    holds an encoder and a decoder of features; model.encoder and model.decoder fit alone
nn.Transformer(bare(positions="rotary")).to_torch()
    ValueError: positions must not be "rotary" to fit torch.nn.Transformer, which holds an encoder
    and a decoder of features; model.encoder and model.decoder fit alone
nn.Transformer(model_weights(n_encoder_layers=0)).to_torch()
    ValueError: encoder must be there to fit torch.nn.Transformer, which holds an encoder and a
    decoder of features; model.encoder and model.decoder fit alone
nn.Decoder(ab.DecoderWeights.init(0, 0, **SIZES)).to_torch()
    ValueError: layers must be at least 1 to fit torch.nn.TransformerDecoder, got 0
encoder_layer(feed_forward=ab.FeedForwardWeights.init(0, 8, 5, bias=False)).to_torch()
    ValueError: norm1.bias must be as in a torch.nn.TransformerEncoderLayer, none, got shape (8,)
encoder_layer(feed_forward_norm=ab.LayerNormWeights()).to_torch()
    ValueError: norm2.bias must be as in a torch.nn.TransformerEncoderLayer, shape (8,), got none
nn.LayerNorm(ab.LayerNormWeights()).to_torch()
    ValueError: gain must be an array to fit torch.nn.LayerNorm, got None
nn.Decoder(ab.DecoderWeights.init(0, 1, **SIZES, cross=False)).to_torch()
    ValueError: multihead_attn.in_proj_bias must be as in a torch.nn.TransformerDecoderLayer,
    shape (24,), got none
nn.DecoderLayer(replace(ab.DecoderLayerWeights.init(0, **SIZES),
cross_attention=ab.MultiHeadWeights.init(0, 8, 4, bias=True))).to_torch()
    ValueError: every attention must have as many heads to fit
    torch.nn.TransformerDecoderLayer, got [2, 4]
# rates of dropout
nn.Transformer(model_weights(), dropout=1.0)
    ValueError: dropout must be below 1, got 1.0
nn.Transformer(model_weights(), dropout=-0.1)
    ValueError: dropout must be finite and at least 0, got -0.1
"""


def bare(**options):
    return replace(model_weights(**options), target_embedding=None)


def encoder_layer(**parts):
    return nn.EncoderLayer(replace(ab.EncoderLayerWeights.init(0, **SIZES), **parts))


test_what_is_refused = error_test(REFUSED, globals())


def test_the_rate_of_the_whole_goes_along():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
    encoder = nn.Encoder.from_torch(torch.nn.TransformerEncoder(layer, 2))
    encoder.dropout = 0.5
    parts = list(encoder.to_torch().modules())
    assert {part.p for part in parts if isinstance(part, torch.nn.Dropout)} == {0.5}
    attending = [part for part in parts if isinstance(part, torch.nn.MultiheadAttention)]
    assert {part.dropout for part in attending} == {0.5}


def test_a_state_with_both_names_is_refused():
    norm, x = nn.LayerNorm.from_torch(torch.nn.LayerNorm(4)), torch.ones(4)
    for names in (("weight", "gain", "bias"), ("gain", "weight", "bias")):
        with pytest.raises(RuntimeError, match="Unexpected key"):
            norm.load_state_dict(dict.fromkeys(names, x))
