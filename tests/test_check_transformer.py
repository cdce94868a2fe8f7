"""The checks of the transformer: every wrong answer hears its own sentence, right ones pass."""

import importlib
import inspect
import json
import pathlib
import re
import sys
import time

import check_layer_answers as layers
import check_transformer_answers as answers
import numpy as np
import pytest

import attnbook as ab
from attnbook import check
from attnbook.check._model import Case, Check, draw
from attnbook.check._toy import Toy, ToyStep

CHECKS = {
    "layer_norm": ("layer_norm", {}),
    "positional_encoding": ("positional_encoding", {"interleaved": False}),
    "positional_encoding, interleaved": ("positional_encoding", {"interleaved": True}),
    "embed": ("embed", {}),
    "feed_forward": ("feed_forward", {}),
    "encoder_layer": ("encoder_layer", {}),
    "decoder_layer": ("decoder_layer", {}),
    "teacher_forcing": ("teacher_forcing", {}),
    "cross_entropy": ("cross_entropy", {}),
    "greedy_decode": ("greedy_decode", {}),
    "greedy_decode, cached": ("greedy_decode", {"cached": True}),
}
"""The name of each check, of its function, and what else that is given."""

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
RECORD_FILE = pathlib.Path(__file__).parent / "check_transformer.json"
RECORD = json.loads(RECORD_FILE.read_text(encoding="utf-8"))
MODULES = (
    *("_optional", "_either", "_layer_norm", "_positional_encoding", "_embed", "_feed_forward"),
    *("_layer_steps", "_layer_mistakes", "_built", "_encoder_layer", "_decoder_layer"),
    *("_teacher_forcing", "_cross_entropy", "_greedy_mistakes", "_greedy_decode"),
)

REMARKED = {
    "axis 1 of a batch",
    "squares overflow in half precision",
    "shifted along the batch",
    "rows go on after stop",
    "batch ends at the first stop",
}
"""Mistakes of which a function for one sequence in full precision is free."""


def need_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def run(name, function, **options):
    public, given = CHECKS[name]
    return getattr(check, public)(function, **given, **options)


@pytest.fixture(scope="module")
def built_afresh():
    """The checks and their functions, built again: what their tables compute is tested too."""
    kept = {name: sys.modules.pop(f"attnbook.check.{name}") for name in MODULES}
    draw.cache_clear()
    try:
        modules = [importlib.import_module(f"attnbook.check.{name}") for name in MODULES]
    finally:
        sys.modules.update({f"attnbook.check.{name}": module for name, module in kept.items()})
        for name, module in kept.items():
            setattr(check, name, module)
    every = [x for module in modules for x in vars(module).values()]
    built = {x.name: x for x in every if isinstance(x, Check)}
    functions = {x.__name__: x for x in every if inspect.isfunction(x)}
    return built, {name: functions[public] for name, (public, _) in CHECKS.items()}


def mistake_of(name, wrong):
    """Drop the number that tells several answers with one mistake apart."""
    return wrong if wrong in RECORD["messages"][name] else re.sub(r" \d$", "", wrong)


def rejected_with_its_sentence(report, name, wrong):
    mistake = mistake_of(name, wrong)
    sentence = RECORD["messages"][name][mistake]
    if mistake in REMARKED:
        assert report.passed
        assert any(note.endswith(sentence) for note in report.notes)
        return
    assert not report
    assert (report.mistake, report.message) == (mistake, sentence)
    assert re.search(r"^With .* (is|must have) ", report.detail)
    assert report.libraries == ()


@pytest.mark.parametrize(("name", "wrong"), PAIRS)
def test_a_wrong_answer_is_rejected_with_its_own_sentence(name, wrong, built_afresh, monkeypatch):
    monkeypatch.setattr("attnbook.check._engine.present", lambda: ["numpy"])  # the next has PyTorch
    function = built_afresh[1][name]
    report = function(WRONG[name][wrong], **CHECKS[name][1], time_limit=60)
    rejected_with_its_sentence(report, name, wrong)


def of_torch(x):
    return type(x).__module__.startswith("torch") or getattr(x, "library", "") == "torch"


def only_torch(answer):
    """Return the answer of a reader who writes for PyTorch alone."""

    def torch_answer(*given, **options):
        torch = need_torch()
        weights = [x for x in given if isinstance(x, ab.EncoderLayerWeights)]
        if any(not isinstance(x, (int, Toy)) for x in given) or weights:
            if not any(map(of_torch, given)):
                raise TypeError("a tensor please")
        elif not any(map(of_torch, given)) and any(isinstance(x, Toy) for x in given):
            raise TypeError("a model of PyTorch please")
        result = answer(*given, **options)
        if isinstance(result, np.ndarray):
            return torch.tensor(result.tolist())
        return result

    torch_answer.__signature__ = inspect.signature(answer)
    return torch_answer


@pytest.mark.parametrize(("name", "wrong"), PAIRS[1::3])
def test_a_wrong_answer_written_for_pytorch_alone_is_recognised(name, wrong):
    need_torch()
    rejected_with_its_sentence(run(name, only_torch(WRONG[name][wrong])), name, wrong)


