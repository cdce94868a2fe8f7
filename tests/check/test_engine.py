"""Whatever the reader's function does, the check goes on and says something that helps."""

import contextlib
import contextvars
import functools
import importlib
import inspect
import io
import itertools
import linecache
import math
import operator
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import attention_answers as answers
import masking_answers as masking  # noqa: F401 (for the tables)
import multi_head_answers as heads  # noqa: F401
import numpy as np
import pytest
from all_answers import need_torch
from attention_answers import right_attention, sm
from cases import every_day
from error_table import error_test
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from report_table import CHECKS, assert_report, report_rows

import attnbook
from attnbook import check
from attnbook.check.engine import diagnosis, findings, sandbox
from attnbook.check.engine import run as engine
from attnbook.check.engine.report import FailingCase
from attnbook.check.engine.steps import Case, Check, Mistake, Stage, close, draw, tolerances
from attnbook.check.exercises import softmax as normalization

REFUSED = """
softmax(5)
    TypeError: f must be a function of (x), got int
attention_vjp(None)
    TypeError: f must be a function of (query, key, value, grad_output), got NoneType
attention(print, time_limit="1")
    TypeError: time_limit must be a real number, got str
attention_vjp(print, time_limit=-1)
    ValueError: time_limit must be finite and at least 0, got -1.0
encoder_layer(print, norm="mid")
    ValueError: norm must be one of pre, post, got 'mid'
"""


test_what_is_refused = error_test(REFUSED, CHECKS)


# What the functions of the table of reports do.


def right(query, key, value):
    return right_attention(query, key, value)


def with_mask(query: np.ndarray, key, value, mask: object, *, scale=()):
    return value


class Attend:
    def __call__(self, query, key, value):
        return right(query, key, value)


class Forward:
    def forward(self, query, key, value):
        return right(query, key, value)


class Empty:
    pass


PARTIAL = functools.partial(attnbook.attention, scale=None)
WITHOUT_SIGNATURE = operator.itemgetter("a")


class Unreadable:
    def __array__(self, *arguments, **options):
        raise RuntimeError("no")


def broken(query, key, value):
    return value @ undefined_value  # noqa: F821


def broken_in_an_import(x):
    return importlib.import_module("no_such_module")


def only_square(query, key, value):
    if query.shape != value.shape or query.shape != key.shape:
        raise ValueError("shapes differ\nsecond line")
    return right(query, key, value)


def keys_for_queries(query, key, value):
    return right(query, key, value) + 0 * np.sum(query.mT @ key)


def with_a_table_of_8(x):
    return attnbook.positions.rotary(x) + np.zeros((8, x.shape[-1]))[: x.shape[-2]]


def angles_by_width():
    """Return a rotation whose table of angles is that of the first length."""
    known = {}

    def rotates(x):
        n, d = x.shape[-2:]
        angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
        angles = known.setdefault(d, angles)[:n]
        a, b, c, s = x[..., : d // 2], x[..., d // 2 :], np.cos(angles), np.sin(angles)
        return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)

    return rotates


def leaves(error):
    def leaves(x):
        raise error

    return leaves


def endless(x):
    return endless(x)


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError


def in_plain_python(top):
    """Return a softmax by math.exp that subtracts `top(row, rows)`."""

    def loops(x):
        rows = [[float(s) for s in row] for row in x]
        powers = [[math.exp(s - top(row, rows)) for s in row] for row in rows]
        return np.array([[p / sum(row) for p in row] for row in powers])

    return loops


def changes_key(query, key, value):
    output = right(query, key, value)
    key *= 2
    return output


def changes_mask(query, key, value, mask=None):
    output = right_attention(query, key, value, mask)
    if mask is not None:
        mask[...] = True
    return output


def drifts(x, counter=itertools.count()):  # noqa: B008
    return sm(x) + next(counter)


def of_the_first_shape():
    """Return attention with a cache whose key is the shapes."""
    known = {}

    def remembers(query, key, value):
        shapes = (type(query), query.shape, key.shape, value.shape)
        return known.setdefault(shapes, right(query, key, value))

    return remembers


def prints(x):
    print("shape", x.shape)
    return sm(x)


def warns(x):
    warnings.warn("look", stacklevel=1)
    return np.exp(np.asarray(x)) / np.exp(np.asarray(x)).sum(-1, keepdims=True)


def writes(x):
    assert not isinstance(x, np.ndarray) or x.flags.writeable
    return sm(x)


def one_gradient_wrong(q, k, v, g):
    grads = answers.gradients(q, k, v, g)
    return grads[0], grads[1] * 1.5, grads[2]


def forever():
    while True:
        pass


def busy(x):
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    return sm(x)


def slow(x):
    time.sleep(0.02)
    return sm(x)


def checks_inside(x):
    assert check.softmax(sm)
    return sm(x)


def hangs_inside(x):
    check.softmax(lambda x: forever(), time_limit=60)


def without_file(body):
    space = {}
    exec(f"def f(x):\n    {body}\n", space)
    return space["f"]


