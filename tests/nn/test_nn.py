"""The torch modules hold parameters and call the functions, nothing else."""

import copy
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import many_heads

import attnbook
from attnbook import masking
from attnbook.nn import Attention, MultiHeadAttention

NAMES = ("W_Q", "W_K", "W_V", "W_O")
BIASES = ("b_Q", "b_K", "b_V", "b_O")


def head(d_out=None, dtype="float64", library="numpy"):
    weights = attnbook.SingleHeadWeights.init(0, 5, 3, 7, d_k=2, d_v=4, d_out=d_out)
    return weights.to(library, dtype=dtype)


def inputs(dtype=torch.float64, leading=(2,)):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(*leading, *shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((3, 5), (13, 3), (13, 7))
    ]


MASK = torch.tensor([[True] * 13, [False] * 13, [True, False] * 6 + [True]])


@pytest.mark.parametrize("d_out", [None, 11])
@pytest.mark.parametrize("mask", [None, MASK], ids=["no mask", "mask"])
def test_agrees_with_the_function(d_out, mask):
    weights = head(d_out)
    module = Attention(weights)
    arrays = inputs()
    expected, attended = attnbook.single_head_attention_with_weights(
        *arrays, weights.to("torch"), mask
    )
    torch.testing.assert_close(module(*arrays, mask), expected)
    torch.testing.assert_close(module(*arrays, mask=mask), expected)
    output, shares = module.forward_with_weights(*arrays, mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(shares, attended)
    assert shares.shape == (2, 3, 13)


def test_key_and_value_default_to_what_stands_before_them():
    module = Attention(attnbook.SingleHeadWeights.init(0, 5, d_k=2, d_v=4).to(dtype="float32"))
    x, y = torch.randn(3, 5), torch.randn(7, 5)
    torch.testing.assert_close(module(x), module(x, x, x))
    torch.testing.assert_close(module(x, y), module(x, y, y))
    assert not torch.equal(module(x, y), module(x, y, x[[0] * 7]))


@pytest.mark.parametrize("d_out", [None, 11])
def test_state_dict_has_the_names_of_the_matrices(d_out):
    weights = head(d_out)
    state = Attention(weights).state_dict()
    assert list(state) == list(NAMES if d_out else NAMES[:3])
    for name, parameter in state.items():
        np.testing.assert_array_equal(parameter.numpy(), getattr(weights, name))
    parameters = dict(Attention(weights).named_parameters())
    assert list(parameters) == list(state)
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in parameters.values())


def test_a_module_without_an_output_matrix_has_none():
    module = Attention(head())
    assert module.W_O is None
    assert module.weights.W_O is None


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_the_weights_are_copied(library):
    weights = head(library=library)
    before = np.array(attnbook.move(weights.W_Q, "numpy"))
    module = Attention(weights)
    with torch.no_grad():
        module.W_Q.zero_()
    np.testing.assert_array_equal(attnbook.move(weights.W_Q, "numpy"), before)


def test_the_graph_of_the_weights_is_left_behind():
    weights = head(library="torch")
    weights.W_Q.requires_grad_()
    module = Attention(weights)
    assert module.W_Q.is_leaf
    module(*inputs()).sum().backward()
    assert weights.W_Q.grad is None
    assert module.W_Q.grad is not None


@pytest.mark.parametrize("d_out", [None, 11])
def test_gradients_equal_those_of_the_function(d_out):
    module = Attention(head(d_out))
    arrays = [x.requires_grad_() for x in inputs()]
    module(*arrays, MASK).square().sum().backward()
    leaves = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    others = [x.detach().clone().requires_grad_() for x in arrays]
    weights = attnbook.SingleHeadWeights(**leaves)
    attnbook.single_head_attention(*others, weights, MASK).square().sum().backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(getattr(module, name).grad, leaf.grad)
        assert bool(leaf.grad.abs().sum() > 0)
    for ours, theirs in zip(arrays, others, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_weights_keep_the_graph():
    module = Attention(head())
    assert module.weights.W_K is module.W_K


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_parameters_move(dtype):
    module = Attention(head(11)).to(dtype)
    assert {p.dtype for p in module.parameters()} == {dtype}
    assert module(*inputs(dtype)).dtype == dtype
    meta = module.to("meta")
    assert {p.device.type for p in meta.parameters()} == {"meta"}
    assert meta(*(x.to("meta") for x in inputs(dtype))).shape == (2, 3, 11)


def test_save_and_load():
    module, other = Attention(head(11)), Attention(head(11))
    with torch.no_grad():
        module.W_V.mul_(2)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert not torch.equal(other.W_V, module.W_V)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(*inputs()), module(*inputs()))
    torch.testing.assert_close(copy.deepcopy(module)(*inputs()), module(*inputs()))
    with pytest.raises(RuntimeError, match="W_O"):
        Attention(head()).load_state_dict(module.state_dict())


