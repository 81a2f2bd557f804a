"""Small models, datasets and trainings, for the chapters that train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from running import small_text
from small_corpora import own_data
from torch import Tensor

from minigpt.attention import Attention, Position
from minigpt.model import GPT, ModelConfig
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.tokenizer import Char
from minigpt.training.checkpoint import Checkpoint
from minigpt.training.loop import TrainingConfig, train
from minigpt.training.optimizer import AdamW, Muon, Optimizer
from minigpt.training.records import Record

BLOCK = 16
OPTIMIZERS = [AdamW.Config(), Muon.Config()]
KINDS = {"ids": lambda config: config.component.kind}


def make_dataset(folder: Path, text: str, block_size: int = BLOCK, **options: Any) -> Dataset:
    """A dataset of characters."""
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    config = DataConfig(source=str(folder / "text.txt"), **options)
    corpus = open_corpus(config.source)
    return Dataset(config, corpus, Char.fit(None, corpus.documents()), block_size)


def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """That of the small text, in its own data folder: `dataset = pytest.fixture(scope="module")(small_dataset)`."""
    for folder in own_data(tmp_path_factory):
        yield make_dataset(folder, small_text())


def make_model(kind: str = "multi_head", dropout: float = 0.0, n_embd: int = 16, n_layer: int = 2, V: int = 30) -> GPT:
    torch.manual_seed(0)
    attention = Attention.kinds[kind].Config()
    config = ModelConfig(n_layer=n_layer, n_embd=n_embd, block_size=BLOCK, attention=attention, dropout=dropout)
    return GPT(config, V)


def noisy_model(kind: str, position: str, dropout: float, block_size: int, V: int = 11) -> GPT:
    """One in float64, its weights large enough for heads to differ and for its text not to be one letter repeated."""
    torch.manual_seed(0)
    parts: dict[str, Any] = {"attention": Attention.kinds[kind].Config(), "position": Position.kinds[position].Config()}
    config = ModelConfig(n_layer=2, n_embd=16, block_size=block_size, dropout=dropout, tied_head=False, **parts)
    model = GPT(config, V).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def settings(**options: Any) -> TrainingConfig:
    return TrainingConfig(**({"batch_size": 4, "max_steps": 6, "warmup_steps": 2, "device": "cpu"} | options))


def make_optimizer(config: TrainingConfig, model: GPT) -> Optimizer:
    optimizer = config.optimizer.component(config.optimizer, model)
    assert isinstance(optimizer, Optimizer)
    return optimizer


def learn(model: GPT, dataset: Dataset, config: TrainingConfig) -> list[Record]:
    return list(train(model, dataset, make_optimizer(config, model), config))


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether all tensors are the same to the bit."""
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def furthest(one: Checkpoint, other: Checkpoint) -> float:
    """The largest difference of two checkpoints' numbers."""
    mine, theirs = one.model | one.optimizer, other.model | other.optimizer
    assert mine.keys() == theirs.keys()
    return max((mine[name] - theirs[name]).abs().max().item() for name in mine)
