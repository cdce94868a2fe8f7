"""Rules in the Triton kernels, against PyTorch's formula with the dense mask in float64.

triton_cases.py runs these checks in Triton's interpreter or on a GPU.
"""

import formula
import numpy as np
import torch
from cases import WEEKLY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnbook.masking import Causal, Chunks, Documents, FirstKeys, SlidingWindow

LEADING = (((), ()), ((2, 3), (2, 3)), ((2, 3), (2, 1)), ((2, 1, 3, 1), (1, 2, 1, 3)))
"""Leading axes of the queries and of the keys: one head, heads, grouped heads, a copy of all."""
OF_RULES = {(): [()], (2, 3): [(), (2, 1), (3,), (2, 3)], (2, 1, 3, 1): [(), (2, 2, 1, 1), (3, 1)]}
SETTINGS = settings(
    max_examples=120 if WEEKLY else 12,
    deadline=None,
    database=None,
    derandomize=not WEEKLY,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def calls(draw):
    """Return a rule, leading axes of queries and keys, n_q, n_k, and whether there is a bias."""
    of_query, of_key = draw(st.sampled_from(LEADING))
    n_q, n_k = draw(st.sampled_from([(1, 50), (3, 37), (37, 64), (40, 21), (35, 35)]))
    leading = st.sampled_from(OF_RULES[of_query])
    numbers = np.random.default_rng(draw(st.integers(0, 99)))

    def documents(axes, count):
        ids = numbers.integers(0, count, (*axes, n_k))
        return Documents(np.sort(ids, -1) if count < 5 else ids)

    leaves = st.one_of(
        st.just(Causal()),
        st.builds(SlidingWindow, st.integers(0, 20), st.integers(0, 20)),
        st.builds(lambda axes: FirstKeys(numbers.integers(0, n_k, axes)), leading),
        st.builds(Chunks, st.integers(1, 40)),
        st.builds(documents, leading, st.integers(1, 8)),
    )
    rule = draw(
        st.recursive(
            leaves,
            lambda x: st.one_of(
                x.map(lambda a: ~a),
                st.tuples(x, x).map(lambda pair: pair[0] & pair[1]),
                st.tuples(x, x).map(lambda pair: pair[0] | pair[1]),
            ),
            max_leaves=4,
        )
    )
    return rule, of_query, of_key, n_q, n_k, draw(st.booleans())


def arrays_of(of_query, of_key, n_q, n_k, has_bias, device):
    """Return query, key, value, bias and the gradient of the output, in float32."""
    rng = np.random.default_rng(n_q + n_k)
    leading = np.broadcast_shapes(of_query, of_key)
    shapes = (
        (*of_query, n_q, 8),
        (*of_key, n_k, 8),
        (*of_key, n_k, 8),
        (n_q, n_k),
        (*leading, n_q, 8),
    )
    arrays = [torch.tensor(rng.standard_normal(x), dtype=torch.float32) for x in shapes]
    arrays = [x.to(device) for x in arrays]
    return *arrays[:3], arrays[3] if has_bias else None, arrays[4]


def check_rules(device="cpu"):
    """Any expression of rules: output and gradients, in small tiles that are walked either way."""

    @SETTINGS
    @given(calls(), st.booleans(), st.integers(1, 4))
    def check(call, apart, splits):
        rule, *sizes = call
        check_rule(rule, sizes, apart, splits, device)

    check()


def check_rule(rule, sizes, apart, splits, device):
    from attnbook.arrays.array import sum_to_shape
    from attnbook.kernels.triton_kernels import backward, decode, forward
    from attnbook.kernels.triton_kernels.operands import operands
    from attnbook.kernels.triton_kernels.tiles import Tile

    *arrays, bias, grad = arrays_of(*sizes, device)
    n_q, n_k = sizes[2:4]
    x = operands(*arrays, rule.intervals(n_q, n_k), bias, 0.3, False)
    small, other = Tile(16, 16, 4, 1, apart=apart), Tile(16, 32, 4, 1, apart=apart)
    runs = [forward.forward(x, small)]
    if decode.takes(x):
        runs.append(decode.forward(x, small, splits))
    mask = torch.as_tensor(rule.dense(n_q, n_k), device=device)
    leaves = [array.double().requires_grad_() for array in arrays]
    wide = None if bias is None else bias.double()
    exact, _ = formula.attention(*leaves, mask, wide, 0.3, False)
    for output, _ in runs:
        torch.testing.assert_close(output.double(), exact, rtol=1e-4, atol=2e-5)
    got = backward.backward(x, *runs[0], grad, other, small)
    for own, leaf, theirs in zip(
        got, leaves, torch.autograd.grad(exact, leaves, grad.double()), strict=True
    ):
        own = sum_to_shape(own, tuple(leaf.shape)).double()
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-4)


