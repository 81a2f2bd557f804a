"""Lesson 8: The cache, and why prompt and continuation agree.

A model writes one token at a time, and reads the whole text again for each. You will count what that costs, keep what
need not be computed twice, and see for which kinds of attention that is allowed, and for which it would be wrong.
"""

# %% [markdown]
# **The question.** A text of 127 letters has been read. What has to be computed for one more? Everything once more, as
# far as the lessons before can say.
#
# ## Writing is reading, again and again
#
# To write a text, a model reads what is there, says how likely each next token is, and one of them is drawn. Then the
# new token stands at the end of the text, and all begins again: read everything, draw one token.
#
# But almost everything was read a moment ago. After "Mia was a shy" comes "fox", and to go on, the model reads "Mia",
# "was", "a" and "shy" once more.
#
# Let us count. Here is a model of two layers. It is not trained, so it would write nonsense; but it does as many
# multiplications as a trained one. It writes 128 tokens, and for each token it reads all that came before.

# %%
import torch
from torch import Tensor

from minigpt.attention import MultiHead, Shape
from minigpt.attention.cache import WindowCache
from minigpt.config.options import from_dict
from minigpt.fast import make_fast
from minigpt.learning.tools import curves, exercise, matrix, reveal, say, show
from minigpt.model import GPT, ModelConfig, SamplingConfig, generate
from minigpt.seeing.cost import bytes_of, operations_to_write
from minigpt.seeing.trace import tracing


def small_model(attention: object, block_size: int = 128) -> GPT:
    """A fresh model of two layers, 64 wide; equal options make an equal one."""
    torch.manual_seed(8)
    shape = {"n_layer": 2, "n_embd": 64, "block_size": block_size, "position": "rotary", "attention": attention}
    return GPT(from_dict(ModelConfig, shape), vocab_size=50).eval()


