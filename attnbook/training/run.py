"""One training run: a model, its optimizer, how far they are, and where that is written."""

import contextlib
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnbook.data.batches import Batch
from attnbook.masking.ranges import FirstKeys
from attnbook.training import checkpoints
from attnbook.training.replicas import Replicas
from attnbook.training.schedules import learning_rate
from attnbook.training.settings import History

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Run:
    """One run: a model, its optimizer, how far they are, and where that is written."""

    def __init__(self, model, settings, loss, rule, group: Replicas, path):
        self.model, self.settings, self.loss, self.rule = model, settings, loss, rule
        self.group, self.path = group, path
        self.module = checkpoints.unwrapped(model)
        self.optimizer = _optimizer(self.module, settings)
        self.scaler = torch.amp.GradScaler("cuda", enabled=settings.precision == "float16")
        self.history = History()
        self.best: dict[str, torch.Tensor] | None = None
        self.saved: int | None = None  # the step of the last checkpoint

    def start(self):
        """Go on from the checkpoint, or write the first, which finds a bad path at once."""
        if self.path is not None and self.group.of_first(os.path.exists(self.path)):
            found = checkpoints.load(self.path, self.module, self.optimizer, self.settings)
            self.history, self.best, self.saved = found.history, found.best, found.history.step
            self.scaler.load_state_dict(found.scaler or {})
        self.wrapped = self.group.wrap(self.model)
        self.save()
        self.model.train()

    def is_over(self):
        settings, history = self.settings, self.history
        return history.step >= settings.steps or history.is_out_of_patience(settings.patience)

    def update(self, batch):
        """Make one update with the gradient of the mean over the tokens of the whole batch."""
        step, group, optimizer = self.history.step, self.group, self.optimizer
        batch = checked(batch)
        _seed(self.settings.seed, step, group)
        if group.world > 1:
            batch = batch.shard(group.rank, group.world)
        tokens = group.sum(int(batch.label_mask.sum()))
        if tokens == 0:
            raise ValueError(f"batches({step}) must hold at least 1 label, got none")
        optimizer.zero_grad()
        n_parts = self.settings.accumulate
        if n_parts > len(batch):
            raise ValueError(
                f"accumulate must be at most the rows of a batch on one process, {len(batch)}, "
                f"got {n_parts}"
            )
        total = sum(self._add_gradient(batch.shard(i, n_parts), tokens) for i in range(n_parts))
        loss = group.sum(total) / tokens
        self._check_finite("loss", loss)
        self.scaler.unscale_(optimizer)
        norm = self._clip()
        if not self.scaler.is_enabled():  # it leaves out such an update by itself
            self._check_finite("gradient", norm)
        rate = learning_rate(step, self.settings)
        for parameters in optimizer.param_groups:
            parameters["lr"] = rate
        self.scaler.step(optimizer)
        self.scaler.update()
        self.history.losses.append(loss)
        self.history.learning_rates.append(rate)
        self.history.gradient_norms.append(norm)

    def _add_gradient(self, batch, tokens):
        """Add the gradient of a part of a batch of so many tokens, and return its summed loss."""
        mine, group = int(batch.label_mask.sum()), self.group
        precision = self.settings.precision
        logits, labels, mask = predict(self.wrapped, batch, group.device, precision, self.rule)
        mean = self.loss(logits, labels, mask) if mine else (logits * 0).sum()
        if not isinstance(mean, torch.Tensor) or mean.ndim:
            got = tuple(mean.shape) if isinstance(mean, torch.Tensor) else type(mean).__name__
            raise TypeError(f"loss must return a tensor of shape (), got {got}")
        if not mean.requires_grad:
            raise ValueError("loss must return a number that depends on the logits, got a constant")
        # the wrapper takes the mean over processes; the batch has the sum over its tokens
        self.scaler.scale(mean * (mine * group.world / tokens)).backward()
        return mean.item() * mine

    def _clip(self):
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        longest = math.inf if self.settings.clip is None else self.settings.clip
        return torch.nn.utils.clip_grad_norm_(parameters, longest).item()

    def _check_finite(self, name, number):
        if not math.isfinite(number):
            raise FloatingPointError(
                f"{name} must be finite, got {number} in step {self.history.step}; a lower "
                "learning rate, a longer warm-up or clipping may help"
            )

    def evaluate(self, validate):
        """Evaluate if it is time, and keep the weights if they are the best and will be asked."""
        history, settings = self.history, self.settings
        if not is_due(history.step, settings.eval_every):
            return
        value = 0.0
        if self.group.rank == 0:
            with evaluating(self.model):
                value = _number(validate(self.model))
        history.evaluations.append((history.step, self.group.of_first(value)))
        if settings.patience is not None and history.best == history.evaluations[-1]:
            self.best = {name: x.clone() for name, x in self.module.state_dict().items()}

    def save(self):
        """Write the checkpoint, unless the one of this step is there."""
        if self.path is None or self.saved == self.history.step:
            return
        if self.group.rank == 0:
            now = checkpoints.Progress(
                self.settings, self.history, self.best, self.scaler.state_dict()
            )
            checkpoints.save(self.path, self.module, self.optimizer, now)
        self.group.sum(0)  # nobody goes on before the file is there
        self.saved = self.history.step

    def restore_best(self):
        """Put the weights of the best evaluation into the model, if they were kept."""
        if self.best is not None:
            self.module.load_state_dict(self.best)


def _optimizer(module, settings):
    """Return the optimizer that `settings` name; only matrices decay."""
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("model must have parameters that require gradients, got none")
    matrices = [p for p in trained if p.ndim >= 2]
    others = [p for p in trained if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr)
    fused = trained[0].device.type in ("cpu", "cuda")  # one kernel instead of ten a parameter
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=fused)


@contextlib.contextmanager
def evaluating(model):
    """Put `model` in eval mode, without gradients, and each of its parts back in its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def predict(model, batch, device, precision, rule=None):
    """Return logits in at least float32, labels and their mask; `rule` limits what targets see."""

    def tensor(x):
        return None if x is None else torch.tensor(x, device=device)

    mask = tensor(batch.label_mask)
    documents, is_full = batch.documents, batch.label_mask.all()
    target_mask = rule
    if not is_full and documents is None:
        target_mask = mask[:, None, None]
        if rule is not None:
            target_mask = rule & FirstKeys(batch.label_mask.sum(1))
    packed = {} if documents is None else {"documents": documents}
    half = HALF.get(precision)
    with torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None):
        logits = model(
            tensor(batch.source),
            tensor(batch.inputs),
            source_mask=tensor(batch.source_mask),
            target_mask=target_mask,
            **packed,
        )
    # a loss in half precision would have two or three digits
    return logits.float() if logits.dtype.itemsize < 4 else logits, tensor(batch.labels), mask


def _seed(seed, step, group):
    """Let what is random in this step depend on the seed, the step and the process alone."""
    state = np.random.SeedSequence([seed, step, group.rank]).generate_state(1, np.uint64)
    torch.default_generator.manual_seed(int(state[0]))
    if group.device.type == "cuda":
        with torch.cuda.device(group.device):
            torch.cuda.manual_seed(int(state[0]))
    elif group.device.type == "mps":
        torch.mps.manual_seed(int(state[0]))


def checked(batch):
    if not isinstance(batch, Batch):
        raise TypeError(f"batches must give Batch objects, got {type(batch).__name__}")
    return batch


def is_due(step, every):
    return every is not None and step % every == 0


def _number(value):
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"validate must return a number, got {type(value).__name__}") from None
    if math.isnan(number):
        raise ValueError("validate must return a number, got nan")
    return number
