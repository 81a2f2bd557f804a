"""Learners' answers: right ones in many styles are right, and each mutant gets its sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from learner_styles import MUTANTS, STYLES, TARGETS
from torch import nn

import minigpt
from minigpt.grading.clock import Clock
from minigpt.grading.grade import grade_answer
from minigpt.grading.load import find_answer, run_file
from minigpt.grading.report import Report
from minigpt.grading.targets import find_target
from minigpt.system.errors import UserError

CONVENTIONS = {
    "gq_tile": "tiled",
    "mh_dh": "interleaved",
    "mh_tbd": "first axis",
    "rot_hf": "i + d/2",
    "sh_karpathy": "no output projection",
}
ONE_SEQUENCE = "mean_1d"  # right for (T, D) only


def target_of(style: str) -> str:
    return TARGETS[style.split("_")[0]]


def check(source: str, announced: str, folder: Path) -> Report:
    """The report on a source, without a process of its own."""
    path, target = folder / "answer.py", find_target(announced)
    path.write_text(source, encoding="utf-8")
    answer = find_answer(run_file(path), target, path)
    answer.clock = Clock(100.0)  # time enough on any machine
    return grade_answer(answer, target)


@pytest.mark.parametrize("style", [style for style in STYLES if style != ONE_SEQUENCE])
def test_a_right_answer_is_right_in_any_style(style: str, tmp_path: Path) -> None:
    report = check(STYLES[style], target_of(style), tmp_path)
    if style in CONVENTIONS:
        assert report.verdict == "right, in another convention" and CONVENTIONS[style] in " ".join(report.names)
    else:
        assert report.verdict == "right", report
    assert report.exit_code == 0 and report.how


def test_a_dot_product_may_be_scaled(tmp_path: Path) -> None:
    """As in most textbooks; the report says which convention it is."""
    old = "w = x @ x.transpose(-1, -2)"
    report = check(STYLES["dot_ok"].replace(old, f"{old} / x.shape[-1] ** 0.5"), "dot_product", tmp_path)
    assert report.verdict == "right, in another convention" and report.names


SAMPLED = [n if n % 12 == 1 else pytest.param(n, marks=pytest.mark.slow) for n in range(len(MUTANTS))]  # a twelfth here


@pytest.mark.parametrize("number", SAMPLED)
def test_a_mutant_gets_its_sentence(number: int, tmp_path: Path, whole: bool) -> None:
    if number % 4 and number % 12 != 1 and not whole:
        pytest.skip("one of those that --whole adds")
    style, old, new, words = MUTANTS[number]
    assert old in STYLES[style]
    report = check(STYLES[style].replace(old, new), target_of(style), tmp_path)
    assert report.verdict == "wrong" and report.exit_code == 2, report
    assert len(report.names) == 1 and words in report.names[0], report
    assert len(report.fixes) == 1 and not report.measured


LINES = [  # (style, old, new, the line that is shown)
    ("mh_rasbt", "keys.shape[-1]**0.5", "self.d_out**0.5", "self.d_out**0.5"),
    ("mh_rasbt", "(attn_weights @ values).transpose(1, 2)", "(attn_weights @ values)", "context_vec ="),
    ("mh_rasbt", "dim=-1)", "dim=-2)", "dim=-2)"),
    ("mh_sdpa", "is_causal=True", "is_causal=True, scale=c ** -0.5", "scale=c ** -0.5"),
    ("mh_einsum", "/ self.d ** 0.5", "* self.d ** 0.5", "* self.d ** 0.5"),
    ("rot_complex", "torch.arange(0, d, 2) / d", "torch.arange(0, d // 2) / d", "freqs ="),
    ("weights_ok", "+ S - T", "", "masked_fill"),
]


@pytest.mark.parametrize(("style", "old", "new", "shown"), LINES)
def test_the_line_of_the_first_wrong_number_is_shown(
    style: str, old: str, new: str, shown: str, tmp_path: Path
) -> None:
    report = check(STYLES[style].replace(old, new), target_of(style), tmp_path)
    assert shown in report.code, report


def renamed(source: str, names: list[str]) -> str:
    """The same with every name of a parameter replaced by a letter and a number."""
    for number, name in enumerate(names):
        source = re.sub(rf"\bself\.{name}\b", f"self.z{number}", source)
    return source


BLIND = ["W_query", "W_key", "W_value", "out_proj", "qkv", "out", "q", "k", "v", "o", "num_heads", "heads", "head_dim"]


@pytest.mark.parametrize("style", ["mh_rasbt", "mh_sdpa", "cache_tuple", "rot_complex"])
def test_names_of_parameters_decide_nothing(style: str, tmp_path: Path) -> None:
    source = renamed(STYLES[style], BLIND)
    assert source != STYLES[style]
    assert check(source, target_of(style), tmp_path).verdict == "right"


def test_a_name_does_not_depend_on_names_of_parameters(tmp_path: Path) -> None:
    source = renamed(STYLES["mh_rasbt"], BLIND)
    for old, new, words in [
        ("keys.shape[-1]**0.5", "self.d_out**0.5", "sqrt(D)"),
        ("dim=-1)", "dim=-2)", "over the queries"),
        ("(attn_weights @ values).transpose(1, 2)", "(attn_weights @ values)", "joined without"),
    ]:
        assert old in source
        report = check(source.replace(old, new), "multi_head", tmp_path)
        assert report.verdict == "wrong" and words in report.names[0], report


@pytest.mark.parametrize("sizes", ["28, 4", *(pytest.param(s, marks=pytest.mark.slow) for s in ("60, 10", "84, 7"))])
def test_names_are_the_same_with_other_sizes(sizes: str, tmp_path: Path) -> None:
    source = STYLES["mh_sdpa"].replace("MultiHead(48, 6)", f"MultiHead({sizes})")
    assert check(source, "multi_head", tmp_path).verdict == "right"
    for old, new, words in [
        ("is_causal=True", "is_causal=True, scale=c ** -0.5", "sqrt(D)"),
        ("is_causal=True", "is_causal=False", "no causal mask"),
        ("y.transpose(1, 2).flatten(2)", "y.reshape(b, t, c)", "without transpose"),
    ]:
        report = check(source.replace(old, new), "multi_head", tmp_path)
        assert report.verdict == "wrong" and words in report.names[0], report


def test_two_bugs_at_once_are_both_named(tmp_path: Path) -> None:
    source = STYLES["mh_rasbt"].replace("keys.shape[-1]**0.5", "self.d_out**0.5")
    source = source.replace("(attn_weights @ values).transpose(1, 2)", "(attn_weights @ values)")
    report = check(source, "multi_head", tmp_path)
    assert len(report.names) == 2 and "sqrt(D)" in report.names[0] and "joined without" in report.names[1], report


def test_a_parameter_without_a_place_is_not_called_wrong(tmp_path: Path) -> None:
    source = STYLES["mh_sdpa"].replace("self.heads = heads", "self.heads = heads; self.mix = nn.Linear(heads, heads)")
    source = source.replace("y = F.", "q = self.mix(q.transpose(1, 3)).transpose(1, 3); y = F.")
    report = check(source, "multi_head", tmp_path)
    assert report.verdict == "cannot tell" and "mix (6, 6)" in report.names[0], report


@pytest.mark.slow
def test_a_position_that_was_not_announced_is_not_called_wrong(tmp_path: Path) -> None:
    report = check(STYLES["rot_complex"], "multi_head", tmp_path)
    assert report.verdict == "right, in another convention" and "--as multi_head,rotary" in report.names[0], report


def test_what_an_answer_does_beside_its_numbers(tmp_path: Path) -> None:
    writes = "def attend(q, k, v):\n    q *= q.shape[-1] ** -0.5\n    T, S = q.shape[1], k.shape[1]\n    s = q @ k.mT\n"
    writes += "    m = torch.ones(T, S).tril(S - T) == 0\n    return s.masked_fill(m, -torch.inf).softmax(-1) @ v\n"
    report = check("import torch\n" + writes, "attend", tmp_path)
    assert report.verdict == "wrong" and "writes into its input" in report.names[0], report
    assert check("import torch\n" + writes.replace("q *= ", "q = q * "), "attend", tmp_path).verdict == "right"


CACHED = """\
import torch
from torch import nn

