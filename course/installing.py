"""How a reader of a notebook, or of an assignment, gets the package.

While the site is built, `book/_ext/learner.py` decides what `pip` shall install, and writes that
beside the exercises in a file of requirements, with the wheel if a wheel is what is installed.
"""

import re
import shutil
from pathlib import Path

REQUIREMENTS = "requirements.txt"

CELL = """\
# The notebook needs the package of the book. If the package is missing, this cell installs {what}.
import importlib.util
from pathlib import Path

if importlib.util.find_spec("attnbook") is None:
{indented}"""

BESIDE = """\
    wheel = Path("{wheel}")
    if not wheel.exists():
        raise FileNotFoundError(f"Put {{wheel}} beside this notebook: both come from one folder.")
    %pip install --quiet "attnbook{extras} @ {{wheel.resolve().as_uri()}}\""""

ELSEWHERE = """\
    wheel, address = Path("{wheel}"), "{address}"
    if wheel.exists():
        address = wheel.resolve().as_uri()
    %pip install --quiet "attnbook{extras} @ {{address}}\""""


def first_cell(requirement: str) -> str:
    """Return the cell that installs the package, if it is missing, as a requirement says.

    Such a requirement is ``./NAME.whl[extras]``, ``attnbook[extras] @ ADDRESS``, or a name that an
    index has. If the wheel lies beside the notebook, the cell takes that one.
    """
    extras = (re.search(r"\[.*?\]", requirement) or [""])[0]
    _, _, address = requirement.partition(" @ ")
    wheel = (re.search(r"[^/]+\.whl", requirement) or [""])[0]
    if address and wheel:
        what, lines = "the wheel beside the notebook, or else the one of the site", ELSEWHERE
    elif wheel:
        what, lines = "the wheel that lies beside the notebook", BESIDE
    else:
        what, lines = "it", f'    %pip install --quiet "{requirement}"'
    indented = lines.format(wheel=wheel, address=address, extras=extras)
    return CELL.format(what=what, indented=indented)


def read(exercises: Path) -> str:
    """Return the requirement that stands beside the exercises.

    Raises
    ------
    FileNotFoundError
        If the site has not written it.
    """
    path = exercises / REQUIREMENTS
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}: run make book first")
    return path.read_text("utf8").strip()


def put(exercises: Path, folder: Path) -> None:
    """Put the file of requirements and the wheel, if there is one, into a release.

    Releases share one wheel of 15 MB on the disk if the file system has hard links.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    shutil.copyfile(exercises / REQUIREMENTS, folder / REQUIREMENTS)
    for wheel in exercises.glob("*.whl"):
        try:
            (folder / wheel.name).hardlink_to(wheel)
        except OSError:
            shutil.copyfile(wheel, folder / wheel.name)
