"""WordPiece: words, and parts of the words that a vocabulary lacks."""

import os
import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_int, check_path
from attnbook.data.batch import pad
from attnbook.data.ids import check_text, iterator, texts_of

LONGEST_WORD = 100
LARGEST_CACHE = 2**16
SPECIALS = {"pad": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "stop": "[SEP]"}
CJK = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)
"""Blocks of Chinese characters, first and last, which are words of one character each."""


@dataclass(frozen=True)
class WordPieces:
    """The uncased tokenizer of BERT, WordPiece: words, and subwords of unknown words.

    The text is cleaned first: control characters and accents are removed, letters are lowercased,
    white space becomes spaces, and each punctuation mark and each Chinese character becomes a word
    of its own. Then each word is split greedily: the longest token with which it begins is split
    off, and so on with the rest; a token that is not at the beginning of a word starts with ``##``.
    If this does not use up the word, or the word has more than 100 characters, the whole word
    becomes ``[UNK]``.

    Attributes
    ----------
    tokens : sequence of str
        Each token once; ``tokens[i]`` has the id i. Among them are ``[PAD]``, ``[UNK]``, ``[CLS]``
        and ``[SEP]``. Stored as a tuple.
    pad, unknown, start, stop : int
        The ids of these four: the padding of a batch, the token for a word that cannot be split
        into tokens, and the tokens that begin and end each text.

    Raises
    ------
    TypeError
        If `tokens` are not strings.
    ValueError
        If a token appears twice, or one of the four is missing.

    Notes
    -----
    All text is plain text. For example, ``"[SEP]"`` in a text is a bracket, the word "sep" and a
    bracket, whereas Hugging Face turns it into the special token. The `unicodedata` of your Python
    decides which characters are accents and punctuation; other libraries may use an older Unicode.

    For a word of n characters, O(n L) characters are compared if tokens have at most L, but only
    once for each of up to 65,536 cached words.

    References
    ----------
    Schuster and Nakajima, "Japanese and Korean Voice Search", 2012; Wu et al., "Google's Neural
    Machine Translation System", 2016; Devlin et al., "BERT: Pre-training of Deep Bidirectional
    Transformers for Language Understanding", 2019.

    Examples
    --------
    >>> pieces = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "to", "be", "##ing", "is", "?"])
    >>> pieces.pieces("To BE is being?")
    ['to', 'be', 'is', 'be', '##ing', '?']
    >>> pieces.encode("To doubt")
    array([2, 4, 1, 3])
    >>> ids, mask = pieces.encode_batch(["To be", "Is"])
    >>> ids
    array([[2, 4, 5, 3],
           [2, 7, 3, 0]])
    >>> mask.shape
    (2, 1, 1, 4)
    >>> mask[:, 0, 0]
    array([[ True,  True,  True,  True],
           [ True,  True,  True, False]])
    """

    tokens: Sequence[str]
    pad: int = field(init=False, repr=False, compare=False)
    unknown: int = field(init=False, repr=False, compare=False)
    start: int = field(init=False, repr=False, compare=False)
    stop: int = field(init=False, repr=False, compare=False)
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)
    _known: dict[str, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        tokens = tuple(iterator("tokens", self.tokens, "str"))
        ids: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if not isinstance(token, str):
                raise TypeError(f"tokens[{i}] must be a str, got {type(token).__name__}")
            if token in ids:
                raise ValueError(
                    f"tokens must differ from each other, got {token!r} in tokens[{ids[token]}] "
                    f"and tokens[{i}]"
                )
            ids[token] = i
        if missing := [name for name in SPECIALS.values() if name not in ids]:
            raise ValueError(
                f"tokens must have {', '.join(SPECIALS.values())} among them, got no "
                f"{', '.join(missing)}"
            )
        values = {"tokens": tokens, "_ids": ids, "_known": {}}
        for name, value in (values | {key: ids[name] for key, name in SPECIALS.items()}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def read(cls, path: "str | os.PathLike") -> "WordPieces":
        """Return the tokenizer for a file ``vocab.txt`` with one token per line, in UTF-8."""
        lines = check_path("path", path).read_text(encoding="utf-8").split("\n")
        return cls(lines[:-1] if lines[-1] == "" else lines)

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.tokens)

    def encode(self, text: str, max_length: int | None = None) -> Annotated[np.ndarray, "n"]:
        """Return the ids of `text` from ``[CLS]`` to ``[SEP]`` as an int64 array.

        A text of more than `max_length` ids, including these two, is truncated at its end. A
        `max_length` below 2 or a text with a surrogate, half a character, raises a ValueError.
        """
        if max_length is not None:
            max_length = check_int("max_length", max_length, 2) - 2
        check_text("text", text)
        return np.array([self.start, *self._parts(text)[:max_length], self.stop], dtype=np.int64)

    def encode_batch(
        self, texts: Iterable[str], max_length: int | None = None
    ) -> tuple[Annotated[np.ndarray, "b n"], Annotated[np.ndarray, "b 1 1 n"]]:
        """Return the ids of several texts in one array, padded with ``[PAD]``, and a mask.

        The ids have shape (b, n), where n is the length of the longest text, at most `max_length`.
        The mask is boolean, True for tokens and False for padding. Its shape is (b, 1, 1, n), as
        `attnbook.models.bert` and every multi-head function expect it, because a mask with two axes
        (b, n) would be read as (n_q, n_k), and without an error if b = n.
        """
        rows = [self.encode(text, max_length) for text in texts_of("texts", texts)]
        ids, lengths = pad(rows, pad=self.pad)
        real = np.arange(ids.shape[1]) < lengths[:, np.newaxis]
        return ids, real[:, np.newaxis, np.newaxis, :]

    def pieces(self, text: str) -> list[str]:
        """Return the tokens of `text` as str, without ``[CLS]`` and ``[SEP]``."""
        check_text("text", text)
        return [self.tokens[i] for i in self._parts(text)]

    def _parts(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in words_of(text):
            parts = self._known.get(word)
            if parts is None:
                parts = self._parts_of_word(word)
                if len(self._known) < LARGEST_CACHE:
                    self._known[word] = parts
            ids += parts
        return ids

    def _parts_of_word(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self.unknown]
        parts, begin = [], 0
        while begin < len(word):
            prefix = "##" if begin else ""
            for end in range(len(word), begin, -1):  # the longest first
                if (part := self._ids.get(prefix + word[begin:end])) is not None:
                    break
            else:
                return [self.unknown]
            parts.append(part)
            begin = end
        return parts


def words_of(text: str) -> list[str]:
    """Return the words of `text`, cleaned: small letters without accents, punctuation apart."""
    return unicodedata.normalize("NFD", text.translate(_CLEAN)).translate(_PLAIN).split()


class _Table(dict):
    """What `str.translate` makes of each character, worked out where it is first met."""

    def __init__(self, change):
        self.change = change

    def __missing__(self, code):
        self[code] = self.change(chr(code))
        return self[code]


def _clean(character):
    kind = unicodedata.category(character)
    if character in "\t\n\r" or (character.isspace() and kind != "Cc"):
        return " "
    if kind in ("Cc", "Cf", "Co") or character == "\N{REPLACEMENT CHARACTER}":
        return ""
    is_cjk = any(first <= ord(character) <= last for first, last in CJK)
    return f" {character} " if is_cjk else character


def _plain(character):
    kind = unicodedata.category(character)
    if kind == "Mn":  # an accent, which NFD has parted from its letter
        return ""
    if character in string.punctuation or kind[0] == "P":
        return f" {character} "
    return character.lower()  # one by one, so that a Σ at the end of a word becomes σ


_CLEAN, _PLAIN = _Table(_clean), _Table(_plain)
