"""Backpropagation by hand against PyTorch's autograd, as a whole and piece by piece."""

import math
from dataclasses import replace

import cupy_on_cpu
import numpy as np
import pytest
import torch
from cases import LAYER_MASKS, examples, layer_mask, leaves_of, need, shaken
from error_table import assert_raises, error_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import (
    LayerNormWeights,
    MultiHeadWeights,
    RMSNormWeights,
    TransformerWeights,
    transformer,
)
from attnbook.positions import Alibi, Llama3Scaling, RelativeBias, Rotary
from attnbook.training import AdamW, clip_gradients, gradients
from attnbook.training import backpropagation as back

VOCABULARY = 11


# The whole model


@st.composite
def models(draw):
    """Draw a decoder of any structure that the package can build, with random numbers in it."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    h = draw(st.sampled_from((1, 2, 4)))
    n_layers = draw(st.sampled_from((0, 1, 2)))
    pieces = {
        **{name: name for name in ("sinusoidal", "interleaved", "learned", "rotary", "none")},
        "halves": Rotary(base=100.0),
        "pairs": Rotary(interleaved=True, width=2),
        "scaled": Rotary(scaling=Llama3Scaling(factor=4.0, low=1.0, high=4.0, n_positions=16)),
        "alibi": Alibi(),
        "relative": RelativeBias(rng.standard_normal((8, h)), bidirectional=True, max_distance=9),
        "before": RelativeBias(rng.standard_normal((4, h)), bidirectional=False, max_distance=5),
    }
    positions = draw(st.sampled_from(sorted(pieces)))
    options = {
        "norm": draw(st.sampled_from(("pre", "post"))),
        "activation": draw(st.sampled_from(("relu", "gelu", "gelu_tanh", "silu"))),
        "bias": draw(st.booleans()),
        "tied": draw(st.booleans()),
        "positions": pieces[positions],
        "n_positions": 9 if positions == "learned" else None,
        "n_kv_heads": draw(st.sampled_from([n for n in (1, 2, 4) if h % n == 0])),
        "normalization": draw(st.sampled_from(("layer", "rms"))),
        "gated": draw(st.booleans()),
        "final_norm": draw(st.sampled_from((None, True, False))),
        "scale_embeddings": draw(st.booleans()),
    }
    sizes = {"d_model": 4 * h, "n_heads": h, "d_ff": 7, "n_layers": n_layers}
    weights = TransformerWeights.init(seed, VOCABULARY, **sizes, n_encoder_layers=0, **options)
    if draw(st.booleans()):
        weights = replace(weights, b_out=np.zeros(VOCABULARY))  # also where the output is tied
    return shaken(draw(st.sampled_from(ODD))(weights), seed)


def with_heads_of_other_widths(weights):
    """Heads of other widths than d_model / h, and a scale of their own."""
    d_model = weights.d_model

    def layer(old):
        h, h_kv = old.self_attention.n_heads, old.self_attention.n_kv_heads
        heads = MultiHeadWeights.init(0, d_model, h, n_kv_heads=h_kv, d_k=6, d_v=3, bias=True)
        return replace(old, self_attention=replace(heads, scale=0.3))

    layers = tuple(layer(old) for old in weights.decoder.layers)
    return replace(weights, decoder=replace(weights.decoder, layers=layers))


def with_options_of_heads(weights):
    """Normalised queries and keys, sinks, a gate, a cap and a window."""
    d_model = weights.d_model

    def layer(old):
        h, d_k = old.self_attention.n_heads, old.self_attention.d_k
        heads = replace(
            old.self_attention,
            q_norm=RMSNormWeights(np.ones(d_k)),
            k_norm=LayerNormWeights(np.ones(d_k), np.ones(d_k), epsilon=0.1),
            sinks=np.ones(h),
            W_gate=np.ones((d_model, h * old.self_attention.d_v)),
            cap=0.5,
            window=3,
        )
        return replace(old, self_attention=heads)

    layers = tuple(layer(old) for old in weights.decoder.layers)
    return replace(weights, decoder=replace(weights.decoder, layers=layers))


def without_output_and_gains(weights):
    """No W_O, normalisations without gain, and another ε."""

    def layer(old):
        bare = replace(old.self_attention, W_O=None, b_O=None)
        norm = LayerNormWeights(None, None, epsilon=0.1)
        return replace(old, self_attention=bare, self_attention_norm=norm)

    layers = tuple(layer(old) for old in weights.decoder.layers)
    return replace(weights, decoder=replace(weights.decoder, layers=layers))


def of_features(weights):
    """Features in place of token ids; without an output the features are the logits."""
    bare = {"target_embedding": None, "target_positions": None}
    b_out = None if weights.output is None else weights.b_out
    return replace(weights, **bare, b_out=b_out)


ODD = (lambda weights: weights,) * 3 + (
    with_heads_of_other_widths,
    with_options_of_heads,
    without_output_and_gains,
    of_features,
)


@st.composite
def calls(draw):
    """Draw weights, inputs, targets and options of `gradients`, as NumPy arrays."""
    weights = draw(models())
    shape = draw(st.sampled_from(((1,), (5,), (3, 4), (2, 1, 6), (0, 3), (2, 0))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    known = weights.target_embedding is not None
    inputs = rng.integers(VOCABULARY, size=shape)
    inputs = inputs if known else rng.standard_normal((*shape, weights.d_model or 4))
    n_logits = VOCABULARY if known or weights.output is not None else inputs.shape[-1]
    targets = rng.integers(n_logits, size=shape)
    counts = {"all": None, "some": rng.random(shape) < 0.6, "none": np.zeros(shape, dtype=bool)}
    mask = counts[draw(st.sampled_from(sorted(counts)))]
    targets = targets if mask is None else np.where(mask, targets, -100)
    heads = [layer.self_attention.n_heads for layer in weights.decoder.layers] or [1]
    seen = layer_mask(
        rng, draw(st.sampled_from(LAYER_MASKS)), (*shape[:-1], heads[0], *shape[-1:] * 2)
    )
    return (
        weights,
        inputs,
        targets,
        {
            "mask": mask,
            "label_smoothing": draw(st.sampled_from((0.0, 0.1))),
            "target_mask": seen,
            "is_causal": draw(st.sampled_from((True, True, False))),
        },
    )


def by_autograd(weights, inputs, targets, *, mask, label_smoothing, target_mask, is_causal):
    """Return loss and gradients of PyTorch: autograd, and its own cross-entropy."""
    ours, leaves = leaves_of(weights.to("torch"))
    seen = None if target_mask is None else torch.tensor(target_mask)
    how = {"target_mask": seen, "is_causal": is_causal}
    logits = transformer(None, torch.tensor(inputs), ours, **how)
    counted = targets.size if mask is None else mask.sum()
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2),
        torch.tensor(targets).flatten(),
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    loss = total / max(int(counted), 1)
    if loss.requires_grad:
        loss.backward()
    grads = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in leaves.items()}
    return loss.item(), {name: x.numpy() for name, x in grads.items()}


@settings(max_examples=examples(100))
@given(calls())
def test_gradients_are_those_of_autograd(call):
    *arrays, options = call
    loss, grads = gradients(*arrays, **options)
    expected_loss, expected = by_autograd(*arrays, **options)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12, atol=1e-12)
    weights = arrays[0]
    assert type(grads) is type(weights)
    assert list(grads.arrays()) == list(weights.arrays()) == list(expected)
    for name, got in grads.arrays().items():
        assert got.dtype == np.float64
        assert got.shape == expected[name].shape
        size = max(1.0, np.abs(expected[name]).max(initial=0))
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=1e-10 * size, err_msg=name)


def modern(**options):
    """A decoder as today's language models have it."""
    sizes = {"d_model": 12, "n_heads": 6, "n_kv_heads": 2, "d_ff": 17, "n_layers": 2}
    kinds = {"normalization": "rms", "gated": True, "activation": "silu", "positions": "rotary"}
    options = sizes | kinds | {"bias": False, "n_encoder_layers": 0} | options
    return shaken(TransformerWeights.init(0, VOCABULARY, **options))


