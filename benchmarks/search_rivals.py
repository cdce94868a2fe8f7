"""Who looks for the near neighbour: our sketch, exact attention, and the indexes of faiss.

Each rival is a way to build something and to ask it. Those with a setting that trades time for
recall are `tuned`: the settings are tried on validation queries, and the first that reaches the
recall asked for is kept. No test query has a part in it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attnbook import move
from attnbook.sketch import Plan, SketchAttention
from benchmarks import harness, provenance

RECALL = 0.99
SCALE = 1.0  # so sharp that the neighbour holds the whole softmax: a look-up
BATCH, SLOW_BATCH, EXACT_BATCH, GRAPH_BATCH = 4096, 256, 256, 32
SKETCH, SDPA = "SketchAttention", "scaled_dot_product_attention"
FOLDER = provenance.ROOT / "_build/benchmarks/search"
TRAINED_ON, TRAINED_FOR = 64, 10  # keys a list, and rounds of k-means

SIMPLIFIED = (
    f"k-means of faiss: {TRAINED_FOR} rounds on {TRAINED_ON} keys a centre. "
    "faiss returns the neighbour and no output; ours and exact attention return both. Of 10⁶ "
    "keys, indexes are built once, timed, and kept in _build/benchmarks/search."
)


@dataclass
class Rival:
    """Something that answers queries: how it is named, built, asked and judged."""

    implementation: str
    settings: str
    build: Callable[[], Any]
    ask: Callable[[Any, np.ndarray], Any]  # what is built, and queries
    found: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]  # which neighbours are found
    batch: int = BATCH
    facts: Callable[[Any, np.ndarray], dict[str, Any]] = lambda built, query: {}
    kept: dict[str, Any] = field(default_factory=dict)  # by rivals of one build
    file: str = ""  # of an index that is kept in one
    place: Callable[[np.ndarray], Any] = lambda query: query  # queries where they are asked
    synchronize: Callable[[], None] = lambda: None  # waits until the device has finished
    by_hash: bool = False  # `found` asks the hash alone, and nothing needs to be built

    def built(self) -> Any:
        """Return what is built; its time is kept with it."""
        if "built" not in self.kept:
            self.kept["seconds"] = []
            for _ in range(self.kept.get("times", 1)):
                self.kept["seconds"].append(harness.seconds_of(self._make, self.synchronize))
            self.kept["build_seconds"] = harness.spread(self.kept.pop("seconds"))
        return self.kept["built"]

    def _make(self):
        self.kept.pop("built", None)
        self.kept["built"] = self.build()

    def recall(self, query: np.ndarray, neighbour: np.ndarray) -> float:
        """Return the share of queries whose neighbour is found."""
        built = None if self.by_hash else self.built()
        return float(np.mean(self.found(built, self.place(query), neighbour)))


# Ours


def sketch(
    key: np.ndarray, plan: Plan, *, seed: int = 0, name: str = SKETCH, device: str = "cpu"
) -> Rival:
    """Return a sketch by a plan, its arrays in float32."""
    hash = plan.hash(seed, key.shape[1]).to(dtype="float32")
    settings = (
        f"tables {plan.n_tables}, projections {plan.n_projections}, width {plan.width:.2f}, "
        f"probes {plan.n_probes}, δ {plan.delta}"
    )
    return of_hash(key, hash, plan.n_probes, name=name, settings=settings, device=device)


def of_hash(
    key: np.ndarray,
    hash: Any,
    n_probes: int = 1,
    *,
    name: str = SKETCH,
    settings: str,
    scale: float = SCALE,
    device: str = "cpu",
    value: np.ndarray | None = None,
) -> Rival:
    """Return a sketch with a hash, of NumPy arrays or on a GPU of CuPy's.

    The time of its build is that until a query can be answered, with the sort of its tables.
    """
    library, impl = ("numpy", "numba") if device == "cpu" else ("cupy", "cupy")
    place = partial(move, library_name=library)
    placed = place(key)

    def empty():
        return SketchAttention(hash, scale=scale, impl=impl, n_probes=n_probes)

    def build():
        made = empty()
        made.update(placed, None if value is None else place(value))
        made.merge()  # else the first query would sort
        return made

    def found(made, query, neighbour):
        engine = empty().state.engine
        there = engine.signatures(place(key[neighbour]), of_queries=False)
        asked = engine.signatures(query, of_queries=True)
        asked = move(asked, "numpy").reshape(len(query), there.shape[1], -1)
        return (asked == move(there, "numpy")[:, :, None]).any(axis=(1, 2))

    def facts(made, query):
        _, evidence = made.attention_output(place(query[:1024]), return_evidence=True)
        n_candidates = float(move(evidence.candidates, "numpy").mean())
        return {"candidates": n_candidates, "index_bytes": int(made.memory_bytes)}

    return Rival(
        name,
        settings,
        build,
        lambda made, query: made.attention_output(query),
        found,
        BATCH,
        facts,
        {"times": 1},
        place=place,
        synchronize=harness.synchronizer(device),
        by_hash=True,
    )


# Exact


def exact(key: np.ndarray, device: str = "cpu") -> Iterator[Rival]:
    """Yield exact attention by PyTorch: its own function, and matrix products."""
    import torch

    placed = torch.from_numpy(key).to(device)

    def sdpa(made, query):
        q = torch.as_tensor(query)[None, None]
        k = made[None, None]
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, scale=SCALE)

    def products(made, query):
        scores = torch.as_tensor(query) @ made.T
        return torch.softmax(scores * SCALE, dim=-1) @ made

    def all_found(made, query, neighbour):
        return np.ones(len(query), dtype=bool)

    for name, ask, batch in ((SDPA, sdpa, EXACT_BATCH), ("torch matmul", products, 64)):
        rival = Rival(name, "exact", lambda: placed, ask, all_found, batch)
        if device != "cpu":
            rival.place = partial(move, library_name="torch", device=device)
            rival.synchronize = harness.synchronizer(device)
        yield rival


# faiss


def inverted(key: np.ndarray, n_lists: int, *, inner: bool = False) -> Callable[[int], Rival]:
    """Return a maker of inverted files, by how many lists are read."""
    import faiss

    def build():
        metric = faiss.METRIC_INNER_PRODUCT if inner else faiss.METRIC_L2
        index = faiss.index_factory(key.shape[1], f"IVF{n_lists},Flat", metric)
        index.cp.max_points_per_centroid, index.cp.niter = TRAINED_ON, TRAINED_FOR
        index.train(key)
        index.add(key)
        return index

    kept: dict[str, Any] = {}

    def of(nprobe):
        given = faiss.SearchParametersIVF(nprobe=nprobe)
        settings = f"lists {n_lists}, nprobe {nprobe}"
        return _faiss("faiss IVF", settings, f"ivf{n_lists}", key, build, given, kept)

    return of


def graph(key: np.ndarray, links: int, effort: int, *, inner: bool = False) -> Callable[..., Rival]:
    """Return a maker of graphs, by how far they are searched."""
    import faiss

    def build():
        metric = faiss.METRIC_INNER_PRODUCT if inner else faiss.METRIC_L2
        index = faiss.IndexHNSWFlat(key.shape[1], links, metric)
        index.hnsw.efConstruction = effort
        index.add(key)
        return index

    kept: dict[str, Any] = {}

    def of(reach):
        given = faiss.SearchParametersHNSW(efSearch=reach)
        settings = f"M {links}, efConstruction {effort}, efSearch {reach}"
        name = f"hnsw{links}_{effort}"
        return _faiss("faiss HNSW", settings, name, key, build, given, kept, GRAPH_BATCH)

    return of


def codes(key: np.ndarray, bits: int) -> Rival:
    """Return signs of random projections, all of them compared."""
    import faiss

    def build():
        index = faiss.IndexLSH(key.shape[1], bits, True)
        index.add(key)
        return index

    return _faiss("faiss LSH", f"bits {bits}", f"lsh{bits}", key, build, None, {}, SLOW_BATCH)


def quantised(key: np.ndarray, n_lists: int, n_bytes: int) -> Callable[[int, int], Rival]:
    """Return a maker of product quantisation in lists, by how many are scored again and read."""
    import faiss

    def build():
        # np: the codes are not put into an order for a search by their bits, which nobody makes
        index = faiss.index_factory(key.shape[1], f"IVF{n_lists},PQ{n_bytes}np,RFlat")
        base = faiss.extract_index_ivf(index)
        for k_means in (base.cp, faiss.downcast_index(base).pq.cp):
            k_means.max_points_per_centroid, k_means.niter = TRAINED_ON, TRAINED_FOR
        index.train(key)
        index.add(key)
        return index

    kept: dict[str, Any] = {}

    def of(again, nprobe):
        inner = faiss.SearchParametersIVF(nprobe=nprobe)
        given = faiss.IndexRefineSearchParameters(k_factor=again, base_index_params=inner)
        settings = f"lists {n_lists}, bytes {n_bytes}, nprobe {nprobe}, scored again {again}"
        name = f"ivfpq{n_lists}_{n_bytes}"
        return _faiss("faiss IVFPQ + exact", settings, name, key, build, given, kept)

    return of


def flat(key: np.ndarray, *, inner: bool = False) -> Rival:
    """Return faiss's exact search."""
    import faiss

    def build():
        index = faiss.IndexFlatIP(key.shape[1]) if inner else faiss.IndexFlatL2(key.shape[1])
        index.add(key)
        return index

    return _faiss("faiss flat", "exact", "", key, build, None, {}, SLOW_BATCH)


