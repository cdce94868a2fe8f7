"""The table of letters: each symbol has one row and one meaning, and the chapters know no other."""

import re
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[1] / "book"
PAGE = (BOOK / "notation.md").read_text("utf8")
LETTERS, FREE = re.search(
    r"^## Letters\n(.*?)^### Free letters\n(.*?)^## ", PAGE, re.M | re.S
).groups()
CHAPTERS = (
    *("single_head", "multi_head", "masking", "transformer", "training"),
    *("backpropagation", "decoding", "variants", "linear_attention", "hashing", "estimators"),
    *("sketch", "fast_attention"),
    "distributed",
)
PLURAL = r"\b(or|also|elsewhere|sometimes|otherwise)\b|\bhere\b|in (the|this) chapter"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def symbols(cell):
    """Return the formulas of a cell, each without spaces but those that end a command."""
    space = r"\\[,;!]|(?<![A-Za-z]) | (?![A-Za-z])"
    return [re.sub(space, "", formula) for formula in re.findall(r"\$([^$]+)\$", cell)]


def rows(text):
    """Return the rows of all tables of letters in `text`: symbols and meaning."""
    lines = [cells(line) for line in text.splitlines() if line.startswith("| $")]
    return [(symbols(line[0]), line[1]) for line in lines]


def several_rows(table):
    """Return the symbols that have more than one row."""
    listed = [symbol for names, _ in table for symbol in names]
    return sorted({symbol for symbol in listed if listed.count(symbol) > 1})


def several_meanings(table):
    """Return the rows that tell two meanings apart by where they stand."""
    return [names for names, meaning in table if re.search(PLURAL, meaning)]


TABLE = rows(LETTERS)
KNOWN = {symbol for names, _ in TABLE for symbol in names}
FREE_LETTERS = set(symbols(FREE.partition(". ")[0]))


def test_each_symbol_has_one_row_and_one_meaning():
    assert len(TABLE) > 60
    assert all(names and meaning for names, meaning in TABLE)
    assert several_rows(TABLE) == []
    assert several_meanings(TABLE) == []


@pytest.mark.parametrize(
    "line",
    [
        "| $M$ | memory | |",
        "| $q$, $M$ | mass of a set | |",
        "| $r$ | width of an interval, also a row | |",
        "| $L$ | a loss or a number of tables | |",
    ],
)
def test_a_second_meaning_is_noticed(line):
    table = [*rows("| $M$ | mask | |\n"), *rows(line)]
    assert several_rows(table) or several_meanings(table)


def test_a_free_letter_has_no_row():
    assert len(FREE_LETTERS) > 10
    assert not FREE_LETTERS & KNOWN


@pytest.mark.parametrize("name", CHAPTERS)
def test_what_the_tables_of_a_chapter_define_stands_in_the_notation(name):
    """Every symbol of a chapter's table of shapes has its row, unless its letter is free."""
    text = (BOOK / f"{name}.md").read_text("utf8")
    tables = re.findall(r"^\| symbol \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M)
    assert tables
    named = {s for table in tables for line in table.splitlines() for s in symbols(cells(line)[0])}
    named = {re.split(r"=|\(\\cdot", symbol)[0] for symbol in named}
    assert named - FREE_LETTERS - KNOWN == set()


WORDS = re.compile(r"\\(?:text|operatorname|begin|end|label)\*?\{[^}]*\}")
INDEX = re.compile(r"_(?:\{(?:[^{}]|\{[^}]*\})*\}|\\[A-Za-z]+|.)")
ACCENT = r"\\(?:hat|bar|tilde|mathcal|mathbb)"
COMMAND = re.compile(rf"(?!{ACCENT}\b)\\[A-Za-z]+")


def capitals(formula):
    """Return the capital letters of a formula, each with its accent and without its index."""
    for other in (WORDS, INDEX, COMMAND):
        formula = other.sub(" ", formula)
    return set(re.findall(rf"(?:{ACCENT})?[A-Z]", re.sub(rf"({ACCENT}) ", r"\1", formula)))


@pytest.mark.parametrize("name", CHAPTERS)
def test_capitals_of_definitions_and_theorems_are_known(name):
    """In what a chapter defines and states, proofs aside, no capital letter lacks a row."""
    text = (BOOK / f"{name}.md").read_text("utf8")
    stated = re.findall(r"^(`{3,})\{prf:(?:theorem|definition)\}(.*?)^\1$", text, re.M | re.S)
    formulas = re.findall(r"\$\$.*?\$\$|\$[^$]+\$", "".join(body for _, body in stated), re.S)
    assert formulas
    used = set().union(*map(capitals, formulas))
    known = set().union(*map(capitals, KNOWN | FREE_LETTERS))
    assert used - known == set()


def test_an_unknown_capital_is_noticed():
    assert capitals(r"\text{A} + \hat F_{1N}\Bigl U = QW_O") == {"U", r"\hatF", "Q", "W"}
