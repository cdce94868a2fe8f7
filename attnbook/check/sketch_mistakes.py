"""Attention over buckets in steps, and the ways to get each wrong."""

from collections.abc import Callable

import numpy as np

from attnbook.check import normalization as soft
from attnbook.check import steps
from attnbook.check import weights as w
from attnbook.check.outputs import ATTENTION_MISTAKES, ATTENTION_STEPS, attention_from_steps
from attnbook.check.scores import hide_nothing
from attnbook.check.sentences import mistakes, sentences
from attnbook.check.steps import Mistake, Way


def _meets_in(query_signatures, key_signatures):
    """Return where query and key share the bucket of a table, (n_q, n_k, n_tables)."""
    return query_signatures[:, np.newaxis] == key_signatures


def candidates(query_signatures, key_signatures):
    return np.any(_meets_in(query_signatures, key_signatures), axis=-1)


SKETCH_STEPS: dict[str, Callable] = {
    **ATTENTION_STEPS,
    "signatures": lambda signatures: signatures,
    "meets": _meets_in,
    "join": lambda meets: np.any(meets, axis=-1),
    "combine": lambda s, meets, *arrays: attention_from_steps(s, *arrays, mask=s.join(meets)),
    "rows": lambda output, meets: output,
}


def sketch_from_steps(s, query, key, value, query_signatures, key_signatures):
    """Return the output by the steps `s`."""
    meets = s.meets(s.signatures(query_signatures), s.signatures(key_signatures))
    return s.rows(s.combine(s, meets, query, key, value), meets)


def _counted(s, meets, *arrays):
    """Count a key once in each table where it is found: t copies of exp(s) are exp(s + log t)."""
    counts = np.sum(meets, axis=-1)
    return attention_from_steps(s, *arrays, mask=counts > 0, bias=np.log(np.maximum(counts, 1)))


def _by_table(join: Callable) -> Way:
    """Return what `join(outputs, found)` makes of one softmax a table, (n_tables, n_q, d_v)."""

    def combine(s, meets, *arrays):
        masks = np.moveaxis(meets, -1, 0)
        outputs = np.stack([attention_from_steps(s, *arrays, mask=mask) for mask in masks])
        return join(outputs, np.any(masks, axis=-1)[..., np.newaxis])

    return {"combine": combine}


def _at_least_1(counts):
    return np.maximum(counts, 1)[:, np.newaxis]


