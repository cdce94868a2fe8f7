"""Run the notebooks and write their records: `python tools/execute_notebooks.py [NAME ...]`.

A notebook is a pair, book/NAME.md (the source) and book/NAME.ipynb (the executed record). The same
source gives the same record on any machine: no times, no random cell ids, no paths.
"""

import argparse
import hashlib
import sys
import time
from collections import Counter
from pathlib import Path

import jupytext
import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"


def notebooks() -> dict[str, Path]:
    """Return the sources of all pages with a jupytext header, by name."""
    pages = sorted(BOOK.glob("*.md"))
    return {p.stem: p for p in pages if p.read_text("utf8").startswith("---\njupytext:")}


def execute(source: Path) -> nbformat.NotebookNode:
    """Return the executed notebook of `source`; raise if a cell does."""
    notebook = jupytext.read(source)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,  # how prints are split depends on the load of the machine
        resources={"metadata": {"path": str(BOOK)}},
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}  # the rest names this Python's version
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:12]
        cell.id = f"{digest}-{seen[digest]}" if seen[digest] else digest
        seen[digest] += 1
        if str(ROOT) in str(cell.get("outputs", "")):
            raise ValueError(f"{source.name}: a cell prints a path of this machine:\n{cell.source}")
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    known = notebooks()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; default: all")
    names = parser.parse_args(arguments).names or list(known)
    if unknown := set(names) - known.keys():
        parser.error(f"names must be of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    for name in names:
        start = time.perf_counter()
        try:
            notebook = execute(known[name])
        except (nbclient.exceptions.CellExecutionError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        text = nbformat.writes(notebook) + "\n"
        known[name].with_suffix(".ipynb").write_text(text, encoding="utf8", newline="\n")
        print(f"book/{name}.ipynb: {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