def test_repr_shows_the_shapes():
    assert repr(Attention(head())) == "Attention(W_Q=(5, 2), W_K=(3, 2), W_V=(7, 4))"
    expected = "Attention(W_Q=(5, 2), W_K=(3, 2), W_V=(7, 4), W_O=(4, 11))"
    assert repr(Attention(head(11))) == expected


def test_training_learns():
    torch.manual_seed(0)
    module = Attention(head(3, dtype="float32"))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    arrays, target = inputs(torch.float32), torch.randn(2, 3, 3)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(module(*arrays), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_parts_of_a_larger_module():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5),
        Attention(attnbook.SingleHeadWeights.init(0, 5, d_k=2, d_v=4).to(dtype="float32")),
    )
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.W_Q", "1.W_K", "1.W_V"]
    assert model(torch.ones(2, 6, 4)).shape == (2, 6, 4)


def test_functional_call_and_vmap_over_models():
    modules = [Attention(attnbook.SingleHeadWeights.init(s, 5, d_k=2, d_v=4)) for s in range(3)]
    x = torch.randn(6, 5, dtype=torch.float64)
    parameters, buffers = torch.func.stack_module_state(modules)

    def call(parameters):
        return torch.func.functional_call(modules[0], (parameters, buffers), (x,))

    outputs = torch.func.vmap(call)(parameters)
    torch.testing.assert_close(outputs, torch.stack([module(x) for module in modules]))


@pytest.mark.parametrize("weights", [None, np.ones((2, 2)), {"W_Q": 1}])
def test_anything_but_weights_is_refused(weights):
    message = f"weights must be SingleHeadWeights, got {type(weights).__name__}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Attention(weights)


def test_errors_come_from_the_function():
    module = Attention(head())
    query, key, value = inputs()
    with pytest.raises(ValueError, match=re.escape("query must have shape (..., n, 5)")):
        module(key, key, value)
    with pytest.raises(
        TypeError, match=re.escape("weights must have the dtype of query (float32)")
    ):
        module(*inputs(torch.float32))
    with pytest.raises(TypeError, match=re.escape("mask must be boolean, True = may attend")):
        module(query, key, value, MASK.int())


# Dynamo sees through a cache in array-api-compat and says so
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_compiles_into_one_graph():
    # "aot_eager" traces forward and backward as the default does, and needs no C++ compiler
    module = Attention(head(11))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    arrays = inputs()
    torch.testing.assert_close(compiled(*arrays, MASK), module(*arrays, MASK))
    compiled(*arrays, MASK).sum().backward()
    assert module.W_Q.grad is not None


# MultiHeadAttention


def layer(dtype="float64", library="numpy", **options):
    options = {"h": 4, "widths": (8, 5, 7), "d_k": 2, "d_v": 2, "d_out": 8, "bias": True} | options
    return many_heads(0, **options).to(library, dtype=dtype)


ALIKE = {"widths": (8, 8, 8)}