_OF_TABLES = mistakes(
    """
    duplicates kept: A key that is found in several tables counts several times: t buckets give it t
        times the weight. Take the union of the buckets, each key once.
    every table: You ask for the same bucket in every table. One table is enough: the tables are
        joined by OR (any), and it is the projections within a table that are joined by AND.
    two tables or more: You ask for the same bucket in at least two tables, or in half of them. One
        is enough: more tables are there to find more keys.
    sum over the tables: You take a softmax in each table and add the results up. The weights of a
        query then sum to the number of its tables that hold something, not to 1. Join the buckets
        first, and take one softmax.
    mean over all tables: You take a softmax in each table and divide their sum by the number of
        tables. A table whose bucket is empty adds nothing but is counted, so the weights sum to
        less than 1. Join the buckets first, and take one softmax.
    mean over the tables: You take a softmax in each table and the mean over the tables that hold
        something. The weights sum to 1, but a key found by two tables counts twice, and one that is
        alone in its bucket gets all of a table. Join the buckets first, and take one softmax.
    one table alone: You look into one table: the first, the last, or the first in which the query
        finds something. A near key may be missed by one table; that is why there are several. Look
        into all of them.
    one table left out: You leave out the first or the last table. Look into all of them.
    tables mixed up: You compare signatures of different tables: the signature of a query in table t
        with that of a key in another. Each table has its own directions, so that equality means
        nothing.
    signatures added up: You add the signatures of all tables up and compare the sums. Compare table
        by table.
    signatures in fewer bits: You turn the signatures into floats, keep some of their bits, or take
        a remainder, and different ones become equal. A float64 holds 53 bits exactly and a float32
        holds 24: compare int64.
    empty rows left out: Queries that find no key are missing from your result, so later rows move
        up. Keep a row of zeros for each.
    exactly one table: You leave out keys that are found in several tables: you ask for the same
        bucket in exactly one, or in an odd number of them, as an exclusive or does. One or more is
        right.
    most tables alone: You keep the keys that are found in the most tables alone. One table is
        enough for any key.
    one key a bucket: Each bucket of yours holds one key, the last that was put in or the first.
        Keys of one signature share a bucket: collect them in a list.
    first query for all: You look up the signatures of the first query for every query. Each has
        signatures of its own.
    sign of the signatures: You take the absolute value of the signatures, or compare them by < or
        >. A bucket has one number, positive or negative: compare by ==.
    divided by a number: You divide the output by the number of candidates or of tables. The weights
        of the candidates sum to 1 already.
    """,
    {
        "duplicates kept": {"combine": _counted},
        "every table": {"join": lambda meets: np.all(meets, axis=-1)},
        "two tables or more": steps.each(
            "join",
            lambda meets: np.sum(meets, axis=-1) > 1,
            lambda meets: 2 * np.sum(meets, axis=-1) > meets.shape[-1],
            lambda meets: 2 * np.sum(meets, axis=-1) >= meets.shape[-1],
        ),
        "exactly one table": steps.each(
            "join",
            lambda meets: np.sum(meets, axis=-1) == 1,
            lambda meets: np.sum(meets, axis=-1) % 2 == 1,
        ),
        "most tables alone": {
            "join": lambda meets: (
                np.any(meets, axis=-1)
                & (meets.sum(axis=-1) == np.max(meets.sum(axis=-1), axis=-1, keepdims=True))
            )
        },
        "sum over the tables": _by_table(lambda outputs, found: np.sum(outputs, axis=0)),
        "mean over all tables": _by_table(lambda outputs, found: np.mean(outputs, axis=0)),
        "mean over the tables": _by_table(
            lambda outputs, found: outputs.sum(axis=0) / np.maximum(found.sum(axis=0), 1)
        ),
        "one table alone": (
            *steps.each("join", lambda meets: meets[..., 0], lambda meets: meets[..., -1]),
            _by_table(  # the first whose bucket is not empty
                lambda outputs, found: outputs[found.argmax(0)[:, 0], np.arange(len(outputs[0]))]
            ),
        ),
        "one key a bucket": steps.each(
            "join",
            lambda meets: np.any(meets & (np.cumsum(meets, axis=1) == 1), axis=-1),
            lambda meets: np.any(
                meets & (np.cumsum(meets[:, ::-1], axis=1)[:, ::-1] == 1), axis=-1
            ),
        ),
        "one table left out": steps.each(
            "join",
            lambda meets: np.any(meets[..., :-1], axis=-1),
            lambda meets: np.any(meets[..., 1:], axis=-1),
        ),
        "tables mixed up": steps.each(
            "meets",
            lambda query, key: np.any(query[:, None, :, None] == key[:, None], axis=-1),
            lambda query, key: _meets_in(query, key[:, ::-1]),
        ),
        "signatures added up": {"signatures": lambda x: np.sum(x, axis=-1, keepdims=True)},
        "first query for all": {
            "meets": lambda query, key: _meets_in(np.broadcast_to(query[:1], query.shape), key)
        },
        "sign of the signatures": (
            {"signatures": np.abs},
            *steps.each(
                "meets",
                *(
                    lambda query, key, f=f: f(query[:, np.newaxis], key)
                    for f in (np.less_equal, np.greater_equal)
                ),
            ),
        ),
        "divided by a number": steps.each(
            "rows",
            lambda output, meets: output / _at_least_1(np.any(meets, axis=-1).sum(axis=-1)),
            lambda output, meets: output / _at_least_1(np.sum(meets, axis=(1, 2))),
            lambda output, meets: output / meets.shape[-1],
        ),
        "signatures in fewer bits": steps.each(
            "signatures",
            *(lambda x, n=n: x % n for n in (4, 8, 16, 64, 1024)),
            *(lambda x, t=t: x.astype(t) for t in ("float64", "float32", "int32", "int16", "int8")),
        ),
        "empty rows left out": {"rows": lambda output, meets: output[np.any(meets, axis=(1, 2))]},
    },
)

