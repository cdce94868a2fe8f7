"""The batches of a training, in an order that the step alone decides."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.data.batch import Batch, filled, lengths_of, rows_of
from attnbook.data.ids import check_id
from attnbook.data.vocabulary import Vocabulary


class Batches:
    """The batch of every step of a training run, as a function of the step.

    ``batches(step)`` depends only on the data, the seed and the step, so a run that continues from
    step 1000 sees the batches that it would have seen without the interruption. Each epoch of
    ``len(batches)`` steps shows every example exactly once, in an order of its own, and groups
    examples of similar length. To do so, it splits the order into pools of `pool` batches, sorts
    each pool by length, splits it into batches, and shuffles the batches.

    Parameters
    ----------
    sources : sequence of sequences of ints, or None
        What the encoder reads: one nonempty sequence per example; None for a language model.
    targets : sequence of sequences of ints, or int array of shape (n, length)
        What the decoder writes. An array, such as that of `windows`, is not copied.
    batch_size : int
        The number of examples in a batch, from 1 to the number of examples. If it does not divide
        that number, the sizes of the batches differ by at most one example.
    seed : int
    start, stop : int or None
        The ids before and after each target. With None there is no such id, as a language model
        needs it.
    pad : int
        The id with which rows are padded. It may be the id of a symbol, too, because masks are
        computed from lengths.
    pool : int
        The number of batches whose examples are sorted together; 1 sorts nothing. A larger pool
        needs less padding, but the examples of a batch are more alike. If the length of an example
        depends on its kind, the gradients of the batches then disagree.

    Raises
    ------
    TypeError
        If ids or numbers are not ints.
    ValueError
        If there are no examples, or the numbers of sources and targets differ; if a source is
        empty, or a target leaves nothing to predict; if an id is negative, or a target contains the
        id of start or stop; if `batch_size` or `pool` is out of range.

    Notes
    -----
    Cost: O(n log n) time per epoch for its order, which is kept, and O(b n_target) per batch.

    References
    ----------
    Chapter `training`.

    Examples
    --------
    >>> from attnbook.data import reversal
    >>> batches = Batches(*reversal(0, 1000), batch_size=100, seed=0)
    >>> len(batches)
    10
    >>> batch = batches(12345)
    >>> batch.target.shape, int(batch.target_lengths.min())
    ((100, 14), 12)
    """

    def __init__(
        self,
        sources: Sequence[Any] | None,
        targets: Sequence[Any] | np.ndarray,
        batch_size: int,
        seed: int = 0,
        *,
        start: int | None = Vocabulary.start,
        stop: int | None = Vocabulary.stop,
        pad: int = Vocabulary.pad,
        pool: int = 4,
    ):
        self.batch_size = check_int("batch_size", batch_size, 1)
        self.seed, self.pad = check_int("seed", seed, at_most=2**128 - 1), check_id("pad", pad)
        self.pool = check_int("pool", pool, 1)
        self._sources = None if sources is None else rows_of("sources", sources)
        self._targets = rows_of("targets", targets)
        n = len(self._targets)
        if n == 0:
            raise ValueError("targets must hold at least 1 sequence, got none")
        if self._sources is not None and len(self._sources) != n:
            raise ValueError(f"sources must be as many as targets, {n}, got {len(self._sources)}")
        if self.batch_size > n:
            raise ValueError(f"batch_size must be at most the data, {n}, got {self.batch_size}")
        self._start, self._stop = _mark("start", start), _mark("stop", stop)
        self._check_targets()
        self._lengths = [lengths_of(self._targets)]
        if self._sources is not None:
            self._lengths.append(lengths_of(self._sources))
            if (empty := np.flatnonzero(self._lengths[1] == 0)).size:
                raise ValueError(
                    f"sources must hold at least 1 id each, got none in sources[{empty[0]}]"
                )
        self._order: tuple[int, list[np.ndarray]] = (-1, [])  # of the epoch that was asked last

    def _check_targets(self):
        marks = {"start": self._start, "stop": self._stop}
        least = max(0, 2 - sum(map(len, marks.values())))
        for i, row in enumerate(self._targets):
            if len(row) < least:
                raise ValueError(
                    f"targets must hold at least {least} ids each, so that there is one to "
                    f"predict, got {len(row)} in targets[{i}]"
                )
            for name, mark in marks.items():
                if mark.size and mark in row:
                    raise ValueError(
                        f"targets must not hold the id of {name}, {mark[0]}, got it in targets[{i}]"
                    )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self._targets) // self.batch_size)

    def __call__(self, step: int) -> Batch:
        """Return the batch of `step`; steps are counted from 0 through all epochs."""
        epoch, i = divmod(check_id("step", step), len(self))
        mine = self._epoch(epoch)[i]
        targets = [np.concatenate([self._start, self._targets[j], self._stop]) for j in mine]
        target, target_lengths = filled(targets, self.pad)
        if self._sources is None:
            return Batch(None, target, None, target_lengths)
        source, source_lengths = filled([self._sources[j] for j in mine], self.pad)
        return Batch(source, target, source_lengths, target_lengths)

    def _epoch(self, epoch):
        """Return the numbers of the examples of each batch of `epoch`."""
        if self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            n = len(self._targets)
            order = rng.permutation(n)
            cuts = np.arange(len(self) + 1) * n // len(self)
            if self.pool > 1:
                for pool in np.split(order, cuts[self.pool : -1 : self.pool]):  # views of order
                    # by the length of the source, then of the target; equal ones stay as they are
                    pool[:] = pool[np.lexsort([lengths[pool] for lengths in self._lengths])]
            batches = np.split(order, cuts[1:-1])
            self._order = epoch, [batches[i] for i in rng.permutation(len(batches))]
        return self._order[1]


def _mark(name, mark):
    """Return the id `mark` as an array of one, and None as an empty one."""
    return np.array([] if mark is None else [check_id(name, mark)], dtype=np.int64)
