"""When the Triton kernels round float32 to TF32, and what they are compiled to then.

triton_precision.py says how exact they are.
"""

import itertools
import warnings
from types import SimpleNamespace

import pytest
import torch
from cases import every_day

pytest.importorskip("triton", reason="triton is not installed")

import sass
import triton_precision
import triton_sass

from attnbook.kernels.triton_kernels.operands import precision_of

MATMUL = torch.backends.cuda.matmul


@pytest.fixture
def unset():
    """Leave the settings of PyTorch as they are."""
    before = torch.get_float32_matmul_precision()
    with warnings.catch_warnings(), triton_precision.set_to("ieee"):
        warnings.simplefilter("ignore")  # the older way to set it warns
        yield
        torch.set_float32_matmul_precision(before)


WRITES = {
    "matmul": lambda on: setattr(MATMUL, "fp32_precision", "tf32" if on else "ieee"),
    "flag": lambda on: setattr(MATMUL, "allow_tf32", on),
    "function": lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
}


@pytest.mark.parametrize("last", WRITES)
@pytest.mark.parametrize("first", WRITES)
def test_the_last_setting_holds(unset, first, last):
    """However it is written, and where the older reading of PyTorch raises."""
    for on in (True, False):
        WRITES[first](not on)
        WRITES[last](on)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert precision_of(torch.float32) == ("tf32" if on else "ieee")
            assert precision_of(torch.bfloat16) == "half"


@pytest.mark.parametrize(("flag", "expected"), [(True, "tf32"), (False, "ieee")])
def test_the_setting_of_an_older_pytorch(monkeypatch, flag, expected):
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=flag))
    assert precision_of(torch.float32) == expected


FEW = ((90, 64, "causal"), (80, 128, "plain"), (100, 64, "decode"))
"""For every day: a call of each generation."""
ALL = itertools.product(sass.SHARED_OF_A_BLOCK, triton_sass.WIDTHS, triton_sass.KINDS)


@pytest.mark.skipif(sass.tool("cuobjdump") is None, reason="there is no cuobjdump")
@pytest.mark.parametrize(
    ("dtype", "capability", "d", "name"),
    [
        *(("float32", *x) for x in FEW),
        *(("tf32", *x) for x in every_day(FEW, ALL)),
    ],
)
def test_only_tf32_is_on_the_tensor_cores(dtype, capability, d, name):
    with triton_precision.dtype_named(dtype) as float32:
        arguments = triton_sass.call(d, dtype=float32, **triton_sass.KINDS[name])
        found = triton_sass.kernels_of(arguments, "decode" not in name, capability)
        codes = {kernel: code for kernel, (code, kind) in found.items() if kind}
        codes |= triton_sass.paged_kernels(d, float32, capability=capability)
    codes.pop("merge_kernel")
    for kernel, code in codes.items():
        assert bool(code.count(*sass.PRODUCTS)) == (dtype == "tf32"), kernel
        assert code.stack == 0, kernel
        assert code.shared <= sass.SHARED_OF_A_BLOCK[capability] * 1024, kernel
