"""Lesson 7: Position.

Attention by itself does not know which token came first. You will measure that, find that a stack of layers knows a
little of it after all, and see what four kinds of position do to the scores.
"""

# %% [markdown]
# **The question.** `a3b5a7|a`: what is a's number *now*? Both of a's numbers look alike to every head so far. It would
# have to know which of them came last.
#
# ## A bag of tokens
#
# In lesson 1 the running mean did not notice when two tokens changed places. Attention with queries and keys is
# cleverer than a mean: it chooses. But look at how it chooses. The score of a pair is made of the query of one token
# and the key of the other, and both are made of what the token *is*. Nothing in them says where it *stands*.
#
# Here are six tokens, with random vectors. We turn the order of the first five round, and leave the last one where it
# is.

# %% live
import math

import torch
from torch import Tensor

from minigpt.attention import MultiHead, Past, Shape
from minigpt.attention.ladder import attend
from minigpt.attention.position import Alibi, Rotary, angles, distance
from minigpt.config.options import from_dict
from minigpt.learning.tools import bars, curves, exercise, matrix, reveal, say, show, turn
from minigpt.model import GPT, Block, ModelConfig

torch.manual_seed(7)
tokens, places = list("ABCDEF"), [str(t) for t in range(1, 7)]
x = 0.5 * torch.randn(6, 6)  # (T, D): query, key and value are x itself, as in lesson 2
show(matrix(x, tokens, places, "the vectors of six tokens"))
reversed_x = torch.stack([x[t] for t in (4, 3, 2, 1, 0, 5)])  # (T, D)


def layers(x: Tensor, count: int) -> Tensor:
    """What the last token knows after some layers of attention, each added to what came in: (D,)."""
    for _ in range(count):
        x = x + attend(x, x, x)  # (T, D)
    return x[-1]


# %% [markdown]
# **Guess 1.** One layer of attention. How does the output of the last token change when the five before it stand in
# another order?

# %%
guess = None  # one of: not at all, a little, a lot


# %%
def change(count: int) -> Tensor:
    """By how much the last token moves, relative to its largest number, when its past is turned round."""
    before, after = layers(x, count), layers(reversed_x, count)  # (D,) each
    return (after - before).abs().amax() / before.abs().amax()


one = float(change(1))
reveal(
    guess,
    "not at all" if one < 1e-5 else "a little" if one < 0.01 else "a lot",
    f"It moves by {one:.0e} of its size, and that is rounding. The last token compares itself with each of the others, "
    "and it sees each with the same score as before. The weights have moved with the tokens, and a sum has no order. "
    "To one layer of attention a text is a bag of tokens.",
    among=["not at all", "a little", "a lot"],
    mistakes={
        "a lot": (
            "a lot",
            "The *text* changes a lot, for you. To the last token the same five are there, with the same scores.",
        ),
        "a little": ("a little", "What you would see is rounding: the same numbers, added in another order."),
    },
)

# %% [markdown]
# ## Two layers
#
# Now the same with two layers. The second one reads what the first has made. Still nothing says where a token stands.
#
# **Guess 2.** Does the last token notice now that its past was turned round?

# %%
guess = None  # yes or no

# %% live
two = float(change(2))
reveal(
    guess,
    "yes" if two > 1e-5 else "no",
    f"It moves by {two:.0%} of its size. The reason is the mask. In the first layer, a token at the beginning has seen "
    "almost nothing, and a token near the end has seen almost everything. So after the first layer, a token's vector "
    "depends on what stood *before* it, and the second layer reads these vectors. The mask alone gives the order "
    "away, a little. Models without any position do learn from that, but it is a hard way to learn.",
    bars({f"layers: {n}": change(n) for n in (1, 2, 3)}, "how far the last token moves", decimals=3),
    among=["yes", "no"],
    mistakes={
        "a bag of bags": (
            "no",
            "Without a mask you would be right. With it, each token has seen what stood *before* it, and the second "
            "layer reads that.",
        )
    },
)

# %% [markdown]
# ## Where could a position be put in?
#
# There are three places, and each of the usual kinds takes one of them:
#
# 1. **Into the tokens.** Before the first layer, a vector that stands for the place is added to the vector of the
#   token. `learned` has one for each place, and learns them. `sinusoidal` takes sines and cosines and learns nothing.
# 2. **Into queries and keys.** `rotary` rotates both by an angle that grows with the place.
# 3. **Into the scores.** `alibi` takes something off each score: the further away the key is, the more.
#
# To see what a position does alone, we use a trick: a text in which every token is the same. Then every difference
# between scores comes from the places. And all models have the same weights, but for those of the position itself.

# %%
T = 64


def small_model(position: str) -> GPT:
    """A fresh model with one block."""
    shape = {"n_layer": 1, "n_embd": 32, "block_size": T, "position": position}
    return GPT(from_dict(ModelConfig, shape | {"attention": {"kind": "multi_head", "n_head": 2}}), vocab_size=50)


