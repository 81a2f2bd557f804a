"""A norm, an MLP, a block and an attention of one's own, from a plugin's file: trained, written with and resumed, and
refused where wrong."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from running import ROOT, Ended, furnish, script, well

from minigpt.training import checkpoint
from minigpt.training.report import read_metrics

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
[PARTS] = [code for code in re.findall(r"```python\n(.*?)```", CONTRIBUTING, flags=re.S) if "(Norm, kind=" in code]
OPTIONS = ("model.norm=my_norm", "model.mlp={kind: my_mlp, width: 24}")


def train(folder: Path, text: str, *options: str) -> Ended:
    furnish(folder)
    (folder / "parts.py").write_text(text, encoding="utf-8")
    return script("train.py", "--config", "small.yaml", "--plugin", "parts.py", *options, cwd=folder)


def test_those_of_the_page_train_sample_and_are_resumed(tmp_path: Path) -> None:
    """By the commands that stand behind them, on a smaller model."""
    lines = re.findall(r"^    python (.*--plugin parts\.py.*)$", CONTRIBUTING, flags=re.M)
    chosen = [[word for word in shlex.split(line) if word.startswith("model.")] for line in lines]
    named = {word.partition("=")[0] for options in chosen for word in options}
    assert named == {"model.norm", "model.mlp", "model.block"}
    for name, options in zip(("a", "b"), chosen, strict=True):
        assert "note:" not in well(train(tmp_path, PARTS, *options, "--name", name))
        assert well(script("sample.py", "--plugin", "parts.py", "--prompt", "the", cwd=tmp_path)).startswith("the")
        well(script("train.py", "--plugin", "parts.py", "--resume", "training.max_steps=10", cwd=tmp_path))
    assert [len(read_metrics(path)) for path in tmp_path.glob("runs/*/metrics.jsonl")] == [10, 10]


BEFORE = "torch.cat((0 * x[:, :1], x[:, :-1]), dim=1)"
ALONE = "layer 1 (mlp my_mlp): a token alone becomes something else than among others"


def with_mlp(forward: str) -> str:
    """The page's code, whose MLP has this forward."""
    gate = "return hidden.sigmoid()  # (B, T, width)\n"
    assert gate in PARTS
    return PARTS.replace(gate, f"{gate}\n    def forward(self, x):\n        return super().forward{forward}\n")


WRONG = {  # the plugin, the options, and what is said before the first step
    "a steepness of nothing": (PARTS, "model.norm={kind: my_norm, steepness: 0}", "model.norm.steepness: expected a"),
    "an MLP that reads later tokens": (with_mlp("(x - x.mean(dim=1, keepdim=True))"), OPTIONS, ALONE),
    "an MLP that reads the token before": (with_mlp(f"(x + {BEFORE})"), OPTIONS, ALONE),
    "an MLP that reads the token before in training alone": (
        with_mlp(f"(x + {BEFORE} * self.training)"), OPTIONS,
        "the model of multi_head: without dropout it computes something else in training than in evaluation",
    ),
    "an MLP that reads later tokens in training alone": (
        with_mlp("(x - x.mean(dim=1, keepdim=True) * self.training)"), OPTIONS,
        "layer 1 (mlp my_mlp) sees the future in training mode only",
    ),
    "an MLP that gives one number a token": (
        with_mlp("(x).mean(dim=-1, keepdim=True)"), OPTIONS,
        "forward of layer 1 (mlp my_mlp) returned (2, 5, 1), expected (B, T, D) = (2, 5, 16)",
    ),
    "an MLP that fails": (with_mlp("(x[..., 1:])"), OPTIONS, "parts.py:40 in forward"),
    "a norm over the positions": (
        PARTS.replace("torch.tanh(self.steepness * x)", "x / x.abs().amax(dim=1, keepdim=True)"), OPTIONS,
        "layer 1 (attention_norm my_norm): a token alone becomes something else",
    ),
    **{
        f"a block: {code}": (
            re.sub(r"x = x \+ self\.shares.*", f"return {code}", PARTS), "model.block=my_block", message
        )
        for code, message in {
            "super().forward(x.flip(1), past).flip(1)": "layer 1 (block my_block) sees the future: ",
            f"super().forward(x, past) + {BEFORE}": "multi_head (block my_block): with its cache it computes",
            "super().forward(x, past)[:, -1:]": "forward of layer 1 (block my_block) returned (2, 1, 16)",
            "super().forward(x @ x, past)": "parts.py:49 in forward (called by GPT.hidden): RuntimeError",
            "super().forward(x - x.mean(0), past)": "mix",
        }.items()
    },
}  # fmt: skip


@pytest.mark.quick(3)
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_line_before_the_first_step(tmp_path: Path, what: str) -> None:
    text, options, message = WRONG[what]
    ended = train(tmp_path, text, *([options] if isinstance(options, str) else options))
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1, ended
    assert not (tmp_path / "runs").exists()


def writes_the_same_in_every_form(folder: Path, *options: str) -> None:
    """Plain and fast the same text, and with int8 nearly the same loss."""
    sample = ("sample.py", *options, "--prompt", "the", "--temperature", "0")
    texts = [script(*sample, *more, cwd=folder).out for more in ((), ("--plain",))]
    assert texts[0] == texts[1] and texts[0].startswith("the")
    lighter = script(*sample, "--weights", "int8", cwd=folder)
    change = re.search(r"validation loss ([\d.]+) -> ([\d.]+)", lighter.err)
    assert lighter.code == 0 and change and abs(float(change[1]) - float(change[2])) < 0.01, lighter


