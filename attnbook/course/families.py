"""Exercises of the chapters with other numbers and sizes, or another task of the same kind.

A function for each says what changes: passages of the exercise with what stands in their place, in
its text, its check and its solution alike, and the results where a student hands in numbers. The
solution of the variant is the chapter's own code with these changes.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnbook.course.exercises import Exercise
from attnbook.course.sizes import replaced

Changes = dict[str, str]
Family = Callable[[np.random.Generator], tuple[Changes, list | None]]

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
CHANGED = ("text", "check", "block", "answer")


def varied(exercise: Exercise, rng: np.random.Generator) -> Exercise:
    """Return another exercise of the same kind. It has no hints, which speak of the numbers.

    Raises
    ------
    ValueError
        If the chapter does not say what is to be changed.
    """
    changes, results = FAMILIES[exercise.label](rng)
    parts = {name: getattr(exercise, name) for name in CHANGED}
    for old in changes:
        if not any(old in part for part in parts.values()):
            raise ValueError(f"{exercise.label} does not say {old!r}")
    parts = {name: replaced(part, changes) for name, part in parts.items()}
    if results is not None:
        pairs = zip(exercise.names, results, strict=True)
        parts["answer"] = "\n".join(f"{name} = {result}" for name, result in pairs)
    return replace(exercise, **parts, hints=[], explanation="")


def _one_of(rng: np.random.Generator, *choices):
    return choices[int(rng.integers(len(choices)))]


def activation(rng):
    """Additive scoring with another function in the place of tanh."""
    words, code = _one_of(
        rng,
        (r"\arctan(", "np.arctan("),
        (r"\sin(", "np.sin("),
        (r"\exp(", "np.exp("),
        (r"\max(0,\, ", "np.maximum(0, "),
    )
    return {r"\tanh(": words, "np.tanh(": code}, None


def measure(rng):
    """Another number of keys that a row effectively looks at: of order two, or the largest."""
    words, of_row, of_scores = _one_of(
        rng,
        (r"$1 / \sum_j a_j^2$", "1 / (a**2).sum()", "1 / (softmax(scores) ** 2).sum()"),
        (r"$1 / \max_j a_j$", "1 / a.max()", "1 / softmax(scores).max()"),
    )
    changes = {
        r"The **perplexity** $e^H$ of a row of weights, with its entropy "
        r"$H = -\sum_j a_j \log a_j$, is": f"Let the *perplexity* of a row of weights be {words},",
        "np.exp(-(a * np.log(a)).sum())": of_row,
        "np.exp(-(softmax(scores) * ab.log_softmax(scores)).sum())": of_scores,
    }
    return changes, None


def masks(rng):
    """Other sentences about documents, steps, padding and blocks."""
    back, pad, size = _one_of(rng, 2, 4), _one_of(rng, 1, 3, 4), _one_of(rng, 2, 3, 6)
    documents = _one_of(rng, (4, 5, 3), (3, 4, 5), (6, 2, 4), (2, 7, 3))
    step = _one_of(rng, 3, 4)
    steps = [step * i for i in range(12 // step)]
    a, b, c = documents
    changes = {
        "the three before it": f"the {WORDS[back]} before it",
        "5, 4 and 3 tokens": f"{a}, {b} and {c} tokens",
        "those 2, 4, 6 and 8 before it": f"those {_listed(steps[1:])} before it",
        "the last two are padding": f"the last {WORDS[pad]} are padding",
        "blocks of four": f"blocks of {WORDS[size]}",
        "<= 3 and": f"<= {back} and",
        "[0] * 5 + [1] * 4 + [2] * 3": f"[0] * {a} + [1] * {b} + [2] * {c}",
        "in (0, 2, 4, 6, 8)": f"in {tuple(steps)}",
        "j < 10 and": f"j < {12 - pad} and",
        "j // 4 <= i // 4": f"j // {size} <= i // {size}",
        "([5, 4, 3])": f"({[a, b, c]})",
        "left=3)": f"left={back})",
        "left=8) & masking.strided(n, stride=2)": f"left={steps[-1]}) "
        f"& masking.strided(n, stride={step})",
        "padding(10, n)": f"padding({12 - pad}, n)",
        "([4, 4, 4])": f"({[size] * (12 // size)})",
    }
    return changes, None


def _listed(numbers):
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def causal_pencil(rng):
    """Another number of keys in the cache."""
    cached = _one_of(rng, 2, 4, 5, 6)
    n = cached + 2
    changes = {
        "meet five keys; three of": f"meet {WORDS[n]} keys; {WORDS[cached]} of",
        "np.zeros((5, 3))": f"np.zeros(({n}, 3))",
        "causal(2, 5)": f"causal(2, {n})",
        "np.tri(2, 5,": f"np.tri(2, {n},",
    }
    both = [[1 / (n - 1)] * (n - 1) + [0], [1 / n] * n]
    return changes, [both, [1] + [0] * (n - 1)]


def far(rng):
    """Two layers that see another number of tokens."""
    s = _one_of(rng, 12, 14, 18, 20)
    n, most = s * s, 2 * s - 1
    changes = {"256": str(n), "31": str(most), "n, s = 256, 16": f"n, s = {n}, {s}"}
    return changes, None


def units(rng):
    """Another vocabulary, other tokens, another loss."""
    bits, size, loss = _one_of(rng, 9, 10, 12, 13), _one_of(rng, 2, 3.2, 4), _one_of(rng, 2, 2.5, 4)
    changes = {
        "2,048 tokens": f"{2**bits:,} tokens",
        "2.5 bytes a token": f"{size} bytes a token",
        "reaches 3 nats": f"reaches {loss} nats",
        "math.log(2048), 11 / 2.5": f"math.log({2**bits}), {bits} / {size}",
        "math.exp(3), 3 / math.log(2) / 2.5": f"math.exp({loss}), {loss} / math.log(2) / {size}",
    }
    smooth = -0.91 * math.log(0.91) - 0.09 * math.log(0.01)
    nothing = [bits * math.log(2), bits / size]
    return changes, [*nothing, math.exp(loss), loss / math.log(2) / size, smooth, math.log(91)]


def tree(rng):
    """Other probabilities: the greedy text is a ■, the likeliest b ■."""
    a, b = _one_of(rng, (0.52, 0.48), (0.56, 0.44), (0.6, 0.4))
    after_a = _one_of(rng, (0.3, 0.2, 0.5), (0.2, 0.35, 0.45), (0.3, 0.28, 0.42))
    after_b = _one_of(rng, (0.1, 0.05, 0.85), (0.03, 0.02, 0.95), (0.05, 0.15, 0.8))
    said = "*a* {}, *b* {}, ■ {}"
    changes = {
        "*a* has 0.55 and *b* 0.45": f"*a* has {a} and *b* {b}",
        said.format(0.25, 0.35, 0.4): said.format(*after_a),
        said.format(0.05, 0.05, 0.9): said.format(*after_b),
        "[0.55, 0.45, 0]": f"[{a}, {b}, 0]",
        "[0.25, 0.35, 0.4]": f"{[*after_a]}",
        "[0.05, 0.05, 0.9]": f"{[*after_b]}",
    }
    greedy, likeliest = a * after_a[2], b * after_b[2]
    largest = sorted(after_a, reverse=True)
    kept = 2 if largest[0] + largest[1] >= 0.8 else 3
    return changes, [greedy, likeliest, greedy + likeliest, a * a / (a * a + b * b), kept]


def cache(rng):
    """A model with other layers and parameters."""
    layers, billions = _one_of(rng, 24, 40, 48, 80), _one_of(rng, 3, 8, 13)
    changes = {
        "32 layers": f"{layers} layers",
        "7 billion": f"{billions} billion",
        "2 * 32 * heads": f"2 * {layers} * heads",
        "7e9 *": f"{billions}e9 *",
    }
    kib = [2 * layers * heads * 128 * 2 / 1024 for heads in (32, 8)]
    return changes, [*kib, *(billions * 2e9 / (1024 * x) for x in kib)]


def budget(rng):
    """Near keys at another angle."""
    angle = _one_of(rng, 0.2, 0.25, 0.35, 0.4)
    changes = {
        "an angle of 0.3": f"an angle of {angle}",
        "0.3 / math.pi": f"{angle} / math.pi",
        "budget(0.3)": f"budget({angle})",
    }
    return changes, None


def count(rng):
    """A network of two matrices in the place of a gated one."""
    per_layer = 2 * 192 * 192 + 2 * 192 * 64 + 2 * 192 * 512 + 2 * 192
    changes = {
        "a gated network": "a network of two matrices",
        '"gated": True': '"gated": False',
        "2_755_008": str(2048 * 192 + 6 * per_layer + 192),
        "3 * d * d_ff": "2 * d * d_ff",
    }
    return changes, None


def loss_gradients(rng):
    """Another matrix, and either word may be right."""
    (a, b), second = _one_of(rng, (3, 1), (1, 2), (4, 2), (2, -1), (5, 3)), _one_of(rng, 0, 1)
    changes = {
        r"2 & 1 \\ 2 & 1": rf"{a} & {b} \\ {a} & {b}",
        "the first of the two words is right": f"the {('first', 'second')[second]} of the two "
        "words is right",
        "[[2.0, 1], [2, 1]]": f"[[{a}.0, {b}], [{a}, {b}]]",
        "[[1, 0]]": f"{[[1 - second, second]]}",
    }
    G = [0.5 - (1 - second), 0.5 - second]
    return changes, [G, [G, [-G[0], -G[1]]], [G[0] * a + G[1] * b] * 2]


def ring(rng):
    """Other scores and values, another number of processes."""
    masses = [int(x) for x in rng.choice([2, 3, 4, 5, 6, 8, 10], 3, replace=False)]
    values = [int(x) for x in rng.integers(1, 12, 3)]
    p, rank = _one_of(rng, 4, 5), _one_of(rng, 0, 1, 3)
    x, y, z = masses
    u, v, w = values
    changes = {
        r"$\ln 2$, $\ln 6$ and $\ln 4$": rf"$\ln {x}$, $\ln {y}$ and $\ln {z}$",
        "the values are 6, 2 and 9": f"the values are {u}, {v} and {w}",
        "eight processes": f"{WORDS[p]} processes",
        "rank 2": f"rank {rank}",
        "[[2.0, 6.0, 4.0]]": f"[[{x}.0, {y}.0, {z}.0]]",
        "[[6.0], [2.0], [9.0]]": f"[[{u}.0], [{v}.0], [{w}.0]]",
        "64_000 / 16": f"64_000 / {2 * p}",
        "late == 16 - 2": f"late == {2 * p} - {rank}",
        "the last one is 15": f"the last one is {2 * p - 1}",
        "late == 15 - 2": f"late == {2 * p - 1} - {rank}",
    }
    output = (x * u + y * v + z * w) / sum(masses)
    both = (x + y) / max(x, y)
    return changes, [1, both, output, 64_000 / (2 * p), 2 * p - 1 - rank]


def bound(rng):
    """A machine of other speeds."""
    work, wire, many = (
        _one_of(rng, 300, 900, 1200),
        _one_of(rng, 50, 200, 400),
        _one_of(rng, 64, 512),
    )
    changes = {
        "600 TFLOP/s": f"{work} TFLOP/s",
        "100 GB/s": f"{wire} GB/s",
        "256 GPUs": f"{many} GPUs",
        "600e12 / 100e9": f"{work}e12 / {wire}e9",
        "256 * least": f"{many} * least",
        "1 / 256": f"1 / {many}",
        "128 * least": f"{many // 2} * least",
    }
    least = work / wire * 1000 / 4
    return changes, [least, many * least, many * least / 2]


def runs(rng):
    """Another number of keys."""
    n = _one_of(rng, 19, 21, 25, 26, 28, 37, 41, 44, 50, 52)
    levels = [level for level in range(7) if n >> level & 1]
    longest, moved = 2 ** levels[-1], sum(level * 2**level for level in levels)
    changes = {
        "22 keys": f"{n} keys",
        "all 22 together": f"all {n} together",
        "n_runs, 3, {5:": f"n_runs, {len(levels)}, {{{n.bit_length()}:",
        "longest, 16, {32:": f"longest, {longest}, {{{2 * longest}:",
        "moved, 74, {19: merges, 96:": f"moved, {moved}, {{{n - len(levels)}: merges, {moved + n}:",
    }
    return changes, [len(levels), longest, moved, 30]


def pays(rng):
    """Another memory, another look-up, another share that is read."""
    tb, look_up, percent = _one_of(rng, 1, 4), _one_of(rng, 10, 30, 40), _one_of(rng, 2, 4, 5)
    exact, sketch = 512 / tb, look_up + percent / 100 * 512 / tb
    tokens = look_up / (1 - percent / 100) / (exact / 1e6)
    changes = {
        "gives 2 TB": f"gives {tb} TB",
        "costs 20 µs": f"costs {look_up} µs",
        "reads 3 %": f"reads {percent} %",
        "256,": f"{exact},",
        "{128: ": f"{{{exact / 2}: ",
        "512: ": f"{2 * exact}: ",
        "0.256: ": f"{exact / 1000}: ",
        "sketch, 27.68, {7.68:": f"sketch, {sketch}, {{{sketch - look_up}:",
        "80_541": f"{tokens}",
        "78_125": f"{look_up / exact * 1e6}",
    }
    return changes, [exact, sketch, tokens]


def wall(rng):
    """A GPU of other speeds."""
    work, read = _one_of(rng, 300, 600, 1200, 1800), _one_of(rng, 2, 3, 5, 8)
    changes = {
        r"900 \cdot 10^{12}": rf"{work} \cdot 10^{{12}}",
        r"4 \cdot 10^{12}": rf"{read} \cdot 10^{{12}}",
        "meet = 900 / 4": f"meet = {work} / {read}",
    }
    meet = work / read
    return changes, [meet, 12.8 / meet, meet, meet]


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
