"""Strings that end a text, wherever the tokens begin and end."""

from collections.abc import Iterator, Sequence

from attnbook.data.ids import texts_of


def stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Return the strings that end a text, each with at least one character, or raise."""
    strings = tuple(texts_of("stop", [stop] if isinstance(stop, str) else stop))
    if "" in strings:
        raise ValueError("stop must hold strings of at least 1 character, got an empty one")
    return strings


def text_before(ends: tuple[str, ...], pieces: Iterator[str]) -> Iterator[str]:
    """Yield the text of `pieces` before the first complete one of `ends`.

    Each part is yielded as soon as no end can begin in it, and after an end nothing more is asked
    of `pieces`.
    """
    held = ""
    for piece in pieces:
        held += piece
        found = [(held.find(end) + len(end), held.find(end)) for end in ends if end in held]
        if found:
            held = held[: min(found)[1]]
            break
        begun = [n for end in ends for n in range(1, len(end)) if held.endswith(end[:n])]
        certain = len(held) - max(begun, default=0)
        if certain:
            yield held[:certain]
        held = held[certain:]
    if held:
        yield held
