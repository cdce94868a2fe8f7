"""What a student hands in as pieces of code: programs, notebooks and archives, in any encoding.

Nothing of them is run, and nothing is unpacked onto the disk.
"""

import codecs
import functools
import io
import json
import os
import re
import stat
import tokenize
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.limits import bounded

LARGEST = 2**27
"""Bytes of the largest file that is opened, and of all that an archive holds: a notebook may be
full of pictures."""

LONGEST = 2**18
"""Letters of the longest program, or cell, that is read."""

MOST = 5000
"""Files of one student that are looked at."""

MEGABYTES = 1024
"""Memory that a notebook or an archive may take while it is read."""

CELL = "answer-"
"""What the name of a cell for an answer begins with in a notebook for nbgrader."""

ON_PAGE = "answer-exercise-"
"""What the name of a cell for an answer begins with in what a page of the book exports."""

UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What moves a cursor, and what Python has in the place of bytes that are no text."""

PART = re.compile(r"^# ?%%[ \t]*(.*?)[ \t]*$", re.M)
"""What a cell begins with in a program that is made of cells."""

MERGE = re.compile(r"^(<<<<<<<|>>>>>>>)( |$)", re.M)
"""What Git writes where it cannot merge two versions of a file."""

MARKS = (
    *((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)

PASSED_OVER = {"requirements.txt", "timestamp.txt", "thumbs.db", "desktop.ini"}
"""Files of a release, and those that nbgrader and systems write, besides Markdown and wheels."""


class Unreadable(Exception):  # noqa: N818
    """A file cannot be read: why, in words that follow its name."""


@dataclass(frozen=True)
class Piece:
    """A program, or a cell of one file.

    Attributes
    ----------
    file : str
        The name of the file, below the student's folder.
    code : str
    cell : str, optional
        The name of the cell, such as ``answer-weights``; an empty string if it has none.
    is_cell : bool
        Whether it is one of several in its file.
    """

    file: str
    code: str
    cell: str = ""
    is_cell: bool = False


@dataclass
class Pieces:
    """All that a student has handed in.

    Attributes
    ----------
    found : list of Piece
        The highest files first.
    unread : list of str
        Files that hold code and cannot be read, and why.
    others : list of str
        Files of other kinds.
    cells : dict
        The names of all cells of each notebook.
    """

    found: list[Piece] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    cells: dict[str, set[str]] = field(default_factory=dict)

    def add(self, path: Path, name: str) -> None:
        """Take in a file of the disk, or all files of a folder."""
        files = _below(path) if path.is_dir() else [path]
        for number, file in enumerate(files):
            if number == MOST:
                self.unread.append(f"{name or path.name} has more than {MOST} files.")
                return
            own = name if file == path else file.relative_to(path).as_posix()
            self._read(own, functools.partial(_bytes_of, file))

    def _read(self, name: str, read: Callable[[int], bytes], *, in_archive: bool = False) -> None:
        words, kind = in_words(name), kind_of(name)
        try:
            if kind == ".zip" and not in_archive:
                with bounded(MEGABYTES):
                    self._open(words, read(LARGEST))
            elif kind == ".ipynb":
                with bounded(MEGABYTES):
                    self._take_apart(words, read(LARGEST))
            elif kind == ".py":
                self.found += _parts(words, text_of(read(4 * LONGEST)))
            elif kind:
                self.others.append(words)
        except Unreadable as error:
            self.unread.append(f"{words} {error}.")
        except (OSError, MemoryError):
            self.unread.append(f"{words} cannot be opened.")

    def _open(self, words: str, data: bytes) -> None:
        """Take in the files of an archive, whatever their names and sizes claim to be."""
        left = LARGEST
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                inside = [one for one in archive.infolist() if _is_own(one)]
                inside.sort(key=lambda one: (one.filename.count("/"), one.filename))
                for one in inside[:MOST]:

                    def read(most: int, one: zipfile.ZipInfo = one) -> bytes:
                        nonlocal left
                        most = min(most, left)
                        with archive.open(one) as file:
                            found = file.read(most + 1)
                        left = max(0, left - len(found))
                        return _no_more(found, most)

                    self._read(f"{words}/{one.filename}", read, in_archive=True)
        except Unreadable:
            raise
        except RuntimeError:
            raise Unreadable("cannot be opened, because it has a password") from None
        except Exception:  # whatever a broken archive makes its readers raise
            raise Unreadable("cannot be opened, because it is not a complete archive") from None

    def _take_apart(self, words: str, data: bytes) -> None:
        """Take in the cells of a notebook of any format; outputs are passed over."""
        text = text_of(data)
        try:
            book = json.loads(text)
            sheets = book.get("worksheets") or [book]  # formats before 4
            cells = [cell for sheet in sheets for cell in sheet["cells"]]
            named = [(_name_of(cell), cell) for cell in cells if isinstance(cell, dict)]
            for name, cell in named:
                if cell.get("cell_type", "code") == "code":
                    source: Any = cell.get("source", cell.get("input", ""))
                    code = source if isinstance(source, str) else "".join(source)
                    self.found.append(Piece(words, _not_long(code, "a cell"), name, True))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if MERGE.search(text):
                raise Unreadable(
                    "is not a complete notebook, because it has the marks of a merge that Git did "
                    "not finish, <<<<<<< and >>>>>>>: keep one of the versions between them"
                ) from None
            raise Unreadable("is not a complete notebook") from None
        self.cells[words] = {name for name, _ in named if name}


def kind_of(name: str) -> str:
    """Return how the name of a file ends, in small letters; an empty string passes it over."""
    name = name.rpartition("/")[2].casefold()
    if name.startswith(".") or name in PASSED_OVER or name.endswith((".md", ".pyc", ".whl")):
        return ""
    if name.endswith(".py.txt"):  # a system that hides the end of a name adds one
        return ".py"
    return Path(name).suffix or name


def in_words(name: str) -> str:
    """Return a name as text that can be written and printed, whatever the system has in it."""
    return UNPRINTED.sub("\N{REPLACEMENT CHARACTER}", name)


def text_of(data: bytes) -> str:
    """Return the text of a file in the encoding that it begins with, that it names, or seems to
    have, with the line ends of Python."""
    name = next((name for mark, name in MARKS if data.startswith(mark)), "")
    if not name and b"\0" in data[:400]:
        name = "utf-16-le" if data[1:400:2].count(0) >= data[:400:2].count(0) else "utf-16-be"
    if not name:
        try:
            name = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
            data.decode(name)
        except (SyntaxError, ValueError, LookupError):
            name = "latin-1"
    text = data.decode(name, "replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parts(words: str, text: str) -> list[Piece]:
    """Return the cells of a program that a page exports, or the program."""
    text = _not_long(text, "it")
    marks = list(PART.finditer(text))
    if not any(mark[1].startswith(CELL) for mark in marks):
        return [Piece(words, text)]
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    pairs = zip(marks, ends, strict=True)
    return [Piece(words, text[m.end() + 1 : end], _usual(m[1]), True) for m, end in pairs]


def _name_of(cell: dict[str, Any]) -> str:
    """Return the name of a cell; whoever copies one copies its name."""
    about = cell.get("metadata") or {}
    name = (about.get("nbgrader") or {}).get("grade_id") or about.get("attnbook") or ""
    own = str(cell.get("id", ""))
    return _usual(str(name) or (own if own.startswith(CELL) else ""))


def _usual(name: str) -> str:
    return CELL + name.removeprefix(ON_PAGE) if name.startswith(ON_PAGE) else name


def _not_long(code: str, what: str) -> str:
    if len(code) > LONGEST:
        raise Unreadable(f"is not read, because {what} has more than {LONGEST >> 10} KB of code")
    return code


def _no_more(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise Unreadable(f"is not read, because it has more than {most >> 10} KB")
    return data


def _bytes_of(path: Path, most: int) -> bytes:
    with open(path, "rb") as file:
        return _no_more(file.read(most + 1), most)


def _below(folder: Path) -> list[Path]:
    """Return the files in a student's folder, the highest first; links are not followed."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_foreign(Path(place, name))]
        found += (Path(place, name) for name in files)
    found = [path for path in found if os.path.isfile(path) and not os.path.islink(path)]
    return sorted(found, key=lambda path: (len(path.parts), path))


def _is_foreign(folder: Path) -> bool:
    """Return whether a folder is hidden or holds packages that a student has installed."""
    is_installed = folder.name in FOREIGN or os.path.exists(folder / "pyvenv.cfg")
    return folder.name.startswith(".") or is_installed


FOREIGN = {"site-packages", "node_modules", "__pycache__", "__MACOSX"}
"""Folders of installed packages, and what systems put beside a file."""


def _is_own(one: zipfile.ZipInfo) -> bool:
    """Return whether this is a file, and in no folder that is passed over."""
    folders = one.filename.split("/")[:-1]
    is_link = stat.S_ISLNK(one.external_attr >> 16)
    hidden = (name.startswith(".") and name.strip(".") for name in folders)
    is_foreign = any(hidden) or not FOREIGN.isdisjoint(folders)
    return not one.is_dir() and not is_link and not is_foreign
