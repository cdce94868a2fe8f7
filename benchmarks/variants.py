"""What the choices of today's models change: small writers of equal size, loss beside the cache.

Three tables. `times`: the time of an update and of a decoded token, beside the baseline.
`variants`: each choice trained at its own best rate. `differences`: test losses beside those of the
baseline, against the spread of seeds. A run that is finished is kept, and a benchmark that was
interrupted goes on.
"""

import importlib.util
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnbook import data
from benchmarks import harness
from benchmarks.tables import Runs, Step, Tables

DEVICES = ("cpu",)
SECONDS = 2700.0  # for one table

BASELINE = "multi-head"
CHOICES: dict[str, dict[str, Any]] = {
    BASELINE: {},
    "grouped heads": {"n_kv_heads": 2},
    "multi-query": {"n_kv_heads": 1},
    "latent": {"latent": 24},
    "QK norm": {"qk_norm": True},
    "soft cap": {"cap": 50.0, "logit_cap": 30.0},
    "sinks": {"sinks": True},
    "gate": {"gate": True},
    "local and global": {"window": 64},
    "shared caches": {"shared": 2},
    "mixture of experts": {"experts": 8},
}
RATES, MOST_RATES, SEEDS = (0.006, 0.012, 0.024), 5, (0, 1, 2)
MORE_SEEDS = (3, 4, 5)  # of the baseline, for the spread
VOCABULARY, CONTEXT, BATCH, STEPS, WARMUP, JUDGED = 512, 256, 4, 300, 30, 2
LENGTHS = (256, 4096)  # at which bytes of cache are counted
BYTES = 2  # of a number in bfloat16
DECODED = ((1, 256), (32, 2048))  # batch and tokens in the cache
DISTINCT = 2.0  # standard errors from which a difference counts as one

METHODS = {
    "choices": (
        "`multi-head`: pre-norm, RMS normalization, rotary positions, SwiGLU, no biases, tied "
        "embeddings times √d. Each other row changes what `shape` says. `grouped heads` and "
        "`multi-query`: 2 and 1 KV heads for 4 query heads. `latent`: latents of 24 numbers, "
        "normalized, and 8 rotary features that all heads share; each head has 16 + 8 features. "
        "`QK norm`: RMS normalization of each head's queries and keys before rotation. `soft "
        "cap`: scores at 50 and logits at 30, as in Gemma 2. `sinks`: one learned score for each "
        "head. `gate`: the joined heads times sigmoid(x W_gate) before W_O. `local and global`: "
        "layers 0 to 2 have a window of 64 tokens. `shared caches`: layers 1 and 3 read the cache"
        " of the layer before. `mixture of experts`: softmax over the best 2 of 8 experts, with "
        "the loss of unequal load of Fedus et al. times 0.01."
    ),
    "parameters": (
        "d_ff is chosen so that the parameters that a token uses are nearest to the baseline's; "
        "`all_parameters` also counts the experts that it does not use. The embedding counts once."
    ),
    "cached_numbers, cache_bytes_per_token": (
        "What all layers keep for a text of so many tokens, and the same in bytes for each of its "
        "tokens, with 2 bytes for a number (bfloat16)."
    ),
    "recipe": (
        f"AdamW, betas 0.9 and 0.98, weight decay 0.1 of matrices, {WARMUP} of {STEPS} updates "
        "warm up, then a cosine to a twentieth of the rate; gradients clipped at 1, no dropout, "
        "float32. The windows of the training plays do not overlap, and no token is read twice. A "
        "seed draws the first weights and the order of the windows, which all choices share."
    ),
    "lr": (
        "The best of the rates by the validation plays, with seed 0. While the best is the lowest "
        "or the highest, the next beyond, a factor 2 away, is tried too."
    ),
    "validation, test": (
        "Mean loss in nats a token at `lr`, in the order of `seeds`, over every second window of "
        "the validation plays or the test plays; `test_bits_a_byte` is the test loss in bits for a "
        "byte of these plays. Without the loss of unequal load."
    ),
    "differences": (
        "`difference`: mean over the first three seeds of the test loss minus that of the baseline "
        "with the same seed. `spread`: the standard deviation of test losses over seeds, pooled "
        "over all choices. `standard_error`: spread times the root of 1/3 + 1/3. `is_distinct`: "
        f"whether the difference exceeds {DISTINCT:g} standard errors."
    ),
    "seconds": "Processor time of the run of each seed, its evaluations included.",
    "times": (
        "All choices run in turns in one process. `train`: an update of a batch, for each token. "
        "`decode`: a token of one text, for a batch of texts with so many tokens in the cache. "
        "`ratio`: the median over rounds of the time divided by that of the baseline in the same "
        "round. Attention is plain products and softmax in PyTorch; in training a window is a mask "
        "and saves nothing; latents are decoded with absorbed matrices; experts run one after the "
        "other."
    ),
}
QUICK: dict[str, Any] = {"d_model": 8, "n_layers": 4, "n_heads": 4, "d_k": 4, "d_ff": 12}


