"""How a model reads stories that it has not read: its loss, and its accuracy by what must be remembered."""

from __future__ import annotations

from dataclasses import replace

from minigpt.comparison.data import expected_of, text_and_tokenizer
from minigpt.model import GPT
from minigpt.runs.assemble import RunConfig
from minigpt.text.dataset import Dataset
from minigpt.training.floor import Score, predict, score

STORIES = 100  # at most


def read_new_stories(model: GPT, config: RunConfig) -> Score:
    """The score over the first validation stories. Its `names` are empty where a token is not a character."""
    corpus, tokenizer = text_and_tokenizer(config.data)
    aligned = Dataset(replace(config.data, windows="documents"), corpus, tokenizer, config.model.block_size)
    settings = replace(config.training, precision="float32", batch_size=STORIES)
    expected = expected_of(config.data)
    return score(predict(model, aligned, settings, expected, batches=1), expected)
