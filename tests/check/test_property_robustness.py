"""Whatever a model does, a property check goes on; the model is given back as it was."""

import subprocess
import sys
import threading

import numpy as np
import property_models as models
import pytest
from cases import every_day
from head_models import H
from property_models import WIDTH, Block, MaskInTraining, loop, nn, torch

import attnbook
from attnbook import masking
from attnbook.check.properties.examples import Examples as Draws
from attnbook.check.properties.heads_are_independent import heads_are_independent
from attnbook.check.properties.no_future_leak import no_future_leak
from attnbook.check.properties.padding_invariance import padding_invariance
from attnbook.check.properties.permutation_equivariance import permutation_equivariance

N = 4
"""The fewest positions that every check takes."""
X, T, TOKENS = (x[:, :N] for x in (models.X, models.T, models.TOKENS))

CHECKS = {
    "no_future_leak": no_future_leak,
    "padding_invariance": padding_invariance,
    "permutation_equivariance": permutation_equivariance,
    "heads_are_independent": lambda f, example, **o: heads_are_independent(f, H, example, **o),
}


GIVEN = {name: "query" if "heads" in name else "x" for name in CHECKS}


def forever(*arrays):
    while True:
        pass


def raises(*arrays):
    raise ValueError("give it as X.")


def prints(*arrays):
    print("shape", arrays[0].shape)
    return arrays[0]


def writes(x, *more):
    x += 1
    return x * 1


def drifts(*arrays, count=[0]):  # noqa: B006
    count[0] += 1
    return arrays[0] * count[0]


ODD = {
    "hangs": (forever, "is not done after 0.1 seconds, in which it ran 1 times. Look for"),
    "raises": (raises, "raises ValueError: give it as X, at line "),
    "changes": (writes, "in place, so the caller's array is no longer what it was."),
    "not deterministic": (drifts, "gives two results for one input"),
    "wrong type": (lambda *a: {"logits": a[0]}, "returns a dict, where an array is expected."),
    "no return": (lambda *a: None, "returns None: is the `return` missing?"),
    "wrong type, list": (lambda *a: a[0].tolist(), "returns a list, where"),
    "wrong dtype": (lambda *a: a[0].astype(int), "an array of int64, where floating-point"),
    "wrong dtype, complex": (lambda *a: a[0] * 1j, "an array of complex128, where floating-point"),
    "wrong shape": (lambda *a: a[0][:, :1], "must "),
    "wrong shape, a number": (lambda *a: a[0].sum(), "must "),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ODD)
def test_whatever_a_model_does_becomes_a_report(check, name, capsys):
    model, text = ODD[name]
    report = CHECKS[check](model, X, time_limit=0.1 if name == "hangs" else 30)
    assert not report
    mistake = name.split(",")[0]
    assert report.mistake == (f"changes {GIVEN[check]}" if mistake == "changes" else mistake)
    assert text in report.message
    assert report.message.startswith("Your ")
    assert report.detail
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_printed_is_held_back(check, capsys):
    before = sys.stdout
    report = CHECKS[check](prints, X)
    assert "it prints; the check holds the text back." in report.remarks
    assert capsys.readouterr().out == ""
    assert sys.stdout is before


@pytest.mark.parametrize("check", CHECKS)
def test_an_endless_loop_of_a_module_ends(check):
    ended = threading.Event()

    class Endless(nn.Module):
        def forward(self, *arrays):
            try:
                forever()
            finally:
                ended.set()

    assert CHECKS[check](Endless(), X, time_limit=0.1).mistake == "hangs"
    assert ended.wait(20)


@pytest.mark.parametrize("check", CHECKS)
def test_a_result_or_a_class_in_the_place_of_a_model_gets_a_sentence(check):
    report = CHECKS[check](X, X)
    assert report.mistake == "called already"
    assert "Pass the function itself" in report.message
    report = CHECKS[check](nn.Identity, X)
    assert report.mistakes == ("class for an object",)
    assert "You pass the class `Identity`." in report.message


