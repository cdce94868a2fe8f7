"""Whatever the reader's function does, the check goes on and says something that helps."""

import contextlib
import functools
import importlib
import inspect
import io
import itertools
import math
import operator
import subprocess
import sys
import threading
import time
import warnings

import attention_answers as answers
import numpy as np
import pytest

import attnbook
from attnbook import check
from attnbook.check import diagnosis, sandbox
from attnbook.check.engine import either, run
from attnbook.check.report import FailingCase
from attnbook.check.steps import Case, Check, Mistake, Stage, draw

NO_SCALE = object()
SQUARE = "It was given query (3, 3), key (3, 3), value (3, 3) of float64"


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def right(query, key, value):
    return answers.right_attention(query, key, value)


def line_of(function, offset):
    return function.__code__.co_firstlineno + offset


# Functions that are no answer.


@pytest.mark.parametrize("name", ["softmax", "attention_weights", "attention", "single_head"])
def test_what_cannot_be_called_is_refused(name):
    with pytest.raises(TypeError, match=r"^f must be a function of \((x|query, key).*\), got int$"):
        getattr(check, name)(5)


def test_what_cannot_be_called_is_refused_in_full():
    message = r"^f must be a function of \(query, key, value, grad_output\), got NoneType$"
    with pytest.raises(TypeError, match=message):
        check.attention_vjp(None)


@pytest.mark.parametrize("name", ["softmax", "attention_weights", "attention", "single_head"])
def test_a_time_limit_must_be_a_number(name):
    with pytest.raises(TypeError, match=r"^time_limit must be a real number, got str$"):
        getattr(check, name)(right, time_limit="1")
    with pytest.raises(ValueError, match=r"^time_limit must be finite and at least 0, got -1.0$"):
        check.attention_vjp(right, time_limit=-1)


def test_too_few_arguments():
    report = check.attention(lambda query, key: query)
    assert not report
    assert report.mistake == "wrong arguments"
    assert report.message == (
        "Your function takes (query, key), but it is called with 3 arguments by position: "
        "(query, key, value). Every further argument needs a default value."
    )
    assert (report.cases, report.detail, report.remarks) == (0, "", ())


def test_a_further_argument_without_a_default():
    def with_mask(query: np.ndarray, key, value, mask: object, *, scale=NO_SCALE):
        return value

    report = check.attention(with_mask)
    assert report.message.startswith("Your function takes (query, key, value, mask, *, scale), but")


def test_arguments_may_have_other_names():
    assert check.attention(lambda Q, K, V: right(Q, K, V))
    assert check.attention(lambda *arrays: right(*arrays))
    assert check.softmax(lambda scores, /: answers.sm(scores))


def test_an_option_that_is_positional_only_is_not_passed():
    report = check.softmax(lambda x, axis=-1, /: answers.sm(x, axis))
    assert report
    assert report.remarks == (
        "`axis` was not checked: your function takes no argument of that name.",
    )


def test_an_argument_that_is_named_like_an_option_is_no_option():
    assert check.attention(lambda mask, key, value: right(mask, key, value))


# Things that can be called.


class Callable:
    def __call__(self, query, key, value):
        return right(query, key, value)


def test_callable_objects_and_partials():
    assert check.attention(Callable())
    assert check.attention(functools.partial(right))
    assert check.attention(functools.partial(attnbook.attention, scale=None))
    assert check.softmax(functools.partial(answers.right_softmax, axis=-1))


def test_a_function_that_does_not_tell_its_signature():
    for function in (operator.attrgetter("shape"), max):
        report = check.single_head(function)
        assert not report
    report = check.softmax(operator.itemgetter(0))
    assert not report


def test_a_torch_module():
    torch = need_torch()

    class Attention(torch.nn.Module):
        def forward(self, query, key, value, mask=None):
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask
            )

    report = check.attention(Attention())
    assert report, report
    assert report.libraries == ("torch",)
    assert report.remarks == ()

    class Head(torch.nn.Module):
        def forward(self, query, key, value, W_Q, W_K, W_V):
            return answers.right_attention(query @ W_Q, key @ W_K, value @ W_V)

    assert check.single_head(Head())

    class HeadOfWeights(torch.nn.Module):
        def forward(self, query, key, value, weights):
            return attnbook.single_head_attention(query, key, value, weights)

    assert check.single_head(HeadOfWeights())


