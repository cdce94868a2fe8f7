"""Cheating: two small models, trained alike but for the mask."""

import numpy as np
import pytest
from cases import load
from figures import ROOT, fits, lab_data, lab_named

from attnbook import cross_entropy, transformer
from attnbook.training import gradients


@pytest.fixture(scope="module")
def module():
    return lab_data.in_page("cheating")


@pytest.fixture(scope="module")
def lab():
    return lab_named("cheating")


@pytest.fixture(scope="module")
def record(lab):
    """Return what the figure begins with: a whole run."""
    return lab.numbers()


def test_both_begin_alike_and_differ_in_the_mask_alone(module):
    pair = module.Pair(0)
    windows = pair.held
    first = [
        gradients(w, windows[:, :-1], windows[:, 1:], is_causal=c) for c, w in pair.weights.items()
    ]
    assert pair.weights[True] is pair.weights[False]
    assert first[0][0] != first[1][0]
    logits = transformer(None, windows[:, :-1], pair.weights[False], is_causal=False)
    np.testing.assert_allclose(first[1][0], cross_entropy(logits, windows[:, 1:]), rtol=1e-5)


def test_every_letter_is_a_byte_and_the_held_out_play_is_not_read(module):
    pair = module.Pair(0)
    assert "".join(pair.letters).isascii()
    assert pair.numbers("".join(pair.letters)).tolist() == list(range(len(pair.letters)))
    held = ["".join(pair.letters[i] for i in row) for row in pair.held.tolist()]
    read = module.data.plays().train
    assert not any(words in read for words in held[1:])


def test_steps_in_parts_are_those_in_one_go(module, capsys):
    whole = module.Pair(3).train(4)
    module.begin(3)
    module.train(3)
    module.train(1)
    first, second = (module.json.loads(line) for line in capsys.readouterr().out.splitlines()[1:])
    assert {kind: first[kind] + second[kind] for kind in first} == whole


def test_the_cheat_has_a_tiny_loss_until_it_writes(record):
    masked, unmasked = record["end"]["masked"], record["end"]["unmasked"]
    assert len(record["losses"]["masked"]) == len(record["losses"]["unmasked"]) == record["steps"]
    assert unmasked["one_pass"] < 0.5 < 3 < masked["one_pass"]
    assert masked["one_by_one"] == pytest.approx(masked["one_pass"], abs=2e-3)
    assert unmasked["one_by_one"] > masked["one_by_one"] + 1
    assert record["losses"]["unmasked"][-1] < 0.5 < record["losses"]["masked"][-1]


PYTHON = """async (state, answers) => {
    const asked = [];
    globalThis.attnbookPython = { run: async guest => {
        asked.push(guest.text);
        const answer = answers.shift();
        guest.show({ kind: "stream", name: "stdout", text: "what a cell prints\\n" });
        guest.show({ kind: "stream", name: "stdout", text: JSON.stringify(answer) + "\\n" });
        return { ok: answer !== null };
    } };
    for (let found; (found = await lab.next(state)); ) state = { ...state, ...found };
    return [state, asked];
}"""


def waited(lab, *values):
    """Return what a promise becomes, outside a browser."""
    lab.call(f"(...v) => {{ ({PYTHON})(...v).then(x => globalThis.done = x); return 0; }}", *values)
    return lab.call("() => globalThis.done")


def test_the_page_trains_until_the_end(lab):
    start = lab.call("state => ({ ...state, ...lab.controls[0].change(state) })", lab.start)
    assert not lab.call("state => lab.controls[0].able(state)", start)
    some = {"masked": [3.0] * 10, "unmasked": [1.0] * 10}
    end = {"one_pass": 1.0, "one_by_one": 2.0, "text": "abc"}
    answers = [{"steps": 120}, *[some] * 12, {"masked": end, "unmasked": end}]
    state, asked = waited(lab, start, answers)
    assert asked == [
        f'__import__("cheating").{call}' for call in ("begin(0)", *["train(10)"] * 12, "end()")
    ]
    assert state["phase"] == "done"
    assert lab.numbers(**state)["step"] == 120
    assert lab.call("state => lab.controls[0].able(state)", state)
    fits(lab, **state)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_stop_on_the_way(n, lab):
    start = lab.start | {"phase": "begin", "seed": 0}
    some = {"masked": [3.0] * 10, "unmasked": [1.0] * 10}
    answers = [{"steps": 120}, *[some] * (n - 1)] if n else []
    state, _ = waited(lab, start, [*answers, None])
    assert state["phase"] == "failed"
    fits(lab, **state)
    assert "stopped" in lab.call("state => lab.says(state, lab.numbers(state))", state)


def test_the_page_loads_the_modules_of_figures():
    assert {"cheating.py", "own_attention.py"} < set(load(ROOT / "book/_ext/live.py").OWN)
