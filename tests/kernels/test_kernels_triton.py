"""The Triton rung: interpreted on the CPU, compiled for the H200 without one, run where there is.

The interpreter runs every case of triton_cases.py in one process of its own. What it cannot show
is that the compiler takes the kernels and uses the Tensor Cores: they are compiled here for the
compute capability 9.0, which needs no GPU. `pytest -m gpu` runs the same cases on a GPU, with the
tiles that are used there.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import WEEKLY, every_day, need_gpu

import attnbook

pytest.importorskip("triton", reason="triton is not installed")

import sass
import triton_cases
import triton_pointers
import triton_precision
import triton_rules
import triton_sass
from triton_sass import MASK, call, compiling, kernels_of, launching

from attnbook.kernels import KERNELS
from attnbook.kernels.triton_kernels.tile_sizes import MOST_HELD

HERE = Path(__file__).parent
NAMES = (*triton_cases.CASES, *triton_cases.OTHER)
OFTEN = (
    *("everything", "bfloat16, grouped", "every dtype, causal", "one mask for all", "no features"),
    *("no keys, and a mask", "no keys, and a bias", "no queries, and a bias"),
    *("keys without a batch", "decode, masks", "decode, three axes"),
    *("lists of tiles", "negative scale", "not numbers", "backends", "rounded once"),
    *triton_rules.CHECKS,
    *triton_precision.CHECKS,
    "pages",
    *(f"{name}, by pointers" for name in triton_pointers.OFTEN),
)
"""One case at least of every path: the interpreter takes a second for each."""


@pytest.fixture(scope="module")
def interpreted():
    """What each case found wrong in Triton's interpreter."""
    paths = os.pathsep.join((str(HERE.parent), str(HERE.parents[1])))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-W", "error", str(HERE / "triton_cases.py")]
    names = () if WEEKLY else OFTEN
    done = subprocess.run(
        [*command, *names], env=environment, cwd=HERE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", every_day(OFTEN, NAMES))
def test_interpreted(interpreted, name):
    assert interpreted[name] == "", interpreted[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name):
    need_gpu("torch")
    triton_cases.run(name, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", triton_cases.LARGE)
def test_large_on_a_gpu(name):
    need_gpu("torch")
    triton_cases.check_large(name)


# Compiled for compute capability 9.0: see triton_sass.py.

CALLS = {
    "64": call(64),
    "128 causal": call(128, True),
    "64 mask": call(64, mask=MASK),
    "128 bias": call(128, bias=MASK),
    "128 float32 causal": call(128, True, dtype=torch.float32),
}
needs_tools = pytest.mark.skipif(sass.tool("cuobjdump") is None, reason="there is no cuobjdump")


def check_code(code, kind):
    """No register is kept in memory, nothing is asked of an allocator, products are not alone."""
    assert code.spills == code.stack == 0
    assert code.kernel.metadata.global_scratch_size == 0
    assert "sm_90a" in code.kernel.asm["ptx"]
    if kind is not None:
        assert "cp.async.bulk.tensor" in code.kernel.asm["ptx"]  # the TMA loads the tiles
        assert code.count("UTMALDG")
        assert "tensormap.replace" not in code.kernel.asm["ptx"]
        if kind.D_K <= 128:  # wider, those of the keys leave no room for more than one
            assert 2 * code.waits <= code.products


@needs_tools
@pytest.mark.parametrize("name", CALLS)
def test_the_forward_pass_on_sm_90(name):
    found = kernels_of(CALLS[name], backward=False)
    code, kind = found["forward_kernel"]
    check_code(code, kind)
    assert bool(code.products) == ("float32" not in name)
    if name in ("64", "64 mask"):
        assert code.blocks == 2  # while one takes exponentials, the other multiplies
    if name == "128 causal":
        assert code.of_a_score(kind.BLOCK_Q, kind.BLOCK_K)[0] < 8.5
    assert ("kinds_kernel" in found) == ("mask" in name)


@needs_tools
@pytest.mark.parametrize(
    "name", every_day(["128 causal"], ["64", "128 causal", "128 float32 causal"])
)
def test_the_backward_pass_on_sm_90(name):
    found = kernels_of(CALLS[name])
    for kernel in ("rows_kernel", "key_kernel", "query_kernel"):
        code, kind = found[kernel]
        check_code(code, kind)
        assert bool(code.products) == ("float32" not in name and kind is not None)


@needs_tools
def test_decoding_on_sm_90():
    found = kernels_of(call(128, n_q=1, group=4), backward=False)
    assert set(found) == {"range_kernel", "merge_kernel"}
    assert found["range_kernel"][0].count("HMMA")
    for code, kind in found.values():
        check_code(code, kind)


PAGED = ((90, 128, torch.bfloat16), (86, 256, torch.float16))
PAGED_ALL = itertools.product(sass.SHARED_OF_A_BLOCK, triton_sass.WIDTHS, triton_sass.DTYPES)


@needs_tools
@pytest.mark.parametrize(("capability", "d", "dtype"), every_day(PAGED, PAGED_ALL))
def test_decoding_from_pages_spills_nowhere(capability, d, dtype):
    found = triton_sass.paged_kernels(d, dtype, capability=capability)
    assert set(found) == {"page_kernel", "merge_kernel"}
    assert bool(found["page_kernel"].count("HMMA")) == (dtype != torch.float32)
    for code in found.values():
        assert code.spills == code.stack == 0
        assert code.shared <= sass.SHARED_OF_A_BLOCK[capability] * 1024


@pytest.mark.weekly
@needs_tools
@pytest.mark.parametrize("name", triton_sass.KINDS)
@pytest.mark.parametrize("d", triton_sass.WIDTHS)
@pytest.mark.parametrize("dtype", triton_sass.DTYPES)
def test_every_kernel_on_sm_90(dtype, d, name):
    arguments = call(d, dtype=dtype, **triton_sass.KINDS[name])
    for code, kind in kernels_of(arguments, "decode" not in name).values():
        check_code(code, kind)


OTHERS = (80, 86, 89, 100, 120)
FEW = ((80, 64, "plain"), (89, 64, "grouped causal mask"), (100, 128, "plain"), (120, 128, "all"))


@needs_tools
@pytest.mark.parametrize("dtype", every_day(triton_sass.DTYPES[:1], triton_sass.DTYPES))
@pytest.mark.parametrize(
    ("capability", "d", "name"),
    every_day(FEW, itertools.product(OTHERS, triton_sass.WIDTHS, triton_sass.KINDS)),
)
def test_no_kernel_spills_on_other_gpus(capability, d, name, dtype):
    arguments = call(d, dtype=dtype, **triton_sass.KINDS[name])
    found = kernels_of(arguments, "decode" not in name, capability)
    for kernel, (code, kind) in found.items():
        assert code.stack == 0, kernel
        assert code.shared <= sass.SHARED_OF_A_BLOCK[capability] * 1024, kernel
        if capability in (90, 100) or dtype == torch.float32 or kind is None:
            continue
        if reads_ahead(kernel, code, kind):
            assert code.count("LDGSTS"), kernel  # copies run ahead of the products


def reads_ahead(kernel, code, kind):
    """Say whether a kernel should copy tiles while it multiplies others.

    A loop over tiles that holds a loop over the ranges of each query does not.
    """
    held = 1 if kernel == "key_kernel" else MOST_HELD
    return code.kernel.metadata.num_stages > 1 and (kind.APART or held >= kind.RANGES)


@needs_tools
@pytest.mark.parametrize(("capability", "most"), [(90, 10), (80, 11), (89, 11), (120, 11)])
def test_instructions_a_score(capability, most):
    """One exponential a score, to base 2, and the scale in the multiply-add of the shift."""
    found = kernels_of(call(64), backward=False, capability=capability)
    code, kind = found["forward_kernel"]
    assert code.of_a_score(kind.BLOCK_Q, kind.BLOCK_K)[0] <= most
    loop = min(code.loops, key=len)
    scores = kind.BLOCK_Q * kind.BLOCK_K // code.threads
    faded = 2 if code.threads == 256 else 4  # rows of a thread
    assert sum(x.is_a("MUFU") for x in loop) <= scores + faded
    assert all(x.name == "MUFU.EX2" for x in loop if x.is_a("MUFU"))
    assert sum(x.is_a("FFMA") for x in loop) <= scores + faded


@pytest.mark.weekly
@needs_tools
def test_sizes_of_one_compile():
    """Triton compiles a stride or a width of 1 as a constant of its own."""
    from attnbook.kernels.triton_kernels import backward, decode, forward
    from attnbook.kernels.triton_kernels.operands import operands

    one = torch.empty((1, 1, 1), dtype=torch.bfloat16)
    x = operands(one, one, one, one == 0, one, 1.0, True)
    with compiling() as found:
        forward.forward(x)
        decode.forward(x)
        backward.backward(x, one, one.float(), one)
    assert len(found) == 7


@needs_tools
def test_one_compiled_kernel_serves_all_sizes():
    made = set()
    for shape, n_k in (((2, 16, 512, 64), 512), ((1, 1, 512, 64), 1), ((3, 337, 64), 511)):
        x, key = (torch.empty(size, dtype=torch.bfloat16) for size in (shape, (n_k, 64)))
        found = kernels_of((x, key, key, None, None, 0.125, False), backward=False)
        made.add(found["forward_kernel"][0].kernel.hash)
    assert len(made) == 1


# Without running a kernel.


@pytest.mark.parametrize(("n_q", "most"), [(512, 60), (1, 80)], ids=["forward", "decode"])
def test_the_host_does_little_before_a_launch(n_q, most):
    """A call of Python is a tenth of a microsecond or more; before there were 207 and 271."""
    rung, arguments, calls = KERNELS["triton"].load(), call(64, True, n_q=n_q), []
    with launching(lambda *args, **meta: None):
        rung.forward(*arguments)
        sys.setprofile(lambda frame, event, arg: calls.append(event))
        try:
            rung.forward(*arguments)
        finally:
            sys.setprofile(None)
    assert sum("call" in event for event in calls) <= most


def test_a_layout_is_found_once():
    from attnbook.kernels.triton_kernels.operands import operands

    first, second = (operands(*call(64)) for _ in range(2))
    assert first.layout is second.layout
    assert first.layout is not operands(*call(64, n_q=3)).layout


@pytest.mark.parametrize(("name", "d_k", "d_v"), [("query", 257, 4), ("value", 4, 300)])
def test_rows_are_not_too_wide(name, d_k, d_v):
    from attnbook.kernels import triton

    arrays = (torch.zeros((3, d_k)), torch.zeros((5, d_k)), torch.zeros((5, d_v)))
    letter, got = ("d_k", d_k) if name == "query" else ("d_v", d_v)
    message = f"{name} must have {letter} of at most 256 for impl='triton', got {got}"
    with pytest.raises(ValueError, match=message):
        triton.attention(*arrays, None, None, 1.0, False)


def test_pages_are_for_few_queries():
    from attnbook.kernels import triton

    query, pages = torch.zeros((1, 4, 33, 8)), torch.zeros((2, 1, 4, 8))
    table, lengths = torch.zeros((1, 2), dtype=torch.int64), torch.tensor([3])
    message = "query must have at most 128 rows per key head for impl='triton', got 132"
    with pytest.raises(ValueError, match=message):
        triton.paged_attention(query, pages, pages, table, lengths, 1.0)


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


def test_masks_that_cannot_be_loaded_by_vectors_are_copied():
    from attnbook.kernels.triton_kernels.operands import in_vectors

    mask = torch.arange(3 * 5 * 32).reshape(3, 5, 32) % 3 == 0
    for whole in (mask, mask[:, :, :16], mask[:, :, :1], mask[:1].expand(7, 5, 32), None):
        assert in_vectors(whole) is whole
    column = in_vectors(torch.ones((5, 1), dtype=torch.bool))
    assert column.shape == (5, 1)
    assert column.stride(0) == 16
    for odd in (mask[:, :, :17], mask[:, :, 1:17], mask.mT, mask[:, :, ::2]):
        copy = in_vectors(odd)
        assert copy.is_contiguous()
        assert copy.shape[-1] % 16 == copy.data_ptr() % 16 == 0
        assert torch.equal(copy[..., : odd.shape[-1]], odd)
        assert not copy[..., odd.shape[-1] :].any()


def test_keys_are_split_among_the_whole_device(monkeypatch):
    from types import SimpleNamespace

    from attnbook.kernels.triton_kernels import tiles
    from attnbook.kernels.triton_kernels.tiles import splits_of_keys

    monkeypatch.setattr(tiles, "processors_of", lambda device: 132)
    sizes = ((10**6, 8, 33), (10**6, 1, 132), (10**6, 1000, 1), (700, 8, 3), (1, 8, 1))
    for n_k, programs, expected in sizes:
        x = SimpleNamespace(query=SimpleNamespace(device=None))
        assert splits_of_keys(x, -(-n_k // 64), programs) == expected