REPORTS = """
attention(lambda query, key: query)
    wrong arguments: Your function takes (query, key), but it is called with 3 arguments by
    position: (query, key, value). Every further argument needs a default value.
attention(with_mask)
    wrong arguments: Your function takes (query, key, value, mask, *, scale), but
attention(lambda *arrays: right(*arrays))
    right: agrees
softmax(lambda x, axis=-1, /: sm(x, axis))
    right: `axis` was not checked: your function takes no argument of that name.
attention(Attend())
    right: agrees
attention(PARTIAL)
    right: agrees
softmax(WITHOUT_SIGNATURE)
    raises: Your function raises IndexError
softmax(np.ones((2, 3)))
    called already: without calling it: check.softmax(my_function)
attention(Attend)
    class for an object: Make an object of it first, and pass that: check.attention(Attend(…)).
attention(Forward)
    class for an object: first, and pass its method: check.attention(Forward(…).forward).
attention(Empty)
    class for an object: first, and pass its method: check.attention(Empty(…).method).

attention(lambda query, key, value: None)
    no return: Your function returns None: is the `return` missing? It was given query (3, 3),
    key (3, 3), value (3, 3) of float64.
attention(lambda q, k, v: (right(q, k, v), answers.right_weights(q, k)))
    returns a tuple: Your function returns a tuple of 2; this exercise asks for one array, the
    output alone.
softmax(lambda x: np.asarray(x).tolist())
    wrong type: Your function returns a list as weights, where an array is expected, of the
    library that the inputs come from. It was given x (3, 3) of float64.
softmax(lambda x: (row for row in x))
    wrong type: Your function returns a generator as weights
softmax(lambda x: Unreadable())
    wrong type: Your function returns an Unreadable as weights
attention_vjp(lambda q, k, v, g: (q, k, None))
    wrong type: Your function returns a NoneType as grad_value, where
softmax(lambda x: sm(np.asarray(x)).astype("int64"))
    wrong dtype: The dtype of your weights is int64, where floating-point numbers are expected. An
    array made to be filled, or a comparison, may have set it.
softmax(lambda x: sm(np.asarray(x)).astype("float16"))
    wrong dtype: The dtype of your weights is float16, which keeps t
attention(lambda q, k, v: right(q, k, v)[..., :1])
    wrong shape: Your result has the wrong shape. With query (1, 3), key (1, 3), value (1, 2) of
    float64: output must have shape (..., n_q, d_v) = (1, 2), got (1, 1).
softmax(lambda x: answers.total(x))
    wrong shape: With x (1, 3) of float64: weights must have shape x.shape = (1, 3), got (1, 1).
attention_vjp(lambda q, k, v, g: (q, k))
    wrong number of results: Your function must return 3 arrays, (grad_query, grad_key,
    grad_value), in this order; it returns 2.
attention_vjp(lambda q, k, v, g: q)
    wrong number of results: in this order; it returns an ndarray.
attention_vjp(one_gradient_wrong)
    result scaled: Your grad_key is 1.5 times the right one. With… grad_key[0, 0] is
attention(lambda q, k, v: right(q, k, v) * math.nan)
    NaN: Your result holds NaN or infinity where the right numbers are finite. The usual causes:
    exp overflows, a sum that underflows to 0 is divided by, ∞ − ∞, or 0 · ∞.… is nan, expected

attention(broken)
    raises: Your function raises NameError: name 'undefined_value' is not defined, at line…of
    broken: `return value @ undefined_value…`. It was given query (3, 3), key (3, 3),
    value (3, 3) of float64, as NumPy arrays.
softmax(broken_in_an_import)
    raises: of broken_in_an_import: `return importlib.import_module
softmax(without_file("return missing"))
    raises: Your function raises NameError: name 'missing' is not defined, at line 2 of f. It was
attention(only_square)
    raises: Your function raises ValueError: shapes differ, at line…of only_square: `raise
    ValueError("shapes differ\\nsecond line")`. It was given query (2, 3), key (5, 3), value
    (5, 7) of float64
attention(keys_for_queries)
    raises: of keys_for_queries:…It runs where all sizes are equal, so somewhere one axis is taken
    for another. It was given query (
rotary(with_a_table_of_8)
    raises: return attnbook.positions…`. It was given x (97, 10) of float64, as NumPy arrays.
rotary(angles_by_width())
    table of other sizes: finds it again by a part of the sizes
softmax(leaves(SystemExit(3)))
    raises: SystemExit…of leaves: `raise error`. A function hands back its result with return;
    exit ends the whole program.
softmax(leaves(KeyboardInterrupt()))
    raises: KeyboardInterrupt…of leaves: `raise error`. Only the person at the keyboard should
    raise this one.
softmax(leaves(SpeechlessError()))
    raises: Speechless
softmax(endless)
    raises: RecursionError… It calls itself without end.
softmax(lambda x: math.exp(x) / sum(math.exp(x)))
    raises: raises TypeError… The functions of math take one number; NumPy's take arrays.
softmax(in_plain_python(lambda row, rows: 0))
    no maximum: It was given x (3, 3) of float64.
softmax(in_plain_python(lambda row, rows: max(map(max, rows))))
    maximum of the whole array: maximum…It was given x (3, 3) of float64.

attention(changes_key)
    changes key: Your function changes its input `key` in place, so the caller's array is no longer
    what it was. Compute a new array instead, without +=, *= or an assignment to a slice of it.
attention(changes_mask)
    changes mask: its input `mask` in place
attention(of_the_first_shape())
    earlier result returned: had the same shapes and other numbers.… With query (3, 3), key (3, 3)
softmax(drifts)
    not deterministic: Your function gives two results for one input. Look for random numbers, a
    dropout that is still on, a variable outside the function that it changes, or, in a kernel,
    memory beyond the end of an array. With x (3, 3) of float64: weights[0, 0] is
softmax(prints)
    right: it prints; the check holds the text back.
softmax(warns)
    no maximum: exp
softmax(writes)
    right: agrees
softmax(checks_inside)
    right: agrees

attention(lambda q, k, v: forever(), time_limit=0.1)
    hangs: Your function is not done after 0.1 seconds. Look for a loop that never ends, or one
    that does far too much work for so small an input. It was given query (3, 3)
softmax(hangs_inside, time_limit=0.1)
    hangs: is not done after 0.1 seconds
softmax(busy, time_limit=0.1)
    hangs: is not done
softmax(busy, time_limit=60)
    right: agrees
softmax(slow, time_limit=0.1)
    right: agrees
softmax(sm, time_limit=0)
    hangs: Your function is not done after 0 seconds.
softmax(sm, time_limit=1e300)
    right: agrees
"""