def layer_inputs(dtype=torch.float64, widths=(8, 5, 7)):
    generator = torch.Generator().manual_seed(1)
    shapes = ((3, widths[0]), (13, widths[1]), (13, widths[2]))
    return [torch.randn(2, *s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def torch_layer(dtype=torch.float64, d=8, h=4, **options):
    """Return PyTorch's module with random numbers everywhere, biases too."""
    module = torch.nn.MultiheadAttention(d, h, batch_first=True, dtype=dtype, **options)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / d**0.5)
    return module


KINDS = {
    "plain": {},
    "no bias": {"bias": False},
    "other widths": {"kdim": 5, "vdim": 7},
    "other widths, no bias": {"kdim": 5, "vdim": 7, "bias": False},
    "another width of values": {"vdim": 7},
    "one head": {"h": 1},
    "as many heads as columns": {"h": 8},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def widths_of(kind):
    options = KINDS[kind]
    return 8, options.get("kdim", 8), options.get("vdim", 8)


@pytest.mark.parametrize("options", [{}, {"g": 1}, {"d_out": None}, {"bias": False}])
@pytest.mark.parametrize("mask", [None, MASK], ids=["no mask", "mask"])
def test_layer_agrees_with_the_function(options, mask):
    weights = layer(**options)
    module = MultiHeadAttention(weights)
    arrays = layer_inputs()
    expected, attended = attnbook.multi_head_attention_with_weights(
        *arrays, weights.to("torch"), mask
    )
    torch.testing.assert_close(module(*arrays, mask), expected)
    torch.testing.assert_close(module(*arrays, mask=mask), expected)
    output, shares = module.forward_with_weights(*arrays, mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(shares, attended)
    assert shares.shape == (2, 4, 3, 13)


def test_layer_key_and_value_default_to_what_stands_before_them():
    module = MultiHeadAttention(layer("float32", **ALIKE))
    x, y = torch.randn(3, 8), torch.randn(7, 8)
    torch.testing.assert_close(module(x), module(x, x, x))
    torch.testing.assert_close(module(x, y), module(x, y, y))
    assert not torch.equal(module(x, y), module(x, y, x[[0] * 7]))


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({}, ()),
        ({"bias": False}, BIASES),
        ({"d_out": None}, ("W_O", "b_O")),
        ({"d_out": None, "bias": False}, ("W_O", *BIASES)),
    ],
)
def test_layer_state_dict_has_the_names_of_the_arrays(options, absent):
    weights = layer(g=2, **options)
    module = MultiHeadAttention(weights)
    state = module.state_dict()
    assert list(state) == [name for name in (*NAMES, *BIASES) if name not in absent]
    for name, x in state.items():
        np.testing.assert_array_equal(x.numpy(), getattr(weights, name))
    parameters = dict(module.named_parameters())
    assert list(parameters) == list(state)
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in parameters.values())
    for name in absent:
        assert getattr(module, name) is None
        assert getattr(module.weights, name) is None
    assert (module.n_heads, module.n_kv_heads) == (4, 2)
    assert (module.weights.n_heads, module.weights.n_kv_heads) == (4, 2)
    assert module.weights.W_K is module.W_K


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_layer_weights_are_copied(library):
    weights = layer(library=library)
    before = np.array(attnbook.move(weights.b_V, "numpy"))
    module = MultiHeadAttention(weights)
    with torch.no_grad():
        module.b_V.zero_()
    np.testing.assert_array_equal(attnbook.move(weights.b_V, "numpy"), before)


