"""The rivals of the writer are what they say: true probabilities, by the book's definition."""

import hashlib
import json
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attnbook import data, models
from benchmarks import rivals, writer
from benchmarks.rivals_cache import Cache, seen
from benchmarks.rivals_ngrams import Ngrams, as_bytes, bits
from benchmarks.rivals_words import PIECE, Words

DATA = Path(__file__).parents[1] / "book" / "data"
CONTEXT = 8
STAND = SimpleNamespace(
    context=CONTEXT,
    tokenizer=SimpleNamespace(stop=3),
    weights=SimpleNamespace(arrays=lambda: {"a": np.zeros(5), "b": np.zeros((2, 3))}),
)


@pytest.fixture
def windows(monkeypatch):
    """Let a stand-in be read instead of the writer; its logits say how many tokens it saw."""
    windows = []

    def transformer(source, ids, weights):
        assert (source, weights) == (None, STAND.weights)
        windows.append(ids.tolist())
        return np.pad(np.arange(1.0, len(ids) + 1)[:, np.newaxis], ((0, 0), (0, 3)))

    monkeypatch.setattr(writer, "transformer", transformer)
    return windows


def cost(view):
    """Return the bits of token 0 by the stand-in with so many tokens in view."""
    return -np.log2(np.exp(view) / (np.exp(view) + 3))


TEXT = "the cat sat on the mat; the cat ate the rat that sat there. "
DISCOUNTS = np.array([(0.4, 0.7, 1.1), (0.5, 0.9, 1.3), (0.6, 1.1, 1.6), (0.7, 1.2, 1.9)])


class Slow:
    """Kneser-Ney as it is defined, with dictionaries of tuples."""

    def __init__(self, ids, n_ids, order, discounts):
        self.n_ids, self.order, self.discounts = n_ids, order, discounts
        padded = [None] * (order - 1) + list(ids)
        raw = Counter(tuple(padded[i - order + 1 : i + 1]) for i in range(order - 1, len(padded)))
        before = defaultdict(set)
        for i in range(order - 1, len(padded)):
            for n in range(1, order):
                before[tuple(padded[i - n + 1 : i + 1])].add(padded[i - n])
        self.counts = Counter({gram: len(ids) for gram, ids in before.items()}) + raw

    def p(self, context, x):
        context = tuple(context)
        n = len(context) + 1
        lower = self.p(context[1:], x) if n > 1 else 1 / self.n_ids
        counts = [self.counts[(*context, y)] for y in range(self.n_ids)]
        if not sum(counts):
            return lower
        taken = [min(c, self.discounts[n - 1][min(c, 3) - 1]) if c else 0 for c in counts]
        return (counts[x] - taken[x] + sum(taken) * lower) / sum(counts)


def sequence(rng, n, n_ids):
    """Return ids of which some follow others more often, so that contexts repeat."""
    step = rng.choice([1, 1, 1, 2, 3], size=n)
    return np.cumsum(step) % n_ids


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("longer", [0, 2])
def test_ngrams_are_kneser_ney_by_definition(order, longer):
    rng = np.random.default_rng(order)
    ids, other = sequence(rng, 120, 5), rng.integers(0, 7, size=40)  # 5 and 6 are new
    model = Ngrams(ids, 7, order + longer)  # an order is the same in a table of longer ones
    slow = Slow(ids.tolist(), 7, order, DISCOUNTS)
    found = model.probabilities(model.places(other), DISCOUNTS[:order])
    padded = [None] * (order - 1) + other.tolist()
    expected = [slow.p(padded[i : i + order - 1], x) for i, x in enumerate(other.tolist())]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 3, 5])
def test_the_probabilities_after_any_context_sum_to_one(order):
    ids = as_bytes(TEXT)
    model = Ngrams(ids, 256, order)
    for discounts in (model.discounts(order), model.tuned(as_bytes("that cat sat"), order)):
        for context in ("", "the ", "cat x", "zzzz", TEXT):
            rows = [np.append(as_bytes(context), x) for x in range(256)]
            p = [model.probabilities(model.places(row), discounts)[-1] for row in rows]
            assert min(p) > 0
            assert sum(p) == pytest.approx(1, abs=1e-12)


