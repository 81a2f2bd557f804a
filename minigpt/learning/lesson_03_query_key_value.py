"""Lesson 3: Queries, keys and values by hand.

A token gets three vectors: one that looks for something, one that offers something, and one that is handed over. You
will follow three tokens through every step, with numbers small enough to check on paper.
"""

# %% [markdown]
# **Two questions.** `a3b5c2|a`: what is the number of the *next* letter in the ring a, b, c, and a again? The dot
# product of lesson 2 cannot say: it is the same from both sides, so b would have to match c better than a, c match a
# better than b, and a match b better than c. What a token looks for must be something else than what it is.
#
# `kpkkp|k`: the text has two letters; which is the other one? Whoever finds p and adds it to itself has k + p, and
# whoever is p and finds k has the same sum. What a token hands over must be something else than what it is, too.
#
# ## One vector, three jobs
#
# In lesson 2 the vector of a token had three jobs at once: it looked for others, it was found by others, and it was
# what the others got. Now each job has a vector of its own:
#
# - the **query**: what the token looks for;
# - the **key**: what it offers, so that others can find it;
# - the **value**: what it hands over to those who have found it.
#
# All three are made from the token's vector x, each by a matrix of its own: `x @ w_query`, `x @ w_key`, `x @ w_value`.
# A model learns these three matrices. Here they are given.

# %% live
import torch

from minigpt.attention.ladder import attend
from minigpt.learning.tools import bars, exercise, matrix, reveal, say, show, turn

tokens, two = ["sky", "is", "blue"], ["first", "second"]
x = torch.tensor([[-1.0720, -0.5001], [-0.0120, -0.4311], [-0.0050, -0.5321]])  # (T, D): T = 3, D = 2
w_query = torch.tensor([[-0.0271, -0.3840], [-0.3940, -0.6610]])  # (D, d): d = 2
w_key = torch.tensor([[-0.4109, 0.5777], [-0.1162, -0.1661]])  # (D, d)
w_value = torch.tensor([[-0.2045, 0.1210], [-0.1712, -0.4462]])  # (D, e): e = 2
show(matrix(x, tokens, two, "x: the vectors of the three tokens", 4))
show(matrix(w_query, ["from the first", "from the second"], two, "w_query: from x to the queries", 4))

# %% [markdown]
# ## The query of "sky"
#
# The first number of a query is the dot product of the row of x with the first column of `w_query`.
#
# **Guess 1.** Look at the two tables above. Is the first number of the query of "sky" positive or negative?

# %%
guess = None  # one of: positive, negative

# %% live
query, key, value = x @ w_query, x @ w_key, x @ w_value  # (T, d), (T, d), (T, e)
parts = [f"({a:.4f}) x ({b:.4f})" for a, b in zip(x[0].tolist(), w_query[:, 0].tolist())]
reveal(
    guess,
    "positive" if float(query[0, 0]) > 0 else "negative",
    f"It is {' + '.join(parts)} = {float(query[0, 0]):.4f}. Twice, minus times minus is plus.",
    matrix(query, tokens, two, "the queries: x @ w_query", 4),
    among=["positive", "negative"],
    mistakes={
        "one sign": ("negative", "Both factors are negative in both products, and minus times minus is plus."),
    },
)

# %% [markdown]
# The keys and the values are made in the same way, with their own matrices. From here on x itself is not needed.

# %% live
show(matrix(key, tokens, two, "the keys: x @ w_key", 4))
show(matrix(value, tokens, two, "the values: x @ w_value", 4))

# %% [markdown]
# ## The scores
#
# The score of token t with token s is the dot product of the *query* of t with the *key* of s. In lesson 2 the score of
# a token with itself was a sum of squares, so it was never below zero.
#
# **Guess 2.** Can the score of "sky" with itself be below zero now?

# %%
guess = None  # yes or no

# %% live
scores = query @ key.mT  # (T, T)
parts = [f"({a:.4f}) x ({b:.4f})" for a, b in zip(query[0].tolist(), key[0].tolist())]
reveal(
    guess,
    "yes" if float(scores[0, 0]) < 0 else "no",
    f"It even is: {' + '.join(parts)} = {float(scores[0, 0]):.4f}. A token need not offer what it looks for. And the "
    f'table is no longer its own mirror image: "sky" with "blue" is {float(scores[0, 2]):.4f}, "blue" with "sky" is '
    f"{float(scores[2, 0]):.4f}. Both limits of lesson 2 are gone.",
    matrix(scores, tokens, tokens, "the scores: query @ key.mT", 4),
    among=["yes", "no"],
    mistakes={
        "a square": (
            "no",
            "It was a sum of squares in lesson 2. Now two *different* vectors are multiplied: the query and the key.",
        ),
    },
)

# %% [markdown]
# The scores are then divided by the square root of d, the number of features of a query. Why by this number is the
# subject of lesson 5. Here d is 2.
#
# ## The weights
#
# The softmax of each row makes weights of the scores. There is no mask in this example: each token may look at all
# three.
#
# **Guess 3.** Whom does "sky" look at most?

# %%
guess = None  # a token of the text

