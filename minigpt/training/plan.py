"""What a training will cost: parameters, operations, memory by part, time, and the largest micro-batch that fits.

Memory is counted on fake tensors (`fake.py`). Time is operations divided by the speed of the devices: their peak,
times the share of it that trainings usually reach (model FLOPs utilisation, "PaLM", arXiv 2204.02311, section 4.1).

B windows at a time, T positions of a window, N parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from minigpt.model import GPT, ModelConfig
from minigpt.model.gpt import count_parameters
from minigpt.system.errors import UserError
from minigpt.training import distributed
from minigpt.training.fake import MOMENTS, Step, bytes_by_part, simulate
from minigpt.training.fits import largest_that_fits, remedies
from minigpt.training.hardware import Device
from minigpt.training.loop import TrainingConfig
from minigpt.training.lora import adapter_parameters
from minigpt.training.memory import NUMBER, Job, outline
from minigpt.training.parallel import FSDP
from minigpt.training.precision import Precision, product_type

OPTIMAL = 20  # tokens a parameter, about: "Training Compute-Optimal Large Language Models" (arXiv 2203.15556)
MFU = 0.4  # share of a GPU's peak speed; nanoGPT's GPT-2 reaches about 0.4 to 0.5 on A100s


@dataclass(frozen=True)
class Plan:
    """The cost of one training on some devices."""

    parameters: dict[str, int]  # by part
    tokens: int  # of the whole training
    optimal: int  # tokens at which this model would be compute-optimal, about
    flops: float  # a token, forward and backward, with what is computed again
    forward: float  # the part of `flops` in the forward pass
    attention: float  # the part of `forward` that grows with the context, at the full context
    rows: int  # windows of a step on one device
    micro_batch: int  # windows at a time
    step: Step  # what a step with this micro-batch takes on one device
    saved: int  # bytes of a checkpoint that one process writes: weights, and the optimizer's state
    most: int | None  # the largest micro-batch that fits; None: not even one window does
    remedies: list[str]  # options with which the training would fit, if it does not
    again: bool  # whether each block's forward pass is computed twice
    shared: bool  # whether the devices share the model
    precision: Precision  # of the matrix products
    devices: int
    device: Device

    @property
    def fits(self) -> bool:
        """Whether the training fits into a device with the config unchanged."""
        return self.step.peak <= self.device.usable

    def seconds(self, mfu: float) -> float | None:
        """How long the training takes; None if the device's speed is not known. `mfu`: the share of its peak speed."""
        flops_per_second = self.device.flops if self.precision in ("bfloat16", "float16") else 0.0
        return self.tokens * self.flops / (self.devices * flops_per_second * mfu) if flops_per_second else None


def make_plan(config: ModelConfig, vocab_size: int, training: TrainingConfig, device: Device, devices: int = 1) -> Plan:
    """The plan of the training that the configs describe, on `devices` devices with one process each.

    Raises UserError for adapters that the model cannot have, for a precision that the device does not have, and for
    more devices than a batch has windows.
    """
    distributed.check_rows(training.batch_size, devices)
    training = replace(training, precision=precision_on(device, training.precision, config.n_embd))
    job = Job(config, vocab_size, training, device.is_gpu, devices)
    step, model = simulate(job), outline(config, vocab_size)
    adapters = adapter_parameters(model, training.lora) if training.lora else 0
    return Plan(
        parameters={part: count for part, count in count_parameters(model).items() if count},
        tokens=training.max_steps * training.batch_size * config.block_size,
        optimal=OPTIMAL * sum(parameter.numel() for parameter in model.parameters()),
        flops=step.flops,
        forward=step.forward_flops,
        attention=step.forward_flops - linear_flops(model) - 2 * adapters,
        rows=job.rows,
        micro_batch=job.micro_batch,
        step=step,
        saved=saved_bytes(model, adapters, step.parts[MOMENTS], devices if job.shared else 1),
        most=largest_that_fits(job, device.usable, {job.micro_batch: step.peak}),
        remedies=[] if step.peak <= device.usable else remedies(job, device.usable, device.is_gpu),
        again=training.checkpoint_activations,
        shared=job.shared,
        precision=training.precision,
        devices=devices,
        device=device,
    )


def precision_on(device: Device, precision: Precision, n_embd: int) -> Precision:
    """What `training.precision` means on a device for a model of this width. Raises UserError for tf32 without it."""
    if precision == "tf32" and not (device.is_gpu and device.half == "bfloat16"):
        raise UserError(f"training.precision: {device.name} has no tf32: use auto or float32")
    if precision != "auto":
        return precision
    if device.is_gpu:
        return device.half
    return "bfloat16" if product_type(precision, torch.device("cpu"), n_embd) == torch.bfloat16 else "float32"


def peaks_by_ranks(
    config: ModelConfig, vocab_size: int, training: TrainingConfig, gpu: bool, counts: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """For each number of processes that share the model (fsdp): that number, and the peak bytes of each process with
    activations kept and with activations computed again, at the config's micro-batch. Raises UserError for more
    processes than a batch has windows.
    """
    distributed.check_rows(training.batch_size, max(counts, default=1))
    shared = replace(training, parallel=FSDP.Config())
    for ranks in counts:
        job = Job(config, vocab_size, shared, gpu, ranks)
        once, again = (bytes_by_part(job.having(checkpoint_activations=twice)) for twice in (False, True))
        yield ranks, sum(once.values()), sum(again.values())


def saved_bytes(model: GPT, adapters: int, moments: int, processes: int) -> int:
    """The bytes of a checkpoint that each process writes; `adapters`: their numbers; `moments`: the bytes of the
    optimizer's state in a process.
    """
    whole = sum({id(tensor): tensor.nbytes for tensor in model.state_dict(keep_vars=True).values()}.values())
    return -(-(whole + NUMBER * adapters) // processes) + moments


def linear_flops(model: GPT) -> int:
    """Operations a token in the matrices, with the head: two for each weight. They do not grow with the context."""
    tables = {id(model.tokens.weight)} if not model.config.tied_head else set()
    tables |= {id(parameter) for parameter in model.position.parameters()}
    matrices = {id(p): p.numel() for p in model.parameters() if p.dim() == 2 and id(p) not in tables}
    return 2 * sum(matrices.values())