ROWS = report_rows(REPORTS)


@pytest.mark.parametrize(("call", "mistake", "said"), every_day(ROWS[::3], ROWS))
def test_what_is_said(call, mistake, said, capsys, monkeypatch):
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 300)  # all pairs take seconds
    before = sys.stdout
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_report(call, mistake, said, globals())
    assert sys.stdout is before
    assert capsys.readouterr().out == ""


def test_errors_of_numpy_are_not_raised_in_the_readers_function():
    with np.errstate(all="raise"):
        assert check.softmax(answers.SOFTMAX["no maximum"]).mistake == "no maximum"
        assert check.attention(answers.ATTENTION["empty row NaN"]).mistake == "empty row NaN"


# In PyTorch.


def for_torch_alone(query, key, value):
    assert query.unsqueeze(0).shape
    raise ValueError("later")


def for_tensors(x):
    import torch

    torch.exp(x)  # a TypeError on NumPy: must be Tensor
    raise ValueError("later")


def too_large_a_mask(query, key, value):
    import torch

    scores = query.unsqueeze(0) @ key.unsqueeze(0).transpose(1, 2)
    return ((scores + torch.zeros(7, 7)).softmax(-1) @ value.unsqueeze(0))[0]


def of_size(query, key, value):
    scores = query @ key.transpose(0, 1) / query.size(-1) ** 0.5
    return (scores + query.new_zeros(7, 7)).softmax(-1) @ value


def of_batches_of_heads(query, key, value):
    batch, n, d = query.size()
    return query.view(batch, n, 2, d).softmax(-1) @ value


def in_float32(x):
    import torch

    return torch.softmax(x @ torch.eye(x.shape[-1]), -1)


def by_batched_products(query, key, value):
    import torch

    weights = torch.softmax(torch.bmm(query, key.transpose(1, 2)) / query.shape[-1] ** 0.5, -1)
    return torch.bmm(weights, value)


def in_bfloat16(x):
    import torch

    return torch.softmax(torch.as_tensor(x), -1).to(torch.bfloat16)


def module(forward):
    """Return a torch module with this method."""
    import torch

    return type("Attention", (torch.nn.Module,), {"forward": forward})()


def fused(self, query, key, value, mask=None):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


REPORTS_OF_TORCH = """
attention(for_torch_alone)
    raises: raises ValueError: later, at…as PyTorch arrays.
softmax(for_tensors)
    raises: Your function raises ValueError: later,
softmax(in_bfloat16)
    wrong dtype: The dtype of your weights is bfloat16, which keeps t
attention(module(fused))
    right: right on PyTorch; on NumPy it raises
single_head(module(lambda self, q, k, v, A, B, C: right_attention(q @ A, k @ B, v @ C)))
    right: agrees
single_head(module(lambda self, q, k, v, weights: attnbook.single_head_attention(q, k, v, weights)))
    right: agrees
softmax(lambda x: sm(x) if isinstance(x, np.ndarray) else sm(-x))
    right: right on NumPy; on PyTorch its result differs.
attention(too_large_a_mask)
    raises: raises RuntimeError: The size of tensor a (3) must match the size of tensor b (7)…. On
    NumPy arrays it raises AttributeError: 'numpy.ndarray' object has no attribute 'unsqueeze'.
attention(of_size)
    raises: RuntimeError: The size of tensor a…On NumPy arrays it raises TypeError: 'int' object is
softmax(lambda x: __import__("torch").softmax(x))
    raises: raises TypeError: softmax() missing 1…On NumPy arrays it raises TypeError: softmax():
attention(of_batches_of_heads)
    raises: RuntimeError: shape '[1, 3, 2, 3]' is invalid…each with a leading axis of length 1
softmax(in_float32)
    raises: Convert that to the dtype of the input, for example by `.to(x.dtype)` in PyTorch.
attention(by_batched_products)
    right: on one sequence without a batch axis it raises
softmax(lambda x: sm(-x) if isinstance(x, np.ndarray) else sm(x))
    right: right on PyTorch; on NumPy its result differs.
softmax(lambda x: __import__("torch").softmax(x, dim=1))
    axis 1 of a batch: Write −1, which is the last axis of any array.
attention(lambda q, k, v: __import__("torch").softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1) @ v)
    right: on a batch (leading axes)
"""


