"""Wrong ways to attend to what hash tables find: tables joined, keys weighed, rows without any."""

import math
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._model import Mistake
from attnbook.check._recipes import Recipe, swap


def meets_in(query_signatures, key_signatures):
    """Return where query and key share the bucket of a table, (n_q, n_k, n_tables)."""
    return query_signatures[:, np.newaxis, :] == key_signatures[np.newaxis, :, :]


def union(meets):
    return np.any(meets, axis=-1)


def reference(query, key, value, query_signatures, key_signatures):
    mask = union(meets_in(query_signatures, key_signatures))
    return attnbook.attention(query, key, value, mask)


def _model(recipe: Recipe = r.RIGHT, see: Callable = union, meets: Callable = meets_in) -> Callable:
    """Return attention by `recipe` over the candidates that `see` makes of the tables."""

    def model(query, key, value, query_signatures, key_signatures):
        mask = see(meets(query_signatures, key_signatures))
        return recipe.output(query, key, value, mask=mask)

    return model


def _counted(query, key, value, query_signatures, key_signatures):
    """Count a key once in each table where it is found."""
    counts = np.sum(meets_in(query_signatures, key_signatures), axis=-1)
    with np.errstate(divide="ignore"):
        copies = np.log(counts.astype(float))  # t copies of exp(s) are exp(s + log t)
    return r.RIGHT.output(query, key, value, mask=counts > 0, bias=copies)


def _by_table(join: Callable) -> Callable:
    """Return what `join(outputs, found)` makes of one softmax a table, (n_tables, n_q, d_v)."""

    def model(query, key, value, query_signatures, key_signatures):
        masks = np.moveaxis(meets_in(query_signatures, key_signatures), -1, 0)
        outputs = [r.RIGHT.output(query, key, value, mask=mask) for mask in masks]
        return join(np.stack(outputs), np.any(masks, axis=-1)[..., np.newaxis])

    return model


def _crossed(query_signatures, key_signatures):
    """Compare the signature of each table with those of all tables."""
    pairs = query_signatures[:, np.newaxis, :, np.newaxis] == key_signatures[:, np.newaxis, :]
    return np.any(pairs, axis=-1)


def _tables_reversed(query_signatures, key_signatures):
    return meets_in(query_signatures, key_signatures[:, ::-1])


def _as_dtype(dtype: str) -> Callable:
    """Return the comparison of signatures that were turned into another dtype."""
    return lambda query, key: meets_in(query.astype(dtype), key.astype(dtype))


def _in_a_sum(query_signatures, key_signatures):
    """Compare the sums of the signatures of all tables."""
    return meets_in(
        *(np.sum(x, axis=-1, keepdims=True) for x in (query_signatures, key_signatures))
    )


def _of_empty_rows(fill: Callable) -> Callable:
    """Return the right outputs with `fill(query, key, value)` where a query finds no key."""

    def model(query, key, value, query_signatures, key_signatures):
        found = np.any(union(meets_in(query_signatures, key_signatures)), axis=-1, keepdims=True)
        right = reference(query, key, value, query_signatures, key_signatures)
        return np.where(found, right, fill(query, key, value))

    return model


def _rows_left_out(query, key, value, query_signatures, key_signatures):
    found = np.any(union(meets_in(query_signatures, key_signatures)), axis=-1)
    return reference(query, key, value, query_signatures, key_signatures)[found]


def _key_for_value(query, key, value, query_signatures, key_signatures):
    return reference(query, key, key, query_signatures, key_signatures)


def _weights(query, key, value, query_signatures, key_signatures):
    return r.RIGHT.weights(query, key, mask=union(meets_in(query_signatures, key_signatures)))


def _scaled(factor: Callable) -> Recipe:
    return swap(factor=lambda query, key, scale: factor(query.shape[-1]))


def _scaled_by_value(query, key, value, query_signatures, key_signatures):
    mask = union(meets_in(query_signatures, key_signatures))
    return r.RIGHT.output(query, key, value, mask=mask, scale=1 / math.sqrt(value.shape[-1]))


def _shared(scores):
    """Give every candidate the same weight."""
    visible = scores > -np.inf
    return visible / np.maximum(np.sum(visible, axis=-1, keepdims=True), 1)


def _largest(scores):
    """Give the best candidate all the weight."""
    best = np.max(scores, axis=-1, keepdims=True)
    return np.where((scores == best) & (best > -np.inf), 1.0, 0.0)


def _exponentials(scores, axis=-1):
    return np.exp(scores)


def _shifted_exponentials(scores, axis=-1):
    best = np.max(scores, axis=axis, keepdims=True)
    return np.exp(scores - np.where(best == -np.inf, 0, best))


