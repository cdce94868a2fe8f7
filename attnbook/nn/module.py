"""Modules that hold the arrays of one dataclass of weights as parameters."""

from typing import Any, ClassVar

import torch

from attnbook.arrays.weights import PLAIN, Weights, check_part
from attnbook.kernels import REFERENCE, Impl, check_impl, name_of


class WeightsModule(torch.nn.Module):
    """Holds the arrays of a `Weights` dataclass, each under the name that it has there.

    A nested dataclass becomes a module of its own class, a tuple a `torch.nn.ModuleList`, an
    array a parameter; plain numbers and names are attributes, and None stays None. A subclass says
    which dataclass it holds: ``class LayerNorm(WeightsModule, kind=LayerNormWeights)``.
    An array that stands in two fields, or a layer that stands in a stack twice, becomes two
    parameters, because every field is copied, and training moves them apart.
    """

    _kind: ClassVar[Any]  # the dataclass
    _theirs: ClassVar[dict[str, str]] = {}  # names in PyTorch's own module: names here
    _classes: ClassVar[dict[type[Weights], type["WeightsModule"]]] = {}

    def __init_subclass__(cls, kind: type[Weights] | None = None, **options: Any):
        super().__init_subclass__(**options)
        if kind is not None:
            cls._kind = kind
            WeightsModule._classes[kind] = cls

    def __init__(self, weights: Weights):
        super().__init__()
        check_part("weights", weights, self._kind)
        weights = weights.to("torch")
        for name in self._kind.field_names:
            value = getattr(weights, name)
            if type(value) in WeightsModule._classes:
                self.add_module(name, _held(value))
            elif isinstance(value, Weights):  # a piece without arrays
                setattr(self, name, value)
            elif isinstance(value, tuple):
                self.add_module(name, torch.nn.ModuleList(_held(part) for part in value))
            elif isinstance(value, PLAIN):
                setattr(self, name, value)
            else:
                parameter = None if value is None else torch.nn.Parameter(value.detach().clone())
                self.register_parameter(name, parameter)

    @property
    def weights(self) -> Any:
        """The parameters as the dataclass that the function takes, graph included."""
        fields: dict[str, Any] = {}
        for name in self._kind.field_names:
            value = getattr(self, name)
            if isinstance(value, WeightsModule):
                value = value.weights
            elif isinstance(value, torch.nn.ModuleList):
                value = tuple(part.weights for part in value)
            fields[name] = value
        return self._kind.unchecked(fields)  # every forward would pay for the checks

    def extra_repr(self) -> str:
        """Return numbers, names and shapes, for the printed form of the module."""
        fields = {name: getattr(self, name) for name in self._kind.field_names}
        plain = {name: value for name, value in fields.items() if isinstance(value, PLAIN)}
        shapes = {n: tuple(x.shape) for n, x in self.named_parameters(recurse=False)}
        said = plain | shapes | self._said()
        return ", ".join(f"{name}={value}" for name, value in said.items())

    def _said(self) -> dict[str, Any]:
        """Return what the printed form tells beside the fields of the weights."""
        return {}

    # PyTorch's own module of the same kind has other names, and matrices that are transposed,
    # since a `torch.nn.Linear` holds (out, in) and computes x Wᵀ.

    @classmethod
    def _from_their_names(cls, theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return `theirs` under our names; what has none here stays as it is."""
        ours = {}
        for name, x in theirs.items():
            new = _renamed(name, cls._theirs)
            new = name if new in theirs else new  # both are there: theirs stays, as unexpected
            ours[new] = x.mT.contiguous() if new != name and new.startswith("W_") else x
        return ours

    def _their_state(self) -> dict[str, torch.Tensor]:
        """Return copies of all parameters under PyTorch's names."""
        ours = {}
        for name, parameter in self.named_parameters(recurse=False):
            x = parameter.detach()
            x = x.mT if name.startswith("W_") else x
            ours[name] = x.clone(memory_format=torch.contiguous_format)
        for name, part in self.named_children():
            layers = {name: part}
            if isinstance(part, torch.nn.ModuleList):
                layers = {f"{name}.{i}": layer for i, layer in enumerate(part)}
            for prefix, layer in layers.items():
                state = layer._their_state()  # type: ignore[operator]
                ours |= {f"{prefix}.{rest}": x for rest, x in state.items()}
        names = {new: old for old, new in self._theirs.items()}
        return {_renamed(name, names): x for name, x in ours.items()}

    def _load_from_state_dict(self, state_dict, prefix, *others):
        theirs = {
            name.removeprefix(prefix): state_dict.pop(name)
            for name in list(state_dict)
            if name.startswith(prefix)
        }
        ours = self._from_their_names(theirs)
        state_dict.update({prefix + name: x for name, x in ours.items()})
        super()._load_from_state_dict(state_dict, prefix, *others)


class AttendingModule(WeightsModule):
    """A module that attends, by the implementation that `impl` names.

    It is that of the module that is called: its parts do not decide. It may be changed at any time,
    and is no part of the state dict.
    """

    impl: Impl = REFERENCE
    _function: ClassVar[Any]  # what a call returns

    def __init__(self, weights: Weights, *, impl: Impl = REFERENCE):
        super().__init__(weights)
        check_impl(impl)
        for part in self.modules():
            if isinstance(part, AttendingModule):
                part.impl = impl

    def _how(self) -> dict[str, Any]:
        """What the function is told beside its inputs."""
        return {"impl": self.impl}

    def _said(self) -> dict[str, Any]:
        return {} if self.impl == REFERENCE else {"impl": name_of(self.impl)}


def _held(weights: Weights) -> WeightsModule:
    return WeightsModule._classes[type(weights)](weights)


def _renamed(name: str, table: dict[str, str]) -> str:
    """Return `name` with the front that is in `table` replaced, if there is one."""
    for old, new in table.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name
