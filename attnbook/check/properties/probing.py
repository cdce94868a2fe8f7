"""Call a model in each of its modes; what it does wrong on the way ends the check."""

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_number
from attnbook.arrays.array import dtype_name, library
from attnbook.arrays.move import move
from attnbook.check.engine.calls import PRETTY, Finding, Found, class_passed, kind_of
from attnbook.check.engine.lending import lent
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import F, documented
from attnbook.check.engine.sandbox import PRINTS, Budget, call, describe_error
from attnbook.check.properties.examples import Examples

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
SAME_ORDER, OTHER_ORDER = 5e-6, 2e-4
"""What rounding in float32 stays below, relative to the largest output: where a value comes from
the same operations in both runs, and where sums run in another order."""

LARGE = (1e2, 1e5, 1e8)
"""How many times as large inputs are that outbid a large negative number."""

IN_MODE = {"train": " in train mode", "eval": " in eval mode", "": ""}


def described(function: F) -> F:
    """Add to the docstring what holds for each check, of a first argument with another name."""
    name = next(iter(inspect.signature(function).parameters))
    text, here = documented(function).__doc__ or "", f"`{name}` is not callable, another argument"
    function.__doc__ = text.replace("`f` is not callable, or", f"{here} is not as described, or")
    return function


def budget_of(function: Callable, name: str, time_limit: float) -> Budget:
    """Return the seconds that a check may compute, or raise if its arguments are wrong."""
    if not callable(function) and _refusal(function) is None:
        raise TypeError(f"{name} must be callable, got {type(function).__name__}")
    return Budget(check_number("time_limit", time_limit))


def report_of(
    check: str,
    passes: str,
    finding: Finding | None,
    remarks: Iterable[str],
    cases: int,
    budget: Budget,
    libraries: tuple[str, ...] = (),
) -> Report:
    """Report `finding`, or that the check passes."""
    seen: dict[str, Any] = {"remarks": (*remarks, *budget.remarks), "cases": cases}
    if finding:
        return finding.report(check, **seen)
    return Finding(None, passes).report(check, passed=True, libraries=libraries, **seen)


def _refusal(function: Any) -> Finding | None:
    """Say what to pass in the place of a result or of a class."""
    if hasattr(function, "shape"):
        message = "You pass what your function returned. Pass the function itself, not called."
        return Finding("called already", message)
    return class_passed(function) if inspect.isclass(function) else None


