"""The benchmark of the short convolution: equal sizes, the module against others, its record."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from attnbook import nn
from benchmarks import linear_convolution, linear_models, linear_writers
from benchmarks.__main__ import main
from benchmarks.linear_convolved import Convolved, convolved_attention

PLAN = linear_writers.FULL


def drawn():
    return linear_models.weights_of(["softmax"] * 2, 0, 300, **linear_writers.QUICK["sizes"])


def described(names):
    return linear_writers.described(PLAN, names, linear_convolution.model_of)


def test_these_writers_have_about_as_many_parameters_as_the_others():
    others = linear_writers.described(PLAN, linear_models.ARCHITECTURES, linear_writers.model_of)
    about = described(linear_convolution.STARTS) | others
    sizes = [one["parameters"] for one in about.values()]
    assert len(sizes) == 6
    assert max(sizes) < 1.01 * min(sizes)


def test_a_writer_has_the_parameters_that_the_record_names():
    for name in linear_convolution.STARTS:
        model, about = linear_convolution.model_of(name, 0, 300, 2, PLAN["sizes"])
        assert sum(x.numel() for x in model.parameters()) == about["parameters"]


def test_only_the_layer_without_convolution_has_no_filters():
    kinds = ["linear", linear_models.UNMIXED, "gated delta"]
    layers = linear_models.weights_of(kinds, 0, 300, **PLAN["sizes"]).decoder.layers
    filters = [layer.self_attention.filters for layer in layers]
    assert [x is None for x in filters] == [False, True, False]
    assert layers[1].self_attention.W_gate is not None
    assert layers[1].self_attention.W_beta is None


def test_without_filters_the_module_is_the_transformer():
    ids = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    theirs = nn.Transformer(drawn().to("torch", dtype="float32"), impl="packed")
    torch.testing.assert_close(Convolved(drawn(), None)(None, ids), theirs(None, ids))


def test_the_convolution_is_that_of_pytorch_before_the_rotation():
    weights = drawn().to("torch", dtype="float32").decoder.layers[0].self_attention
    generator = torch.Generator().manual_seed(0)
    x, filters = (torch.randn(*shape, generator=generator) for shape in ((2, 7, 8), (4, 24)))
    projected = torch.cat([x @ weights.W_Q, x @ weights.W_K, x @ weights.W_V], -1)
    padded = torch.nn.functional.pad(projected.mT, (3, 0))
    mixed = torch.nn.functional.conv1d(padded, filters.mT[:, None], groups=24).mT
    q, k, v = (
        part.unflatten(-1, (2, 4)).transpose(1, 2)
        for part in torch.nn.functional.silu(mixed).chunk(3, -1)
    )
    turn = lambda rows: 2 * rows.flip(-2)  # noqa: E731
    attend = torch.nn.functional.scaled_dot_product_attention
    heads = attend(turn(q), turn(k), v, is_causal=True)
    wanted = heads.transpose(1, 2).flatten(-2) @ weights.W_O
    torch.testing.assert_close(convolved_attention(x, weights, filters, turn), wanted)


def test_no_logit_depends_on_a_later_token():
    model = Convolved(drawn(), 0)
    ids = torch.arange(12)[None]
    changed = ids.clone()
    changed[0, 8] = 99
    with torch.no_grad():
        before, after = model(None, ids), model(None, changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


@pytest.mark.weekly
def test_a_quick_run_writes_the_whole_record(tmp_path):
    assert main(["linear_convolution", "--quick", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    record = json.loads(path.read_text("utf-8"))
    for table in ("rates", "runs", "recall_runs"):
        names = {row["architecture"] for row in record[table]}
        assert names == set(linear_convolution.STARTS)
    for row in record["runs"]:
        assert len(row["by_position"]) == len(record["edges"]) - 1


@pytest.fixture(scope="module")
def records():
    folder = Path(__file__).parents[1] / "book/data"
    names = ("linear_convolution", "linear_writers")
    return [json.loads((folder / f"{name}.cpu.json").read_text("utf-8")) for name in names]


def test_the_record_has_both_writers_trained_as_the_others(records):
    record, others = records
    assert not record["quick"]
    same = ("sizes", "n_layers", "vocabulary", "context", "batch", "steps", "seeds", "edges")
    for name in (*same, "tokens", "recall", "titles"):
        assert record[name] == others[name]
    assert record["architectures"] == described(linear_convolution.STARTS)
    for name in linear_convolution.STARTS:
        tried = [row for row in record["rates"] if row["architecture"] == name]
        best = min(tried, key=lambda row: row["validation"])["lr"]
        assert {best / 2, best, best * 2} <= {row["lr"] for row in tried}
        runs = [row for row in record["runs"] if row["architecture"] == name]
        assert [row["seed"] for row in runs] == list(range(record["seeds"]))
        assert {row["lr"] for row in runs} == {best}


def test_the_rates_start_at_the_best_of_the_other_record(records):
    record, others = records
    best = {row["architecture"]: row["lr"] for row in others["runs"]}
    pairs = {linear_models.UNMIXED: "linear", linear_convolution.CONVOLVED: "softmax"}
    assert record["starts"] == {name: best[other] for name, other in pairs.items()}


def test_filters_that_begin_as_the_identity_mix_no_tokens():
    for name, other in linear_convolution.FROM_IDENTITY.items():
        model, about = linear_convolution.model_of(name, 0, 300, 2, PLAN["sizes"])
        assert about == linear_convolution.model_of(other, 0, 300, 2, PLAN["sizes"])[1]
        filters = [x for name, x in model.named_parameters() if "filters" in name]
        assert len(filters) == 2
        for x in filters:
            x = x.detach()
            torch.testing.assert_close(x[-1], torch.ones_like(x[-1]))
            assert not x[:-1].any()


def test_the_record_of_filters_has_both_writers_at_the_best_rate_that_was_tried(records):
    path = Path(__file__).parents[1] / "book/data/linear_filters.cpu.json"
    record = json.loads(path.read_text("utf-8"))
    assert record["tokens"] == records[0]["tokens"]
    assert record["architectures"] == described(linear_convolution.FROM_IDENTITY)
    for name in linear_convolution.FROM_IDENTITY:
        tried = [row for row in record["rates"] if row["architecture"] == name]
        best = min(tried, key=lambda row: row["validation"])["lr"]
        assert {best / 2, best, best * 2} <= {row["lr"] for row in tried}
        runs = [row for row in record["runs"] if row["architecture"] == name]
        assert [row["seed"] for row in runs] == list(range(record["seeds"]))
        assert {row["lr"] for row in runs} == {best}
