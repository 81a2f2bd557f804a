"""Lesson 1: The loop, the matrix, the softmax of zeros.

The simplest way for a word to know its past is to take the mean of it. You will write the same mean in three ways. The
third one is attention that has not learned anything yet.
"""

# %% [markdown]
# **The question.** `3131302|`: which digit comes most often? The bar at the end has to say it. A token that knows only
# itself cannot. What would it have to know of all the others?
#
# ## Three words, three lists of numbers
#
# A language model does not see letters or words. It sees a list of numbers for each of them: a **vector**. The piece of
# text that has a vector of its own is called a **token**. Here a token is a word.
#
# Let us take a text of three tokens with two numbers each. A row is a token.

# %% live
import torch

from minigpt.attention.ladder import average_loop, average_matrix, average_softmax
from minigpt.learning.tools import exercise, matrix, reveal, say, show, turn

tokens = ["the", "shy", "fox"]
x = torch.tensor([[8.0, 6.0], [5.0, 2.0], [4.0, 4.0]])  # (T, D): T = 3 tokens, D = 2 numbers each
show(matrix(x, tokens, ["first", "second"], "the vectors of three tokens", decimals=0))

# %% [markdown]
# Each row knows only its own token. The row of "fox" does not know that the fox is shy. A model that is to say what
# comes next needs to know it.
#
# So every row should take something from the rows before it. The simplest way is the **running mean**: the new row
# number t is the mean of the rows up to and including row t. It never takes from a later row, because when a text is
# written, the later words are not there yet. What looks only at the past is called **causal**.
#
# **Guess 1.** What is the first number in the new row of "fox"?

# %%
guess = None  # a number

# %% live
mean = average_loop(x)  # (T, D)
reveal(
    guess,
    float(mean[2, 0]),
    f"It is the mean of the column: (8 + 5 + 4) / 3 = {mean[2, 0]:.4f}. The first row stays as it was: there is "
    "nothing before it.",
    matrix(mean, tokens, ["first", "second"], "the running mean"),
    within=0.1,
    span=(0, 10),
    mistakes={
        "the mean of two": (
            (6.4, 6.6),
            "That is the mean of the first two rows. Row t takes from all rows up to and *including* itself.",
        ),
        "the last before it": ((4.95, 5.05), "That is the row before it. A running mean takes from all rows so far."),
        "its own number": ((3.95, 4.05), "That is the row as it was. It has taken nothing from its past yet."),
        "the sum": ((16.9, 17.1), "That is the sum. A mean divides it by the number of rows, here by three."),
    },
)

# %% [markdown]
# ## First way: a loop
#
# This is how one would explain it to a person: go from row to row, and take the mean of all up to here.

# %%
rows = [x[: t + 1].mean(dim=0) for t in range(len(x))]  # T of (D,)
say(f"Is it the running mean? {'yes' if torch.equal(torch.stack(rows), average_loop(x)) else 'no'}.")

# %% [markdown]
# It is right, and it is slow: row 1,000 must wait until row 999 is done, although it does not need it.
#
# ## Second way: a matrix
#
# A mean is a sum in which every part has a **weight**. The mean of three numbers gives each the weight of one third. So
# we can write down, for each row, how much it takes from each other row. This gives a table of weights. Its row t
# belongs to the token that takes, its column s to the token that is taken from.
#
# Then the whole running mean is one product of matrices: `weights @ x`.
#
# **Guess 2.** For a text of 8 tokens the table has 8 rows and 8 columns. How many of its 64 weights are zero?

# %%
guess = None  # a whole number

# %%
T = 8
triangle = torch.ones(T, T).tril()  # (T, T): ones where the column is not later than the row
weights = triangle / triangle.sum(dim=-1, keepdim=True)  # (T, T): each row sums to one
positions = [str(t + 1) for t in range(T)]
reveal(
    guess,
    int((weights == 0).sum()),
    "Everything above the diagonal is zero: 7 in the first row, then 6, 5, and so on. A zero above the diagonal means: "
    "this token is not there yet. The first row has a single weight, so that is 1.",
    matrix(weights, positions, positions, "how much row t takes from column s"),
    mistakes={
        "the diagonal too": ((36, 36), "You counted the diagonal as zero too. But a token does see itself."),
        "half of them": (
            (32, 32),
            "Half of 64 would split the diagonal. The diagonal is not zero: a token sees itself.",
        ),
        "the small ones": ((35, 63), "You may have counted small weights. A small weight is not zero."),
    },
)

# %% [markdown]
# Read a row of that table from left to right. All its weights are equal, they are never negative, and they sum to one.
# A row that sums to one is a division of *attention*: whoever gives more to one token has less left for the others.
#
# ## Third way: a softmax of zeros
#
# Now the weights are not written down. They are *computed* from numbers that are called **scores**, one for each pair
# of tokens. The function that makes weights from scores is the **softmax**. For each row it does two things:
#
# 1. It replaces each score by the exponential of it, `exp(score)`. This is always above zero.
# 2. It divides the row by its sum, so that the row sums to one.
#
# If a token must not be seen, its score is set to minus infinity, because `exp(-inf)` is exactly zero.
#
# Let all scores be zero, and those of later tokens minus infinity.

