"""Does it fit into memory? The bytes that a command will need are computed from its config; nothing is allocated.

The sums are lower bounds: a refused command would have been killed by the system, or would have swapped for hours. A
training that is near the limit is also simulated (`training/fits.py`).

B windows at a time, T positions of a window, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt.attention import Attention, Past
from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.cache import KVCache, WindowCache
from minigpt.attention.compact.latent import Latent
from minigpt.fast import make_fast
from minigpt.model import GPT, MLP, Block, ModelConfig
from minigpt.model.mlp import GELU
from minigpt.system.errors import UserError
from minigpt.system.memory import free_memory
from minigpt.training.loop import TrainingConfig, evaluated_at_once
from minigpt.training.lora import adapter_parameters
from minigpt.training.parallel import FSDP

NUMBER = 4  # bytes of a float32
TRAINING_BYTES = 4 * NUMBER  # a parameter in float32: itself, its gradient, and AdamW's two moments
VIEW = 500  # bytes, about, that Python and torch need for a view of a tensor, without its numbers
LARGE = 1 << 28  # bytes: a checkpoint of this size in one process is copied, and written while training goes on
COPIES = 3  # times the size of a checkpoint, at most: the copy, and the two files while they are written

MODEL, WEIGHTS = "the weights", "the weights, gradients and optimizer"
BATCH, ACTIVATIONS, LOGITS = "the batch", "the activations", "the logits"
CACHE, MAPS = "the cache", "the attention weights"
LOWER = {  # part -> the options that make it smaller
    WEIGHTS: "model.n_layer, model.n_embd or model.mlp.width",
    MODEL: "model.n_layer, model.n_embd or model.mlp.width",
    BATCH: "training.batch_size",
    ACTIVATIONS: "training.micro_batch_size or model.block_size",
    LOGITS: "training.batch_size or model.block_size",
    CACHE: "model.block_size",
    MAPS: "model.block_size, or give a shorter text",
}

Parts = dict[str, int]  # part -> bytes
Part = TypeVar("Part", bound=nn.Module)


@dataclass(frozen=True)
class Job:
    """What one of the processes of a training does."""

    config: ModelConfig
    vocab_size: int
    training: TrainingConfig
    gpu: bool = False
    ranks: int = 1  # processes that train together as `training.parallel` says

    @property
    def rows(self) -> int:
        """Windows of a step in this process."""
        return -(-self.training.batch_size // self.ranks)

    @property
    def micro_batch(self) -> int:
        """Windows at a time."""
        return self.training.windows_at_once(self.rows)

    @property
    def evaluated(self) -> int:
        """Windows at a time in an evaluation."""
        return evaluated_at_once(self.micro_batch, self.config.block_size)

    @property
    def shared(self) -> bool:
        """Whether the processes share the model."""
        return self.ranks > 1 and isinstance(self.training.parallel, FSDP.Config)

    def share(self, number: int) -> int:
        """How many of `number` bytes of the whole model are in this process."""
        return -(-number // self.ranks) if self.shared else number

    def having(self, **options: Any) -> Job:
        """The same with other options of the training."""
        return replace(self, training=replace(self.training, **options))


ELEMENTWISE = {"add", "sub", "mul", "div", "neg", "exp", "expm1", "log", "log1p", "logit", "sqrt", "pow",
               "__rsub__", "__rpow__", "__rdiv__"}  # fmt: skip


class MetaInit(TorchFunctionMode):
    """Fills no tensor: the meta device stores no values, and torch would import its compiler to make them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        if func is torch.randn:
            return torch.empty(*args, **{name: value for name, value in named.items() if name != "generator"})
        if func in (torch.arange, torch.linspace, torch.logspace) and countable(args, named):
            return numbers_in_a_row(func, args, named)
        tensors = [each for each in args if isinstance(each, Tensor)]
        if getattr(func, "__name__", "") in ELEMENTWISE and not named and all(each.is_meta for each in tensors):
            dtype = torch.result_type(args[0], args[-1])
            if dtype.is_floating_point:
                return torch.empty(np.broadcast_shapes(*(each.shape for each in tensors)), dtype=dtype)
        return func(*args, **named)


