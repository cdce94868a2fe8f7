"""Which cells are live, the stubs of exercises, the policy of a page, and what is vendored."""

import ast
import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cases import load

ROOT = Path(__file__).parents[2]
LIVE, EXTENSIONS = ROOT / "book" / "live", ROOT / "book" / "_ext"


live_cells = load(EXTENSIONS / "live_cells.py")
live_policy = load(EXTENSIONS / "live_policy.py")
gather = load(LIVE / "gather.py")


@pytest.mark.parametrize(
    ("source", "runs"),
    [
        ("y = known + 1", True),
        ("import torch", False),
        ("subprocess.run(known)", False),
        ("from attnbook.nn import Head", False),
        ("from attnbook import nn", False),
        ("unknown + 1", False),
        ("def f(x):\n    return x + known", True),
        ("[i for i in range(3)]\ndisplay(known)", True),
        ("try:\n    known()\nexcept ValueError as error:\n    print(error)", True),
        ("with open('x') as f:\n    import cupy", False),
    ],
)
def test_a_cell_runs_here_if_it_imports_and_names_what_is_there(source, runs):
    assert live_cells.runs_here(source, {"known", "subprocess"}) is runs


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ("import torch\nfrom attnbook import nn", "PyTorch"),
        ("import cupy, torch", "PyTorch and CuPy"),
        ("model(1)", "a cell above that does not run there either"),
        ("known + 1", ""),
    ],
)
def test_a_cell_that_cannot_run_here_says_what_it_lacks(source, lacks):
    assert live_cells.missing(source, {"known"}) == lacks


SOLUTION = """
def helper(x):
    return x


def my_softmax(s, axis=-1):
    return helper(s)


check.softmax(my_softmax)
"""


@pytest.mark.parametrize(
    ("words", "blocks", "expected"),
    [
        (
            ["my_softmax(s)", "check.softmax(my_softmax)", "axis"],
            [],
            "def my_softmax(s, axis=-1):\n    ...\n\n\ncheck.softmax(my_softmax)",
        ),
        (["my_softmax"], [], "def my_softmax(s, axis=-1):\n    ...\n\n\ncheck.softmax(my_softmax)"),
        (
            ["my_softmax(s)"],
            ["assert my_softmax(0) == 1\n"],
            "def my_softmax(s, axis=-1):\n    ...\n\n\nassert my_softmax(0) == 1",
        ),
        (
            ["check.softmax(my_softmax)", "check.log_softmax(my_softmax)", "check.softmax"],
            [],
            "def my_softmax(s, axis=-1):\n    ...\n\n\n"
            "display(check.softmax(my_softmax))\ncheck.log_softmax(my_softmax)",
        ),
    ],
)
def test_the_stub_has_the_signature_and_the_check(words, blocks, expected):
    assert live_cells.stub(SOLUTION, words, blocks) == expected


def test_a_stub_of_a_class_has_its_methods():
    solution = "class Cache(dict):\n    size = 3\n    def add(self, x):\n        return x"
    expected = "class Cache(dict):\n    def add(self, x):\n        ..."
    assert live_cells.stub(solution, ["Cache"], []) == expected


@pytest.mark.parametrize(
    ("solution", "words", "expected"),
    [
        (
            "def meet(a):\n    return a\n\nprint(check_meet(meet, 0.25))",
            ["meet(a)", "check_meet(meet, chance)"],
            "def meet(a):\n    ...\n\n\nchance = ...\n\n\nprint(check_meet(meet, chance))",
        ),
        ("check_sums(3, [4])", ["check_sums"], "# your answer\n\n\nprint(check_sums(..., ...))"),
        (
            "check.mask(m)\nprint(check_far(m), 7)",
            ["check.mask(m)"],
            "m = ...\n\n\ndisplay(check.mask(m))\nprint(check_far(m))",
        ),
    ],
)
def test_a_stub_for_a_check_of_the_chapter_leaves_the_answer_open(solution, words, expected):
    assert live_cells.stub(solution, words, []) == expected


def test_there_is_no_stub_where_nothing_is_asked():
    assert live_cells.stub("x = 1\nprint(x)", ["x"], []) is None


