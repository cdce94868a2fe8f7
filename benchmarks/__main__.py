"""``python -m benchmarks NAME --device cpu`` measures and writes ``book/data/NAME.cpu.json``.

The file of a GPU has its name, such as ``NAME.cuda-h200.json``.
Without a name it lists the benchmarks. ``python -m benchmarks device`` does all that needs a GPU.
"""

import argparse
import ast
import importlib
import json
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import device, harness, provenance
from benchmarks.tables import QUICK_SECONDS, SECONDS, Tables

BOTH = ("cpu", "cuda")
FOLDER = Path(__file__).parent


@cache
def _facts(name: str) -> dict[str, Any]:
    """Return what a file says of itself, read and not imported: its imports may be absent here."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))
    functions = {part.name for part in tree.body if isinstance(part, ast.FunctionDef)}
    facts = {"doc": ast.get_docstring(tree) or "", "measures": "measure" in functions}
    for part in tree.body:
        names = [x.id for x in getattr(part, "targets", []) if isinstance(x, ast.Name)]
        if names in (["DEVICES"], ["WHOLE"]) and isinstance(part, ast.Assign):
            facts[names[0]] = ast.literal_eval(part.value)
    return facts


def names() -> list[str]:
    """Return the names of all benchmarks: the files here that have a function `measure`."""
    found = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
    return [name for name in found if _facts(name)["measures"]]


def devices(name: str) -> tuple[str, ...]:
    """Return the devices that a benchmark can be run on."""
    return _facts(name).get("DEVICES", BOTH)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(dest="name", metavar="NAME", title="benchmarks")
    for name in names():
        facts = _facts(name)
        summary = facts["doc"].splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--device", choices=devices(name), default="cpu")
        command.add_argument("--seconds", type=float, help="most seconds for each table")
        if not facts.get("WHOLE"):
            command.add_argument(
                "--only",
                nargs="+",
                help="measure only these tables; the other tables of the record stay",
            )
        command.add_argument(
            "--quick", action="store_true", help="few sizes and rounds, as a trial"
        )
        command.add_argument("--out", type=Path, help="the folder to write to (default: book/data)")
    command = commands.add_parser("device", help=(device.__doc__ or "").splitlines()[0])
    device.add_arguments(command)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.name is None:
        parser.print_help()
        return 0
    given = sys.argv[1:] if arguments is None else arguments
    line = "python -m benchmarks " + shlex.join(given)
    refused = (provenance.MissingDeviceError, provenance.SteeredError, device.RefusedError)
    try:
        return device.main(chosen, line) if chosen.name == "device" else _measure(chosen, line)
    except refused as error:
        print(error, file=sys.stderr)
        return 2


def _measure(chosen: argparse.Namespace, line: str) -> int:
    """Measure the tables of a benchmark, and write its record."""
    provenance.require(chosen.device)
    if not chosen.quick:
        provenance.refuse_steering()
    module = importlib.import_module(f"benchmarks.{chosen.name}")
    # before any work heats the machine
    record = harness.record(chosen.name, chosen.device, line) | {"quick": chosen.quick}
    # a quick run must not replace the record that the book shows
    default = provenance.ROOT / ("_build/benchmarks" if chosen.quick else "book/data")
    out = chosen.out or default
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{chosen.name}.{provenance.place(record['provenance']['device'])}.json"
    usual = QUICK_SECONDS if chosen.quick else getattr(module, "SECONDS", SECONDS)
    only = getattr(chosen, "only", None)
    again = None
    if only and path.exists():
        earlier, again = json.loads(path.read_text("utf-8")), record["provenance"]
        timed = set(only) - set(getattr(module, "UNTIMED", ()))
        if timed and not provenance.same_machine(earlier["provenance"], again):
            print(f"{path} has times of another machine: measure all tables", file=sys.stderr)
            return 2
        record = earlier
    tables = Tables(record, path, seconds=chosen.seconds or usual, again=again, only=only)
    module.measure(chosen.device, quick=chosen.quick, tables=tables)
    unknown = sorted(set(only or ()) - set(tables.names))
    if unknown:
        there = ", ".join(tables.names)
        print(f"--only must name tables of {there}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    harness.log(f"wrote {tables.finish()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
