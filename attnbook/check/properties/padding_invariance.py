"""The check that padding does not reach the outputs of real tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnbook import masking
from attnbook.check.engine.calls import Finding, Found
from attnbook.check.engine.report import FailingCase, Report
from attnbook.check.engine.text import Text
from attnbook.check.properties.dependence import changed_case
from attnbook.check.properties.examples import Examples
from attnbook.check.properties.probing import (
    IN_MODE,
    LARGE,
    OTHER_ORDER,
    SAME_ORDER,
    SequenceProbe,
    described,
    directions,
    finite_rows,
)

TEXT = Text(globals())

PADDING = TEXT.sentences


@described
def padding_invariance(
    model: Callable,
    example: Any,
    *,
    padding: Callable[[np.ndarray, int], Any] | None = None,
    time_limit: float = 30.0,
) -> Report:
    """Check that padding does not reach the outputs of real tokens.

    The check gives the sequences of the batch different lengths. The outputs of real tokens must
    stay the same whatever the padding holds (other tokens, huge numbers), whatever lengths the
    other sequences have, in a batch of one, and without any padding. Outputs of padding may be
    anything. A `torch.nn.Module` is checked in train mode and in eval mode (without gradients).

    PyTorch's random generator gets the same seed before each run. With dropout, the runs without
    padding are left out, because dropout depends on the shape. Changes of less than 5e-6 of the
    largest output count as rounding, and changes of less than 2e-4 between runs of different
    lengths. The check does not require that NaN in the padding stays there.

    Parameters
    ----------
    model : callable
        Called as ``model(x, mask)``. It returns an array (batch, n, ...) of floats, or a tuple that
        begins with it. The check does not change a module, or the modules that a function uses.
    example : array, shape (batch, n, ...) of floats, or (batch, n) of integers
        An input of the model without padding, as an array of the library in which it works; a
        `torch.nn.Module` gets a tensor of its own dtype, on its device. It needs at least 4
        positions. At most 4 sequences of a batch are used, and only integer tokens between the
        smallest and the largest.
    padding : callable, optional
        Makes the second argument of the model from the lengths, an integer array (batch,), and n.
        The default is `attnbook.masking.padding`, which returns a boolean mask (batch, 1, n),
        **True = may attend**. NumPy arrays that it returns are moved to the library of the model.
        If the model needs the lengths themselves, pass ``lambda lengths, n: lengths``. For the
        key_padding_mask of PyTorch, pass ``lambda lengths, n: ~masking.padding(lengths, n)[:, 0]``;
        for heads, ``lambda lengths, n: masking.padding(lengths, n)[:, None]``.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check
    >>> x = np.random.default_rng(0).normal(size=(3, 7, 5))
    >>> print(check.padding_invariance(lambda x, mask: attention(x, x, x, mask), x))
    ✓ padding_invariance: padding does not reach the outputs of real tokens
    >>> check.padding_invariance(lambda x, mask: attention(x, x, x), x).mistake
    'padding ignored'
    """
    examples = Examples(example, min_batch=3)
    if not examples.batched or examples.n < 4:
        raise ValueError(
            "example must have shape (batch, n, ...) with n of at least 4, "
            f"got {tuple(example.shape)}"
        )
    maker = masking.padding if padding is None else padding
    if not callable(maker):
        raise TypeError(f"padding must be callable, got {type(maker).__name__}")
    probe = SequenceProbe(model, example, time_limit, examples)
    passes = "padding does not reach the outputs of real tokens"
    return probe.report(
        "padding_invariance", passes, lambda mode: next(_Mode(probe, maker, mode).leaks(), None)
    )


class _Mode:
    """The examination of a model in one mode."""

    def __init__(self, probe: SequenceProbe, padding: Callable, mode: str):
        self.probe, self.padding, self.mode, self.draws = probe, padding, mode, probe.examples
        n = self.draws.n
        # every sequence padded, then one without padding: through an inverted mask that one is NaN
        self.all_lengths = [
            np.array(lengths)[: self.draws.batch]
            for lengths in ([n - 1, n // 2, n - 2, 1], [n // 2, n, n - 1, 1])
        ]
        self.lengths = self.all_lengths[0]

    def leaks(self) -> Iterator[Finding]:
        random = self.probe.is_random(self.mode, mask=self.mask(self.lengths, self.draws.n))
        x = self.draws.base(0)
        mask = self.mask(self.lengths, self.draws.n)
        self.probe.remark_if_idle(self.run(x), self.mode, mask=mask)
        for lengths in self.all_lengths:
            self.lengths = lengths
            output = self.run(x)
            for row, i in np.argwhere(~finite_rows(output) & self.real).tolist():
                yield self.leak("NaN", f"output {i} of sequence {row} is not finite")
            yield from self.other_sequences(x, output)
            for seed in (1, 3):
                for row, what, case in self.content(x, output, seed):
                    yield self.leak(self.name(x, output, row), what, case)
        if random:
            self.remark("it is random{mode}, so runs of another length were left out there.")
        else:
            yield from self.without_padding(x, output)
        yield from self.large()
        one, length = self.lengths[:1], self.lengths[0]
        first, second = (self.run(y[:1], one)[:, :length] for y in (x, self.refill(x, 1)))
        if self.probe.far(second, first, SAME_ORDER).any():
            yield self.leak("batch of one", "other padding in sequence 0 alone moves its outputs")
        if np.array_equal(self.unpadded(x), output, equal_nan=True):
            self.remark(
                "the mask changes nothing{mode}, and need not: real tokens do not see what comes "
                "after them."
            )

    def remark(self, text: str) -> None:
        self.probe.remark(text, self.mode)

    def run(self, x: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
        lengths = self.lengths if lengths is None else lengths
        return self.probe.outputs(x, self.mode, mask=self.mask(lengths, x.shape[1]))

    def unpadded(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs with a mask that shows everything."""
        return self.run(x, np.full_like(self.lengths, self.draws.n))

    def mask(self, lengths: np.ndarray, n: int) -> Any:
        return self.probe.make("padding", self.padding, lengths.copy(), n)

    @property
    def real(self) -> np.ndarray:
        return np.arange(self.draws.n) < self.lengths[:, np.newaxis]

    def refill(self, x: np.ndarray, seed: int, scale: float = 1.0) -> np.ndarray:
        """Return `x` with other padding."""
        y = x.copy()
        y[~self.real] = self.draws.other(x, seed, scale)[~self.real]
        return y

    def moved(self, got: np.ndarray, output: np.ndarray) -> np.ndarray:
        return np.argwhere(self.probe.far(got, output, SAME_ORDER) & self.real)

    def leak(
        self, name: str | None, what: str, case: FailingCase | None = None, k: Any = None
    ) -> Finding:
        detail = f"With lengths {tuple(self.lengths.tolist())}, {what}{IN_MODE[self.mode]}."
        return Finding(name, PADDING[name or "unknown"].format(k=k), detail, case)

    def other_sequences(self, x: np.ndarray, output: np.ndarray) -> Iterator[Finding]:
        for row in range(self.draws.batch):
            others = np.arange(self.draws.batch) != row
            y = np.where(others.reshape(-1, *(1,) * (x.ndim - 1)), self.draws.other(x, 5), x)
            if row in self.moved(self.run(y), output)[:, 0]:
                what = f"other tokens elsewhere move sequence {row}"
                yield self.leak("another sequence leaks in", what)
            lengths = np.where(others, self.draws.n + 1 - self.lengths, self.lengths)
            if row in self.moved(self.run(x, lengths), output)[:, 0]:
                what = f"other lengths elsewhere, {tuple(lengths.tolist())}, move sequence {row}"
                yield self.leak("another sequence's padding", what)

    def content(
        self, x: np.ndarray, output: np.ndarray, seed: int, scale: float = 1.0
    ) -> Iterator[tuple[int, str, FailingCase]]:
        """Yield each real output that other padding moves: its sequence, and what to say of it."""
        y = self.refill(x, seed, scale)
        got = self.run(y)
        for row, i in self.moved(got, output).tolist():
            what = f"other padding in sequence {row} moves its output {i}"
            yield row, what, changed_case(x, y, got[row, i], output[row, i])

    def name(self, x: np.ndarray, output: np.ndarray, row: int) -> str | None:
        """Name the mistake, knowing that padding moves real outputs of a sequence."""
        differs = self.probe.far(self.unpadded(x), output, SAME_ORDER)
        if not differs.any():
            return "padding ignored"
        if not (differs & self.real).any():
            return "padding masked on the queries"
        if self.is_inverted(x, output):
            return "padding mask inverted"
        if self.is_local(x, output):
            return "neighbours mixed"
        if self.is_one_too_long(x, output):
            return "mask too long"
        if self.draws.floats and self.is_affine(x):
            return "padding added" if self.is_added(x, output) else "hidden score not −∞"
        others = [self.run(self.refill(x, 100 + seed))[row, 0] for seed in range(24)]
        changes = np.array([(other - output[row, 0]).ravel() for other in others])
        few = 0 < 4 * directions(changes) <= min(changes.shape)  # a head or so
        return "not renormalised" if few else None

    def is_inverted(self, x: np.ndarray, output: np.ndarray) -> bool:
        """Tell whether the first token reaches no other real output of a padded sequence."""
        y = x.copy()
        y[:, 0] = self.draws.other(x, 7)[:, 0]
        moved = self.moved(self.run(y), output)
        padded = self.lengths[moved[:, 0]] < self.draws.n
        return not (padded & (moved[:, 1] > 0)).any()

    def is_local(self, x: np.ndarray, output: np.ndarray) -> bool:
        """Tell whether padding moves none but outputs that stand next to it."""
        moved = self.moved(self.run(self.refill(x, 9)), output)
        near = np.minimum(2, self.lengths[moved[:, 0]] // 2)
        return bool((moved[:, 1] >= self.lengths[moved[:, 0]] - near).all())

    def is_one_too_long(self, x: np.ndarray, output: np.ndarray) -> bool:
        """Tell whether padding moves nothing where its first token stays."""
        y = self.refill(x, 11)
        first = np.arange(self.draws.n) == self.lengths[:, np.newaxis]
        y[first] = x[first]
        return not len(self.moved(self.run(y), output))

    def is_added(self, x: np.ndarray, output: np.ndarray) -> bool:
        """Tell whether padding changes all real outputs of each sequence by the same numbers."""
        changes = self.run(self.refill(x, 9)) - output
        rows = [c[:n] for c, n in zip(changes, self.lengths, strict=True)]
        return all(np.allclose(c, c[0], atol=1e-6 * np.abs(c).max()) for c in rows)

    def is_affine(self, x: np.ndarray) -> bool:
        """Tell whether outputs change in proportion to what stands in the padding."""
        steps = []
        for factor in (0.0, 1.0, 2.0):
            y = x.copy()
            y[~self.real] = factor * self.draws.other(x, 9)[~self.real]
            steps.append(self.run(y)[self.real])
        first, second = steps[1] - steps[0], steps[2] - steps[1]
        return bool(np.abs(second - first).max() <= 1e-3 * np.abs(first).max())

    def without_padding(self, x: np.ndarray, output: np.ndarray) -> Iterator[Finding]:
        for row, length in enumerate(self.lengths):
            try:
                alone = self.run(x[row : row + 1, :length], self.lengths[row : row + 1])
            except Found as found:
                if found.finding.mistake != "raises":
                    raise
                self.probe.remark(
                    f"on {length} tokens instead of {self.draws.n} it raises, so runs of another "
                    "length were left out."
                )
                return
            if alone.shape[2:] != output.shape[2:]:
                self.probe.remark(
                    "the shape of its output depends on n, so runs of another length were left out."
                )
                return
            off = self.probe.far(alone, output[row : row + 1, :length], OTHER_ORDER)
            if off.any():
                yield self.leak("padding counted", f"sequence {row} differs from a run on it alone")

    def large(self) -> Iterator[Finding]:
        # of few visible keys all scores may lie below a large negative number; of many, seldom
        few = np.array([1, 1, 2, 1])[: self.draws.batch]
        for lengths, draws in ((few, 6), (self.lengths, 3)):  # those of before stand at the end
            self.lengths = lengths
            sizes = np.repeat(LARGE, draws) if self.draws.floats else ()
            for seed, size in enumerate(sizes, start=1):  # each its own draw: its signs decide
                x = self.draws.base(seed, size)
                output = self.run(x)
                for _, what, case in self.content(x, output, 2 * seed + 1, 10 * size):
                    if np.isfinite(case.expected).all():
                        lost = not np.isfinite(case.got).all()
                        name = "mask after the exponential" if lost else "large negative number"
                        yield self.leak(name, what, case, size)
