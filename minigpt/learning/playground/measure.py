"""The validation loss of a run, with and without edits, and how well it predicts what must be remembered.

The numbers are those of training/floor.py, over the beginning of the validation split or all of it. They are computed
batch by batch, so that the score so far can be shown, and a measurement can be stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from minigpt.seeing.edits import Edits, edited
from minigpt.text.dataset import Dataset
from minigpt.training.floor import Expected, Predictions, expectations, joined, predict_batches, score
from minigpt.training.run import Run

BATCH = 2048  # tokens at a time: a model of 124M parameters takes seconds for one batch
BEGINNING = 20_000  # tokens of the validation split that are measured unless all are asked for

Result = TypeVar("Result")
Turn = Callable[[Callable[[], Result]], Result]  # runs a job when the model is free


@dataclass(frozen=True)
class Text:
    """The validation text of a run, and what the ideal reader predicts for it, if there is one."""

    dataset: Dataset
    expected: Expected | None


class Measure:
    """Measures one run; the text is opened at the first measurement."""

    def __init__(self, run: Run):
        self.run, self.lock = run, threading.Lock()
        self.text: Text | None = None
        self.as_trained: dict[
            bool, dict[str, Any]
        ] = {}  # entire text or its beginning -> the last answer without edits

    def open_text(self) -> Text:
        """The text. Raises UserError or OSError if it has been removed."""
        with self.lock:
            if self.text is None:
                config, tokenizer = self.run.config, self.run.tokenizer
                corpus = config.data.open()
                dataset = Dataset(config.data, corpus, tokenizer, config.model.block_size)
                self.text = Text(dataset, expectations(corpus, tokenizer))
            return self.text

    def measured(self, edits: Edits, entire_text: bool, turn: Turn[Any]) -> Iterator[dict[str, Any]]:
        """Yields the progress and the score so far after each batch, as JSON values. Cut edges do not count here."""
        if edits == Edits() and entire_text in self.as_trained:
            yield self.as_trained[entire_text]
            return
        text, T = self.open_text(), self.run.config.model.block_size
        settings = replace(self.run.config.training, precision="float32", batch_size=max(1, BATCH // T))
        all_batches = -(-text.dataset.window_count("val") // settings.batch_size)
        batches = all_batches if entire_text else min(all_batches, -(-BEGINNING // (settings.batch_size * T)))
        predictions, parts = predict_batches(self.run.model, text.dataset, settings, text.expected), list[Predictions]()
        uncut = replace(edits, cut=frozenset())

        def batch() -> Predictions:
            with edited(self.run.model, uncut):
                return next(predictions)

        for done in range(1, batches + 1):
            parts.append(turn(batch))
            result = asdict(score(joined(parts), text.expected))
            answer = {"done": done, "of": batches, "score": result}
            if edits == Edits() and done == batches:
                self.as_trained[entire_text] = answer
            yield answer
