"""Lesson 9: A small GPT, and what each rung of the ladder buys.

Attention is one part of a model. You will see the other parts, train six models that differ in their attention alone,
and find out which of them remembers what.
"""

# %% [markdown]
# **The question.** `d7a3f5|a` once more: what is a's number, if nobody has told a digit which letter stands before it?
# One layer cannot find a number that does not know whose it is. First each digit looks at its neighbour, and then it
# can be found: that takes two layers, one behind the other.
#
# ## What else is in a GPT?
#
# Less than one would think. Here is a **block**, as it stands in `minigpt/model/gpt.py`. A model is a stack of them.

# %%
import inspect
import math

import torch

from minigpt.attention import AverageSoftmax, DotProduct, MultiHead, QueryKey, SingleHead
from minigpt.comparison.data import text_and_tokenizer
from minigpt.learning.small_training import SHORT_STEPS, read_new_stories, short, small_config, train_short, watch_short
from minigpt.learning.tools import bars, exercise, matrix, reveal, say, show, turn
from minigpt.model import GPT, Block, count_parameters
from minigpt.training.floor import Score

print(inspect.getsource(Block.forward))

# %% [markdown]
# Read it aloud. `x` is the vector of each token; all of them together are called the **stream**. Attention reads the
# stream and **adds** something to it: what each token has gathered from the others. Then the **MLP** reads the stream
# and adds something: what each token makes of it, by itself, without looking at any other. (The norms bring the numbers
# to one size before they are read.)
#
# So there are two kinds of work. *Attention moves information between tokens. The MLP works on each token alone.*
# Before the blocks, a table gives each token its vector. Behind them, a last matrix makes a score for each possible
# next token, and a softmax makes probabilities of the scores.
#
# **Guess 1.** The models that we train in this lesson have two blocks, 64 wide. Take the one with four heads: which
# part of it has the most parameters?

# %%
guess = None  # one of: tokens, attention, mlp, head

# %%
config = small_config(short(), MultiHead.Config(n_head=4))
corpus, tokenizer = text_and_tokenizer(config.data)
torch.manual_seed(9)
model = GPT(config.model, tokenizer.vocab_size).eval()
parts = {part: count for part, count in count_parameters(model).items() if count}
reveal(
    guess,
    max(parts, key=lambda part: parts[part]),
    f"Of {sum(parts.values()):,} parameters, {parts['attention'] / sum(parts.values()):.0%} belong to attention. It is "
    "the smaller part of the model, and yet the only one that can look anywhere else.",
    bars({part: float(count) for part, count in parts.items()}, "parameters", decimals=0),
    among=["tokens", "attention", "mlp", "head"],
    mistakes={
        "attention": ("attention", "It gives the model its name, but the MLP is wider than all its matrices together."),
        "the table": ("tokens", "It has a row for each token, and there are only some dozens of letters."),
        "the head": ("head", "It has a column for each token, and there are only some dozens of letters."),
    },
)

# %% [markdown]
# ## The loss, from above and from below
#
# The model reads stories letter by letter, and at each letter says how likely each next one is. If it gave the letter
# that came the probability p, its loss there is -ln(p), and the loss of a text is the mean. Here is one of the stories:

# %%
say(next(iter(corpus.documents())).strip())
say(f"There are {tokenizer.vocab_size} different characters.")

# %% [markdown]
# **Guess 2.** Before any training the model knows nothing. What is its loss? (Think of a die with as many sides as
# there are characters.)

# %%
guess = None  # a number


# %%
def above_the_floor(score: Score) -> float:
    """How far a model is above the best possible loss, in nats a letter."""
    assert score.above is not None
    return score.above


fresh = read_new_stories(model, config)
assert fresh.forgetful is not None
reveal(
    guess,
    fresh.loss,
    f"Whoever guesses evenly gives each of {tokenizer.vocab_size} characters the same probability, and loses "
    f"ln({tokenizer.vocab_size}) = {math.log(tokenizer.vocab_size):.2f} at each. The fresh model is near that.",
    within=0.15,
    span=(0, 8),
    mistakes={
        "zero": ((None, 0.5), "A loss of zero is that of a reader who is always certain and right."),
        "one": ((0.5, 1.5), "1 would be a probability of 1/e for each letter. A fresh model gives about one in fifty."),
        "in bits": (
            (5, 6.2),
            "That is the number in *bits*, with the logarithm to the base 2. Here the unit is the nat.",
        ),
    },
)