@pytest.mark.parametrize(("call", "mistake", "said"), report_rows(REPORTS_OF_TORCH))
def test_what_is_said_of_functions_for_pytorch(call, mistake, said):
    need_torch()
    assert_report(call, mistake, said, globals())


def test_no_mistake_is_looked_for_in_a_library_once_another_is_right(monkeypatch):
    need_torch()
    monkeypatch.delattr(findings, "explain")
    report = check.softmax(lambda x: sm(x) if isinstance(x, np.ndarray) else sm(-x))
    assert report
    assert report.message == "agrees with the reference on NumPy arrays, but not on PyTorch's"
    assert "right on NumPy; on PyTorch its result differs. With x " in " ".join(report.remarks)


def by_var(x, gain, bias):
    """Divide by n in NumPy and by n − 1 in PyTorch."""
    return (x - x.mean(-1)[..., None]) / (x.var(-1)[..., None] + 1e-5) ** 0.5 * gain + bias


def with_a_maximum(x):
    e = np.exp(x - np.asarray(x.max(axis=-1, keepdims=True)))
    return e / e.sum(axis=-1, keepdims=True)


def test_what_differs_in_pytorch_is_shown_and_what_raises_there_is_not():
    need_torch()
    shown = " ".join(repr(check.layer_norm(by_var)).split())
    assert shown.startswith("✓ layer_norm: agrees with the reference on NumPy arrays, but not on")
    assert "divides by n in NumPy and by n − 1 in" in shown
    assert "PyTorch" not in repr(check.softmax(answers.loop_softmax))
    # a name that returns something else there, as max does with its indices, says nothing of NumPy
    report = check.softmax(with_a_maximum)
    assert "PyTorch" not in repr(report)
    assert "on PyTorch its result differs" in " ".join(report.library_remarks)


def test_a_wrong_result_in_numpy_is_part_of_what_is_shown():
    need_torch()
    report = check.softmax(lambda x: sm(-x) if isinstance(x, np.ndarray) else sm(x))
    for shown in (repr(report), report._repr_html_()):
        assert "Note: right on PyTorch; on NumPy its result differs." in " ".join(shown.split())


def test_an_array_of_another_library_is_named():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    report = check.softmax(lambda x: strict.asarray(answers.loop_softmax(x)))
    assert "it returns an array of array_api_strict for one of NumPy." in report.remarks


# Threads and time.


def test_the_thread_of_an_endless_loop_is_ended():
    ended = threading.Event()

    def loops(x):
        try:
            forever()
        except Exception:  # must not stop what ends the thread
            forever()
        finally:
            ended.set()

    assert check.softmax(loops, time_limit=0.1).mistake == "hangs"
    assert ended.wait(20)


@pytest.mark.parametrize("naps", [False, True])
def test_a_function_that_waits_is_ended_by_the_clock_on_the_wall(naps, monkeypatch):
    monkeypatch.setattr(sandbox, "IDLE_SECONDS", 0.3)
    lock = threading.Lock()

    def waits(x):
        while naps:
            time.sleep(0.05)
        lock.acquire()

    with lock:
        report = check.softmax(waits)
    assert report.mistake == "waits"
    assert report.message == (
        "Your function waits: for 0.3 seconds on the clock on the wall it has computed next to "
        "nothing. Look for a sleep, for input(), or for a lock nobody releases."
    )


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_a_function_that_stands_in_line_for_a_processor_does_not_wait(others, monkeypatch):
    monkeypatch.setattr(sandbox, "IDLE_SECONDS", 0.2)
    in_line = itertools.count(step=others)
    monkeypatch.setattr(sandbox, "seconds_in_line", lambda: {"1": next(in_line)})
    done = sandbox.call(lambda: time.sleep(1) or "done", (), {}, sandbox.Budget(10))
    assert done.value == ("done" if others else None)
    assert done.stopped.partition(":")[0] == ("" if others else "waits")


def test_where_the_system_tells_of_no_processes_nobody_stands_in_line():
    assert sandbox.seconds_in_line("no process") == {}
    assert all(seconds >= 0 for seconds in sandbox.seconds_in_line().values())


@pytest.mark.parametrize("clock", [True, False])
def test_a_machine_that_stands_still_for_an_hour_changes_nothing(clock, monkeypatch):
    if not clock:
        monkeypatch.delattr(time, "pthread_getcpuclockid", raising=False)
    now, real = [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now[0] + real())

    first_calls = iter(range(4))

    def stands_still(x):
        if next(first_calls, None) is None:
            return sm(x)
        time.sleep(0.12)  # the watcher looks before and after
        now[0] += 3600
        time.sleep(0.12)
        return sm(x)

    report = check.softmax(stands_still)
    assert report, report


