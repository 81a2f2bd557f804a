"""How weights start: what a module sets itself stays, all else starts as GPT-2's, and the shipped kinds as ever."""

from __future__ import annotations

import copy
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import SMALL, finished, small
from laws import KINDS
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from minigpt.attention import Attention, MultiHead, Past, Position, Shape
from minigpt.config.options import from_dict
from minigpt.model import GPT, ModelConfig
from minigpt.model.initialise import LAYERS, start
from minigpt.model.mlp import GELU, SwiGLU
from minigpt.system.plugin import load_plugin
from minigpt.training.run import load as load_run

SHAPE = ModelConfig(n_layer=2, n_embd=16, block_size=8)
MODERN = from_dict(
    ModelConfig,
    {"n_layer": 4, "n_embd": 128, "block_size": 128, "bias": False, "position": "rotary", "embedding_norm": True}
    | {"norm": {"kind": "layernorm", "weights": False}, "mlp": "swiglu", "tied_head": False},
)
RESIDUAL = 0.02 / math.sqrt(2 * SHAPE.n_layer)


def made(kind: type[Attention]) -> GPT:
    return GPT(replace(SHAPE, attention=kind.Config()), 11)


def without_exception(model: GPT) -> None:
    """The former rule: every linear layer and every embedding, in the order of the model."""
    for name, module in model.named_modules():
        if isinstance(module, LAYERS):
            std = 0.02 / (2 * model.config.n_layer) ** 0.5 if name.endswith("project") else 0.02
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


# ---- what ships starts as ever ----


SHIPPED = [kind for name, kind in KINDS.items() if name != "tensor_product"]


