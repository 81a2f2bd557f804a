"""Runs one program (minigpt, nanoGPT or transformers) in a process of its own, and works only when it is told to.

processes.py starts it with a spec in JSON: {"do": "train", "program": "nanogpt", ...}. It makes a model and sends its
facts. Then a line `20` on stdin means: do 20 steps, or write 20 tokens; the answer is a line of JSON with the seconds.
minigpt is imported only where it is the program that is measured. nanoGPT's model.py is imported unchanged from the
user's folder, and nothing is written there.

B batch, T positions, V vocabulary, n tokens.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import seconds_each

if TYPE_CHECKING:
    from minigpt.model import GPT
    from minigpt.text.dataset import Dataset

Spec = dict[str, Any]
Block = Callable[[int], object]  # does a number of steps, or writes a number of tokens
Ready = tuple[Block, dict[str, Any]]  # the work, and facts about the model

TEXT = 1 << 20  # random ids to train on
RATE, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.99), 0.1, 1.0  # of the optimizer, for all programs


def main() -> None:
    """Answer until stdin ends. The first answer holds the facts, or the error."""
    # as `answering` in minigpt/system/process.py does, of which nothing may be imported here
    spec = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the program prints goes to stderr
    sys.dont_write_bytecode = spec["program"] == "nanogpt"

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        block, facts = READY[spec["do"], spec["program"]](spec)
        send({"ready": True, "threads": torch.get_num_threads(), **facts})
        for line in sys.stdin:
            send({"seconds": seconds_each(partial(block, int(line)), 1, torch.device(spec["device"]))})
    except Exception as error:
        send({"failed": f"{type(error).__name__}: {error}"})


def nanogpt(spec: Spec) -> Any:
    """nanoGPT's model.py as a module. No other file of the checkout is imported."""
    source = importlib.util.spec_from_file_location("model", Path(spec["path"], "model.py"))
    assert source and source.loader
    module = sys.modules["model"] = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


def nanogpt_model(spec: Spec) -> Any:
    """nanoGPT's model, without biases (the default of its training)."""
    code = nanogpt(spec)
    return code.GPT(code.GPTConfig(**spec["shape"], dropout=0.0, bias=False)).to(spec["device"])


def transformers_model(spec: Spec) -> Any:
    """GPT-2 of Hugging Face transformers. Its biases cannot be turned off. `positions` may exceed the context."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = spec["shape"]
    sizes: Any = {key: shape[key] for key in ("vocab_size", "n_layer", "n_head", "n_embd")}
    sizes["n_positions"] = max(shape["block_size"], spec.get("positions", 0))
    fixed: Any = {**dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0), "activation_function": "gelu"}
    return GPT2LMHeadModel(GPT2Config(**sizes, **fixed, bos_token_id=0, eos_token_id=None)).to(spec["device"])


def plain_minigpt(spec: Spec) -> GPT:
    """minigpt's model: GPT-2 of the same shape without biases, or what `model` in the spec says."""
    from minigpt.config.options import from_dict
    from minigpt.model import GPT, ModelConfig

    sizes = dict(spec["shape"])
    V, attention = sizes.pop("vocab_size"), {"kind": "multi_head", "n_head": sizes.pop("n_head", 4)}
    return GPT(from_dict(ModelConfig, spec.get("model", {**sizes, "bias": False, "attention": attention})), V)


def minigpt_model(spec: Spec) -> GPT:
    """The same in its fast form, `without` some tricks."""
    from minigpt.fast import make_fast

    return make_fast(plain_minigpt(spec).to(spec["device"]), without=spec.get("without", ()))


def count(model: nn.Module) -> int:
    """The number of parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def random_text(vocab_size: int) -> Tensor:
    """Random ids (TEXT,): only the time of training matters here."""
    return torch.randint(vocab_size, (TEXT,), generator=torch.Generator().manual_seed(0))


def random_dataset(vocab_size: int, block_size: int) -> Dataset:
    """The same as a dataset of minigpt."""
    from minigpt.text.dataset import DataConfig, Dataset

    class Random(Dataset):
        """A dataset that needs no file."""

        def __init__(self) -> None:
            self.config, self.block_size = DataConfig(), block_size
            self.ids, self.splits = random_text(vocab_size).numpy(), {"train": range(TEXT)}
            self.answer_mask = self.talking = None  # every target counts, of a text that is no talk

    return Random()


def batches(spec: Spec) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows of the text: x, y (B, T) each."""
    text, T = random_text(spec["shape"]["vocab_size"]), spec["shape"]["block_size"]  # (TEXT,)
    while True:
        starts = torch.randint(TEXT - T, (spec["batch"], 1))  # (B, 1)
        window = text[starts + torch.arange(T + 1)].to(spec["device"])  # (B, T + 1)
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()