# %% live
d = query.shape[-1]
scaled = scores / d**0.5  # (T, T)
weights = scaled.softmax(dim=-1)  # (T, T)
exponentials = scaled[0].exp()  # (T,)
steps = torch.stack([scores[0], scaled[0], exponentials, weights[0]])  # (4, T)
reveal(
    guess,
    tokens[int(weights[0].argmax())],
    f"The largest score has the largest weight. The sum of the exponentials is {float(exponentials.sum()):.4f}, and "
    f"{float(exponentials[2]):.4f} / {float(exponentials.sum()):.4f} = {float(weights[0, 2]):.4f}. All three weights "
    "are near one third, because the scores are near each other.",
    matrix(steps, ["score", "scaled score", "exp", "weight"], tokens, 'the row of "sky", step by step', 4, shade=False),
    among=tokens,
    mistakes={
        "itself": (
            "sky",
            "As in lesson 2, where each token was like itself. Here the query of a token need not be like its own key.",
        ),
        "the neighbour": ("is", "Nearness counts for nothing here. Only the query and the keys do."),
    },
)

# %% live
show(matrix(weights, tokens, tokens, "the weights of all three", 4))

# %% [markdown]
# ## The output
#
# The new vector of a token is the mean of the *values*, with these weights: `weights @ value`.
#
# **Guess 4.** Can a number in the output be larger than the largest number in the same column of the values?

# %%
guess = None  # yes or no

# %% live
output = weights @ value  # (T, e)
parts = [f"{w:.4f} x {v:.4f}" for w, v in zip(weights[0].tolist(), value[:, 0].tolist())]
reveal(
    guess,
    "yes" if bool((output > value.max(dim=0).values).any()) else "no",
    f'A mean lies between the smallest and the largest. The first number of "sky" is {" + ".join(parts)} = '
    f"{float(output[0, 0]):.4f}. Attention by itself invents nothing: it moves what is there.",
    matrix(output, tokens, two, "the output: weights @ value", 4),
    among=["yes", "no"],
    mistakes={
        "a sum": (
            "yes",
            "A *sum* could be larger than its parts. The weights sum to one, so this is a mean of them.",
        ),
    },
)

# %% [markdown]
# Turn the scores of this text. With the factor 0 all weights are equal; the larger, the more the best score takes.

# %% live
show(turn("the weights", tokens, query=query, key=key, value=value, factor=1 / d**0.5, mask="everything"))

# %% [markdown]
# This is all. Attention has these intermediate results, and no others:

# %%
tensors = {"query": query, "key": key, "value": value, "scores": scores, "scaled": scaled, "weights": weights}
tensors["output"] = output
say("\n".join(f"- `{name}`: {tuple(numbers.shape)}" for name, numbers in tensors.items()))
shipped = attend(query, key, value, causal=False)  # (T, e)
say(
    "Is it what minigpt computes? The largest difference between our output and that of `attend` in "
    f"`minigpt/attention/ladder.py` is {float((output - shipped).abs().max()):.1g}."
)

# %% [markdown]
# ## A wider text
#
# The widths need not be equal. Take the six tokens of lesson 2, with D = 3 numbers each, and matrices that make two
# numbers of three: d = e = 2. (The matrices are random here. A model begins so, too, and then learns.)
#
# **Guess 5.** How many numbers are there in the output, all together?

# %%
guess = None  # a whole number

# %%
words = ["Your", "journey", "starts", "with", "one", "step"]
rows = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64], [0.22, 0.58, 0.33], [0.77, 0.25, 0.10]]
wide = torch.tensor([*rows, [0.05, 0.80, 0.55]])  # (T, D) = (6, 3)
torch.manual_seed(123)
matrices = [torch.rand(3, 2) for _ in range(3)]  # each (D, d)
wide_query, wide_key, wide_value = (wide @ each for each in matrices)  # (T, d) each
gathered = attend(wide_query, wide_key, wide_value, causal=False)  # (T, e)
reveal(
    guess,
    gathered.numel(),
    f"A row for each of the {len(words)} tokens, and as many columns as a *value* has numbers: "
    f"{tuple(gathered.shape)}. The width of the queries and keys decides nothing here: the dot product sums over it.",
    matrix(gathered, words, two, "the output for six tokens", 4),
    mistakes={
        "the width of x": ((18, 18), "6 x 3 is the size of x. The output has the width of the *values*, which is 2."),
        "the weights": (
            (36, 36),
            "6 x 6 is the size of the weights. They are multiplied with the values: (6, 6) @ (6, 2).",
        ),
        "one token": ((2, 2), "That is one token. Every token gets an output."),
    },
)

# %%
starts = (wide_query[2] @ wide_key.mT / 2**0.5).softmax(dim=-1)  # (T,)
show(bars(dict(zip(words, starts.tolist())), 'whom "starts" looks at', 4))

# %% [markdown]
# ## Your turn
#
# You write `attention_weights(query, key)`: scores, scale, mask, softmax. The mask is that of lesson 1: a token sees
# itself and what is before it.

# %%
exercise("attention_weights")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/ladder.py`, the last two functions: `attention_weights` and `attend`.
# - "Attention Is All You Need" (arXiv 1706.03762), section 3.2: queries, keys and values as you have just computed
#   them.
# - "Key-Value Memory Networks for Directly Reading Documents" (arXiv 1606.03126): keys to find by, values to read.
