"""The torch module holds parameters and calls the function, nothing else."""

import copy
import io
import re

import numpy as np
import pytest
import torch

import attnbook
from attnbook.nn import Attention

NAMES = ("W_Q", "W_K", "W_V", "W_O")


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
    expected, attended = attnbook.single_head_attention(
        *arrays, weights.to("torch"), mask, return_weights=True
    )
    torch.testing.assert_close(module(*arrays, mask), expected)
    torch.testing.assert_close(module(*arrays, mask=mask), expected)
    output, shares = module(*arrays, mask, return_weights=True)
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
