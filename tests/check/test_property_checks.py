"""Property checks on any model: each wrong one is rejected with its own sentence, in its mode."""

import re

import numpy as np
import pytest
from cases import every_day
from error_table import error_test
from head_models import (
    EQUIVARIANT,
    IN_ORDER,
    INDEPENDENT,
    MIXED,
    H,
    Heads,
    fast_causal_heads,
    fast_heads,
)
from padding_models import (
    LONG,
    LONG_T,
    PADDED,
    SIZE,
    UNPADDED,
    Encoder,
    Truncated,
    key_padding,
    of_lengths,
    repeated_in_the_right_order,
)
from property_models import (
    CAUSAL,
    LEAKS,
    SQUARE,
    WIDTH,
    Block,
    CausalConvolution,
    MaskInTraining,
    N,
    T,
    X,
    attend,
    functional,
    head,
    heads,
    loop,
    mean_of_the_past,
    mistake_of,
    nn,
    projected,
    sdpa,
    sink_at_the_end,
    softmax,
    torch,
)

import attnbook
from attnbook.check.engine.steps import Case
from attnbook.check.properties.head_mistakes import NAMES, Layout, check_of
from attnbook.check.properties.head_mistakes import TEXT as HEADS
from attnbook.check.properties.heads_are_independent import heads_are_independent
from attnbook.check.properties.no_future_leak import FUTURE, no_future_leak
from attnbook.check.properties.padding_invariance import PADDING, padding_invariance
from attnbook.check.properties.permutation_equivariance import ORDER as PERMUTATION
from attnbook.check.properties.permutation_equivariance import permutation_equivariance

RUN = {
    "no_future_leak": no_future_leak,
    "padding_invariance": lambda model, x, padding: padding_invariance(model, x, padding=padding),
    "permutation_equivariance": permutation_equivariance,
    "heads_are_independent": lambda f, x, axis: heads_are_independent(f, H, x, head_axis=axis),
}
RIGHT = {
    "no_future_leak": (CAUSAL, "no output depends on a later input"),
    "padding_invariance": (UNPADDED, "padding does not reach the outputs of real tokens"),
    "permutation_equivariance": (EQUIVARIANT, "permuting the inputs permutes the outputs"),
    "heads_are_independent": (INDEPENDENT, "each head is attention of its own block"),
}
WRONG = {
    "no_future_leak": (LEAKS, FUTURE, ""),
    "padding_invariance": (PADDED, PADDING, "With lengths ("),
    "permutation_equivariance": (IN_ORDER, PERMUTATION, "With the inputs of sequence "),
    "heads_are_independent": (MIXED, HEADS.sentences, "With query (3, 7, 12) and 3 heads."),
}
STYLES = [(check, name) for check, (models, _) in RIGHT.items() for name in models]
FOUND = [(check, name) for check, (models, *_) in WRONG.items() for name in models]
A_THIRD = STYLES[: len(CAUSAL) : 3] + STYLES[len(CAUSAL) :]
FIRST = [(check, name) for check, name in FOUND if not name[-1].isdigit()]


@pytest.mark.parametrize(("check", "name"), every_day(A_THIRD, STYLES))
def test_a_right_model_in_any_style_passes(check, name):
    models, message = RIGHT[check]
    model, example, *_ = models[name]
    report = RUN[check](*models[name])
    assert report, report
    assert (report.mistake, report.message, report.detail) == (None, message, "")
    in_torch = isinstance(model, nn.Module) or isinstance(example, torch.Tensor)
    assert report.libraries == (("torch",) if in_torch else ("numpy",))
    assert report.require() is report
    if check == "permutation_equivariance":
        left_out = ("it is random in train mode, which was left out.",)
        assert report.remarks == (left_out if name in ("a layer with dropout", "tokens") else ())


@pytest.mark.parametrize(("check", "name"), every_day(FIRST, FOUND))
def test_a_wrong_model_is_found_and_named(check, name):
    models, sentences, detail = WRONG[check]
    mistake = mistake_of(name)
    report = RUN[check](*models[name])
    assert not report
    assert (report.mistake, report.libraries) == (mistake, ()), report
    assert report.detail
    if mistake is None:
        unknown = (sentences[one] for one in ("unknown", "mixed") if one in sentences)
        assert report.message.startswith(tuple(unknown))
        return
    named = [one for one in without_mode(mistake).split("; ") if one in sentences]
    assert all(sentences[one].split("{")[0] in report.message for one in named)
    if named:
        assert report.detail.startswith(detail)


