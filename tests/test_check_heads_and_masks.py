"""The checks of heads and masks: ints as arguments, booleans as results, batches alone."""

import time

import check_answers as answers
import numpy as np
import pytest

import attnbook
from attnbook import check
from attnbook.check._causal_mask import last_query_sees_all, later_queries_see_more
from attnbook.check._model import Case
from attnbook.check._multi_head import order_of_heads_is_free
from attnbook.check._split_heads import numbers_are_kept

NEW = ("split_heads", "multi_head_attention", "causal_mask", "masked_attention")
FIRST = {
    "split_heads": "x (4, 4), n_heads = 2 of float64",
    "multi_head_attention": (
        "query (6, 6), key (6, 6), value (6, 6), W_Q (6, 6), W_K (6, 6), W_V (6, 6), W_O (6, 6), "
        "n_heads = 2 of float64"
    ),
    "causal_mask": "n_q = 3",
    "masked_attention": "query (3, 3), key (3, 3), value (3, 3), mask (3, 3) of float64",
}
MATRIX = np.arange(6.0).reshape(2, 3)


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    return getattr(check, name)(function, **options)


# Functions that are no answer, and what they do on the way.


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("split_heads", r"x, n_heads"),
        ("multi_head_attention", r"query, key, value, W_Q, W_K, W_V, W_O, n_heads"),
        ("causal_mask", r"n_q, n_k"),
        ("masked_attention", r"query, key, value, mask"),
    ],
)
def test_what_cannot_be_called_is_refused(name, parameters):
    with pytest.raises(TypeError, match=rf"^f must be a function of \({parameters}\), got int$"):
        run(name, 5)
    with pytest.raises(ValueError, match=r"^time_limit must be finite and at least 0, got -1.0$"):
        run(name, print, time_limit=-1)
    count = parameters.count(",") + 1
    report = run(name, lambda: None)
    assert (report.mistake, report.cases) == ("wrong arguments", 0)
    assert report.message.startswith(
        f"Your function takes (), but it is called with {count} arguments by position: "
        f"({parameters})."
    )


@pytest.mark.parametrize("name", NEW)
def test_functions_that_fail_in_every_way(name):
    def raises(*given):
        raise ValueError("so")

    def leaves(*given):
        raise SystemExit

    def hangs(*given):
        while True:
            time.sleep(0.001)

    report = run(name, raises)
    arrays = "" if name == "causal_mask" else ", as NumPy arrays"
    assert report.mistake == "raises"
    assert report.message.startswith("Your function raises ValueError: so, at line ")
    assert report.detail == f"It was given {FIRST[name]}{arrays}."
    assert "SystemExit" in run(name, leaves).message
    assert run(name, hangs, time_limit=0.2).mistake == "hangs"
    report = run(name, lambda *given: None)
    assert report.mistake == "no return"
    assert report.detail == f"It was given {FIRST[name]}."


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("result", ["mask", 1, {}, object(), np.ma.array([[0.5]]), [[1.0]], ()])
def test_another_type_returned(name, result):
    report = run(name, lambda *given: result)
    assert not report
    mistake = "returns a tuple" if isinstance(result, tuple) else "wrong type"
    is_heads = name == "split_heads" and isinstance(result, list)
    assert report.mistake == ("list of heads" if is_heads else mistake)


def test_a_mask_of_another_type_is_not_compared_with_inputs():
    report = check.causal_mask(lambda n: np.tri(n).tolist())
    assert report.message == "Your function returns a list as mask, where an array is expected."


@pytest.mark.parametrize("name", NEW)
def test_text_that_is_printed_is_held_back(name, capsys):
    function = {
        "split_heads": answers.right_split,
        "multi_head_attention": answers.right_heads,
        "causal_mask": answers.right_causal,
        "masked_attention": answers.right_attention,
    }[name]

    def prints(*given):
        print("so")
        return function(*given)

    report = run(name, prints)
    assert report, report
    assert "it prints; the check holds the text back." in report.remarks
    assert capsys.readouterr().out == ""


