"""The Triton form: interpreted in a process of its own, and compiled for a Hopper GPU."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from cases import load, need_gpu
from test_linear_attention import FUNCTIONS, inputs, rules

pytest.importorskip("triton", reason="triton is not installed")

HERE = Path(__file__).parent
sass = load(HERE.parent / "kernels" / "sass.py")

CASES = ((1, 3, 2), (70, 40, 50), (33, 16, 16))
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


@pytest.mark.skipif(sass.tool("cuobjdump") is None, reason="there is no cuobjdump")
@rules
def test_compiled_for_hopper_nothing_is_kept_in_memory(rule):
    import triton

    from attnbook.linear_attention import triton_chunks
    from attnbook.linear_attention.arguments import Tokens

    made = []

    def compile_only(kernel, programs, device, *arguments, **options):
        made.append(sass.read(kernel.warmup(*arguments, grid=(programs,), **options)))

    x, each, state = torch.empty((2, 300, 64)), torch.empty((2, 300)), torch.empty((2, 64, 64))
    tokens = Tokens(x, x, x, each, each if rule == "delta" else None, state)
    with (
        mock.patch.object(triton.runtime.driver, "_active", sass.Hopper()),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(triton_chunks, "launch", compile_only),
        mock.patch.object(triton_chunks, "DEVICES", ("cpu",)),
    ):
        triton_chunks.compiled(tokens, half=True)
    assert made[0].spills == made[0].stack == 0
    assert made[0].count("HMMA", "HGMMA")
