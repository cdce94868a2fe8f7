"""The words and styles in which five languages write a date; they stand in `date_words.toml`."""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class DateWords:
    """The words and styles of one language.

    Attributes
    ----------
    weekdays : str
        Seven words, from Monday to Sunday.
    months, abbreviations : str
        Twelve words each, from January to December.
    ordinals : dict
        What follows the number of a day, such as {1: "st"}; 0 is for the days not listed.
    styles : tuple of str
        Formats with the fields that `date_words.toml` explains.
    """

    weekdays: str
    months: str
    abbreviations: str
    ordinals: dict[int, str]
    styles: tuple[str, ...]


def _read():
    stored = resources.files("attnbook.data").joinpath("date_words.toml").read_text("utf-8")
    for language, words in tomllib.loads(stored).items():
        words["ordinals"] = {int(day): after for day, after in words["ordinals"].items()}
        words["styles"] = tuple(words["styles"])
        yield language, DateWords(**words)


LANGUAGES = dict(_read())