def test_where_threads_have_no_clock_the_limit_is_far_and_on_the_wall(monkeypatch):
    monkeypatch.delattr(time, "pthread_getcpuclockid", raising=False)
    assert check.softmax(sm)
    report = check.softmax(lambda x: forever(), time_limit=0.05)
    assert report.mistake == "hangs"
    assert "is not done after 0.5 seconds on the clock on the wall." in report.message


def test_checks_run_from_any_thread_and_side_by_side():
    reports = []
    work = [
        threading.Thread(target=lambda: reports.append(check.attention(attnbook.attention))),
        threading.Thread(target=lambda: reports.append(check.softmax(attnbook.softmax))),
    ]
    before = sys.stdout
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert [bool(report) for report in reports] == [True, True]
    assert sys.stdout is before


def test_context_variables_are_seen_and_printing_goes_on_afterwards():
    power = contextvars.ContextVar("power", default=2.0)
    power.set(1.0)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert check.softmax(lambda x: sm(x * power.get()))
        print("after")
    assert text.getvalue() == "after\n"


@pytest.mark.parametrize("how", ["platform", "error"])
def test_without_threads_it_runs_in_place(monkeypatch, how):
    threads = set()

    def remembers(x, axis=-1):
        threads.add(threading.get_ident())
        return sm(x, axis)

    assert check.softmax(remembers).remarks == ()
    assert threading.get_ident() not in threads
    threads.clear()
    if how == "platform":
        monkeypatch.setattr(sys, "platform", "emscripten")
    else:

        def start(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", start)
    report = check.softmax(remembers)
    assert report
    assert threads == {threading.get_ident()}
    unlimited = "no thread can be started here, so no limit of time was set."
    assert report.remarks == (() if how == "platform" else (unlimited,))


def die_in_a_thread(error):
    def work():
        raise error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def die_in_a_clean_up(error):
    class Broken:
        def __del__(self):
            raise error

    Broken()  # and is gone at once


@pytest.mark.parametrize(
    ("module", "name", "die"),
    [(sys, "unraisablehook", die_in_a_clean_up), (threading, "excepthook", die_in_a_thread)],
)
def test_only_the_exception_that_stops_a_thread_is_hushed(module, name, die, monkeypatch):
    seen = []
    monkeypatch.setattr(module, name, lambda uncaught: seen.append(uncaught.exc_type))
    sandbox._hush()
    hook = getattr(module, name)
    sandbox._hush()
    assert getattr(module, name) is hook  # once is enough
    for error in (sandbox._Abandoned, KeyError):
        die(error)
    assert seen == [KeyError]


def test_the_time_limit_is_ten_seconds_unless_given_and_thirty_for_properties():
    limits = {
        name: inspect.signature(getattr(check, name)).parameters["time_limit"]
        for name in set(check.__all__) - {"CheckFailed", "Report"}
    }
    assert {limit.kind for limit in limits.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert {limit.default for limit in limits.values()} == {10.0, 30.0}
    assert limits["attention"].default == 10.0


# The report: its case, its text, its picture.


def test_a_failed_report_holds_a_case_to_be_called_again():
    def unscaled(query, key, value):
        return attnbook.softmax(query @ key.mT) @ value

    report = check.attention(unscaled)
    case = report.case
    np.testing.assert_array_equal(case.got, unscaled(*case.arguments.values(), **case.options))
    np.testing.assert_allclose(case.expected, attnbook.attention(**case.input))
    assert {x.shape for x in case.input.values()} == {(1, 3), (2, 3), (2, 1)}
    shown = repr(report)
    for name, x in case.input.items():
        assert f"    {name} = {x.astype(int).tolist()}\n" in shown
    assert "\n    got [[" in shown
    assert "\n    expected [[" in shown
    assert report.mistakes == ("no scale",)


@pytest.mark.parametrize("result", [lambda: 1 / 0, lambda: None, lambda: "weights"])
def test_the_case_of_an_error_and_of_a_wrong_type(result):
    case = check.softmax(lambda x: result()).case
    assert case.input["x"].shape == (3, 3)
    assert case.got is case.expected is None


@pytest.mark.parametrize(
    ("case", "lines"),
    [
        (FailingCase({"x": np.ones((7, 7))}, {}, np.ones(2), np.zeros(2)), []),
        (FailingCase({"x": np.ones(1), "weights": object()}), []),
        (FailingCase({"x": np.zeros((0, 3))}), ["x = an empty array (0, 3)"]),
        (FailingCase({"x": np.ones(2)}, {}, np.ones(40), np.zeros(40)), ["x = [1, 1]"]),
    ],
)
def test_what_is_too_large_is_held_and_not_shown(case, lines):
    assert case.lines() == lines


def test_assertions_and_require_show_the_text_of_the_report():
    report = check.softmax(lambda x: sm(-x))
    space = {"report": report}
    for statement in ("assert report", "assert report, 'so'", "report.require()"):
        with pytest.raises(check.CheckFailed) as caught:
            exec(statement, space)
        assert str(caught.value) == repr(report)
        assert isinstance(caught.value, AssertionError)
    exec("assert not report\nif report: 1 / 0\nbool(report)\nassert report or True", space)
    passed = check.softmax(sm)
    exec("assert report", {"report": passed})
    assert passed.require() is passed
    with pytest.raises(AttributeError):
        passed.passed = False


def test_a_report_draws_itself_and_escapes_what_it_shows():
    failed = check.softmax(lambda x: sm(-x))._repr_html_()
    passed = check.softmax(lambda x: sm(x))._repr_html_()
    assert failed.count("<div") == failed.count("</div>")
    assert "✗" in failed
    assert "x = [[" in failed
    assert "✓" in passed
    assert "Note: `axis`" in passed
    for picture in (failed, passed):  # the colours of the page hold, in light and in dark
        assert "color: inherit" in picture
        assert "background: #" not in picture
    report = check.Report("c", False, None, "<b> & so", "", (), (), 0, ())
    assert "&lt;b&gt; &amp; so" in report._repr_html_()


def test_reports_are_the_same_whatever_is_installed(monkeypatch):
    functions = {
        "softmax": answers.SOFTMAX["no maximum"],
        "attention": answers.loop_attention,
        "single_head": answers.loop_head,
    }
    with_all = {name: repr(getattr(check, name)(f)) for name, f in functions.items()}
    monkeypatch.setattr("attnbook.check.engine.run.present", lambda: ["numpy"])
    assert {name: repr(getattr(check, name)(f)) for name, f in functions.items()} == with_all
    assert check.attention(answers.loop_attention).libraries == ("numpy",)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("x" * 40 + " " + "y" * 32, "x" * 40 + " " + "y" * 32),
        ("x" * 40 + " " + "y" * 33, "x" * 40 + "\n  " + "y" * 33),
        ("x" * 60 + " " + "y" * 15 + "-" + "z" * 15, "x" * 60 + "\n  " + "y" * 15 + "-" + "z" * 15),
    ],
)
def test_a_report_is_78_columns_wide_and_breaks_no_word_at_a_hyphen(message, shown):
    assert repr(check.Report("c", True, None, message, "", (), (), 0, ())) == f"✓ c: {shown}"


