"""Lesson 2: Dot products, and why x . x drowns the rest.

A score should say how well two tokens match. The simplest match of two vectors is their dot product. You will see what
it finds in a small text, and what goes wrong with it in a wide one.
"""

# %% [markdown]
# **The question.** `d7a3f5|a`: what is a's number? The mean of lesson 1 has taken all three numbers alike, and cannot
# say which of them is a's. Somebody has to be found who looks like "a".
#
# ## How well do two vectors match?
#
# In lesson 1 all scores were zero, so every token of the past counted the same. Now the tokens decide. The **dot
# product** of two vectors multiplies the first number of one with the first number of the other, the second with the
# second, and so on, and adds the products up. It is large where both vectors are large in the same places.
#
# Here are six tokens with three numbers each.

# %% live
import math

import torch

from minigpt.attention import DotProduct, Shape
from minigpt.learning.tools import bars, curves, exercise, matrix, reveal, say, show, turn

tokens = ["Your", "journey", "starts", "with", "one", "step"]
x = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)  # (T, D) = (6, 3)
show(matrix(x, tokens, ["first", "second", "third"], "the vectors of six tokens"))

# %% [markdown]
# **Guess 1.** Look at the rows. Which of the *other* tokens has the largest dot product with "journey"?

# %%
guess = None  # a token of the text

# %% live
products = x[1] * x[2]  # (D,): journey and starts, number by number
scores = x @ x.mT  # (T, T): every token with every token
best = max((token for token in tokens if token != "journey"), key=lambda token: float(scores[1, tokens.index(token)]))
written = " + ".join(f"{a:.2f} x {b:.2f}" for a, b in zip(x[1].tolist(), x[2].tolist()))
reveal(
    guess,
    best,
    f'The row of "starts" is nearly that of "journey". By hand: {written} = {float(products.sum()):.4f}.',
    bars(dict(zip(tokens, scores[1])), 'the scores of "journey"', decimals=4),
    among=[token for token in tokens if token != "journey"],
    mistakes={
        "the neighbour": (
            "Your",
            "It is the neighbour in the text. A dot product does not know who stands beside whom.",
        ),
        "one large number": (
            "one",
            "Its first number is the largest of all. But a product is large only where *both* numbers are.",
        ),
        "two of three": ("step", "Two of its numbers match. The first is so small that a third of the sum is missing."),
    },
)

# %% [markdown]
# ## All scores at once
#
# The dot products of every token with every token are one product of matrices: `x @ x.mT`, where `.mT` swaps rows and
# columns. Row t, column s is the score of token t with token s.
#
# On the diagonal each token is compared with itself. This product is written x . x, and it is the sum of the squares of
# the token's numbers.
#
# **Guess 2.** One would think that nothing matches a token better than the token itself. In how many of the six rows is
# the score on the diagonal the largest of its row?

# %%
guess = None  # a whole number

# %% live
own_wins = [token for t, token in enumerate(tokens) if int(scores[t].argmax()) == t]
others = sorted({tokens[int(row.argmax())] for row, token in zip(scores, tokens) if token not in own_wins})
lengths = x.norm(dim=-1)  # (T,)
reveal(
    guess,
    len(own_wins),
    f"Only in those of {' and '.join(own_wins)}. In the other rows {' or '.join(others)} wins, also in the row of "
    '"one", which resembles neither. The reason: a dot product grows with the **length** of a vector, and these two '
    "have the longest ones here. They match everybody because they are large.",
    matrix(scores, tokens, tokens, "the scores: x @ x.mT"),
    mistakes={
        "all": (
            (6, 6),
            "You thought that nothing matches a token better than itself. That would be so if all vectors were equally "
            "long.",
        ),
        "none": ((0, 0), "In the rows of the longest vectors the diagonal does win."),
    },
)

# %% [markdown]
# The length of a vector is the square root of the sum of its squares. A dot product is one length times the other
# length times a number between -1 and 1 that says how far the two point in the same direction (the cosine of the angle
# between them). So there are two ways to a large score: to point in the same direction, or to be long.

# %% live
show(bars(dict(zip(tokens, lengths)), "the lengths of the six vectors"))

# %% [markdown]
# ## From scores to weights
#
# The softmax of lesson 1 makes weights of these scores. First without a mask, to see the whole table:

# %% live
weights = scores.softmax(dim=-1)  # (T, T)
show(matrix(weights, tokens, tokens, "the weights: the softmax of each row"))
say(
    f"The smallest weight is {float(weights.min()):.3f} and the largest {float(weights.max()):.3f}. The mean would "
    f"give everybody {1 / len(tokens):.3f}. With three numbers a token the softmax is still close to a mean."
)

# %% [markdown]
# ## Wide vectors
#
# The tokens of a real model have not 3 numbers but 128, or some thousands. Let us draw random vectors: every number is
# drawn by itself, is 0 on average, and its square is 1 on average.
#
# **Guess 3.** Take such vectors with 64 numbers. What is x . x, the score of a token with itself, on average?

# %%
guess = None  # a number