@pytest.mark.parametrize("mask", [None, MASK], ids=["no mask", "mask"])
def test_layer_gradients_equal_those_of_the_function(mask):
    weights = layer(g=2)
    module = MultiHeadAttention(weights)
    arrays = [x.requires_grad_() for x in layer_inputs()]
    module(*arrays, mask).square().sum().backward()
    leaves = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    others = [x.detach().clone().requires_grad_() for x in arrays]
    held = attnbook.MultiHeadWeights(**leaves, n_heads=4, n_kv_heads=2)
    attnbook.multi_head_attention(*others, held, mask).square().sum().backward()
    assert len(leaves) == 8
    for name, leaf in leaves.items():
        torch.testing.assert_close(getattr(module, name).grad, leaf.grad)
        assert bool(leaf.grad.abs().sum() > 0)
    for ours, theirs in zip(arrays, others, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


# MultiHeadAttention and PyTorch's own module, both ways.


def same_results(ours, theirs, widths, dtype=torch.float64, **tolerance):
    """Assert equal outputs, weights and gradients with three masks, and without one."""
    generator = torch.Generator().manual_seed(3)
    free = torch.rand(2, ours.n_heads, 3, 13, generator=generator) < 0.6
    free[..., 0] = True  # PyTorch's own module has no agreed answer for empty rows
    shape = tuple(free.shape)
    lengths = masking.padding(torch.tensor([[4], [13]]), 13)  # one a sequence, for all heads
    for mask in (None, masking.causal(3, 13, like=free), lengths, free):
        argument = None
        if mask is not None:
            argument = masking.to_mha(mask, None if mask.ndim == 2 else shape)
        mine, yours = ([x.requires_grad_() for x in layer_inputs(dtype, widths)] for _ in "12")
        output, shares = ours.forward_with_weights(*mine, mask)
        expected = theirs(*yours, attn_mask=argument, average_attn_weights=False)
        torch.testing.assert_close(output, expected[0], **tolerance)
        torch.testing.assert_close(shares, expected[1], **tolerance)
        mean = theirs(*yours, attn_mask=argument)[1]
        torch.testing.assert_close(shares.mean(dim=1), mean, **tolerance)
        output.square().sum().backward()
        expected[0].square().sum().backward()
        for x, y in zip(mine, yours, strict=True):
            torch.testing.assert_close(x.grad, y.grad, **tolerance)


@kinds
def test_from_torch_and_back(kind):
    theirs = torch_layer(**KINDS[kind])
    ours = MultiHeadAttention.from_torch(theirs)
    assert type(ours) is MultiHeadAttention
    assert ours.n_heads == ours.n_kv_heads == theirs.num_heads
    same_results(ours, theirs, widths_of(kind))
    back = ours.to_torch()
    assert type(back) is torch.nn.MultiheadAttention
    assert back.batch_first
    assert (back.embed_dim, back.num_heads) == (8, theirs.num_heads)
    state = theirs.state_dict()
    assert list(back.state_dict()) == list(state)
    for name, x in back.state_dict().items():
        assert torch.equal(x, state[name])
    given = ours.torch_state_dict()
    assert set(given) == set(state)
    for name, x in given.items():
        assert torch.equal(x, state[name])
        assert x.is_contiguous()
        assert not x.requires_grad
        x.zero_()  # a copy, which the module does not feel
    same_results(ours, back, widths_of(kind))


@kinds
def test_the_gradients_of_the_parameters_are_theirs(kind):
    theirs = torch_layer(**KINDS[kind])
    ours = MultiHeadAttention.from_torch(theirs)
    mask = masking.causal(3, 13, like=torch.empty(1))
    arrays = layer_inputs(widths=widths_of(kind))
    ours(*arrays, mask).square().sum().backward()
    theirs(*arrays, attn_mask=masking.to_mha(mask))[0].square().sum().backward()
    gradients = MultiHeadAttention(
        attnbook.MultiHeadWeights(
            **{name: p.grad for name, p in ours.named_parameters()}, n_heads=ours.n_heads
        )
    ).torch_state_dict()
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad)


@pytest.mark.parametrize("weights", ["alike", "other widths", "no bias", "from NumPy in float32"])
def test_a_layer_of_ours_goes_into_theirs(weights):
    options = {
        "alike": ALIKE,
        "other widths": {},
        "no bias": {"bias": False},
        "from NumPy in float32": {"dtype": "float32"},
    }[weights]
    ours = MultiHeadAttention(layer(**options))
    widths = options.get("widths", (8, 5, 7))
    dtype = ours.W_Q.dtype
    theirs = torch.nn.MultiheadAttention(
        *(8, 4),
        bias=ours.b_Q is not None,
        kdim=widths[1],
        vdim=widths[2],
        batch_first=True,
        dtype=dtype,
    )
    assert theirs.load_state_dict(ours.torch_state_dict()).missing_keys == []
    tolerance = {} if dtype == torch.float64 else {"atol": 1e-4, "rtol": 1e-4}
    same_results(ours, theirs, widths, dtype, **tolerance)
    same_results(ours, ours.to_torch(), widths, dtype, **tolerance)


