"""``python -m attnbook doctor`` prints what is present here."""

import argparse
import sys

import attnbook


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m attnbook", description=attnbook.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="print which array libraries and devices can be used here")
    parser.parse_args(arguments)
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
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
