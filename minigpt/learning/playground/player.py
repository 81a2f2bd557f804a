"""A run in the playground: its model reads and writes texts, with edits.

A text is a list of ids. Each token is predicted from the context that sampling uses for it (`window_start`), so the
probabilities shown for a text are those with which it was written.

n tokens   T context   D model width   V vocabulary
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from minigpt.fast.decoding import prepare
from minigpt.learning.playground.line import die
from minigpt.model.sampling import OVERFLOW, SamplingConfig, next_token, reading, window_start
from minigpt.seeing.edits import Edits, edited, possible, writes_with_cache
from minigpt.seeing.numbers import costs, far_outside
from minigpt.system.errors import UserError
from minigpt.training.run import Run

CACHED_TEXTS = 8  # texts whose hidden states are kept, so that showing another position or setting takes little time
ROWS = 64  # positions whose logits are computed at a time: (64, V)


class Player:
    """A run, its model prepared for writing, and the hidden states of the last texts."""

    def __init__(self, run: Run):
        self.run = run
        self.model = prepare(run.model, run.config.sampling.weights) if run.config.training.fast else run.model
        self.possible = possible(run.model)
        self.usual = run.usual_loss()
        self.stop = run.config.sampling.stop or ("\n" if run.tells() else "")
        self.hidden_states: OrderedDict[tuple[Edits, tuple[int, ...]], Tensor] = OrderedDict()

    def hidden(self, ids: Sequence[int], start: int, edits: Edits) -> Tensor:
        """The last hidden states of the context that begins at `start`, (n, D). Raises UserError if they overflow."""
        T = self.model.config.block_size
        context, local_edits = tuple(ids[start : start + T]), in_context(edits, start)
        if (local_edits, context) not in self.hidden_states:
            with torch.inference_mode(), edited(self.model, local_edits):
                hidden = self.model.hidden(torch.tensor([context], device=self.model.device))[0]  # (n, D)
            if not hidden.isfinite().all():
                raise UserError(OVERFLOW)
            self.hidden_states[local_edits, context] = hidden
            if len(self.hidden_states) > CACHED_TEXTS:
                self.hidden_states.popitem(last=False)
        self.hidden_states.move_to_end((local_edits, context))
        return self.hidden_states[local_edits, context]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], n: int, edits: Edits) -> Tensor:
        """The logits of the token after the first n of a text: (V,)."""
        start = window_start(n, self.model.config.block_size)
        return self.model.logits(self.hidden(ids, start, edits)[n - 1 - start])

    @torch.inference_mode()
    def surprises(self, ids: Sequence[int], edits: Edits) -> list[float]:
        """-ln p of every token after the first, in nats, without sampling's settings: n - 1 numbers."""
        return [cost for rows in self.costs(ids, edits) for cost in rows[0].tolist()]

    @torch.inference_mode()
    def outside(self, ids: Sequence[int]) -> str:
        """A sentence where a text is far outside what the run was trained on; "" elsewhere."""
        if self.usual is None or len(ids) < 2:
            return ""
        paid = torch.cat(list(self.costs(ids, Edits())), dim=1)  # (2, n - 1)
        return far_outside(paid, self.usual, self.run.tokenizer)

    def costs(self, ids: Sequence[int], edits: Edits) -> Iterator[Tensor]:
        """The `costs` of the tokens after the first, some at a time: (2, rows)."""
        T, n = self.model.config.block_size, 1
        while n < len(ids):
            start = window_start(n, T)
            end = min(len(ids), n + ROWS, start + T + 1)  # tokens n to end - 1 see this context
            hidden = self.hidden(ids, start, edits)[n - 1 - start : end - 1 - start]  # (rows, D)
            targets = torch.tensor(ids[n:end], device=hidden.device)  # (rows,)
            yield costs(self.model.logits(hidden), targets)  # (2, rows)
            n = end

    @torch.inference_mode()
    def write(
        self, ids: Sequence[int], turn: int, config: SamplingConfig, edits: Edits
    ) -> Iterator[tuple[int, Tensor]]:
        """Continue a text without end: yields each token and its logits (V,). `turn` is the number of the first die."""
        T, generator = self.model.config.block_size, die(config.seed, turn)
        text = torch.tensor([list(ids)], device=self.model.device)  # (1, n)
        steps = reading(self.model, text, writes_with_cache(self.model, edits))
        n, token = text.shape[1], None
        while True:
            with edited(self.model, in_context(edits, window_start(n, T))):
                logits = next(steps) if token is None else steps.send(token.to(text.device))  # (1, V)
            token = next_token(logits.cpu(), config, generator)  # (1,)
            n += 1
            yield int(token), logits[0]

    def ended(self, written: Sequence[int]) -> bool:
        """Whether the last token ends the text, or the written tokens contain the stop text of the run's sampling."""
        if written and written[-1] in self.run.ends:
            return True
        if not self.stop:
            return False
        return self.stop in self.run.tokenizer.decode(written[-len(self.stop.encode()) :])


def in_context(edits: Edits, start: int) -> Edits:
    """The edits with positions of the context that begins at `start`, in place of positions of the text."""
    shifted = ((layer, query - start, key - start) for layer, query, key in edits.cut)
    return replace(edits, cut=frozenset(cut for cut in shifted if cut[2] >= 0)) if edits.cut else edits
