"""What structure is worth: causal order, a window and documents, by dense masks and by rules.

Measures B = 1, h = 2, d = 64, self-attention, forward. SDPA is given the dense mask, and in causal
order `is_causal` too; FlexAttention, compiled, its blocks; ours a rule. Masks, blocks and what
rules keep are made before the clock starts. `mask_bytes` is what the mask itself takes, `visible`
the share of all scores that it shows. Errors are those of 64 queries, the first and the last among
them. `making` says how long masks, blocks and rules take to make, each anew, and `documents` what
SDPA does with one document after another, without a mask.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, masking, move
from benchmarks import harness, inputs
from benchmarks.tables import Tables, steps

HEADS, WIDTH = 2, 64
SIZES = (4096, 8192, 16384, 32768, 65536, 131072)
QUICK_SIZES = (256, 1024)
PREPARED = (4096, 32768, 131072)
DTYPES = {"cpu": ("float32",), "cuda": ("bfloat16",)}
WINDOW = 1024  # tokens that a query of the sliding window sees, itself among them
DOCUMENT = 2048  # tokens of a document, in the mean
MOST_DENSE = 32768  # tokens of a dense mask, which SDPA copies to float32: 4 GiB
MOST_TILED = 16384  # tokens that `tiled` reads in causal order
CHECKED = 64
MOST, LONG = 20.0, 5.0  # seconds of a candidate, and of a call that needs no untimed one before it
SDPA, FLEX = "scaled_dot_product_attention", "flex_attention"
OURS = {"cpu": ("tiled", "packed"), "cuda": ("triton",)}
MASKS = ("causal", "window", "documents")
Run = Callable[[], Any]


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure times on `device` ("cpu" or "cuda")."""
    tables.add(
        shape={"batch": 1, "heads": HEADS, "width": WIDTH, "window": WINDOW, "document": DOCUMENT},
        rounds=harness.rounds(quick),
        baseline={"implementation": FLEX},
        tolerance=inputs.TOLERANCE,
    )
    sizes = QUICK_SIZES if quick else SIZES
    found = steps(timings, device, sizes, DTYPES[device], quick=quick, power=1)  # see `MOST`
    tables.measure("rows", found, "implementation", "mask", "library")
    for name, table in (("making", makings), ("documents", by_document)):
        some = sizes if quick else PREPARED
        found = steps(table, device, some, DTYPES[device][:1], quick=quick)
        tables.measure(name, found, "implementation", "mask")


