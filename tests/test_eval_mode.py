"""A model that is only looked at is left in the mode in which it was, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minigpt.inspection.cost import cost
from minigpt.inspection.trace import attention_maps
from minigpt.model import GPT, ModelConfig, SamplingConfig, generate
from minigpt.model.eval_mode import eval_mode
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.training.floor import character_probabilities, predict
from minigpt.training.loop import TrainingConfig, evaluate

SHAPE = ModelConfig(n_layer=1, n_embd=8, block_size=8, dropout=0.5)


class Fails(GPT):
    """Fails where others compute, unless it would drop something."""

    def hidden(self, *arguments: Any, **options: Any) -> Tensor:
        assert not self.training and not self.dropout.training
        raise RuntimeError("out of memory")


def uses() -> dict[str, Callable[[GPT], object]]:
    data = DataConfig()
    corpus = open_corpus(data.source, data.stories)
    tokenizer = data.tokenizer.component.fit(data.tokenizer, corpus.documents())
    dataset = Dataset(data, corpus, tokenizer, SHAPE.block_size)
    ids = torch.zeros(1, 4, dtype=torch.long)  # (1, 4)
    return {
        "evaluate": lambda model: evaluate(model, dataset, "val", TrainingConfig(), batches=1),
        "predict": lambda model: predict(model, dataset, TrainingConfig(), None, batches=1),
        "character_probabilities": lambda model: character_probabilities(model, tokenizer, "Mia"),
        "cost": cost,
        "attention_maps": lambda model: attention_maps(model, ids),
        "generate": lambda model: list(generate(model, ids, SamplingConfig())),
    }


@pytest.mark.parametrize(
    "name", ["evaluate", "predict", "character_probabilities", "cost", "attention_maps", "generate"]
)
def test_an_error_leaves_the_model_in_training_mode(name: str) -> None:
    model = Fails(SHAPE, 100).train()
    with pytest.raises(RuntimeError, match="out of memory"):
        uses()[name](model)
    assert all(module.training for module in model.modules())


def test_a_model_that_was_evaluated_stays_so() -> None:
    layer = nn.Dropout().eval()
    with eval_mode(layer):
        pass
    assert not layer.training