# What it returns.


def test_nothing_returned():
    report = check.attention(lambda query, key, value: None)
    assert report.mistake == "no return"
    assert report.message == "Your function returns None: is the `return` missing?"
    assert report.detail == f"{SQUARE}."
    assert check.attention_vjp(lambda *a: None).mistake == "no return"


def test_a_tuple_returned():
    report = check.attention(lambda q, k, v: (right(q, k, v), answers.right_weights(q, k)))
    assert report.mistake == "returns a tuple"
    assert report.message == (
        "Your function returns a tuple of 2; this exercise asks for one array, the output alone."
    )
    assert report.detail == f"{SQUARE}."


class Unreadable:
    def __array__(self, *arguments, **options):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (lambda x: x.tolist(), "a list"),
        (lambda x: np.matrix(x), "a matrix"),
        (lambda x: np.ma.masked_array(x), "a MaskedArray"),
        (lambda x: 0.5, "a float"),
        (lambda x: 1, "an int"),
        (lambda x: "softmax", "a str"),
        (lambda x: (row for row in x), "a generator"),
        (lambda x: Unreadable(), "an Unreadable"),
        (lambda x: {}, "a dict"),
    ],
)
def test_another_type_returned(result, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = check.softmax(lambda x: result(np.asarray(x)))
    assert report.mistake == "wrong type"
    assert report.message == (
        f"Your function returns {kind} as weights, where an array is expected, of the library "
        "that the inputs come from."
    )
    assert report.detail == "It was given x (3, 3) of float64."


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex128", "object"])
def test_another_dtype_returned(dtype):
    report = check.softmax(lambda x: answers.sm(np.asarray(x)).astype(dtype))
    assert report.mistake == "wrong dtype"
    assert report.message == (
        f"The dtype of your weights is {dtype}, where floating-point numbers are expected. An "
        "array made to be filled, or a comparison, may have set it."
    )
    assert report.detail == "It was given x (3, 3) of float64."


def test_another_shape_returned():
    report = check.attention(lambda q, k, v: right(q, k, v)[..., :1])
    assert report.mistake == "wrong shape"
    assert report.message == (
        "Your result has the wrong shape. With query (1, 3), key (1, 3), value (1, 2) of float64: "
        "output must have shape (..., n_q, d_v) = (1, 2), got (1, 1)."
    )
    assert report.detail == ""
    report = check.softmax(lambda x: answers.total(x))
    assert report.mistake == "wrong shape"
    assert report.message == (
        "Your result has the wrong shape. With x (1, 3) of float64: weights must have shape "
        "x.shape = (1, 3), got (1, 1)."
    )


@pytest.mark.parametrize(
    ("result", "count"),
    [
        (lambda q, k, v: (q, k), "2"),
        (lambda q, k, v: [q, k, v, v], "4"),
        (lambda q, k, v: q, "a ndarray"),
    ],
)
def test_another_number_of_gradients(result, count):
    report = check.attention_vjp(lambda q, k, v, g: result(q, k, v))
    assert report.mistake == "wrong number of results"
    assert report.message == (
        "Your function must return 3 arrays, (grad_query, grad_key, grad_value), in this order; "
        f"it returns {count}."
    )


def test_one_gradient_of_another_type():
    report = check.attention_vjp(lambda q, k, v, g: (q, k, None))
    assert report.mistake == "wrong type"
    assert report.message.startswith("Your function returns a NoneType as grad_value, where")


def test_one_wrong_gradient_is_named():
    def answer(q, k, v, g):
        grads = answers.gradients(q, k, v, g)
        return grads[0], grads[1] * 1.5, grads[2]

    report = check.attention_vjp(answer)
    assert ": grad_key[0, 0] is " in report.detail


def test_nan_that_no_mistake_explains():
    report = check.attention(lambda q, k, v: right(q, k, v) * float("nan"))
    assert report.mistake == "NaN"
    assert report.message == (
        "Your result holds NaN or infinity where the right numbers are finite. The usual causes: "
        "exp overflows, a sum that underflows to 0 is divided by, ∞ − ∞, or 0 · ∞."
    )
    assert " is nan, expected " in report.detail


# What it raises.


def test_an_error_everywhere_is_explained():
    def broken(query, key, value):
        scores = query @ key.T
        return scores @ undefined_value  # noqa: F821

    report = check.attention(broken)
    assert report.mistake == "raises"
    assert report.message == (
        "Your function raises NameError: name 'undefined_value' is not defined, at line "
        f"{line_of(broken, 2)} of broken: `return scores @ undefined_value  # noqa: F821`."
    )
    assert report.detail == f"{SQUARE}, as NumPy arrays."
    assert report.libraries == ()


def test_the_line_is_the_readers_and_not_the_librarys():
    def broken(query, key, value):
        return np.linalg.inv(np.ones((2, 3)))

    report = check.attention(broken)
    assert f"at line {line_of(broken, 1)} of broken: `return np.linalg.inv" in report.message


def test_an_error_in_code_without_a_file():
    space = {}
    exec("def f(q, k, v):\n    return missing\n", space)
    report = check.attention(space["f"])
    assert report.message == (
        "Your function raises NameError: name 'missing' is not defined, at line 2 of f."
    )


def test_the_line_is_not_one_of_the_import_machinery():
    def broken(x):
        return importlib.import_module("no_such_module")

    assert f", at line {line_of(broken, 1)} of broken: `" in check.softmax(broken).message


def test_the_full_stop_of_an_error_is_not_doubled():
    space = {}
    exec("def f(x):\n    raise ValueError('give it as X.')\n", space)
    assert check.softmax(space["f"]).message == (
        "Your function raises ValueError: give it as X, at line 2 of f."
    )


def test_an_error_inside_a_library_alone():
    report = check.softmax(operator.itemgetter("a"))
    assert report.mistake == "raises"
    assert report.message.startswith("Your function raises IndexError: ")
    assert " at line " not in report.message


def test_a_function_that_only_fits_a_square():
    def only_square(query, key, value):
        if query.shape != value.shape or query.shape != key.shape:
            raise ValueError("shapes differ\nsecond line")
        return right(query, key, value)

    report = check.attention(only_square)
    assert report.mistake == "raises"
    assert report.message == (
        f"Your function raises ValueError: shapes differ, at line {line_of(only_square, 2)} of "
        'only_square: `raise ValueError("shapes differ\\nsecond line")`. It runs where all sizes '
        "are equal, so somewhere one axis is taken for another."
    )
    assert "query (2, 5)" not in report.detail
    assert report.detail == (
        "It was given query (2, 3), key (5, 3), value (5, 7) of float64, as NumPy arrays."
    )


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            SystemExit(3),
            "A function hands back its result with return; exit ends the whole program.",
        ),
        (KeyboardInterrupt(), "Only the person at the keyboard should raise this one."),
    ],
)
def test_errors_that_would_end_the_program(error, hint):
    def leaves(x):
        raise error

    report = check.softmax(leaves)
    assert report.mistake == "raises"
    assert type(error).__name__ in report.message
    assert report.message.endswith(f" of leaves: `raise error`. {hint}")


