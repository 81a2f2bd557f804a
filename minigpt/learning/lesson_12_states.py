"""Lesson 12: A state in place of a cache.

A cache grows with the text. A state does not: all of the past is written into one small table. You will write two
values under one key, see what a sum makes of them, and repair it with the delta rule.
"""

# %% [markdown]
# **The question.** `a3b5a7|a`: what is a's number now? A cache keeps all three pairs and looks for the last a. What if
# there is only room for one small table, however long the text is?
#
# ## The softmax is in the way

# %%
import torch
from torch import Tensor

from minigpt.attention import distance
from minigpt.learning.tools import bars, curves, exercise, matrix, reveal, say, show

torch.manual_seed(12)
keys, values = torch.randn(1000, 4), torch.randn(1000, 4)  # (T, d), (T, e)

# %% [markdown]
# In lesson 8 the cache held the key and the value of every token, because the softmax needs all scores of a row at
# once. Leave the softmax out, and the order of the sums can be changed. With the query q and, for each token s of the
# past, the key k_s and the value v_s:
#
#     sum over s of (q . k_s) v_s  =  q . (sum over s of k_s v_s')  =  q S
#
# The sum in the brackets is a table **S** with d rows and e columns: the **state**. A new token adds its own k v' to
# it, and is then forgotten. This is linear attention.
#
# **Guess 1.** A head has keys of 4 numbers and values of 4 numbers. How many numbers does its state have after 1,000
# tokens?

# %%
guess = None  # a whole number

# %%
state = torch.zeros(4, 4)  # (d, e)
for k, v in zip(keys, values):
    state = state + torch.outer(k, v)  # (d, e)
reveal(
    guess,
    state.numel(),
    f"It is 4 x 4, after one token and after a thousand. A cache would hold {keys.numel() + values.numel():,} "
    f"numbers. The "
    "price: what was written cannot be told apart any more, unless the keys are different enough.",
    curves(
        {"a cache": [(t, 8.0 * t) for t in (0, 100)], "a state": [(0, 16.0), (100, 16.0)]},
        "numbers kept by one head",
        "tokens",
    ),
    mistakes={
        "a cache": ((8000, 8000), "That is a cache: a key and a value for each token. They have been added up."),
        "keys alone": ((4000, 4000), "That is all keys, or all values. They have been added up into one table."),
        "one token": ((8, 8), "That is one key and one value. Their outer product has a number for each pair."),
    },
)

# %% [markdown]
# ## Two values under one key
#
# Let the keys be arrows of length one, and the values single numbers, so that a state is one short column. The text
# says that a is 3, and later that a is 5. Both are written under the key of a.


# %% live
def read(state: Tensor, key: Tensor) -> Tensor:
    """What the state holds for a key of length one."""
    return key @ state


two_keys = torch.tensor([[1.0, 0.0], [0.6, 0.8]])  # (2, d), each of length one
a, b = two_keys  # (d,) each
values = torch.tensor([[3.0, 5.0]])  # (1, 2): e is 1
show(matrix(values, ["a"], ["first", "second"], "what the text says of a", 1))
old, new = values[0]
added = old * a + new * a  # (d,)

# %% [markdown]
# **Guess 2.** What does linear attention read for a?

# %%
guess = None  # a number

# %% live
reveal(
    guess,
    float(read(added, a)),
    "A sum knows no old and new: 3 + 5. Divided by the sum of the weights, as the kind `linear` does it, it is the "
    "mean, 4. "
    "Neither is what the text says *now*.",
    bars(
        {"after the first write": read(old * a, a), "after the second write": read(added, a)}, "what is read for a", 1
    ),
    span=(0, 10),
    within=0.1,
    mistakes={
        "the new one": ((4.9, 5.1), "That is what one wants. But nobody has told the state to forget the 3."),
        "the mean": (
            (3.9, 4.1),
            "That would be so if the read were divided by the sum of the weights. Here it is not.",
        ),
        "the old one": ((2.9, 3.1), "The second write counts as much as the first."),
    },
)

# %% [markdown]
# ## The delta rule
#
# Before it writes, a token can ask what the state holds for its key, and write only the *difference*, times a share
# beta between 0 and 1:
#
#     S_t = S_(t-1) + beta k_t (v_t - k_t S_(t-1))'


# %% live
def delta(state: Tensor, key: Tensor, value: Tensor, beta: float = 1.0) -> Tensor:
    """The state after one write by the delta rule: (d,)."""
    return state + beta * key * (value - key @ state)


written = delta(delta(torch.zeros(2), a, old), a, new)  # (d,)

# %% [markdown]
# **Guess 3.** With beta = 1, first a is 3, then a is 5. What is read for a?

# %%
guess = None  # a number

# %% live
shares = 0, 0.25, 0.5, 0.75, 1
after = {f"beta = {share}": read(delta(delta(torch.zeros(2), a, old), a, new, share), a) for share in shares}
reveal(
    guess,
    float(read(written, a)),
    "The state holds 3 for a, the new value is 5, so 2 is added. With a smaller beta only a part of the old value is "
    "replaced: the picture shows what is read after the second write.",
    bars(after, "what is read for a"),
    span=(0, 10),
    within=0.1,
    mistakes={
        "added": ((7.9, 8.1), "That is the sum, as before. The delta rule first takes away what is there."),
        "the difference": ((1.9, 2.1), "That is what is *written*. It is added to the 3 that is there."),
        "the mean": ((3.9, 4.1), "That would be beta = 1/2: half of the old value replaced."),
    },
)

