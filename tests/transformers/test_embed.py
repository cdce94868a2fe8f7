"""Embedding against one-hot rows and PyTorch, in every library and dtype."""

import math
import re

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, close, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import cross_entropy, embed

INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
SHAPES = st.sampled_from(((1,), (5,), (2, 3), (2, 1, 3), (0,), (2, 0)))


@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, st.sampled_from(INTEGERS), st.sampled_from((None, True, False)), st.integers(0, 99))
def test_agrees_with_the_loop_and_with_one_hot_rows(library, dtype, shape, kind, scale, seed):
    need(library, dtype)
    rng = np.random.default_rng(seed)
    ids, numbers = rng.integers(0, 7, shape), rng.standard_normal((7, 5))
    mine, table = library.array(ids, kind), library.array(numbers, dtype)
    got = embed(mine, table) if scale is None else embed(mine, table, scale=scale)
    assert library.same_kind(got, table)
    rounded = library.numpy(table)
    exact = oracle.embed(ids, rounded, scale is not False)
    close(library.numpy(got), exact, dtype, size=0)
    one_hot = np.eye(7)[ids] @ rounded * (1 if scale is False else math.sqrt(5))
    np.testing.assert_allclose(exact, one_hot, atol=1e-14)
    np.testing.assert_array_equal(library.numpy(mine), ids)
    np.testing.assert_array_equal(library.numpy(table), rounded)


def test_every_token_of_the_vocabulary_is_known(library):
    table = library.array(np.arange(21.0).reshape(7, 3))
    got = library.numpy(embed(library.array(np.arange(7)), table, scale=False))
    np.testing.assert_array_equal(got, np.arange(21.0).reshape(7, 3))
    assert tuple(embed(library.array(np.zeros((0,), int)), table[:0, :]).shape) == (0, 3)


def test_agrees_with_torch_and_has_its_gradients():
    torch.manual_seed(0)
    table = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[3, 3, 0], [6, 1, 3]])
    ours, theirs = embed(ids, table), torch.nn.functional.embedding(ids, table) * math.sqrt(5)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn(2, 3, 5, dtype=torch.float64)
    grads = [torch.autograd.grad(y, table, cotangent)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*grads)
    assert torch.autograd.gradcheck(lambda table: embed(ids, table), (table,))


def test_ids_are_checked_in_every_library(library):
    table = library.array(np.ones((7, 3)))
    for ids, got in (([0, 7], 7), ([[-1, 9]], -1), ([100, 3, -5], -5), ([6, 6, 8, 7], 8)):
        message = f"ids must be from 0 to 6 to be known to table, got {got}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            embed(library.array(np.array(ids)), table)
    with pytest.raises(TypeError, match=r"^ids must be an array of integers, got bool$"):
        embed(library.array(np.array([True, False])), table)


def test_ids_that_cannot_be_read_are_taken_as_they_are(monkeypatch):
    table, ids = torch.arange(6.0).reshape(3, 2), torch.tensor([[1, 2], [0, 1]])
    mapped = torch.func.vmap(lambda row: embed(row, table))(ids)
    torch.testing.assert_close(mapped, embed(ids, table))
    assert embed(ids.to("meta"), table.to("meta")).shape == (2, 2, 2)
    # while torch.compile looks on, no number is read
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.Tensor, "__int__", None)
    torch.testing.assert_close(embed(ids, table), mapped)


IDS, TABLE = np.array([0, 1]), np.ones((7, 3))
ERRORS = """
embed(np.array([0.0, 1.0]), TABLE)
    TypeError: ids must be an array of integers, got float64
embed(torch.tensor([0, 1]), TABLE)
    TypeError: ids must be an array of the same library as table (numpy), got torch
embed(np.array(3), TABLE)
    ValueError: ids must have shape (..., n), got ()
embed(IDS, np.ones((0, 3)))
    ValueError: ids must be from 0 to -1 to be known to table, got 1
embed(IDS, np.ones((7, 3), int))
    TypeError: table must have a real floating dtype, got int64
embed(IDS, np.ones((2, 7, 3)))
    ValueError: table must have shape (V, d_model), got (2, 7, 3)
embed(np.array([1]), np.eye(3), scale="no")
    TypeError: scale must be a bool, got str
"""

test_error = error_test(ERRORS, globals())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int32"])
def test_ids_of_pytorch_of_every_dtype_are_checked(dtype):
    table, known = torch.eye(4), torch.tensor([0, 3]).to(getattr(torch, dtype))
    assert torch.equal(embed(known, table, scale=False), table[[0, 3]])
    beyond = torch.tensor([0, 4]).to(getattr(torch, dtype))
    for call in (lambda: embed(beyond, table), lambda: cross_entropy(table[:2], beyond)):
        with pytest.raises(ValueError, match=r"must be from 0 to 3 to be known to .*, got 4$"):
            call()
