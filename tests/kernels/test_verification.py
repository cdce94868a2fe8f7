"""Rungs for a GPU are compared with float64 on the device, and the verdict is kept for it alone."""

import importlib
import json
import subprocess
from types import SimpleNamespace

import formula
import numpy as np
import oracle
import pytest
import torch
from cases import ArrayLibrary, need_gpu

import attnbook
from attnbook import __main__ as command_line
from attnbook.__main__ import main
from attnbook.kernels import KERNELS, Kernel, verification
from attnbook.kernels.verification import Call
from benchmarks import device_plan

FEW = (Call(5, 7, 8, True, 3), Call(7, 5, 8, True, 1), Call(5, 7, 8, False, 1))


class Device:
    """Stands in for PyTorch and CuPy with a GPU, and for what compiles for it."""

    __version__ = "9.8.7"

    def __init__(self, name="H9", driver=13):
        self.name, self.driver = name, driver
        self.version = SimpleNamespace(cuda="13.0", hip=None)
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            get_device_name=lambda: self.name,
            runtime=SimpleNamespace(
                getDeviceProperties=lambda number: {"name": self.name.encode()},
                runtimeGetVersion=lambda: 13000,
                driverGetVersion=lambda: self.driver,
            ),
        )
        self._C = SimpleNamespace(_cuda_getDriverVersion=lambda: self.driver)
        self.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A machine with a GPU, whose user has a cache folder of his own."""
    stand_in = Device()
    rung = SimpleNamespace(DEVICES=("cuda",))
    modules = dict.fromkeys(("torch", "triton", "cupy"), stand_in)
    modules["attnbook.kernels.triton"] = rung
    real = importlib.import_module
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib, "import_module", lambda n, *rest: modules.get(n) or real(n, *rest)
    )
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda n, *rest: find("json") if n in modules else find(n, *rest),
    )
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    return stand_in


@pytest.mark.parametrize("rung", ["triton", "cupy_tiled"])
@pytest.mark.parametrize("what", ["device", "driver", "package", "source", "verdict", "file"])
def test_a_verdict_counts_for_what_it_was_found_on(device, monkeypatch, rung, what):
    verification.record(rung, [])
    assert verification.is_verified(rung)
    if what == "device":
        device.name = "H10"
    elif what == "driver":
        device.driver = 14
    elif what == "package":
        monkeypatch.setattr(Device, "__version__", "9.8.8")
    elif what == "source":
        monkeypatch.setattr(verification, "source", lambda: "another")
    elif what == "verdict":
        verification.record(rung, ["the output is 3 from the exact numbers"])
    else:
        verification.kept().write_text("[", encoding="utf-8")
    assert not verification.is_verified(rung)


def test_verdicts_on_other_rungs_stay(device):
    verification.kept().parent.mkdir()
    verification.kept().write_text('{"another": {"verdict": "right"}}', encoding="utf-8")
    verification.record("triton", ["it is wrong"])
    kept = json.loads(verification.kept().read_text(encoding="utf-8"))
    assert {name: kept[name]["verdict"] for name in kept} == {
        "another": "right",
        "triton": "it is wrong",
    }
    assert kept["triton"]["device"] == "H9"


def test_without_a_gpu_nothing_is_verified():
    assert not verification.is_verified("triton")


def test_the_source_is_that_of_all_kernels(monkeypatch, tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "compilers").mkdir()
    monkeypatch.setattr(verification, "__file__", str(tmp_path / "kernels/verification.py"))
    digests = set()
    for file, text in (("kernels/a.py", "1"), ("kernels/a.py", "2"), ("compilers/b.cu", "1")):
        (tmp_path / file).write_text(text)
        digests.add(verification.source.__wrapped__())
    assert len(digests) == 3


# What is compared.


def rung(monkeypatch, forward, backward=None):
    """Return the name of a rung made of two functions, on the CPU."""
    module = SimpleNamespace(forward=forward, backward=backward, attention=forward)
    kernel = Kernel(
        "mine", ("torch",), "cuda", ("float32", "bfloat16"), "torch", trainable=bool(backward)
    )
    monkeypatch.setattr(Kernel, "load", lambda self: module)
    monkeypatch.setitem(KERNELS, "mine", kernel)
    return "mine"


def forward(query, key, value, *rest):
    output, log_total = formula.attention(query.float(), key.float(), value.float(), *rest)
    return output.to(query.dtype), log_total


def backward(query, key, value, mask, bias, scale, is_causal, output, log_total, grad):
    leaves = [x.float().requires_grad_() for x in (query, key, value)]
    got = attnbook.attention(*leaves, scale=scale, is_causal=is_causal)
    got.backward(grad.float())
    return [x.grad.to(query.dtype) for x in leaves]


def test_a_right_rung_has_no_problems(monkeypatch):
    assert verification.verify(rung(monkeypatch, forward, backward), "cpu", FEW) == []
    assert verification.verify(rung(monkeypatch, lambda *x: forward(*x)[0]), "cpu", FEW) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("output", "the output is "),
        ("row", "the output is "),
        ("nan", "the output is not finite where it should be"),
        ("log", "log_total is "),
        ("empty", "log_total is not finite where it should be, or finite where not"),
        ("query", "the gradient of query is "),
        ("value", "the gradient of value is "),
        ("raises", "RuntimeError: an illegal address"),
    ],
)
def test_what_is_wrong_is_said(monkeypatch, change, said):
    def wrong_forward(*arguments):
        output, log_total = (x.clone() for x in forward(*arguments))
        if change == "raises":
            raise RuntimeError("an illegal address")
        if change == "output":
            output *= 1.1
        elif change == "row":
            output[..., 2, :] = output[..., 3, :]
        elif change == "nan":
            output[..., 0, 0] = torch.nan
        elif change == "log":
            log_total += 0.01
        elif change == "empty":
            log_total[torch.isinf(log_total)] = -1e9
        return output, log_total

    def wrong_backward(*arguments):
        grads = [x.clone() for x in backward(*arguments)]
        if change in ("query", "value"):
            grads[("query", "key", "value").index(change)] *= 1.2
        return grads

    problems = verification.verify(rung(monkeypatch, wrong_forward, wrong_backward), "cpu", FEW)
    assert problems
    assert all(said in text for text in problems), problems
    assert problems[0].startswith("float32, Call(n_q=")


def test_other_bits_are_a_problem(monkeypatch):
    times = iter(range(100))

    def drifting(*arguments):
        output, log_total = forward(*arguments)
        return output, log_total + 1e-6 * next(times)

    problems = verification.verify(rung(monkeypatch, drifting, backward), "cpu", FEW[-1:])
    assert problems == [
        f"{d}, {FEW[-1]}: the same call gives other bits" for d in ("float32", "bfloat16")
    ]


def test_dtypes_are_those_of_the_rung_and_its_library(monkeypatch):
    """CuPy has no bfloat16."""
    asked = []
    real = importlib.import_module
    modules = {"array_api_compat.cupy": SimpleNamespace(float16=None, float32=None)}
    monkeypatch.setattr(importlib, "import_module", lambda name: modules.get(name) or real(name))
    monkeypatch.setattr(
        verification, "_wrong", lambda kernel, call, dtype, *rest: asked.append(dtype) or []
    )
    assert verification.verify("cupy_tiled", calls=FEW[:1]) == []
    assert asked == ["float16", "float32"]


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
@pytest.mark.parametrize(("n_q", "n_k", "is_causal"), [(5, 7, True), (7, 5, True), (5, 7, False)])
def test_the_exact_numbers(n_q, n_k, is_causal, library):
    """They are computed by the library of the arrays, and so on their device."""
    rng = np.random.default_rng(3)
    query, key, value, grad = arrays = [
        rng.standard_normal(s)
        for s in ((2, 3, n_q, 4), (2, 1, n_k, 4), (2, 1, n_k, 4), (2, 3, n_q, 4))
    ]
    library = ArrayLibrary(library)
    found = verification.exact([library.array(x, "float64") for x in arrays], 0.4, is_causal)
    assert all(library.same_kind(x, library.array(query, "float64")) for x in found)
    output, log_total, *grads = map(library.numpy, found)
    seen = oracle.mask_of(n_q, n_k, lambda place, j: not is_causal or j <= place)
    np.testing.assert_allclose(
        output, oracle.attention(query, key, value, mask=seen, scale=0.4), atol=1e-12
    )
    scores = torch.tensor(oracle.scores(query, key, seen, None, 0.4))
    np.testing.assert_allclose(log_total, torch.logsumexp(scores, -1, keepdim=True), atol=1e-12)
    expected = attnbook.attention_vjp(query, key, value, grad, scale=0.4, is_causal=is_causal)
    for got, own in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, own, atol=1e-12)


def most_scores(calls):
    return max(2 * call.batch * call.group * call.n_q * call.n_k for call in calls)


def test_the_scores_of_a_call_fit_into_the_memory_of_a_gpu():
    """In float64 each array of them takes 160 MB at most."""
    assert most_scores(verification.CALLS) <= 20e6


# On the command line.


@pytest.fixture
def in_process(monkeypatch):
    """Rungs are compared in this process, where they can be replaced; or as a function says."""
    how = {}

    def run(command, timeout, check):
        name = command[-1]
        return SimpleNamespace(returncode=how[name]() if name in how else main(command[3:]))

    monkeypatch.setattr(subprocess, "run", run)
    return how


def test_doctor_looks_at_the_rungs_for_a_gpu(monkeypatch, capsys, device, in_process):
    asked = {"triton": [], "cupy_tiled": ["float16: the output is far"]}
    monkeypatch.setattr(verification, "names", lambda: tuple(asked))
    monkeypatch.setattr(verification, "verify", asked.__getitem__)
    assert main(["doctor", "--gpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["triton: right on this device", "cupy_tiled: float16: the output is far"]
    asked["cupy_tiled"] = []
    assert main(["doctor", "--gpu"]) == 0
    assert "impl= triton" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("end", "said"),
    [
        *[(end, f"its process ended with {end}") for end in (-11, 1)],
        (None, f"no answer within {command_line.RUNG_SECONDS} seconds"),
    ],
)
def test_a_rung_that_breaks_or_hangs_leaves_the_others(
    monkeypatch, capsys, device, in_process, end, said
):
    def broken():
        if end is None:
            raise subprocess.TimeoutExpired("python", command_line.RUNG_SECONDS)
        return end

    in_process["triton"] = broken
    verification.record("triton", [])  # an older verdict
    monkeypatch.setattr(verification, "names", lambda: ("triton", "cupy_tiled"))
    monkeypatch.setattr(verification, "verify", lambda name: [])
    assert main(["doctor", "--gpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"triton: {said}", "cupy_tiled: right on this device"]
    assert verification.verdict_on("triton") == f"not finished: {said}"
    assert verification.verdict_on("cupy_tiled") == "right"


@pytest.mark.parametrize("end", [KeyError, KeyboardInterrupt, SystemExit])
def test_a_comparison_that_does_not_end_leaves_no_older_verdict(monkeypatch, device, end):
    def verify(name):
        assert verification.verdict_on(name) == "not finished"  # also where this is killed
        raise end

    verification.record("triton", [])
    monkeypatch.setattr(verification, "verify", verify)
    with pytest.raises(end):
        main(["doctor", "--rung", "triton"])
    assert verification.verdict_on("triton") == "not finished"


def test_a_rung_that_hangs_leaves_the_others_their_time():
    """Of the step that compares them all on a GPU."""
    (step,) = device_plan.chosen(["doctor"])
    assert command_line.RUNG_SECONDS + step.usual <= step.limit


def test_a_rung_is_compared_in_a_process_of_its_own(capfd):
    """Here without a GPU."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert command_line.examine("triton") == 1
    assert capfd.readouterr().out.startswith("triton: there is no GPU here that could run it (")