def classic(**options):
    """A decoder with biases and learned positions: all that `modern` has not."""
    kinds = {"normalization": "layer", "gated": False, "activation": "gelu", "bias": True}
    kinds |= {"positions": "learned", "n_positions": 9, "norm": "post", "tied": False}
    return modern(**kinds | options)


def relative():
    """A decoder with relative positions, whose table is learned."""
    return modern(positions=RelativeBias(np.zeros((8, 6)), bidirectional=False, max_distance=16))


MODELS = {"modern": modern, "classic": classic, "relative": relative}


def some_ids(seed=0, shape=(3, 5)):
    return np.random.default_rng(seed).integers(VOCABULARY, size=(2, *shape))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_every_library_has_the_same_gradients(library, name, dtype):
    weights, (inputs, targets) = MODELS[name](), some_ids()
    mask = np.arange(5) < np.array([[5], [3], [1]])
    _, exact = gradients(weights, inputs, targets, mask=mask)
    placed = library.place(weights, dtype)
    given = [library.array(x) for x in (inputs, targets, mask)]
    loss, grads = gradients(placed, *given[:2], mask=given[2])
    assert library.same_kind(loss, placed.target_embedding)
    tolerance = {"float32": 1e-4, "float64": 1e-11}[dtype]
    for key, got in grads.arrays().items():
        assert library.same_kind(got, placed.arrays()[key])
        np.testing.assert_allclose(
            library.numpy(got), exact.arrays()[key], rtol=tolerance, atol=tolerance, err_msg=key
        )