class Plan(NamedTuple):
    """The sizes of one run of the benchmark."""

    smaller: dict[str, Any]
    choices: tuple[str, ...]
    rates: tuple[float, ...]
    most_rates: int
    seeds: tuple[int, ...]
    more_seeds: tuple[int, ...]
    steps: int
    decoded: tuple[tuple[int, int], ...]


FULL_PLAN = Plan({}, tuple(CHOICES), RATES, MOST_RATES, SEEDS, MORE_SEEDS, STEPS, DECODED)
QUICK_PLAN = Plan(QUICK, tuple(CHOICES)[::3], RATES[:2], 2, SEEDS[:2], (), 3, ((2, 9),))


class Text(NamedTuple):
    """Windows of tokens."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train and time all choices; nothing here runs on another device."""
    if importlib.util.find_spec("torch") is None:
        tables.log("needs torch")
        return
    plan = QUICK_PLAN if quick else FULL_PLAN
    text, facts = texts(quick)
    shapes = shapes_of(plan, facts["vocabulary"])
    tables.add(methods=METHODS, baseline=asdict(shapes[BASELINE]), seeds=plan.seeds, **facts)
    tables.add(batch=BATCH, steps=plan.steps, rates=plan.rates)
    tables.whole("times", lambda: times(shapes, plan, quick))
    runs = Runs(tables.path)
    steps = [
        Step({"variant": name}, 1, partial(row, name, shapes[name], plan, text, facts, runs))
        for name in shapes
    ]
    rows = tables.measure("variants", steps)
    done = {row["variant"]: row for row in rows if "reason" not in row}
    tables.whole("differences", lambda: differences(done, len(plan.seeds)))
    runs.clear()


def texts(quick: bool) -> tuple[Text, dict[str, Any]]:
    """Return the windows of the plays, and what the record says of them."""
    plays = data.plays()
    parts = {name: getattr(plays, name) for name in Text._fields}
    if quick:
        parts = {name: text[:9000] for name, text in parts.items()}
    tokenizer = data.BytePairs.learn(parts["train"], 260 if quick else VOCABULARY)
    ids = {name: tokenizer.encode(text) for name, text in parts.items()}
    each = len(ids["test"]) / len(parts["test"].encode()) / math.log(2)
    facts = {
        "vocabulary": len(tokenizer),
        "context": CONTEXT,
        "bytes": {name: len(text.encode()) for name, text in parts.items()},
        "tokens": {name: len(x) for name, x in ids.items()},
        "test_bits_a_byte_of_a_nat_a_token": each,
    }
    strides = {"train": CONTEXT, "validation": JUDGED * CONTEXT, "test": JUDGED * CONTEXT}
    return Text(*(data.windows(ids[x], CONTEXT, stride=strides[x]) for x in Text._fields)), facts