def _guarded(exponentials, axis=-1):
    total = np.sum(exponentials, axis=axis, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def _late(weights, mask, bias, factor):
    return weights * mask


def _late_normalized(weights, mask, bias, factor):
    return _guarded(weights * mask)


def _late_or_zeros(weights, mask, bias, factor):
    """Divide without a guard, where there is a candidate."""
    return np.where(np.any(mask, axis=-1, keepdims=True), r.normalized(weights * mask), 0)


def _below_the_largest(scores):
    return np.exp(scores - np.max(scores))  # over all queries


def _below_or_zeros(scores):
    """Divide without a guard, where there is a candidate."""
    found = np.any(scores > -np.inf, axis=-1, keepdims=True)
    return np.where(found, r.normalized(_below_the_largest(scores)), 0)


EMPTY_ROW = (
    "query without candidates",
    "A query that shares no bucket with any key comes out as NaN, or raises an error: its softmax "
    "runs over nothing. Such queries occur in every sketch. Give them zeros, as attention does for "
    "a query that may see nothing.",
)

MISTAKES = (
    Mistake(
        "duplicates kept",
        "A key that is found in several tables counts several times: t buckets give it t times the "
        "weight. Take the union of the buckets, each key once.",
        (_counted,),
    ),
    Mistake(
        "every table",
        "You ask for the same bucket in every table. One table is enough: the tables are joined by "
        "OR (any), and it is the projections within a table that are joined by AND.",
        (_model(see=lambda meets: np.all(meets, axis=-1)),),
    ),
    Mistake(
        "two tables or more",
        "You ask for the same bucket in at least two tables, or in half of them. One is enough: "
        "more tables are there to find more keys.",
        (
            _model(see=lambda meets: np.sum(meets, axis=-1) > 1),
            _model(see=lambda meets: 2 * np.sum(meets, axis=-1) > meets.shape[-1]),
            _model(see=lambda meets: 2 * np.sum(meets, axis=-1) >= meets.shape[-1]),
        ),
    ),
    Mistake(
        "sum over the tables",
        "You take a softmax in each table and add the results up. The weights of a query then sum "
        "to the number of its tables that hold something, not to 1. Join the buckets first, and "
        "take one softmax.",
        (_by_table(lambda outputs, found: np.sum(outputs, axis=0)),),
    ),
    Mistake(
        "mean over all tables",
        "You take a softmax in each table and divide their sum by the number of tables. A table "
        "whose bucket is empty adds nothing but is counted, so the weights sum to less than 1. "
        "Join the buckets first, and take one softmax.",
        (_by_table(lambda outputs, found: np.mean(outputs, axis=0)),),
    ),
    Mistake(
        "mean over the tables",
        "You take a softmax in each table and the mean over the tables that hold something. The "
        "weights sum to 1, but a key found by two tables counts twice, and one that is alone in "
        "its bucket gets all of a table. Join the buckets first, and take one softmax.",
        (
            _by_table(
                lambda outputs, found: (
                    np.sum(outputs, axis=0) / np.maximum(np.sum(found, axis=0), 1)
                )
            ),
        ),
    ),
    Mistake(
        "one table alone",
        "You look into one table, the first or the last. A near key may be missed by one table; "
        "that is why there are several. Look into all of them.",
        (
            _model(see=lambda meets: meets[..., 0]),
            _model(see=lambda meets: meets[..., -1]),
            _by_table(lambda outputs, found: _first_that_found(outputs, found)),
        ),
    ),
    Mistake(
        "tables mixed up",
        "You compare signatures of different tables: the signature of a query in table t with that "
        "of a key in another. Each table has its own directions, so that equality means nothing.",
        (_model(meets=_crossed), _model(meets=_tables_reversed)),
    ),
    Mistake(
        "signatures added up",
        "You add the signatures of all tables up and compare the sums. Compare table by table.",
        (_model(meets=_in_a_sum),),
    ),
    Mistake(
        "buckets ignored",
        "You attend to every key: the signatures are not used. That is exact attention, whose cost "
        "a sketch is there to avoid.",
        (_model(see=lambda meets: np.ones_like(meets[..., 0])),),
    ),
    Mistake(
        "candidates inverted",
        "You attend to the keys that share no bucket with the query. Those that share one are the "
        "candidates.",
        (_model(see=lambda meets: ~union(meets)),),
    ),
    Mistake(
        "softmax over all keys",
        "You take the softmax over all keys and then drop those that are no candidates. The "
        "weights that are left sum to less than 1, and every key was scored. Take the softmax over "
        "the candidates alone.",
        (_model(swap(hide=lambda scores, mask: scores, finish=_late)),),
    ),
    Mistake(
        "score 0 for the others",
        "You set the scores of the other keys to 0, which still gives them exp(0) = 1 in the "
        "softmax. Leave them out, or set their scores to −∞.",
        (_model(swap(hide=lambda scores, mask: scores * mask)),),
    ),
    Mistake(
        "no scale",
        "Your scores lack the factor 1/√d.",
        (_model(_scaled(lambda d: 1.0)),),
    ),
    Mistake(
        "another scale",
        "Your scores are not divided by √d: by d or by √d_v, or multiplied by √d. d is the width "
        "of queries and keys, query.shape[-1].",
        (_model(_scaled(lambda d: 1 / d)), _model(_scaled(math.sqrt)), _scaled_by_value),
    ),
    Mistake(
        "unnormalised",
        "You multiply the values by the exponentials and never divide by their sum.",
        tuple(
            _model(swap(normalize=normalize))
            for normalize in (_exponentials, _shifted_exponentials)
        ),
    ),
    Mistake(
        "mean of the candidates",
        "You return the plain mean of the candidates' values. The hash finds them; the softmax of "
        "their scores says how much each counts.",
        (_model(swap(normalize=_shared)),),
    ),
    Mistake(
        "best candidate alone",
        "You return the value of the candidate with the largest score. That is a search for the "
        "nearest key; attention weighs all candidates.",
        (_model(swap(normalize=_largest)),),
    ),
    Mistake(
        "softmax over the query axis",
        "Your softmax runs over the queries that find a key. It runs over the keys that a query "
        "finds, the last axis of the scores.",
        (
            _model(swap(normalize=lambda scores: r.softmax_or_zeros(scores, -2))),
            _model(swap(normalize=lambda scores: r.softmax(scores, -2))),
        ),
    ),
    Mistake(
        "key used as value",
        "Your output is made of the keys. The keys are for the scores; the values are what is "
        "added up.",
        (_key_for_value,),
    ),
    Mistake(
        "weights returned",
        "You return the weights. Multiply them by the values of the candidates.",
        (_weights,),
    ),
    Mistake(
        *EMPTY_ROW,
        (
            _of_empty_rows(lambda query, key, value: np.nan),
            _model(swap(normalize=r.softmax)),
        ),
    ),
    Mistake(
        "empty row uniform",
        "A query that shares no bucket with any key gets the mean of all values. A large negative "
        "number in the place of −∞ does that: where every score is the same number, all keys "
        "count the same. Give such a query zeros.",
        (_of_empty_rows(lambda query, key, value: np.mean(value, axis=0)),),
    ),
    Mistake(
        "empty row sees everything",
        "A query that shares no bucket with any key attends to all keys. That is the full cost "
        "again, for the very queries that the keys are far from. Give it zeros.",
        (_of_empty_rows(lambda query, key, value: r.RIGHT.output(query, key, value)),),
    ),
    Mistake(
        "empty rows left out",
        "Queries that find no key are missing from your result, so later rows move up. Keep a row "
        "of zeros for each.",
        (_rows_left_out,),
    ),
    Mistake(
        "no maximum",
        "exp overflows at large scores: subtract the largest score of the candidates first. The "
        "weights are the same.",
        (_model(swap(normalize=lambda scores: _guarded(np.exp(scores)))),),
    ),
    Mistake(
        "maximum over all keys",
        "You subtract the largest score of all keys, or of all queries. Where the candidates lie "
        "far below it their exponentials underflow, and the query comes out as 0 or NaN. Subtract "
        "the largest score of the candidates of each query.",
        (
            *(
                _model(swap(hide=lambda scores, mask: scores, normalize=normalize, finish=finish))
                for normalize in (r.softmax, r.over_all)
                for finish in (_late_normalized, _late_or_zeros)
            ),
            _model(swap(normalize=lambda scores: _guarded(_below_the_largest(scores)))),
            _model(swap(normalize=_below_or_zeros)),
        ),
    ),
    Mistake(
        "signatures in fewer bits",
        "You turn the signatures into floats, or into integers of 32 bits, and different ones "
        "become equal. A float64 holds 53 bits exactly and a float32 holds 24: compare int64.",
        tuple(
            _model(meets=_as_dtype(dtype))
            for dtype in ("float64", "float32", "int32", "int16", "int8")
        ),
    ),
)


def _first_that_found(outputs, found):
    """Return the output of the first table whose bucket is not empty."""
    first = np.argmax(found, axis=0)
    return np.take_along_axis(outputs, first[np.newaxis], axis=0)[0]
