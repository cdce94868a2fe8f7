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
    the versions, the commit and the date. Arrays are stored as NumPy's ``.npz``.

    Parameters
    ----------
    name : str
        What was measured and the kind of device, for example ``"exact.cpu.json"``.

    Returns
    -------
    pathlib.Path
        A path in the installed package or, in a checkout, in the folder ``book/data``.

    Raises
    ------
    ValueError
        If there is no such record. The message lists all records.

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
    """Return, in several lines, where, when and with what a record was measured.

    The lines name the processor, the libraries and the kernels that they chose, the settings of the
    environment (how many threads, which instructions), the load of the machine just before, and the
    tables that were measured again later.

    Parameters
    ----------
    record : mapping
        The content of a file of `record_path`.

    Returns
    -------
    str

    Raises
    ------
    KeyError
        If `record` does not say where it was measured.

    Examples
    --------
    >>> from attnbook.data import measured_on
    >>> cpu = {"name": "AMD EPYC", "cpu_family": "25", "model": "17", "cores": 2}
    >>> place = {"device": {"kind": "cpu"}, "cpu": cpu, "commit": "8b763a593c"}
    >>> place |= {"date": "2026-11-21T16:57:39+00:00", "versions": {"numpy": "2.4.6"}}
    >>> place |= {"load_average": [0.25, 0.5, 0.5]}
    >>> place |= {"blas": [{"name": "openblas", "core_type": "SkylakeX"}], "settings": {}}
    >>> print(measured_on({"provenance": place}))
    measured on AMD EPYC, family 25, model 17, 2 cores, 2026-11-21, commit 8b763a593c
    NumPy 2.4.6, products by openblas (SkylakeX)
    settings: none; load at the start: 0.2
    """
    place = record["provenance"]
    who = processor(place) if place["device"]["kind"] == "cpu" else place["device"]["name"]
    blas = (f"{x['name']} ({chosen_code(x)})" for x in place["blas"])
    load = place.get("load_average")
    found = place["versions"]
    libraries = (("NumPy", found.get("numpy")), ("PyTorch", found.get("torch")))
    versions = [f"{library} {version}" for library, version in libraries if version]
    return (
        f"measured on {who}, {place['cpu']['cores']} cores, {place['date'][:10]}, "
        f"commit {place['commit'][:10]}\n"
        f"{', '.join(versions)}, products by {', '.join(dict.fromkeys(blas))}\n"
        f"settings: {settings(record)}"
        + (f"; load at the start: {load[0]:.1f}" if load else "")
        + "".join(f"\n{line}" for line in later(record))
    )


def processor(place: Mapping[str, Any]) -> str:
    """Return the name of a record's processor, with the numbers of its family and its model."""
    cpu = place["cpu"]
    family = f", family {cpu['cpu_family']}, model {cpu['model']}" if "cpu_family" in cpu else ""
    return cpu["name"] + family


def chosen_code(blas: Mapping[str, Any]) -> str:
    """Return the code that a library chose; PyTorch tells this of its own loops, not of MKL's."""
    code = blas["core_type"] or "core type unknown"
    return f"PyTorch's loops: {code}" if blas.get("seen_by") == "torch.backends" else code


def later(record: Mapping[str, Any]) -> list[str]:
    """Return which tables of a record were measured again, when, and at which commits."""
    place, found = record["provenance"], dict[str, list[str]]()
    for name, one in record.get("measured", {}).items():
        cpu = one.get("cpu", place["cpu"])
        when = one["date"][:10], one["commit"], cpu
        if when != (place["date"][:10], place["commit"], place["cpu"]):  # else of several calls
            line = f"again {one['date'][:10]}, commit {commit_of(one)}"
            line += ", on another processor" if cpu != place["cpu"] else ""
            found.setdefault(line, []).append(name)
    return [f"table{'s' * (len(x) > 1)} {', '.join(x)} {line}" for line, x in found.items()]


def commit_of(place: Mapping[str, Any]) -> str:
    """Return the commit of a measurement, with the note of one that had another name then."""
    note = place.get("commit_note")
    return place["commit"][:10] + (f" ({note})" if note else "")


def settings(record: Mapping[str, Any]) -> str:
    """Return what the environment set for the libraries of a record, or "none"."""
    given = record["provenance"]["settings"].items()
    return ", ".join(f"{name}={value}" for name, value in given) or "none"


def packed(package: str, name: str) -> Any:
    """Open an ``.npz`` file that a package carries; each array is read when it is asked for."""
    stored = resources.files(package).joinpath(name).read_bytes()
    return np.load(io.BytesIO(stored), allow_pickle=False)
