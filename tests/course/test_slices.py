"""What an exercise needs of its chapter: the statements of some names, and no others."""

from pathlib import Path

import pytest
from cases import load
from sphinx.errors import ExtensionError

EXTENSIONS = Path(__file__).parents[2] / "book/_ext"
slices, exercises = (load(EXTENSIONS / f"{name}.py") for name in ("slices", "exercises"))

CELLS = [
    "%config InlineBackend",
    "import math, os\nfrom one import two, three\nimport numpy as np",
    "x = math.pi  # a number\ny = 2",
    "def f(z):\n    # used later\n    return g(z) + x",
    "def g(z):\n    return z + y\n\n\nprint(f(1))",
    "rng = np.random.default_rng(1)\na = rng.normal()\nb = rng.normal()",
    "table = {}\ntable['one'] = a\ntable.update(two=y)\nfor key in table:\n    total = key",
    "x = 3\nhash = lambda v: v\nlen([])",
]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["y"], "y = 2"),
        (["three"], "from one import three"),
        (["x"], "x = 3"),
        (["os"], "import os"),
        (["g"], "y = 2\n\n\ndef g(z):\n    return z + y"),
        (["b"], CELLS[5].replace("rng = ", "import numpy as np\n\nrng = ", 1)),
        (["nowhere"], ""),
        (["hash"], "hash = lambda v: v"),
        (
            ["f"],
            "y = 2\n\n\ndef f(z):\n    # used later\n    return g(z) + x\n\n\n"
            "def g(z):\n    return z + y\n\n\nx = 3",
        ),
    ],
)
def test_what_a_name_needs(wanted, expected):
    found, missing = slices.needed(slices.statements_of(CELLS), wanted)
    assert slices.joined(found) == expected
    assert missing == ({"nowhere"} if wanted == ["nowhere"] else set())


def test_what_changes_an_object_is_needed():
    found, missing = slices.needed(slices.statements_of(CELLS), ["table"])
    sources = [statement.source for statement in found]
    assert sources[-3:] == ["table = {}", "table['one'] = a", "table.update(two=y)"]
    assert missing == set()


def test_what_is_used_of_a_package():
    cells = [
        "import attnbook as ab\nfrom attnbook import masking\nfrom attnbook.data import digits"
    ]
    cells += ["ab.attention(masking.causal(3)); digits()", "import math\nmath.pi"]
    used = slices.used_of(slices.statements_of(cells), "attnbook")
    assert used == {"attention", "masking", "masking.causal", "data.digits"}


def asked(**parts):
    usual = dict.fromkeys(("label", "number", "title", "level", "text", "explanation"), "")
    return {**usual, "minutes": 5, "hints": [], "words": [], "blocks": [], "checks": [], **parts}


@pytest.mark.parametrize(
    ("parts", "names", "calls"),
    [
        (
            {"solution": ["def f(x):\n    return x\n\n\nprint(check.softmax(f))"]},
            ["f"],
            ["check.softmax(f)"],
        ),
        (
            {
                "checks": ["def check_it(first, second):\n    return first"],
                "solution": ["half = 1 / 2\nprint(check_it([half], 3))\nprint(check_it(0, 0))"],
            },
            ["first", "second"],
            ["check_it(first, second)"],
        ),
        (
            {
                "checks": ["def check_it(*answers):\n    return answers"],
                "solution": ["check_it(1, 2)", "print(check_it(lambda: 3))"],
            },
            ["answer_1", "answer_2"],
            ["check_it(answer_1, answer_2)"],
        ),
        ({"blocks": ["assert f(2) == 2"], "solution": ["def f(x):\n    return x"]}, ["f"], []),
        ({"solution": ["print(3)"]}, [], []),
    ],
)
def test_what_is_handed_in(parts, names, calls):
    (found,) = exercises.described([asked(**parts)], [["import math"]])
    assert (found["names"], found["calls"]) == (names, calls)
    space = {}
    exec(found["answer"], space)
    assert set(names) <= set(space)
    assert not found["missing"] or found["missing"] == ["check"]


def test_a_solution_of_another_exercise_is_not_given():
    first = asked(solution=["def f(x):\n    return x\n\n\ncheck.softmax(f)"])
    second = asked(solution=["def g(x):\n    return f(x)\n\n\ncheck.softmax(g)"])
    described = exercises.described([first, second], [["import math"]] * 2)
    assert "f" in described[1]["missing"]
    assert "def f" not in described[1]["given"]


TABLES = {"budget": {"variant": {"A million": "{n} million"}, "sizes": {"10**6": "{0}"}}}


def test_passages_of_variants_come_with_the_exercise():
    asked = {"label": "budget", "text": "A million", "check": "", "block": "10**6", "answer": ""}
    exercises.add_passages([asked], TABLES, "hashing.toml")
    assert {name: asked[name] for name in ("variant", "sizes")} == TABLES["budget"]


@pytest.mark.parametrize(
    ("label", "parts", "message"),
    [
        ("other", {}, "the chapter has no exercise 'budget'"),
        ("budget", {"text": "A thousand"}, "exercise 'budget' does not say 'A million' any more"),
        ("budget", {"text": "A million, 10**6"}, "exercise 'budget' does not say '10**6' any more"),
    ],
)
def test_a_passage_that_the_chapter_does_not_say_names_exercise_and_file(label, parts, message):
    asked = {"label": label, "text": "", "check": "", "block": "", "answer": "", **parts}
    with pytest.raises(ExtensionError) as told:
        exercises.add_passages([asked], TABLES, "hashing.toml")
    assert str(told.value).startswith(f"book/course/variants/hashing.toml: {message}")
