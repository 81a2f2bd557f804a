"""Lesson 4: The mask, and a loss below the floor.

A model that learns to write must not see what comes next. You will hide the future in the right way and in a wrong way,
and then train a model that peeks one letter ahead, and see how it gives itself away.
"""

# %% [markdown]
# **The question.** Which letter comes next, in a text that nobody has written yet? The head of lesson 3 saw the whole
# text, the answer included, and did not have to know anything.
#
# ## What must be hidden
#
# A language model is trained to say, at every place of a text, which token comes next. In training the whole text is
# there, all places at once. If a place can see the token after it, there is nothing to learn: it copies. When the model
# writes later, the next token does not exist yet, and a model that has learned to copy it is lost.
#
# So every token may look at itself and at what is before it. The **mask** is a table that says so. It is true where a
# query may see a key.

# %% live
import torch

from minigpt.attention import MultiHead, distance
from minigpt.attention.ladder import attention_weights
from minigpt.checks.causality import LeakError, check_causal
from minigpt.learning.tools import curves, exercise, matrix, message, reveal, say, show, turn, watch
from minigpt.learning.worked_examples import GRANT, GRANT_KEY, GRANT_QUERY
from minigpt.text.languages.language import Stories
from minigpt.training.floor import explain_impossible, height

scores = GRANT_QUERY @ GRANT_KEY.mT / 8**0.5  # (T, T) = (4, 4), scaled
visible_mask = torch.ones(4, 4, dtype=torch.bool).tril()  # (T, T): true where a query may look
show(matrix(scores, GRANT, GRANT, "the scores of four tokens"))
masked = scores.masked_fill(~visible_mask, -torch.inf)  # (T, T)
show(matrix(masked, GRANT, GRANT, "the same, the future filled with minus infinity"))

# %% [markdown]
# **Guess 1.** The softmax makes weights of the masked scores. What is the first weight in the row of "My"?

# %%
guess = None  # a number

# %% live
weights = masked.softmax(dim=-1)  # (T, T): what `attention_weights` does
reveal(
    guess,
    float(weights[0, 0]),
    f'"My" sees only itself, so its weight is {float(weights[0, 0]):.0f}, whatever its score. In the rows below there '
    "is more and more to choose from.",
    matrix(weights, GRANT, GRANT, "the weights with the mask"),
    within=0.01,
    span=(0, 1),
    mistakes={
        "as without a mask": (
            (0.1, 0.9),
            "You shared the row among all four. The three later tokens have minus infinity, and get exactly nothing.",
        ),
        "nothing": ((None, 0.05), "Its score may be negative, but a row always sums to one, and there is nobody else."),
    },
)

# %%
show(turn("the weights", GRANT, query=GRANT_QUERY, key=GRANT_KEY, factor=1 / 8**0.5, mask="the past"))

# %% [markdown]
# ## Before the softmax or after it?
#
# It seems simpler to let the softmax see everything, and to set the weights of the future to zero afterwards.
#
# **Guess 2.** If we do so, what do the weights in the row of "My" sum to?

# %%
guess = None  # a number

# %% live
cut_later = scores.softmax(dim=-1).masked_fill(~visible_mask, 0.0)  # (T, T)
reveal(
    guess,
    float(cut_later[0].sum()),
    "The softmax had given most of the row to tokens that are then hidden, and this share is lost. Only the last row, "
    "which hides nothing, still sums to one.",
    matrix(cut_later, GRANT, GRANT, "zeros after the softmax"),
    within=0.1,
    span=(0, 1),
    mistakes={
        "still one": (
            (0.9, None),
            "The row summed to one *before* the zeros were written into it. What was taken away has gone to nobody.",
        ),
    },
)

# %% [markdown]
# One could divide each row by its sum again, and would get the right weights. Without that, it is worse than it looks.
# Let us change the last token, "Grant", and see whether the row of "My" moves. It is not allowed to.

# %%
other = GRANT_KEY.clone()  # (T, d)
other[3] = -GRANT_KEY[3]  # another last token
changes = {
    "minus infinity before the softmax": attention_weights(GRANT_QUERY, other)[0] - weights[0],
    "zero after the softmax": (GRANT_QUERY @ other.mT / 8**0.5).softmax(dim=-1).masked_fill(~visible_mask, 0.0)[0]
    - cut_later[0],
}
say("\n".join(f"- {name}: the row moves by {float(change.abs().max()):.4f}" for name, change in changes.items()))

# %% [markdown]
# With zeros after the softmax the past depends on the future, though every weight on the future is zero: the future was
# in the *sum* by which the row was divided. Such a way in is called a **leak**.
#
# ## A model that peeks
#
# A leak can be one number. Somebody wants a triangle, and writes it one column too wide. Each token then sees one token
# ahead. In minigpt the mask is a method, so the mistake is one line:


# %%
class OffByOne(MultiHead, kind="off_by_one"):
    """Multi-head attention that sees one token too far."""

    def mask(self, T: int, S: int, device: torch.device) -> torch.Tensor:
        return distance(T, S, device) >= -1  # (T, S): it should be >= 0


