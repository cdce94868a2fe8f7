"""Modules that PyTorch has too: copies of its own, and back."""

import abc
from functools import partial
from typing import Any, ClassVar, Self

import torch

from attnbook.arrays.arguments import check_number
from attnbook.arrays.weights import Weights
from attnbook.kernels import REFERENCE, Impl
from attnbook.nn.module import AttendingModule, WeightsModule


class TorchModule(WeightsModule, abc.ABC):
    """A module that can be copied from PyTorch's own module of its kind, and to one."""

    _torch: ClassVar[type[torch.nn.Module]]

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return a copy of PyTorch's own module of this kind.

        All parameters of the copy require gradients. Raises TypeError for a module of another
        class, and ValueError for one that computes what this book's function does not.
        """
        return cls(cls._read(module))

    @classmethod
    def _read(cls, module: Any) -> Any:
        """Return the weights of PyTorch's module, which may share its memory."""
        if not isinstance(module, cls._torch):
            raise TypeError(
                f"module must be a torch.nn.{cls._torch.__name__}, got {type(module).__name__}"
            )
        return cls._weights_of(module)

    @classmethod
    @abc.abstractmethod
    def _weights_of(cls, module: Any) -> Weights:
        """Return the weights of `module`, whose class is checked."""

    def torch_state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the parameters under the names and in the shapes of PyTorch's module.

        Raises ValueError if that module cannot hold them.
        """
        return self._their_state()

    def to_torch(self) -> Any:
        """Return a copy as PyTorch's own module of this kind, batch first.

        Raises ValueError if that module cannot hold the parameters.
        """
        state = self.torch_state_dict()
        theirs = self._like_torch(state)
        _check_fit(state, theirs)
        theirs.load_state_dict(state)
        return theirs

    @abc.abstractmethod
    def _like_torch(self, state: dict[str, torch.Tensor]) -> torch.nn.Module:
        """Return PyTorch's module of this structure, with other numbers."""


class DroppingModule(AttendingModule, TorchModule):
    """A module that drops numbers at random in train mode.

    The rate, and the mode, are those of the module that is called: its parts do not decide.
    """

    dropout: float

    def __init__(self, weights: Weights, dropout: float = 0.0, *, impl: Impl = REFERENCE):
        super().__init__(weights, impl=impl)
        rate = check_number("dropout", dropout)
        if rate >= 1:
            raise ValueError(f"dropout must be below 1, got {rate}")
        for part in self.modules():
            if isinstance(part, DroppingModule):
                part.dropout = rate

    def _how(self) -> dict[str, Any]:
        drops = self.training and self.dropout > 0
        drop = partial(torch.nn.functional.dropout, p=self.dropout) if drops else None
        return super()._how() | {"drop": drop}

    def _said(self) -> dict[str, Any]:
        return super()._said() | {"dropout": self.dropout}

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return a copy of PyTorch's own module of this kind, with its dropout rate and mode.

        Batch first, whatever `module` is. All parameters of the copy require gradients. PyTorch
        drops attention weights too, which this module does not.

        Raises
        ------
        TypeError
            If `module`, or a part of it, is of another class.
        ValueError
            If its activation is none of ReLU, GELU and SiLU, its parts drop at several rates,
            or an attention was made with `add_bias_kv` or `add_zero_attn`.
        """
        weights = cls._read(module)
        rates = {part.p for part in module.modules() if isinstance(part, torch.nn.Dropout)}
        if len(rates) > 1:
            raise ValueError(f"module must drop at one rate, got {sorted(rates)}")
        return cls(weights, dropout=rates.pop() if rates else 0.0).train(module.training)

    def to_torch(self) -> Any:
        """Return a copy as PyTorch's own module of this kind, batch first, in the same mode.

        PyTorch drops attention weights too, at the same rate.

        Raises
        ------
        ValueError
            If that module cannot hold the weights: it has all biases or none, a gain in every
            normalisation, one number of heads in a layer and as many key heads as query heads, a
            W_O, and at least one layer in a stack.
        """
        theirs = super().to_torch()
        for part in theirs.modules():  # whose own rates do not count
            if isinstance(part, torch.nn.Dropout):
                part.p = self.dropout
            elif isinstance(part, torch.nn.MultiheadAttention):
                part.dropout = self.dropout
        return theirs.train(self.training)


def _check_fit(state, theirs):
    """Raise ValueError unless `state` has the names and shapes of the module `theirs`."""
    got = {name: tuple(x.shape) for name, x in state.items()}
    wanted = {name: tuple(x.shape) for name, x in theirs.state_dict().items()}
    for name in sorted(got.keys() | wanted.keys()):
        if got.get(name) != wanted.get(name):
            shapes = [f"shape {s[name]}" if name in s else "none" for s in (wanted, got)]
            raise ValueError(
                f"{name} must be as in a torch.nn.{type(theirs).__name__}, {shapes[0]}, "
                f"got {shapes[1]}"
            )
