"""Lesson 13: One head: what it hands over, and where it is written.

A head hands over something else than the token is, and a projection writes it to a place of its own. You will see what
goes wrong without the two, what they cost, and train one head beside a rung that lacks them. Read it after lesson 5.
"""

# %% [markdown]
# **The question.** `kpkkp|k`: the text has two letters; which is the other one? Lesson 3 has asked this. Finding p is
# easy: queries and keys that look for *another* letter will do. But then k has to say what it has found.
#
# ## In a sum nobody can tell
#
# What a head has gathered is *added* to the token: a layer makes `x + attention(x)` of x. So a token keeps what it is.
#
# Here are the two letters, with four numbers each. The last two numbers are still free. And here are the weights of a
# head that has learned its task: each letter looks at the other one.

# %% live
import math

import torch

from minigpt.attention import MultiHead, QueryKey, Shape, SingleHead
from minigpt.learning.small_training import read_new_stories
from minigpt.learning.tools import bars, curves, exercise, matrix, reveal, say, show, turn, watch

letters, four = ["k", "p"], ["first", "second", "third", "fourth"]
x = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])  # (T, D): T = 2, D = 4
weights = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # (T, S)
show(matrix(x, letters, four, "x: the vectors of the two letters"))
show(matrix(weights, letters, letters, "the weights: each looks at the other one"))

# %% [markdown]
# On the rung with queries and keys alone, a token hands over itself: the value is x.
#
# **Guess 1.** Add what each letter has found. What is the largest difference between the two new rows?

# %%
guess = None  # a number

# %% live
added = x + weights @ x  # (T, D)
reveal(
    guess,
    float((added[0] - added[1]).abs().max()),
    "k + p is p + k. Whoever is k and has found p looks the same as whoever is p and has found k, and they would have "
    "to give different answers. The head has found the right letter, and it is of no use.",
    matrix(added, letters, four, "x + weights @ x"),
    within=0.05,
    span=(0, 2),
    mistakes={
        "as before": (
            (0.9, 1.1),
            "So far apart they were *before*. Each has taken the other in, and that makes them alike.",
        ),
        "further apart": ((1.1, None), "A sum takes them nearer to each other, not further apart."),
        "half": ((0.4, 0.6), "Nothing is halved: each row is its own letter plus the other one."),
    },
)

# %% [markdown]
# ## A value is not what the token is
#
# So a token should hand over something else than itself. The matrix `w_value` makes it: here it moves the first number
# to the third place, and the second to the fourth.

# %% live
w_value = torch.tensor(
    [
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
    ]
)  # (D, D)
value = x @ w_value  # (T, D)
show(matrix(w_value, [f"from the {name}" for name in four], four, "w_value: from x to the values"))
show(matrix(value, letters, four, "the values: x @ w_value"))

# %% [markdown]
# **Guess 2.** Which number of k says now that it has found p?

# %%
guess = None  # one of: first, second, third, fourth

# %% live
written = x + weights @ value  # (T, D)
reveal(
    guess,
    four[int((written[0] - x[0]).argmax())],
    "The first two numbers say who I *am*, the last two whom I have *found*. The two rows are different now, and the "
    "last matrix of the model can read the answer off the last two numbers.",
    matrix(written, letters, four, "x + weights @ value"),
    among=four,
    mistakes={
        "where p stands": ("second", "There p itself stands. What it *hands over* stands elsewhere."),
        "where k goes": ("third", "The third number belongs to whoever has found k. That is p."),
        "its own place": ("first", "The first number says that it is k. This was so before."),
    },
)

# %% [markdown]
# Weights of exactly one need very large scores. Turn the scores down: k then finds a little of itself too.

# %% live
query = torch.tensor([[0.0, 2.0], [2.0, 0.0]])  # (T, d): each looks for the other letter
key = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # (T, d)
show(turn("the weights", letters, query=query, key=key, value=value, factor=1 / 2**0.5, mask="everything"))

# %% [markdown]
# ## The way back: a projection
#
# In a real layer there are two matrices on this way. `value` makes a short vector of x, with as many numbers as a head
# is wide. What the head has gathered is short too, and `project`, the **output projection**, writes it back into a
# vector of the model's width. Here the head is 2 wide.

