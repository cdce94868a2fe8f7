"""The Triton form: interpreted in a process of its own, and compiled for GPUs of six kinds."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import every_day, load, need_gpu
from test_linear_attention import FUNCTIONS, RULES, inputs, rules

pytest.importorskip("triton", reason="triton is not installed")

HERE = Path(__file__).parent
KERNELS = HERE.parent / "kernels"
sass, triton_sass = (load(KERNELS / name) for name in ("sass.py", "triton_sass.py"))

CASES = ((1, 3, 2), (70, 40, 50), (33, 16, 16), (19, 200, 17))
HALF = (torch.float32, torch.bfloat16)


def compare(device):
    """Compare the form with the recurrence in float64, for each rule, size and dtype."""
    for n, d_k, d_v in CASES:
        for dtype in HALF:
            drawn = [torch.tensor(x, device=device) for x in inputs(n, n, d_k, d_v, (2, 1))]
            each = [x.to(dtype) for x in drawn[:5]]
            state = drawn[5].to(torch.float32)
            for rule, function in FUNCTIONS.items():
                used = [*each[: 4 if rule == "delta" else 3], each[4]]
                exact = function(*(x.double() for x in used), state=state.double())
                got = function(*used, state=state, impl="triton")
                assert [x.dtype for x in got] == [dtype, torch.float32]
                for x, y in zip(got, exact, strict=True):
                    size = float(y.abs().max())
                    allowed = 2e-5 if dtype == torch.float32 else 2e-2
                    error = float((x.double() - y).abs().max()) / size
                    assert error < allowed, (rule, n, d_k, d_v, dtype, error)


def test_interpreted():
    paths = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parents[1])))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    code = "import test_triton_chunks; test_triton_chunks.compare('cpu')"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_on_a_gpu():
    need_gpu("torch")
    compare("cuda")


@rules
def test_without_a_gpu_the_error_says_what_is_taken(rule):
    drawn = [torch.tensor(x, dtype=torch.float32) for x in inputs(0)]
    each = drawn[: 4 if rule == "delta" else 3]
    with pytest.raises(ValueError, match='impl="triton" takes PyTorch tensors on a GPU, got torch'):
        FUNCTIONS[rule](*each, drawn[4], impl="triton")
    with pytest.raises(ValueError, match="on a GPU, got numpy"):
        FUNCTIONS[rule](*(x.numpy() for x in each), drawn[4].numpy(), impl="triton")


@rules
def test_keys_are_not_too_wide(rule):
    x = torch.zeros((2, 3, 257))
    each = (x, x, x) if rule == "decayed" else (x, x, x, x[..., 0])
    with (
        triton_sass.launching(None),
        pytest.raises(ValueError, match="takes keys of at most 256 features, got 257"),
    ):
        FUNCTIONS[rule](*each, impl="triton")


CASES_OF_CODE = itertools.product(
    sass.SHARED_OF_A_BLOCK, (16, *triton_sass.WIDTHS, 100), triton_sass.DTYPES[1:], RULES
)
OFTEN = (
    (80, 128, torch.float32, "decayed"),
    (90, 64, torch.float16, "delta"),
    (120, 256, torch.float32, "delta"),
)


@pytest.mark.skipif(sass.tool("cuobjdump") is None, reason="there is no cuobjdump")
@pytest.mark.parametrize(("capability", "d", "dtype", "rule"), every_day(OFTEN, CASES_OF_CODE))
def test_no_register_is_kept_in_memory(capability, d, dtype, rule):
    found = triton_sass.chunk_kernels(d, rule == "delta", dtype, capability=capability)
    code = found["chunk_kernel"]
    assert code.stack == code.spills == code.kernel.metadata.global_scratch_size == 0
    assert code.shared <= sass.SHARED_OF_A_BLOCK[capability] * 1024
    assert code.count("HMMA", "HGMMA")
