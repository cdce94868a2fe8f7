"""The benchmark of scaling finds the law that made its losses, and says what it does not know."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="SciPy is not installed")


from attnbook import TransformerWeights
from benchmarks import scaling, scaling_batches, scaling_fit, tables

LAW = {"E": 1.2, "A": 12.0, "a": 0.35, "B": 300.0, "b": 0.47}
SIZES = (24_720, 86_336, 295_584, 738_432, 2_361_792)
TOKENS = (200_000, 400_000, 800_000, 1_600_000)


def rows_of(law, noise=0.0, sizes=SIZES, seeds=1):
    rng = np.random.default_rng(0)
    return [
        {
            "parameters_without_embedding": n,
            "tokens": d,
            "validation": scaling_fit.predicted(law, n, d) * np.exp(noise * rng.normal()),
        }
        for n in sizes
        for d in TOKENS
        for _ in range(seeds)
    ]


def arrays_of(rows):
    names = ("parameters_without_embedding", "tokens", "validation")
    return [np.array([row[name] for row in rows], float) for name in names]


@pytest.mark.parametrize("law", [LAW, LAW | {"E": 0.5, "a": 0.2, "b": 0.6, "B": 2000.0}])
def test_the_fit_finds_the_law_that_made_the_losses(law):
    found = scaling_fit.fit(*arrays_of(rows_of(law)))
    assert found == pytest.approx(law, rel=1e-3)


def test_one_wrong_run_does_not_move_the_law():
    rows = rows_of(LAW)
    rows[7]["validation"] *= 1.5
    found = scaling_fit.fit(*arrays_of(rows))
    assert found == pytest.approx(LAW, rel=0.05)


def test_a_constant_that_is_held_stays():
    given = arrays_of(rows_of(LAW))
    for E in (0.0, 0.6, 1.2):
        assert scaling_fit.fit(*given, E=E)["E"] == E
    assert scaling_fit.fit(*given, E=1.2) == pytest.approx(LAW, rel=1e-3)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(scaling_fit, "DRAWS", 8)


@pytest.mark.usefixtures("few")
def test_the_largest_run_is_predicted_by_the_others():
    rows = rows_of(LAW)
    rows[-1]["validation"] += 0.25  # of the largest size on most tokens
    found = scaling_fit.fitted(rows, "parameters_without_embedding")
    assert found["runs"] == len(rows) - 1
    assert {name: found[name] for name in LAW} == pytest.approx(LAW, rel=1e-3)
    for name in ("held_out", "held_out_size"):
        about = found[name]
        assert (about["parameters"], about["tokens"]) == (SIZES[-1], TOKENS[-1])
        assert about["measured"] - about["predicted"] == pytest.approx(0.25, abs=1e-3)
    assert found["held_out_size"]["error"] == pytest.approx(0.25 / 2, abs=1e-3)  # one of four
    assert found["residual"] < 1e-4
    assert found["between_seeds"] is None


@pytest.mark.usefixtures("few")
def test_smaller_sizes_may_have_read_more():
    rows = rows_of(LAW)[:-1]  # the largest size has one budget less
    found = scaling_fit.fitted(rows, "parameters_without_embedding")
    assert found["held_out"]["tokens"] == TOKENS[-2]
    assert found["runs"] == len(rows) - 1


@pytest.mark.weekly
@pytest.mark.usefixtures("few")
def test_the_errors_are_those_of_the_noise():
    exact = scaling_fit.fitted(rows_of(LAW), "parameters_without_embedding")
    noisy = scaling_fit.fitted(rows_of(LAW, noise=0.02, seeds=2), "parameters_without_embedding")
    for name in ("E", "a", "b"):
        assert exact["standard_error"][name] < 1e-2 * LAW[name]
        assert noisy["standard_error"][name] > 3 * exact["standard_error"][name]
        low, high = noisy["interval"][name]
        assert low < high
    assert 0.005 * 2.5 < noisy["between_seeds"] < 0.08 * 2.5
    assert json.loads(json.dumps(noisy)) == noisy


def test_small_powers_and_a_small_constant_look_alike():
    """Over a decade and less, a small power and a small E look alike, and the record shows it."""
    flat = {"E": 0.1, "A": 3.0, "a": 0.05, "B": 6.0, "b": 0.08}
    given = arrays_of(rows_of(flat))
    for E in (0.0, 0.5):
        held = scaling_fit.fit(*given, E=E)
        assert np.abs(scaling_fit.predicted(held, *given[:2]) - given[2]).max() < 0.02


def test_the_rate_is_the_best_of_its_neighbours():
    tried = []

    def run(lr):
        tried.append(lr)
        return {"lr": lr, "validation": abs(np.log2(lr / 0.001))}

    rows, best = scaling.find_rate(run, 0.008)
    assert best == 0.001
    assert (
        [row["lr"] for row in rows] == sorted(tried) == [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016]
    )
    assert len(tried) == len(set(tried))  # none is trained twice


def test_finished_runs_are_kept_and_not_made_again(tmp_path):
    path, made = tmp_path / "scaling.cpu.json", []

    def make():
        made.append(1)
        return {"validation": 1 / 3}

    first = tables.Runs(path)
    assert first.get("a", make) == first.get("a", make) == {"validation": 1 / 3}
    again = tables.Runs(path)  # after an interrupt
    assert again.get("a", make) == {"validation": 1 / 3}
    assert len(made) == 1
    again.get("b", make)
    again.clear()
    assert tables.Runs(path).rows == {}
    assert not list(tmp_path.iterdir())
    assert tables.Runs(None).get("a", make) == {"validation": 1 / 3}


class FewPlays:
    """Plays of 64 windows, in batches of the plan."""

    def __init__(self):
        self.plan = {"sizes": [{}], "batch": 4}

    def facts(self):
        return {}

    def batches(self, seed):
        return range(64 // self.plan["batch"])


def test_batches_tell_tokens_from_updates(monkeypatch):
    def trained(plays, i, lr, steps, seed):
        return {"validation": lr, "steps": steps, "windows": steps * plays.plan["batch"]}

    monkeypatch.setattr(scaling, "trained", trained)
    monkeypatch.setattr(scaling, "find_rate", lambda run, start: ([run(start)], start))
    plays, kept = FewPlays(), tables.Runs(None)
    found = []
    for share in scaling_batches.SHARES:
        rows = scaling_batches.runs(plays, round(4 * share), kept)
        assert len(rows) == scaling_batches.SEEDS
        found.append((rows[0]["windows"], rows[0]["steps"]))
    assert found == [(8, 2), (8, 8)]


def test_the_sizes_are_of_the_writers_kind_and_grow():
    counts = []
    for sizes in scaling.SIZES:
        weights = TransformerWeights.init(0, 2048, **scaling.KIND, **sizes)
        counts.append(scaling.counted(weights)["parameters_without_embedding"])
        assert scaling.counted(weights)["parameters"] - counts[-1] == 2048 * sizes["d_model"]
    assert tuple(counts) == SIZES
    assert (
        scaling.counted(scaling.models.writer().weights)["parameters_without_embedding"]
        == counts[-1]
    )


@pytest.fixture(scope="module")
def record():
    path = Path(__file__).parents[1] / "book/data/scaling.cpu.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_record_has_every_size_at_the_best_rate_that_was_tried(record):
    assert [dict(one) for one in record["sizes"]] == list(scaling.SIZES)
    for i in range(len(scaling.SIZES)):
        tried = [row for row in record["rates"] if row["size"] == i]
        best = min(tried, key=lambda row: row["validation"])["lr"]
        assert {best / 2, best, best * 2} <= {row["lr"] for row in tried}
        runs = [row for row in record["runs"] if row["size"] == i]
        assert {row["lr"] for row in runs} == {best}
        epochs = [x for x in record["epochs"] if x <= record["longest"][i]]
        assert len({row["steps"] for row in runs}) == len(epochs)
        assert len(runs) == len(epochs) * record["seeds"][i]
        assert {row["parameters_without_embedding"] for row in runs} == {SIZES[i]}
    assert all(row["tokens"] <= record["tokens"]["epoch"] * 1.01 for row in record["runs"])
    for row in record["runs"]:
        bits = row["nats_a_token"] * record["bits_a_byte_of_a_nat_a_token"]
        assert row["validation"] == pytest.approx(bits)


@pytest.mark.parametrize("name", ["fit", "fit_of_all_parameters", "fit_of_longer_runs"])
def test_the_recorded_law_says_what_the_record_says(record, name):
    law = record[name]
    held = law["held_out"]
    args = held["parameters"], held["tokens"]
    rows = [(row[law["N"]], row["tokens"], row["validation"]) for row in record["runs"]]
    if name == "fit_of_longer_runs":
        rows = [row for row in rows if row[1] > min(tokens for _, tokens, _ in rows)]
    (measured,) = [loss for *place, loss in rows if tuple(place) == args]
    assert held["measured"] == measured
    assert held["predicted"] == pytest.approx(scaling_fit.predicted(law, *args))
    kept = np.array([row for row in rows if row[:2] != args])
    assert law["runs"] == len(kept)
    rest = kept[:, 2] - scaling_fit.predicted(law, kept[:, 0], kept[:, 1])
    assert law["residual"] == pytest.approx(np.sqrt(np.mean(rest**2)))
    for letter in LAW:
        low, high = law["interval"][letter]
        assert low <= high
    assert all(error >= 0 for error in law["standard_error"].values())
