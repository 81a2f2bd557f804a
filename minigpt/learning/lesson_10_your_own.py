"""Lesson 10: Your own attention, checked and compared.

You will write a kind of attention, let the checker look for what is wrong with it, train it against the usual one, and
find out how much one may say after a few trainings.
"""

# %% [markdown]
# **The question.** You have an idea for a better attention. Is it better? One training of each, as in lesson 9, cannot
# say.
#
# ## An idea
#
# In a story, the last few letters matter more than those from long ago. Attention has to learn this. What if we told
# it?
#
# The idea: take something off each score, the more the further away the key is. Near tokens then start with an
# advantage, and a far one has to match better to be heard. We give each head another strength, so that some heads stay
# far-sighted.
#
# In minigpt a kind of attention is a class, and it says only what is new. Here that is the `bias`, which is added to
# the scores. `distance(T, S)` says how many places back each key is.

# %%
import torch
from torch import Tensor

from minigpt.attention import MultiHead, distance
from minigpt.checks.learners.check import check
from minigpt.comparison.statistics import paired, t_quantile
from minigpt.comparison.summary import sentence
from minigpt.learning.small_training import watch_short
from minigpt.learning.tools import curves, exercise, message, reveal
from minigpt.model import ModelConfig


def strengths(query: Tensor) -> Tensor:
    """What each head takes off for each place: (H, 1, 1)."""
    H = query.shape[1]
    head = torch.arange(1, H + 1, dtype=query.dtype)  # (H,)
    return (2.0 ** (-8 * head / H))[:, None, None]


class Nearby(MultiHead, kind="nearby"):
    """Multi-head attention in which near tokens have an advantage."""

    order_blind = False  # the order of the past matters here

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        back = distance(query.shape[2], key.shape[2])  # (T, S)
        return -strengths(query) * back  # (H, T, S)


# %% [markdown]
# ## Is it right?
#
# An attention that is a little wrong still trains, and its loss still falls. So we check before we train. This idea has
# been had before: it is ALiBi, from lesson 7. That is lucky, because the checker knows ALiBi and can say whether we
# have it.
#
# It runs the class on a small text, and keeps beside every number what the number *is*: a query, a score, a weight.
# What our class does not say is inherited, from `minigpt/attention/base.py`. With `lines=True` we see the lines that
# ran, and beside each what it has made.

# %%
print(check(Nearby, "multi_head,alibi", lines=True))

# %% [markdown]
# Below the verdict stands each line that ran beside what it has made. Read it from `forward` on, and follow the calls:
# the queries, keys and values of six heads, their scores, to which our bias is added, the weights, the mixtures of
# values, and the output. The checker has held each step against a law: a token sees itself and what came before, scores
# are divided by the root of the width, and so on. So you can read any attention, also one of a public repository:
# `python scripts/check.py model.py::CausalSelfAttention --lines`.
#
# Here is a version that somebody wrote late in the evening.


# %%
class Evening(MultiHead, kind="evening"):
    """The same, written late."""

    order_blind = False

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        back = distance(query.shape[2], key.shape[2])  # (T, S)
        return strengths(query) * back  # (H, T, S)


# %% [markdown]
# **Guess 1.** What is wrong with it?

# %%
guess = None  # one of: the strengths, the distance, the sign, nothing

# %%
report = check(Evening, "multi_head,alibi")
answers = {"sign": "the sign", "slope": "the strengths", "distance": "the distance"}
matches = [answer for word, answer in answers.items() if report.names and word in report.names[0]]
reveal(
    guess,
    "nothing" if report.exit_code == 0 else matches[0],
    f"The checker says: {message(report.names[0])}. It has not looked for this mistake. It has read what is added to "
    f"each score, and that is not what ALiBi adds. The law that is broken: {message(report.laws[0].law)}. And what to "
    f"do: {message(report.fixes[0])}.",
    among=["the strengths", "the distance", "the sign", "nothing"],
    mistakes={
        "the strengths": (
            "the strengths",
            "They are the same as before: one for each head. Look at what is done with them.",
        ),
        "the distance": ("the distance", "It is the same as before: how many places back a key is."),
        "nothing": ("nothing", "Compare the last line with the one above, sign by sign."),
    },
)

# %% [markdown]
# And another one. Its author did not know `distance` and counted by hand: query number minus key number. In training
# that is the same. But when the model writes with a cache, there is one new query and a long past. The query is then
# number 0, although it stands at the end. All its distances are wrong.