torch.manual_seed(3)
plain = small_model("none")
for name in ("query", "key"):  # torch's own start is larger than GPT's: the scores are easier to see
    plain.get_submodule(f"blocks.0.attention.{name}").reset_parameters()  # type: ignore[operator]


def model_with(position: str) -> GPT:
    """A model with this position, and otherwise with the weights of `plain`."""
    model = small_model(position)
    model.load_state_dict(plain.state_dict(), strict=False)
    return model


def scores_of_equal_tokens(position: str) -> Tensor:
    """The scores of the first head over T times the same token: (T, T)."""
    model = model_with(position)
    block = model.blocks[0]
    assert isinstance(block, Block) and isinstance(block.attention, MultiHead)
    with torch.no_grad():
        tokens = model.tokens(torch.full((1, T), 7))  # (1, T, D): T times token 7
        normed = block.attention_norm(model.position.embed(tokens, Past()))  # (1, T, D)
        query, key, _ = block.attention.qkv(normed, Past())  # (1, H, T, d) each
        return block.attention.stages(query, key)["with bias"][0, 0]  # (T, T)


kinds = ["none", "learned", "sinusoidal", "rotary", "alibi"]
scores = {kind: scores_of_equal_tokens(kind) for kind in kinds}
flat = float(scores["none"].max() - scores["none"].min())
say(f"Without a position, the largest and the smallest of all {T * T:,} scores differ by {flat:g}.")

# %% [markdown]
# **Guess 3.** Take a query and a key, and move both of them five places to the right. The distance between them is the
# same as before. With which kind of position does their score change?

# %%
guess = None  # one of: learned, rotary, alibi

# %%
changes = {kind: float((scores[kind][5:, 5:] - scores[kind][:-5, :-5]).tril().abs().max()) for kind in kinds}
reveal(
    guess,
    max(["learned", "rotary", "alibi"], key=lambda kind: changes[kind]),
    "A learned vector belongs to one place. Place 10 knows nothing of place 15, so the score of a pair depends on "
    "where both of them stand. Rotary and ALiBi know distances only: a pair has the same score wherever it is. "
    "(Sinusoidal lies between: its vectors follow one law, but learned matrices and a norm stand between them and the "
    "scores.)",
    bars(changes, "the largest change of a score when query and key move five places", decimals=4),
    among=["learned", "rotary", "alibi"],
    mistakes={
        "rotary": (
            "rotary",
            "Both are rotated by five more steps. The angle between them, on which the score depends, stays the same.",
        ),
        "alibi": ("alibi", "ALiBi takes off slope times distance, and the distance is the same."),
    },
)

# %% [markdown]
# Here are the scores themselves: the last token looks back, and the curve says what score a token gets at each
# distance, though all tokens are the same. ALiBi is a straight line down, so it has a picture of its own.

# %%
last = {kind: [(T - 1 - s, float(scores[kind][-1, s])) for s in reversed(range(T))] for kind in kinds}
inside = {kind: last[kind] for kind in ("learned", "sinusoidal", "rotary")}
show(curves(inside, "the score of the same token, by its distance", "places back"))
show(curves({"alibi": last["alibi"]}, "the same with ALiBi", "places back"))

# %% [markdown]
# Put a position into the six tokens from the beginning of this lesson, and change it.

# %% live
show(turn("the weights", tokens, query=x, key=x, position="alibi", factor=1.0, mask="the past"))

# %% [markdown]
# ## Rotary: why rotation gives distances
#
# Take two of the numbers of a query. They are an arrow on a sheet of paper. Take the same two numbers of a key: another
# arrow. Their part of the score is their dot product, and that depends on the lengths of the arrows and on the **angle
# between them**, and on nothing else.
#
# Rotary rotates the arrow of a token by an angle for each place. If both tokens move five places, both arrows rotate by
# the same angle more, and the angle between them stays. Each pair of numbers rotates at its own speed: the first pair
# fast, the last very slowly. (`rotate(x, start)` is the function that the models use: it rotates queries or keys whose
# first place is `start`.)

# %%
rotary = Rotary(Rotary.Config(), Shape(n_embd=16))
query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)  # (B, H, T, d) each: one query, one key


def score_at(place_of_query: int, place_of_key: int) -> float:
    """The dot product of the query and the key, each rotated by its place."""
    return float((rotary.rotate(query, place_of_query) * rotary.rotate(key, place_of_key)).sum())


fast, *_, slow = (2 * math.pi / angles(1, 1, 16, rotary.config.base, query.device)[0]).tolist()  # places for a turn
say(f"The first pair takes {fast:.1f} places for a whole turn, the last pair {slow:,.0f}.")
say(f"The query at place 10 and the key at place 7: their dot product is **{score_at(10, 7):.4f}**.")

# %% [markdown]
# **Guess 4.** What is it with the query at place 1,010 and the key at place 1,007?

