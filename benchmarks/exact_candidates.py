"""Who computes exact attention: every rung of the ladder, and the peers that are here."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from attnbook import attention, kernels
from attnbook.kernels.verification import RIGHT, verdict_on
from benchmarks import exact_peers, harness, inputs
from benchmarks.exact_problem import Arrays, Entry, Problem, arrays


def candidates(
    problem: Problem, *, only: tuple[str, ...] = (), flex: bool = False
) -> list[harness.Candidate]:
    """Return who can take `problem`, SDPA first.

    `only` names some of them. `flex` adds FlexAttention, which takes seconds to compile.
    """
    here = inputs.libraries(problem.device)
    able = [name for name in here if problem.dtype in inputs.DTYPES[name]]
    if not able:
        return []
    numbers = arrays(problem)
    numbers.of(able[0])
    makers = [exact_peers.sdpa] if "torch" in here else []
    makers += [_rungs, partial(exact_peers.others, only=only)]
    if flex and "torch" in here:
        makers.append(exact_peers.flex)
    compare = numbers.errors(problem.is_causal)
    found = []
    for entry in (entry for maker in makers for entry in maker(problem, numbers)):
        name = entry.about["implementation"]
        if not only or name in only:
            errors = partial(_compare, compare, entry.back)
            found.append(harness.Candidate(entry.about, entry.run, errors))
    return found


def _compare(compare, back, output):
    if isinstance(output, tuple):
        return compare(tuple(back(x) for x in output))
    return compare(back(output))


def _rungs(problem: Problem, arrays: Arrays) -> Iterator[Entry]:
    for kernel in kernels.LADDER:
        library = library_of(kernel, problem)
        if library is not None:
            function = partial(attention, is_causal=problem.is_causal, impl=kernel.name)
            about: dict[str, Any] = {"implementation": kernel.name, "library": library}
            run = exact_peers.call(function, arrays.of(library))
            yield Entry(about, run)


def alone(device: str) -> tuple[str, ...]:
    """Return the rungs that are measured after all others, each beside SDPA alone.

    They may hang or end the GPU for this process: those that should be right on any GPU but were
    not found so on this one.
    """
    if device != "cuda":
        return ()
    return tuple(
        kernel.name
        for kernel in kernels.LADDER
        if kernel.device == "cuda" and verdict_on(kernel.name) != RIGHT
    )


def takes(name: str, problem: Problem) -> bool:
    """Return whether a rung is given arrays of `problem`."""
    return library_of(kernels.KERNELS[name], problem) is not None


def library_of(kernel: kernels.Kernel, problem: Problem) -> str | None:
    """Return whose arrays a rung is given, or None if it is for another device, dtype or pass."""
    if kernel.device not in ("", problem.device) or (problem.backward and not kernel.trainable):
        return None
    if kernel.dtypes and problem.dtype not in kernel.dtypes:
        return None
    plain = problem.device == "cpu" and not problem.backward and problem.dtype == "float32"
    for library in ("numpy", "torch", "cupy") if plain else ("torch", "cupy"):
        takes = not kernel.takes or library in kernel.takes
        here = library in inputs.libraries(problem.device)
        if takes and here and problem.dtype in inputs.DTYPES[library]:
            return library
    return None