# %% live
down = w_value[:, 2:]  # (D, e): the values, two numbers each
up = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])  # (e, D): where they are written
short = x @ down  # (T, e)
show(matrix(short, letters, four[:2], "what a head of width 2 hands over: x @ down"))
show(matrix(up, [f"from the {name}" for name in four[:2]], four, "up: the projection"))
show(matrix(x + weights @ short @ up, letters, four, "x + weights @ short @ up"))

# %% [markdown]
# One could multiply the two matrices beforehand, and would have one of the size (D, D) in place of both.
#
# **Guess 3.** Does one head with this one matrix compute the same as with the two?

# %%
guess = None  # yes or no

# %%
torch.manual_seed(13)
D, e, T = 64, 16, 10
text, row_weights = torch.randn(T, D), torch.randn(T, T).softmax(dim=-1)  # (T, D), (T, T)
value_matrix, projection = torch.randn(D, e) / D**0.5, torch.randn(e, D) / e**0.5  # (D, e), (e, D)
in_two = row_weights @ (text @ value_matrix) @ projection  # (T, D)
in_one = row_weights @ (text @ (value_matrix @ projection))  # (T, D)
difference = float((in_two - in_one).abs().max())
reveal(
    guess,
    "yes" if difference < 1e-4 else "no",
    f"With random numbers they differ by {difference:.0e}: rounding. Between the two there is only a weighted mean, "
    "and of three matrices it does not matter which two are multiplied first. So what one head writes is decided by "
    "the *product* of its two matrices, and where it looks by queries and keys. These are two separate things: a head "
    "can look in the same places and write something else.",
    among=["yes", "no"],
    mistakes={
        "the softmax between": (
            "no",
            "You thought of the softmax. It stands between x and the *weights*, not between the values and the "
            "projection.",
        ),
    },
)

# %% [markdown]
# Then why two? Here the model is 64 wide and the head 16. The product of the two has 64 rows and 64 columns.
#
# **Guess 4.** In how many independent directions can the head write? (How many numbers does one need at most, to say
# which vector it has written?)

# %%
guess = None  # a whole number

# %%
rank = int(torch.linalg.matrix_rank(value_matrix @ projection))
two_matrices, one_matrix = value_matrix.numel() + projection.numel(), D * D
reveal(
    guess,
    rank,
    f"Everything passes through {e} numbers. That is the **rank** of the product. A narrow head hands over little, and "
    f"is cheap: the two matrices have {two_matrices:,} numbers, the product has {one_matrix:,}. So a model can afford "
    "many heads, each of which writes a few things somewhere. That is the next lesson, number 6.",
    bars({"value and projection": float(two_matrices), "their product": float(one_matrix)}, "numbers to learn", 0),
    mistakes={
        "all of them": (
            (64, 64),
            "What it writes is 64 wide, yes. But all of it is made of the 16 numbers that the head hands over.",
        ),
        "how often it fits": ((4, 4), "That is 64 / 16: so many heads of this width a model usually has."),
        "both together": ((32, 32), "The values have 16 numbers, and the projection reads the same 16."),
    },
)

# %% [markdown]
# ## What it costs
#
# Here a head is as wide as the model, as on the rung `single_head`. The rung `query_key` below it has queries and keys,
# and hands over x as it is.
#
# **Guess 5.** How many times as many parameters has `single_head`?

# %%
guess = None  # a number

# %%
layers = {
    "query_key": QueryKey(QueryKey.Config(), Shape(n_embd=64)),
    "single_head": SingleHead(SingleHead.Config(), Shape(n_embd=64)),
    "multi_head": MultiHead(MultiHead.Config(n_head=4), Shape(n_embd=64)),
}
counts = {name: float(sum(p.numel() for p in layer.parameters())) for name, layer in layers.items()}
matrices = [name for name, part in layers["single_head"].named_children() if isinstance(part, torch.nn.Linear)]
reveal(
    guess,
    counts["single_head"] / counts["query_key"],
    f"It has {len(matrices)} matrices of one size: {', '.join(matrices)}. The rung below has the first two. And four "
    "heads have as many parameters as one: they share the width.",
    bars(counts, "parameters of a layer that is 64 wide", 0),
    within=0.05,
    span=(0.5, 8),
    mistakes={
        "without the projection": ((1.4, 1.6), "Three to two: you have forgotten one, the projection."),
        "from nothing": ((3.9, 4.1), "It has four matrices. But the rung below it has two already."),
        "the same": ((0.9, 1.1), "It has two matrices more: one that makes the values, and one that writes them."),
    },
)