letters = list("She met")
wrong = distance(7, 7, torch.device("cpu")) >= -1  # (T, S)
show(matrix(wrong.double(), letters, letters, "who sees whom: one column too many", 0))

# %% [markdown]
# Now we train two small models on the built-in stories, letter by letter: one with the right mask, one with this one.
# They are equal in everything else, the other options of their attention among it.
#
# How good can a model of these stories be? The stories are told by a program that makes random choices: which name,
# which animal. Nobody can know a random choice in advance. So even a perfect reader has a loss, and since we know the
# program, we know it exactly. It is called the **floor**. (The **loss** says how surprised a model is by the text, on
# average for each letter. If it gave the letter that came the probability p, the surprise is -ln(p), and its unit is
# the nat: zero for a model that was certain and right.)

# %%
shape = ["model.n_layer=1", "model.n_embd=48"]
right = watch(80, 10, shape, MultiHead.Config(n_head=4, qk_norm=True))
leaky = watch(80, 10, shape, OffByOne.Config(n_head=4, qk_norm=True))
say(f"The floor is {right.floor:.4f} nats a letter.")

# %% [markdown]
# **Guess 3.** Both were trained for 80 steps. Where is the loss of the model that peeks now?

# %%
guess = None  # one of: above the floor, at the floor, below the floor

# %%
losses = {"the right mask": right.losses, "one token ahead": leaky.losses}
above = leaky.losses[-1][1] - leaky.floor
reveal(
    guess,
    "at the floor" if abs(above) < 0.01 else "above the floor" if above > 0 else "below the floor",
    f"It is {leaky.losses[-1][1]:.4f}, and the right one is at {right.losses[-1][1]:.4f}. The best possible reader has "
    f"{leaky.floor:.4f}. Whoever is below the floor has not read better: it has seen the answers.",
    curves(losses, "Two trainings: the loss", "step", ("the floor", right.floor)),
    among=["above the floor", "at the floor", "below the floor"],
    mistakes={
        "above the floor": (
            "above the floor",
            "Nothing that reads fairly can be below the floor. But this model does not read fairly.",
        ),
        "at the floor": (
            "at the floor",
            "The floor is the best for a reader who cannot see the next letter. This one can see it.",
        ),
    },
)

# %% [markdown]
# A curve that falls so fast looks like success. This is why minigpt compares each validation loss with the floor, and
# says when it is not possible. For the model that peeks it says:

# %%
say(message(height(above, leaky.targets)) + ".")
say(message(explain_impossible(above)))

# %% [markdown]
# ## How does it write?
#
# Both models now write ten stories each. We count how many of their words are words of the stories at all.

# %%
stories = " ".join(Stories().tell(0, 2000))
vocabulary = set(stories.replace(".", " ").replace(",", " ").split())


def share(texts: list[str]) -> float:
    """How many of the words in some texts are words of the stories."""
    words = [word for text in texts for word in text.replace(".", " ").replace(",", " ").split()]
    return sum(word in vocabulary for word in words) / max(1, len(words))


wrote = {
    name: [trained.run.generate("\n", seed=seed)[1:] for seed in range(10)]
    for name, trained in {"the right mask": right, "one token ahead": leaky}.items()
}

# %% [markdown]
# **Guess 4.** Whose words are more often real words?

# %%
guess = None  # one of: the right mask, one token ahead

# %%
shares = {name: share(texts) for name, texts in wrote.items()}
reveal(
    guess,
    max(shares, key=lambda name: shares[name]),
    "\n\n".join(f"{name}, {shares[name]:.0%} real words:\n\n    {texts[0][:80]}" for name, texts in wrote.items())
    + "\n\nAfter so few steps the right one does not write well either, but it has begun to learn words. The other has "
    "learned to copy a letter that is not there when it writes.",
    among=list(wrote),
    mistakes={
        "a low loss writes well": (
            "one token ahead",
            "You trusted its loss. It is low because the answer was there to be copied. When it writes, there is none.",
        ),
    },
)

# %% [markdown]
# ## How to find a leak before a long training
#
# On a text of your own nobody knows the floor. So minigpt looks for leaks before the first step of every training: it
# changes a token, and asks whether anything *before* that token moves. This finds our mistake at once:

# %%
try:
    check_causal(leaky.run.model)
except LeakError as error:
    say(f"The check says: {message(str(error))}")
say(f"And of the right mask: {'; '.join(check_causal(right.run.model)) or 'nothing'}.")

# %% [markdown]
# ## Your turn
#
# You write a mask of your own: a window, in which a token sees itself and only the last few before it.

# %%
exercise("window")

# %% [markdown]
# ## What to read next
#
# - `minigpt/checks/causality.py`: the check, and `minigpt/training/floor.py`: when a loss is impossible.
# - "Attention Is All You Need" (arXiv 1706.03762), section 3.2.3: the mask, in one sentence.
# - "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (arXiv 1910.10683), section 3.2:
#   other masks, and what they are good for.
