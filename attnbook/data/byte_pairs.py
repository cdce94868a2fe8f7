"""Byte-pair encoding: frequent runs of bytes become tokens."""

import heapq
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.data.ids import check_text, ids_before, iterator, texts_of
from attnbook.data.shown_tokens import shown_tokens

Pair = tuple[int, int]

N_BYTES = 256
LARGEST_CACHE = 2**16
PRE_TOKEN = re.compile(
    r"'(?:[sdmt]|ll|ve|re)"  # the ends of let's, I'd, I'm, don't, I'll, I've, we're
    r"| ?[^\W\d_]+"  # letters, with the space before them
    r"| ?\d+"  # digits
    r"| ?(?:[^\s\w]|_)+"  # other signs
    r"|\n+"  # line breaks: one, or the two of an empty line
    r"|[^\S\n]+(?!\S)|[^\S\n]+"  # spaces; the last one goes to the word that follows
)
"""What no merge crosses: GPT-2's pattern, in Python's own `re`, with line breaks apart."""


@dataclass(frozen=True)
class BytePairs:
    r"""Byte-level byte-pair encoding (BPE), as in GPT-2: from text to bytes to tokens.

    A pattern splits a text into pre-tokens, which are mostly words with the space before them. Each
    pre-token becomes its UTF-8 bytes, so that any text has tokens and no token is unknown. Then the
    merges are applied within each pre-token: among all neighbours that are a pair of `merges`, the
    pair that comes first in `merges` is joined, from left to right, until no pair is left.

    The ids 0 to 255 are the bytes. Merge i makes token 256 + i. After the merges come the special
    tokens, to which no text is encoded. For example, ``encode("<|endoftext|>")`` returns the tokens
    of these 13 characters.

    Attributes
    ----------
    merges : sequence of pairs of int
        The two ids that each merge joins, in the order in which the merges were learned. (x, y)
        joins token x with a token y that follows it. Stored as a tuple of tuples.
    specials : sequence of str, optional
        The names of the special tokens, one or more. The first one ends a text, and `stop` is its
        id. Stored as a tuple.

    Raises
    ------
    TypeError
        If `merges` are not pairs of ints, or `specials` are not strings.
    ValueError
        If a merge joins tokens that do not exist yet or appears twice, if there is no special
        token, or if one appears twice.

    Notes
    -----
    GPT-2's pattern needs the package `regex`. The pattern here differs from it in three points. A
    run of line breaks is a pre-token of its own, so that the empty line between two speeches can
    be one token. Numerals that are not decimal digits (², ½, Ⅳ) are grouped with the letters. The
    separators U+001C to U+001F are spaces, as in `str.isspace`.

    `encode` caches the ids of up to 65,536 pre-tokens, so a pre-token seen before costs one look-up
    in a dictionary. A new one of n bytes costs O(n m), where m ≤ n is the number of merges used.

    References
    ----------
    Gage, "A New Algorithm for Data Compression", 1994, merged bytes. Sennrich, Haddow and Birch,
    "Neural Machine Translation of Rare Words with Subword Units", 2016, used it for the vocabulary
    of a model. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, began
    with bytes and kept merges within pre-tokens.

    Examples
    --------
    >>> pairs = BytePairs.learn(["the then there, the thin"], 260)
    >>> [pairs.tokens[i] for i in range(256, len(pairs))]
    [b'th', b' th', b' the', b'<|endoftext|>']
    >>> pairs.encode("the then é")
    array([256, 101, 258, 110,  32, 195, 169])
    >>> pairs.pieces("the thin")
    ['th', 'e', ' th', 'i', 'n']
    >>> pairs.pieces("né")
    ['n', 'é[1/2]', 'é[2/2]']
    >>> pairs.decode([256, 101, 258, pairs.stop])
    'the the'
    """

    merges: Sequence[Pair]
    specials: Sequence[str] = ("<|endoftext|>",)
    tokens: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    _joined: dict[Pair, int] = field(init=False, repr=False, compare=False)
    _known: dict[str, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        specials = _specials(self.specials)
        joined: dict[Pair, int] = {}
        tokens = [bytes([i]) for i in range(N_BYTES)]
        for i, pair in enumerate(iterator("merges", self.merges, "pairs of ints")):
            x, y = _pair(f"merges[{i}]", pair, len(tokens) - 1)
            if (x, y) in joined:
                raise ValueError(
                    f"merges must differ from each other, got ({x}, {y}) in merges"
                    f"[{joined[x, y] - N_BYTES}] and merges[{i}]"
                )
            joined[x, y] = len(tokens)
            tokens.append(tokens[x] + tokens[y])
        tokens += [name.encode() for name in specials]
        values = {"merges": tuple(joined), "specials": specials, "tokens": tuple(tokens)}
        for name, value in (values | {"_joined": joined, "_known": {}}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        size: int,
        specials: Sequence[str] = ("<|endoftext|>",),
    ) -> "BytePairs":
        """Learn an encoding with `size` tokens from `texts`.

        In each step, the pair of neighbours that occurs most often becomes a new token. Pairs are
        counted in every occurrence of a pre-token, and overlaps count, so "aaa" contains two. If
        pairs occur equally often, the one with the smaller ids comes first, as in Hugging Face
        `tokenizers` (whose ids order the bytes differently).

        Parameters
        ----------
        texts : iterable of str
            The training texts. A single str is one text.
        size : int
            The number of tokens, including the 256 bytes and `specials`. There are fewer if no
            pair occurs twice any more.
        specials : sequence of str, optional
            The names of the special tokens.

        Returns
        -------
        BytePairs

        Raises
        ------
        TypeError
            If `texts` are not strings, `size` is not an int, or `specials` are not strings.
        ValueError
            If `size` is below 256 plus the number of special tokens, or a text has a surrogate.

        Notes
        -----
        Counting the pre-tokens of n characters costs O(n). After that, only distinct pre-tokens
        matter, because each merge visits only those that contain its pair. For example, learning
        2048 tokens from 4.5 MB of plays takes a few seconds.
        """
        specials = _specials(specials)
        size = check_int("size", size, N_BYTES + len(specials))
        counts: Counter[str] = Counter()
        for text in texts_of("texts", [texts] if isinstance(texts, str) else texts):
            counts.update(PRE_TOKEN.findall(text))
        words = [list(word.encode()) for word in counts]
        return cls(_learned(words, list(counts.values()), size - len(specials)), specials)

    def __len__(self) -> int:
        """Return the number of ids, those of the special tokens included."""
        return len(self.tokens)

    @property
    def stop(self) -> int:
        """The id of the token that ends a text."""
        return N_BYTES + len(self.merges)

    def encode(self, text: str) -> Annotated[np.ndarray, "n"]:
        """Return the token ids of `text` as an int64 array, without any special token.

        A text with a surrogate, which is half a character and has no UTF-8, raises a ValueError.
        """
        check_text("text", text)
        ids: list[int] = []
        for pre_token in PRE_TOKEN.findall(text):
            known = self._known.get(pre_token)
            if known is None:
                known = _merged(pre_token.encode(), self._joined)
                if len(self._known) < LARGEST_CACHE:
                    self._known[pre_token] = known
            ids += known
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Annotated[Any, "n"]) -> str:
        """Return the text of `ids` up to the first stop; other special tokens are ignored.

        Bytes that are not valid UTF-8, such as the first half of an "é", become the replacement
        character U+FFFD. An unknown id raises a ValueError.
        """
        numbers = ids_before(self.stop, ids, len(self), "the number of tokens")
        parts = (self.tokens[i] for i in numbers.tolist() if i < self.stop)
        return b"".join(parts).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        """Return what a token adds to a text: nothing for a special token."""
        return self.tokens[token] if token < self.stop else b""

    def pieces(self, text: str) -> list[str]:
        """Return each token of `text` as a readable str, by the rules of `show`."""
        return self.show(self.encode(text))

    def show(self, ids: Annotated[Any, "n"]) -> list[str]:
        """Return each token of `ids` as a readable str; a special token becomes its name.

        A token with a part of a character is shown as the character and the numbers of its bytes,
        for example ``é[1/2]`` and ``é[2/2]``. A byte that belongs to no character, such as the
        first half of an "é" at the end, is shown as ``<0xC3>``. An unknown id raises a ValueError.
        """
        numbers = ids_before(-1, ids, len(self), "the number of tokens")
        return shown_tokens(self.tokens[i] for i in numbers.tolist())

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for `from_dict`, which can be stored as JSON."""
        return {"merges": [list(pair) for pair in self.merges], "specials": list(self.specials)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "BytePairs":
        """Return the encoding that `to_dict` stored, or raise a ValueError or a TypeError."""
        if not isinstance(stored, Mapping) or set(stored) != {"merges", "specials"}:
            got = sorted(map(str, stored)) if isinstance(stored, Mapping) else type(stored).__name__
            raise ValueError(
                f"stored must be a mapping with the keys 'merges' and 'specials' alone, got {got}"
            )
        return cls(**stored)


def _merged(ids: Iterable[int], joined: Mapping[Pair, int]) -> list[int]:
    """Return `ids` after all the merges that `joined`, pair to new id, has for them.

    A merge that was learned earlier has a smaller new id, and goes first, from left to right.
    Cost: O(n log n) for n ids.
    """
    ids = list(ids)
    left, right = list(range(-1, len(ids) - 1)), list(range(1, len(ids) + 1))  # the neighbours
    heap = [(joined[x], i) for i, x in enumerate(itertools.pairwise(ids)) if x in joined]
    heapq.heapify(heap)
    while heap:
        new, i = heapq.heappop(heap)
        j = right[i]
        if j == len(ids) or joined.get((ids[i], ids[j])) != new:
            continue  # a merge before this one took one of the two
        ids[i], ids[j], right[i] = new, -1, right[j]
        if right[i] < len(ids):
            left[right[i]] = i
        # what is new to its neighbours has a larger id, and its turn comes later
        for begin, end in ((left[i], i), (i, right[i])):
            if begin >= 0 and end < len(ids) and (ids[begin], ids[end]) in joined:
                heapq.heappush(heap, (joined[ids[begin], ids[end]], begin))
    return [x for x in ids if x >= 0]


def _merge(ids: list[int], pair: Pair, new: int) -> list[int]:
    """Return `ids` with `new` in place of each `pair`, found from left to right."""
    out, i = [], 0
    while i < len(ids):
        if (ids[i], ids[i + 1] if i + 1 < len(ids) else -1) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def _learned(words: list[list[int]], counts: list[int], n_tokens: int) -> list[Pair]:
    """Return the pairs to merge, most frequent first, until there are `n_tokens` tokens."""
    frequency: Counter[Pair] = Counter()
    holders: dict[Pair, set[int]] = defaultdict(set)  # pair to the words that hold, or held, it

    def count(w: int, sign: int) -> set[Pair]:
        pairs = list(itertools.pairwise(words[w]))
        for pair in pairs:
            frequency[pair] += sign * counts[w]
            holders[pair].add(w)
        return set(pairs)

    for w in range(len(words)):
        count(w, 1)
    # entries are not removed when a count falls: what comes out with an old count goes in again
    heap = [(-n, pair) for pair, n in frequency.items()]
    heapq.heapify(heap)
    merges: list[Pair] = []
    while heap and N_BYTES + len(merges) < n_tokens:
        n, pair = heapq.heappop(heap)
        if -n != frequency[pair]:
            heapq.heappush(heap, (-frequency[pair], pair))
            continue
        if -n < 2:
            break
        new, changed = N_BYTES + len(merges), set()
        merges.append(pair)
        for w in list(holders[pair]):
            count(w, -1)
            words[w] = _merge(words[w], pair, new)
            changed |= count(w, 1)
        del frequency[pair], holders[pair]
        for other in changed:
            if new in other:
                heapq.heappush(heap, (-frequency[other], other))
    return merges


def _specials(specials: Sequence[str]) -> tuple[str, ...]:
    """Return `specials` as a tuple of different str, one or more, or raise."""
    names = tuple(texts_of("specials", specials))
    if not names or len(set(names)) < len(names):
        raise ValueError(f"specials must be one or more, each once, got {list(names)}")
    return names


def _pair(name: str, pair: Any, largest: int) -> Pair:
    """Return `pair` as two ints from 0 to `largest`, or raise."""
    ids = tuple(iterator(name, pair, "two ints"))
    if len(ids) != 2:
        raise ValueError(f"{name} must be a pair of ids, got {len(ids)}")
    x, y = (check_int(f"{name}[{i}]", n, at_most=largest) for i, n in enumerate(ids))
    return x, y
