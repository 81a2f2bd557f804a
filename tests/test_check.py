"""The checker from beginning to end: a file is handed over, and what it is told about it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import checking
import pytest
import torch
from checking import write
from running import ROOT, Ended, process, script

from minigpt.checks.laws.softmax import LAWS
from minigpt.checks.learners.check import check
from minigpt.checks.learners.confined import Confined
from minigpt.checks.learners.verdict import Report
from minigpt.checks.reading.structure import Note
from minigpt.system.errors import UserError

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"
ATTENTION = """\
class Attention(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).split(D, -1)
        q = q.view(B, T, self.H, -1).transpose(1, 2)
        k = k.view(B, T, self.H, -1).transpose(1, 2)
        v = v.view(B, T, self.H, -1).transpose(1, 2)
        scores = q @ k.mT / (D // self.H) ** 0.5
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        y = (weights @ v).transpose(1, 2)
        return self.out(y.reshape(B, T, D))
"""
BUILT = "\nattention = Attention(48, 6)\n"
RIGHT = HEAD + ATTENTION + BUILT
SCALED = " / (D // self.H) ** 0.5"
UNSCALED = RIGHT.replace(SCALED, "")
LINE_OF_SCORES = 1 + RIGHT[: RIGHT.index("scores =")].count("\n")
BLOCK = """\

class Block(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.attention = Attention(D, H)
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))
"""

forked_servers = pytest.fixture(scope="module")(checking.forked_servers)
confined = pytest.fixture(scope="module")(checking.one_server)
Checks = Callable[..., Report]


@pytest.fixture
def said(confined: Confined, tmp_path: Path) -> Checks:
    """What is said of a file with this text."""

    def checked(code: str, target: str = "", name: str = "", lines: bool = False) -> Report:
        path = write(tmp_path / "mine.py", code)
        outcome = confined.check(path, target, name, lines)
        assert outcome.report is not None, outcome.reason
        return outcome.report

    return checked


def command(folder: Path, code: str, *arguments: object) -> Ended:
    """`python scripts/check.py mine.py ARGUMENTS`, with this text in the file."""
    write(folder / "mine.py", code)
    return script("check.py", "mine.py", *arguments, cwd=folder)


# What the command prints.


def test_a_right_file_is_right_as_what_it_is_and_the_exit_code_is_0(tmp_path: Path) -> None:
    ended = command(tmp_path, RIGHT, "--lines")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == "RIGHT: multi_head"
    assert "`attention` as the file built it" in ended.out
    assert "weights over the keys" in ended.out and "the output: a projection of the heads" in ended.out
    assert "     ^ " not in ended.out


def test_a_wrong_file_gets_the_law_the_line_and_the_mending_and_the_exit_code_is_2(tmp_path: Path) -> None:
    ended = command(tmp_path, UNSCALED)
    assert (ended.code, ended.err) == (2, "")
    first, *rest = ended.out.splitlines()
    assert first == "WRONG: multi_head"
    assert "  the law: scores are divided by sqrt(d)" in rest
    assert f"  line {LINE_OF_SCORES}: scores = q @ k.mT" in rest
    assert "  mend it: divide by the square root of the width of a head" in rest
    assert "\x1b" not in ended.out  # no colours where it is not a terminal


def test_the_listing_stands_beside_each_line_and_shows_where_a_law_breaks(tmp_path: Path) -> None:
    code = RIGHT.replace("triu(1)", "triu(2)")
    ended = command(tmp_path, code, "--lines")
    assert ended.code == 2
    lines = ended.out[ended.out.index("   1 import torch") :].splitlines()
    numbered = {int(line[:4]): line for line in lines if line[:4].strip().isdigit()}
    assert [numbered[i][5:].split(" | ")[0].rstrip() for i in sorted(numbered)] == code.splitlines()
    for start, made in (("q = q", "(B 2, H 6, T 7, d 8) queries"), ("scores = ", "(B 2, H 6, T 7, S 7) scores, scaled"),
                        ("y = ", "(B 2, T 7, H 6, d 8) mixtures of values")):  # fmt: skip
        (at,) = (i for i, line in enumerate(lines) if line[5:].strip().startswith(start))
        assert made in "".join(lines[at : at + 2]), lines[at : at + 2]
    (law,) = [i for i, line in enumerate(lines) if line.startswith("     ^ ")]
    assert "weights = " in "".join(lines[law - 3 : law]), lines[law - 3 : law]
    assert "a token sees itself and what came before" in lines[law]
    assert lines[law + 1] == "       xx....."  # the keys that the first token sees


def test_one_class_of_a_file_is_checked_alone(tmp_path: Path) -> None:
    other = ATTENTION.replace("Attention", "Unscaled").replace(SCALED, "")
    code = HEAD + ATTENTION + "\n" + other
    write(tmp_path / "mine.py", code)
    ended = script("check.py", "mine.py::Attention", cwd=tmp_path)
    assert (ended.code, ended.out.partition(":")[0]) == (0, "RIGHT"), ended
    ended = script("check.py", "mine.py::Atention", cwd=tmp_path)
    assert ended.code == 2 and "Atention" in ended.out + ended.err, ended
    assert "did you mean Attention?" in ended.out + ended.err


def test_a_class_that_a_file_imports_is_checked_in_the_file_in_which_it_stands(tmp_path: Path) -> None:
    write(tmp_path / "parts.py", HEAD + ATTENTION.replace(SCALED, ""))
    write(tmp_path / "mine.py", "from parts import Attention\n")
    ended = script("check.py", "mine.py::Attention", cwd=tmp_path)
    assert ended.code == 2
    assert "WRONG: multi_head" in ended.out and "the law: scores are divided by sqrt(d)" in ended.out


BAD = {  # arguments and files that are mistakes: what is said, in one line
    "no such file": (["other.py"], RIGHT, "other.py: no such file"),
    "no such target": (["mine.py", "--as", "multihead"], RIGHT, "'multihead' is no target; there are: running_mean"),
    "no such option": (["mine.py", "--as", "multi_head,rotray"], RIGHT, "'rotray': expected rotary, alibi, cache"),
    "an option of another": (["mine.py", "--as", "norm,rotary"], RIGHT, "norm has no option rotary"),
    "a table of a file": (["mine.py", "--csv", "x.csv"], RIGHT, "--csv: is for a folder of exercises; mine.py is none"),
    "no such exercise": (
        ["mine.py", "--exercise", "no_such"],
        RIGHT,
        "'no_such' is no exercise; there are: running_mean",
    ),
    "no exercise in a folder": (["."], RIGHT, "holds no exercise"),
    "an exercise and a target": (["mine.py", "--exercise", "cache", "--as", "norm"], RIGHT, "--as and --exercise"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_in_the_command_is_one_line(mistake: str, tmp_path: Path) -> None:
    arguments, code, words = BAD[mistake]
    write(tmp_path / "mine.py", code)
    ended = script("check.py", *arguments, cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1 and words in ended.err, ended.err


BAD_FILES = {
    "a syntax error": ("def attention(x:\n    return x\n", "SyntaxError", "line 1"),
    "a file without anything": ("", "nothing to check was found", "attention = MyAttention(48, 6)"),
    "an error at the top": (HEAD + "attention = None + 1\n", "TypeError", "line 5"),
}


@pytest.mark.parametrize("mistake", BAD_FILES)
def test_a_file_that_cannot_be_checked_is_said_to_be_so_with_the_line(mistake: str, tmp_path: Path) -> None:
    code, *words = BAD_FILES[mistake]
    ended = command(tmp_path, code)
    assert ended.code == 2 and ended.err == "" and "Traceback" not in ended.out
    assert ended.out.startswith(("CANNOT TELL", "WRONG")), ended.out
    for word in words:
        assert word in ended.out


@pytest.mark.slow
def test_a_fresh_python_says_the_same(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", UNSCALED)
    assert process("check.py", "mine.py", cwd=tmp_path) == script("check.py", "mine.py", cwd=tmp_path)


def listed_in(readme: str) -> list[str]:
    """The lines of the listing in a README of the checks."""
    text = (ROOT / "minigpt" / "checks" / readme / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n\$ python scripts/check.py mine.py --lines\n(.*?)^```$", text, flags=re.M | re.S)
    return [line for line in block.splitlines() if line != "..."]


def test_the_listings_in_the_readmes_are_those_that_the_command_prints(tmp_path: Path) -> None:
    right, wrong = listed_in("reading"), listed_in("laws")
    code = "".join(f"{line[5:].split(' | ')[0].rstrip()}\n" for line in right if line[:4].strip())
    assert "\n".join(right) in command(tmp_path, code, "--lines").out
    assert "\n".join(wrong) in command(tmp_path, code.replace("triu(1)", "triu(2)"), "--lines").out


def test_the_readme_of_the_laws_has_those_of_softmax_attention() -> None:
    text = (ROOT / "minigpt" / "checks" / "laws" / "README.md").read_text(encoding="utf-8")
    for source in map(inspect.getsource, LAWS):
        assert re.findall(r'@law\(\s*"([^"]*)"', source)[0] in text


# Which thing of a file, and as what.


def test_the_parts_of_a_right_whole_are_right_in_it(said: Checks) -> None:
    report = said(HEAD + ATTENTION + BLOCK)
    assert (report.verdict, report.target) == ("right", "block"), str(report)
    assert any("Attention: right, as multi_head" in note for note in report.notes), report.notes


def test_a_part_that_is_wrong_is_reported_rather_than_what_is_right(said: Checks) -> None:
    report = said(HEAD + ATTENTION.replace(SCALED, "") + "\nclass Other" + ATTENTION.removeprefix("class "))
    assert (report.verdict, report.target, report.line) == ("wrong", "multi_head", LINE_OF_SCORES), str(report)
    assert any("OtherAttention: right" in note for note in report.notes), report.notes


def test_a_whole_with_a_wrong_part_is_wrong_at_the_line_of_the_part(said: Checks) -> None:
    report = said(HEAD + ATTENTION.replace(SCALED, "") + BLOCK)
    assert report.verdict == "wrong" and report.line == LINE_OF_SCORES, str(report)


def test_no_part_speaks_for_an_answer_that_cannot_be_told(said: Checks) -> None:
    report = said(HEAD + ATTENTION + "\n\nclass Whole(nn.Module):\n    def forward(self, x, needed, more):\n"
                  "        return needed.unknown(more)\n\n\nattention = Whole()\n")  # fmt: skip
    assert report.verdict == "cannot tell", str(report)
    assert any("Attention: right, as multi_head" in note for note in report.notes), report.notes


def test_a_layer_named_linear_is_no_linear_attention(said: Checks) -> None:
    layer = "\n\nclass Linear(nn.Linear):\n    def forward(self, x):\n        return x @ self.weight.T\n"
    report = said(HEAD + layer + ATTENTION.replace("softmax", "unknown"))
    assert report.verdict != "wrong" or report.target != "linear_attention", str(report)


WINDOWED = """
import torch
import torch.nn.functional as F

