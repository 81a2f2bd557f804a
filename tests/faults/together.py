"""Several processes that save and resume a sharded model together: run by `test_shards.py`.

    python together.py resume FOLDER OPTIMIZER SIZES...    saved by each number of processes, resumed by each
    python together.py kill FOLDER COUNT SEED              COUNT times one of two is killed while they save
    python together.py full FOLDER                         one of two may write no large file

It forks for each process, so that torch is imported once. What it found is a JSON line for each trial.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what fully_shard imports, once for all processes
import torch.distributed as dist
import torch.distributed.checkpoint.hf_storage
import torch.distributed.fsdp
import torch.nn.functional as F
from crash import halves

import minigpt.training.optimizer as optimizers
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.model import GPT, ModelConfig
from minigpt.training import checkpoint, shards
from minigpt.training.checkpoint import CheckpointError, checkpoints, load, newest, prune
from minigpt.training.optimizer import AdamW, Muon, Optimizer
from minigpt.training.parallel import shard
from minigpt.training.sharding import is_sharded

SHAPE = ModelConfig(n_layer=2, n_embd=16, block_size=4, attention=MultiHead.Config(n_head=2))
STEPS, KEEP = 3, 2
KINDS: dict[str, type[Optimizer]] = {"adamw": AdamW, "muon": Muon}


def in_float64(matrices: torch.Tensor, plain: Callable[..., torch.Tensor] = optimizers.orthogonal) -> torch.Tensor:
    """Muon's steps without rounding to bfloat16, which would amplify the order of sums."""
    return plain(matrices, torch.float64)


