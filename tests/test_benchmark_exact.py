"""What the benchmark of exact attention compares with is right, and it names who cannot run."""

import ctypes
import itertools
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from attnbook import attention, attention_vjp, kernels, masking
from benchmarks import (
    exact,
    exact_candidates,
    exact_ceilings,
    exact_errors,
    exact_imitated,
    exact_memory,
    exact_peers,
    exact_problem,
    exact_rows,
    harness,
    inputs,
)
from benchmarks.exact_problem import Arrays, Problem

CAUSAL = pytest.mark.parametrize("is_causal", [False, True])


def drawn(**fields):
    given = Problem("cpu", "float64", 71, 5, heads=3, **fields).draw()
    return {name: x.astype(np.float64) for name, x in given.items()}


@CAUSAL
def test_output_errors_are_those_of_the_whole_output(is_causal):
    given = drawn()
    compare = exact_errors.output_errors(given, is_causal)
    output = attention(**given, is_causal=is_causal)
    assert compare(output)["relative"] < 1e-14
    output[0, 2, 70] += 1.0  # the last query of the last head is looked at
    assert compare(output)["max_abs"] == pytest.approx(1.0)
    assert compare(attention(**given, is_causal=not is_causal))["relative"] > 0.1
    grouped = drawn(kv_heads=1, n_q=1)
    output, compare = attention(**grouped), exact_errors.output_errors(grouped, False)
    assert output.shape == (1, 1, 3, 1, 5)
    assert compare(output.reshape(1, 3, 1, 5))["relative"] < 1e-14
    assert compare(output[:, :, ::-1])["relative"] > 0.1


@CAUSAL
@pytest.mark.parametrize("block", [16, 512])
def test_gradients_are_those_of_attention(monkeypatch, is_causal, block):
    monkeypatch.setattr(exact_errors, "BLOCK", block)
    given = drawn(backward=True)
    grad = given["grad"]
    three = [given[name] for name in ("query", "key", "value")]
    mask = masking.causal(71, like=three[0]) if is_causal else None
    expected = (attention(*three, mask), *attention_vjp(*three, grad, mask))
    one_head = {name: x[0, 0] for name, x in given.items()}
    for found, right in zip(
        exact_errors.gradients(**one_head, is_causal=is_causal), expected, strict=True
    ):
        np.testing.assert_allclose(found, right[0, 0], rtol=1e-11, atol=1e-13)
    compare = exact_errors.gradient_errors(given, is_causal)
    assert compare(expected)["relative"] < 1e-12
    for i in range(4):
        wrong = [x * 2 if i == j else x for j, x in enumerate(expected)]
        assert compare(tuple(wrong))["relative"] == pytest.approx(1.0)


@CAUSAL
def test_a_problem_counts_visible_scores_and_each_array_once(is_causal):
    scores = sum(i + 1 if is_causal else 7 for i in range(7))
    problem = Problem("cpu", "float32", 7, 5, heads=3, batch=2, is_causal=is_causal)
    assert problem.flops == 4 * scores * 5 * 3 * 2
    trained = Problem("cpu", "float32", 7, 5, is_causal=is_causal, backward=True)
    assert trained.flops == 3.5 * 4 * scores * 5 * 8
    grouped = Problem("cpu", "bfloat16", 7, 5, heads=6, kv_heads=2, n_q=1)
    assert grouped.bytes == 2 * (6 * 1 * 5 * 2 + 2 * 7 * 5 * 2)


def test_every_rung_of_the_device_takes_part(monkeypatch):
    here = {"cpu": ["numpy", "torch"], "cuda": ["torch", "cupy"]}
    monkeypatch.setattr(inputs, "libraries", lambda device: here[device])

    def rungs(device, dtype="float32", **fields):
        problem = Problem(device, dtype, 7, **fields)
        found = {k.name: exact_candidates.library_of(k, problem) for k in kernels.LADDER}
        return {name: library for name, library in found.items() if library}

    def names(device, trainable=(False, True)):
        on = [k for k in kernels.LADDER if k.device in ("", device) and k.trainable in trainable]
        return {k.name for k in on}

    assert rungs("cpu") == dict.fromkeys(names("cpu"), "numpy")
    assert rungs("cpu", backward=True) == dict.fromkeys(names("cpu", (True,)), "torch")
    on_gpu = rungs("cuda", "float16")
    assert set(on_gpu) == names("cuda")
    assert (on_gpu["triton"], on_gpu["cupy_tiled"]) == ("torch", "cupy")
    assert "cupy_tiled" not in rungs("cuda", "bfloat16")  # CuPy has none


