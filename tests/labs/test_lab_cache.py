"""The bytes of a cache: the numbers of the figure are those of the chapter, and of real caches."""

import re

import numpy as np
import pytest
from figures import ROOT, SEEDS, fits, lab_named

from attnbook import models
from attnbook.decoding import KVCache, greedy_decode

KEPT = {"own": 0, "half": 2, "sixth": 6}
CELL = re.search(
    r"^MODELS = .*?(?=^for name)", (ROOT / "book/variants.md").read_text("utf8"), re.M | re.S
)


@pytest.fixture(scope="module")
def chapter():
    """Return what the cell of the chapter defines."""
    names = {}
    exec(CELL[0], names)
    return names


def layers_of(groups):
    return [(width, window) for n, width, window in groups for _ in range(n)]


def bytes_by_layer(groups, n, bits, kept, window):
    """Return the bytes of a cache, layer by layer."""
    layers = layers_of(groups)
    if KEPT[kept]:
        n_global = int(np.floor(len(layers) / KEPT[kept] + 0.5))
        layers = [(width, None if i < n_global else window) for i, (width, _) in enumerate(layers)]
    return sum(width * min(n, own or n) * bits / 8 for width, own in layers)


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed, chapter):
    lab, rng = lab_named("cache"), np.random.default_rng(seed)
    context, window = int(rng.integers(8, 21)), int(rng.integers(6, 15))
    bits, kept = [16, 8, 4][seed % 3], list(KEPT)[seed % 2 + seed // 10]
    state = fits(lab, model=seed % 8, context=context, bits=str(bits), kept=kept, window=window)
    found = lab.numbers(**state)
    groups = chapter["MODELS"].values()
    expected = [bytes_by_layer(own, 2**context, bits, kept, 2**window) for own in groups]
    np.testing.assert_allclose(found["sizes"], expected)
    published = [chapter["cache_bytes"](own, 2**context) for own in groups]
    np.testing.assert_allclose(found["published"], published)


def test_names_are_those_of_the_chapter(chapter):
    shown = lab_named("cache").call("() => [...Array(8).keys()].map(lab.controls[0].show)")
    assert shown == list(chapter["MODELS"])


def test_the_writers_row_is_a_real_cache(chapter):
    cache = KVCache()
    prompt = np.arange(10)[None]
    greedy_decode(models.writer().weights, prompt=prompt, max_length=7, cache=cache)
    kept = sum(a.size for i in range(cache.n_layers) for a in (cache.keys(i), cache.values(i)))
    assert chapter["cache_bytes"](chapter["MODELS"]["the writer"], len(cache)) == 2 * kept


def test_a_row_can_be_chosen():
    lab = lab_named("cache")
    act = "(part, event) => lab.act(lab.start, part, event)"
    assert lab.call(act, "model-5", {"kind": "press"})["model"] == 5
    assert lab.call(act, "model-1", {"kind": "key", "key": "ArrowDown"})["model"] == 2
    assert lab.call(act, "model-1", {"kind": "key", "key": "ArrowUp"})["model"] == 0


def test_the_answers_of_the_page():
    lab = lab_named("cache")
    sizes = {n: lab.numbers(context=n)["sizes"] for n in (16, 17)}
    weights = 8.03e9 * 2
    assert sizes[16][1] < weights < sizes[17][1]
    fewer = lab.numbers(bits="4")["sizes"][3]
    windows = lab.numbers(kept="sixth")["sizes"][3]
    assert windows < fewer
    assert windows / sizes[17][3] == pytest.approx(0.17, abs=0.005)
