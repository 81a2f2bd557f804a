"""Lesson 11: Reading somebody else's attention.

Most attention that you will meet was written by somebody else, under other names and in another layout. You will read
one line by line, with the checker's listing beside it, and find a mistake that no shape and no crash gives away.
"""

# %% [markdown]
# **The question.** You have found a model in a public repository, and it trains. Is its attention right? Its author
# believes so. You want to know.
#
# ## One class, as they are written
#
# Here is an attention in the style of many small GPTs. One layer makes queries, keys and values at once, the heads are
# an axis of a tensor that is reshaped, and `.transpose(1, 2)` comes and goes.

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.checks.learners.check import check
from minigpt.learning.tools import bars, exercise, message, reveal, say, show


class CausalSelfAttention(nn.Module):
    """Six heads over vectors of 48 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(48, 3 * 48)
        self.c_proj = nn.Linear(48, 48)
        self.n_head = 6

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(48, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


# %% [markdown]
# Where to begin? Not at the first line. Begin at the **softmax**: every attention of this family has one. What goes
# into it are scores, what comes out are weights. From there go backwards to what is multiplied (queries and keys), and
# forwards to what the weights are multiplied with (values).
#
# In `F.softmax(att, dim=-1)` the tensor has four axes.
#
# **Guess 1.** The weights sum to one over the last axis. What does this axis count?

# %%
guess = None  # one of: queries, keys, heads, features

# %%
report = check(CausalSelfAttention, "multi_head", lines=True)
listing = str(report)
reveal(
    guess,
    "keys",
    "A query divides its attention among the *keys*: a row of weights belongs to one query, and runs over all keys. "
    "The axis before it counts the queries. With both of the same length, a softmax over the wrong one does not crash.",
    among=["queries", "keys", "heads", "features"],
    mistakes={
        "over the queries": (
            "queries",
            "Then each *key* would divide itself among the queries, and a token's weights would sum to anything.",
        ),
        "over the heads": ("heads", "Then the heads would compete for each pair of tokens. They are independent."),
        "over the features": ("features", "The features are gone: the dot product has summed over them."),
    },
)

# %% [markdown]
# ## The scale
#
# The line with `math.sqrt` divides by the root of `k.size(-1)`, the last axis of `k`. At that line `k` has been
# reshaped and transposed.
#
# **Guess 2.** The vectors have 48 numbers, there are 6 heads. By which number are the scores divided?

# %%
guess = None  # a number

# %%
reveal(
    guess,
    math.sqrt(48 / 6),
    f"A head has 48 / 6 = {48 // 6} features, and the scores are divided by the root of that, {math.sqrt(8):.3f}. "
    f"Whoever writes `C` in place of `k.size(-1)` divides by {math.sqrt(48):.3f}, the root of the whole width: the "
    f"model "
    "trains, and is less sure than it should be from the first step on.",
    bars({"a head": math.sqrt(8), "the whole width": math.sqrt(48)}, "the root of the width", 3),
    span=(0.5, 50),
    mistakes={
        "the whole width": (
            (6.5, 7.5),
            "That is the root of 48, the width of the model. A score sums over one *head*.",
        ),
        "without the root": ((7.6, 8.4), "That is the width of a head. What the scores are divided by is its root."),
        "the number of heads": (
            (5.8, 6.2),
            "That is the number of heads. Lesson 5 says why it is the width that counts.",
        ),
    },
)

# %% [markdown]
# ## The listing
#
# You can read the rest in the same way. Or let the checker read it with you. It runs the class once on a small text,
# and keeps beside every number what the number *is*:

# %%
print(listing)

# %% [markdown]
# In a terminal it is `python scripts/check.py model.py::CausalSelfAttention --lines`. Each line stands beside what it
# makes: B texts, H heads, T queries, S keys, d features. Where a name is used twice, as `att` here, you see that it is
# something else each time: scores, masked scores, weights.
#
# ## A mistake that fits
#
# Now somebody tidies the class up. At its end the heads were brought back to their place before they were joined:
# `y.transpose(1, 2).contiguous().view(B, T, C)`. Without the transpose the line is shorter, and `view` does not
# complain any more.


# %%
class Tidy(CausalSelfAttention):
    """The same, tidied up."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(48, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        y = y.reshape(B, T, C)
        return self.c_proj(y)


# %% [markdown]
# **Guess 3.** It returns the right shape, and it does not crash. Is it right?

# %%
guess = None  # right or wrong

# %%
tidy = check(Tidy, "multi_head")
torch.manual_seed(11)
layer, x = Tidy(), torch.randn(1, 6, 48)  # (B, T, D)
later = x.clone()
later[:, -1] += 1  # another last token
with torch.no_grad():
    moved = (layer(later) - layer(x)).abs().amax(dim=-1)[0]  # (T,)
reveal(
    guess,
    "right" if tidy.exit_code == 0 else "wrong",
    f"The checker says: {message(tidy.names[0]) if tidy.names else 'nothing'}. `reshape` reads the numbers in their "
    "order, head by head and then token by token, and calls each 48 of them a token. So a row of the output is a "
    "mixture of several tokens of one head. Look what happens to all rows when the *last* token changes:",
    bars({f"token {t + 1}": float(m) for t, m in enumerate(moved)}, "how far each token moves when token 6 changes", 3),
    among=["right", "wrong"],
    mistakes={
        "shapes are enough": (
            "right",
            "You trusted the shape. It says how many numbers there are, and not which number stands where.",
        )
    },
)

# %% [markdown]
# The mask was right, and still earlier tokens see the last one. A model with this mistake peeks, as in lesson 4, and
# its loss looks good.
#
# **Guess 4.** In which line does the checker say that the law breaks?

# %%
guess = None  # one of: the scores, the mask, the softmax, the reshape

# %%
words = {"math.sqrt": "the scores", "masked_fill": "the mask", "softmax": "the softmax", "reshape": "the reshape"}
reveal(
    guess,
    next((name for word, name in words.items() if word in tidy.code), "the reshape"),
    f"It is line {tidy.line}: `{tidy.code}`. What to do: "
    f"{message(tidy.fixes[0]) if tidy.fixes else 'transpose first'}.",
    among=list(words.values()),
    mistakes={
        "where it shows": ("the mask", "The future shows up, so one looks at the mask. But the mask is right."),
        "the usual suspect": ("the scores", "The scale is right here: it is the root of the width of a head."),
        "the axis": ("the softmax", "Its axis is right: the last one, over the keys."),
    },
)

# %% [markdown]
# Three habits for reading somebody else's attention:
#
# 1. Begin at the softmax, and go backwards and forwards.
# 2. At each reshape, say aloud what each axis counts, before and after. A `view` or a `reshape` that joins two axes
#   needs them side by side, in the right order.
# 3. Change the last token, and see whether an earlier one moves. It takes three lines, and finds what reading misses.

# %%
say(f"Of the {len(moved)} tokens, {int((moved[:-1] > 1e-6).sum())} before the last one have moved.")
show(bars({"right": 0.0, "tidied up": float(moved[:-1].max())}, "how far an earlier token moves", 3))

# %% [markdown]
# ## Your turn
#
# Write one head in your own layout and under your own names. The checker reads it all the same.

# %%
exercise("single_head")

# %% [markdown]
# ## What to read next
#
# - `minigpt/checks/learners/README.md`: what the checker reads, and what it cannot tell.
# - "Attention Is All You Need" (arXiv 1706.03762), section 3.2: hold the code against it, symbol by symbol.
# - "Formal Algorithms for Transformers" (arXiv 2207.09238): the same as pseudocode, with every index written out.
