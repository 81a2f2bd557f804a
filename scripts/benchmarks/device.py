"""Device: whether a GPU computes what the CPU does, and how fast: one run of at most about ten minutes.

For people who have a GPU that nobody here has tried: the tables and the JSON file can be pasted into a bug report. A
part that fails says why, and the others go on. On a CPU with `--small`, everything runs in a minute.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Literal

import torch
from torch import Tensor

from benchmarks import throughput, trainings
from benchmarks.attention import peak_bytes
from benchmarks.machine import seconds_each
from benchmarks.processes import time_command
from benchmarks.report import Report, Row, columns
from benchmarks.worker import Spec, random_dataset
from minigpt.attention import Attention
from minigpt.attention.position import Rotary
from minigpt.config import options as configs
from minigpt.fast import make_fast
from minigpt.fast.decoding import prepare
from minigpt.model import GPT, ModelConfig
from minigpt.model.eval_mode import eval_mode
from minigpt.system.errors import UserError
from minigpt.training.assemble import RunConfig
from minigpt.training.fake import simulate
from minigpt.training.loop import mixed_precision, next_token_loss, train
from minigpt.training.memory import Job
from minigpt.training.report import read_metrics
from minigpt.training.run import METRICS, RUNS

TOKENS, CONTEXT, BATCH = 65, 32, 2  # of the models whose numbers are compared
ALLOWED = 1e-3  # difference relative to the largest number; float32 with other orders of sums stays far below it
PARTS = ("kinds", "decoders", "tiny", "memory", "gpt2", "together", "baby", "kernels")
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
TARGET = 1.4697  # nanoGPT's best validation loss with the shape of shakespeare_char.yaml, as its README reports it
MOST = 240.0  # seconds for the training to TARGET
STEPS = 5  # of GPT-2 in a block that is timed
LONG, WIDE, ROUNDS = 1024, 256, 10  # positions, width, and passes that are timed, where kernels of a GPU are compared
PATIENCE = 150.0  # seconds for that; the kernels of a kind are compiled when they are first used
GPT2_BATCH = 8  # windows in a step of the GPT-2 that is measured: it fits into 16 GB

NUMBERS = columns("kind | logits:.1e | gradients:.1e | decoded:.1e | the CPU's own=own:.1e | equal")
WRITTEN = columns("weights | logits of decoding=decoded:.1e | the CPU's own=own:.1e | equal")
KERNELS = columns(
    "kind | logits:.1e | gradients:.1e | own ms=own:.2f | with kernels=ms:.2f | times as fast=ratio:.2f | equal"
)
TINY = columns(
    "precision | seconds:.1f | training=trained:.1f | validation loss=loss:.4f | skipped steps=skipped:d | says"
)
BABY = columns(
    f"config | seconds:.0f | steps:d | best loss=best:.4f | loss {TARGET} at step=step:d | after s=reached:.0f"
)
MEMORY = columns("config | batch:d | measured MB=measured:,.0f | plan.py's MB=planned:,.0f | ratio:.3f")
TOGETHER = columns("processes:d | parallel | seconds:.1f | validation loss=loss:.4f | says")


@dataclass(frozen=True)
class Sizes:
    """How large the trainings are: as shipped, or small enough for a test on a CPU."""

    tiny: Sequence[str] = ()
    together: Sequence[str] = ("training.max_steps=40", "training.eval_every=40")
    baby: Sequence[str] = ()
    gpt2: dict[str, int] | None = None
    memory: Sequence[tuple[str, int, Sequence[str]]] = (
        ("tiny.yaml", 32, ()),
        ("shakespeare_char.yaml", 64, ()),
        ("gpt2.yaml", GPT2_BATCH, ()),
    )


BRIEF = (
    "training.max_steps=4",
    "training.eval_every=2",
    "training.sample_every=0",
    "model.n_layer=1",
    "model.n_embd=32",
)
FEW = (*BRIEF, "data.stories={count: 200, validation: 20}", "sampling.max_tokens=5")
SMALL = Sizes(
    tiny=FEW,
    together=FEW,
    baby=(*BRIEF, "model.block_size=32", "model.attention.n_head=2", "training.warmup_steps=1"),
    gpt2=throughput.LAPTOP,
    memory=(("tiny.yaml", 4, ("model.n_layer=1", "model.n_embd=32")),),
)


def device(report: Report) -> None:
    """Every part, in turn. Raises UserError if the text is missing."""
    sizes = SMALL if report.options.small else Sizes()
    report.start(alone="nothing else")
    with TemporaryDirectory(prefix="minigpt-device-") as name:
        run = Run(report, sizes, Path(name))
        for part in report.options.only or PARTS:
            try:
                getattr(run, part)()
            except (UserError, RuntimeError, OSError, ValueError, ImportError) as error:
                report.notes.append(f"{part}: not measured: {type(error).__name__}: {first_line(error)}")


@dataclass
class Run:
    """The parts of the suite."""

    report: Report
    sizes: Sizes
    folder: Path

    # ---- the same numbers as the CPU ----

    def kinds(self) -> None:
        """Forward, backward and decoding of every kind on the device, and on the CPU, beside float64 on the CPU."""
        title = self.report.begin(f"every kind on {self.report.device.type}: 2 layers in their fast form, float32")
        rows = [row | {"kind": kind} for kind in Attention.kinds for row in [self.compared(model_of(kind), passes)]]
        self.report.add(f"{title}; largest differences from float64 on the CPU, relative", NUMBERS, rows)
        self.report.notes.append(
            f"equal: no difference is above {ALLOWED:g}, or 10 times the CPU's own (the largest of its three): a kind "
            "that chooses positions may choose others where two are nearly equal"
        )

    def decoders(self) -> None:
        """Decoding with weights of fewer bits, beside the same weights in float64 on the CPU."""
        title = self.report.begin("decoding multi_head with the weights in fewer bits")
        rows = list[Row]()
        for weights in ("float32", "bfloat16", "int8"):
            ready = [prepare(model_of("multi_head").to(place).eval(), weights) for place in ("cpu", self.report.device)]
            ours, theirs = ({"decoded": decoded(model)} for model in ready)
            row = differences(theirs, ours)
            rows.append(
                Row(weights=weights, **row, own=0.0, equal=verdict(row, 0.02 if weights != "float32" else ALLOWED))
            )
        self.report.add(f"{title}; differences from the CPU, relative", WRITTEN, rows)

    def compared(self, model: GPT, measure: Callable[[GPT], dict[str, Tensor]]) -> Row:
        """The differences of a model on the device and on the CPU from the same in float64."""
        try:
            exact = measure(copy.deepcopy(model).double())
            own = max(differences(measure(make_fast(copy.deepcopy(model))), exact).values())
            row = Row(differences(measure(make_fast(copy.deepcopy(model).to(self.report.device))), exact))
        except (RuntimeError, NotImplementedError) as error:
            return Row(equal=first_line(error))
        return row | {"own": own, "equal": verdict(row, max(ALLOWED, 10 * own))}

    def kernels(self) -> None:
        """The kinds that use another package's kernels on a GPU, with and without them, forward and backward."""
        if self.report.device.type == "cpu":
            raise UserError("there are none on a CPU")
        title, rows = self.report.begin("kinds with and without kernels of a GPU"), list[Row]()
        start, words = perf_counter(), {kind: kernels_of(model_of(kind)) for kind in Attention.kinds}
        named = sorted((kind for kind in words if words[kind]), key=lambda kind: words[kind] == "fla")  # slowest last
        for kind in named:
            if perf_counter() - start > PATIENCE:
                self.report.notes.append(f"kernels: no time left for {', '.join(named[len(rows) :])}")
                break
            rows.append(Row(kind=kind, **self.with_kernels(model_of(kind, WIDE, LONG), words[kind] or True)))
        self.report.add(
            f"{title}: 2 layers, {WIDE} wide, {LONG} positions, float32; differences relative", KERNELS, rows
        )
        if find_spec("fla") is None:
            self.report.notes.append("kernels: fla-core is not installed (pip install -e '.[gpu]')")

    def with_kernels(self, model: GPT, word: Literal[True, "fla"]) -> Row:
        """The differences of a model with kernels and without them, and the times of both."""
        both: tuple[Literal["own"], Literal[True, "fla"]] = ("own", word)
        own, kernels = (make_fast(copy.deepcopy(model).to(self.report.device), fast) for fast in both)
        try:
            expected, found = (passes(model, decode=False) for model in (own, kernels))
            seconds = [seconds_each(partial(both_ways, each), ROUNDS, self.report.device) for each in (own, kernels)]
        except Exception as error:  # a compiler's, of any kind
            return Row(equal=first_line(error))
        row = Row(differences(found, expected))
        row["equal"] = verdict(row, 5 * ALLOWED)
        return row | {"own": 1000 * seconds[0], "ms": 1000 * seconds[1], "ratio": seconds[0] / seconds[1]}

    # ---- trainings as users start them ----

    def tiny(self) -> None:
        """Train `tiny.yaml` in every precision."""
        title, rows = self.report.begin("tiny.yaml in every precision"), list[Row]()
        for precision in PRECISIONS:
            rows.append(self.trained("tiny.yaml", precision, [f"training.precision={precision}", *self.sizes.tiny]))
            rows[-1]["precision"] = precision
        self.report.add(f"{title}; seconds of the whole process, and of its steps", TINY, rows)

    def together(self) -> None:
        """Train `tiny.yaml` in one process and in two, which share the model or not."""
        count = torch.cuda.device_count() if self.report.device.type == "cuda" else 2
        title = self.report.begin("tiny.yaml in one process and in two")
        if count < 2:
            self.report.notes.append("two processes: not tried, there is one GPU")
            return
        rows = [Row(processes=1, **self.trained("tiny.yaml", "one", self.sizes.together))]
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        for parallel in ("ddp", "fsdp"):
            changes = [f"training.parallel={parallel}", *self.sizes.together]
            rows.append(Row(processes=2, parallel=parallel, **self.trained("tiny.yaml", parallel, changes, start)))
        self.report.add(title, TOGETHER, rows)

    def baby(self) -> None:
        """Train `shakespeare_char.yaml` until its validation loss is TARGET, or for MOST seconds."""
        text = trainings.find_text(self.report.options.text)
        title = self.report.begin(f"shakespeare_char.yaml until its loss is {TARGET}, at most {MOST:.0f} s")
        lines, seconds = self.until(
            self.command("shakespeare_char.yaml", "baby", [f"data.source={text}", *self.sizes.baby])
        )
        row = Row(config="shakespeare_char.yaml", seconds=seconds, steps=lines[-1]["step"] if lines else None)
        evaluations = [line for line in lines if "val/loss" in line]
        row["best"] = min((line["val/loss"] for line in evaluations), default=None)
        for line in [line for line in evaluations if line["val/loss"] <= TARGET][:1]:
            row |= {"step": line["step"], "reached": line["seconds"]}
        self.report.add(title, BABY, [row])
        self.report.notes.append(f"after s: seconds of training until the first loss of at most {TARGET}")

    def trained(self, config: str, name: str, changes: Sequence[str], start: Sequence[str] = ()) -> Row:
        """Train a config in the folder: its times and its last validation loss, or what it says."""
        command = self.command(config, name, changes)
        try:
            seconds, _ = time_command(f"{config} ({name})", [*start, *command[1:]] if start else command, self.folder)
        except UserError as error:
            return Row(says=first_line(error))
        lines = read_metrics(self.folder / RUNS / name / METRICS)
        return Row(seconds=seconds, trained=lines[-1]["seconds"], loss=lines[-1]["val/loss"], skipped=skipped(lines))

    def command(self, config: str, name: str, changes: Sequence[str]) -> list[str]:
        """The command of a training on the device."""
        return trainings.command(config, name, [f"training.device={self.report.device.type}", *changes], [])

    def until(self, command: Sequence[str]) -> tuple[list[dict[str, float]], float]:
        """Start a training, and stop it at TARGET or after MOST seconds: its metrics, and the seconds it took."""
        start, metrics, lines = perf_counter(), self.folder / RUNS / "baby" / METRICS, list[dict[str, float]]()
        with subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                while process.poll() is None and perf_counter() - start < MOST:
                    sleep(0.2)
                    lines = read_metrics(metrics)
                    if any(line.get("val/loss", TARGET + 1) <= TARGET for line in lines):
                        break
            finally:
                process.terminate()
        return read_metrics(metrics) or lines, perf_counter() - start

    # ---- speed and memory ----

    def gpt2(self) -> None:
        """The tokens a second of GPT-2 (124M) in training, beside nanoGPT's."""
        shape = self.sizes.gpt2 or throughput.GPT2
        if self.report.device.type == "cpu" and not self.report.options.small:
            raise UserError("GPT-2 takes minutes a step on a CPU")
        title = self.report.begin(f"training: {throughput.describe(shape)}, batch {GPT2_BATCH}")
        minigpt: dict[str, Spec] = {
            "minigpt, compiled": {"precision": "auto"},
            "minigpt, not compiled": {"precision": "auto", "compile": False},
        }
        rows = throughput.measure(self.report, minigpt, STEPS, do="train", shape=shape, batch=GPT2_BATCH)
        self.report.add(title, throughput.TRAINING, rows)

    def memory(self) -> None:
        """The most memory that steps and an evaluation take, beside what plan.py expects."""
        self.report.begin("memory, measured and planned")
        rows = [
            Row(config=name, batch=batch, **self.remembered(name, batch, more))
            for name, batch, more in self.sizes.memory
        ]
        self.report.add("memory of two steps and an evaluation: the tensors' largest sum, and plan.py's", MEMORY, rows)

    def remembered(self, name: str, batch: int, more: Sequence[str]) -> Row:
        """The measured and the planned peak of a config."""
        gpu, before = self.report.device.type == "cuda", torch.cuda.memory_allocated()
        config = configs.load(RunConfig, name, [f"training.batch_size={batch}", "training.compile=false", *more])
        V = throughput.GPT2["vocab_size"] if name == "gpt2.yaml" else TOKENS
        planned = simulate(job := Job(config.model, V, config.training, gpu)).peak
        torch.manual_seed(0)
        model = make_fast(GPT(config.model, V).to(self.report.device))
        optimizer = config.training.optimizer.component(config.training.optimizer, model)
        steps = train(model, random_dataset(V, config.model.block_size), optimizer, config.training)
        next(steps)  # makes the optimizer's state
        kept = (*model.state_dict().values(), *optimizer.state().values())
        held = torch.cuda.memory_allocated() - before if gpu else sum({t.data_ptr(): t.nbytes for t in kept}.values())

        def work() -> None:
            list(islice(steps, 2))
            ids = torch.zeros(job.evaluated, config.model.block_size, dtype=torch.long, device=model.device)
            with torch.no_grad(), mixed_precision(config.training, model):
                next_token_loss(model(ids), ids, reduction="sum")

        measured = held + peak_bytes(work, self.report.device)
        return Row(measured=measured / 1e6, planned=planned / 1e6, ratio=measured / planned)


