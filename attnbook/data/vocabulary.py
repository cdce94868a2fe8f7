"""Characters and the ids that a model sees instead."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from attnbook.data.ids import ids_before, iterator


@dataclass(frozen=True)
class Vocabulary:
    """Characters with the ids 3, 4, …; the ids 0, 1 and 2 are pad, start and stop.

    Attributes
    ----------
    characters : str
        Each character once; ``characters[i]`` has the id i + 3.
    pad, start, stop : int
        The ids 0, 1 and 2. They are the padding of a batch, the first token that a decoder reads,
        and the last one that it writes.

    Raises
    ------
    TypeError
        If `characters` is not a str.
    ValueError
        If a character occurs twice.

    Examples
    --------
    >>> vocabulary = Vocabulary.of(["21.11.26", "2026-11-21"])
    >>> vocabulary.characters, len(vocabulary)
    ('-.0126', 9)
    >>> vocabulary.encode("21.6")
    array([7, 6, 4, 8])
    >>> vocabulary.decode([1, 7, 6, 2, 0, 0])
    '21'
    """

    characters: str
    pad: ClassVar[int] = 0
    start: ClassVar[int] = 1
    stop: ClassVar[int] = 2
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if not isinstance(self.characters, str):
            raise TypeError(f"characters must be a str, got {type(self.characters).__name__}")
        ids = {character: i for i, character in enumerate(self.characters, start=self.stop + 1)}
        if len(ids) < len(self.characters):
            twice = sorted({x for x in self.characters if self.characters.count(x) > 1})
            raise ValueError(f"characters must differ from each other, got {twice} more than once")
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Vocabulary":
        """Return the vocabulary of all characters in `texts`, in the order of their code points.

        A single str is one text. Anything else than strings raises a TypeError.
        """
        parts = list(iterator("texts", texts, "str"))
        for i, part in enumerate(parts):
            if not isinstance(part, str):
                raise TypeError(f"texts[{i}] must be a str, got {type(part).__name__}")
        return cls("".join(sorted(set().union(*parts))))

    def __len__(self) -> int:
        """Return the number of ids, those of pad, start and stop included."""
        return self.stop + 1 + len(self.characters)

    def encode(self, text: str) -> Annotated[np.ndarray, "n"]:
        """Return the ids of the characters of `text` as an int64 array, without start and stop.

        A character that the vocabulary lacks raises a ValueError. Note that "é" can be one
        character or two, "e" and the accent; `unicodedata.normalize` converts between the two.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        try:
            return np.array([self._ids[character] for character in text], dtype=np.int64)
        except KeyError:
            unknown = "".join(sorted(set(text) - set(self.characters)))
            raise ValueError(
                f"text must consist of characters of the vocabulary, {self.characters!r}, "
                f"got {unknown!r} in {_shortened(text)!r}"
            ) from None

    def decode(self, ids: Annotated[Any, "n"]) -> str:
        """Return the text of `ids` up to the first stop; start and pad are ignored.

        An unknown id raises a ValueError.
        """
        numbers = ids_before(self.stop, ids, len(self), "the size of the vocabulary")
        return "".join(self.characters[i - self.stop - 1] for i in numbers if i > self.stop)

    def to_dict(self) -> dict[str, str]:
        """Return a dict for `from_dict`, which can be stored as JSON."""
        return {"characters": self.characters}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Vocabulary":
        """Return the vocabulary that `to_dict` stored, or raise a ValueError or a TypeError."""
        if not isinstance(stored, Mapping) or set(stored) != {"characters"}:
            got = sorted(map(str, stored)) if isinstance(stored, Mapping) else type(stored).__name__
            raise ValueError(f"stored must be a mapping with the key 'characters' alone, got {got}")
        return cls(stored["characters"])


def _shortened(text):
    return text if len(text) <= 60 else f"{text[:59]}…"
