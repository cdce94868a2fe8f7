"""The benchmark of writers with a state: equal sizes, questions with answers, a whole record."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from attnbook import transformer
from benchmarks import linear_decoding, linear_models, linear_recall, linear_writers
from benchmarks.__main__ import main


def described():
    names = linear_models.ARCHITECTURES
    return linear_writers.described(linear_writers.FULL, names, linear_writers.model_of)


def test_all_writers_have_about_as_many_parameters():
    about = described()
    sizes = [one["parameters"] for one in about.values()]
    assert max(sizes) < 1.01 * min(sizes)
    assert about["hybrid"]["layers"] == 3 * ["gated delta"] + ["softmax"]
    assert about["hybrid"]["d_ff"][:3] == about["gated delta"]["d_ff"][:3]


@pytest.mark.parametrize("pairs", [1, 3, linear_recall.KEYS])
def test_each_key_is_asked_for_once_and_answered_by_its_value(pairs):
    ids = linear_recall.sequences(np.random.default_rng(0), 5, pairs)
    assert ids.shape == (5, 4 * pairs)
    for row in ids:
        told, asked = row[: 2 * pairs].reshape(-1, 2), row[2 * pairs :].reshape(-1, 2)
        held = dict(told.tolist())
        assert len(held) == pairs
        assert max(held) < linear_recall.KEYS <= min(held.values())
        assert dict(asked.tolist()) == held


def test_the_rows_of_the_answers_predict_the_values_that_are_asked_for():
    ids = linear_recall.sequences(np.random.default_rng(1), 2, 4)
    labels = ids[:, 1:]
    rows = linear_recall.answers(labels.shape[1])
    np.testing.assert_array_equal(labels[:, rows], ids[:, 8:].reshape(2, 4, 2)[:, :, 1])


def test_a_model_that_knows_the_answers_is_always_right():
    class Knows(torch.nn.Module):
        def forward(self, source, inputs):
            logits = torch.zeros(*inputs.shape, linear_recall.VOCABULARY)
            for i, row in enumerate(inputs.tolist()):
                n = (len(row) + 1) // 2
                held = dict(zip(row[:n:2], row[1:n:2], strict=True))
                for j in range(n, len(row), 2):
                    logits[i, j, held[row[j]]] = 1
            return logits

    assert linear_recall.accuracy(Knows(), 5, 3, 0) == 1


@pytest.mark.parametrize("name", linear_models.ARCHITECTURES)
def test_a_filled_decoder_goes_on_after_its_context(name):
    decoder = linear_decoding.filled(linear_writers.QUICK, name, 20)
    assert len(decoder.cache) == decoder.n == 20
    before = linear_decoding.n_bytes(decoder.cache)
    decoder.step(np.array([3]))
    assert len(decoder.cache) == 21
    grown = linear_decoding.n_bytes(decoder.cache) - before
    layers = linear_models.kinds_of(name, 4).count("softmax")
    assert grown == layers * 2 * linear_writers.QUICK["sizes"]["d_model"] * 4


def test_by_position_is_the_loss_of_the_tokens_there():
    plan = linear_writers.QUICK | {"longest": 12, "edges": (0, 5, 12)}
    text = linear_writers.Text(
        *(" ".join(f"to be {i} or not" for i in range(n)) for n in (90, 60, 60))
    )
    plays = linear_writers.Plays(plan, text)
    drawn = linear_models.weights_of(["linear"], 0, plan["vocabulary"], **plan["sizes"])
    from attnbook import nn

    model = nn.Transformer(drawn.to("torch", dtype="float32"))
    got = plays.by_position(model)
    losses = []
    for window in plays.far:
        ids = np.asarray(window)
        logits = np.asarray(transformer(None, ids[None, :-1], drawn))[0]
        logits -= logits.max(-1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses.append(-log_p[np.arange(len(ids) - 1), ids[1:]])
    mean = np.mean(losses, axis=0)
    assert got == pytest.approx([mean[:5].mean(), mean[5:].mean()], abs=1e-4)


@pytest.mark.weekly
def test_a_quick_run_writes_the_whole_record(tmp_path):
    assert main(["linear_writers", "--quick", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    record = json.loads(path.read_text("utf-8"))
    names = set(linear_models.ARCHITECTURES)
    for table in ("rates", "runs", "decoding_rows"):
        assert {row["architecture"] for row in record[table]} == names
    assert {row["architecture"] for row in record["recall_runs"]} == set(linear_recall.LAYERS)
    for row in record["runs"]:
        assert len(row["by_position"]) == len(record["edges"]) - 1
        assert row["lr"] in {rate["lr"] for rate in record["rates"]}
    assert not (tmp_path / "linear_writers.cpu.runs.partial").exists()


@pytest.fixture(scope="module")
def record():
    path = Path(__file__).parents[1] / "book/data/linear_writers.cpu.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_record_has_every_writer_at_the_best_rate_that_was_tried(record):
    assert not record["quick"]
    expected = described()
    for name, about in record["architectures"].items():
        tried = [row for row in record["rates"] if row["architecture"] == name]
        best = min(tried, key=lambda row: row["validation"])["lr"]
        assert {best / 2, best, best * 2} <= {row["lr"] for row in tried}
        runs = [row for row in record["runs"] if row["architecture"] == name]
        assert [row["seed"] for row in runs] == list(range(record["seeds"]))
        assert {row["lr"] for row in runs} == {best}
        assert about == expected[name]
    assert len({row["tokens"] for row in record["runs"]}) == 1


def test_the_recorded_loss_of_the_test_plays_is_that_of_its_positions(record):
    for row in record["runs"]:
        assert len(row["by_position"]) == len(record["edges"]) - 1
        assert row["test"] == pytest.approx(linear_writers.within(record, row["by_position"]))


def test_the_recorded_state_does_not_grow_and_the_cache_does(record):
    rows = {(row["architecture"], row["n"]): row for row in record["decoding_rows"]}
    lengths = record["decoding"]["lengths"]
    for name in ("linear", "gated delta"):
        assert len({rows[name, n]["cache_bytes"] for n in lengths}) == 1
    for n in lengths:
        size = record["n_layers"] * 2 * record["sizes"]["d_model"] * 4
        assert rows["softmax", n]["cache_bytes"] == n * size
        assert rows["softmax", n]["ratio"] == 1
