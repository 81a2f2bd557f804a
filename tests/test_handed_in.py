"""What is handed in is found in its file, built and called, in whatever style it is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minigpt.checks.learners.calls import CHUNKS, CannotCall, Way, example, trial, ways
from minigpt.checks.learners.handed_in import Candidate, candidates
from minigpt.checks.learners.sizes import meaning

HEAD = """\
import math
import torch
from torch import nn
import torch.nn.functional as F

"""
ATTENTION = """\
class Attention(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        {sizes}
        self.H, self.qkv, self.out = H, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x{more}):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.H, -1).transpose(1, 2) for y in self.qkv(x).split(D, -1))
        {before}
        y = F.scaled_dot_product_attention(q, k, v, {mask})
        {after}
        y = self.out(y.transpose(1, 2).reshape(B, T, D))
        return {returns}
"""
QKV, X, CAUSAL = ("query", "key", "value"), ("x",), "is_causal=True"


def attention(arguments: str = "D, H", sizes: str = "", more: str = "", before: str = "", mask: str = CAUSAL,
              after: str = "", returns: str = "y") -> str:  # fmt: skip
    """The text of a class in some style."""
    return HEAD + ATTENTION.format(arguments=arguments, sizes=sizes or "pass", more=more, before=before or "pass",
        mask=mask,
                                   after=after or "pass", returns=returns)  # fmt: skip


def written(folder: Path, text: str, name: str = "mine") -> Path:
    """A file with this text."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def found(folder: Path, text: str, wants: str = "") -> Candidate:
    """The first candidate of a file."""
    return next(candidates(written(folder, text), wants))


def causal(way: Way, thing: Any, chunks: Sequence[int] = ()) -> bool:
    """Whether a way runs, and no earlier output depends on the last token."""
    inputs = example(way.takes, way.sizes, 6)
    other = {name: x.index_add(2 if x.dim() == 4 else 1, torch.tensor([5]), torch.ones_like(x.narrow(-2, 5, 1)))
             for name, x in inputs.items()}  # fmt: skip
    before, after = (trial(way, thing, each, chunks) for each in (inputs, other))
    axis = 2 if before.dim() == 4 else 1
    same = torch.equal(before.narrow(axis, 0, 5), after.narrow(axis, 0, 5))
    return same and not torch.equal(before.narrow(axis, 5, 1), after.narrow(axis, 5, 1))