def test_a_platform_without_threads_is_remarked_upon(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for check in CHECKS.values():
        remarks = check(lambda *arrays: arrays[0], X).remarks
        assert "no thread can be started here, so no limit of time was set." in remarks


@pytest.mark.parametrize("check", CHECKS)
def test_the_failing_arrays_are_in_the_report(check):
    report = CHECKS[check](lambda *arrays: arrays[0][:, ::-1], X)
    assert report.case is not None
    assert all(isinstance(x, np.ndarray) for x in report.case.arguments.values())
    assert report.case.got.shape == report.case.expected.shape
    assert not np.allclose(report.case.got, report.case.expected)


def test_an_error_in_one_mode_names_it():
    class Fails(nn.Module):
        def forward(self, x):
            if not self.training:
                raise NotImplementedError
            return x

    report = no_future_leak(Fails(), X)
    assert report.mistake == "raises"
    assert report.detail == (
        "It was given x (3, 4, 12) of float64, as PyTorch arrays in eval mode."
    )


def test_time_is_for_all_runs_together():
    def slow(x):
        sum(range(400_000))
        return loop(x)

    report = no_future_leak(slow, X, time_limit=0.2)
    assert report.mistake == "hangs"
    assert no_future_leak(loop, X, time_limit=1e300)


class Stateful(nn.Module):
    """Whatever a run may change: statistics, a cache, a counter, a buffer that is replaced."""

    def __init__(self):
        super().__init__()
        self.block, self.norm = Block(), nn.BatchNorm1d(WIDTH)
        self.norm.eval()
        self.register_buffer("runs", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))
        self.count, self.cache = 0, None

    def forward(self, x):
        self.count += 1
        self.runs += 1
        self.last = self.runs * 2
        self.cache = x
        return self.norm(self.block(x).transpose(1, 2)).transpose(1, 2)


class Uncopied(Stateful):
    def __deepcopy__(self, memo):
        raise RuntimeError("only leaves can be copied")


def state_of(module):
    return (
        {name: x.clone() for name, x in module.state_dict().items()},
        [m.training for m in module.modules()],
        [id(x) for x in module.state_dict(keep_vars=True).values()],
        (module.count, module.cache),
        [(p.requires_grad, p.grad) for p in module.parameters()],
    )


def same_state(a, b):
    tensors = all(torch.equal(a[0][name], b[0][name]) for name in a[0])
    return tensors and a[0].keys() == b[0].keys() and a[1:] == b[1:]


WRAPPED = {
    "module": lambda m: m,
    "function": lambda m: lambda x: m(x),
    "method": lambda m: m.forward,
    "list": lambda m: lambda x, layers=[m]: layers[0](x),
    "object": lambda m: type("Model", (), {"__call__": lambda self, x: m(x)})(),
}


@pytest.mark.parametrize("kind", every_day([*WRAPPED][::2], WRAPPED))
@pytest.mark.parametrize("Kind", [Stateful, Uncopied])
@pytest.mark.parametrize("check", [no_future_leak, permutation_equivariance])
def test_a_module_is_given_back_as_it_was(check, Kind, kind):
    module = Kind()
    before, random = state_of(module), torch.random.get_rng_state()
    report = check(WRAPPED[kind](module), T)
    assert report.mistake == "another sequence leaks in" or "order matters" in report.message
    assert same_state(before, state_of(module))
    assert torch.equal(random, torch.random.get_rng_state())
    assert torch.is_grad_enabled()


def test_a_global_module_is_found_and_given_back():
    space = {"mha": MaskInTraining().eval()}
    exec("def model(x):\n    def inner():\n        return mha(x)\n    return inner()", space)
    assert no_future_leak(space["model"], T).mistake == "causal mask dropped in eval mode"
    assert not space["mha"].training


