r"""Scaled rotary positions: lower frequencies for texts longer than those of the first training.

.. math:: \omega_l \;\to\; \omega_l', \qquad \cos, \sin \;\to\; \alpha \cos, \alpha \sin
"""

import math
from dataclasses import dataclass

import numpy as np

from attnbook.arrays.arguments import check_bool, check_int, check_number, check_positive
from attnbook.arrays.weights import Weights
from attnbook.positions.angles import pair_of_turns

# The mathematics, of checked arguments.


def magnitude(factor: float, mscale: float = 1.0) -> float:
    """Return 0.1 · mscale · ln(factor) + 1, and 1 for a factor of at most 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


# The pieces of a model.


class RotaryScaling(Weights):
    """Base of what changes the frequencies of a `Rotary`.

    ``amplitude`` is the attention factor α: cosines and sines are multiplied by α, which
    multiplies the scores of rotated features by α².
    """

    @property
    def amplitude(self) -> float:
        """The attention factor α; 1 for a method that has none."""
        return 1.0

    def check_pairs(self, n: int) -> None:
        """Raise ValueError unless the scaling fits n pairs of features."""

    def scaled(self, frequencies: np.ndarray, length: int = 0) -> np.ndarray:
        """Return ω', shape (w/2,), for a sequence with this number of tokens."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    r"""Divide every frequency by one factor: position interpolation.

    .. math:: \omega_l' = \omega_l / \text{factor}

    Attributes
    ----------
    factor : float
        How many times longer the texts are; above 0.

    Raises
    ------
    TypeError, ValueError
        If the factor is not as above.

    Notes
    -----
    Position i gets the angles that position i / factor had in the first training. Gemma 3 scales
    its global layers in this way.

    References
    ----------
    Chen et al. (2023), "Extending context window of large language models via positional
    interpolation"; ``rope_type="linear"`` of Hugging Face.

    Examples
    --------
    >>> LinearScaling(4.0).scaled(np.array([1.0, 0.01]))
    array([0.25  , 0.0025])
    """

    factor: float

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)

    def scaled(self, frequencies: np.ndarray, length: int = 0) -> np.ndarray:
        """Return ω', shape (w/2,)."""
        return frequencies / self.factor


@dataclass(frozen=True)
class DynamicScaling(RotaryScaling):
    r"""Raise the base with the length of the sequence: dynamic NTK-aware scaling.

    .. math:: \omega_l' = \omega_l\, s^{-2l/(w - 2)}, \qquad
        s = \text{factor} \cdot \frac{\max(n, N)}{N} - (\text{factor} - 1)

    The first pair keeps its frequency, and the frequency of the last pair is divided by s. Up to N
    tokens nothing changes.

    Attributes
    ----------
    factor : float
        How fast s grows with the length n; above 0. With 1, s is n / N.
    n_positions : int
        N, the length on which the model was first trained.

    Raises
    ------
    TypeError, ValueError
        If a number is not as above.

    Notes
    -----
    The length n is the last position of the rotated rows plus 1: rows at the positions start, …,
    start + m - 1 are rotated as in a sequence of n = start + m tokens. Without a cache, every pass
    therefore rotates all keys with the frequencies of the current length. With a KV cache, the keys
    of the cache stay as they were rotated when they were read, so they have the frequencies of
    shorter lengths, and results beyond N depend on how the tokens were split into passes. Hugging
    Face's models have the same property, and they also keep the largest length that they have seen
    until a sequence is shorter than N.

    References
    ----------
    bloc97 and emozilla (2023), "NTK-aware scaled RoPE"; ``rope_type="dynamic"`` of Hugging Face,
    where N is ``max_position_embeddings``.

    Examples
    --------
    >>> scaling, frequencies = DynamicScaling(2.0, n_positions=100), np.array([1.0, 0.1, 0.01])
    >>> scaling.scaled(frequencies, length=100)
    array([1.  , 0.1 , 0.01])
    >>> scaling.scaled(frequencies, length=250).round(4)
    array([1.    , 0.05  , 0.0025])
    """

    factor: float
    n_positions: int

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)
        check_int("n_positions", self.n_positions, at_least=1)

    def scaled(self, frequencies: np.ndarray, length: int = 0) -> np.ndarray:
        """Return ω', shape (w/2,), for a sequence with this number of tokens."""
        s = self.factor * max(length, self.n_positions) / self.n_positions - (self.factor - 1)
        return frequencies * s ** (-np.linspace(0.0, 1.0, len(frequencies)))


