"""Decoding from pages: 64 texts of mixed lengths, beside contiguous keys and the read bandwidth.

Each text has one query per head, and pages of 16 tokens lie in random order. `read` adds up as many
numbers as there are keys and values, which says how fast the machine reads. With a page as long as
the longest text, the same loop reads each text in one piece, so that the difference is what pages
cost. `packed` and SDPA also get each text in one piece, in one call per text, and SDPA all texts
padded to the longest, with a mask. `n` counts the tokens of all texts, and `gb_per_second` their
keys and values, without padding and free slots. `of_bandwidth` is their share of what `read` reads.
"""

import importlib.util
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, decoding, move
from attnbook.arrays.threads import in_parts, n_threads_for
from benchmarks import harness, inputs
from benchmarks.tables import Step, Tables

DEVICES = ("cpu",)
TEXTS, WIDTH, PAGE, KV_HEADS = 64, 64, 16, 8
LENGTHS, QUICK_LENGTHS = (64, 2048), (5, 40)
GROUPS = (1, 4)
IMPLS = ("packed",)
BASELINE = {"implementation": "read"}
SDPA, ONE_PAGE = "SDPA, padded", "paged, a page per text"
ONE_BY_ONE = "packed, text by text", "SDPA, text by text"


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure times on `device` ("cpu")."""
    tables.add(
        shape={"texts": TEXTS, "width": WIDTH, "page": PAGE, "kv_heads": KV_HEADS},
        lengths=QUICK_LENGTHS if quick else LENGTHS,
        rounds=harness.rounds(quick),
        baseline=BASELINE,
        tolerance=inputs.TOLERANCE,
    )
    found = [Step({"group": g}, g, partial(timings, device, g, quick=quick)) for g in GROUPS]
    tables.measure("rows", found, "implementation")


def timings(device: str, group: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation, with `group` query heads per KV head."""
    low, high = QUICK_LENGTHS if quick else LENGTHS
    rng = np.random.default_rng(group)
    lengths = rng.integers(low, high + 1, size=TEXTS)
    query = rng.standard_normal((TEXTS, KV_HEADS * group, 1, WIDTH), dtype=np.float32)
    keys, values, table = _pages(rng, lengths)
    texts = [[_text(x, table[i], n) for x in (keys, values)] for i, n in enumerate(lengths)]
    expected = _expected(query, texts)
    n_bytes = int(lengths.sum()) * KV_HEADS * 2 * WIDTH * 4

    candidates = []
    if importlib.util.find_spec("numba"):
        candidates.append(_read(n_bytes))
        arguments = (query, keys, values, table, lengths)
        for impl in IMPLS:
            run = partial(decoding.paged_attention, *arguments, impl=impl)
            candidates.append(_candidate(f"paged, {impl}", "numpy", run, expected))
        run = partial(decoding.paged_attention, query, *_one_page(texts, lengths), impl="packed")
        candidates.append(_candidate(ONE_PAGE, "numpy", run, expected))
        run = partial(_one_by_one, query, texts)
        candidates.append(_candidate(ONE_BY_ONE[0], "numpy", run, expected))
    if "torch" in inputs.libraries(device):
        run = _sdpa_one_by_one(query, texts)
        candidates.append(_candidate(ONE_BY_ONE[1], "torch", run, expected))
        run = _sdpa(query, texts, lengths)
        candidates.append(_candidate(SDPA, "torch", run, expected))
    about = {"dtype": "float32", "group": group, "n": int(lengths.sum())}
    about |= {"longest": int(lengths.max()), "bytes": n_bytes}
    rows = harness.rows(candidates, device, about=about, baseline=BASELINE, quick=quick)
    read = next((x["seconds"] for x in rows if x["implementation"] == "read"), None)
    for row in rows:
        if row["seconds"]:
            row["gb_per_second"] = n_bytes / row["seconds"]["median"] / 1e9
            row["of_bandwidth"] = read and read["median"] / row["seconds"]["median"]
    return rows


def _pages(rng, lengths):
    """Return pages of keys and values in random order, and the block table."""
    counts = -(-lengths // PAGE)
    table = np.full((TEXTS, counts.max()), -1)
    order, ends = rng.permutation(counts.sum()), np.cumsum(counts)
    for row, count, end in zip(table, counts, ends, strict=True):
        row[:count] = order[end - count : end]
    shape = (len(order), KV_HEADS, PAGE, WIDTH)
    keys, values = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    return keys, values, table


def _text(pages, row, n):
    """Return the keys or values of one text in one piece, (KV heads, n, width)."""
    x = pages[row[: -(-n // PAGE)]].swapaxes(0, 1)
    return np.ascontiguousarray(x.reshape(KV_HEADS, -1, WIDTH)[:, :n])


def _grouped(query):
    return query.reshape(KV_HEADS, -1, 1, WIDTH)


def _expected(query, texts):
    rows = [
        inputs.reference(_grouped(q), k[:, None], v[:, None])
        for q, (k, v) in zip(query, texts, strict=True)
    ]
    return np.stack(rows).reshape(query.shape)


def _one_by_one(query, texts):
    rows = [
        attention(_grouped(q), k[:, None], v[:, None], impl="packed")
        for q, (k, v) in zip(query, texts, strict=True)
    ]
    return np.stack(rows).reshape(query.shape)


def _one_page(texts, lengths):
    """Return keys, values, table and lengths of texts that have one page each."""
    pages = np.zeros((2, TEXTS, KV_HEADS, lengths.max(), WIDTH), np.float32)
    for i, (pair, n) in enumerate(zip(texts, lengths, strict=True)):
        pages[:, i, :, :n] = pair
    return *pages, np.arange(TEXTS)[:, np.newaxis], lengths


def _sdpa_one_by_one(query, texts):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    arrays = [
        [move(x, "torch")[None] for x in (q, k, v)] for q, (k, v) in zip(query, texts, strict=True)
    ]

    def run():
        return torch.cat([scaled_dot_product_attention(*x, enable_gqa=True) for x in arrays])

    return run


def _sdpa(query, texts, lengths):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    *padded, _, _ = _one_page(texts, lengths)
    mask = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])[:, None, None, :]
    arrays = (move(x, "torch") for x in (query, *padded))
    return partial(scaled_dot_product_attention, *arrays, attn_mask=mask, enable_gqa=True)


def _read(n_bytes):
    from benchmarks import exact_fma

    x, cores = np.ones(n_bytes // 4, np.float32), n_threads_for(2**40)
    totals = np.zeros(cores, np.float32)

    def read(start, stop, part):
        totals[part] = exact_fma.total(x[start:stop])

    def run():
        in_parts(read, len(x), cores)
        return totals.copy()

    def errors(output):
        off = abs(float(output.sum(dtype=float)) - len(x))
        return {"max_abs": off, "relative": off / len(x)}

    return harness.Candidate({**BASELINE, "library": "numpy"}, run, errors)


def _candidate(name, library, run, expected):
    def errors(output):
        return inputs.errors(output, expected)

    return harness.Candidate({"implementation": name, "library": library}, run, errors)
