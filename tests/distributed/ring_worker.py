"""Several processes: python ring_worker.py JOB SIZE FOLDER. Each writes what it found."""

import datetime
import functools
import json
import os
import pathlib
import pickle
import signal
import sys
from unittest import mock

import numpy as np
import ring_cases
import torch
import torch.distributed as dist
import torch.fx.experimental.symbolic_shapes  # which the first backward pass imports
from forked import forked

from attnbook import distributed
from attnbook.arrays.move import move
from attnbook.distributed import shard_sequence
from attnbook.distributed.processes import Processes
from attnbook.hashing import GivenHash, LiftedHash
from attnbook.kernels import packed  # noqa: F401, it imports Numba
from attnbook.kernels.numba_loops import forward as panels
from attnbook.masking import Causal, Chunks  # noqa: F401, named in ring_cases.ERRORS
from attnbook.sketch import SimHash, SketchAttention

PATIENT = 600
"""Seconds that a process waits for another: the machine may be busy with something else."""

ring_attention = functools.partial(distributed.ring_attention, timeout=PATIENT)
decode_attention = functools.partial(distributed.decode_attention, timeout=PATIENT)
global_mean = functools.partial(distributed.global_mean, timeout=PATIENT)
sum_gradients = functools.partial(distributed.sum_gradients, timeout=PATIENT)
ShardedSketch = functools.partial(distributed.ShardedSketch, timeout=PATIENT)


def plain(x):
    return x.detach().to(torch.float64).numpy()


