"""Checks for your own code: which mistake it makes, in a sentence, or that it makes none.

Each check runs a function of yours against the reference of this book on awkward sizes (primes, one
token, one key, scores of 1000, batches, masks), in every array library that is present, and
compares wrong numbers with models of the classic mistakes. Nothing that your function does ends
the check: an error, an endless loop or a wrong type becomes part of the report.

Four look at a property instead, on any function, module or model: `no_future_leak`,
`padding_invariance`, `permutation_equivariance` and `heads_are_independent`. And
`robin_hood_table` runs a hash table beside a dict and shows a short run in which they differ.

A new check is one file here, made of its function, cases and mistakes.
"""

from collections.abc import Callable

from attnbook.check._causal_mask import causal_mask
from attnbook.check._cross_entropy import cross_entropy
from attnbook.check._decoder_layer import decoder_layer
from attnbook.check._embed import embed
from attnbook.check._encoder_layer import encoder_layer
from attnbook.check._engine import run
from attnbook.check._feed_forward import feed_forward
from attnbook.check._greedy_decode import greedy_decode
from attnbook.check._layer_norm import layer_norm
from attnbook.check._masked_attention import MASKED_ATTENTION
from attnbook.check._merge_attention import merge_attention
from attnbook.check._multi_head import MULTI_HEAD_ATTENTION
from attnbook.check._positional_encoding import positional_encoding
from attnbook.check._robin_hood_table import robin_hood_table
from attnbook.check._single_head import SINGLE_HEAD
from attnbook.check._split_heads import SPLIT_HEADS
from attnbook.check._teacher_forcing import teacher_forcing
from attnbook.check._vjp import ATTENTION_VJP
from attnbook.check.collisions import collision_probability
from attnbook.check.future import no_future_leak
from attnbook.check.hashes import simhash, stable_hash
from attnbook.check.head_blocks import heads_are_independent
from attnbook.check.normalization import softmax
from attnbook.check.order import permutation_equivariance
from attnbook.check.outputs import attention
from attnbook.check.padding import padding_invariance
from attnbook.check.report import CheckFailed, Report
from attnbook.check.sketching import sketch_attention
from attnbook.check.weights import attention_weights

__all__ = [
    "CheckFailed",
    "Report",
    "attention",
    "attention_vjp",
    "attention_weights",
    "causal_mask",
    "collision_probability",
    "cross_entropy",
    "decoder_layer",
    "embed",
    "encoder_layer",
    "feed_forward",
    "greedy_decode",
    "heads_are_independent",
    "layer_norm",
    "masked_attention",
    "merge_attention",
    "multi_head_attention",
    "no_future_leak",
    "padding_invariance",
    "permutation_equivariance",
    "positional_encoding",
    "robin_hood_table",
    "simhash",
    "single_head",
    "sketch_attention",
    "softmax",
    "split_heads",
    "stable_hash",
    "teacher_forcing",
]


def single_head(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a learned head: project query, key and value, then attend.

    Runs `f` on widths that are all different primes, on a square and on inputs of one width, on
    one token, on scores of ±1000, in float64 and float32, on batches; and with a mask and a W_O if
    it takes them.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, W_Q, W_K, W_V)``, by position, on (n_q, d_query),
        (n_k, d_key), (n_k, d_value), (d_query, d_k), (d_key, d_k) and (d_value, d_v); with a
        seventh argument named `W_O`, of shape (d_v, d_out), and with `mask` if it takes them. Or
        as ``f(query, key, value, weights)`` with `attnbook.SingleHeadWeights`, if it takes that
        many. It returns the output alone, of shape (n_q, d_v), or (n_q, d_out) with a W_O.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> def my_head(query, key, value, W_Q, W_K, W_V):
    ...     return attention(query @ W_Q, key @ W_K, value)
    >>> check.single_head(my_head).mistake
    'values not projected'
    """
    return run(SINGLE_HEAD, f, time_limit)


def attention_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradients of attention with respect to query, key and value.

    Runs `f` on the sizes of `attention`, on scores of ±1000, in float64 and float32, on batches;
    and with masks, a scale and a bias, for those of these arguments that it takes.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, grad_output)``, by position, where grad_output (n_q, d_v)
        is ∂L/∂output. It returns three arrays, (grad_query, grad_key, grad_value). It may be
        written for one sequence, without leading axes. `mask`, `scale` and `bias` as in
        `attention`.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import attention_vjp, check
    >>> def my_vjp(query, key, value, grad_output):
    ...     grads = attention_vjp(query, key, value, grad_output)
    ...     return grads[1], grads[0], grads[2]
    >>> check.attention_vjp(my_vjp).mistake
    'grad_query and grad_key swapped'
    """
    return run(ATTENTION_VJP, f, time_limit)


