"""An automaton and the processor that lets through what it accepts."""

import calendar
import datetime
import itertools
import re

import numpy as np
import pytest
from cases import every_day
from decoding_models import chain, model
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import decoding
from attnbook.data import BytePairs, Vocabulary
from attnbook.decoding import Automaton, Prefix, constrain

LETTERS = "ab1-"


@st.composite
def patterns(draw, depth=3):
    """Draw a regular expression over a few letters."""
    if depth == 0:
        leaves = ("a", "b", ".", "[ab]", "[^a]", r"\d", "-", "[a-c1]", "", r"\-", r"[\d-]", "[]a]")
        return draw(st.sampled_from(leaves))
    kind, smaller = draw(st.sampled_from(("leaf", "cat", "or", "repeat"))), patterns(depth - 1)
    if kind == "leaf":
        return draw(patterns(0))
    if kind == "repeat":
        sign = draw(
            st.sampled_from(
                ("*", "+", "?", "{2}", "{1,}", "{0,2}", "{2,3}", "{0}", "{0,7}", "{3,}")
            )
        )
        sign += draw(st.sampled_from(("", "?")))  # lazy: the same texts as a whole
        return f"(?:{draw(smaller)}){sign}"
    one, two = draw(smaller), draw(smaller)
    return f"({one}|{two})" if kind == "or" else one + two


@given(patterns(), st.booleans())
def test_a_pattern_accepts_what_python_matches(pattern, is_bytes):
    strings = ["".join(x) for n in range(5) for x in itertools.product(LETTERS, repeat=n)]
    if is_bytes:
        pattern, strings = pattern.encode(), [x.encode() for x in strings]
    automaton = Automaton.of_pattern(pattern)
    flags = re.ASCII if isinstance(pattern, str) else 0
    for string in strings:
        assert automaton.accepts(string) == bool(re.fullmatch(pattern, string, flags)), string


@pytest.mark.parametrize(
    ("pattern", "n_states"),
    [
        *((".{0,500}", 501), ("[a-z]{0,90}", 91), ("[a-z]{1,200}", 201), ("(?:a?){0,300}", 301)),
        *((b".{0,500}", 501), (b"[^a]{7,300}?", 301), ("a{0,20000}", 20_001), ("a{90,}", 91)),
        *(("(?:a{1,50}){1,50}", 2501), ("(?:[a-z]{1,9} ){0,100}", 1001)),
        ("(?:(){1,20000}){1,20000}a", 2),
    ],
)
def test_bounded_repetitions_have_as_many_states_as_symbols(pattern, n_states):
    assert len(Automaton.of_pattern(pattern).transitions) == n_states


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 70))
def test_nested_repetitions_are_counted(least, more, n):
    for pattern in (f"a{{{least},{least + more}}}", f"(?:a{{2,3}}){{{least},{least + more}}}"):
        accepted = Automaton.of_pattern(pattern).accepts("a" * n)
        assert accepted == bool(re.fullmatch(pattern, "a" * n))


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){40}", "(?:.{1,99}-){1,99}.{0,99}"])
def test_what_would_take_too_long_is_refused(pattern):
    message = r"^pattern must have an automaton that is made in 10,000,000 steps, got more with"
    with pytest.raises(ValueError, match=message):
        Automaton.of_pattern(pattern)


def test_characters_beyond_ascii_in_bytes():
    """They are repeated as a whole; in a class, which chooses one byte, they are refused."""
    for pattern in ("é+", "(é|ü){2,3}x?", "a中{0,2}", "é?é", "\U0001f600*"):
        automaton = Automaton.of_pattern(pattern.encode())
        for n in range(4):
            for x in itertools.product(("é", "ü", "a", "x", "中", "\U0001f600"), repeat=n):
                text = "".join(x)
                assert automaton.accepts(text.encode()) == bool(re.fullmatch(pattern, text))
    for pattern in ("[é-ü]", "[^é]", "a[bcé]+"):
        with pytest.raises(ValueError, match=r"single bytes between \[ and \], .* alternatives"):
            Automaton.of_pattern(pattern.encode())
        assert Automaton.of_pattern(pattern)  # of characters, no bytes
    assert Automaton.of_pattern(b"[\x80-\xff]+").accepts(b"\x80\xc3")


