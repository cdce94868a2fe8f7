"""All checks that are made of steps: wrong answers are named, right ones pass."""

import inspect
import re
import sys

import attention_answers
import hash_answers
import masking_answers
import multi_head_answers
import numpy as np
import pair_answers
import pytest
import sketch_answers
from all_answers import (
    CHECKS,
    DOUBLES,
    IN_TORCH,
    MESSAGES,
    ONLY_NUMPY,
    RIGHT,
    WRONG,
    in_float32,
    need_torch,
    run,
)
from cases import WEEKLY, every_day

import attnbook as ab
from attnbook import check
from attnbook.check.engine import diagnosis
from attnbook.check.engine import run as engine
from attnbook.check.engine.findings import AT_ONCE
from attnbook.check.engine.steps import agree

PAIRS = [(name, wrong) for name, wrongs in WRONG.items() for wrong in wrongs]
REMARKED = {
    *(("attention_weights", "all axes reversed"), ("attention_vjp", "all axes reversed")),
    ("multi_head_attention", "sequence before batch"),
    ("layer_norm", "squares overflow in half precision"),
    ("rms_norm", "squares overflow in half precision"),
    *(
        ("greedy_decode", "rows go on after stop"),
        ("greedy_decode", "batch ends at the first stop"),
    ),
}
"""Mistakes that one sequence in full precision does not show, and that a batch of another size than
the sequence refuses: they are a remark."""

FEW = {
    **{"beam_step": 11, "cached_attention": 11, "top_p": 13, "min_p": 10, "clip_gradients": 14},
    **{"accumulate_gradients": 11, "probes": 12, "repetition_penalty": 14, "ring_attention": 10},
    **{"warmup_cosine": 14, "zigzag_shards": 10},
}
"""Checks with fewer than 15 mistakes."""
OTHERS = {
    *("robin_hood_table", "no_future_leak", "padding_invariance", "permutation_equivariance"),
    "heads_are_independent",
}
"""Checks that are not made of steps."""
OF_ATTENTION = {*attention_answers.WRONG, *multi_head_answers.WRONG, *masking_answers.WRONG}
OF_SKETCHES = {*hash_answers.WRONG, *sketch_answers.WRONG}


def test_every_check_has_answers():
    names = {name.split(",")[0] for name in CHECKS} - OTHERS
    assert names == {*check.__all__} - OTHERS - {"CheckFailed", "Report"}
    assert {*CHECKS} - OTHERS == {*WRONG} == {*RIGHT}


def of_torch(x):
    return type(x).__module__.startswith("torch") or getattr(x, "library", "") == "torch"


def only_torch(answer):
    """Return the answer of a reader who writes for PyTorch alone."""

    def torch_answer(*given, **options):
        torch = need_torch()
        parts = [x for g in given for x in (g if isinstance(g, tuple) else (g,))]
        arrays = [
            x
            for x in parts
            if not isinstance(x, (int, ab.FeedForwardWeights, ab.GatedFeedForwardWeights))
        ]
        if arrays and not any(map(of_torch, arrays)):
            raise TypeError("a tensor please")
        result = answer(*given, **options)
        return torch.as_tensor(np.array(result)) if isinstance(result, np.ndarray) else result

    torch_answer.__signature__ = inspect.signature(answer)
    return torch_answer


NUMBERED = [(*pair, i) for i, pair in enumerate(PAIRS)]


@pytest.mark.parametrize(("name", "wrong", "i"), every_day(NUMBERED[::4], NUMBERED))
def test_a_wrong_answer_is_rejected_with_its_own_sentence(name, wrong, i, monkeypatch):
    answer = WRONG[name][wrong]
    plain = {*ONLY_NUMPY, *pair_answers.WRONG, *OF_SKETCHES}
    if i % 3 == 0 and name not in plain:
        need_torch()
        answer = only_torch(answer)
    else:
        monkeypatch.setattr(engine, "present", lambda: ["numpy"])
        narrow = i % 3 == 1 and name in OF_ATTENTION
        answer = in_float32(answer) if narrow else answer
    report = run(name, answer, time_limit=60)
    sentence = MESSAGES[name][wrong]
    if (name, wrong) in REMARKED:
        assert report.passed
        assert any(note.endswith(sentence) for note in report.remarks)
        return
    assert not report.passed
    assert (report.mistake, report.message) == (wrong, sentence)
    assert (report.mistakes, report.libraries) == ((wrong,), ())
    assert re.match(r"It was given |With .* (is|are|must have) ", report.detail, flags=re.DOTALL)
    assert report.case is not None


