"""The exercises of the book, as the site has written them down."""

import json
import re
from dataclasses import dataclass, field
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
    variant, sizes : dict
        Passages with what stands in their place, in a student's own task and in hidden cases.
    """

    chapter: str
    label: str
    title: str
    level: str
    minutes: int
    text: str
    names: list[str]
    answer: str
    number: str = ""
    hints: list[str] = field(default_factory=list)
    explanation: str = ""
    calls: list[str] = field(default_factory=list)
    given: str = ""
    check: str = ""
    block: str = ""
    stub: str = ""
    uses: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    variant: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)

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
    found: dict[str, list[Exercise]] = {}
    for path in paths:
        written = json.loads(path.read_text("utf8"))
        chapter = found[written["chapter"]] = []
        for own in written["exercises"]:
            uses = sorted({*own.pop("uses"), *PASSED.get(own["label"], ())})
            chapter.append(Exercise(written["chapter"], **own, uses=uses))
    return found


def replaced(text: str, passages: dict[str, str], *drawn: Any, **named: Any) -> str:
    """Return a text with other passages in the place of some, all at once.

    What is drawn stands in the new passages, where these have braces.

    >>> replaced("4 keys, 45 queries", {"4": "{n}", "45": "{n} + 1"}, n=7)
    '7 keys, 7 + 1 queries'
    """
    passage = re.compile("|".join(map(re.escape, sorted(passages, key=len, reverse=True))))
    return passage.sub(lambda found: passages[found[0]].format(*drawn, **named), text)
