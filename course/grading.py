"""Grade submissions side by side: each answer in a process of its own."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np

from attnbook.check.engine.sandbox import error_text
from course import variants
from course.exercises import Exercise
from course.judge import Mark, mark
from course.limits import hide_memory
from course.parents import FEW_THREADS, Parents, library
from course.session import USUAL, Limits
from course.submissions import Submission


@dataclass(frozen=True)
class Result:
    """The marks of one student, by the labels of the exercises, and files that are unread."""

    student: str
    marks: dict[str, Mark]
    unread: tuple[str, ...] = ()


AT_ONCE = 20
"""Students whose answers to one exercise are marked one after the other, so that what it gives is
made ready once for all of them."""

Place = tuple[Future[list[Mark]], int]
"""Where the mark of an answer will stand."""

_parents: list[Parents] = []  # of this process, one


def grade(
    submissions: Iterable[Submission],
    exercises: Iterable[Exercise],
    secret: str,
    *,
    limits: Limits = USUAL,
    workers: int | None = None,
    own: bool = False,
) -> Iterator[Result]:
    """Yield the marks of each submission, in order.

    An answer that several hand in, letter by letter, is run once.

    Parameters
    ----------
    submissions : iterable of Submission
    exercises : iterable of Exercise
        Those that are marked; the ones that a person reads are left out.
    secret : str
        What the hidden cases follow from.
    limits : Limits
        What an answer may use.
    workers : int, optional
        How many are graded at once; as many as there are processors by default.
    own : bool
        Whether each student has variants, of these exercises and of their chapters.
    """
    checked = [exercise for exercise in exercises if exercise.is_checked]
    jobs = list(submissions)
    size = 1 if own else AT_ONCE
    blocks = [jobs[first : first + size] for first in range(0, len(jobs), size)]
    context = get_context("spawn")  # a copy of this process would hold its threads' locks
    workers = workers or os.cpu_count() or 1
    with library() as folder, ProcessPoolExecutor(workers, context, _begin, (folder,)) as pool:
        waiting: list[tuple[Submission, dict[str, Place]]] = []
        places: dict[tuple[Exercise, str | None], Place] = {}
        for block in blocks:
            asked = variants.of(block[0].student, secret, checked) if own else checked
            for exercise in asked:
                answers = (one.answers.get(exercise.label) for one in block)
                new = [a for a in dict.fromkeys(answers) if (exercise, a) not in places]
                if new:
                    with _few_threads():  # it may begin a process
                        marks = pool.submit(_mark, exercise, new, secret, limits)
                    places |= {(exercise, answer): (marks, i) for i, answer in enumerate(new)}
            for one in block:
                found = {e.label: places[e, one.answers.get(e.label)] for e in asked}
                waiting.append((one, found))
        for one, found in waiting:
            marks_of = {label: marks.result()[i] for label, (marks, i) in found.items()}
            for label in marks_of.keys() - one.answers.keys():
                said = one.lacking.get(label, marks_of[label].message)
                said = " ".join([said, *one.unread])
                marks_of[label] = replace(marks_of[label], message=said)
            yield Result(one.student, marks_of, tuple(one.unread))


@contextlib.contextmanager
def _few_threads() -> Iterator[None]:
    """Let the processes that begin now compute with one thread each: there is one a processor."""
    before = {name: os.environ.get(name) for name in FEW_THREADS}
    os.environ.update(FEW_THREADS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin(folder: str) -> None:
    hide_memory()  # it holds the secret
    np.ones((256, 256)) @ np.ones((256, 256))  # else OpenBLAS asks for memory within a bound
    _parents[:] = [Parents(folder)]


def _mark(exercise: Exercise, answers: list[str | None], secret: str, limits: Limits) -> list[Mark]:
    """Return the mark of each answer to an exercise; what cannot be marked stops no other."""
    marks = []
    for answer in answers:
        try:
            marks.append(mark(exercise, answer, secret, _parents[0], limits))
        except Exception as error:
            text = f"The grader failed on this answer: {error_text(error)}. Tell your teacher."
            marks.append(Mark(exercise.label, 0.0, ("not marked",), text))
    return marks
