"""Lesson 6: Many heads, and the projection behind them.

One head takes one mean. You will see what it cannot keep apart, and how several heads, side by side, can. Then you will
switch off the heads of a trained model, one at a time, and see what each of them was for.
"""

# %% [markdown]
# **The question.** `a4b1c2|ab`: how many more has a than b? One head takes one mean. In a mean both numbers count for a
# large answer, or both for a small one: it can add, but not subtract.
#
# ## What one head cannot keep apart
#
# "Tom fed Mia" and "Mia fed Tom" have the same words. To know who fed whom, the model needs both names, and it must
# know which of them is which.
#
# You know a head from the lessons before: its scores become a row of weights, the row sums to one, and the head hands
# over the mean of the values with these weights. Let us give the two names values that are easy to tell apart.

# %% live
import torch
from torch import Tensor

from minigpt.attention import MultiHead, Past, Shape, SingleHead
from minigpt.learning.small_training import read_new_stories
from minigpt.learning.tools import attention_map, bars, curves, exercise, matrix, own_run, reveal, say, show, turn
from minigpt.seeing.edits import Edits, edited

value = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # (S, e)
show(matrix(value, ["Tom", "Mia"], ["Tom", "Mia"], "the values of the two names"))
values = dict(zip(["Tom", "Mia"], value))  # (e,) each


def one_head(first: str, second: str, weight: float) -> Tensor:
    """What a head hands over that gives `weight` to the first name, and the rest to the second: (e,)."""
    weights = torch.tensor([[weight, 1 - weight]])  # (1, S)
    return (weights @ torch.stack([values[first], values[second]]))[0]  # (e,)


both = torch.stack([one_head("Tom", "Mia", 0.7), one_head("Mia", "Tom", 0.7)])  # (2, e)
show(matrix(both, ["Tom fed Mia", "Mia fed Tom"], ["Tom", "Mia"], "a head gives the first name 70 % of its weight"))

# %% [markdown]
# So the two sentences look different. With 90 % and 10 % they would look more different still, but then the second name
# is almost gone.
#
# **Guess 1.** Now the head listens to both names equally well: 50 % and 50 %. How far apart are the two sentences?
# (Take the largest difference between the two rows.)

# %%
guess = None  # a number

# %%
apart = float((one_head("Tom", "Mia", 0.5) - one_head("Mia", "Tom", 0.5)).abs().max())
shares = [0.5 + step / 20 for step in range(11)]  # of the first name
between = [float((one_head("Tom", "Mia", w) - one_head("Mia", "Tom", w)).abs().max()) for w in shares]
second_name = [float(one_head("Tom", "Mia", w)[1]) for w in shares]
reveal(
    guess,
    apart,
    "Nothing is left of the difference: the mean of two things does not say which came first. The picture shows the "
    "choice that one head has. The better it keeps the sentences apart, the less it hears of the second name.",
    curves(
        {
            "how far apart the two sentences are": list(zip(shares, between)),
            "what is left of Mia": list(zip(shares, second_name)),
        },
        "one head has to choose",
        "weight on the first name",
    ),
    within=0.001,
    span=(0, 1),
    mistakes={
        "each at half": (
            (0.4, 0.6),
            "Half of each name is there in both sentences. That is why they are the *same*: a half and a half.",
        ),
        "as far as possible": ((0.9, None), "That would need two rows of weights. One head has one."),
    },
)

# %% [markdown]
# ## Two heads
#
# So give the model two heads. Each has its own queries and keys, so each has its own row of weights. The first looks at
# the first name, the second at the second. What they hand over is not averaged again: it is put side by side. This is
# called **concatenating**.

# %% live
names = ["Tom, head 1", "Mia, head 1", "Tom, head 2", "Mia, head 2"]
concatenated = torch.stack(
    [
        torch.cat([one_head("Tom", "Mia", 1.0), one_head("Tom", "Mia", 0.0)]),
        torch.cat([one_head("Mia", "Tom", 1.0), one_head("Mia", "Tom", 0.0)]),
    ]
)  # (2, 2 e)
show(matrix(concatenated, ["Tom fed Mia", "Mia fed Tom"], names, "what two heads hand over, side by side"))

