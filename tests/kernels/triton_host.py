"""How long the host works before the Triton kernels start: `python tests/kernels/triton_host.py`.

Prints microseconds of a call whose kernels are not launched, so it needs no GPU: the least of many
short runs, since a busy machine only adds to them. What Triton and the driver do to launch a kernel
is not in them.
"""

import time
from unittest import mock

import torch
from triton_sass import MASK, call

CALLS = {
    "forward": call(64, True),
    "forward, grouped": call(128, group=4),
    "decode": call(64, n_q=1),
    "decode, grouped": call(128, n_q=1, group=4),
    "decode, mask": call(64, n_q=1, mask=MASK[:1]),
}


def microseconds(function, calls=25, runs=400):
    """Return the least time of a call in `runs` runs of `calls` calls."""
    function()
    least = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        least = min(least, (time.perf_counter() - start) / calls)
    return least * 1e6


def _nothing(*args, **meta):
    """Stand in for a launch."""


def main():
    from attnbook.kernels import triton
    from attnbook.kernels.triton_kernels import backward, decode, forward, tiles

    torch.set_num_threads(1)
    for module in (forward, decode, backward, tiles):
        mock.patch.object(module, "launch", _nothing).start()
    for name, arguments in CALLS.items():
        print(f"{name:18}{microseconds(lambda a=arguments: triton.forward(*a)):6.0f} µs")
    arguments = CALLS["forward"]
    output, log_total = triton.forward(*arguments)
    rest = (output, log_total, output)
    print(f"{'backward':18}{microseconds(lambda: triton.backward(*arguments, *rest)):6.0f} µs")


if __name__ == "__main__":
    main()
