"""Hidden sizes: other numbers in the place of those that a chapter's check holds as they are.

The seeds of a check are replaced everywhere; its sizes, its lengths and its texts here, by label.
What stays as it is has one right result: the answers with a pencil, and questions about one text,
one model or one data set.
"""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from course.exercises import Exercise

Draw = Callable[[np.random.Generator], tuple]


def replaced(text: str, changes: dict[str, str]) -> str:
    """Return a text with other passages in the place of some, all at once."""
    passage = re.compile("|".join(map(re.escape, sorted(changes, key=len, reverse=True))))
    return passage.sub(lambda found: changes[found[0]], text)


def distinct(low: int, high: int, n: int) -> Draw:
    """Draw n numbers, no two alike."""
    return lambda rng: tuple(int(x) for x in rng.choice(np.arange(low, high), n, replace=False))


def one_of(n: int, *choices) -> Draw:
    """Draw some of the choices, in any order."""
    return lambda rng: tuple(choices[i] for i in rng.permutation(len(choices))[:n])


def grouped(rng: np.random.Generator) -> tuple:
    """Draw models of any sizes, whose heads share key heads: V, d, d_ff, N, h and h_kv."""
    made = []
    for _ in range(3):
        h_kv, shared, width = (int(rng.integers(1, 4)) for _ in range(3))
        h = h_kv * shared
        made.append((int(rng.integers(5, 60)), h * 2 * width, *distinct(2, 40, 2)(rng), h, h_kv))
    return tuple(made)


SPEAKERS = ("ROMEO", "HAMLET", "JULIET", "MACBETH", "OTHELLO", "BRUTUS", "PORTIA", "IAGO")
STARTS = ("To be", "Good morrow", "What", "My lord, I have", "Where is the king", "O")


def prompts(rng: np.random.Generator) -> tuple:
    """Draw two speakers, and how one of them begins."""
    return (*one_of(2, *SPEAKERS)(rng), *one_of(1, *STARTS)(rng))


PROMPTS = {'"ROMEO:\\n"': '"{0}:\\n"', "HAMLET:\\nTo be, or not to": "{1}:\\n{2}"}

SIZES: dict[str, tuple[Draw, dict[str, str]]] = {
    "backprop-smoothing": (
        distinct(2, 8, 3),
        {"size=(2, 5, 7)": "size=({0}, {1}, {2})", "(7, size=(2, 5))": "({2}, size=({0}, {1}))"},
    ),
    "backprop-layer-norm": (
        distinct(2, 8, 3),
        {"size=(2, 2, 3, 5)": "size=(2, {0}, {1}, {2})", "size=(2, 5)": "size=(2, {2})"},
    ),
    "backprop-complex": (
        distinct(4, 9, 1),
        {"size=(3, 6, 6)": "size=(3, {0}, {0})", "np.ones((6, 6))": "np.ones(({0}, {0}))"},
    ),
    "early-end": (distinct(3, 6, 1), {"n_beams=4": "n_beams={0}"}),
    "decode-left": (prompts, PROMPTS),
    "speculative": (prompts, PROMPTS),
    "distributed-rectangles": (
        distinct(2, 7, 5),
        {"((2, 1), (3, 4), (5, 2))": "((2, 1), ({0}, {1}), ({2}, {3}))"},
    ),
    "distributed-tree": (
        distinct(3, 17, 3),
        {"(1, 2, 5, 8, 13)": "(1, 2, {0}, {1}, {2})"},
    ),
    "estimators-importance": (distinct(2, 12, 2), {"(1, 2, 7)": "(1, {0}, {1})"}),
    "estimators-two": (
        one_of(3, (0.7, 3, 5), (0.9, 8, 40), (0.5, 1, 2), (0.8, 4, 6), (0.6, 2, 3), (0.95, 16, 9)),
        {"((0.7, 3, 5), (0.9, 8, 40), (0.5, 1, 2))": "({0}, {1}, {2})"},
    ),
    "estimators-variance": (
        one_of(2, (0.3, 8), (0.05, 40), (0.2, 12), (0.1, 20), (0.25, 10)),
        {"((0.3, 8), (0.05, 40))": "({0}, {1})"},
    ),
    "hash-twice": (
        one_of(3, (0.6, 2), (0.3, 8), (0.05, 5), (0.4, 3), (0.2, 7), (0.5, 4)),
        {"((0.6, 2), (0.3, 8), (0.05, 5))": "({0}, {1}, {2})"},
    ),
    "hash-one-line": (
        distinct(25, 1000, 6),
        {"((22, 80), (23, 5), (24, 1))": "(({0}, 60 + {3} % 40), ({1}, 3 + {4} % 9), ({2}, 1))"},
    ),
    "left": (distinct(1, 10, 3), {"lengths=(6, 2, 9), n=9": "lengths=({0}, {1}, {2}), n=9"}),
    "additive": (
        distinct(2, 10, 6),
        {
            "((5, 3), (7, 4), (7, 2))": "(({0}, {1}), ({2}, {3}), ({2}, {4}))",
            "((3, 6), (4, 6), 6)": "(({1}, {5}), ({3}, {5}), {5})",
        },
    ),
    "perplexity": (
        distinct(12, 40, 4),
        {"size=20": "size={0}", "(1.5, 3.0, 10.0)": "(1 + {1} / 100, 2 + {2} / 50, 5 + {3} / 10)"},
    ),
    "writer": (distinct(0, 1500, 1), {"scene[:500]": "scene[{0} : {0} + 500]"}),
    "sketch-streaming": (distinct(25, 50, 1), {"(40, 6)": "({0}, 6)", "(40)": "({0})"}),
    "count": (
        grouped,
        {"((11, 8, 32, 1, 2, 2), (50, 16, 24, 3, 4, 1), (7, 12, 5, 2, 6, 3))": "({0}, {1}, {2})"},
    ),
    "layouts": (
        one_of(4, (2, 4), (1, 8), (3, 4), (4, 6), (2, 6), (5, 8), (3, 10)),
        {"((2, 4), (1, 8), (3, 4), (4, 6))": "({0}, {1}, {2}, {3})"},
    ),
    "torch-weights": (
        distinct(4, 1000, 1),
        {
            "manual_seed(3)": "manual_seed({0})",
            "16, 4, 64": "24, 4, 40",
            "(3, 7, 16)": "(2, 5, 24)",
        },
    ),
    "look-back": (distinct(2, 30, 2), {"(1, 5, 20)": "(1, {0}, {1})"}),
    "jacobian-norm": (distinct(4, 100, 3), {"(2, 3, 7, 20, 192)": "(2, 3, {0}, {1}, {2})"}),
    "seeds": (
        distinct(2, 50, 2),
        {"[1, 2, 4], [3, 5, 6]": "[1, {0}, 4 * {0}], [{0} + 1, 5 * {0}, 6 * {0}]"},
    ),
}
"""What is drawn for an exercise, and each passage of its check with what then stands there."""


def resized(exercise: Exercise, seed: int) -> Exercise:
    """Return an exercise with other sizes in its check; the one that everybody sees for seed 0."""
    if seed == 0 or exercise.label not in SIZES:
        return exercise
    draw, passages = SIZES[exercise.label]
    drawn = draw(np.random.default_rng(seed))
    changes = {old: new.format(*drawn) for old, new in passages.items()}
    check, block = (replaced(text, changes) for text in (exercise.check, exercise.block))
    return replace(exercise, check=check, block=block)