def kernels_of(model: GPT) -> Literal[True, "fla"] | None:
    """The word with which a kind uses kernels of a GPU: torch's, which are used by default, or fla-core's, if any."""
    mix = getattr(make_fast(model).attentions()[0], "mix", None)
    return True if hasattr(mix, "own") else "fla" if hasattr(mix, "fla") and find_spec("fla") else None


def model_of(kind: str, width: int = 64, length: int = CONTEXT) -> GPT:
    """A model of two layers of a kind, with random weights, on the CPU."""
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_embd": width, "block_size": length, "position": Rotary.Config()}
    return GPT(ModelConfig(**shape, attention=Attention.kinds[kind].Config()), TOKENS)  # type: ignore[arg-type]


def ids_of(model: GPT) -> Tensor:
    """The same random ids each time, on the model's device: (B, T)."""
    ids = torch.randint(TOKENS, (BATCH, model.config.block_size), generator=torch.Generator().manual_seed(1))
    return ids.to(next(model.parameters()).device)


def both_ways(model: GPT) -> Tensor:
    """A pass in evaluation mode, forward and backward: the logits (B, T, V); the gradients are in the parameters."""
    ids = ids_of(model)
    model.zero_grad(set_to_none=True)
    with eval_mode(model):
        logits = model(ids)  # (B, T, V)
        extras = [extra for attention in model.attentions() if (extra := attention.extra_loss()) is not None]
        sum(extras, next_token_loss(logits[:, :-1], ids[:, 1:])).backward()
    return logits.detach()


