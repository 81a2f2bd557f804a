"""Lesson 14: A model that talks: what it is taught, and what it only reads.

A chat is a text like any other, with marks that say whose turn it is. You will see which of its tokens are learned,
why nobody can type a mark, what a long talk loses, and train two models, on the answers alone and on everything.
"""

# %% [markdown]
# **The question.** A language model goes on with a text. Then why does it answer, in place of asking another question?
# And how does it know where its answer ends?
#
# ## A talk as a row of ids
#
# A talk consists of turns: a user says something, and the assistant answers. The model reads one row of ids, as in all
# lessons. So each turn gets a **role mark** in front, which is an id of its own, and behind an answer stands a mark
# that ends it. Here is a talk, with the tokenizer of a small language of talks, in which each word is one token.

# %%
import numpy as np
import torch

from minigpt.attention import MultiHead
from minigpt.comparison.data import text_and_tokenizer
from minigpt.learning.small_training import SHORT_STEPS, read_new_stories, small_config
from minigpt.learning.tools import bars, curves, exercise, matrix, reveal, say, show, watch
from minigpt.text.chat import Talking, whole_turns
from minigpt.text.talks import Turn, as_document, turns_of

chat = ["data.format=chat", "data.source={kind: talks, count: 3000, validation: 200, facts: [2], turns: 2}"]
chat += ["data.tokenizer={kind: bpe, vocab_size: 400}", "training.batch_size=32"]
shape = ["model.n_layer=2", "model.n_embd=64", "model.block_size=64", "model.position={kind: convolution, width: 4}"]
corpus, tokenizer = text_and_tokenizer(small_config([*chat, *shape]).data)
talking = Talking(tokenizer)
turns = [Turn("user", "Who has the hat?"), Turn("assistant", "Hal", taught=True)]
ids, taught = talking.ids(turns)  # (N,) each
marks = {id: f"<|{name}|>" for name, id in tokenizer.marks.items()}
names = [marks.get(id) or tokenizer.decode([id]) for id in ids.tolist()]
show(matrix(torch.tensor(ids)[None], ["id"], names, "a talk of two turns", decimals=0, shade=False))

# %% [markdown]
# The model will be asked to write answers, and nothing else: the program writes the marks `<|user|>` and
# `<|assistant|>` itself, and the user writes the question. So only some of these tokens are **taught**: they are
# targets of the loss. All others are read, and their loss does not count.
#
# **Guess 1.** How many tokens of this talk are taught?

# %%
guess = None  # a whole number

# %%
reveal(
    guess,
    int(taught.sum()),
    "The answer, and the mark behind it. The model has to learn where an answer *ends*, or it would go on for ever. "
    "What stands in front of an answer is written by the program, so nobody has to predict it.",
    matrix(torch.tensor(taught)[None].float(), ["taught"], names, "which of them are targets", decimals=0),
    mistakes={
        "no end": ((1, 1), "That is the answer alone. A model that never learned to end it would not stop."),
        "its mark too": ((3, 3), "You have counted the mark in front. The program writes it, to say: now you."),
        "all": ((len(ids), len(ids)), "All of them are *read*. But the model will never have to write a question."),
    },
)

# %% [markdown]
# ## Nobody can type a mark
#
# Whoever talks to a model may write anything, also `<|assistant|>` or `<|end_of_turn|>`. If that became a mark, a user
# could put words into the model's mouth.
#
# **Guess 2.** A user types `<|assistant|>` into a question. Is the mark's id among the ids of the question?

# %%
guess = None  # yes or no

# %%
typed, _ = talking.ids([Turn("user", "<|assistant|>Hal")])  # (N,)
said_ids = typed[1:]  # without the role mark that the program has put in front
pieces = [tokenizer.decode([id]) for id in said_ids.tolist()]
reveal(
    guess,
    "yes" if tokenizer.marks["assistant"] in said_ids else "no",
    f"The text is encoded by itself, and no text gives that id: it becomes {len(pieces)} pieces, "
    f"{', '.join(f'`{piece}`' for piece in pieces)}. The marks have the last {len(tokenizer.marks)} ids of the "
    f"{tokenizer.vocab_size}, behind all that stand for text; only the program adds them. "
    "What a user types stays text.",
    among=["yes", "no"],
    mistakes={
        "a mark is its name": (
            "yes",
            "You took the mark for the letters that it is shown with. They are its name for us. To the model it is an "
            "id, and these letters have others.",
        )
    },
)

