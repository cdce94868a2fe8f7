"""What a student hands in is read whatever its form, and Jupyter's own syntax costs no points."""

import builtins
import contextlib
import io
import json
import time
import zipfile

import pupils
import pytest
from samples import EXERCISES, PENCIL, SHARES, SQUARES, WEIGHTS

from attnbook.__main__ import main
from course import command, files, grading, judge, jupyter, results, submissions
from course.parents import parents
from course.session import Limits

QUICK = Limits(seconds=5, megabytes=1024)
WRONG = "def squares(x):\n    return x + x"


@pytest.fixture(scope="module")
def start():
    with parents() as start:
        yield start


def marked(start, exercise, code):
    """Return the mark of a cell."""
    return judge.mark(exercise, jupyter.as_python(code), "s", start, QUICK)


BESIDE = [
    *("%matplotlib inline", "!ls", "files = !ls\nprint(len(files), *files)", "np.exp?", "??np.exp"),
    *("%time 1 + 1", "%%time", "# words\n%%timeit -n 3", "%%capture out\n%%time", "%pip install x"),
    *("display(np.ones(3))", "get_ipython().run_line_magic('matplotlib', 'inline')"),
    *(
        "import torch",
        "import scipy, pandas, os",
        "from torch import nn\nimport torch.nn.functional",
    ),
    "import torch\ntorch.manual_seed(0)\nassert torch.tensor(3) == 3",
    "import matplotlib.pyplot as plt\nfigure, (a, b) = plt.subplots(1, 2)\na.imshow(np.ones(2))\n"
    "for axis in (a, b):\n    axis.set(title='x')\nx = 2 * a.get_xlim()[1]\nplt.rcParams['x'] = 3",
    "import seaborn as sns\nwith sns.axes_style('white'):\n    sns.heatmap(np.ones((2, 2)))",
    "import pandas as pd\npd.DataFrame(np.ones((2, 2))).plot()\ntable: pd.DataFrame | None = None",
    "from IPython.display import Markdown, display\ndisplay(Markdown('x'))",
    "from attnbook import plots\nplots.heatmap(np.ones((2, 2)))",
    "open('log.txt', 'w').write('x')",
    "try:\n    import cupy as xp\nexcept ImportError:\n    xp = np\nxp.ones(3).sum()",
    "'a'.encode('cp1252')",
    "from __future__ import annotations",
]
"""What stands above a right answer in its cell and is none of its result."""


@pytest.mark.parametrize("above", BESIDE)
def test_what_jupyter_runs_beside_a_right_answer_costs_nothing(above, start):
    for exercise in (SQUARES, WEIGHTS):
        mark = marked(start, exercise, f"{above}\n{exercise.answer}")
        assert mark.share == 1, mark
        mark = marked(start, exercise, f"{above}\n{exercise.stub}\n    raise KeyError")
        assert mark.share == 0


@pytest.mark.parametrize(
    "inside",
    [
        *(
            "import torch",
            "display(x)",
            "%time y = x",
            "import matplotlib.pyplot as plt; plt.plot(x)",
        ),
        "import torch\n    if isinstance(x, torch.Tensor):\n        return x",
        "import matplotlib.pyplot as plt\n    f, ax = plt.subplots()\n    ax.plot(x)",
    ],
)
def test_nor_does_it_inside_of_an_answer(inside, start):
    code = f"def squares(x):\n    {inside}\n    return x * x"
    assert marked(start, SQUARES, code).share == 1


def test_an_exported_magic_runs_its_statements(start):
    code = SQUARES.answer + "\n"
    text = f"get_ipython().run_cell_magic('time', '', {code!r})"
    assert marked(start, SQUARES, text).share == 1
    assert jupyter.as_python("%%bash\nls") == ""
    assert jupyter.as_python("def (") == "def ("
    kept = 'def f(x):\n    """\n    %time x\n    """\n    return x % 2'
    assert jupyter.as_python(kept) == kept