def test_a_policy_allows_the_scripts_of_the_page_and_nothing_else():
    page = "<head></head><script>one()</script><script src='a.js'></script>"
    policy = live_policy.policy(page, ["https://example.org/"])
    digest = base64.b64encode(hashlib.sha256(b"one()").digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "worker-src 'none'" in policy
    assert "example.org" not in policy
    with_cells = live_policy.policy(page + "<script src='live/live.js'>", ["https://example.org/"])
    assert "connect-src 'self' blob: https://example.org/;" in with_cells
    assert "'unsafe-eval'" not in with_cells


def test_a_policy_is_written_once(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<html><head><script>one()</script></head></html>", encoding="utf8")
    live_policy.write_policies([path], [])
    first = path.read_text("utf8")
    live_policy.write_policies([path], [])
    assert path.read_text("utf8") == first
    assert first.count("Content-Security-Policy") == 1


# The page's Python, as far as it runs here


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """The module that runs cells, and a package on the path that writes down what it runs."""
    monkeypatch.setenv("MPLBACKEND", "agg")  # which the module sets, and this puts back
    (tmp_path / "waiting").mkdir()
    for name in ("__init__", "drawing"):
        (tmp_path / "waiting" / f"{name}.py").write_text(f"ran = '{name}'\n", encoding="utf8")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield load(LIVE / "kernel.py")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_late_module_runs_when_it_is_asked_for_something(kernel):
    outer, told = kernel.Late("waiting"), []
    inner = kernel.Late("waiting.drawing", lambda: told.append("loaded"), given=3)
    names = {}
    exec("from waiting import drawing as one\nimport waiting.drawing as two", names)
    assert names["one"] is names["two"] is inner
    assert (inner.given, told) == (3, [])
    assert isinstance(outer, kernel.Late)
    assert (inner.ran, told) == ("drawing", ["loaded"])
    assert outer.ran == "__init__"
    assert outer.drawing is inner is sys.modules["waiting.drawing"]
    with pytest.raises(AttributeError, match="missing"):
        inner.missing


def test_a_late_module_that_is_not_there_says_so(kernel):
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        kernel.Late("no_such_package").anything


# What is vendored


def test_pyodide_is_pinned_by_version_place_and_digest():
    pinned = gather.PINNED
    assert pinned["place"].startswith("https://")
    assert pinned["place"].endswith(f"/v{pinned['version']}/full/")
    assert all(re.fullmatch("[0-9a-f]{64}", file["sha256"]) for file in pinned["files"].values())


def test_the_editor_is_what_its_package_file_says():
    folder = LIVE / "codemirror"
    package = json.loads((folder / "package.json").read_text("utf8"))
    lock = json.loads((folder / "package-lock.json").read_text("utf8"))["packages"]
    wanted = package["dependencies"] | package["devDependencies"]
    assert {name: lock[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    digest = hashlib.sha256((folder / "codemirror.js").read_bytes()).hexdigest()
    assert digest == package["config"]["sha256"]
    assert "MIT License" in (folder / "LICENSE").read_text("utf8")


@pytest.mark.weekly
def test_the_editor_can_be_bundled_again(tmp_path):
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    for name in ("package.json", "package-lock.json", "entry.js"):
        shutil.copyfile(LIVE / "codemirror" / name, tmp_path / name)
    if subprocess.run([shutil.which("npm"), "ci", "--silent"], cwd=tmp_path).returncode:
        pytest.skip("npm reaches no registry")
    subprocess.run([shutil.which("npm"), "run", "--silent", "build"], cwd=tmp_path, check=True)
    built = (tmp_path / "codemirror.js").read_bytes()
    assert built == (LIVE / "codemirror" / "codemirror.js").read_bytes()


def test_a_file_with_another_digest_is_not_kept(tmp_path):
    with pytest.raises(ValueError, match=r"pyodide.mjs must have the SHA-256"):
        gather.keep(tmp_path / "pyodide.mjs", b"another")
    assert list(tmp_path.iterdir()) == []


# The extension


@pytest.fixture(scope="module")
def live():
    pytest.importorskip("sphinx")
    return load(EXTENSIONS / "live.py")


def test_a_wheel_holds_the_package_and_has_the_same_bytes_each_time(live, tmp_path):
    for name in ("attnbook", "array-api-compat"):
        wheels = [live.write_wheel(name, ROOT, tmp_path) for _ in range(2)]
        first, second = (path.read_bytes() for path in wheels)
        assert first == second
        with zipfile.ZipFile(wheels[0]) as wheel:
            inside = wheel.namelist()
        assert f"{name.replace('-', '_')}/__init__.py" in inside
        assert not [path for path in inside if "__pycache__" in path or path.startswith((".", "/"))]
        assert any(path.endswith(".dist-info/METADATA") for path in inside)
        if name == "attnbook":
            assert "attnbook/models/writer.npz" in inside


def test_the_data_of_a_page_are_what_its_cells_name(live, tmp_path):
    for name in ("decode.cpu.json", "long_cache.npz", "train.cpu.json"):
        (tmp_path / name).touch()
    sources = ['record_path("decode.cpu.json")', "decode = 1"]
    assert live.data_of(sources, tmp_path) == ["decode.cpu.json"]
    sources = ['record_path(f"{name}.cpu.json")', 'record("train")']
    assert live.data_of(sources, tmp_path) == ["train.cpu.json"]
    assert live.data_of(['"decode"'], tmp_path) == []


def test_a_folder_of_pyodide_with_a_wrong_file_is_refused(live, tmp_path):
    from sphinx.errors import ExtensionError

    files = {"a.mjs": {"bytes": 1, "sha256": hashlib.sha256(b"right").hexdigest()}}
    with pytest.raises(ExtensionError, match=r"a\.mjs is missing"):
        live.copy_checked(files, tmp_path, tmp_path / "to")
    (tmp_path / "a.mjs").write_bytes(b"wrong")
    with pytest.raises(ExtensionError, match=r"a\.mjs must be that of"):
        live.copy_checked(files, tmp_path, tmp_path / "to")
    (tmp_path / "a.mjs").write_bytes(b"right")
    live.copy_checked(files, tmp_path, tmp_path / "to")
    assert (tmp_path / "to" / "a.mjs").read_bytes() == b"right"


def test_every_stub_is_python(live):
    """The stubs of all solutions that a chapter's text could ask for."""
    for path in (ROOT / "book").glob("*.md"):
        for source in re.findall(
            r"```\{code-cell\} ipython3\n(.*?)```", path.read_text("utf8"), re.S
        ):
            code = re.sub(r"^(---\n.*?---\n|:tags:.*\n)", "", source, flags=re.S | re.M)
            try:
                names = [n.name for n in ast.parse(code).body if hasattr(n, "name")]
            except SyntaxError:
                continue
            text = live_cells.stub(code, names, [])
            if text is not None:
                ast.parse(text)