def attend(q, k, v, window_size):
    T, S = q.size(-2), k.size(-2)
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
    seen = (distance >= 0) & (distance <= window_size[0])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
"""


def test_fewer_queries_than_keys_are_held_against_what_was_read_of_as_many(said: Checks) -> None:
    report = said(WINDOWED)
    assert (report.verdict, report.target) == ("right", "attend,window=5"), str(report)
    report = said(WINDOWED.replace("<= window_size[0])", "<= window_size[0] + S * (T != S))"))
    assert report.verdict == "wrong" and "the window is" in report.names[0], str(report)


AS = {  # code, target, verdict
    "itself": (RIGHT, "multi_head", "right"),
    "grouped heads, of which none are shared": (RIGHT, "grouped_query", "right, in another convention"),
    "with rotary": (RIGHT, "multi_head,rotary", "wrong"),
    "with biases": (RIGHT, "multi_head,alibi", "wrong"),
    "in a window": (RIGHT, "multi_head,window=4", "wrong"),
    "an encoder": (RIGHT, "multi_head,full", "wrong"),
    "one head": (RIGHT, "single_head", "wrong"),
    "a mean of the text itself": (RIGHT, "dot_product", "wrong"),
    "an MLP": (RIGHT, "mlp", "wrong"),
    "no attention": ("def attend(q, k, v):\n    return v\n", "attend", "wrong"),
    "without a mask": (RIGHT.replace("triu(1)", "triu(T)"), "multi_head,full", "right"),
    "a window": (RIGHT.replace("triu(1)", "triu(1) | torch.ones(T, T, dtype=torch.bool).tril(-4)"),
                 "multi_head,window=4", "right"),
    "a wider window": (RIGHT.replace("triu(1)", "triu(1) | torch.ones(T, T, dtype=torch.bool).tril(-5)"),
                       "multi_head,window=4", "wrong"),
}  # fmt: skip


@pytest.mark.quick(3)
@pytest.mark.parametrize("what", AS)
def test_what_is_held_against_a_target_is_right_as_nothing_else(what: str, said: Checks) -> None:
    code, target, verdict = AS[what]
    report = said(code, target)
    assert (report.verdict, report.target) == (verdict, target), str(report)
    if verdict == "wrong":
        assert report.names and report.fixes, str(report)


CAPPED = RIGHT.replace(SCALED, SCALED + "\n        scores = 50 * (scores / 50).tanh()")


def test_any_attention_of_minigpt_is_a_target(said: Checks) -> None:
    """With laws of its own or without; `kind_programs.py` has more of them."""
    report = said(CAPPED, "soft_cap")
    assert (report.verdict[:5], report.target) == ("right", "soft_cap"), str(report)
    report = said(CAPPED.replace("50 * (scores", "(scores"), "soft_cap")
    assert (report.verdict, report.target) == ("wrong", "soft_cap") and report.names, str(report)


# What stands in a file beside the attention.


BEFORE = """\
import matplotlib.pyplot as plt
plt.style.use("ggplot")
while True:
    pass
