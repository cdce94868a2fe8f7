"""The checks of the transformer: wrong answers are named, alone or two; right ones pass."""

import inspect
import re

import layer_answers as layers
import numpy as np
import pytest
import transformer_answers as answers

import attnbook as ab
from attnbook import check
from attnbook.check import engine
from attnbook.check.decoder_block import DECODER_LAYER, memory_matters
from attnbook.check.embedding import EMBED
from attnbook.check.encoder_block import ENCODER_LAYER, order_is_free
from attnbook.check.greedy import CACHED, WHOLE, each_is_the_likeliest
from attnbook.check.hidden_layer import FEED_FORWARD
from attnbook.check.likelihood import CROSS_ENTROPY, shift_changes_nothing
from attnbook.check.shift import TEACHER_FORCING, labels_follow
from attnbook.check.sinusoids import HALVES, INTERLEAVED, pairs_lie_on_circles
from attnbook.check.standardization import (
    LAYER_NORM,
    rows_are_standardised,
    tokens_are_alone,
)
from attnbook.check.steps import Case, agree
from attnbook.check.toys import LONGEST, TooLong, Toy, ToyStep

OPTIONS = {
    "positional_encoding": {"interleaved": False},
    "positional_encoding, interleaved": {"interleaved": True},
    "greedy_decode, cached": {"cached": True},
}
CHECKS = {
    c.name: c
    for c in (
        *(LAYER_NORM, HALVES, INTERLEAVED, EMBED, FEED_FORWARD, ENCODER_LAYER, DECODER_LAYER),
        *(TEACHER_FORCING, CROSS_ENTROPY),
        *(next(iter(conventions.values())) for conventions in (WHOLE, CACHED)),
    )
}
MESSAGES = {name: {m.name: m.message for m in c.mistakes} for name, c in CHECKS.items()}
WRONG = {
    "layer_norm": answers.LAYER_NORM,
    "positional_encoding": answers.positions_wrong(False),
    "positional_encoding, interleaved": answers.positions_wrong(True),
    "embed": answers.EMBED,
    "feed_forward": answers.FEED_FORWARD,
    "encoder_layer": layers.ENCODER_LAYER,
    "decoder_layer": layers.DECODER_LAYER,
    "teacher_forcing": answers.TEACHER_FORCING,
    "cross_entropy": answers.CROSS_ENTROPY,
    "greedy_decode": layers.GREEDY_DECODE,
    "greedy_decode, cached": layers.GREEDY_DECODE_CACHED,
}
PAIRS = [(name, wrong) for name, wrongs in WRONG.items() for wrong in wrongs]
REMARKED = {
    "axis 1 of a batch",
    "squares overflow in half precision",
    "shifted along the batch",
    "rows go on after stop",
    "batch ends at the first stop",
    "filled with another token",
}
"""Mistakes of which a function for one sequence in full precision is free."""


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    return getattr(check, name.split(",")[0])(function, **OPTIONS.get(name, {}), **options)


def mistake_of(name, wrong):
    """Drop the number that tells several answers with one mistake apart."""
    return wrong if wrong in MESSAGES[name] else re.sub(r" \d$", "", wrong)


def rejected_with_its_sentence(report, name, wrong):
    mistake = mistake_of(name, wrong)
    sentence = MESSAGES[name][mistake]
    if mistake in REMARKED:
        assert report.passed
        assert any(note.endswith(sentence) for note in report.remarks)
        return
    assert not report.passed
    assert (report.mistake, report.message) == (mistake, sentence)
    assert (report.mistakes, report.libraries) == ((mistake,), ())
    assert re.search(r"^(With|It was given) .*", report.detail)
    assert report.case is not None


@pytest.mark.parametrize(("name", "wrong"), PAIRS)
def test_a_wrong_answer_is_rejected_with_its_own_sentence(name, wrong, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])  # the next has PyTorch
    rejected_with_its_sentence(run(name, WRONG[name][wrong], time_limit=60), name, wrong)


