"""The buckets that one vector looks into in one table, in compiled loops."""

import numpy as np

from attnbook.compilers.jit import compile_inner
from attnbook.hashing.stable_hash import FARTHEST


@compile_inner
def probe_intervals(numbers, t, arrays, joined, costs, sums):
    """Write the probes by signs or intervals; return how many numbers do not fit."""
    n_projections = len(arrays.multipliers)
    farthest, infinity = numbers.dtype.type(FARTHEST), numbers.dtype.type(np.inf)
    one = numbers.dtype.type(1)
    prices, changes = np.empty(2, numbers.dtype), np.empty(2, np.int64)
    n_probes, own, bad, n = len(joined), np.int64(0), 0, 1
    costs[0, 0], sums[0, 0] = 0, 0
    for j in range(n_projections):
        number, step = numbers[t * n_projections + j], arrays.multipliers[j]
        if arrays.of_signs:
            bad += not (abs(number) < infinity)
            bit = number >= 0
            own += np.int64(bit) * step
            prices[0], changes[0] = number * number, -step if bit else step
            n_changes = 1
        else:
            number += arrays.offsets[t, j]
            code = np.floor(number)
            bad += not (abs(code) <= farthest)
            own += np.int64(code) * step
            beyond = number - code
            ahead = one - beyond
            prices[0], prices[1] = beyond * beyond, ahead * ahead
            changes[0], changes[1] = -step, step
            n_changes = 2
        if n_probes > 1:
            n = extend(costs, sums, n, prices, changes, n_changes)
    joined[0] = own
    for p in range(1, n_probes):
        joined[p] = own + sums[0, p]
    return bad


@compile_inner
def extend(costs, sums, n, prices, changes, n_changes):
    """Join each of n choices in order with one of some changes of a code; return their number.

    As `probing.cheapest`: code by code, the cheapest choices so far are kept, in order, as many as
    there is room for.
    """
    room = costs.shape[1]
    for i in range(n):
        costs[1, i], sums[1, i] = costs[0, i], sums[0, i]
    before = n
    for c in range(n_changes):
        for i in range(before):
            total = costs[1, i] + prices[c]
            if not total < np.inf or (n == room and total >= costs[0, n - 1]):
                break  # the others cost more
            at = min(n, room - 1)
            n = at + 1
            while at > 0 and costs[0, at - 1] > total:
                costs[0, at], sums[0, at] = costs[0, at - 1], sums[0, at - 1]
                at -= 1
            costs[0, at], sums[0, at] = total, sums[1, i] + changes[c]
    return n


@compile_inner
def largest_first(x, sign, first, n, largest, places):
    """Let ``sign * x`` enter the largest numbers so far, n of them, of places `first` on.

    Return their number. They descend; of equal ones the one that came first stands first.
    """
    room = len(places)
    for i in range(len(x)):
        number = sign * x[i]
        if n < room or number > largest[n - 1]:
            at = min(n, room - 1)
            n = at + 1
            while at > 0 and largest[at - 1] < number:
                largest[at], places[at] = largest[at - 1], places[at - 1]
                at -= 1
            largest[at], places[at] = number, first + i
    return n


@compile_inner
def probe_cells(numbers, t, arrays, joined, largest):
    """Write the nearest cells; return how many numbers are not finite."""
    n_cells = arrays.offsets.shape[1]
    near = numbers[t * n_cells : (t + 1) * n_cells]
    bad = 0
    for c in range(n_cells):
        near[c] += arrays.offsets[t, c]
        bad += not (abs(near[c]) < np.inf)
    largest_first(near, near.dtype.type(1), 0, 0, largest, joined)
    return bad
