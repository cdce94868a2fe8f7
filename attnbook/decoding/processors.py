r"""Logits processors: functions that change the scores of the next token before one is chosen.

A **logits processor** is a pure function ``(log_p, prefixes) -> log_p``. `log_p` (rows, V) holds a
score for every next token of every sequence. At first the scores are the model's log p, and a score
of −∞ bans a token. The result need not be normalised, because a draw takes its softmax. `prefixes`
holds one `Prefix` for each row. The result is ignored for a sequence that has ended or still reads
its prompt.
The processors of this module return float32 for scores in half precision, because a sum over a
vocabulary in half precision stops growing long before it reaches 1. Every strategy also widens the
results of other processors.
`greedy_decode`, `sample`, `stream`, `beam_search` and `speculative_sample` apply their
``processors=`` one after the other.
"""

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from attnbook.arrays.arguments import check_array, check_int, check_number, check_positive
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import numbers_of
from attnbook.single_head.softmax import softmax_of


class Prefix(NamedTuple):
    """The tokens of one sequence so far, in NumPy.

    Attributes
    ----------
    prompt : integer array, shape (n_p,)
        The prompt of the sequence, without padding.
    made : integer array, shape (n,)
        The tokens made after the prompt.
    """

    prompt: Annotated[np.ndarray, "n_p"]
    made: Annotated[np.ndarray, "n"]


ROUNDING = 128
"""How many units in the last place a sum of probabilities may miss top_p by and still reach it."""

Processor = Callable[[Array, list[Prefix]], Array]
"""A logits processor: ``(log_p, prefixes) -> log_p``."""


def longer(
    prefixes: list[Prefix], tokens: Annotated[Array, "batch"], made: Annotated[Array, "batch"]
) -> list[Prefix]:
    """Return the prefixes, each with its new token where one was `made`."""
    ids, grows = numbers_of("tokens", tokens), numbers_of("made", made)
    return [
        Prefix(prefix.prompt, np.append(prefix.made, ids[b])) if grows[b] else prefix
        for b, prefix in enumerate(prefixes)
    ]


def temperature(temperature: float) -> Processor:
    r"""Return a processor that sharpens or flattens the distribution.

    .. math:: p_T \propto p^{1/T}

    Parameters
    ----------
    temperature : float
        The temperature T, above 0. A value below 1 favours likely tokens, and a value above 1
        flattens the distribution.

    Returns
    -------
    callable
        A processor that divides `log_p` by T. It treats a T below 1e-30 as 1e-30, and a T above
        1e30 as 1e30.

    Raises
    ------
    TypeError, ValueError
        If `temperature` is not a finite number above 0.

    References
    ----------
    Hugging Face `transformers`, TemperatureLogitsWarper; chapter `decoding`.

    Examples
    --------
    >>> temperature(2.0)(np.array([[-1.0, -4.0]]), [])
    array([[-0.5, -2. ]])
    """
    if (temperature := check_number("temperature", temperature)) == 0:
        raise ValueError(
            "temperature must be above 0, got 0; greedy_decode takes the most likely token"
        )
    divisor = min(max(temperature, 1e-30), 1e30)  # float32 holds both
    return lambda log_p, prefixes: widened(log_p) / divisor


def top_k(k: int) -> Processor:
    """Return a processor that keeps the k most likely tokens and bans the others.

    Parameters
    ----------
    k : int
        The number of tokens to keep, at least 1. Of equally likely tokens the first in the
        vocabulary stay, so that exactly k are left, whereas Hugging Face keeps all that equal the
        k-th. If k exceeds the size of the vocabulary, all tokens stay.

    Returns
    -------
    callable

    Raises
    ------
    TypeError, ValueError
        If `k` is not an int of at least 1.

    Notes
    -----
    Cost: O(V log V) per row.

    References
    ----------
    Fan et al. (2018), "Hierarchical neural story generation"; Hugging Face `transformers`,
    TopKLogitsWarper; chapter `decoding`.

    Examples
    --------
    >>> top_k(2)(np.array([[-1.0, -4.0, -1.0, -1.0]]), [])
    array([[ -1., -inf,  -1., -inf]])
    """
    k = check_int("top_k", k, at_least=1)

    def keep(log_p, prefixes):
        log_p = widened(log_p)
        xp = array_namespace(log_p)
        if k >= log_p.shape[-1]:
            return log_p
        ranked = xp.sort(log_p, axis=-1, descending=True, stable=False)
        return _best(log_p, ranked, xp.full_like(log_p[:, :1], k, dtype=xp.int64))

    return keep