def test_nothing_is_written_to_and_what_is_plain_stays():
    weights, (inputs, targets) = relative(), some_ids()
    old = {name: x.copy() for name, x in weights.arrays().items()}
    _, grads = gradients(weights, inputs, targets)  # all arrays of `shaken` are read-only
    for name, x in weights.arrays().items():
        np.testing.assert_array_equal(x, old[name])
    assert grads.decoder.positions.max_distance == 16
    assert grads.decoder.layers[0].self_attention.n_kv_heads == 2


ERRORS = """
gradients(np.ones(3), ids, ids)
    TypeError: weights must be TransformerWeights, got ndarray
gradients(TransformerWeights.init(0, 11, d_model=4, n_heads=2, d_ff=3, n_layers=1), ids, ids)
    ValueError: weights must be those of a decoder alone, got an encoder too;
    attnbook.training.train takes both and uses PyTorch's autograd
gradients(weights.to(dtype="float16"), ids, ids)
    TypeError: weights must be float32 or float64 to be trained, got float16
gradients(weights.to("torch", dtype="bfloat16"), torch.tensor(ids), torch.tensor(ids))
    TypeError: weights must be float32 or float64 to be trained, got bfloat16
gradients(weights, ids + 9, ids)
    ValueError: inputs must be from 0 to 10 to be known to target_embedding, got 11
gradients(weights, ids * 1.0, ids)
    TypeError: inputs must be an array of integers, got float64
gradients(weights, ids, ids + 9)
    ValueError: targets must be from 0 to 10 to be known to logits, got 11
gradients(weights, ids, ids[:, :2])
    ValueError: targets must have shape (2, 3) to match logits, got (2, 2)
gradients(weights, ids, ids, mask=ids % 2)
    TypeError: mask must be boolean, True = may attend, got int64; it looks like a boolean mask
    stored as numbers: pass mask == 1
gradients(weights, ids, ids, mask=ids[:1] > 0)
    ValueError: mask must have shape (2, 3) to match logits, got (1, 3)
gradients(weights, ids, ids, label_smoothing=1.5)
    ValueError: label_smoothing must be at most 1, got 1.5
gradients(weights, ids, ids, is_causal=1)
    TypeError: is_causal must be a bool, got int
gradients(weights, ids, ids, target_mask=np.ones((4, 4), bool))
    ValueError: target_mask must broadcast to the shape of the scores (..., n_q, n_k) =
    (2, 6, 3, 3), got (4, 4)
gradients(weights, torch.tensor(ids), ids)
    TypeError: inputs must be an array of the same library as target_embedding (numpy), got torch
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_errors_say_what_is_wrong(call, kind, message):
    names = {"gradients": gradients, "np": np, "torch": torch, "weights": modern()}
    names |= {"ids": np.array([[1, 2, 0], [2, 1, 1]]), "TransformerWeights": TransformerWeights}
    assert_raises(call, kind, message, names)


# Every piece alone, in every library, against PyTorch's own function of it


def torch_grads(function, grad_output, *arrays):
    """Return the gradients of PyTorch's `function` of these arrays; None for None."""
    leaves = [None if x is None else torch.tensor(x, requires_grad=True) for x in arrays]
    output = function(*leaves)
    asked = [x for x in leaves if x is not None]
    found = iter(torch.autograd.grad(output, asked, torch.tensor(grad_output)))
    return [None if x is None else next(found).numpy() for x in leaves]


