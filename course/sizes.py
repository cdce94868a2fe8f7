"""Hidden sizes: other numbers in the place of those that a chapter's check holds as they are.

The seeds of a check are replaced everywhere; its sizes, its lengths and its texts here, by label.
`book/course/variants` says for each chapter in which passages of a check they stand. What stays as
it is has one right result: the answers with a pencil, and questions about one text, one model or
one data set.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from course.exercises import Exercise, replaced

Draw = Callable[[np.random.Generator], tuple]


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


SIZES: dict[str, Draw] = {
    "backprop-smoothing": distinct(2, 8, 3),
    "backprop-layer-norm": distinct(2, 8, 3),
    "backprop-complex": distinct(4, 9, 1),
    "early-end": distinct(3, 6, 1),
    "decode-left": prompts,
    "speculative": prompts,
    "slices": one_of(1, 64, 128, 256),
    "linear-step": distinct(2, 8, 3),
    "linear-parity": distinct(20, 60, 1),
    "distributed-rectangles": distinct(2, 7, 5),
    "distributed-tree": distinct(3, 17, 3),
    "estimators-importance": distinct(2, 12, 2),
    "estimators-two": one_of(
        3, (0.7, 3, 5), (0.9, 8, 40), (0.5, 1, 2), (0.8, 4, 6), (0.6, 2, 3), (0.95, 16, 9)
    ),
    "estimators-variance": one_of(2, (0.3, 8), (0.05, 40), (0.2, 12), (0.1, 20), (0.25, 10)),
    "hash-twice": one_of(3, (0.6, 2), (0.3, 8), (0.05, 5), (0.4, 3), (0.2, 7), (0.5, 4)),
    "left": distinct(1, 10, 3),
    "additive": distinct(2, 10, 6),
    "perplexity": distinct(12, 40, 4),
    "writer": distinct(0, 1500, 1),
    "sketch-streaming": distinct(25, 50, 1),
    "count": grouped,
    "layouts": one_of(4, (2, 4), (1, 8), (3, 4), (4, 6), (2, 6), (5, 8), (3, 10)),
    "torch-weights": distinct(4, 1000, 1),
    "look-back": distinct(2, 30, 2),
    "jacobian-norm": distinct(4, 100, 3),
    "seeds": distinct(2, 50, 2),
}
"""What is drawn for an exercise: the first is {0} in its passages, and so on."""


def resized(exercise: Exercise, seed: int) -> Exercise:
    """Return an exercise with other sizes in its check; the one that everybody sees for seed 0."""
    if seed == 0 or not exercise.sizes:
        return exercise
    drawn = SIZES[exercise.label](np.random.default_rng(seed))
    check, block = (
        replaced(text, exercise.sizes, *drawn) for text in (exercise.check, exercise.block)
    )
    return replace(exercise, check=check, block=block)
