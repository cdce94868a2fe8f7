"""float32 in the Triton kernels as PyTorch is set to multiply it: as it is, or rounded to TF32.

triton_cases.py runs the check in Triton's interpreter, which is made to round here, or on a GPU.
"""

import itertools
from contextlib import contextmanager
from unittest import mock

import numpy as np
import paged_cases
import torch

SETTINGS = ("tf32", "ieee")
LEAST, MOST = 2e-5, 8 * 2.0**-10
"""Between these is the error of TF32, in units of the largest number; that of float32 is below."""


@contextmanager
def set_to(setting):
    """Set how PyTorch multiplies float32, "tf32" or "ieee"; afterwards as before."""
    matmul, name = torch.backends.cuda.matmul, "fp32_precision"
    if not hasattr(matmul, name):  # before PyTorch 2.9
        name, setting = "allow_tf32", setting == "tf32"
    before = getattr(matmul, name)
    setattr(matmul, name, setting)
    try:
        yield
    finally:
        setattr(matmul, name, before)


@contextmanager
def dtype_named(name):
    """Yield a dtype of PyTorch; for "tf32" it is float32, which PyTorch is set to round."""
    with set_to("tf32" if name == "tf32" else "ieee"):
        yield torch.float32 if name == "tf32" else getattr(torch, name)


@contextmanager
def rounding():
    """Let the interpreter cut factors to 10 bits for "tf32"; yields the precisions asked for."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, asked = InterpreterBuilder.create_dot, set()

    def cut(self, a, b, sums, precision, *rest):
        asked.add(precision.name.lower())
        if precision.name == "TF32":
            bits = [x.data.view(np.int32) & -(1 << 13) for x in (a, b)]
            a, b = (TensorHandle(x.view(np.float32), a.dtype) for x in bits)
        return dot(self, a, b, sums, precision, *rest)

    with mock.patch.object(InterpreterBuilder, "create_dot", cut):
        yield asked


def check_error(what, got, exact, is_rounded):
    error = float(((got.double() - exact).abs().max() / exact.abs().max()).detach())
    least, most = (LEAST, MOST) if is_rounded else (0.0, LEAST)
    assert least <= error <= most, f"{what}: {error:.1e}, not between {least} and {most}"


def check_setting(device="cpu"):
    """What holds when a pass begins: for the output, for few queries, pages and gradients."""
    for of_output, of_gradients in itertools.product(SETTINGS, repeat=2):
        with rounding() as asked, set_to(of_output):
            leaves, output, exact, grad = check_outputs(of_output == "tf32", device)
        assert asked == ({of_output} if device == "cpu" else set())
        with rounding() as asked, set_to(of_gradients):
            got = torch.autograd.grad(output, leaves[0], grad.float())
        assert asked == ({of_gradients} if device == "cpu" else set())
        expected = torch.autograd.grad(exact, leaves[1], grad)
        for what, *grads in zip(("query", "key", "value"), got, expected, strict=True):
            check_error(what, *grads, "tf32" in (of_output, of_gradients))


def check_outputs(is_rounded, device):
    """Return leaves in float32 and float64, the output of each, and a gradient of it."""
    import attnbook
    from attnbook.kernels import triton
    from attnbook.kernels.paging import paged_attention_of

    rng = np.random.default_rng(0)
    shapes = (2, 3, 37, 40), (2, 1, 131, 40), (2, 1, 131, 24)
    arrays = [torch.tensor(rng.standard_normal(shape), device=device) for shape in shapes]
    leaves = [[x.to(y).requires_grad_() for x in arrays] for y in (torch.float32, torch.float64)]
    pair = [
        attnbook.attention(*x, is_causal=True, impl=impl)
        for x, impl in zip(leaves, ("triton", "reference"), strict=True)
    ]
    check_error("output", *pair, is_rounded)
    few = leaves[0][0][..., -3:, :].detach(), *leaves[0][1:]
    got = attnbook.attention(*few, is_causal=True, impl="triton")
    check_error("few queries", got, pair[1][..., -3:, :], is_rounded)
    case = paged_cases.drawn(rng, 3, 4, 2, 1, 40, 24, 16, 90, lengths=(60, 17, 90))
    *wide, table, lengths = (torch.tensor(x, device=device) for x in case)
    got = triton.paged_attention(*(x.float() for x in wide), table, lengths, 0.3)
    check_error("pages", got, paged_attention_of(*wide, table, lengths, 0.3), is_rounded)
    return leaves, *pair, torch.tensor(rng.standard_normal(pair[1].shape), device=device)


CHECKS = {"tf32": check_setting}
