"""Dates: each text has one meaning, the calendar's rules hold, and no day is on both sides."""

import datetime
import re
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import dates, written
from attnbook.data.date_pairs import _write
from attnbook.data.date_words import LANGUAGES

FIRST, LAST = datetime.date(1969, 1, 1), datetime.date(2068, 12, 31)
days = st.dates(FIRST, LAST)
each_language = pytest.mark.parametrize("language", LANGUAGES)

NOVEMBER_21 = {  # in each language, every style of 21 November 2026, a Saturday
    "de": "Samstag, 21. November 2026|Samstag, den 21. November 2026|21. November 2026|"
    "21. Nov. 2026|Samstag, 21.11.2026|21.11.2026|21.11.26",
    "en": "Saturday, 21 November 2026|Saturday, November 21, 2026|November 21st, 2026|"
    "Nov 21, 2026|21 Nov 26|21st of November 2026|21/11/2026|2026/11/21",
    "es": "sábado, 21 de noviembre de 2026|21 de noviembre de 2026|21 nov 2026|21/11/2026|21/11/26",
    "fr": "samedi 21 novembre 2026|le 21 novembre 2026|21 novembre 2026|21 nov. 2026|"
    "21/11/2026|21/11/26",
    "it": "sabato 21 novembre 2026|21 novembre 2026|21 nov 2026|21/11/2026|21.11.26",
}


def months():
    """Return the number of every month by its name and abbreviation in small letters."""
    found = {}
    for words in LANGUAGES.values():
        for names in (words.months.split(), words.abbreviations.split()):
            assert len(names) == 12
            for number, name in enumerate(names, start=1):
                # a word means the same month in every language that has it
                assert found.setdefault(name.rstrip(".").lower(), number) == number
    return found


def read(text):
    """Return the date that `text` says, by its figures and the name of its month alone."""
    figures = re.findall(r"\d+", text)
    known = months()
    named = [known[word] for word in re.findall(r"[^\W\d_]+", text.lower()) if word in known]
    if named:
        (month,) = named
        day, year = figures
    elif len(figures[0]) == 4:
        year, month, day = figures
    else:
        day, month, year = figures
    four = datetime.datetime.strptime(year, "%Y" if len(year) == 4 else "%y").year
    return datetime.date(four, int(month), int(day))


@each_language
def test_every_style_of_one_day(language):
    ways = written(datetime.date(2026, 11, 21), [language])
    expected = NOVEMBER_21[language].split("|")
    assert set(ways) == {case(x) for x in expected for case in (str, str.lower, str.upper)}
    assert [way for way in ways if way in expected] == expected


@given(days)
def test_every_way_says_the_day_and_none_another(day):
    for text in written(day):
        assert read(text) == day


@given(days)
def test_weekday_is_the_calendars(day):
    number = (day - datetime.date(1970, 1, 5)).days % 7  # that was a Monday
    names = {
        name.lower(): i
        for words in LANGUAGES.values()
        for i, name in enumerate(words.weekdays.split())
    }
    assert len(names) == 35
    said = [
        names[word]
        for text in written(day)
        for word in re.findall(r"[^\W\d_]+", text.lower())
        if word in names
    ]
    assert set(said) == {number}
    assert len(said) > 15


@pytest.mark.parametrize(
    ("day", "language", "text"),
    [
        ((2000, 2, 29), "en", "February 29th, 2000"),
        ((1999, 1, 1), "en", "January 1st, 1999"),
        ((1999, 1, 2), "en", "January 2nd, 1999"),
        ((1999, 1, 3), "en", "January 3rd, 1999"),
        ((1999, 1, 11), "en", "11th of January 1999"),
        ((1999, 1, 12), "en", "12th of January 1999"),
        ((1999, 1, 13), "en", "13th of January 1999"),
        ((1999, 1, 22), "en", "22nd of January 1999"),
        ((1999, 1, 23), "en", "23rd of January 1999"),
        ((1999, 1, 31), "en", "31st of January 1999"),
        ((2068, 12, 31), "de", "31.12.68"),
        ((1969, 1, 1), "de", "01.01.69"),
        ((2005, 3, 4), "de", "4.3.2005"),
        ((2005, 3, 4), "de", "FREITAG, DEN 4. MÄRZ 2005"),
        ((2005, 3, 1), "fr", "le 1er mars 2005"),
        ((2005, 3, 21), "fr", "21 mars 2005"),
        ((2005, 8, 1), "it", "lunedì 1º agosto 2005"),
        ((2005, 8, 9), "es", "MARTES, 9 DE AGOSTO DE 2005"),
        ((2005, 3, 4), "es", "04/03/05"),
    ],
)
def test_ways_of_single_days(day, language, text):
    assert text in written(datetime.date(*day), [language])


