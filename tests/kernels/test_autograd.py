"""The node of PyTorch's graph around a kernel: what it keeps, what it gives, what it refuses."""

import weakref

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import attnbook
from attnbook.kernels import autograd, tiled


def drawn(*shapes, dtype=torch.float64, grad=True):
    rng = np.random.default_rng(0)
    return [
        torch.tensor(rng.standard_normal(shape), dtype=dtype, requires_grad=grad)
        for shape in shapes
    ]


GROUPED = ((2, 2, 3, 4), (2, 1, 5, 4), (1, 5, 3))
FLAT = ((5, 4), (7, 4), (7, 3))


def attend(query, key, value, mask=None, bias=None, scale=0.5, is_causal=True):
    return autograd.differentiable(tiled, query, key, value, mask, bias, scale, is_causal)


def test_gradcheck_with_broadcast_leading_axes():
    assert torch.autograd.gradcheck(attend, drawn(*GROUPED))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_a_gradient_for_what_requires_one(wanted):
    arrays = drawn(*FLAT, grad=False)
    whole = drawn(*FLAT)
    attend(*whole).sum().backward()
    for i in wanted:
        arrays[i].requires_grad_()
    attend(*arrays).sum().backward()
    for i, x in enumerate(arrays):
        assert (x.grad is not None) == (i in wanted)
        if i in wanted:
            assert torch.equal(x.grad, whole[i].grad)


def test_without_a_graph_the_values_are_the_same():
    arrays = drawn(*FLAT)
    output = attend(*arrays)
    assert output.requires_grad
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            plain = attend(*arrays)
            assert torch.equal(plain, output)
            assert not plain.requires_grad
    plain = attend(*(x.detach() for x in arrays))
    assert torch.equal(plain, output)
    assert plain.grad_fn is None


def test_the_graph_keeps_what_grows_with_the_length():
    arrays = drawn((601, 4), (601, 4), (601, 4))
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    )
    with hooks:
        attend(*arrays)
    assert sum(kept) == 4 * 601 * 4 + 2 * 601  # query, key, value, output, two numbers a row
    output = attend(*arrays)
    node = weakref.ref(output.grad_fn)
    del output
    assert node() is None  # no cycle keeps it


def test_second_order_is_refused_where_it_is_asked_for():
    query, key, value = drawn(*FLAT)
    output = attend(query, key, value)
    (grad,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    message = "^impl='tiled' has no gradient of second order; impl='reference' has one$"
    with pytest.raises(RuntimeError, match=message):
        (grad.square().sum() + query.sum()).backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_a_bias_that_requires_a_gradient_is_refused():
    query, key, value = drawn(*FLAT)
    bias = torch.zeros(5, 7, dtype=torch.float64, requires_grad=True)
    message = "^bias must not require a gradient for impl='tiled', got requires_grad=True; "
    message += "impl='reference' gives one$"
    with pytest.raises(ValueError, match=message):
        attnbook.attention(query, key, value, bias=bias, impl="tiled")
    with torch.no_grad():  # where nothing is asked of it
        attnbook.attention(query, key, value, bias=bias, impl="tiled")
    with forward_ad.dual_level():
        bias = forward_ad.make_dual(bias.detach(), torch.ones_like(bias))
        with pytest.raises(ValueError, match=message.replace("requires_grad=True", "a tangent")):
            attnbook.attention(query, key, value, bias=bias, impl="tiled")
    bias = bias.detach().requires_grad_()
    naive = attnbook.attention(query, key, value, bias=bias, impl="naive")  # autograd's own
    naive.square().sum().backward()
    assert bool((bias.grad != 0).any())


def test_a_bias_that_requires_a_gradient_is_refused_where_the_vjp_is_detached():
    pytest.importorskip("numba", reason="numba is not installed")
    arrays = drawn(*FLAT, (5, 3), (5, 7), dtype=torch.float32)
    message = "^bias must not require a gradient for impl='packed', got requires_grad=True; "
    with pytest.raises(ValueError, match=message):
        attnbook.attention_vjp(*arrays[:4], bias=arrays[4], impl="packed")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_forward_mode_is_refused_and_functional_gradients_are_right():
    arrays = drawn(*FLAT, grad=False)
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(attend, tuple(arrays), tuple(arrays))
    by_func = torch.func.grad(lambda *x: attend(*x).square().sum(), argnums=(0, 1, 2))(*arrays)
    leaves = drawn(*FLAT)
    attend(*leaves).square().sum().backward()
    for ours, leaf in zip(by_func, leaves, strict=True):
        torch.testing.assert_close(ours, leaf.grad)


# Dynamo says so of what it looks at
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_what_is_compiled_already_is_not_compiled_by_torch():
    pytest.importorskip("numba", reason="numba is not installed")

    def attend(*arrays):
        return 2 * attnbook.attention(*arrays, impl="packed")

    leaves, twins = (drawn(*FLAT, dtype=torch.float32) for _ in range(2))
    found = torch.compile(attend, backend="eager")(*leaves), attend(*twins)
    assert torch.equal(*found)
    for output in found:
        output.square().sum().backward()
    for ours, twin in zip(leaves, twins, strict=True):
        assert torch.equal(ours.grad, twin.grad)


def test_autocast_rounds_as_it_does_for_torch():
    arrays = drawn(*FLAT, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = attend(*arrays)
        theirs = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=False)
        wide = attend(*drawn(*FLAT))  # float64 stays
        output.sum().backward()
    assert output.dtype == theirs.dtype == torch.bfloat16
    assert wide.dtype == torch.float64
    assert all(x.grad.dtype == torch.float32 for x in arrays)
    rounded = [x.detach().bfloat16() for x in arrays]
    assert torch.equal(output, attend(*rounded))  # and float32 inside, as without autocast


def test_the_meta_device_has_shapes_and_no_autocast():
    arrays = [x.detach().to("meta").requires_grad_() for x in drawn(*GROUPED)]
    output = attend(*arrays)
    assert (output.shape, output.device.type) == ((2, 2, 3, 3), "meta")
    output.sum().backward()
    assert all(x.grad.shape == x.shape for x in arrays)


def test_a_gradient_of_nothing_is_nothing():
    arrays = drawn((0, 4), (7, 4), (7, 3))
    attend(*arrays).sum().backward()
    assert arrays[0].grad.shape == (0, 4)
    assert bool((arrays[1].grad == 0).all())