# %% [markdown]
# Both names are there at full strength, and the two sentences could not be further apart.
#
# ## What do more heads cost?
#
# In `minigpt/attention/softmax` there are `single_head.py` and `multi_head.py`. Here is one of each, for a model whose
# tokens are vectors of 64 numbers: one head, and four heads. The parameters of a layer are the numbers that it learns.
#
# **Guess 2.** How many times as many parameters does the layer with four heads have?

# %%
guess = None  # a number

# %%
torch.manual_seed(6)
shape = Shape(n_embd=64)
one = SingleHead(SingleHead.Config(), shape)
four = MultiHead(MultiHead.Config(n_head=4), shape)
count_one, count_four = (sum(p.numel() for p in layer.parameters()) for layer in (one, four))
x = torch.randn(1, 5, 64)  # (B, T, D): one text of five tokens
query, key, value = four.qkv(x, Past())  # (B, H, T, d) each
reveal(
    guess,
    count_four / count_one,
    f"Both have {count_one:,}. The heads *share* the width: each of the four has queries, keys and values of "
    f"{query.shape[-1]} numbers in place of 64. Shapes say it best: x is {tuple(x.shape)}, the queries of four heads "
    f"are {tuple(query.shape)}: one text, four heads, five tokens, {query.shape[-1]} numbers.",
    span=(0.5, 8),
    mistakes={
        "four times": ((3.5, 4.5), "You gave each head the whole width. The heads share it: a quarter for each."),
        "a quarter": ((0.2, 0.3), "Each head has a quarter of the width, and there are four of them."),
    },
)

# %% [markdown]
# Equal numbers of parameters, with the same names. So the weights of the four heads can be copied into the one wide
# head.
#
# **Guess 3.** Then both layers hold exactly the same numbers. Do they compute the same?

# %%
guess = None  # yes or no

# %%
with torch.no_grad():
    one.load_state_dict(four.state_dict())
    wide, narrow = one(x), four(x)  # (B, T, D) each
    difference = float((wide - narrow).abs().max() / narrow.abs().max())
    wide_scores = one.scores(*one.qkv(x, Past())[:2]) / one.scale(one.qkv(x, Past())[0])  # (B, 1, T, T), unscaled
    sum_of_scores = (four.scores(query, key) / four.scale(query)).sum(dim=1, keepdim=True)  # (B, 1, T, T), unscaled
    rounding = float((wide_scores - sum_of_scores).abs().max())
reveal(
    guess,
    "yes" if difference < 1e-5 else "no",
    f"Their outputs differ by {difference:.0%} of the largest number. Without the scale, the score of the wide head is "
    f"the *sum* of the four scores (measured: they differ by {rounding:.0e}, which is rounding). So the wide head adds "
    "up first and then takes one softmax: whatever it looks for, there is one row of weights. Four heads take four "
    "softmaxes: four rows of weights, and each can have its largest weight somewhere else. (With `n_head=1` the two "
    "files do compute the same. A test of this project checks that.)",
    among=["yes", "no"],
    mistakes={
        "same weights, same layer": (
            "yes",
            "The matrices are the same. But between them stands a softmax, once or four times, and it is not linear.",
        )
    },
)

# %% [markdown]
# Here are the rows of weights of the same layer. Turn the number of heads: the matrices stay the same, and are only cut
# into more pieces.

# %%
joined_query, joined_key = (each[0].transpose(0, 1).flatten(1).detach() for each in (query, key))  # (T, D) each
places = [f"x{t}" for t in range(1, 6)]
show(turn("the weights", places, query=joined_query, key=joined_key, heads=4, factor=4.0, mask="the past"))

