"""Nothing leaves the device of what is passed: the strict library refuses to mix, as a GPU does."""

import inspect

import numpy as np
import pytest
import torch
from public_calls import public_calls

import attnbook
from attnbook import masking, positions
from attnbook.arrays.weights import Weights

ROOMS = ("single_head", "multi_head", "masking", "positions", "transformers")
MODULES = (attnbook, masking, positions)
CALLS = {
    name: (function, given)
    for name, (function, given) in public_calls().items()
    if function.__module__.split(".")[1] in ROOMS and any(hasattr(m, name) for m in MODULES)
}
UNREAD = {("gelu", "array_api_strict"), ("from_additive", "torch"), ("mixture_of_experts", "torch")}
"""What looks at numbers, by way of NumPy, and so cannot run on such a device."""
ACTIVATIONS = (attnbook.relu, attnbook.gelu, attnbook.gelu_tanh, attnbook.silu)
CALLS |= {function.__name__: (function, {"x": np.ones((2, 3))}) for function in ACTIVATIONS}
x, grouped = np.ones((2, 3, 4)), attnbook.MultiHeadWeights.init(0, 4, 2, n_kv_heads=1)
heads = {"query": x, "key": x, "value": x, "weights": grouped}
CALLS["grouped heads"] = (attnbook.multi_head_attention, heads)
for nowhere in ("from_valid_lengths", "relative_buckets"):  # they are given no array
    del CALLS[nowhere]
for made in [name for name, (made, _) in CALLS.items() if isinstance(made, type)]:
    del CALLS[made]  # so are rotations and what scales their frequencies


def devices_of(result):
    """Return the devices of all arrays of a result, however they are nested."""
    if isinstance(result, Weights):
        result = result.arrays()
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple):
        return {device for part in result for device in devices_of(part)}
    return set() if result is None else {result.device}


@pytest.mark.parametrize("name", CALLS)
def test_everything_stays_on_its_device(name):
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    function, given = CALLS[name]
    given = {key: x for key, x in given.items() if key != "impl"}
    if "like" in inspect.signature(function).parameters:
        given = {"like": np.ones(2), **given}
    for library, device in ((strict, strict.Device("device1")), (torch, torch.device("meta"))):
        if (name, library.__name__) in UNREAD:
            continue
        placed = {
            key: library.asarray(x, device=device)
            if isinstance(x, np.ndarray)
            else x.to(library.__name__, device=device)
            if isinstance(x, Weights)
            else x
            for key, x in given.items()
        }
        assert devices_of(function(**placed)) == {device}