@pytest.mark.parametrize("name", WRONG)
def test_the_steps_are_right_and_every_mistake_changes_them(name):
    checked = CHECKS[name]
    cases = [case for stage in checked.stages for case in stage.cases]
    right = checked.model({})
    for case in cases:
        assert agree(checked.expected(case), right(case), case), case
    sentences = {m.message for m in checked.mistakes}
    assert len(sentences) == len(MESSAGES[name]) >= FEW.get(name, 15)
    if name != "sketch_attention":  # where several mistakes of attention are one
        assert len(checked.mistakes) == len(sentences)
    for mistake in checked.mistakes:
        for way in mistake.ways:
            assert shows(checked, way, cases), mistake.name


def shows(checked, way, cases):
    """Tell whether a way gives another result somewhere, or none."""
    model = checked.model(way)
    for case in cases:
        try:
            if not agree(model(case), checked.expected(case), case):
                return True
        except Exception:
            return True
    return False


BOTH = [(name, both) for name, doubles in DOUBLES.items() for both in doubles]


@pytest.mark.parametrize(("name", "both"), every_day(BOTH[::5], BOTH))
def test_two_mistakes_at_once_are_named(name, both, monkeypatch):
    monkeypatch.setattr(diagnosis, "PATIENCE", 600.0)  # on a slow machine as on a fast one
    if name in OF_SKETCHES:
        monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    report = run(name, DOUBLES[name][both])
    assert {*report.mistakes} == {*both.split("; ")}
    conventions = {m.name for m in CHECKS[name].mistakes if m.convention}
    assert report.message.startswith(AT_ONCE[len({*report.mistakes} & conventions)])
    assert all(MESSAGES[name][mistake] in report.message for mistake in report.mistakes)


ON_BATCHES = {
    "softmax": ("axis 1 of a batch", lambda x: attention_answers.sm(x, 1)),
    "attention": (
        "wrong on a batch",
        lambda *arrays: ab.attention(*(x.reshape(-1, x.shape[-1]) for x in arrays)).reshape(
            *arrays[0].shape[:-1], -1
        ),
    ),
    "cross_entropy": (
        "divided by the number of sequences",
        lambda logits, ids: ab.cross_entropy(logits, ids) * ids.size / len(ids),
    ),
    "rotary": (
        "result scaled",
        lambda x: ab.positions.rotary(x) / (1 + x.shape[0] * (x.ndim > 2)),
    ),
}