ROTATED = "q, k = q * cos + torch.cat([-q[..., 4:], q[..., :4]], -1) * sin, k * cos"
BUILT = {  # a class in some style is built, and called with x
    "by names": attention(),
    "a usual name": attention("a, b", "D, H = a, b") + "\nattention = Attention(48, 6)\n",
    "another name": attention("a, b", "D, H = a, b") + "\nlayer7 = Attention(48, 6)\n",
    "below __main__": attention("a, b", "D, H = a, b") + "\nif __name__ == '__main__':\n    m = Attention(48, 6)\n "
        "   main()\n",
    "in main": attention("a, b", "D, H = a, b") + "\ndef main():\n    m = Attention(48, 6)\n    m.cuda()\n",
    "German names": attention("modell_dim, anzahl_koepfe", "D, H = modell_dim, anzahl_koepfe"),
    "guessed by their order": attention("a, b", "D, H = a, b"),
    "a config of any kind": attention("config", "D, H = config.n_embd, config.n_head; assert config.block_size"),
    "a config that is asked for more": attention(
        "config", "D, H = config.dim, config.heads; assert config.kind == 'rope' and not config.use_flash"
    ),
    "a config as a dict": attention("cfg", "D, H = cfg['emb_dim'], cfg.get('n_heads')"),
    "the file's own dict": "CONFIG = {'emb_dim': 768, 'hs': 12, 'n_heads': 12}\n" + attention(
        "cfg", "D, H = cfg['emb_dim'], cfg['n_heads']; assert cfg['hs']"),
    "a dataclass": "from dataclasses import dataclass\n@dataclass\nclass Args:\n    dim: int = 4096\n    n_heads: "
        "int = 32\n    n_kv:"
    " int = None\n" + attention("args: Args", "D, H = args.dim, args.n_heads; assert args.n_kv is None"),
    "a class of settings": "class Settings:\n    width = 512\n    heads = 8\n" + attention(
        "settings", "D, H = settings.width, settings.heads"),
    "a config that refuses its sizes": "class Config:\n    def __init__(self, n_embd=7): assert n_embd == 7; "
        "self.D = 7\n" + attention(
        "config", "D, H = config.n_embd, config.n_head; assert D > 7"),
    "weights that are loaded": attention() + "\nmodel = Attention.from_pretrained('gpt2')\nresult = "
        "train(Attention(48, 6))\n",
    "annotations of later": "from __future__ import annotations\n" + attention().replace("(self, x)",
        "(self, x: Later) -> Later"),
    "sizes at the top": "n_embd = 384\nn_head = 6\nhead_size = n_embd // n_head\n" + attention(
        "", "D, H = n_embd, n_head; assert head_size * H == D").replace("(self, )", "(self)"),
    "lost data": "text = open('input.txt').read()\nvocab_size = len(set(text))\n" + attention("D, H",
        "assert vocab_size > 1"),
    "a training loop below": attention() + "\nm = Attention(48, 6)\nopt = torch.optim.AdamW(m.parameters())\n"
    "data = open('data.bin').read()\nfor step in range(10**9):\n    m(data).sum().backward()\n    opt.step()\n",
    "a device that is not there": "device = 'cuda'\n" + attention(before="q = q + torch.zeros(1, device=device)") + "\n"
    "model = Attention(48, 6).to(device)\n",
    "compiled": attention() + "\n@torch.compile\ndef f(x): return x\nattention = torch.compile(Attention(48, 6))\n",
    "drawing": "import matplotlib.pyplot as plt\nplt.style.use('x')\nfig, ax = None, plt.figure()\n" + attention(),
    "what cannot be imported": "import lightning_x as L\nfrom jaxtyping_x import Float\n" + attention().replace(
        "class Attention(nn.Module)", "class Attention(L.LightningModule)").replace("(self, x)",
        "(self, x: Float[torch.Tensor, 'b t'])"),
    "a command": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--width', type=int, default=48)\n"
    "args = p.parse_args()\n" + attention("H", "D = args.width"),
    "a lazy module": attention("H", "D = 32").replace("nn.Linear(D, 3 * D)", "nn.LazyLinear(3 * 32)"),
    "a function that makes it": attention("a, b", "D, H = a, b") + "\ndef make_attention(D=48, H=6):\n    return "
        "Attention(D, H)\n",
    "constants in other classes": attention("D, H, causal_scale=False", "assert causal_scale") +
        "\nclass Block(nn.Module):\n"
    "    def __init__(self, D, H):\n        super().__init__()\n        self.a = Attention(D, H, causal_scale=True)\n",
    "scores that are scaled if asked for": attention("D, H, scale=False", "assert scale"),
    "a layer as an argument": attention("D, H, norm", "assert isinstance(norm, Norm)") + "\nclass Norm(nn.LayerNorm):\n"
    "    def __init__(self, size): super().__init__(size)\n",
    "a plain class": HEAD + "class Attention:\n    def __init__(self, D, H):\n        self.W = torch.randn(D, D)\n "
        "       self.H = H\n"
    "    def __call__(self, x):\n        return F.scaled_dot_product_attention(x, x, x @ self.W, is_causal=True)\n",
    "a large width": attention("embed_dim, num_heads", "D, H = embed_dim, num_heads") + "\nmodel = Attention(8192, "
        "64)\n",
}  # fmt: skip


@pytest.mark.parametrize("style", BUILT)
def test_a_class_is_built_and_called_in_any_style(style: str, tmp_path: Path) -> None:
    candidate = found(tmp_path, BUILT[style], "multi_head")
    way = next(ways(candidate.thing, X))
    assert causal(way, candidate.thing), (candidate.how, way.how)
    assert sum(one.numel() for one in candidate.thing.parameters()) < 400_000


