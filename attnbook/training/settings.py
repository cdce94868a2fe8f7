"""What a training run is told, and what it tells."""

from dataclasses import dataclass, field

from attnbook.arrays.arguments import check_choice, check_int, check_number

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("constant", "inverse_sqrt", "cosine")
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Settings:
    """How to train. Everything that decides the result, but for the model and the batches.

    Attributes
    ----------
    steps : int
        Number of updates.
    lr : float
        The learning rate, at its highest.
    optimizer : str
        ``"adamw"``, or ``"sgd"``: params - lr · grads, without momentum.
    betas : pair of floats
        Of AdamW: how much of the last mean of the gradients, and of their squares, is kept.
    weight_decay : float
        The share of each *matrix* that lr removes: W - lr · weight_decay · W. Biases, gains and
        everything else of one axis stay.
    warmup : int
        Number of updates over which the learning rate rises to `lr`; 0 for none.
    schedule : str
        What it does then: ``"constant"``, ``"inverse_sqrt"`` or ``"cosine"``; see `learning_rate`.
    final_lr : float
        Where the cosine ends.
    label_smoothing : float
        Of the loss: the share of each label that is spread over the vocabulary.
    clip : float, optional
        Longest gradient, over all parameters together; a longer one is shortened to it.
    precision : str
        ``"float32"`` computes in the model's own dtype. ``"bfloat16"`` and ``"float16"`` compute
        in half precision what ``torch.autocast`` finds safe, and keep the parameters as they are;
        float16 needs a CUDA device and scales its loss.
    seed : int
        Of the dropout. The order of the batches has its own, in `batches`.
    eval_every : int, optional
        Number of updates from one evaluation to the next.
    patience : int, optional
        Stop after so many evaluations in a row without a new best. The model then ends with the
        weights of its best evaluation.
    checkpoint_every : int, optional
        Number of updates from one checkpoint to the next.

    Raises
    ------
    TypeError, ValueError
        If a value is not of its type or range.

    Examples
    --------
    >>> Settings(steps=100, lr=1e-3, warmup=10, schedule="cosine").optimizer
    'adamw'
    """

    steps: int
    lr: float
    optimizer: str = field(default="adamw", kw_only=True)
    betas: tuple[float, float] = field(default=(0.9, 0.98), kw_only=True)
    weight_decay: float = field(default=0.0, kw_only=True)
    warmup: int = field(default=0, kw_only=True)
    schedule: str = field(default="constant", kw_only=True)
    final_lr: float = field(default=0.0, kw_only=True)
    label_smoothing: float = field(default=0.0, kw_only=True)
    clip: float | None = field(default=None, kw_only=True)
    precision: str = field(default="float32", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    eval_every: int | None = field(default=None, kw_only=True)
    patience: int | None = field(default=None, kw_only=True)
    checkpoint_every: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("precision", self.precision, PRECISIONS)
        for name, least, most in (
            ("steps", 1, 2**63 - 1),
            ("warmup", 0, 2**63 - 1),
            ("seed", 0, 2**128 - 1),
        ):
            self._set(name, check_int(name, getattr(self, name), least, most))
        for name in ("eval_every", "patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                self._set(name, check_int(name, getattr(self, name), at_least=1))
        for name in ("lr", "weight_decay", "final_lr", "label_smoothing"):
            self._set(name, check_number(name, getattr(self, name)))
        self._check_betas()
        if self.clip is not None:
            self._set("clip", check_number("clip", self.clip))
        for name in ("lr", "clip"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be above 0, got 0.0")
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing must be below 1, got {self.label_smoothing}")
        self._check_together()

    def _check_betas(self):
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise TypeError(f"betas must be a pair of numbers, got {self.betas!r}")
        betas = tuple(check_number(f"betas[{i}]", beta) for i, beta in enumerate(self.betas))
        for i, beta in enumerate(betas):
            if beta >= 1:
                raise ValueError(f"betas[{i}] must be below 1, got {beta}")
        if self.optimizer != "adamw" and betas != (0.9, 0.98):
            raise ValueError(
                f"betas are for the optimizer 'adamw', got {betas} with {self.optimizer!r}"
            )
        self._set("betas", betas)

    def _check_together(self):
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
    """What happened in each update: plain lists, to be plotted.

    Attributes
    ----------
    losses : list of float
        Mean loss over the tokens of the batch, before the update that it causes.
    learning_rates : list of float
    gradient_norms : list of float
        Length of the gradient over all parameters, before it is clipped. With float16 it is
        infinite or NaN where the update was left out and the scale of the loss lowered.
    evaluations : list of (int, float)
        Number of updates made, and what `validate` returned then.
    """

    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Number of updates made."""
        return len(self.losses)

    @property
    def best(self) -> tuple[int, float] | None:
        """The evaluation with the lowest value, the first of equals; None before the first."""
        return min(self.evaluations, key=lambda evaluation: evaluation[1], default=None)

    def is_out_of_patience(self, patience: int | None) -> bool:
        """Return whether the last `patience` evaluations all brought no new best."""
        if patience is None or self.best is None:
            return False
        return len(self.evaluations) - 1 - self.evaluations.index(self.best) >= patience
