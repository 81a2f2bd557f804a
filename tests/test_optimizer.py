"""Optimizers: which parameters each one updates, by the formulas and torch's own results, and resumed after a stop."""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from running import furnish, script
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import minigpt
from minigpt.attention import Attention, MultiHead, Shape
from minigpt.model import GPT, MLP, ModelConfig
from minigpt.system.errors import UserError
from minigpt.training import checkpoint
from minigpt.training.optimizer import (
    NEWTON_SCHULZ,
    AdamW,
    AdamWRule,
    Muon,
    MuonRule,
    Optimizer,
    feature_matrices,
    orthogonal,
)

MATRICES = {"query.weight", "key.weight", "value.weight", "project.weight", "up.weight"}


def make_model(tied_head: bool = True) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=2, n_embd=16, block_size=8, tied_head=tied_head), vocab_size=11).double()


def make_optimizer(config: Optimizer.Config, model: GPT) -> Optimizer:
    optimizer = config.component(config, model)
    assert isinstance(optimizer, Optimizer)
    return optimizer


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)


def named(optimizer: Optimizer, part: int) -> dict[str, float]:
    """The parameters that one rule steps by name, with their weight decay."""
    groups = optimizer.parts[part].param_groups
    return {optimizer.names[p]: group["weight_decay"] for group in groups for p in group["params"]}


# ---- who is stepped by what ----


@pytest.mark.parametrize("tied_head", [True, False])
def test_adamw_steps_everything_once_and_shrinks_only_matrices(tied_head: bool) -> None:
    model = make_model(tied_head)
    (part,) = (optimizer := make_optimizer(AdamW.Config(weight_decay=0.3), model)).parts
    assert isinstance(part, AdamWRule)
    decays = named(optimizer, 0)
    assert decays == {name: 0.3 if p.ndim == 2 else 0.0 for name, p in model.named_parameters()}
    assert sum(len(group["params"]) for group in part.param_groups) == len(decays)
    assert ("head.weight" in decays) is not tied_head


@pytest.mark.parametrize("tied_head", [True, False])
def test_muon_takes_exactly_the_matrices_inside_the_blocks(tied_head: bool) -> None:
    model = make_model(tied_head)
    optimizer = make_optimizer(Muon.Config(weight_decay=0.2), model)
    rest, matrices = named(optimizer, 0), named(optimizer, 1)
    assert [type(part) for part in optimizer.parts] == [AdamWRule, MuonRule]
    assert {name.split(".", 3)[-1] for name in matrices} == MATRICES
    assert all(name.startswith("blocks.") for name in matrices)
    assert matrices.keys() | rest.keys() == dict(model.named_parameters()).keys()
    assert not matrices.keys() & rest.keys()
    assert {name for name, decay in rest.items() if decay} == {"tokens.weight", "position.table.weight"} | (
        set() if tied_head else {"head.weight"}
    )


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", Attention.kinds.values(), ids=[*Attention.kinds])
def test_of_what_ships_muon_takes_every_matrix_inside_the_blocks_in_their_order(kind: type[Attention]) -> None:
    for mlp in MLP.kinds.values():
        shape = ModelConfig(n_layer=2, n_embd=16, block_size=8, attention=kind.Config(), mlp=mlp.Config())
        model = GPT(shape, vocab_size=11)
        linear = {id(part.weight) for part in model.blocks.modules() if isinstance(part, nn.Linear)}
        linear -= {id(a.get_parameter(name)) for a in model.attentions() for name in a.muon if not a.muon[name]}
        assert [id(p) for p in feature_matrices(model.blocks)] == [
            id(p) for p in model.blocks.parameters() if id(p) in linear
        ]


class Talking(MultiHead):
    """Heads that are mixed, before the softmax by a matrix and after it by a layer (arXiv 2003.02436)."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.before = nn.Parameter(torch.eye(config.n_head))
        self.after = nn.Linear(config.n_head, config.n_head)
        self.table = nn.Embedding(8, model.n_embd)
        self.shared = nn.Linear(model.n_embd, model.n_embd)
        self.shared.weight = self.query.weight


def muon_of(kind: type[Attention]) -> set[str]:
    """The names of the matrices of a kind that Muon steps."""
    model = GPT(ModelConfig(n_layer=1, n_embd=16, block_size=8, attention=kind.Config()), vocab_size=11)
    optimizer = make_optimizer(Muon.Config(), model)
    inside = named(optimizer, 1)
    assert not inside.keys() & named(optimizer, 0).keys()
    assert inside.keys() | named(optimizer, 0).keys() == dict(model.named_parameters()).keys()
    return {name.removeprefix("blocks.0.attention.") for name in inside} - {"blocks.0.mlp.up.weight"}


USUAL = {"query.weight", "key.weight", "value.weight", "project.weight", "blocks.0.mlp.project.weight"}


def test_a_modules_own_parameter_goes_to_adamw_and_a_linear_layer_to_muon_unless_it_says_otherwise() -> None:
    class Said(Talking):
        muon: ClassVar[dict[str, bool]] = {"before": True, "after.weight": False, "table.weight": True}

    assert muon_of(Talking) == USUAL | {"after.weight"}
    assert muon_of(Said) == USUAL | {"before", "table.weight"}


def test_the_outermost_module_decides() -> None:
    class Mixing(nn.Linear):
        muon: ClassVar[dict[str, bool]] = {"weight": True}

    class Said(Talking):
        muon: ClassVar[dict[str, bool]] = {"after.weight": False}

        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            self.after = Mixing(config.n_head, config.n_head)

    assert muon_of(Said) == USUAL


class LowRank(nn.Module):
    """A weight (n, m) as the product of two factors."""

    def forward(self, up: Tensor, down: Tensor) -> Tensor:
        return up @ down  # (n, m)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight[:, :3], weight[:3]  # (n, 3), (3, m)


class Parametrized(Talking):
    """Weights that are computed: from lengths and directions, from two factors, as an orthogonal matrix."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        for part in (self.key, self.after):
            parametrizations.weight_norm(part)
        parametrize.register_parametrization(self.value, "weight", LowRank())
        parametrizations.orthogonal(self.project)