def shapes_of(plan: Plan, vocabulary: int) -> dict[str, Any]:
    """Return the shape of each choice, all with about as many parameters as the baseline."""
    from benchmarks.variants_model import Shape, counted, fitted

    first = Shape(vocabulary=vocabulary, **plan.smaller)
    parameters = counted(first)["parameters"]
    made = {}
    for name in plan.choices:
        shape = Shape(vocabulary=vocabulary, **plan.smaller | CHOICES[name])
        made[name] = first if name == BASELINE else fitted(shape, parameters)
    return made


def row(
    name: str, shape: Any, plan: Plan, text: Text, facts: dict[str, Any], runs: Runs
) -> list[dict[str, Any]]:
    """Return the row of a choice: its losses at all rates, and at the best those of all seeds."""
    from benchmarks.variants_model import counted

    def made(rate: float, seed: int) -> dict[str, Any]:
        key = json.dumps([asdict(shape), facts, plan.steps, rate, seed])
        return runs.get(key, lambda: trained(shape, rate, seed, plan.steps, text))

    judged = rates(lambda rate: made(rate, plan.seeds[0])["validation"], plan)
    best = min(judged, key=lambda rate: (judged[rate], rate))
    seeds = plan.seeds + (plan.more_seeds if name == BASELINE else ())
    found = [made(best, seed) for seed in seeds]
    numbers = {str(n): shape.cached_numbers(n) for n in LENGTHS}
    test = [run["test"] for run in found]
    return [
        {
            "variant": name,
            "shape": CHOICES[name],
            "d_ff": shape.d_ff,
            **counted(shape),
            "cached_numbers": numbers,
            "cache_bytes_per_token": {n: BYTES * x / int(n) for n, x in numbers.items()},
            "tokens": plan.steps * BATCH * CONTEXT,
            "lr": best,
            "at_edge": best in (min(judged), max(judged)),
            "rates": [{"lr": rate, "validation": judged[rate]} for rate in sorted(judged)],
            "seeds": list(seeds),
            "validation": [run["validation"] for run in found],
            "test": test,
            "test_bits_a_byte": [x * facts["test_bits_a_byte_of_a_nat_a_token"] for x in test],
            "seconds": [run["seconds"] for run in found],
        }
    ]


def rates(loss: Callable[[float], float], plan: Plan) -> dict[float, float]:
    """Return the loss at each rate, and at more where the best is at an edge."""
    found = {rate: loss(rate) for rate in plan.rates}
    while len(found) < plan.most_rates:
        best = min(found, key=lambda rate: (found[rate], rate))
        beyond = {min(found): best / 2, max(found): best * 2}
        if best not in beyond:
            break
        found[beyond[best]] = loss(beyond[best])
    return found


def trained(shape: Any, rate: float, seed: int, steps: int, text: Text) -> dict[str, Any]:
    """Train a writer and return its losses; not finite ones are infinite."""
    import torch

    from benchmarks.variants_model import Writer

    begin = time.process_time()
    torch.manual_seed(seed)
    model = Writer(shape)
    update = updates(model, rate, steps)
    order = np.random.default_rng(seed).permutation(len(text.train))
    for step in range(steps):
        rows = np.take(order, range(step * BATCH, (step + 1) * BATCH), mode="wrap")
        if not update(torch.tensor(text.train[rows]), step):
            break
    losses = {name: judged(model, getattr(text, name)) for name in ("validation", "test")}
    return losses | {"seconds": round(time.process_time() - begin, 1)}


def updates(model: Any, rate: float, steps: int) -> Callable[[Any, int], bool]:
    """Return a function that updates a model on a batch of windows and says if all was finite."""
    import torch

    from attnbook.training import Settings, learning_rate

    warmup = max(1, steps * WARMUP // STEPS)
    how = Settings(steps, lr=rate, warmup=warmup, schedule="cosine", final_lr=rate / 20)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)

    def update(windows: Any, step: int) -> bool:
        optimizer.zero_grad()
        logits, more = model(windows[:, :-1])
        labels = windows[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels) + more
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, how)
        optimizer.step()
        return math.isfinite(norm.item())

    return update