def _faiss(name, settings, file, key, build, given, kept, batch=BATCH):
    def ask(index, query):
        return index.search(query, 1, params=given)[1]

    def found(index, query, neighbour):
        return ask(index, query)[:, 0] == neighbour

    # an index of a million keys takes minutes: it is built once, timed, and kept in a file
    if file and len(key) >= 10**6:
        build = partial(_stored, FOLDER / f"{file}_{len(key)}", build, kept)
    return Rival(name, settings, build, ask, found, batch, kept=kept, file=f"{file}_{len(key)}")


def _stored(path: Path, build, kept):
    import faiss

    facts = path.with_suffix(".json")
    if not facts.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made: list[Any] = []
        seconds = harness.seconds_of(lambda: made.append(build()))
        faiss.write_index(made[0], str(path.with_suffix(".faiss")))
        facts.write_text(json.dumps({"build_seconds": seconds}))
    kept["stored_seconds"] = json.loads(facts.read_text())["build_seconds"]
    return faiss.read_index(str(path.with_suffix(".faiss")))


def build_seconds(rival: Rival) -> dict[str, float]:
    """Return the time of the build of a rival, which has happened."""
    rival.built()
    stored = rival.kept.get("stored_seconds")
    return rival.kept["build_seconds"] if stored is None else harness.spread([stored])


def _known(rival, query, neighbour):
    """Return the recall of a rival, kept in a file beside an index that is."""
    if rival.by_hash:
        return rival.recall(query, neighbour)
    path = FOLDER / "recalls.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    name = f"{rival.implementation}, {rival.settings}, {len(query)} queries of {rival.file}"
    if name not in known:
        rival.built()
        if "stored_seconds" not in rival.kept:
            return rival.recall(query, neighbour)
        known[name] = rival.recall(query, neighbour)
        path.write_text(json.dumps(known, indent=1))
    return known[name]


def tuned(
    makers: Sequence[tuple[Callable[[int], Rival], Sequence[int]]],
    query: np.ndarray,
    neighbour: np.ndarray,
    least: float = RECALL,
) -> list[tuple[Rival, float]]:
    """Return of each maker the first setting with this recall, or the last, and the recall."""
    chosen = []
    for make, settings in makers:
        for setting in settings:
            rival = make(setting)
            recall = _known(rival, query, neighbour)
            if recall >= least:
                break
        chosen.append((rival, recall))
    return chosen
