"""Exercises of the chapters with other numbers and sizes, or another task of the same kind.

A function for each draws what changes, by names, and says the results where a student hands in
numbers. `book/course/variants` says for each chapter in which passages of an exercise the names
stand, in its text, its check and its solution alike. The solution of the variant is the chapter's
own code with these changes.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from course.exercises import Exercise, replaced

Family = Callable[[np.random.Generator], tuple[dict[str, Any], list | None]]

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
CALL = re.compile(r"\b([Cc])all `check_\w+(\(.*?\))?`(?: of the cell below)?( on)?")
"""How a chapter asks for numbers: who has a variant sees no check, which would hold the results."""

CHANGED = ("text", "check", "block", "answer")


def varied(exercise: Exercise, rng: np.random.Generator) -> Exercise:
    """Return another exercise of the same kind. It has no hints, which speak of the numbers."""
    drawn, results = FAMILIES[exercise.label](rng)
    parts: dict[str, Any] = {
        name: replaced(getattr(exercise, name), exercise.variant, **drawn) for name in CHANGED
    }
    if results is not None:
        pairs = zip(exercise.names, results, strict=True)
        parts["answer"] = "\n".join(f"{name} = {result}" for name, result in pairs)
        parts["text"] = CALL.sub(_handing_in, parts["text"])
    return replace(exercise, **parts, hints=[], explanation="")


def _handing_in(call: re.Match) -> str:
    word = "Hand" if call[1] == "C" else "hand"
    return f"{word} in" if call[3] else f"{word} in the results"


def _one_of(rng: np.random.Generator, *choices):
    return choices[int(rng.integers(len(choices)))]


def activation(rng):
    """Additive scoring with another function in the place of tanh, and two factors inside it."""
    words, code = _one_of(
        rng,
        (r"\arctan(", "np.arctan("),
        (r"\sin(", "np.sin("),
        (r"\exp(", "np.exp("),
        (r"\max(0,\, ", "np.maximum(0, "),
    )
    q, k = (_one_of(rng, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9) for _ in range(2))
    return {"words": words, "code": code, "q": q, "k": k}, None


def measure(rng):
    """Another number of keys that a row effectively looks at: of some order."""
    return {"order": int(rng.choice([*range(50, 100, 5), *range(110, 505, 5)])) / 100}, None


def masks(rng):
    """Other sentences about documents, steps, padding and blocks."""
    back, pad, size = _one_of(rng, 2, 4), _one_of(rng, 1, 3, 4), _one_of(rng, 2, 3, 6)
    a, b, c = _one_of(rng, (4, 5, 3), (3, 4, 5), (6, 2, 4), (2, 7, 3))
    step = _one_of(rng, 3, 4)
    steps = tuple(step * i for i in range(12 // step))
    drawn = {"back": back, "size": size, "a": a, "b": b, "c": c, "step": step, "steps": steps}
    drawn |= {f"{name}_in_words": WORDS[n] for name, n in (("back", back), ("pad", pad))}
    drawn |= {"size_in_words": WORDS[size], "blocks": [size] * (12 // size), "real": 12 - pad}
    return drawn | {"listed": _listed(steps[1:]), "farthest": steps[-1]}, None


def _listed(numbers):
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def causal_pencil(rng):
    """Another number of keys in the cache, and scores that are logarithms of integers."""
    cached = _one_of(rng, 2, 4, 5, 6)
    n = cached + 2
    masses = [int(x) for x in rng.integers(1, 10, n)]
    drawn = {
        "n": n,
        "n_in_words": WORDS[n],
        "cached_in_words": WORDS[cached],
        "listed": _listed(rf"$\ln {mass}$" for mass in masses),
        "columns": ", ".join(f"[{mass}.0]" for mass in masses),
    }
    both = [[m / sum(masses[:k]) for m in masses[:k]] + [0] * (n - k) for k in (n - 1, n)]
    return drawn, [both, [1] + [0] * (n - 1)]


def far(rng):
    """Two layers that see another number of tokens, whose root need not be whole."""
    s = int(rng.integers(10, 21))
    n, most = s * s - int(rng.integers(2 * s - 1)), 2 * s - 1
    if n == 256:
        n += 1 - 2 * (s == 16)
    return {"n": n, "s": s, "most": most}, None


def units(rng):
    """Another vocabulary, other tokens, another loss."""
    bits, loss = _one_of(rng, 9, 10, 12, 13, 14, 15), _one_of(rng, 1.5, 2, 2.5, 3.5, 4)
    size = _one_of(rng, 2, 3, 3.2, 3.5, 4, 4.5, 5)
    smooth = -0.91 * math.log(0.91) - 0.09 * math.log(0.01)
    nothing = [bits * math.log(2), bits / size]
    results = [*nothing, math.exp(loss), loss / math.log(2) / size, smooth, math.log(91)]
    return {"bits": bits, "tokens": 2**bits, "loss": loss, "size": size}, results


def tree(rng):
    """Other probabilities: the greedy text is a ■, the likeliest b ■."""
    first = _one_of(rng, 52, 53, 54, 56, 57, 58)
    end = int(rng.integers(43, 49))
    least = [y for y in range(101 - 2 * end, (100 - end) // 2 + 1) if abs(y - 20) > 1]
    left = int(_one_of(rng, *least))  # two tokens of three never have 0.8 after a
    of_a = [left, 100 - end - left]
    if rng.integers(2):
        of_a.reverse()
    of_b = [int(x) for x in rng.integers(2, 10, 2)]
    a, b = first / 100, (100 - first) / 100
    after_a = [x / 100 for x in (*of_a, end)]
    after_b = [x / 100 for x in (*of_b, 100 - sum(of_b))]
    greedy, likeliest = a * after_a[2], b * after_b[2]
    results = [greedy, likeliest, greedy + likeliest, a * a / (a * a + b * b), 2 + (left >= 20)]
    return {"a": a, "b": b, "after_a": after_a, "after_b": after_b}, results


def cache(rng):
    """A model with other layers and parameters."""
    layers = _one_of(rng, 20, 24, 28, 36, 40, 48, 56, 60, 64, 72, 80, 96)
    billions = _one_of(rng, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 20)
    kib = [2 * layers * heads * 128 * 2 / 1024 for heads in (32, 8)]
    results = [*kib, *(billions * 2e9 / (1024 * x) for x in kib)]
    return {"layers": layers, "billions": billions}, results


def budget(rng):
    """More vectors, and near keys at another angle."""
    millions = int(rng.integers(2, 9))
    angle = _one_of(rng, *(x / 100 for x in range(18, 43) if x != 30))
    in_words = WORDS[millions].capitalize()
    return {"millions": millions, "in_words": in_words, "angle": angle}, None


def count(rng):
    """A network of two matrices in the place of a gated one, and a table of positions."""
    positions = 32 * int(rng.integers(2, 129))
    per_layer = 2 * 192 * 192 + 2 * 192 * 64 + 2 * 192 * 512 + 2 * 192
    parameters = (2048 + positions) * 192 + 6 * per_layer + 192
    return {"positions": positions, "parameters": parameters}, None


def loss_gradients(rng):
    """Another matrix, and either word may be right."""
    second = _one_of(rng, 0, 1)
    a, b = (int(x) for x in rng.integers(-6, 7, 2))
    while abs(a - b) < 2:  # then a gradient is 0, or that of the chapter
        a, b = (int(x) for x in rng.integers(-6, 7, 2))
    right, one_hot = ("first", "second")[second], [[1 - second, second]]
    G = [0.5 - (1 - second), 0.5 - second]
    results = [G, [G, [-G[0], -G[1]]], [G[0] * a + G[1] * b] * 2]
    return {"a": a, "b": b, "right": right, "one_hot": one_hot}, results


def ring(rng):
    """Other scores and values, another number of processes."""
    masses = [int(x) for x in rng.choice([2, 3, 4, 5, 6, 8, 10], 3, replace=False)]
    values = [int(x) for x in rng.integers(1, 12, 3)]
    p, rank = _one_of(rng, 4, 5), _one_of(rng, 0, 1, 3)
    shards = 2 * p
    drawn = {"p_in_words": WORDS[p], "rank": rank, "shards": shards, "last": shards - 1}
    drawn |= dict(zip("xyzuvw", masses + values, strict=True))
    x, y, _ = masses
    output = sum(m * v for m, v in zip(masses, values, strict=True)) / sum(masses)
    return drawn, [1, (x + y) / max(x, y), output, 64_000 / shards, shards - 1 - rank]


def bound(rng):
    """A machine of other speeds."""
    work = _one_of(rng, 300, 400, 500, 700, 800, 900, 1000, 1200, 1500)
    wire, many = _one_of(rng, 40, 80, 120, 160, 320, 400), _one_of(rng, 32, 64, 128, 512, 1024)
    least = work / wire * 1000 / 4
    drawn = {"work": work, "wire": wire, "many": many, "half": many // 2}
    return drawn, [least, many * least, many * least / 2]


def runs(rng):
    """Another number of keys."""
    n = _one_of(rng, *(n for n in range(17, 128) if n != 22))
    levels = [level for level in range(7) if n >> level & 1]
    longest, moved = 2 ** levels[-1], sum(level * 2**level for level in levels)
    drawn = {"n": n, "n_runs": len(levels), "levels": n.bit_length(), "longest": longest}
    drawn |= {"twice": 2 * longest, "moved": moved, "merges": n - len(levels)}
    return drawn | {"everything": moved + n}, [len(levels), longest, moved, 30]


def pays(rng):
    """Another memory, another look-up, another share that is read."""
    tb, percent = _one_of(rng, 1, 1.6, 3.2, 4, 5, 8), _one_of(rng, 1, 2, 4, 5, 6, 8)
    look_up = _one_of(rng, 8, 10, 12, 15, 25, 30, 35, 40)
    exact, sketch = 512 / tb, look_up + percent / 100 * 512 / tb
    tokens = look_up / (1 - percent / 100) / (exact / 1e6)
    drawn = {"tb": tb, "percent": percent, "look_up": look_up, "exact": exact, "half": exact / 2}
    drawn |= {"twice": 2 * exact, "in_ms": exact / 1000, "sketch": sketch, "tokens": tokens}
    drawn |= {"read": sketch - look_up, "without_reading": look_up / exact * 1e6}
    return drawn, [exact, sketch, tokens]


def wall(rng):
    """A GPU of other speeds."""
    speeds = (200, 300, 400, 500, 700, 800, 1000, 1200, 1300, 1500, 2000, 2500)
    both = [(work, read) for work in speeds for read in (1.5, 2, 2.5, 3, 3.5, 5, 6, 7, 8, 10)]
    work, read = _one_of(rng, *(pair for pair in both if abs(pair[0] / pair[1] / 225 - 1) > 0.05))
    meet = work / read
    return {"work": work, "read": read}, [meet, 12.8 / meet, meet, meet]


FAMILIES: dict[str, Family] = {
    "additive": activation,
    "perplexity": measure,
    "mask-pencil": causal_pencil,
    "sentences": masks,
    "reach": far,
    "units": units,
    "another-tree": tree,
    "cache-size": cache,
    "hash-budget": budget,
    "count": count,
    "backprop-pencil": loss_gradients,
    "distributed-pencil": ring,
    "distributed-bound": bound,
    "sketch-runs": runs,
    "sketch-pay": pays,
    "fast-wall": wall,
}
