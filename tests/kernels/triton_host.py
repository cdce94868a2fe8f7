"""How long the host works before Triton's kernels start: `python tests/kernels/triton_host.py`.

Prints microseconds of a call of *triton* whose kernels are not launched, so it needs no
GPU: the least of many short runs, since a busy machine only adds to them. What Triton and the
driver do to launch a kernel is not in them.
"""

import time

import torch
from triton_sass import MASK, call, launching

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

    torch.set_num_threads(1)
    output, log_total = torch.empty_like(CALLS["forward"][0]), torch.empty((2, 4, 1, 511, 1))
    after = (output, log_total, output)
    rows = [(triton, name, triton.forward, arguments) for name, arguments in CALLS.items()]
    rows.append((triton, "backward", triton.backward, (*CALLS["forward"], *after)))
    with launching(_nothing):
        for rung, name, function, arguments in rows:
            taken = microseconds(lambda f=function, a=arguments: f(*a))
            print(f"{rung.__name__.split('.')[-1]:8}{name:18}{taken:6.0f} µs", flush=True)


if __name__ == "__main__":
    main()