_TEXTS = sentences(
    """
    buckets ignored: You attend to every key, as if the signatures were not there. That is exact
        attention, whose cost a sketch is there to avoid.
    candidates inverted: You attend to the keys that share no bucket with the query. Those that
        share one are the candidates.
    softmax over all keys: You take the softmax over all keys and then drop those that are no
        candidates. The weights that are left sum to less than 1, and every key was scored. Take the
        softmax over the candidates alone.
    score 0 for the others: You set the scores of the other keys to 0, which still gives them exp(0)
        = 1 in the softmax. Leave them out, or set their scores to −∞.
    unnormalised: You multiply the values by the exponentials and never divide by their sum.
    mean of the candidates: You return the plain mean of the candidates' values. The hash finds
        them; the softmax of their scores says how much each counts.
    best candidate alone: You return the value of the candidate with the largest score. That is a
        search for the nearest key; attention weighs all candidates.
    query without candidates: A query that shares no bucket with any key comes out as NaN, or raises
        an error: its softmax runs over nothing. Such queries occur in every sketch. Give them
        zeros, as attention does for a query that may see nothing.
    empty row uniform: A query that shares no bucket with any key gets the mean of all values. A
        large negative number in the place of −∞ does that: where every score is the same number,
        all keys count the same. Give such a query zeros.
    empty row sees everything: A query that shares no bucket with any key attends to all keys. That
        is the full cost again, for the very queries that the keys are far from. Give it zeros.
    maximum over all keys: You subtract the largest score of all keys, or of all queries. Where the
        candidates lie far below it their exponentials underflow, and the query comes out as 0 or
        NaN. Subtract the largest score of the candidates of each query.
    """
)
_NAMES = {
    "mask inverted": "candidates inverted",
    "mask ignored": "buckets ignored",
    "mask multiplies the scores": "score 0 for the others",
    "mask after the softmax": "softmax over all keys",
    "mask after the exponential": "maximum over all keys",
    "maximum of the whole array": "maximum over all keys",
    "maximum over the wrong axis": "maximum over all keys",
    "empty row NaN": "query without candidates",
    "mask with a large negative number": "empty row uniform",
    "empty row uniform": "empty row uniform",
    "empty row sees everything": "empty row sees everything",
    "mean of the values": "mean of the candidates",
    "hard look-up": "best candidate alone",
    "not normalised": "unnormalised",
}
"""What the mistakes of attention with a mask are called where the mask is made of buckets."""

_OF_ATTENTION = steps.renamed(
    steps.without(
        ATTENTION_MISTAKES, w.DOT_ON_A_BATCH[0], *(mistake.name for mistake in w.BATCH_MISTAKES)
    ),
    {old: (new, _TEXTS[new]) for old, new in _NAMES.items()},
)


def _late(shift: Callable, divide: Callable) -> Way:
    """Return the way that takes the exponentials of all keys and hides some of them afterwards."""
    return {
        "hide": hide_nothing,
        "shift": shift,
        "divide": lambda powers, total: powers,
        "after": lambda powers, mask, *others: np.where(
            np.any(mask, axis=-1, keepdims=True),
            divide(powers * mask, np.sum(powers * mask, axis=-1, keepdims=True)),
            0,
        ),
    }


_FIRST = ("+∞ or NaN for hidden scores", "query without candidates", "empty row sees everything")
SKETCH_MISTAKES = (
    *_OF_TABLES,
    *steps.only(_OF_ATTENTION, *_FIRST),  # before those of a maximum, which make NaN of them too
    *steps.without(_OF_ATTENTION, *_FIRST),
    Mistake(
        "maximum over all keys",
        _TEXTS["maximum over all keys"],
        tuple(
            _late(shift, divide)
            for shift in (soft.plain_maximum, lambda x, axis: np.max(x))
            for divide in (soft.unguarded, soft.guarded)
        ),
    ),
)