def timings(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each mask and implementation at sequence length `n`."""
    drawn = inputs.draw(n, (1, HEADS, n, WIDTH))
    found = []
    places = {
        library: (rounded, moved)
        for library, rounded, moved in inputs.everywhere(drawn, device, dtype)
        if library == "torch" or (library == "numpy" and "torch" not in inputs.libraries(device))
    }
    slice_seconds = harness.QUICK_SLICE_SECONDS if quick else harness.SLICE_SECONDS[device]
    pace = harness.Pace(harness.rounds(quick), slice_seconds, LONG, 2, most=MOST)
    for mask, rule in rules(n).items():
        candidates = []
        for library, (rounded, moved) in places.items():
            compare, visible = _errors(mask, n, **rounded)
            makers = [_ours(device, mask, rule, **moved)]
            if library == "torch":
                makers += [_sdpa(mask, rule, **moved), _flex(rule, **moved)]
            for maker in makers:
                for implementation, mask_bytes, run in maker:
                    about: dict[str, Any] = {"implementation": implementation, "mask": mask}
                    about |= {"library": library, "mask_bytes": mask_bytes, "visible": visible}
                    candidates.append(harness.Candidate(about, run, compare))
        size = {"dtype": dtype, "n": n}
        baseline = {"implementation": FLEX, "mask": mask}
        found += harness.rows(
            candidates, device, about=size, baseline=baseline, quick=quick, pace=pace
        )
    return found


def makings(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for what each implementation needs before it attends to `n` tokens."""
    found = []
    for mask in ("window", "documents"):
        candidates = []
        for implementation, make in _preparations(device, mask, n):
            about = {"implementation": implementation, "mask": mask, "library": "torch"}
            candidates.append(harness.Candidate(about, make, lambda made: {}))
        found += harness.rows(
            candidates,
            device,
            about={"dtype": dtype, "n": n},
            baseline={"implementation": FLEX},
            quick=quick,
            pace=harness.Pace(3, harness.QUICK_SLICE_SECONDS, LONG, 1, most=MOST),
            memory=lambda run, library, device: None,
        )
    return found


def _preparations(device: str, mask: str, n: int) -> Iterator[tuple[str, Run]]:
    yield "rule", lambda: rules(n)[mask].intervals(n)
    if "torch" in inputs.libraries(device):
        import torch
        from torch.nn.attention.flex_attention import create_block_mask

        if n <= MOST_DENSE:
            like = torch.empty(0, device=device)
            yield SDPA, lambda: rules(n)[mask].dense(n, like=like)
        torch.compiler.reset()
        compiled = torch.compile(create_block_mask)
        function = rules(n)[mask].mask_mod(n, device=device)
        yield FLEX, lambda: compiled(function, None, None, n, n, device=device)


def by_document(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return rows of documents side by side by a rule, and of one after another by SDPA."""
    drawn = inputs.draw(n, (1, HEADS, n, WIDTH))
    rounded, moved = next(
        (rounded, moved)
        for library, rounded, moved in inputs.everywhere(drawn, device, dtype)
        if library == ("torch" if "torch" in inputs.libraries(device) else "numpy")
    )
    compare, _ = _errors("documents", n, **rounded)
    rule = rules(n)["documents"]
    runs = {name: run for name, _, run in _ours(device, "documents", rule, **moved)}
    if "torch" in inputs.libraries(device):
        runs[f"{SDPA}, by document"] = partial(_by_document, lengths(n), **moved)
    candidates = []
    for name, run in runs.items():
        about = {"implementation": name, "mask": "documents", "library": "torch"}
        candidates.append(harness.Candidate(about, run, compare))
    baseline = {"implementation": f"{SDPA}, by document"}
    about = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=about, baseline=baseline, quick=quick)


def _by_document(lengths: list[int], query: Any, key: Any, value: Any) -> Any:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    parts = zip(*(x.split(lengths, dim=-2) for x in (query, key, value)), strict=True)
    return torch.cat([scaled_dot_product_attention(*x, is_causal=True) for x in parts], dim=-2)


def rules(n: int) -> dict[str, masking.Rule]:
    """Return the rules for `n` tokens."""
    causal = masking.Causal()
    return {
        "causal": causal,
        "window": causal & masking.SlidingWindow(left=WINDOW - 1),
        "documents": causal & masking.Documents.of_lengths(lengths(n)),
    }


def lengths(n: int) -> list[int]:
    """Return the lengths of documents that fill `n` tokens, most of them short, as texts are."""
    rng, found = np.random.default_rng(0), []
    while sum(found) < n:
        found.append(min(1 + int(rng.exponential(DOCUMENT)), n - sum(found)))
    return found


# Each yields a name, the bytes that the mask takes, and the call.


def _ours(
    device: str, mask: str, rule: masking.Rule, query: Any, key: Any, value: Any
) -> Iterator[tuple[str, int, Run]]:
    n = query.shape[-2]
    seen = rule.intervals(n)
    held = 0 if mask == "causal" else seen.starts.nbytes + seen.stops.nbytes
    for name in OURS[device]:
        if name != "tiled" or mask != "causal" or n <= MOST_TILED:
            yield name, held, partial(attention, query, key, value, rule, impl=name)


def _sdpa(
    mask: str, rule: masking.Rule, query: Any, key: Any, value: Any
) -> Iterator[tuple[str, int, Run]]:
    from torch.nn.functional import scaled_dot_product_attention

    n = query.shape[-2]
    run = partial(scaled_dot_product_attention, query, key, value)
    if mask == "causal":
        yield f"{SDPA}, is_causal", 0, partial(run, is_causal=True)
    if n <= MOST_DENSE:
        dense = rule.dense(n, like=query)
        yield SDPA, dense.nbytes, partial(run, attn_mask=dense)


def _flex(rule: masking.Rule, query: Any, key: Any, value: Any) -> Iterator[tuple[str, int, Run]]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = query.shape[-2]
    torch.compiler.reset()  # it refuses to compile one function for more than eight sizes
    # where it is not compiled, it makes the mask of all scores
    make = torch.compile(create_block_mask) if n > MOST_DENSE else create_block_mask
    blocks = make(rule.mask_mod(n, device=query.device), None, None, n, n, device=query.device)
    held = sum(x.nbytes for x in vars(blocks).values() if isinstance(x, torch.Tensor))
    # a full graph is an error where it cannot be compiled, not the slow form with a warning
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    yield FLEX, held, partial(compiled, query, key, value, block_mask=blocks)


def _errors(
    mask: str, n: int, query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> tuple[Callable[[Any], dict[str, float]], float]:
    """Return what compares an output with the reference, and the share of scores that is visible.

    What is visible is written here apart from the package.
    """
    document = np.repeat(np.arange(len(lengths(n))), lengths(n))
    first = np.zeros(n, int)
    if mask == "window":
        first = np.maximum(np.arange(n) - WINDOW + 1, 0)
    if mask == "documents":
        first = np.searchsorted(document, document)
    rows = np.unique(np.linspace(0, n - 1, CHECKED).astype(int))
    keys = np.arange(n)
    seen = (keys >= first[rows, np.newaxis]) & (keys <= rows[:, np.newaxis])
    expected = inputs.reference(query[..., rows, :], key, value, seen)

    def compare(output: Any) -> dict[str, float]:
        return inputs.errors(move(output, "numpy", dtype="float64")[..., rows, :], expected)

    return compare, float((keys - first + 1).sum() / n**2)