def test_a_rung_that_cannot_be_loaded_is_a_row_with_the_reason(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")

    def missing(self):
        raise ImportError("no such compiler")

    monkeypatch.setattr(kernels.Kernel, "load", missing)
    lines = []
    problem = Problem("cpu", "float32", 7, 5, heads=2)
    rows = exact_rows.rows(problem, quick=True, log=lines.append, only=("tiled", "SDPA"))
    assert [row["implementation"] for row in rows] == ["SDPA", "tiled"]
    assert rows[0]["gflops"] > 0
    assert rows[1]["reason"] == "ImportError: no such compiler"
    assert rows[1]["gflops"] is rows[1]["seconds"] is None
    assert "tiled did not run" in lines[0]


@CAUSAL
@pytest.mark.parametrize("grouped", [{}, {"kv_heads": 2, "backward": True}])
def test_every_backend_of_sdpa_is_right_and_runs_once(is_causal, grouped):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    problem = Problem("cpu", "float32", 16, 8, heads=4, is_causal=is_causal, **grouped)
    arrays = Arrays(problem)
    found = list(exact_peers.sdpa(problem, arrays))
    assert sorted(entry.about["backend"] for entry in found) == ["flash", "math"]
    assert found[0].about["implementation"] == "SDPA"
    exact_arrays = {name: x.astype(np.float64) for name, x in arrays.drawn.items()}
    compare = exact_errors.output_errors(exact_arrays, is_causal)
    for entry in found:
        output, *gradients = output if isinstance(output := entry.run(), tuple) else (output,)
        assert compare(output)["relative"] < 1e-5
        names = ("query", "key", "value") if grouped else ()
        assert [x.shape for x in gradients] == [arrays.of("torch")[name].shape for name in names]


FAILED = types.SimpleNamespace(returncode=1, stderr="first\nno compiler\n\n")
TOO_LONG = "FlexAttention is not compiled after 120 s"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (types.SimpleNamespace(returncode=0, stderr="a warning\n"), None),
        (FAILED, "no compiler"),
        (subprocess.TimeoutExpired("python", 120), TOO_LONG),
    ],
)
def test_the_compiler_is_tried_in_another_process(monkeypatch, outcome, reason):
    def run(command, *, timeout, **options):
        assert timeout == exact_peers.FLEX_SECONDS["cpu"]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(exact_peers.subprocess, "run", run)
    assert exact_peers.flex_problem.__wrapped__("cpu") == reason
    if reason is None:
        return
    monkeypatch.setattr(exact_peers, "flex_problem", exact_peers.flex_problem.__wrapped__)
    for backward, expected in ((False, reason), (True, "PyTorch compiles .* for CUDA alone")):
        problem = Problem("cpu", "float32", 7, 5, heads=2, backward=backward)
        (entry,) = exact_peers.flex(problem, Arrays(problem))
        with pytest.raises(RuntimeError, match=expected):
            entry.run()


def test_reading_adds_up_all_keys_and_values():
    pytest.importorskip("numba", reason="Numba is not installed")
    problem = Problem("cpu", "float32", 71, 5, heads=3, n_q=1)
    (read,) = exact_ceilings.reads(problem)
    given = problem.draw()
    expected = [given[name].sum(dtype=np.float64) for name in ("key", "value")]
    np.testing.assert_allclose(read.run().sum(axis=0), expected, rtol=1e-4, atol=1e-4)
    assert read.about["implementation"] == "read"