def test_endless_recursion():
    def again(x):
        return again(x)

    report = check.softmax(again)
    assert "RecursionError" in report.message
    assert report.message.endswith(" It calls itself without end.")


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_error_that_cannot_be_printed():
    def broken(x):
        raise SpeechlessError

    assert "Speechless" in check.softmax(broken).message


@pytest.mark.parametrize(
    ("inner", "mistake"),
    [
        (lambda row: [math_exp(s) for s in row], "no maximum"),
        (lambda row, top=0: [math_exp(s - top) for s in row], "maximum of the whole array"),
    ],
)
def test_errors_of_plain_python_show_the_mistake(inner, mistake):
    def loops(x):
        rows = [[float(s) for s in row] for row in x]
        if mistake == "no maximum":
            powers = [inner(row) for row in rows]
        else:
            powers = [inner(row, max(map(max, rows))) for row in rows]
        return np.array([[p / sum(row) for p in row] for row in powers])

    report = check.softmax(loops)
    assert report.mistake == mistake
    assert report.detail == "It was given x (3, 3) of float64."
    assert "exp" in report.message or "maximum" in report.message


def math_exp(x):
    import math

    return math.exp(x)


def test_the_error_that_got_further_is_told():
    need_torch()

    def for_torch_alone(query, key, value):
        scores = query.unsqueeze(0) @ key.mT
        raise ValueError("later")
        return scores

    report = check.attention(for_torch_alone)
    assert "raises ValueError: later, at" in report.message
    assert report.detail == f"{SQUARE}, as PyTorch arrays."


