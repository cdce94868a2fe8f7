"""Who sees whom: the figure's paths are those on which layers of attention pass a change on."""

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

import attnbook as ab
from attnbook import masking


def reached(mask, layers, seed):
    """Change an input, and see which outputs of a stack of attention with residuals move."""
    x = np.random.default_rng(seed).normal(size=(len(mask), 8))
    alike = np.zeros_like(x)  # queries and keys: no weight is too small to be seen

    def stack(x):
        for _ in range(layers):
            x = x + ab.attention(alike, alike, x, mask)
        return x

    found = np.zeros(mask.shape, dtype=int)
    for j in range(len(mask)):
        changed = x.copy()
        changed[j] += 1 + np.arange(8) / 8
        found[:, j] = np.abs(stack(changed) - stack(x)).max(axis=-1) > 1e-9
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    lab, rng = lab_named("mask"), np.random.default_rng(seed)
    mask = rng.random((6, 6)) < 0.3
    layers, chosen = int(rng.integers(1, 5)), int(rng.integers(6))
    state = fits(lab, mask=mask.astype(int).tolist(), form="own", layers=layers, chosen=chosen)
    found = lab.numbers(**state)
    expected = reached(mask, layers, seed)
    np.testing.assert_array_equal(found["reach"], expected)
    assert found["leaks"] == np.argwhere(np.triu(expected, 1)).tolist()
    assert len(found["trace"]) == layers + 1
    assert found["trace"][0] == np.flatnonzero(expected[chosen]).tolist()
    assert found["trace"][-1] == [chosen]


@pytest.mark.parametrize(
    ("form", "mask"),
    [
        ("causal", masking.causal(6)),
        ("window", masking.sliding_window(6, left=1)),
        ("prefix", masking.prefix(6, length=3)),
        ("slip", np.tri(6, k=1, dtype=bool)),
    ],
)
def test_masks_of_the_package(form, mask):
    lab = lab_named("mask")
    made = lab.call("form => lab.controls[0].change(form).mask", form)
    np.testing.assert_array_equal(made, mask)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("causal", "positions 0, 1, 2, 3, 4 and 5. No output depends on a later position."),
        ("window", "positions 2, 3, 4 and 5. No output depends on a later position."),
        ("prefix", "The outputs at 0 and 1 depend on later positions: the mask leaks."),
        ("slip", "The outputs at 0, 1, 2, 3 and 4 depend on later positions: the mask leaks."),
    ],
)
def test_words(form, words):
    lab = lab_named("mask")
    mask = lab.call("form => lab.controls[0].change(form).mask", form)
    says = "state => lab.says(state, lab.numbers(state))"
    assert lab.call(says, lab.start | {"mask": mask}).endswith(words)


def test_cells_are_painted_by_drag_and_toggled_by_key():
    lab = lab_named("mask")
    act = "(state, part, event) => lab.act(state, part, event) ?? null"
    state = lab.start | lab.call(act, lab.start, "cell-0-3", {"kind": "down"})
    assert state["mask"][0] == [1, 0, 0, 1, 0, 0]
    state |= lab.call(act, state, "cell-0-3", {"kind": "drag", "over": "cell-0-4"})
    state |= lab.call(act, state, "cell-0-3", {"kind": "drag", "over": "cell-0-0"})
    state |= lab.call(act, state, "cell-0-3", {"kind": "up"})
    assert state["mask"][0] == [1, 0, 0, 1, 1, 0]
    assert state["form"] == "own"
    assert lab.call(act, state, "cell-0-3", {"kind": "drag", "over": "cell-0-5"}) is False
    state |= lab.call(act, state, "cell-0-0", {"kind": "key", "key": "ArrowDown"})
    assert state["cursor"] == [1, 0]
    state |= lab.call(act, state, "cell-1-0", {"kind": "press"})
    assert state["mask"][1] == [0, 1, 0, 0, 0, 0]
    assert lab.call(act, state, "output-5", {"kind": "key", "key": "ArrowLeft"}) == {"chosen": 4}
    assert lab.call(act, state, "output-2", {"kind": "press"}) == {"chosen": 2}