class Probe:
    """A callable with its modes, the time it has left, and what was remarked upon on the way."""

    def __init__(self, noun: str, function: Callable, like: Any, time_limit: float):
        self.noun = noun
        self.budget = budget_of(function, "f" if noun == "function" else noun, time_limit)
        self.original, self.function = function, function
        self.modules: list[Any] = []
        self.library, self.dtype = library(like), dtype_name(like.dtype)
        self.device = None if self.library == "numpy" else array_api_compat.device(like)
        self.epsilon = EPSILON.get(self.dtype, 2.0**-23)
        self.shapes: dict[tuple, tuple[int, ...]] = {}  # of outputs, by the shapes of the inputs
        self.remarked: dict[str, set[str]] = {}
        self.runs = 0

    def _as_for(self, module: Any) -> None:
        self.library = "torch"
        parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
        if parameter is not None:
            self.device = parameter.device
            if "float" in self.dtype:
                self.dtype = dtype_name(parameter.dtype)

    def report(
        self,
        check: str,
        passes: str,
        find: Callable[[str], Finding | None],
        only: Callable[[Finding, str], Finding] = lambda finding, mode: finding,
    ) -> Report:
        """Run `find` in each mode, and report its first finding and the modes in which it holds.

        `only` may say more about a finding that holds in one mode alone.
        """
        findings: dict[str, Finding] = {}
        with lent(self.original, self.budget) as (self.function, self.modules, self.rewind):
            if self.modules and self.modules[0] is self.function:
                self._as_for(self.function)  # a module itself, not a function that uses one
            self.modes = ("train", "eval") if self.modules else ("",)
            self.examined = list(self.modes)
            try:
                if refused := _refusal(self.original):
                    raise Found(refused)
                with np.errstate(all="ignore"):
                    for mode in self.modes:
                        found = find(mode)
                        if found is not None:
                            findings[mode] = found
                finding = self._of_modes(findings, only) if findings else None
            except Found as found:
                finding = found.finding
        remarks = (
            text.replace("{mode}", "" if len(modes) == len(self.modes) else IN_MODE[max(modes)])
            for text, modes in self.remarked.items()
        )
        return report_of(check, passes, finding, remarks, self.runs, self.budget, (self.library,))

    def _of_modes(self, findings: dict[str, Finding], only: Callable) -> Finding:
        mode, finding = next(iter(findings.items()))
        right = [other for other in self.examined if other not in findings]
        if not right:
            return finding
        told = only(finding, mode)
        if told is not finding:
            return told
        where = f" It happens{IN_MODE[mode]} only, and not{IN_MODE[right[0]]}."
        return replace(finding, message=finding.message + where)

    def remark(self, text: str, mode: str = "") -> None:
        """Note `text`, in which ``{mode}`` stands for the mode if it does not hold in all."""
        self.remarked.setdefault(text, set()).add(mode)

    def leave_out(self, mode: str) -> None:
        self.examined.remove(mode)
        self.remark(f"it is random{IN_MODE[mode]}, which was left out.")

    def make(self, name: str, function: Callable, *arguments: Any) -> Any:
        """Return what another function of the reader makes, one that prepares an argument."""
        outcome = call(function, arguments, {}, self.budget)
        if outcome.stopped:
            self.fail("hangs", f"Your `{name}` {outcome.stopped}", "It makes an argument.")
        if outcome.error is not None:
            does = f"raises {describe_error(outcome.error)}."
            self.fail("raises", f"Your `{name}` {does}", "It makes an argument.")
        return outcome.value

    def run(self, arguments: dict[str, Any], mode: str, shape: tuple[int, ...], seed: int = 0):
        """Return what the function makes of `arguments`, an array whose shape begins with `shape`.

        Its random numbers are the same in each run with the same seed.
        """
        self.runs += 1
        given = {name: self.give(x) for name, x in arguments.items()}
        self.given = f"It was given {self._shown(arguments)}{IN_MODE[mode]}."
        outcome = call(self._quietly, (mode, seed, tuple(given.values())), {}, self.budget)
        if outcome.stopped.startswith("is not done"):
            self.fail(
                "hangs",
                f"Your {self.noun} is not done after {self.budget.seconds:g} seconds, in which it "
                f"ran {self.runs} times. Look for a loop that never ends, or pass a smaller "
                "example or a longer time_limit.",
            )
        if outcome.stopped:
            self.fail("waits", f"Your {self.noun} {outcome.stopped}")
        if outcome.printed:
            self.remark(PRINTS)
        if outcome.error is not None:
            self.fail("raises", f"Your {self.noun} raises {describe_error(outcome.error)}.")
        value = self._array(outcome.value, shape)
        key = tuple(x.shape for x in arguments.values() if isinstance(x, np.ndarray))
        if self.shapes.setdefault(key, value.shape) != value.shape:
            self.fail(
                "wrong shape",
                f"Your {self.noun} returns arrays of {self.shapes[key]} and {value.shape} for "
                "inputs of one shape.",
            )
        for name, x in arguments.items():
            if isinstance(x, np.ndarray) and not np.array_equal(
                move(given[name], "numpy"), move(self.give(x), "numpy")
            ):
                self.fail(
                    f"changes {name}",
                    f"Your {self.noun} changes its input `{name}` in place, so the caller's array "
                    "is no longer what it was. Compute a new array instead, without +=, *= or an "
                    "assignment to a slice of it.",
                )
        return value

    def give(self, x: Any) -> Any:
        """Return arrays of NumPy in the library, dtype and device that the function works in."""
        if not isinstance(x, np.ndarray):
            return x
        dtype = self.dtype if x.dtype.kind == "f" else None
        if self.library == "numpy":
            return x.astype(dtype or x.dtype)
        return move(x.copy(), self.library, device=self.device, dtype=dtype)

    def fail(self, mistake: str | None, message: str, detail: str = "") -> NoReturn:
        raise Found(Finding(mistake, message, detail or self.given))

    def far(self, got: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
        """Tell for each position (the first two axes) whether it is farther off than rounding."""
        got, expected = (x.reshape(*x.shape[:2], -1) for x in (got, expected))
        allowed = max(tolerance, 4 * self.epsilon if self.epsilon > 1e-5 else 0)
        scale = np.max(np.abs(expected), initial=0, where=np.isfinite(expected))
        with np.errstate(all="ignore"):
            near = np.abs(got - expected) <= allowed * scale
        near |= (got == expected) | (np.isnan(got) & np.isnan(expected))
        return ~near.all(axis=-1)

    def _quietly(self, mode: str, seed: int, arguments: tuple) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return self.function(*arguments)
        self.rewind()
        for module in self.modules:
            module.train(mode == "train")
        on_gpu = torch.cuda.is_initialized()
        cuda = range(torch.cuda.device_count()) if on_gpu else ()
        # without gradients, as in use: some modules take another path through their code then
        with torch.random.fork_rng(list(cuda)), torch.set_grad_enabled(mode != "eval"):
            # not torch.manual_seed, which would also seed a GPU that is first used later
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed_all(seed)
            return self.function(*arguments)

    def _array(self, x: Any, shape: tuple[int, ...]) -> np.ndarray:
        if isinstance(x, (tuple, list)) and len(x) and hasattr(x[0], "shape"):
            self.remark(
                f"it returns a {type(x).__name__} of {len(x)}; the first of them is checked."
            )
            x = x[0]
        if x is None:
            self.fail("no return", f"Your {self.noun} returns None: is the `return` missing?")
        try:
            value = np.array(x if library(x) == "numpy" else move(x, "numpy"))
        except Exception:  # whatever the object does, it is no array that can be read
            self.fail(
                "wrong type",
                f"Your {self.noun} returns {kind_of(x)}, where an array is expected. Check a "
                "function that picks the array: lambda x: model(x).logits.",
            )
        if value.dtype.kind != "f":
            self.fail(
                "wrong dtype",
                f"Your {self.noun} returns an array of {value.dtype}, where floating-point numbers "
                "are expected.",
            )
        if value.shape[: len(shape)] != shape:
            letters = ", ".join(map(str, shape))
            self.fail(
                "wrong shape",
                f"Your {self.noun} must return an array of shape ({letters}, ...), got "
                f"{value.shape}.",
            )
        self.epsilon = max(self.epsilon, EPSILON.get(dtype_name(x.dtype), 0))
        return value.astype(float)

    def _shown(self, arguments: dict[str, Any]) -> str:
        arrays = [x for x in arguments.values() if isinstance(x, np.ndarray)]
        shown = (
            f"{name} {x.shape}" if isinstance(x, np.ndarray) else name
            for name, x in arguments.items()
        )
        dtype = self.dtype if arrays[0].dtype.kind == "f" else arrays[0].dtype
        return f"{', '.join(shown)} of {dtype}, as {PRETTY.get(self.library, self.library)} arrays"


class SequenceProbe(Probe):
    """A model of sequences: (batch, n, ...) in, (batch, n, ...) out."""

    def __init__(self, model: Callable, example: Any, time_limit: float, examples: Examples):
        super().__init__("model", model, example, time_limit)
        self.examples = examples

    def outputs(self, x: np.ndarray, mode: str, *, seed: int = 0, **more: Any) -> np.ndarray:
        lead = x.shape[:2] if self.examples.batched else x.shape[1:2]
        x = x if self.examples.batched else x[0]
        value = self.run({"x": x, **more}, mode, lead, seed)
        return value if self.examples.batched else value[np.newaxis]

    def is_random(self, mode: str, **more: Any) -> bool:
        """Tell whether other random numbers change the output; fail if the same ones do."""
        x = self.examples.base(0)
        first, second, other = (self.outputs(x, mode, seed=s, **more) for s in (0, 0, 1))
        if self.far(second, first, SAME_ORDER).any():
            self.fail(
                "not deterministic",
                "Your model gives two results for one input, with PyTorch's random numbers set to "
                "the same seed. Look for other random numbers, a cache, or a variable outside the "
                "model that it changes.",
            )
        return bool(self.far(other, first, SAME_ORDER).any())

    def remark_if_idle(self, output: np.ndarray, mode: str, **more: Any) -> None:
        """Remark upon a model that gives `output`, made of the first input, for another as well."""
        if np.array_equal(self.outputs(self.examples.base(1), mode, **more), output):
            self.remark(
                "it returns the same numbers for two different inputs{mode}: what ignores its "
                "input has this property, and may not be finished.",
                mode,
            )


def finite_rows(output: np.ndarray) -> np.ndarray:
    """Tell which positions (the first two axes) hold finite numbers alone."""
    return np.isfinite(output.reshape(*output.shape[:2], -1)).all(axis=-1)


def directions(changes: np.ndarray, tolerance: float = 1e-3) -> int:
    """Return along how many directions the rows of `changes` lie, 0 if some are not finite."""
    if not np.isfinite(changes).all():
        return 0
    sizes = np.linalg.svd(changes, compute_uv=False)
    return int(np.sum(sizes > tolerance * sizes[0]))