def test_a_module_is_given_back_after_an_error_and_after_a_time_out():
    for act in (raises, forever):
        module = nn.BatchNorm1d(WIDTH)
        module.eval()

        def model(x, module=module, act=act):
            module(x.mT)
            act()

        assert not no_future_leak(model, T, time_limit=0.2)
        assert not module.training
        assert module.num_batches_tracked == 0
        assert torch.equal(module.running_mean, torch.zeros(WIDTH))


def test_a_backward_pass_under_way_still_works():
    layer = nn.Linear(WIDTH, WIDTH)
    loss = layer(layer(T)).sum()
    assert no_future_leak(lambda x: layer(x), T)
    loss.backward()
    assert layer.weight.grad is not None


def test_the_example_is_not_changed():
    for example in (X.copy(), T.clone(), TOKENS.copy()):
        before = torch.as_tensor(example).clone()
        no_future_leak(writes, example)
        assert torch.equal(torch.as_tensor(example), before)
    frozen = X.copy()
    frozen.flags.writeable = False
    assert no_future_leak(loop, frozen)


def test_a_module_gets_its_own_dtype_and_tensors():
    seen = []

    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x):
            modes = (torch.is_grad_enabled(), self.training)
            seen.append((type(x), x.dtype, modes))
            return x * self.weight

    assert no_future_leak(Looks(), X.astype(np.float32))
    assert {kind for kind, *_ in seen} == {torch.Tensor}
    assert {dtype for _, dtype, *_ in seen} == {torch.float64}
    assert {modes for *_, modes in seen} == {(True, True), (False, False)}
    seen.clear()

    def function(x):
        seen.append((type(x), x.dtype))
        return x

    no_future_leak(function, X.astype(np.float32))
    assert set(seen) == {(np.ndarray, np.dtype("float32"))}


def test_tokens_stay_between_the_smallest_and_the_largest():
    seen = set()

    def model(x):
        seen.update(x.ravel().tolist())
        return x.cumsum(1)[..., None] * 1.0

    assert no_future_leak(model, np.array([[3, 7, 5, 3]]))
    assert seen == {3, 4, 5, 6, 7}


def test_draws_are_others_and_the_same_every_time():
    for example in (X, TOKENS, X[0], TOKENS[0]):
        draws = Draws(example)
        base = draws.base(0)
        assert np.array_equal(base, example if draws.batched else example[None])
        for seed in (1, 2):
            assert np.array_equal(draws.base(seed), Draws(example).base(seed))
            assert not (draws.other(base, seed) == base).any()
        assert not np.array_equal(draws.base(1), draws.base(2))
    assert Draws(X[:1]).example.shape == (2, N, WIDTH)
    assert Draws(np.ones((9, 3, 2))).example.shape == (4, 3, 2)
    assert np.abs(Draws(X.astype(np.float16)).base(1, 1e8)).max() == 200
    assert 0.5 < Draws(X).base(1, 100.0).std() / 100 < 2


@pytest.mark.parametrize("check", [no_future_leak, permutation_equivariance, padding_invariance])
@pytest.mark.parametrize(
    ("example", "error", "message"),
    [
        ([1.0], TypeError, r"^example must be an array of NumPy, CuPy, PyTorch or .* got list$"),
        (X > 0, TypeError, r"^example must hold real floating-point numbers or .* got bool$"),
        (X + 0j, TypeError, r"^example must hold real floating-point numbers .* got complex128$"),
        (X[0, 0], ValueError, r"^example must have shape .* got \(12,\)$"),
        (X[:, :1], ValueError, r"^example must have shape .* got \(3, 1, 12\)$"),
        (X[:0], ValueError, r"^example must have shape .* got \(0, 4, 12\)$"),
        (X * np.nan, ValueError, r"^example must be finite, got NaN or infinity$"),
        (TOKENS * 0, ValueError, r"^example must hold at least two different tokens, got 0 alone$"),
    ],
)
def test_a_bad_example_is_refused(check, example, error, message):
    with pytest.raises(error, match=message):
        check(lambda *a: a[0], example)


