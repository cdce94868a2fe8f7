"""The mistakes that every attention can make with its weights."""

import math
from typing import Any

import numpy as np

from attnbook.check import _recipes as r
from attnbook.check._recipes import Recipe, swap
from attnbook.check._softmax import GLOBAL_MAXIMUM, NO_MAXIMUM, OTHER_SHIFT


def scaled_by(factor: Any) -> Recipe:
    """Return the recipe whose default scale is `factor(query, key)`."""
    return swap(factor=lambda q, k, scale: factor(q, k) if scale is None else scale)


def _unit(x):
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True))


def _cosines(query, key):
    return r.dot_products(_unit(query), _unit(key))


def _filled_with(number):
    return swap(hide=lambda scores, mask: np.where(mask, scores, number))


def _masked_late(weights, mask, bias, factor):
    return weights if mask is None else weights * mask


def _masked_late_normalized(weights, mask, bias, factor):
    return weights if mask is None else r.normalized(weights * mask)


def _masked_late_guarded(weights, mask, bias, factor):
    return np.nan_to_num(_masked_late_normalized(weights, mask, bias, factor))


RENORMALIZED = (_masked_late_normalized, _masked_late_guarded)
"""Ways to finish: zero the hidden weights and divide by the rest, with a guard or without."""


def _for_matrices(product, axis, width):
    """Return the recipe of a reader who thinks of two axes only."""
    return swap(
        product=product,
        normalize=lambda s: r.softmax_or_zeros(s, axis),
        factor=lambda q, k, scale: 1 / math.sqrt(width(q, k)) if scale is None else scale,
    )


def _reversed_axes(query, key):
    return query @ key.T


_WIDTHS = (lambda q, k: q.shape[-1], lambda q, k: q.shape[1], lambda q, k: k.shape[1])

ON_A_BATCH = {
    "all axes reversed": tuple(
        _for_matrices(_reversed_axes, axis, width) for axis in (-1, 1) for width in _WIDTHS
    ),
    "softmax over axis 1 of a batch": tuple(
        _for_matrices(r.dot_products, 1, width) for width in _WIDTHS
    ),
    "width from shape[1]": tuple(_for_matrices(r.dot_products, -1, width) for width in _WIDTHS[1:]),
}
"""Mistakes that show on a batch only; they come together, and the first is told first."""

