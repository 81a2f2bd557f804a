"""Plugins: a kind of one's own trains, samples, is shown and resumed; it is loaded only on request."""

from __future__ import annotations

import inspect
import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any

import pytest
from running import ROOT, furnish, script, well

from minigpt.attention import Attention, MultiHead, Past, Position, SoftmaxAttention, State
from minigpt.config.options import Options
from minigpt.model import MLP, Block, ModelConfig
from minigpt.model.mlp import SwiGLU
from minigpt.text.source import Source
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.callbacks import Callback
from minigpt.training.objective import Objective
from minigpt.training.report import read_metrics
from minigpt.training.schedule import Schedule

PLUGIN = '''
"""A kind of my own: the scores are squashed, so that no token is looked at alone."""
from dataclasses import dataclass
from pathlib import Path

from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.config.options import Positive

with Path("executed.txt").open("a") as file:
    file.write(f"{__file__}\\n")


class Squashed(MultiHead, kind="squashed"):
    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        limit: Positive = 5.0
        """The largest score."""

        def mistakes_within(self, model):
            yield from super().mistakes_within(model)
            if self.limit > model.n_embd:
                yield "limit", f"{self.limit} is more than n_embd"

    def scores(self, query, key):
        return self.config.limit * (super().scores(query, key) / self.config.limit).tanh()
'''
SQUASHED = "model.attention={kind: squashed, n_head: 2, limit: 3}"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plugin, and a run of its kind."""
    folder = furnish(tmp_path_factory.mktemp("workshop"))
    (folder / "my_attention.py").write_text(PLUGIN, encoding="utf-8")
    well(script("train.py", "--config", "small.yaml", "--plugin", "my_attention.py", SQUASHED, cwd=folder))
    return folder


def executed(folder: Path) -> list[str]:
    """Which files were run as plugins since the last time that was asked."""
    file = folder / "executed.txt"
    names = file.read_text("utf-8").splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return names


def test_a_kind_of_ones_own_trains_samples_is_shown_and_resumed(workshop: Path) -> None:
    plugin = ("--plugin", "my_attention.py")
    assert "limit: 3" in (workshop / "runs" / "small" / "config.yaml").read_text("utf-8")
    assert well(script("sample.py", *plugin, "--prompt", "the", cwd=workshop)).startswith("the")
    show = ("show_attention.py", *plugin, "--prompt", "the")
    assert "layer 1, head 2 (squashed)" in well(script(*show, cwd=workshop))
    assert well(script(*show, "--out", "maps.png", cwd=workshop)).startswith("wrote maps.png: open it to see 2 maps; ")
    assert (workshop / "maps.png").read_bytes().startswith(b"\x89PNG")
    resumed = well(script("train.py", *plugin, "--resume", "small", "training.max_steps=10", cwd=workshop))
    assert "resumed after step 8" in resumed
    assert len(read_metrics(workshop / "runs" / "small" / "metrics.jsonl")) == 10


def test_the_run_keeps_a_copy_and_without_the_plugin_says_what_is_missing(workshop: Path) -> None:
    copy = workshop / "runs" / "small" / "plugins" / "my_attention.py"
    assert copy.read_text("utf-8") == PLUGIN
    for name in ("sample.py", "show_attention.py"):
        ended = script(name, "--prompt", "the", cwd=workshop)
        assert ended.code == 2
        assert ended.err.startswith("error: runs/small was trained with a plugin that is missing here: ")
        assert (
            "give --plugin my_attention.py (a copy for the record is runs/small/plugins/my_attention.py)" in ended.err
        )
        assert "unknown kind 'squashed'" in ended.err
        assert ended.err.count("\n") == 1


def test_a_plugin_that_was_edited_is_noted_and_both_are_kept(tmp_path: Path) -> None:
    (furnish(tmp_path) / "my.py").write_text(PLUGIN, encoding="utf-8")
    told, kept = ("--plugin", "my.py"), tmp_path / "runs" / "small" / "plugins"
    well(script("train.py", "--config", "small.yaml", *told, SQUASHED, cwd=tmp_path))
    assert "my.py" not in well(script("train.py", *told, "--resume", "training.max_steps=10", cwd=tmp_path))
    (tmp_path / "my.py").write_text(PLUGIN.replace(".tanh()", ".sin()"), encoding="utf-8")
    resumed = well(script("train.py", *told, "--resume", "training.max_steps=12", cwd=tmp_path))
    assert "changed: my.py is not what it was" in resumed
    assert ".sin()" in (kept / "my.py").read_text() and ".tanh()" in (kept / "my.py.until-step-10").read_text()
    assert '"my.py"' in (kept.parent / "changes.jsonl").read_text().splitlines()[-1]
    (kept / "my.py").unlink()
    (kept / "my.py").symlink_to(tmp_path / "text.txt")
    ended = script("train.py", *told, "--resume", "training.max_steps=14", cwd=tmp_path)
    assert ended.code == 2 and "my.py: not a plain file" in ended.err


def test_only_a_file_named_on_the_command_line_is_ever_executed(workshop: Path) -> None:
    copy = workshop / "runs" / "small" / "plugins" / "my_attention.py"
    executed(workshop)
    for name in ("sample.py", "show_attention.py"):
        script(name, "--prompt", "the", cwd=workshop)
        assert executed(workshop) == []  # not the copy
        well(script(name, "--plugin", "my_attention.py", "--prompt", "the", cwd=workshop))
        assert executed(workshop) == [str(workshop / "my_attention.py")]  # and here only what was named, once
    script("train.py", "--resume", cwd=workshop)
    assert executed(workshop) == []
    assert copy.exists()


@pytest.mark.parametrize(
    "lines",
    [
        "plugin: my_attention.py",
        "plugins: [my_attention.py]",
        "model: {plugin: my_attention.py}",
        "model: {attention: {kind: multi_head, plugin: my_attention.py}}",
        "model: {attention: my_attention.py}",
        "model: {attention: my_attention.Squashed}",
        "model: {attention: {kind: my_attention.Squashed}}",
        "model: {attention: !!python/object/apply:os.system [my_attention.py]}",
        "data: {tokenizer: ./my_attention.py}",
    ],
)
def test_a_config_that_names_a_plugin_is_refused_and_the_plugin_not_executed(tmp_path: Path, lines: str) -> None:
    furnish(tmp_path)
    (tmp_path / "my_attention.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "naming.yaml").write_text(lines + "\n", encoding="utf-8")
    ended = script("train.py", "--config", "naming.yaml", "data.source=text.txt", cwd=tmp_path)
    assert ended.code == 2
    assert ended.err.startswith("error: naming.yaml:1:")
    assert executed(tmp_path) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("{kind: squashed, limit: 0}", "model.attention.limit: expected a number above 0, found 0"),
        ("{kind: squashed, limit: 99}", "model.attention.limit: 99.0 is more than n_embd"),
        ("{kind: squashed, limt: 1}", "model.attention.limt: unknown key; did you mean 'limit'?"),
        ("squashd", "model.attention: unknown kind 'squashd'; did you mean 'squashed'?"),
    ],
)
def test_options_of_a_plugin_are_checked_like_the_built_in_ones(workshop: Path, override: str, message: str) -> None:
    arguments = ("--config", "small.yaml", "--plugin", "my_attention.py", f"model.attention={override}")
    ended = script("train.py", *arguments, cwd=workshop)
    assert ended.code == 2
    assert message in ended.err


MINE = 'from minigpt.attention import Attention\nclass Mine(Attention, kind="mine"): pass\n'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.py", None, "--plugin missing.py: no such file"),
        ("notes.txt", "x = 1\n", "--plugin notes.txt: not a Python file (its name must end in .py)"),
        ("broken.py", "\nx = [\n", "--plugin broken.py:2: SyntaxError: '[' was never closed"),
        ("leaves.py", "import sys\nx = 1\nsys.exit(0)\n", "--plugin leaves.py:3: SystemExit: 0"),
        ("within.py", "def f():\n    return nowhere\nf()\n", "--plugin within.py:2: NameError: name 'nowhere'"),
        ("twice.py", MINE + MINE.replace("Mine", "Other"), "--plugin twice.py:4: the kind 'mine' of"),
        (
            "plain.py",
            MINE.replace("pass", "\n    class Config(Attention.Config): pass"),
            "--plugin plain.py:2: TypeError: Mine.Config must",
        ),
        ("raises.py", "import nowhere_to_be_found\n", "--plugin raises.py:1: ModuleNotFoundError: No module named"),
        (
            "taken.py",
            MINE.replace("mine", "multi_head"),
            "--plugin taken.py:2: the kind 'multi_head' of minigpt_plugin_taken is taken by minigpt.attention.softmax",
        ),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    furnish(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    ended = script("train.py", "--config", "small.yaml", "--plugin", name, cwd=tmp_path)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1


def test_a_constructor_may_look_at_numbers(tmp_path: Path) -> None:
    """The memory that a model needs is known from one without numbers, and such a kind can only be made with them."""
    furnish(tmp_path)
    looks = (
        "from minigpt.attention import MultiHead\n"
        'class Looks(MultiHead, kind="looks"):\n'
        "    def __init__(self, config, model, layer=0):\n"
        "        super().__init__(config, model, layer)\n"
        "        self.largest = self.query.weight.max().item()\n"
    )
    (tmp_path / "looks.py").write_text(looks, encoding="utf-8")
    plain = ("train.py", "--config", "small.yaml", "model.attention=multi_head", "--name", "plain")
    well(script(*plain, cwd=tmp_path))
    options = ("--config", "small.yaml", "--plugin", "looks.py", "model.attention=looks", "--name", "looks")
    well(script("train.py", *options, cwd=tmp_path))
    well(script("sample.py", "--plugin", "looks.py", "--run", "runs/looks", cwd=tmp_path))
    losses = [
        [line["train/loss"] for line in read_metrics(tmp_path / f"runs/{name}/metrics.jsonl")]
        for name in ("plain", "looks")
    ]
    assert losses[0] == losses[1]  # and it draws the same


# ---- what a plug-in may count on ----

PAGE = (ROOT / "minigpt" / "attention" / "README.md").read_text("utf-8").split("## What a plug-in may count on")[1]
SMALL = ModelConfig(n_layer=1, n_embd=8, block_size=8, attention=MultiHead.Config(n_head=2))
HEADS = MultiHead(SMALL.layer_attention(0), SMALL)
INSTANCES = {"Attention": HEADS, "MultiHead": HEADS, "Past": Past(), "State": State(), "Block": Block(SMALL, 0)}
INSTANCES["MLP"] = SwiGLU(SwiGLU.Config(), SMALL)
INSTANCES |= {"Source": Source(None), "Objective": Objective(None), "Schedule": Schedule(None, 0, 0.0)}
INSTANCES["Callback"] = Callback(None)


OUR_OWN = {"Config", "expect"}  # what a kind inherits and calls, but does not replace
OUR_OWN |= {"encode_marked", "decode", "stream", "to_json", "from_json", "save", "load"}
OUR_OWN |= {"with_marks", "label", "byte_counts"}


def promised() -> dict[tuple[str, str], str]:
    """{(module, name): its form}, as the page has them."""
    table, module = dict[tuple[str, str], str](), ""
    for line in PAGE.splitlines():
        if heading := re.fullmatch(r"`(minigpt[.\w]*)`", line):
            module = heading[1]
        elif row := re.fullmatch(r"\| `([\w.]+)` \| `?(.+?)`? \| .+ \|", line):
            table[module, row[1]] = row[2]
    return table


def form(module: str, name: str) -> str:
    """What a name is in the code: "attribute" of an instance, the value of a class variable, or how it is called."""
    *owners, last = name.split(".")
    place = reduce(getattr, owners, import_module(module))
    if not hasattr(place, last):
        return "attribute" if hasattr(INSTANCES[owners[0]], last) else "missing"
    value = inspect.getattr_static(place, last)
    if isinstance(value, (bool, str, tuple, dict, MappingProxyType, NoneType)):
        return f"= {dict(value) if isinstance(value, MappingProxyType) else value!r}"
    parameters = inspect.signature(getattr(value, "__func__", value)).parameters.values()
    return str(inspect.Signature([bare(each) for each in parameters if each.name not in ("self", "cls")]))


def bare(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter without its annotation, and with a default that can be written."""
    default: Any = {} if repr(parameter.default) == "<factory>" else parameter.default
    if isinstance(default, Options):
        default = Words(f"{type(default).__qualname__}()")
    return parameter.replace(annotation=inspect.Parameter.empty, default=default)


class Words(str):
    __repr__ = str.__str__


def test_what_a_plugin_may_count_on_is_as_the_page_says() -> None:
    assert promised() and promised() == {key: form(*key) for key in promised()}


@pytest.mark.parametrize(
    "owner", [Attention, SoftmaxAttention, Past, State, Position, MLP, Tokenizer, Source, Objective, Schedule, Callback]
)
def test_the_page_names_all_that_a_kind_may_replace_or_call(owner: type) -> None:
    names = {name for _, name in promised()}
    public = {name for name in vars(owner) if not name.startswith("_") and callable(getattr(owner, name))}
    unnamed = {name for name in public if not names & {f"{base.__name__}.{name}" for base in owner.__mro__}}
    assert unnamed <= OUR_OWN
