"""The torch modules hold parameters and call the functions, nothing else."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import many_heads
from error_table import error_test

import attnbook
from attnbook import kernels, masking
from attnbook.nn import Attention, MultiHeadAttention

MASK = torch.tensor([[True] * 13, [False] * 13, [True, False] * 6 + [True]])


@pytest.mark.parametrize("kind", [Attention, MultiHeadAttention])
def test_key_and_value_default_to_what_stands_before_them(kind):
    one = attnbook.SingleHeadWeights.init(0, 8, d_k=2, d_v=4)
    weights = one if kind is Attention else layer(**ALIKE)
    module, x, y = kind(weights.to(dtype="float32")), torch.randn(3, 8), torch.randn(7, 8)
    torch.testing.assert_close(module(x), module(x, x, x))
    torch.testing.assert_close(module(x, y), module(x, y, y))
    assert not torch.equal(module(x, y), module(x, y, x[[0] * 7]))


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
    "one head": {"h": 1},
    "as many heads as columns": {"h": 8},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def widths_of(kind):
    options = KINDS[kind]
    return 8, options.get("kdim", 8), options.get("vdim", 8)


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
        ours.impl = kernels.Recorder()
        output = ours(*mine, mask)
        (shares,) = ours.impl.weights
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
    assert ours.n_heads == ours.n_kv_heads == theirs.num_heads
    same_results(ours, theirs, widths_of(kind))
    back = ours.to_torch()
    assert type(back) is torch.nn.MultiheadAttention
    assert back.batch_first
    assert (back.embed_dim, back.num_heads) == (8, theirs.num_heads)
    state, given = theirs.state_dict(), ours.torch_state_dict()
    assert list(back.state_dict()) == list(state)
    assert set(given) == set(state)
    for name, x in state.items():
        assert torch.equal(back.state_dict()[name], x)
        assert torch.equal(given[name], x)


def test_loads_a_state_dict_of_theirs_as_part_of_a_larger_module():
    class Block(torch.nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.norm = torch.nn.LayerNorm(8, dtype=torch.float64)
            self.attention = attention

    theirs = torch.nn.ModuleList([Block(torch_layer()), Block(torch_layer(bias=False))])
    starts = layer(**ALIKE), layer(bias=False, **ALIKE)
    ours = torch.nn.ModuleList(Block(MultiHeadAttention(start)) for start in starts)
    state = theirs.state_dict()
    assert str(ours.load_state_dict(state)) == "<All keys matched successfully>"
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


def theirs(**options):
    return torch.nn.MultiheadAttention(8, 4, **options)


def into_theirs(weights):
    """Raise what both ways into PyTorch's module raise."""
    module = MultiHeadAttention(weights)
    with pytest.raises(ValueError, match="MultiheadAttention") as caught:
        module.torch_state_dict()
    with pytest.raises(ValueError, match=f"^{re.escape(str(caught.value))}$"):
        module.to_torch()
    raise caught.value


REFUSED = """
MultiHeadAttention.from_torch(theirs(add_bias_kv=True))
    ValueError: module must be made without add_bias_kv and add_zero_attn, got add_bias_kv=True,
    add_zero_attn=False
MultiHeadAttention.from_torch(torch.nn.Linear(8, 4))
    TypeError: module must be a torch.nn.MultiheadAttention, got Linear
into_theirs(layer(g=2, **ALIKE))
    ValueError: every matrix must have d_model = 8 columns and every head its own keys to fit
    torch.nn.MultiheadAttention, got columns {'W_Q': 8, 'W_K': 4, 'W_V': 4, 'W_O': 8},
    n_heads = 4 and n_kv_heads = 2
into_theirs(layer(d_v=3))
    ValueError: every matrix must have d_model = 8 columns and every head its own keys to fit
    torch.nn.MultiheadAttention, got columns {'W_Q': 8, 'W_K': 8, 'W_V': 12, 'W_O': 8},
    n_heads = 4 and n_kv_heads = 4
into_theirs(layer(d_out=None))
    ValueError: every matrix must have d_model = 8 columns and every head its own keys to fit
    torch.nn.MultiheadAttention, got columns {'W_Q': 8, 'W_K': 8, 'W_V': 8, 'W_O': None},
    n_heads = 4 and n_kv_heads = 4
into_theirs(replace(layer(), b_K=None))
    ValueError: torch.nn.MultiheadAttention has all four biases or none, got none for b_K
"""

test_what_is_refused = error_test(REFUSED, globals() | {"replace": replace, "np": np})


def test_from_torch_leaves_dropout_behind():
    theirs = torch_layer(dropout=0.5)
    ours = MultiHeadAttention.from_torch(theirs)
    arrays = layer_inputs(widths=(8, 8, 8))
    expected = theirs.eval()(*arrays)[0]
    torch.testing.assert_close(ours.train()(*arrays), expected)
    torch.testing.assert_close(ours.eval()(*arrays), expected)
    back = ours.to_torch()
    assert back.dropout == 0
    assert all(p.requires_grad and p.is_leaf for p in back.parameters())


@pytest.mark.parametrize("batch_first", [False, True])
def test_from_torch_is_batch_first_whatever_theirs_is(batch_first):
    theirs = torch.nn.MultiheadAttention(8, 4, batch_first=batch_first, dtype=torch.float64)
    arrays = layer_inputs(widths=(8, 8, 8))
    given = arrays if batch_first else [x.transpose(0, 1) for x in arrays]
    expected = theirs(*given)[0]
    got = MultiHeadAttention.from_torch(theirs)(*arrays)
    torch.testing.assert_close(got, expected if batch_first else expected.transpose(0, 1))
