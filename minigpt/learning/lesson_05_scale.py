"""Lesson 5: Variance, with the scale and without it.

Scores are divided by the square root of d, the width of a query. One small division, and training depends on it. You
will see why on random vectors, and then look at what your own model has made of it.
"""

# %% [markdown]
# **The question.** What is a's number, if vectors are wide? In lesson 2 each token of 64 numbers saw itself alone, and
# a's number never arrived. How large may a score be, so that a softmax still weighs one token against another?
#
# ## How large is a dot product?
#
# The **variance** of some numbers is the mean of their squared distances from their mean. It says how far they are
# spread. Its square root, the **standard deviation**, says the same in the units of the numbers.
#
# When training begins, queries and keys are random. Let us draw some: every number is drawn by itself, with mean 0 and
# variance 1. Each dot product is a sum of d products, where d is the number of features of a query and a key.

# %%
import math

import torch

from minigpt.attention import MultiHead
from minigpt.learning.tools import bars, curves, exercise, matrix, own_run, prose, reveal, say, show, turn, turn_through
from minigpt.learning.worked_examples import GRANT, GRANT_KEY, GRANT_QUERY
from minigpt.model import GPT
from minigpt.seeing.edits import Edits, edited
from minigpt.seeing.trace import tracing
from minigpt.text.languages.language import Stories
from minigpt.training.floor import character_probabilities

torch.manual_seed(5)
query, key = torch.randn(1000, 16, 256), torch.randn(1000, 16, 256)  # (texts, T, features): the first d of 256 are used

# %% [markdown]
# **Guess 1.** With d = 64, what is the variance of the dot products?

# %%
guess = None  # a number

# %%
widths = [4, 16, 64, 256]
spread = {d: float((query[..., :d] @ key[..., :d].mT).var()) for d in widths}
scaled = {d: float((query[..., :d] @ key[..., :d].mT / d**0.5).var()) for d in widths}
reveal(
    guess,
    spread[64],
    f"It is {spread[64]:.2f}. Each product has the variance 1, and the variances of independent numbers add up. So the "
    "variance is d: the wider the queries, the larger the scores.",
    bars({f"d = {d}": value for d, value in spread.items()}, "variance of the dot products", 1),
    within=6,
    span=(0.1, 1000),
    mistakes={
        "one product": (
            (None, 3),
            "About 1 is the variance of *one* product. A score is a sum of 64 of them, and variances add up.",
        ),
        "the standard deviation": (
            (6.5, 9.5),
            "8 is the *standard deviation* of the scores. The variance is its square.",
        ),
        "d squared": (
            (3000, None),
            "You squared d. Each product has the variance 1, and there are d of them, not d times d.",
        ),
    },
)

# %% [markdown]
# A standard deviation is the square root of a variance: for d = 64 it is 8. Divide the scores by the square root of d,
# and their variance is divided by d.

# %%
show(bars({f"d = {d}": value for d, value in scaled.items()}, "the same, divided by the square root of d", 3))

# %% [markdown]
# ## A small example by hand
#
# Take the four tokens of lesson 4, whose queries and keys have 8 features.

# %% live
scores = GRANT_QUERY @ GRANT_KEY.mT  # (T, T) = (4, 4)
show(matrix(scores, GRANT, GRANT, "the scores of the four tokens"))

# %% [markdown]
# **Guess 2.** By what factor is the variance of their 16 scores larger before the division by the square root of 8 than
# after it?

# %%
guess = None  # a number

# %% live
numbers = {"queries": GRANT_QUERY, "keys": GRANT_KEY, "scores": scores, "scaled scores": scores / 8**0.5}
measured = {name: ((each - each.mean()) ** 2).mean() for name, each in numbers.items()}
reveal(
    guess,
    float(measured["scores"] / measured["scaled scores"]),
    "Whoever divides numbers by something divides their variance by its square: by 8. With 16 numbers the variances "
    f"themselves are only roughly as in theory: {measured['scores']:.4f} in place of 8, "
    f"{measured['scaled scores']:.4f} in place of 1.",
    bars(measured, "the variances", 4),
    within=0.1,
    span=(1, 64),
    mistakes={
        "divided once": (
            (2.5, 3.2),
            "That is what the scores are divided by. A variance is made of squares, so it is divided by the square.",
        ),
        "squared twice": ((60, 68), "You squared once too often: the square of the square root of 8 is 8."),
    },
)

