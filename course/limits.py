"""Limits for the process that runs a submission: what the system can be asked to refuse.

Everywhere with `resource`: processor time, memory, sizes of files, open files, core dumps. Where
root grades, a user who owns nothing runs the answer. On Linux also the files that can be read, none
that can be written, by Landlock; and on Linux for x86-64 a list of the system calls that a
computation needs, by seccomp, so that there are no sockets, no new processes and no signals to
others. Each is asked for, and what `step_down`, `limit` and `lock` return is in force.
"""

import contextlib
import ctypes
import math
import os
import platform
import struct
import sys
import time
from collections.abc import Iterator

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of Landlock's system calls, the same on every processor."""

EXECUTE, READ_FILE, READ_DIR = 1, 4, 8
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 4, 38, 22, 2
ALLOW, REFUSE, X86_64 = 0x7FFF0000, 0x00050001, 0xC000003E  # refuse with EPERM
NOT_THERE = 0x00050026  # ENOSYS, after which the C library tries `clone`
CLONE, CLONE3, CLONE_THREAD = 56, 435, 0x00010000

NEEDED = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24, 25, 28),
    *(32, 33, 39, 60, 63, 72, 79, 89, 96, 97, 98, 99, 100, 102, 104, 107, 108, 131, 137, 158),
    *(186, 201, 202, 204, 217, 218, 228, 229, 231, 257, 262, 267, 269, 270, 271, 273, 309, 318),
    *(332, 334, 439),
)
"""System calls of x86-64 that Python and NumPy make while they compute: reading and writing what is
open, files by their names (which Landlock refuses in turn), memory, clocks, locks, and the end."""

TGKILL = 234  # for `abort`; the filter lets it reach no other process


NOBODY, UNUSED = 65534, 200_000
"""A user that every system has, and the number from which on there are none: the process adds its
own number, so that two answers are never of one user. A container may know the first alone."""


def step_down(readable: list[str]) -> list[str]:
    """Become a user who owns nothing, where this is root and that user can read what is needed."""
    if not hasattr(os, "setresuid") or os.geteuid():
        return []
    for user in (UNUSED + os.getpid(), NOBODY):
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, 0, 0)  # `access` asks for the first of these
            if all(os.access(path, _wanted(path)) for path in readable if os.path.exists(path)):
                os.setresuid(user, user, user)
                return ["another user"]
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)
    return []


def _wanted(path: str) -> int:
    return os.R_OK | (os.X_OK if os.path.isdir(path) else 0)


def hide_memory() -> None:
    """Keep other processes of the same user from reading the memory of this one."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit(seconds: int, megabytes: int) -> list[str]:
    """Set limits of resources that cannot be raised again, and return what they are of."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    wanted = {
        "processor time": ("RLIMIT_CPU", math.ceil(seconds + time.process_time())),
        "memory": ("RLIMIT_AS", megabytes * 2**20),
        "size of files": ("RLIMIT_FSIZE", 0),
        "open files": ("RLIMIT_NOFILE", 64),
        "core dumps": ("RLIMIT_CORE", 0),
        "new processes": ("RLIMIT_NPROC", 0),
    }
    kept = []
    for about, (name, most) in wanted.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (most, most))
            kept.append(about)
    if os.geteuid() == 0:  # the system counts no processes of root
        kept.remove("new processes")
    return kept


@contextlib.contextmanager
def bounded(megabytes: int) -> Iterator[None]:
    """Let this process take so much more memory than it has, where Linux can be asked.

    What would take more raises MemoryError. A limit within another cannot be above it.
    """
    try:
        with open("/proc/self/statm") as told:
            pages = int(told.read().split()[0])
        import resource
    except (ImportError, OSError):
        yield
        return
    most = pages * resource.getpagesize() + megabytes * 2**20
    usual, hard = resource.getrlimit(resource.RLIMIT_AS)
    if usual != resource.RLIM_INFINITY:
        most = min(most, usual)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (usual, hard))


def lock(readable: list[str]) -> list[str]:
    """Refuse all files but to read those under `readable`, and all but the needed system calls.

    It holds for this process until it ends. What is returned is in force.
    """
    if not sys.platform.startswith("linux"):
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return []
    kept = ["files"] if _landlock(libc, readable) else []
    return [*kept, "system calls"] if _seccomp(libc) else kept


def _landlock(libc: ctypes.CDLL, readable: list[str]) -> bool:
    abi = libc.syscall(CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return False
    count = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)  # kinds of access to files
    fields = [2**count - 1, *([3] if abi >= 4 else []), *([3] if abi >= 6 else [])]
    rules = struct.pack(f"<{len(fields)}Q", *fields)  # files, TCP, signals and abstract sockets
    ruleset = libc.syscall(CREATE_RULESET, rules, len(rules), 0)
    if ruleset < 0:
        return False
    for path in readable:
        try:
            at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        access = EXECUTE | READ_FILE | (READ_DIR if os.path.isdir(path) else 0)
        libc.syscall(ADD_RULE, ruleset, 1, struct.pack("<Qi", access, at), 0)
        os.close(at)
    done = libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return done


def _seccomp(libc: ctypes.CDLL) -> bool:
    if platform.machine() != "x86_64" or struct.calcsize("P") != 8:
        return False
    load, equal, at_least, any_bit, ends = 0x20, 0x15, 0x35, 0x45, 0x06
    number, machine, first = 0, 4, 16  # places in what the filter is given
    code = [
        (load, 0, 0, machine),
        (equal, 1, 0, X86_64),
        (ends, 0, 0, REFUSE),
        (load, 0, 0, number),
        (at_least, 0, 1, 0x40000000),  # the numbers of x32
        (ends, 0, 0, REFUSE),
        (equal, 0, 1, CLONE3),
        (ends, 0, 0, NOT_THERE),
        (equal, 0, 4, CLONE),
        (load, 0, 0, first),
        (any_bit, 0, 1, CLONE_THREAD),
        (ends, 0, 0, ALLOW),
        (ends, 0, 0, REFUSE),
        (equal, 0, 4, TGKILL),
        (load, 0, 0, first),
        (equal, 0, 1, os.getpid()),
        (ends, 0, 0, ALLOW),
        (ends, 0, 0, REFUSE),
    ]
    for call in NEEDED:
        code += [(equal, 0, 1, call), (ends, 0, 0, ALLOW)]
    code.append((ends, 0, 0, REFUSE))
    text = b"".join(struct.pack("<HBBI", *line) for line in code)
    program = ctypes.create_string_buffer(text, len(text))
    about = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program))
    return libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.c_char_p(about), 0, 0) == 0
