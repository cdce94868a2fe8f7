"""``python -m attnbook doctor`` prints what is present here; ``models get`` fetches a model.

``doctor --gpu`` also compares every kernel for a GPU with float64, on the GPU that is here.

``course`` makes assignments from the exercises of the book, and ``grade`` marks what is handed in.
Both belong to the folder `course` of the repository, which is no part of the package.
"""

import argparse
import subprocess
import sys

import attnbook
from attnbook.arrays.move import attempt
from attnbook.kernels import LADDER, verification
from attnbook.models import store

RUNG_SECONDS = 70
"""How long a kernel may be compiled and compared: one whose waits never end would hold the GPU."""


COURSE = {
    "course": "make assignments from the exercises of the book",
    "grade": "grade what students have handed in",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COURSE:
        return of_course(arguments)
    parser = argparse.ArgumentParser(prog="python -m attnbook", description=attnbook.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    look = commands.add_parser(
        "doctor", help="print which array libraries and devices can be used here"
    )
    look.add_argument(
        "--gpu", action="store_true", help="first compare the kernels for a GPU with float64 on it"
    )
    names = [kernel.name for kernel in LADDER if kernel.device == "cuda"]
    look.add_argument("--rung", choices=names, help="compare this kernel for a GPU, and no more")
    models = commands.add_parser("models", help="fetch learned weights into the cache folder")
    actions = models.add_subparsers(dest="action", required=True)
    action = actions.add_parser("get", help=f"into {store.cache()}, or ATTNBOOK_CACHE")
    action.add_argument("name", choices=sorted(store.PUBLISHED))
    for name, words in COURSE.items():
        commands.add_parser(name, help=words)
    chosen = parser.parse_args(arguments)
    if chosen.command == "models":
        return get(chosen.name)
    return verdict(chosen.rung) if chosen.rung else doctor(chosen.gpu)


def of_course(arguments: list[str]) -> int:
    """Run a command of the folder `course`, if it is at hand, and return the exit status."""
    try:
        from course import command
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "course":
            raise
        print(
            f"python -m attnbook {arguments[0]}: the grader is not part of the installed package, "
            "so run this command in a clone of the repository, or beside a copy of its folder "
            "course",
            file=sys.stderr,
        )
        return 1
    return command.main(arguments)


def get(name: str) -> int:
    """Fetch model `name` and return the exit status."""
    try:
        for path in store.get(name).values():
            print(path)
    except OSError as error:
        print(f"python -m attnbook models get {name}: {error}", file=sys.stderr)
        return 1
    return 0


def doctor(gpu: bool = False) -> int:
    """Print a table of what can be used here and return the exit status.

    With `gpu` every kernel for a GPU runs first, and the status is 1 if one of them is not right.
    """
    status = max([0, *map(examine, verification.names())]) if gpu else 0
    rows = [
        row
        for b in attnbook.backends()
        for row in (
            (b.name, "yes" if b.available else "no", f"{b.detail}. {b.remedy}".rstrip(". ")),
            *([("", "", f"impl= {', '.join(b.impls)}")] if b.impls else []),
        )
    ]
    header = ("backend", "here", "detail")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(2)]
    print(f"attnbook {attnbook.__version__}, Python {sys.version.split()[0]}")
    for first, second, third in (header, *rows):
        print(f"{first:<{widths[0]}}  {second:<{widths[1]}}  {third}")
    return status


def examine(name: str) -> int:
    """Compare rung `name` in a process of its own, which may break or hang without the others."""
    command = [sys.executable, "-m", "attnbook", "doctor", "--rung", name]
    try:
        status = subprocess.run(command, timeout=RUNG_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        problem = f"no answer within {RUNG_SECONDS} seconds"
    else:
        if status == 0 or (status == 1 and not verification.is_verified(name)):
            return status
        problem = f"its process ended with {status}"
    attempt(lambda: verification.record(name, [f"{verification.NOT_FINISHED}: {problem}"]))
    print(f"{name}: {problem}", flush=True)
    return 1


def verdict(name: str) -> int:
    """Compare rung `name` with float64 on this device, keep and print what was found."""
    _, missing = attempt(lambda: verification.here(name))
    if missing:
        print(f"{name}: there is no GPU here that could run it ({missing})", flush=True)
        return 1
    # whatever ends this process meanwhile, an older verdict counts no more
    attempt(lambda: verification.record(name, [verification.NOT_FINISHED]))
    problems = verification.verify(name)
    _, lost = attempt(lambda: verification.record(name, problems))
    print(f"{name}: {problems[0] if problems else 'right on this device'}", flush=True)
    if lost:
        print(f"{name}: the verdict is not kept: {lost}", flush=True)
    return int(bool(problems or lost))


if __name__ == "__main__":
    raise SystemExit(main())