def without_mode(mistake):
    return re.sub(r" in (train|eval) mode$", "", mistake)


def test_every_sentence_has_a_wrong_model():
    for models, sentences, _ in WRONG.values():
        found = {without_mode(mistake_of(name) or "unknown") for name in models}
        ways = {mistake.name for mistake in HEADS.mistakes + HEADS["of the width"]}
        assert found >= {*sentences} - {"together", "mixed"} - ways
        assert len({*sentences.values()}) == len(sentences)


def test_every_way_to_get_heads_wrong_is_told_by_its_name():
    checked = check_of(Layout(H, None, [X.shape] * 3))
    for mistake in checked.mistakes:
        for way in mistake.ways:
            model = checked.model(way)
            report = heads_are_independent(
                lambda *arrays, model=model: model(Case(dict(zip(NAMES, arrays, strict=True))))[0],
                H,
                X,
            )
            assert report.mistake == mistake.name, way


def test_the_first_pair_and_the_mode_are_told():
    report = no_future_leak(MaskInTraining(), X)
    assert report.message == (
        "Every output depends on every input in eval mode only, where the causal mask is dropped. "
        "Look for `self.training`, and for a faster path through the code that ignores the mask. "
        "A loss that is measured without the mask is not that of the model."
    )
    assert report.detail == "Changing input 1 moves output 0, of 0 to 6 in eval mode."
    report = no_future_leak(lambda x: np.where(np.arange(N)[:, None] == 2, x[:, 4:5], x), X)
    assert report.mistake is None
    assert report.detail == "Changing input 4 moves output 2, of 0 to 6."
    report = no_future_leak(CausalConvolution(nn.BatchNorm1d(WIDTH)), X)
    assert report.message.endswith(" It happens in train mode only, and not in eval mode.")
    assert report.detail == ("Changing one sequence of 3 moves an output of another in train mode.")


def test_the_next_token_and_the_next_two():
    assert "depends on the next token and" in no_future_leak(sink_at_the_end, X).message
    report = no_future_leak(CausalConvolution(left=1, right=2), X)
    assert "depends on the next 2 tokens and" in report.message


def test_an_output_that_fits_by_chance_is_tried_with_one_position_less():
    for example, shapes in ((SQUARE, ("(3, 6, ...)", "(3, 7)")), (SQUARE[0], ("(6, ...)", "(7,)"))):
        report = no_future_leak(lambda x: x.mean(axis=-2), example)
        assert report.message == (
            f"Your model must return an array of shape {shapes[0]}, got {shapes[1]}. Return one "
            "output for each position, in their order."
        )
    assert report.detail == "It was given x (6, 7) of float64, as NumPy arrays."


@pytest.mark.parametrize("weight", [1e-4, 1e-3])
def test_a_leak_of_small_weight_is_found_in_float32(weight):
    def leaky(x):
        weights = torch.tril(torch.ones(N, N)) / torch.arange(1, N + 1)[:, None]
        weights[2, 5] = weight
        return weights @ x

    report = no_future_leak(leaky, T)
    assert report.detail == "Changing input 5 moves output 2, of 0 to 6."


def test_a_leak_into_one_sequence_or_at_one_size_is_found():
    def saturated(x):  # weights of 0 or 1 at ordinary sizes
        return softmax(1e3 * x @ x.swapaxes(-1, -2)) @ x

    assert not no_future_leak(saturated, X)

    def only_in_the_last(x):
        return np.concatenate([mean_of_the_past(x[:-1]), x[-1:, ::-1]])

    assert not no_future_leak(only_in_the_last, X)


@pytest.mark.parametrize(("h", "n"), [(2, 7), (3, 7), (4, 5), (6, 7), (3, 8)])
def test_patterns_of_a_bare_reshape_are_those_of_the_code(h, n):
    """The pattern is computed from places; here it is measured, mask and no mask."""
    x = np.random.default_rng(h).normal(size=(2, n, WIDTH))
    for bare in ({"bare_split": True}, {"bare_merge": True}):
        report = no_future_leak(projected(heads(h, np.tri(n, dtype=bool), **bare)), x)
        assert report.mistake == "bare reshape"
        assert f"into {h} heads" in report.message
    both = projected(heads(h, np.tri(n, dtype=bool), bare_split=True, bare_merge=True))
    report = no_future_leak(both, x)
    assert report
    if n > h + 1:  # else it is also the pattern of a window
        assert f"is the pattern of a bare reshape into {h} heads" in report.remarks[0]


