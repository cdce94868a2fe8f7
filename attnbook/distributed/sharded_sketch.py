"""A sketch whose keys lie on several processes, with answers and evidence that merge exactly.

A query finds in the tables of all processes together what it finds in one table of all keys,
because a key is found by its own signature, no matter where the other keys lie. So each process
answers from its own keys, and the masses, outputs and evidence of the answers are merged.
"""

import functools
import hashlib
import math
from typing import Annotated, Any, NamedTuple

import torch
from array_api_compat import device

from attnbook.arrays.arguments import check_bool
from attnbook.arrays.array import Array, array_namespace, dtype_name, library, to_accumulate
from attnbook.arrays.empty_rows import or_one
from attnbook.arrays.move import move
from attnbook.arrays.weights import check_part
from attnbook.distributed.processes import Processes, device_of, flat, unflat
from attnbook.kernels.running_softmax import State, merge_of
from attnbook.sketch.attention import SketchAttention
from attnbook.sketch.evidence import Evidence, found_probability_of
from attnbook.sketch.queries import check_query
from attnbook.sketch.state import box_of
from attnbook.sketch.state_file import describe
from attnbook.sketch.visible_keys import EVERYTHING


class Local(NamedTuple):
    """What one process knows of a block of queries, in float64."""

    mass: torch.Tensor  # (n_q, 1), log Σ exp of the scores of the near keys
    share: torch.Tensor  # (n_q, 1), the logarithm of what the output counts with
    expected: torch.Tensor  # (n_q, 1), the mass with what each key stands for; NaN if unknown
    largest: torch.Tensor  # (n_q, 1), the largest score
    probability: torch.Tensor  # (n_q, 1), the chance to find its key
    n_found: torch.Tensor  # (n_q, 1), candidates
    output: torch.Tensor  # (n_q, d_v)


class ShardedSketch:
    r"""A `SketchAttention` of which every process of a group holds a shard of the keys.

    .. math:: \hat O = \frac{\sum_r z_r \hat O_r}{\sum_r z_r}, \qquad
              z_r = \sum_{i \in R \,\cap\, \text{shard } r} e^{s_i}

    Its answers are to rounding those of one sketch with all keys and the same hash.

    Parameters
    ----------
    sketch : SketchAttention
        The sketch of this process, empty or with its shard of the keys. All processes need the same
        hash, drawn with the same seed, and the same scale and `n_probes`. The estimator is
        ``"union"`` or ``"importance"``.
    group : ProcessGroup of torch.distributed, optional
        All processes by default.
    timeout : float
        As of `ring_attention`.

    Attributes
    ----------
    sketch : SketchAttention
        The shard of this process.

    Raises
    ------
    TypeError
        If `sketch` is of another class, or `group` is none.
    ValueError
        If the sketch has other settings than those above, or `timeout` or `group` is refused as by
        `ring_attention`.
    RuntimeError
        If no group has been initialised.

    Notes
    -----
    For an answer each process reads its own candidates, and one all-gather carries d_v + 6 numbers
    per query. The merge runs in float64 on the CPU.

    References
    ----------
    Chapter `distributed`.

    Examples
    --------
    A program that ``torchrun --nproc-per-node 2`` starts twice::

        torch.distributed.init_process_group("gloo")
        sketch = ShardedSketch(SketchAttention(SimHash.init(0, 64, n_tables=8)))
        sketch.update(keys_of_this_process, values_of_this_process)
        output, evidence = sketch.attention_output(query, return_evidence=True)
    """

    def __init__(self, sketch: SketchAttention, *, group: Any = None, timeout: float = 60.0):
        check_part("sketch", sketch, SketchAttention)
        settings = sketch.state.settings
        if settings.estimator not in ("union", "importance"):
            raise ValueError(
                "sketch must have estimator 'union' or 'importance' to be sharded, "
                f"got {settings.estimator!r}"
            )
        self.sketch = sketch
        self._processes = Processes.of(group, timeout)
        self._hash = _named(settings.hash)

    def update(
        self, key: Annotated[Array, "m d"], value: Annotated[Array, "m d_v"] | None = None
    ) -> Annotated[Array, "m"]:
        """Add keys to the shard of this process, as `SketchAttention.update`; no other waits."""
        return self.sketch.update(key, value)

    def attention_output(
        self, query: Annotated[Array, "n_q d"], *, return_evidence: bool = False
    ) -> Any:
        """Return the mix of the values of all processes for each query.

        Every process of the group calls it with the same queries, and gets the same bits.

        Parameters
        ----------
        query : array, shape (n_q, d)
            Of the library, dtype and width of the keys.
        return_evidence : bool
            The same on all processes.

        Returns
        -------
        array, shape (n_q, d_v)
            Or a pair of it and the `Evidence` of all shards together.

        Raises
        ------
        TypeError, ValueError
            As `SketchAttention.attention_output`, or if one process has never had keys, or if the
            processes differ in the shape or dtype of the queries, the width of the values, the
            scale, the estimator, `n_probes`, `return_evidence` or the hash. Of a hash of your own
            its class and its number of tables are compared. A shard may be empty: ``update`` with 0
            keys tells how wide they are.
        RuntimeError
            If a process ends or does not answer, as `ring_attention`.
        """
        state, processes = self.sketch.state, self._processes
        settings = state.settings

        def check():
            check_query(state, query)
            check_bool("return_evidence", return_evidence)
            if state.index is None:
                raise ValueError(f"sketch must have had keys on rank {processes.rank}, got none")
            width = state.value.array().shape[1]
            return None, [
                f"query {tuple(query.shape)}",
                dtype_name(query.dtype),
                f"values of width {width}",
                f"scale {settings.scale_of(query)}",
                f"estimator {settings.estimator}",
                f"n_probes {settings.n_probes}",
                f"return_evidence={return_evidence}",
                self._hash,
            ]

        processes.agree(check, query)
        where = device_of(query)
        locals_ = self._gather(_local(state, query, return_evidence), where)
        whole = functools.reduce(_merge, locals_)
        output = self._like(whole.output, query)
        if not return_evidence:
            return output
        n, longest = self._extent(state, where)
        nothing = whole.mass == -math.inf
        missed = -torch.expm1(torch.where(nothing, 0, whole.mass - whole.expected))
        missed = torch.where(nothing, 1.0, missed)
        bound = torch.where(nothing, math.inf, missed * longest)
        if n == 0:
            missed = bound = torch.zeros_like(missed)
        count = move(whole.n_found[:, 0].to(torch.int64), library(query), device=device(query))
        rest = (self._like(x[:, 0], query) for x in (whole.probability, missed, bound))
        return output, Evidence(n, count, *rest)

    def _gather(self, ours, where):
        shapes = [tuple(x.shape) for x in ours]
        rows = self._processes.gather(flat(*ours).to(where), "the answers")
        return [Local(*unflat(x.cpu(), shapes)) for x in rows]

    def _extent(self, state, where):
        """Return how many keys there are, and the diagonal of the box around all values."""
        width = state.value.array().shape[1]
        low: Any
        high: Any
        low, high = torch.full((width,), math.inf), torch.full((width,), -math.inf)
        if state.n:
            low, high = (move(x, "torch", device="cpu") for x in box_of(state))
        row = torch.cat([x.to(torch.float64) for x in (torch.tensor([state.n]), low, high)])
        rows = torch.stack(self._processes.gather(row.to(where), "the extent")).cpu()
        low, high = rows[:, 1 : width + 1].amin(0), rows[:, width + 1 :].amax(0)
        n = int(rows[:, 0].sum())
        return n, float(torch.sqrt(torch.sum((high - low) ** 2))) if n else 0.0

    @staticmethod
    def _like(x, query):
        return move(x, library(query), device=device(query), dtype=dtype_name(query.dtype))