def test_importing_the_checks_is_light():
    code = "import sys, attnbook.check; print('torch' in sys.modules, 'cupy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# Explanations.


def toy(**changed):
    """Return a check of x ↦ 2x + 1, whose steps can be made wrong."""
    parts = {
        "compute": lambda s, x: s.add(s.double(x)),
        "steps": {"double": lambda x: 2 * x, "add": lambda x: x + 1},
        "mistakes": (
            Mistake("not doubled", "Double it.", ({"double": lambda x: x},)),
            Mistake("nothing added", "Add one.", ({"add": lambda x: x},)),
            Mistake("two added", "Add no more than one.", ({"add": lambda x: x + 2},)),
            Mistake("squared", "Do not square.", ({"compute": lambda x: x**2},)),
            Mistake("broken", "This model raises.", ({"add": lambda x: x[7, 7]},)),
        ),
        **changed,
    }
    cases = tuple(Case({"x": draw(3, n, 2)}) for n in (3, 1))
    return Check("toy", ("x",), {"y": "x.shape"}, (Stage(cases),), **parts)


NEITHER = Mistake("a", "A.", ({"double": lambda x: 3 * x}, {"add": lambda x: x}))
NOTHING_ADDED = Mistake("nothing added", "Add one.", ({"add": lambda x: x},))
TIMES_3 = ({"double": lambda x: 3 * x},)
ALMOST = ({"double": lambda x: 2 * x + 1e-9 + 0 * x},)
FLAT = Check(
    *("flat", ("x",), {"y": "(n,)"}, (Stage((Case({"x": draw(3, 5)}),)),), ()),
    reference=lambda x: 2 * x,
    any_length=True,
)
TIMES_5 = Check(*("times", ("x",), {"y": "x.shape"}, toy().stages, ()), reference=lambda x: 5 * x)
CONVENTIONS = {"with one more": toy(), "times 5": TIMES_5}

EXPLAINED = """
engine.run(toy(), lambda x: 2 * x + 1, 9)
    right: agrees
engine.run(toy(), lambda x: x + 1, 9)
    not doubled: Double it.
engine.run(toy(), lambda x: x**2, 9)
    squared: Do not square.
engine.run(toy(), lambda x: x + 2, 9)
    not doubled; two added: Two mistakes at once. Double it. Add no more than one.
engine.run(toy(), lambda x: x * 1, 9)
    input returned: You return `x` as it came.
engine.run(toy(), lambda x: -0.0 * x**2, 9)
    constant: Your function returns 0 for every input. Is it finished?
engine.run(toy(), lambda x: x**3, 9)
    unknown: Your numbers differ
engine.run(toy(mistakes=(NEITHER,)), lambda x: 3 * x, 9)
    a: A.
engine.run(toy(mistakes=(NOTHING_ADDED,), variants=TIMES_3), lambda x: 3 * x, 9)
    nothing added: Add one.
engine.run(toy(variants=ALMOST), lambda x: 3 * x**3 + 1, 9)
    unknown: Your numbers differ
engine.run(toy(any_length=True), lambda x: x[:, 0], 9)
    unknown: Your result has the wrong shape: (
engine.run(FLAT, lambda x: x[:3], 9)
    unknown: Your result holds 3 numbers where 5 are right.
engine.either(CONVENTIONS, lambda x: 5 * x, 9)
    right: times 5
engine.either(CONVENTIONS, lambda x: x + 1, 9)
    not doubled: Double it.
engine.either(CONVENTIONS, lambda x: None, 9)
    no return: returns None
"""