def test_discounts_are_chen_and_goodmans():
    # raw counts of the ids: five 1, three 2, two 3, one 4
    ids = np.array([*range(5), *np.repeat([5, 6, 7], 2), *np.repeat([8, 9], 3), *[10] * 4])
    y = 5 / (5 + 2 * 3)
    expected = [1 - 2 * y * 3 / 5, 2 - 3 * y * 2 / 3, 3 - 4 * y * 1 / 2]
    np.testing.assert_allclose(Ngrams(ids, 11, 1).discounts(1), [expected])


def test_tuned_discounts_are_no_worse_and_in_their_ranges():
    model, other = Ngrams(as_bytes(TEXT), 256, 3), as_bytes("the rat sat on the cat")
    places, tuned = model.places(other), model.tuned(other, 3)
    cost = bits(model.probabilities(places, tuned))
    assert cost < bits(model.probabilities(places, model.discounts(3)))
    assert (tuned > 0).all()
    assert (tuned < [1, 2, 3]).all()


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_seen_counts_what_followed_in_the_window(window):
    ids = np.random.default_rng(0).integers(0, 3, size=30)
    found = seen(ids, 2, window)
    for m in range(3):
        for i in range(len(ids)):
            earliest = 0 if window is None else max(i - window, 0)
            if i < m:
                assert found.totals[m, i] == 0
                continue
            context = ids[i - m : i].tolist()
            after = [
                ids[j] for j in range(earliest, i) if j >= m and ids[j - m : j].tolist() == context
            ]
            assert found.totals[m, i] == len(after)
            assert found.followed[m, i] == after.count(ids[i])


def test_a_cache_learns_what_repeats_and_stays_a_probability():
    ids = np.tile([3, 1, 4, 1, 5, 9], 20)
    text, p = seen(ids, 2, None), np.full(120, 0.1)
    cache = Cache(2).fit(p, text)
    assert bits(cache.probabilities(p, text)) < bits(p) / 4
    assert ((cache.weights >= 0) & (cache.weights <= 1)).all()
    # all ten ids after the same past
    sums = 0
    for x in range(10):
        row = seen(np.append(ids, x), 2, None)
        sums += cache.probabilities(np.full(121, 0.1), row)[-1]
    assert sums == pytest.approx(1)


def test_pieces_are_the_whole_text():
    for text in (data.plays().validation, " a  b\tc\n\n d's e''f -- g\n"):
        assert "".join(PIECE.findall(text)) == text


def test_words_spell_what_they_do_not_know():
    train = " the cat saw the cat." * 3 + " a dog and a pig"
    words = Words(train, " the dig")
    known = [words.ids[word] for word in (" the", " cat", " saw")]
    assert words.encode(" the cat saw").tolist() == known
    assert words.encode(" the dog").tolist() == [known[0], 0]
    assert words.bits(" the cat") == 0
    assert 0 < words.bits(" the dog") < words.bits(" the zebra")
    places = words.spelling.places(as_bytes(" dog\0"))  # the end is spelled too
    assert words.bits(" the dog") == bits(words.spelling.probabilities(places, words.discounts))
    assert words.bits(" the dog dog") > words.bits(" the dog")


def test_compressors_find_the_training_text_again():
    text = rivals.Text(TEXT * 20, TEXT, TEXT[:30])
    rows = {(row["model"], row["how"]): row for row in rivals.compressors(text)}
    assert {name for name, _ in rows} == {"gzip -9", "bz2 -9", "xz -9e"}
    for name in ("gzip -9", "xz -9e"):
        assert rows[name, "after_train"]["validation"] < rows[name, "alone"]["validation"]


def test_the_dictionary_of_xz_holds_all_plays():
    assert sum(map(len, data.plays().texts.values())) < rivals.XZ[0]["dict_size"]


@pytest.mark.parametrize("n", [1, 3, 8, 9, 12, 21])
def test_every_token_counts_once_and_has_half_a_context(n, windows):
    losses = writer.per_token(STAND, np.zeros(n, int))
    views = [i + 1 if i < 8 else 5 + (i - 8) % 4 for i in range(n)]
    np.testing.assert_allclose(losses.tokens, [cost(view) for view in views])
    assert windows[0][0] == 3  # the first token is predicted from the stop token
    assert all(0 < len(ids) <= 8 for ids in windows)
    for row in losses.windows:
        known = row[~np.isnan(row)]
        np.testing.assert_allclose(known, [cost(view) for view in range(1, len(known) + 1)])