# %% [markdown]
# ## Train both
#
# Now the question from the beginning: texts like `cfccfc|cf`, with two of the eight letters a to h. The model reads the
# letters, the bar and one of the two, and has to say the other one. It consists of one layer of attention and of
# nothing else: no MLP, which could help. The loss is measured at the answer alone. Two models, equal but for their
# attention, see the same texts in the same order.

# %%
texts = ["data.source={kind: other, count: 4000}", "training.batch_size=64", "model.block_size=32"]
shape = ["model.block=attention_only", "model.n_layer=1", "model.n_embd=32", "model.position=none"]
start = ["model.norm=rmsnorm", "model.embedding_scale=3", "model.bias=false", "model.tied_head=false"]
rungs = {"queries and keys": QueryKey.Config(), "one head": SingleHead.Config()}
trained = {name: watch(150, 10, [*texts, *shape, *start], attention) for name, attention in rungs.items()}
scores = {name: read_new_stories(each.run.model, each.run.config) for name, each in trained.items()}
accuracy = {name: next(iter(score.names.values())).accuracy for name, score in scores.items()}

# %% [markdown]
# **Guess 6.** Whoever knows nothing is right once in eight times. How often is the model with queries and keys alone
# right?

# %%
guess = None  # a number between 0 and 1

# %%
reveal(
    guess,
    accuracy["queries and keys"],
    f"It is right in {accuracy['queries and keys']:.0%} of the texts, the one with values and a projection in "
    f"{accuracy['one head']:.0%}. The first has learned which two letters there are: it has found the other one, and "
    f"has added it to its own. Which of the two is asked it has to guess. A coin costs ln(2) = {math.log(2):.2f} at "
    "each answer.",
    curves(
        {name: each.losses for name, each in trained.items()},
        "the loss at the answer, in nats",
        "step",
        ("a coin: ln(2)", math.log(2)),
    ),
    within=0.12,
    span=(0, 1),
    mistakes={
        "it knows nothing": (
            (None, 0.2),
            "It does learn to find the letters of the text. Six of the eight cannot be the answer, and it knows that.",
        ),
        "it can do it": (
            (0.85, None),
            "It finds the other letter. But k + p is all that it can say, and that does not tell which one is asked.",
        ),
    },
)

# %% [markdown]
# Here is where the trained head looks from the last letter of a text, the one that asks:

# %%
run = trained["one head"].run
asked = "\ncfccfc|c"
last = run.attention(asked)[0][0, -1]  # (S,)
labels = [f"{number} {name}" for number, name in enumerate(asked)]
show(bars(dict(zip(labels[1:], last[1:].tolist())), 'whom the last "c" looks at'))
say(
    f"It gives the two f {float(last[[2, 5]].sum()):.2f} of its weight in all, and the four c before the bar "
    f"{float(last[[1, 3, 4, 6]].sum()):.2f}."
)

# %% [markdown]
# Three things to keep:
#
# - A layer **adds**: `x + attention(x)`. What is added must not be mixed up with what is there.
# - Queries and keys decide *where* a head looks; values and projection decide *what* it writes, and in which direction.
# - One head takes one mean. It can say what it has found, but not two things apart. For that there are many heads.
#
# ## Your turn
#
# Write the whole head: queries, keys, values, weights and the projection.

# %%
exercise("single_head")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/softmax/query_key.py` and `single_head.py`: the two rungs, with what is new in each.
# - "Attention Is All You Need" (arXiv 1706.03762), section 3.2.2: the projection, there behind all heads together.
# - "Analyzing Transformers in Embedding Space" (arXiv 2209.02535): values and projection as one matrix, and what can be
#   read in it.
