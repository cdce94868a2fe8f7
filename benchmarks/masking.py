"""What a mask costs: no mask, a dense one, `is_causal`, and blocks that FlexAttention leaves out.

Measures B = 1, h = 8, d = 64, self-attention, forward. The masks are made before the clock starts.
`mask_bytes` is what the mask itself takes. Errors are those of 64 queries, the first and the last
among them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, masking, move
from benchmarks import harness, inputs
from benchmarks.tables import Tables, steps

HEADS, WIDTH = 8, 64
SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (256, 1024, 4096, 16384)}
QUICK_SIZES = (256, 1024)
# without float16, which takes as long as bfloat16: each dtype and size is compiled anew
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
FLEX_SIZES = {"cpu": SIZES["cpu"], "cuda": (4096,)}  # a compiler takes seconds for each on a GPU
WINDOW = 128  # tokens that a query of the sliding window sees, itself among them
CHECKED = 64
SDPA, FLEX = "scaled_dot_product_attention", "flex_attention"
BASELINE = {"implementation": SDPA, "mask": "none"}
Run = Callable[[], Any]


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure times on `device` ("cpu" or "cuda")."""
    tables.add(
        shape={"batch": 1, "heads": HEADS, "width": WIDTH, "window": WINDOW},
        rounds=harness.rounds(quick),
        baseline=BASELINE,
        tolerance=inputs.TOLERANCE,
    )
    sizes = QUICK_SIZES if quick else SIZES[device]
    found = steps(timings, device, sizes, DTYPES[device], quick=quick)
    tables.measure("rows", found, "implementation", "mask", "library")


def timings(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation, mask and library at sequence length `n`."""
    drawn = inputs.draw(n, (1, HEADS, n, WIDTH))
    candidates: list[harness.Candidate] = []
    for library, rounded, moved in inputs.everywhere(drawn, device, dtype):
        if not candidates:
            errors = _errors(**rounded)
        makers: dict[str, Callable[..., Iterator[tuple[str, int, Run]]]] = {"attention": _ours}
        if library == "torch":
            makers[SDPA] = _sdpa
            if quick or n in FLEX_SIZES[device]:
                makers[FLEX] = _flex
        for implementation, maker in makers.items():
            for mask, mask_bytes, run in maker(**moved):
                about: dict[str, Any] = {"implementation": implementation, "mask": mask}
                about |= {"library": library, "mask_bytes": mask_bytes}
                candidates.append(harness.Candidate(about, run, errors[mask]))
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=BASELINE, quick=quick)


# Each yields the name of a mask, the bytes that the mask takes, and the call.


def _ours(query: Any, key: Any, value: Any) -> Iterator[tuple[str, int, Run]]:
    run = partial(attention, query, key, value)
    mask = masking.causal(query.shape[-2], like=query)
    yield "none", 0, run
    yield "causal", mask.nbytes, partial(run, mask)


def _sdpa(query: Any, key: Any, value: Any) -> Iterator[tuple[str, int, Run]]:
    from torch.nn.functional import scaled_dot_product_attention

    n = query.shape[-2]
    run = partial(scaled_dot_product_attention, query, key, value)
    causal = masking.causal(n, like=query)
    window = masking.sliding_window(n, left=WINDOW - 1, like=query)
    yield "none", 0, run
    yield "causal", causal.nbytes, partial(run, attn_mask=causal)
    yield "is_causal", 0, partial(run, is_causal=True)
    yield "window", window.nbytes, partial(run, attn_mask=window)


def _flex(query: Any, key: Any, value: Any) -> Iterator[tuple[str, int, Run]]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rules = {
        "causal": lambda b, h, i, j: j <= i,
        "window": lambda b, h, i, j: (j <= i) & (i - j < WINDOW),
    }
    n = query.shape[-2]
    torch.compiler.reset()  # it refuses to compile one function for more than eight sizes
    for mask, rule in rules.items():
        blocks = create_block_mask(rule, None, None, n, n, device=query.device)
        held = sum(x.nbytes for x in vars(blocks).values() if isinstance(x, torch.Tensor))
        # a full graph is an error where it cannot be compiled, not the slow form with a warning
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        yield mask, held, partial(compiled, query, key, value, block_mask=blocks)


def _errors(
    query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> dict[str, Callable[[Any], dict[str, float]]]:
    """Return for each mask the function that compares an output with the reference."""
    n = query.shape[-2]
    rows = np.unique(np.linspace(0, n - 1, CHECKED).astype(int))
    distance = rows[:, np.newaxis] - np.arange(n)
    masks = {"none": None, "causal": distance >= 0, "is_causal": distance >= 0}
    masks["window"] = (distance >= 0) & (distance < WINDOW)

    def compare(output: Any, expected: np.ndarray) -> dict[str, float]:
        return inputs.errors(move(output, "numpy", dtype="float64")[..., rows, :], expected)

    some = query[..., rows, :]
    return {
        name: partial(compare, expected=inputs.reference(some, key, value, mask))
        for name, mask in masks.items()
    }
