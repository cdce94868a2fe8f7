"""The learned matrices of latent attention: down to a latent, and up from it to every head."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_int, check_number, generator
from attnbook.arrays.array import Array
from attnbook.arrays.projections import xavier
from attnbook.arrays.weights import Weights
from attnbook.normalization.rms_norm import RMSNormWeights


@dataclass(frozen=True, eq=False)
class LatentWeights(Weights):
    r"""The matrices of multi-head latent attention.

    Of each token, a decoder keeps the **latent** c = norm(x W_DKV) and one rotated key x W_KR,
    which all heads share. Keys and values of every head are linear maps of the latent. Head i uses
    columns i·d_nope to (i + 1)·d_nope - 1 of W_UK, and columns i·d_v to (i + 1)·d_v - 1 of W_UV. In
    W_UQ, each head has d_nope + d_rope columns; the last d_rope of them are rotated.

    Attributes
    ----------
    W_UQ : array, shape (r_q, h·(d_nope + d_rope))
        Up-projection of the queries. Without W_DQ, r_q is d_model.
    W_DKV : array, shape (d_model, r)
        Down-projection to the latent.
    W_UK : array, shape (r, h·d_nope)
        Up-projection of the latent to the keys.
    W_UV : array, shape (r, h·d_v)
        Up-projection of the latent to the values.
    W_KR : array, shape (d_model, d_rope)
        Gives the key that carries the position. It may have 0 columns.
    W_O : array, shape (h·d_v, d_out)
    W_DQ : array, shape (d_model, r_q), optional
        Down-projection of the queries. It saves parameters, not cache.
    q_norm, kv_norm : RMSNormWeights, optional
        Normalise x W_DQ and x W_DKV.
    n_heads : int
        Number of heads h.
    scale : float, optional
        The factor of the scores, finite and at least 0; 1/√(d_nope + d_rope) by default.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device and real floating dtype, or their shapes do
        not match each other or the number of heads.

    References
    ----------
    DeepSeek-AI (2024), "DeepSeek-V2", section 2.1.

    Examples
    --------
    >>> weights = LatentWeights.init(0, 16, 4, rank=6, d_nope=4, d_rope=2)
    >>> weights.W_UQ.shape, weights.W_UK.shape, weights.cache_width
    ((16, 24), (6, 16), 8)
    """

    token_widths = ("d_model", "d_out")

    W_UQ: Annotated[Array, "r_q hd_q"]
    W_DKV: Annotated[Array, "d_model r"]
    W_UK: Annotated[Array, "r hd_nope"]
    W_UV: Annotated[Array, "r hd_v"]
    W_KR: Annotated[Array, "d_model d_rope"]
    W_O: Annotated[Array, "hd_v d_out"]
    W_DQ: Annotated[Array, "d_model r_q"] | None = None
    q_norm: RMSNormWeights | None = None
    kv_norm: RMSNormWeights | None = None
    n_heads: int = field(kw_only=True)
    scale: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_int("n_heads", self.n_heads, at_least=1)
        if self.scale is not None:
            check_number("scale", self.scale)
        self.check_fields()
        h, d_model, r = self.n_heads, *self.W_DKV.shape
        for name in ("W_UK", "W_UV"):
            if getattr(self, name).shape[1] % h:
                raise ValueError(
                    f"{name} must have a number of columns divisible by n_heads = {h}, "
                    f"got shape {tuple(getattr(self, name).shape)}"
                )
        width = self.d_nope + self.d_rope
        if width == 0:
            raise ValueError("W_UK and W_KR must not both have 0 columns, got 0 and 0")
        r_q = d_model if self.W_DQ is None else self.W_DQ.shape[1]
        wanted = {
            "W_UQ": (r_q, h * width),
            "W_UK": (r, h * self.d_nope),
            "W_UV": (r, h * self.d_v),
            "W_KR": (d_model, self.d_rope),
            "W_O": (h * self.d_v, self.d_out),
            "W_DQ": (d_model, r_q),
        }
        for name, shape in wanted.items():
            x = getattr(self, name)
            if x is not None and tuple(x.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
        if self.q_norm is not None and self.W_DQ is None:
            raise ValueError("q_norm must be None where there is no W_DQ")
        for name, norm, width in (("q_norm", self.q_norm, r_q), ("kv_norm", self.kv_norm, r)):
            gain = None if norm is None else norm.gain
            if gain is not None and tuple(gain.shape) != (width,):
                raise ValueError(
                    f"{name} must have a gain of shape ({width},), got {tuple(gain.shape)}"
                )

    @property
    def d_query(self) -> int:
        """Width d_model of the tokens."""
        return self.W_DKV.shape[0]

    @property
    def rank(self) -> int:
        """Width r of the latent."""
        return self.W_DKV.shape[1]

    @property
    def d_nope(self) -> int:
        """Width of the part of each query and key that is not rotated."""
        return self.W_UK.shape[1] // self.n_heads

    @property
    def d_rope(self) -> int:
        """Width of the rotated part of each query, and of the key that all heads share."""
        return self.W_KR.shape[1]

    @property
    def d_k(self) -> int:
        """Width of what positions rotate in each query and key, d_rope."""
        return self.d_rope

    @property
    def d_v(self) -> int:
        """Width of values inside each head."""
        return self.W_UV.shape[1] // self.n_heads

    @property
    def d_out(self) -> int:
        """Width of the output."""
        return self.W_O.shape[1]

    @property
    def cache_width(self) -> int:
        """How many numbers a decoder keeps per token: r + d_rope."""
        return self.rank + self.d_rope

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        n_heads: int,
        *,
        rank: int,
        q_rank: int | None = None,
        d_nope: int | None = None,
        d_rope: int | None = None,
        d_v: int | None = None,
    ) -> "LatentWeights":
        """Draw Xavier-uniform matrices with NumPy (float64); the gains of the norms are 1.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        d_model, n_heads : int
        rank : int
            Width r of the latent.
        q_rank : int, optional
            Width r_q of the low rank of the queries. Without it there is no W_DQ.
        d_nope, d_v : int, optional
            Widths inside each head; d_model / n_heads by default.
        d_rope : int, optional
            Width of the rotated part, even and at least 0; by default half of d_nope, as in
            DeepSeek-V2, rounded up to an even number.

        Raises
        ------
        TypeError, ValueError
            If a width is not an int of at least 1 (d_rope: 0), d_rope is odd, or d_nope or d_v is
            left to its default and n_heads does not divide d_model.
        """
        rng = generator(rng)
        d_model, h = check_int("d_model", d_model, 1), check_int("n_heads", n_heads, 1)
        if (d_nope is None or d_v is None) and d_model % h:
            raise ValueError(
                f"d_model must be divisible by n_heads, got d_model = {d_model} and n_heads = {h}"
            )
        d_nope = check_int("d_nope", d_model // h if d_nope is None else d_nope, 1)
        d_v = check_int("d_v", d_model // h if d_v is None else d_v, 1)
        d_rope = check_int("d_rope", 2 * -(-d_nope // 4) if d_rope is None else d_rope)
        if d_rope % 2:
            raise ValueError(f"d_rope must be even, got {d_rope}")
        r = check_int("rank", rank, 1)
        r_q = d_model if q_rank is None else check_int("q_rank", q_rank, 1)
        return cls(
            W_UQ=xavier(rng, r_q, h * (d_nope + d_rope)),
            W_DKV=xavier(rng, d_model, r),
            W_UK=xavier(rng, r, h * d_nope),
            W_UV=xavier(rng, r, h * d_v),
            W_KR=xavier(rng, d_model, d_rope),
            W_O=xavier(rng, h * d_v, d_model),
            W_DQ=None if q_rank is None else xavier(rng, d_model, r_q),
            q_norm=None if q_rank is None else RMSNormWeights.init(r_q),
            kv_norm=RMSNormWeights.init(r),
            n_heads=h,
        )