# What it does on the way.


def test_input_that_is_changed_is_named():
    def in_place(query, key, value):
        output = right(query, key, value)
        key *= 2
        return output

    report = check.attention(in_place)
    assert report.mistake == "changes key"
    assert report.message == (
        "Your function changes its input `key` in place, so the caller's array is no longer what "
        "it was. Compute a new array instead, without +=, *= or an assignment to a slice of it."
    )
    assert report.detail == f"{SQUARE}."


def test_a_mask_that_is_changed_is_named():
    def in_place(query, key, value, mask=None):
        output = answers.right_attention(query, key, value, mask)
        if mask is not None:
            mask[...] = True
        return output

    assert check.attention(in_place).mistake == "changes mask"


def test_two_results_for_one_input():
    counter = itertools.count()

    def drifts(x):
        return answers.sm(x) + next(counter)

    report = check.softmax(drifts)
    assert report.mistake == "not deterministic"
    assert report.message == (
        "Your function gives two results for one input. Look for random numbers, a dropout that "
        "is still on, or a variable outside the function that it changes."
    )
    assert report.detail.startswith("With x (3, 3) of float64: weights[0, 0] is 1.")


def test_text_that_is_printed_is_held_back(capsys):
    before = sys.stdout

    def prints(x):
        print("shape", x.shape)
        return answers.sm(x)

    report = check.softmax(prints)
    assert report
    assert report.remarks[1:] == ("it prints; the check holds the text back.",)
    assert sys.stdout is before
    assert capsys.readouterr().out == ""
    assert "it prints; the check holds the text back." not in check.softmax(answers.sm).notes


def test_standard_output_is_restored_after_an_error_and_after_a_time_out():
    before = sys.stdout

    def prints_and_fails(x):
        print("so")
        raise ValueError

    assert not check.softmax(prints_and_fails)
    assert sys.stdout is before
    assert check.softmax(lambda x: forever(), time_limit=0.2).mistake == "hangs"
    assert sys.stdout is before


