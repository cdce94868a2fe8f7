"""Whatever the reader's function does, the check goes on and says something that helps."""

import contextlib
import functools
import importlib
import io
import itertools
import math
import operator
import sys
import threading
import time
import warnings

import check_answers as answers
import numpy as np
import pytest

import attnbook
from attnbook import check
from attnbook.check import _sandbox

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
        time.sleep(0.001)


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
    def slow(x):
        time.sleep(0.02)
        return answers.sm(x)

    assert check.softmax(slow, time_limit=0.1).mistake == "hangs"
    assert check.softmax(slow, time_limit=60)


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


def test_without_threads_it_runs_in_place(monkeypatch):
    threads = set()

    def remembers(x):
        threads.add(threading.get_ident())
        return answers.sm(x)

    assert check.softmax(remembers)
    assert threading.get_ident() not in threads
    threads.clear()
    monkeypatch.setattr(sys, "platform", "emscripten")
    assert check.softmax(remembers)
    assert threads == {threading.get_ident()}


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
    _sandbox._hush()
    hook = sys.unraisablehook
    _sandbox._hush()
    assert sys.unraisablehook is hook  # once is enough
    for error in (_sandbox._Abandoned, KeyError):

        class Broken:
            def __del__(self, error=error):
                raise error

        Broken()  # and dies at once
    assert seen == [KeyError]