def top_p(p: float) -> Processor:
    """Return a processor that keeps the nucleus: the most likely tokens, up to probability p.

    Parameters
    ----------
    p : float
        The threshold, above 0 and at most 1. The smallest set of most likely tokens stays whose
        probabilities sum to at least p, up to rounding. The most likely token always stays. Of
        equally likely tokens the first in the vocabulary stay. With p = 1 all tokens stay.

    Returns
    -------
    callable

    Raises
    ------
    TypeError, ValueError
        If `p` is not a number above 0 and at most 1.

    Notes
    -----
    The probabilities are the softmax of the scores after all earlier processors.
    A sum counts as p if it falls short of p by no more than 128 units in the last place (1.5e-5 in
    float32, 3e-14 in float64). For example, p = 0.8 keeps two of the probabilities .5, .3, .1 and
    .1, although neither their logarithms nor 0.8 are exact in floating point. Hugging Face leaves
    such a tie to rounding, which may keep one more token.
    Cost: O(V log V) per row.

    References
    ----------
    Holtzman et al. (2020), "The curious case of neural text degeneration"; Hugging Face
    `transformers`, TopPLogitsWarper; chapter `decoding`.

    Examples
    --------
    >>> np.exp(top_p(0.6)(np.log(np.array([[0.125, 0.5, 0.25, 0.125]])), [])).round(3)
    array([[0.  , 0.5 , 0.25, 0.  ]])
    """
    if not 0 < check_number("top_p", p) <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {p}")
    p = float(p)

    def keep(log_p, prefixes):
        log_p = widened(log_p)
        xp = array_namespace(log_p)
        if p == 1:
            return log_p
        ranked = xp.sort(log_p, axis=-1, descending=True, stable=False)
        total = xp.cumulative_sum(softmax_of(ranked, axis=-1), axis=-1)
        # a token stays while the better ones come to less than p: so does the one that reaches it
        least = p - ROUNDING * float(xp.finfo(log_p.dtype).eps)
        n = 1 + xp.count_nonzero(total[:, :-1] < least, axis=-1, keepdims=True)
        return _best(log_p, ranked, n)

    return keep


def min_p(p: float) -> Processor:
    r"""Return a processor that bans tokens much less likely than the most likely one.

    It bans token j if

    .. math:: p_j < p \cdot \max_l p_l

    Parameters
    ----------
    p : float
        The threshold, from 0 to 1. 0 bans nothing, and 1 keeps only the most likely tokens.

    Returns
    -------
    callable

    Raises
    ------
    TypeError, ValueError
        If `p` is not a number from 0 to 1.

    References
    ----------
    Nguyen et al. (2024), "Turning up the heat: min-p sampling for creative and coherent LLM
    outputs"; Hugging Face `transformers`, MinPLogitsWarper; chapter `decoding`.

    Examples
    --------
    >>> np.exp(min_p(0.4)(np.log(np.array([[0.125, 0.5, 0.25, 0.125]])), [])).round(3)
    array([[0.  , 0.5 , 0.25, 0.  ]])
    """
    if check_number("min_p", p) > 1:
        raise ValueError(f"min_p must be from 0 to 1, got {p}")
    log_share = math.log(p) if p else -math.inf

    def keep(log_p, prefixes):
        log_p = widened(log_p)
        xp = array_namespace(log_p)
        least = xp.max(log_p, axis=-1, keepdims=True) + log_share
        return xp.where(log_p >= least, log_p, -xp.inf)

    return keep


def repetition_penalty(penalty: float) -> Processor:
    r"""Return a processor that makes the tokens of the prefix less likely.

    .. math:: x_j \mapsto \begin{cases} \theta\, x_j & x_j < 0 \\ x_j / \theta & x_j \ge 0
              \end{cases} \qquad \text{for every token } j \text{ of the prefix}

    Parameters
    ----------
    penalty : float
        The penalty θ, above 0. A value above 1 discourages the tokens of the prompt and those made
        after it, and a value below 1 encourages them.

    Returns
    -------
    callable

    Raises
    ------
    TypeError, ValueError
        If `penalty` is not a finite number above 0.

    Notes
    -----
    This is Hugging Face's rule for each score, but the rule depends on where the zero of the scores
    is. In this package processors receive log-probabilities, which are at most 0. The rule is then
    p^θ, so a certain token stays certain, and a constant added to the logits changes nothing.
    Hugging Face does the same in beam search. When it samples, however, it applies the rule to the
    raw logits and divides positive ones, so the same θ acts differently.
    Cost: O(n + V) per row, on the host.

    References
    ----------
    Keskar et al. (2019), "CTRL: a conditional transformer language model for controllable
    generation"; Hugging Face `transformers`, RepetitionPenaltyLogitsProcessor; chapter `decoding`.

    Examples
    --------
    >>> prefix = Prefix(np.array([0]), np.array([2, 2]))
    >>> repetition_penalty(2.0)(np.array([[-1.0, -1.0, -3.0]]), [prefix])
    array([[-2., -1., -6.]])
    """
    penalty = check_positive("repetition_penalty", penalty)

    def weaken(log_p, prefixes):
        log_p = widened(log_p)
        xp = array_namespace(log_p)
        if penalty == 1:
            return log_p
        seen = np.zeros(log_p.shape, dtype=bool)
        for row, prefix in zip(seen, prefixes, strict=True):
            row[prefix.prompt] = row[prefix.made] = True
        weaker = xp.where(log_p < 0, log_p * penalty, log_p / penalty)
        return xp.where(placed(seen, log_p), weaker, log_p)

    return weaken


# The mathematics. These may rely on checked arguments.


def widened(log_p):
    """Return scores in the dtype to compute in, or raise if they are not an array."""
    check_array("log_p", log_p)
    return to_accumulate(log_p)


def _best(log_p, ranked, n):
    """Ban all but the n (rows, 1) best of each row; of equal ones the first stay."""
    xp = array_namespace(log_p)
    least = xp.take_along_axis(ranked, n - 1, axis=-1)  # the worst that stays
    better, equal = log_p > least, log_p == least
    left = n - xp.count_nonzero(better, axis=-1, keepdims=True)
    first = xp.cumulative_sum(xp.astype(equal, n.dtype), axis=-1) <= left
    return xp.where(better | (equal & first), log_p, -xp.inf)
