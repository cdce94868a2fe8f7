"""The peak of memory that one call asks of its library's allocator."""

import gc
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

# PyTorch's profiler writes two lines to stderr for each run unless told this before its import
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def extra_bytes(function: Callable[[], Any], library: str, device: str) -> int | None:
    """Return the peak bytes that one call of `function` asks for beyond its result.

    None where the library does not tell.
    """
    gc.collect()
    if library == "numpy":
        return _numpy_extra(function)
    if library == "torch":
        return _torch_cpu_extra(function) if device == "cpu" else _torch_cuda_extra(function)
    if library == "cupy":
        return _cupy_extra(function)
    raise ValueError(f"library must be one of numpy, torch, cupy, got {library!r}")


def _numpy_extra(function: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        result = function()
        return tracemalloc.get_traced_memory()[1] - _bytes(result)
    finally:
        tracemalloc.stop()


def _torch_cpu_extra(function: Callable[[], Any]) -> int | None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        tracemalloc.start()  # a kernel may make its arrays by NumPy
        try:
            result = function()
            by_numpy = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    events = run.profiler.kineto_results.events() if run.profiler else []
    steps = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    if not steps and by_numpy < _bytes(result):
        return None
    held = np.cumsum([0, *(step for _, step in steps)])
    return max(0, int(held.max()) + by_numpy - _bytes(result))


def _torch_cuda_extra(function: Callable[[], Any]) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - _bytes(result)


def _cupy_extra(function: Callable[[], Any]) -> int:
    import cupy

    class Peak(cupy.cuda.MemoryHook):
        name = "peak"
        held = 0
        peak = 0

        def malloc_postprocess(self, **event):
            self.held += event["mem_size"]
            self.peak = max(self.peak, self.held)

        def free_postprocess(self, **event):
            self.held -= event["mem_size"]

    hook = Peak()
    with hook:
        result = function()
    return hook.peak - _bytes(result)


def _bytes(result: Any) -> int:
    return sum(x.nbytes for x in (result if isinstance(result, tuple) else (result,)))