# %% [markdown]
# ## The mask of the loss
#
# At each token the model has a loss: -ln of the probability that it gave to the token that came. Say that they are
# these. (The marks of the roles are left out here.)

# %% live
losses = torch.tensor([[4.0, 1.0, 1.0, 6.0, 1.0, 2.0, 1.0]])  # (1, N - 1)
targets = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]])  # (1, N - 1): 1 where a token is taught
words = ["Who", "has", "the", "hat", "?", "Hal", "end"]
show(matrix(losses, ["loss"], words, "the loss at each token"))
show(matrix(targets, ["taught"], words, "the mask of the loss", decimals=0))

# %% [markdown]
# The loss that is trained on is the mean over the tokens that are taught.
#
# **Guess 3.** What is it here?

# %%
guess = None  # a number

# %% live
counted = losses * targets  # (1, N - 1)
masked_loss = counted.sum(dim=-1, keepdim=True) / targets.sum(dim=-1, keepdim=True)  # (1, 1)
reveal(
    guess,
    float(masked_loss[0, 0]),
    "The sum of the two losses that count, divided by two. The question costs more than the answer: which thing is "
    "asked for, nobody can know. That is no fault of the model, and it need not learn to guess it.",
    matrix(masked_loss, ["mean"], ["loss"], "(losses * taught).sum() / taught.sum()"),
    within=0.01,
    span=(0, 8),
    mistakes={
        "all tokens": ((2.2, 2.4), "That is the mean over all seven. Five of them are only read."),
        "divided by all": ((0.4, 0.45), "You have divided by all seven. A mean over two divides by two."),
        "the sum": ((2.95, 3.05), "That is the sum. The loss is a mean: what one token costs, however many there are."),
    },
)

# %% [markdown]
# Look at the talks that we are going to train on. Each tells a small story and asks two questions about it, or a sum.

# %%
first = next(iter(corpus.documents()))
first_ids, first_taught = talking.ids(turns_of(first))  # (N,) each
say(f"The first one, with what is taught in [[ ]]: `{talking.as_text(first_ids, first_taught)}`")
say(f"Of its {len(first_ids)} tokens {int(first_taught.sum())} are taught.")

# %% [markdown]
# ## On the answers, or on everything?
#
# The mask throws much away: most tokens of a talk teach nothing. One could let them all count (`data.learn:
# everything`). The model would learn to ask as well as to answer, and would have many more targets in each step. Two
# models are trained for equally many steps, one on the answers and one on everything. Both are then measured on the
# answers of new talks.

