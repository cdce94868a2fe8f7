"""``python -m benchmarks NAME --device cpu`` measures and writes ``book/data/NAME.cpu.json``.

Without a name it lists the benchmarks.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import shlex
import sys
from pathlib import Path
from types import ModuleType

import benchmarks
from benchmarks import device, harness, provenance
from benchmarks.tables import QUICK_SECONDS, SECONDS, Tables


def names() -> list[str]:
    """Return the names of all benchmarks: the files here that have a function `measure`."""
    found = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)})
    others = [name for name in found if name != "__main__"]
    return [name for name in others if hasattr(_module(name), "measure")]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


def _devices(name: str) -> tuple[str, ...]:
    """Return the devices that a benchmark can be run on."""
    return getattr(_module(name), "DEVICES", ("cpu", "cuda"))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(dest="name", metavar="NAME", title="benchmarks")
    for name in names():
        summary = (_module(name).__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--device", choices=_devices(name), default="cpu")
        command.add_argument("--seconds", type=float, help="for each table")
        if "only" in inspect.signature(_module(name).measure).parameters:
            command.add_argument(
                "--only", nargs="+", help="these tables; the others of the record stay"
            )
        _add_common(command)
    command = commands.add_parser("device", help=(device.__doc__ or "").splitlines()[0])
    _add_common(command)
    chosen = parser.parse_args(arguments)
    if chosen.name is None:
        parser.print_help()
        return 0

    given = sys.argv[1:] if arguments is None else arguments
    line = "python -m benchmarks " + shlex.join(given)
    # a quick run must not replace the record that the book shows
    default = provenance.ROOT / ("_build/benchmarks" if chosen.quick else "book/data")
    out = chosen.out or default
    out.mkdir(parents=True, exist_ok=True)
    try:
        if chosen.name == "device":
            on_gpu = [name for name in names() if "cuda" in _devices(name)]
            return device.run(on_gpu, out, quick=chosen.quick, command=line)
        provenance.require(chosen.device)
    except provenance.MissingDeviceError as error:
        print(error, file=sys.stderr)
        return 2
    module = _module(chosen.name)
    # before any work heats the machine
    record = harness.record(chosen.name, chosen.device, line) | {"quick": chosen.quick}
    path = out / f"{chosen.name}.{chosen.device}.json"
    usual = QUICK_SECONDS if chosen.quick else getattr(module, "SECONDS", SECONDS)
    seconds = chosen.seconds or usual
    only = getattr(chosen, "only", None)
    again = None
    if only and path.exists():
        earlier, again = json.loads(path.read_text()), record["provenance"]
        timed = set(only) - set(getattr(module, "UNTIMED", ()))
        if timed and earlier["provenance"]["cpu"] != again["cpu"]:
            print(f"{path} has times of another machine: measure all tables", file=sys.stderr)
            return 2
        record = earlier
    tables = Tables(record, path, seconds=seconds, again=again)
    module.measure(
        chosen.device, quick=chosen.quick, tables=tables, **({"only": only} if only else {})
    )
    harness.log(f"wrote {tables.finish()}")
    return 0


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quick", action="store_true", help="few sizes and rounds, for a trial")
    command.add_argument("--out", type=Path, help="folder to write to (default: book/data)")


if __name__ == "__main__":
    raise SystemExit(main())
