"""Who looks for the neighbour: the sketch, exact attention in each library, and faiss."""

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, move
from attnbook.sketch import SketchAttention, plan
from benchmarks import inputs

DELTA, DISTANCE, TABLES = 0.01, 0.5, 5
SCALE = 1.0  # so sharp that the neighbour holds the whole softmax: a look-up
BATCH, COARSE_BATCH, SDPA_BATCH, EXACT_BATCH = 4096, 128, 1024, 64
LISTS, QUICK_LISTS = 1024, 16
RECALLS = (0.88, 0.99)
DRAWS = 20  # of the tables, for the mean recall
SKETCH, SDPA, EXACT = "SketchAttention", "scaled_dot_product_attention", "attention"


@dataclass
class Searcher:
    """Something that answers queries: how it is named, built and asked."""

    about: dict[str, Any]  # the fields that name it in its row
    build: Callable[[], Any]
    ask: Callable[[Any, Any], Any]  # from what is built, and queries, to one row for each
    batch: int = BATCH  # queries of a call
    recall: Callable[[Any, np.ndarray, np.ndarray], float] | None = None
    look: Callable[[Any, np.ndarray], dict[str, Any]] = lambda built, query: {}
    other_recall: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None = None
    has_output: bool = True
    builds: int | None = None  # how often its build is timed, if that takes long
    shared: dict[str, Any] = field(default_factory=dict)  # by searchers of one build


def implementation(device: str) -> str:
    """Return the fastest implementation of the sketch that can run here."""
    if device == "cuda":
        return "cupy"
    return "numba" if importlib.util.find_spec("numba") else "reference"


def array_library(device: str) -> str:
    """Return the library whose arrays that implementation takes."""
    return "cupy" if device == "cuda" else "numpy"


def sketches(device: str, key: np.ndarray, projections: Sequence[int]) -> Iterator[Searcher]:
    """Yield a sketch for each plan of the same promise."""
    impl, library = implementation(device), array_library(device)
    placed = move(key, library)
    for K in projections:
        p = plan(len(key), DELTA, DISTANCE, TABLES, K)
        hash = p.hash(0, key.shape[1]).to(dtype="float32").to(library)
        far = p.expected_candidates(key[:512])
        yield Searcher(
            {
                **{"implementation": SKETCH, "impl": impl, "library": library},
                **{"K": K, "n_tables": TABLES, "width": p.width},
                "predicted": far + float(p.retrieval_probability(DISTANCE)),
                "recall_promised": float(p.retrieval_probability(DISTANCE)),
            },
            partial(_sketch, hash, placed, impl),
            lambda sketch, query: sketch.attention_output(query),
            COARSE_BATCH if K == 1 else BATCH,  # it scores a sixth of all keys
            partial(_shares_a_bucket, hash, placed),
            partial(_candidates, library),
            other_recall=partial(_recall_over_draws, p, key),
        )


def _sketch(hash, key, impl):
    sketch = SketchAttention(hash, scale=SCALE, impl=impl)
    sketch.update(key)
    return sketch


def _shares_a_bucket(hash, key, sketch, query, neighbour):
    """Return the share of queries that have their neighbour in one of their buckets."""
    library = "cupy" if hasattr(key, "get") else "numpy"
    there = hash.signatures(key[move(neighbour, library)])
    return float((hash.signatures(move(query, library)) == there).any(axis=1).mean())


def _recall_over_draws(plan, key, query, neighbour):
    """Return the mean recall of several draws of the tables, with its standard error."""
    found = []
    for seed in range(1, DRAWS + 1):
        hash = plan.hash(seed, key.shape[1]).to(dtype="float32")
        same = hash.signatures(query) == hash.signatures(key[neighbour])
        found.append(float(same.any(axis=1).mean()))
    error = float(np.std(found, ddof=1) / math.sqrt(DRAWS))
    return {"recall_over_draws": float(np.mean(found)), "recall_error": error}


def _candidates(library, sketch, query):
    _, evidence = sketch.attention_output(move(query, library), return_evidence=True)
    counts = move(evidence.candidates, "numpy", dtype="float64")
    return {"candidates": float(counts.mean()), "index_bytes": int(sketch.memory_bytes)}


def exact(device: str, key: np.ndarray) -> Iterator[Searcher]:
    """Yield exact attention in each library, and PyTorch's own."""
    for library in inputs.libraries(device):
        placed = move(key, library, device=device if library == "torch" else None)
        if library == "torch":
            about = {"implementation": SDPA, "library": library}
            yield Searcher(about, partial(_same, placed), _sdpa, SDPA_BATCH)
        # all scores of a batch stand in memory at once
        about = {"implementation": EXACT, "library": library}
        yield Searcher(about, partial(_same, placed), _attention, EXACT_BATCH)


def _same(key):
    return key


def _sdpa(key, query):
    import torch

    q, k = query[None, None], key[None, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, k, scale=SCALE)[0, 0]


def _attention(key, query):
    return attention(query, key, key, scale=SCALE)


def faiss_indexes(
    key: np.ndarray, query: np.ndarray, neighbour: np.ndarray, *, quick: bool
) -> Iterator[Searcher]:
    """Yield what faiss offers: an inverted file at two recalls, codes, and a graph."""
    try:
        import faiss
    except ImportError as error:
        reason = f"faiss is not installed: pip install 'attnbook[bench]' ({error})"
        yield Searcher(
            {"implementation": "faiss", "library": "faiss"}, partial(_absent, reason), id
        )
        return
    d, lists = key.shape[1], QUICK_LISTS if quick else LISTS

    def inverted():
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, lists)
        index.train(key)  # on 256 keys a list, as is its default
        index.add(key)
        return index

    def codes():
        index = faiss.IndexLSH(d, 64)
        index.train(key)
        index.add(key)
        return index

    def graph():
        index = faiss.IndexHNSWFlat(d, 16)
        index.hnsw.efConstruction = 40
        index.add(key)
        index.hnsw.efSearch = 64
        return index

    trial, shared = inverted(), {}
    for least in RECALLS:
        for nprobe in itertools.chain(range(1, 9), (12, 16, 24, lists)):
            settings = faiss.SearchParametersIVF(nprobe=nprobe)
            if nprobe == lists or _recall(settings, trial, query, neighbour) >= least:
                break
        yield _of_faiss(
            f"faiss IVF{lists}",
            inverted,
            settings,
            shared=shared,
            nprobe=nprobe,
            recall_asked=least,
        )
    del trial
    yield _of_faiss("faiss IndexLSH", codes, None, 512, bits=64)
    graph_of = {"links": 16, "efConstruction": 40, "efSearch": 64}
    yield _of_faiss("faiss HNSW", graph, None, 1024, builds=1, **graph_of)


def _absent(reason):
    raise ImportError(reason)


def _of_faiss(name, build, settings, batch=BATCH, *, builds=None, shared=None, **about):
    return Searcher(
        {"implementation": name, "library": "faiss", **about},
        build,
        lambda index, query: index.search(query, 1, params=settings)[1],
        batch,
        partial(_recall, settings),
        has_output=False,
        builds=builds,
        shared={} if shared is None else shared,
    )


def _recall(settings, index, query, neighbour):
    return float((index.search(query, 1, params=settings)[1][:, 0] == neighbour).mean())