CALLED = {  # one of the first ways hides the future
    "a mask that keeps": attention(more=", mask=None", mask="attn_mask=mask"),
    "a mask that hides": attention(more=", mask", before="mask = torch.zeros_like(mask, "
        "dtype=q.dtype).masked_fill(mask, -1e9)",
                                   mask="attn_mask=mask"),
    "a mask that is added": attention(more=", attn_mask", before="assert attn_mask.dtype == q.dtype and (attn_mask "
        "<= 0).all()",
                                      mask="attn_mask=attn_mask"),
    "a mask for each row": attention(more=", mask", before="assert mask.shape == (B, 1, T, T)", mask="attn_mask=mask"),
    "a flag": attention(more=", causal=False", mask="is_causal=causal"),
    "a flag that is needed": attention(more=", is_causal", mask="is_causal=is_causal"),
    "cos and sin": attention(more=", cos, sin", before=ROTATED),
    "cos and sin with axes": attention(more=", cos, sin", before="assert cos.dim() == 3; cos, sin = cos[:, None], "
        "sin[:, None]; " + ROTATED),
    "a pair of tables": attention(more=", position_embeddings", before="cos, sin = position_embeddings; " + ROTATED),
    "complex numbers": attention(more=", freqs_cis", before="q = torch.view_as_real(torch.view_as_complex("
                                 "q.float().reshape(*q.shape[:-1], -1, 2)) * freqs_cis).flatten(3).type_as(k)"),
    "tables that the file makes": HEAD + "def rope_tables(seq_len, head_dim):\n    a = "
        "torch.outer(torch.arange(seq_len).double(), "
    "torch.ones(head_dim))\n    return a.cos(), a.sin()\n" + attention(more=", c, rope_sin, rope_cos", before=(
        "cos, sin = rope_cos, rope_sin; " + ROTATED)),
    "positions": attention(more=", input_pos", before="q = q + input_pos[:, None]"),
    "a start": attention(more=", start_pos", before="assert start_pos == 0"),
    "an empty cache": attention(more=", past", before="assert past is None", returns="y, (k, v)"),
    "three times x": attention(more="").replace("forward(self, x)", "forward(self, query, key, value)").replace(
        "B, T, D = x.shape", "assert key is not None; x = query; B, T, D = x.shape"),
    "x and its context": attention(more=", context", before="assert torch.equal(context, x)"),
    "time first": attention().replace("B, T, D = x.shape", "x = x.transpose(0, 1); B, T, D = x.shape").replace(
        "return y", "return y.transpose(0, 1)"),
    "one text": attention().replace("B, T, D = x.shape", "T, D = x.shape; B, x = 1, x[None]").replace("return y",
        "return y[0]"),
    "columns": attention().replace("B, T, D = x.shape", "x = x.mT; B, T, D = x.shape").replace("return y",
        "return y.mT"),
    "a dict": attention(returns="{'weights': None, 'output': y}"),
    "weights first": attention(returns="(q @ k.mT).softmax(-1), y"),
    "an object": "from types import SimpleNamespace\n" +
        attention(returns="SimpleNamespace(attentions=(k,), hidden=y)"),
    "float32 inside": attention(before="q, k, v = q.float(), k.float(), v.double()", after="y = y.double()"),
    "unknown names": attention(more=", zzz, flag: bool", before="assert zzz is None and not flag"),
}  # fmt: skip


@pytest.mark.parametrize("style", CALLED)
def test_a_module_is_called_with_whatever_it_takes(style: str, tmp_path: Path) -> None:
    candidate = found(tmp_path, CALLED[style], "multi_head")
    several = list(ways(candidate.thing, X))
    assert any(causal(way, candidate.thing) for way in several[:12]), [way.how for way in several]
    assert len(several) < 60


def test_what_is_plain_comes_first_and_equal_ways_come_once(tmp_path: Path) -> None:
    candidate = found(tmp_path, attention(more=", mask=None", before="mask = mask if mask is None else mask.bool()",
                                          mask="attn_mask=mask, is_causal=mask is None"))  # fmt: skip
    several = list(ways(candidate.thing, X))
    assert not several[0].settings and several[0].layout == "(B, T, D)"
    assert not any("(1, 1, T, S)" in way.how for way in several)  # it is the same as (T, S)


def test_time_first_is_noted(tmp_path: Path) -> None:
    candidate = found(tmp_path, CALLED["time first"])
    assert any("(T, B, D)" in way.note for way in ways(candidate.thing, X))