def passes(model: GPT, decode: bool = True) -> dict[str, Tensor]:
    """Logits and gradients of a pass, and the logits of decoding, on the CPU."""
    logits = both_ways(model)
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    found = {"logits": logits.cpu(), "gradients": gradients.cpu()}
    return found | {"decoded": decoded(model)} if decode else found


@torch.inference_mode()
def decoded(model: GPT) -> Tensor:
    """The logits of decoding with a cache, of the first third in one pass and then a token at a time: (B, n, V)."""
    ids, first = ids_of(model), CONTEXT // 3
    with eval_mode(model):
        cache = model.make_cache()
        pieces = [ids[:, :first], *ids[:, first:].split(1, dim=1)]
        logits = [model.logits(model.last(piece, cache)).float() for piece in pieces]  # (B, V) each
    return torch.stack(logits, dim=1).cpu()


def differences(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each, relative to the largest number."""
    return {
        name: ((found[name].double() - exact[name]).abs().max() / exact[name].double().abs().max()).item()
        for name in exact
    }


def verdict(row: Row, allowed: float) -> str:
    """Whether no difference is above what is allowed; a difference that is no number is above."""
    return "yes" if all(value <= allowed for value in row.values()) else "NO"


def skipped(lines: Sequence[dict[str, float]]) -> int | None:
    """How many steps a training has skipped, if it counts them."""
    counts = [int(line["skipped"]) for line in lines if "skipped" in line]
    return counts[-1] if counts else None


def first_line(error: Exception) -> str:
    """The first line of an error, not too long for a table."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