# %%
guess = None  # a number

# %%
drift = max(abs(score_at(start + 10, start + 7) - score_at(10, 7)) for start in (1, 10, 100, 1000, 100_000))
lengths = float(rotary.rotate(query, 1010).norm() / query.norm())
again = [(d, score_at(1000 + d, 1000)) for d in range(0, 41)]
here = [(d, score_at(d, 0)) for d in range(0, 41)]
reveal(
    guess,
    score_at(1010, 1007),
    "It is the same: both have turned by 1,000 places more. At other places, up to place 100,010, the largest "
    f"difference is {drift:.0e}. Turning does not change how long an arrow is either (the length is {lengths:.3f} "
    "times what it was). The picture shows that the distance still counts: the same query and key have another score "
    "at every distance.",
    curves(
        {"key at place 0": here, "key at place 1,000": again}, "one query and one key, at all distances", "places apart"
    ),
    within=0.01 * abs(score_at(10, 7)) + 1e-3,
    mistakes={
        "it fades": (
            (-0.02, 0.02),
            "You thought that it fades far away. The distance between the two is still three places.",
        ),
    },
)

# %% [markdown]
# Here is a pair of two numbers at six places. Along each diagonal the distance is the same, and so is the score.

# %% live
arrows = torch.tensor([[1.0, 0.5], [0.8, -0.6]])  # (2, d): a query and a key, d = 2
show(matrix(arrows, ["q", "k"], ["first", "second"], "two arrows: a query q and a key k"))
at_query, at_key = (rotary.rotate(arrow.expand(1, 1, 6, 2), 0)[0, 0] for arrow in arrows)  # (T, d) each
show(matrix(at_query @ at_key.T, places, places, "their score: the query's place (rows), the key's (columns)"))

# %% [markdown]
# ## ALiBi: near is better
#
# ALiBi is the simplest of all. It takes `slope * distance` off each score. Each head has its own slope, so one head is
# short-sighted and another sees far. A weight comes from the exponential of a score. So it is halved whenever the score
# falls by the logarithm of 2.

# %%
say(f"The logarithm of 2 is {math.log(2):.2f}.")

# %% [markdown]
# **Guess 5.** There are four heads. The slope of the first is 1/4. How many places further back is the weight of an
# equal token only half as large?

# %%
guess = None  # a number

# %%
alibi = Alibi(Alibi.Config(), Shape(n_embd=32))
nothing = torch.zeros(1, 4, T, 8)  # (B, H, T, d): queries and keys that say nothing
bias = alibi.bias(nothing, nothing)  # (H, T, T)
weights = bias.masked_fill(distance(T, T) < 0, -torch.inf).softmax(dim=-1)  # (H, T, T)
slopes = {f"head {h + 1}": float((weights[h, -1, -1] / weights[h, -1, -2]).log()) for h in range(4)}  # a place further
halves = {head: math.log(2) / slope for head, slope in slopes.items()}
reveal(
    guess,
    halves["head 1"],
    f"It is {math.log(2):.2f} divided by 1/4. The last head needs {halves['head 4']:.0f} places for the same. So the "
    "model has short-sighted and far-sighted heads, and there is nothing to learn: no table, no parameters.",
    bars(halves, "places until a weight is half as large", decimals=1),
    within=0.5,
    span=(0.25, 16),
    mistakes={
        "one over the slope": (
            (3.9, 4.1),
            "After 4 places the score is lower by 1, and the weight by a factor of e. Half is reached earlier.",
        ),
        "half over the slope": (
            (1.9, 2.1),
            "That is a score lower by a half. A *weight* is halved when its score falls by the logarithm of 2.",
        ),
    },
)

# %% [markdown]
# ## Which one is best?
#
# That is a question for a fair comparison, and not for a lesson of ten minutes. The project has one: five positions,
# three seeds each, some minutes.
#
#     python scripts/compare.py --config positions.yaml
#
# Make your guess before you run it. The results of an earlier run are in `minigpt/comparison/README.md`.
#
# Three things to keep:
#
# - One layer of attention without positions sees a bag. More layers see a little of the order, through the mask.
# - A learned position says *where*. Rotary and ALiBi say *how far*.
# - A model with a learned table cannot read further than the table. The others have a number for every place, but
#   that does not mean that a model reads well where it was never trained.
#
# ## Your turn
#
# Write the rotation yourself.

# %%
exercise("rotary")
say("It takes a few lines. The checker reads by which angle your program turns each pair of numbers, and says where.")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/position.py`: all kinds of position, each with its formula.
# - "RoFormer: Enhanced Transformer with Rotary Position Embedding" (arXiv 2104.09864).
# - "Train Short, Test Long" (arXiv 2108.12409): ALiBi.
# - "Transformer Language Models without Positional Encodings Still Learn Positional Information" (arXiv 2203.16634):
#   what guess 2 was about.