GIVEN = {  # functions of given heads, by layout
    "(B, H, T, d)": "assert q.dim() == 4 and q.shape[1] == 3; return F.scaled_dot_product_attention(q, k, v, "
    "is_causal=True)",
    "(B, T, H, d)": "q, k, v = (x.transpose(1, 2) for x in (q, k, v)); assert q.dim() == 4 and q.shape[1] == 3; return "
    "F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)",
    "(B, T, d)": "B, T, d = q.shape; assert B == 2 and T > 4; return F.scaled_dot_product_attention(q, k, v, "
    "is_causal=True)",
    "(T, d)": "T, d = q.shape; return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "(H, T, d)": "H, T, d = q.shape; assert H == 3; return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "(T, B, d)": "T, B, d = q.shape; assert B == 2; q, k, v = (x.transpose(0, 1) for x in (q, k, v)); "
    "return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)",
}


@pytest.mark.parametrize("layout", GIVEN)
def test_a_function_of_queries_keys_and_values_is_called_in_its_layout(layout: str, tmp_path: Path) -> None:
    candidate = found(tmp_path, HEAD + "def attend(q, k, v):\n    " + GIVEN[layout], "attend")
    way = next(way for way in ways(candidate.thing, QKV) if way.layout == layout)
    assert causal(way, candidate.thing)


def test_fewer_key_heads_and_joined_outputs_are_taken(tmp_path: Path) -> None:
    text = (
        HEAD + "def attend(values, keys, queries):\n    k, v = (x.repeat_interleave(queries.shape[1] // x.shape[1], 1) "
        "for x in "
    )
    text += "(keys, values))\n    y = F.scaled_dot_product_attention(queries, k, v, is_causal=True)\n"
    text += "    return y.transpose(1, 2).flatten(2)\n"
    candidate = found(tmp_path, text, "grouped_query")
    way = next(ways(candidate.thing, QKV))
    assert way.sizes["G"] < way.sizes["H"] and way.sizes["e"] != way.sizes["d"] and causal(way, candidate.thing)


def test_rotations_of_one_tensor_and_of_two_give_all_heads(tmp_path: Path) -> None:
    one = found(tmp_path, HEAD + "def rope(x):\n    return x * torch.arange(x.shape[-2])[:, None]\n", "rotary")
    two = found(tmp_path,
                HEAD + "def rope(q, k):\n    return [x * torch.arange(x.shape[-2])[:, None] for x in (q, k)]\n",
                "rotary")  # fmt: skip
    for candidate in (one, two):
        way = next(way for way in ways(candidate.thing, ("query", "key")) if way.layout == "(B, H, T, d)")
        inputs = example(way.takes, way.sizes, 4)
        right = torch.cat([inputs["query"], inputs["key"]], 1) * torch.arange(4)[:, None]
        assert torch.equal(way.run(candidate.thing, inputs), right)


FUNCTIONS = {
    "the file's matrices": "W = torch.randn(24, 24)\ndef attend(x):\n    return (x @ x.mT).tril() @ x @ W\n",
    "a dict of matrices": "P = {'q': torch.randn(24, 24), 'o': (torch.randn(24, 24), torch.randn(24))}\ndef attend(x, "
        "p=P):\n    return x @ p['q'] @ p['o'][0] + p['o'][1]\n",
    "matrices as arguments": "def attend(x, W_q, W_k, W_v, n_heads):\n    assert n_heads > 1\n    return (x @ W_q "
        "@ (x @ W_k).mT) @ x @ W_v\n",
    "matrices that the file makes": "def init_params(d_model, key):\n    return {'W': torch.randn(d_model, d_model)}\n"
    "def attend(params, x):\n    return x @ params['W']\n",
    "a norm": "def rms_norm(x, weight, eps=1e-6):\n    return x * weight\n",
    "a script": "B, T, C = 2, 8, 24\nx = torch.randn(B, T, C)\nproj = nn.Linear(C, C)\nq = proj(x)\nout = (q @ "
        "q.mT).softmax(-1) @ x\nprint(out.shape)\n",
}  # fmt: skip


@pytest.mark.parametrize("style", FUNCTIONS)
def test_the_matrices_of_functions_and_scripts_are_parameters(style: str, tmp_path: Path) -> None:
    candidate = found(tmp_path, HEAD + FUNCTIONS[style], "norm" if style == "a norm" else "multi_head")
    assert [*candidate.thing.parameters()], candidate.how
    way = next(ways(candidate.thing, X))
    inputs = example(X, way.sizes, 5)
    before = way.run(candidate.thing, inputs)
    with torch.no_grad():
        for one in candidate.thing.parameters():
            one.copy_(torch.randn(one.shape))
    assert before.shape[:2] == (2, 5)
    assert not torch.equal(way.run(candidate.thing, inputs), before)