@pytest.mark.usefixtures("windows")
def test_places_are_doublings_of_the_view():
    losses = writer.per_token(STAND, np.zeros(21, int))
    rows = list(writer.places(CONTEXT, losses, np.arange(21.0)))
    assert [(row["first"], row["last"]) for row in rows] == [(1, 1), (2, 3), (4, 8)]
    assert rows[0]["writer"] == pytest.approx(cost(1))
    assert rows[1]["writer"] == pytest.approx((cost(2) + cost(3)) / 2)
    # windows begin at 0, 4, 8, 12 and 16, and the last of them has five tokens
    assert rows[0]["ngrams"] == pytest.approx(np.mean([0, 4, 8, 12, 16]))
    assert rows[1]["ngrams"] == pytest.approx(np.mean([1.5, 5.5, 9.5, 13.5, 17.5]))


def test_names_are_the_lines_with_a_speaker():
    text = "KING LEAR:\nNo: I will.\nALL: that\n\nFOOL:\nHa"
    tokenizer = data.BytePairs.learn(text, 262)
    found = writer.names(tokenizer, text, tokenizer.encode(text))
    pieces = tokenizer.pieces(text)
    named = "".join(piece for piece, is_name in zip(pieces, found, strict=True) if is_name)
    assert named == "KING LEAR:\nFOOL:\n"


def test_the_writer_has_a_row_of_the_same_bytes():
    text = rivals.Text("abcd", "ab", "abcd")
    losses = [writer.Losses(np.full(n, 2.0), np.zeros((1, 8))) for n in (2, 3)]
    found = writer.writer_row(STAND, text, losses)
    assert (found["validation"], found["test"]) == (2.0, 1.5)
    assert (found["parameters"], found["context"]) == (11, 8)


def recorded(name):
    return json.loads((DATA / f"{name}.cpu.json").read_text(encoding="utf-8"))


def test_the_record_has_every_rival_and_the_writer_on_the_same_text():
    found, ours = recorded("rivals"), recorded("writer")
    orders = {(row["unit"], row["order"]) for row in found["ngrams"]}
    assert {(unit, n) for unit in ("byte", "byte pair") for n in range(1, 7)} <= orders
    assert {row["how"] for row in found["compressors"]} == {"alone", "after_train"}
    plays = data.plays()
    sizes = {part: len(getattr(plays, part)) for part in ("train", "validation", "test")}
    assert found["bytes"] == ours["bytes"] == sizes
    assert found["titles"] == ours["titles"]


@pytest.mark.parametrize("part", ["validation", "test"])
def test_the_writer_beats_every_ngram_model_and_compressor(part):
    found = recorded("rivals")
    rivals = [row[part] for row in found["ngrams"] if row["cache"] is None]
    rivals += [row[part] for row in found["compressors"]]
    assert recorded("writer")["writer"][0][part] < min(rivals)


def test_what_the_page_says_of_a_cache():
    ours = recorded("writer")["writer"][0]
    cached = [row for row in recorded("rivals")["ngrams"] if row["cache"]]
    assert len(cached) == 3
    assert all(ours["validation"] < row["validation"] for row in cached)
    assert all(row["test"] < ours["test"] for row in cached)
    lines = {(row["model"], row["part"]): row for row in recorded("writer")["lines"]}
    for part in ("validation", "test"):
        mine, theirs = lines["writer", part], lines["Kneser-Ney, cache", part]
        assert mine["names"] > theirs["names"]
        assert mine["words"] < theirs["words"]
        assert mine["names"] + mine["words"] == pytest.approx(ours[part])


def test_the_record_is_of_the_weights_that_are_shipped():
    stored = resources.files("attnbook.models").joinpath("writer.npz").read_bytes()
    assert recorded("writer")["sha256"] == hashlib.sha256(stored).hexdigest()


def test_the_benchmark_judges_as_the_writer_itself_does():
    model, text = models.writer(), data.plays().test[:1500]
    ids = model.tokenizer.encode(text)
    assert len(ids) > 2 * model.context
    found = writer.per_token(model, ids)
    np.testing.assert_allclose(found.tokens, model.surprisal(text), rtol=1e-4, atol=1e-4)