def test_larger_problems_have_fewer_rounds():
    rounds = [
        exact_rows.pace(Problem("cpu", "float32", n), False).rounds for n in (256, 1024, 8192)
    ]
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[-1] >= 3


def test_on_a_gpu_what_takes_too_long_is_left_out(monkeypatch):
    everybody = [
        harness.Candidate({"implementation": name}, list, dict) for name in ("tiled", "triton")
    ]
    monkeypatch.setattr(exact_rows, "candidates", lambda problem, **_: everybody)

    def names(device, n, **fields):
        found = exact_rows.taking_part(Problem(device, "bfloat16", n, **fields))
        return [one.about["implementation"] for one in found]

    assert names("cuda", 1024) == names("cpu", 4096) == ["tiled", "triton"]
    assert names("cuda", 4096) == names("cuda", 4096, backward=True) == ["triton"]
    assert names("cuda", 10**6, n_q=1) == ["triton"]
    assert names("cpu", 10**6, n_q=1) == ["tiled", "triton"]


@pytest.fixture
def on_gpu(monkeypatch):
    """A GPU with these verdicts on the rungs, where nobody is measured: rows are names."""
    verified = {kernel.name: "right" for kernel in kernels.LADDER}
    monkeypatch.setattr(exact_candidates, "verdict_on", lambda name: verified.get(name, ""))
    monkeypatch.setattr(inputs, "libraries", lambda device: ["torch", "cupy"])
    monkeypatch.setattr(exact_candidates, "arrays", lambda problem: Numbers())
    entry = exact_peers.Entry({"implementation": "SDPA", "library": "torch"}, list)
    monkeypatch.setattr(exact_peers, "sdpa", lambda problem, arrays: [entry])
    flex = exact_peers.Entry({"implementation": "FlexAttention", "library": "torch"}, list)
    monkeypatch.setattr(exact_peers, "flex", lambda problem, arrays: [flex])
    monkeypatch.setattr(exact_peers, "others", lambda problem, arrays, only: [])
    for module in (exact, exact_rows):
        monkeypatch.setattr(
            module, "measured", lambda found, *_, **__: [dict(x.about) for x in found]
        )
    return verified


class Numbers:
    """Numbers that nobody draws."""

    def of(self, library):
        return dict.fromkeys(("query", "key", "value"), np.ones(3))

    def errors(self, is_causal):
        return lambda output: {}


def measured(table):
    """Return the steps of a table on a GPU, each with the names of its rows."""
    given = {"quick": False, "log": lambda line: None}
    found = table(**given) if table is exact.goals else table("cuda", **given)
    return [(step, [row["implementation"] for row in step.run()]) for step in found]


OF_GPU = [exact.goals, exact.self_attention, exact.decode, exact.widths, exact.half, exact.bfloat16]


@pytest.mark.parametrize("table", OF_GPU)
def test_what_may_hang_is_measured_after_all_others_and_alone(monkeypatch, on_gpu, table):
    monkeypatch.setattr(exact_peers, "call", lambda function, given: list)
    for verdict in ("it is wrong", "not finished", ""):
        on_gpu["triton"] = verdict
        found, alone = measured(table), ["triton"]
        at = [i for i, (_, names) in enumerate(found) if set(names) & set(alone)]
        first = at[0]
        assert first > 1
        assert set(found[first][1]) == {"triton"}
        assert all(len(set(names)) == 1 for _, names in found[first:])
        order = [name for name, _ in itertools.groupby(names[0] for _, names in found[first:])]
        flex = ["FlexAttention"] if table in (exact.goals, exact.self_attention) else []
        assert order == [*alone, *flex]
        # a step that did not run is told apart by these
        assert len({tuple(sorted(step.about.items())) for step, _ in found}) == len(found)