@pytest.mark.parametrize(("call", "mistake", "said"), report_rows(EXPLAINED))
def test_what_a_toy_check_says(call, mistake, said):
    assert_report(call, mistake, said, globals())


@pytest.mark.parametrize(("factor", "mistake"), [(2.0, None), (np.nan, "NaN")])
def test_only_what_is_finite_in_the_right_result_can_be_lost(factor, mistake, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    hidden = np.array([np.nan, 1.0])
    half = replace(TIMES_5, reference=lambda x: x * hidden)
    assert engine.run(half, lambda x: factor * x**3 * hidden, 9).mistake == mistake


RELATED = """
softmax(lambda x: -2 * answers.SOFTMAX["not normalised"](x))
    not normalised; result scaled: Your result is -2 times what that alone gives.
softmax(lambda x: 3 * sm(x))
    result scaled: Your result is 3 times the right one.
softmax(lambda x: sm(x) / x.shape[-1])
    result scaled: Your result is a multiple of the right one, by a factor that changes: 0.2 with x
    (2, 5) of float64, and 0.3333 with x (3, 3) of float64.
softmax(lambda x: -sm(x))
    result negated: Your result is minus the right one.
attention(lambda q, k, v: right(q, k, v) - 0.5)
    number added: Your result is the right one plus -0.5.
attention(lambda q, k, v: right(q, k, v).mT)
    result transposed: Your result is the right one with its last two axes exchanged.
attention(lambda q, k, v: right(q, k, v)[..., ::-1, :] if isinstance(q, np.ndarray) else q)
    result reversed: Your result is the right one in reverse order along axis −2.
attention_weights(lambda q, k: np.roll(answers.right_weights(q, k), 1, -1))
    result moved by one place: Your result is the right one, moved on by one place along axis −1.
split_heads(lambda x, h: 0 * heads.right_split(x, h) + heads.right_split(x, h)[..., :1, :])
    one place for all: the same everywhere along axis −2, which is right for the first place.
layer_norm(lambda x, g, b: attnbook.layer_norm(x, g, b) + x)
    x in the result: Your result is the right one plus `x`.
softmax(lambda x: x - sm(x))
    x in the result: Your result is `x` less the right one.
softmax(lambda x: sm(x) ** 2)
    function of the result: Your result is the square of the right one.
causal_mask(lambda n_q, n_k: masking.right_causal(n_q, n_k) & (np.arange(n_k) > 0))
    one place 0: Your result is right but for the first place along axis −1, which holds 0.
softmax(lambda x: np.round(sm(x) * 8) / 8)
    unknown: Your numbers differ
"""


@pytest.mark.parametrize(("call", "mistake", "said"), report_rows(RELATED))
def test_what_is_said_of_results_that_are_simply_related_to_the_right_ones(call, mistake, said):
    assert_report(call, mistake, said, globals())


def test_a_relation_needs_three_different_numbers():
    ones = replace(TIMES_5, reference=lambda x: np.ones_like(x))
    assert engine.run(ones, lambda x: 2 + 0 * x, 9).mistake == "constant"
    signs = replace(TIMES_5, reference=lambda x: np.sign(x))
    assert engine.run(signs, lambda x: 2 * np.sign(x), 9).mistake is None


def test_booleans_are_turned_round():
    positive = Check(
        *("positive", ("x",), {"y": "x.shape"}, toy().stages, ()),
        reference=lambda x: x > 0,
        kind="bool",
    )
    report = engine.run(positive, lambda x: x <= 0, 9)
    assert report.mistake == "everything inverted"
    assert report.message == "Your result is the right one with True and False exchanged."


def test_the_case_of_a_causal_mask_is_called_again_with_both_sizes():
    def two(a, b):
        return np.tri(a, b, 1, dtype=bool)

    for function in (two, lambda n: np.tri(n, k=1, dtype=bool)):
        case = check.causal_mask(function).case
        np.testing.assert_array_equal(function(*case.arguments.values()), case.got)
        assert case.options == {}


def test_a_causal_mask_that_is_sliced_is_told_which_shape_is_asked():
    def square(n_k):
        return np.tri(n_k, dtype=bool)

    def filled(n_q, n_k):
        mask = np.zeros((n_q, n_k), dtype=bool)
        mask[...] = square(n_k)[-n_q:]
        return mask

    def refused(n_q, n_k):
        if n_q > n_k:
            raise ValueError("more queries than keys")
        return square(n_k)[-n_q:]

    ways = {
        filled: "raises",
        refused: "raises",
        lambda n_q, n_k: square(n_k)[-n_q:].reshape(n_q, n_k): "raises",
        lambda n_q, n_k: square(n_k)[-n_q:]: "wrong shape",
        lambda n_q, n_k: square(n_k)[n_k - n_q :]: "wrong shape",
    }
    for way, mistake in ways.items():
        report = check.causal_mask(way)
        n_q, n_k = report.case.arguments.values()
        assert (report.mistake, n_q > n_k) == (mistake, True)
        assert f"the mask has shape ({n_q}, {n_k}) and its first {n_q - n_k} rows" in report.message
        assert report.message.endswith("Compare the places instead: j ≤ i + n_k - n_q.")
    for other in (lambda n_q, n_k: 1 / 0, lambda n_q, n_k: np.ones((2, 9), bool)):
        assert "Compare the places" not in check.causal_mask(other).message


def test_parents_and_tokens_may_stand_in_lists():
    def step(totals, log_p, n_beams):
        best = np.argsort(-(totals[:, None] + log_p), axis=None, kind="stable")[:n_beams]
        return best // log_p.shape[1], best % log_p.shape[1]

    lists = [
        lambda *given: tuple(x.tolist() for x in step(*given)),
        lambda *given: [x.tolist() for x in step(*given)],
        lambda *given: (step(*given)[0].tolist(), step(*given)[1]),
        lambda *given: (step(*given)[0], list(step(*given)[1])),
    ]
    for way in lists:
        assert check.beam_step(way)
    floats = check.beam_step(lambda *given: tuple(list(1.0 * x) for x in step(*given)))
    assert floats.mistake == "wrong dtype"


def test_a_long_line_is_cut():
    line = "return " + " + ".join(["x"] * 40)
    name = "a file with a long line"
    linecache.cache[name] = (len(line), None, ["def f(x):\n", f"    {line} / 0\n"], name)
    space = {}
    exec(compile(f"def f(x):\n    {line} / missing\n", name, "exec"), space)
    assert f"line 2 of f: `{line[:79]}…`." in check.softmax(space["f"]).message


def test_pairs_are_bounded_by_a_count(monkeypatch):
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 0)
    assert engine.run(toy(), lambda x: x + 2, 9).mistakes == ()