def judged(model: Any, windows: np.ndarray) -> float:
    """Return the nats a token over windows, infinite unless it is finite."""
    import torch

    total = 0.0
    with torch.no_grad():
        for part in np.array_split(windows, max(1, len(windows) // 16)):
            ids = torch.tensor(part)
            logits = model(ids[:, :-1])[0].flatten(0, 1)
            labels = ids[:, 1:].flatten()
            total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    loss = total / windows[:, 1:].size
    return round(loss, 5) if math.isfinite(loss) else math.inf


def differences(rows: dict[str, dict[str, Any]], n: int) -> dict[str, Any]:
    """Return how far each choice is from the baseline, against the spread of seeds."""
    tests = {name: np.array(row["test"]) for name, row in rows.items()}
    squares = sum(((x - x.mean()) ** 2).sum() for x in tests.values())
    spread = math.sqrt(squares / max(sum(len(x) - 1 for x in tests.values()), 1))
    error = spread * math.sqrt(2 / n)
    found = []
    for name, test in tests.items():
        if name == BASELINE or BASELINE not in tests:
            continue
        each = test[:n] - tests[BASELINE][:n]
        difference = float(each.mean())
        found.append(
            {
                "variant": name,
                "difference": difference,
                "of_each_seed": each.tolist(),
                "is_distinct": abs(difference) > DISTINCT * error,
            }
        )
    return {"spread": spread, "standard_error": error, "rows": found}


def times(shapes: dict[str, Any], plan: Plan, quick: bool) -> list[dict[str, Any]]:
    """Return the times of an update and of a decoded token of each choice, in turns."""
    import torch

    from benchmarks.variants_model import Writer

    torch.manual_seed(0)
    models = {name: Writer(shape) for name, shape in shapes.items()}
    n_ids = shapes[BASELINE].vocabulary
    rows: dict[str, dict[str, Any]] = {name: {"variant": name, "decode": []} for name in models}
    for batch, n in plan.decoded:
        ids = torch.randint(0, n_ids, (batch, 1))
        calls = {name: decoding(model, ids, n) for name, model in models.items()}
        for name, found in compared(calls, batch, quick).items():
            rows[name]["decode"].append({"batch": batch, "n": n, **found})
    windows = torch.randint(0, n_ids, (BATCH, CONTEXT + 1))
    calls = {name: partial(updates(model, 1e-3, 10), windows, 5) for name, model in models.items()}
    for name, found in compared(calls, BATCH * CONTEXT, quick).items():
        rows[name]["train"] = found
    return list(rows.values())


def decoding(model: Any, ids: Any, n: int) -> Callable[[], Any]:
    """Return a function that decodes token n of a batch, with n - 1 random ones in the cache."""
    import torch

    room = model.room(len(ids), n)
    for stored in room:
        for x in stored:
            x.normal_()

    def decode() -> Any:
        with torch.no_grad():
            return model.step(ids, room, n - 1)

    return decode


def compared(
    calls: dict[str, Callable[[], Any]], tokens: int, quick: bool
) -> dict[str, dict[str, Any]]:
    """Return for each call the seconds for a token and their ratio to those of the baseline."""
    pace = harness.Pace(harness.rounds(quick), 0.01 if quick else 0.1)
    samples = {name: x for name, (_, x) in harness.interleave(calls, pace=pace).items()}
    first = samples[BASELINE]
    return {
        name: {
            "seconds_per_token": float(np.median(x)) / tokens,
            "ratio": float(np.median(np.array(x) / np.array(first))),
            "ratio_quartiles": np.quantile(np.array(x) / np.array(first), (0.25, 0.75)).tolist(),
        }
        for name, x in samples.items()
    }