# %%
class ByHand(MultiHead, kind="by_hand"):
    """The same, with places that are counted by hand."""

    order_blind = False

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        T, S = query.shape[2], key.shape[2]
        back = torch.arange(T)[:, None] - torch.arange(S)  # (T, S)
        return -strengths(query) * back  # (H, T, S)


# %% [markdown]
# **Guess 2.** What does the checker say when it lets this version read a text with a cache, piece by piece?

# %%
guess = None  # right or wrong

# %%
report = check(ByHand, "multi_head,alibi,cache")
query, key = torch.zeros(1, 4, 1, 8), torch.zeros(1, 4, 6, 8)  # one new query, six keys
shape = ModelConfig()
weights, plain_weights = (
    ByHand(ByHand.Config(), shape).bias(query, key),
    Nearby(Nearby.Config(), shape).bias(query, key),
)  # (H, 1, 6)
off = (weights - plain_weights)[0, 0].tolist()
reveal(
    guess,
    "right" if report.exit_code == 0 else "wrong",
    "The distances *are* wrong: for a query behind six keys, they are all off by five. But they are off by the same "
    f"number, so everything that is added to the scores of this row is off by {off[0]:.2f}. And a softmax only sees "
    "the differences between the scores of a row, as you found in lesson 1. So the weights are right. Do not argue "
    "with a checker, or believe it: measure. (With slopes that are not straight lines this would be a real bug.)",
    among=["right", "wrong"],
    mistakes={
        "wrong numbers, wrong weights": (
            "wrong",
            "The distances are wrong, you are right. But a softmax does not see what is added to a whole row.",
        )
    },
)

# %% [markdown]
# The checker does not know most ideas. Then there is no right answer to compare with, but there are **laws** that
# every attention must obey: no weight on the future, the same with a cache as without, two texts do not mix, and so on.
# They are checked before the first step of every training with `--plugin`, and what is broken is named in one line.
#
# ## Is it better?
#
# Now train it. We compare it with the usual four heads. All else is equal, rotary positions among it: the same stories
# in the same order, the same number of steps, the same shape.
#
# But a training has luck in it: the random numbers with which it starts, and the order of the stories. So one training
# with each says little. We train each **three times**, with the seeds 1, 2 and 3. Runs with the same seed share much of
# their luck, so we compare them in **pairs**, and look at the three differences.
#
# The loss of each is measured four times on the way. (All six trainings take a while. Guess first.)
#
# **Guess 3.** After a quarter of the training, which is ahead?

# %%
guess = None  # one of: nearby, the usual, no difference shown

# %%
SEEDS = (1, 2, 3)
usual = [watch_short(MultiHead.Config(), "rotary", seed) for seed in SEEDS]
nearby = [watch_short(Nearby.Config(), "rotary", seed) for seed in SEEDS]
steps = [int(step) for step, _ in usual[0].losses]
differences = [
    paired([run.losses[i][1] for run in nearby], [run.losses[i][1] for run in usual]) for i in range(len(steps))
]


def verdict(index: int) -> str:
    """Which of the two is better at an evaluation, as far as three pairs can show it."""
    if not differences[index].excludes_zero:
        return "no difference shown"
    return "nearby" if differences[index].mean < 0 else "the usual"


def in_words(index: int) -> str:
    """The same as a sentence with its interval."""
    return message(sentence("nearby", "the usual", vars(differences[index])))


choices = ["nearby", "the usual", "no difference shown"]
reveal(
    guess,
    verdict(0),
    f"After {steps[0]} steps: {in_words(0)}",
    among=choices,
    mistakes={
        "hope": ("nearby", "It may be. Three pairs do not show it here."),
        "the usual": ("the usual", "What is true of the stories helps at the start."),
        "nothing early": ("no difference shown", "An advantage that is built in shows first of all at the start."),
    },
)

# %% [markdown]
# What is that interval? Three differences have a mean, and they scatter around it. The **95 % confidence interval**
# says where the true mean may be, if the scatter of these three is all that we know. If zero lies inside, then the sign
# itself is in doubt, and the honest answer is *no difference shown*.
#
# The interval reaches some **standard errors** to each side of the mean. One standard error is the scatter divided by
# the square root of the number of pairs. With very many pairs, the interval reaches about 2 of them to each side.
#
# **Guess 4.** How many standard errors is it with three pairs?