WEIGHT_MISTAKES: tuple[tuple[str, str, tuple[Recipe, ...]], ...] = (
    (
        "no scale",
        "Your weights are those of attention without the 1/√d_k: dot products of d_k terms grow "
        "like √d_k, and the softmax saturates. Divide the scores by √d_k before the softmax.",
        (scaled_by(lambda q, k: 1.0),),
    ),
    (
        "scale by d_k",
        "You divide the scores by d_k; the root is missing. A sum of d_k independent terms has "
        "standard deviation √d_k, so dividing by d_k makes the weights ever more equal.",
        (scaled_by(lambda q, k: 1 / q.shape[-1]),),
    ),
    (
        "scale multiplied",
        "You multiply the scores by √d_k where they are to be divided by it. The scores grow "
        "instead of shrinking, and one key takes nearly all the weight.",
        (scaled_by(lambda q, k: math.sqrt(q.shape[-1])),),
    ),
    (
        "scale by √n_k",
        "You divide by √n_k, the root of the number of keys. What makes the scores large is the "
        "number of terms in each dot product, which is the width d_k: the last axis of the key.",
        (scaled_by(lambda q, k: 1 / math.sqrt(k.shape[-2])),),
    ),
    (
        "scale by √n_q",
        "You divide by √n_q, the root of the number of queries. What makes the scores large is the "
        "number of terms in each dot product, which is the width d_k: the last axis of the query.",
        (scaled_by(lambda q, k: 1 / math.sqrt(q.shape[-2])),),
    ),
    (
        "scale after the softmax",
        "You apply 1/√d_k to the weights, after the softmax. Then the softmax has saturated "
        "already, and the rows sum to 1/√d_k. Scale the scores, before the softmax.",
        (
            swap(
                rescale=lambda scores, factor: scores,
                finish=lambda weights, mask, bias, factor: weights * factor,
            ),
        ),
    ),
    (
        "softmax over the query axis",
        "Your softmax runs over the queries: the columns sum to one. Each query shares its "
        "attention among the keys, so each row must sum to one: the softmax belongs to the last "
        "axis.",
        (swap(normalize=lambda s: r.softmax(s, -2)),),
    ),
    (
        "no softmax",
        "Your weights are the scaled scores themselves. Without the softmax they may be negative "
        "and do not sum to one, so nothing that they weigh is a mean.",
        (swap(normalize=lambda s: s),),
    ),
    (
        "key not transposed",
        "You multiply query and key without transposing the key. It runs only because n_k = d_k "
        "here, and mixes features with tokens. A score is the dot product of two rows, one of the "
        "query and one of the key.",
        (swap(product=lambda q, k: q @ k),),
    ),
    (
        "cosine similarity",
        "You compare directions only: each query and key is divided by its length before the dot "
        "product. Plain attention keeps the lengths, with which a model says how sure it is.",
        (swap(product=_cosines), swap(product=_cosines, factor=lambda q, k, scale: 1.0)),
    ),
    (
        "not normalised",
        "Your weights are exponentials that nobody divided by their sum, so the rows do not sum "
        "to one. Divide each row by its sum.",
        (swap(normalize=r.only_exp), swap(normalize=r.only_shifted_exp)),
    ),
    (
        "no exponential",
        "You divide the scores by their sum without taking exp first. Scores may be negative and "
        "their sum may be zero; exp makes each one positive before the division.",
        (swap(normalize=r.only_sum),),
    ),
    (
        "one sum for all",
        "All weights together sum to one: you divide by the sum over all queries. Each query "
        "shares out one unit of attention, so each row needs its own sum.",
        (swap(normalize=r.over_all),),
    ),
    (
        "sign of the scores",
        "The smallest score gets the largest weight: a minus sign has crept in between the dot "
        "product and exp. Look also at the order in which score and maximum are subtracted.",
        (
            swap(normalize=r.of_negative),
            swap(product=lambda q, k: -r.dot_products(q, k)),  # before hidden scores are −∞
        ),
    ),
    (
        "softmax twice",
        "You apply the softmax to weights that are already softmaxed. They lie between 0 and 1, so "
        "the second pass makes them nearly equal. Apply it once.",
        (swap(normalize=r.twice),),
    ),
    (
        "logarithm returned",
        "You use the logarithm of the softmax as weights. They are negative; their exponentials "
        "sum to one, not they themselves.",
        (swap(normalize=r.logarithm),),
    ),
    (
        "sigmoid",
        "You apply the sigmoid to each score on its own, so the keys do not compete and a row does "
        "not sum to one. Attention divides by the sum over the keys.",
        (swap(normalize=r.sigmoid),),
    ),
    (
        "hard maximum",
        "All weight goes to the best key, and the others get none: a hard look-up. Attention is "
        "the soft one: every key gets a share, so that gradients can flow.",
        (swap(normalize=r.hard),),
    ),
    (
        "scores ignored",
        "Every key gets the same weight, whatever the query asks for: the scores never reach the "
        "weights.",
        (swap(normalize=r.uniform),),
    ),
    (
        "keepdims forgotten",
        "The axis that you reduce is gone, so row i is combined with the maximum or the sum of row "
        "j. It runs only where n_q = n_k, or with one query. Pass keepdims=True.",
        tuple(
            swap(normalize=wrong)
            for wrong in (
                r.sum_without_keepdims,
                r.maximum_without_keepdims,
                r.both_without_keepdims,
                r.exp_sum_without_keepdims,
            )
        ),
    ),
    (*NO_MAXIMUM, (swap(normalize=r.without_maximum),)),
    (*GLOBAL_MAXIMUM, (swap(normalize=r.with_global_maximum),)),
    (*OTHER_SHIFT, tuple(swap(normalize=shifted) for shifted in r.OTHER_SHIFTS)),
    (
        "all axes reversed",
        "On a batch, .T reverses all axes: batch and tokens change places, and where the sizes "
        "fit by chance the numbers are wrong. Exchange the last two axes only.",
        ON_A_BATCH["all axes reversed"],
    ),
    (
        "softmax over axis 1 of a batch",
        "For a matrix axis 1 is the axis of the keys, for a batch it is that of the queries. "
        "Write −1, which is the last axis of any array.",
        ON_A_BATCH["softmax over axis 1 of a batch"],
    ),
    (
        "width from shape[1]",
        "You read d_k from shape[1]. For a batch that is the number of tokens. Read it from "
        "shape[-1], which is the width of any array.",
        ON_A_BATCH["width from shape[1]"],
    ),
    (
        "mask inverted",
        "Your mask is inverted: it hides what it should show. Here True means that the query may "
        "attend to the key. Other libraries have it the other way round, which is why it is worth "
        "a test.",
        (swap(hide=lambda s, mask: r.hide(s, ~mask)),),
    ),
    (
        "mask ignored",
        "Your function takes a mask and does not use it: every query still attends to every key.",
        (swap(hide=lambda s, mask: s),),
    ),
    (
        "mask multiplies the scores",
        "You multiply the scores by the mask, so a hidden key has score 0. exp(0) is 1, not 0, and "
        "the key still gets weight. A hidden score must be −∞.",
        (swap(hide=lambda s, mask: s * mask),),
    ),
    (
        "mask added to the scores",
        "You add the mask to the scores, where True counts as 1 and False as 0: a small push, and "
        "nothing is hidden. A hidden score must be −∞.",
        (swap(hide=lambda s, mask: s + mask),),
    ),
    (
        "mask transposed",
        "Your mask is transposed: its rows are the queries and its columns the keys. With a causal "
        "mask this shows each query the future and hides the past.",
        (swap(hide=lambda s, mask: r.hide(s, r.transposed(mask))),),
    ),
    (
        "mask after the softmax",
        "You set hidden weights to zero after the softmax, so what they had is lost and the rows "
        "no longer sum to one. Hide the scores, with −∞, before the softmax.",
        (swap(hide=lambda s, mask: s, finish=_masked_late),),
    ),
    (
        "mask after the exponential",
        "You take exp of all scores, hidden ones too, and zero the hidden ones afterwards. A "
        "hidden score far above the others makes every visible exponential underflow, and 0/0 is "
        "NaN, or a row of zeros if you guard it. Hide the scores, with −∞, before the maximum is "
        "taken.",
        tuple(swap(hide=lambda s, mask: s, finish=finish) for finish in RENORMALIZED),
    ),
    (
        "mask with a large negative number",
        "You hide scores with a large negative number. Scores that are lower still are outbid by "
        "it, and the hidden keys win. Only −∞ is below every score.",
        (_filled_with(-1e9),),
    ),
    (
        "empty row NaN",
        "A query that may attend to nothing gives NaN: its scores are all −∞, and −∞ − (−∞) and "
        "0/0 are NaN. Such a row must be zero: shift it by 0 instead of by its maximum, and divide "
        "it by 1 instead of by its sum.",
        (swap(normalize=r.softmax),),
    ),
    (
        "empty row uniform",
        "A query that may attend to nothing attends to everything: its hidden scores are all "
        "equal, so the softmax spreads the weight evenly. Such a row must be zero.",
        (_filled_with(-1e30),),
    ),
)
"""Name, sentence and recipes of each, the more plausible first."""

