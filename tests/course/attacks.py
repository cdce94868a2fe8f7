"""An answer that tries in many ways to read what it must not, and says what it could."""

import contextlib
import ctypes
import glob
import importlib.machinery
import importlib.util
import io
import linecache
import mmap
import os
import pathlib
import runpy
import shutil
import stat
import sys
import tokenize
import zipfile

import numpy as np

try:  # where nothing stands in its way
    __import__("builtins").__import__ = __import__("builtins").__import__._import
    sys.meta_path[:] = [x for x in sys.meta_path if type(x).__name__ != "StandIn"]
except AttributeError:
    pass


def by_c(path):
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    if not libc.fopen(os.fsencode(path), b"r"):
        raise OSError


def in_steps(path):
    os.chdir(os.path.dirname(path))
    open(os.path.basename(path)).close()


def below(path):
    at = os.open(os.path.dirname(path), os.O_PATH)
    os.close(os.open(os.path.basename(path), os.O_RDONLY, dir_fd=at))


def linked(link, path):
    own = f"{os.getcwd()}/link-{os.getpid()}"
    link(path, own)
    try:
        open(own).close()
    finally:
        os.remove(own)


def lines(path):
    linecache.checkcache()
    if not linecache.getlines(path):
        raise OSError


def mapped(path):
    with open(path, "rb") as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def imported(path):
    spec = importlib.util.spec_from_file_location("other", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def from_path(path):
    sys.path.insert(0, os.path.dirname(path))
    try:
        sys.path_importer_cache.clear()
        __import__(pathlib.Path(path).stem)
    finally:
        del sys.path[0]


FILES = {
    "open": lambda path: open(path).close(),
    "io.open_code": lambda path: io.open_code(path).close(),
    "os.open": lambda path: os.close(os.open(path, os.O_RDONLY)),
    "to append": lambda path: os.close(os.open(path, os.O_RDWR)),
    "C": by_c,
    "relative": lambda path: open(os.path.relpath(path)).close(),
    "from its folder": in_steps,
    "by a folder's number": below,
    "by the root of the process": lambda path: open(f"/proc/self/root{path}").close(),
    "by its own folder": lambda path: open(f"/proc/self/cwd/{os.path.relpath(path)}").close(),
    "symbolic link": lambda path: linked(os.symlink, path),
    "hard link": lambda path: linked(os.link, path),
    "copy": lambda path: shutil.copy(path, f"{os.getcwd()}/copy"),
    "pathlib": lambda path: pathlib.Path(path).read_bytes(),
    "linecache": lines,
    "tokenize": lambda path: tokenize.open(path).close(),
    "mmap": mapped,
    "np.fromfile": lambda path: np.fromfile(path, "u1"),
    "np.memmap": lambda path: np.memmap(path, "u1", "r"),
    "np.load": lambda path: np.load(path, allow_pickle=True),
    "np.genfromtxt": lambda path: np.genfromtxt(path, dtype="S9", delimiter="\0"),
    "loader": lambda path: importlib.machinery.SourceFileLoader("other", path).get_data(path),
    "spec": imported,
    "path": from_path,
    "run": lambda path: runpy.run_path(path),
    "zip": lambda path: zipfile.ZipFile(path),
}
FOLDERS = {
    "listdir": lambda path: os.listdir(path),
    "scandir": lambda path: next(os.scandir(path)),
    "glob": lambda path: glob.glob(f"{path}/*")[0],
    "walk": lambda path: next(os.walk(path)),
    "by number": lambda path: os.listdir(os.open(path, os.O_RDONLY)),
}


def found(files, folders):
    """Return what can be read, each with the way."""
    got, home = [], os.getcwd()
    for ways, paths in ((FILES, files), (FOLDERS, folders)):
        for name, way in ways.items():
            for path in paths:
                with contextlib.suppress(OSError):
                    os.chdir(home)
                try:
                    way(path)
                    got.append([name, path])
                except BaseException:
                    continue
    return got


def modules(names):
    """Return the modules that can be imported."""
    got = []
    for name in names:
        try:
            importlib.import_module(name)
            got.append(name)
        except BaseException:
            continue
    return got


def held():
    """Return the names of the environment, and the kinds of files that are open."""
    kinds = set()
    for number in range(1024):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue
        kinds.add("pipe" if stat.S_ISFIFO(mode) else "device" if stat.S_ISCHR(mode) else "other")
    return [sorted(os.environ), sorted(kinds)]
