"""The header of a safetensors file, with NumPy alone, and what a file is that has none."""

import json
import math
from typing import Any

import numpy as np

FOREIGN = {
    b"PK\x03\x04": "a ZIP archive, such as torch.save (a .bin, .pt or .pth file) or numpy.savez "
    "writes",
    b"\x80": "a pickle, as old .bin and .pt files are, which can run any code when it is read",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"GGUF": "a GGUF file",
    b"version https://git-lfs": "a Git LFS pointer in the place of the file, which git lfs pull "
    "fetches",
    b"<": "a page of HTML or XML, as a server sends where a file is not found",
}
"""How other files begin, to say what was found."""


def header_of(data: "np.ndarray | bytes") -> tuple[dict[str, Any], dict[str, str], int]:
    """Return the entry of each array, the metadata, and where the numbers begin.

    Raises ValueError that says what the bytes are, if they are no whole file of safetensors: the
    arrays must lie within it.
    """
    if not len(data):
        raise ValueError("an empty file")
    start = bytes(data[:64])
    length = int.from_bytes(start[:8], "little")
    # a file begins with the length of its header, which may look like anything, and then "{"
    if start[8:9] != b"{":
        for beginning, found in FOREIGN.items():
            if start.startswith(beginning):
                raise ValueError(found)
    if len(data) < 8 + length:
        if start.lstrip().startswith(b"{"):
            raise ValueError(_what_json(bytes(data)))
        raise ValueError(
            f"{len(data)} bytes that are no safetensors file, or the beginning of a longer one"
        )
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        metadata = {str(name): str(value) for name, value in metadata.items()}
        for name, entry in header.items():
            _check_entry(name, len(data) - 8 - length, **entry)
    except (TypeError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeError) as error:
        raise ValueError(f"a file whose header cannot be read: {error}") from error
    return header, metadata, 8 + length


def _check_entry(name, n_bytes, dtype, shape, data_offsets):
    first, last = data_offsets
    if not isinstance(dtype, str):
        raise ValueError(f"{name!r} of dtype {dtype!r}")
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"{name!r} of shape {shape}")
    if any(not isinstance(x, int) for x in (first, last)) or not 0 <= first <= last <= n_bytes:
        raise ValueError(f"{name!r} at {first} to {last} of {n_bytes} bytes")
    bits = dtype.removeprefix("BF").lstrip("BCFIU").split("_")[0]
    bits = "8" if dtype == "BOOL" else bits
    if bits.isdecimal() and math.prod(shape) * int(bits) != 8 * (last - first):
        raise ValueError(f"{name!r} of shape {shape} and dtype {dtype} in {last - first} bytes")


def _what_json(data):
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return f"{len(data)} bytes that are no safetensors file"
    shards = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(shards, dict):
        return "a text of JSON"
    files = sorted({str(file) for file in shards.values()})
    shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    return f"an index of shards, whose arrays are in {shown or 'no file'}"
