"""Answers to the exercises on kernels, right and wrong: their loops over tiles, in NumPy."""

import math

import numpy as np

import attnbook as ab

T = 16


def kernel(bug="", *, skip=True, head=lambda h, heads, own: h // (heads // own), factor=None):
    """Return a kernel of tiles of T queries and T keys, with one line that may be broken."""

    def attend(query, key, value):
        if bug in INPUTS:
            query, key, value = INPUTS[bug](query, key, value)
        output = np.zeros((len(query), query.shape[1], value.shape[-1]), query.dtype)
        for h in range(len(query)):
            own = 0 if bug == "first head for all" else head(h, len(query), len(key))
            one = walk(query[h], key[own], value[own], bug, skip, factor)
            output[h] = one
        if bug == "last head left out":
            output[-1] = 0
        return output[::-1] if bug == "heads in another order" else output

    return attend


def walk(query, key, value, bug, skip, factor):
    n, d = query.shape
    half = query.dtype == np.float16
    wide = np.float32 if half else query.dtype
    kept = query.dtype if bug == "sums in half precision" else wide
    q, k, v = (x.astype(wide) for x in (query, key, value))
    scale = wide.type(factor(d, n) if factor else 1 / math.sqrt(d)) if not half else 1.0
    exp = np.exp2 if bug == "base 2" else np.exp
    output = np.zeros((n, v.shape[-1]), wide)
    rows = {"last rows not computed": n // T * T, "first rows alone": min(n, T)}
    rows = (rows | {"last rows not computed 2": n - 1}).get(bug, n)
    for top in range(0, rows, T):
        i = np.arange(top, min(top + T, n))[:, np.newaxis]
        m, z, u = np.full(i.shape, -np.inf, wide), np.zeros(i.shape, kept), np.zeros((len(i), 1))
        for left in range(*bounds(top, n, bug, skip), T):
            if bug == "tile before the diagonal left out" and left == top - T:
                continue
            if bug == "every second tile" and left // T % 2:
                continue
            j = np.arange(left, min(left + T, n))
            s = masked(q[i[:, 0]] @ k[j].T * scale, i, j, top == left, bug)
            before, m = m, np.maximum(m, s.max(axis=1, keepdims=True))
            if bug == "maximum of the tile":
                m = s.max(axis=1, keepdims=True)
            if bug == "maximum of the first tile" and left:
                m = before
            if bug == "maximum of the tile 2" and left:
                m = np.minimum(before, s.max(axis=1, keepdims=True))
            if bug == "maximum from 0":
                m = np.maximum(m, 0)
            if bug == "one maximum for all rows":
                m = np.maximum(before, s.max())
            if bug == "no maximum":
                m = np.zeros_like(m)
            p, fade = exp(s - m), exp(before - m)
            fades = {"no rescaling": (1, 1), "total not rescaled": (1, fade)}
            fades |= {"weighted not rescaled": (fade, 1), "sums overwritten": (0, fade)}
            fades |= {"rescaled twice": (fade, fade**2)}
            if bug == "sign of the exponent" and left:
                fade = 1 / np.where(fade == 0, 1, fade)
            of_z, of_u = fades.get(bug, (fade, fade))
            total = p.sum(axis=1, keepdims=True)
            if bug.startswith("divided in each tile"):
                p = p / total
            if bug == "divided in each tile 2":
                total, of_z, of_u = np.ones_like(total), 1, 1
            z = (of_z * z + total).astype(kept)
            u = (of_u * u + p @ v[j]).astype(kept)
        if bug in ("not divided", "divided in each tile"):
            z = np.ones_like(z)
        output[i[:, 0]] = u / (z + 1 if bug == "something added to the total" else z)
    return output.astype(query.dtype)


def bounds(top, n, bug, skip):
    """Return where the loop over keys begins and ends."""
    end = top + 1 if skip else n
    if bug == "last keys dropped":
        end = min(end, n // T * T)
    if bug == "last keys dropped 2":
        end = min(end, n - 1)
    found = {
        "diagonal tile left out": (0, top),
        "diagonal tile alone": (top, top + 1),
        "first tile left out": (T, end),
        "first tile left out 2": (min(T, top), end),
        "last tiles alone": (max(0, top - T), end),
        "one tile too many": (0, min(top + T + 1, n)),
    }
    return found.get(bug, (0, end))


def masked(s, i, j, on_diagonal, bug):
    seen = j <= i
    other = {
        "no mask": seen | True,
        "diagonal one too far": j <= i + 1,
        "query cannot see itself": j < i,
        "first key left out": (j > 0) & seen,
        "places within the tile": j % T <= i % T,
        "places within the tile 2": j % T <= i,
        "diagonal tile not masked": seen | on_diagonal,
        "mask inverted": j > i,
        "mask transposed": j >= i,
    }
    hidden = {"mask multiplies the scores": s * seen, "+∞ or NaN for hidden scores": np.inf}
    hidden |= {"mask with −10⁴": -1e4}
    return np.where(other.get(bug, seen), s, hidden.get(bug, -np.inf)).astype(s.dtype)


INPUTS = {
    "query and key swapped": lambda q, k, v: (k, q, v),
    "value used as key": lambda q, k, v: (q, v, v),
    "key used as value": lambda q, k, v: (q, k, k),
    "key and value swapped": lambda q, k, v: (q, v, k),
    "query used as value": lambda q, k, v: (q, k, q),
    "query compared with itself": lambda q, k, v: (q, q, v),
    "keys compared with themselves": lambda q, k, v: (k, k, v),
}
FACTORS = {
    "no scale": lambda d, n: 1,
    "scale by d_k": lambda d, n: 1 / d,
    "scale multiplied": lambda d, n: math.sqrt(d),
    "another power of d_k": lambda d, n: d**-0.25,
    "scale by √n_k": lambda d, n: 1 / math.sqrt(n),
}
BUGS = (
    *("tile before the diagonal left out", "every second tile", "last tiles alone"),
    *("first tile left out 2", "first key left out", "first rows alone", "last head left out"),
    *(
        "heads in another order",
        "maximum of the first tile",
        "maximum of the tile 2",
        "maximum from 0",
    ),
    *("one maximum for all rows", "sums overwritten", "rescaled twice", "sign of the exponent"),
    *("something added to the total", "places within the tile 2"),
    *("diagonal one too far", "query cannot see itself", "diagonal tile left out"),
    *("diagonal tile not masked", "diagonal tile alone", "first tile left out"),
    *("last rows not computed", "last keys dropped", "maximum of the tile", "no maximum"),
    *("last rows not computed 2", "last keys dropped 2", "divided in each tile 2"),
    *("divided in each tile", "not divided", "sums in half precision", "no rescaling"),
    *("total not rescaled", "weighted not rescaled", "base 2", "mask with −10⁴"),
    "+∞ or NaN for hidden scores",
    *("value used as key", "key used as value", "key and value swapped"),
)
FULL = (
    *("no mask", "places within the tile", "mask inverted", "mask transposed"),
    "mask multiplies the scores",
)
"""Bugs of a loop over all tiles."""
OF_ONE = (
    *("first head for all", "query and key swapped", "query used as value"),
    *("query compared with itself", "keys compared with themselves"),
)
"""Bugs that show where each head has keys of its own."""


def mixed_up(head):
    """Return a kernel whose query heads read these key heads."""
    return kernel(head=head)


COMMON = {
    **{bug: kernel(bug) for bug in BUGS},
    **{bug: kernel(bug, skip=False) for bug in FULL},
    **{bug: kernel(factor=factor) for bug, factor in FACTORS.items()},
    "scale by d_model": lambda q, k, v: kernel(factor=lambda d, n: 1 / math.sqrt(len(q) * d))(
        q, k, v
    ),
    "keys of another head": mixed_up(lambda h, heads, own: (h // (heads // own) + 1) % own),
}


def at_once(weigh, fill=-np.inf, sign=1):
    """Return causal attention that makes its weights of all scores at once."""

    def attend(query, key, value):
        own = [h * len(key) // len(query) for h in range(len(query))]
        scores = sign * query @ key[own].mT / query.shape[-1] ** 0.5
        scores = np.where(np.tri(query.shape[1]) == 1, scores, fill)
        return (weigh(scores.astype(float)) @ value[own]).astype(query.dtype)

    return attend


COMMON |= {
    "softmax over the query axis": at_once(lambda s: ab.softmax(s, -2)),
    "softmax over the heads": at_once(lambda s: np.nan_to_num(ab.softmax(s, 0))),
    "softmax twice": at_once(lambda s: ab.softmax(ab.softmax(s))),
    "mask after the softmax": lambda q, k, v: repeated(q, k, v, np.tril),
    "sign of the scores": kernel(factor=lambda d, n: -1 / math.sqrt(d)),
    "hidden scores not low enough": at_once(ab.softmax, fill=-5.0),
}
WRONG = {
    "tiled_attention": {
        **COMMON,
        **{bug: kernel(bug) for bug in OF_ONE},
        "hidden tiles read": kernel(skip=False),
        "hidden tiles read 2": lambda q, k, v: ab.attention(q, k, v, is_causal=True),
        "one tile too many": kernel("one tile too many"),
        "diagonal one too far 2": kernel("diagonal one too far", skip=False),
    },
    "grouped_attention": {
        **COMMON,
        "heads in turn": mixed_up(lambda h, heads, own: h % own),
        "divided by the number of key heads": mixed_up(lambda h, heads, own: h // own),
        "first key head for all": mixed_up(lambda h, heads, own: 0),
        "heads in turn 2": lambda q, k, v: repeated(
            q, np.repeat(k, len(q) // len(k), axis=0), np.tile(v, (len(q) // len(k), 1, 1))
        ),
        "first key head for all 2": mixed_up(lambda h, heads, own: -1),
        "ends of the groups": mixed_up(lambda h, heads, own: min(h, own - 1)),
        "ends of the groups 2": mixed_up(lambda h, heads, own: h // (heads // own + 1)),
        "key heads averaged": lambda q, k, v: repeated(
            q, k.mean(axis=0, keepdims=True), v.mean(axis=0, keepdims=True)
        ),
        "one query for a group": lambda q, k, v: repeated(
            np.repeat(q[:: len(q) // len(k)], len(q) // len(k), axis=0), k, v
        ),
        "groups taken apart": lambda q, k, v: (
            repeated(q, k, v).reshape(len(k), -1, *q.shape[1:]).swapaxes(0, 1).reshape(q.shape)
        ),
        "first head of each group alone": lambda q, k, v: (
            repeated(q, k, v) * (np.arange(len(q)) % (len(q) // len(k)) == 0)[:, None, None]
        ),
        "key heads averaged 2": lambda q, k, v: repeated(q, 0 * k + k.mean(0), v),
        "groups in reverse": mixed_up(lambda h, heads, own: own - 1 - h // (heads // own)),
        "total not rescaled 2": kernel("total not rescaled", skip=False),
    },
}
DOUBLES = {
    "tiled_attention": {
        "no scale; diagonal one too far": kernel("diagonal one too far", factor=lambda d, n: 1),
        "total not rescaled; scale by d_k": kernel(
            "total not rescaled", factor=FACTORS["scale by d_k"]
        ),
        "no scale; hidden tiles read": kernel(skip=False, factor=FACTORS["no scale"]),
        "sign of the scores; hidden tiles read": at_once(ab.softmax, sign=-1),
    },
    "grouped_attention": {
        "heads in turn; scale by d_k": kernel(
            head=lambda h, heads, own: h % own, factor=FACTORS["scale by d_k"]
        ),
    },
}


def repeated(query, key, value, late=None):
    """Return the package's attention with the keys and values repeated, or masked too late."""
    group = len(query) // len(key)
    key, value = (np.repeat(x, group, axis=0) for x in (key, value))
    if late is not None:
        return late(ab.attention_weights(query, key)) @ value
    return ab.attention(query, key, value, is_causal=True)


def by_rows(query, key, value):
    """Attend query by query, each to its own past, and to no more."""
    output = np.zeros_like(query)
    for h, i in np.ndindex(*query.shape[:2]):
        own, end = h * len(key) // len(query), i // T * T + T
        k, v = key[own, :end].astype(float), value[own, :end].astype(float)
        s = np.where(np.arange(len(k)) <= i, k @ query[h, i].astype(float) / 4, -np.inf)
        p = np.exp(s - s.max())
        with np.errstate(invalid="ignore"):
            output[h, i] = p @ v / p.sum()
    return output


RIGHT = {
    "tiled_attention": [kernel(), by_rows],
    "grouped_attention": [repeated, kernel(), kernel(skip=False), by_rows],
}