@kinds
def test_loads_a_state_dict_of_theirs(kind):
    theirs = torch_layer(**KINDS[kind])
    state = theirs.state_dict()
    kept = {name: x.clone() for name, x in state.items()}
    widths = widths_of(kind)
    h = theirs.num_heads
    start = many_heads(
        *(7, h), widths=widths, d_k=8 // h, d_v=8 // h, d_out=8, bias="in_proj_bias" in state
    )
    ours = MultiHeadAttention(start)
    assert str(ours.load_state_dict(state)) == "<All keys matched successfully>"
    same_results(ours, theirs, widths)
    assert list(state) == list(kept)  # what was given is left alone
    for name, x in kept.items():
        assert torch.equal(state[name], x)
    with torch.no_grad():
        ours.W_Q.zero_()
        ours.W_O.zero_()
    assert all(torch.equal(state[name], x) for name, x in kept.items())


def test_loads_a_state_dict_of_theirs_as_part_of_a_larger_module():
    class Block(torch.nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.norm = torch.nn.LayerNorm(8, dtype=torch.float64)
            self.attention = attention

    theirs = torch.nn.ModuleList([Block(torch_layer()), Block(torch_layer(bias=False))])
    ours = torch.nn.ModuleList(
        [
            Block(MultiHeadAttention(layer(**ALIKE))),
            Block(MultiHeadAttention(layer(bias=False, **ALIKE))),
        ]
    )
    state = theirs.state_dict()
    names = list(state)
    assert str(ours.load_state_dict(state)) == "<All keys matched successfully>"
    assert list(state) == names
    for mine, yours in zip(ours, theirs, strict=True):
        same_results(mine.attention, yours.attention, (8, 8, 8))
    assert "0.attention.W_Q" in ours.state_dict()
    ours.load_state_dict(ours.state_dict())  # and its own, with the prefix
    del state["1.attention.in_proj_weight"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"1\.attention\.W_Q", "1\.attention'):
        ours.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("in_proj_weight", 'Missing key(s) in state_dict: "W_Q", "W_K", "W_V".'),
        ("in_proj_bias", 'Missing key(s) in state_dict: "b_Q", "b_K", "b_V".'),
        ("out_proj.bias", 'Missing key(s) in state_dict: "b_O".'),
        ("out_proj.weight", 'Missing key(s) in state_dict: "W_O".'),
        ("strange", 'Unexpected key(s) in state_dict: "strange".'),
        ("bias_k", 'Unexpected key(s) in state_dict: "bias_k".'),
    ],
)
def test_wrong_keys_give_the_error_of_torch(change, message):
    state = torch_layer().state_dict()
    if change in state:
        del state[change]
    else:
        state[change] = torch.ones(1, 1, 8)
    module = MultiHeadAttention(layer(**ALIKE))
    with pytest.raises(RuntimeError, match=re.escape(message)):
        module.load_state_dict(state)
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert missing or unexpected


def test_a_state_dict_of_another_size_gives_the_error_of_torch():
    module = MultiHeadAttention(layer(**ALIKE))
    with pytest.raises(RuntimeError, match=r"size mismatch for W_Q: .*\[16, 16\].*\[8, 8\]"):
        module.load_state_dict(torch_layer(d=16).state_dict())
    grouped = MultiHeadAttention(layer(g=2, **ALIKE))
    with pytest.raises(RuntimeError, match="size mismatch for W_K"):
        grouped.load_state_dict(torch_layer().state_dict())
    without = MultiHeadAttention(layer(bias=False, **ALIKE))
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"b_Q", "b_K", "b_V", "b_O"'):
        without.load_state_dict(torch_layer().state_dict())


