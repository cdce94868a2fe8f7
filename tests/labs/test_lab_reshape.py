"""Splitting heads: the figure shows what NumPy's reshape and the package's split do."""

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

from attnbook import split_heads

MEMORY = np.arange(32).reshape(4, 8)


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    lab, rng = lab_named("reshape"), np.random.default_rng(seed)
    heads, cell = int(rng.choice([1, 2, 4])), int(rng.integers(32))
    way = ["swap", "bare"][seed % 2]
    found = lab.numbers(**fits(lab, heads=heads, cell=cell, way=way))
    expected = MEMORY.reshape(heads, 4, -1) if seed % 2 else split_heads(MEMORY * 1.0, heads)
    np.testing.assert_array_equal(found["arrays"], expected)
    assert found["place"] == [int(i[0]) for i in np.where(expected == cell)]
    rows = np.broadcast_to(np.arange(4)[None, :, None], expected.shape)
    tokens = expected // 8
    assert found["own"] == (rows == tokens).sum()
    later = np.zeros(32, dtype=bool)
    later[expected[tokens > rows].astype(int)] = True
    np.testing.assert_array_equal(found["later"], later)
    assert (found["token"], found["feature"]) == divmod(cell, 8)


def test_words():
    lab = lab_named("reshape")
    says = "state => lab.says(state, lab.numbers(state))"
    assert "All 32 entries" in lab.call(says, lab.start | {"way": "swap"})
    assert "12 (underlined) come too early" in lab.call(says, lab.start)


@pytest.mark.parametrize(("key", "cell"), [("ArrowUp", 13), ("ArrowLeft", 20), ("ArrowDown", 29)])
def test_arrows_go_from_cell_to_cell(key, cell):
    act = "key => lab.act(lab.start, 'cell-21', { kind: 'key', key })"
    assert lab_named("reshape").call(act, key) == {"cell": cell}
