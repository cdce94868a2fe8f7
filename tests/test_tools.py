"""The tools choose the tests they should, and the workflows name what there is."""

import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))  # no part of the installed package

import changed  # noqa: E402
import elsewhere  # noqa: E402

FILES = {
    "tests/one/test_apple.py": "from attnbook.one import apple\nfrom cases import CASES\n",
    "tests/one/test_pear.py": "from attnbook import pear, and_many_more_fruits\n",
    "tests/two/test_both.py": "from attnbook.one import (\n    apple,\n)\n",
    "tests/test_readme.py": 'text = "README.md"\n',
    "tests/test_benchmarks.py": "from benchmarks import (\n    harness,\n)\n",
    "tests/test_book.py": "",
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["attnbook/one/apple.py"], ["one/test_apple", "one/test_pear", "two/test_both"]),
        (["attnbook/one/_pear.py"], ["one/test_pear", "one/test_apple"]),
        (["tests/two/test_both.py"], ["two/test_both"]),
        (["tests/cases.py"], ["one/test_apple"]),
        (["benchmarks/harness.py"], ["test_benchmarks"]),
        (["book/one.md"], ["test_book"]),
        (["README.md"], []),
        ([], []),
    ],
)
def test_the_nearest_tests_run_first(tmp_path, changes, expected):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = changed.nearest(changes, tmp_path)
    assert found == [*(f"tests/{name}.py" for name in expected), "tests/test_readme.py"]


@pytest.mark.parametrize(("seconds", "is_up"), [(1e9, False), (-1.0, True)])
def test_the_deadline_stops_the_run(seconds, is_up):
    item = types.SimpleNamespace(session=types.SimpleNamespace(shouldstop=False))
    deadline = changed.Deadline(seconds)
    deadline.pytest_runtest_logfinish("test", None)
    deadline.pytest_runtest_protocol(item, None)
    assert deadline.is_up is is_up
    assert bool(item.session.shouldstop) is is_up


def test_changes_are_those_of_git(monkeypatch):
    said = {"merge-base": ["b" * 40], "diff": ["README.md"], "ls-files": ["new.py"]}
    monkeypatch.setattr(changed, "_git", lambda command, *_: said[command])
    assert changed.changed("main") == ["README.md", "new.py"]


@pytest.mark.parametrize(
    ("arguments", "names", "options"),
    [
        ([], list(elsewhere.SETTINGS), ["-n", "3"]),
        (["oldest"], ["oldest"], ["-n", "3"]),
        (["--fast", "oldest"], ["oldest"], ["-k", "not strict", "tests/single_head"]),
        (["avx2", "--", "tests/x.py"], ["avx2"], ["tests/x.py"]),
    ],
)
def test_each_setting_runs_pytest(monkeypatch, arguments, names, options):
    runs = []
    monkeypatch.setattr(elsewhere, "run", lambda name, given: runs.append((name, given)))
    assert elsewhere.main(arguments) == 0
    tests = [(name, given) for name, given in runs if "--nbval" not in given]
    assert [name for name, _ in tests] == names
    assert all(set(options) <= set(given) for _, given in tests)
    whole = not {"--fast", "--"} & set(arguments)
    assert [name for name, given in runs if "--nbval" in given] == (names if whole else [])
    monkeypatch.setattr(elsewhere, "run", lambda name, given: 1)
    assert elsewhere.main(arguments) == 1


def test_an_unknown_setting_is_refused(capsys):
    with pytest.raises(SystemExit):
        elsewhere.main(["newest"])
    assert "names must be of oldest, avx2, threads, busy, got newest" in capsys.readouterr().err


def test_the_settings_hide_instructions_from_numpy():
    code = "from numpy._core._multiarray_umath import __cpu_features__ as f; print(f)"
    done = elsewhere.subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=elsewhere.os.environ | elsewhere.SETTINGS["oldest"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not any(eval(done.stdout)[name] for name in elsewhere.DISPATCHED)


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda p: p.name)
def test_workflows_name_what_there_is(path):
    text = path.read_text("utf8")
    for name in re.findall(r"(?<![\w/.])(?:tests|attnbook)/[\w/.]+", text):
        assert (ROOT / name).exists(), name
    for settings in re.findall(r"setting: \[(.*?)\]", text):
        assert settings.split(", ") == list(elsewhere.SETTINGS)
    for room in elsewhere.ROOMS:
        assert (ROOT / "tests" / room).is_dir()


@pytest.mark.parametrize("built", [(), ("html/index.html",), ("html/index.html", "kept.txt")])
@pytest.mark.parametrize("secret", [True, False])
def test_make_clean_keeps_the_secret_of_the_course_alone(built, secret, tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "attnbook").mkdir()
    (tmp_path / "book").mkdir()
    for name in (*built, *(["course-secret.txt"] * secret)):
        (tmp_path / "_build" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "_build" / name).write_text("it")
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("_build/**/*")]
    assert left == ["_build/course-secret.txt"] * secret
    assert (tmp_path / "_build").exists() == secret
