"""Semantic search over all lines of the plays.

`python tools/search_plays.py embed [--library torch]` makes a vector of every line, once, and keeps
them in the cache folder; `python tools/search_plays.py find "I cannot sleep"` prints the lines
nearest to a sentence. Both need `python -m attnbook models get sentence-encoder`.
"""

import argparse
import os
import sys
import time

import numpy as np

from attnbook.data import plays
from attnbook.models import sentence_encoder
from attnbook.models.store import cache

CHUNK = 4096  # lines between two reports


def all_lines() -> list[tuple[str, str, str]]:
    """Return (play, speaker, line) of every line, each line once, where it is first spoken."""
    found: dict[str, tuple[str, str, str]] = {}
    for play, text in plays().texts.items():
        for speech in text.strip().split("\n\n"):
            speaker, *lines = speech.split("\n")
            for line in lines:
                found.setdefault(line, (play, speaker.rstrip(":"), line))
    return list(found.values())


def embed(library: str, batch_size: int) -> None:
    """Write the vectors of all lines as float16."""
    encoder = sentence_encoder().to(library)
    lines = [line for _, _, line in all_lines()]
    by_length = sorted(range(len(lines)), key=lambda i: len(lines[i]))  # little padding
    vectors = np.empty((len(lines), 384), np.float16)
    start = time.perf_counter()
    for first in range(0, len(lines), CHUNK):
        chosen = by_length[first : first + CHUNK]
        made = encoder.encode([lines[i] for i in chosen], batch_size)
        vectors[chosen] = np.asarray(made)
        done, seconds = min(first + CHUNK, len(lines)), time.perf_counter() - start
        print(f"{done} of {len(lines)} lines, {seconds:.0f} s", flush=True)
    partial = cache() / "plays.partial"
    with open(partial, "wb") as file:
        np.save(file, vectors)
    os.replace(partial, cache() / "plays.npy")


def find(query: str, n: int) -> None:
    """Print the `n` lines nearest to `query`, with their cosines, and how long it took."""
    encoder, lines = sentence_encoder(), all_lines()
    vectors = np.load(cache() / "plays.npy").astype(np.float32)
    if len(vectors) != len(lines):
        raise SystemExit("the plays have changed: python tools/search_plays.py embed")
    start = time.perf_counter()
    cosines = vectors @ encoder.encode([query])[0]
    best = np.argsort(-cosines)[:n]
    seconds = time.perf_counter() - start
    for i in best:
        play, speaker, line = lines[i]
        print(f"{cosines[i]:.3f}  {line}  ({speaker}, {play})")
    print(f"{seconds:.3f} s among {len(lines)} lines")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("embed")
    making.add_argument("--library", default="numpy", help="numpy, torch or cupy; default: numpy")
    making.add_argument("--batch-size", type=int, default=64)
    finding = commands.add_parser("find")
    finding.add_argument("query")
    finding.add_argument("-n", type=int, default=5)
    chosen = parser.parse_args(arguments)
    if chosen.command == "embed":
        embed(chosen.library, chosen.batch_size)
    else:
        find(chosen.query, chosen.n)
    return 0


if __name__ == "__main__":
    sys.exit(main())
