"""The process in which a submission runs: it is given arguments and hands back results.

It never holds an expected result, a case before it is called with it, or the mark. It is forked
from a parent, which is started as ``python -I -S`` with a folder on its path in which NumPy lies
and attnbook does not. Where an exercise uses functions of attnbook, these alone are at hand, by
their public names.
"""

import contextlib
import importlib
import inspect
import linecache
import os
import signal
import socket
import sys
import sysconfig
import time
import traceback
import types
from typing import Any

import limits
import numpy as np
import standins
import wire
from standins import FILE

PLACES = ("stdlib", "platstdlib", "purelib", "platlib")
"""Python's names of the folders of its own library and of packages."""

GRADER = os.path.dirname(__file__)
CHECKS = "check"
"""What no answer may read: this folder, and of attnbook the room that nothing else of it needs."""


def real(uses: list[str]) -> dict[str, Any]:
    """Return what `uses` names of the package itself; of a path, what the first object of it is."""
    found = {}
    for use in uses:
        thing: Any = importlib.import_module("attnbook")
        path: list[str] = []
        for part in use.split("."):
            path.append(part)
            try:
                thing = getattr(thing, part)
            except AttributeError:
                thing = importlib.import_module(f"attnbook.{'.'.join(path)}")
            if not isinstance(thing, types.ModuleType):
                break
        found[".".join(path)] = thing
    return found


class Worker:
    """One submission and what it has handed over."""

    def __init__(self, line: wire.Line, about: dict[str, Any]):
        self.line, self.about = line, about
        self.objects: list[Any] = []

    def run(self, space: dict[str, Any], found: dict[str, Any]) -> None:
        job, about = self._receive(), self.about
        stand_in = standins.StandIn(found | job["functions"])
        modules = stand_in.modules
        if not about["real"]:
            exec(compile(job["given"], "<given>", "exec"), space)
        for key, value in space.items():
            if isinstance(value, types.ModuleType) and value.__name__ in modules:
                space[key] = modules[value.__name__]
        library = [path for path in sys.path if path not in about["packages"]]
        sys.path[:] = [path for path in library if path != GRADER]
        for name in ("limits", "standins", "wire"):
            del sys.modules[name]
        kept = limits.step_down(about["readable"])
        kept += limits.limit(job["seconds"], job["megabytes"])
        kept += limits.lock(about["readable"])
        self._send({"kept": kept})
        source = job["source"]
        linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)
        error = stand_in.execute(source, space)
        absent = [name for name in job["names"] if name not in space]
        self.objects = [space.get(name) for name in job["names"]]
        self._send({"absent": absent, **(raised(error) if error else {})})
        while True:
            self._serve(self._receive())

    def _receive(self) -> Any:
        return wire.unpack(*self.line.receive(), self._known)

    def _send(self, value: Any) -> None:
        self.line.send(wire.pack(value, self._refer))

    def _refer(self, value: Any) -> wire.Reference:
        if (about := wire.taken_apart(value)) is not None:
            return wire.Reference(-1, about)
        self.objects.append(value)
        return wire.Reference(len(self.objects) - 1, describe(value))

    def _known(self, reference: wire.Reference) -> Any:
        if reference.number < 0:
            return wire.put_together(reference.about, sys.modules["attnbook"])
        if reference.about.get("side") != "judge":
            return self.objects[reference.number]

        def function(*given: Any, **options: Any) -> Any:
            self._send({"call": reference.number, "given": given, "options": options})
            while True:
                message = self._receive()
                if "result" in message:
                    return message["result"]
                if "raised" in message:
                    raise ValueError(message["raised"])
                self._serve(message)

        return function

    def _serve(self, message: Any) -> None:
        """Do what the judge asks for: hand over a name, or a part of an object, or call it."""
        try:
            with np.errstate(all="ignore"):
                found = self.objects[message["number"]]
                if "part" in message:
                    found = getattr(found, message["part"])
                if "given" in message:
                    found = found(*message["given"], **message["options"])
            answer = wire.pack({"result": found}, self._refer)
        except BaseException as error:
            answer = wire.pack(raised(error), self._refer)
        self.line.send(answer)


def raised(error: BaseException) -> dict[str, str]:
    """Return type and first line of the text of an error, and the submission's line."""
    try:
        text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    except BaseException:
        text = ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == FILE]
    place = f"at line {own[-1].lineno} of {own[-1].name}: `{own[-1].line}`" if own else ""
    if isinstance(error, SyntaxError) and error.filename == FILE:
        place = f"at line {error.lineno}: `{(error.text or '').strip()}`"
    return {"raised": type(error).__name__, "text": text[:500], "place": place[:500]}


