"""The ways to get the mask of attention wrong."""

from collections.abc import Callable

import numpy as np

from attnbook.check import normalization as soft
from attnbook.check.scores import hide, hide_nothing, transposed
from attnbook.check.sentences import mistakes
from attnbook.check.steps import each


def filled_with(number: float) -> dict[str, Callable]:
    return {"hide": lambda scores, mask: hide(scores, mask, number)}


def _after(function: Callable) -> dict[str, Callable]:
    """Return the way that hides weights instead of scores."""
    return {
        "hide": hide_nothing,
        "after": lambda weights, mask, *others: (
            weights if mask is None else function(weights, mask)
        ),
    }


RENORMALIZED = tuple(
    _after(lambda weights, mask, guard=guard: guard(soft.normalized(weights * mask)))
    for guard in (np.asarray, np.nan_to_num)
)
"""Zero the hidden weights and divide by the rest, with a guard or without."""

MASK_MISTAKES = mistakes(
    """
    mask inverted [torch.nn.MultiheadAttention]: your mask is inverted, since True hides a key in
        it. Here True means that the query may attend to the key: pass ~mask, or turn the condition
        round.
    mask ignored: Your function takes a mask and does not use it: every query attends to every key.
    mask multiplies the scores: A hidden key has score 0, or nearly, in your function: you multiply
        the scores by the mask, or fill with 0 or with a small number such as 1e-10. exp(0) is 1,
        not 0, and the key still gets weight. A hidden score must be −∞.
    mask added to the scores: You add the mask to the scores, where True counts as 1 and False as 0:
        a small push, and nothing is hidden. A hidden score must be −∞.
    mask transposed: Your mask is transposed: its rows are the queries and its columns the keys.
        With a causal mask this shows each query the future and hides the past.
    mask after the softmax: You set hidden weights to zero after the softmax, so what they had is
        lost and the rows no longer sum to one. Hide the scores, with −∞, before the softmax.
    −∞ after the softmax: You set hidden weights to −∞, after the softmax. −∞ belongs to the scores:
        exp makes zero of it, and the softmax after that.
    mask after the exponential: You take exp of all scores, hidden ones too, and zero the hidden
        ones afterwards. A hidden score far above the others makes every visible exponential
        underflow, and 0/0 is NaN, or zeros if you guard it. Hide the scores, with −∞, before the
        maximum.
    mask with a large negative number: You hide scores with a large negative number. Scores that are
        lower still are outbid by it, and the hidden keys win. Only −∞ is below every score.
    0 times infinity: You multiply −∞ by a mask of 0 and 1. 0 · ∞ is NaN, so the scores that should
        stay are lost. Choose instead of multiplying: where(mask, scores, −∞).
    +∞ or NaN for hidden scores: You hide scores with +∞ or with NaN, which makes NaN of the whole
        row: ∞ − ∞ is NaN, and so is each sum with a NaN in it. A hidden score must be −∞.
    empty row NaN: A query that may attend to nothing gives NaN: its scores are all −∞, and −∞ −
        (−∞) and 0/0 are NaN. Such a row must be zero: shift it by 0 instead of its maximum, divide
        it by 1.
    empty row uniform: A query that may attend to nothing attends to everything: its hidden scores
        are all equal, so the softmax spreads the weight evenly. Such a row must be zero.
    mask that hides everything dropped: A mask without a single True is treated as no mask, as with
        `mask if mask.any() else None`: every query attends to all keys. All rows must be zero.
    empty row sees everything: A query that may attend to nothing attends to every key, as if it had
        no mask: what was to be hidden leaks. Such a row must be zero.
    hidden scores not low enough: You give hidden scores a number such as −1 or −10, or take such a
        number away from them. exp does not make 0 of it, so hidden keys keep some weight. A hidden
        score must be −∞.
    mask in another order: Your mask is reversed along an axis, or moved by one place, before it
        hides anything. Its row i belongs to query i, and its column j to key j.
    own place always visible: Each query sees the key at its own place, where the mask hides it too.
        Use the mask as it is given.
    """,
    {
        "mask inverted": (
            {"see": lambda mask: ~mask},
            *each("hide", lambda s, mask: s + mask * -1e9, lambda s, mask: hide(s, ~mask, -1e9)),
        ),
        "mask ignored": {"hide": hide_nothing},
        "mask multiplies the scores": {"hide": lambda s, mask: s * mask},
        "mask added to the scores": each(
            "hide", lambda s, mask: s + mask, lambda s, mask: s - mask, lambda s, mask: s - ~mask
        ),
        "mask transposed": {"see": transposed},
        "mask after the softmax": _after(lambda weights, mask: weights * mask),
        "−∞ after the softmax": _after(hide),
        "mask after the exponential": RENORMALIZED,
        "mask with a large negative number": (
            filled_with(-1e9),
            *each("hide", *(lambda s, mask, by=by: s - by * ~mask for by in (1e9, 1e6, 1e4))),
        ),
        "hidden scores not low enough": (
            *map(filled_with, (-1.0, -2.0, -3.0, -4.0, -5.0, -8.0, -10.0, -15.0, -20.0)),
            *each(
                "hide",
                *(lambda s, mask, by=by: hide(s, mask, s - by) for by in (2.0, 5.0, 10.0)),
                lambda s, mask: hide(s, mask, np.min(s)),
                lambda s, mask: hide(s, mask, -np.max(np.abs(s))),
                lambda s, mask: hide(s, mask, np.min(s, axis=-1, keepdims=True)),
            ),
        ),
        "mask in another order": each(
            "see",
            lambda mask: np.flip(mask, -1),
            lambda mask: np.flip(mask, -2),
            lambda mask: np.flip(mask, (-1, -2)),
            lambda mask: np.roll(mask, 1, -1),
            lambda mask: np.roll(mask, -1, -1),
            lambda mask: np.roll(mask, 1, -2),
            lambda mask: np.roll(mask, -1, -2),
        ),
        "own place always visible": each(
            "see", lambda mask: mask | (np.eye(*mask.shape[-2:]) == 1)
        ),
        "0 times infinity": each(
            "hide",
            lambda s, mask: s + (1.0 - mask) * -np.inf,
            lambda s, mask: s + mask * -np.inf,
        ),
        "+∞ or NaN for hidden scores": filled_with(np.inf),
        "empty row NaN": {"divide": soft.unguarded},
        "empty row uniform": filled_with(-1e30),
        "mask that hides everything dropped": {"see": lambda mask: mask if mask.any() else ~mask},
        "empty row sees everything": {
            "see": lambda mask: mask | ~np.any(mask, axis=-1, keepdims=True)
        },
    },
)
