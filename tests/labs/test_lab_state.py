"""A state that fills: the numbers of the figure are those of the package."""

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

from attnbook import linear_attention

VALUES = np.array([[2.0, 0], [0, 3], [5, 5], [1, 1]])


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    lab, rng = lab_named("state"), np.random.default_rng(seed)
    rule = ["sum", "fading", "delta"][seed % 3]
    state = fits(lab, tokens=int(rng.integers(5)), angle=int(rng.integers(91)), rule=rule)
    turned, n = np.deg2rad(state["angle"]), state["tokens"]
    keys = np.array([[1, 0], [0, 1], [np.cos(turned), np.sin(turned)], [1, 0]])
    found = lab.numbers(**state)
    given = keys[:n], keys[:n], VALUES[:n]
    if rule == "delta":
        _, right = linear_attention.delta_rule(*given, np.ones(n))
    else:
        fading = np.log(np.full(n, 1.0 if rule == "sum" else 0.5))
        _, right = linear_attention.decayed_attention(*given, fading)
    np.testing.assert_allclose(found["state"], right, atol=1e-12)
    np.testing.assert_allclose(found["reads"], keys[:3] @ right, atol=1e-12)
    np.testing.assert_allclose(found["wanted"][0], VALUES[3 if n == 4 else 0])


def test_the_answers_below_the_figure():
    lab = lab_named("state")
    np.testing.assert_allclose(lab.numbers(angle=90)["reads"][0], [2, 0], atol=1e-12)
    erased = lab.numbers(tokens=4, rule="delta")["reads"]
    np.testing.assert_allclose(erased[0], [1, 1])
    before = lab.numbers(tokens=3, rule="delta")["reads"]
    np.testing.assert_allclose(erased[1], before[1])
    assert not np.allclose(erased[2], before[2])


@pytest.mark.parametrize("angle", [0, 30, 90])
def test_the_third_key_can_be_turned(angle):
    lab = lab_named("state")
    where = "(angle) => lab.draw({ ...lab.start, angle }, lab.numbers({ ...lab.start, angle }), 680)"
    knob = lab.call(where, angle).split('class="reach"')[0].rpartition("<circle")[2]
    x, y = (float(knob.split(f'{name}="')[1].split('"')[0]) for name in ("cx", "cy"))
    act = "(x, y) => lab.act(lab.start, 'lord', { kind: 'drag', x, y, width: 680 })"
    assert lab.call(act, x, y)["angle"] == angle
    key = "(key) => lab.act(lab.start, 'lord', { kind: 'key', key })"
    assert lab.call(key, "ArrowUp")["angle"] == 54