def close(library, got, expected):
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(library.numpy(ours), theirs, rtol=1e-11, atol=1e-11)


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


LEADING = [(), (2, 3), (0,)]


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(library, leading, bias):
    x, W, b, G = normal(0, (*leading, 2, 5), (5, 7), (7,), (*leading, 2, 7))
    given = [library.array(x), library.array(W), library.array(b) if bias else None]
    got = back.linear_vjp(*given, library.array(G))
    forward = lambda x, W, b=None: torch.nn.functional.linear(x, W.T, b)  # noqa: E731
    close(library, got, torch_grads(forward, G, x, W, b if bias else None))


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("leading", LEADING)
def test_embed(library, leading, scale):
    ids = np.random.default_rng(1).integers(5, size=(*leading, 13))
    table, G = normal(0, (7, 4), (*leading, 13, 4))  # two tokens never occur
    arrays = library.array(ids), library.array(table), library.array(G)
    got = back.embed_vjp(*arrays, scale=scale)
    factor = 2.0 if scale else 1.0
    forward = lambda E: factor * torch.nn.functional.embedding(torch.tensor(ids), E)  # noqa: E731
    close(library, [got], torch_grads(forward, G, table))


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_normalization(library, leading, gain, bias):
    x, g, b, G = normal(0, (*leading, 2, 5), (5,), (5,), (*leading, 2, 5))
    gain, bias = g if gain else None, b if bias else None
    epsilon = 0.1  # so large that it matters
    weights = library.place(LayerNormWeights(gain, bias, epsilon=epsilon))
    grad_x, grads = back.layer_norm_vjp(library.array(x), weights, library.array(G))
    forward = torch.nn.functional.layer_norm
    theirs = torch_grads(lambda x, *rest: forward(x, (5,), *rest, epsilon), G, x, gain, bias)
    close(library, (grad_x, grads.gain, grads.bias), theirs)
    assert grads.epsilon == epsilon
    weights = library.place(RMSNormWeights(gain, epsilon=epsilon))
    grad_x, grads = back.rms_norm_vjp(library.array(x), weights, library.array(G))
    forward_rms = torch.nn.functional.rms_norm
    theirs = torch_grads(lambda x, gain: forward_rms(x, (5,), gain, epsilon), G, x, gain)
    close(library, (grad_x, grads.gain), theirs)


ACTIVATIONS = {
    back.relu_vjp: torch.nn.functional.relu,
    back.gelu_vjp: torch.nn.functional.gelu,
    back.gelu_tanh_vjp: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    back.silu_vjp: torch.nn.functional.silu,
}


@pytest.mark.parametrize("vjp", ACTIVATIONS, ids=lambda f: f.__name__)
def test_activations(library, vjp):
    x = np.concatenate([np.linspace(-40, 40, 101), [-1000.0, 0.0, 1000.0]])
    (G,) = normal(0, x.shape)
    got = vjp(library.array(x), library.array(G))
    close(library, [got], torch_grads(ACTIVATIONS[vjp], G, x))


