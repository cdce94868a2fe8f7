"""Processes of training runs, as a script: `python train_worker.py JSON`.

For each group of tasks it forks one child or several, which train `Small` together and write the
history and the parameters to a file. On request a child kills itself on the way, as a power cut
would: in an update, or halfway through the write of a checkpoint.
"""

import functools
import json
import os
import signal
import sys
from dataclasses import asdict

import numpy as np
import torch
from forked import forked
from safetensors.torch import load, save_file
from train_models import Small, heeding_interrupts, small_batches

from attnbook.arrays import tensor_file
from attnbook.training.loop import Settings, evaluate, train


def main(task):
    dtype = getattr(torch, task.get("dtype", "float32"))
    rank = int(os.environ.get("RANK", "0"))
    drop = task.get("drop", 0.3)
    model = Small(dtype=dtype, drop=drop, seed=rank)  # several processes start differently
    batches = small_batches()
    if "kill_in_write" in task:
        die_in_write(task["kill_in_write"])

    def batch_of(step):
        if step == task.get("kill_in_step"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == task.get("interrupt_in_step") and rank == task["report"]:
            signal.raise_signal(signal.SIGINT)
        return batches(step)

    settings = Settings(**task["settings"])
    validate = None
    if settings.eval_every:
        validate = functools.partial(evaluate, batches=[small_batches(seed=1)(0)])
    try:
        history = train(
            model,
            batch_of,
            settings,
            validate=validate,
            checkpoint=task.get("checkpoint"),
            progress=task.get("progress", False),
        )
    except KeyboardInterrupt:
        with open(task["checkpoint"], "rb") as file:
            n = len(load(file.read())["history.losses"])
        print(f"step {n} of {settings.steps}")
        return
    if rank == task.get("report", 0):
        arrays = {name: x.contiguous() for name, x in model.state_dict().items()}
        for name, values in asdict(history).items():
            arrays[f"history.{name}"] = torch.tensor(np.array(values, dtype=np.float64))
        save_file(arrays, task["out"])


def die_in_write(which):
    """Let the process die in the write number `which`, with half of the file on the disk."""
    writes = []

    def fsync(file):
        if not os.path.isdir(f"/proc/self/fd/{file}"):
            writes.append(file)
            if len(writes) == which:
                os.truncate(file, os.fstat(file).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)

    tensor_file.os.fsync = fsync


def do(rank, size, tasks):
    """Do `tasks`, one after the other, as a process that torchrun has started."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    for task in tasks:
        main(task)


if __name__ == "__main__":
    with heeding_interrupts():
        torch.optim.SGD([torch.zeros(1)])  # imports much, once for all children
        groups = json.loads(sys.argv[1])
        codes = [forked(n, functools.partial(do, size=n, tasks=tasks)) for n, tasks in groups]
    print("exit codes:", codes)