def test_of_a_weight_that_is_computed_muon_steps_the_matrices_that_it_is_computed_from() -> None:
    """And AdamW the lengths, which are a vector; `muon` names the weight, whatever it is computed from."""

    class Said(Parametrized):
        muon: ClassVar[dict[str, bool]] = {"key.weight": False, "value.parametrizations.weight.original0": False}

    key, value, after, project = (
        f"{name}.parametrizations.weight.original" for name in ("key", "value", "after", "project")
    )
    usual = USUAL - {"key.weight", "value.weight", "project.weight"}
    assert muon_of(Parametrized) == usual | {f"{key}1", f"{value}0", f"{value}1", f"{after}1", project}
    assert muon_of(Said) == usual | {f"{value}1", f"{after}1", project}


def test_a_name_that_a_parent_gives_is_of_no_meaning_where_the_layer_is_replaced() -> None:
    class Parent(Talking):
        muon: ClassVar[dict[str, bool]] = {"after.weight": False}

    class Replaced(Parent):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            self.after = nn.Sequential(nn.Linear(config.n_head, 2), nn.Linear(2, config.n_head))

    assert muon_of(Replaced) == USUAL | {"after.0.weight", "after.1.weight"}


@pytest.mark.parametrize(
    ("muon", "message"),
    [
        ({"befor": True}, "Said.muon: .befor.: there is no such parameter"),
        ({"after.bias": True}, "Said.muon: .after.bias.: 1 dimensions, expected 2"),
    ],
)
def test_a_name_that_cannot_be_meant_is_refused(muon: dict[str, bool], message: str) -> None:
    with pytest.raises(UserError, match=message):
        muon_of(type("Said", (Talking,), {"muon": muon}))


# ---- held against formulas and torch ----


def test_adamw_steps_by_its_formula() -> None:
    model, config = make_model(), AdamW.Config(learning_rate=0.01, weight_decay=0.3, beta1=0.8, beta2=0.9)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in expected.items()}
    second = copy.deepcopy(first)
    optimizer = make_optimizer(config, model)
    for t, factor in enumerate((0.5, 1.0, 0.25), start=1):
        give_gradients(model, seed=t)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step(factor)
        for name, weight in expected.items():
            gradient, rate = gradients[name], 0.01 * factor
            if weight.ndim == 2:
                weight.mul_(1 - rate * 0.3)
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.9 * second[name] + 0.1 * gradient**2
            mean, square = first[name] / (1 - 0.8**t), second[name] / (1 - 0.9**t)
            weight -= rate * mean / (square.sqrt() + 1e-8)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-10, atol=1e-12)