# %% [markdown]
# ## What the projection is for
#
# Side by side means: head 1 owns the features 1 to 16, head 2 the features 17 to 32, and so on. The next layer would
# have to know who wrote where. So a last matrix follows, the **projection** (`project` in the code). It reads all of
# them and writes 64 new numbers.
#
# Let us silence head 1 of the layer, so that it hands over zeros.
#
# **Guess 4.** Before the projection, 16 of the 64 numbers of a token are zero now. How many of the 64 change *behind*
# the projection?

# %%
guess = None  # a whole number

# %%
with torch.no_grad():
    mixed = four.mix(query, key, value)  # (B, H, T, d): what the heads hand over
    silenced = mixed.clone()
    silenced[:, 0] = 0
    changed = (four.output(mixed, x) != four.output(silenced, x))[0, -1]  # (D,): of the last token
    shares_of_heads = [mixed[0, h] @ four.project.weight[:, 16 * h : 16 * h + 16].T for h in range(4)]  # 4 of (T, D)
    off = float((sum(shares_of_heads) + four.project.bias - narrow[0]).abs().max())
reveal(
    guess,
    int(changed.sum()),
    "Each new number is made of all 64, so every head has a say in every feature. One can also read it the other way "
    f"round: the output is a sum of four pieces, one for each head (measured: it differs from that sum by {off:.0e}). "
    "A head adds its piece to what the layer says, and taking a head away takes exactly its piece away.",
    mistakes={
        "only its own": (
            (16, 16),
            "That is how many change *before* the projection. Each new number is made of all 64.",
        ),
        "none": ((0, 0), "Something changes: the piece that head 1 would have added is missing."),
    },
)

# %% [markdown]
# That is what makes the next experiment possible: switch off a head, and see what the model can no longer do.
#
# ## The heads of a trained model
#
# The model has read little stories. In a story, late words follow from early ones: a name comes back, a list is
# repeated in its order. For every letter it is known what it takes to predict it, so the accuracy can be measured for
# each kind of memory by itself. Some of them:
#
# - `recall`: the name, or what was said of the hero at the beginning.
# - `agreement`: she or he, him or her, one or many.
# - `plan`: whoever *hid* something makes the other one *find* it.
# - `copy`, `order`, `quote`: a word, a list, a sentence that comes again.
# - `count`: one fewer than before.
# - `local`: spelling; the last few letters are enough.

# %%
run = own_run(MultiHead)
score = read_new_stories(run.model, run.config)  # its loss, and its accuracy by what must be remembered
text = "\nMia was a shy fox. She met Tom. She"
maps = run.attention(text)  # (H, T, T) for each layer
heads = [(layer, head) for layer, weights in enumerate(maps) for head in range(len(weights))]
say(f"The model has {len(heads)} heads. Its loss on stories that it has not read is **{score.loss:.4f}**.")

# %% [markdown]
# Now every head is switched off once, alone: what it hands over is zero, and all else stays. Nothing is trained again.
#
# **Guess 5.** Without the head that matters most, how many times as high is the loss?

# %%
guess = None  # a number

# %%
without = {}  # (layer, head): how the model reads without it
for layer, head in heads:
    with edited(run.model, Edits(heads_off=frozenset({(layer, head)}))):
        without[layer, head] = read_new_stories(run.model, run.config)
called = {(layer, head): f"layer {layer + 1}, head {head + 1}" for layer, head in heads}
ranked = sorted(heads, key=lambda head: -without[head].loss)
most, least = ranked[0], ranked[-1]
reveal(
    guess,
    without[most].loss / score.loss,
    f"Without {called[most]} the loss is {without[most].loss:.4f} in place of {score.loss:.4f}. Without "
    f"{called[least]} it is {without[least].loss:.4f}. The heads are not worth the same. And this shows a cause: the "
    "head is gone, so the loss rises. A picture of its weights would only show where it looks.",
    bars(
        {called[head]: without[head].loss - score.loss for head in ranked},
        "by how much the loss rises without a head",
    ),
    within=0.5,
    span=(1, 20),
    mistakes={
        "one of many": (
            (None, 1.2),
            "You thought that the other heads do its work. They were trained beside it, and have left this work to it.",
        ),
        "all is lost": (
            (12, None),
            "The model would know nothing at all. Most letters are spelling, which others can do.",
        ),
    },
)

