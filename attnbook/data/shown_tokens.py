"""Tokens of bytes as they are shown: a part of a character says which character it belongs to."""

import unicodedata
from collections.abc import Iterable


def shown_tokens(tokens: Iterable[bytes]) -> list[str]:
    r"""Return each of `tokens`, which follow one another in a text, as a str to be shown.

    What a token holds of a character whose bytes are in several tokens is shown as the character
    with the numbers of these bytes: ``é[1/2]``, ``🙂[2–4/4]``. A character that cannot be seen
    alone is shown as its code, such as ``U+200D``, and a combining mark stands on a dotted circle.
    A byte that belongs to no character is shown as its number: ``<0xC3>``.

    Examples
    --------
    >>> shown_tokens([b" caf", b"\xc3", b"\xa9", b"!\xc3"])
    [' caf', 'é[1/2]', 'é[2/2]', '!<0xC3>']
    """
    tokens = list(tokens)
    shown = [""] * len(tokens)
    owners = [i for i, token in enumerate(tokens) for _ in token]
    begin = 0
    for character in b"".join(tokens).decode(errors="surrogateescape"):
        size = len(character.encode(errors="surrogateescape"))
        own = owners[begin : begin + size]
        begin += size
        for i in dict.fromkeys(own):
            first = own.index(i) + 1
            last = first + own.count(i) - 1
            if "\udc80" <= character <= "\udcff":
                shown[i] += f"<0x{ord(character) - 0xDC00:02X}>"
            elif last - first + 1 == size:
                shown[i] += character
            else:
                part = str(first) if first == last else f"{first}–{last}"
                shown[i] += f"{name_of(character)}[{part}/{size}]"
    return shown


def name_of(character: str) -> str:
    """Return what a character looks like alone: its code if nothing can be seen."""
    kind = unicodedata.category(character)
    if kind.startswith("M") and not 0xFE00 <= ord(character) <= 0xFE0F:  # variation selectors
        return f"◌{character}"
    return character if kind[0] in "LNPS" else f"U+{ord(character):04X}"