GEMMA = (
    "model.norm={kind: rmsnorm, epsilon: 1e-4}",
    "model.mlp={kind: geglu_tanh, width: 24}",
    "model.block=sandwich",
    "model.embedding_scale=4",
    "model.head_cap=3.0",
    "model.bias=false",
)
GPT_J = ("model.block=parallel_one_norm", "model.head_bias=true", "model.tied_head=false", "model.mlp=gelu_tanh")


@pytest.mark.slow
@pytest.mark.parametrize("options", [GEMMA, GPT_J], ids=["like Gemma 2", "like GPT-J"])
def test_the_options_of_published_models_train_sample_and_are_resumed(tmp_path: Path, options: tuple[str, ...]) -> None:
    furnish(tmp_path)
    trained = script("train.py", "--config", "small.yaml", *options, cwd=tmp_path)
    assert "note:" not in well(trained)  # the probe before training finds nothing, not even rounding
    writes_the_same_in_every_form(tmp_path)
    well(script("sample.py", "--prompt", "the", cwd=tmp_path))
    assert "resumed after step 8" in well(script("train.py", "--resume", "training.max_steps=10", cwd=tmp_path))
    well(script("explore.py", "--prompt", "the", cwd=tmp_path))


WAYS = '''
"""The usual ways to write a kind: computed weights, a layer with a forward of its own, hooks, other widths."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from minigpt.attention import MultiHead


class WeightNorm(MultiHead, kind="way_weight_norm"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        for name in ("query", "key", "value", "project"):
            parametrizations.weight_norm(getattr(self, name))


class Orthogonal(MultiHead, kind="way_orthogonal"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        parametrizations.orthogonal(self.query)
        parametrizations.spectral_norm(self.key)  # which has buffers that each step changes


class LowRank(nn.Module):
    def forward(self, up, down):
        return up @ down

    def right_inverse(self, weight):
        return weight[:, :3], weight[:3]


class Low(MultiHead, kind="way_low_rank"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        parametrize.register_parametrization(self.value, "weight", LowRank())


class BitLinear(nn.Linear):
    """Weights of -1, 0 and 1, and inputs of eight bits (BitNet b1.58, arXiv 2402.17764)."""

    def forward(self, x):
        scale = self.weight.abs().mean().clamp(min=1e-5)
        ternary = (self.weight / scale).round().clamp(-1, 1) * scale
        size = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / 127
        rounded = (x / size).round() * size
        return F.linear(x + (rounded - x).detach(), self.weight + (ternary - self.weight).detach(), self.bias)


class Bit(MultiHead, kind="way_bit"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        D = model.n_embd
        self.query, self.key, self.value, self.project = (BitLinear(D, D) for _ in range(4))


class Hook(MultiHead, kind="way_hook"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        self.value.register_forward_hook(lambda layer, inputs, output: output.tanh())
        self.register_forward_hook(lambda layer, inputs, output: 0.5 * output)


class Wide(MultiHead, kind="way_wide_values"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        D = model.n_embd
        self.value, self.project = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)


class NarrowKeys(MultiHead, kind="way_narrow_keys"):
    """Keys half as wide as queries: a matrix for each head brings the queries to their width."""

    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        d = model.n_embd // config.n_head
        self.key = nn.Linear(model.n_embd, model.n_embd // 2)
        self.meet = nn.Parameter(torch.randn(config.n_head, d, d // 2) / d**0.5)

    def scores(self, query, key):
        return super().scores(query @ self.meet.to(query.dtype), key)
'''
KINDS = ("weight_norm", "orthogonal", "low_rank", "bit", "hook", "wide_values", "narrow_keys")
EVERY_WAY = (
    f"model.attention=[{', '.join(f'{{kind: way_{kind}, n_head: 2}}' for kind in KINDS)}]",
    f"model.n_layer={len(KINDS)}",
)
OTHERWISE = ("training.optimizer=muon", "training.precision=bfloat16", "model.position=rotary")


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, `plain`, of a model that has a layer of each way."""
    folder = tmp_path_factory.mktemp("ways")
    trained = train(folder, WAYS, *EVERY_WAY, "--name", "plain")
    [note] = [line for line in well(trained).splitlines() if "note:" in line]  # of the spectral norm, which has a state
    assert note.startswith("note: not asked of layer 2 (way_orthogonal): the same in training as in evaluation"), note
    return folder


@pytest.fixture(scope="module")
def other(ways: Path) -> None:
    """A second run there, in bfloat16 with Muon."""
    well(train(ways, WAYS, *EVERY_WAY, *OTHERWISE, "--name", "other", "--skip-checks"))


@pytest.mark.slow
@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("name", ["plain", "other"])
def test_every_usual_way_to_write_a_kind_trains_and_writes_the_same_in_every_form(ways: Path, name: str) -> None:
    writes_the_same_in_every_form(ways, "--plugin", "parts.py", "--run", name)


@pytest.mark.slow
@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("name", ["plain", "other"])
def test_stopped_and_resumed_they_go_on_bit_for_bit(ways: Path, name: str) -> None:
    shutil.copytree(ways / "runs" / name, ways / "runs" / f"{name}-again")
    shutil.rmtree(ways / "runs" / f"{name}-again" / "checkpoints" / "step-000008")
    resumed = well(script("train.py", "--plugin", "parts.py", "--resume", f"{name}-again", "--skip-checks", cwd=ways))
    assert "resumed after step 4" in resumed
    ends = [checkpoint.load(ways / "runs" / run / "checkpoints/step-000008") for run in (name, f"{name}-again")]
    for ours, theirs in zip((ends[0].model, ends[0].optimizer), (ends[1].model, ends[1].optimizer)):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert any(key.endswith("parametrizations.weight.0._u") for key in ends[0].model)  # the buffers of a spectral norm
