"""Answers that readers might hand in to the checks of hashes and of attention over buckets.

As in check_answers: a wrong answer stands under the name of the mistake that its check must find.
Hash tables are in check_table_answers.
"""

import math

import numpy as np
from array_api_compat import array_namespace

import attnbook as ab

# SimHash.


def along(x, directions):
    return x @ directions.T


def as_int64(x):
    xp = array_namespace(x)
    return xp.astype(x, xp.int64)


def place_values(k, x, base=2):
    xp = array_namespace(x)
    return xp.asarray([base**j for j in range(k)], dtype=xp.int64)


def packed(bits):
    """Shift and add, from the highest bit down."""
    signature = 0 * bits[:, 0]
    for j in reversed(range(bits.shape[1])):
        signature = 2 * signature + bits[:, j]
    return signature


def signs(test=lambda p: p >= 0, pack=packed, project=along):
    return lambda x, directions: pack(as_int64(test(project(x, directions))))


right_simhash = signs()


def simhash_in_loops(x, directions):
    signatures = []
    for row in x.tolist():
        signature = 0
        for j, direction in enumerate(directions.tolist()):
            if sum(p * q for p, q in zip(row, direction, strict=True)) >= 0:
                signature |= 1 << j
        signatures.append(signature)
    return np.array(signatures, dtype=np.int64)


def simhash_by_matmul(x, directions):
    bits = along(x, directions) >= 0
    return as_int64(bits) @ place_values(len(directions), x)


def simhash_by_einsum(x, directions):
    bits = ~(np.einsum("nd,kd->nk", x, directions) < 0)
    return np.bitwise_or.reduce(bits.astype(np.int64) << np.arange(bits.shape[1]), axis=1)


def torch_simhash(x, directions):
    import torch

    bits = torch.nn.functional.linear(x, directions) >= 0
    return (bits.long() << torch.arange(len(directions))).sum(-1)


def _packbits(order):
    def answer(x, directions):
        return np.packbits(np.asarray(along(x, directions) >= 0), axis=1, bitorder=order)

    return answer


def _cut(dtype):
    return lambda x, directions: right_simhash(x, directions).astype(dtype)


def _in_floats(dtype):
    def answer(x, directions):
        xp = array_namespace(x)
        total = xp.zeros(len(x), dtype=getattr(xp, dtype))
        for j in range(len(directions)):
            total = total + xp.astype(x @ directions[j] >= 0, total.dtype) * 2.0**j
        return as_int64(total)

    return answer