def test_warnings_inside_do_not_come_out():
    def warns(x):
        warnings.warn("look", stacklevel=1)
        return np.exp(np.asarray(x)) / np.exp(np.asarray(x)).sum(-1, keepdims=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check.softmax(warns).mistake == "no maximum"
    with np.errstate(all="raise"):
        assert check.softmax(answers.SOFTMAX["no maximum"]).mistake == "no maximum"
        assert check.attention(answers.ATTENTION["empty row NaN"]).mistake == "empty row NaN"


# Time.


def forever():
    while True:
        pass


def test_an_endless_loop_ends():
    report = check.attention(lambda q, k, v: forever(), time_limit=0.2)
    assert report.mistake == "hangs"
    assert report.message == (
        "Your function is not done after 0.2 seconds. Look for a loop that never ends, or one "
        "that does far too much work for so small an input."
    )
    assert report.detail == f"{SQUARE}."


def test_the_thread_of_an_endless_loop_is_ended():
    ended = threading.Event()

    def loops(x):
        try:
            forever()
        except Exception:  # must not stop what ends the thread
            forever()
        finally:
            ended.set()

    assert check.softmax(loops, time_limit=0.2).mistake == "hangs"
    assert ended.wait(20)


def test_a_time_limit_is_for_all_calls_together():
    def busy(x):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return answers.sm(x)

    assert check.softmax(busy, time_limit=0.1).mistake == "hangs"
    assert check.softmax(busy, time_limit=60)


def test_time_that_passes_while_nothing_is_computed_does_not_count():
    def slow(x):
        time.sleep(0.02)
        return answers.sm(x)

    assert check.softmax(slow, time_limit=0.1)


def test_a_function_that_waits_is_ended_by_the_clock_on_the_wall(monkeypatch):
    monkeypatch.setattr(sandbox, "IDLE_SECONDS", 0.3)
    lock = threading.Lock()
    with lock:
        report = check.softmax(lambda x: lock.acquire())
    assert report.mistake == "waits"
    assert report.message == (
        "Your function waits: for 0.3 seconds on the clock on the wall it has computed next to "
        "nothing. Look for a sleep, for input(), or for a lock nobody releases."
    )


def test_a_function_that_sleeps_again_and_again_waits_too(monkeypatch):
    monkeypatch.setattr(sandbox, "IDLE_SECONDS", 0.5)

    def naps(x):
        while True:
            time.sleep(0.05)

    assert check.softmax(naps).mistake == "waits"


def test_where_threads_have_no_clock_the_limit_is_far_and_on_the_wall(monkeypatch):
    monkeypatch.delattr(time, "pthread_getcpuclockid", raising=False)
    assert check.softmax(answers.sm)
    report = check.softmax(lambda x: forever(), time_limit=0.05)
    assert report.mistake == "hangs"
    assert "is not done after 0.5 seconds on the clock on the wall." in report.message


def test_no_time_at_all_and_more_than_a_clock_can_hold():
    report = check.softmax(answers.sm, time_limit=0)
    assert report.mistake == "hangs"
    assert report.message.startswith("Your function is not done after 0 seconds.")
    assert check.softmax(answers.sm, time_limit=1e300)


def test_a_check_inside_a_check():
    reports = []

    def inner(x):
        print("shape")
        if not reports:
            reports.append(check.softmax(answers.sm))
        return answers.sm(x)

    report = check.softmax(inner)
    assert report
    assert reports[0]
    assert report.remarks[-1] == "it prints; the check holds the text back."


def test_a_check_inside_a_check_that_hangs_blocks_nobody():
    def inner(x):
        check.softmax(lambda x: forever(), time_limit=60)

    assert check.softmax(inner, time_limit=0.2).mistake == "hangs"
    assert check.softmax(answers.sm)


def test_checks_run_from_any_thread_and_side_by_side():
    reports = []
    work = threading.Thread(target=lambda: reports.append(check.attention(attnbook.attention)))
    also = threading.Thread(target=lambda: reports.append(check.softmax(attnbook.softmax)))
    before = sys.stdout
    work.start()
    also.start()
    work.join()
    also.join()
    assert [bool(report) for report in reports] == [True, True]
    assert sys.stdout is before


def test_context_variables_are_seen():
    import contextvars

    power = contextvars.ContextVar("power", default=2.0)
    power.set(1.0)
    assert check.softmax(lambda x: answers.sm(x * power.get()))


@pytest.mark.parametrize("how", ["platform", "error"])
def test_without_threads_it_runs_in_place_and_says_so(monkeypatch, how):
    threads = set()

    def remembers(x, axis=-1):
        threads.add(threading.get_ident())
        return answers.sm(x, axis)

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
    assert report.remarks == ("no thread can be started here, so no limit of time was set.",)


def test_inputs_are_fresh_and_may_be_written_to():
    def writes(x):
        assert not isinstance(x, np.ndarray) or x.flags.writeable
        return answers.sm(x)

    assert check.softmax(writes)


def test_output_of_other_threads_is_not_lost_afterwards():
    with contextlib.redirect_stdout(io.StringIO()) as text:
        check.softmax(answers.sm)
        print("after")
    assert text.getvalue() == "after\n"


def test_a_function_of_math_on_an_array_gets_a_hint():
    report = check.softmax(lambda x: math.exp(x) / sum(math.exp(x)))
    assert "raises TypeError" in report.message
    assert report.message.endswith("The functions of math take one number; NumPy's take arrays.")


def test_a_function_for_tensors_is_told_its_error_on_tensors():
    torch = need_torch()

    def for_tensors(x):
        torch.exp(x)  # a TypeError on NumPy: must be Tensor
        raise ValueError("later")

    assert check.softmax(for_tensors).message.startswith("Your function raises ValueError: later,")


def test_an_array_of_another_library_is_named():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    report = check.softmax(lambda x: strict.asarray(answers.loop_softmax(x)))
    assert "it returns an array of array_api_strict for one of NumPy." in report.remarks


def test_only_the_exception_that_stops_a_thread_is_hushed(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    sandbox._hush()
    hook = sys.unraisablehook
    sandbox._hush()
    assert sys.unraisablehook is hook  # once is enough
    for error in (sandbox._Abandoned, KeyError):

        class Broken:
            def __del__(self, error=error):
                raise error

        Broken()  # and dies at once
    assert seen == [KeyError]


# What is passed is no function yet, or not any more.


def test_a_result_in_place_of_the_function_gets_a_sentence():
    x = np.ones((2, 3))
    for passed in (answers.sm(x), [x, x], (x,)):
        report = check.softmax(passed)
        assert not report
        assert report.mistake == "called already"
        assert "without calling it: check.softmax(my_function)" in report.message
    with pytest.raises(TypeError, match=r"^f must be a function of \(x\), got list$"):
        check.softmax([1, 2])


def test_a_class_in_place_of_its_object_gets_a_sentence():
    class Attend:
        def __call__(self, query, key, value):
            return right(query, key, value)

    report = check.attention(Attend)
    assert report.mistake == "class for an object"
    assert "You pass the class `Attend`. Make an object of it first" in report.message
    assert check.attention(Attend())


def test_one_argument_is_not_called_arguments():
    message = check.softmax(lambda: None).message
    assert "it is called with 1 argument by position: (x)." in message


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_of_half_precision_are_refused(dtype):
    torch = need_torch()

    def half(x):
        return torch.softmax(torch.as_tensor(x), -1).to(getattr(torch, dtype))

    report = check.softmax(half)
    assert report.mistake == "wrong dtype"
    assert report.message.startswith(f"Your weights come back as {dtype}, which keeps t")


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
    assert check.attention(attnbook.attention).case is None


def test_the_case_of_an_error_and_of_a_wrong_type():
    for function in (lambda x: 1 / 0, lambda x: None, lambda x: "weights"):
        case = check.softmax(function).case
        assert case.input["x"].shape == (3, 3)
        assert case.got is case.expected is None


def test_an_input_that_is_too_large_is_held_and_not_shown():
    case = FailingCase({"x": np.ones((7, 7))}, {}, np.ones(2), np.zeros(2))
    assert case.lines() == []
    assert FailingCase({"x": np.ones(1), "weights": object()}).lines() == []
    assert FailingCase({"x": np.zeros((0, 3))}).lines() == ["x = an empty array (0, 3)"]
    many = FailingCase({"x": np.ones(2)}, {}, np.ones(40), np.zeros(40))
    assert many.lines() == ["x = [1, 1]"]


def test_an_assertion_shows_the_text_of_the_report():
    report = check.softmax(lambda x: answers.sm(-x))
    space = {"report": report}
    for statement in ("assert report", "assert report, 'so'"):
        with pytest.raises(check.CheckFailed) as caught:
            exec(statement, space)
        assert str(caught.value) == repr(report)
    exec("assert not report\nif report: 1 / 0\nbool(report)\nassert report or True", space)
    exec("assert report", {"report": check.softmax(answers.sm)})


def test_a_report_draws_itself_and_escapes_what_it_shows():
    failed = check.softmax(lambda x: answers.sm(-x))._repr_html_()
    passed = check.softmax(lambda x: answers.sm(x))._repr_html_()
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
    only_numpy = [b for b in attnbook.backends() if b.name == "NumPy, CPU"]
    monkeypatch.setattr("attnbook.check.engine.backends", lambda: only_numpy)
    assert {name: repr(getattr(check, name)(f)) for name, f in functions.items()} == with_all
    assert check.attention(answers.loop_attention).libraries == ("numpy",)


def test_require_raises_the_text_of_the_report():
    report = check.softmax(answers.SOFTMAX["no maximum"])
    with pytest.raises(check.CheckFailed) as caught:
        report.require()
    assert str(caught.value) == repr(report)
    assert isinstance(caught.value, AssertionError)
    assert bool(report) is False


def test_a_report_is_78_columns_wide_and_breaks_no_word_at_a_hyphen():
    def shown(message):
        return repr(check.Report("c", True, None, message, "", (), (), 0, ()))

    assert shown("x" * 40 + " " + "y" * 32) == "✓ c: " + "x" * 40 + " " + "y" * 32
    assert shown("x" * 40 + " " + "y" * 33) == "✓ c: " + "x" * 40 + "\n  " + "y" * 33
    assert shown("x" * 60 + " " + "y" * 15 + "-" + "z" * 15).split("\n  ")[1] == (
        "y" * 15 + "-" + "z" * 15
    )


def test_the_time_limit_is_ten_seconds_unless_given_and_thirty_for_properties():
    for name in set(check.__all__) - {"CheckFailed", "Report"}:
        limit = inspect.signature(getattr(check, name)).parameters["time_limit"]
        assert (limit.default, limit.kind) in (
            (10.0, limit.KEYWORD_ONLY),
            (30.0, limit.KEYWORD_ONLY),
        )
    assert inspect.signature(check.attention).parameters["time_limit"].default == 10.0


def test_a_report_is_frozen():
    with pytest.raises(AttributeError):
        check.softmax(attnbook.softmax).passed = False


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
            Mistake("squared", "Do not square.", ({"compute": lambda x: x**2},)),
            Mistake("broken", "This model raises.", ({"add": lambda x: x[7, 7]},)),
        ),
        **changed,
    }
    cases = tuple(Case({"x": draw(3, n, 2)}) for n in (3, 1))
    return Check("toy", ("x",), {"y": "x.shape"}, lambda x: 2 * x + 1, (Stage(cases),), **parts)


