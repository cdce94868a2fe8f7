"""Memory and time of a GPU, by the libraries that are here."""

from collections.abc import Callable
from typing import Any

from benchmarks import provenance

AHEAD_CYCLES = 5_000_000  # some milliseconds of a GPU
HIDES_LAUNCHES = 0.05  # seconds of a call beside which its launches do not count


def freer(device: str) -> Callable[[], None]:
    """Return a function that gives back what the libraries hold of the memory of a GPU.

    Each keeps what it has freed for itself. Two that take turns would need the memory of both.
    """
    frees: list[Callable[[], None]] = []
    if device == "cuda" and provenance.torch_sees_cuda():
        import torch

        frees.append(torch.cuda.empty_cache)
    if device == "cuda" and provenance.cupy_sees_cuda():
        import cupy

        frees.append(cupy.get_default_memory_pool().free_all_blocks)

    def free() -> None:
        for one in frees:
            one()

    return free


def device_seconds(run: Callable[[], Any], rounds: int) -> list[float]:
    """Return the seconds of one call between two events on the GPU, in each round.

    Before the first event the GPU waits for some milliseconds, so that Python and the launches are
    ahead of it and do not count, unless the call waits for the GPU itself. Nothing without PyTorch.
    """
    if not provenance.torch_sees_cuda():
        return []
    import torch

    wait = getattr(torch.cuda, "_sleep", None)  # private, and nothing else delays a stream
    samples = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if wait is not None:
            wait(AHEAD_CYCLES)
        first.record()
        run()
        last.record()
        last.synchronize()
        samples.append(first.elapsed_time(last) / 1e3)
    return samples
