"""The processes of a group: what they send to one another, and their errors when one is lost."""

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from attnbook.arrays.arguments import LARGEST, check_number

T = TypeVar("T")

LONGEST = 512
"""Bytes of what each process says of its call."""

AGREED: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""What each group of processes has agreed on, as long as PyTorch keeps the group."""


@dataclass(frozen=True)
class Passing:
    """A buffer on its way to the next process of the ring, and one that comes from the last."""

    processes: "Processes"
    sent: torch.Tensor  # kept until it has left
    arriving: torch.Tensor
    works: list[Any]  # PyTorch's, of the send and the receive, or one of both
    what: str

    def wait(self) -> torch.Tensor:
        """Return what arrived, or raise RuntimeError if a neighbour is lost."""
        ours = self.processes
        after, before = (ours.rank + 1) % ours.size, (ours.rank - 1) % ours.size
        deeds: tuple[str, ...] = (
            f"to send {self.what} to rank {after}",
            f"to receive {self.what} from rank {before}",
        )
        if len(self.works) != len(deeds):  # NCCL makes one work of both
            deeds = (" and ".join(deeds),) * len(self.works)
        for work, deed in zip(self.works, deeds, strict=True):
            ours.wait(work, deed, self.arriving.device)
        return self.arriving


@dataclass(frozen=True)
class Processes:
    """A group of processes as one of them sees it.

    Attributes
    ----------
    named : ProcessGroup or None
        Of `torch.distributed`, None for the default group: an object that held the default group
        beyond `destroy_process_group` would keep its threads alive while Python ends, and they
        may abort the process then.
    rank : int
        This process, counted in the group.
    size : int
        How many processes there are.
    timeout : timedelta
        How long to wait for another.
    """

    named: Any
    rank: int
    size: int
    timeout: timedelta

    @classmethod
    def of(cls, group: Any, timeout: float) -> "Processes":
        """Return the processes of `group`, by default of all, or raise if there is none."""
        seconds = check_number("timeout", timeout)
        # PyTorch takes 0 milliseconds for no limit, and 2**63 nanoseconds for a time that is past
        if not 0.001 <= seconds <= LARGEST:
            raise ValueError(f"timeout must be from 0.001 to {LARGEST} seconds, got {seconds:g}")
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "group must be a group of processes that has been initialised, got none: start the "
                "program with torchrun and call torch.distributed.init_process_group first"
            )
        if group is dist.group.WORLD:
            group = None
        if group is dist.GroupMember.NON_GROUP_MEMBER:  # what new_group returns to the others
            raise ValueError("group must hold this process, got a group of other processes")
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                "group must be a ProcessGroup of torch.distributed or None, "
                f"got {type(group).__name__}"
            )
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        return cls(group, rank, size, timedelta(seconds=seconds))

    @property
    def group(self) -> Any:
        """The group of `torch.distributed`."""
        return dist.group.WORLD if self.named is None else self.named

    def pass_on(self, x: torch.Tensor, what: str, tag: int = 0) -> Passing:
        """Begin to send `x`, contiguous, to the next process, and to receive a tensor like it."""
        arriving = torch.empty_like(x)
        after, before = (
            dist.get_global_rank(self.group, (self.rank + step) % self.size) for step in (1, -1)
        )
        deeds = [
            dist.P2POp(dist.isend, x, after, self.group, tag),
            dist.P2POp(dist.irecv, arriving, before, self.group, tag),
        ]
        works = self._try(lambda: dist.batch_isend_irecv(deeds), f"to pass on {what}")
        return Passing(self, x, arriving, works, what)

    def gather(self, x: torch.Tensor, what: str) -> list[torch.Tensor]:
        """Return `x`, contiguous, of every process, in the order of the ranks."""
        if self.size == 1:
            return [x]
        parts = [torch.empty_like(x) for _ in range(self.size)]
        deed = f"to gather {what} of {self.size} ranks"
        work = self._try(lambda: dist.all_gather(parts, x, self.group, async_op=True), deed)
        self.wait(work, deed, x.device)
        return parts

    def sum_up(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """Return the sum of `x`, contiguous, over all processes, the same bits on each."""
        if self.size == 1:
            return x
        deed, total = f"to sum {what} of {self.size} ranks", x.clone()
        work = self._try(lambda: dist.all_reduce(total, group=self.group, async_op=True), deed)
        self.wait(work, deed, x.device)
        return total

    def agree(self, check: Callable[[], tuple[T, list[str]]], about: Any) -> T:
        """Return what `check` returns, if it raises on no process and says the same on all.

        `check` returns what the caller needs and a list of what all processes must have in common.
        If it raises on one process, that process raises its error, and all others raise an error
        that names the rank, since they would wait for it in vain. What a group has agreed on once
        it does not compare again, so a call like an earlier one sends no message. The message lies
        on the device of the tensor `about`.
        """
        result, error = None, None
        try:
            result, common = check()
            sentence = "; ".join(common)
        except Exception as refused:  # of any kind, such as an ImportError: the others wait
            error, sentence = refused, f"!{type(refused).__name__}: {refused}"
        agreed = AGREED.setdefault(self.group, set())
        if self.size > 1 and sentence not in agreed:
            said = sentence.encode()[:LONGEST]
            mine = torch.zeros(LONGEST, dtype=torch.uint8)
            mine[: len(said)] = torch.tensor(list(said), dtype=torch.uint8)
            try:
                every = self.gather(mine.to(device_of(about)), "the shapes")
            except RuntimeError:  # such as when the others make a call on which all have agreed
                if error is None:
                    raise
                raise error from None
            if error is None:
                words = [bytes(x.tolist()).rstrip(b"\0").decode(errors="ignore") for x in every]
                self._compare(words)
                agreed.add(sentence)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _compare(self, words):
        for rank, other in enumerate(words):
            if other.startswith("!"):
                raise ValueError(f"rank {rank} of {self.size} refused its arguments: {other[1:]}")
        ours = words[self.rank].split("; ")
        for rank, other in enumerate(words):
            if other != words[self.rank]:
                theirs = other.split("; ")
                wanted, got = (
                    ", ".join(x for x in a if x not in b)
                    for a, b in ((ours, theirs), (theirs, ours))
                )
                raise ValueError(
                    f"all ranks must have {wanted}, as rank {self.rank} has, "
                    f"got {got} on rank {rank}"
                )

    def wait(self, work: Any, deed: str, device: torch.device) -> None:
        """Wait until `work` on tensors of `device` is done, or raise RuntimeError."""
        # NCCL waits on the GPU: its watchdog ends the process, after the timeout of the group
        limited = () if device.type == "cuda" else (self.timeout,)
        self._try(lambda: work.wait(*limited), deed)

    def _try(self, function, deed):
        try:
            return function()
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.size} failed {deed}: another process has ended, or did "
                f"not answer in {self.timeout.total_seconds():g} s. The group cannot be used any "
                f"more: end this process and start all again ({str(error).splitlines()[0]})"
            ) from error


def check_tensor(name: str, x: Any) -> None:
    """Raise TypeError unless `x` is a tensor of PyTorch."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a tensor of PyTorch, got {type(x).__name__}")


def device_of(x: Any) -> torch.device:
    """Return where a tensor lies; a message about anything else lies on the CPU."""
    return x.device if isinstance(x, torch.Tensor) else torch.device("cpu")


def flat(*tensors: Any) -> torch.Tensor:
    """Return the numbers of all tensors in one row, so that they are one message."""
    return torch.cat([x.reshape(-1) for x in tensors])


def unflat(row: torch.Tensor, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return views of a row as tensors of these shapes."""
    sizes = [math.prod(shape) for shape in shapes]
    return [x.reshape(s) for x, s in zip(row.split(sizes), shapes, strict=True)]
