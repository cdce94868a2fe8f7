"""The mathematics of `Moments`. Arguments are not checked here."""

import array_api_compat

from attnbook.arrays.array import array_namespace
from attnbook.arrays.empty_rows import or_one
from attnbook.hashing.k_means import column
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch import normal
from attnbook.sketch.logits import log_sum, masked


def moments_of(counts, means, value_means, traces, scatter, cross):
    """Return the fields of the moments from sums over the keys of each cell."""
    xp = array_namespace(means)
    total = or_one(xp.sum(counts))
    trace = xp.sum(traces) / total
    spread = xp.where(trace > 0, traces / or_one(counts) / or_one(trace), xp.ones_like(counts))
    return counts, means, value_means, spread, scatter / total, cross / total


def merged(moments, new, sign):
    """Return the fields of the moments with other keys' sums added, or removed if sign is -1."""
    n, mean, value_mean, traces, scatter, cross = new
    xp = array_namespace(mean)
    counts = moments.counts + sign * n
    if bool(xp.any(counts < 0)):
        raise ValueError(
            "key must hold no more keys of a cell than are in it, "
            f"got {int(xp.max(-counts))} too many"
        )
    some = xp.astype(counts > 0, counts.dtype)
    share = sign * some * n / or_one(counts)
    step, value_step = mean - moments.means, value_mean - moments.value_means
    # two groups of a cell differ by their means too (Chan, Golub and LeVeque 1983)
    between = share * moments.counts
    across = xp.matrix_transpose(column(between) * step)
    size, anything = xp.sum(moments.counts), xp.astype(xp.any(counts > 0), counts.dtype)
    old_traces = moments.counts * moments.spread * _trace(moments.covariance)
    traces = old_traces + sign * traces + between * xp.sum(step * step, axis=-1)
    scatter = size * moments.covariance + sign * scatter + xp.matmul(across, step)
    cross = size * moments.cross + sign * cross + xp.matmul(across, value_step)
    return moments_of(
        counts,
        column(some) * (moments.means + column(share) * step),
        column(some) * (moments.value_means + column(share) * value_step),
        some * xp.where(traces > 0, traces, xp.zeros_like(traces)),
        anything * scatter,
        anything * cross,
    )


def scores(moments, query):
    """Return mean and deviation of the scores in each cell, shape (..., n_q, n_cells).

    The third result is how far rounding alone may move the mean. A deviation within it is 0: the
    keys of such a cell score alike. Here and below `query` is multiplied by the scale.
    """
    xp = array_namespace(query)
    centre = xp.matmul(query, xp.matrix_transpose(moments.means))
    variance = xp.sum(xp.matmul(query, moments.covariance) * query, axis=-1, keepdims=True)
    zero = xp.zeros_like(variance)
    deviation = xp.sqrt(xp.where(variance > 0, variance, zero))  # rounding can go below 0
    deviation = deviation * xp.sqrt(moments.spread)
    of_query, of_mean = (xp.sqrt(xp.sum(x * x, axis=-1)) for x in (query, moments.means))
    noise = 16 * xp.finfo(query.dtype).eps * column(of_query) * of_mean
    return centre, xp.where(deviation > noise, deviation, xp.zeros_like(deviation)), noise


def limit(moments, query):
    """Return the largest mean plus √(2 log(1 + n_c)) deviations, and what rounding may add."""
    xp = array_namespace(query)
    centre, deviation, noise = scores(moments, query)
    high = centre + deviation * xp.sqrt(2.0 * xp.log1p(moments.counts)) + noise
    return xp.max(masked(high, moments.counts > 0), axis=-1)


def tail(moments, query, below, counts):
    """Return log mass (..., n_q) and mean value (..., n_q, d_v) over all cells."""
    xp = array_namespace(query)
    centre, deviation, noise = scores(moments, query)
    counted = counts > 0
    log_mass = xp.log(xp.where(counted, counts, xp.ones_like(counts)))
    log_mass = log_mass + centre + 0.5 * deviation**2
    along = moments.spread + xp.zeros_like(centre)  # how far each cell moves along Cᵀq
    if below is not None:
        room = column(below) - centre
        flat = deviation == 0  # all scores are equal, and at the limit they count
        counted = counted & ~(flat & (room < -noise))
        safe = xp.where(flat, xp.ones_like(deviation), deviation)
        a = xp.where(flat, xp.zeros_like(room), room / safe) - deviation
        log_share, ratio = normal.below(a)
        log_mass = log_mass + xp.where(flat, xp.zeros_like(a), log_share)
        along = along * (1 - xp.where(flat, xp.zeros_like(a), ratio) / safe)
    log_mass = masked(log_mass, counted)
    share = softmax_of(log_mass, axis=-1)
    step = xp.sum(share * along, axis=-1, keepdims=True)
    output = xp.matmul(share, moments.value_means) + step * xp.matmul(query, moments.cross)
    return log_sum(log_mass), output


def _trace(matrix):
    xp = array_namespace(matrix)
    device = array_api_compat.device(matrix)
    return xp.sum(matrix * xp.eye(matrix.shape[0], dtype=matrix.dtype, device=device))
