"""Grade submissions side by side: each answer in a process of its own."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from attnbook.course import variants
from attnbook.course.exercises import Exercise
from attnbook.course.judge import Mark, mark
from attnbook.course.parents import Parents, library
from attnbook.course.session import USUAL, Limits
from attnbook.course.submissions import Submission


@dataclass(frozen=True)
class Result:
    """The marks of one student, by the labels of the exercises."""

    student: str
    marks: dict[str, Mark]


AT_ONCE = 20
"""Students whose answers to one exercise are marked one after the other, so that what it gives is
made ready once for all of them."""

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
        waiting = []
        for block in blocks:
            asked = variants.of(block[0].student, secret, checked) if own else checked
            marks = [pool.submit(_mark, exercise, block, secret, limits) for exercise in asked]
            waiting.append(marks)
        for block, marks in zip(blocks, waiting, strict=True):
            for one, *found in zip(block, *(future.result() for future in marks), strict=True):
                yield Result(one.student, {mark.label: mark for mark in found})


def _begin(folder: str) -> None:
    _parents[:] = [Parents(folder)]


def _mark(exercise: Exercise, block: list[Submission], secret: str, limits: Limits) -> list[Mark]:
    """Return the mark of each answer to an exercise."""
    answers = (submission.answers.get(exercise.label) for submission in block)
    return [mark(exercise, answer, secret, _parents[0], limits) for answer in answers]
