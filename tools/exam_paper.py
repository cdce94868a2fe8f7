"""Print an exam as Markdown: questions of the bank by their numbers, without their answers.

Run ``python tools/exam_paper.py 1 11 19``, or ``mid-term`` or ``final`` in the place of numbers.
With ``--answers`` the answers, the points and the usual mistakes follow, for the teacher.
"""

import argparse
import re
import sys
from pathlib import Path

COURSE = Path(__file__).parents[1] / "book/course"
QUESTION = re.compile(
    r"^\((?P<label>exam-[\w-]+)\)=\n## (?P<number>\d+)\. (?P<title>.+)\n\n"
    r".*, (?P<minutes>\d+) minutes, (?P<points>\d+) points; .*\n"
    r"(?P<text>(?s:.*?))^:::\{dropdown\} Answer\n(?P<answer>(?s:.*?))^:::$",
    re.M,
)


def bank() -> dict[int, dict[str, str]]:
    """Return the questions by their numbers."""
    texts = [path.read_text("utf8") for path in (COURSE / "exam").glob("*.md")]
    asked = [found.groupdict() for text in texts for found in QUESTION.finditer(text)]
    return {int(question["number"]): question for question in asked}


def chosen(words: list[str]) -> list[dict[str, str]]:
    """Return the questions that numbers and names of exams ask for, in this order.

    Raises
    ------
    ValueError
        If the bank has no such question or exam, or a question is named twice.
    """
    questions = bank()
    labels = {question["label"]: number for number, question in questions.items()}
    text = (COURSE / "exam.md").read_text("utf8")
    sections = re.findall(r"^## A (mid-term|final)\n(.*?)(?=^## )", text, re.M | re.S)
    exams = {name: re.findall(r"^\| \{ref\}`([\w-]+)`", rows, re.M) for name, rows in sections}
    numbers: list[int] = []
    for word in words:
        if word in exams:
            numbers += [labels[label] for label in exams[word]]
        elif word.isdecimal() and int(word) in questions:
            numbers.append(int(word))
        else:
            names = " or ".join(exams)
            raise ValueError(
                f"questions must be numbers from 1 to {len(questions)}, or {names}, got {word}"
            )
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"questions must differ, got {numbers}")
    return [questions[number] for number in numbers]


def paper(questions: list[dict[str, str]], *, answers: bool = False) -> str:
    """Return an exam as Markdown, its questions counted from 1."""
    minutes, points = (sum(int(q[name]) for q in questions) for name in ("minutes", "points"))
    parts = ["# Exam", f"{len(questions)} questions, {minutes} minutes, {points} points."]
    for place, asked in enumerate(questions, 1):
        parts += [f"## {place}. {asked['title']}"]
        parts += [f"*{asked['minutes']} minutes, {asked['points']} points*", asked["text"].strip()]
        if answers:
            parts += [f"**Answer** (question {asked['number']} of the bank)"]
            parts += [asked["answer"].strip()]
    return "\n\n".join(parts) + "\n"


def main(words: list[str]) -> int:
    """Print the exam and return the exit status."""
    parser = argparse.ArgumentParser(description="Print an exam without its answers.")
    parser.add_argument("questions", nargs="+", help="numbers, mid-term or final")
    parser.add_argument(
        "--answers", action="store_true", help="also print the answers, for the teacher"
    )
    given = parser.parse_args(words)
    try:
        print(paper(chosen(given.questions), answers=given.answers), end="")
    except ValueError as error:
        print(f"exam_paper.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