def describe(value: Any) -> dict[str, Any]:
    """Return what the judge may know of a thing that stays here."""
    about: dict[str, Any] = {"type": type(value).__name__, "callable": callable(value)}
    with contextlib.suppress(Exception):
        about["signature"] = [
            [p.name, int(p.kind), p.default is not p.empty]
            for p in inspect.signature(value).parameters.values()
        ]
    with contextlib.suppress(Exception):
        about["parts"] = [name for name in dir(value) if not name.startswith("_")][:200]
    return about


def readable(library: str, packages: list[str]) -> list[str]:
    """Return what an answer may read: Python's library, NumPy, and the packages that are in use.

    Never a folder that holds packages, since the next one in it may be anybody's: beside attnbook
    lies a repository, with solutions, submissions and the secret.
    """
    found = {"/dev/null", "/dev/urandom"}
    for folder in map(sysconfig.get_path, PLACES[:2]):
        names = {"site-packages", "dist-packages"}
        found |= {entry.path for entry in os.scandir(folder) if entry.name not in names}
    found |= {os.path.realpath(entry.path) for entry in os.scandir(library)}
    for module in list(sys.modules.values()):
        path = str(getattr(module, "__file__", None))
        inside = [folder for folder in packages if path.startswith(os.path.join(folder, ""))]
        if inside and os.path.dirname(path) != GRADER:
            found |= places(path, max(inside, key=len))
    if "attnbook.data.records" in sys.modules:  # in a checkout they lie outside of the package
        found.add(str(sys.modules["attnbook.data.records"].record_folder()))
    return sorted(found | shared_libraries(packages))


def places(path: str, folder: str) -> set[str]:
    """Return what belongs to a module below a folder of packages; of attnbook not the checks."""
    name, *inner = os.path.relpath(path, folder).split(os.sep)
    place = os.path.join(folder, name)
    if name == "attnbook":
        return {entry.path for entry in os.scandir(place) if entry.name != CHECKS}
    if inner and not os.path.exists(os.path.join(place, "__init__.py")):  # of many packages
        return {os.path.dirname(path)}
    return {place, f"{place}.libs"}


def shared_libraries(packages: list[str]) -> set[str]:
    """Return the folders of the libraries that are loaded, which may ask for others beside them.

    Of a folder in which Python's own library or packages lie, only the shared libraries.
    """
    inner = [path for key in PLACES if (path := sysconfig.get_path(key))] + packages
    found: set[str] = set()
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if ".so" in line}
        for folder in {os.path.dirname(path) for path in mapped}:
            if any(os.path.commonpath([folder, path]) in (folder, path) for path in inner):
                own = (entry for entry in os.scandir(folder) if ".so" in entry.name)
                found |= {entry.path for entry in own if entry.is_file()}
            else:
                found.add(folder)
    return found


def main() -> None:
    """Make ready what an exercise gives, then a process for each submission that comes."""
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    about = wire.unpack(*wire.Line(control, control).receive(), str)
    space: dict[str, Any] = {"__name__": "answer"}
    found: dict[str, Any] = {}
    if about["real"]:
        exec(compile(about["given"], "<given>", "exec"), space)
        found = real(about["real"])
    about["readable"] = readable(about["library"], about["packages"])
    line = children(control, about["forks"])
    with contextlib.suppress(wire.Ended):
        Worker(line, about).run(space, found)
    os._exit(0)


def children(control: int, forks: bool) -> wire.Line:
    """Fork for each submission, and return in its process with the line to the judge."""
    child = 0
    with socket.socket(fileno=control) as judge:
        while True:
            asked, ends, *_ = socket.recv_fds(judge, 1, 2)
            if not asked:  # the judge is gone
                os._exit(0)
            if ends:
                child = os.fork() if forks else 0
                if not child:
                    wire.Line(control, control).send(wire.pack(os.getpid(), str))
                    return wire.Line(*ends)
                for end in ends:
                    os.close(end)
            else:
                wire.Line(control, control).send(wire.pack(ended(child), str))


def ended(child: int) -> int:
    """Return how a child ended, as `subprocess` says it; 0 if it goes on and must be killed."""
    for _ in range(200):  # looks, and not seconds: a machine may stand still
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 0
