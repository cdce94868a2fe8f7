"""Replicas of one model in several processes, and sums over all of them."""

import atexit
import os
from dataclasses import dataclass

import torch
from torch import distributed


@dataclass(frozen=True)
class Replicas:
    """The replicas of a model that the processes of ``torchrun`` train together, or a single one.

    `rank` is the number of the one here among `world`; it is on `device`.
    """

    rank: int
    world: int
    device: torch.device

    def sum(self, number: float) -> float:
        """Return the sum of the `number` of all processes."""
        if self.world == 1:
            return number
        total = torch.tensor(number, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.item()

    def of_first(self, number: float) -> float:
        """Return the `number` of process 0."""
        return self.sum(number if self.rank == 0 else 0.0)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return `model` with gradients that are the mean over all processes."""
        if self.world == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)


def join(device: torch.device) -> Replicas:
    """Join the processes that ``torchrun`` started, and stay until this one ends.

    It names itself by the variables RANK and WORLD_SIZE. A group that is there already is used:
    PyTorch cannot join a second time after it has left.
    """
    if not distributed.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    if not distributed.is_initialized():
        return Replicas(0, 1, device)
    return Replicas(distributed.get_rank(), distributed.get_world_size(), device)


def _leave():
    if distributed.is_initialized():
        distributed.destroy_process_group()
