"""A model that is only looked at is left in the mode in which it was, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_trainings import BLOCK, small_dataset
from torch import Tensor, nn

from minigpt.model import GPT, ModelConfig, SamplingConfig, generate
from minigpt.model.eval_mode import eval_mode
from minigpt.seeing.cost import cost
from minigpt.seeing.trace import attention_maps
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import Char
from minigpt.training.floor import character_probabilities, predict
from minigpt.training.loop import TrainingConfig, evaluate

SHAPE = ModelConfig(n_layer=1, n_embd=8, block_size=BLOCK, dropout=0.5)


class Fails(GPT):
    """Fails where others compute, unless it would drop something."""

    def hidden(self, *arguments: Any, **options: Any) -> Tensor:
        assert not self.training and not self.dropout.training
        raise RuntimeError("out of memory")


IDS = torch.zeros(1, 4, dtype=torch.long)  # (1, 4)
USES: dict[str, Callable[[GPT, Dataset], object]] = {
    "evaluate": lambda model, dataset: evaluate(model, dataset, "val", TrainingConfig(), batches=1),
    "predict": lambda model, dataset: predict(model, dataset, TrainingConfig(), None, batches=1),
    "character_probabilities": lambda model, _: character_probabilities(model, Char("Mai"), "Mia"),
    "cost": lambda model, _: cost(model),
    "attention_maps": lambda model, _: attention_maps(model, IDS),
    "generate": lambda model, _: list(generate(model, IDS, SamplingConfig())),
}
dataset = pytest.fixture(scope="module")(small_dataset)


@pytest.mark.parametrize("name", USES)
def test_an_error_leaves_the_model_in_training_mode(name: str, dataset: Dataset) -> None:
    model = Fails(SHAPE, 100).train()
    with pytest.raises(RuntimeError, match="out of memory"):
        USES[name](model, dataset)
    assert all(module.training for module in model.modules())


def test_a_model_that_was_evaluated_stays_so() -> None:
    layer = nn.Dropout().eval()
    with eval_mode(layer):
        pass
    assert not layer.training