def of_torch(x):
    return type(x).__module__.startswith("torch") or getattr(x, "library", "") == "torch"


def only_torch(answer):
    """Return the answer of a reader who writes for PyTorch alone."""

    def torch_answer(*given, **options):
        torch = need_torch()
        arrays = [x for x in given if not isinstance(x, (int, ab.FeedForwardWeights))]
        if arrays and not any(map(of_torch, arrays)):
            raise TypeError("a tensor please")
        result = answer(*given, **options)
        return torch.tensor(result.tolist()) if isinstance(result, np.ndarray) else result

    torch_answer.__signature__ = inspect.signature(answer)
    return torch_answer


@pytest.mark.parametrize(("name", "wrong"), PAIRS[1::5])
def test_a_wrong_answer_written_for_pytorch_alone_is_recognised(name, wrong):
    need_torch()
    rejected_with_its_sentence(run(name, only_torch(WRONG[name][wrong])), name, wrong)


@pytest.mark.parametrize("name", CHECKS)
def test_the_steps_are_right_and_every_mistake_changes_them(name):
    checked = CHECKS[name]
    cases = [case for stage in checked.stages for case in stage.cases]
    right = checked.model({})
    for case in cases:
        assert agree(checked.expected(case), right(case), case), case
    assert len({m.message for m in checked.mistakes}) == len(checked.mistakes) >= 15
    assert len(MESSAGES[name]) == len(checked.mistakes)
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


@pytest.mark.parametrize(
    ("name", "both"), [(name, both) for name, doubles in layers.DOUBLES.items() for both in doubles]
)
def test_two_mistakes_at_once_are_named(name, both):
    report = run(name, layers.DOUBLES[name][both])
    assert {*report.mistakes} == {*both.split("; ")}
    assert report.message.startswith("Two mistakes at once. ")
    assert all(MESSAGES[name][mistake] in report.message for mistake in report.mistakes)


# Right answers.


def epsilon_by_place(x, gain, bias, epsilon):
    return ab.layer_norm(x, gain, bias, epsilon=epsilon)