# %% [markdown]
# ## What large scores do to a softmax
#
# Now the weights. Here are the scaled scores of "Grant" with the four tokens.

# %% live
row = scores[3] / 8**0.5  # (T,): the scaled scores of "Grant"
show(matrix(row[None], ["score"], GRANT, 'the scaled scores of "Grant"'))

# %% [markdown]
# The softmax makes weights of them: e to the power of each score, divided by the sum of all four.
#
# **Guess 3.** Draw the four weights. Together they are 1.

# %%
guess = None  # four numbers, with commas

# %% live
weights = row.softmax(dim=-1)  # (T,)
positive = row.clamp(min=0)  # (T,)
reveal(
    guess,
    dict(zip(GRANT, weights.tolist())),
    f"The sum of the four powers is {float(row.exp().sum()):.2f}. The largest score is {float(row.max()):.2f}, and "
    f"{float(row.max().exp()):.2f} / {float(row.exp().sum()):.2f} = {float(weights.max()):.2f}. A score below zero "
    f"gets "
    "little, but never nothing.",
    turn("the weights", GRANT, query=torch.ones(4, 1), key=scores[3, :, None], row=3, factor=1 / 8**0.5),
    mistakes={
        "in proportion": (
            (positive / positive.sum()).tolist(),
            "You shared in proportion to the scores, and gave nothing to a score below zero. The softmax shares in "
            "proportion to the *powers*: only differences count.",
        ),
        "too even": (
            [1 / 4] * 4,
            "You drew a mean. A score that is larger by 1 has e times the weight, nearly three times.",
        ),
        "the largest alone": (
            torch.nn.functional.one_hot(row.argmax(), 4).tolist(),
            "You gave all to the largest score. That is what very large scores do. These are near each other.",
        ),
    },
)

# %% live
raw = query[..., :64] @ key[..., :64].mT  # (texts, T, S)
positions = [str(s + 1) for s in range(8)]
eight = raw[:1, 0, :8]  # (1, 8)
show(matrix(eight, ["score"], positions, "eight random scores, with d = 64"))

# %% [markdown]
# In a row of 16 random scores, look at the largest weight. If all were equal, it would be 1/16.
#
# **Guess 4.** With d = 64 and *without* the scale: how large is the largest weight of a row, on average?

# %%
guess = None  # a number between 0 and 1

# %% live
largest = {name: float((raw * by).softmax(dim=-1).amax(dim=-1).mean()) for name, by in (("raw", 1), ("scaled", 1 / 8))}
example = torch.cat([eight.softmax(dim=-1), (eight / 8).softmax(dim=-1)])  # (2, 8)
reveal(
    guess,
    largest["raw"],
    f"It is {largest['raw']:.2f}: one token has nearly everything, and which one is chance, because nothing is "
    f"learned yet. With the scale it is {largest['scaled']:.2f}: the model begins by looking around. Here is one row "
    "both ways:",
    matrix(example, ["without", "with the scale"], positions, "weights of one row of eight scores"),
    within=0.1,
    span=(0, 1),
    mistakes={
        "as if all were equal": (
            (None, 0.13),
            "You thought of a mean: 1/16. But scores with a standard deviation of 8 differ by far more than 1.",
        ),
        "as with the scale": (
            (0.13, 0.5),
            "About so large it is *with* the scale. Without it, a lead of 5 in the score is already a factor of 148.",
        ),
    },
)

# %% [markdown]
# ## What that does to learning
#
# A model learns by small changes: it asks how far a weight would move if its score were a little larger. For a weight w
# of a softmax, the answer is the slope w (1 - w). It is at most 1/4, where w is one half, and close to zero where w is
# nearly 0 or nearly 1.
#
# Call a row **saturated** if its largest weight is above 99 %. Then all its other weights are below 1 %, and all its
# slopes are below 1 %: such a row hardly moves, whatever the model tries.
#
# **Guess 5.** Without the scale, what share of the rows is saturated before anything is learned?

