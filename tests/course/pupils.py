"""A class that hands in right, wrong and hostile answers to any exercises."""

import json

from samples import HOSTILE

from course.assignments import program

ENEMIES = (
    *("loops while it is read", "exits", "crashes", "takes memory", "forks for ever"),
    *("sends what is no message", "opens a socket", "raises SystemExit", "is no Python"),
)


def constant(exercise):
    """Hand in what returns its first argument, or is no number that is asked for."""
    return "\n".join(
        f"def {name}(*given, **options):\n    return given[0] if given else 0"
        if f"def {name}(" in exercise.stub
        else f"{name} = -1e9"
        for name in exercise.names
    )


def slip(exercise):
    """Hand in the solution with a number added to every result."""
    code = "\n".join(
        f"_right_{name} = {name}\n\n\n"
        f"def {name}(*given, **options):\n"
        f"    found = _right_{name}(*given, **options)\n"
        f"    return tuple(x + 1 for x in found) if isinstance(found, tuple) else found + 1"
        for name in exercise.names
        if f"def {name}(" in exercise.stub
    )
    return f"{program(exercise, exercise.answer)}\n\n\n{code}" if code else constant(exercise)


KINDS = {
    "right": lambda exercise, i: program(exercise, exercise.answer),
    "again": lambda exercise, i: program(exercise, exercise.answer),
    "empty": lambda exercise, i: program(exercise, exercise.stub),
    "wrong": lambda exercise, i: program(exercise, constant(exercise)),
    "slips": lambda exercise, i: slip(exercise),
    "enemy": lambda exercise, i: HOSTILE[ENEMIES[i % len(ENEMIES)]][1],
}
"""What a pupil hands in, by the beginning of the name; `again` hands in a notebook."""


def write_programs(folder, answers):
    """Write answers by the names of their files."""
    folder.mkdir(parents=True)
    for name, code in answers.items():
        (folder / f"{name}.py").write_text(code, "utf8")


def write_notebook(path, answers):
    """Write answers by the labels of their exercises."""
    path.parent.mkdir(parents=True)
    named = [(f"answer-{label}", code) for label, code in answers.items()]
    cells = [{"source": c, "metadata": {"nbgrader": {"grade_id": n}}} for n, c in named]
    path.write_text(json.dumps({"cells": cells}), "utf8")


def hand_in(folder, exercises, n):
    """Write the submissions of `n` pupils, of each kind alike."""
    for i in range(n):
        kind = list(KINDS)[i % len(KINDS)]
        place = folder / f"{kind} {i:03}"
        answers = {e: KINDS[kind](e, i // len(KINDS)) for e in exercises if e.is_checked}
        if kind == "again":
            write_notebook(place / "book.ipynb", {e.label: code for e, code in answers.items()})
        else:
            write_programs(place, {e.module: code for e, code in answers.items()})
