"""The exercises of the book, as the site has written them down."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

WRITTEN = Path("_build/exercises")
"""Where `make book` writes them, from the root of the repository."""


PASSED = {
    "ablate": ["TransformerWeights"],
    "distributed-tree": ["RunningSoftmax"],
    "which-mistake": ["TransformerBlockWeights"],
}
"""What the checks of some exercises pass to an answer that does not name it itself."""


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes
    ----------
    chapter, label, number, title, level : str
    minutes : int
        As the chapter says.
    text, hints, explanation : str, list of str, str
        Plain Markdown: what is asked, its hints, and the words of the solution.
    names : list of str
        What is handed in: functions, classes, numbers.
    calls : list of str
        The calls that check it, such as ``check.attention(my_attention)``.
    given, check, block : str
        The statements of the chapter that an answer needs, those that the calls need, and the
        assertions of the text where there are no calls.
    stub, answer : str
        What a student begins with, and the solution.
    uses : list of str
        What `given` and `answer` use of attnbook, such as ``masking.causal``.
    missing : list of str
        Names that the chapter gives nowhere but in another solution.
    """

    chapter: str
    label: str
    number: str
    title: str
    level: str
    minutes: int
    text: str
    hints: list[str]
    explanation: str
    names: list[str]
    calls: list[str]
    given: str
    check: str
    block: str
    stub: str
    answer: str
    uses: list[str]
    missing: list[str]

    def __hash__(self) -> int:
        return hash((self.label, self.text, self.answer))

    @property
    def points(self) -> int:
        """A point for five minutes, at least one."""
        return max(1, round(self.minutes / 5))

    @property
    def is_checked(self) -> bool:
        """Whether a program can mark it; all others are read by a person."""
        return bool(self.names and (self.calls or self.block) and not self.missing)

    @property
    def needs_packages(self) -> bool:
        """Whether an answer needs more packages than NumPy: a kernel in Triton does."""
        return re.search(r"^\s*import triton\b", self.given, re.M) is not None

    @property
    def module(self) -> str:
        """Its name as a file."""
        return self.label.replace("-", "_")


def read(folder: Path = WRITTEN) -> dict[str, list[Exercise]]:
    """Return the exercises of each chapter.

    Raises
    ------
    FileNotFoundError
        If the site has not written them.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"there are no exercises in {folder}: run make book first")
    found = {}
    for path in paths:
        chapter = json.loads(path.read_text("utf8"))
        found[chapter["chapter"]] = [
            exercise_of(chapter["chapter"], described) for described in chapter["exercises"]
        ]
    return found


def exercise_of(chapter: str, described: dict[str, Any]) -> Exercise:
    """Return an exercise from what is written of it."""
    names = {field.name for field in fields(Exercise)} - {"chapter"}
    own = {name: described[name] for name in names}
    own["uses"] = sorted({*own["uses"], *PASSED.get(own["label"], ())})
    return Exercise(chapter, **own)
