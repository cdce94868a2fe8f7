"""Where measurements and arrays lie: those that the chapters show, and those of the package."""

import io
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_choice

INSTALLED = Path(str(resources.files("attnbook.data"))) / "records"
IN_REPOSITORY = Path(__file__).parents[2] / "book" / "data"


def record_path(name: str) -> Path:
    """Return the path of a file that the chapters read: a measurement, or arrays of a model.

    A measurement is a JSON file that the benchmarks of the repository wrote. It names the device,
    the versions, the commit and the date. Arrays are in NumPy's ``.npz``.

    Parameters
    ----------
    name : str
        Such as ``"exact.cpu.json"``: what was measured, and the kind of device.

    Returns
    -------
    pathlib.Path
        In the package where it is installed, in the folder ``book/data`` of a checkout.

    Raises
    ------
    ValueError
        If there is no such record. The message names all.

    Examples
    --------
    >>> import json
    >>> from attnbook.data import record_path
    >>> record = json.loads(record_path("exact.cpu.json").read_text("utf8"))
    >>> record["provenance"]["device"]["kind"]
    'cpu'
    """
    folder = record_folder()
    names = sorted(path.name for path in folder.glob("*") if path.suffix in (".json", ".npz"))
    return folder / check_choice("name", name, names)


def record_folder() -> Path:
    """Return the folder of the records."""
    return INSTALLED if INSTALLED.is_dir() else IN_REPOSITORY


def packed(package: str, name: str) -> Any:
    """Open an ``.npz`` file that a package carries; each array is read when it is asked for."""
    stored = resources.files(package).joinpath(name).read_bytes()
    return np.load(io.BytesIO(stored), allow_pickle=False)