model = small_model("multi_head")
N = 128  # tokens to write
again = [count // 2 for count in operations_to_write(model, N, use_cache=False)]  # two operations a multiplication
say(f"Reading everything again for each of {N} tokens takes {sum(again):,} multiplications.")

# %% [markdown]
# Now suppose that the model could remember what it has computed for the old tokens. Then for each new token it would
# compute the new token only, and look at what it remembers of the others.
#
# **Guess 1.** How many times as many multiplications does it take *without* such a memory, for these 128 tokens?

# %%
guess = None  # a number

# %%
once = [count // 2 for count in operations_to_write(model, N)]
counted = range(1, N + 1)
reveal(
    guess,
    sum(again) / sum(once),
    f"With a memory it takes {sum(once):,}. A text that grows to {N} tokens is on average half as long, so about "
    f"{N // 2} tokens are read for each one that is written. Look at the first token and at the last: with a memory "
    f"they cost {once[0]:,} and {once[-1]:,}, without it {again[0]:,} and {again[-1]:,}. For a text twice as long the "
    "factor would be about twice as large.",
    curves(
        {
            "read everything again": [(n, again[n - 1] / 1e6) for n in counted],
            "remember": [(n, once[n - 1] / 1e6) for n in counted],
        },
        "millions of multiplications for each token",
        "tokens in the text",
    ),
    within=10,
    span=(1, 200),
    mistakes={
        "for each token once more": (
            (100, None),
            "That is the length of the whole text. While it grows, it is only half as long on average.",
        ),
        "twice": (
            (None, 10),
            "You thought of the last token alone, or of one repetition. It is repeated for *every* token.",
        ),
    },
)

# %% [markdown]
# ## What has to be remembered?
#
# A new token asks with its query. It compares the query with the **keys** of all tokens before it, and takes the mean
# of their **values**. So of an old token, a layer needs its key and its value. Its query was needed once, when it was
# new.
#
# This memory is called the **cache**: in each layer, the keys and values of all tokens so far.
#
# But may we keep them? Only if they stay as they are when the text goes on. Let us look: we read ten tokens, and then
# the same ten with one more behind them, and compare the keys of the first ten in both layers.

# %%
ids = torch.randint(50, (1, 11), generator=torch.Generator().manual_seed(1))  # (B, T): eleven tokens


def keys_of(model: GPT, ids: Tensor) -> list[Tensor]:
    """The keys of each layer: one (B, H, T, d) a layer."""
    with torch.no_grad(), tracing(model) as trace:
        model(ids)
    return [calls[-1].key for calls in trace.calls]


def largest_changes(model: GPT) -> list[float]:
    """The largest change of a key of the first ten tokens when one more follows, in each layer."""
    short, long = keys_of(model, ids[:, :10]), keys_of(model, ids)
    return [float((a - b[:, :, :10]).abs().max() / a.abs().max()) for a, b in zip(short, long)]


def layers_that_move(changes: list[float]) -> str:
    """The layers whose keys change, in words."""
    names = [f"layer {n}" for n, change in enumerate(changes, start=1) if change > 1e-5]
    return " and ".join(names) if len(names) < 2 else "both"


# %% [markdown]
# **Guess 2.** In which layer do the keys of the old tokens change when a token is added behind them?

# %%
guess = None  # one of: none, layer 1, layer 2, both

# %%
causal = largest_changes(model)
reveal(
    guess,
    layers_that_move(causal) or "none",
    f"The largest change is {max(causal):g}, no more than rounding. It is the mask that does this. An old token never "
    "looks at a later one, so nothing that comes later can change it, in any layer. What was computed for it is "
    "final.",
    among=["none", "layer 1", "layer 2", "both"],
    mistakes={
        "the upper layer": (
            "layer 2",
            "You thought that layer 2 has mixed in the new token. An old token never looks at it: the mask forbids it.",
        ),
        "everything": ("both", "The mask hides the new token from all old ones, in every layer."),
        "the lower layer": ("layer 1", "A key of layer 1 is made of its token alone."),
    },
)

# %% [markdown]
# So the cache is not an approximation. The text must be the same, then. Here the model writes 60 tokens twice, with the
# same random numbers: once with the cache, once without.

# %%
written = {}
for use_cache in (True, False):
    dice = torch.Generator().manual_seed(5)
    tokens = generate(model, ids[:, :1], SamplingConfig(max_tokens=60, temperature=1.0), dice, use_cache)
    written[use_cache] = [int(token) for token in tokens]
same = sum(a == b for a, b in zip(written[True], written[False]))
say(f"{same} of 60 tokens are the same.")

# %% [markdown]
# ## Without the mask
#
# Some models read a whole text at once, in both directions: a token also sees what comes after it. Here that is an
# option, `causal: false`. (Training refuses it, because such a model would see the answer.) We ask the same question.
#
# **Guess 3.** A model without the mask: in which layer do the keys of the old tokens change when one more token
# follows?

# %%
guess = None  # one of: none, layer 1, layer 2, both

# %%
both_ways = small_model({"kind": "multi_head", "causal": False})
open_eyed = largest_changes(both_ways)
with torch.no_grad():
    at_once = both_ways(ids)[0, -1]  # (V,): what it expects next, when it reads eleven tokens at once
    cache = both_ways.make_cache()
    steps = [both_ways(ids[:, t : t + 1], cache)[0, -1] for t in range(11)]  # 11 of (V,): token by token
    off = float((steps[-1] - at_once).abs().max() / at_once.abs().max())
    right = model(ids)[0, -1]  # (V,): the same with the causal model
    cache = model.make_cache()
    steps = [model(ids[:, t : t + 1], cache)[0, -1] for t in range(11)]
    fine = float((steps[-1] - right).abs().max() / right.abs().max())
reveal(
    guess,
    layers_that_move(open_eyed) or "none",
    "A key of the first layer is made of its token alone, so it stays. But what comes out of the first layer has "
    "already looked at the new token, and the keys of the second layer are made of that: they change by "
    f"{open_eyed[1]:.1%}. A cache would hold keys that are no longer true. Measured: token by token with a cache, the "
    f"scores for the next token are off by {off:.1%} of the largest; those of the causal model by {fine:.0e}. That is "
    "why models that write are causal.",
    among=["none", "layer 1", "layer 2", "both"],
    mistakes={
        "both": ("both", "A key of layer 1 is made before anybody has looked at anybody. It stays as it was."),
        "none": ("none", "That was so with the mask. Now old tokens see the new one, and what they hand on changes."),
        "the lower layer": ("layer 1", "Layer 1 is the only one whose keys are made of the tokens alone."),
    },
)

# %% [markdown]
# ## How large is it?
#
# The cache is paid for with memory. Our model has 2 layers, its keys and values are 64 numbers wide, a number takes 4
# bytes, and it keeps 128 tokens.
#
# **Guess 4.** How many bytes does the whole cache take? (Keys *and* values, in *each* layer.)

# %%
guess = None  # a whole number


# %%
def cache_bytes(attention: object, tokens: int) -> int:
    """The bytes of the cache after so many tokens, in the form in which a model writes."""
    model = make_fast(small_model(attention, block_size=tokens))
    cache = model.make_cache()
    with torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.long), cache)
    return sum(bytes_of(layer) for layer in cache)