RIGHT = {
    "layer_norm": (
        ab.layer_norm,
        answers.right_norm,
        answers.loop_norm,
        answers.norm_by_numpy,
        epsilon_by_place,
        lambda x, gain, bias, eps=1e-3: ab.layer_norm(x, gain, bias, epsilon=eps),
        lambda x: ab.layer_norm(x),
    ),
    "positional_encoding": (
        ab.positions.sinusoidal,
        answers.table(answers.right_angle),
        lambda n, d: np.hstack(
            [f(np.outer(range(n), 1e4 ** -np.arange(0, 1, 2 / d))) for f in (np.sin, np.cos)]
        ),
    ),
    "positional_encoding, interleaved": (
        lambda n, d_model: ab.positions.sinusoidal(n, d_model, interleaved=True),
        answers.table(answers.right_angle, interleaved=True),
        lambda n, d: np.sin(
            np.outer(np.arange(n), 1e4 ** (-2 * (np.arange(d) // 2) / d))
            + np.arange(d) % 2 * np.pi / 2
        ),
    ),
    "embed": (
        ab.embed,
        lambda ids, E: E[ids] * E.shape[-1] ** 0.5,
        answers.embed_in_loops,
        answers.embed_batches,
        lambda ids, E: answers.one_hot(ids, E) @ E * E.shape[-1] ** 0.5,
    ),
    "feed_forward": (
        ab.feed_forward,
        answers.ff(answers.relu),
        answers.ff_in_loops,
        lambda x, weights: ab.feed_forward(x, weights),
        lambda x, A, a, B, b: np.einsum("...f,fd->...d", np.maximum(0, x @ A + a), B) + b,
    ),
    "encoder_layer": (
        ab.encoder_layer,
        layers.encoder_written_out,
        layers.layer()[0],
        layers.encoder_with_mask_by_place,
        layers.encoder_of_one_sequence,
        layers.encoder_of_batches,
        layers.EncoderObject,
    ),
    "decoder_layer": (
        ab.decoder_layer,
        layers.layer()[1],
        layers.decoder_by_place,
        layers.decoder_without_masks,
        layers.DecoderObject,
        layers.DecoderWithDefaults,
    ),
    "teacher_forcing": (
        lambda target: (target[..., :-1], target[..., 1:]),
        answers.forcing_in_loops,
        answers.forcing_of_batches,
    ),
    "cross_entropy": (
        ab.cross_entropy,
        answers.loss(),
        answers.loss_in_loops,
        lambda logits, targets, mask: ab.cross_entropy(logits, targets, mask),
    ),
    "greedy_decode": (
        layers.greedy(),
        layers.greedy(show=layers.without_start),
        layers.greedy(show=layers.without_stop),
        layers.greedy(show=layers.without_both),
        layers.greedy_of_rows,
        layers.greedy_in_an_array,
        lambda *given: np.array(layers.greedy(show=layers.without_both)(*given)),
    ),
    "greedy_decode, cached": (
        layers.cached(),
        layers.cached(show=layers.without_start),
        layers.cached(show=layers.without_both),
    ),
}
ONLY_TORCH = {
    "layer_norm": answers.torch_norm,
    "positional_encoding, interleaved": answers.torch_positions,
    "embed": answers.torch_embed,
    "feed_forward": answers.torch_ff,
    "teacher_forcing": answers.torch_forcing,
    "cross_entropy": answers.torch_loss,
    "greedy_decode": layers.torch_greedy,
    "greedy_decode, cached": layers.torch_cached,
}


@pytest.mark.parametrize(
    ("name", "i"), [(name, i) for name, functions in RIGHT.items() for i in range(len(functions))]
)
def test_a_right_answer_in_any_style_passes(name, i):
    report = run(name, RIGHT[name][i])
    assert report, report
    assert (report.mistake, report.detail, report.case) == (None, "", None)
    assert report.message == "agrees with the reference"
    assert "numpy" in report.libraries
    assert report.cases > 3


@pytest.mark.parametrize("name", ONLY_TORCH)
def test_a_right_answer_for_pytorch_alone_passes(name):
    need_torch()
    report = run(name, ONLY_TORCH[name])
    assert report, report
    assert report.libraries[-1:] == ("torch",)


def test_the_package_passes_every_check_without_a_note():
    need_torch()
    for name, functions in RIGHT.items():
        report = run(name, functions[0])
        libraries = ("numpy",) if "positional" in name else ("numpy", "torch")
        assert report.libraries[: len(libraries)] == libraries
        unsaid = ("return the ids", "on a batch of starts", "`mask` was not checked")
        assert not [note for note in report.notes if not any(text in note for text in unsaid)]


# Conventions, of which each is right.


def test_either_layout_of_positions_is_right_and_named():
    halves = check.positional_encoding(ab.positions.sinusoidal)
    pairs = check.positional_encoding(RIGHT["positional_encoding, interleaved"][0])
    assert halves.remarks == ("your layout is that of halves, all sines and then all cosines.",)
    assert pairs.remarks == ("your layout is interleaved, sin, cos, sin, cos, …",)
    for name in ("positional_encoding", "positional_encoding, interleaved"):
        for wrong, function in WRONG[name].items():
            report = check.positional_encoding(function)
            if wrong in ("halves", "interleaved"):
                assert report.passed
            else:
                assert report.mistake == mistake_of(name, wrong)


@pytest.mark.parametrize(
    ("show", "text"),
    [
        (lambda ids, stop: ids, "with the start token and with the stop token."),
        (layers.without_start, "without the start token and with the stop token."),
        (layers.without_stop, "with the start token and without the stop token."),
        (layers.without_both, "without the start token and without the stop token."),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_ids_with_start_and_stop_or_without(show, text, cached):
    decode = layers.cached if cached else layers.greedy
    report = check.greedy_decode(decode(show=show), cached=cached)
    assert report, report
    assert report.remarks[0] == f"you return the ids {text}"


def test_a_draw_is_called_sampling():
    rng = np.random.default_rng(0)

    def sample(model, ids):
        logits = np.asarray(model(ids))[-1]
        return int(rng.choice(len(logits), p=ab.softmax(logits)))

    report = check.greedy_decode(layers.greedy(sample))
    assert (report.mistake, report.mistakes) == ("sampled", ("sampled",))
    assert "draws tokens at random" in report.message


def test_norm_orders_can_be_asked_for_one_by_one():
    always_pre = layers.ENCODER_LAYER["pre-norm for post-norm"]
    assert check.encoder_layer(always_pre, norm="pre")
    assert check.encoder_layer(always_pre, norm="post").mistake == "pre-norm for post-norm"
    assert check.encoder_layer(ab.encoder_layer, norm="post").cases > 5
    for function in (check.encoder_layer, check.decoder_layer):
        with pytest.raises(ValueError, match=r"^norm must be one of pre, post, got 'mid'$"):
            function(print, norm="mid")


def test_epsilon_is_checked_where_it_is_taken():
    assert check.layer_norm(lambda x, g, b, eps: ab.layer_norm(x, g, b)).mistake == (
        "epsilon ignored"
    )
    report = check.layer_norm(lambda x: (x - answers.mean(x)) / x.std(-1, keepdims=True))
    assert report.mistake == "no epsilon"


# Modules, in train and in eval mode.


def test_modules_are_built_from_the_weights_and_run_in_both_modes():
    torch = need_torch()

    class Layer(torch.nn.Module):
        def __init__(self, weights, rate=0.0):
            super().__init__()
            self.weights, self.drop = weights, torch.nn.Dropout(rate)

        def forward(self, x, mask=None):
            return ab.encoder_layer(x, self.weights, self.seen(mask), drop=self.drop)

        def seen(self, mask):
            return mask

    class ForgetsInEval(Layer):
        def seen(self, mask):
            return mask if self.training else None

    class ForgetsInTrain(Layer):
        def seen(self, mask):
            return None if self.training else mask

    class Drops(Layer):
        def __init__(self, weights):
            super().__init__(weights, rate=0.5)

    class AlwaysDrops(Drops):
        def train(self, mode=True):
            return super().train(True)

    report = check.encoder_layer(Layer)
    assert report, report
    assert (report.libraries, report.remarks) == (("torch",), ())
    report = check.encoder_layer(ForgetsInEval)
    assert report.mistake == "mask ignored"
    assert report.message.endswith(" In eval mode only: in train mode it is right.")
    report = check.encoder_layer(ForgetsInTrain)
    assert report.mistake == "mask ignored"
    assert report.message.endswith(" In train mode only: in eval mode it is right.")
    report = check.encoder_layer(Drops)
    assert report
    assert "in train mode its random numbers change the output" in report.remarks[-1]
    assert check.encoder_layer(AlwaysDrops).mistake == "not deterministic"


def test_a_module_that_is_given_the_weights_is_given_back_as_it_was():
    torch = need_torch()

    class Layer(torch.nn.Module):
        def forward(self, x, memory, weights, mask=None, memory_mask=None):
            return ab.decoder_layer(x, memory, weights, mask if self.training else None)

    layer = Layer()
    report = check.decoder_layer(layer)
    assert report.mistake == "mask ignored"
    assert layer.training
    assert "In eval mode only" not in report.message  # in train mode another one is wrong


def test_weights_that_are_changed_are_named():
    def scales(x, weights):
        output = ab.encoder_layer(x, weights)
        weights.feed_forward.W_2[...] *= 2
        return output

    assert check.encoder_layer(scales).mistake == "changes weights"

    def in_place(x, gain, bias):
        x -= answers.mean(x)
        return x / answers.root(answers.mean(x * x) + 1e-5) * gain + bias

    assert check.layer_norm(in_place).mistake == "changes x"


# Functions that are no answer.


@pytest.mark.parametrize("name", CHECKS)
def test_functions_that_fail_in_every_way(name):
    def raises(*given, **options):
        raise ValueError("so")

    def hangs(*given, **options):
        while True:
            pass

    with pytest.raises(TypeError, match=r"^f must be a function of \(.*\), got int$"):
        run(name, 5)
    with pytest.raises(ValueError, match=r"^time_limit must be finite and at least 0, got -1.0$"):
        run(name, print, time_limit=-1)
    report = run(name, lambda: None)
    assert (report.mistake, report.cases) == ("wrong arguments", 0)
    report = run(name, raises)
    assert report.mistake == "raises"
    assert report.message.startswith("Your function raises ValueError: so, at line ")
    assert run(name, hangs, time_limit=0.2).mistake == "hangs"
    assert run(name, lambda *given, **options: None).mistake == "no return"
    assert run(name, np.zeros(3)).mistake == "called already"
    for rubbish in ("text", {}, object(), 1j, [[object()]]):
        assert not run(name, lambda *given, rubbish=rubbish, **options: rubbish).passed


def test_what_raises_in_one_convention_is_not_run_in_the_others():
    calls = []

    def raises(*given):
        calls.append(given)
        raise ValueError

    assert check.greedy_decode(raises).mistake == "raises"
    assert len(calls) < 40  # four conventions would make more than twice as many
    calls.clear()
    assert check.positional_encoding(raises).mistake == "raises"
    assert len(calls) < 12


def test_options_that_are_not_taken_are_remarked_upon():
    report = check.decoder_layer(lambda x, memory, weights, mask: None)
    assert report.mistake == "no return"
    report = check.decoder_layer(
        lambda x, memory, weights, mask: ab.decoder_layer(x, memory, weights, mask)
    )
    assert report.remarks == (
        "`memory_mask` was not checked: your function takes no argument of that name.",
    )
    report = check.encoder_layer(lambda x, weights, **options: ab.encoder_layer(x, weights))
    assert report.mistake == "mask ignored"
    report = check.layer_norm(lambda x, gain, bias, epsilon, weights: x)
    assert report.mistake == "wrong arguments"


def test_a_decoder_that_never_stops_is_named_by_what_it_ignores():
    def without_limit(model, start, stop, max_length):
        return layers.greedy()(model, start, stop, 10**6)

    def without_both(model, start, stop, max_length):
        return layers.greedy(until=False)(model, start, stop, 10**6)

    def looks_late(model, start, stop, max_length):
        ids = [start]
        while True:
            ids.append(int(model(ids)[-1].argmax()))
            if ids[-1] == stop or len(ids) > max_length:
                return ids

    assert check.greedy_decode(without_limit).mistake == "max_length ignored"
    assert check.greedy_decode(without_both).mistake == "neither stop nor limit"
    assert check.greedy_decode(looks_late).mistake == "a token where none is allowed"


def test_a_step_that_refuses_no_tokens_at_all_is_remarked_upon():
    need_torch()
    report = check.greedy_decode(layers.torch_cached, cached=True)
    assert report, report
    assert any(note.startswith("on max_length = 0 it raises ") for note in report.notes)


def test_half_precision_is_a_wrong_dtype():
    report = check.positional_encoding(lambda n, d: ab.positions.sinusoidal(n, d).astype("f2"))
    assert report.mistake == "wrong dtype"


def test_a_clipped_index_is_no_error_of_the_check():
    report = check.embed(lambda ids, E: np.take(E, ids, axis=1, mode="clip").T * E.shape[1] ** 0.5)
    assert report.mistake == "columns for rows"


def test_what_is_normalised_anew_is_never_said_to_ignore_the_memory():
    def odd(x, memory, weights):
        y = ab.layer_norm(memory) ** 2
        return ab.decoder_layer(x, y, weights) + 0.1 * y.mean()

    report = check.decoder_layer(odd)
    assert report.mistake is None
    assert "Another memory" not in report.message


# What is said where no mistake explains the numbers.


TWO, MOVED = np.zeros((2, 2)), np.ones((2, 2))
NORM = {"x": np.ones((1, 2)), "gain": np.array([1.0, 2.0]), "bias": np.zeros(2)}


@pytest.mark.parametrize(
    ("holds", "arguments", "values", "moved", "text"),
    [
        (rows_are_standardised, NORM, [[1.0, 4.0]], None, "a row sums to 3"),
        (tokens_are_alone, {"x": MOVED}, TWO, MOVED, "Changing the last token"),
        (pairs_lie_on_circles, {"n": 1, "d_model": 2}, [[1.0, 1.0]], None, "sin² + cos² = 1"),
        (order_is_free, {"x": MOVED}, [[0.0], [1.0]], [[0.0], [1.0]], "reversing the order"),
        (memory_matters, {"memory": MOVED}, TWO, TWO, "Another memory"),
        (shift_changes_nothing, {"logits": MOVED}, 1.0, 2.0, "Adding 1 to every logit"),
    ],
)
def test_a_property_that_does_not_hold_is_said(holds, arguments, values, moved, text):
    case, values = Case(arguments), np.asarray(values)
    again = () if moved is None else (np.asarray(moved),)
    assert text in holds(case, (values,), lambda **arrays: again)
    assert holds(case, (values * 0,), lambda **arrays: ()) is None or moved is None


def test_properties_of_labels_and_of_tokens():
    target = Case({"target": np.array([1, 3, 2])})
    assert labels_follow(target, (np.array([1, 3]), np.array([3, 2])), None) is None
    assert "Each label" in labels_follow(target, (np.array([1, 3]), np.array([4, 2])), None)
    case = Case({"model": Toy(0), "start": 1, "stop": 2, "max_length": 2})
    first = int(np.argmax(Toy(0)([1])[-1]))
    assert each_is_the_likeliest(case, (np.array([1, first]),), None) is None
    assert f"largest logit is that of {first}" in each_is_the_likeliest(
        case, (np.array([first + 1]),), None
    )
    assert each_is_the_likeliest(case, (np.array([[1]]),), None) is None


def test_numbers_that_no_model_explains_name_the_property_that_fails():
    report = check.feed_forward(lambda x, *w: answers.ff(answers.relu)(x, *w) + answers.mean(x, -2))
    assert report.mistake is None
    assert "Changing the last token" in report.message


def test_a_toy_model_reads_whole_prefixes_in_any_form():
    toy, ids = Toy(5), [1, 4, 2]
    logits = toy(ids)
    assert logits.shape == (3, 7)
    np.testing.assert_array_equal(toy(np.array([ids, ids]))[1], logits)
    np.testing.assert_array_equal(toy(ids[:2]), logits[:2])
    assert not np.allclose(toy([0, 4, 2])[2], logits[2])
    cache = None
    for position, token in enumerate(ids):
        row, cache = ToyStep(5)(token, position, cache)
    np.testing.assert_array_equal(row, logits[2])
    row[...] = 0
    assert np.all(toy(ids) == logits)
    torch = need_torch()
    on_torch = toy.to("torch")(torch.tensor(ids))
    np.testing.assert_array_equal(on_torch.numpy(), logits)
    for wrong, text in (([1.5], "integers"), (3, "shape"), ("ab", "array")):
        with pytest.raises((TypeError, ValueError), match=text):
            toy(wrong)
    with pytest.raises(ValueError, match="one id"):
        ToyStep(5)([1, 2], 0, None)
    with pytest.raises(TypeError, match="cache must be None"):
        ToyStep(5)(1, 0, [3])
    with pytest.raises(TooLong, match=f"at most {LONGEST} tokens, got {LONGEST + 1}"):
        toy([0] * (LONGEST + 1))


def test_a_case_describes_weights_and_the_dtype_of_its_numbers():
    weights = ab.EncoderLayerWeights.init(0, 4, 2, 4)
    case = Case({"ids": np.array([1]), "x": np.zeros((1, 4), np.float32), "w": weights}, about="!")
    assert str(case) == "ids (1,), x (1, 4), w of float32!"
    assert case.has_library
    assert case.size == 5
    assert not Case({"n": 3}).has_library