@each_language
def test_names_are_those_of_the_unicode_locales(language):
    locales = pytest.importorskip("babel.dates", reason="babel is not installed")
    words = LANGUAGES[language]
    weekdays = locales.get_day_names("wide", "format", language)
    assert words.weekdays.split() == [weekdays[i] for i in range(7)]
    wide = locales.get_month_names("wide", "format", language)
    assert words.months.split() == [wide[i] for i in range(1, 13)]
    short = locales.get_month_names("abbreviated", "format", language)
    for i, ours in enumerate(words.abbreviations.split(), start=1):
        theirs = short[i].rstrip(".")  # "Sept" and "Sep" both occur, by the edition of the data
        assert ours.rstrip(".").startswith(theirs) or theirs.startswith(ours.rstrip("."))


@each_language
def test_words_are_composed_characters(language):
    text = repr(LANGUAGES[language])
    assert unicodedata.normalize("NFC", text) == text


def test_pairs_are_ways_to_write_and_iso_dates():
    drawn = dates(0, 300, 100)
    assert (len(drawn.train), len(drawn.test)) == (300, 100)
    for text, iso in (*drawn.train, *drawn.test):
        day = datetime.date.fromisoformat(iso)
        assert iso == day.isoformat()
        assert text in written(day)


def test_no_day_is_in_both_and_nearly_all_are_in_one():
    drawn = dates(0, 20_000, 4_000, languages=["it"])
    train, test = ({iso for _, iso in pairs} for pairs in (drawn.train, drawn.test))
    assert not train & test
    assert not {iso for _, iso in dates(0, 10, 2_000).test} & train  # nor with other numbers
    n_days = (LAST - FIRST).days + 1
    assert n_days == 36_525
    # a day is missed by n draws among d with probability e^(-n/d)
    assert len(train) == pytest.approx(0.9 * n_days * (1 - np.exp(-20_000 / 32_873)), rel=0.01)
    assert len(test) == pytest.approx(0.1 * n_days * (1 - np.exp(-4_000 / 3_652)), rel=0.01)
    for part, n in ((slice(0, 4), 100), (slice(5, 7), 12), (slice(8, 10), 31)):
        assert len({iso[part] for iso in test}) == n
    every = train | test
    assert FIRST.isoformat() <= min(every)
    assert max(every) <= LAST.isoformat()
    assert any(iso.endswith("-02-29") for iso in train)
    other = {iso for _, iso in dates(1, 0, 4_000, languages=["it"]).test}
    assert len(test & other) < 0.2 * 3652


@each_language
def test_every_style_is_drawn_as_often(language):
    counts = Counter()
    drawn = dates(0, 2000, 0, languages=[language])
    styles = LANGUAGES[language].styles
    for text, iso in drawn.train:
        day = datetime.date.fromisoformat(iso)
        fits = [s for s in styles if _write(day, language, s).lower() == text.lower()]
        counts.update({style: 1 / len(fits) for style in fits})
    for style in styles:
        assert counts[style] / 2000 == pytest.approx(1 / len(styles), abs=0.06)


def test_every_case_and_language_is_drawn_as_often():
    drawn = dates(0, 6000, 0).train
    cased = [text for text, _ in drawn if text != text.lower() or text != text.upper()]
    lower = sum(text == text.lower() for text in cased) / len(cased)
    upper = sum(text == text.upper() for text in cased) / len(cased)
    assert upper == pytest.approx(1 / 3, abs=0.03)
    assert 1 / 3 < lower < 2 / 3  # French, Spanish and Italian have no capitals as they stand
    for language, words in LANGUAGES.items():
        own = set(words.weekdays.lower().split())
        said = sum(not own.isdisjoint(re.findall(r"\w+", text.lower())) for text, _ in drawn)
        share = sum("{weekday}" in style for style in words.styles) / len(words.styles)
        assert said / 6000 == pytest.approx(share / 5, abs=0.02), language


@given(days, st.sets(st.sampled_from(sorted(LANGUAGES)), min_size=1))
def test_vocabulary_has_every_character_of_every_day(day, languages):
    vocabulary = dates(0, 0, 0, languages=sorted(languages)).vocabulary
    for text in (*written(day, sorted(languages)), day.isoformat()):
        assert vocabulary.decode(vocabulary.encode(text)) == text


def test_vocabulary_does_not_depend_on_the_draw():
    assert dates(0, 0, 0).vocabulary == dates(1, 50, 3).vocabulary
    assert len(dates(0, 0, 0, languages=["en"]).vocabulary) < len(dates(0, 0, 0).vocabulary) < 100


def test_seed_decides():
    assert dates(5, 20, 7) == dates(5, 20, 7) == dates(np.random.default_rng(5), 20, 7)
    assert dates(5, 20, 7).train != dates(6, 20, 7).train