@pytest.mark.parametrize("error", ["raise ValueError('no')", "1 / 0", "undefined", "open('no')"])
def test_a_name_bound_before_an_error_stays_bound(error, start):
    assert marked(start, SQUARES, f"{SQUARES.answer}\n{error}").share == 1
    mark = marked(start, PENCIL, f"half = 0.5\n{error}\npair = (1, 2)")
    assert mark.share == (1 if "open" in error else 0.5)  # a file is refused, which is passed over
    assert mark.share == 1 or "Your submission raises" in mark.message
    mark = marked(start, SQUARES, f"raise ValueError('no')\n{SQUARES.answer}")
    assert (mark.share, mark.mistakes) == (0, ("raises",))


@pytest.mark.parametrize("package", ["torch", "scipy", "helpers", "pandas"])
@pytest.mark.parametrize("way", ["import {0}", "from {0} import square"])
def test_an_answer_that_needs_another_package_is_told_so(package, way, start):
    call = "square" if "from" in way else f"{package}.square"
    mark = marked(start, SQUARES, f"{way.format(package)}\ndef squares(x):\n    return {call}(x)")
    assert mark.share == 0
    assert f"`{package}.square` is not available where answers are graded" in mark.message
    assert "import only NumPy and what comes with Python" in mark.message