def test_the_goals_are_the_longest_passes_of_each_width(monkeypatch, on_gpu):
    monkeypatch.setattr(exact_peers, "call", lambda function, given: list)
    first = [step.about for step, _ in measured(exact.goals)[:4]]
    assert {(a["n"], a["backward"]) for a in first} == {(16_384, False)}
    assert [(a["width"], a["is_causal"]) for a in first] == [
        *[(64, False), (64, True)],
        *[(128, False), (128, True)],
    ]
    rest = [step.about for step, _ in measured(exact.self_attention)]
    beside = [a["n"] for a in rest if "implementation" not in a]
    assert beside == sorted(beside, reverse=True)
    forward = {(a["n"], a["width"]) for a in rest if not a["backward"]}
    assert forward == {(n, width) for n in (1024, 4096) for width in (64, 128)}
    backward = {(a["n"], a["width"]) for a in rest if a["backward"]}
    assert backward == forward | {(16_384, 64), (16_384, 128)}


def test_flex_attention_is_compiled_for_few_shapes_on_a_gpu(monkeypatch, on_gpu):
    monkeypatch.setattr(exact_peers, "call", lambda function, given: list)

    def shapes(table):
        found = [step.about for step, names in measured(table) if "FlexAttention" in names]
        return [(a["n"], a["width"], a["backward"]) for a in found]

    assert shapes(exact.goals) == [(16_384, width, False) for width in (64, 64, 128, 128)]
    assert shapes(exact.self_attention) == [(4096, 64, b) for b in (False, False, True, True)]


def test_numbers_of_a_shape_are_drawn_once_on_a_gpu(monkeypatch):
    drawn = []
    monkeypatch.setattr(Problem, "draw", lambda self: drawn.append(self) or {})
    exact_problem._kept.cache_clear()
    for width in (64, 128):
        for is_causal in (False, True):
            exact_problem.arrays(Problem("cuda", "bfloat16", 7, width, is_causal=is_causal))
    assert [problem.width for problem in drawn] == [64, 128]
    exact_problem._kept.cache_clear()


def test_long_calls_on_a_gpu_have_few_rounds():
    pace = exact_rows.pace(Problem("cuda", "bfloat16", 4096), False)
    assert (pace.long, pace.long_rounds) == (exact.LONG, exact.LONG_ROUNDS)


@pytest.mark.parametrize(
    ("device", "only", "there"),
    [("cpu", (), True), ("cuda", (), False), ("cuda", ("SDPA",), False), ("cuda", ("JAX",), True)],
)
def test_jax_takes_memory_of_a_gpu_only_where_asked(monkeypatch, device, only, there):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    monkeypatch.setattr(exact_peers.importlib.util, "find_spec", lambda name: name == "jax" or None)
    monkeypatch.setitem(sys.modules, "jax", None)  # whoever imports it fails
    problem = Problem(device, "float32", 7, 5, heads=2)
    arrays = types.SimpleNamespace(drawn={})
    found = list(exact_peers.others(problem, arrays, only))
    assert [entry.about["implementation"] for entry in found] == ["JAX"] * there
    for entry in found:
        with pytest.raises(ImportError):
            entry.run()
        assert exact_peers.os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_mkl_is_told_that_the_processor_is_intels(monkeypatch):
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("nothing here compiles the function that MKL asks")

    def told(name, settings, quick, log):
        return [ctypes.CDLL(settings["LD_PRELOAD"]).mkl_serv_intel_cpu_true()]

    monkeypatch.setattr(exact_imitated, "_in_another_process", told)
    for able, expected in ((True, [1]), (False, [])):
        monkeypatch.setattr(exact_imitated, "_is_able", lambda able=able: able)
        assert exact_imitated.mkl(quick=True, log=print) == expected
    monkeypatch.setattr(exact_imitated, "_is_able", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert exact_imitated.mkl(quick=True, log=print) == []


def test_every_way_to_keep_or_make_arrays_gives_attention():
    given = inputs.draw(3, (2, 13, 5))
    wanted = attention(*(x.astype(np.float64) for x in given.values()))
    ways = list(exact_memory._ways(**given))
    assert {about["implementation"] for about, _ in ways} >= {"naive", "in_place", "SDPA"}
    for _, run in ways:
        output = np.asarray(run()).reshape(wanted.shape)
        np.testing.assert_allclose(output, wanted, rtol=0, atol=1e-5)