class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.grow(k, v)
        s = k.shape[2]
        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).triu(s - t + 1).bool(), -torch.inf)
        return self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = Attn(48, 6)
"""


@pytest.mark.slow
def test_a_cache_that_could_not_be_made_is_not_called_wrong(tmp_path: Path) -> None:
    report = check(CACHED, "multi_head,cache", tmp_path)
    assert report.verdict == "cannot tell" and "no way was found to give it one" in report.names[0], report
    assert check(CACHED.replace("cache.grow(k, v)", "k, v"), "multi_head,cache", tmp_path).verdict == "wrong"


def test_what_was_not_checked_of_a_cache_is_said(tmp_path: Path) -> None:
    joined = CACHED.replace("cache.grow(k, v)", "torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)")
    report = check(joined.replace("reshape(b, t, d))", "reshape(b, t, d)), (k, v)"), "multi_head,cache", tmp_path)
    assert report.verdict == "right" and "whether it writes into its input" in report.unchecked, report


def test_sizes_that_hide_a_wrong_scale_are_told(tmp_path: Path) -> None:
    same = CACHED.replace("Attn(48, 6)", "Attn(36, 6)")  # d = H = 6
    report = check(same, "multi_head", tmp_path)
    assert report.verdict == "right" and "d = 6, it would look the same if you divide" in " ".join(report.notes), report
    assert "look the same" not in str(check(CACHED.replace("48", "54"), "multi_head", tmp_path))  # d = 9


def test_what_is_wrong_in_training_only(tmp_path: Path) -> None:
    dropped = STYLES["mh_rasbt"]
    assert check(dropped, "multi_head", tmp_path).verdict == "right"
    drawn = "k = k if not self.training else k * torch.rand(1).add(9).long().clamp(max=1) / 0.9\n        s = k.shape[2]"
    assert check(CACHED.replace("s = k.shape[2]", drawn), "multi_head", tmp_path).verdict == "right"  # a dropped path
    branch = CACHED.replace("a.softmax(-1)", "(a if not self.training else 2 * a).softmax(-1)")
    report = check(branch, "multi_head", tmp_path)
    assert report.verdict == "wrong" and "computes something else in training" in report.names[0], report


def test_what_float64_hides_is_found_in_float32(tmp_path: Path) -> None:
    source = STYLES["weights_ok"].replace("query @ key.mT", "((query * 1e-25) @ (key * 1e-25).mT * 1e50)")
    report = check(source, "attention_weights", tmp_path)
    assert report.verdict == "wrong" and "right in float64 and wrong in float32" in report.names[0], report


def test_the_smallest_input_is_shown_with_theirs_and_right(tmp_path: Path) -> None:
    report = check("def average(x):\n    return x.cumsum(1) / x.shape[1]\n", "running_mean", tmp_path)
    assert "[8.0, 6.0], [5.0, 2.0], [4.0, 4.0]" in report.example  # the ladder's own example
    assert re.search(r"2\.6667 +2\.0000 +8\.0000 +6\.0000", report.example), report.example


def test_a_notebook_gets_the_same_report_and_its_module_stays(tmp_path: Path) -> None:
    scope: dict[str, object] = {}
    exec(STYLES["mh_sdpa"].replace("is_causal=True", "is_causal=False"), scope)
    module = scope["attention"]
    assert isinstance(module, nn.Module)
    before = [parameter.clone() for parameter in module.parameters()]
    report = minigpt.check(module, as_="multi_head")
    assert report.verdict == "wrong" and "no causal mask" in report.names[0]
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters()))
    assert module.training and next(module.parameters()).dtype == torch.float32
    assert minigpt.check(type(module), as_="multi_head").how[0].startswith("built: MultiHead(dim=70, heads=5)")
    with pytest.raises(UserError, match="no target"):
        minigpt.check(module, as_="many_heads")


MEASURED = [  # (style, old, new, what is measured)
    ("mh_rasbt", "keys.shape[-1]**0.5", "2.5", "multiplied by 0.4"),
    ("mh_rasbt", "keys.shape[-1]**0.5", "keys.shape[-1]**0.6", "multiplied by 0.2052"),
    ("mh_rasbt", "attn_weights = self.dropout(attn_weights)", "attn_weights = attn_weights * 0.9", "sum to 0.9000"),
    ("attend_ok", "scores, dim=-1) @ V", "scores, dim=-1).square() @ V", "rows of the weights sum"),
    ("attend_ok", "/ math.sqrt(Q.size(-1))", "/ 1.23", "multiplied by 0.81301"),
    ("rot_complex", "1.0 / (10000", "1.0 / (20000", "the base is 20000 instead of 10000"),
    ("mean_ok", "torch.arange(1, x.shape[1] + 1)", "torch.arange(3, x.shape[1] + 3)", "sum to 0.3333, 0.5000"),
    ("weights_ok", "> torch.arange(T)[:, None] + S - T", "== 2", "token 0 gives weight"),
]
LIGHT = [  # those of a module take seconds each
    pytest.param(*case, marks=[pytest.mark.slow] * (number % 2 or case[0] == "mh_rasbt"))
    for number, case in enumerate(MEASURED)
]


@pytest.mark.parametrize(("style", "old", "new", "words"), LIGHT)
def test_what_has_no_name_is_measured(style: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in STYLES[style]
    report = check(STYLES[style].replace(old, new), target_of(style), tmp_path)
    assert report.verdict == "wrong" and report.measured, report
    assert any(words in sentence for sentence in report.names), report


SPLIT = "self.W_{0}(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)"
FLAT = "self.W_{0}(x).view(b * self.num_heads, -1, self.head_dim).unflatten(0, (b, self.num_heads))"
PUBLIC: dict[str, tuple[str, list[tuple[str, str]], list[str]]] = {  # the thread: style, changes, what is named
    "aladdinpersson/Machine-Learning-Collection#65": (
        "mh_rasbt", [("keys.shape[-1]**0.5", "self.d_out**0.5")], ["sqrt(D)"],
    ),
    "aladdinpersson/Machine-Learning-Collection#3": (
        "rot_complex",
        [(f"self.{n} = nn.Linear(D, D)", f"self.{n} = nn.Linear(D // H, D // H)") for n in "qkv"]
        + [("l(x).view(B, T, self.H, self.d)", "l(x.view(B, T, self.H, self.d))")],
        ["only its own 10 of the 60 features"],
    ),
    "jsbaan/transformer-from-scratch#4": (
        "mh_rasbt", [("(attn_weights @ values).transpose(1, 2)", "(attn_weights @ values)")], ["without transpose"],
    ),
    "reczoo/FuxiCTR#30": (
        "mh_rasbt",
        [(SPLIT.format(name), FLAT.format(name)) for name in ("query", "key", "value")]
        + [("(attn_weights @ values).transpose(1, 2)", "(attn_weights @ values)")],
        ["split with view", "joined without transpose"],
    ),
    "hyunwoongko/transformer#10": ("mh_rasbt", [("-torch.inf)", "-1e-9)")], ["-1e-9, which is almost 0"]),
    "labmlai/annotated_deep_learning_paper_implementations#146": (
        "sh_proj", [("s.softmax(-1)", "s.softmax(1)")], ["over the queries"],
    ),
    "PetrochukM/PyTorch-NLP#2": ("mh_einsum", [("s.softmax(-1)", "s.softmax(0)")], ["over the batch"]),
    "datawhalechina/llms-from-scratch-cn#54": (
        "attend_ok", [("scores, dim=-1", "scores, dim=1")], ["right for one sequence"],
    ),
    "pytorch/pytorch#103082": ("weights_ok", [("+ S - T", "")], ["upper left corner"]),
    "rasbt/LLMs-from-scratch#1061": (
        "mh_sdpa", [("is_causal=True", "attn_mask=torch.ones(t, t).triu(1).bool()")], ["inverted"],
    ),
    "pytorch/pytorch#21518": (
        "mh_sdpa", [("is_causal=True", "attn_mask=torch.ones(t, t).tril()")], ["the mask of ones and zeros"],
    ),
}  # fmt: skip


LONG = "reczoo/FuxiCTR#30"  # two bugs: they are looked for among all pairs, as in another test that is quick


@pytest.mark.parametrize("thread", [pytest.param(t, marks=[pytest.mark.slow] * (t == LONG)) for t in PUBLIC])
def test_bugs_that_were_reported_in_public_are_named(thread: str, tmp_path: Path) -> None:
    style, changes, words = PUBLIC[thread]
    source = STYLES[style]
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    report = check(source, target_of(style), tmp_path)
    assert report.verdict == "wrong" and len(report.names) == len(words), report
    assert all(word in sentence for word, sentence in zip(words, report.names)), report


def test_a_report_survives_json(tmp_path: Path) -> None:
    report = check(STYLES["mh_sdpa"].replace("is_causal=True", "is_causal=False"), "multi_head", tmp_path)
    assert Report.from_json(report.to_json()) == report
    with pytest.raises(ValueError, match="not a report"):
        Report.from_json({"verdict": "perhaps"})
