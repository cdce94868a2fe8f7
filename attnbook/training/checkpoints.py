"""Checkpoints of a training run, and files of weights: safetensors with their structure, no pickle.

A file is written at once or not at all. A damaged or foreign file is refused with a reason. Weights
load without PyTorch.
"""

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbook.arrays import tensor_file
from attnbook.arrays.arguments import check_choice
from attnbook.arrays.array import dtype_name
from attnbook.arrays.move import LIBRARIES
from attnbook.arrays.weights import Weights, check_part, some
from attnbook.training.settings import History, Settings
from attnbook.training.structure import rebuilt, structure

if TYPE_CHECKING:
    import torch

Path = str | os.PathLike


def save_weights(path: Path, weights: Weights) -> None:
    """Write `weights` to a file: their arrays and their structure.

    Parameters
    ----------
    path : str or path
        If the file exists, it is replaced atomically: completely or not at all.
    weights : Weights
        Weights of any class of this package, such as `TransformerWeights`, in any library.

    Raises
    ------
    TypeError
        If `weights` is not of a class of this package, or `path` is not a path.
    OSError
        If the file cannot be written.

    Notes
    -----
    bfloat16 is stored as float32, which holds it exactly. An array that appears in two fields is
    written twice, because the names in such a file cannot share memory, and it is read back as two
    arrays.

    Examples
    --------
    >>> import attnbook, tempfile
    >>> weights = attnbook.MultiHeadWeights.init(0, d_model=8, n_heads=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(f"{folder}/heads.safetensors", weights)
    ...     load_weights(f"{folder}/heads.safetensors").W_Q.shape
    (8, 8)
    """
    described = structure(weights)
    tensor_file.write(path, "weights", weights.arrays(), described)


def load_weights(path: Path, library: str = "numpy") -> Any:
    """Read weights that `save_weights` wrote, or those of the model in a training checkpoint.

    Parameters
    ----------
    path : str or path
    library : str
        The library of the arrays: ``"numpy"``, ``"torch"`` or ``"cupy"``. The others do not need
        PyTorch.

    Returns
    -------
    Weights
        They have the class and the dtype that were saved; if the library has no bfloat16, they are
        float32. From a checkpoint, you get the weights that `train` leaves in the model: with
        `patience` those of the best evaluation so far, otherwise the latest.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    TypeError
        If `path` is not a path.
    ValueError
        If the file is damaged, holds something else, or holds a model without `weights`.

    Notes
    -----
    Whatever the file contains, the function builds only classes of this package and runs no code
    from the file.

    Examples
    --------
    >>> import attnbook, tempfile
    >>> weights = attnbook.SingleHeadWeights.init(0, 8, d_k=3, d_v=5).to("torch")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(f"{folder}/head.safetensors", weights)
    ...     type(load_weights(f"{folder}/head.safetensors").W_V)
    <class 'numpy.ndarray'>
    """
    check_choice("library", library, LIBRARIES)
    expected = ("weights", "checkpoint")
    kind, arrays, narrow, content = tensor_file.read(path, *expected)
    with tensor_file.describing(path, "attnbook weights"):
        found = content
        if kind == "checkpoint":
            found = content["weights"]
            if found is None:
                raise ValueError("the checkpoint of a model whose parameters are no Weights")
            part = "best." if any(name.startswith("best.") for name in arrays) else "model."
            arrays = _under(part, arrays)
            narrow = set(_under(part, dict.fromkeys(narrow)))
        moved = {
            name: tensor_file.to_library(x, library, narrow=name in narrow)
            for name, x in arrays.items()
        }
        weights = rebuilt(found, moved)
        check_part("weights", weights, Weights)
        if set(weights.arrays()) != set(arrays):
            raise ValueError("arrays that are no part of the structure beside them")
        return weights


def _under(prefix, named):
    """Return the entries of `named` under `prefix`, without it."""
    return {name.removeprefix(prefix): x for name, x in named.items() if name.startswith(prefix)}


@dataclass(frozen=True, eq=False)
class Progress:
    """How far a run is, beside its model and optimizer.

    `best` is the state of the model at its best evaluation, where the run keeps it, and `scaler`
    that of the scaler of the loss for float16, which is empty without one.
    """

    settings: Settings
    history: History
    best: "dict[str, torch.Tensor] | None" = None
    scaler: dict[str, float] | None = None


