"""Which output of a model moves with which input, and what such a matrix looks like."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from attnbook.check.engine.report import FailingCase
from attnbook.check.properties.probing import SAME_ORDER, SequenceProbe, finite_rows

ORDINARY = ((0, 1.0), (1, 0.1), (2, 1.0))
"""Seeds and sizes of the inputs; saturated weights hide at one size what they show at another."""

MOST_COLUMNS = 24
HEADS = range(2, 33)
LAYERS = 4


@dataclass
class Dependence:
    """What moves in one mode: ``sees[i, c]`` tells whether output i moves with input columns[c]."""

    mode: str
    columns: np.ndarray
    sees: np.ndarray
    known: np.ndarray  # outputs that are finite
    heads: list[int]  # the numbers of heads into which the width can be cut
    others: bool = False  # another sequence of the batch moves
    shown: dict[tuple[int, int], FailingCase] = field(default_factory=dict)

    @property
    def distance(self) -> np.ndarray:
        """How far behind its output each input stands."""
        return self.columns - np.arange(len(self.sees))[:, np.newaxis]

    @property
    def later(self) -> np.ndarray:
        """The entries of `sees` that lie in the future."""
        return self.distance > 0

    @property
    def is_a_window(self) -> bool:
        """Whether seeing depends on the distance alone, as in a window or a convolution."""
        at = self.distance
        return all(len(np.unique(self.sees[at == d])) == 1 for d in np.unique(at))

    def matches(self, pattern: np.ndarray) -> bool:
        """Tell whether `sees` is `pattern` (n, n) in every row that is known."""
        return bool(np.array_equal(self.sees[self.known], pattern[:, self.columns][self.known]))


def positions(n: int) -> np.ndarray:
    """Return all positions, or some of a long sequence, neighbours at both ends among them."""
    if n <= MOST_COLUMNS:
        return np.arange(n)
    spread = np.linspace(2, n - 3, MOST_COLUMNS - 4).round().astype(int)
    return np.unique(np.concatenate([[0, 1], spread, [n - 2, n - 1]]))


def measure(probe: SequenceProbe, mode: str) -> Dependence:
    """Change each input alone, and see which outputs move."""
    examples = probe.examples
    columns, n = positions(examples.n), examples.n
    sees = np.zeros((n, len(columns)), dtype=bool)
    found = Dependence(mode, columns, sees, np.ones(n, dtype=bool), list(HEADS))
    for seed, scale in ORDINARY:
        x = examples.base(seed, scale)
        new = examples.other(x, 2 * seed + 1, scale)
        row = seed % examples.batch
        output = probe.outputs(x, mode)
        found.known &= finite_rows(output)[row]
        widths = [a.shape[2] for a in (x, output) if a.ndim == 3 and a.dtype.kind == "f"]
        if examples.floats:
            found.heads = [h for h in HEADS if any(width % h == 0 for width in widths)]
        for c, j in enumerate(columns):
            y = x.copy()
            y[row, j] = new[row, j]
            got = probe.outputs(y, mode)
            moved = probe.far(got, output, SAME_ORDER)
            for i in np.flatnonzero(moved[row] & ~found.sees[:, c]).tolist():
                found.shown[i, c] = changed_case(x, y, got[row, i], output[row, i])
            found.sees[:, c] |= moved[row]
            found.others |= bool(np.delete(moved, row, axis=0).any())
    return found


def changed_case(x: np.ndarray, y: np.ndarray, got: np.ndarray, before: np.ndarray) -> FailingCase:
    """Return the evidence of two inputs whose outputs should agree and do not."""
    return FailingCase({"x": x, "x_changed": y}, got=got, expected=before)


def bare_reshapes(
    n: int, heads: Iterable[int], *, causal: bool
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each number of heads with what a bare reshape of (n, d) to (h, n, d/h) lets see what.

    Token i owns the slots i·h … i·h + h - 1. A bare split takes n slots in a row for a head, a
    right one slot i·h + g for position i of head g; the merge likewise.
    """
    tokens = np.arange(n)
    allowed = np.tri(n, dtype=bool) if causal else np.ones((n, n), dtype=bool)
    queries, keys = np.nonzero(allowed)
    for h in heads:
        # the token that owns each place (h, n)
        bare, right = np.repeat(tokens, h).reshape(h, n), np.tile(tokens, (h, 1))
        for split, merge in ((bare, bare), (bare, right), (right, bare)):
            sees = np.zeros((n, n), dtype=bool)
            sees[merge[:, queries], split[:, keys]] = True
            yield h, sees


def bare_reshape(found: Dependence, *, causal: bool) -> int | None:
    """Return the number of heads of the bare reshape that `found` looks like, if any."""
    n = len(found.sees)
    plain = np.tri(n, dtype=bool) if causal else np.ones((n, n), dtype=bool)
    if n > 64 or found.matches(plain):  # the patterns take n³ a head
        return None
    patterns = list(bare_reshapes(n, found.heads, causal=causal))
    for layers in range(1, LAYERS + 1):
        for h, pattern in patterns:
            for step in (pattern, pattern | np.eye(n, dtype=bool)):  # without a residual, and with
                reach = np.linalg.matrix_power(step, layers)  # of booleans: is there a way
                if found.matches(reach) and not reach.all():
                    return h
    return None