SIMHASH = {
    "bits not packed": signs(pack=lambda bits: bits),
    "bits not packed 2": lambda x, a: along(x, a) >= 0,
    "floats for integers": lambda x, a: (along(x, a) >= 0) @ 2.0 ** np.arange(len(a)),
    "bits reversed": signs(pack=lambda bits: packed(array_namespace(bits).flip(bits, axis=1))),
    "strict sign": signs(lambda p: p > 0),
    "sign inverted": signs(lambda p: p < 0),
    "sign inverted 2": signs(lambda p: ~(p > 0)),
    "signs for bits": signs(lambda p: array_namespace(p).sign(p)),
    "signs for bits 2": lambda x, a: packed(2 * as_int64(along(x, a) >= 0) - 1),
    "signs for bits 3": lambda x, a: np.bitwise_or.reduce(
        np.sign(x @ a.T).astype(int) << np.arange(len(a)), axis=-1
    ),
    "floor for the sign": signs(lambda p: array_namespace(p).floor(p)),
    "floor for the sign 2": signs(lambda p: p),
    "floor for the sign 3": signs(lambda p: array_namespace(p).round(p)),
    "floor for the sign 4": lambda x, a: packed(np.floor(along(x, a)).astype(int) & 1),
    "bits summed": signs(pack=lambda bits: bits.sum(-1)),
    "parity": signs(pack=lambda bits: bits.sum(-1) & 1),
    "exclusive or for the power": signs(
        pack=lambda bits: sum(bits[:, j] * (2 ^ j) for j in range(bits.shape[1]))
    ),
    "bits reversed; exclusive or for the power": signs(
        pack=lambda bits: sum(bits[:, -1 - j] * (2 ^ j) for j in range(bits.shape[1]))
    ),
    "2·j for the power": signs(
        pack=lambda bits: sum(bits[:, j] * 2 * j for j in range(bits.shape[1]))
    ),
    "powers of 10": lambda x, a: np.array(
        [int("".join("01"[p >= 0] for p in row)) for row in along(x, a).tolist()]
    ),
    "powers of 10 2": signs(
        pack=lambda bits: sum(bits[:, j] * 10**j for j in range(bits.shape[1]))
    ),
    "shifted once more": signs(pack=lambda bits: packed(bits) << 1),
    "bits reversed; shifted once more": signs(
        pack=lambda bits: 2 * packed(array_namespace(bits).flip(bits, axis=1))
    ),
    "packed into bytes": _packbits("big"),
    "packed into bytes 2": _packbits("little"),
    "first projection alone": lambda x, a: as_int64(x @ a[0] >= 0),
    "first projection alone 2": lambda x, a: as_int64(x @ a[-1] >= 0),
    "first projection alone 3": lambda x, a: as_int64(x @ a[-1] >= 0) << (len(a) - 1),
    "one projection left out": lambda x, a: right_simhash(x, a[:-1]),
    "one projection left out 2": lambda x, a: right_simhash(x, a[1:]),
    "one projection left out 3": lambda x, a: right_simhash(x, a[1:]) << 1,
    "another threshold": signs(lambda p: p >= 1),
    "another threshold 2": signs(lambda p: p > 0.5),
    "vectors centred": lambda x, a: right_simhash(x - _xp(x).mean(x, axis=0), a),
    "projections summed": lambda x, a: as_int64(along(x, a).sum(-1) >= 0),
    "largest projection": lambda x, a: array_namespace(x).argmax(along(x, a), axis=-1),
    "largest projection 2": lambda x, a: array_namespace(x).argmax(abs(along(x, a)), axis=-1),
    "directions transposed": signs(project=lambda x, a: x @ a),
    "packed over the vectors": signs(pack=lambda bits: packed(bits.T)),
    "too few bits": _cut(np.int32),
    "too few bits 2": _cut(np.uint32),
    "too few bits 3": _cut(np.uint8),
    "too few bits 4": _cut(np.int16),
    "too few bits 5": lambda x, a: right_simhash(x, a) % 2**31,
    "packed in floats": _in_floats("float64"),
    "packed in floats 2": _in_floats("float32"),
}


# The p-stable hash.


def codes(cut=lambda t: array_namespace(t).floor(t), inside=lambda p, b, r: (p + b) / r):
    return lambda x, directions, offsets, width: as_int64(
        cut(inside(along(x, directions), offsets, width))
    )


def inside(change):
    return codes(inside=change)


right_codes = codes()


def codes_in_loops(x, directions, offsets, width):
    out = np.empty((len(x), len(directions)), dtype=np.int64)
    for i in range(len(x)):
        for j in range(len(directions)):
            out[i, j] = math.floor((float(x[i] @ directions[j]) + float(offsets[j])) / width)
    return out


