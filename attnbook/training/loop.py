"""Training in PyTorch: one loop, which goes on where it stopped, on one process or on several.

The batch of a step and the random numbers of a step are functions of the step. So a run that was
interrupted and goes on from its checkpoint is, on the CPU and with as many threads, bit for bit the
run that was not.
"""

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("attnbook.training needs PyTorch: pip install torch") from error

from attnbook.arrays.arguments import check_bool, check_path
from attnbook.arrays.weights import check_part
from attnbook.data.batches import Batch
from attnbook.data.ids import iterator
from attnbook.masking.rules import Rule
from attnbook.training.loss import cross_entropy
from attnbook.training.replicas import join
from attnbook.training.run import Loss, Run, checked, evaluating, is_due, predict
from attnbook.training.schedules import learning_rate
from attnbook.training.settings import History, Settings

__all__ = ["History", "Settings", "evaluate", "learning_rate", "train"]


def train(
    model: torch.nn.Module,
    batches: Callable[[int], Batch],
    settings: Settings,
    *,
    loss: Loss | None = None,
    target_mask: Rule | None = None,
    validate: Callable[[torch.nn.Module], float] | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> History:
    r"""Train `model` in place, and return the history of the run.

    Each update computes the gradient of the mean loss over all tokens of the batch, clips its norm
    to `settings.clip`, and makes a step of AdamW or of plain gradient descent,
    params - lr · grads, with the `learning_rate` of the step.

    Parameters
    ----------
    model : torch.nn.Module
        Called as ``model(source, inputs, source_mask=…, target_mask=…)``, it must return logits
        (b, n, V), as `attnbook.nn.Transformer` does. A packed batch also passes ``documents=…``.
        ``torch.compile`` may have compiled it.
    batches : callable
        ``batches(step)`` returns the `Batch` of the update that follows `step` updates. It must
        return the same batch at every call, as `attnbook.data.Batches` and `PackedBatches` do.
    settings : Settings
    loss : callable, optional
        ``loss(logits, labels, mask)`` returns the mean over the tokens where `mask` is True. The
        default is the cross-entropy with label smoothing.
    target_mask : masking.Rule, optional
        What the targets see of one another, the same in all rows, such as
        ``masking.SlidingWindow(left=255)``. The model gets it, joined with the mask of a batch that
        has padding.
    validate : callable, optional
        ``validate(model)`` returns a number, **lower is better**. It is called every
        `settings.eval_every` updates, in eval mode and without gradients.
    checkpoint : str or path, optional
        A file in an existing directory. If the file exists, the run continues from it. It is
        written at the start, every `settings.checkpoint_every` updates, at the end, and when you
        interrupt the run.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    History
        The history of the whole run, including what happened before the checkpoint.

    Raises
    ------
    TypeError, ValueError
        If an argument does not have its type, settings and arguments contradict each other, a batch
        has no label, the loss does not depend on the logits, or the checkpoint is damaged or
        belongs to another run.
    FloatingPointError
        If the loss or its gradient is infinite or NaN. That update is not made.
    KeyboardInterrupt
        After Ctrl-C, as soon as the current update is finished and the checkpoint is written. A
        second Ctrl-C stops at once and keeps the earlier checkpoint.

    Notes
    -----
    Afterwards the model is in eval mode and has no gradients. With `settings.patience`, it has the
    weights of its best evaluation. The random generators of the caller do not change, because
    dropout draws from a generator that each step seeds with `settings.seed`, the step and the
    process.

    Under ``torchrun``, each process calls this function with the same arguments and with its model
    on its own device. Each process takes its rows of every batch, and the gradient is that of the
    whole batch. All models start with the parameters of process 0. Only this process evaluates,
    writes the checkpoint and shows the progress bar, but all processes must be able to read the
    file.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 5; Loshchilov and Hutter (2019),
    "Decoupled weight decay regularization"; chapter `training`.

    Examples
    --------
    >>> from attnbook.data.batches import Batches
    >>> class Bigram(torch.nn.Embedding):  # the row of a token: the logits of the next
    ...     def forward(self, source, inputs, *, source_mask=None, target_mask=None):
    ...         return super().forward(inputs)
    >>> batches = Batches(None, [[3, 4, 3, 4, 3, 4]], batch_size=1, start=None, stop=None)
    >>> history = train(Bigram(5, 5), batches, Settings(steps=60, lr=0.5))
    >>> history.step, history.losses[-1] < 0.01
    (60, True)
    """
    check_bool("progress", progress)
    checkpoint = None if checkpoint is None else check_path("checkpoint", checkpoint)
    device = _check(model, batches, settings, loss, validate, checkpoint)
    _check_rule(target_mask)
    if loss is None:
        smoothed: Callable[..., Any] = functools.partial(
            cross_entropy, label_smoothing=settings.label_smoothing
        )
        loss = smoothed  # makes a tensor of tensors
    forked = [device] if device.type == "cuda" else []
    group = join(device)
    with torch.random.fork_rng(devices=forked), _interrupts() as interrupted:
        run = Run(model, settings, loss, target_mask, group, checkpoint)
        try:
            run.start()
            with _bar(run, progress) as bar:
                while not run.is_over():
                    if group.sum(interrupted.is_set()):
                        run.save()
                        raise KeyboardInterrupt
                    run.update(batches(run.history.step))
                    run.evaluate(validate)
                    if is_due(run.history.step, settings.checkpoint_every):
                        run.save()
                    bar(run.history.losses[-1])
            run.save()
            run.restore_best()
        finally:
            run.optimizer.zero_grad()
            model.eval()
    if interrupted.is_set():
        raise KeyboardInterrupt
    return run.history


def _check_rule(rule):
    if rule is not None and not isinstance(rule, Rule):
        raise TypeError(
            f"target_mask must be a masking.Rule, because batches differ in length, "
            f"got {type(rule).__name__}"
        )
    if rule is not None and rule.leading:
        raise ValueError(
            f"target_mask must be the same for all rows of a batch, "
            f"got a rule with leading axes {rule.leading}"
        )


def evaluate(
    model: torch.nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Loss | None = None,
    target_mask: Rule | None = None,
) -> float:
    """Return the mean loss over all tokens of `batches`, without dropout and without gradients.

    Parameters
    ----------
    model : torch.nn.Module
        As for `train`. The model and its submodules keep their train or eval modes.
    batches : iterable of Batch
    loss : callable, optional
        As for `train`; the default is the cross-entropy.
    target_mask : masking.Rule, optional
        As for `train`.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If `batches` does not yield `Batch` objects, or holds no label, or `target_mask` is no rule.

    Examples
    --------
    >>> from attnbook.data.batches import Batches
    >>> class Uniform(torch.nn.Linear):
    ...     def forward(self, source, inputs, *, source_mask=None, target_mask=None):
    ...         return 0 * self.weight.sum() + torch.zeros(*inputs.shape, 7)
    >>> round(evaluate(Uniform(1, 1), [Batches(None, [[3, 4]], batch_size=1)(0)]), 4)  # log 7
    1.9459
    """
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be callable, got {type(loss).__name__}")
    _check_rule(target_mask)
    device = _device(model)
    total, tokens = 0.0, 0
    with evaluating(model):
        for batch in iterator("batches", batches, "Batch objects"):
            logits, labels, mask = predict(model, checked(batch), device, "float32", target_mask)
            n = int(batch.label_mask.sum())
            if n:
                total += float((loss or cross_entropy)(logits, labels, mask)) * n
            tokens += n
    if tokens == 0:
        raise ValueError("batches must hold at least 1 label, got none")
    return total / tokens


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets; a second one raises as always."""
    event = threading.Event()
    here = threading.current_thread() is threading.main_thread()
    old = signal.getsignal(signal.SIGINT)
    if not here or old in (signal.SIG_IGN, None):  # no signal reaches this, or none should
        yield event
        return

    def handle(number, frame):
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, old)


@contextlib.contextmanager
def _bar(run, wanted) -> Iterator[Callable[[float], None]]:
    """Yield what is called after each update, with the loss: it moves a bar if one is wanted."""
    if not wanted or run.group.rank:
        yield lambda loss: None
        return
    try:
        import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error

    with tqdm.tqdm(total=run.settings.steps, initial=run.history.step, unit="step") as bar:

        def move(loss):
            bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            bar.update()

        yield move


def _device(model):
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError("model must have parameters, got none")
    return parameters[0].device


def _check(model, batches, settings, loss, validate, checkpoint):
    """Return the device of `model`, or raise if the arguments do not go together."""
    device = _device(model)
    check_part("settings", settings, Settings)
    for name, function in (("batches", batches), ("loss", loss), ("validate", validate)):
        if not callable(function) and (name == "batches" or function is not None):
            raise TypeError(f"{name} must be callable, got {type(function).__name__}")
    if settings.precision == "float16" and device.type != "cuda":
        raise ValueError(
            f"precision 'float16' needs a model on a CUDA device, got one on {device}; "
            "'bfloat16' runs on the CPU too"
        )
    if loss is not None and settings.label_smoothing:
        raise ValueError(
            "label_smoothing is for the default loss and must be 0 with loss=, "
            f"got {settings.label_smoothing}"
        )
    for setting, name, argument in (
        ("eval_every", "validate", validate),
        ("checkpoint_every", "checkpoint", checkpoint),
    ):
        if getattr(settings, setting) is not None and argument is None:
            raise ValueError(f"{name} must be given with {setting}, got None")
    if validate is not None and settings.eval_every is None:
        raise ValueError("eval_every must be given with validate, got None")
    return device
