"""Exercises of the chapters with other numbers and sizes, or another task of the same kind.

A function for each says what changes: passages of the exercise with what stands in their place, in
its text, its check and its solution alike, and the results where a student hands in numbers. The
solution of the variant is the chapter's own code with these changes.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from course.exercises import Exercise
from course.sizes import replaced

Changes = dict[str, str]
Family = Callable[[np.random.Generator], tuple[Changes, list | None]]

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
CALL = re.compile(r"\b([Cc])all `check_\w+(\(.*?\))?`(?: of the cell below)?( on)?")
"""How a chapter asks for numbers: who has a variant sees no check, which would hold the results."""

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
    changes = {
        r"\tanh(q_i W_Q + k_j W_K)": rf"{words}{q}\, q_i W_Q + {k}\, k_j W_K)",
        "np.tanh(": code,
        "a @ W_Q + b @ W_K": f"{q} * a @ W_Q + {k} * b @ W_K",
        "query @ W_Q": f"{q} * query @ W_Q",
        "key @ W_K": f"{k} * key @ W_K",
    }
    return changes, None


def measure(rng):
    """Another number of keys that a row effectively looks at: of some order."""
    order = int(rng.choice([*range(50, 100, 5), *range(110, 505, 5)])) / 100
    changes = {
        r"The **perplexity** $e^H$ of a row of weights, with its entropy "
        r"$H = -\sum_j a_j \log a_j$, is": "Let the *perplexity* of a row of weights be "
        rf"$\bigl(\sum_j a_j^r\bigr)^{{1/(1 - r)}}$ with $r = {order}$, which is",
        "np.exp(-(a * np.log(a)).sum())": f"(a**{order}).sum() ** (1 / (1 - {order}))",
        "np.exp(-(softmax(scores) * ab.log_softmax(scores)).sum())": f"(softmax(scores) ** {order})"
        f".sum() ** (1 / (1 - {order}))",
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
    """Another number of keys in the cache, and scores that are logarithms of integers."""
    cached = _one_of(rng, 2, 4, 5, 6)
    n = cached + 2
    masses = [int(x) for x in rng.integers(1, 10, n)]
    listed = _listed(rf"$\ln {mass}$" for mass in masses)
    columns = ", ".join(f"[{mass}.0]" for mass in masses)
    changes = {
        "meet five keys; three of": f"meet {WORDS[n]} keys; {WORDS[cached]} of",
        "All scores are equal.": f"The scores of each query with the keys are {listed}.",
        "np.zeros((2, 3)), np.zeros((5, 3))": f"np.ones((2, 1)), np.log([{columns}])",
        "causal(2, 5)": f"causal(2, {n})",
        "np.tri(2, 5,": f"np.tri(2, {n},",
    }
    both = [[m / sum(masses[:k]) for m in masses[:k]] + [0] * (n - k) for k in (n - 1, n)]
    return changes, [both, [1] + [0] * (n - 1)]


def far(rng):
    """Two layers that see another number of tokens, whose root need not be whole."""
    s = int(rng.integers(10, 21))
    n, most = s * s - int(rng.integers(2 * s - 1)), 2 * s - 1
    if n == 256:
        n += 1 - 2 * (s == 16)
    changes = {
        r"$2\sqrt n - 1$ keys": f"{most} keys",
        "2√n − 1 = 31": str(most),
        "256": str(n),
        "31": str(most),
        "n, s = 256, 16": f"n, s = {n}, {s}",
    }
    return changes, None


def units(rng):
    """Another vocabulary, other tokens, another loss."""
    bits, loss = _one_of(rng, 9, 10, 12, 13, 14, 15), _one_of(rng, 1.5, 2, 2.5, 3.5, 4)
    size = _one_of(rng, 2, 3, 3.2, 3.5, 4, 4.5, 5)
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
    first = _one_of(rng, 52, 53, 54, 56, 57, 58)
    end = int(rng.integers(43, 49))
    least = [y for y in range(101 - 2 * end, (100 - end) // 2 + 1) if abs(y - 20) > 1]
    left = int(_one_of(rng, *least))  # two tokens of three never have 0.8 after a
    of_a = [left, 100 - end - left]
    if rng.integers(2):
        of_a.reverse()
    of_b = [int(x) for x in rng.integers(2, 10, 2)]
    a, b = first / 100, (100 - first) / 100
    after_a = tuple(x / 100 for x in (*of_a, end))
    after_b = tuple(x / 100 for x in (*of_b, 100 - sum(of_b)))
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
    kept = 2 if left < 20 else 3
    return changes, [greedy, likeliest, greedy + likeliest, a * a / (a * a + b * b), kept]


def cache(rng):
    """A model with other layers and parameters."""
    layers = _one_of(rng, 20, 24, 28, 36, 40, 48, 56, 60, 64, 72, 80, 96)
    billions = _one_of(rng, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 20)
    changes = {
        "32 layers": f"{layers} layers",
        "7 billion": f"{billions} billion",
        "2 * 32 * heads": f"2 * {layers} * heads",
        "7e9 *": f"{billions}e9 *",
    }
    kib = [2 * layers * heads * 128 * 2 / 1024 for heads in (32, 8)]
    return changes, [*kib, *(billions * 2e9 / (1024 * x) for x in kib)]


def budget(rng):
    """More vectors, and near keys at another angle."""
    millions = int(rng.integers(2, 9))
    angle = _one_of(rng, *(x / 100 for x in range(18, 43) if x != 30))
    changes = {
        "A million": f"{WORDS[millions].capitalize()} million",
        "an angle of 0.3": f"an angle of {angle}",
        "10**6": f"{millions} * 10**6",
        "0.3 / math.pi": f"{angle} / math.pi",
        "1e6": f"{millions}e6",
        "budget(0.3)": f"budget({angle})",
    }
    return changes, None


def count(rng):
    """A network of two matrices in the place of a gated one, and a table of positions."""
    positions = 32 * int(rng.integers(2, 129))
    per_layer = 2 * 192 * 192 + 2 * 192 * 64 + 2 * 192 * 512 + 2 * 192
    changes = {
        "a gated network": "a network of two matrices",
        "tied embeddings": rf"tied embeddings, and a table of {positions} learned positions, each "
        "of width $d$",
        '"gated": True': '"gated": False',
        "2_755_008": str((2048 + positions) * 192 + 6 * per_layer + 192),
        "sum(x.size for x in model.arrays().values())": "sum(x.size for x in "
        f"model.arrays().values()) + {positions} * d",
        "3 * d * d_ff": "2 * d * d_ff",
        "V * d + N": f"(V + {positions}) * d + N",
    }
    return changes, None


def loss_gradients(rng):
    """Another matrix, and either word may be right."""
    second = _one_of(rng, 0, 1)
    a, b = (int(x) for x in rng.integers(-6, 7, 2))
    while abs(a - b) < 2:  # then a gradient is 0, or that of the chapter
        a, b = (int(x) for x in rng.integers(-6, 7, 2))
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
    work = _one_of(rng, 300, 400, 500, 700, 800, 900, 1000, 1200, 1500)
    wire, many = _one_of(rng, 40, 80, 120, 160, 320, 400), _one_of(rng, 32, 64, 128, 512, 1024)
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
    n = _one_of(rng, *(n for n in range(17, 128) if n != 22))
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
    tb, percent = _one_of(rng, 1, 1.6, 3.2, 4, 5, 8), _one_of(rng, 1, 2, 4, 5, 6, 8)
    look_up = _one_of(rng, 8, 10, 12, 15, 25, 30, 35, 40)
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
    speeds = (200, 300, 400, 500, 700, 800, 1000, 1200, 1300, 1500, 2000, 2500)
    both = [(work, read) for work in speeds for read in (1.5, 2, 2.5, 3, 3.5, 5, 6, 7, 8, 10)]
    work, read = _one_of(rng, *(pair for pair in both if abs(pair[0] / pair[1] / 225 - 1) > 0.05))
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
