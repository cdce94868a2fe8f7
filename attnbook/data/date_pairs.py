"""Dates as people write them, and the same dates by ISO 8601."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnbook.arrays.arguments import check_int, generator
from attnbook.data.date_words import LANGUAGES
from attnbook.data.ids import iterator
from attnbook.data.vocabulary import Vocabulary

FIRST = datetime.date(1969, 1, 1)  # these hundred years are those that two digits can tell apart
LAST = datetime.date(2068, 12, 31)
CASES = (str, str.lower, str.upper)


@dataclass(frozen=True)
class Dates:
    """Pairs of a date in words or figures and the same date in ISO 8601.

    Attributes
    ----------
    train, test : tuples of pairs of str
        For example ("Saturday, 21 November 2026", "2026-11-21"). No day is in both, in any style.
    vocabulary : Vocabulary
        All characters that any day in the languages of these pairs may need, drawn or not.
    """

    train: tuple[tuple[str, str], ...]
    test: tuple[tuple[str, str], ...]
    vocabulary: Vocabulary


def dates(
    rng: "np.random.Generator | int",
    n_train: int,
    n_test: int,
    *,
    languages: Sequence[str] = ("de", "en", "es", "fr", "it"),
) -> Dates:
    """Draw random days and write each of them in one of the ways of `written`.

    Parameters
    ----------
    rng : numpy.random.Generator or int
        The source of the random numbers; an int is a seed.
    n_train, n_test : int
        The numbers of pairs. One day in ten is set aside for the test before any pair is drawn.
        Then each pair gets a day from its part, a language, a style and a case, all equally likely.
    languages : sequence of str
        Some of "de", "en", "es", "fr" and "it".

    Returns
    -------
    Dates

    Raises
    ------
    TypeError
        If a number is not an int, or `languages` is a str.
    ValueError
        If a number is below 0, or a language is unknown or given twice, or there is none.

    Notes
    -----
    The days are those of the hundred years from 1969 to 2068 in the Gregorian calendar, and the day
    of the week is correct. Every text has only one meaning: dates in figures have the order day,
    month, year, or they begin with a year of four digits, and a year of two digits is the one
    within these hundred years, as in POSIX (69 is 1969, 68 is 2068). No model can memorise the test
    days, because they do not occur in training, although all words and styles occur in both.
    Cost: about 10 µs per pair.

    References
    ----------
    ISO 8601-1:2019; POSIX.1-2017, `strptime`, conversion %y; chapter `training`.

    Examples
    --------
    >>> drawn = dates(0, n_train=3, n_test=1)
    >>> for pair in drawn.train:
    ...     print(*pair, sep=" -> ")
    Montag, 01.05.2023 -> 2023-05-01
    24/02/1983 -> 1983-02-24
    thursday, october 27, 2050 -> 2050-10-27
    """
    numbers = generator(rng)
    n_train, n_test = check_int("n_train", n_train), check_int("n_test", n_test)
    names = _checked(languages)
    days = numbers.permutation(np.arange(FIRST.toordinal(), LAST.toordinal() + 1))
    cut = len(days) // 10
    train = tuple(_draw(numbers, days[cut:], n_train, names))
    test = tuple(_draw(numbers, days[:cut], n_test, names))
    return Dates(train, test, _vocabulary(names))


def written(
    day: datetime.date, languages: Sequence[str] = ("de", "en", "es", "fr", "it")
) -> tuple[str, ...]:
    """Return every way in which `dates` writes a day: all languages, styles and cases.

    Parameters
    ----------
    day : datetime.date
        From 1969-01-01 to 2068-12-31.
    languages : sequence of str
        As in `dates`.

    Returns
    -------
    tuple of str
        Each way once, in the order of the languages and of their styles.

    Raises
    ------
    TypeError
        If `day` is not a date.
    ValueError
        If the day is outside the hundred years, or `languages` is invalid as in `dates`.

    Examples
    --------
    >>> day = datetime.date(2026, 11, 21)
    >>> for text in written(day, ["it"])[::3]:
    ...     print(text)
    sabato 21 novembre 2026
    21 NOVEMBRE 2026
    21/11/2026
    >>> len(written(day))
    54
    """
    if not isinstance(day, datetime.date) or isinstance(day, datetime.datetime):
        raise TypeError(f"day must be a datetime.date, got {type(day).__name__}")
    if not FIRST <= day <= LAST:
        raise ValueError(f"day must be from {FIRST} to {LAST}, got {day}")
    ways = (
        case(_write(day, name, style))
        for name in _checked(languages)
        for style in LANGUAGES[name].styles
        for case in CASES
    )
    return tuple(dict.fromkeys(ways))


def _checked(languages):
    if isinstance(languages, str):
        raise TypeError(f"languages must be a sequence of str, got the str {languages!r}")
    names = list(iterator("languages", languages, "str"))
    if unknown := [x for x in names if not isinstance(x, str) or x not in LANGUAGES]:
        raise ValueError(f"languages must be among {sorted(LANGUAGES)}, got {unknown}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"languages must be one or more, each once, got {names}")
    return names


def _draw(numbers, days, n, names):
    """Yield `n` pairs of the given days, numbered as `datetime.date.fromordinal` does."""
    for ordinal in numbers.choice(days, size=n):
        day = datetime.date.fromordinal(int(ordinal))
        name = names[numbers.integers(len(names))]
        styles = LANGUAGES[name].styles
        style, case = styles[numbers.integers(len(styles))], CASES[numbers.integers(len(CASES))]
        yield case(_write(day, name, style)), day.isoformat()


def _write(day, name, style):
    words = LANGUAGES[name]
    return style.format(
        weekday=words.weekdays.split()[day.weekday()],
        d=day.day,
        dd=f"{day.day:02}",
        nth=f"{day.day}{words.ordinals.get(day.day, words.ordinals[0])}",
        m=day.month,
        mm=f"{day.month:02}",
        month=words.months.split()[day.month - 1],
        mon=words.abbreviations.split()[day.month - 1],
        yy=f"{day.year % 100:02}",
        yyyy=day.year,
    )


def _vocabulary(names):
    # these have every month, weekday, ordinal and figure
    days = [datetime.date(2024, 1, d) for d in range(1, 32)]
    days += [datetime.date(2024, m, 1) for m in range(2, 13)]
    return Vocabulary.of([*(text for day in days for text in written(day, names)), "-"])