# %% [markdown]
# How low can the loss get? Not to zero: nobody can know which name a story begins with. But the stories are told by a
# program, so we know what the best possible reader would lose. This is the **floor**. From now on we count from there:
# how far is a model *above the floor*?
#
# There is a second reader to compare with, the **forgetful reader**. It knows the language perfectly, every word and
# every rule, but it remembers nothing of *this* story. Whoever is better than it must have remembered something.

# %%
say(
    f"The floor is {fresh.floor:.4f}. The forgetful reader is {fresh.forgetful:.4f} above it. The fresh model is "
    f"{fresh.above:.4f} above it."
)

# %% [markdown]
# ## Six rungs
#
# Six models, equal in everything but their attention. All see the same stories in the same order.
#
# - `mean`: the running mean of lesson 1. Nothing to learn in it.
# - `dot product`: scores are x . x, as in lesson 2. Nothing to learn here either.
# - `others, scaled`: the same, divided by the square root of the width, and a token does not see itself.
# - `queries, keys`: what a token looks for is not what it is, but it still hands over itself.
# - `one head`: with values and an output projection, from lesson 3.
# - `four heads`: from lesson 6.
#
# They are trained for some seconds each, after your guess.
#
# **Guess 3.** Order these three, from the one furthest above the floor to the nearest: mean, dot product, one head.

# %%
guess = None  # the three names, with commas between them

# %%
rungs = {
    "mean": AverageSoftmax.Config(),
    "dot product": DotProduct.Config(),
    "others, scaled": DotProduct.Config(include_self=False, scaled=True),
    "queries, keys": QueryKey.Config(),
    "one head": SingleHead.Config(),
    "four heads": MultiHead.Config(n_head=4),
}
scores = {name: train_short(attention) for name, attention in rungs.items()}
above = {name: above_the_floor(score) for name, score in scores.items()}
worse = (
    "The dot product can choose, and yet it is further away than the mean. You have seen why in lesson 2: x . x is "
    "the largest of its products, so a token mostly looks at itself, and no matrix can change that. It is "
    f"{above['dot product']:.3f} above the floor; scaled, and without itself, it is {above['others, scaled']:.3f}. "
    if above["dot product"] > above["mean"]
    else ""
)
reveal(
    guess,
    sorted(["mean", "dot product", "one head"], key=lambda name: -above[name]),
    f"{worse}Look at the sizes, not only at the order: from the mean to one head it is "
    f"{above['mean'] - above['one head']:.3f} nats a letter, from one head to four "
    f"{abs(above['one head'] - above['four heads']):.3f}. With one training each, nobody can say which of two "
    "neighbours is better. Lesson 10 shows what it takes to say it.",
    bars(
        {**above, "(forgetful reader)": fresh.forgetful},
        f"nats a letter above the floor, after {SHORT_STEPS} steps",
        decimals=3,
    ),
    mistakes={
        "the rungs in order": (
            "mean, dot product, one head",
            "You took each rung for an improvement. Choosing badly can be worse than not choosing.",
        )
    },
)

# %% [markdown]
# ## Who remembers what?
#
# For each letter it is known what it takes to predict it:
#
# - `local`: the last few letters. Spelling, in short.
# - `plan`: whoever *hid* something makes the other one *find* it.
# - `agreement`: she or he, him or her.
# - `recall`: a name, or what was said of the hero at the beginning.
#
# **Guess 4.** Four kinds of memory, and the model with one head after its short training. In which is its accuracy
# lowest?

# %%
guess = None  # one of: local, plan, agreement, recall