# %%
guess = None  # a number

# %%
factor = {n: t_quantile(0.975, n - 1) for n in (2, 3, 4, 5, 8, 12, 20, 30)}
reveal(
    guess,
    factor[3],
    f"With two pairs it would even be {factor[2]:.1f}, and with ten times as many as we have it is {factor[30]:.2f}. "
    "Few trainings know little, and they know little about their own scatter too: that is what the wider interval "
    "pays for (Student, 1908). One pair has no interval at all.",
    curves({"standard errors": list(factor.items())}, "how far the interval reaches to each side", "pairs"),
    within=0.5,
    span=(1, 13),
    mistakes={
        "as with many": ((1.5, 2.5), "That is so with many pairs. Three know little about their own scatter."),
        "three": ((2.9, 3.1), "The number of pairs is not the number of standard errors."),
    },
)

# %% [markdown]
# **Guess 5.** And at the end of the training, which is ahead?

# %%
guess = None  # one of: nearby, the usual, no difference shown

# %%
differences_by_steps = {
    "mean of three pairs": [(step, d.mean) for step, d in zip(steps, differences)],
    "upper end": [(step, d.high) for step, d in zip(steps, differences) if d.high is not None],
    "lower end": [(step, d.low) for step, d in zip(steps, differences) if d.low is not None],
}
melted = (
    "The difference has become smaller on the way: what we told our heads, the others have learned by themselves. It "
    "was an advantage at the start, and not a better model."
    if abs(differences[-1].mean) < abs(differences[0].mean)
    else ""
)
reveal(
    guess,
    verdict(-1),
    f"After {steps[-1]} steps: {in_words(-1)} {melted}",
    curves(differences_by_steps, "loss of nearby minus the usual", "steps", ("no difference", 0.0)),
    among=choices,
    mistakes={
        "it lasts": ("nearby", "An advantage at the start need not last."),
        "overtaken": ("the usual", "It could have been. Three pairs do not show it."),
        "melted away": ("no difference shown", "It could have been. Here the three pairs still show one."),
    },
)

# %% [markdown]
# ## What one may say now, and what not
#
# One may say: *with this model, these stories, this recipe and this number of steps, the mean difference was so much,
# and with 95 % confidence it lies between these two numbers.*
#
# One may not say:
#
# - "They are equal." *No difference shown* means that three pairs could not show one. With more pairs the interval is
#   narrower.
# - "It is better", without the number of steps. You have just seen how much depends on it.
# - "It is better", if the learning rate was chosen for one of the two. A comparison can choose it for each by trials.
# - "It is faster to train" or "cheaper": we held the steps equal, not the seconds and not the parameters.
# - "It is better on your text." These are stories with a floor. Yours are something else.
#
# One more trap. If you try twenty ideas, and each has a 95 % interval, then about one of them looks better by luck
# alone. Write your prediction down *before* you look.
#
# ## The real thing
#
# Put your class into a file `nearby.py`, with its imports and `strengths`, and this into `nearby.yaml`:
#
#     compare: {baseline: usual, seeds: [1, 2, 3, 4, 5], match: steps}
#     variants:
#       usual: {}
#       nearby: {model.attention: nearby}
#     data: {source: stories, windows: documents}
#     model: {n_layer: 4, n_embd: 64, position: rotary, attention: multi_head}
#     training: {max_steps: 400, optimizer: muon, schedule: linear, final_rate: 0}
#
# Then one command checks it, trains all ten, and makes a page with the differences, the intervals and the attention
# maps:
#
#     python scripts/compare.py --config nearby.yaml --plugin nearby.py
#
# ## Your turn
#
# The last exercise goes one step further: an attention without a softmax. All of its past fits into a table of fixed
# size, so it writes long texts without a growing cache. You write it twice, and both must agree.

# %%
exercise("linear_attention")

# %% [markdown]
# ## What to read next
#
# - `CONTRIBUTING.md`: a kind of attention in one file, and the laws that it must obey.
# - `minigpt/attention/README.md`: the kinds that are there. Each says what it changes, and against which other kind.
# - "Train Short, Test Long" (arXiv 2108.12409): ALiBi, which we have just found again.
# - "Transformers are RNNs" (arXiv 2006.16236): the attention of the exercise.
# - "Show Your Work: Improved Reporting of Experimental Results" (arXiv 1909.03004): how much trying belongs to a
#   result.
