"""Reading safetensors, the format of most published weights, with NumPy alone."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_path
from attnbook.arrays.safetensors_header import header_of
from attnbook.arrays.weights import some

DTYPES = {
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "<u2", "I16": "<i2", "BF16": "<u2"},
    **{"U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"},
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"},
}
"""The dtypes of the format, in NumPy; bfloat16 is the upper half of a float32."""


def read_safetensors(path: "str | os.PathLike") -> Mapping[str, np.ndarray]:
    """Return the arrays of a safetensors file, or of all shards of a large model, by name.

    The file consists of a number in 8 bytes, a JSON header of that many bytes, which gives the
    name, dtype, shape and location of each array, and the entries of all arrays. It holds no code.
    A large model is split into several such files, the shards. An index, which is a file of JSON,
    says which shard holds each array.

    Parameters
    ----------
    path : str or path
        A file of safetensors, or an index of shards, whose name ends in ``.json``, such as
        ``model.safetensors.index.json``. The shards must be in the folder of the index.

    Returns
    -------
    mapping of str to array
        The arrays are read-only and memory-mapped, so only what you use is read. bfloat16 becomes
        float32, which holds each of its numbers exactly. Looking up an array whose dtype NumPy
        lacks, such as FP8 (F8_E4M3, F8_E5M2), raises a ValueError, but all others still work.

    Raises
    ------
    TypeError
        If `path` is neither a str nor a path.
    FileNotFoundError
        If there is no such file, or a shard is missing.
    ValueError
        If the file is damaged or has another format. The message names that format, for example a
        Git LFS pointer, or a ``.bin`` of PyTorch. Also if an index names an array that its shard
        does not hold, or a file outside its folder.

    References
    ----------
    https://huggingface.co/docs/safetensors
    """
    path = check_path("path", path)
    return _shards(path) if path.suffix == ".json" else _stored(path)


def _stored(path):
    n = path.stat().st_size
    stored = np.asarray(np.memmap(path, np.uint8, "r")) if n else np.empty(0, np.uint8)
    try:
        header, _, start = header_of(stored)
    except ValueError as error:
        message = f"{path} must be a whole file of safetensors, got {error}"
        raise ValueError(message) from error
    return _Stored(path, header, stored[start:])


def _shards(path):
    homes = _index(path)
    files = sorted(set(homes.values()))
    missing = [file for file in files if not (path.parent / file).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{path.parent} must hold the {len(files)} shards that {path.name} names, "
            f"got {some(missing)} missing"
        )
    shards = {file: _stored(path.parent / file) for file in files}
    absent = [name for name, file in homes.items() if name not in shards[file]]
    if absent:
        raise ValueError(
            f"{path} must name the shard of each array, got {some(absent)} not in the named shard"
        )
    return _Shards(path, {name: shards[file] for name, file in homes.items()})


def _index(path):
    """Return the file of each array, by its name."""
    try:
        index = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be an index of shards, got no JSON: {error}") from error
    homes = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(homes, dict):
        raise ValueError(f"{path} must be an index of shards with a weight_map, got other JSON")
    for name, file in homes.items():
        if not isinstance(file, str) or file in ("", ".", "..") or set(file) & set("/\\:\0"):
            raise ValueError(f"{path} must name a file of its folder for {name!r}, got {file!r}")
    return homes


class _Stored(Mapping):
    """The arrays of a file by name, each made when it is asked for."""

    def __init__(self, path: Path, header: dict[str, Any], numbers: np.ndarray):
        self._path, self._header, self._numbers = path, header, numbers

    def __len__(self) -> int:
        return len(self._header)

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)

    def __contains__(self, name: object) -> bool:
        return name in self._header

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._header[name]
        dtype, (first, last) = entry["dtype"], entry["data_offsets"]
        if dtype not in DTYPES:
            raise ValueError(
                f"{self._path} must have {name!r} in a dtype that NumPy knows "
                f"({', '.join(DTYPES)}), got {dtype}"
            )
        x = self._numbers[first:last].view(DTYPES[dtype]).reshape(entry["shape"])
        if dtype == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
            x.flags.writeable = False
        return x

    def __repr__(self) -> str:
        shapes = {name: (x["dtype"], *x["shape"]) for name, x in self._header.items()}
        return f"read_safetensors({os.fspath(self._path)!r}): {shapes}"


class _Shards(Mapping):
    """The arrays of several files by name; `homes` is the file of each."""

    def __init__(self, path: Path, homes: dict[str, _Stored]):
        self._path, self._homes = path, homes

    def __len__(self) -> int:
        return len(self._homes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __getitem__(self, name: str) -> np.ndarray:
        return self._homes[name][name]

    def __repr__(self) -> str:
        return f"read_safetensors({os.fspath(self._path)!r}): {len(self)} arrays"
