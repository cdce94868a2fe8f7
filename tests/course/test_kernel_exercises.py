"""Exercises whose answer is a kernel: they are marked where the packages that it imports are."""

import dataclasses

import pytest
from samples import WEIGHTS, sample

from course.judge import mark
from course.parents import parents

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

DOUBLE = sample(
    "double",
    names=["double"],
    calls=["check_double(double)"],
    check="""\
import numpy as np


def check_double(double):
    x = np.random.default_rng(3).normal(size=5).astype("float32")
    return [np.array_equal(double(x), 2 * x)]""",
    given="""\
import os
import torch

try:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = tl = None""",
    stub="def double(x):\n    ...",
    answer="""\
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def double(x):
    x = torch.as_tensor(x)
    y = torch.empty_like(x)
    kernel[(1,)](x, y, len(x), BLOCK=8)
    return y.numpy()""",
)


def test_which_need_packages():
    assert DOUBLE.needs_packages
    assert not WEIGHTS.needs_packages
    assert not dataclasses.replace(DOUBLE, given="import torch").needs_packages


def test_a_kernel_is_marked():
    with parents() as ready:
        assert mark(DOUBLE, DOUBLE.answer, "secret", ready).share == 1
        wrong = DOUBLE.answer.replace("2 * tl", "3 * tl")
        assert mark(DOUBLE, wrong, "secret", ready).share == 0
