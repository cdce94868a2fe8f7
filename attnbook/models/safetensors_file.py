"""Reading safetensors, the format of most published weights, with NumPy alone."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_path
from attnbook.arrays.safetensors_header import header_of

DTYPES = {
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "<u2", "I16": "<i2", "BF16": "<u2"},
    **{"U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"},
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"},
}
"""The dtypes of the format, in NumPy; bfloat16 is the upper half of a float32."""


def read_safetensors(path: "str | os.PathLike") -> Mapping[str, np.ndarray]:
    """Return the arrays of a safetensors file by name.

    The file consists of a number in 8 bytes, a JSON header of that many bytes, which gives the
    name, dtype, shape and location of each array, and the entries of all arrays. It holds no code.

    Parameters
    ----------
    path : str or path

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
        If there is no such file.
    ValueError
        If the file is damaged or has another format. The message names that format, for example an
        index of shards, a Git LFS pointer, or a ``.bin`` of PyTorch.

    References
    ----------
    https://huggingface.co/docs/safetensors
    """
    path = check_path("path", path)
    n = path.stat().st_size
    stored = np.asarray(np.memmap(path, np.uint8, "r")) if n else np.empty(0, np.uint8)
    try:
        header, _, start = header_of(stored)
    except ValueError as error:
        message = f"{path} must be a whole file of safetensors, got {error}"
        raise ValueError(message) from error
    return _Stored(path, header, stored[start:])


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
