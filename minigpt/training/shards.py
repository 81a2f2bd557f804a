"""Checkpoints of a sharded training: each process writes its slices, and reads those that it needs.

torch.distributed.checkpoint plans which process writes and reads which slice; its Hugging Face format has plain
safetensors files and no pickle (`slices.py`). The first process seals the files, so a checkpoint is complete or absent.
No process holds more than its shard. Any number of processes may resume, also from a checkpoint with whole tensors. The
processes may be on several machines that share the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minigpt.config.upgrade import changes_tensors
from minigpt.system.moving import Refused
from minigpt.system.waiting import heartbeat
from minigpt.training import checkpoint
from minigpt.training.checkpoint import Checkpoint, CheckpointError
from minigpt.training.distributed import reaching_others
from minigpt.training.optimizer import Optimizer

Result = TypeVar("Result")


def save(
    folder: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    seal: Mapping[str, str],
    group: dist.ProcessGroup | None = None,
) -> Path:
    """`checkpoint.save` by all processes of a group together; tensors have the same names in all.

    When this returns in any process, the checkpoint is on disk and verifies. Raises OSError in all processes if one of
    them could not write, and the folder is as before; ConnectionError if another process has ended.
    """
    tensors = {**model, **optimizer}
    first, own_files = dist.get_rank(group) == 0, f"shard-{dist.get_rank(group) + 1:05d}-*"
    try:
        (beside, *_) = _by_all(lambda: checkpoint.begin(folder, step) if first else None, group)
        assert beside is not None
        _write(tensors, dict.fromkeys(model, 1) | dict.fromkeys(optimizer, 2), beside, group)
        sums = _by_all(lambda: {path.name: checkpoint.sum_of(path) for path in beside.glob(own_files)}, group)
        all_sums = {name: entry for own_sums in sums for name, entry in own_sums.items()}
        finish = partial(checkpoint.finish, beside, step, all_sums, tensors, state, seal)
        final, *_ = _by_all(lambda: finish() if first else beside, group)
        return final
    finally:
        if first and folder.is_dir():
            checkpoint.sweep(folder)


def _write(tensors: dict[str, Tensor], files: dict[str, int], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Write each process's slices, and one copy of a tensor that all hold whole; `files`: {tensor: file number}."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    try:
        with reaching_others(surely=False), heartbeat("writing the shards"):
            writer = HuggingFaceStorageWriter(str(folder), files, save_distributed=True)
            save_together(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise OSError(f"process {rank}: {type(cause).__name__}: {str(cause)[:200]}") from None


def _by_all(call: Callable[[], Result], group: dist.ProcessGroup | None) -> list[Result]:
    """What a call returns in each process. If it raises OSError or ValueError in one, raises OSError in all of them.

    If it raises Refused in one, and nothing else in others, this is Refused.
    """
    answers: list[Any] = [None] * dist.get_world_size(group)
    try:
        answer: tuple[str, bool, Result | None] = "", True, call()
    except (OSError, ValueError, CheckpointError) as error:
        answer = f"process {dist.get_rank(group)}: {error}", isinstance(error, Refused), None
    with reaching_others(surely=False):
        dist.all_gather_object(answers, answer, group)  # pickled between the processes of one training, never on disk
    if wrong := [failure for failure, _, _ in answers if failure]:
        raise (Refused if all(refused for _, refused, _ in answers) else OSError)(wrong[0])
    return [result for _, _, result in answers]


def fill(model: nn.Module, optimizer: Optimizer, saved: Checkpoint) -> None:
    """Read this process's slices of a checkpoint into a sharded model and its optimizer.

    `saved` was checked, and its tensors may be on the meta device. Raises CheckpointError, UserError for a state that
    the optimizer would not have, and ConnectionError.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_together

    if changes_tensors(saved.format):
        hint = "the slices of several processes are not changed to today's: resume it in one process first"
        raise CheckpointError(f"{saved.path}: format {saved.format}: {hint}")
    checkpoint.check_fit(model, saved.model, saved.path)
    forms = saved.optimizer.items()
    optimizer.load_state(
        {name: torch.zeros((), dtype=form.dtype).expand(form.shape) for name, form in forms}
    )  # each takes the memory of one number
    with reaching_others(surely=False), heartbeat("reading the slices of this process"):
        reader = HuggingFaceStorageReader(str(saved.path))
        load_together({**checkpoint.tensors_of(model), **optimizer.state()}, storage_reader=reader)
