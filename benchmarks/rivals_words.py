"""Words as ids, and what it costs to spell the words that have no id."""

import re
from collections import Counter

import numpy as np

from benchmarks.rivals_ngrams import Ngrams, as_bytes, bits

PIECE = re.compile(r"\n+| ?[A-Za-z]+(?:'[A-Za-z]+)*| ?[^A-Za-z\s]+|[^\S\n]+")
"""A word or a run of other signs, with the space before it. Joined, the pieces are the text."""

UNKNOWN = 0
END = "\0"  # of a spelling
ORDER = 6


class Words:
    """The words that occur `least` times in a text have ids; the others are spelled in bytes."""

    def __init__(self, text: str, tuning: str, least: int = 3) -> None:
        counts = Counter(PIECE.findall(text))
        known = sorted(word for word, count in counts.items() if count >= least)
        self.ids = {word: i for i, word in enumerate(known, UNKNOWN + 1)}
        # rare words, each once, are the best samples of words never seen
        rare = sorted(word for word in counts if word not in self.ids)
        self.spelling = Ngrams(_spelled(rare), 256, ORDER)
        self.discounts = self.spelling.tuned(_spelled(self._unknown(tuning)), ORDER)

    def __len__(self) -> int:
        return len(self.ids) + 1

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of the words of a text."""
        return np.array([self.ids.get(word, UNKNOWN) for word in PIECE.findall(text)])

    def bits(self, text: str) -> float:
        """Return the bits that spelling the unknown words of a text costs, after their id."""
        places = self.spelling.places(_spelled(self._unknown(text)))
        return bits(self.spelling.probabilities(places, self.discounts))

    def _unknown(self, text: str) -> list[str]:
        return [word for word in PIECE.findall(text) if word not in self.ids]


def _spelled(words: list[str]) -> np.ndarray:
    return as_bytes("".join(word + END for word in words))