def test_doctor_says_where_it_cannot_keep_what_it_found(monkeypatch, capsys, in_process):
    def record(name, problems):
        raise PermissionError("no such folder")

    monkeypatch.setattr(verification, "names", lambda: ("triton",))
    monkeypatch.setattr(verification, "verify", lambda name: [])
    monkeypatch.setattr(verification, "record", record)
    monkeypatch.setattr(verification, "here", lambda name: {})
    assert main(["doctor", "--gpu"]) == 1
    said = capsys.readouterr().out
    assert "triton: the verdict is not kept: PermissionError: no such folder" in said


def test_doctor_runs_no_kernel_without_a_gpu(monkeypatch, capsys, in_process):
    def here(name):
        raise RuntimeError("no driver")

    monkeypatch.setattr(verification, "names", lambda: ("triton",))
    monkeypatch.setattr(verification, "here", here)
    monkeypatch.setattr(verification, "verify", lambda name: pytest.fail("a kernel was run"))
    assert main(["doctor", "--gpu"]) == 1
    line = "triton: there is no GPU here that could run it (RuntimeError: no driver)"
    assert capsys.readouterr().out.splitlines()[0] == line


def test_rungs_are_those_whose_packages_are_here(monkeypatch):
    monkeypatch.setattr(
        verification, "import_library", lambda name: (None if name == "cupy" else name, "")
    )
    assert verification.names() == ("triton",)


@pytest.mark.gpu
def test_on_a_gpu():
    need_gpu("torch")
    assert verification.verify("triton") == []
