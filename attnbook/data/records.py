"""Where measurements and arrays lie: those that the chapters show, and those of the package."""

import io
from collections.abc import Mapping
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


def measured_on(record: Mapping[str, Any]) -> str:
    """Return where, when and with what a record was measured, in three lines.

    The last line has what its environment set for the libraries: how many threads, which
    instructions.

    Parameters
    ----------
    record : mapping
        What a file of `record_path` holds.

    Returns
    -------
    str

    Examples
    --------
    >>> from attnbook.data import measured_on
    >>> place = {"device": {"name": "AMD EPYC"}, "cpu": {"cores": 2}, "commit": "8b763a593c"}
    >>> place |= {"date": "2026-11-21T16:57:39+00:00", "versions": {"numpy": "2.4.6"}}
    >>> place |= {"blas": [{"name": "openblas", "core_type": "SkylakeX"}], "settings": {}}
    >>> print(measured_on({"provenance": place}))
    measured on AMD EPYC, 2 cores, 2026-11-21, commit 8b763a59
    NumPy 2.4.6, products by openblas (SkylakeX)
    settings: none
    """
    place = record["provenance"]
    who = place["device"]["name"]
    blas = (f"{x['name']} ({x['core_type'] or 'core type unknown'})" for x in place["blas"])
    found = place["versions"]
    libraries = (("NumPy", found.get("numpy")), ("PyTorch", found.get("torch")))
    versions = [f"{library} {version}" for library, version in libraries if version]
    return (
        f"measured on {who}, {place['cpu']['cores']} cores, {place['date'][:10]}, "
        f"commit {place['commit'][:8]}\n"
        f"{', '.join(versions)}, products by {', '.join(dict.fromkeys(blas))}\n"
        f"settings: {settings(record)}"
    )


def settings(record: Mapping[str, Any]) -> str:
    """Return what the environment set for the libraries of a record, or "none"."""
    given = record["provenance"]["settings"].items()
    return ", ".join(f"{name}={value}" for name, value in given) or "none"


def packed(package: str, name: str) -> Any:
    """Open an ``.npz`` file that a package carries; each array is read when it is asked for."""
    stored = resources.files(package).joinpath(name).read_bytes()
    return np.load(io.BytesIO(stored), allow_pickle=False)
