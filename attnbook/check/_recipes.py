"""Attention in steps, each of which can be swapped for a wrong one.

A mistake in the weights is a `Recipe` with one step replaced. The checks of the weights, of the
output, of the learned head and of the gradient all compute their models from the same recipes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


def transposed(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def normalized(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return x / np.sum(x, axis=axis, keepdims=True)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return normalized(np.exp(x - np.max(x, axis=axis, keepdims=True)), axis)


# Wrong ways to normalise. Each takes scores and an axis.


def without_maximum(x, axis=-1):
    return normalized(np.exp(x), axis)


def with_global_maximum(x, axis=-1):
    return normalized(np.exp(x - np.max(x)), axis)


def shifted_by_minimum(x, axis=-1):
    return normalized(np.exp(x - np.min(x, axis=axis, keepdims=True)), axis)


def shifted_by_mean(x, axis=-1):
    return normalized(np.exp(x - np.mean(x, axis=axis, keepdims=True)), axis)


def shifted_by_median(x, axis=-1):
    return normalized(np.exp(x - np.median(x, axis=axis, keepdims=True)), axis)


def shifted_by_first(x, axis=-1):
    return normalized(np.exp(x - np.take(x, [0], axis=axis)), axis)


OTHER_SHIFTS = (shifted_by_minimum, shifted_by_mean, shifted_by_median, shifted_by_first)


def only_exp(x, axis=-1):
    return np.exp(x)


def only_shifted_exp(x, axis=-1):
    return np.exp(x - np.max(x, axis=axis, keepdims=True))


def only_sum(x, axis=-1):
    return normalized(x, axis)


def over_all(x, axis=-1):
    weights = np.exp(x - np.max(x))
    return weights / np.sum(weights)


def by_length(x, axis=-1):
    weights = np.exp(x)
    return weights / np.sqrt(np.sum(weights**2, axis=axis, keepdims=True))


def by_length_of_scores(x, axis=-1):
    return x / np.sqrt(np.sum(x**2, axis=axis, keepdims=True))


def of_squares(x, axis=-1):
    return normalized(x**2, axis)


def of_absolutes(x, axis=-1):
    return normalized(np.abs(x), axis)


def logarithm(x, axis=-1):
    return np.log(softmax(x, axis))


def base_two(x, axis=-1):
    return softmax(x * math.log(2), axis)


def of_negative(x, axis=-1):
    return softmax(-x, axis)


def twice(x, axis=-1):
    return softmax(softmax(x, axis), axis)


def hard(x, axis=-1):
    return np.where(x == np.max(x, axis=axis, keepdims=True), 1.0, 0.0)


def sigmoid(x, axis=-1):
    return 1 / (1 + np.exp(-x))


def uniform(x, axis=-1):
    return np.full_like(x, 1 / x.shape[axis])


def sum_without_keepdims(x, axis=-1):
    weights = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return weights / np.sum(weights, axis=axis)


def maximum_without_keepdims(x, axis=-1):
    return normalized(np.exp(x - np.max(x, axis=axis)), axis)


def both_without_keepdims(x, axis=-1):
    weights = np.exp(x - np.max(x, axis=axis))
    return weights / np.sum(weights, axis=axis)


def exp_sum_without_keepdims(x, axis=-1):
    return np.exp(x) / np.sum(np.exp(x), axis=axis)


# The steps of attention.


def dot_products(query, key):
    return query @ transposed(key)


def one_over_root(query, key, scale):
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def times(scores, factor):
    return scores * factor


def add(scores, bias, factor):
    return scores + bias


def hide(scores, mask):
    return np.where(mask, scores, -np.inf)


def softmax_or_zeros(scores, axis=-1):
    finite = np.any(scores > -np.inf, axis=axis, keepdims=True)
    return np.where(finite, softmax(np.where(finite, scores, 0), axis), 0)


@dataclass(frozen=True)
class Recipe:
    """The weights of attention, step by step; a mistake replaces one step."""

    product: Callable = dot_products  # query, key
    factor: Callable = one_over_root  # query, key, the scale asked for
    rescale: Callable = times  # scores, factor
    add: Callable = add  # scores, bias, factor
    hide: Callable = hide  # scores, mask
    normalize: Callable = softmax_or_zeros  # scores
    finish: Callable = lambda weights, mask, bias, factor: weights

    def weights(self, query, key, *, mask=None, bias=None, scale=None):
        factor = self.factor(query, key, scale)
        scores = self.rescale(self.product(query, key), factor)
        if bias is not None:
            scores = self.add(scores, bias, factor)
        if mask is not None:
            scores = self.hide(scores, mask)
        return self.finish(self.normalize(scores), mask, bias, factor)

    def output(self, query, key, value, **options):
        return self.weights(query, key, **options) @ value


RIGHT = Recipe()


def swap(**steps: Callable) -> Recipe:
    """Return the right recipe with some steps replaced."""
    return replace(RIGHT, **steps)