def check_lists_of_several_lengths(device="cpu"):
    """Decoding where each sequence, or each head, visits a number of tiles of its own.

    Every list has tile 0 and is padded with zeros, so a program that reads on behind the end of its
    list counts this tile again.
    """
    two = np.repeat([0, 1, 0], [10, 60, 26])  # the last document has two pieces
    documents = Documents(np.stack([two, 0 * two])[:, np.newaxis])
    heads = FirstKeys([[16, 96, 40], [3, 80, 64]])
    for rule, of_key in ((documents, (2, 1)), (heads, (2, 3))):
        for apart, splits in ((False, 2), (True, 5)):
            check_rule(rule, ((2, 3), of_key, 2, 96, False), apart, splits, device)


def check_hidden_tiles_are_not_read(device="cpu"):
    """NaN in the values of a hidden tile reaches no output and no gradient of the queries."""
    from attnbook.kernels.triton_kernels import backward, decode, forward
    from attnbook.kernels.triton_kernels.operands import operands
    from attnbook.kernels.triton_kernels.tiles import Tile

    rule, small = FirstKeys(3) | (SlidingWindow(10) & Causal()), Tile(16, 16, 4, 1)
    for n_q, path in ((16, forward), (3, decode)):
        *arrays, _, grad = arrays_of((2, 3), (2, 1), n_q, 96, False, device)
        for array in arrays[1:]:
            array[..., 16:64, :] = torch.nan
        x = operands(*arrays, rule.intervals(n_q, 96), None, 0.3, False)
        output, log_total = path.forward(x, small)
        assert torch.isfinite(output).all()
        grads = backward.backward(x, output, log_total, grad, small, small)
        assert torch.isfinite(grads[0]).all()
        assert (grads[1][..., 16:64, :] == 0).all()  # no query visits them


def check_public(device="cpu"):
    """By name, with autograd: the kernels get ranges, and nothing makes the dense mask."""
    from unittest import mock

    import attnbook
    from attnbook.arrays.intervals import Intervals

    rule = FirstKeys([[2], [30]]) | SlidingWindow(7)
    for n_q in (40, 2):
        *arrays, bias, grad = arrays_of((2, 3), (2, 1), n_q, 40, True, device)
        leaves = [x.requires_grad_() for x in arrays]
        runs = []
        for impl, mask in (("triton", rule), ("reference", torch.as_tensor(rule.dense(n_q, 40)))):
            mask = mask if mask is rule else mask.to(device)
            with mock.patch.object(Intervals, "dense", side_effect=AssertionError("dense")):
                output = attnbook.attention(
                    *leaves, mask=mask, bias=bias, is_causal=True, impl=impl
                )
                runs.append((output, *torch.autograd.grad(output, leaves, grad)))
        for ours, theirs in zip(*runs, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


CHECKS = {
    "rules": check_rules,
    "rules, lists of several lengths": check_lists_of_several_lengths,
    "rules, hidden tiles": check_hidden_tiles_are_not_read,
    "rules by name": check_public,
}