@pytest.mark.parametrize("n", [6, 8, 9])
@pytest.mark.parametrize("left", [1, 2, 4])
def test_a_window_is_not_taken_for_a_bare_reshape(n, left):
    window = attnbook.masking.sliding_window(n, left=left)
    x = np.random.default_rng(n).normal(size=(2, n, WIDTH))
    report = no_future_leak(lambda x: attnbook.attention(x, x, x, window), x)
    assert report
    assert report.notes == ()


def test_what_is_no_leak_but_odd_is_remarked_upon():
    strict = head(
        lambda s: np.where(np.tri(N, k=-1), s, -1e300), finish=lambda w: w * np.tri(N, k=-1)
    )

    def without_itself(x):  # values alone: the query would make it depend on its own input
        return np.concatenate([0 * x[:, :1], mean_of_the_past(x)[:, :-1]], axis=1)

    assert no_future_leak(strict, X).remarks == ()
    (remark,) = no_future_leak(without_itself, X).remarks
    assert remark == "no output depends on its own input, as with a mask without its diagonal."
    (remark,) = no_future_leak(lambda x: 2 * x, X).remarks
    assert remark.startswith("no output depends on an earlier input: is attention switched off")
    (remark,) = no_future_leak(lambda x: functional.dropout(x).cumsum(1), T).remarks
    assert remark == "its random numbers change the output: is a dropout on?"
    report = no_future_leak(Block(dropout=0.5), X)
    assert report.remarks == ()


def test_the_mask_of_a_cache_that_hides_too_much_is_no_leak():
    """pytorch/pytorch issue 144858: is_causal with a cache shows the first keys alone."""

    def in_two_steps(x):
        first = sdpa(x[:, :4], is_causal=True)
        rest = functional.scaled_dot_product_attention(x[:, 4:], x, x, is_causal=True)
        return torch.cat([first, rest], dim=1)

    assert no_future_leak(in_two_steps, T)


def test_masks_repeated_in_the_right_order_pass():
    assert padding_invariance(repeated_in_the_right_order, LONG_T)


def test_the_mode_in_which_padding_leaks_is_told():
    model, example, padding = PADDED["unknown"]
    report = padding_invariance(model, example, padding=padding)
    assert report.message.endswith("It happens in train mode only, and not in eval mode.")
    assert report.detail == (
        "With lengths (5, 3, 4), other padding in sequence 0 moves its output 0 in train mode."
    )
    report = padding_invariance(Truncated(), LONG, padding=of_lengths)
    assert report.message == (
        "Your model must return an array of shape (3, 6, ...), got (3, 5, 12)."
    )
    assert report.detail == (
        "It was given x (3, 6, 12), mask (3,) of float64, as PyTorch arrays in eval mode."
    )


def test_remarks_on_padding():
    (remark,) = padding_invariance(lambda x, mask: loop(x), LONG).remarks
    assert remark.startswith("the mask changes nothing, and need not: real tokens do not see")
    (remark,) = padding_invariance(Encoder(), LONG, padding=key_padding).remarks
    assert remark == "it is random in train mode, so runs of another length were left out there."
    fixed = np.random.default_rng(0).normal(size=(SIZE, WIDTH))
    report = padding_invariance(lambda x, mask: attnbook.attention(x + fixed, x, x, mask), LONG)
    assert report
    (remark,) = report.remarks
    assert remark == "on 3 tokens instead of 6 it raises, so runs of another length were left out."


def test_padding_is_made_in_many_ways():
    calls = []

    def made(lengths, n):
        calls.append((lengths.copy(), n))
        lengths[:] = 0  # its own copy
        return None

    assert padding_invariance(lambda x, nothing: loop(x), LONG, padding=made)
    assert all(lengths.dtype == np.int64 for lengths, _ in calls)
    assert {n for _, n in calls} > {6, 5}
    assert all((lengths >= 1).all() and (lengths <= n).all() for lengths, n in calls)

    def broken(lengths, n):
        raise ValueError("no")

    report = padding_invariance(lambda x, mask: x, LONG, padding=broken)
    assert report.mistake == "raises"
    assert report.message.startswith("Your `padding` raises ValueError: no, at line ")
    with pytest.raises(TypeError, match=r"^padding must be callable, got str$"):
        padding_invariance(lambda x, mask: x, LONG, padding="lengths")