def simple_training(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Any, spec: Spec) -> Ready:
    """The training loop of the other programs: forward, backward, clip, step, and the loss as a number."""
    source, mixed = batches(spec), spec["device"] == "cuda"  # bfloat16 on a GPU, as in nanoGPT's train.py

    def block(steps: int) -> None:
        for x, y in islice(source, steps):
            with torch.autocast(spec["device"], dtype=torch.bfloat16, enabled=mixed):
                loss = loss_of(x, y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()

    return block, {"parameters": count(model), "precision": "bfloat16" if mixed else "float32"}


def train_nanogpt(spec: Spec) -> Ready:
    """nanoGPT's model with its own optimizer."""
    model = nanogpt_model(spec)
    optimizer = model.configure_optimizers(DECAY, RATE, BETAS, spec["device"])
    forward = torch.compile(model) if spec["compile"] else model
    return simple_training(model, optimizer, lambda x, y: forward(x, y)[1], spec)


def train_transformers(spec: Spec) -> Ready:
    """GPT-2 of transformers with torch's fused AdamW, which is the default of its Trainer."""
    model = transformers_model(spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY, fused=True)
    forward = torch.compile(model) if spec["compile"] else model

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        logits = forward(x, use_cache=False).logits  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    return simple_training(model, optimizer, loss_of, spec)


def train_minigpt(spec: Spec) -> Ready:
    """minigpt's own training loop, on random ids."""
    from benchmarks.trainings import precision_of
    from minigpt.config.options import MOST, from_dict
    from minigpt.training.loop import TrainingConfig, train

    optimizer = {"kind": "adamw", "learning_rate": RATE, "beta1": BETAS[0], "beta2": BETAS[1], "weight_decay": DECAY}
    own = {key: spec.get(key, False) for key in ("device", "precision", "compile", "cuda_graphs")}
    own |= {"batch_size": spec["batch"], "max_steps": MOST, "grad_clip": CLIP, "optimizer": optimizer}
    config, model = from_dict(TrainingConfig, {"warmup_steps": 0, "schedule": "constant", **own}), minigpt_model(spec)
    data = random_dataset(spec["shape"]["vocab_size"], spec["shape"]["block_size"])
    steps = train(model, data, config.optimizer.component(config.optimizer, model), config)
    facts = {"parameters": count(model), "precision": precision_of(config, model)}
    return lambda n: deque(islice(steps, n), maxlen=0), facts


def start(spec: Spec) -> Tensor:
    """The first token of every text: ids (B, 1)."""
    return torch.zeros(spec["batch"], 1, dtype=torch.long, device=spec["device"])


def sample_nanogpt(spec: Spec) -> Ready:
    """nanoGPT's own `generate`: it reads the last `block_size` tokens again for each new one."""
    model = nanogpt_model(spec).eval()
    return lambda n: model.generate(start(spec), n), {"parameters": count(model)}


def sample_transformers(spec: Spec) -> Ready:
    """`generate` of transformers with its cache and the same sampling options as the others."""
    model = transformers_model(spec).eval()
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "use_cache": True, "pad_token_id": 0}

    def block(n: int) -> None:
        ids = start(spec)
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n, **options)

    return block, {"parameters": count(model)}


def sample_minigpt(spec: Spec) -> Ready:
    """minigpt's `generate`. With `check: n`, first test that n tokens are the same with the cache and without it."""
    from minigpt.fast.decoding import prepare
    from minigpt.fast.threads import use_threads_to_sample
    from minigpt.model.sampling import SamplingConfig, generate

    original = minigpt_model(spec).eval()
    parameters, model = count(original), prepare(original, spec["weights"], spec.get("without", ()))
    if spec["batch"] == 1:  # as scripts/sample.py does
        use_threads_to_sample(parameters)

    def text(n: int, cache: bool = spec["cache"]) -> Tensor:
        config = SamplingConfig(temperature=1.0, max_tokens=n)
        draw = torch.Generator(spec["device"]).manual_seed(0)
        return torch.stack(list(generate(model, start(spec), config, draw, cache)), dim=1)  # (B, n)

    facts: dict[str, Any] = {"parameters": parameters, "precision": spec["weights"]}
    if checked := spec.get("check", 0):
        facts["same"] = torch.equal(text(checked, True), text(checked, False))
    return text, facts


@torch.no_grad()
def evaluate_nanogpt(spec: Spec) -> Ready:
    """The exact loss of a checkpoint of nanoGPT: each target of val.bin once, in windows that do not overlap."""
    code = nanogpt(spec)
    saved = torch.load(Path(spec["folder"], "ckpt.pt"), map_location=spec["device"], weights_only=True)
    model = code.GPT(code.GPTConfig(**saved["model_args"])).to(spec["device"]).eval()
    model.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in saved["model"].items()})
    ids = torch.from_numpy(np.fromfile(spec["val"], dtype="<u2").astype(np.int64)).to(spec["device"])  # (N,)
    T, total, targets = spec["window"], 0.0, len(ids) - 1
    whole = targets // T * T
    pairs = [*zip(ids[:whole].view(-1, T).split(128), ids[1 : whole + 1].view(-1, T).split(128))]  # (B, T) each
    if whole < targets:
        pairs.append((ids[None, whole:-1], ids[None, whole + 1 :]))  # (1, rest) each
    for x, y in pairs:
        total += model(x, y)[1].item() * y.numel()
    return lambda n: None, {"loss": total / targets, "targets": targets, "parameters": count(model)}


READY: dict[tuple[str, str], Callable[[Spec], Ready]] = {
    ("train", "minigpt"): train_minigpt,
    ("train", "nanogpt"): train_nanogpt,
    ("train", "transformers"): train_transformers,
    ("sample", "minigpt"): sample_minigpt,
    ("sample", "nanogpt"): sample_nanogpt,
    ("sample", "transformers"): sample_transformers,
    ("evaluate", "nanogpt"): evaluate_nanogpt,
}