@given(st.lists(st.text("abc", max_size=5), min_size=1, max_size=9), st.booleans())
def test_a_list_accepts_its_strings_alone(strings, is_bytes):
    others = ["".join(x) for n in range(5) for x in itertools.product("abc", repeat=n)]
    if is_bytes:
        strings, others = ([x.encode() for x in some] for some in (strings, others))
    automaton = Automaton.of_strings(strings)
    for string in {*strings, *others}:
        assert automaton.accepts(string) == (string in strings)
    rows = [(i in automaton.accepting, moves) for i, moves in enumerate(automaton.transitions)]
    assert all(rows.count(row) == 1 for row in rows)  # no two states do the same


def test_states_that_lead_nowhere_are_left_out():
    automaton = Automaton([{"a": 2, "b": 1}, {"b": 1}, {"c": 3}, {}, {"a": 2}], {3})
    assert automaton.transitions == ({"a": 1}, {"c": 2}, {})
    assert automaton.accepting == {2}
    assert (automaton.run("a"), automaton.run("ac"), automaton.run("c", 1)) == (1, 2, 2)
    assert (automaton.run("b"), automaton.run("aa")) == (None, None)


# Dates.

FIRST = datetime.date(1969, 1, 1)
DAYS = [(FIRST + datetime.timedelta(i)).isoformat() for i in range(36_525)]
YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DATE = (
    rf"(?:\d{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{YEAR}-02-29)"
)


def test_the_days_of_a_hundred_years_and_a_pattern_of_all():
    days, pattern = Automaton.of_strings(DAYS), Automaton.of_pattern(DATE)
    assert len(days.transitions) < 60  # of 40,000 beginnings of a date
    for year in (1900, 1968, 1969, 2000, 2023, 2024, 2068, 2069, 2100):
        for month, day in itertools.product(range(14), range(33)):
            text = f"{year}-{month:02}-{day:02}"
            exists = 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
            assert pattern.accepts(text) == exists
            assert days.accepts(text) == (exists and 1969 <= year <= 2068)