GPT = (
    HEAD
    + """\
class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        D, V = config.n_embd, config.vocab_size
        self.emb, self.head = nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, idx, targets{default}):
        logits = self.head(self.emb(idx))
        {short}
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
"""
)


@pytest.mark.parametrize("short", ["pass", "if targets is None: return logits[:, -1:], None"])
@pytest.mark.parametrize("default", ["", "=None"])
def test_a_model_of_ids_gives_all_logits_and_its_loss(default: str, short: str, tmp_path: Path) -> None:
    candidate = found(tmp_path, GPT.format(default=default, short=short), "gpt")
    way = next(ways(candidate.thing, ("ids",)))
    assert trial(way, candidate.thing, example(("ids",), way.sizes, 5)).shape == (2, 5, way.sizes["V"])
    way = next(ways(candidate.thing, ("ids", "targets")))
    assert trial(way, candidate.thing, example(("ids", "targets"), way.sizes, 5)).shape == ()


LECTURE = (
    HEAD
    + """\
batch_size = 64
block_size = 256
max_iters = 5000
device = 'cuda' if torch.cuda.is_available() else 'cpu'
n_embd = 384
n_head = 6
n_layer = 6
torch.manual_seed(1337)
with open('input.txt', 'r', encoding='utf-8') as f:
    text = f.read()
chars = sorted(list(set(text)))
vocab_size = len(chars)
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)
train_data = data[:int(0.9 * len(data))]

def get_batch(split):
    ix = torch.randint(len(train_data) - block_size, (batch_size,))
    return torch.stack([train_data[i:i + block_size] for i in ix])

@torch.no_grad()
def estimate_loss():
    model.eval()
    return model(get_batch('train'))

class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(self.tril[:x.shape[1], :x.shape[1]] == 0, float('-inf')).softmax(-1) @ v

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], -1))

class GPTLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[MultiHeadAttention(n_head, n_embd // n_head) for _ in range(n_layer)])
        self.head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        x = self.blocks(self.token(idx) + self.position(torch.arange(idx.shape[1], device=device)))
        logits = self.head(x)
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())

model = GPTLanguageModel()
m = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for iter in range(max_iters):
    logits, loss = model(get_batch('train'))
    loss.backward()
    optimizer.step()
open('more.txt', 'w').write('done')
"""
)