reveal(
    guess,
    cache_bytes("multi_head", N),
    f"2 layers x 2 (keys and values) x 64 numbers x 4 bytes x 128 tokens = {2 * 2 * 64 * 4 * 128:,}. For a model of "
    f"the shape of the smallest GPT-2 (12 layers, 768 wide, 1,024 tokens) it is {2 * 12 * 768 * 4 * 1024 / 1e6:.0f} "
    "million bytes for each text that is being written.",
    mistakes={
        "one layer": ((65536, 65536), "That is one layer, or keys without values. There are two of each."),
        "neither twice": (
            (32768, 32768),
            "You have counted the keys of one layer. There are values, and a second layer.",
        ),
        "numbers": ((32768.5, 40000), "You counted numbers. Each takes four bytes."),
    },
)

# %% [markdown]
# For long texts the cache is often what does not fit. Many kinds of attention were invented to keep less:
#
# - `grouped_query`: several heads of queries share one head of keys and values.
# - `sliding_window`: a token sees the last few tokens only, here 16. What is further back can be forgotten.
# - `latent`: a short vector for each token, from which keys and values are made.
# - `gated_delta_net`: no keys at all, but one table of fixed size, into which each token writes. It is called a
#   **state**.

# %%
kinds = {
    "multi_head": "multi_head",
    "grouped_query, 1 head of keys": {"kind": "grouped_query", "n_kv_head": 1},
    "latent": "latent",
    "gated_delta_net": "gated_delta_net",
    "sliding_window of 16": {"kind": "sliding_window", "window": 16},
}
lengths = [64, 128, 256, 512, 1024]
sizes = torch.tensor([[cache_bytes(kind, n) for n in lengths] for kind in kinds.values()])  # (kinds, lengths)
show(matrix(sizes / 1000, list(kinds), [str(n) for n in lengths], "thousands of bytes kept after so many tokens", 0))

# %% [markdown]
# Three of them grow with the text, at different speeds. Two stay as they are, however long the text is. What they give
# up for it is a matter of measuring; `minigpt/comparison/README.md` has tables.
#
# ## The ring of a window
#
# How does a window of four tokens forget? It has four slots. Token 1 goes into slot 1, and so on up to token 4. Then
# token 5 is written over token 1, because nobody can see token 1 any more. It is a ring: after the last slot comes the
# first.
#
# **Guess 5.** Into which slot does token 11 go?

# %%
guess = None  # a whole number

