"""How a training saves: a small checkpoint at once, a large one while training goes on.

A large checkpoint is copied into CPU memory, and a thread writes the copy. Only one is written at a time: the next save
waits for it, and so does the end of the training, even after an error. If there is no memory for the copy, training
waits until the checkpoint is written.

A checkpoint that the system does not let into its place (`moving.py`) is lost, and the one before it stays: training
goes on, and only the last one of a training must be there.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from minigpt.system.memory import free_memory
from minigpt.system.moving import Refused
from minigpt.system.terminal import complain, one_line
from minigpt.system.waiting import in_background, progress
from minigpt.training import checkpoint, distributed, shards
from minigpt.training.memory import COPIES, LARGE  # copied in some tenths of a second, written in seconds
from minigpt.training.sharding import local
from minigpt.training.verdict import Evaluation

Tensors = Mapping[str, Tensor]


class Saver:
    """Writes the checkpoints of one training. If the model is sharded, every process has a Saver, and all save."""

    def __init__(self, sharded: bool):
        self.sharded = sharded
        self.group = dist.new_group(backend="gloo") if sharded else None  # the training uses another group meanwhile
        self.thread: threading.Thread | None = None
        self.errors: list[BaseException] = []

    @property
    def failed(self) -> bool:
        """Whether the save in the background has failed for good; `wait` raises its error."""
        return any(not isinstance(error, Refused) for error in self.errors)

    def save(
        self,
        folder: Path,
        step: int,
        model: Tensors,
        optimizer: Tensors,
        state: Mapping[str, Any],
        seal: Mapping[str, str],
        keep: int,
        evaluations: Sequence[Evaluation] = (),
    ) -> None:
        """Save, at once or in the background, and then remove checkpoints, as `checkpoint.prune` does.

        Raises OSError, also for the previous save; it says how many bytes are needed and how many are free. If the
        previous one was refused, this is only told, and if this one is, `wait` raises it.
        """
        try:
            self.wait()
        except Refused as error:
            complain(one_line(f"warning: {error}; training goes on, and the next checkpoint is tried"))
        size = sum(local(tensor).nbytes for tensor in (*model.values(), *optimizer.values()))
        later = size >= LARGE and _has_room(COPIES * size)
        weights, memory = (_copied(tensors) if later else tensors for tensors in (model, optimizer))

        def call() -> None:
            self.write(folder, step, weights, memory, state, seal)
            if distributed.rank() == 0:
                checkpoint.prune(folder, keep, evaluations)

        if later:
            self.thread = threading.Thread(target=self._in_background, args=(call,), daemon=True)
            self.thread.start()
        else:
            try:
                call()
            except Refused as error:
                self.errors.append(error)

    def write(
        self,
        folder: Path,
        step: int,
        model: Tensors,
        optimizer: Tensors,
        state: Mapping[str, Any],
        seal: Mapping[str, str],
    ) -> Path:
        """Write one checkpoint. Raises OSError, which says how many bytes are needed and how many are free."""
        try:
            if self.sharded:
                return shards.save(folder, step, model, optimizer, state, seal, self.group)
            return checkpoint.save(folder, step, model, optimizer, state, seal)
        except (ConnectionError, Refused):
            raise
        except OSError as error:
            needed = sum(tensor.numel() * tensor.element_size() for tensor in (*model.values(), *optimizer.values()))
            free = shutil.disk_usage(folder.parent).free
            problem = f"the checkpoint was not written, it needs {needed:,} bytes and {free:,} are free"
            raise OSError(f"{problem} ({error})") from error

    def wait(self) -> None:
        """Wait until the checkpoint in the background is on disk. Raises the error of its thread."""
        if self.thread is not None:
            for _ in progress(self._seconds(self.thread), "waiting until the checkpoint is written"):
                pass
            self.thread = None
        if self.errors:
            raise self.errors.pop()

    def close(self) -> None:
        """Wait, and print an OSError as a warning: raised, it would hide the error that ends the training."""
        try:
            self.wait()
        except ConnectionError:  # every process notices, and the training's own error says so
            pass
        except OSError as error:
            complain(f"warning: {error}")

    def _in_background(self, call: Callable[[], None]) -> None:
        """Run a call, and keep its error for `wait`."""
        try:
            with in_background():
                call()
        except BaseException as error:
            self.errors.append(error)

    @staticmethod
    def _seconds(thread: threading.Thread) -> Iterator[None]:
        """Yield once a second until a thread has ended."""
        while thread.is_alive():
            thread.join(1.0)
            yield


def _has_room(size: int) -> bool:
    """Whether each process of this machine could take `size` bytes more. True if the system does not say."""
    free = free_memory()
    return free is None or free >= size * int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def _copied(tensors: Tensors) -> Tensors:
    """A copy in the memory of the CPU, which the next step does not change."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