@pytest.mark.parametrize("name", CHECKS)
def test_every_mistake_has_a_wrong_answer_and_one_sentence(name, built_afresh):
    mistakes = {mistake.name: mistake.message for mistake in built_afresh[0][name].mistakes}
    assert len(mistakes) == len(built_afresh[0][name].mistakes) >= 6
    assert mistakes == RECORD["messages"][name]
    assert {mistake_of(name, wrong) for wrong in WRONG[name]} == set(mistakes)
    assert len(set(mistakes.values())) == len(mistakes)


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
        lambda ids, E: answers._one_hot(ids, E) @ E * E.shape[-1] ** 0.5,
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
    assert (report.mistake, report.detail) == (None, "")
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
    for name in CHECKS:
        function = RIGHT[name][0]
        report = run(name, function)
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
    assert report.mistake == "sampled"
    assert "draws tokens at random" in report.message

    def seeded(model, ids):
        logits = np.asarray(model(ids))[-1]
        rng = np.random.default_rng(len(ids))
        return int(rng.choice(len(logits), p=ab.softmax(logits)))

    report = check.greedy_decode(layers.greedy(seeded))
    assert report.mistake is None
    assert re.search(r"Your token \d is \d, and after \[1.*\] the largest", report.message)


def test_norm_orders_can_be_asked_for_one_by_one():
    always_pre = layers.ENCODER_LAYER["pre-norm for post-norm"]
    assert check.encoder_layer(always_pre, norm="pre")
    assert check.encoder_layer(always_pre, norm="post").mistake == "pre-norm for post-norm"
    assert check.encoder_layer(ab.encoder_layer, norm="post").cases > 5
    for function in (check.encoder_layer, check.decoder_layer):
        with pytest.raises(ValueError, match=r"^norm must be one of pre, post, got 'mid'$"):
            function(print, norm="mid")


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
    assert report.libraries == ("torch",)
    assert report.remarks == ()
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
            time.sleep(0.001)

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
    for rubbish in ("text", {}, object(), 1j, [[object()]]):
        assert not run(name, lambda *given, rubbish=rubbish, **options: rubbish)


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


def test_numbers_that_no_model_explains_name_the_property_that_fails():
    unknown = "Your numbers differ from the reference, and not in a way that this check knows. "

    def message(name, function):
        report = run(name, function)
        assert report.mistake is None
        assert report.message.startswith(unknown)
        return report.message.removeprefix(unknown)

    assert "the others; here it does" in message(
        "layer_norm", lambda x, g, b: ab.layer_norm(x, g, b) + 0.1 * answers.mean(x, -2)
    )
    assert "here a row sums to" in message(
        "layer_norm", lambda x, g, b: ab.layer_norm(x, g, b) + 0.1 * x * x
    )
    assert "sin² + cos² = 1" in message(
        "positional_encoding", lambda n, d: ab.positions.sinusoidal(n, d) * 1.1
    )
    assert "Changing the last token" in message(
        "feed_forward", lambda x, *w: answers.ff(answers.relu)(x, *w) + answers.mean(x, -2)
    )
    assert "reversing the order" in message(
        "encoder_layer",
        lambda x, w: ab.encoder_layer(x, w) + x - x[..., :1, :],
    )
    assert "Another memory" in message(
        "decoder_layer", lambda x, memory, w: ab.decoder_layer(x, x, w) * 2
    )
    assert "Each label is" in message("teacher_forcing", lambda t: (t[..., :-1], t[..., 1:] + 1))
    assert "Adding 1 to every logit" in message(
        "cross_entropy", lambda z, t: ab.cross_entropy(z, t) + 0.1 * z.mean()
    )


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


def test_a_case_describes_weights_and_the_dtype_of_its_numbers():
    weights = ab.EncoderLayerWeights.init(0, 4, 2, 4)
    case = Case({"ids": np.array([1]), "x": np.zeros((1, 4), np.float32), "w": weights}, about="!")
    assert str(case) == "ids (1,), x (1, 4), w of float32!"
    assert case.has_library
    assert case.size == 5
    assert not Case({"n": 3}).has_library


# Records.


def test_the_cases_are_those_that_were_looked_at(built_afresh):
    """Sizes, masks and numbers of every case; a change must be meant."""
    assert set(built_afresh[0]) == set(CHECKS) == set(RECORD["cases"])
    for name, checked in built_afresh[0].items():
        assert described(checked) == RECORD["cases"][name]


def described(checked):
    return [
        {
            "option": stage.option,
            "beyond": stage.beyond,
            "may_raise": stage.may_raise,
            "within": stage.within,
            "errors": [error.__name__ for error in stage.errors],
            "cases": [f"{case}: {checksum(case)}" for case in stage.cases],
        }
        for stage in checked.stages
    ]


def checksum(case):
    given = []
    for x in (*case.arguments.values(), *case.options.values()):
        arrays = x.arrays().values() if hasattr(x, "arrays") else [getattr(x, "seed", x)]
        given.append(sum(float(np.sum(np.cos(np.asarray(a) + 1.0))) for a in arrays))
    return " ".join(f"{number:.4g}" for number in given)


def write_record():
    """Write the record anew from the checks as they are; run this file to do so."""
    built = {}
    for name in MODULES:
        module = importlib.import_module(f"attnbook.check.{name}")
        built |= {x.name: x for x in vars(module).values() if isinstance(x, Check)}
    record = {
        "messages": {name: {m.name: m.message for m in built[name].mistakes} for name in CHECKS},
        "cases": {name: described(built[name]) for name in CHECKS},
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    RECORD_FILE.write_text(text + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write_record()