@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    r"""Lower the frequencies for texts longer than those of the first training, as in Llama 3.1.

    .. math:: \omega_l' = \omega_l \Bigl(s_l + \frac{1 - s_l}{\text{factor}}\Bigr), \qquad
        s_l = \operatorname{clip}\Bigl(
              \frac{N \omega_l / 2\pi - \text{low}}{\text{high} - \text{low}},\; 0,\; 1\Bigr)

    A pair that makes at least `high` rotations within N positions keeps its frequency. The
    frequency of a pair that makes at most `low` rotations is divided by the factor. In between,
    the divisor changes steadily.

    Attributes
    ----------
    factor : float
        How many times longer the texts are; above 0.
    low, high : float
        Numbers of full rotations; low is below high.
    n_positions : int
        N, the length on which the model was first trained.

    Raises
    ------
    TypeError, ValueError
        If a number is not as above.

    References
    ----------
    Llama Team (2024), "The Llama 3 herd of models"; ``rope_type="llama3"`` of Hugging Face.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    n_positions: int = 8192

    def __post_init__(self) -> None:
        check_int("n_positions", self.n_positions, at_least=1)
        check_positive("factor", self.factor)
        if check_number("low", self.low) >= check_number("high", self.high):
            raise ValueError(f"low must be below high = {self.high}, got {self.low}")

    def scaled(self, frequencies: np.ndarray, length: int = 0) -> np.ndarray:
        """Return ω', shape (w/2,)."""
        turns = self.n_positions * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class YarnScaling(RotaryScaling):
    r"""Interpolate only the slow pairs, and sharpen the scores, as in YaRN.

    .. math:: \omega_l' = \omega_l \Bigl(1 - r_l + \frac{r_l}{\text{factor}}\Bigr), \qquad
        r_l = \operatorname{clip}\Bigl(
              \frac{l - l_\text{fast}}{l_\text{slow} - l_\text{fast}},\; 0,\; 1\Bigr)

    where l_fast and l_slow are the (fractional) indices of the pairs that make `beta_fast` and
    `beta_slow` rotations within N positions. Faster pairs keep their frequency, the frequency of
    slower pairs is divided by the factor, and r_l is the **ramp** between them. Cosines and sines
    are multiplied by the attention factor α, by default 0.1 ln(factor) + 1.

    Attributes
    ----------
    factor : float
        How many times longer the texts are; above 0.
    n_positions : int
        N, the length on which the model was first trained.
    beta_fast, beta_slow : float
        Numbers of full rotations; beta_slow is above 0 and below beta_fast.
    attention_factor : float, optional
        α, if it is given; above 0.
    mscale, mscale_all_dim : float
        If both are above 0 and α is not given, then α is the quotient of 0.1 mscale ln(factor) + 1
        and 0.1 mscale_all_dim ln(factor) + 1, as in DeepSeek-V2 and V3.
    truncate : bool
        Whether l_fast is rounded down and l_slow up to whole indices. gpt-oss does not round.

    Raises
    ------
    TypeError, ValueError
        If a number or a flag is not as above.

    Notes
    -----
    DeepSeek's models multiply the scale of the scores by `score_factor` in addition. A `Rotary`
    knows nothing of the scale, so this is left to their attention.

    References
    ----------
    Peng et al. (2023), "YaRN: Efficient context window extension of large language models";
    ``rope_type="yarn"`` of Hugging Face.

    Examples
    --------
    >>> scaling = YarnScaling(factor=4.0, n_positions=1000)
    >>> frequencies = 10000.0 ** (-np.arange(8) / 8)
    >>> (scaling.scaled(frequencies) / frequencies).round(2)
    array([1.  , 1.  , 0.81, 0.62, 0.44, 0.25, 0.25, 0.25])
    >>> round(scaling.amplitude, 4)
    1.1386
    """

    factor: float
    n_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)
        check_int("n_positions", self.n_positions, at_least=1)
        fast = check_positive("beta_fast", self.beta_fast)
        if check_positive("beta_slow", self.beta_slow) >= fast:
            raise ValueError(f"beta_slow must be below beta_fast = {fast}, got {self.beta_slow}")
        if self.attention_factor is not None:
            check_positive("attention_factor", self.attention_factor)
        check_number("mscale", self.mscale)
        check_number("mscale_all_dim", self.mscale_all_dim)
        check_bool("truncate", self.truncate)

    @property
    def amplitude(self) -> float:
        """The attention factor α."""
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return magnitude(self.factor, self.mscale) / magnitude(self.factor, self.mscale_all_dim)
        return magnitude(self.factor)

    @property
    def score_factor(self) -> float:
        """What DeepSeek multiplies the scale of scores by: (0.1 mscale_all_dim ln factor + 1)²."""
        return magnitude(self.factor, self.mscale_all_dim) ** 2

    def scaled(self, frequencies: np.ndarray, length: int = 0) -> np.ndarray:
        """Return ω', shape (w/2,)."""
        n_pairs = len(frequencies)
        first = pair_of_turns(frequencies, self.beta_fast, self.n_positions)
        last = pair_of_turns(frequencies, self.beta_slow, self.n_positions)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * n_pairs - 1)  # w - 1, as in Hugging Face
        span = last - first or 0.001
        ramp = np.clip((np.arange(n_pairs) - first) / span, 0.0, 1.0)
        return frequencies * (1 - ramp + ramp / self.factor)


