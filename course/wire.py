"""Messages between the judge and a worker: numbers, texts, arrays, lists, and references.

A message is a JSON text and the bytes of its arrays. Nothing that is read is ever executed, so
that the judge can read what a submission writes. This file and those that it imports need NumPy and
the standard library alone: a worker imports them where there is no attnbook.
"""

import contextlib
import dataclasses
import json
import math
import os
import select
import struct
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LARGEST = 2**23, 2**27
"""Bytes of the longest text and of the most arrays of a message that is read."""

LARGEST_IN_ALL = 2**29
"""Bytes of all messages together that are read from one side."""

KINDS = "biufc"
"""The kinds of arrays that travel: booleans, integers, floats, complex numbers."""

HEAD = struct.Struct("<QQ")


class Ended(Exception):  # noqa: N818
    """The other side is gone, or has sent what is no message."""


class Reference(NamedTuple):
    """Something that stays on the side that owns it, by its number there."""

    number: int
    about: dict[str, Any]


def taken_apart(value: Any) -> dict[str, Any] | None:
    """Return what weights, states and generators are made of; None of anything else."""
    if type(value) is np.random.Generator:
        return {"class": "Generator", "fields": {"state": value.bit_generator.state}}
    if isinstance(value, np.dtype):
        return {"class": "dtype", "fields": {"name": value.str}}
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("attnbook."):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {"class": type(value).__name__, "fields": {n: getattr(value, n) for n in names}}
    return None


def put_together(about: dict[str, Any], package: types.ModuleType) -> Any:
    """Return the object of these fields, of a class that the package shows, which checks them.

    Raises
    ------
    TypeError, ValueError
        If there is no such class, or the fields do not fit.
    """
    name, fields = about["class"], about["fields"]
    if name == "Generator":
        made = np.random.Generator(np.random.PCG64())
        made.bit_generator.state = fields["state"]
        return made
    if name == "dtype":
        return np.dtype(str(fields["name"]))
    for room in (package, package.positions):
        kind = getattr(room, name) if name in room.__all__ else None
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind(**fields)
    raise ValueError(f"{name} is not passed")


def pack(value: Any, refer: Callable[[Any], Reference]) -> bytes:
    """Return `value` as a message; what cannot travel becomes what `refer` makes of it."""
    blobs: list[bytes] = []

    def plain(x: Any) -> Any:
        if x is None or type(x) in (bool, str):
            return x
        if type(x) is int:
            return x if abs(x) < 2**53 else {"int": str(x) if abs(x) < 2**4096 else "0"}
        if type(x) is float:
            return x if math.isfinite(x) else {"float": repr(x)}
        if type(x) in (list, tuple):
            return {type(x).__name__: [plain(part) for part in x]}
        if type(x) is dict:
            return {"dict": [[plain(key), plain(part)] for key, part in x.items()]}
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in KINDS:
            array = np.ascontiguousarray(x)
            blobs.append(array.tobytes())
            scalar = isinstance(x, np.generic)
            return {"array": [array.dtype.str, list(x.shape), scalar]}
        if type(x) is complex:
            return plain(np.complex128(x))
        reference = refer(x)
        return {"reference": [reference.number, plain(reference.about)]}

    text = json.dumps(plain(value)).encode()
    blob = b"".join(blobs)
    return HEAD.pack(len(text), len(blob)) + text + blob


def unpack(text: bytes, blob: bytes, known: Callable[[Reference], Any]) -> Any:
    """Return the value of a message; a reference becomes what `known` makes of it.

    Raises
    ------
    Ended
        If it is no message of this kind.
    """
    at = 0

    def full(x: Any) -> Any:
        nonlocal at
        if x is None or type(x) in (bool, str, int, float):
            return x
        ((kind, inner),) = x.items()
        if kind == "int":
            return int(inner)
        if kind == "float":
            return float(inner)
        if kind in ("list", "tuple"):
            parts = [full(part) for part in inner]
            return parts if kind == "list" else tuple(parts)
        if kind == "dict":
            return {full(key): full(part) for key, part in inner}
        if kind == "reference":
            return known(Reference(int(inner[0]), full(inner[1])))
        dtype, shape, scalar = np.dtype(inner[0]), tuple(map(int, inner[1])), inner[2]
        if kind != "array" or dtype.kind not in KINDS or any(n < 0 for n in shape):
            raise ValueError(kind)
        size = math.prod(shape) * dtype.itemsize
        if at + size > len(blob):
            raise ValueError("too short")
        array = np.frombuffer(blob, dtype, math.prod(shape), at).reshape(shape).copy()
        at += size
        return array[()] if scalar else array

    try:
        return full(json.loads(text))
    except Exception as error:  # `np.dtype` has many
        raise Ended(f"it sends what is no message: {error}") from None


class Line:
    """A pair of file descriptors over which messages go."""

    def __init__(self, reading: int, writing: int):
        self.reading, self.writing = reading, writing
        self.received = 0

    def close(self) -> None:
        for end in {self.reading, self.writing}:
            os.close(end)

    def send(self, message: bytes, watch: Callable[[], None] | None = None) -> None:
        """Send a message; `watch` is called with each wait for the other side to read."""
        rest = memoryview(message)
        if watch is not None:
            os.set_blocking(self.writing, False)
        try:
            while rest:
                self._wait(watch, [], [self.writing])
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(self.writing, rest[: 2**20]) :]
        except OSError:
            raise Ended("it is gone") from None

    def receive(self, watch: Callable[[], None] | None = None) -> tuple[bytes, bytes]:
        """Return the two parts of the next message; `watch` is called with each wait for some."""
        head = self._read(HEAD.size, watch)
        lengths = HEAD.unpack(head)
        self.received += sum(lengths)
        too_long = any(length > most for length, most in zip(lengths, LARGEST, strict=True))
        if too_long or self.received > LARGEST_IN_ALL:
            raise Ended("it sends too much")
        return self._read(lengths[0], watch), self._read(lengths[1], watch)

    def _read(self, count: int, watch: Callable[[], None] | None) -> bytes:
        parts = []
        while count:
            self._wait(watch, [self.reading], [])
            try:
                part = os.read(self.reading, min(count, 2**20))
            except BlockingIOError:
                continue
            if not part:
                raise Ended("it is gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait(
        self, watch: Callable[[], None] | None, reading: list[int], writing: list[int]
    ) -> None:
        """Wait until there is something to read, or room to write; a worker needs no watch."""
        while watch is not None:
            ready = select.select(reading, writing, [], 0.25)
            watch()
            if any(ready):
                return
