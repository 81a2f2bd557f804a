"""In which forms answers come: configs, plain classes, other shapes of masks and parameters, shuffled rotations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_meant import ATTENTION, HEAD, check, is_wrong, passes

import minigpt
from minigpt.grading.arguments import axis_of
from minigpt.grading.load import run_file
from minigpt.system.errors import UserError

CONFIGURED = (
    ATTENTION.replace("some_width, some_heads", "{argument}")
    .replace("self.h = some_heads", "self.h = {read}_heads")
    .replace("some_width", "{read}_width")
    .replace("super().__init__()", "super().__init__()\n        self.extra = {read}_odd")
)


@pytest.mark.parametrize(
    ("own", "argument", "read"),
    [
        ("class Setup:\n    n_width, n_heads, n_odd = 48, 6, 1\n", "c: Setup", "c.n"),
        ("from typing import NamedTuple\nclass Args(NamedTuple):\n    n_heads: int\n    n_width: int = 48\n"
         "    n_odd: int = 1\n", "args", "args.n"),
        ("SMALL = {'n_width': 48, 'n_heads': 6, 'n_odd': 1}\n", "cfg", "cfg['n"),
    ],
    ids=["a class", "a named tuple", "a dict"],
)  # fmt: skip
def test_a_config_of_the_file_gets_the_sizes_of_the_check(own: str, argument: str, read: str, tmp_path: Path) -> None:
    code = CONFIGURED.replace("{argument}", argument)
    for word in ("heads", "width", "odd"):
        code = code.replace(f"{{read}}_{word}", f"{read}_{word}" + ("']" if "['" in read else ""))
    report = check(tmp_path, "multi_head", own + code)
    passes(report)
    assert "sizes: D = 70" in " ".join(report.how), report


def test_names_of_arguments_are_read_by_their_words() -> None:
    said = {
        "n_query_heads": "H", "numAttentionHeads": "H", "n_key_value_heads": "G", "num_query_groups": "G",
        "head_width": "d", "num_hiddens": "D", "model_size": "D", "ffn_hidden_size": "W", "max_context": "T",
        "num_hidden_layers": "L", "heads_per_group": "", "rope_theta": "", "eps": "", "num_heads_and_more": "",
    }  # fmt: skip
    assert {name: axis_of(name) for name in said} == said


@pytest.mark.slow
def test_other_sizes_are_tried_where_an_answer_cannot_have_those_of_the_check(tmp_path: Path) -> None:
    code = ATTENTION.replace("some_width", "width").replace("some_heads", "heads").replace(
        "self.h = heads", "self.h = heads\n        assert width // heads % 8 == 0")  # fmt: skip
    report = check(tmp_path, "multi_head", code)
    passes(report)
    assert "width=80" in report.how[0] and "by the names" in report.how[0], report
    odd = check(tmp_path, "multi_head", code.replace("self.out(y", "self.out(y.flip(2)"))
    assert odd.verdict == "cannot tell", odd


HIDES = ATTENTION.replace("some_width", "width").replace("some_heads", "heads").replace(
    "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "s = q @ k.mT / q.shape[-1] ** 0.5\n        y = {}.softmax(-1) @ v",
)  # fmt: skip


@pytest.mark.parametrize(
    "hide",
    ["s.masked_fill(torch.ones(T, T).triu(1) > 0, -65504.0)", "(s + (1 - torch.ones(T, T).tril()) * -10000.0)",
     "(s - 2e5 * torch.ones(T, T).triu(1))"],
)  # fmt: skip
def test_a_large_number_hides_as_well_as_infinity(hide: str, tmp_path: Path) -> None:
    passes(check(tmp_path, "multi_head", HIDES.format(hide)), "enough, as long as all scores stay far above")


@pytest.mark.slow
def test_a_number_that_is_too_small_to_hide_is_named(tmp_path: Path) -> None:
    code = HIDES.format("(s + torch.ones(T, T).triu(1) * -50)")
    is_wrong(check(tmp_path, "multi_head", code), "hidden scores become -50: too little")


SQUARE = '''
def attend(q, k, v):
    """{}"""
    T, S, d = q.shape[1], k.shape[1], q.shape[2]
    hidden = torch.arange(T)[:, None] < torch.arange(S)
    return (q @ k.mT / d ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v
'''


def test_as_many_queries_as_keys_where_the_text_says_so(tmp_path: Path) -> None:
    passes(check(tmp_path, "attend", SQUARE.format("T must equal S.")), "as many queries as keys")
    is_wrong(check(tmp_path, "attend", SQUARE.format("q (B, T, d), k and v (B, S, d)")), "upper left corner")


def test_a_text_that_says_that_there_is_no_mask_is_taken_at_its_word(tmp_path: Path) -> None:
    code = SQUARE.replace(".masked_fill(hidden, -torch.inf)", "").replace("softmax(-1)", "softmax(1)")
    report = check(tmp_path, "attend", code.format("The weights have no mask."))
    is_wrong(report, "over the queries")
    assert len(report.names) == 1, report


PARALLEL = """
class Block(nn.Module):
    def __init__(self, dim, heads, inner=128):
        super().__init__()
        self.h, self.sizes = heads, (dim, dim, dim, inner, inner)
        self.norm = nn.LayerNorm(dim)
        self.read, self.write = nn.Linear(dim, 3 * dim + 2 * inner), nn.Linear(dim + inner, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v, gate, up = self.read(self.norm(x)).split(self.sizes, -1)
        q, k, v = (y.reshape(B, T, self.h, D // self.h).transpose(1, 2) for y in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        return x + self.write(torch.cat((a, F.silu(gate) * up), -1))
"""


@pytest.mark.slow
def test_a_parallel_block_may_join_all_that_reads_x_and_all_that_writes_it(tmp_path: Path) -> None:
    passes(check(tmp_path, "block", PARALLEL), "side by side")


STACKED = """
class Feed(nn.Module):
    def __init__(self, dim, inner=28):
        super().__init__()
        self.wi, self.wo = nn.Parameter(torch.randn(dim, 2, inner)), nn.Parameter(torch.randn(inner, dim))

    def forward(self, x):
        up, gate = torch.einsum("btd,dnw->nbtw", x, self.wi)
        return (up * F.gelu(gate)) @ self.wo
"""


def test_an_axis_of_a_parameter_may_count_its_matrices(tmp_path: Path) -> None:
    passes(check(tmp_path, "mlp", STACKED), "GeGLU")


@pytest.mark.slow
@pytest.mark.parametrize(("moves", "words"), [("+= 1", "grows by one in every call"), ("= T", "of the last call")])
def test_a_place_in_a_cache_that_is_counted_wrongly_is_named(moves: str, words: str, tmp_path: Path) -> None:
    code = ATTENTION.replace("some_width", "width").replace("some_heads", "heads").replace(
        "self.h = heads", "self.h, self.n = heads, 0\n        self.kept = torch.zeros(2, 4, heads, 64, width // heads)"
    ).replace("(self, x)", "(self, x, use_cache=False)").replace(
        "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "        n = self.n if use_cache else 0\n        if use_cache:\n"
        "            self.kept[:, :B, :, n : n + T] = torch.stack((k, v))\n"
        "            k, v = self.kept[:, :B, :, : n + T]\n            self.n MOVES\n"
        "        y = F.scaled_dot_product_attention(q, k, v, torch.ones(T, n + T).bool().tril(n))",
    ) + "    def reset(self):\n        self.n = 0\n"  # fmt: skip
    passes(check(tmp_path, "multi_head,cache", code.replace("MOVES", "+= T")))
    is_wrong(check(tmp_path, "multi_head,cache", code.replace("MOVES", moves)), words)


WHOLE = """
class SelfAtt(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))

class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.att, self.one, self.two = SelfAtt(dim, heads), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.att(self.one(x))
        return x + self.feed(self.two(x))

class Network(nn.Module):
    def __init__(self, vocab_size, dim, heads, layers):
        super().__init__()
        self.token, self.place = nn.Embedding(vocab_size, dim), nn.Embedding(64, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size)

    def forward(self, ids):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("announced", "name"), [("gpt", "Network"), ("block", "DecoderLayer"), ("multi_head", "SelfAtt")]
)
def test_the_class_that_is_built_is_the_one_that_was_announced(announced: str, name: str, tmp_path: Path) -> None:
    report = check(tmp_path, announced, WHOLE)
    passes(report)
    assert report.how[0].startswith(f"built: {name}("), report


MASKED = """
def attend(q, k, v, mask=None):
    '''(time, batch, features)'''
    s = torch.einsum("tbd,sbd->tsb", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        s = s.masked_fill(mask == 0, -torch.inf){}
    return torch.einsum("tsb,sbd->tbd", s.softmax(1), v)
"""


@pytest.mark.slow
def test_a_mask_may_have_the_axes_of_scores_that_end_with_the_batch(tmp_path: Path) -> None:
    passes(check(tmp_path, "attend", MASKED.format("")), "the sequence is the first axis")
    report = check(tmp_path, "attend", MASKED.format(" + mask.cause"))
    assert report.verdict == "cannot tell" and "no way was found to give it one" in report.names[0], report


SHUFFLED = """
def turn(x):
    T, d = x.shape[-2:]
    angles = torch.arange(T).double().outer(10000 ** (-torch.arange(0, d, 2).double() / d))
    cos, sin, even, odd = angles.cos(), angles.sin(), x[..., ::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
"""


def test_the_features_of_a_rotation_may_come_in_another_order(tmp_path: Path) -> None:
    passes(check(tmp_path, "rotary", SHUFFLED), "another order")
    assert not check(tmp_path, "rotary", SHUFFLED.replace("odd * cos +", "odd * cos -")).verdict.startswith("right")


MIXED = (
    SHUFFLED.replace("def turn(x)", "def turn(x, halves)").replace(
        "    return",
        "    if halves:\n        even, odd = x.chunk(2, -1)\n    else:\n        return torch.stack("
        "(even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)\n    return",
    )
    + "\ndef rotary(q, k):\n    return turn(q, False), turn(k, True)\n"
)


def test_query_and_key_are_rotated_in_different_pairs(tmp_path: Path) -> None:
    is_wrong(check(tmp_path, "rotary", MIXED), "different pairs, the query interleaved")
    other = MIXED.replace("(q, False), turn(k, True)", "(q, True), turn(k, False)")
    is_wrong(check(tmp_path, "rotary", other), "different pairs, the key interleaved")


FILLED = """
def attend(q, k, v):
    later = torch.ones(1, 1, q.shape[-2], k.shape[-2]).triu(k.shape[-2] - q.shape[-2] + 1)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later == 1, 1e-9).softmax(-1) @ v
"""


FILLS = {
    "1e-9": "1e-9, which is almost 0",
    "3 / 4": "become 0.75, not -inf",
    "float(1e5)": "become 100000, not -inf",
}


@pytest.mark.parametrize("number", FILLS)
def test_what_a_mask_is_filled_with_is_told(number: str, tmp_path: Path) -> None:
    is_wrong(check(tmp_path, "attend", FILLED.replace("1e-9", number)), FILLS[number])


ONE_SHAPE = """
def attend(q, k, v):
    'Causal; all of them are {}.'
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
"""


def test_inputs_of_one_shape_are_as_many_queries_as_keys(tmp_path: Path) -> None:
    passes(check(tmp_path, "attend", ONE_SHAPE.format("(B, H, T, d)")), "written for as many queries as keys")
    is_wrong(check(tmp_path, "attend", ONE_SHAPE.format("float64")), "upper left corner")


PLAIN = """
class Linear:
    def __init__(self, n):
        self.W, self.b = torch.randn(n, n), torch.zeros(n)
    def __call__(self, x):
        return x @ self.W + self.b

class SelfAttention:
    def __init__(self, dim, heads):
        self.h, self.p = heads, {name: Linear(dim) for name in 'qkv'}
        self.out, self.mask = Linear(dim), torch.ones(64, 64).tril()
    def __call__(self, x):
        B, T, C = x.shape
        q, k, v = (self.p[n](x).view(B, T, self.h, -1).transpose(1, 2) for n in 'qkv')
        s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(self.mask[:T, :T] == 0, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
"""


def test_a_plain_class_may_hold_the_matrices(tmp_path: Path) -> None:
    passes(check(tmp_path, "multi_head", PLAIN))
    passes(check(tmp_path, "multi_head", f"{PLAIN}\nattention = SelfAttention(20, 5)\n"))
    is_wrong(check(tmp_path, "multi_head", PLAIN.replace(" * q.shape[-1] ** -0.5", "")), "not scaled")


def test_an_object_of_a_plain_class_is_checked_in_a_notebook_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "cell.py"
    path.write_text(HEAD + PLAIN, encoding="utf-8")
    mine = run_file(path)["SelfAttention"](20, 5)  # in float32
    before = mine.out.W.clone()
    passes(minigpt.check(mine))
    assert mine.out.W.dtype == torch.float32 and torch.equal(mine.out.W, before)
    with pytest.raises(UserError, match="expected a function"):
        minigpt.check(3)


TWICE = """
class GQA(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        g, r, d = kv_heads, heads // kv_heads, width // heads
        self.wq, self.wk = nn.Parameter(torch.randn(width, g, r, d)), nn.Parameter(torch.randn(width, g, d))
        self.wv, self.wo = nn.Parameter(torch.randn(width, g, d)), nn.Parameter(torch.randn(g, r, d, width))
    def forward(self, x):
        q = torch.einsum('btw,wgrd->bgrtd', x, self.wq)
        k, v = (torch.einsum('bsw,wgd->bgsd', x, w)[:, :, None] for w in (self.wk, self.wv))
        late = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
        a = (q @ k.mT * k.shape[-1] ** -0.5).masked_fill(late, -torch.inf).softmax(-1) @ v
        return torch.einsum('bgrtd,grdw->btw', a, self.wo)
"""


def test_two_axes_may_count_the_heads(tmp_path: Path) -> None:
    passes(check(tmp_path, "grouped_query", TWICE))


def test_scores_may_be_a_function_of_queries_and_keys(tmp_path: Path) -> None:
    passes(check(tmp_path, "dot_product", "def score(queries, keys):\n    return queries @ keys.mT\n"))
    is_wrong(check(tmp_path, "dot_product", "def score(queries, keys):\n    return keys @ queries.mT\n"), "rows belong")


BILINEAR = """
class Weights(nn.Module):
    def __init__(self, width, head_dim):
        super().__init__()
        self.head_dim = head_dim
        self.NAME = nn.Parameter(torch.randn(width, width) / width)
    def forward(self, x):
        scores = torch.einsum("btc,cd,bsd->bts", x, self.NAME, x) / self.head_dim ** 0.5
        return scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf).softmax(-1)
attention = Weights(12, 4)
"""


def test_one_matrix_may_stand_for_query_and_key_but_a_missing_key_may_not(tmp_path: Path) -> None:
    passes(check(tmp_path, "attention_weights", BILINEAR.replace("NAME", "A")))
    is_wrong(check(tmp_path, "attention_weights", BILINEAR.replace("NAME", "A").replace("triu(1)", "triu(2)")), "next")
    assert not check(tmp_path, "attention_weights", BILINEAR.replace("NAME", "w_query")).verdict.startswith("right")


def test_joined_heads_that_are_wider_than_the_model_may_be_cut(tmp_path: Path) -> None:
    report = check(tmp_path, "multi_head", """
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.n_head, self.head_dim = 3, 6
            self.query, self.key, self.value = (nn.Linear(12, 18) for _ in range(3))
            self.out = nn.Linear(18, 12)
        def forward(self, x):
            B, T, D = x.shape
            q, k, v = (f(x).view(B, T, 3, 6).transpose(1, 2) for f in (self.query, self.key, self.value))
            hidden = torch.ones(T, T).triu(1).bool()
            weights = (q @ k.mT / 6 ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
            return (weights @ v).transpose(1, 2).flatten(2)[..., :D]
    attention = Attention()
    """)  # fmt: skip
    is_wrong(report, "the output projection is made, but never used")
