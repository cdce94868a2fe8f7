"""Pruning: the writer without some of its heads, as the package computes it."""

import numpy as np
import pytest
from figures import caller, fits, lab_data, lab_named

from attnbook.models import writer
from tools.heads_of_writer import without

OFF = ([], [4], [0, 7, 21, 35], [1, 2, 4], list(range(36)))


@pytest.fixture(scope="module")
def lab():
    return lab_named("pruning")


@pytest.fixture(scope="module")
def record():
    return lab_data.pruning_record()


@pytest.fixture(scope="module")
def call():
    run = """
        const own = new modules["writer.js"].Writer(buffer);
        const rows = modules["pruning_record.js"].record.mean;
        function measured(off) {
            const other = own.replacing(new Map(off.map(place => [place, rows[place]])));
            const steps = modules["pruning.js"].measured(other);
            for (;;) { const { done, value } = steps.next(); if (done) return value; }
        }
    """
    names = ("arrays.js", "writer.js", "kit.js", "pruning_record.js", "tokens.js", "pruning.js")
    return caller(names, lab_data.made("writer.bin"), run)


def replaced(record, off):
    """Return attention of the package in which heads are replaced by their means."""
    mean = np.array(record["mean"], dtype=np.float32)
    return without(6, {divmod(place, 6): mean[place] for place in off})


@pytest.mark.parametrize("off", OFF)
def test_loss_and_text_without_heads(off, call, record):
    model, passage = writer(), record["passage"]
    text = model.tokenizer.decode(passage["ids"])
    found = call("off => measured(off)", off)
    expected = model.bits_per_byte(text, impl=replaced(record, off))
    assert found["bits"] == pytest.approx(expected, abs=2e-4)
    drawn = lab_data.drawn_after(record["prompt"], record["draws"], impl=replaced(record, off))
    assert found["pieces"][:10] == [lab_data.piece(i) for i in drawn][:10]


def test_the_whole_writer_stays_whole_beside_a_pruned_one(call, record):
    call("off => measured(off)", [1, 2])
    found = call("() => measured([])")
    assert found["bits"] == pytest.approx(record["whole"]["bits"], abs=2e-4)
    assert found["pieces"] == record["whole"]["pieces"]


def test_a_head_is_switched_off_and_on(lab):
    press = """(state, part) =>
        ({ ...state, ...lab.act(state, part, { kind: "press" }) })"""
    state = lab.call(press, lab.start, "head-2-5")
    assert state["off"] == [17]
    assert "Load the writer" in lab.call("state => lab.says(state, lab.numbers(state))", state)
    assert lab.call(press, state, "head-2-5")["off"] == []


def test_the_switch_for_the_least_needed_head_ends_with_all_off(lab, record):
    press = "state => ({ ...state, ...lab.controls[1].change(state) })"
    state = lab.start
    for _ in range(36):
        state = lab.call(press, state)
    assert state["off"] == record["ranked"]
    assert not lab.call("state => lab.controls[1].able(state)", state)


@pytest.mark.parametrize(("bits", "words"), [(1.8, "within the 0.1"), (2.5, "more than the 0.1")])
def test_what_is_known_is_shown(bits, words, lab, record):
    pieces = [" incomprehensible"] * 30 + ["\n"] * 10
    found = {"of": "3,20", "bits": bits, "pieces": pieces}
    state = fits(lab, off=[20, 3], found=found, loaded="ready", best=7)
    rise = lab.numbers(**state)["rise"]
    assert rise == pytest.approx(bits - record["whole"]["bits"])
    assert words in lab.call("state => lab.says(state, lab.numbers(state))", state)
    state["off"] = [3]
    assert lab.numbers(**state)["known"] is None
    fits(lab, **state)


def test_fifteen_heads_can_go_as_the_chapter_says(record):
    model = writer()
    text = model.tokenizer.decode(record["passage"]["ids"])
    whole = record["whole"]["bits"]
    rises = [
        model.bits_per_byte(text, impl=replaced(record, record["ranked"][:n])) - whole
        for n in (15, 16)
    ]
    assert rises[0] < 0.1 < rises[1]