# %% [markdown]
# A loss is one number for all that goes wrong. Let us ask what goes wrong.
#
# **Guess 6.** Is there a head without which the model still spells (the accuracy of `local` falls by less than a
# tenth), but forgets something else (that of another kind of memory falls by more than a fifth)?

# %%
guess = None  # yes or no

# %%
kinds = list(score.names)
lost = torch.tensor([[score.names[k].accuracy - without[head].names[k].accuracy for k in kinds] for head in heads])
spelling = lost[:, kinds.index("local")]  # (heads,)
memory, which = lost[:, [k not in ("free", "local") for k in kinds]].max(dim=-1)  # (heads,) each
specialist = memory.masked_fill(spelling >= 0.1, -1.0).argmax()
forgotten = [k for k in kinds if k not in ("free", "local")][int(which[specialist])]
special = bool(memory[specialist] > 0.2 and spelling[specialist] < 0.1)
reveal(
    guess,
    "yes" if special else "no",
    f"Look at the row of {called[heads[specialist]]}: `{forgotten}` falls from {score.names[forgotten].accuracy:.2f} "
    "to "
    f"{without[heads[specialist]].names[forgotten].accuracy:.2f}, and `local` loses {float(spelling[specialist]):.2f}. "
    + (
        "Nobody told the heads to divide the work. They start from different random numbers, and training improves "
        "each where it can."
        if special
        else "In this model the heads have not divided the work so clearly: most of what they do, they do together."
    ),
    matrix(lost, [called[head] for head in heads], kinds, "accuracy that is lost without a head"),
    among=["yes", "no"],
    mistakes={
        "all do all": (
            "no",
            "You thought that all heads do a little of everything. In this model at least one does not.",
        ),
        "always divided": ("yes", "Heads often divide the work, but they do not have to. In this model they share it."),
    },
)

# %% [markdown]
# (`free` is what nobody can know, such as a name that comes for the first time: there the number is the probability
# that the model gives to all that is possible.)
#
# ## Where do they look?
#
# A map shows where a head looks, on one text: a row is the letter that is read, a column the letter that it looks at.
# Here are the heads of one layer of the model.

# %%
labels = run.labels(text)
before = [
    weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1) for weights in maps
]  # (H,) each: on the letter before
layer = max(range(len(maps)), key=lambda layer: float(before[layer].max()))
itself = maps[layer].diagonal(dim1=-2, dim2=-1).mean(dim=-1)  # (H,): on the letter itself
drawn = {f"head {h + 1}": attention_map(maps[layer][h], labels, f"head {h + 1}") for h in range(len(maps[layer]))}

# %% [markdown]
# **Guess 7.** Point at the head that looks most at the letter *before* the one that is read.

# %%
guess = None  # one of: head 1, head 2, ...

# %%
own, previous = f"head {int(itself.argmax()) + 1}", f"head {int(before[layer].argmax()) + 1}"
reveal(
    guess,
    previous,
    f"On average it gives the letter before it {float(before[layer].max()):.0%} of its weight: its line runs just "
    f"below "
    "the diagonal. The next layer can use that: it sees at each letter which one came before.",
    among=list(drawn),
    pictures=drawn,
    mistakes={"itself": (own, f"It gives {float(itself.max()):.0%} to the letter itself: its line *is* the diagonal.")},
)

# %% [markdown]
# Two warnings. A map shows where a head looks, and not what it takes from there. And four heads are not always better
# than one: lesson 9 trains both.
#
# ## Your turn
#
# Write the four heads yourself. The places where most people go wrong: where to split, where to join, and which width
# stands under the square root.

# %%
exercise("multi_head")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/softmax/multi_head.py`: the layer that you have just taken apart.
# - "Attention Is All You Need" (arXiv 1706.03762): many heads, and why.
# - "Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the Rest Can Be Pruned"
#   (arXiv 1905.09418), and "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650): translators
#   whose heads were switched off.
