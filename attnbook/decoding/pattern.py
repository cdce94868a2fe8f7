"""Regular expressions, read for an automaton: which symbol may follow which."""

import re
import string
from typing import Any

MOST_POSITIONS = 20_000
"""The most symbols that a pattern may have, its repetitions written out."""

MOST_NESTED = 100
"""How deep parentheses may stand in one another."""

REPEATS = "*+?{"

CLASSES = {
    "d": string.digits,
    "w": string.ascii_letters + string.digits + "_",
    "s": " \t\n\r\f\v",
}
CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}
PRINTED = frozenset(chr(i) for i in range(32, 127)) | {"\n", "\t"}

UTF8 = re.compile("[\xc2-\xf4][\x80-\xbf]{1,3}")
"""A character beyond ASCII, in bytes that are read as characters."""

# A node is a set of symbols, or a tuple: ("cat", nodes), ("or", nodes), or ("repeat", node, least,
# most), where most is None without an end.


def positions_of(pattern: str | bytes) -> tuple[Any, ...]:
    """Return Glushkov's automaton: the symbols of each position, what follows, and where it ends.

    Position -1 is the beginning. Also returns whether the empty string matches. Raises as
    `Automaton.of_pattern` says.
    """
    if not isinstance(pattern, (str, bytes)):
        raise TypeError(f"pattern must be a str or bytes, got {type(pattern).__name__}")
    is_text = isinstance(pattern, str)
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")  # a byte, a character
    known = PRINTED | set(text) if is_text else frozenset(map(chr, range(256)))
    reader = _Reader(text, known, is_text)
    tree = reader.union()
    if reader.i < len(reader.text):
        reader.fail("no ) without a (")
    symbols: list[Any] = []
    follow: dict[int, set[int]] = {}
    nullable, first, last = _linked(tree, symbols, follow)
    follow[-1] = first
    made = symbols if is_text else [frozenset(map(ord, some)) for some in symbols]
    return made, follow, frozenset(last), nullable


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, text, alphabet, is_text):
        self.text, self.alphabet, self.is_text = text, alphabet, is_text
        self.i, self.depth = 0, 0

    def fail(self, wanted):
        raise ValueError(f"pattern must have {wanted}, got {self.text!r} (at {self.i})")

    def next_is(self, *signs):
        return self.i < len(self.text) and self.text[self.i] in signs

    def take(self, wanted="a character"):
        if self.i == len(self.text):
            self.fail(f"{wanted} before its end")
        self.i += 1
        return self.text[self.i - 1]

    def union(self):
        nodes = [self.sequence()]
        while self.next_is("|"):
            self.i += 1
            nodes.append(self.sequence())
        return nodes[0] if len(nodes) == 1 else ("or", nodes)

    def sequence(self):
        nodes = []
        while self.i < len(self.text) and not self.next_is("|", ")"):
            nodes.append(self.repeated())
        return ("cat", nodes)

    def repeated(self):
        node = self.atom()
        if not self.next_is(*REPEATS):
            return node
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self.take(), (None, None))
        if least is None:
            least, most = self.counts()
        if max(least, most or 0) > MOST_POSITIONS:
            self.fail(f"at most {MOST_POSITIONS} repetitions")
        self.i += self.next_is("?")  # as few as will do: the same texts as a whole
        if self.next_is(*REPEATS):
            self.fail("one sign of repetition at a time")
        return ("repeat", node, least, most)

    def counts(self):
        inside = ""
        while not self.next_is("}"):
            inside += self.take("a }")
        self.i += 1
        least, comma, most = inside.partition(",")
        if not least.isdecimal() or (most and not most.isdecimal()):
            self.fail("numbers between { and }")
        pair = int(least), (int(most) if most else None) if comma else int(least)
        if pair[1] is not None and pair[1] < pair[0]:
            self.fail("the smaller number first between { and }")
        return pair

    def atom(self):
        sign = self.take()
        if sign == "(":
            if self.text.startswith("?:", self.i):
                self.i += 2
            self.depth += 1
            if self.depth > MOST_NESTED:
                self.fail(f"at most {MOST_NESTED} parentheses inside one another")
            node = self.union()
            if not self.next_is(")"):
                self.fail("a ) for every (")
            self.i += 1
            self.depth -= 1
            return node
        if sign == "[":
            return self.choice()
        if sign == ".":
            return self.alphabet - {"\n"}
        if sign == "\\":
            return frozenset(self.escaped())
        if sign in REPEATS:
            self.i -= 1
            self.fail(f"something before {sign}")
        if not self.is_text and (character := UTF8.match(self.text, self.i - 1)):
            self.i = character.end()  # its bytes are repeated together
            return ("cat", [frozenset(byte) for byte in character[0]])
        if sign in "^$":
            self.i -= 1
            self.fail(f"no {sign}, since it stands for a whole text")
        return frozenset(sign)

    def escaped(self):
        sign = self.take()
        if sign in CLASSES:
            return CLASSES[sign]
        if sign in CONTROLS:
            return CONTROLS[sign]
        if sign.isalnum():
            self.i -= 1
            self.fail("no such letter or digit after \\")
        return sign

    def choice(self):
        begin, found, is_negated = self.i, set(), self.next_is("^")
        self.i += is_negated
        is_first = True
        while is_first or not self.next_is("]"):
            is_first = False
            some = self.member()
            is_range = self.next_is("-") and not self.text.startswith("-]", self.i)
            if is_range and len(some) == 1:
                self.i += 1
                end = self.member()
                if len(end) != 1 or end < some:
                    self.fail("ranges such as a-z between [ and ]")
                some = map(chr, range(ord(some), ord(end) + 1))
            found.update(some)
        if not self.is_text and UTF8.search(self.text, begin, self.i):
            self.fail(
                "single bytes between [ and ], since bytes are read one by one; "
                "write characters beyond ASCII as alternatives, (é|ü)"
            )
        self.i += 1
        return self.alphabet - found if is_negated else frozenset(found)

    def member(self):
        sign = self.take("a ]")
        return self.escaped() if sign == "\\" else sign


