"""The text of a check: what its lines mean, and what is said of a line that is wrong."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from attnbook import check
from attnbook.check.engine.run import run
from attnbook.check.engine.steps import Case, Check, Stage
from attnbook.check.engine.text import Text

FOLDER = Path(check.__file__).parent
TEXTS = sorted(FOLDER.glob("*/*.txt"))

MEAN = """
# the mean of a row
[steps]
from scores import transposed
enter(x) = transposed(x[None])[:, 0]
total(x) = np.sum(x)
count(x) = x.size  # how many are added
divide(total, count) = total / count

[variants]
count = len(x)

[mistakes]
not divided: divide = total
    You return the sum.
another number: count = x.size + n for n in 1, -1 | count = x.size * n for n in TWO
    | enter = divide = 0
    You divide by
    another number.
of the squares [a statistician]: total = np.sum(x**2); count = x.size
    you take the mean of the squares.
[told otherwise]
list: told by lambda returned: type(returned) is list
    You return a list.
"""


def read(folder, text, **names):
    path = folder / "mean.txt"
    path.write_text(text, encoding="utf-8")
    return Text({"__file__": str(path.with_suffix(".py")), **names})


def test_a_text_gives_steps_variants_and_mistakes(tmp_path):
    text = read(tmp_path, MEAN, TWO=(2, 3))
    x = np.array([1.0, 2.0, 6.0])
    assert [*text.steps] == ["enter", "total", "count", "divide"]
    assert text.steps["divide"](text.steps["total"](x), text.steps["count"](x)) == 3
    assert [variant["count"](x) for variant in text.variants] == [3]
    plain, number, squares = text.mistakes
    assert (plain.name, plain.message, plain.convention) == (
        "not divided",
        "You return the sum.",
        False,
    )
    assert [way["count"](x) for way in number.ways[:4]] == [4, 2, 6, 9]
    assert number.ways[4].keys() == {"enter", "divide"}
    assert number.message == "You divide by another number."
    assert squares.convention
    assert squares.message.endswith("that of a statistician: you take the mean of the squares.")
    (told,) = text["told otherwise"]
    assert told.told_by([])
    assert not told.told_by(0)
    assert set(text.sentences) == {"not divided", "another number", "of the squares", "list"}


def test_alike_expressions_are_one_object_and_others_are_not(tmp_path):
    text = read(tmp_path, MEAN.replace("count = len(x)", "total = np.sum(x**2)"), TWO=(2, 2))
    assert text.variants[0]["total"] is text.mistakes[2].ways[0]["total"]
    ways = text.mistakes[1].ways
    assert ways[2]["count"] is ways[3]["count"]  # for the same number
    assert ways[0]["count"] is not ways[1]["count"]
    other = read(tmp_path, MEAN.replace("np.sum(x**2)", "np.sum(x**TWO)"), TWO=(3, 3))
    assert other.mistakes[2].ways[0]["total"] is not text.mistakes[2].ways[0]["total"]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "divide = total\n",
            "divided = total\n",
            14,
            "divided is no step; the steps are",
        ),
        ("= total / count", "= total / counts", 8, "no name counts is known in"),
        ("x.size + n for", "x.size + + for", 16, "must be an expression: invalid syntax"),
        ("not divided: ", "not divided ", 14, "a mistake must read name: ways, got 'not divided"),
        ("    You return the sum.\n", "", 14, "'not divided' must have a sentence below it"),
        ("[mistakes]\n", "[mistakes]\n    So.\n", 14, "a sentence must follow its mistake"),
        ("[mistakes]\n", "[mistakes]\n    | total = 0\n", 14, "a sentence must follow its mistake"),
        ("total(x) = np", "total of x: np", 6, "a step must read name(parameters) = expression"),
        ("import transposed", "import transpose", 4, "must name what there is: 'transpose'"),
        (
            "from scores import transposed",
            "use layer_norms",
            4,
            "must name what there is: No",
        ),
        ("in 1, -1", "in n", 16, "no name n is known"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, old, new, line, message):
    assert old in MEAN
    with pytest.raises(ValueError, match=r"^mean\.txt, line ") as error:
        read(tmp_path, MEAN.replace(old, new, 1), TWO=(2, 3))
    assert str(error.value).startswith(f"mean.txt, line {line}: ")
    assert message in str(error.value)


def test_a_mistake_that_is_added_to_a_text_is_named(tmp_path):
    def compute(s, x):
        x = s.enter(x)
        return s.divide(s.total(x), s.count(x))

    def report(text, answer):
        mean = Check(
            name="mean",
            parameters=("x",),
            results={"mean": "()"},
            compute=compute,
            steps=text.steps,
            stages=(Stage((Case({"x": np.arange(1.0, 6)}), Case({"x": np.arange(7.0)}))),),
            mistakes=text.mistakes,
        )
        return run(mean, answer, 10)

    def largest(x):
        return x[-1] / len(x)

    assert report(read(tmp_path, MEAN, TWO=(2, 3)), np.mean).passed
    assert report(read(tmp_path, MEAN, TWO=(2, 3)), np.sum).mistake == "not divided"
    assert report(read(tmp_path, MEAN, TWO=(2, 3)), largest).mistake is None
    mine = "last one alone: total = x[-1]\n    You take the last one.\n"
    more = MEAN.replace("[told", f"{mine}[told")
    assert report(read(tmp_path, more, TWO=(2, 3)), largest).mistake == "last one alone"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_every_text_is_read_by_the_module_beside_it(path):
    module = importlib.import_module(f"attnbook.check.{path.parent.name}.{path.stem}")
    assert "Text(" in Path(module.__file__).read_text(encoding="utf-8")  # which compiles each line


def test_a_check_stands_in_the_file_of_its_name():
    for name in {*check.__all__} - {"CheckFailed", "Report"}:
        function = getattr(check, name)
        assert function.__module__.rpartition(".")[2] == name
        assert function.__module__.split(".")[2] in ("exercises", "properties")