# %%
guess = None  # a number between 0 and 1

# %%
saturated = {
    "without the scale": float((raw.softmax(dim=-1).amax(dim=-1) > 0.99).double().mean()),
    "with the scale": float(((raw / 8).softmax(dim=-1).amax(dim=-1) > 0.99).double().mean()),
}
reveal(
    guess,
    saturated["without the scale"],
    f"It is {saturated['without the scale']:.0%} of the rows, and {saturated['with the scale']:.0%} with the scale. "
    "These rows have made up their minds by chance, and learn very slowly to change them. The other rows are not the "
    "problem: where two scores happen to be close, the weights still move.",
    bars(saturated, "share of the rows that are saturated"),
    within=0.1,
    span=(0, 1),
    mistakes={
        "none": ((None, 0.05), "A lead of 5 over all others is enough. With a standard deviation of 8 it is not rare."),
        "nearly all": (
            (0.6, None),
            "The largest weight is large on *average*. In most rows the second score still keeps a share.",
        ),
    },
)

# %% [markdown]
# ## Your own model
#
# All this was about the beginning. What do the scores of a *trained* model look like? Here is one, and a fresh model
# with all the same options, and the weights it began from or others like them. Only the training is missing.

# %%
run = own_run(MultiHead)
torch.manual_seed(run.config.training.seed)
fresh = GPT(run.config.model, run.tokenizer.vocab_size).eval()
texts = (run.config.data.language or Stories()).tell(5, 12)  # twelve stories
size = run.config.model.block_size
ids = torch.from_numpy(run.tokenizer.encode(texts[0])).long()[None, :size]  # (1, T)


@torch.no_grad()
def variance_of_scores(model: GPT, scaled: bool = True) -> list[float]:
    """The variance of the scores that the mask allows, over all heads of each layer; with the scale, or before it."""
    with tracing(model) as trace:
        model(ids)
    visible_mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()  # (T, T)
    variances = []
    for attention, (call,) in zip(model.attentions(), trace.calls):
        assert isinstance(attention, MultiHead)
        scores = attention.scores(call.query, call.key)  # (1, H, T, T), scaled
        variances.append(float((scores if scaled else scores / attention.scale(call.query))[..., visible_mask].var()))
    return variances


def mean(numbers: list[float]) -> float:
    """The mean over the layers."""
    return sum(numbers) / len(numbers)


after, before, unscaled = variance_of_scores(run.model), variance_of_scores(fresh), variance_of_scores(fresh, False)
normed = all(getattr(attention.config, "qk_norm", False) for attention in run.model.attentions())
say(
    (
        "Both models have a part that our random vectors did not need: each query and each key is divided by its root "
        "mean square, and then multiplied by learned numbers, one for each feature, that begin at 1 (the option "
        "`qk_norm`). So in the fresh model queries and keys are as large as random numbers of variance 1, however "
        "small its matrices are."
        if normed
        else "In both models queries and keys are as their matrices make them (without the option `qk_norm`), and the "
        "matrices of a fresh GPT are small: its queries and keys are much smaller than our random vectors."
    )
    + f" The variance of the fresh model's scores is {mean(unscaled):.3g} before the scale, and {mean(before):.3g} "
    "after it."
)

# %% [markdown]
# **Guess 6.** In the trained model, is the variance of the scaled scores below 1, about 1, or above 1?

# %%
guess = None  # one of: below 1, about 1, above 1