def split_heads(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the split of the features into heads.

    Runs `f` on sizes that are all different primes, on a square, on one token, one head and heads
    of width one, in float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, n_heads)``, by position, on an array (n, h·d) and an int. It returns one
        array (h, n, d), in which head i holds the columns i·d to (i + 1)·d - 1. It may be written
        for one sequence, without leading axes, or for batches alone.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_split(x, n_heads):
    ...     n, d_model = x.shape
    ...     return x.reshape(n_heads, n, d_model // n_heads)
    >>> check.split_heads(my_split).mistake
    'bare reshape'
    """
    return run(SPLIT_HEADS, f, time_limit)


def multi_head_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check multi-head attention: project, split, attend in each head, join, project back.

    Runs `f` on a square and on inputs of different widths, on one token and on one head, on
    projections of other widths than d_model, on scores of ±1000, in float64 and float32, on
    batches; and with masks, also one for each sequence of a batch, if it takes them.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, W_Q, W_K, W_V, W_O, n_heads)``, by position, on
        (n_q, d_query), (n_k, d_key), (n_k, d_value), (d_query, h·d_k), (d_key, h·d_k),
        (d_value, h·d_v), (h·d_v, d_out) and the int h; and by name if it takes an argument `mask`
        (**True = may attend**), which is (n_q, n_k), or (batch, 1, n_q, n_k) for a batch. Or as
        ``f(query, key, value, weights)`` with `attnbook.MultiHeadWeights`, if it takes that many.
        It returns the output alone, of shape (n_q, d_out). It may be written for one sequence,
        without leading axes, or for batches alone. Where W_Q is not square, or d_v is not d_k, it
        may raise.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import attention, check, split_heads
    >>> def my_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads):
    ...     q, k, v = (
    ...         split_heads(x @ W, n_heads)
    ...         for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    ...     )
    ...     heads = attention(q, k, v)
    ...     return heads.reshape(len(query), len(W_O)) @ W_O
    >>> check.multi_head_attention(my_heads).mistake
    'bare reshape in the join'
    """
    return run(MULTI_HEAD_ATTENTION, f, time_limit)


def masked_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention with a mask that is always given.

    Runs `f` with masks of every shape that broadcasts, on scores of ±1000, on visible scores below
    -10⁴ and below -10⁹, on a row that hides everything, in float64 and float32, on batches, and
    with a mask for each sequence.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, mask)``, by position, on (n_q, d_k), (n_k, d_k),
        (n_k, d_v) and a boolean mask, **True = may attend**, of shape (n_q, n_k) or one that
        broadcasts to it: (1, n_k) for padding, (n_k,), (n_q, 1), and (batch, 1, n_k) for a batch.
        It returns the output alone, of shape (n_q, d_v). A query that may attend to nothing gets
        zeros. It may be written for one sequence, without leading axes, or for batches alone, and
        it may raise on a mask that is not (n_q, n_k).
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> check.masked_attention(lambda q, k, v, mask: attention(q, k, v, ~mask)).mistake
    'mask inverted'
    """
    return run(MASKED_ATTENTION, f, time_limit)