"""
AFTER = """
optimizer = torch.optim.AdamW(attention.parameters(), lr=1e-3)
text = open("input.txt").read()
print(len(text))
attention = torch.compile(attention)
attention = attention.to("cuda" if torch.cuda.is_available() else "cpu")

@torch.compile
def step(x):
    return attention(x)

for step in range(10**9):
    loss = attention(torch.randn(2, 7, 48)).square().mean()
    loss.backward()
plt.plot([1, 2])
plt.show()
if __name__ == "__main__":
    while True:
        pass
"""


def test_what_stands_around_the_attention_does_no_harm(said: Checks) -> None:
    """Plots, an optimizer, data that is not there, compilers, a device, a training, a loop without end."""
    report = said(BEFORE + RIGHT + AFTER)
    assert (report.verdict, report.target) == ("right", "multi_head"), str(report)


def test_a_name_that_the_file_uses_is_not_overwritten(said: Checks) -> None:
    """`attention` is here a number of the file's own, or a function that its class calls."""
    report = said(RIGHT.replace("\nattention = Attention(48, 6)", "\nattention = 0.1\nmodel = Attention(48, 6)"))
    assert (report.verdict, report.target) == ("right", "multi_head"), str(report)
    function = "def attention(q, k, v):\n    return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n\n"
    fused = re.sub(r"        scores = .*?\n        y = .*?\n", "        y = attention(q, k, v).transpose(1, 2)\n",
                   ATTENTION, flags=re.S)  # fmt: skip
    report = said(HEAD + function + fused)
    assert (report.verdict, report.target) == ("right", "multi_head"), str(report)


