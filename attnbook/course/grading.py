"""Grade submissions side by side: each answer in a process of its own."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from attnbook.course import variants
from attnbook.course.exercises import Exercise
from attnbook.course.judge import Mark, mark
from attnbook.course.session import USUAL, Limits, paths
from attnbook.course.submissions import Submission


@dataclass(frozen=True)
class Result:
    """The marks of one student, by the labels of the exercises."""

    student: str
    marks: dict[str, Mark]


_exercises: list[Exercise] = []  # of this process, so that their solutions are run once


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
        Whether each student has variants of the tasks.
    """
    checked = [exercise for exercise in exercises if exercise.is_checked]
    jobs = list(submissions)
    context = get_context("spawn")  # a copy of this process would hold its threads' locks
    workers = min(workers or os.cpu_count() or 1, max(1, len(jobs)))
    with ProcessPoolExecutor(workers, context, _begin, (checked,)) as pool:
        futures = [pool.submit(_grade_one, job, secret, limits, own) for job in jobs]
        for future in futures:
            yield future.result()


def _begin(exercises: list[Exercise]) -> None:
    _exercises[:] = exercises


def _grade_one(submission: Submission, secret: str, limits: Limits, own: bool) -> Result:
    asked = variants.of(submission.student, secret) if own else _exercises
    with paths() as folder:
        marks = {
            exercise.label: mark(
                exercise, submission.answers.get(exercise.label), secret, folder, limits
            )
            for exercise in asked
        }
    return Result(submission.student, marks)