def test_two_masks_for_one_size():
    masks = iter([True, False] * 9)
    report = check.causal_mask(lambda n: np.full((n, n), next(masks)))
    assert report.mistake == "not deterministic"
    assert report.detail == "With n_q = 3: mask[0, 0] is False, expected True."


def test_input_that_is_changed_is_named():
    def in_place(q, k, v, mask):
        output = answers.right_attention(q, k, v, mask)
        mask[...] = ~mask
        return output

    assert check.masked_attention(in_place).mistake == "changes mask"

    def through_a_batch(x, n_heads):
        batch, n, width = x.shape
        heads = x.reshape(batch, n, n_heads, width // n_heads).swapaxes(1, 2) * 1
        x *= 2
        return heads

    assert check.split_heads(through_a_batch).mistake == "changes x"


def test_a_function_without_a_signature():
    assert check.causal_mask(max).mistake == "wrong type"
    assert not check.split_heads(max)
    assert not check.multi_head_attention(max)


# Types of a mask.


@pytest.mark.parametrize("hidden", [-np.inf, -1e30, -1e9, -1e4, -101.0])
def test_an_additive_mask_is_told_whatever_it_hides(hidden):
    for see in (answers.right_causal, lambda n_q, n_k: ~answers.right_causal(n_q, n_k)):
        report = check.causal_mask(
            lambda n_q, n_k, see=see: np.where(see(n_q, n_k), 0.0, hidden).astype(np.float32)
        )
        assert report.mistake == "additive mask"
        assert "mask == 0" in report.message


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", "float64"])
def test_zeros_and_ones_are_told_whatever_they_mean(dtype):
    for see in (answers.right_causal, lambda n_q, n_k: ~answers.right_causal(n_q, n_k)):
        report = check.causal_mask(lambda n_q, n_k, see=see: see(n_q, n_k).astype(dtype))
        assert report.mistake == "numbers for booleans"
    need_torch()
    report = check.causal_mask(lambda n: __import__("torch").ones(n, n).tril())
    assert report.mistake == "numbers for booleans"


@pytest.mark.parametrize("value", [2, -5.0, 0.5, 1j])
def test_other_numbers_are_of_the_wrong_dtype(value):
    report = check.causal_mask(lambda n: np.tri(n) * value)
    assert report.mistake == "wrong dtype"
    dtype = "complex128" if value == 1j else "float64"
    assert report.message.startswith(
        f"The dtype of your mask is {dtype}, where booleans are expected."
    )
    assert check.causal_mask(lambda n: np.zeros((0, n))).mistake == "wrong dtype"


def test_a_mask_for_output_of_numbers():
    report = check.masked_attention(lambda q, k, v, mask: mask)
    assert report.mistake == "wrong dtype"
    assert report.message.startswith(
        "The dtype of your output is bool, where floating-point numbers are expected."
    )


# Sizes of a mask.


def test_a_mask_of_one_size_passes_with_a_remark():
    report = check.causal_mask(lambda n, *, device=None: np.tri(n, dtype=bool))
    assert report
    assert report.remarks == (
        "`n_k` was not checked: your function takes no argument of that name.",
    )
    assert (report.cases, report.libraries) == (4, ("numpy",))


def test_a_mask_is_made_once_and_in_the_library_of_the_function():
    torch = need_torch()
    calls = []

    def torch_mask(n_q, n_k):
        calls.append((n_q, n_k))
        return torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)

    report = check.causal_mask(torch_mask)
    assert (report.libraries, report.notes) == (("torch",), ())
    squares = [(3, 3), (3, 3), (3, 3), (1, 1), (2, 2), (5, 5)]
    assert calls == [*squares, (2, 5), (1, 7), (5, 2), (3, 4), (4, 3), (1, 2)]
    report = check.causal_mask(
        lambda n_q, n_k: (answers.right_causal if n_q < 3 else torch_mask)(n_q, n_k)
    )
    assert report.libraries == ("numpy", "torch")

    def prints(n):
        print(n)
        return torch.ones(n, n, dtype=torch.bool).tril()

    assert "it prints; the check holds the text back." in check.causal_mask(prints).remarks