@pytest.mark.parametrize("name", ON_BATCHES)
def test_other_numbers_on_a_batch_are_a_mistake_and_an_error_is_not(name, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    mistake, function = ON_BATCHES[name]

    def refuses(*arrays):
        if arrays[0].ndim > 2:
            raise ValueError("one sequence, please")
        return function(*arrays)

    report = run(name, function)
    assert (report.passed, report.mistake) == (False, mistake)
    report = run(name, refuses)
    assert report, report
    assert any("ValueError, which is allowed" in remark for remark in report.remarks)


# Right answers.


STYLES = [(name, i) for name, functions in RIGHT.items() for i in range(len(functions))]
SLOW = {("adamw_step", 1)}
"""Those that load torch.optim, which takes seconds."""
FIRST = [style for style in STYLES if style[1] < 2 and style not in SLOW]


@pytest.mark.parametrize(("name", "i"), every_day(FIRST, STYLES))
def test_a_right_answer_in_any_style_passes(name, i, monkeypatch):
    if name in ONLY_NUMPY or (i and not WEEKLY):
        monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    report = run(name, RIGHT[name][i])
    assert report, report
    assert (report.mistake, report.mistakes, report.detail, report.case) == (None, (), "", None)
    assert report.message == "agrees with the reference"
    assert report.libraries[0] == "numpy"
    if name in pair_answers.RIGHT or (i == 0 and name in OF_SKETCHES):
        assert report.notes == ()
    if i == 0:  # the package itself
        unsaid = ("your layout", "return the ids", "on a batch of starts", "`mask` was not checked")
        assert not [note for note in report.notes if not any(text in note for text in unsaid)]
    if i == 0 and name not in ONLY_NUMPY and CHECKS[name].stages[0].cases[0].has_library:
        assert "torch" in report.libraries or not need_torch()


@pytest.mark.parametrize("name", IN_TORCH)
def test_a_right_answer_in_pytorch_passes_with_a_note_on_others(name):
    need_torch()
    report = run(name, IN_TORCH[name])
    assert report, report
    assert report.libraries[-1] == "torch"
    if report.libraries == ("torch",) and report.library_remarks:
        assert re.match(r"right on PyTorch; on NumPy it raises \w+", report.library_remarks[0])
    assert not any("NumPy" in remark for remark in report.remarks)


def test_small_errors_are_errors_and_rounding_is_not():
    narrow = in_float32(attention_answers.right_softmax)
    assert check.softmax(lambda x: attention_answers.sm(x) * (1 + 5e-6))
    assert not check.softmax(lambda x: attention_answers.sm(x) * (1 + 2**-13))
    assert check.softmax(lambda x: narrow(x) * np.float32(1 + 5e-5))
    assert not check.softmax(lambda x: narrow(x) * np.float32(1 + 2e-4))
    assert "it returns float32 for float64." in check.softmax(narrow).remarks


def test_every_option_that_is_taken_is_checked():
    def count(name, function):
        report = run(name, function)
        assert report, report
        return report.cases / len(report.libraries)

    assert count("softmax", lambda x: ab.softmax(x)) < count("softmax", ab.softmax)
    bare = count("attention", lambda q, k, v: ab.attention(q, k, v))
    for option in ("mask", "scale", "bias"):
        taken = eval(
            f"lambda q, k, v, *, {option}=None: a(q, k, v, {option}={option})", {"a": ab.attention}
        )
        assert count("attention", taken) > bare
    assert count("causal_mask", lambda n: np.tri(n, dtype=bool)) == 5
    assert count("causal_mask", masking_answers.right_causal) == 13


# Functions that fail.


RUBBISH = (*("text", {}, object(), 1j, [[object()]], [[1, 2], [1]], [0.5], np.array([True])),)


def raises(*given, **options):
    raise ValueError("so")


def hangs(*given, **options):
    while True:
        pass


@pytest.mark.parametrize("name", WRONG)
def test_functions_that_fail_in_every_way(name, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    with pytest.raises(TypeError, match=r"^f must be a function of \(.*\), got int$"):
        run(name, 5)
    with pytest.raises(ValueError, match=r"^time_limit must be finite and at least 0, got -1.0$"):
        run(name, print, time_limit=-1)
    report = run(name, lambda: None)
    assert (report.mistake, report.cases) == ("wrong arguments", 0)
    report = run(name, raises)
    assert report.mistake == "raises"
    assert report.message.startswith("Your function raises ValueError: so, at line ")
    assert run(name, hangs, time_limit=0.02).mistake == "hangs"
    assert run(name, lambda *given, **options: None).mistake == "no return"
    assert run(name, np.zeros(3)).mistake == "called already"
    for rubbish in RUBBISH:
        assert not run(name, lambda *given, rubbish=rubbish, **options: rubbish).passed


def test_a_right_attention_is_checked_in_few_calls(monkeypatch):
    """What runs in the thread of the reader's function does not count."""
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    root, calls = ab.__path__[0], []

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            calls.append(frame.f_code.co_name)

    check.attention(ab.attention)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        check.attention(ab.attention)
    finally:
        sys.setprofile(before)
    assert len(calls) <= 2500
