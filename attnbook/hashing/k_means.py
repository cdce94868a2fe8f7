"""Cells of keys in any array library: k-means on a sample, and sums over the keys of each cell."""

import array_api_compat

from attnbook.arrays.array import array_namespace
from attnbook.arrays.empty_rows import or_one
from attnbook.arrays.lengths import placed

ROWS = 65536  # keys are read in parts of at most this size, which bounds the scratch
NUMBERS = 2**24  # at most so many products with means at once
LLOYD_STEPS, SAMPLE_PER_CELL = 5, 64


def sums(key, value, cells, n_cells):
    """Return counts, means, value means and traces of the cells, and both pooled scatters."""
    xp = array_namespace(key)
    device = array_api_compat.device(key)
    n, d_k = key.shape
    if cells is None:
        cells = xp.zeros(n, dtype=xp.int64, device=device)
    numbers = xp.arange(n_cells, dtype=cells.dtype, device=device)
    counts = xp.zeros(n_cells, dtype=key.dtype, device=device)
    means = xp.zeros((n_cells, d_k), dtype=key.dtype, device=device)
    value_means = xp.zeros((n_cells, value.shape[1]), dtype=key.dtype, device=device)
    for part in parts(n, n_cells):
        member = _members(cells[part], numbers, key.dtype)
        counts = counts + xp.sum(member, axis=-1)
        means = means + xp.matmul(member, key[part, :])
        value_means = value_means + xp.matmul(member, value[part, :])
    means, value_means = (x / column(or_one(counts)) for x in (means, value_means))
    traces = xp.zeros_like(counts)
    scatter = xp.zeros((d_k, d_k), dtype=key.dtype, device=device)
    cross = xp.zeros((d_k, value.shape[1]), dtype=key.dtype, device=device)
    for part in parts(n, n_cells):
        k = key[part, :] - xp.take(means, cells[part], axis=0)
        v = value[part, :] - xp.take(value_means, cells[part], axis=0)
        member = _members(cells[part], numbers, key.dtype)
        traces = traces + xp.matmul(member, xp.sum(k * k, axis=-1))
        scatter = scatter + xp.matmul(xp.matrix_transpose(k), k)
        cross = cross + xp.matmul(xp.matrix_transpose(k), v)
    return counts, means, value_means, traces, scatter, cross


def _members(cells, numbers, dtype):
    """Return 1 where a key is in a cell, else 0: shape (n_cells, n)."""
    xp = array_namespace(cells)
    return xp.astype(column(numbers) == xp.expand_dims(cells, axis=0), dtype)


def centres(key, n_cells, rng, n_steps=LLOYD_STEPS):
    """Return the means that some steps of Lloyd's algorithm find on a sample of the keys."""
    xp = array_namespace(key)
    n = key.shape[0]
    rows = rng.permutation(n)[: n_cells * SAMPLE_PER_CELL]
    sample = xp.take(key, placed(rows, key), axis=0)
    means = sample[: min(n_cells, n), :]
    if n <= n_cells:
        return means
    numbers = xp.arange(n_cells, dtype=xp.int64, device=array_api_compat.device(key))
    for _ in range(n_steps):
        cells = nearest(sample, means)
        counts, new = xp.zeros_like(means[:, :1]), xp.zeros_like(means)
        for part in parts(sample.shape[0], n_cells):
            member = _members(cells[part], numbers, key.dtype)
            counts = counts + column(xp.sum(member, axis=-1))
            new = new + xp.matmul(member, sample[part, :])
        means = xp.where(counts > 0, new / or_one(counts), means)
    return means


def parts(n, n_cells):
    """Return slices of n rows, one at least, for products with `n_cells` means."""
    step = max(1, min(ROWS, NUMBERS // n_cells))
    return [slice(i, min(i + step, n)) for i in range(0, max(1, n), step)]


def nearest(key, means, known=None):
    """Return for each key the row of the nearest mean, among those that are `known`."""
    xp = array_namespace(key)
    square = 0.5 * xp.sum(means * means, axis=-1)
    if known is not None:
        square = xp.where(known, square, xp.full_like(square, xp.inf))
    found = []
    for part in parts(key.shape[0], means.shape[0]):
        near = xp.matmul(key[part, :], xp.matrix_transpose(means)) - square
        found.append(xp.astype(xp.argmax(near, axis=-1), xp.int64, copy=False))
    return xp.concat(found)


def column(x):
    """Return `x` with one more axis at the end."""
    return array_namespace(x).expand_dims(x, axis=-1)
