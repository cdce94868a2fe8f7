"""The Triton rung: interpreted on the CPU, compiled for the H200 without one, run where there is.

The interpreter runs every case of triton_cases.py in one process of its own. What it cannot show
is that the compiler takes the kernels and uses the matrix units: they are compiled here for the
compute capability 9.0, which needs no GPU. `pytest -m gpu` runs the same cases on a GPU, with the
tiles that are used there.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton_cases

import attnbook

pytest.importorskip("triton", reason="triton is not installed")

HERE = Path(__file__).parent
NAMES = (*triton_cases.CASES, *triton_cases.OTHER)


@pytest.fixture(scope="module")
def interpreted():
    """What each case found wrong in Triton's interpreter."""
    paths = os.pathsep.join((str(HERE.parent), str(HERE.parents[1])))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-W", "error", str(HERE / "triton_cases.py")]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_interpreted(interpreted, name):
    assert interpreted[name] == "", interpreted[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    triton_cases.run(name, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", triton_cases.LARGE)
def test_large_on_a_gpu(name):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    triton_cases.check_large(name)


# Compiled for compute capability 9.0.


class Hopper:
    """Stands in for the driver of a GPU that is not there."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return "compute capability 9.0"

    def get_current_stream(self, device=None):
        return 0


@pytest.fixture
def compiled(monkeypatch):
    """Kernels that a call would launch, by name, compiled in place of being launched."""
    import triton

    from attnbook.kernels.triton_kernels import backward, decode, forward, tiles

    found = {}

    def compile_only(kernel, programs, *args, **meta):
        found[kernel.__name__] = kernel.warmup(*args, grid=(programs,), **meta)

    for module in (backward, decode, forward, tiles):
        monkeypatch.setattr(module, "launch", compile_only)
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    return found


def stack_of(kernel, tmp_path):
    """Return how many bytes a thread keeps outside its registers."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(kernel.asm["cubin"])
    done = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", done.stdout)[1])


def call(d, is_causal=False, mask=None, bias=None, dtype=torch.bfloat16, n_q=512, group=1):
    """Return the arguments of a call whose arrays hold no numbers anybody reads."""
    query = torch.empty((2, 4, group, n_q, d), dtype=dtype)
    key, value = (torch.empty((2, 4, 1, 512, d), dtype=dtype) for _ in range(2))
    return query, key, value, mask, bias, d**-0.5, is_causal


MASK = torch.ones((512, 512), dtype=torch.bool)
CALLS = {
    "64": call(64),
    "128 causal": call(128, True),
    "64 mask": call(64, True, MASK),
    "128 bias": call(128, bias=MASK.to(torch.bfloat16)),
    "16 float32": call(16, dtype=torch.float32),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_forward_pass_compiles_for_sm_90(compiled, tmp_path, name):
    from attnbook.kernels import triton

    triton.forward(*CALLS[name])
    kernel = compiled["forward_kernel"]
    assert "sm_90a" in kernel.asm["ptx"]
    assert "cp.async.bulk.tensor" in kernel.asm["ptx"]  # the copy engine loads the tiles
    assert ("wgmma.mma_async" in kernel.asm["ptx"]) == ("float32" not in name)
    if name in ("64", "128 causal", "64 mask"):
        assert stack_of(kernel, tmp_path) <= (64 if "mask" in name else 0)
        # two programs beside each other: while one takes exponentials, the other multiplies
        assert 2 * (kernel.metadata.shared + 1024) <= 228 * 1024
    assert ("kinds_kernel" in compiled) == ("mask" in name)


@pytest.mark.parametrize("name", ["64", "128 causal", "64 mask"])
def test_the_backward_pass_compiles_for_sm_90(compiled, tmp_path, name):
    from attnbook.kernels import triton

    arguments = CALLS[name]
    output = torch.empty_like(arguments[0])
    triton.backward(*arguments, output, torch.empty((*output.shape[:-1], 1)), output)
    assert "rows_kernel" in compiled
    for kernel in (compiled["key_kernel"], compiled["query_kernel"]):
        assert "wgmma.mma_async" in kernel.asm["ptx"]
        assert stack_of(kernel, tmp_path) <= 64


def test_decoding_compiles_for_sm_90(compiled, tmp_path):
    from attnbook.kernels import triton

    triton.forward(*call(128, n_q=1, group=4))
    assert set(compiled) == {"range_kernel", "merge_kernel"}
    assert "mma.sync" in compiled["range_kernel"].asm["ptx"]
    assert all(stack_of(kernel, tmp_path) == 0 for kernel in compiled.values())


def test_sizes_of_one_compile(compiled):
    """Triton compiles a size of 1 as a constant of its own."""
    from attnbook.kernels.triton_kernels import backward, decode, forward
    from attnbook.kernels.triton_kernels.operands import operands

    one = torch.empty((1, 1, 1), dtype=torch.bfloat16)
    x = operands(one, one, one, one == 0, one, 1.0, True)
    forward.forward(x)
    decode.forward(x)
    backward.backward(x, one, one.float(), one)
    assert len(compiled) == 7


# Without running a kernel.


@pytest.mark.parametrize(("name", "d_k", "d_v"), [("query", 257, 4), ("value", 4, 300)])
def test_rows_are_not_too_wide(name, d_k, d_v):
    from attnbook.kernels import triton

    arrays = (torch.zeros((3, d_k)), torch.zeros((5, d_k)), torch.zeros((5, d_v)))
    letter, got = ("d_k", d_k) if name == "query" else ("d_v", d_v)
    message = f"{name} must have {letter} of at most 256 for impl='triton', got {got}"
    with pytest.raises(ValueError, match=message):
        triton.attention(*arrays, None, None, 1.0, False)


def test_arrays_must_be_on_a_gpu():
    x = torch.zeros((3, 4))
    with pytest.raises(ValueError, match="query must be on device 'cuda' for impl='triton'"):
        attnbook.attention(x, x, x, impl="triton")


def test_arrays_of_rows_that_start_anywhere_are_copied():
    from attnbook.kernels.triton_kernels.operands import aligned

    x = torch.arange(3 * 5 * 8, dtype=torch.float32).reshape(3, 5, 8)
    assert aligned(x).data_ptr() == x.data_ptr()
    assert aligned(x[:, :, :4]).data_ptr() == x.data_ptr()
    for odd in (x[:, :, 1:5], x.mT, x[:, :, :7].contiguous(), x[:, :1, :1].expand(3, 5, 1)):
        copy = aligned(odd)
        assert copy.data_ptr() % 16 == 0
        assert copy.stride(-1) == 1
        assert copy.stride(-2) % 4 == 0
        assert torch.equal(copy[..., : odd.shape[-1]], odd)
        assert not copy[..., odd.shape[-1] :].any()


def test_keys_are_split_among_the_whole_device(monkeypatch):
    from types import SimpleNamespace

    from attnbook.kernels.triton_kernels import tiles
    from attnbook.kernels.triton_kernels.tiles import Tile, splits_of_keys

    device = SimpleNamespace(type="cuda")
    sizes = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(tiles.torch.cuda, "get_device_properties", lambda device: sizes)
    tile = Tile(16, 64, 4, 4)
    for n_k, programs, expected in ((10**6, 8, 33), (10**6, 1000, 1), (700, 8, 3), (1, 8, 1)):
        x = SimpleNamespace(query=SimpleNamespace(device=device), n_k=n_k)
        assert splits_of_keys(x, tile, programs) == expected
