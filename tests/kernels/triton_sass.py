"""What the Triton kernels become on a GPU of each generation.

`python tests/kernels/triton_sass.py [--capability 80 90 ...] [--dtype bfloat16 ...] [WIDTH ...]`
prints a line for each kernel that a call would launch, for every kind of call and every width of
rows, and needs no GPU. The dtype tf32 is float32 where PyTorch is set to round it.
test_kernels_triton.py holds what it prints to account. *Stack* is the bytes per thread that are
kept in memory, *shared* the bytes of shared memory of a block, *products* the instructions of the
Tensor Cores.
"""

import argparse
import itertools
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from unittest import mock

import numpy as np
import sass
import torch
import triton_precision

from attnbook.arrays.intervals import Intervals
from attnbook.kernels import KERNELS

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (64, 80, 128, 256)
N = 511  # no multiple of anything: nothing may hang on that
MASK = torch.ones((N, N), dtype=torch.bool)


def ranges(count, n_q=N):
    """Return `count` ranges for each query, in the last of which the causal order ends."""
    starts = np.zeros((n_q, 1), int) + 20 * np.arange(count)
    ends = np.maximum(np.arange(N - n_q, N), 20 * count)[:, np.newaxis]
    last = np.arange(count) == count - 1
    return Intervals(starts, np.where(last, ends + 1, starts + 5), N)


KINDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"mask": MASK},
    "bias": {"bias": MASK},
    "grouped": {"group": 4},
    "grouped causal mask": {"group": 4, "is_causal": True, "mask": MASK},
    "all": {"group": 4, "is_causal": True, "mask": MASK, "bias": MASK},
    "grouped bias": {"group": 4, "bias": MASK},
    "decode": {"group": 4, "n_q": 1},
    "decode many": {"group": 4, "n_q": 4, "is_causal": True},
    "decode most": {"group": 4, "n_q": 16, "is_causal": True},
    "decode all": {"group": 4, "n_q": 1, "is_causal": True, "mask": MASK[:1], "bias": MASK[:1]},
    "one range": {"mask": ranges(1)},
    "two ranges, grouped": {"group": 4, "mask": ranges(2)},
    "four ranges, bias": {"mask": ranges(4), "bias": MASK},
    "four ranges, all": {"group": 4, "mask": ranges(4), "bias": MASK},
    "eight ranges": {"mask": ranges(8)},
    "eight ranges, all": {"group": 4, "mask": ranges(8), "bias": MASK},
    "decode one range": {"group": 4, "n_q": 1, "mask": ranges(1, 1)},
    "decode four ranges": {"group": 4, "n_q": 4, "mask": ranges(4, 4), "bias": MASK[:4]},
    "decode eight ranges": {"group": 4, "n_q": 4, "mask": ranges(8, 4)},
}


def call(d, is_causal=False, mask=None, bias=None, dtype=torch.bfloat16, n_q=N, n_k=N, group=1):
    """Return the arguments of a call whose arrays hold no numbers anybody reads."""
    query = torch.empty((2, 4, group, n_q, d), dtype=dtype)
    key, value = (torch.empty((2, 4, 1, n_k, d), dtype=dtype) for _ in range(2))
    bias = None if bias is None else bias.to(dtype)
    return query, key, value, mask, bias, d**-0.5, is_causal


@contextmanager
def compiling(capability=90):
    """Compile kernels for a compute capability in place of launching them.

    Yields a dictionary: for the name of each kernel its `MachineCode` and its `Kind` or None.
    """
    found = {}

    def compile_only(kernel, programs, device, *args, **meta):
        made = kernel.warmup(*args, grid=(programs,), **meta)
        kind = next((x for x in (*args, *meta.values()) if hasattr(x, "BLOCK_K")), None)
        found[kernel.__name__] = sass.read(made), kind

    with launching(compile_only, capability):
        yield found


@contextmanager
def launching(function, capability=90):
    """Let `function` take the place of `launch`, as on a GPU of this compute capability."""
    import triton

    from attnbook.kernels.triton_kernels import (
        backward,
        decode,
        forward,
        operands,
        pages,
        tile_sizes,
        tiles,
    )
    from attnbook.linear_attention import triton_chunks

    @lru_cache  # as that of the package
    def capability_of(device=None):
        return divmod(capability, 10)

    modules = backward, decode, forward, pages, tiles, triton_chunks
    with ExitStack() as stack:
        for place, name, stand_in in (
            (triton.runtime.driver, "_active", sass.Device(capability)),
            (torch.cuda, "get_device_capability", capability_of),
            (triton_chunks, "DEVICES", ("cpu",)),
            *((module, "capability_of", capability_of) for module in (operands, tile_sizes)),
            *((module, "launch", function) for module in modules),
        ):
            stack.enter_context(mock.patch.object(place, name, stand_in))
        yield