def countable(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether start, end and step are plain numbers and positional arguments."""
    return bool(args) and all(isinstance(n, (int, float)) for n in args) and not {"start", "end", "step"} & set(named)


def numbers_in_a_row(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """What `torch.arange`, `linspace` or `logspace` would return, without values: (N,)."""
    if func is not torch.arange:
        return torch.empty(int(args[2] if len(args) > 2 else named["steps"]), dtype=named.get("dtype"))  # (N,)
    start, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    dtype = torch.int64 if all(isinstance(number, int) for number in args) else None
    return torch.empty(max(0, math.ceil((end - start) / step)), dtype=named.get("dtype", dtype))  # (N,)


def outline(config: ModelConfig, vocab_size: int) -> GPT:
    """A model on the meta device: its tensors have shapes and no values, and take no memory.

    A plugin's constructor may need values; then the model has them, and takes memory.
    """
    return outlined(lambda: GPT(config, vocab_size))


def outlined(make: Callable[[], Part]) -> Part:
    """What `make` returns, built on the meta device where that is possible."""
    try:
        with torch.device("meta"), MetaInit():
            return make()
    except (RuntimeError, NotImplementedError):
        return make()


def parameter_count(config: ModelConfig, vocab_size: int) -> int:
    """How many parameters a model would have; one layer at a time is made, because layers of one kind may differ."""
    plain = replace(config, n_layer=1, attention=AverageSoftmax.Config(), block=Block.Config())
    part = outline(plain, vocab_size)  # the embeddings, the last norm, the head
    others = parameters_in(part) - parameters_in(part.blocks)
    block: Callable[..., nn.Module] = config.block.component
    return others + sum(parameters_in(outlined(partial(block, config, layer))) for layer in range(config.n_layer))


def parameters_in(module: nn.Module) -> int:
    """How many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def training_parts(job: Job) -> Parts:
    """The bytes of a training step in one process, by part, at least."""
    config, T, B = job.config, job.config.block_size, job.micro_batch
    logits = max((2 if config.head_cap is None else 3) * B, job.evaluated) * T * job.vocab_size  # and gradients
    activations = B * T * activation_bytes(config) + sum(scores_bytes(config, T))
    if job.training.checkpoint_activations:
        activations //= config.n_layer  # of one block at a time
    return {
        WEIGHTS: job.share(weight_bytes(job)),
        BATCH: 4 * 8 * job.rows * (T + 1) + 2 * VIEW * (job.rows // B),  # positions, windows, x and y: int64
        ACTIVATIONS: activations,
        LOGITS: NUMBER * logits,
    }


def weight_bytes(job: Job) -> int:
    """The bytes of the whole model's weights, gradients and moments: with adapters, only they have the latter two."""
    weights, lora = parameter_count(job.config, job.vocab_size), job.training.lora
    if lora is None:
        return weights * TRAINING_BYTES
    return weights * NUMBER + adapter_parameters(outline(job.config, job.vocab_size), lora) * TRAINING_BYTES


def activation_bytes(config: ModelConfig) -> int:
    """The bytes that all layers keep of one token for the backward pass, at least; in bfloat16 about as many."""
    mlp: MLP = outlined(lambda: config.mlp.component(config.mlp, config))
    widest = max((layer.out_features for layer in mlp.modules() if isinstance(layer, nn.Linear)), default=0)
    return config.n_layer * NUMBER * (3 * config.n_embd + widest)


def scores_bytes(config: ModelConfig, T: int) -> list[int]:
    """The bytes of each layer's (H, T, T) bias, zero where its position has none."""
    layers = [config.layer_attention(layer) for layer in range(config.n_layer)]
    biased = [(layer.position or config.position).component.acts_by("bias") for layer in layers]
    return [NUMBER * heads(layer) * T * T * has for layer, has in zip(layers, biased)]


def heads(attention: Attention.Config) -> int:
    """How many heads an attention has."""
    return int(getattr(attention, "n_head", 1))


def sampling_parts(config: ModelConfig, vocab_size: int) -> Parts:
    """The bytes that sampling needs at one time, by part; the linear layers are copied for faster decoding."""
    return {
        MODEL: 2 * NUMBER * parameter_count(config, vocab_size),
        CACHE: cache_bytes(config),
        MAPS: max(scores_bytes(config, config.block_size)),
    }


def cache_bytes(config: ModelConfig) -> int:
    """The bytes of the caches of all layers for a full context, at least: those of their keys and values.

    A state of fixed size takes less than the weights that write it, and is left out.
    """
    layers = make_fast(outline(replace(config, mlp=GELU.Config(width=1)), 1)).attentions()
    widths = [cached_width(layer, config.n_embd) for layer in layers]
    return NUMBER * sum(cached_positions(a.make_cache(config.block_size)) * width for a, width in zip(layers, widths))


def cached_positions(past: Past) -> int:
    """How many positions a cache has room for."""
    if isinstance(past, WindowCache):
        return past.sinks + past.window
    return past.capacity if isinstance(past, KVCache) else 0


def cached_width(layer: Attention, D: int) -> int:
    """How many numbers a layer caches for a position, by its matrices: keys and values, or their latent."""
    if type(layer).qkv is Attention.qkv:
        return 2 * D  # keys and values are x itself
    names = ("latent",) if isinstance(layer, Latent) else ("key", "other_key", "value")
    parts = [layer.get_submodule(name) for name in names if hasattr(layer, name)]
    width = sum(matrix.out_features for part in parts for matrix in part.modules() if isinstance(matrix, nn.Linear))
    return width + D * (hasattr(layer, "key") and not hasattr(layer, "value"))  # then values are x itself


def map_parts(config: ModelConfig, vocab_size: int, T: int) -> Parts:
    """The bytes that attention maps of T tokens need, by part: the weights of every layer and head are kept."""
    every = sum(heads(config.layer_attention(layer)) for layer in range(config.n_layer))
    return {MODEL: NUMBER * parameter_count(config, vocab_size), MAPS: NUMBER * every * T * T}


def check_device(
    parts: Parts, purpose: str, config: ModelConfig, vocab_size: int, device: torch.device, free: int | None = None
) -> None:
    """`check_memory` for a model that is moved to a device. Raises UserError.

    A CUDA device has its own memory; the memory of the machine must still hold the weights, which are created there.
    """
    if device.type == "cuda":
        check_memory(parts, purpose, free_on(device), f" on {device}")
        parts = {MODEL: NUMBER * parameter_count(config, vocab_size)}
    check_memory(parts, purpose, free)


def free_on(device: torch.device) -> int:
    """Bytes that are free on a CUDA device, with those that torch has reserved there and does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def check_memory(parts: Parts, purpose: str, free: int | None = None, where: str = "") -> None:
    """Raises UserError, which names the largest part, if the parts do not fit into memory.

    `free` is this process's share where several processes divide the memory, or what is free on a device; by default,
    all that is free on this machine.
    """
    needed, free = sum(parts.values()), free_memory() if free is None else free
    if free is None or needed <= free:
        return
    largest = max(parts, key=lambda part: parts[part])
    problem = f"{purpose} would need {needed:,} bytes, most of them for {largest}, and {free:,} are free{where}"
    raise UserError(f"not enough memory: {problem}: lower {LOWER[largest]}")
