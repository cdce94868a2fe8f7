"""Tasks with other numbers for each student: a seed gives the task, and its solution follows.

Some are exercises of the chapters, changed by `families`. Those that stand here are short tasks of
their own, with drawn numbers and sizes; their checks hold the results, so that a release has the
task and a stub alone.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from course.assignments import program, task, visible_test, write_texts
from course.exercises import Exercise
from course.families import FAMILIES, varied
from course.hidden import seed_of

CHECK = """\
import numpy as np


def check_variant({names}):
    found, right = [{names}], {right}
    return [
        np.shape(x) == np.shape(y) and bool(np.allclose(x, y, rtol=0.01, atol=1e-9))
        for x, y in zip(found, right)
    ]"""


def _asked(chapter: str, label: str, title: str, minutes: int, text: str, **right) -> Exercise:
    """Return a task whose answers are these, by their names."""
    names = ", ".join(right)
    values = [x if isinstance(x, list) else float(x) for x in right.values()]
    answer = "\n".join(f"{name} = {value}" for name, value in zip(right, values, strict=True))
    return Exercise(
        *(chapter, label, title, "warm-up", minutes, f"{text} Give numbers to within 1 %."),
        names=list(right),
        calls=[f"check_variant({names})"],
        check=CHECK.format(names=names, right=values),
        stub="\n".join(f"{name} = ..." for name in right),
        answer=answer,
    )


def attention_by_hand(rng: np.random.Generator) -> Exercise:
    """One query, some keys, scores that are logarithms of integers."""
    n = int(rng.integers(3, 6))
    masses = [int(x) for x in rng.choice(np.arange(1, 10), n, replace=False)]
    values = [int(x) for x in rng.integers(-6, 7, n)]
    listed = ", ".join(rf"$\ln {mass}$" for mass in masses)
    text = f"A query has the scores {listed} with {n} keys. The values are {values}."
    total = sum(masses)
    mean = Fraction(sum(m * v for m, v in zip(masses, values, strict=True)), total)
    if rng.integers(2):
        hidden = int(rng.integers(n))
        left = [(m, v) for i, (m, v) in enumerate(zip(masses, values, strict=True)) if i != hidden]
        rest = Fraction(sum(m * v for m, v in left), sum(m for m, _ in left))
        text += (
            f" Write the `output`, and the output `masked` if a mask hides key {hidden}, "
            "counted from 0."
        )
        second: dict[str, Any] = {"masked": rest}
    else:
        second = {"largest": Fraction(max(masses), total)}
        text += " Write the `output`, and the `largest` of the weights."
    return _asked(
        *("single_head", "variant-attention", "Attention with a pencil", 10, text),
        output=mean,
        **second,
    )


def causal_mask(rng: np.random.Generator) -> Exercise:
    """Some new queries beside keys of a cache, all scores equal."""
    n_q, cached = int(rng.integers(2, 7)), int(rng.integers(1, 9))
    n_k, i = n_q + cached, int(rng.integers(n_q))
    seen = i + cached + 1
    text = (
        f"{n_q} new queries attend to {n_k} keys, {cached} of which come from the cache. All "
        f"scores are equal, and the mask is causal. Write `weights`, the list of the {n_k} weights "
        f"of query {i}, counted from 0, and `pairs`, the number of pairs of a query and a key "
        "that the mask shows."
    )
    return _asked(
        *("masking", "variant-causal", "A causal mask with a cache", 5, text),
        weights=[1 / seen] * seen + [0.0] * (n_k - seen),
        pairs=sum(j + cached + 1 for j in range(n_q)),
    )


def cache_size(rng: np.random.Generator) -> Exercise:
    """The keys and values of a language model, with all heads and with grouped ones."""
    layers = int(rng.choice([12, 24, 32, 48, 80]))
    width, heads = int(rng.choice([64, 128])), int(rng.choice([16, 32, 64]))
    shared = int(rng.choice([2, 4, 8]))
    kind, size = [("float16", 2), ("float32", 4)][int(rng.integers(2))]
    billions = int(rng.integers(2, 15))
    whole = 2 * layers * heads * width * size
    text = (
        f"A language model has {layers} layers with {heads} heads of width {width}, and {billions} "
        f"billion parameters, all in {kind}. How many KiB of cache does a token need (`whole`), "
        f"and how many if {shared} query heads share a KV head (`grouped`)? After how many "
        "`tokens` is the cache without sharing as large as the parameters?"
    )
    return _asked(
        *("decoding", "variant-cache", "The size of a cache", 10, text),
        whole=whole / 1024,
        grouped=whole / shared / 1024,
        tokens=billions * 10**9 * size / whole,
    )


def tables(rng: np.random.Generator) -> Exercise:
    """The probability that tables of random planes find a near vector."""
    bits, n_tables = int(rng.integers(3, 9)), int(rng.integers(2, 12))
    tenths = int(rng.integers(1, 10))
    p = 1 - tenths / 10 / math.pi
    if rng.integers(2):
        found, words = 1 - (1 - p**bits) ** n_tables, "at least one"
    else:
        found, words = (1 - p**bits) ** n_tables, "none"
    text = (
        f"Two vectors have an angle of {tenths / 10} radians. Write `one`, the probability "
        f"that a table of {bits} random planes puts both into the same bucket, and `all_tables`, "
        f"the probability that {words} of {n_tables} such tables does so."
    )
    return _asked(
        *("hashing", "variant-tables", "Tables of random planes", 10, text),
        one=p**bits,
        all_tables=found,
    )


def learning_rate(rng: np.random.Generator) -> Exercise:
    """A schedule with warm-up and half a cosine, in two updates."""
    warmup = int(rng.integers(2, 21)) * 10
    steps = warmup + int(rng.integers(2, 40)) * 40
    peak = float(rng.choice([1e-4, 3e-4, 1e-3, 6e-3]))
    early, quarter = int(rng.integers(1, warmup)), int(rng.integers(1, 4))
    late = warmup + quarter * (steps - warmup) // 4
    text = (
        f"A training run has {steps} updates. Its learning rate rises linearly to {peak:g} in "
        f"update {warmup} and falls along half a cosine to 0 in the last one. Write the learning "
        f"rate in update {early} (`early`) and in update {late} (`late`), counted from 1."
    )
    return _asked(
        *("training", "variant-rate", "Warm-up and cosine", 10, text),
        early=peak * early / warmup,
        late=peak * (1 + math.cos(math.pi * quarter / 4)) / 2,
    )


TASKS: dict[str, Callable[[np.random.Generator], Exercise]] = {
    "variant-attention": attention_by_hand,
    "variant-causal": causal_mask,
    "variant-cache": cache_size,
    "variant-tables": tables,
    "variant-rate": learning_rate,
}


def of(student: str, secret: str, exercises: Iterable[Exercise] = ()) -> list[Exercise]:
    """Return the tasks of a student, the same ones every time.

    Without `exercises` these are the short tasks, else those of the exercises' chapters and the
    variants of the exercises that have some.
    """
    exercises = list(exercises)
    chapters = {exercise.chapter for exercise in exercises}

    def drawn(label: str) -> np.random.Generator:
        return np.random.default_rng(seed_of(secret, "variant", label, student))

    tasks = [make(drawn(label)) for label, make in TASKS.items()]
    return [
        *(task for task in tasks if not chapters or task.chapter in chapters),
        *(varied(e, drawn(e.label)) for e in exercises if e.variant),
    ]


def write(
    students: Iterable[str], secret: str, folder: Path, exercises: Iterable[Exercise] = ()
) -> None:
    """Write for each student a folder with tasks, stubs, and the checks of functions.

    Tasks of an earlier call that are there go, since they may be of another secret. Whatever else
    is there stays.

    Raises
    ------
    ValueError
        If a student's name is not that of a folder; nothing is written then.
    """
    exercises, students = list(exercises), check_students(students)
    for student in students:
        place = folder / student
        for label in (*TASKS, *FAMILIES):
            for path in _files(place, label.replace("-", "_")):
                path.unlink(missing_ok=True)
        for exercise in of(student, secret, exercises):
            text, code, test = _files(place, exercise.module)
            texts = {text: task(exercise), code: program(exercise, exercise.stub)}
            if not is_literal(exercise.answer):  # a check of numbers holds the right ones
                texts[test] = visible_test(exercise)
            write_texts(texts)


def is_literal(answer: str) -> bool:
    """Return whether an answer only gives names to numbers and to lists of them."""
    statements = ast.parse(answer).body
    try:
        return all(ast.literal_eval(one.value) is not None for one in statements)  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return False


def _files(place: Path, module: str) -> list[Path]:
    return [place / name for name in (f"{module}.md", f"{module}.py", f"test_{module}.py")]


def check_students(students: Iterable[str]) -> list[str]:
    """Return the names of students, or raise ValueError unless each can be that of a folder."""
    students = list(students)
    for student in students:
        if not student or student.startswith(".") or re.search(r"[/\\\0]", student):
            raise ValueError(
                f"students must be names of folders that are not hidden, got {student!r}"
            )
    return students