def _linked(node, symbols, follow):
    """Return whether a node matches nothing, its first and its last positions; fill `follow`."""
    if isinstance(node, frozenset):
        if len(symbols) == MOST_POSITIONS:
            raise ValueError(f"pattern must have at most {MOST_POSITIONS} symbols written out")
        follow[len(symbols)] = set()
        symbols.append(node)
        return False, {len(symbols) - 1}, {len(symbols) - 1}
    kind, inside, *counts = node
    if kind == "repeat":
        least, most = counts
        return _repeated(inside, least, most, symbols, follow)
    if kind == "or":
        parts = [_linked(one, symbols, follow) for one in inside]
        firsts, lasts = ({x for part in parts for x in part[k]} for k in (1, 2))
        return any(part[0] for part in parts), firsts, lasts
    nullable, first, last = True, set[int](), set[int]()
    for one in inside:
        empty, begins, ends = _linked(one, symbols, follow)
        for position in last:
            follow[position] |= begins
        first = first | begins if nullable else first
        last = last | ends if empty else ends
        nullable &= empty
    return nullable, first, last


def _repeated(node, least, most, symbols, follow):
    """Link copies of a node in a row: each is entered from the one before, the first from outside.

    If the node matches nothing, empty copies are left out, so that any number of copies will do.
    """
    empty, first, last, ends = least == 0, set[int](), set[int](), set[int]()
    for i in range(max(least, 1) if most is None else most):
        nullable, begins, finish = _linked(node, symbols, follow)
        empty |= nullable
        if not begins:  # it matches nothing else, however often
            break
        for position in ends:
            follow[position] |= begins
        first, ends = first or begins, finish
        if nullable or i + 1 >= least:
            last |= finish
    if most is None:
        for position in ends:
            follow[position] |= begins
    return empty, first, last