def test_layers_in_a_plain_list_are_never_trained(said: Checks) -> None:
    lists = (
        HEAD
        + """\
class Attention(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.heads = [nn.Linear(D, 3 * D // H) for _ in range(H)]
        self.out = nn.Linear(D, D)

    def forward(self, x):
        y = []
        for head in self.heads:
            q, k, v = head(x).chunk(3, -1)
            y.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.out(torch.cat(y, -1))

attention = Attention(48, 6)
"""
    )
    report = said(lists)
    assert (report.verdict, report.target) == ("wrong", "multi_head"), str(report)
    assert "plain list" in report.names[0] and report.code.startswith("self.heads = [")
    assert said(re.sub(r"\[(nn.*?range\(H\))\]", r"nn.ModuleList([\1])", lists)).verdict == "right"


CACHE = """\
    def forward(self, x, cache=None):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.H, -1).transpose(1, 2) for y in self.qkv(x).split(D, -1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        S = k.shape[2]
        hidden = torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)
        weights = (q @ k.mT / (D // self.H) ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        y = (weights @ v).transpose(1, 2)
        return self.out(y.reshape(B, T, D)), (k, v)
"""


def test_a_cache_that_changes_the_output_is_found_without_being_asked_for(said: Checks) -> None:
    cached = HEAD + ATTENTION[: ATTENTION.index("    def forward")] + CACHE + BUILT
    report = said(cached)
    assert (report.verdict[:5], report.target) == ("right", "multi_head,cache"), str(report)
    report = said(cached.replace("triu(1 + S - T)", "triu(1)"))
    assert (report.verdict, report.target) == ("wrong", "multi_head,cache"), str(report)