def test_softmax(library):
    scores, G = normal(0, (2, 3, 5), (2, 3, 5))
    scores[0, 1, 2:] = -np.inf
    got = back.softmax_vjp(library.array(attnbook.softmax(scores)), library.array(G))
    close(library, [got], torch_grads(lambda s: torch.softmax(s, -1), G, scores))


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("masked", [True, False])
def test_attention(library, masked, scale):
    query, key, value = normal(0, (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    bias, G = normal(1, (2, 3, 5, 7), (2, 3, 5, 6))
    mask = np.random.default_rng(2).random((2, 3, 5, 7)) < 0.5
    mask[..., 0] = True  # PyTorch's function makes NaN of a row that sees nothing
    arrays = [library.array(x) for x in (query, key, value)]
    seen = library.array(mask) if masked else None
    output, vjp = back.attention_with_vjp(*arrays, seen, library.array(bias), scale)

    def forward(query, key, value, bias):
        hidden = ~torch.tensor(mask) if masked else torch.zeros(1, dtype=torch.bool)
        added = bias.masked_fill(hidden, -math.inf)
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, attn_mask=added, scale=scale)

    given = [query, key, value, bias]
    close(library, [output], [forward(*map(torch.tensor, given)).numpy()])
    close(library, vjp(library.array(G)), torch_grads(forward, G, *given))


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_heads(library, output, scale):
    weights = MultiHeadWeights.init(0, 6, 4, n_kv_heads=2, d_k=5, d_v=3, output=output)
    weights = replace(weights, scale=scale)
    x, G = normal(0, (2, 7, 6), (2, 7, 6 if output else 12))
    got, vjp = back.multi_head_with_vjp(library.array(x), library.place(weights))
    grad_x, grads, _ = vjp(library.array(G))

    def forward(x, *arrays):
        placed = weights.with_arrays(dict(zip(weights.arrays(), arrays, strict=True)))
        return attnbook.multi_head_attention(x, x, x, placed)

    given = [x, *weights.arrays().values()]
    close(library, [got], [forward(*map(torch.tensor, given)).numpy()])
    close(library, [grad_x, *grads.arrays().values()], torch_grads(forward, G, *given))


@pytest.mark.parametrize("pairs", ["halves", "interleaved", "part", "scaled"])
def test_a_rotation_goes_back_by_its_transpose(library, pairs):
    """⟨Rx, y⟩ = ⟨x, R⁻¹y⟩, and R⁻¹R = 1."""
    positions = {
        "halves": Rotary(),
        "interleaved": Rotary(interleaved=True, base=100.0),
        "part": Rotary(width=4),
        "scaled": Rotary(scaling=Llama3Scaling(factor=4.0, low=1.0, high=4.0, n_positions=16)),
    }[pairs]
    x, y = normal(0, (2, 5, 6), (2, 5, 6))
    turned = library.numpy(positions.turned(library.array(x), 3))
    back_again = library.numpy(positions.turned_back(library.array(y), 3))
    assert math.isclose(np.sum(turned * y), np.sum(x * back_again), rel_tol=1e-12)
    same = positions.turned_back(positions.turned(library.array(x), 3), 3)
    np.testing.assert_allclose(library.numpy(same), x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("masked", [True, False])
def test_cross_entropy(library, kind, smoothing, masked):
    (logits,) = normal(0, (2, 5, 7))
    logits = 30 * logits
    targets = np.random.default_rng(1).integers(7, size=(2, 5))
    mask = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 1, 1]], dtype=bool) if masked else None
    got = back.cross_entropy_vjp(
        library.array(logits),
        library.array(targets, kind),
        None if mask is None else library.array(mask),
        label_smoothing=smoothing,
    )
    labels = torch.tensor(targets if mask is None else np.where(mask, targets, -100)).flatten()

    def forward(z):
        how = {"label_smoothing": smoothing}
        return torch.nn.functional.cross_entropy(z.flatten(0, 1), labels, **how)

    close(library, [got], torch_grads(forward, np.array(1.0), logits))