OPTION_MISTAKES: tuple[tuple[str, str, tuple[Recipe, ...]], ...] = (
    (
        "scale ignored",
        "Your function takes `scale` and does not use it. Where it is given it takes the place of "
        "1/√d_k.",
        (swap(factor=lambda q, k, scale: r.one_over_root(q, k, None)),),
    ),
    (
        "scale on top of 1/√d_k",
        "You apply `scale` and 1/√d_k, both. Where a scale is given it takes the place of 1/√d_k.",
        (
            swap(
                factor=lambda q, k, scale: (
                    r.one_over_root(q, k, None) * (1 if scale is None else scale)
                )
            ),
        ),
    ),
    (
        "scale divides",
        "You divide the scores by `scale`. It is the factor itself, 1/√d_k by default, so the "
        "scores are multiplied by it.",
        (
            swap(
                factor=lambda q, k, scale: 1 / (math.sqrt(q.shape[-1]) if scale is None else scale)
            ),
        ),
    ),
    (
        "bias ignored",
        "Your function takes `bias` and does not use it. It is added to the scores before the "
        "softmax.",
        (swap(add=lambda s, bias, factor: s),),
    ),
    (
        "bias before the scale",
        "You add the bias before you scale the scores, so the bias is scaled as well. Scale first, "
        "then add it.",
        (swap(add=lambda s, bias, factor: s + bias * factor),),
    ),
    (
        "bias subtracted",
        "You subtract the bias from the scores. It is added.",
        (swap(add=lambda s, bias, factor: s - bias),),
    ),
    (
        "bias multiplies the scores",
        "You multiply the scores by the bias. It is added.",
        (swap(add=lambda s, bias, factor: s * bias),),
    ),
    (
        "bias after the softmax",
        "You add the bias to the weights, after the softmax, so the rows no longer sum to one. Add "
        "it to the scores.",
        (
            swap(
                add=lambda s, bias, factor: s,
                finish=lambda weights, mask, bias, factor: (
                    weights if bias is None else weights + bias
                ),
            ),
        ),
    ),
)
"""Those made with `scale` and `bias`."""
