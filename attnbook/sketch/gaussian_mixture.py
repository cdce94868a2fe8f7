"""The mathematics of `Moments`. Arguments are not checked here."""

import array_api_compat

from attnbook.arrays.array import array_namespace
from attnbook.sketch import normal
from attnbook.sketch.k_means import column


def moments_of(counts, means, value_means, traces, scatter, cross):
    """Return the fields of the moments from sums over the keys of each cell."""
    xp = array_namespace(means)
    total = xp.sum(counts)
    total = xp.where(total > 0, total, xp.ones_like(total))
    trace = xp.sum(traces) / total
    safe = xp.where(trace > 0, trace, xp.ones_like(trace))
    filled = xp.where(counts > 0, counts, xp.ones_like(counts))
    spread = xp.where(trace > 0, traces / filled / safe, xp.ones_like(counts))
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
    filled = xp.where(counts > 0, counts, xp.ones_like(counts))
    some = xp.astype(counts > 0, counts.dtype)
    share = sign * some * n / filled
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


def scores(moments, query, scale):
    """Return mean and deviation of the scores in each cell, shape (..., n_q, n_cells).

    A deviation within the rounding of the mean is 0: the keys of such a cell score alike.
    """
    xp = array_namespace(query)
    query = query * scale
    centre = xp.matmul(query, xp.matrix_transpose(moments.means))
    variance = xp.sum(xp.matmul(query, moments.covariance) * query, axis=-1, keepdims=True)
    zero = xp.zeros_like(variance)
    deviation = xp.sqrt(xp.where(variance > 0, variance, zero))  # rounding can go below 0
    deviation = deviation * xp.sqrt(moments.spread)
    noise = rounding(moments, query)
    return centre, xp.where(deviation > noise, deviation, xp.zeros_like(deviation))


def rounding(moments, query):
    """Return how far rounding alone may move the mean score of a cell."""
    xp = array_namespace(query)
    lengths = (xp.sqrt(xp.sum(x * x, axis=-1)) for x in (query, moments.means))
    of_query, of_mean = lengths
    return 16 * xp.finfo(query.dtype).eps * column(of_query) * of_mean


def limit(moments, query, scale):
    """Return the largest mean plus √(2 log(1 + n_c)) deviations, and what rounding may add."""
    xp = array_namespace(query)
    centre, deviation = scores(moments, query, scale)
    high = centre + deviation * xp.sqrt(2.0 * xp.log1p(moments.counts))
    high = high + rounding(moments, query * scale)
    return xp.max(xp.where(moments.counts > 0, high, xp.full_like(high, -xp.inf)), axis=-1)


def tail(moments, query, scale, below, counts):
    """Return log mass (..., n_q) and mean value (..., n_q, d_v) over all cells."""
    xp = array_namespace(query)
    centre, deviation = scores(moments, query, scale)
    counted = (counts > 0) & xp.ones_like(centre, dtype=xp.bool)
    log_mass = xp.log(xp.where(counts > 0, counts, xp.ones_like(counts)))
    log_mass = log_mass + centre + 0.5 * deviation**2
    along = moments.spread + xp.zeros_like(centre)  # how far each cell moves along Cᵀq
    if below is not None:
        room = column(below) - centre
        flat = deviation == 0  # all scores are equal, and at the limit they count
        counted = counted & ~(flat & (room < -rounding(moments, query * scale)))
        safe = xp.where(flat, xp.ones_like(deviation), deviation)
        a = xp.where(flat, xp.zeros_like(room), room / safe) - deviation
        log_share, ratio = normal.below(a)
        log_mass = log_mass + xp.where(flat, xp.zeros_like(a), log_share)
        along = along * (1 - xp.where(flat, xp.zeros_like(a), ratio) / safe)
    log_mass = xp.where(counted, log_mass, xp.full_like(log_mass, -xp.inf))
    return _joined(log_mass, along, moments, query, scale)


def _joined(log_mass, along, moments, query, scale):
    xp = array_namespace(query)
    largest = xp.max(log_mass, axis=-1, keepdims=True)
    none = largest == -xp.inf
    largest = xp.where(none, xp.zeros_like(largest), largest)
    share = xp.exp(log_mass - largest)
    total = xp.sum(share, axis=-1, keepdims=True)
    safe = xp.where(none, xp.ones_like(total), total)
    share = share / safe
    step = xp.sum(share * along, axis=-1, keepdims=True)
    output = xp.matmul(share, moments.value_means)
    output = output + step * xp.matmul(query * scale, moments.cross)
    log_total = xp.where(none, xp.full_like(total, -xp.inf), xp.log(safe) + largest)
    return log_total[..., 0], output


def _trace(matrix):
    xp = array_namespace(matrix)
    device = array_api_compat.device(matrix)
    return xp.sum(matrix * xp.eye(matrix.shape[0], dtype=matrix.dtype, device=device))