def kernels_of(arguments, backward=True, capability=90):
    """Return what a call launches: for the name of each kernel its `MachineCode` and `Kind`."""
    rung = KERNELS["triton"].load()
    with compiling(capability) as found:
        rung.forward(*arguments)
        query = arguments[0]
        if backward:
            output = torch.empty_like(query)
            rung.backward(*arguments, output, query.new_empty((*query.shape[:-1], 1)), output)
    return found


def paged_kernels(d, dtype=torch.bfloat16, n_q=1, group=4, size=16, capability=90):
    """Return what decoding from pages launches: of each kernel its `MachineCode`."""
    rung = KERNELS["triton"].load()
    query = torch.empty((3, 2 * group, n_q, d), dtype=dtype)
    pages = torch.empty((40, 2, size, d), dtype=dtype)
    table, lengths = torch.zeros((3, 32), dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    with compiling(capability) as found:
        rung.paged_attention(query, pages, pages, table, lengths, d**-0.5)
    return {name: code for name, (code, _) in found.items()}


RULES = {"chunks, decay": False, "chunks, delta rule": True}
"""Rules of linear attention, and whether one erases what it overwrites."""


def chunk_kernels(d_k, erases=False, dtype=torch.bfloat16, d_v=None, capability=90):
    """Return what linear attention in chunks launches: of each kernel its `MachineCode`."""
    from attnbook.linear_attention.arguments import check_tokens
    from attnbook.linear_attention.triton_chunks import compiled

    query, value = (torch.empty((2, N, d), dtype=dtype) for d in (d_k, d_v or d_k))
    steps = torch.empty((2, N), dtype=dtype)
    tokens = check_tokens(query, query, value, steps, None, steps if erases else None)
    with compiling(capability) as found:
        compiled(tokens, dtype != torch.float32)
    return {name: code for name, (code, _) in found.items()}


HEAD = f"{'sm':4}{'dtype':9}{'width':>6} {'call':21}{'kernel':15}" + "".join(
    f"{x:>10}" for x in ("registers", "stack", "shared", "products", "waits")
)


def scores_of(code, kind):
    """Return the instructions that a thread runs for each of its scores, a number a loop."""
    return code.of_a_score(kind.BLOCK_Q, kind.BLOCK_K) if kind else []


def line(capability, dtype, d, name, kernel, code, kind):
    """Return a line of the table; last come the instructions a score in each loop."""
    products = code.count(*sass.PRODUCTS)
    numbers = (code.registers, code.stack, code.shared, products, code.waits)
    scores = scores_of(code, kind)
    return (
        f"{capability:<4}{dtype:9}{d:6} {name:21}{kernel:15}"
        + "".join(f"{x:10}" for x in numbers)
        + "".join(f"{x:8.1f}" for x in scores)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("width", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--capability", nargs="+", type=int, default=[90])
    parser.add_argument("--dtype", nargs="+", default=[*(str(x)[6:] for x in DTYPES), "tf32"])
    asked = parser.parse_args()
    print(HEAD + "  instructions a score")
    for capability, dtype, d in itertools.product(asked.capability, asked.dtype, asked.width):
        with triton_precision.dtype_named(dtype) as real:
            for name, options in KINDS.items():
                arguments = call(d, dtype=real, **options)
                found = kernels_of(arguments, "decode" not in name, capability)
                for kernel, own in found.items():
                    print(line(capability, dtype, d, name, kernel, *own), flush=True)
            for kernel, code in paged_kernels(d, real, capability=capability).items():
                print(line(capability, dtype, d, "paged", kernel, code, None), flush=True)
            for name, erases in RULES.items() if dtype != "tf32" else ():
                for kernel, code in chunk_kernels(d, erases, real, None, capability).items():
                    print(line(capability, dtype, d, name, kernel, code, None), flush=True)


if __name__ == "__main__":
    main()