STRATEGIES = {
    "greedy_decode": {},
    "sample": {"rng": 0, "temperature": 3.0},
    "beam_search": {"n_beams": 7},
    "speculative_sample": {"rng": 0, "lookahead": 3, "temperature": 3.0},
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("given_as", every_day(["pattern"], ["strings", "pattern"]))
def test_every_strategy_writes_dates_alone(library, name, given_as):
    """The model is drawn at random: what it says alone is no date."""
    vocabulary = Vocabulary.of(["2026-11-22", "345789 Sept"])
    weights = library.place(model(5, len(vocabulary), encoder=False))
    automaton = Automaton.of_strings(DAYS) if given_as == "strings" else Automaton.of_pattern(DATE)
    tokens = ["", "", "", *vocabulary.characters]
    asked = {"max_length": 11, "stop": vocabulary.stop, "pad": vocabulary.pad}
    asked["prompt"] = library.array(np.full((6, 1), vocabulary.start))
    asked |= STRATEGIES[name]
    decode = getattr(decoding, name)
    if name == "speculative_sample":
        draft = library.place(model(6, len(vocabulary), encoder=False))
        decode = lambda weights, **asked: decoding.speculative_sample(weights, draft, **asked)  # noqa: E731
    process = constrain(automaton, tokens, vocabulary.stop)
    found = decode(weights, processors=[process], **asked)
    rows = library.numpy(found.tokens).reshape(-1, 11)
    texts = [vocabulary.decode(row) for row in rows]
    for text, row in zip(texts, rows, strict=True):
        assert datetime.date.fromisoformat(text).isoformat() == text
        assert row[-1] == vocabulary.stop
    assert len(set(texts)) >= {"greedy_decode": 1, "beam_search": 7}.get(name, 5)


# Tokens of several symbols.

PAIRS = BytePairs.learn(["the thin then, the other one: heré, héré. THE end\n"], 272)
LINE = "[A-Z][a-z]+(,? [a-zé]{2,6}){2,3}[.!]\n".encode()


@pytest.mark.parametrize("seed", range(2))
def test_a_line_of_byte_pairs(seed):
    weights = model(seed, len(PAIRS), encoder=False)
    automaton = Automaton.of_pattern(LINE.replace("[a-zé]".encode(), "([a-z]|é)".encode()))
    process = constrain(automaton, PAIRS.tokens[: PAIRS.stop], PAIRS.stop)
    asked = {"prompt": np.full((20, 1), PAIRS.stop), "max_length": 200, "stop": PAIRS.stop}
    found = decoding.sample(weights, rng=seed, processors=[process], **asked)
    longer = 0
    for row, n in zip(found.tokens, found.lengths, strict=True):
        text = b"".join(PAIRS.tokens[i] for i in row[: n - 1])
        assert automaton.accepts(text)
        assert re.fullmatch("[A-Z][a-z]+(,? [a-zé]{2,6}){2,3}[.!]\n", text.decode())
        longer += sum(len(PAIRS.tokens[i]) > 1 for i in row[: n - 1])
    assert longer >= 20  # tokens of several bytes, in the middle of the pattern


def test_a_token_is_possible_if_a_valid_text_goes_on_with_all_of_it():
    tokens = ["", "a", "b", "ab", "ba", "bb", "aab", "c"]
    valid = ["aab", "abb", "b", "bab"]
    process = constrain(Automaton.of_strings(valid), tokens, stop=0)
    for made in ([], [1], [3], [6], [2], [4], [1, 1], [2, 3]):
        prefix = decoding.Prefix(np.array([5]), np.array(made, dtype=int))
        scores = np.arange(-1.0, -10.0, -1.0)[None]  # one more than there are tokens
        found = process(scores, [prefix])[0]
        text = "".join(tokens[i] for i in made)
        for i in range(9):
            ahead = tokens[i] if 0 < i < 8 else None
            possible = text in valid if i == 0 else False
            if ahead:
                possible = any(x.startswith(text + ahead) for x in valid)
            assert found[i] == (scores[0, i] if possible else -np.inf)


def test_a_symbol_that_is_no_token_is_not_needed():
    """Without c the text can end by "ab" alone, though "bc" is a token."""
    process = constrain(Automaton.of_strings(["ab", "abc"]), ["", "a", "b", "bc"], stop=0)
    found = decoding.greedy_decode(
        chain(np.array([[0.1, 0.2, 0.3, 0.4]] * 4)),
        prompt=0,
        max_length=5,
        stop=0,
        processors=[process],
    )
    assert found.tokens.tolist() == [[1, 2, 0]]


def test_each_sequence_and_each_beam_is_in_a_state_of_its_own(library):
    process = constrain(Automaton.of_strings(["aab", "aba", "bb"]), ["", "a", "b"], stop=0)
    weights = library.place(chain(np.full((3, 3), 1 / 3)))
    found = decoding.beam_search(
        weights, prompt=1, max_length=4, stop=0, n_beams=5, processors=[process]
    )
    rows = library.numpy(found.tokens)[0].tolist()
    assert rows[:3] == [[2, 2, 0, 0], [1, 1, 2, 0], [1, 2, 1, 0]]
    assert library.numpy(found.lengths)[0].tolist() == [3, 4, 4, 0, 0]


AB = Automaton.of_strings(["ab"])
ERRORS = r"""
Automaton.of_strings("ab")
    TypeError: strings must be several str or several bytes, got str
Automaton.of_strings(["ab", b"a"])
    TypeError: strings[1] must be str, got bytes
Automaton.of_strings([1])
    TypeError: strings[0] must be str or bytes, got int
Automaton.of_strings([])
    ValueError: strings must be at least one, got none
Automaton([{"a": 1}], [0])
    ValueError: transitions must be at most 0, got 1
Automaton([{"a": 0}], [1])
    ValueError: accepting must be at most 0, got 1
Automaton([{"a": 0}], "0")
    TypeError: accepting must be a set or a list of states, got str
Automaton({"a": 0}, [0])
    TypeError: transitions must be a sequence of mappings, one for each state
Automaton(3, [0])
    TypeError: transitions must be a sequence of mappings, one for each state
Automaton([{"a": 1}, {"a": 1}], [])
    ValueError: transitions must lead from state 0 to one of accepting, so that a string is valid
Automaton.of_pattern(1)
    TypeError: pattern must be a str or bytes, got int
Automaton.of_pattern("a)")
    ValueError: pattern must have no ) without a (, got 'a)' (at 1)
Automaton.of_pattern("(a")
    ValueError: pattern must have a ) for every (, got '(a' (at 2)
Automaton.of_pattern("[a")
    ValueError: pattern must have a ] before its end, got '[a' (at 2)
Automaton.of_pattern("a|*")
    ValueError: pattern must have something before *, got 'a|*' (at 2)
Automaton.of_pattern("a{2")
    ValueError: pattern must have a } before its end, got 'a{2' (at 3)
Automaton.of_pattern("a{x}")
    ValueError: pattern must have numbers between { and }, got 'a{x}' (at 4)
Automaton.of_pattern("a{3,2}")
    ValueError: pattern must have the smaller number first between { and }, got 'a{3,2}' (at 6)
Automaton.of_pattern("a{99999}")
    ValueError: pattern must have at most 20000 repetitions, got 'a{99999}' (at 8)
Automaton.of_pattern("(a{200}){200}")
    ValueError: pattern must have at most 20000 symbols written out
Automaton.of_pattern("a**")
    ValueError: pattern must have one sign of repetition at a time, got 'a**' (at 2)
Automaton.of_pattern("a*+a")
    ValueError: pattern must have one sign of repetition at a time, got 'a*+a' (at 2)
Automaton.of_pattern("a+?{2}")
    ValueError: pattern must have one sign of repetition at a time, got 'a+?{2}' (at 3)
Automaton.of_pattern("^a")
    ValueError: pattern must have no ^, since it stands for a whole text, got '^a' (at 0)
Automaton.of_pattern("a$")
    ValueError: pattern must have no $, since it stands for a whole text, got 'a$' (at 1)
Automaton.of_pattern("[z-a]")
    ValueError: pattern must have ranges such as a-z between [ and ], got '[z-a]' (at 4)
Automaton.of_pattern(r"\b")
    ValueError: pattern must have no such letter or digit after \, got '\\b' (at 1)
Automaton.of_pattern("a\\")
    ValueError: pattern must have a character before its end, got 'a\\' (at 2)
AB.run("a", 3)
    ValueError: state must be at most 2, got 3
AB.over({"a"})
    ValueError: transitions must lead from state 0 to one of accepting, so that a string is valid
constrain("ab", ["a", "b"], 0)
    TypeError: automaton must be an Automaton, got str
constrain(AB, "ab", 0)
    TypeError: tokens must be a sequence of str or bytes, got str
constrain(AB, ["a", b"b"], 0)
    TypeError: tokens must be all str or all bytes, got bytes and str
constrain(AB, [], 0)
    TypeError: tokens must be all str or all bytes, got none
constrain(AB, ["", "ab"], 0)
    ValueError: tokens must have those of which a valid text consists
constrain(AB, [b"", b"a", b"b"], 0)
    ValueError: tokens must have those of which a valid text consists
constrain(AB, ["", "a", "b"], -1)
    ValueError: stop must be at least 0, got -1
"""

test_automata_and_constraints_refuse = error_test(
    ERRORS, {"Automaton": Automaton, "AB": AB, "constrain": constrain}
)


def test_a_constraint_needs_a_prefix_for_each_row():
    process = constrain(AB, ["", "a", "b"], 0)
    with pytest.raises(ValueError, match="shorter"):
        process(np.zeros((2, 3)), [Prefix(np.array([0]), np.array([], dtype=int))])


def test_parentheses_as_deep_as_one_likes_are_read_or_refused():
    assert Automaton.of_pattern("(" * 100 + "a" + ")" * 100).accepts("a")
    with pytest.raises(ValueError, match=r"^pattern must have at most 100 parentheses inside one"):
        Automaton.of_pattern("(" * 2000 + "a" + ")" * 2000)