def test_one_mistake_and_two_at_once_are_named():
    assert run(toy(), lambda x: 2 * x + 1, 9)
    assert run(toy(), lambda x: x + 1, 9).mistake == "not doubled"
    assert run(toy(), lambda x: x**2, 9).mistake == "squared"
    both = run(toy(), lambda x: x * 1, 9)
    assert both.mistake == "not doubled; nothing added"
    assert both.mistakes == ("not doubled", "nothing added")
    assert both.message == "Two mistakes at once. Double it. Add one."
    assert run(toy(), lambda x: x**3, 9).mistakes == ()


def test_two_ways_of_one_mistake_are_one_mistake():
    ways = ({"double": lambda x: x}, {"add": lambda x: x})
    report = run(toy(mistakes=(Mistake("a", "A.", ways),)), lambda x: x * 1, 9)
    assert (report.mistake, report.message) == ("a", "A.")


def test_a_variant_is_no_mistake_of_its_own():
    variant = {"double": lambda x: 2 * x + 1e-9 + 0 * x}
    wrong = Mistake("nothing added", "Add one.", ({"add": lambda x: x},))
    checked = toy(mistakes=(wrong,), variants=({"double": lambda x: 3 * x},))
    assert run(checked, lambda x: 3 * x, 9).mistake == "nothing added"
    assert run(toy(variants=(variant,)), lambda x: 3 * x + 1, 9).mistakes == ()