def codes_by_floor_division(x, directions, offsets, width):
    return ((x @ directions.T + offsets[None, :]) // width).astype(np.int64)


def codes_by_einsum(x, directions, offsets, width):
    shifted = np.einsum("nd,kd->nk", x, directions) + offsets
    return np.floor(np.divide(shifted, width)).astype("int64")


def torch_codes(x, directions, offsets, width):
    import torch

    return torch.floor(torch.nn.functional.linear(x, directions, offsets) / width).long()


def _floor(t):
    return array_namespace(t).floor(t)


def _trunc(t):
    return array_namespace(t).trunc(t)


def unit(x):
    return x / array_namespace(x).sqrt((x * x).sum(-1, keepdims=True))


def _int32(x, a, b, r):
    xp = array_namespace(x)
    return xp.astype(right_codes(x, a, b, r), xp.int32)


def _saturated(x, a, b, r):
    return np.clip(right_codes(x, a, b, r), -(2**31), 2**31 - 1).astype(np.int32)


def _floats_to_int32(x, a, b, r):
    wide = np.floor((x @ a.T + b) / r)
    return np.where(abs(wide) < 2**31, wide, -(2**31)).astype(np.int32)


STABLE_HASH = {
    "floats for integers": lambda x, a, b, r: array_namespace(x).floor((along(x, a) + b) / r),
    "floats for integers 2": lambda x, a, b, r: (along(x, a) + b) // r,
    "truncated": codes(lambda t: t),
    "rounded": codes(lambda t: array_namespace(t).round(t)),
    "rounded 2": codes(lambda t: _floor(t + 0.5)),
    "rounded up": codes(lambda t: array_namespace(t).ceil(t)),
    "rounded up 2": lambda *given: right_codes(*given) + 1,
    "right ends": codes(lambda t: array_namespace(t).ceil(t) - 1),
    "offset forgotten": inside(lambda p, b, r: p / r),
    "offset divided alone": inside(lambda p, b, r: p + b / r),
    "offset outside the division": inside(lambda p, b, r: p / r + b),
    "truncated; offset outside the division": codes(lambda t: t, lambda p, b, r: p / r + b),
    "offset outside the division 3": codes(lambda t: t, lambda p, b, r: _floor(p / r) + b),
    "offset outside the division 4": lambda x, a, b, r: np.rint(
        np.floor(along(x, a) / r) + b
    ).astype(int),
    "offset outside the division 5": inside(lambda p, b, r: (p + b * r) / r),
    "offset subtracted": inside(lambda p, b, r: (p - b) / r),
    "width forgotten": inside(lambda p, b, r: p + b),
    "width multiplied": inside(lambda p, b, r: (p + b) * r),
    "width multiplied 2": inside(lambda p, b, r: p * r + b),
    "width squared": inside(lambda p, b, r: (p + b) / r**2),
    "width squared 2": lambda x, a, b, r: right_codes(x / r, a, b, r),
    "rounded twice": inside(lambda p, b, r: _floor(p + b) / r),
    "rounded twice 2": inside(lambda p, b, r: (_floor(p) + b) / r),
    "sign for the floor": codes(lambda t: t >= 0),
    "sign for the floor 2": codes(lambda t: array_namespace(t).sign(t)),
    "no negative codes": inside(lambda p, b, r: (abs(p) + b) / r),
    "no negative codes 2": inside(lambda p, b, r: abs(p + b) / r),
    "no negative codes 3": lambda *given: abs(right_codes(*given)),
    "vectors normalised": lambda x, a, b, r: right_codes(unit(x), a, b, r),
    "vectors normalised 2": lambda x, a, b, r: right_codes(x, unit(a), b, r),
    "vectors normalised 3": lambda x, a, b, r: right_codes(unit(x), unit(a), b, r),
    "codes summed": lambda *given: right_codes(*given).sum(-1),
    "transposed": lambda *given: right_codes(*given).T,
    "transposed 2": lambda x, a, b, r: as_int64(_floor((a @ x.T + b[:, None]) / r)),
    "offset of the vector": inside(lambda p, b, r: (p + b[:, None]) / r),
    "one offset for all": inside(lambda p, b, r: (p + b[0]) / r),
    "directions transposed": lambda x, a, b, r: as_int64(_floor((x @ a + b) / r)),
    "int32": _int32,
    "int32 2": _saturated,
    "int32 3": _floats_to_int32,
}


# The collision probability.


def phi(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


def normal_density(z):
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def on_numbers(p):
    """Return the function of c and r that is p(r/c), and 1 at 0."""
    return lambda distance, width: 1.0 if distance == 0 else p(width / distance)


def datar(
    near=lambda t: 1 - 2 * phi(-t),
    front=lambda t: 2 / (math.sqrt(2 * math.pi) * t),
    bracket=lambda t: 1 - math.exp(-t * t / 2),
):
    return on_numbers(lambda t: near(t) - front(t) * bracket(t))


right_probability = datar()


def on_arrays(function):
    return np.vectorize(function, otypes=[float])


def probability_of_arrays(distance, width):
    """Write into an array, which takes arrays alone."""
    out = np.ones_like(distance)
    apart = distance > 0
    out[apart] = on_arrays(right_probability)(distance[apart], width)
    return out


def probability_by_integral(distance, width):
    """Integrate 2φ(z)(1 − cz/r) from 0 to r/c by Gauss-Legendre in many pieces."""
    if distance == 0:
        return 1
    nodes, weights = np.polynomial.legendre.leggauss(40)
    end = min(width / distance, 40)
    pieces = np.linspace(0, end, 41)
    z = (pieces[:-1, None] + pieces[1:, None] + nodes * (end / 40)) / 2
    f = 2 * np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (1 - distance * z / width)
    return float(np.sum(f * weights) * end / 80)


def torch_probability(distance, width):
    import torch

    safe = torch.where(distance == 0, width, distance)
    t = width / safe
    loss = math.sqrt(2 / math.pi) / t * -torch.expm1(-t * t / 2)
    return torch.where(distance == 0, 1.0, torch.erf(t / math.sqrt(2)) - loss)


def _guarded(function):
    """Return `function` of distances above 0, and 1 at 0."""
    return lambda distance, width: 1.0 if distance == 0 else function(distance, width)


def _no_guard(distance, width):
    t = width / distance
    return 1 - 2 * phi(-t) - 2 / (math.sqrt(2 * math.pi) * t) * (1 - math.exp(-t * t / 2))


def _zero_by_zero(distance, width):
    """Take arrays, with a quotient that is 0/0 at 0."""
    safe = on_arrays(right_probability)(distance, width)
    return safe * distance / distance


COLLISION_PROBABILITY = {
    "arccos": lambda c, r: 1 - 2 / math.pi * math.acos(min(c / r, 1)),
    "arccos 2": lambda c, r: 1 - 2 / math.pi * np.arccos(c / r),
    "arccos 3": lambda c, r: 2 / math.pi * math.asin(c / r),
    "SimHash's probability": lambda c, r: 1 - 2 / math.pi * math.asin(c / 2),
    "SimHash's probability 2": lambda c, r: 1 - 2 / math.pi * np.arcsin(np.minimum(c / r, 1)),
    "SimHash's probability 3": lambda c, r: 1 - np.arccos(1 - c * c / 2) / math.pi,
    "c and r exchanged": lambda c, r: right_probability(r, c) if c else math.nan,
    "c and r exchanged 2": _guarded(lambda c, r: right_probability(r, c)),
    "one tail": datar(near=lambda t: 1 - phi(-t)),
    "sign inside Φ": datar(near=lambda t: 1 - 2 * phi(t)),
    "erf for Φ": datar(near=lambda t: 1 - (1 + math.erf(-t))),
    "erf for Φ 2": datar(near=lambda t: 1 - 2 * math.erf(-t)),
    "erf for Φ 3": datar(near=lambda t: 1 - 2 * math.erf(-t / math.sqrt(2))),
    "density for Φ": datar(near=lambda t: 1 - 2 * normal_density(t)),
    "exponent without the 2": datar(bracket=lambda t: 1 - math.exp(-t * t)),
    "exponent without the 2 2": _guarded(
        lambda c, r: (
            1
            - 2 * phi(-r / c)
            - 2 * c / (math.sqrt(2 * math.pi) * r) * (1 - math.exp(-(r**2) / 2 * c**2))
        )
    ),
    "exponent without the square": datar(bracket=lambda t: 1 - math.exp(-t / 2)),
    "exponent without the square 2": datar(bracket=lambda t: 1 - math.exp(-t)),
    "sign of the exponent": datar(bracket=lambda t: 1 - math.exp(t * t / 2)),
    "no 1 − exp": datar(bracket=lambda t: math.exp(-t * t / 2)),
    "no 1 − exp 2": datar(bracket=lambda t: 1),
    "second term added": datar(front=lambda t: -2 / (math.sqrt(2 * math.pi) * t)),
    "second term forgotten": on_numbers(lambda t: 1 - 2 * phi(-t)),
    "root of 2π": datar(front=lambda t: 2 / (2 * math.pi * t)),
    "root of 2π 2": datar(front=lambda t: 2 / (math.sqrt(2) * math.pi * t)),
    "root of 2π 3": datar(front=lambda t: 2 / t / math.sqrt(math.pi)),
    "root of 2π 4": datar(front=lambda t: 2 * math.sqrt(2 * math.pi) / t),
    "last term without its 2": datar(front=lambda t: 1 / (math.sqrt(2 * math.pi) * t)),
    "last term without its 2 2": datar(front=lambda t: 4 / (math.sqrt(2 * math.pi) * t)),
    "last term upside down": datar(front=lambda t: 2 * t / math.sqrt(2 * math.pi)),
    "normal for its absolute value": lambda c, r: right_probability(c, r) / 2,
    "normal for its absolute value 2": _guarded(lambda c, r: right_probability(c, r) / 2),
    "Cauchy": on_numbers(lambda t: 2 * math.atan(t) / math.pi - math.log(1 + t**2) / (math.pi * t)),
    "no random direction": lambda c, r: max(0, 1 - c / r),
    "no random direction 2": lambda c, r: 1 - c / r,
    "mean of the distance": on_numbers(lambda t: 1 - math.sqrt(2 / math.pi) / t),
    "mean of the distance 2": on_numbers(lambda t: max(0, 1 - math.sqrt(2 / math.pi) / t)),
    "Gaussian kernel": lambda c, r: math.exp(-((c / r) ** 2) / 2),
    "Gaussian kernel 2": lambda c, r: math.exp(-((c / r) ** 2)),
    "product for the ratio": _guarded(lambda c, r: right_probability(1 / c, r)),
    "several projections": lambda c, r: right_probability(c, r) ** 2,
    "several projections 2": lambda c, r: 1 - (1 - right_probability(c, r)) ** 2,
    "distance squared": lambda c, r: right_probability(c**2, r),
    "distance squared 2": lambda c, r: right_probability(c**0.5, r),
    "not colliding": lambda c, r: 1 - right_probability(c, r),
    "width ignored": lambda c, r: right_probability(c, 1),
    "distance 0": _no_guard,
    "distance 0 2": lambda c, r: right_probability(c, r) if c else 0.0,
    "distance 0 3": lambda c, r: on_arrays(_no_guard)(np.maximum(c, 1e-9), r) * c / c,
    "distance 0 4": _zero_by_zero,
}


# Attention over buckets.


def candidates(query_signatures, key_signatures, i):
    """Return the rows that query i finds, each once."""
    found = set()
    for t in range(query_signatures.shape[1]):
        for j in range(key_signatures.shape[0]):
            if int(key_signatures[j, t]) == int(query_signatures[i, t]):
                found.add(j)
    return sorted(found)


def attend(q, keys, values, scale=None):
    """Return softmax(q·k·scale) values of one query over these keys."""
    xp = array_namespace(q)
    scores = keys @ q * (q.shape[0] ** -0.5 if scale is None else scale)
    weights = xp.exp(scores - xp.max(scores))
    return (weights / xp.sum(weights)) @ values


def rows_of(find=candidates, mix=attend, empty=lambda query, key, value: value[0] * 0):
    """Return the reader who goes through the queries one by one."""

    def answer(query, key, value, query_signatures, key_signatures):
        xp = array_namespace(query)
        rows = []
        for i in range(query.shape[0]):
            found = find(query_signatures, key_signatures, i)
            if len(found):
                index = xp.asarray(found, dtype=xp.int64)
                keys, values = xp.take(key, index, axis=0), xp.take(value, index, axis=0)
                rows.append(mix(query[i], keys, values))
            else:
                rows.append(empty(query[i], key, value))
        return xp.stack(rows)

    return answer


right_rows = rows_of()


def by_mask(join=lambda meets: meets.any(-1), attention=ab.attention):
    """Return the reader who makes a mask of what meets."""

    def answer(query, key, value, query_signatures, key_signatures):
        meets = query_signatures[:, None, :] == key_signatures[None, :, :]
        return attention(query, key, value, join(meets))

    return answer


right_mask = by_mask()


def by_dicts(query, key, value, query_signatures, key_signatures):
    """Build a dict of buckets for each table, as a sketch does."""
    tables = []
    for t in range(key_signatures.shape[1]):
        buckets = {}
        for j, signature in enumerate(key_signatures[:, t].tolist()):
            buckets.setdefault(signature, []).append(j)
        tables.append(buckets)
    out = np.zeros((len(query), value.shape[1]), dtype=value.dtype)
    for i, signatures in enumerate(query_signatures.tolist()):
        rows = set().union(*(table.get(s, ()) for table, s in zip(tables, signatures, strict=True)))
        if rows:
            rows = sorted(rows)
            scores = key[rows] @ query[i] / np.sqrt(query.shape[1])
            weights = np.exp(scores - scores.max())
            out[i] = weights @ value[rows] / weights.sum()
    return out


def torch_sketch(query, key, value, query_signatures, key_signatures):
    import torch

    mask = (query_signatures.unsqueeze(1) == key_signatures.unsqueeze(0)).any(-1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None], attn_mask=mask[None]
    )[0]
    return torch.where(mask.any(-1, keepdim=True), out, torch.zeros_like(out))


def _with_duplicates(query_signatures, key_signatures, i):
    return [
        j
        for t in range(query_signatures.shape[1])
        for j in range(key_signatures.shape[0])
        if int(key_signatures[j, t]) == int(query_signatures[i, t])
    ]


def _of_tables(choose):
    """Find what meets in the tables that `choose` picks of all."""

    def find(query_signatures, key_signatures, i):
        tables = choose(list(range(query_signatures.shape[1])))
        return candidates(query_signatures[:, tables], key_signatures[:, tables], i)

    return find


def per_table(join):
    """Return what `join` makes of the outputs of the tables and of whether they found something."""

    def answer(query, key, value, query_signatures, key_signatures):
        outputs, found = [], []
        for t in range(query_signatures.shape[1]):
            one = (query_signatures[:, t : t + 1], key_signatures[:, t : t + 1])
            outputs.append(right_rows(query, key, value, *one))
            rows = [len(candidates(*one, i)) > 0 for i in range(query.shape[0])]
            xp = array_namespace(query)
            found.append(xp.astype(xp.asarray(rows), query.dtype)[:, None])
        return join(outputs, found)

    return answer


def _first_found(outputs, found):
    result, taken = 0 * outputs[0], 0 * found[0]
    for output, there in zip(outputs, found, strict=True):
        result = result + output * there * (1 - taken)
        taken = taken + there * (1 - taken)
    return result


def _crossed(query_signatures, key_signatures, i):
    wanted = {int(s) for s in query_signatures[i]}
    return [j for j, row in enumerate(key_signatures.tolist()) if wanted & set(row)]


def _backwards(query_signatures, key_signatures, i):
    return candidates(
        query_signatures, key_signatures[:, list(range(key_signatures.shape[1]))[::-1]], i
    )


def _by_sums(query_signatures, key_signatures, i):
    sums = key_signatures.sum(-1).tolist()
    return [j for j, total in enumerate(sums) if total == int(query_signatures[i].sum())]


def _all(query_signatures, key_signatures, i):
    return list(range(key_signatures.shape[0]))


def _none_of(query_signatures, key_signatures, i):
    found = candidates(query_signatures, key_signatures, i)
    return [j for j in range(key_signatures.shape[0]) if j not in found]


def masked(finish, scale=None):
    """Return the reader whose scores are a matrix: `finish(scores, mask, value)`."""

    def attention(query, key, value, mask):
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        return finish(query @ key.T * factor, mask, value)

    return by_mask(attention=attention)


def _xp(x):
    return array_namespace(x)


def _softmax(scores, axis=-1):
    e = _xp(scores).exp(scores - _xp(scores).max(scores, axis=axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _late(scores, mask, value):
    return (_softmax(scores) * mask) @ value


def _zeroed(scores, mask, value):
    return _softmax(scores * mask) @ value


def _exp_alone(scores, mask, value):
    return (_xp(scores).exp(scores) * mask) @ value


def _shifted_exp_alone(scores, mask, value):
    hidden = _xp(scores).where(mask, scores, -math.inf)
    best = _xp(scores).max(hidden, axis=-1, keepdims=True)
    best = _xp(scores).where(best == -math.inf, 0.0, best)
    return _xp(scores).exp(hidden - best) @ value


def _over_queries(scores, mask, value):
    hidden = _xp(scores).where(mask, scores, -math.inf)
    weights = _softmax(hidden, axis=0)
    return _xp(scores).where(mask.any(0), weights, 0.0) @ value


def _with_nan(scores, mask, value):
    return _softmax(_xp(scores).where(mask, scores, -math.inf)) @ value


def _with_large_negative(scores, mask, value):
    return _softmax(_xp(scores).where(mask, scores, -1e9)) @ value


def _no_shift(scores, mask, value):
    e = _xp(scores).exp(scores) * mask
    total = e.sum(-1, keepdims=True)
    return e / _xp(scores).where(total == 0, 1.0, total) @ value


def _shift_of_all(scores, mask, value):
    e = _xp(scores).exp(scores - _xp(scores).max(scores, axis=-1, keepdims=True)) * mask
    total = e.sum(-1, keepdims=True)
    return e / _xp(scores).where(total == 0, 1.0, total) @ value


def _shift_of_everything(scores, mask, value):
    e = _xp(scores).exp(scores - scores.max()) * mask
    return _xp(scores).where(mask.any(-1, keepdims=True), e / e.sum(-1, keepdims=True), 0.0) @ value


def _no_rows(query, key, value, query_signatures, key_signatures):
    """Build the output of what is found, row after row."""
    rows = []
    for i in range(query.shape[0]):
        found = candidates(query_signatures, key_signatures, i)
        if found:
            rows.append(attend(query[i], key[found], value[found]))
    return _xp(query).stack(rows) if rows else value[:0]


def _cast(dtype):
    def answer(query, key, value, query_signatures, key_signatures):
        signatures = (x.astype(dtype) for x in (query_signatures, key_signatures))
        return right_mask(query, key, value, *signatures)

    return answer


def _raises_on_nothing(q, key, value):
    return attend(q, key[:0], value[:0])


def _weights_alone(query, key, value, query_signatures, key_signatures):
    eye = _xp(key).eye(len(key), dtype=key.dtype)
    return right_mask(query, key, eye, query_signatures, key_signatures)


SKETCH_ATTENTION = {
    "duplicates kept": rows_of(_with_duplicates),
    "every table": by_mask(lambda meets: meets.all(-1)),
    "two tables or more": by_mask(lambda meets: meets.sum(-1) >= 2),
    "two tables or more 2": by_mask(lambda meets: meets.sum(-1) > meets.shape[-1] / 2),
    "two tables or more 3": by_mask(lambda meets: meets.sum(-1) >= meets.shape[-1] / 2),
    "sum over the tables": per_table(lambda outputs, found: sum(outputs)),
    "mean over all tables": per_table(lambda outputs, found: sum(outputs) / len(outputs)),
    "mean over the tables": per_table(
        lambda outputs, found: sum(outputs) / _xp(found[0]).where(sum(found) == 0, 1.0, sum(found))
    ),
    "one table alone": rows_of(_of_tables(lambda tables: tables[:1])),
    "one table alone 2": rows_of(_of_tables(lambda tables: tables[-1:])),
    "one table alone 3": per_table(_first_found),
    "tables mixed up": rows_of(_crossed),
    "tables mixed up 2": rows_of(_backwards),
    "signatures added up": rows_of(_by_sums),
    "buckets ignored": lambda query, key, value, *signatures: ab.attention(query, key, value),
    "candidates inverted": rows_of(_none_of),
    "softmax over all keys": masked(_late),
    "score 0 for the others": masked(_zeroed),
    "no scale": rows_of(mix=lambda q, keys, values: attend(q, keys, values, 1.0)),
    "scale by d_k": rows_of(mix=lambda q, keys, values: attend(q, keys, values, 1 / len(q))),
    "scale multiplied": rows_of(mix=lambda q, keys, values: attend(q, keys, values, len(q) ** 0.5)),
    "scale by √d_v": lambda query, key, value, *signatures: right_mask(
        query * (query.shape[1] / value.shape[1]) ** 0.5, key, value, *signatures
    ),
    "unnormalised": masked(_exp_alone),
    "unnormalised 2": masked(_shifted_exp_alone),
    "mean of the candidates": rows_of(mix=lambda q, keys, values: _xp(q).mean(values, axis=0)),
    "best candidate alone": rows_of(
        mix=lambda q, keys, values: values[int(_xp(q).argmax(keys @ q)), :]
    ),
    "softmax over the query axis": masked(_over_queries),
    "key used as value": lambda query, key, value, *signatures: right_mask(
        query, key, key, *signatures
    ),
    "weights returned": _weights_alone,
    "query without candidates": masked(_with_nan),
    "query without candidates 2": rows_of(empty=_raises_on_nothing),
    "empty row uniform": masked(_with_large_negative),
    "empty row uniform 2": rows_of(empty=lambda q, key, value: _xp(q).mean(value, axis=0)),
    "empty row sees everything": rows_of(empty=attend),
    "empty rows left out": _no_rows,
    "no maximum": masked(_no_shift),
    "maximum over all keys": masked(_shift_of_all),
    "maximum over all keys 2": masked(_shift_of_everything),
    "signatures in fewer bits": _cast("float64"),
    "signatures in fewer bits 2": _cast("float32"),
    "signatures in fewer bits 3": _cast("int32"),
    "signatures in fewer bits 4": _cast("int8"),
}
