"""What the tables of a sketch must give, by comparing all signatures, key after key in float64."""

import math

import numpy as np


def buckets(asked, stored, alive=None):
    """Return for each query the rows of each bucket that it asks for.

    `stored` gives the signatures of a row, `asked` (n_q, L) or (n_q, L, n_probes) the queries'.
    """
    asked = np.asarray(asked)
    n_probes = 1 if asked.ndim == 2 else asked.shape[2]
    alive = range(len(stored)) if alive is None else alive
    return [
        [
            [row for row in alive if stored[row][c // n_probes] == signature]
            for c, signature in enumerate(query.ravel().tolist())
        ]
        for query in asked
    ]


def union(tables):
    """Return the different rows of the buckets of one query, ascending."""
    return sorted({row for bucket in tables for row in bucket})


def mix(estimator, tables, scores, value, chance=None):
    """Return the output of an estimator for one query, from its buckets and the scores of rows."""
    rows = union(tables)
    top = max((scores[row] for row in rows), default=0.0)
    mass = {row: math.exp(scores[row] - top) for row in rows}
    if estimator == "union":
        terms = [[(mass[row], row) for row in rows]]
    elif estimator == "duplicates":
        terms = [[(mass[row], row) for bucket in tables for row in bucket]]
    elif estimator == "importance":
        terms = [[(mass[row] / float(chance[row]), row) for row in rows]]
    else:
        terms = [[(mass[row], row) for row in bucket] for bucket in tables if bucket]
    output = np.zeros(value.shape[1])
    for term in terms:  # of a softmax each: pairs of a weight before normalisation and a row
        total = math.fsum(weight for weight, _ in term)
        for weight, row in term:
            output += weight / total * value[row]
    return output / len(terms) if estimator == "per_table_mean" and terms else output
