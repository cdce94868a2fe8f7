"""The reader of dates that the page `date_reader` shows, and the script that made it."""

import json
import sys
from pathlib import Path

import jupytext
import numpy as np
import pytest

import attnbook

pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))  # no part of the installed package

import train_date_reader as tool  # noqa: E402

from attnbook import TransformerWeights  # noqa: E402

RECORD = json.loads((ROOT / "book/data/dates.cpu.json").read_text("utf8"))


@pytest.fixture(scope="module", autouse=True)
def pairs():
    """The pairs that the script trains on, drawn when the first test needs them."""
    global PAIRS, VOCABULARY
    PAIRS, VOCABULARY = tool.parts()


def test_no_day_is_in_two_parts():
    days = {name: {iso for _, iso in pairs} for name, pairs in PAIRS.items()}
    assert not days["train"] & days["validation"]
    assert not days["test"] & (days["train"] | days["validation"])
    assert RECORD["days"] == {name: len(found) for name, found in days.items()}
    assert RECORD["pairs"] == {name: len(pairs) for name, pairs in PAIRS.items()}


def test_validation_chose_the_rate_and_the_seed_was_not_chosen():
    wrong = dict.fromkeys(tool.RATES, 0)
    for run in RECORD["runs"]:
        wrong[run["lr"]] += run["wrong"]
    assert len(RECORD["runs"]) == len(tool.RATES) * len(tool.SEEDS)
    assert RECORD["recipe"]["lr"] == min(wrong, key=wrong.__getitem__)
    assert RECORD["recipe"]["seed"] == 0


def test_the_stored_weights_make_the_recorded_mistakes():
    with np.load(ROOT / "book/data/date_reader.npz") as stored:
        arrays = {name: stored[name].astype(np.float32) for name in stored}
    weights = TransformerWeights.init(0, len(VOCABULARY), **tool.SIZES).with_arrays(arrays)
    known = {text for text, _, _ in RECORD["test_mistakes"]}
    asked = [pair for pair in PAIRS["test"] if pair[0] in known] + PAIRS["test"][:100]
    found = {tuple(row) for row in tool.mistakes(weights, asked, VOCABULARY)}
    expected = {tuple(row) for row in RECORD["test_mistakes"]}
    assert len(found ^ expected) <= 1  # a near tie may fall otherwise on another processor


def without_rows(weights, head, *, copied=True, rows=32, others=0.0, other=0):
    """Return `weights` without the rows of a head, in the ways of `ABLATIONS`."""
    name = "decoder.layers.0.cross_attention.W_O"
    arrays = {k: x.copy() if copied else x for k, x in weights.arrays().items()}
    head ^= other
    arrays[name][rows * head : rows * (head + 1)] = 0
    arrays["target_embedding"][0] += others
    return weights.with_arrays(arrays)


ABLATIONS = [
    ({}, "Right."),
    ({"copied": False}, "Your function changes the reader itself"),
    ({"rows": 16}, "These are not the 32 rows"),
    ({"other": 1}, "This is the other head"),
    ({"others": 1.0}, "Leave the other arrays as they are: target_embedding"),
]


@pytest.mark.parametrize(("options", "right"), ABLATIONS)
def test_the_check_of_a_head_that_is_removed_asks_for_a_copy(options, right):
    """It is taken from the chapter, and meets weights of another draw there."""
    cells = jupytext.read(ROOT / "book/date_reader.md").cells
    source = "\n".join(
        cell["source"]
        for cell in cells
        if cell["source"].startswith(("CROSS = ", "def check_without("))
    )
    reader = TransformerWeights.init(0, 7, d_model=64, n_heads=2, d_ff=5, n_layers=1)
    before = {k: x.copy() for k, x in reader.arrays().items()}
    names = {"ab": attnbook, "np": np, "reader": reader}
    exec(source, names)
    found = names["check_without"](lambda weights, head: without_rows(weights, head, **options))
    assert found.startswith(right)
    cross = names["CROSS"]
    np.testing.assert_array_equal(reader.arrays()[cross], before[cross])