@pytest.mark.parametrize(
    ("module", "kind", "message"),
    [
        (
            torch.nn.MultiheadAttention(8, 4, add_bias_kv=True),
            ValueError,
            "module must be made without add_bias_kv and add_zero_attn, "
            "got add_bias_kv=True, add_zero_attn=False",
        ),
        (
            torch.nn.MultiheadAttention(8, 4, add_zero_attn=True),
            ValueError,
            "module must be made without add_bias_kv and add_zero_attn, "
            "got add_bias_kv=False, add_zero_attn=True",
        ),
        (
            torch.nn.Linear(8, 4),
            TypeError,
            "module must be a torch.nn.MultiheadAttention, got Linear",
        ),
        (None, TypeError, "module must be a torch.nn.MultiheadAttention, got NoneType"),
    ],
)
def test_what_from_torch_refuses(module, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        MultiHeadAttention.from_torch(module)


FIT = "every matrix must have d_model = 8 columns and every head its own keys to fit "
COLUMNS = "torch.nn.MultiheadAttention, got columns {'W_Q': 8, 'W_K': 8, 'W_V': 8, 'W_O': 8}"
BOTH = "torch.nn.MultiheadAttention has all four biases or none, got none for "


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            layer(g=2, **ALIKE),
            f"{FIT}{COLUMNS}".replace("'W_K': 8, 'W_V': 8", "'W_K': 4, 'W_V': 4")
            + ", n_heads = 4 and n_kv_heads = 2",
        ),
        (
            # two key and value heads that are as wide as if they were four
            attnbook.MultiHeadWeights(
                *(np.ones((8, 8)), np.ones((8, 4)), np.ones((8, 8)), np.ones((16, 8))),
                n_heads=4,
                n_kv_heads=2,
            ),
            f"{FIT}{COLUMNS}".replace("'W_K': 8", "'W_K': 4") + ", n_heads = 4 and n_kv_heads = 2",
        ),
        (
            layer(d_k=3),
            f"{FIT}{COLUMNS}".replace("'W_Q': 8, 'W_K': 8", "'W_Q': 12, 'W_K': 12")
            + ", n_heads = 4 and n_kv_heads = 4",
        ),
        (
            layer(d_v=3),
            f"{FIT}{COLUMNS}".replace("'W_V': 8", "'W_V': 12") + ", n_heads = 4 and n_kv_heads = 4",
        ),
        (
            layer(d_out=3),
            f"{FIT}{COLUMNS}".replace("'W_O': 8", "'W_O': 3") + ", n_heads = 4 and n_kv_heads = 4",
        ),
        (
            layer(d_out=None),
            f"{FIT}{COLUMNS}".replace("'W_O': 8", "'W_O': None")
            + ", n_heads = 4 and n_kv_heads = 4",
        ),
        (replace(layer(), b_K=None), f"{BOTH}b_K"),
        (replace(layer(bias=False), b_V=np.ones(8)), f"{BOTH}b_Q, b_K, b_O"),
    ],
)
def test_what_does_not_fit_into_theirs(weights, message):
    module = MultiHeadAttention(weights)
    for function in (module.torch_state_dict, module.to_torch):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            function()


def test_from_torch_copies_and_leaves_dropout_behind():
    theirs = torch_layer(dropout=0.5)
    ours = MultiHeadAttention.from_torch(theirs)
    arrays = layer_inputs(widths=(8, 8, 8))
    expected = theirs.eval()(*arrays)[0]
    torch.testing.assert_close(ours.train()(*arrays), expected)
    torch.testing.assert_close(ours.eval()(*arrays), expected)
    with torch.no_grad():
        for p in theirs.parameters():
            p.zero_()
    torch.testing.assert_close(ours(*arrays), expected)
    back = ours.to_torch()
    assert back.dropout == 0
    with torch.no_grad():
        for p in ours.parameters():
            p.zero_()
    torch.testing.assert_close(back(*arrays)[0], expected)
    assert all(p.requires_grad and p.is_leaf for p in back.parameters())


@pytest.mark.parametrize("batch_first", [False, True])
def test_from_torch_is_batch_first_whatever_theirs_is(batch_first):
    theirs = torch.nn.MultiheadAttention(8, 4, batch_first=batch_first, dtype=torch.float64)
    arrays = layer_inputs(widths=(8, 8, 8))
    given = arrays if batch_first else [x.transpose(0, 1) for x in arrays]
    expected = theirs(*given)[0]
    got = MultiHeadAttention.from_torch(theirs)(*arrays)
    torch.testing.assert_close(got, expected if batch_first else expected.transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_layer_keeps_the_dtype_of_theirs(dtype):
    theirs = torch_layer(dtype)
    ours = MultiHeadAttention.from_torch(theirs)
    assert {p.dtype for p in ours.parameters()} == {dtype}
    back = ours.to_torch()
    assert {p.dtype for p in back.parameters()} == {dtype}
    arrays = layer_inputs(dtype, (8, 8, 8))
    assert ours(*arrays).dtype == dtype
    exact = copy.deepcopy(theirs).double()(*(x.double() for x in arrays))[0]
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}.get(dtype, 1e-12)
    torch.testing.assert_close(ours(*arrays).double(), exact, rtol=0, atol=tolerance)
    meta = ours.to("meta")
    assert {p.device.type for p in meta.parameters()} == {"meta"}
    assert meta(*(x.to("meta") for x in arrays)).shape == (2, 3, 8)
    assert {p.device.type for p in meta.to_torch().parameters()} == {"meta"}