def test_a_report_about_a_mask():
    assert repr(check.causal_mask(lambda n_q, n_k: np.tri(n_q, n_k, dtype=bool))).endswith(
        "With n_q = 1, n_k = 7: mask[0, 1] is False, expected True."
    )


def test_where_a_mask_of_unknown_fault_differs():
    report = check.causal_mask(lambda n: np.tri(n, dtype=bool) & (np.arange(n) != 1))
    assert report.mistake is None
    assert report.detail == "With n_q = 2: mask[1, 1] is False, expected True."
    assert report.message.endswith(
        "The last query stands beside the last key and may see every key; here it may not."
    )
    report = check.causal_mask(
        lambda n: np.tri(n, dtype=bool) | (np.arange(n)[:, None] == 0) & (np.arange(n) == 2)
    )
    assert report.message.endswith("What one query may see the next may see too; here it may not.")


# Batches alone, and what a function may refuse.


def test_a_function_for_batches_alone_passes_with_a_remark():
    def split(x, n_heads):
        batch, n, width = x.shape
        return x.reshape(batch, n, n_heads, width // n_heads).swapaxes(1, 2)

    def attend(query, key, value, mask):
        _batch, _n, d = query.shape
        scores = answers.hidden(query @ key.swapaxes(1, 2) / d**0.5, mask)
        return answers.safe_softmax(scores) @ value

    for report in (check.split_heads(split), check.masked_attention(attend)):
        assert report, report
        remark = "on one sequence without a batch axis it raises ValueError."
        assert remark in report.remarks
        assert not any("batch (leading axes)" in note for note in report.notes)


def test_a_wrong_function_for_batches_alone_hears_its_mistake():
    def split(x, n_heads):
        batch, n, width = x.shape
        return x.reshape(batch, n_heads, n, width // n_heads)

    assert check.split_heads(split).mistake == "bare reshape"

    def heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads):
        batch, n, d_model = query.shape
        q, k, v = (
            (x @ W).reshape(batch, -1, n_heads, d_model // n_heads).swapaxes(1, 2)
            for x, W in ((query, W_Q), (key, W_K), (value, W_V))
        )
        return answers.right_attention(q, k, v).reshape(batch, n, d_model) @ W_O

    report = check.multi_head_attention(heads)
    assert report.mistake == "bare reshape in the join"


def test_a_function_that_takes_tokens_for_a_batch_is_one_for_batches_alone():
    def split(x, n_heads):  # of a matrix it makes (n, h, 1, d)
        return x.reshape(x.shape[0], -1, n_heads, x.shape[-1] // n_heads).swapaxes(1, 2)

    report = check.split_heads(split)
    assert report, report
    assert report.remarks == ("on one sequence without a batch axis its result is wrong.",)

    def bare(x, n_heads):
        return x.reshape(x.shape[0], n_heads, -1, x.shape[-1] // n_heads)

    assert check.split_heads(bare).mistake == "bare reshape"


def test_a_function_for_batches_alone_with_another_shape():
    def split(x, n_heads):
        batch, n, width = x.shape
        return x.reshape(batch, n, n_heads, width // n_heads).swapaxes(1, 2).squeeze()

    assert not check.split_heads(split)

    def one_number(x, n_heads):
        _batch, _n, _width = x.shape
        return x.reshape(-1)[:1].reshape(())

    report = check.split_heads(one_number)
    assert report.mistake == "wrong shape"
    assert report.detail == ""
    assert report.message.endswith(", got ().")


def test_batches_alone_in_one_library_are_not_batches_alone_in_the_next():
    need_torch()

    def split(x, n_heads):
        if isinstance(x, np.ndarray):
            _batch, _n, _width = x.shape
        else:
            _n, _width = x.shape
        return answers.right_split(x, n_heads)

    assert check.split_heads(split).libraries[:2] == ("numpy", "torch")


def test_what_raises_on_everything_is_no_function_for_batches():
    report = check.split_heads(lambda x, n_heads: x.reshape(7, 7))
    assert report.mistake == "raises"
    assert report.remarks == ()


def test_other_widths_may_be_refused_but_not_be_wrong():
    def textbook(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        d_head = query.shape[-1] // n_heads
        q, k, v = (
            x.reshape(*x.shape[:-1], n_heads, d_head).swapaxes(-2, -3)
            for x in (query @ W_Q, key @ W_K, value @ W_V)
        )
        heads = answers.right_attention(q, k, v, mask)
        return answers.right_join(heads) @ W_O

    report = check.multi_head_attention(textbook)
    assert report, report
    assert report.remarks == ("on projections of other widths than d_model it raises ValueError.",)
    wrong = answers.WRONG["multi_head_attention"]["scale from the width of the input"]
    assert not check.multi_head_attention(wrong)


def test_heads_for_matrices_alone_pass_with_a_remark():
    def matrices(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        _n_q, _d = query.shape
        return answers.right_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask)

    report = check.multi_head_attention(matrices)
    assert report, report
    assert report.remarks == ("on a batch (leading axes) it raises ValueError.",)
    assert report.cases == 19 * len(report.libraries)  # not the masks for each sequence


def test_what_one_library_refuses_is_asked_of_the_next():
    need_torch()

    def matrices_in_numpy(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        if isinstance(query, np.ndarray):
            _n_q, _d = query.shape
        return answers.right_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask)

    report = check.multi_head_attention(matrices_in_numpy)
    assert report.libraries[:2] == ("numpy", "torch")
    assert report.cases == 19 + 22 * (len(report.libraries) - 1)


def test_masks_that_broadcast_may_be_refused_but_not_be_wrong():
    def loops(query, key, value, mask):
        n_q, n_k = len(query), len(key)
        seen = np.array([[bool(mask[i, j]) for j in range(n_k)] for i in range(n_q)])
        return answers.right_attention(*map(np.asarray, (query, key, value)), seen)

    report = check.masked_attention(loops)
    assert report, report
    kinds = ("one row, (1, n_k),", "one axis, (n_k,),", "one column, (n_q, 1),")
    for kind in kinds:
        assert f"on a mask of {kind} it raises IndexError." in report.remarks


def test_masks_for_each_sequence_may_be_refused():
    def one_mask(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        if mask is not None:
            _n_q, _n_k = mask.shape
        return answers.right_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask)

    report = check.multi_head_attention(one_mask)
    assert report, report
    assert report.remarks == (
        "on a mask for each sequence, (batch, 1, n_q, n_k), it raises ValueError.",
    )


def test_heads_without_a_mask_are_remarked_upon():
    report = check.multi_head_attention(
        lambda q, k, v, weights: attnbook.multi_head_attention(q, k, v, weights)
    )
    assert report
    assert report.remarks == (
        "`mask` was not checked: your function takes no argument of that name.",
    )


def test_a_module_that_takes_weights():
    torch = need_torch()

    class Heads(torch.nn.Module):
        def forward(self, query, key, value, weights, mask=None):
            return attnbook.multi_head_attention(query, key, value, weights, mask)

    report = check.multi_head_attention(Heads())
    assert report, report
    assert report.remarks == ()


def test_weights_are_known_by_their_name():
    def heads(query, key, value, weights, mask=None, dropout=0, training=False, cache=None):
        assert (dropout, training, cache) == (0, False, None)
        return attnbook.multi_head_attention(query, key, value, weights, mask)

    report = check.multi_head_attention(heads)
    assert report, report
    assert report.remarks == ()


def test_options_are_handed_on_to_weights():
    def inverted(query, key, value, weights, mask=None):
        mask = mask if mask is None else ~mask
        return attnbook.multi_head_attention(query, key, value, weights, mask)

    assert check.multi_head_attention(inverted).mistake == "mask inverted"


# Properties and unknown faults.


def no_second_call(**arrays):
    raise AssertionError


def test_numbers_are_kept():
    def complains(*numbers):
        case = Case({"x": MATRIX, "n_heads": 1})
        return bool(numbers_are_kept(case, (np.array(numbers),), no_second_call))

    assert not complains([5.0, 4.0, 3.0], [2.0, 1.0, 0.0])
    assert complains([5.0, 4.0, 3.0], [2.0, 1.0, 1.0])
    assert complains([5.0, 4.0, 3.0])


def test_properties_of_a_causal_mask():
    mask = np.array([[True, False], [True, True]])
    for holds in (last_query_sees_all, later_queries_see_more):
        assert holds(Case({"n_q": 2}), (mask,), no_second_call) is None
        assert holds(Case({"n_q": 2}), (mask[::-1],), no_second_call)
    assert last_query_sees_all(Case({}), (mask[:1],), no_second_call)
    assert later_queries_see_more(Case({}), (mask[:1],), no_second_call) is None


def test_an_unknown_fault_with_a_mask_of_one_axis_or_of_three():
    for axes in (1, 3):
        report = check.masked_attention(
            lambda q, k, v, mask, axes=axes: (
                answers.right_attention(q, k, v, mask) * (1 - 0.01 * (mask.ndim == axes))
            )
        )
        assert report.mistake is None
        assert report.message.startswith("Your numbers differ from the reference")


def test_all_heads_are_reversed_in_all_matrices():
    rng = np.random.default_rng(0)
    weights = attnbook.MultiHeadWeights.init(rng, 6, 3, d_k=2, d_v=5)
    x = rng.normal(size=(4, 6))
    matrices = {name: getattr(weights, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    case = Case({"query": x, "key": x, "value": x, **matrices, "n_heads": 3})
    output = attnbook.multi_head_attention(x, x, x, weights)
    given = {}

    def again(**arrays):
        given.update(arrays)
        moved = attnbook.MultiHeadWeights(**arrays, n_heads=3)
        return (attnbook.multi_head_attention(x, x, x, moved),)

    assert order_of_heads_is_free(case, (output,), again) is None
    for name, W in matrices.items():
        heads = np.split(W, 3, axis=0 if name == "W_O" else 1)
        reverse = np.concatenate(heads[::-1], axis=0 if name == "W_O" else 1)
        np.testing.assert_array_equal(given[name], reverse)
    assert order_of_heads_is_free(case, (output + 1,), again)
    assert order_of_heads_is_free(case, (output,), lambda **arrays: ()) is None


def leaky_attention(q, k, v, mask):
    mean = answers.array_namespace(v).mean(v, axis=-2, keepdims=True)
    return answers.right_attention(q, k, v, mask) * 0.9 + 0.1 * mean


@pytest.mark.parametrize(
    ("name", "function", "sentence"),
    [
        (
            "split_heads",
            lambda x, h: answers.right_split(x, h) * 2,
            "A split only moves numbers; here some are changed, lost or there twice.",
        ),
        ("split_heads", lambda x, h: answers.right_split(x[..., ::-1, :], h), ""),
        (
            "multi_head_attention",
            lambda *given: answers.right_heads(*given) * 1.5,
            "",
        ),
        (
            "multi_head_attention",
            lambda q, k, v, A, B, C, W, h: answers.right_heads(
                q, k, v, A, B, C * (np.arange(C.shape[-1]) * h // C.shape[-1] + 1), W, h
            ),
            "Reversing the heads in all four matrices together must change nothing; here it "
            "changes the output.",
        ),
        (
            "masked_attention",
            leaky_attention,
            "A key that query 0 may not attend to still changes its output.",
        ),
    ],
)
def test_unknown_wrong_numbers_name_the_property_that_fails(name, function, sentence):
    report = run(name, function)
    assert not report
    assert report.mistake is None
    expected = "Your numbers differ from the reference, and not in a way that this check knows."
    assert report.message == f"{expected} {sentence}".strip()