def _named(hash):
    """Return the class of a hash, and a digest of its numbers if it is one of the package."""
    arrays: dict[str, Any] = {}
    plain = describe(hash, "", arrays)
    if plain is None:
        return f"hash {type(hash).__name__} with {hash.n_tables} tables"
    digest = hashlib.sha256(f"{plain} {[tuple(x.shape) for x in arrays.values()]}".encode())
    for x in arrays.values():
        digest.update(move(x, "numpy").tobytes())
    return f"hash {type(hash).__name__} with the digest {digest.hexdigest()[:8]} of its numbers"


def _local(state, query, weigh):
    """Return what the near keys of this process say of the queries."""
    xp, wide = array_namespace(query), to_accumulate(query)
    weigh = weigh or state.settings.estimator == "importance"
    parts = []
    for part, close in state.engine.near(state, query, EVERYTHING, weigh):
        unknown = xp.full_like(close.mass, xp.nan)
        expected = unknown if close.expected is None else close.expected
        chance = found_probability_of(state, wide[part, :], close) if weigh else unknown
        share = expected if state.settings.estimator == "importance" else close.mass
        columns = (close.mass, share, expected, close.largest, chance, close.count)
        parts.append([*(x[:, None] for x in columns), close.output])
    joined: Any = (move(xp.concat(list(x), axis=0), "torch") for x in zip(*parts, strict=True))
    return Local(*(x.to("cpu", torch.float64) for x in joined))


def _merge(ours, theirs):
    """Return what two processes know together."""
    a, b = (State(x.share, torch.ones_like(x.share), x.output) for x in (ours, theirs))
    both: Any = merge_of(a, b)
    first = ours.largest >= theirs.largest
    return Local(
        torch.logaddexp(ours.mass, theirs.mass),
        torch.logaddexp(ours.share, theirs.share),
        torch.logaddexp(ours.expected, theirs.expected),
        torch.maximum(ours.largest, theirs.largest),
        torch.where(first, ours.probability, theirs.probability),
        ours.n_found + theirs.n_found,
        both.weighted / or_one(both.total),
    )