def caught(call, *arguments, **options):
    """Return the kind and the message of what a call raises."""
    try:
        call(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def ring(rank, size, cases, group=None):
    found = {}
    for name in cases:
        case = ring_cases.of(ring_cases.RING[name])
        arrays = ring_cases.drawn(name, case, size)
        *inputs, grad = (shard_sequence(x, size, case["layout"])[rank] for x in arrays)
        inputs = [x.clone().requires_grad_() for x in inputs]
        options = {k: case[k] for k in ("layout", "is_causal", "impl", "scale")}
        output = ring_attention(*inputs, group=group, **options)
        assert output.dtype == inputs[0].dtype
        output.backward(grad)
        found[name] = [plain(x) for x in (output, *(x.grad for x in inputs))]
    return found


def train(rank, size, group=None, layout="zigzag"):
    """Return the loss and the gradients of a training step on shards, for each choice of labels."""
    found = {}
    for name, counted in ring_cases.COUNTED.items():
        weights, *whole = ring_cases.model()
        weights["unused"] = torch.ones(2, dtype=torch.float64, requires_grad=True)
        mask = torch.zeros(24, dtype=torch.bool)
        mask[counted] = True
        whole += [torch.arange(24), mask]
        ids, labels, positions, mask = (
            shard_sequence(x, size, layout, axis=0)[rank] for x in whole
        )
        attend = functools.partial(ring_attention, group=group, is_causal=True, layout=layout)
        losses = ring_cases.losses_of(weights, ids, labels, positions, attend)
        losses = torch.where(mask, losses, torch.nan)  # a label that does not count may be anything
        loss = global_mean(losses, mask, group=group)
        loss.backward()
        sum_gradients(weights.values(), group=group)
        found[name] = plain(loss), {x: plain(w.grad) for x, w in weights.items()}
    return found


def decode(rank, size):
    found = {}
    for name, given in ring_cases.DECODE.items():
        case = ring_cases.of(given)
        query, key, value, _ = ring_cases.drawn(name, case, size)
        cuts, mask = ring_cases.cuts_of(case, size), ring_cases.mask_of(case, size)
        ours = slice(cuts[rank], cuts[rank + 1])
        mask = None if mask is None else mask[:, ours]
        options = {"mask": mask, "impl": case["impl"], "scale": case["scale"]}
        found[name] = plain(decode_attention(query, key[:, ours], value[:, ours], **options))
    return found


def sketch(rank, size):
    found = {}
    for name, case in ring_cases.SKETCHES.items():
        query, key, value = (move(x, case["library"]) for x in ring_cases.sketched(name, case))
        hash = SimHash.init(3, 6, n_tables=3, n_projections=4).to(case["library"])
        impl = case.get("impl", "reference")
        ours = ShardedSketch(SketchAttention(hash, estimator=case["estimator"], impl=impl))
        part = slice(*ring_cases.SKETCH_CUTS[rank : rank + 2])
        ours.update(key[part], value[part])
        output, evidence = ours.attention_output(query, return_evidence=True)
        assert type(output) is type(query)
        again = ours.attention_output(query)
        assert bool((again == output).all())
        fields = {"output": output, **vars(evidence)}
        found[name] = {k: x if isinstance(x, int) else np.asarray(x) for k, x in fields.items()}
    return found


def errors(rank, size):
    x = torch.zeros(2, 4, 3)
    wrong = x if rank else x[:, :3]
    uneven = torch.zeros(ring_cases.SIZE, 2, rank + 1, 3)
    hash = SimHash.init(0, 3)
    names = globals() | {"x": x, "hash": hash}
    found = {call: caught(eval, call, names) for call, _, _ in ring_cases.ERRORS}
    return found | {
        "uneven": caught(ring_attention, uneven, uneven, uneven, is_causal=False),
        "refused by rank 0": caught(ring_attention, wrong, wrong, wrong, is_causal=True),
        "queries": caught(decode_attention, x[:, : rank + 1], x, x),
        "twice": caught(second_order),
        "no keys": caught(ShardedSketch(SketchAttention(hash)).attention_output, x[0]),
        "evidence": caught(answer, x[0].numpy(), hash, return_evidence=rank == 0),
        "reductions": [
            caught(global_mean, torch.ones(3, dtype=torch.int64)),
            caught(global_mean, torch.ones(3), torch.ones(3)),
            caught(global_mean, torch.ones(3), torch.ones(2) > 0),
            caught(global_mean, [1.0]),
            caught(sum_gradients, [torch.ones(3), 1]),
        ],
        "parameters": caught(sum_gradients, [torch.ones(3 + rank // 2)]),
        "no label": plain(global_mean(torch.ones(3), torch.ones(3) < 0)),
        "half": half(),
    }


def half():
    """Return a mean and a gradient of float16, of numbers that are lost if float16 adds them."""
    mean = global_mean(torch.ones(3000, dtype=torch.float16))
    x = torch.zeros(3, dtype=torch.float16, requires_grad=True)
    x.grad = torch.full_like(x, 0.9)
    x.grad[dist.get_rank()] = 2048
    sum_gradients([x])
    return float(mean), x.grad.tolist()


def apart(rank):
    """Return what calls say of which one thing is another one on rank 1."""
    odd = rank == 1
    x, hash = torch.ones(4, 3), SimHash.init(0, 3)
    keys, other = x.numpy(), SimHash.init(int(odd), 3)
    missing = {"attnbook.kernels.packed": None} if odd else {}
    tables = GivenHash(*[lambda keys: keys[:, 0] > 0] * (2 if odd else 3))
    with mock.patch.dict(sys.modules, missing):
        not_installed = caught(ring_attention, x, x, x, impl="packed")
    return {
        "not installed": not_installed,
        "group": caught(ring_attention, x, x, x, group=dist.new_group([1])),
        "longest timeout": caught(ring_attention, x, x, x, timeout=2**31 - 1),
        "decode scale": caught(decode_attention, x, x, x, scale=5.0 if odd else 0.5),
        "scale": caught(answer, keys, hash, scale=5.0 if odd else 0.5),
        "dtype": caught(answer, keys.astype("float64") if odd else keys, hash),
        "n_probes": caught(answer, keys, hash, n_probes=2 if odd else 1),
        "planes": caught(answer, keys, other),
        "shape": caught(answer, keys, SimHash.init(0, 3, *((2, 3) if odd else (3, 2)))),
        "lifted": caught(answer, keys, LiftedHash(SimHash.init(0, 4), 5.0 if odd else 6.0)),
        "class": caught(answer, keys, hash if odd else tables),
        "tables": caught(answer, keys, tables),
        "library": caught(answer, x if odd else keys, hash.to("torch") if odd else hash),
    }


def messages(pair):
    """Return what each call sends to all processes, in bytes, and its output."""
    found, sizes = {}, []
    gather, reduce = dist.all_gather, dist.all_reduce

    def gathered(parts, x, *arguments, **options):
        sizes.append(("gather", x.nbytes))
        return gather(parts, x, *arguments, **options)

    def reduced(x, *arguments, **options):
        sizes.append(("reduce", x.nbytes))
        return reduce(x, *arguments, **options)

    def noted(call, *arguments, **options):
        sizes.clear()
        output = call(*arguments, **options)
        return list(sizes), None if output is None else plain(output)

    losses = torch.ones(3, dtype=torch.bfloat16)
    calls = {"ring": ring_attention, "decode": decode_attention}
    with (
        mock.patch.object(dist, "all_gather", gathered),
        mock.patch.object(dist, "all_reduce", reduced),
    ):
        for name, call in calls.items():
            for length in (4, 4, 6, 4):
                x = torch.ones(2, length, 3, dtype=torch.float16)
                found.setdefault(name, []).append(noted(call, x, x, x))
        x = torch.ones(2, 4, 3, dtype=torch.float16)
        in_pair = dist.get_rank(pair) >= 0
        found["pair"] = [noted(ring_attention, x, x, x, group=pair)[0] for _ in range(2 * in_pair)]
        found["impl"] = noted(ring_attention, x, x, x, impl="packed")[0]
        found["mean"] = [noted(global_mean, losses)[0] for _ in range(2)]
        parameters = [torch.ones(n, requires_grad=True) for n in (2, 3)]
        found["gradients"] = [noted(sum_gradients, parameters)[0] for _ in range(2)]
    return found


def few_queries():
    """Return what the compiled rung says of one query a head, without the loops for many."""
    x = torch.ones(4, 5, 3)
    with mock.patch.object(panels, "_by_panels", side_effect=RuntimeError("panels")):
        return caught(decode_attention, x[:, :1], x, x, impl="packed")


def own_scale(rank, size):
    """Return output and gradients where each process has a scale, and those of one process."""
    rng = np.random.default_rng(5)
    whole = [torch.tensor(rng.standard_normal((size, 2, 3)), requires_grad=True) for _ in range(3)]
    query, key, value = (x.reshape(-1, 3) for x in whole)
    outputs = [
        torch.nn.functional.scaled_dot_product_attention(q, key, value, scale=1.0 + r)
        for r, q in enumerate(query.split(2))
    ]
    torch.cat(outputs).sin().sum().backward()
    ours = [x.detach()[rank].clone().requires_grad_() for x in whole]
    output = ring_attention(*ours, scale=1.0 + rank)
    output.sin().sum().backward()
    found = [output, *(x.grad for x in ours)], [outputs[rank], *(x.grad[rank] for x in whole)]
    return [[plain(x) for x in side] for side in found]


def answer(x, hash, return_evidence=False, **options):
    """Ask a sketch with the keys `x` for them."""
    sketch = ShardedSketch(SketchAttention(hash, **options))
    sketch.update(x)
    return sketch.attention_output(x, return_evidence=return_evidence)


def second_order():
    x = torch.ones(2, 3, requires_grad=True)
    output = ring_attention(x, x, x).sum()
    (grad,) = torch.autograd.grad(output, x, create_graph=True)
    grad.sum().backward()


def references():
    """Return how many hold the default group before a call, and while its output is there."""
    before = sys.getrefcount(dist.group.WORLD)
    output = ring_attention(*(torch.ones(2, 4, 3, requires_grad=True) for _ in range(3)))
    sketch = ShardedSketch(SketchAttention(SimHash.init(0, 3)))
    found = before, sys.getrefcount(dist.group.WORLD)
    del output, sketch
    return found


def lost(rank, size):
    """Process 2 is killed in a ring, before its keys and values, which all need, have left it."""
    if rank == 2:
        Processes.pass_on = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    x = torch.ones(2, 8, 3)
    return caught(ring_attention, x, x, x, is_causal=True)


def main(job, rank, size, folder):
    found = {}
    if job == "equal":
        x = torch.ones(2, 4, 3)
        found["no group"] = caught(ring_attention, x, x, x)
    address = f"file://{folder / 'address'}"
    timeout = datetime.timedelta(seconds=PATIENT)
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=size, timeout=timeout
    )
    if job == "equal":
        found |= {"ring": ring(rank, size, ring_cases.RING), "decode": decode(rank, size)}
        found |= {"sketch": sketch(rank, size), "errors": errors(rank, size)}
        found |= {"apart": apart(rank), "own scale": own_scale(rank, size)}
        pair = dist.new_group([0, 2])
        found |= {"messages": messages(pair), "references": references()}
        found["train"] = {3: train(rank, 3), "striped": train(rank, 3, layout="striped")}
        found["train"][1] = train(0, 1, [dist.new_group([r]) for r in range(3)][rank])
        found["train"][2] = train(rank // 2, 2, pair) if rank != 1 else None
        found["few queries"] = few_queries()
    else:
        pair = dist.new_group([1, 3])
        if rank in (1, 3):
            found["pair"] = ring(rank // 2, 2, ring_cases.PLAIN_RING, pair)
        found["four"] = ring(rank, size, ring_cases.PLAIN_RING)
        found["train"] = train(rank, size)
        dist.barrier()
        (folder / f"{rank}.before").write_bytes(pickle.dumps(found))
        found["lost"] = lost(rank, size)
    (folder / f"{rank}.found").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    job, size, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    print(json.dumps(forked(size, lambda rank: main(job, rank, size, folder))))