def test_where_the_transpose_is_missing_is_told():
    message = permutation_equivariance(*IN_ORDER["bare reshape 2"]).message
    assert "into 4 heads, where heads are split. Split" in message
    message = permutation_equivariance(*IN_ORDER["bare reshape 3"]).message
    assert "into 3 heads, where heads are merged. Split" in message
    assert (
        "into 3 heads, or where tokens"
        in permutation_equivariance(*IN_ORDER["bare reshape"]).message
    )
    report = permutation_equivariance(*IN_ORDER["causal mask"])
    assert report.detail == (
        "With the inputs of sequence 0 in the order 6, 5, 4, 3, 2, 1, 0, its output 0 is not that "
        "of input 6."
    )
    report = permutation_equivariance(MaskInTraining(), X)
    assert report.message.endswith("It happens in train mode only, and not in eval mode.")


def test_heads_that_mix_for_no_known_reason():
    report = heads_are_independent(MIXED["unknown"][0], H, X)
    assert report.message.startswith("The heads mix: one block of the output depends on another")
    assert report.detail == (
        "Changing block 0 of query, key and value moves block 1 of the output."
    )
    report = heads_are_independent(MIXED["unknown 2"][0], H, X)
    assert report.message.startswith("The heads do not mix, but a head is not attention of its")


def test_a_causal_mask_inside_and_a_dropout_are_fine():
    report = heads_are_independent(fast_causal_heads, H, T)
    assert report
    assert report.remarks == ("each head is causal attention of its block.",)
    report = heads_are_independent(Heads(dropout=0.5), H, X)
    assert report
    assert "it is random in train mode, which was left out." in report.remarks
    report = heads_are_independent(Heads(dropout=0.5).eval().forward, H, T)
    assert report
    report = heads_are_independent(lambda *a: functional.dropout(fast_heads(*a)), H, T)
    assert report.mistake == "not deterministic"


def test_attention_over_the_heads_where_they_have_an_axis():
    for axis, shape in ((-3, (H, 5, 4)), (-2, (5, H, 4))):
        report = heads_are_independent(
            attend
            if axis == -2
            else (lambda *a: attend(*(x.swapaxes(0, 1) for x in a)).swapaxes(0, 1)),
            H,
            np.ones(shape),
            head_axis=axis,
        )
        assert report.mistake == "attention over the heads"


REFUSED = """
heads_are_independent(5, H, X)
    TypeError: f must be callable, got int
heads_are_independent(attend, 1, X)
    ValueError: n_heads must be at least 2, got 1
heads_are_independent(attend, 2.0, X)
    TypeError: n_heads must be an int, got float
heads_are_independent(attend, 5, X)
    ValueError: example must have shape (..., n, 5·d), got (3, 7, 12)
heads_are_independent(attend, 4, X, head_axis=-3)
    ValueError: example must have shape (..., 4, n, d), got (3, 7, 12)
heads_are_independent(attend, H, X, head_axis=1)
    ValueError: head_axis must be None, -3 or -2, got 1
heads_are_independent(attend, H, (X, X))
    ValueError: example must be one array or three, got 2
heads_are_independent(attend, H, X.astype(int))
    TypeError: query must have a real floating dtype, got int64
heads_are_independent(attend, H, X, time_limit=-1)
    ValueError: time_limit must be finite and at least 0, got -1.0
"""


test_bad_arguments_for_heads = error_test(REFUSED, globals())


def test_a_mode_that_was_left_out_is_not_called_right():
    class Ordered(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, *arrays):
            return self.dropout(arrays[0].cumsum(1))

    for report in (
        permutation_equivariance(Ordered(), X),
        heads_are_independent(Ordered(), H, X),
    ):
        assert not report
        assert "It happens" not in report.message
        assert report.remarks[0] == "it is random in train mode, which was left out."


def test_a_model_that_ignores_its_input_is_remarked_upon():
    x = np.random.default_rng(0).normal(size=(3, 7, 5))
    for name, model in {
        "permutation_equivariance": lambda x: np.zeros_like(x),
        "padding_invariance": lambda x, mask: np.zeros_like(x),
    }.items():
        report = getattr(attnbook.check, name)(model, x)
        assert report
        assert report.remarks[0].startswith("it returns the same numbers for two different inputs")