@pytest.mark.parametrize("name", MODELS)
def test_the_way_forward_is_that_of_the_package(library, name):
    """What has a vjp returns what the function without one does, to the last bit."""
    weights, (inputs, _) = library.place(MODELS[name]()), some_ids()
    logits, _ = back.transformer_with_vjp(library.array(inputs), weights)
    expected = transformer(None, library.array(inputs), weights, is_causal=False)
    np.testing.assert_array_equal(library.numpy(logits), library.numpy(expected))
    layer, (x,) = weights.decoder.layers[0], normal(0, (3, 5, 12))
    x = library.array(x)
    output, _ = back.decoder_layer_with_vjp(x, layer)
    np.testing.assert_array_equal(
        library.numpy(output), library.numpy(attnbook.decoder_layer(x, None, layer))
    )


# CuPy


@pytest.fixture
def gpu():
    """Give what moves an array to the stand-in of a GPU."""
    cupy = cupy_on_cpu.CupyOnCpu()
    with cupy_on_cpu.installed(cupy):
        yield cupy.asarray


@pytest.mark.parametrize("name", MODELS)
def test_on_cupy_everything_stays_on_the_gpu(gpu, name):
    """The stand-in refuses an array of NumPy's wherever one meets one of the GPU."""
    weights, (inputs, targets) = MODELS[name](), some_ids()
    mask = np.arange(5) < np.array([[5], [3], [1]])
    on_gpu = weights.with_arrays({n: gpu(x) for n, x in weights.arrays().items()})
    optimizer, usual = AdamW(on_gpu, weight_decay=0.1), AdamW(weights, weight_decay=0.1)
    for _ in range(2):
        loss, grads = gradients(on_gpu, gpu(inputs), gpu(targets), mask=gpu(mask))
        expected_loss, expected = gradients(weights, inputs, targets, mask=mask)
        assert isinstance(loss, cupy_on_cpu.GpuArray)
        assert math.isclose(loss, expected_loss, rel_tol=1e-12)
        (grads, norm), (expected, _) = clip_gradients(grads, 0.5), clip_gradients(expected, 0.5)
        assert isinstance(norm, float)
        on_gpu = optimizer.step(on_gpu, grads, lr=0.1)
        weights = usual.step(weights, expected, lr=0.1)
        for key, got in on_gpu.arrays().items():
            assert isinstance(got, cupy_on_cpu.GpuArray)
            np.testing.assert_allclose(
                got.get(), weights.arrays()[key], rtol=1e-9, atol=1e-9, err_msg=key
            )


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_a_row_of_the_table_takes_its_own_gradients_alone(make):
    """A token with small gradients keeps them, after ten thousand with large ones and infinity."""
    ids = np.array([*[0] * 10_000, 1, 3, 1])
    grads = np.array([*[1e4] * 10_000, 1e-7, np.inf, 2e-7], dtype=np.float32)[:, None]
    table = np.zeros((5, 1), np.float32)
    found = back.embed_vjp(make(ids), make(table), make(grads), scale=False)
    wanted = np.array([[1e8], [3e-7], [0], [np.inf], [0]], dtype=np.float32)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["layer", "rms", "loss"])
def test_half_precision_is_pulled_back_in_float32(library, kind):
    need(library, "float16")
    x = library.array(np.array([[300.0, -300.0, 500.0, 100.0]]), "float16")
    grads = library.array(np.array([[1.0, 2.0, 3.0, 5.0]]), "float16")
    if kind == "loss":
        many = library.array(np.zeros((70_000, 2)), "float16")
        got = back.cross_entropy_vjp(many, library.array(np.zeros(70_000, dtype=int)))
        assert library.numpy(got)[0, 1] == np.float16(0.5 / 70_000)
        return
    norm, vjp = {
        "layer": (attnbook.LayerNormWeights, back.layer_norm_vjp),
        "rms": (attnbook.RMSNormWeights, back.rms_norm_vjp),
    }[kind]
    got, _ = vjp(x, norm(library.array(np.ones(4), "float16")), grads)
    exact, _ = vjp(library.numpy(x), norm(np.ones(4)), library.numpy(grads))
    assert library.same_kind(got, x)
    np.testing.assert_allclose(library.numpy(got), exact, rtol=1e-3, atol=1e-6)
