"""The settings of a training run, and its history."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from attnbook.arrays.arguments import check_choice, check_int, check_number, check_positive

CHOICES = {
    "optimizer": ("adamw", "sgd"),
    "schedule": ("constant", "inverse_sqrt", "cosine"),
    "precision": ("float32", "bfloat16", "float16"),
}


def check_betas(betas: Any) -> tuple[float, float]:
    """Return the shares that AdamW keeps of its two running means as floats, or raise."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"betas must be a pair of numbers, got {betas!r}")
    first, second = (check_number(f"betas[{i}]", beta) for i, beta in enumerate(betas))
    for i, beta in enumerate((first, second)):
        if beta >= 1:
            raise ValueError(f"betas[{i}] must be below 1, got {beta}")
    return first, second


@dataclass(frozen=True)
class Settings:
    """How to train: everything that decides the result, except the model and the batches.

    Attributes
    ----------
    steps : int
        The number of updates.
    lr : float
        The highest learning rate of the run.
    optimizer : str
        ``"adamw"``, or ``"sgd"``, which is params - lr · grads, without momentum.
    betas : pair of floats
        AdamW keeps running means of the gradients and of their squares. In each update, a mean
        keeps this share of its old value: the first share is for the gradients, the second for
        their squares.
    weight_decay : float
        Each update subtracts lr · weight_decay · W from each *matrix* W. Biases, gains and all
        other parameters with one axis do not decay.
    warmup : int
        The learning rate rises to `lr` over this number of updates; with 0 there is no warm-up.
    schedule : str
        How the learning rate changes after the warm-up: ``"constant"``, ``"inverse_sqrt"`` or
        ``"cosine"``; see `learning_rate`.
    final_lr : float
        The learning rate at which the cosine ends.
    label_smoothing : float
        The share of each label that the loss spreads over the vocabulary.
    clip : float, optional
        If the norm of the gradient over all parameters is larger than this, it is scaled down to
        this norm.
    accumulate : int
        Each batch is read in this number of parts, rows 0, k, 2k, … first, and their gradients are
        added before the update. The update is that of the whole batch, apart from rounding and the
        draws of the dropout, but it needs the memory of one part.
    precision : str
        ``"float32"`` computes in the dtype of the model. ``"bfloat16"`` and ``"float16"`` compute
        in half precision whatever ``torch.autocast`` considers safe, but keep the dtype of the
        parameters. float16 needs a CUDA device and scales the loss.
    seed : int
        The seed of the dropout. `Batches` has a seed of its own for the order of the batches.
    eval_every : int, optional
        The number of updates from one evaluation to the next.
    patience : int, optional
        Training stops after this many evaluations in a row without a new best value. The model
        then gets the weights of its best evaluation.
    checkpoint_every : int, optional
        The number of updates from one checkpoint to the next.

    Raises
    ------
    TypeError, ValueError
        If a value does not have its type or is out of its range.

    Examples
    --------
    >>> Settings(steps=100, lr=1e-3, warmup=10, schedule="cosine").optimizer
    'adamw'
    """

    steps: int
    lr: float
    _: KW_ONLY
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0
    warmup: int = 0
    schedule: str = "constant"
    final_lr: float = 0.0
    label_smoothing: float = 0.0
    clip: float | None = None
    accumulate: int = 1
    precision: str = "float32"
    seed: int = 0
    eval_every: int | None = None
    patience: int | None = None
    checkpoint_every: int | None = None

    def __post_init__(self):
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        self._set("seed", check_int("seed", self.seed, at_most=2**128 - 1))
        self._set("warmup", check_int("warmup", self.warmup, at_most=2**63 - 1))
        for name in ("steps", "accumulate", "eval_every", "patience", "checkpoint_every"):
            if name in ("steps", "accumulate") or getattr(self, name) is not None:
                self._set(name, check_int(name, getattr(self, name), 1, at_most=2**63 - 1))
        for name in ("weight_decay", "final_lr", "label_smoothing"):
            self._set(name, check_number(name, getattr(self, name)))
        self._set("betas", check_betas(self.betas))
        self._set("lr", check_positive("lr", self.lr))
        if self.clip is not None:
            self._set("clip", check_positive("clip", self.clip))
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing must be below 1, got {self.label_smoothing}")
        self._check_together()

    def _check_together(self):
        if self.optimizer != "adamw" and self.betas != (0.9, 0.98):
            raise ValueError(
                f"betas are for the optimizer 'adamw', got {self.betas} with {self.optimizer!r}"
            )
        if self.schedule == "cosine" and self.warmup >= self.steps:
            raise ValueError(
                f"warmup must be below steps = {self.steps} with the schedule 'cosine', "
                f"got {self.warmup}"
            )
        if self.schedule != "cosine" and self.final_lr:
            raise ValueError(
                f"final_lr is for the schedule 'cosine', got {self.final_lr} with {self.schedule!r}"
            )
        if self.final_lr > self.lr:
            raise ValueError(f"final_lr must be at most lr = {self.lr}, got {self.final_lr}")
        if self.patience is not None and self.eval_every is None:
            raise ValueError("eval_every must be given with patience, got None")

    def _set(self, name, value):
        object.__setattr__(self, name, value)


@dataclass
class History:
    """What happened in each update, as plain lists that you can plot.

    Attributes
    ----------
    losses : list of float
        The mean loss over the tokens of each batch, before the update with this batch.
    learning_rates : list of float
        The learning rate of each update.
    gradient_norms : list of float
        The norm of the gradient over all parameters before it is clipped. With float16 it is
        infinite or NaN if the update was skipped and the scale of the loss was lowered.
    evaluations : list of (int, float)
        The number of updates made so far, and what `validate` returned at that point.
    """

    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The number of updates made."""
        return len(self.losses)

    @property
    def best(self) -> tuple[int, float] | None:
        """The first evaluation with the lowest value; None if there was no evaluation yet."""
        return min(self.evaluations, key=lambda evaluation: evaluation[1], default=None)

    def is_out_of_patience(self, patience: int | None) -> bool:
        """Return whether none of the last `patience` evaluations was a new best."""
        if patience is None or self.best is None:
            return False
        return len(self.evaluations) - 1 - self.evaluations.index(self.best) >= patience