def test_layer_is_saved_loaded_and_copied():
    module, other = MultiHeadAttention(layer(g=2)), MultiHeadAttention(layer(g=2))
    with torch.no_grad():
        module.b_K.mul_(2)
        module.W_V.mul_(3)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    arrays = layer_inputs()
    assert not torch.allclose(other(*arrays), module(*arrays))
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(*arrays), module(*arrays))
    twin = copy.deepcopy(module)
    torch.testing.assert_close(twin(*arrays), module(*arrays))
    with torch.no_grad():
        twin.W_O.zero_()
    assert bool(module.W_O.any())
    assert (twin.n_heads, twin.n_kv_heads) == (4, 2)


def test_layer_does_the_same_in_training_and_evaluation():
    module = MultiHeadAttention(layer())
    arrays = layer_inputs()
    first = module.train()(*arrays, MASK)
    torch.testing.assert_close(module.eval()(*arrays, MASK), first, rtol=0, atol=0)
    torch.testing.assert_close(module.train()(*arrays, MASK), first, rtol=0, atol=0)


def test_layer_repr_shows_heads_and_shapes():
    expected = (
        "MultiHeadAttention(n_heads=4, n_kv_heads=2, W_Q=(8, 8), W_K=(5, 4), W_V=(7, 4), "
        "W_O=(8, 8), b_Q=(8,), b_K=(4,), b_V=(4,), b_O=(8,))"
    )
    assert repr(MultiHeadAttention(layer(g=2))) == expected


def test_layers_in_a_functional_call_and_vmap_over_models():
    modules = [
        MultiHeadAttention(many_heads(s, 4, 2, widths=(8, 8, 8), d_out=8, bias=True))
        for s in range(3)
    ]
    x = torch.randn(6, 8, dtype=torch.float64)
    parameters, buffers = torch.func.stack_module_state(modules)

    def call(parameters):
        return torch.func.functional_call(modules[0], (parameters, buffers), (x,))

    outputs = torch.func.vmap(call)(parameters)
    torch.testing.assert_close(outputs, torch.stack([module(x) for module in modules]))


@pytest.mark.parametrize("weights", [None, np.ones((2, 2)), head()])
def test_anything_but_weights_of_many_heads_is_refused(weights):
    message = f"weights must be MultiHeadWeights, got {type(weights).__name__}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        MultiHeadAttention(weights)


def test_layer_errors_come_from_the_function():
    module = MultiHeadAttention(layer())
    query, key, value = layer_inputs()
    with pytest.raises(ValueError, match=re.escape("query must have shape (..., n, 8)")):
        module(key, key, value)
    with pytest.raises(
        TypeError, match=re.escape("weights must have the dtype of query (float32)")
    ):
        module(*layer_inputs(torch.float32))
    with pytest.raises(TypeError, match=re.escape("mask must be boolean, True = may attend")):
        module(query, key, value, MASK.int())
    with pytest.raises(ValueError, match=re.escape("one mask a sequence is mask[:, None]")):
        module(query, key, value, MASK.expand(2, 3, 13))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.parametrize("g", [2, 4])
def test_layer_compiles_into_one_graph(g):
    module = MultiHeadAttention(layer(g=g))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    arrays = layer_inputs()
    torch.testing.assert_close(compiled(*arrays, MASK), module(*arrays, MASK))
    compiled(*arrays, MASK).sum().backward()
    assert module.b_K.grad is not None