def fork(processes: int, folder: Path, work: Callable[[], None]) -> list[int]:
    """Start processes that meet and work; their process ids."""
    store = folder / f"store-{time.monotonic_ns()}"
    children = []
    for rank in range(processes):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            signal.alarm(100)
            said = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": processes,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": 1,
            }
            os.environ.update({name: str(value) for name, value in said.items()})  # as torchrun does
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
            work()
            dist.destroy_process_group()
            code = 0
        except BaseException as error:
            if dist.is_initialized():
                print(f"process {rank}: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return children


def ended(children: list[int]) -> list[int]:
    """Wait for the processes; their exit codes."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


# ---- resumed by any number ----


def made(kind: str) -> tuple[GPT, Optimizer]:
    """A model and its optimizer, in shards where there are several processes."""
    torch.manual_seed(0)
    model = GPT(SHAPE, vocab_size=11)
    if dist.get_world_size() > 1:
        shard(model, torch.device("cpu"))
    return model, KINDS[kind](KINDS[kind].Config(), model)


def learn(model: GPT, optimizer: Optimizer, start: int) -> None:
    """Some steps on random ids; each process computes some rows."""
    for step in range(start, start + STEPS):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 11, (8, 5), generator=generator)[dist.get_rank() :: dist.get_world_size()]  # (B, T + 1)
        logits = model(ids[:, :-1])  # (B, T, V)
        (F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / 32).backward()
        for parameter in model.parameters():
            if is_sharded(model) and parameter.ndim == 0:
                dist.all_reduce(parameter.grad)
        optimizer.step(1.0)


def save(folder: Path, step: int, model: GPT, optimizer: Optimizer) -> None:
    tensors = checkpoint.tensors_of(model), optimizer.state()
    if is_sharded(model):
        shards.save(folder, step, *tensors, {}, {})
    else:
        checkpoint.save(folder, step, *tensors, {}, {})


def resumed(kind: str, path: Path) -> tuple[GPT, Optimizer]:
    model, optimizer = made(kind)
    if is_sharded(model):
        shards.fill(model, optimizer, load(path, values=False))
    else:
        checkpoint.fill(model, load(path).model, path)
        optimizer.load_state(load(path).optimizer)
    return model, optimizer


def resume(folder: Path, kind: str, sizes: list[int]) -> None:
    """Saved after three steps by each number of processes, and resumed for three more by each."""
    torch.set_default_dtype(torch.float64)
    optimizers.orthogonal = in_float64
    for before in sizes:

        def first(before: int = before) -> None:
            model, optimizer = made(kind)
            learn(model, optimizer, 0)
            save(folder / str(before), STEPS, model, optimizer)
            learn(model, optimizer, STEPS)
            save(folder / str(before), 2 * STEPS, model, optimizer)

        assert not any(ended(fork(before, folder, first)))
        for after in sizes:

            def then(before: int = before, after: int = after) -> None:
                model, optimizer = resumed(kind, folder / str(before) / f"step-{STEPS:06d}")
                learn(model, optimizer, STEPS)
                save(folder / f"{before}-{after}", 2 * STEPS, model, optimizer)

            assert not any(ended(fork(after, folder, then)))


# ---- killed ----


def write(folder: Path, step: int, rows: int = 2000) -> None:
    """A checkpoint, every number of which is its step; each of two processes has half of the rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.full((rows, 16), float(step))
    split = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    shards.save(folder, step, {"weight": split}, {"weight|momentum": split + 0.5}, {"seconds": step / 2}, {})


def read(folder: Path) -> int:
    """The step of the newest checkpoint, whose numbers are its own; 0 where there is none."""
    try:
        found, _ = newest(folder)
    except CheckpointError:
        return 0
    step = int(found.state["step"])
    assert bool((found.model["weight"] == step).all()), "wrong weights"
    assert bool((found.optimizer["weight|momentum"] == step + 0.5).all()), "wrong optimizer"
    assert found.state["seconds"] == step / 2, "wrong state"
    return step


def work(folder: Path, steps: range, said: int | None = None) -> None:
    """What a sharded training does to its folder; `said`: where the first process says what is saved."""
    for step in steps:
        write(folder, step)
        if dist.get_rank() == 0:
            if said is not None:
                os.write(said, f"{step}\n".encode())
            prune(folder, KEEP)


def moment(draw: random.Random, number: int, folder: Path, seconds: float) -> str:
    """Wait for some moment of a save: by the clock, or until a certain file is there."""
    pattern = ("", "shard-00001-model-00001*", "shard-00002-model-00002*", "state.json", "manifest.json")[number % 5]
    if not pattern:
        time.sleep(draw.uniform(0, seconds))
        return "by the clock"
    step, deadline = draw.randint(3, 6), time.monotonic() + 20
    while not list(folder.glob(f".writing-{step:06d}-*/{pattern}")) and time.monotonic() < deadline:
        if any(path.name > f"step-{step:06d}" for path in checkpoints(folder)):
            break  # it came and went between two looks
    return pattern


def kill(folder: Path, count: int, seed: int) -> None:
    """Two processes save again and again; one of them is killed, and what is left is looked at."""
    draw, pristine, tried = random.Random(seed), folder / "pristine", folder / "tried"
    began = time.monotonic()
    assert not any(ended(fork(2, folder, lambda: work(pristine, range(1, 3)))))
    seconds = 3 * (time.monotonic() - began)
    for number in range(count):
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(pristine, tried)
        heard, said = os.pipe()
        children = fork(2, folder, lambda said=said: work(tried, range(3, 9), said))
        os.close(said)
        what: dict[str, Any] = {"at": moment(draw, number, tried, seconds), "killed": draw.randrange(2), "problem": ""}
        os.kill(children[what["killed"]], signal.SIGKILL)
        what["codes"] = ended(children)
        with os.fdopen(heard) as pipe:
            what["saved"] = max([2, *map(int, pipe.read().split())])
        what["names"] = sorted(os.listdir(tried))
        try:
            what["halves"], what["found"] = halves(tried), read(tried)
            last = what["found"] + 1
            assert not any(ended(fork(2, folder, lambda last=last: work(tried, range(last, last + 1)))))
            what["later"] = sorted(os.listdir(tried))
        except Exception as error:
            what["problem"] = f"{type(error).__name__}: {error}"
        print(json.dumps(what), flush=True)


def full(folder: Path) -> None:
    """The second of two processes can write no large file: both say so, the folder is as before, and they go on."""

    def one() -> None:
        work(folder / "tried", range(1, 3))
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        if dist.get_rank() == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
        try:
            write(folder / "tried", 3)
        except OSError as error:
            print(json.dumps({"error": str(error), "names": sorted(os.listdir(folder / "tried"))}), flush=True)
        dist.barrier()
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        write(folder / "tried", 3)

    assert not any(ended(fork(2, folder, one)))
    print(json.dumps({"found": read(folder / "tried")}), flush=True)


def main(what: str, folder: Path, *arguments: str) -> None:
    """What the command line asks for."""
    torch.set_num_threads(1)
    if what == "resume":
        resume(folder, arguments[0], [int(size) for size in arguments[1:]])
    elif what == "kill":
        kill(folder, int(arguments[0]), int(arguments[1]))
    else:
        full(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
