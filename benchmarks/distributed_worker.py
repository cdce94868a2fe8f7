"""One of several processes: ``torchrun -m benchmarks.distributed_worker PATH [--quick]``.

The processes do every job together; the first writes what they found into PATH. The queries, keys
and values of a whole play are in ``inputs.npz`` beside it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from attnbook.distributed import (
    ShardedSketch,
    decode_attention,
    ring_attention,
    shard_sequence,
)
from attnbook.distributed.shards import LAYOUTS
from attnbook.kernels import packed
from attnbook.sketch import SimHash, SketchAttention
from benchmarks import harness
from benchmarks.memory import extra_bytes

LINK_BYTES, QUICK_LINK_BYTES = tuple(4**i for i in range(5, 13)), (2**10, 2**14)
ROUNDS, QUICK_ROUNDS = 4, 2
IMPL, CAUSAL = "packed", {"is_causal": True}


class Sent:
    """The bytes that this process hands to `torch.distributed`, counted at its door."""

    def __init__(self) -> None:
        self.bytes = 0
        self.batch, self.gather = dist.batch_isend_irecv, dist.all_gather

    def __enter__(self) -> "Sent":
        dist.batch_isend_irecv = self.count_batch
        dist.all_gather = self.count_gather
        return self

    def __exit__(self, *_: Any) -> None:
        dist.batch_isend_irecv, dist.all_gather = self.batch, self.gather

    def count_batch(self, deeds: list[Any]) -> Any:
        self.bytes += sum(deed.tensor.nbytes for deed in deeds if deed.op is dist.isend)
        return self.batch(deeds)

    def count_gather(self, parts: list[Any], x: Any, *rest: Any, **options: Any) -> Any:
        if x.dtype != torch.uint8:  # the words in which processes compare their shapes
            self.bytes += x.nbytes * (len(parts) - 1)
        return self.gather(parts, x, *rest, **options)


def gathered(x: Any) -> list[Any]:
    """Return `x` of every process."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, x)
    return every


def timed(function: Any, rounds: int) -> dict[str, float]:
    """Return the spread over rounds of the seconds until the last process is done."""
    function()
    samples = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        function()
        dist.barrier()
        samples.append(time.perf_counter() - start)
    return harness.spread(np.max(gathered(samples), axis=0).tolist())


