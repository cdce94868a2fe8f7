"""Ring attention of real processes against PyTorch's own attention in one process."""

import numpy as np
import pytest
import ring_cases
import torch

from attnbook.distributed import unshard_sequence

TOLERANCES = {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}


def repeated(query, x):
    """Return keys or values with a head for every query head."""
    return x if query.ndim < 3 else x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)


def expected(name, case, size):
    """Return output and gradients by PyTorch's attention in float64, of all tokens."""
    *inputs, grad = (x.to(torch.float64) for x in ring_cases.drawn(name, case, size))
    query, key, value = (x.requires_grad_() for x in inputs)
    output = torch.nn.functional.scaled_dot_product_attention(
        *(query, repeated(query, key), repeated(query, value)),
        is_causal=case["is_causal"],
        scale=case["scale"],
    )
    output.backward(grad)
    return [output.detach().numpy(), *(x.grad.numpy() for x in inputs)]


def whole(found, case):
    """Return output and gradients of all tokens from those of each rank."""
    return [unshard_sequence(list(parts), case["layout"]) for parts in zip(*found, strict=True)]


def assert_close(ours, theirs, case):
    for x, y in zip(ours, theirs, strict=True):
        size = max(1.0, np.abs(y).max())
        np.testing.assert_allclose(x, y, rtol=0, atol=size * TOLERANCES[case["dtype"]])


@pytest.mark.parametrize("name", ring_cases.RING)
def test_three_processes_equal_one(equal, name):
    case = ring_cases.of(ring_cases.RING[name])
    found = whole([of_rank["ring"][name] for of_rank in equal], case)
    assert_close(found, expected(name, case, 3), case)


def test_each_process_may_have_its_own_scale(equal):
    for of_rank in equal:
        ours, theirs = of_rank["own scale"]
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


@pytest.mark.weekly
@pytest.mark.parametrize("name", ring_cases.PLAIN_RING)
def test_four_processes_and_a_pair_of_them_equal_one(lost, name):
    case = ring_cases.of(ring_cases.RING[name])
    _, _, before = lost
    of_four = [before[rank]["four"][name] for rank in range(4)]
    assert_close(whole(of_four, case), expected(name, case, 4), case)
    of_pair = [before[rank]["pair"][name] for rank in (1, 3)]
    assert_close(whole(of_pair, case), expected(name, case, 2), case)