# %%
ring, slots = WindowCache(window=4), []
for token in range(1, 13):
    number = torch.full((1, 1, 1, 1), float(token))  # (B, G, T, d): a key that is just the number of its token
    keys, _ = ring.write(number, number)  # (B, G, slots in use, d)
    if token >= 4:
        slots.append(keys.flatten().clone())  # (4,)
reveal(
    guess,
    slots[11 - 4].tolist().index(11.0) + 1,
    "Count on round the ring: 1 2 3 4, 1 2 3 4, 1 2 3. The order of the slots is not that of the text any more, and "
    "that does no harm: a weighted mean does not care for order, and rotary has turned each key to its place before "
    "it was put away.",
    matrix(
        torch.stack(slots),
        [f"after token {n}" for n in range(4, 13)],
        [f"slot {n}" for n in range(1, 5)],
        "which token lies in which slot",
        decimals=0,
        shade=False,
    ),
    mistakes={
        "the last slot": ((4, 4), "Slot 4 takes the tokens 4, 8 and 12."),
        "eleven": ((11, 11), "There is no slot 11: the ring has four, and is written over."),
        "from zero": ((2, 2), "You began to count at slot 0, or took one round too few: 1 and 5 and 9 go into slot 1."),
    },
)

# %% [markdown]
# ## Prompt and continuation
#
# One thing is left. A text that you give to a model, the **prompt**, is read in one go: all its tokens at the same
# time. What the model adds is read token by token. Both go through the same function. Then there are fewer queries (the
# new tokens) than keys (all tokens), and the mask is no longer a square.
#
# Here is the mask for three new tokens behind five old ones. A row is a new token. A 1 means: it may look there.

# %%
mask = MultiHead(MultiHead.Config(), Shape()).mask(3, 8, ids.device)  # (T, S)
names, new = [str(n) for n in range(1, 9)], ["token 6", "token 7", "token 8"]
show(matrix(mask.float(), new, names, "who may look where", decimals=0))

# %% [markdown]
# And here are scores of the three, and the weights that the mask leaves.

# %% live
new_scores = torch.randn(3, 8)  # (T, S)
show(matrix(new_scores, new, names, "the scores of the new tokens"))
show(matrix(new_scores.masked_fill(~mask, -torch.inf).softmax(dim=-1), new, names, "the weights"))

# %% [markdown]
# The triangle is in the lower *right* corner. Someone who forgets that and cuts a triangle from the left, as with a
# square, lets token 6 see token 1 only. Nothing crashes, the training loss is fine, because in training the mask *is* a
# square. The model just writes nonsense.
#
# So let us check that it does not matter how a text is cut into pieces: all at once, token by token, or eight tokens
# and then three.

# %%
chunk_sizes = {"all at once": [11], "token by token": [1] * 11, "eight, then three": [8, 3]}
last = {}
with torch.no_grad():
    for name, chunks in chunk_sizes.items():
        cache = model.make_cache()
        last[name] = [model(piece, cache)[0, -1] for piece in ids.split(chunks, dim=1)][-1]  # (V,)
apart = max(float((scores - last["all at once"]).abs().max()) for scores in last.values())
say(f"The scores for the next token differ by {apart:.0e} at most: rounding. Prompt and continuation agree.")

# %% [markdown]
# This law is asked of every kind of attention in the project, and of yours before its first step of training.
#
# ## Your turn
#
# Write the cache, and the mask that goes with it.

# %%
exercise("cache")

# %% [markdown]
# ## What to read next
#
# - `minigpt/attention/cache.py`: all caches, from keys and values to a state.
# - "Fast Transformer Decoding: One Write-Head is All You Need" (arXiv 1911.02150): why the size of the cache matters,
#   and one head of keys for all queries. "GQA" (arXiv 2305.13245): something between one and all.
# - "Mistral 7B" (arXiv 2310.06825): a window, and the ring.
# - "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453): what goes wrong when the first
#   tokens are forgotten.