def save(
    path: Path, model: "torch.nn.Module", optimizer: "torch.optim.Optimizer", progress: Progress
) -> None:
    """Write all that a run needs to go on as if it had not stopped, at once or not at all.

    The tensors are ``model.*``, ``best.*``, ``optimizer.PARAMETER.*`` and ``history.*``. The
    random numbers of a step come from the seed and the step, so no state of a generator is kept.
    """
    model = unwrapped(model)
    state = model.state_dict()
    arrays = {f"model.{name}": x for name, x in state.items()}
    arrays |= {f"best.{name}": x for name, x in (progress.best or {}).items()}
    for name, p in _optimized(model, optimizer).items():
        moments = optimizer.state[p].items()
        arrays |= {f"optimizer.{name}.{key}": x for key, x in moments if x is not None}
    for name, values in asdict(progress.history).items():
        arrays[f"history.{name}"] = np.array(values, dtype=np.float64)
    weights = getattr(model, "weights", None)
    named = isinstance(weights, Weights) and all(
        name in state and state[name].shape == x.shape for name, x in weights.arrays().items()
    )
    content = {
        "settings": asdict(progress.settings),
        "scaler": progress.scaler or {},
        "weights": structure(weights) if named else None,
        "trained": sorted(_optimized(model, optimizer)),
    }
    tensor_file.write(path, "checkpoint", arrays, content)


def load(
    path: Path,
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer",
    settings: Settings,
) -> Progress:
    """Read a checkpoint into `model` and `optimizer`, and return how far the run was.

    Raises a ValueError if the file is damaged, or of another model or of other settings; model and
    optimizer are then as they were. `checkpoint_every` may differ, and so may `steps` where the
    schedule does not depend on them.
    """
    model = unwrapped(model)
    _, arrays, narrow, content = tensor_file.read(path, "checkpoint")
    with tensor_file.describing(path, "an attnbook checkpoint"):
        found_settings, scaler = content["settings"], content["scaler"]
    _check_settings(path, found_settings, settings)
    tensors = {
        name: tensor_file.to_library(x, "torch", narrow=name in narrow)
        for name, x in arrays.items()
        if not name.startswith("history.")
    }
    state, best = _under("model.", tensors), _under("best.", tensors)
    _check_model(path, state, model.state_dict())
    trained, here = content.get("trained"), sorted(_optimized(model, optimizer))
    if trained is not None and trained != here:  # older files do not say
        odd = sorted({*trained} ^ {*here})[0]
        raise ValueError(
            f"model must train the parameters of the run in {os.fspath(path)}, got {odd}, which is "
            f"trained {'there' if odd in trained else 'here'} alone"
        )
    history = _history(_under("history.", arrays))
    if history.step > settings.steps:
        raise ValueError(
            f"steps must be at least the {history.step} that the run in {os.fspath(path)} has "
            f"made, got {settings.steps}"
        )
    moments = _under("optimizer.", tensors)
    states = {
        i: own
        for i, name in enumerate(_optimized(model, optimizer))
        if (own := _under(f"{name}.", moments))
    }
    model.load_state_dict(state)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    return Progress(settings, history, best or None, scaler)


def unwrapped(model: "torch.nn.Module") -> "torch.nn.Module":
    """Return the module that ``torch.compile`` wrapped, whose names have no prefix."""
    return getattr(model, "_orig_mod", model)


def _optimized(model, optimizer):
    """Return the parameters of `optimizer` by their names in `model`, in its own order."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}


def _history(arrays):
    values = {name: x.tolist() for name, x in arrays.items()}
    values["evaluations"] = [(int(step), value) for step, value in values["evaluations"]]
    return History(**values)


def _check_settings(path, found, settings):
    may_differ = {"checkpoint_every"} | ({"steps"} if settings.schedule != "cosine" else set())
    here = asdict(settings) | {"betas": list(settings.betas)}
    found = {"accumulate": 1} | found  # which older files lack
    differences = [
        f"{name} = {found.get(name)!r} there and {value!r} here"
        for name, value in here.items()
        if name not in may_differ and found.get(name) != value
    ]
    if differences:
        raise ValueError(
            f"{os.fspath(path)} must be of a run with the same settings, "
            f"got {', '.join(differences)}"
        )


def _check_model(path, found, expected):
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected)
    if missing or unknown:
        raise ValueError(
            f"{os.fspath(path)} must hold the {len(expected)} arrays of this model, got "
            f"{some(missing)} missing and {some(unknown)} unknown"
        )
    for name, x in expected.items():
        if (found[name].shape, found[name].dtype) != (x.shape, x.dtype):
            raise ValueError(
                f"{os.fspath(path)} must hold {name} of shape {tuple(x.shape)} and dtype "
                f"{dtype_name(x.dtype)}, got {tuple(found[name].shape)} and "
                f"{dtype_name(found[name].dtype)}"
            )
