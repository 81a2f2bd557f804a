"""Inverse-CDF sampling as a picture: the line of probabilities, and the die, a random point of the line.

Every token of the vocabulary has a segment of the line, in the order of ids, as long as its probability; the token
under the die is chosen (`next_token` in model/sampling.py). The die of a turn depends only on the seed and the turn. So
a setting moves the segments and not the die, and a token that is put in by hand does not change later dice.

V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.model.sampling import SamplingConfig, next_token, probabilities
from minigpt.seeing.numbers import token_text
from minigpt.text.tokenizer import Tokenizer

ON_THE_LINE, LIKELIEST = 40, 12  # how many tokens have a name on the line, and are listed below it
AS_TRAINED = SamplingConfig(temperature=1.0)  # no filter


def die(seed: int, turn: int) -> torch.Generator:
    """The random generator for token number `turn`; the first token that is written is number 0.

    It is in the state of the generator of `Run.stream` after `turn` tokens with this seed, so both write the same text.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.rand(turn, dtype=torch.float64, generator=generator)  # a number for each earlier token
    return generator


@torch.no_grad()
def line(
    logits: Tensor, config: SamplingConfig, turn: int | None, tokenizer: Tokenizer, also: int | None = None
) -> dict[str, Any]:
    """The line for logits (V,), as JSON values; without a turn there is no die. `also` is a token to list in any case.

    `segments` are [id, token, where it begins, where it ends] on a line of length 1; `likeliest` are [id, token, its
    probability, its probability without settings]; `left` is the number of tokens that can be drawn.
    """
    rows = logits[None].float().cpu()  # (1, V)
    unfiltered = probabilities(rows, AS_TRAINED)[0]  # (V,)
    if config.temperature == 0:
        p = F.one_hot(rows.argmax(-1), rows.shape[1])[0].float()  # (V,)
    else:
        p = probabilities(rows, config)[0]  # (V,)
    cumulative = p.cumsum(-1, dtype=torch.float64)  # (V,)
    cumulative = cumulative / cumulative[-1]
    point, next_id = None, None
    if turn is not None:
        next_id = int(next_token(rows, config, die(config.seed, turn)))
        if config.temperature > 0:
            point = float(torch.rand(1, 1, dtype=torch.float64, generator=die(config.seed, turn)))
    extra = [id for id in dict.fromkeys((next_id, also)) if id is not None]
    longest = p.topk(min(ON_THE_LINE, int((p > 0).sum()))).indices.tolist()
    likeliest = unfiltered.topk(min(LIKELIEST, len(unfiltered))).indices.tolist()
    names = {id: token_text(tokenizer, id) for id in {*longest, *likeliest, *extra}}
    return {
        "die": point,
        "chosen": next_id,
        "left": int((p > 0).sum()),
        "segments": [
            [id, names[id], float(cumulative[id - 1]) if id else 0.0, float(cumulative[id])]
            for id in sorted({*longest, *extra})
            if p[id] > 0
        ],
        "likeliest": [
            [id, names[id], float(p[id]), float(unfiltered[id])]
            for id in [*likeliest, *(id for id in extra if id not in likeliest)]
        ],
    }