def test_pairs_are_bounded_by_a_count(monkeypatch):
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 0)
    assert run(toy(), lambda x: x * 1, 9).mistakes == ()


def test_nothing_but_nan_is_not_explained_by_two_mistakes():
    assert run(toy(), lambda x: x * np.nan, 9).mistake == "NaN"


def test_a_way_must_name_steps():
    with pytest.raises(ValueError, match=r"^toy has no step triple$"):
        toy(mistakes=(Mistake("a", "A.", ({"triple": abs},)),))


def test_a_result_of_any_length_that_is_wrong_hears_of_its_length():
    def message(function):
        return run(toy(any_length=True), function, 9).message

    assert message(lambda x: x[:, 0]).startswith("Your result has the wrong shape: (")
    flat = Check(
        "flat",
        ("x",),
        {"y": "(n,)"},
        lambda x: 2 * x,
        (Stage((Case({"x": draw(3, 5)}),)),),
        (),
        any_length=True,
    )
    assert run(flat, lambda x: x[:3], 9).message == "Your result holds 3 numbers where 5 are right."


def test_conventions_the_first_that_passes_and_the_most_telling_that_fails():
    plus = toy()
    times = Check("times", ("x",), {"y": "x.shape"}, lambda x: 5 * x, plus.stages, ())
    conventions = {"with one more": plus, "times 5": times}
    assert either(conventions, lambda x: 5 * x, 9).remarks == ("times 5",)
    assert either(conventions, lambda x: x + 1, 9).mistake == "not doubled"
    assert either(conventions, lambda x: None, 9).mistake == "no return"