def test_padding_needs_a_batch_of_some_length():
    message = r"^example must have shape \(batch, n, \.\.\.\) with n of at least 4, got "
    for example in (X[0], X[:, :3]):
        with pytest.raises(ValueError, match=message):
            padding_invariance(lambda x, mask: x, example)


@pytest.mark.parametrize("check", [no_future_leak, permutation_equivariance, padding_invariance])
def test_what_cannot_be_called_is_refused(check):
    with pytest.raises(TypeError, match=r"^model must be callable, got int$"):
        check(5, X)
    with pytest.raises(TypeError, match=r"^time_limit must be a real number, got str$"):
        check(loop, X, time_limit="1")


def test_no_torch_is_needed_or_loaded():
    code = """
import sys
import numpy as np
from attnbook import attention
from attnbook.check.properties.no_future_leak import no_future_leak
from attnbook.check.properties.padding_invariance import padding_invariance
x = np.random.default_rng(0).normal(size=(3, 5, 2))
mask = np.tri(5, dtype=bool)
print(bool(no_future_leak(lambda x: attention(x, x, x, mask), x)))
print(bool(padding_invariance(lambda x, mask: attention(x, x, x, mask), x)))
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


def test_another_array_library():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")

    def model(x):
        return attnbook.attention(x, x, x, masking.causal(x.shape[1], like=x))

    report = no_future_leak(model, strict.asarray(X))
    assert report
    assert report.libraries == ("array_api_strict",)


def test_every_run_starts_from_the_same_state():
    normalised = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
    for model, example in ((normalised, X), (lambda x: normalised(x), T)):
        assert no_future_leak(model, example)  # each run in train mode changes its buffers

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.runs = 0

        def forward(self, x):
            self.runs += 1
            return x.cumsum(1) * self.runs

    counts = Counts()
    assert no_future_leak(counts, X)
    assert no_future_leak(lambda x: counts(x), T)
    assert counts.runs == 0


def test_a_module_that_waits_for_its_first_input():
    lazy = nn.LazyLinear(4)
    assert no_future_leak(lazy, X)
    assert lazy.has_uninitialized_params()
    assert no_future_leak(lambda x: lazy(x), T)
    assert lazy(T).shape == (3, N, 4)


def test_a_remark_for_all_modes_is_made_once():
    report = no_future_leak(nn.Linear(WIDTH, 3), X)
    (remark,) = report.remarks
    assert remark.startswith("no output depends on an earlier input: is attention")

    class InTraining(nn.Module):
        def forward(self, x):
            return x.cumsum(1) if self.training else x

    (remark,) = no_future_leak(InTraining(), X).remarks
    assert remark.startswith("no output depends on an earlier input in eval mode: is attention")


@pytest.mark.parametrize("check", CHECKS)
def test_another_shape_for_the_same_shape(check):
    def model(x, *more):
        return x[..., : 1 + int(abs(x.sum() * 1000)) % 9]

    report = CHECKS[check](model, X)
    assert report.mistake == "wrong shape"
    assert check == "heads_are_independent" or " for inputs of one shape." in report.message


def test_a_shape_that_depends_on_n():
    def weights(x, mask):
        return np.where(mask, attnbook.attention_weights(x, x, mask), 0)

    (remark,) = padding_invariance(weights, X).remarks
    assert (
        remark == "the shape of its output depends on n, so runs of another length were left out."
    )


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("scale", [1e-300, 1e150, 1e300])
def test_numbers_that_overflow(check, scale):
    def model(x, *more):
        return np.exp(np.cumsum(x, axis=1) ** 3) * x[:, ::-1]

    with np.errstate(all="raise"):
        assert not CHECKS[check](model, X * scale)
        assert CHECKS[check](lambda *a: attnbook.attention(*a[:3]), X * scale).cases > 0


def test_no_seed_waits_for_a_gpu():
    before = len(torch.cuda._queued_calls)
    assert no_future_leak(nn.Linear(WIDTH, 3), X)
    assert len(torch.cuda._queued_calls) == before