# %%
head = MultiHead.Config(n_head=4, qk_norm=True)
steps = SHORT_STEPS // 2
every = max(1, steps // 5)
learned = {
    "on the answers": watch(steps, every, [*chat, *shape, "data.learn=answers"], head),
    "on everything": watch(steps, every, [*chat, *shape, "data.learn=everything"], head),
}
scores = {name: read_new_stories(each.run.model, each.run.config) for name, each in learned.items()}

# %% [markdown]
# **Guess 4.** Which of the two has the lower loss on the answers?

# %%
guess = None  # one of: on the answers, on everything

# %%
last = {name: each.losses[-1][1] for name, each in learned.items()}
reveal(
    guess,
    min(last, key=lambda name: last[name]),
    f"Trained on the answers it is {last['on the answers']:.3f}, trained on everything {last['on everything']:.3f}, "
    f"both after {steps} steps. Each step changes the model for the sake of all its targets. Where most of "
    "them are questions, most of the change is about questions.",
    curves({name: each.losses for name, each in learned.items()}, "the loss on the answers, in nats a token", "step"),
    among=list(learned),
    mistakes={
        "more is better": (
            "on everything",
            "You thought that more targets teach more. They do, but of something else: of what a user may ask.",
        ),
        "the mask wins": (
            "on the answers",
            "The mask keeps to what is asked of the model. In this training it did not show.",
        ),
    },
)

# %% [markdown]
# Let us look at the model that was trained on everything, at each token of fifty new talks.

# %%
model = learned["on everything"].run.model
sums = {"what the user says": 0.0, "what the assistant says": 0.0}
for document in list(corpus.documents())[-50:]:
    read, is_taught = talking.ids(turns_of(document))  # (N,) each
    row = torch.from_numpy(read)[None]  # (1, N)
    with torch.no_grad():
        at_each = torch.nn.functional.cross_entropy(model(row)[0, :-1], row[0, 1:], reduction="none")  # (N - 1,)
    asked = torch.from_numpy(is_taught[1:])  # (N - 1,)
    sums["what the assistant says"] += float(at_each[asked].sum())
    sums["what the user says"] += float(at_each[~asked].sum())

# %% [markdown]
# **Guess 5.** What share of its whole loss is at what the user says?

# %%
guess = None  # a number between 0 and 1

# %%
share = sums["what the user says"] / sum(sums.values())
reveal(
    guess,
    share,
    f"It is {share:.0%}. Names, things and places of a story are drawn at random, and so is the question. However long "
    "one trains, this part stays, and its gradient is noise to the answers.",
    bars(sums, "the sum of the losses in fifty talks, in nats", 0),
    within=0.1,
    span=(0, 1),
    mistakes={
        "half": ((0.4, 0.6), "There are many more tokens in a question than in an answer, and most cannot be known."),
        "answers are hard": ((None, 0.4), "An answer follows from the story. A story follows from nothing."),
    },
)

# %% [markdown]
# ## Longer than the context
#
# A model reads so many tokens at a time and no more: its context. In training a talk is never cut inside of a turn. A
# talk that is too long loses whole turns at its *end*, so that what is taught has its question, and all that was said
# before.

# %%
long = [turn for n in range(5) for turn in (Turn("user", f"Add {n}+1?"), Turn("assistant", f"{n + 1}", taught=True))]
stored = talking.encode(as_document(long))  # (N,): twice the id, and 1 more where it is taught
per_turn = round(len(stored) / 5)
say(f"This talk has 5 questions with their answers, {len(stored)} tokens in all: about {per_turn} for each.")

# %% [markdown]
# **Guess 6.** With a context of 30 tokens, how many of the five answers are taught?

# %%
guess = None  # a whole number

# %%
starts = np.zeros(1, np.int64)  # one talk, which starts at 0
fitting = {T: int(whole_turns(stored, starts, T).taught[0]) // 2 for T in (10, 20, 30, 40, 50, 60)}
reveal(
    guess,
    fitting[30],
    "As many as fit whole, from the front. The others are left out of the training, and a line says how many talks "
    "have lost turns.",
    bars({f"context {T}": float(n) for T, n in fitting.items()}, "answers that are taught", 0),
    mistakes={
        "all": ((5, 5), "Then the last ones would stand beyond the context, where the model reads nothing."),
        "none": ((0, 0), "It need not be thrown away whole: the first turns fit."),
    },
)

# %% [markdown]
# When somebody *talks* to the model it is the other way round: the last question is the one to be answered, so the
# oldest ones are forgotten, each with its answer. What was said in them is gone.

# %%
so_far = [*long * 3, Turn("user", "Add 3+3?")]
before = len(so_far)
reply = "".join(learned["on the answers"].run.answer(so_far))
say(f"Of {before} turns, {len(so_far)} were still read. The model answered `{reply}`.")
accuracies = torch.tensor([[row.accuracy for row in score.names.values()] for score in scores.values()])  # (2, kinds)
asks = ["who", "what", "where", "sum", "follow-up"]  # the kinds of questions
show(matrix(accuracies, list(scores), asks, "the share of right answers, by the kind of question"))

# %% [markdown]
# Three things to keep:
#
# - Roles are ids that no text contains. What a user types stays text.
# - The loss is on the answers, each with its end. All else is read, and not learned.
# - A long talk is taught from the front, and remembered from the back.
#
# `python scripts/train.py --config chat.yaml` trains such a model, and `python scripts/sample.py --chat` talks to it.
#
# ## Your turn
#
# A talk is written with a cache, as every text: the turns so far are read once. Write it, if you have not yet.

# %%
exercise("cache")

# %% [markdown]
# ## What to read next
#
# - `minigpt/text/chat.py`: how turns become ids, and which are taught. `minigpt/text/README.md`: your own talks.
# - "Training language models to follow instructions with human feedback" (arXiv 2203.02155): from a model that goes on
#   with a text to one that answers.
# - "Instruction Tuning With Loss Over Instructions" (arXiv 2405.14394): when a loss on the questions too does help.