# %%
visible_mask = torch.ones(T, T, dtype=torch.bool).tril()  # (T, T): true where row t may look
scores = torch.zeros(T, T).masked_fill(~visible_mask, -torch.inf)  # (T, T)
show(matrix(scores, positions, positions, "the scores: zero, and minus infinity for what is not there yet"))

# %% [markdown]
# **Guess 3.** What does the softmax make of the last row, in which all eight scores are zero? What is each weight?

# %%
guess = None  # a number

# %%
weights = scores.softmax(dim=-1)  # (T, T)
reveal(
    guess,
    float(weights[7, 0]),
    f"`exp(0)` is 1, so each of the eight gets 1/8 = {weights[7, 0]:.3f}. It does not matter that the scores are zero: "
    "if all were 5, the weights would be the same. Only the differences between the scores of a row count.",
    within=0.005,
    span=(0, 1),
    mistakes={
        "scores are weights": (
            (None, 0.0001),
            "You took the score for the weight. The softmax takes the exponential first, and `exp(0)` is 1, not 0.",
        ),
        "not divided": ((0.99, 1.01), "That is `exp(0)`, before the division by the sum of the row."),
    },
)

# %% [markdown]
# So three ways of writing lead to one mean. It would be easy to believe this, so let us measure it: on a text of eight
# tokens with random numbers, how far are the three from each other?

# %%
torch.manual_seed(1)
text = torch.randn(T, 2)  # (T, D)
loop, product, softmax = average_loop(text), average_matrix(text), average_softmax(text)  # (T, D) each
furthest = max(float((loop - product).abs().max()), float((loop - softmax).abs().max()))
say(f"The largest difference between any two numbers is {furthest:.1g}: that is rounding, and nothing else.")

# %% [markdown]
# ## Why the third way is the one that matters
#
# The loop and the matrix are finished. They can only ever be a mean. The softmax has something to turn: the scores. In
# the last row, let us raise the score of the third token from 0 to 2, and leave the other seven at zero.
#
# **Guess 4.** What happens to the weights of the other seven?

# %%
guess = None  # one of: larger, smaller, unchanged

# %%
raised = torch.zeros(T)  # (T,): the scores of the last row
raised[2] = 2.0
raised_weights = raised.softmax(dim=-1)  # (T,)
before = float(weights[7, 0])
reveal(
    guess,
    "smaller" if float(raised_weights[0]) < before else "unchanged" if float(raised_weights[0]) == before else "larger",
    f"They fall from {before:.3f} to {float(raised_weights[0]):.3f} each, and the third token now has "
    f"{float(raised_weights[2]):.3f}. "
    "Nobody touched their scores. But the row must sum to one, so what one token wins the others lose.",
    turn(
        "the last row, with one score raised",
        positions,
        query=torch.zeros(T, 1),
        key=torch.zeros(T, 1),
        row=7,
        raises=2,
        raised=2.0,
        temperature=1.0,
    ),
    among=["larger", "smaller", "unchanged"],
    mistakes={
        "unchanged": (
            "unchanged",
            "Their scores are unchanged, and so are their exponentials. But each is divided by the sum, which grew.",
        ),
        "larger": ("larger", "All eight weights sum to one. Where one rises, the others cannot rise too."),
    },
)

# %% [markdown]
# That is attention: **a weighted mean of the past, with weights from a softmax of scores**. All later lessons are about
# one question: where do the scores come from?
#
# ## What a mean cannot know
#
# Let us change the places of the first two tokens of our random text, and look at the last row.
#
# **Guess 5.** Does the last row of the running mean change?

# %%
guess = None  # yes or no

# %%
swapped = text[[1, 0, *range(2, T)]]  # (T, D)
change = float((average_softmax(swapped)[-1] - average_softmax(text)[-1]).abs().max())
reveal(
    guess,
    "yes" if change > 1e-6 else "no",
    f'A sum does not depend on the order of its parts. (The largest change is {change:.1g}.) To a mean, "Mia met Tom" '
    'and "Tom met Mia" are the same text. Lesson 7 will give the tokens their places.',
    among=["yes", "no"],
    mistakes={
        "order is known": (
            "yes",
            "You see an order, because you read from left to right. Every token of the past has the same weight in the "
            "mean, wherever it stands.",
        )
    },
)

# %% [markdown]
# ## Your turn

# %%
exercise("running_mean_softmax")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/ladder.py`: the three functions, each complete in itself.
# - "Accelerating Neural Transformer via an Average Attention Network" (arXiv 1805.00631): a translator that uses the
#   running mean where others use attention.
# - "Neural Machine Translation by Jointly Learning to Align and Translate" (arXiv 1409.0473): where the weighted mean
#   with a softmax comes from.
