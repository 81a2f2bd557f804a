"""What a training will cost: parameters, operations, memory by part, time, and the largest micro-batch that fits.

Memory is counted on fake tensors (`fake.py`). Time is operations divided by what the devices reach: their best, times
the share of it that trainings usually reach (model FLOPs utilisation, "PaLM", arXiv 2204.02311, section 4.1).

B windows at a time, T positions of a window, N parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minigpt.model import GPT, ModelConfig
from minigpt.model.gpt import count_parameters
from minigpt.planning.fake import Step, simulate
from minigpt.planning.hardware import Device
from minigpt.training.loop import TrainingConfig
from minigpt.training.memory import outline

OPTIMAL = 20  # tokens a parameter, about: "Training Compute-Optimal Large Language Models" (arXiv 2203.15556)
MFU = 0.4  # of a GPU's best; nanoGPT's GPT-2 reaches about 0.4 to 0.5 on A100s


@dataclass(frozen=True)
class Plan:
    """The cost of one training on some devices."""

    parameters: dict[str, int]  # by part
    tokens: int  # of the whole training
    optimal: int  # tokens at which this model would be compute-optimal, about
    flops: float  # a token, forward and backward
    forward: float  # of it
    attention: float  # of the forward pass: what grows with the context, at the full context
    rows: int  # windows of a step on one device
    micro_batch: int  # of them at a time
    step: Step  # what a step with them takes on one device
    most: int | None  # the largest micro-batch that fits; None: not even one window does
    devices: int
    device: Device

    @property
    def fits(self) -> bool:
        """Whether the config as it is fits into a device."""
        return self.step.peak <= self.device.usable

    def seconds(self, mfu: float) -> float | None:
        """How long the training takes; None where the speed of the device is not known."""
        return self.tokens * self.flops / (self.devices * self.device.flops * mfu) if self.device.flops else None


def make_plan(config: ModelConfig, vocab_size: int, training: TrainingConfig, device: Device, devices: int = 1) -> Plan:
    """The plan of a training as its config says it, each of `devices` with a process of its own and the whole model.

    Raises UserError for adapters that the model cannot have.
    """
    T, rows = config.block_size, -(-training.batch_size // devices)
    micro = min(training.micro_batch_size or rows, rows)
    step = simulate(config, vocab_size, training, rows, device.is_gpu)
    most = largest_that_fits(config, vocab_size, training, rows, device.usable, device.is_gpu, {micro: step})
    model = outline(config, vocab_size)
    return Plan(
        parameters={part: count for part, count in count_parameters(model).items() if count},
        tokens=training.max_steps * training.batch_size * T,
        optimal=OPTIMAL * sum(parameter.numel() for parameter in model.parameters()),
        flops=step.flops,
        forward=step.forward_flops,
        attention=step.forward_flops - linear_flops(model),
        rows=rows,
        micro_batch=micro,
        step=step,
        most=most,
        devices=devices,
        device=device,
    )


def linear_flops(model: GPT) -> int:
    """Operations a token in the matrices, with the head: two for each weight. They do not grow with the context."""
    tables = {id(model.tokens.weight)} if not model.config.tied_head else set()
    tables |= {id(parameter) for parameter in model.position.parameters()}
    matrices = {id(p): p.numel() for p in model.parameters() if p.dim() == 2 and id(p) not in tables}
    return 2 * sum(matrices.values())


def largest_that_fits(
    config: ModelConfig,
    vocab_size: int,
    training: TrainingConfig,
    rows: int,
    usable: int,
    gpu: bool = False,
    known: dict[int, Step] | None = None,
) -> int | None:
    """The largest micro-batch of at most `rows` windows whose step takes at most `usable` bytes; None: not even one.

    The peak is nearly a straight line in the micro-batch, so the line through the two nearest points gives the next
    guess; above a hundred windows the answer is within 1 % of the largest.
    """
    peaks = {size: step.peak for size, step in (known or {}).items()}

    def peak(size: int) -> int:
        if size not in peaks:
            settings = replace(training, micro_batch_size=size)
            peaks[size] = simulate(config, vocab_size, settings, rows, gpu).peak
        return peaks[size]

    def guess() -> int:
        """Where the line through the two points nearest to the limit meets it."""
        a, b = sorted(sorted(peaks, key=lambda size: abs(peaks[size] - usable))[:2])
        slope = (peaks[b] - peaks[a]) / (b - a)  # bytes a window
        return a + int((usable - peaks[a]) / slope) if slope > 0 else rows

    if peak(1) > usable:
        return None
    fits, too_many = 1, rows + 1  # the first fits; the second does not, or is more than there are
    while too_many - fits > max(1, fits // 100):
        size = min(max(guess(), fits + 1), too_many - 1) if len(peaks) > 1 else rows
        if peak(size) <= usable:
            fits = size
        else:
            too_many = size
    return fits