# %%
names = ["local", "plan", "agreement", "recall"]
head = {kind: scores["one head"].names[kind].accuracy for kind in names}
kinds = list(scores["one head"].names)
accuracy = torch.tensor([[score.names[kind].accuracy for kind in kinds] for score in scores.values()])  # (6, kinds)
won = int((accuracy[list(rungs).index("one head")] > accuracy[list(rungs).index("mean")]).sum())
reveal(
    guess,
    min(names, key=lambda kind: head[kind]),
    "Spelling hangs on the last few letters. A name hangs on one word that was told long ago and has to be found "
    f"among all others. Against the mean, one head is more accurate in {won} of {len(kinds)} kinds. (The kinds that "
    "were not named are words, lists and sentences that come again, and counting. `free` is what nobody can know: its "
    "number is the probability given to all that is possible.)",
    matrix(accuracy, list(scores), kinds, "accuracy on new stories, by what must be remembered"),
    among=names,
    mistakes={
        "spelling": ("local", "There are many rules of spelling, but all of them hang on the last few letters."),
        "plan": ("plan", "Two words decide it, and they are always the same two. That is less than a name."),
        "agreement": ("agreement", "There are few words to choose from. That is easier than a name among many."),
        "recall": ("recall", "A name is hard to find. In this short training something else was harder still."),
    },
)

# %% [markdown]
# ## One more rung
#
# All six had learned positions. Lesson 7 was about others. We train the four heads once more, with `rotary`.
#
# **Guess 5.** After these few steps, is it nearer to the floor than with learned positions?

# %%
guess = None  # nearer, further, or about the same

# %%
rotary = train_short(rungs["four heads"], position="rotary")
reached = above_the_floor(rotary)
difference = reached - above["four heads"]
beaten = "remembers" if reached < fresh.forgetful else "does not yet remember"
reveal(
    guess,
    "about the same" if abs(difference) < 0.005 else "nearer" if difference < 0 else "further",
    f"It is {reached:.4f} above the floor, against {above['four heads']:.4f}. Rotary tells every pair of tokens how "
    "far apart they are, from the first step on. A table of learned positions has to find that out place by place. A "
    f"long training may end otherwise. The forgetful reader is at {fresh.forgetful:.4f}, so this model {beaten} enough "
    "to beat a reader who knows the language and forgets the story.",
    bars({**above, "four, rotary": reached, "(forgetful reader)": fresh.forgetful}, "above the floor", 3),
    among=["nearer", "further", "about the same"],
    mistakes={
        "nearer": ("nearer", "In this training the table of places has kept up."),
        "further": (
            "further",
            "You thought that a learned position can only be better, since it can learn anything. It takes time.",
        ),
        "the same": ("about the same", "In the end it may be. After a few steps a table has not been learned yet."),
    },
)

# %% [markdown]
# ## One letter of a story
#
# Whoever writes has to choose. Here are the eight letters that the model with four heads finds most likely behind "Mia
# was a sh". The **temperature** divides their logits before the softmax: below 1 the best one wins more often, above 1
# all come closer together.

# %% live
four_heads = watch_short(rungs["four heads"]).run
prompt = torch.from_numpy(four_heads.tokenizer.encode("\nMia was a sh")).long()[None]  # (1, T)
with torch.no_grad():
    logits, best_ids = four_heads.model(prompt)[:, -1].topk(8)  # (1, 8) each
letters = [four_heads.tokenizer.decode([int(each)]) for each in best_ids[0]]
show(matrix(logits, ["logit"], letters, "the eight largest logits"))
show(
    turn(
        "the next letter, among these eight",
        letters,
        query=torch.ones(8, 1),
        key=logits.T,
        row=7,
        temperature=1.0,
    )
)

# %% [markdown]
# ## The whole experiment
#
# What you have seen took seconds, with one training each. The real one has three trainings each, and a confidence
# interval for each difference. Its models have one layer, since several layers stand in for several heads. It takes a
# few minutes on two cores:
#
#     python scripts/compare.py --config ladder.yaml
#
# It leaves a page, `runs/compare/ladder/page.html`. `minigpt/comparison/README.md` says what it found, and what the
# same ladder shows with four layers.
#
# And a model of your own, which the other lessons can then look at:
#
#     python scripts/train.py --config tiny.yaml
#
# ## Your turn
#
# Write the next rung: heads that share their keys and values. Then train it, as the file says at its end, and see where
# it lands.

# %%
exercise("grouped_query")

# %% [markdown]
# ## What to read next
#
# - `minigpt/model/gpt.py`: the whole model. You know every line of it now.
# - "Attention Is All You Need" (arXiv 1706.03762): the first model of this kind.
# - "On Layer Normalization in the Transformer Architecture" (arXiv 2002.04745): why the norms stand where they stand.
# - "In-context Learning and Induction Heads" (arXiv 2209.11895): how heads in two layers find what came after the
#   same word before.