# %% [markdown]
# ## Keys that are alike
#
# In a table of d rows, at most d keys can be at right angles to each other. All others overlap. Here is a second key,
# b, with b . a = 0.6.

# %% live
show(matrix(two_keys, ["a", "b"], ["first", "second"], "the two keys", 1))
show(matrix(two_keys @ two_keys.T, ["a", "b"], ["a", "b"], "the dot products of the two keys", 1))

# %% [markdown]
# **Guess 4.** By the delta rule: a is 5, then b is 8 (beta = 1). What is read for a afterwards?

# %%
guess = None  # a number

# %% live
one = delta(torch.zeros(2), a, torch.tensor(5.0))  # (d,)
both = delta(one, b, torch.tensor(8.0))  # (d,)
reveal(
    guess,
    float(read(both, a)),
    f"For b the state held {read(5 * a, b):.0f}, so {8 - read(5 * a, b):.0f} was written under b, and "
    f"{float(a @ b):.1f} of that is seen from a: 5 + {float(a @ b):.1f} x {8 - read(5 * a, b):.0f} = "
    f"{read(both, a):.0f}. For b it reads {read(both, b):.0f}, as it was told. The last write is exact; older ones are "
    "disturbed by keys that are alike. A model has to learn keys that are not.",
    matrix(torch.stack([one, both]) @ two_keys.T, ["after a", "after b"], ["a", "b"], "what is read", 1),
    span=(0, 15),
    within=0.2,
    mistakes={
        "undisturbed": ((4.8, 5.2), "That would be so if b were at right angles to a. Here b . a is above one half."),
        "all of it": ((12.8, 13.2), "That is the sum of both. Only a part of what is written under b is seen from a."),
        "its whole value": ((9.6, 10.0), "You wrote the whole 8 under b. The delta rule writes what is missing."),
    },
)

# %% [markdown]
# ## Forgetting
#
# Whoever cannot replace can fade. Retention and Mamba-2 multiply the whole state by a number below 1 at each token, so
# that old writes become weak. (Gated DeltaNet does both.)
#
# **Guess 5.** The state keeps nine tenths at each token. What is left of a write after 7 more tokens?

# %%
guess = None  # a number between 0 and 1

# %%
share, left = 1.0, [(0.0, 1.0)]
for t in range(1, 31):
    share *= 9 / 10
    left.append((float(t), share))
reveal(
    guess,
    dict(left)[7.0],
    f"It is nine tenths to the power of 7, {dict(left)[7.0]:.3f}: about half. After 30 tokens {share:.3f} is left. "
    f"What is "
    "forgotten depends on the distance alone here. A learned gate chooses it for each token.",
    curves({"what is left of a write": left}, "the state keeps nine tenths at each token", "tokens later"),
    span=(0, 1),
    within=0.04,
    mistakes={
        "a tenth each time": (
            (0.28, 0.32),
            "You took a tenth of the *first* amount each time. It is a tenth of what is left.",
        ),
        "one step": ((0.88, 0.92), "That is after one token."),
        "nothing": ((None, 0.1), "It fades more slowly than that: each token takes a tenth of what is left."),
    },
)

# %% [markdown]
# ## The same from both sides
#
# A state is how one *writes*. In training, all tokens are there at once, and the same numbers come out of a table of
# weights, as in all lessons before. Let us check it for linear attention, on eight tokens.

# %%
query, key, value = torch.randn(3, 8, 4).unbind()  # (T, d) each
state, rows = torch.zeros(4, 4), []
for q, k, v in zip(query, key, value):
    state = state + torch.outer(k, v)  # (d, e)
    rows.append(q @ state)  # (e,)
at_once = (query @ key.T).tril() @ value  # (T, e)
say(f"The largest difference between the two is {float((torch.stack(rows) - at_once).abs().max()):.0e}: rounding.")

# %% [markdown]
# The state may also keep only a share at each token. Then the weights fade with the distance, and both sides still
# agree.

# %% live
keeps = torch.tensor([[1.0]])
show(matrix(keeps, ["state"], ["keeps"], "what the state keeps at each token"))
weights = ((query @ key.T) * keeps ** distance(8, 8)).tril()  # (T, S)
state, rows = torch.zeros(4, 4), []
for q, k, v in zip(query, key, value):
    state = keeps * state + torch.outer(k, v)  # (d, e)
    rows.append(state.T @ q)  # (e,)
places = [str(t) for t in range(1, 9)]
both = torch.stack([torch.stack(rows)[:, 0], (weights @ value)[:, 0]], dim=-1)  # (T, 2)
show(matrix(weights, places, places, "the weights, without a softmax"))
show(matrix(both, places, ["state", "at once"], "the first feature of the output, from both sides"))

# %% [markdown]
# So every kind with a state is attention whose weights have no softmax. `minigpt/attention/linear` has a dozen of them,
# each a few lines. What they cannot do follows from the size of the state: `python scripts/compare.py --config
# recall.yaml` shows how many pairs fit.
#
# ## Your turn
#
# Write linear attention twice, as a table of weights and as a state; both must agree.

# %%
exercise("linear_attention")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/linear/linear.py` and `delta_net.py`: the formulas of this lesson as kinds that can be trained.
# - "Transformers are RNNs" (arXiv 2006.16236): linear attention, and its state.
# - "Linear Transformers Are Secretly Fast Weight Programmers" (arXiv 2102.11174): the delta rule.
# - "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv 2412.06464): the rule and the gate together.