@dataclass(frozen=True)
class LongRopeScaling(RotaryScaling):
    r"""Divide each frequency by a factor of its own, which was searched for: LongRoPE.

    .. math:: \omega_l' = \omega_l / f_l, \qquad
        f = \begin{cases} \text{short} & \text{if } n \le N \\
                          \text{long} & \text{otherwise} \end{cases}

    Cosines and sines are multiplied by the attention factor α at all lengths, by default
    :math:`\sqrt{1 + \ln(\text{factor}) / \ln N}`, and 1 for a factor of at most 1.

    Attributes
    ----------
    short, long : tuple of float
        One divisor for each pair of features; above 0.
    n_positions : int
        N, the length on which the model was first trained; at least 2.
    factor : float
        How many times longer the texts may be, which only α depends on; above 0. Phi-3 takes the
        quotient of its ``max_position_embeddings`` and N.
    attention_factor : float, optional
        α, if it is given; above 0.

    Raises
    ------
    TypeError, ValueError
        If a number is not as above, or `short` and `long` differ in length.

    Notes
    -----
    The length n is the last position of the rotated rows plus 1, as in `DynamicScaling`: rows at
    the positions start, …, start + m - 1 are rotated with the long factors if start + m > N. With a
    KV cache, keys that were read before the length exceeded N keep the short factors. The frequency
    functions of Hugging Face have the same property, but ``generate`` of its Phi-3 drops the cache
    and reads everything again when the length first exceeds N. Here, start with an empty cache and
    the whole text to get the same result.

    References
    ----------
    Ding et al. (2024), "LongRoPE: Extending LLM context window beyond 2 million tokens";
    ``rope_type="longrope"`` of Hugging Face.

    Examples
    --------
    >>> scaling = LongRopeScaling((1.0, 1.0), (1.0, 8.0), n_positions=4096, factor=32.0)
    >>> scaling.scaled(np.array([1.0, 0.01]), length=4096)
    array([1.  , 0.01])
    >>> scaling.scaled(np.array([1.0, 0.01]), length=4097)
    array([1.     , 0.00125])
    >>> round(scaling.amplitude, 4)
    1.1902
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    n_positions: int
    factor: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        for name, factors in (("short", self.short), ("long", self.long)):
            if not isinstance(factors, tuple):
                raise TypeError(f"{name} must be a tuple, got {type(factors).__name__}")
            for i, one in enumerate(factors):
                check_positive(f"{name}[{i}]", one)
        if len(self.short) != len(self.long):
            raise ValueError(
                f"long must have as many factors as short = {len(self.short)}, got {len(self.long)}"
            )
        check_int("n_positions", self.n_positions, at_least=2)
        check_positive("factor", self.factor)
        if self.attention_factor is not None:
            check_positive("attention_factor", self.attention_factor)

    @property
    def amplitude(self) -> float:
        """The attention factor α."""
        if self.attention_factor is not None:
            return float(self.attention_factor)
        return math.sqrt(1 + max(math.log(self.factor), 0.0) / math.log(self.n_positions))

    def check_pairs(self, n: int) -> None:
        """Raise ValueError unless there is a factor for each of n pairs of features."""
        if len(self.short) != n:
            raise ValueError(f"short must have {n} factors, one per pair, got {len(self.short)}")

    def scaled(self, frequencies: np.ndarray, length: int = 0) -> np.ndarray:
        """Return ω', shape (w/2,), for a sequence with this number of tokens."""
        self.check_pairs(len(frequencies))
        return frequencies / np.asarray(self.long if length > self.n_positions else self.short)


Scaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling
"""What a `Rotary` may hold."""