# %%
middle = mean(after)
layers = range(1, len(after) + 1)
reveal(
    guess,
    "below 1" if middle < 0.8 else "about 1" if middle <= 1.25 else "above 1",
    f"It is {middle:.1f} on average over the layers, against {mean(before):.2g} before the training. The scale does "
    "not keep the scores small for ever. It sets where training *starts*; after that, the model makes its queries and "
    f"keys as large{' (by the numbers behind the norm)' if normed else ''}, and as alike where they match, as it needs "
    "to be as sure as it wants to be.",
    bars(
        {f"layer {n}, fresh": v for n, v in zip(layers, before)}
        | {f"layer {n}, trained": v for n, v in zip(layers, after)},
        "variance of the scaled scores",
    ),
    among=["below 1", "about 1", "above 1"],
    mistakes={
        "the scale keeps it": (
            "about 1",
            "You thought that the scale keeps the variance at 1. It does so where queries and keys are random. "
            "Training makes them what it needs.",
        ),
        "training calms": (
            "below 1",
            "Small scores are a mean of everything. A trained model has learned to choose, and for that it needs large "
            "ones.",
        ),
    },
)

# %% [markdown]
# ## Turn it
#
# If training has chosen the size of the scores, then another size should be worse. Let us multiply all scores of the
# model by a factor and measure its loss. With the factor 0 all scores are equal: this is the running mean of lesson 1.
# A large factor leaves only the largest score of each row. Taking the scale away is a factor too: the square root of d.

# %%
with torch.no_grad(), tracing(run.model) as trace:
    run.model(ids)
d = trace.calls[0][0].query.shape[-1]  # features of a query in your model
losses, samples = [], {}
for factor in sorted({0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0, d**0.5}):
    with edited(run.model, Edits(scale={"all": factor})):
        probabilities = [p for text in texts for p in character_probabilities(run.model, run.tokenizer, text[:size])]
        written = run.generate("\n", seed=1, max_tokens=120)
    losses.append((factor, -sum(map(math.log, probabilities)) / len(probabilities)))
    samples[f"{factor:.3g}"] = prose(f"loss {losses[-1][1]:.3f}\n\n    {written.strip()}")

# %% [markdown]
# **Guess 7.** Which is worse for your model: scores of half the size, or of twice the size?

# %%
guess = None  # one of: half the size, twice the size

# %%
at = dict(losses)
best = min(at, key=lambda factor: at[factor])
reveal(
    guess,
    "half the size" if at[0.5] > at[2.0] else "twice the size",
    f"The loss is {at[1.0]:.3f} as the model is, {at[0.5]:.3f} with half the scores and {at[2.0]:.3f} with twice the "
    f"scores. Of the factors tried, {best:g} is the best. Without the division by the square root of d = {d} it "
    f"would be {at[d**0.5]:.3f}. With 0, the running mean, it is {at[0.0]:.3f}. "
    f"(To give every token the same probability would cost {math.log(run.tokenizer.vocab_size):.3f}.) The layers have "
    "learned to work with what their heads choose, and have never met a mean.",
    curves({"loss in nats a token": losses}, "The loss with all scores multiplied", "factor"),
    among=["half the size", "twice the size"],
    mistakes={
        "sharper is worse": (
            "twice the size",
            "You thought of the saturated rows. They learn badly, but nothing learns here any more: the heads are "
            "already sure, and being surer changes little.",
        ),
        "flatter is worse": (
            "half the size",
            "A flatter row mixes in what the head had left out. In this model that costs less than being too sure.",
        ),
    },
)

# %% [markdown]
# And what does it write, if its scores are multiplied?

# %%
show(turn_through("scores, times", samples, "1"))

# %% [markdown]
# ## Your turn
#
# You write a whole head: queries, keys and values as layers, the weights with their scale and mask, and the last step,
# a layer that writes the result back. (That last step is the subject of lesson 6; the file says what it does.) Then
# leave out the scale, and see whether the checker finds it.

# %%
exercise("single_head")

# %% [markdown]
# ## What to read next
#
# - "Attention Is All You Need" (arXiv 1706.03762), section 3.2.1 and its footnote: the sum of d products, as above.
# - "Query-Key Normalization for Transformers" (arXiv 2010.04245): queries and keys of fixed length, and a scale that is
#   learned.
# - "Stabilizing Transformer Training by Preventing Attention Entropy Collapse" (arXiv 2303.06296): what happens when
#   the scores grow too large in training.