# %%
torch.manual_seed(2)
many = torch.randn(2000, 8, 64)  # (texts, T, D): 2,000 texts of 8 tokens
products = many @ many.mT  # (texts, T, T)
own = torch.eye(8, dtype=torch.bool)  # (T, T): true on the diagonal
own_score, other = float(products[:, own].mean()), products[:, ~own]
reveal(
    guess,
    own_score,
    f"It is a sum of 64 squares, each 1 on average: {own_score:.2f}. The score of two *different* tokens is a sum of "
    f"64 products, some positive and some negative, which mostly cancel: it is {abs(float(other.mean())):.2f} on "
    f"average, and mostly between {-2 * float(other.std()):.0f} and {2 * float(other.std()):.0f}. So a token's own "
    "score stands far above all others:",
    bars({f"token {s + 1}": value for s, value in enumerate(products[0, 0].tolist())}, "the scores of token 1", 1),
    within=4,
    span=(0.1, 1000),
    mistakes={
        "the mean of products": ((-1, 0.5), "Products of *different* numbers cancel. A square is never below zero."),
        "one square": ((0.5, 2), "That is one square on average. There are 64 of them, and they are added up."),
        "the length": ((7, 9), "That is the *length* of the vector, the square root of x . x."),
    },
)

# %% [markdown]
# **Guess 4.** Now the softmax. In these texts of 8 tokens, what weight does a token give to itself, on average? (If all
# were alike, it would be 1/8.)

# %%
guess = None  # a number between 0 and 1

# %%
widths = [1, 2, 4, 8, 16, 32, 64]
own_weight = dict[int, float]()
for width in widths:
    narrow = many[..., :width]  # (texts, T, width)
    own_weight[width] = float((narrow @ narrow.mT).softmax(dim=-1)[:, own].mean())
reveal(
    guess,
    own_weight[64],
    f"To five digits it is {own_weight[64]:.5f}: everything. A lead of {own_score:.0f} in the score is a factor of "
    f"exp({own_score:.0f}) in the weight, a number with {own_score / math.log(10):.0f} digits. Each token looks at "
    "itself, and takes nothing from its past. That is what is meant by: **x . x drowns the rest**. It begins early: "
    f"with 8 numbers a token the weight is {own_weight[8]:.2f}.",
    curves(
        {"weight of a token for itself": [(w, own_weight[w]) for w in widths]},
        "The wider, the more each looks at itself",
        "numbers in a vector",
        ("all alike", 1 / 8),
        log2=True,
    ),
    within=0.02,
    span=(0, 1),
    mistakes={
        "as in a mean": (
            (0.05, 0.25),
            "That is near the mean, as with three numbers a token. The own score leads by 64, and the softmax takes "
            "exponentials.",
        ),
        "in proportion": (
            (0.25, 0.97),
            "You shared in proportion to the scores. The softmax shares in proportion to their exponentials.",
        ),
    },
)

# %%
show(turn("the weights of one text", [str(t + 1) for t in range(8)], query=many[0], key=many[0], width=64))

# %% [markdown]
# ## Two things that a dot product of x with x cannot do
#
# First, it cannot look away from itself. One can forbid it: hide the diagonal as the future is hidden. The kind
# `dot_product` does so with the option `include_self: false`; the first token, which has nothing else, keeps itself.
# Even then one of the others mostly takes everything, since their scores are far apart. Lesson 5 says what to divide
# them by; here the option is `scaled: true`.

# %%
kind = DotProduct(DotProduct.Config(include_self=False), Shape(n_embd=64))
text = many[:1].unsqueeze(1)  # (B, H, T, D) = (1, 1, 8, 64)
positions = [str(t + 1) for t in range(8)]
show(matrix(kind.weights(text, text)[0, 0], positions, positions, "the weights without the diagonal, causal"))

# %% [markdown]
# Second, think of the sentence "Mia was a shy fox. She met Tom." The word "She" should find "Mia". Say that their
# vectors are made so that the score of "She" with "Mia" is large.
#
# **Guess 5.** What is the score of "Mia" with "She"?

# %%
guess = None  # one of: larger, smaller, the same

# %%
difference = float((products - products.mT).abs().max())
reveal(
    guess,
    "the same" if difference < 1e-3 else "larger",
    "x . y and y . x are the same sum. (The mask hides one of the two, but that is not a choice of the tokens.) A "
    "pronoun looks for a name. A name does not look for a pronoun. A score made of one vector for each token cannot "
    "say this: what a token *looks for* and what it *offers* are the same to it.",
    among=["larger", "smaller", "the same"],
    mistakes={
        "larger": ("larger", "You read the sentence. The sum does not: it has the same parts in both directions."),
        "smaller": (
            "smaller",
            'You thought that "Mia" does not look for "She". That is true, and a dot product cannot say it.',
        ),
    },
)

# %% [markdown]
# Lesson 3 takes the two apart: each token gets one vector that looks for something, and another that offers something.
#
# ## Your turn

# %%
exercise("dot_product")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/softmax/dot_product.py`: what you have just seen, as a kind of attention that can be trained.
# - "Effective Approaches to Attention-based Neural Machine Translation" (arXiv 1508.04025): the dot product as a score,
#   beside two others.
# - "Reformer: The Efficient Transformer" (arXiv 2001.04451): queries and keys are the same there, so each token would
#   look at itself; they forbid it, as above.