def repeated(query: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(query.shape[0] // x.shape[0], 0)


def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """Return PyTorch's attention in float64, in one process."""
    q, k, v = (x.double() for x in (query, key, value))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q[None], repeated(q, k)[None], repeated(q, v)[None], **options)[0]


# The jobs


def links(quick: bool) -> list[dict[str, Any]]:
    """Return the seconds in which each process hands a message to the next."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = []
    for n_bytes in QUICK_LINK_BYTES if quick else LINK_BYTES:
        x = torch.zeros(n_bytes // 4)
        y = torch.empty_like(x)
        calls = max(1, min(50, 2**25 // n_bytes))

        def run(x=x, y=y, calls=calls):
            for _ in range(calls):
                deeds = [
                    dist.P2POp(dist.isend, x, (rank + 1) % size),
                    dist.P2POp(dist.irecv, y, (rank - 1) % size),
                ]
                for work in dist.batch_isend_irecv(deeds):
                    work.wait()

        found = timed(run, QUICK_ROUNDS if quick else ROUNDS)
        seconds = {name: x / calls for name, x in found.items()}
        rows.append({"bytes": n_bytes, "seconds": seconds})
    return rows


def expected_of(arrays: list[torch.Tensor], grad: torch.Tensor, path: Path) -> list[torch.Tensor]:
    """Return output and gradients in float64, which one process works out for all launches."""
    if not path.exists() and dist.get_rank() == 0:
        leaves = [x.double().requires_grad_() for x in arrays]
        output = exact(*leaves, **CAUSAL)
        output.backward(grad.double())
        np.savez(path, output.detach(), *(x.grad for x in leaves))
    dist.barrier()
    with np.load(path) as stored:
        return [torch.tensor(stored[name]) for name in stored.files]


def rings(arrays: list[torch.Tensor], path: Path, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each layout: error, bytes sent, memory, seconds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    grad = torch.tensor(np.random.default_rng(0).standard_normal(arrays[0].shape)).float()
    expected = expected_of(arrays, grad, path)
    rows = []
    for layout in LAYOUTS if size > 1 else ("zigzag",):  # one process holds all in any layout
        shards = [shard_sequence(x, size, layout)[rank].contiguous() for x in arrays]
        ours = shard_sequence(grad, size, layout)[rank].contiguous()
        options = {"layout": layout, **CAUSAL}

        def forward(shards=shards, options=options):
            with torch.no_grad():
                return ring_attention(*shards, impl=IMPL, **options)

        def both(shards=shards, options=options, ours=ours):
            inputs = [x.detach().requires_grad_() for x in shards]
            output = ring_attention(*inputs, impl=IMPL, **options)
            output.backward(ours)
            return (output.detach(), *(x.grad for x in inputs))

        results: dict[str, Any] = {}
        sent: dict[str, int] = {}
        for name, run in (("forward", forward), ("both", both)):
            with Sent() as counted:
                results[name] = run()
            sent[name] = counted.bytes
        found = results["both"]
        judged = [shard_sequence(x, size, layout)[rank] for x in expected]
        errors = [float((a - b).abs().max()) for a, b in zip(found, judged, strict=True)]
        row: dict[str, Any] = {
            "layout": layout,
            "max_abs": max(e[0] for e in gathered(errors)),
            "max_abs_gradient": max(max(e[1:]) for e in gathered(errors)),
        }
        for name, run in (("forward", forward), ("both", both)):
            row[f"{name}_bytes_sent"] = gathered(sent[name])
            held = sum(x.nbytes for x in shards)
            result = results[name] if name == "both" else (results[name],)
            extra = extra_bytes(run, "torch", "cpu") or 0
            row[f"{name}_bytes_held"] = gathered(held + sum(x.nbytes for x in result) + extra)
            row[f"{name}_seconds"] = timed(run, QUICK_ROUNDS if quick else ROUNDS)
        row["work_seconds"] = work(forward)
        rows.append(row)
    return rows


def work(run: Any) -> list[list[float]]:
    """Return the processor's seconds of the pieces of each process, medians over three runs."""
    forward, samples = packed.forward, []

    def counted(*arguments: Any) -> Any:
        start = time.thread_time()
        result = forward(*arguments)
        samples[-1].append(time.thread_time() - start)
        return result

    packed.forward = counted
    try:
        for _ in range(3):
            samples.append([])
            run()
    finally:
        packed.forward = forward
    return gathered(np.median(samples, axis=0).tolist())


def decoding(quick: bool) -> list[dict[str, Any]]:
    """Return rows of one query over a cache of n keys, sharded."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = []
    for n in (2**10,) if quick else (2**13, 2**17):
        rng = np.random.default_rng(n)
        query, key, value = (
            torch.tensor(rng.standard_normal((h, m, 64), dtype=np.float32))
            for h, m in ((8, 1), (2, n), (2, n))
        )
        k, v = (shard_sequence(x, size, "contiguous")[rank].contiguous() for x in (key, value))

        def run(query=query, k=k, v=v):
            return decode_attention(query, k, v, impl=IMPL)

        grouped = query.reshape(2, 4, 64).double()
        scores = grouped @ key.double().mT / 8
        whole = (torch.softmax(scores, -1) @ value.double()).reshape(query.shape)
        error = float((run() - whole).abs().max())
        with Sent() as sent:
            run()
        rows.append(
            {
                "n": n,
                "max_abs": max(gathered(error)),
                "bytes_sent": gathered(sent.bytes),
                "cache_bytes": gathered(k.nbytes + v.nbytes),
                "seconds": timed(run, QUICK_ROUNDS if quick else ROUNDS),
            }
        )
    return rows


def sketch(arrays: list[torch.Tensor], quick: bool) -> dict[str, Any]:
    """Return how far a sketch sharded by keys is from one sketch with all of them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    query, key, value = (x[0].numpy() for x in arrays)
    query = query[:: max(1, len(query) // 256)]
    hash = SimHash.init(0, key.shape[1], n_tables=8, n_projections=6).to("numpy", dtype="float32")
    ours = ShardedSketch(SketchAttention(hash))
    part = slice(rank * len(key) // size, (rank + 1) * len(key) // size)
    ours.update(np.ascontiguousarray(key[part]), np.ascontiguousarray(value[part]))
    one = SketchAttention(hash)
    one.update(key, value)
    output, evidence = ours.attention_output(query, return_evidence=True)
    expected, whole = one.attention_output(query, return_evidence=True)
    with Sent() as sent:
        ours.attention_output(query)
    return {
        "n": len(key),
        "queries": len(query),
        "max_abs": max(gathered(float(np.abs(output - expected).max()))),
        "missed_mass_max_abs": float(np.abs(evidence.missed_mass - whole.missed_mass).max()),
        "same_candidates": bool((evidence.candidates == whole.candidates).all()),
        "mean_candidates": float(whole.candidates.mean()),
        "bytes_sent": gathered(sent.bytes),
        "table_bytes": gathered(ours.sketch.memory_bytes),
    }


def main(path: Path, quick: bool) -> None:
    """Do every job and write what all processes found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with np.load(path.parent / "inputs.npz") as stored:
        arrays = [torch.tensor(stored[name]) for name in ("query", "key", "value")]
    found: dict[str, Any] = {}
    found["rings"] = rings(arrays, path.parent / "expected.npz", quick)
    found["decoding"] = decoding(quick)
    found["sketch"] = sketch(arrays, quick)
    if dist.get_world_size() == 2:
        found["links"] = links(quick)
    if dist.get_rank() == 0:
        path.write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv)
