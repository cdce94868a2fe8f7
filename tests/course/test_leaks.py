"""An answer sees attnbook and Python alone, whatever way attnbook is installed and whoever grades.

Each place holds a repository, or an environment with the package in it, and beside the package what
an answer must not see. The answer tries to read it in many ways; where nothing is locked, each way
works.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from attacks import FILES, FOLDERS
from cases import every_day

import attnbook
import course

PACKAGE, COURSE = (Path(each.__file__).parent for each in (attnbook, course))
NOBODY = 65534
SECRETS = ("course-secret.txt", "submitted/ada/weights.py", "tests/answers.py", "neighbour.py")

ASKED = """
import json, sys
sys.path.append({tests!r})
from attacks import found, modules
import attnbook
from course.exercises import Exercise
from course.parents import parents
from course.session import Limits, Session

files, folders, names, source = json.loads(sys.stdin.read())
told = {{"file": attnbook.__file__, "kept": [], "open": found(files, folders)}}
for name, uses in (("numbers", []), ("package", ["MultiHeadWeights", "data.record_path"])):
    asked = ["found", "modules", "held"]
    exercise = Exercise("", "spy", "", "", 5, "", asked, "", given="import math", uses=uses)
    with parents() as start, Session(exercise, source, Limits(30, 2048), start) as session:
        asked = session.answers()
        held = asked["held"]()
        told[name] = [asked["found"](files, folders), asked["modules"](names), held]
        told["kept"] = session.kept
print(json.dumps(told))
"""


def interpreter(user):
    """Return a Python of this version that a user can run."""
    for path in (sys._base_executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        words = [path, "-c", "import sys; print(sys.version_info[:2])"]
        try:
            done = subprocess.run(words, user=user, capture_output=True, text=True)
        except OSError:
            continue
        if done.stdout.strip() == str(sys.version_info[:2]):
            return path
    return pytest.skip("there is no Python of this version that another user can run")


def plant(folder):
    """Put beside the package what nobody may read, and return it."""
    for name in SECRETS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("words = 1\n" * 9)
    return [str(folder / name) for name in SECRETS]


def environment(home, python):
    """Make an environment with NumPy and array-api-compat, and return its folder of packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(home / "env")], check=True)
    (site,) = (home / "env").glob("lib/python*/site-packages")
    for name in ("numpy", "numpy.libs", "array_api_compat"):
        place = Path(np.__file__).parents[1] / name
        if place.exists():
            (site / name).symlink_to(place)
    return site


def user_of(name):
    """Return the number of the user who grades."""
    if not sys.platform.startswith("linux"):
        pytest.skip("Linux alone locks files")
    if name == "own":
        return os.geteuid()
    if os.geteuid():
        pytest.skip("root alone can become another user")
    return NOBODY


@pytest.fixture(scope="module")
def home():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


OFTEN = [("editable", "own"), ("wheel", "another")]
EVERY = [(way, user) for way in ("editable", "wheel", "path") for user in ("own", "another")]


@pytest.fixture(scope="module", params=every_day(OFTEN, EVERY), ids="-".join)
def told(request, home):
    """Return what an answer could read, and what it tried, by the kind of exercise."""
    way, name = request.param
    user = user_of(name)
    place = home / f"{way}-{name}"
    place.mkdir()
    site = environment(place, interpreter(user))
    root = site if way == "wheel" else place / "clone"
    # a wheel holds the files of the package, and pip copies them into the folder of packages
    grader = (place if way == "wheel" else root) / "course"
    for folder, copy in ((PACKAGE, root / "attnbook"), (COURSE, grader)):
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    if way == "editable":
        (site / "_editable.pth").write_text(f"{root}\n")
    files = [*plant(root), *plant(place)]
    files += [f"{grader}/families.py", f"{root}/attnbook/check/__init__.py"]
    files += [str(site / "pytest.py"), "/etc/passwd"]
    (site / "pytest.py").write_text("words = 1\n")
    files += [f"/proc/{process}/{name}" for process in ("self", os.getpid(), 1)
              for name in ("environ", "cmdline", "maps")]  # fmt: skip
    folders = [str(place), str(root), str(site), str(grader), "/", "/tmp", "/proc"]
    names = ["course.variants", "attnbook.check.engine.run", "neighbour", "tests.answers"]
    tests = Path(__file__).parent
    script = ASKED.format(tests=str(tests))
    source = (tests / "attacks.py").read_text()
    own = {"PYTHONPATH": str(root)} if way == "path" else {}
    for folder in (place, *place.rglob("*")):
        if not folder.is_symlink():
            os.chmod(folder, 0o777)
    done = subprocess.run(
        [f"{place}/env/bin/python", "-c", script],
        input=json.dumps([files, folders, names, source]),
        env={"PATH": "", "SECRET": "s", "OPENBLAS_NUM_THREADS": "1", **own},
        user=user,
        cwd=place,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    told = json.loads(done.stdout)
    if "files" not in told["kept"]:
        pytest.skip("this system has no Landlock")
    assert Path(told["file"]).parent == root / "attnbook"
    return told


def test_each_way_works_where_nothing_is_locked(told):
    ways = {way for way, path in told["open"]}
    assert ways >= {*FILES, *FOLDERS} - {"np.load", "zip"}


@pytest.mark.parametrize("exercise", ["numbers", "package"])
def test_an_answer_reads_nothing_beside_the_package(exercise, told):
    read, imported, (names, kinds) = told[exercise]
    assert read == []
    assert imported == []
    assert {*names} <= {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LC_CTYPE"}
    assert kinds == ["device", "pipe"]
