"""Every public name, called with one argument made odd: it answers, or it names what is wrong.

A run of the suite makes few of these calls, and every week it makes many.
"""

import copy
import inspect
import warnings

import numpy as np
import pytest
import torch
from cases import WEEKLY
from public_calls import public_calls

import attnbook
from attnbook.arrays.weights import Weights

CALLS = 20_000 if WEEKLY else 1000


def nested(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(2, 5), torch.ones(3, 5)], layout=layout)


ODD = (
    *(None, True, False, -1, 0, 1, 3, 2**31, 2**63, 2**64, 10**400, -(2**63), 0.5, -0.5, 1e400),
    *(float("nan"), 1j, "no", "", "reference", b"x", (), (1, 2), [], [1, 2], [[1], [1, 2]], {}),
    *({1}, object(), int, len, np.float32(0.5), np.int8(-1), np.bool_(True), np.array(True)),
    *(np.array(2), np.arange(3), np.arange(6.0).reshape(2, 3), np.ones((2, 3, 5), np.float16)),
    *(np.ones((0, 5)), np.ones((3, 0)), np.ones(3, complex), np.array(["a", "b"]), np.array(None)),
    *(np.array([2**64 - 1], "u8"), np.array([-1]), np.full((3, 5), np.nan), np.eye(3, dtype=bool)),
    *(np.ones((3, 5), ">f8"), np.ma.ones(3), torch.ones(3, 5), torch.ones(2, device="meta")),
    *(torch.ones(3).bfloat16(), torch.eye(3).to_sparse(), attnbook.LayerNormWeights()),
    *(np.ones((3, 5), [("a", "f4"), ("b", "i4")]), np.zeros(3, "V8"), np.ones(3, "datetime64[s]")),
    *(torch.ones(3, 5).to(torch.float8_e4m3fn), torch.ones(3, 5).to(torch.float8_e5m2)),
    *(nested(layout) for layout in (torch.strided, torch.jagged)),
)


BASES = public_calls()


def arguments_of(function, given):
    return {*inspect.signature(function).parameters, *given}


def copied(x):
    return x if isinstance(x, Weights) else copy.deepcopy(x)


@pytest.mark.parametrize("name", BASES)
def test_the_call_without_anything_odd_is_right(name):
    function, given = BASES[name]
    function(**given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BASES)
def test_an_odd_argument_is_taken_or_named(name):
    function, given = BASES[name]
    pairs = [(argument, i) for argument in sorted(given) for i in range(len(ODD))]
    rng = np.random.default_rng([len(BASES), *name.encode()])
    for k in rng.permutation(len(pairs))[: max(1, CALLS // len(BASES))]:
        argument, i = pairs[k]
        mine = {n: copied(x) for n, x in given.items()} | {argument: ODD[i]}
        try:
            function(**mine)
        except (TypeError, ValueError, ImportError) as error:
            text = str(error)
            assert any(n in text for n in arguments_of(function, given)), (
                f"{argument}={ODD[i]!r}: {text}"
            )
        except MemoryError:  # a size may be larger than this machine
            continue
        for n, x in given.items():
            if n != argument and isinstance(x, np.ndarray):
                np.testing.assert_array_equal(mine[n], x)
