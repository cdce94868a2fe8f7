"""What the Triton kernels become on a Hopper GPU.

`python tests/kernels/triton_sass.py [WIDTH ...]` prints a line for each kernel that a call would
launch, for every kind of call and every width of rows, and needs no GPU. test_kernels_triton.py
holds what it prints to account.
"""

import sys
from contextlib import ExitStack, contextmanager
from unittest import mock

import sass
import torch

from attnbook.kernels import KERNELS

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (64, 80, 128, 256)
N = 511  # no multiple of anything: nothing may hang on that
MASK = torch.ones((N, N), dtype=torch.bool)
KINDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"mask": MASK},
    "bias": {"bias": MASK},
    "grouped": {"group": 4},
    "grouped causal mask": {"group": 4, "is_causal": True, "mask": MASK},
    "all": {"group": 4, "is_causal": True, "mask": MASK, "bias": MASK},
    "decode": {"group": 4, "n_q": 1},
    "decode many": {"group": 4, "n_q": 4, "is_causal": True},
    "decode all": {"group": 4, "n_q": 1, "is_causal": True, "mask": MASK[:1], "bias": MASK[:1]},
}


def call(d, is_causal=False, mask=None, bias=None, dtype=torch.bfloat16, n_q=N, n_k=N, group=1):
    """Return the arguments of a call whose arrays hold no numbers anybody reads."""
    query = torch.empty((2, 4, group, n_q, d), dtype=dtype)
    key, value = (torch.empty((2, 4, 1, n_k, d), dtype=dtype) for _ in range(2))
    bias = None if bias is None else bias.to(dtype)
    return query, key, value, mask, bias, d**-0.5, is_causal


@contextmanager
def compiling():
    """Compile kernels for compute capability 9.0 in place of launching them.

    Yields a dictionary: for the name of each kernel its `MachineCode` and its `Kind` or None.
    """
    found = {}

    def compile_only(kernel, programs, device, *args, **meta):
        made = kernel.warmup(*args, grid=(programs,), **meta)
        kind = next((x for x in (*args, *meta.values()) if hasattr(x, "BLOCK_K")), None)
        found[kernel.__name__] = sass.read(made), kind

    with launching(compile_only):
        yield found


@contextmanager
def launching(function):
    """Let `function` take the place of `launch`, as on a Hopper GPU with 132 multiprocessors."""
    import triton

    from attnbook.kernels.triton_kernels import backward, decode, forward, pages, tiles

    modules = backward, decode, forward, pages, tiles
    with ExitStack() as stack:
        for place, name, stand_in in (
            (triton.runtime.driver, "_active", sass.Hopper()),
            (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
            *((module, "launch", function) for module in modules),
        ):
            stack.enter_context(mock.patch.object(place, name, stand_in))
        yield


def kernels_of(arguments, backward=True):
    """Return what a call launches: for the name of each kernel its `MachineCode` and `Kind`."""
    rung = KERNELS["triton"].load()
    with compiling() as found:
        rung.forward(*arguments)
        query = arguments[0]
        if backward:
            output = torch.empty_like(query)
            rung.backward(*arguments, output, query.new_empty((*query.shape[:-1], 1)), output)
    return found


def paged_kernels(d, dtype=torch.bfloat16, n_q=1, group=4, size=16):
    """Return what decoding from pages launches: of each kernel its `MachineCode`."""
    rung = KERNELS["triton"].load()
    query = torch.empty((3, 2 * group, n_q, d), dtype=dtype)
    pages = torch.empty((40, 2, size, d), dtype=dtype)
    table, lengths = torch.zeros((3, 32), dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    with compiling() as found:
        rung.paged_attention(query, pages, pages, table, lengths, d**-0.5)
    return {name: code for name, (code, _) in found.items()}


HEAD = f"{'dtype':9}{'width':>6} {'call':21}{'kernel':15}" + "".join(
    f"{x:>10}" for x in ("registers", "spills", "HGMMA", "waits", "blocks")
)


def scores_of(code, kind):
    """Return the instructions that a thread runs for each of its scores, a number a loop."""
    return code.of_a_score(kind.BLOCK_Q, kind.BLOCK_K) if kind else []


def line(dtype, d, name, kernel, code, kind):
    """Return a line of the table; last come the instructions a score in each loop."""
    numbers = (code.registers, code.spills, code.products, code.waits, code.blocks)
    scores = scores_of(code, kind)
    return (
        f"{str(dtype).removeprefix('torch.'):9}{d:6} {name:21}{kernel:15}"
        + "".join(f"{x:10}" for x in numbers)
        + "".join(f"{x:8.1f}" for x in scores)
    )


def main():
    print(HEAD + "  instructions a score")
    for dtype in DTYPES:
        for d in map(int, sys.argv[1:] or WIDTHS):
            for name, options in KINDS.items():
                arguments = call(d, dtype=dtype, **options)
                for kernel, own in kernels_of(arguments, "decode" not in name).items():
                    print(line(dtype, d, name, kernel, *own), flush=True)
            for kernel, code in paged_kernels(d, dtype).items():
                print(line(dtype, d, "paged", kernel, code, None), flush=True)


if __name__ == "__main__":
    main()
