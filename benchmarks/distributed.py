"""Many machines: ring attention, split decoding and a sharded sketch on 1, 2 and 4 processes.

The processes run on this machine, one thread each, and speak over its loopback by gloo. Tables:
`rings`, causal attention of a play in three layouts; `decoding`, one query over a sharded cache;
`sketches`; `links`, how fast messages pass; and `model`, which is a model and measures nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import distributed_model as model
from benchmarks.provenance import ROOT
from benchmarks.tables import Step, Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
SIZES, QUICK_SIZES = (1, 2, 4), (1, 2)
LAYER, TOKENS, QUICK_TOKENS = 1, 4096, 64

METHODS = {
    "rings": (
        "Causal attention of one layer of the writer over so many tokens of a play: 6 query heads, "
        "2 key heads, width 32, float32, impl packed, one thread a process."
    ),
    "max_abs, max_abs_gradient": (
        "Largest absolute difference, over all processes, of the output and of the three gradients "
        "from PyTorch's attention in one process in float64."
    ),
    "bytes_sent": (
        "What each process handed to torch.distributed in one call, counted there; the 512 bytes "
        "in which the processes compare their shapes are left out. `bytes_theory`: forward "
        "(p − 1) (d_k + d_v) h_kv n/p numbers; both passes 2 (p − 1) + p such shards."
    ),
    "bytes_held": (
        "Peak of the arrays that each process holds during a call: its shards, what the call asks "
        "for (PyTorch's memory events, and tracemalloc), the result. What the compiled loops "
        "allocate inside, less than 1 MiB a thread, is not seen."
    ),
    "seconds": (
        "Wall-clock seconds until the last process is done, over rounds, all processes on the "
        "cores that `provenance` tells: beyond that number they share them."
    ),
    "work_seconds": (
        "For each process the processor's seconds of each piece that it computed, forward; with "
        "one piece for each step in which it has something to do. Medians of three runs."
    ),
    "pairs": "For each process and step, how many pairs of query and key a head computes.",
    "links": (
        "Seconds in which each of two processes hands a message to the other one and gets one, by "
        "gloo over the loopback of this machine."
    ),
    "model": (
        "Not measured. For each link and p: from how many tokens n on a step of the causal zigzag "
        "ring computes as long as it sends (`hidden_from`), and how many times as fast as one "
        "process p of them are at n tokens (`speed`): seconds of a step = max(work / rate, latency "
        "+ bytes / bandwidth)."
    ),
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure on processes of this machine."""
    sizes, n = (QUICK_SIZES, QUICK_TOKENS) if quick else (SIZES, TOKENS)
    tables.add(
        methods=METHODS,
        layer=LAYER,
        tokens=n,
        processes=sizes,
        rings=[],
        decoding=[],
        sketches=[],
        links=[],
    )
    if tables.path is None:
        folder = Path(tempfile.mkdtemp())
    else:  # kept beside the record until it is whole: an interrupted benchmark goes on
        folder = tables.path.with_suffix(".runs.partial")
        folder.mkdir(exist_ok=True)
    if not (folder / "inputs.npz").exists():
        from benchmarks import real_keys

        np.savez(folder / "inputs.npz", **real_keys.layers(n)[LAYER]._asdict())
    with np.load(folder / "inputs.npz") as stored:
        tables.add(shapes={name: list(stored[name].shape) for name in stored.files})
    steps = [
        Step({"processes": p}, 1.0, lambda p=p: run(p, n, folder, quick, tables)) for p in sizes
    ]
    tables.measure("launches", steps)
    tables.whole("model", lambda: modelled(tables.record))
    shutil.rmtree(folder)


def run(p: int, n: int, folder: Path, quick: bool, tables: Tables) -> list[Any]:
    """Start p processes, put what they found into the record, and return nothing."""
    path = folder / f"{p}.json"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
    ]
    command += [f"--nproc-per-node={p}", "-m", "benchmarks.distributed_worker", str(path)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(ROOT)
    if not path.exists():
        done = subprocess.run(
            [*command, *(["--quick"] if quick else [])],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the {p} processes must end well, got {done.stderr[-3000:]}")
    found = json.loads(path.read_text(encoding="utf-8"))
    record = tables.record
    numbers = sum(h * d for h, _, d in (record["shapes"][name] for name in ("key", "value")))
    shard = n // p * numbers * 4
    for row in found["rings"]:
        theory = {"forward": (p - 1) * shard, "both": (2 * (p - 1) + (p if p > 1 else 0)) * shard}
        pairs = pairs_of(row["layout"], p, n // p)
        record["rings"].append({"processes": p, **row, "bytes_theory": theory, "pairs": pairs})
    record["decoding"] += [{"processes": p, **row} for row in found["decoding"]]
    record["sketches"].append({"processes": p, **found["sketch"]})
    record["links"] += [{"processes": p, **row} for row in found.get("links", [])]
    return []


def pairs_of(layout: str, p: int, m: int) -> list[list[int]]:
    """Return for each process and step of the ring how many pairs of query and key it computes."""
    from attnbook.distributed.shards import seen

    found = []
    for rank in range(p):
        steps = []
        for i in range(p):
            part = seen(layout, True, rank, (rank - i) % p, m)
            rows, columns = (0, 0) if part is None else (len(range(m)[s]) for s in part[:2])
            causal = part is not None and part.is_causal
            steps.append(rows * (rows + 1) // 2 if causal else rows * columns)
        found.append(steps)
    return found


def modelled(record: dict[str, Any]) -> dict[str, Any]:
    """Return the model of the ring on the measured link and on published ones."""
    one = next(row for row in record["rings"] if row["processes"] == 1)
    heads, n, width = record["shapes"]["query"]
    rate = 4 * n * (n + 1) / 2 * heads * width / one["forward_seconds"]["median"]
    kv_heads = record["shapes"]["key"][0]
    own = {"heads": heads, "kv_heads": kv_heads, "width": width, "bytes_a_number": 4}
    links = []
    if record["links"]:
        links = [(model.fitted(record["links"], "loopback, measured"), rate, own)]
    links += [(link, model.RATE, {}) for link in (model.INFINIBAND, model.NVLINK)]
    described = [
        link._asdict() | {"rate": rate, **model.MODEL, **layer} for link, rate, layer in links
    ]
    return {
        "links": described,
        "rate_source": model.RATE_SOURCE,
        "rows": model.rows(links),
    }