def test_muon_steps_its_matrices_as_torch_does_and_the_rest_as_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.training.optimizer.NEWTON_SCHULZ", ((3.4445, -4.7750, 2.0315),) * 5)  # torch's
    factors = (0.5, 1.0, 0.25)
    config = Muon.Config(
        learning_rate=0.05, weight_decay=0.2, momentum=0.9, adamw_learning_rate=3e-3, beta1=0.8, beta2=0.9
    )
    model, reference = make_model(), make_model()
    optimizer = make_optimizer(config, model)
    inside = [p for name, p in reference.named_parameters() if name.split(".", 3)[-1] in MATRICES]
    muon = torch.optim.Muon(inside, lr=0.05, weight_decay=0.2, momentum=0.9)
    tables = [reference.tokens.weight, reference.position.table.weight]
    vectors = [p for p in reference.parameters() if p.ndim == 1]
    adamw = torch.optim.AdamW(
        [{"params": tables, "weight_decay": 0.2}, {"params": vectors, "weight_decay": 0.0}], lr=3e-3, betas=(0.8, 0.9)
    )
    base = {id(group): group["lr"] for part in (muon, adamw) for group in part.param_groups}
    for t, factor in enumerate(factors):
        give_gradients(model, seed=t)
        give_gradients(reference, seed=t)
        optimizer.step(factor)
        for part in (muon, adamw):
            for group in part.param_groups:
                group["lr"] = base[id(group)] * factor
            part.step()
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters()):
        batched = name.split(".", 3)[-1] in MATRICES  # in bfloat16, in another order; a step is about 0.01
        exact = {"rtol": 0, "atol": 1e-3} if batched else {"rtol": 1e-10, "atol": 1e-12}
        torch.testing.assert_close(ours, theirs, **exact, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("shape", [(3, 5, 9), (3, 9, 5)])
def test_orthogonal_maps_the_singular_values_alone(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64)
    U, values, V = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.square().sum(-1, keepdim=True).sqrt()
    for a, b, c in NEWTON_SCHULZ:
        values = a * values + b * values**3 + c * values**5
    made = orthogonal(matrices, dtype=torch.float64)
    torch.testing.assert_close(made, U @ values.diag_embed() @ V, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(orthogonal(matrices), made, rtol=0, atol=0.05)  # bfloat16: the same directions


def test_the_iterations_lift_all_from_a_three_hundredth_to_near_one() -> None:
    values = torch.logspace(math.log10(1 / 300), math.log10(1.02), 10_000, dtype=torch.float64)
    for a, b, c in NEWTON_SCHULZ:
        values = a * values + b * values**3 + c * values**5
    assert values.min() > 0.75 and values.max() < 1.2


def test_in_bfloat16_one_direction_alone_is_not_thrown_far_off() -> None:
    """Its singular value is one, which rounding lifts a little above: where the iterations would run away."""
    torch.manual_seed(0)
    matrices = torch.randn(64, 128, 1) @ torch.randn(64, 1, 96)
    assert torch.linalg.svdvals(orthogonal(matrices)).max() < 1.25


# ---- going on after a stop ----


@pytest.mark.parametrize("torchs", [torch.optim.SGD, torch.optim.NAdam, torch.optim.Adafactor])
def test_torchs_own_optimizers_go_on_too(torchs: Any) -> None:
    class Theirs(AdamW):
        def make_parts(self, config: Any, model: GPT) -> list[torch.optim.Optimizer]:  # type: ignore[override]
            return [torchs(model.parameters(), lr=0.01)]

    model, resumed = make_model().float(), make_model().float()
    first, again = Theirs(AdamW.Config(), model), Theirs(AdamW.Config(), resumed)
    for t in range(4):
        if t == 2:
            resumed.load_state_dict(copy.deepcopy(model.state_dict()))
            again.load_state({name: tensor.clone() for name, tensor in first.state().items()})
        give_gradients(model, seed=t)
        first.step(0.5)
        if t >= 2:
            give_gradients(resumed, seed=t)
            again.step(0.5)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in resumed.state_dict().items())
    assert not first.has_state and make_optimizer(AdamW.Config(), model).has_state


OPTIMIZER = """
import torch
from minigpt.training.optimizer import Optimizer


class Plain(Optimizer, kind="plain"):
    def make_parts(self, config, model):
        return [torch.optim.SGD(model.parameters(), lr=config.learning_rate)]
"""


def test_an_optimizer_that_remembers_nothing_is_resumed(tmp_path: Path) -> None:
    (furnish(tmp_path) / "plain.py").write_text(OPTIMIZER, encoding="utf-8")
    plugin, longer = ("--plugin", "plain.py"), ("--resume", "training.max_steps=10")
    assert script("train.py", "--config", "small.yaml", *plugin, "training.optimizer=plain", cwd=tmp_path).code == 0
    ended = script("train.py", *plugin, *longer, cwd=tmp_path)
    assert ended.code == 0 and "resumed after step 8" in ended.out


def test_and_one_whose_memory_is_gone_is_not(tmp_path: Path) -> None:
    assert script("train.py", "--config", "small.yaml", cwd=furnish(tmp_path)).code == 0
    folder = tmp_path / "runs" / "small"
    saved, model = checkpoint.newest(folder / "checkpoints")[0], minigpt.load(folder, device="cpu").model
    for path in checkpoint.checkpoints(folder / "checkpoints"):
        shutil.rmtree(path)
    checkpoint.save(folder / "checkpoints", 8, checkpoint.tensors_of(model), {}, saved.state, saved.seal)
    ended = script("train.py", "--resume", "training.max_steps=10", cwd=tmp_path)
    assert ended.code == 4 and "the optimizer's state is empty" in ended.err


def test_a_state_for_another_model_is_refused_by_name() -> None:
    optimizer = make_optimizer(AdamW.Config(), make_model())
    with pytest.raises(UserError, match=r"names 'blocks\.7\.mlp\.up\.weight', which this model does not have"):
        optimizer.load_state({"blocks.7.mlp.up.weight|exp_avg": torch.zeros(1)})
