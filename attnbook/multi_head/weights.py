"""The learned matrices of multi-head attention, all heads side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import (
    check_bool,
    check_floats,
    check_int,
    check_number,
    check_positive,
    generator,
)
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.weights import PLAIN, Weights, check_part
from attnbook.normalization.normalization import NormWeights
from attnbook.single_head.head import SingleHeadWeights

OPTIONS = ("scale", "q_norm", "k_norm", "sinks", "W_gate", "cap", "window")
"""What only some models have in their heads, beside matrices and biases."""


@dataclass(frozen=True, eq=False)
class MultiHeadWeights(Weights):
    r"""The matrices of all heads, concatenated.

    Head i uses columns i·d_k to (i + 1)·d_k - 1 of W_Q, and its own rows of W_O. If there are fewer
    KV heads than query heads, n_kv_heads = h_kv below n_heads = h, the first h/h_kv query heads
    share the first KV head, the next h/h_kv share the second, and so on. This is **grouped-query
    attention**; with h_kv = 1 it is **multi-query attention**.

    Attributes
    ----------
    W_Q : array, shape (d_query, h·d_k)
    W_K : array, shape (d_key, h_kv·d_k)
    W_V : array, shape (d_value, h_kv·d_v)
    W_O : array, shape (h·d_v, d_out), optional
        Without it, the output is the concatenation of the heads, of width h·d_v.
    b_Q, b_K, b_V, b_O : arrays, shapes (h·d_k,), (h_kv·d_k,), (h_kv·d_v,) and (d_out,), optional
        Biases, added after the product with the matrix of the same letter.
    n_heads : int
        Number of query heads h.
    n_kv_heads : int
        Number of KV heads h_kv, which must divide h; h by default.
    scale : float, optional
        The factor of the scores, finite and at least 0; 1/√d_k by default.
    q_norm, k_norm : RMSNormWeights or LayerNormWeights, optional
        Normalise each query and each key inside its head, so over d_k features, before a position
        rotates them. All heads share the gain.
    sinks : array, shape (h,), optional
        One more score for each head, which competes with the scores of the keys but has no value:
        the weights of the keys then sum to less than 1, and a head can attend to nothing. A sink of
        −∞ changes nothing.
    W_gate : array, shape (d_query, h·d_v), optional
        The concatenated heads are multiplied elementwise by σ(x W_gate), where x is the query and
        σ the logistic function, before W_O.
    cap : float, optional
        Soft-capping: a scaled score s becomes cap · tanh(s / cap), which lies between ±cap, before
        a bias or a mask.
    window : int, optional
        A query sees only the key at its own position and the window − 1 keys before it. The last
        query is aligned with the last key.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device and real floating dtype, or their shapes do
        not match each other or the numbers of heads.

    Examples
    --------
    >>> weights = MultiHeadWeights.init(0, d_model=8, n_heads=4, n_kv_heads=2)
    >>> weights.W_Q.shape, weights.W_K.shape, weights.W_O.shape
    ((8, 8), (8, 4), (8, 8))
    """

    token_widths = ("d_query", "d_key", "d_value", "d_out")
    undrawn = ("W_gate",)

    W_Q: Annotated[Array, "d_query hd_k"]
    W_K: Annotated[Array, "d_key hkvd_k"]
    W_V: Annotated[Array, "d_value hkvd_v"]
    W_O: Annotated[Array, "hd_v d_out"] | None = None
    b_Q: Annotated[Array, "hd_k"] | None = None
    b_K: Annotated[Array, "hkvd_k"] | None = None
    b_V: Annotated[Array, "hkvd_v"] | None = None
    b_O: Annotated[Array, "d_out"] | None = None
    W_gate: Annotated[Array, "d_query hd_v"] | None = field(default=None, kw_only=True)
    sinks: Annotated[Array, "h"] | None = field(default=None, kw_only=True)
    q_norm: NormWeights | None = field(default=None, kw_only=True)
    k_norm: NormWeights | None = field(default=None, kw_only=True)
    n_heads: int = field(kw_only=True)
    n_kv_heads: int = field(default=None, kw_only=True)  # type: ignore[assignment]
    scale: float | None = field(default=None, kw_only=True)
    cap: float | None = field(default=None, kw_only=True)
    window: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        groups = self.n_heads if self.n_kv_heads is None else self.n_kv_heads
        for name, n in (("n_heads", self.n_heads), ("n_kv_heads", groups)):
            object.__setattr__(self, name, check_int(name, n, at_least=1))
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads = {self.n_heads}, "
                f"got n_kv_heads = {self.n_kv_heads}"
            )
        if self.scale is not None:
            object.__setattr__(self, "scale", check_number("scale", self.scale))
        if self.cap is not None:
            object.__setattr__(self, "cap", check_positive("cap", self.cap))
        if self.window is not None:
            object.__setattr__(self, "window", check_int("window", self.window, at_least=1))
        self.check_fields()
        self._check_columns()
        for letter in "QKVO":
            self._check_bias(letter)
        self._check_options()

    def _check_columns(self) -> None:
        h, h_kv = self.n_heads, self.n_kv_heads
        for name, counted, heads in (("W_Q", "n_heads", h), ("W_V", "n_kv_heads", h_kv)):
            shape = tuple(getattr(self, name).shape)
            if shape[1] % heads:
                raise ValueError(
                    f"{name} must have a number of columns divisible by {counted} = {heads}, "
                    f"got shape {shape}"
                )
        if self.d_k == 0:
            raise ValueError(
                f"W_Q must have at least 1 column per head for the scale 1/√d_k, "
                f"got shape {tuple(self.W_Q.shape)}"
            )
        if self.W_K.shape[1] != h_kv * self.d_k:
            raise ValueError(
                f"W_K must have shape (d_key, {h_kv * self.d_k}) to match W_Q, "
                f"got {tuple(self.W_K.shape)}"
            )
        if self.W_O is not None and self.W_O.shape[0] != h * self.d_v:
            raise ValueError(
                f"W_O must have shape ({h * self.d_v}, d_out) to match W_V, "
                f"got {tuple(self.W_O.shape)}"
            )

    def _check_bias(self, letter: str) -> None:
        matrix, bias = getattr(self, f"W_{letter}"), getattr(self, f"b_{letter}")
        if bias is None:
            return
        if matrix is None:
            raise ValueError("b_O must be None where there is no W_O")
        if tuple(bias.shape) != (matrix.shape[1],):
            raise ValueError(
                f"b_{letter} must have shape ({matrix.shape[1]},) to match W_{letter}, "
                f"got {tuple(bias.shape)}"
            )

    def _check_options(self) -> None:
        """Raise unless what not every model has fits the heads."""
        shapes = {
            "W_gate": (self.d_query, self.n_heads * self.d_v),
            "sinks": (self.n_heads,),
        }
        for name, shape in shapes.items():
            x = getattr(self, name)
            if x is not None and tuple(x.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
        for name in ("q_norm", "k_norm"):
            norm = getattr(self, name)
            for part, x in ({} if norm is None else norm.arrays()).items():
                if tuple(x.shape) != (self.d_k,):
                    raise ValueError(
                        f"{name}.{part} must have shape ({self.d_k},), the width of a head, "
                        f"got {tuple(x.shape)}"
                    )

    @property
    def d_query(self) -> int:
        """Width of the input `query`."""
        return self.W_Q.shape[0]

    @property
    def d_k(self) -> int:
        """Width of queries and keys inside each head."""
        return self.W_Q.shape[1] // self.n_heads

    @property
    def d_v(self) -> int:
        """Width of values inside each head."""
        return self.W_V.shape[1] // self.n_kv_heads

    @property
    def d_out(self) -> int:
        """Width of the output: that of W_O or, without it, that of the concatenated heads."""
        return self.n_heads * self.d_v if self.W_O is None else self.W_O.shape[1]

    def options(self) -> dict[str, Any]:
        """Return the options of the heads beside matrices and biases; a part stands as its type."""
        given = {name: getattr(self, name) for name in OPTIONS}
        return {
            name: x if isinstance(x, PLAIN) else type(x).__name__
            for name, x in given.items()
            if x is not None
        }

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        d_out: int | None = None,
        output: bool = True,
        bias: bool = False,
    ) -> "MultiHeadWeights":
        r"""Draw Xavier-uniform matrices, as `SingleHeadWeights.init` does; biases are 0.

        The bound is computed from the shape of the whole matrix, all heads together.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            The source of the random numbers; an int is a seed.
        d_model : int
            Width of the input `query`.
        n_heads, n_kv_heads : int
            Number of query heads, and number of KV heads, n_heads by default.
        d_key, d_value : int
            Widths of the other inputs. By default d_key is d_model, and d_value is d_key.
        d_k, d_v : int
            Widths inside each head; d_model / n_heads by default.
        d_out : int
            Width of the output; d_model by default.
        output : bool
            Whether there is a W_O.
        bias : bool
            Whether there are the four biases.

        Raises
        ------
        TypeError, ValueError
            If a width is not an int of at least 1, d_k or d_v is left to its default and n_heads
            does not divide d_model, n_kv_heads does not divide n_heads, `d_out` is given although
            `output` is False, `output` or `bias` is not a bool, or `rng` is neither a Generator
            nor an int of at least 0.
        """
        rng = generator(rng)
        check_int("d_model", d_model, at_least=1)
        check_int("n_heads", n_heads, at_least=1)
        check_bool("output", output)
        check_bool("bias", bias)
        if (d_k is None or d_v is None) and d_model % n_heads:
            raise ValueError(
                f"d_model must be divisible by n_heads, "
                f"got d_model = {d_model} and n_heads = {n_heads}"
            )
        if d_out is not None and not output:
            raise ValueError(f"d_out must be None without W_O (output=False), got {d_out}")
        d_key = d_model if d_key is None else d_key
        widths = {
            "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
            "d_key": d_key,
            "d_value": d_key if d_value is None else d_value,
            "d_k": d_model // n_heads if d_k is None else d_k,
            "d_v": d_model // n_heads if d_v is None else d_v,
            "d_out": d_model if d_out is None else d_out,
        }
        for name, width in widths.items():
            check_int(name, width, at_least=1)
        n_kv_heads, d_k, d_v = widths["n_kv_heads"], widths["d_k"], widths["d_v"]
        sizes = {
            **{"d_query": d_model, "d_key": d_key, "d_value": widths["d_value"]},
            **{"hd_k": n_heads * d_k, "hkvd_k": n_kv_heads * d_k},
            **{"hd_v": n_heads * d_v, "hkvd_v": n_kv_heads * d_v},
            **({"d_out": widths["d_out"]} if output else {}),
        }
        drawn = cls.drawn(rng, bias=bias, **sizes)
        return cls(**drawn, n_heads=n_heads, n_kv_heads=n_kv_heads)

    @classmethod
    def from_heads(
        cls, heads: Sequence[SingleHeadWeights], W_O: Array | None = None
    ) -> "MultiHeadWeights":
        """Concatenate the matrices of single heads.

        Parameters
        ----------
        heads : sequence of SingleHeadWeights
            At least one head, all with the same shapes. If they have matrices W_O, these become
            the blocks of rows of the new W_O, so that the outputs of the heads add up.
        W_O : array, shape (h·d_v, d_out), optional
            The output matrix, if the heads have none of their own.

        Raises
        ------
        TypeError, ValueError
            If there is no head, one of them is not a `SingleHeadWeights`, their shapes differ, or
            a `W_O` is given although the heads have their own.
        """
        try:
            heads = list(heads)
        except TypeError:
            raise TypeError(
                f"heads must be a sequence of SingleHeadWeights, got {type(heads).__name__}"
            ) from None
        if not heads:
            raise ValueError("heads must have at least 1 entry, got 0")
        for head in heads:
            check_part("heads", head, SingleHeadWeights)
        check_floats(**{f"heads[{i}]": head.W_Q for i, head in enumerate(heads)})
        shapes = [[x is not None and tuple(x.shape) for x in vars(head).values()] for head in heads]
        for i, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ValueError(
                    f"heads must have matrices of the same shapes, got {shapes[0]} in heads[0] "
                    f"and {shape} in heads[{i}]"
                )
        xp = array_namespace(heads[0].W_Q)
        W_Q, W_K, W_V = (
            xp.concat([getattr(head, name) for head in heads], axis=1)
            for name in ("W_Q", "W_K", "W_V")
        )
        if heads[0].W_O is not None:
            if W_O is not None:
                raise ValueError("W_O must be None where the heads have their own")
            W_O = xp.concat([head.W_O for head in heads], axis=0)
        return cls(W_Q, W_K, W_V, W_O, n_heads=len(heads))

    def heads(self) -> list[SingleHeadWeights]:
        """Return one `SingleHeadWeights` per head, each with its own rows of W_O.

        Their outputs add up to that of `multi_head_attention` or, without W_O, form it when they
        are concatenated. Raises ValueError if there are biases or any other option that single
        heads do not have.
        """
        biases = [name for name in self.arrays() if name.startswith("b")]
        if biases:
            raise ValueError(f"weights must have no biases to be split, got {', '.join(biases)}")
        for name, value in self.options().items():
            raise ValueError(f"weights must have no {name} to be split, got {value}")
        group, d_k, d_v = self.n_heads // self.n_kv_heads, self.d_k, self.d_v

        def head(i: int) -> Any:
            j = i // group  # its key and value head
            return SingleHeadWeights(
                self.W_Q[:, i * d_k : (i + 1) * d_k],
                self.W_K[:, j * d_k : (j + 1) * d_k],
                self.W_V[:, j * d_v : (j + 1) * d_v],
                None if self.W_O is None else self.W_O[i * d_v : (i + 1) * d_v, :],
            )

        return [head(i) for i in range(self.n_heads)]