@pytest.mark.parametrize(
    ("kind", "mlp", "tied_head"),
    [
        *((kind, GELU, True) for kind in SHIPPED),
        (MultiHead, SwiGLU, False),
        *(pytest.param(kind, SwiGLU, False, marks=pytest.mark.slow) for kind in SHIPPED if kind is not MultiHead),
    ],
    ids=lambda part: getattr(part, "kind", part),
)
def test_the_kinds_that_ship_draw_the_same_numbers_as_without_an_exception(
    kind: type[Attention], mlp: Any, tied_head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the constants of gates, which are as the constructor set them, and tensor_product's own weights."""
    config = replace(MODERN, attention=kind.Config(), mlp=mlp.Config(), tied_head=tied_head)
    torch.manual_seed(3)
    ours = GPT(config, 50)
    after, made = torch.rand(3), dict[str, Tensor]()

    def former(model: GPT, drawn: object, n_layer: int) -> None:
        made.update({name: value.clone() for name, value in model.state_dict().items()})
        without_exception(model)

    monkeypatch.setattr("minigpt.model.gpt.initialise", former)
    torch.manual_seed(3)
    theirs = GPT(config, 50).state_dict()
    assert torch.equal(after, torch.rand(3))  # and as many of them
    assert ours.state_dict().keys() == theirs.keys()
    kept = [name for name, value in ours.state_dict().items() if not torch.equal(value, theirs[name])]
    assert all(torch.equal(ours.state_dict()[name], made[name]) and name.endswith("bias") for name in kept)
    assert not any(part in name for name in kept for part in ("query", "key", "value", "project", "mlp"))


SUMS = dict.fromkeys(("average_loop", "average_matrix", "average_softmax", "dot_product"), 6751.5755)
SUMS |= dict.fromkeys(("single_head", "multi_head", "grouped_query"), 10278.1698)


@pytest.mark.parametrize("kind", SUMS)
def test_the_kinds_that_ship_start_from_the_numbers_from_which_they_always_have(kind: str) -> None:
    torch.manual_seed(1337)
    model = GPT(replace(MODERN, attention=KINDS[kind].Config()), 50)
    assert sum(p.double().abs().sum().item() for p in model.parameters()) == pytest.approx(SUMS[kind], abs=1e-3)


# ---- what a module sets itself stays ----


class Set(MultiHead):
    """Sets its weights in every way that is in use."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D = model.n_embd
        self.forget, self.part, self.kept = nn.Linear(D, 4), nn.Linear(D, 4), nn.Linear(D, 3)
        nn.init.constant_(self.forget.bias, 4)
        nn.init.orthogonal_(self.query.weight)
        nn.init.zeros_(self.project.weight)
        self.key.weight.data = torch.eye(D)
        self.value.weight.data.fill_(0.5)
        self.part.bias.data[:2] = 1
        with torch.no_grad():
            self.part.weight.mul_(3)
        self.kept.weight = nn.Parameter(torch.full((3, D), 7.0))
        self.table = nn.Embedding(5, D)
        nn.init.uniform_(self.table.weight, 2, 3)
        self.mixing = nn.Parameter(torch.eye(4))
        self.untouched = nn.Linear(D, 50)


def test_what_a_module_sets_itself_stays() -> None:
    attention: Any = made(Set).attentions()[1]
    D = SHAPE.n_embd
    assert (attention.forget.bias == 4).all()
    assert torch.allclose(attention.query.weight @ attention.query.weight.mT, torch.eye(D), atol=1e-5)
    assert (attention.project.weight == 0).all()
    assert torch.equal(attention.key.weight, torch.eye(D))
    assert (attention.value.weight == 0.5).all()
    assert (attention.part.bias[:2] == 1).all()
    assert attention.part.weight.abs().max() > 0.4  # three times torch's own, up to 1/sqrt(D) = 0.25
    assert (attention.kept.weight == 7).all()
    assert attention.table.weight.min() >= 2
    assert torch.equal(attention.mixing, torch.eye(4))


def test_what_it_leaves_alone_starts_as_the_rest_of_the_model_tensor_by_tensor() -> None:
    attention: Any = made(Set).attentions()[1]
    assert attention.untouched.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert attention.forget.weight.std().item() == pytest.approx(0.02, rel=0.3)  # though its bias was set
    assert all((layer.bias == 0).all() for layer in (attention.untouched, attention.query, attention.project))


def test_what_a_module_makes_equal_stays_equal() -> None:
    """Copied layers too, as in `nn.TransformerEncoder`; layers that were drawn one by one differ."""

    class Equal(MultiHead):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            self.key.load_state_dict(self.query.state_dict())
            self.copies = nn.ModuleList(copy.deepcopy(self.value) for _ in range(2))

    first, second = (attention for attention in made(Equal).attentions())
    for attention in (first, second):
        parts: Any = attention
        assert torch.equal(parts.key.weight, parts.query.weight)
        assert all(torch.equal(part.weight, parts.value.weight) for part in parts.copies)
        assert parts.query.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert not torch.equal(parts.query.weight, parts.value.weight)
    assert not torch.equal(first.query.weight, second.query.weight)


def test_what_a_parametrisation_computes_starts_as_the_module_left_it() -> None:
    """What the weights are computed from is no layer's own parameter: training starts with what the author computed."""

    class Computed(MultiHead):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            parametrizations.weight_norm(self.query)
            parametrizations.orthogonal(self.key)
            parametrizations.spectral_norm(self.value)
            nn.init.constant_(self.project.weight, 0.5)
            parametrizations.weight_norm(self.project)
            self.left = {name: getattr(self, name).weight.detach().clone() for name in ("query", "key", "project")}

    parts: Any = made(Computed).attentions()[1]
    assert all(torch.equal(getattr(parts, name).weight, weight) for name, weight in parts.left.items())
    assert torch.allclose(parts.key.weight @ parts.key.weight.mT, torch.eye(SHAPE.n_embd), atol=1e-5)


class Constants(MultiHead):
    """Sets some weights, to numbers that are no chance."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.forget = nn.Linear(model.n_embd, 4)
        nn.init.constant_(self.forget.bias, 4)
        nn.init.eye_(self.query.weight)
        self.value.weight.data.fill_(0.5)


class Gate(nn.Linear):
    """A layer that knows how it starts."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias, 4)


class Odd(MultiHead):
    """Layers that were not made by a plain call of nn.Linear."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D = model.n_embd
        self.gate = Gate(D, 40)
        self.copies = nn.ModuleList(copy.deepcopy(nn.Linear(D, 40)) for _ in range(2))
        self.key.weight = self.query.weight
        self.normed = parametrizations.weight_norm(nn.Linear(D, 40))
        self.norms = self.normed.weight.detach().clone()
        self.turned = parametrizations.orthogonal(nn.Linear(D, D))
        self.turns = self.turned.weight.detach().clone()
        self.padded = nn.Embedding(50, D, padding_idx=0)
        self.value.bias.detach().numpy()[:] = 0.25
        self.none = nn.Parameter(torch.empty(0, D))
        self.project.weight.data.zero_()


def test_layers_that_are_copied_shared_subclassed_or_computed() -> None:
    attention: Any = made(Odd).attentions()[0]
    assert (attention.gate.bias == 4).all()
    assert attention.gate.weight.std().item() == pytest.approx(0.02, rel=0.1)
    for layer in attention.copies:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert (layer.bias == 0).all()
    assert attention.key.weight is attention.query.weight
    assert attention.query.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert torch.equal(attention.normed.weight, attention.norms)  # computed from two others, which stay
    assert torch.equal(attention.turned.weight, attention.turns)
    assert attention.padded.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert (attention.project.weight == 0).all() and (attention.value.bias == 0.25).all()


def test_a_layer_without_numbers_does_not_make_zeros_look_fresh() -> None:
    class Empty(MultiHead):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            with torch.no_grad(), pytest.warns(UserWarning, match="zero-element"):
                self.nothing = nn.Linear(model.n_embd, 0)
            nn.init.zeros_(self.project.weight)

    assert (made(Empty).blocks[0].attention.project.weight == 0).all()


class Table(Position):
    """An embedding with a start of its own, in the model and in every attention."""

    def __init__(self, config: Position.Config, model: Shape, layer: int | None = None):
        super().__init__(config, model, layer)
        self.table = nn.Embedding(model.block_size, model.n_embd)
        nn.init.constant_(self.table.weight, 0.25)

    def embed(self, x: Tensor, past: Past) -> Tensor:
        return x + self.table.weight[past.length : past.length + x.shape[1]]  # (B, T, D)


def test_a_position_keeps_its_own_embedding() -> None:
    model: Any = GPT(replace(SHAPE, position=Table.Config()), 11)
    assert (model.position.table.weight == 0.25).all()
    assert (model.attentions()[1].position.table.weight == 0.25).all()
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.3)


def test_torchs_classes_are_as_before_also_when_a_constructor_fails() -> None:
    class Failing(MultiHead):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            raise RuntimeError("cannot be made")

    before = [layer.reset_parameters for layer in LAYERS]
    with pytest.raises(RuntimeError, match="cannot be made"):
        made(Failing)
    made(MultiHead)
    assert [layer.reset_parameters for layer in LAYERS] == before


def test_two_threads_that_make_models_at_once_get_what_each_gets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same parameters are initialised, all others are as the constructor set them, and torch is as before."""
    names = threading.local()

    def noted(name: str, parameter: Tensor, n_layer: int) -> None:
        names.started.append(name)
        start(name, parameter, n_layer)

    def make(kind: type[Attention]) -> tuple[list[str], dict[str, Tensor]]:
        names.started = []
        weights = made(kind).state_dict()
        return names.started, {name: value for name, value in weights.items() if name not in names.started}

    monkeypatch.setattr("minigpt.model.initialise.start", noted)
    before, interval = [layer.reset_parameters for layer in LAYERS], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            many = [*pool.map(make, [Constants, MultiHead] * 50)]
    finally:
        sys.setswitchinterval(interval)
    for kind, models in (Constants, many[::2]), (MultiHead, many[1::2]):
        alone, constants = make(kind)
        for started, others in models:
            assert started == alone and others.keys() == constants.keys()
            assert all(torch.equal(value, constants[name]) for name, value in others.items())
    assert [layer.reset_parameters for layer in LAYERS] == before


def test_a_model_without_numbers_can_be_made() -> None:
    with torch.device("meta"):
        model = made(Set)
    assert all(parameter.is_meta for parameter in model.parameters())


# ---- in a comparison ----

PLUGIN = '''
"""A gate of the output that starts open, and one that starts closed."""
from torch import nn
from minigpt.attention import MultiHead

class Forget(MultiHead, kind="forget_open"):
    start = 4.0

    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        self.forget = nn.Linear(model.n_embd, model.n_embd)
        nn.init.constant_(self.forget.bias, self.start)

    def output(self, mixed, x):
        return super().output(mixed, x) * self.forget(x).sigmoid()

class Closed(Forget, kind="forget_closed"):
    start = -20.0
'''


@pytest.mark.slow
def test_a_comparison_compares_kinds_as_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("minigpt.text.corpus.DATA", tmp_path / "data")
    plugin = tmp_path / "gates.py"
    plugin.write_text(PLUGIN, encoding="utf-8")
    load_plugin(plugin)
    gates = "  open: {model.attention: forget_open}\n  closed: {model.attention: forget_closed}\n"
    text = SMALL.replace("variants:\n", "variants:\n" + gates).replace("seeds: [1, 2]", "seeds: [1]")
    comparison = small(tmp_path, text)
    finished(comparison, (plugin,))
    for name, bias in ("open", 4.0), ("closed", -20.0):
        attention: Any = load_run(comparison.folder / f"{name}-seed-1", "cpu").model.attentions()[0]
        assert attention.forget.bias.mean().item() == pytest.approx(bias, abs=0.1)  # after six steps