def test_the_search_for_pairs_ends_after_seconds_of_computing_and_says_so(monkeypatch):
    said = "The search for two mistakes at once ended after 0 seconds of computing."
    assert engine.run(toy(), lambda x: x + 2, 9).mistakes == ("not doubled", "two added")
    monkeypatch.setattr(diagnosis, "PATIENCE", 0.0)
    assert engine.run(toy(), lambda x: x + 1, 9).mistake == "not doubled"
    for report in (engine.run(toy(), lambda x: x + 2, 9), engine.either({"a": toy()}, abs, 9)):
        assert report.mistakes == ()
        assert said in report.message


def test_searches_within_one_report_share_their_seconds(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(diagnosis, "computed", lambda: float(next(clock)))
    with diagnosis.patience():
        while diagnosis.is_patient():
            pass
        with diagnosis.patience():
            assert not diagnosis.is_patient()
    with diagnosis.patience():
        assert diagnosis.is_patient()


@pytest.mark.parametrize(("dtype", "mistake"), [("float16", "few digits"), ("float32", None)])
def test_numbers_that_were_rounded_to_16_bits_are_told(dtype, mistake, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    report = engine.run(TIMES_5, lambda x: (5 * x).astype(dtype).astype(x.dtype), 9)
    assert report.mistake == mistake


def test_a_sum_of_weights_is_shown_with_the_digits_that_tell_it_from_one():
    case = Case({"x": np.ones((1, 2))})
    sentence = normalization.rows_sum_to_one(case, (np.array([[0.5, 0.50003]]),), None)
    assert "here a sum is 1.00003" in sentence
    assert normalization.rows_sum_to_one(case, (np.array([[0.5, 0.5]]),), None) is None


def test_a_way_must_name_steps():
    with pytest.raises(ValueError, match=r"^toy has no step triple$"):
        toy(mistakes=(Mistake("a", "A.", ({"triple": abs},)),))


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-6, 1.0 + 1e-3, -1.0, 1e-7, 1e300, math.inf])
PAIRS = npst.arrays(np.float64, (2, 5), elements=NUMBERS | st.just(-math.inf) | st.just(math.nan))


@given(PAIRS, st.sampled_from([np.float16, np.float32, np.float64]))
@example(np.array([[1.0], [math.inf]]), np.float64)
def test_numbers_are_near_as_numpy_finds_them(pair, dtype):
    got, expected = pair
    with np.errstate(over="ignore"):
        got = got.astype(dtype)
    case = Case({"x": got})
    rtol, atol = tolerances(got, case)
    wanted = np.isclose(got.astype(float), expected, rtol, atol, equal_nan=True)
    assert np.array_equal(close(got, expected, case), wanted)
