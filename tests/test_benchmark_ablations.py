"""The ablations train as the package does, choose as they say, and the record holds all."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnbook import TransformerWeights, attention, data
from attnbook.transformers.normalization import NORMALIZED

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from attnbook.nn import Transformer  # noqa: E402
from attnbook.training import Settings, train  # noqa: E402
from benchmarks import ablations, ablations_runs  # noqa: E402
from benchmarks.ablations_runs import (  # noqa: E402
    MODEL,
    SETTINGS,
    Choice,
    Text,
    distinct,
    fused,
    kept,
    of_windows,
    redrawn,
    row,
    run,
    updates,
)
from benchmarks.tables import Runs  # noqa: E402

RECORD = Path(__file__).parents[1] / "book" / "data" / "ablations.cpu.json"
TINY = {"d_model": 6, "n_heads": 1, "d_ff": 10, "n_layers": 2}
FACTS = {"vocabulary": 11}


def first(seed=0, **options):
    return TransformerWeights.init(seed, 11, n_encoder_layers=0, **MODEL | TINY | options)


def windows(seed, n):
    return data.windows(np.random.default_rng(seed).integers(0, 11, size=7 * n + 1), 7, stride=7)


TEXT = Text(*(windows(seed, n) for seed, n in enumerate((13, 5, 3, 2))))


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_updates_are_those_of_the_package(optimizer):
    settings = Settings(**SETTINGS | {"steps": 5, "warmup": 2, "clip": 0.5}, lr=0.05)
    ours, theirs = (Transformer(first().to(dtype="float64")) for _ in range(2))
    assert list(updates(ours, of_windows(TEXT.train, 3, 1), settings, optimizer)) == [*range(6)]
    if optimizer == "SGD":  # betas are AdamW's, and decay is the same there
        settings = replace(settings, optimizer="sgd", betas=(0.9, 0.98))
    train(theirs, of_windows(TEXT.train, 3, 1), settings)
    for name, x in ours.state_dict().items():
        torch.testing.assert_close(x, theirs.state_dict()[name], rtol=1e-9, atol=1e-11)


def test_optimizers_are_what_they_are_called():
    settings = Settings(**SETTINGS | {"steps": 4, "warmup": 2}, lr=0.05)
    found = {}
    for optimizer in ("SGD", "SGD, momentum 0.9", "Adam", "AdamW"):
        model = Transformer(first().to(dtype="float64"))
        list(updates(model, of_windows(TEXT.train, 3), settings, optimizer))
        found[optimizer] = model.state_dict()["target_embedding"].numpy()
    assert len({x.tobytes() for x in found.values()}) == 4
    undecayed = replace(settings, weight_decay=0.0)
    model = Transformer(first().to(dtype="float64"))
    list(updates(model, of_windows(TEXT.train, 3), undecayed, "AdamW"))
    np.testing.assert_array_equal(model.state_dict()["target_embedding"].numpy(), found["Adam"])


@pytest.mark.parametrize("biased", [False, True])
def test_the_fused_kernel_is_the_attention_of_the_package(biased):
    rng = np.random.default_rng(0)
    query, key, value = torch.tensor(rng.normal(size=(3, 2, 5, 7, 4)))
    bias = torch.tensor(rng.normal(size=(5, 7, 7))) if biased else None
    found = fused(query, key, value, None, bias, 0.3, True)
    wanted = attention(query, key, value, bias=bias, scale=0.3, is_causal=True)
    torch.testing.assert_close(found, wanted)


def test_a_run_without_normalisations_has_none_and_leaves_the_package_as_it_was():
    before = dict(NORMALIZED)
    choice = Choice({}, TINY | ablations.LAYER_NORM, {"steps": 1, "warmup": 0})
    found = [run(replace(choice, normalizes=x), 1e-6, 0, TEXT, FACTS) for x in (True, False)]
    assert before == NORMALIZED
    weights = first(**ablations.LAYER_NORM)
    # nothing else bounds what comes out: twice the embedding, other logits but for normalisation
    assert found[0]["validation"] != pytest.approx(found[1]["validation"], abs=1e-3)
    x = np.array(TEXT.validation[:, :-1])
    big = weights.with_arrays(
        weights.arrays() | {"decoder.final_norm.gain": 2 * weights.decoder.final_norm.gain}
    )
    logits = [Transformer(w)(None, torch.tensor(x)) for w in (weights, big)]
    torch.testing.assert_close(2 * logits[0], logits[1])


def test_a_run_that_breaks_off_has_no_loss():
    choice = Choice({}, TINY, {"steps": 9, "warmup": 0, "clip": None}, optimizer="SGD")
    assert run(choice, 1e30, 0, TEXT, FACTS) == {"validation": None, "test": None}


def test_a_run_on_little_text_has_a_curve_and_repeats(monkeypatch):
    monkeypatch.setattr(ablations_runs, "EVERY", 4)
    choice = Choice({}, TINY, {"steps": 8, "warmup": 1}, dropout=0.3, small=True)
    found = [run(choice, 0.02, seed, TEXT, FACTS) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert [step for step, _ in found[0]["curve"]] == [0, 4, 8]
    last = found[0]["curve"][-1][1]
    assert last == {name: found[0][name] for name in ("validation", "train")}
    assert last["train"] < found[0]["curve"][0][1]["train"]


@pytest.mark.parametrize(("how", "factor"), [("scaled", 3.0), ("normal", 0.25), ("embedding", 2.0)])
def test_first_weights_are_drawn_as_they_are_called(how, factor):
    weights = first(d_model=60, n_heads=3, d_ff=100)
    old, new = weights.arrays(), redrawn(weights, 0, how, factor).arrays()
    for name, x in old.items():
        if how == "scaled":
            np.testing.assert_array_equal(new[name], x * (factor if ".W_" in name else 1.0))
        elif how == "embedding" and name == "target_embedding":
            assert new[name].std() == pytest.approx(2.0 / 60**0.5, rel=0.1)
        elif how == "normal" and x.ndim == 2:
            part = factor if name.endswith(("W_O", "W_2")) else 1.0
            assert new[name].std() == pytest.approx(0.02 * part, rel=0.1)
        else:
            np.testing.assert_array_equal(new[name], x)


def parabola(best, seen=None):
    """Return runs whose loss grows with the distance of the rate from the best one."""

    def make(choice, rate, seed):
        if seen is not None:
            seen.append((rate, seed))
        loss = None if rate > 50 else math.log(rate / best) ** 2 + seed / 100
        return {"validation": loss, "test": 7.0 + seed}

    return kept(Runs(None), make)


@pytest.mark.parametrize("best", [0.3, 1.0, 5.0, 20.0])
def test_rates_are_added_until_the_best_lies_inside(best):
    found = row(Choice({"a": 1}, rates=(1.0, 2.0, 4.0), too=(99.0,)), parabola(best), (0, 1, 2), 9)
    tried = [entry["lr"] for entry in found["rates"]]
    assert tried == sorted(tried)
    assert not found["at_edge"]
    assert tried[0] < found["lr"] < tried[-2]  # the last is there for its own sake
    assert abs(math.log2(found["lr"] / best)) <= 0.5
    assert found["test"] == [7.0, 8.0, 9.0]
    losses = {entry["lr"]: entry["validation"] for entry in found["rates"]}
    assert losses[found["lr"]] == found["validation"]
    assert losses[99.0] == [None] * 3
    assert {len(x) for rate, x in losses.items() if rate not in (found["lr"], 99.0)} == {1}


def test_an_edge_that_stays_is_told():
    found = row(Choice({}, rates=(1.0, 2.0)), parabola(1e-9), (0,), 4)
    assert found["at_edge"]
    assert [entry["lr"] for entry in found["rates"]] == [0.25, 0.5, 1.0, 2.0]


def test_a_thorough_choice_is_made_by_all_seeds():
    def make(choice, rate, seed):  # the first seed alone would take 2
        loss = {1.0: (3, 4), 2.0: (2, None), 4.0: (5, 5)}[rate][seed]
        return {"validation": loss, "test": 0.0}

    for thorough, best in ((False, 2.0), (True, 1.0)):
        choice = Choice({}, rates=(1.0, 2.0, 4.0), thorough=thorough)
        assert row(choice, kept(Runs(None), make), (0, 1), 3)["lr"] == best


def test_equal_runs_are_made_once_and_different_ones_are_told_apart():
    made = []
    found = kept(Runs(None), lambda *how: made.append(how) or {"validation": 1.0})
    for about in ({"table": 1}, {"table": 2}):  # the same run under two names
        assert found(Choice(about), 1.0, 0)["validation"] == 1.0
    assert len(made) == 1
    found(Choice({}, {"tied": False}), 1.0, 0)
    found(Choice({}), 2.0, 0)
    found(Choice({}), 1.0, 1)
    assert len(made) == 4


def test_blocks_have_as_many_numbers_in_their_matrices():
    sizes = set()
    for choice in ablations.choices()["blocks"]:
        weights = TransformerWeights.init(0, 11, n_encoder_layers=0, **MODEL | choice.model)
        sizes.add(sum(x.size for x in weights.arrays().values() if x.ndim == 2))
    assert len(sizes) == 1


def test_rows_are_told_apart_and_every_table_has_the_common_choice():
    tables = ablations.choices()
    common = distinct(Choice({}))
    for table, rows in tables.items():
        assert len({str(x.about) for x in rows}) == len(rows)
        plain = [distinct(x) for x in rows]
        assert len({str(x) for x in plain}) == len(rows)
        if table not in ("orders", "deep_orders", "dropout", "long_schedules"):
            assert common in plain


def recorded():
    return json.loads(RECORD.read_text(encoding="utf8"))


TABLES = [table for table in ablations.choices() if table in recorded()]


@pytest.mark.parametrize("table", TABLES)
def test_the_record_holds_every_choice_at_its_best_rate(table):
    record, wanted = recorded(), ablations.choices()[table]
    rows = record[table]
    assert [{name: x[name] for name in y.about} for x, y in zip(rows, wanted, strict=True)] == [
        x.about for x in wanted
    ]
    for found, choice in zip(rows, wanted, strict=True):
        losses = {entry["lr"]: entry["validation"] for entry in found["rates"]}
        assert set(choice.rates) | set(choice.too) <= set(losses)
        searched = {rate: x for rate, x in losses.items() if rate not in choice.too}
        n = min(map(len, searched.values()))
        means = {r: math.inf if None in x[:n] else np.mean(x[:n]) for r, x in searched.items()}
        assert found["lr"] == min(means, key=means.get)
        assert found["at_edge"] == (found["lr"] in (min(means), max(means)))
        tried = sorted(means)
        assert max(np.divide(tried[1:], tried[:-1])) < 3.01
        assert losses[found["lr"]] == found["validation"]
        assert len(found["validation"]) == len(found["test"]) == len(record["seeds"]) == 3
        broken = [[x is None for x in found[part]] for part in ("validation", "test")]
        assert broken[0] == broken[1]


def test_no_best_rate_of_the_record_is_at_an_edge():
    record = recorded()
    assert not [row for table in TABLES for row in record[table] if row["at_edge"]]


def test_the_record_is_of_these_models_and_settings():
    record = recorded()
    assert record["model"] == MODEL
    assert record["settings"] == json.loads(json.dumps(SETTINGS))
    plays = data.plays()
    sizes = {part: len(getattr(plays, part)) for part in ("train", "validation", "test")}
    assert record["bytes"] == sizes