def test_without_ipython_a_sentence_says_so(monkeypatch, tmp_path):
    real = builtins.__import__

    def absent(name, *given, **options):
        if name.startswith("IPython"):
            raise ImportError(name)
        return real(name, *given, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    pupils.write_notebook(tmp_path / "ada/book.ipynb", {"squares": f"!ls\n{SQUARES.answer}"})
    (found,) = submissions.read(tmp_path, [SQUARES])
    assert not found.answers
    assert "`!ls` is IPython's syntax, and IPython is not installed" in found.unread[0]


def notebook(code, metadata=None, **more):
    cell = {"cell_type": "code", "metadata": metadata or {}, "source": code, "outputs": [], **more}
    return {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def zipped(*names, code=SQUARES.answer):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, code)
    return data.getvalue()


CODE = SQUARES.answer
NAMED = {"nbgrader": {"grade_id": "answer-squares"}}
ON_PAGE = {"attnbook": "answer-exercise-squares"}
OLD = {"worksheets": [{"cells": [{"cell_type": "code", "metadata": NAMED, "input": [CODE]}]}]}
PICTURE = [{"output_type": "display_data", "data": {"image/png": "A" * 5 * 2**20}}]
FORMS = {
    **{
        name: CODE.encode()
        for name in (
            *("squares (1).py", "squares-2.py", "Copy of squares.py", "squares - Kopie.py"),
            *("Squares.py", "SQUARES.PY", "squares_final.py", "squares.py.txt", "my answers.py"),
            *("deep/er/squares.py", "student_12_34_squares-1.py"),
        )
    },
    "squares.py": b"# caf\xe9\n" + CODE.encode(),
    "b/squares.py": CODE.encode("utf-16"),
    "c/squares.py": CODE.encode("utf-16-be"),
    "d/squares.py": CODE.encode("utf-8-sig").replace(b"\n", b"\r\n"),
    "e/squares.py": b"# -*- coding: cp1252 -*-\n# \x80\n" + CODE.encode(),
    "page.ipynb": json.dumps(notebook(CODE, ON_PAGE)).encode(),
    "page_id.ipynb": json.dumps(notebook(CODE, id="answer-exercise-squares")).encode(),
    "page.py": f"# %% answer-exercise-squares\n{CODE}\n\n# %% answer-exercise-x\nx(\n".encode(),
    "own.ipynb": json.dumps(notebook(f"%matplotlib inline\n{CODE}")).encode(),
    "pictures.ipynb": json.dumps(notebook(CODE, NAMED, outputs=PICTURE)).encode(),
    "old.ipynb": json.dumps({**OLD, "nbformat": 3}).encode(),
    "marked.ipynb": json.dumps(notebook(CODE, NAMED)).encode("utf-16"),
    "all.zip": zipped("__MACOSX/._squares.py", "release/sample/squares.py"),
    "out.zip": zipped("../../squares.py"),
}
"""A right answer to `SQUARES` in all forms, by the names of the files."""


@pytest.mark.parametrize("name", FORMS)
def test_a_right_answer_is_read_in_every_form(name, tmp_path, start):
    path = tmp_path / "in/ada" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(FORMS[name])
    (found,) = submissions.read(tmp_path / "in", EXERCISES)
    mark = judge.mark(SQUARES, found.answers["squares"], "s", start, QUICK)
    assert mark.share == 1, mark
    assert found.answers.keys() == {"squares"}
    assert [p.name for p in tmp_path.iterdir()] == ["in"]  # nothing is unpacked


MERGED = '{"cells": [\n<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> theirs\n]}'
UNREAD = {
    "merged.ipynb": (MERGED.encode(), "marks of a merge that Git did not finish"),
    "broken.ipynb": (b'{"cells": [', "is not a complete notebook"),
    "deep.ipynb": (b"[" * 10**5, "is not a complete notebook"),
    "broken.zip": (b"PK\x03\x04 and no more", "not a complete archive"),
    "bomb.zip": (zipped("squares.py", code="0" * 2**24), "has more than"),
    "squares.py": (b"x = 1\n" * 2**16, "KB of code"),
    "squares.7z": (b"7z", "There is no answer to an exercise in squares.7z"),
    "squares.pdf": (b"%PDF", "There is no answer to an exercise in squares.pdf"),
    "thoughts.py": (b"x = 1", "There is no answer to an exercise in thoughts.py"),
}
"""What cannot be read, and the words that name it."""


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Return what the command says of a class that hands in one of these each, and its pages."""
    home, said = tmp_path_factory.mktemp("unread"), io.StringIO()
    for name, (data, _) in UNREAD.items():
        (home / "in" / f"of {name}").mkdir(parents=True)
        (home / "in" / f"of {name}" / name).write_bytes(data)
    (home / "secret").write_text("s")
    given = ["grade", str(home / "in"), "--secret", str(home / "secret"), "--workers", "1"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(command.exercises, "read", lambda folder: {"sample": [SQUARES]})
        assert main([*given, "--out", str(home / "out")]) == 0
    return said.getvalue().splitlines(), home / "out/students"


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_is_named_to_student_and_teacher(name, graded):
    lines, pages = graded
    said = [line for line in lines if line.startswith(f"of {name}: ")]
    assert any(UNREAD[name][1] in line for line in said)
    assert any(name in line.removeprefix(f"of {name}: ") for line in said)
    told = json.loads((pages / f"of {name}.json").read_text())
    for text in (told["output"], told["tests"][0]["output"]):
        assert name in text
    assert "<p>" in (pages / f"of {name}.html").read_text()


def test_names_that_learning_systems_give(tmp_path):
    for name in (
        *("Ada L_11_assignsubmission_file_/squares.py", "Bo_12_assignsubmission_file/a/squares.py"),
        *("Bo_13_assignsubmission_file_/squares.py", "doejane_123_456_squares-1.py"),
        *("doejane_123_457_pencil.py", "late_LATE_9_10_squares.py"),
        *("hw1_blake_attempt_2026-01-30-10-15-00_squares.py", "squares.py", ".hidden.py"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(SQUARES.answer)
    (tmp_path / "eve.zip").write_bytes(zipped("eve/squares.py"))
    found = {one.student: one.answers for one in submissions.read(tmp_path, [SQUARES, PENCIL])}
    assert found.keys() == {"Ada L", "Bo_12", "Bo_13", "doejane", "late", "blake", "eve"}
    assert all(answers["squares"] == SQUARES.answer for answers in found.values())
    assert found["doejane"].keys() == {"squares", "pencil"}
    assert submissions.loose(tmp_path) == ["squares.py"]


def test_a_cell_of_the_chapter_is_no_answer(tmp_path):
    """Neither where the cell for the answer is empty, nor where only numbers are asked for."""
    book = notebook(SQUARES.answer)
    book["cells"] += notebook("", ON_PAGE)["cells"] + notebook("half = 0.5\npair = 1, 2")["cells"]
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada/book.ipynb").write_text(json.dumps(book))
    (found,) = submissions.read(tmp_path, EXERCISES)
    assert found.answers == {"squares": ""}


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys):
    """Return what grading says of folders beside a list of students, and whom it grades."""
    monkeypatch.setattr(command.exercises, "read", lambda folder: {"sample": [SQUARES]})
    monkeypatch.setattr(command.variants, "of", lambda student, secret, exercises: [SQUARES])
    graded = []

    def grade(given, *more, **options):
        graded.extend(one.student for one in given)
        return iter(())

    monkeypatch.setattr(command.grading, "grade", grade)
    (tmp_path / "secret").write_text("s")

    def run(folders, students, *words):
        for name in folders:
            pupils.write_programs(tmp_path / "in" / name, {"squares": SQUARES.answer})
        (tmp_path / "students.txt").write_text("\n".join(students), "utf8")
        given = ["grade", str(tmp_path / "in"), "--secret", str(tmp_path / "secret"), *words]
        given += ["--students", str(tmp_path / "students.txt")] if students else []
        assert main([*given, "--out", str(tmp_path / "out")]) == 0
        return capsys.readouterr().out, graded

    return run


@pytest.mark.parametrize("folder", ["Student04", "student 04", "student04 ", "student_04", "zoe"])
def test_a_folder_that_the_list_does_not_name_is_not_graded(folder, listed):
    with pytest.raises(SystemExit, match=f"does not name {folder}") as said:
        listed([folder, "ada"], ["student04", "ada"], "--variants")
    assert ("is it student04?" in str(said.value)) == (folder != "zoe")


def test_who_hands_in_nothing_is_named_and_accents_are_one_letter(listed):
    said, graded = listed(["Jose\u0301"], ["Jos\u00e9", "ada"], "--variants")
    assert "These students have handed in nothing: ada." in said
    assert graded == ["Jos\u00e9"]


def test_variants_need_a_list(listed, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "OUT", tmp_path / "course")
    with pytest.raises(SystemExit, match="--variants needs --students"):
        listed(["ada"], [], "--variants")
    (tmp_path / "course/variants/ada").mkdir(parents=True)
    assert listed([], [], "--variants")[1] == ["ada"]


def test_what_was_not_read_stands_on_the_page_of_a_student():
    mark = judge.Mark("squares", 0.0, (), "Nothing.")
    page = results.page(grading.Result("ada", {"squares": mark}, ("<a> is no file.",)), [SQUARES])
    assert "<p>&lt;a&gt; is no file.</p>" in page


def test_an_archive_has_a_limit_in_all(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "LARGEST", 2**16)
    names = [f"{i}/squares.py" for i in range(9)]
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada/all.zip").write_bytes(zipped(*names, code="1" * 2**14))
    (found,) = submissions.read(tmp_path, [SHARES])
    assert any("has more than" in sentence for sentence in found.unread)


@pytest.mark.parametrize(
    "code",
    [
        *("!ls\n" * 20_000, "%%time\n" * 14_000, "a?\n" * 30_000, "a, " * 33_000 + "!"),
        *(" " * 50_000 + "(", "\n" * 90_000 + "(", "? " * 49_000 + "("),
    ],
    ids=["shell", "magics", "help", "names", "spaces", "lines", "marks"],
)
def test_no_code_takes_long_to_transform(code):
    before = time.thread_time()
    jupyter.as_python(code)
    assert time.thread_time() - before < 5