# Reports, and notebooks.


def test_a_report_is_the_same_after_its_way_through_json(said: Checks) -> None:
    unusual = Report("wrong", "multi_head", laws=[Note("a law", "found", "expected", "mend it", 3, "", "shared keys")])
    for report in (said(RIGHT), said(UNSCALED, lines=True), said("a = 1\n")):
        assert Report.from_json(report.to_json()) == report
        assert str(Report.from_json(report.to_json())) == str(report)
    assert str(Report.from_json(unusual.to_json())) == str(unusual)


@pytest.mark.parametrize("data", [{}, {"verdict": "fine", "target": ""}, {"verdict": "right", "target": "x", "mark": 1},
                                  {"verdict": "wrong", "target": "x", "laws": [{"law": 1}]}])  # fmt: skip
def test_what_is_no_report_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a report"):
        Report.from_json(data)


class Printer:
    """What a notebook hands to `_repr_pretty_`."""

    def __init__(self) -> None:
        self.written = ""

    def text(self, text: str) -> None:
        self.written += text


@pytest.fixture
def attention_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], type]]:
    """A class as a user imports it from a file of theirs."""

    def imported(code: str) -> type:
        write(tmp_path / "checked_mine.py", code)
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("checked_mine", None)
        return __import__("checked_mine").Attention  # type: ignore[no-any-return]

    yield imported
    sys.modules.pop("checked_mine", None)


def test_a_notebook_shows_the_report_and_leaves_the_module_as_it_was(attention_class: Callable[[str], type]) -> None:
    module = attention_class(HEAD + ATTENTION.replace(SCALED, ""))(48, 6)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    report, printer = check(module, lines=True), Printer()
    report._repr_pretty_(printer, False)
    assert printer.written == str(report) and printer.written.startswith("WRONG: multi_head")
    assert f"line {LINE_OF_SCORES}: scores = q @ k.mT" in printer.written
    assert "weights over the keys" in printer.written and "\x1b" not in printer.written
    after = module.state_dict()
    assert module.training and all(torch.equal(after[name], value) for name, value in before.items())
    assert all(value.dtype == torch.float32 and value.grad is None for value in module.parameters())


def test_classes_and_functions_are_checked_as_modules_are(attention_class: Callable[[str], type]) -> None:
    assert check(attention_class(HEAD + ATTENTION)).verdict == "right"
    assert check(attention_class(HEAD + ATTENTION)(48, 6), "multi_head").verdict == "right"
    assert check(attend).verdict == "right" and check(attend).target == "attend"
    assert check(attend, "attend,full").verdict == "wrong"


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A right function of given heads."""
    hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1 + key.shape[-2] - query.shape[-2])
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize(
    ("thing", "words"), [(5, "expected a function, a module or a class"), (attend, "'attent' is no target")]
)
def test_what_cannot_be_checked_is_said_in_a_line(thing: object, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        check(thing, "attent" if thing is attend else "")