@pytest.mark.parametrize(("wants", "takes"), [("single_head", X), ("multi_head", X), ("gpt", ("ids",))])
def test_a_lecture_s_file_is_called_as_it_is_with_small_sizes(
    wants: str, takes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = candidates(written(tmp_path, LECTURE), wants)
    classes = {"single_head": "Head", "multi_head": "MultiHeadAttention", "gpt": "GPTLanguageModel"}
    candidate = next(one for one in listed if type(one.thing).__name__ == classes[wants])
    way = next(ways(candidate.thing, takes))
    assert trial(way, candidate.thing, example(takes, way.sizes, 6)).shape[:2] == (2, 6)
    assert sum(one.numel() for one in candidate.thing.parameters()) < 100_000
    assert [one.name for one in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    "body", ["F.cross_entropy(logits, targets)", "F.cross_entropy(logits.flatten(0, 1), targets.flatten())"]
)
def test_a_loss_takes_rows_or_texts(body: str, tmp_path: Path) -> None:
    candidate = found(tmp_path, HEAD + f"def loss(targets, logits):\n    return {body}\n", "loss")
    way = next(ways(candidate.thing, ("logits", "targets")))
    inputs = example(("logits", "targets"), way.sizes, 5)
    right = torch.nn.functional.cross_entropy(inputs["logits"].flatten(0, 1), inputs["targets"].flatten())
    assert torch.equal(way.run(candidate.thing, inputs), right)


LAST = "is_causal=False, attn_mask=torch.ones(T, k.shape[2]).tril(k.shape[2] - T).bool()"
JOIN = "k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)"
NEW, ALL = "[:B, :, start_pos:start_pos + T]", "[:B, :, :start_pos + T]"
STATIC = f"self.k{NEW}, self.v{NEW} = k, v; k, v = self.k{ALL}, self.v{ALL}"
CACHED = {
    "returned": attention(more=", layer_past=None", before=f"past = layer_past\n        if past: {JOIN}", mask=LAST,
        returns="y, (k, v)"),
    "returned if asked": attention(more=", past_kv=None, use_cache=False", before=f"past = past_kv\n        if "
        f"past: {JOIN}", mask=LAST,
                                   returns="(y, (k, v)) if use_cache else y"),
    "a dict": attention(more=", cache=None", before="cache = {} if cache is None else cache; past = cache.get('kv')\n"
                        f"        if past: {JOIN}\n        cache['kv'] = k, v", mask=LAST),
    "update": attention(more=", past_key_value=None, layer_idx=None", before="if past_key_value is not None: k, v = "
                        "past_key_value.update(k, v, layer_idx)", mask=LAST),
    "the file's own class": attention(more=", kv_cache=None", before="if kv_cache is not None: k, v = "
        "kv_cache.put(k, v)", mask=LAST) +
    "\nclass KVCache:\n    def __init__(self): self.k = []; self.v = []\n    def put(self, k, v):\n        "
        "self.k.append(k); self.v.append(v)\n        return torch.cat(self.k, 2), torch.cat(self.v, 2)\n",
    "make_cache": attention(more=", cache=None", before=f"past = (cache or [None])[0]\n        if past: {JOIN}\n       "
        f" if cache: cache[0] = (k, v)", mask=LAST).replace(
        "    def forward", "    def make_cache(self, batch_size): return [None]\n\n    def forward"),
    "kept": attention("D, H", "self.past = None", before=f"past = self.past\n        if past: {JOIN}\n        "
        f"self.past = k, v",
                      mask=LAST).replace("    def forward", "    def reset_cache(self): self.past = None\n\n    "
                      "def forward"),
    "kept without a reset": attention("D, H", "self.past = None", before=f"past = self.past\n        if past: {JOIN}\n"
                                      "        self.past = k, v", mask=LAST),
    "buffers with a start": attention("D, H, max_seq_len", "[self.register_buffer(n, torch.zeros(4, H, max_seq_len, D "
        "// H)) for n in 'kv']", more=", start_pos", before=STATIC, mask=LAST),
    "positions go on": attention(more=", layer_past=None, position_ids=None", before="q = q + (torch.arange(T) if "
        f"position_ids is None else position_ids)[:, None]; past = layer_past\n        if past: {JOIN}",
                                 mask=LAST,
                                 returns="y, (k, v)"),
    "tables go on": attention(more=", cos, sin, past=None", before=ROTATED.replace(", k * cos", ", k * sin") +
                              f"\n        if past: {JOIN}", mask=LAST, returns="y, (k, v)"),
    "a mask for all": attention(more=", mask=None, past=None", before=f"if past: {JOIN}", mask="attn_mask=mask",
        returns="y, (k, v)"),
}  # fmt: skip


@pytest.mark.parametrize("style", CACHED)
def test_a_text_is_fed_in_chunks_through_any_cache(style: str, tmp_path: Path) -> None:
    candidate = found(tmp_path, CACHED[style], "multi_head,cache")
    several = list(ways(candidate.thing, X, chunks=True))
    fitting = []
    for way in several:
        inputs = example(X, way.sizes, sum(CHUNKS))
        with suppress(RuntimeError):  # in another layout it may not run
            chunked, whole = (trial(way, candidate.thing, inputs, chunks) for chunks in (CHUNKS, ()))
            fitting.append(chunked.allclose(whole) and causal(way, candidate.thing, CHUNKS))
    assert fitting[0], [way.how for way in several]
    inputs = example(X, several[0].sizes, 10)
    again = [several[0].run(candidate.thing, inputs, (5, 1, 3, 1)) for _ in range(2)]
    assert torch.equal(*again)  # nothing is left behind


def test_without_a_cache_a_chunk_knows_only_itself(tmp_path: Path) -> None:
    candidate = found(tmp_path, attention())
    way = next(ways(candidate.thing, X, chunks=True))
    inputs = example(X, way.sizes, sum(CHUNKS))
    assert not way.run(candidate.thing, inputs, CHUNKS).allclose(way.run(candidate.thing, inputs))


def test_every_thing_of_a_file_is_offered_small_to_large_or_what_is_wanted_first(tmp_path: Path) -> None:
    text = (
        attention()
        + "\nclass Block(nn.Module):\n    def __init__(self, D, H):\n        super().__init__()\n        self.a = "
    )
    text += "Attention(D, H)\n    def forward(self, x): return x + self.a(x)\n\nclass Alone(nn.Linear):\n"
    text += "    def __init__(self, D): super().__init__(D, D)\n\ndef attend(q, k, v): return v\n"
    path = written(tmp_path, text)
    names = list(dict.fromkeys(one.name for one in candidates(path)))
    assert set(names) == {"Attention", "Block", "Alone", "attend"} and names.index("Attention") < names.index("Block")
    assert next(candidates(path, "block")).name == "Block"
    assert next(candidates(path, "multi_head")).name == "Attention"
    assert next(candidates(path, "attend")).name == "attend"


def test_a_name_that_the_file_uses_keeps_its_value(tmp_path: Path) -> None:
    path = written(tmp_path, attention("D, H", "assert attention == 3") + "\nattention = 3\nmodel = Attention(48, 6)\n")
    assert next(candidates(path)).name == "model"


def test_files_beside_it_can_be_imported(tmp_path: Path) -> None:
    written(tmp_path, "width = 36\n", "parts")
    for line in ("from parts import width", "from .parts import width", "from . import parts; width = parts.width"):
        candidate = found(tmp_path, f"{line}\n" + attention("H", "D = width"))
        assert next(ways(candidate.thing, X)).sizes["D"] == 36
    assert "parts" not in sys.modules


def test_what_is_absent_is_named_where_it_is_used(tmp_path: Path) -> None:
    candidate = found(tmp_path, "from nowhere.layers import helper\n" + attention(before="q = helper(q)"))
    with pytest.raises(CannotCall, match=r"helper.*could not be imported.*nowhere"):
        next(ways(candidate.thing, X))


def test_an_empty_file_and_a_faulty_one_say_so(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nothing to check was found"):
        found(tmp_path, "a = 3\n")
    with pytest.raises(SyntaxError):
        found(tmp_path, "def f(:\n")
    with pytest.raises(ZeroDivisionError):
        found(tmp_path, attention("D, H", "1 / 0"))


def test_nothing_stays_changed_behind(tmp_path: Path) -> None:
    before = torch.compile, torch.get_default_dtype(), [*sys.path], sys.argv, torch.cuda.is_available
    for text in (BUILT["compiled"], BUILT["a command"]):
        next(ways(found(tmp_path, text).thing, X))
    assert before == (torch.compile, torch.get_default_dtype(), sys.path, sys.argv, torch.cuda.is_available)


def test_float32_and_the_numbers_of_the_file_are_noted(tmp_path: Path) -> None:
    text = (
        attention("a, b", "D, H = a, b; self.table = torch.ones(3, dtype=torch.float32)")
        + "\nattention = Attention(48, b=6)\n"
    )
    candidate = found(tmp_path, text)
    assert candidate.float32 and candidate.thing.table.dtype == torch.float64
    assert candidate.numbers == {"a": 48, "b": 6}
    assert not found(tmp_path, attention()).float32


def test_a_way_runs_in_float32_too(tmp_path: Path) -> None:
    candidate = found(tmp_path, CALLED["cos and sin"])
    way = next(ways(candidate.thing, X))
    x: Tensor = example(X, way.sizes, 5)["x"].float()
    assert way.run(candidate.thing.float(), {"x": x}).dtype == torch.float32


@pytest.mark.parametrize(("name", "axis"), [
    ("n_embd", "D"), ("hidden_size", "D"), ("d_model", "D"), ("num_heads", "H"), ("nhead", "H"),
        ("num_attention_heads", "H"),
    ("n_kv_heads", "G"), ("numKvGroups", "G"), ("head_dim", "d"), ("d_k", "d"), ("n_embd_per_head", "d"),
        ("block_size", "T"),
    ("max_position_embeddings", "T"), ("vocab_size", "V"), ("n_layer", "L"), ("num_hidden_layers", "L"), ("d_ff", "W"),
    ("dropout_rate", "drop"), ("qkv_bias", "bias"), ("rope_theta", "base"), ("norm_eps", "eps"), ("layer_idx",
        "number"),
    ("mlp_ratio", ""), ("rotary_dim", ""), ("multiple_of", ""), ("tie_word_embeddings", ""), ("window_size", "window"),
])  # fmt: skip
def test_names_have_their_usual_meaning(name: str, axis: str) -> None:
    assert meaning(name) == axis
