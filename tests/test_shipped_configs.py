"""The configs that ship: all are valid, those of the ladder differ only in their attention, and each one trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import furnish, script

import minigpt.attention
from minigpt.attention import Attention
from minigpt.comparison.variants import load_comparison
from minigpt.config.options import CONFIGS, from_dict, load
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig, count_parameters
from minigpt.seeing.cost import cost
from minigpt.text.tokenizer import Public
from minigpt.training.assemble import RunConfig
from minigpt.training.report import read_metrics

COMPARED = "\ncompare:"  # a config of scripts/compare.py, not of a run
ELSEWHERE = [CONFIGS / "swaps.yaml", CONFIGS / "scaling.yaml"]  # of scripts/swap.py and scripts/scaling.py
OTHERS = [path for path in sorted(CONFIGS.rglob("*.yaml")) if path not in ELSEWHERE]
RUNNABLE = [path for path in OTHERS if COMPARED not in path.read_text("utf-8")]
COMPARISONS = [path for path in OTHERS if path not in RUNNABLE]
HYBRIDS = sorted(path.name for path in CONFIGS.glob("hybrid_*.yaml"))
LADDER = sorted((CONFIGS / "ladder").glob("*.yaml"))
SHORT = ["training.max_steps=2", "training.sample_every=1", "sampling.max_tokens=3", "training.device=cpu"]


def shape(config: ModelConfig, vocab_size: int) -> GPT:
    """The model of a config without any numbers in it."""
    with torch.device("meta"):
        return GPT(config, vocab_size)


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_a_config_that_ships_is_right_and_says_how_to_use_it(path: Path) -> None:
    load(RunConfig, path)
    title, command, *_ = path.read_text("utf-8").splitlines()
    assert title.startswith("# ") and title.endswith(".")
    assert command.startswith(f"#   python scripts/train.py --config {path.relative_to(CONFIGS)}")


def test_the_ladder_has_a_file_for_every_rung() -> None:
    """Its rungs are the kinds that the package names; the others are one change away from one of them."""
    kinds = [load(RunConfig, path).model.layer_attention(0).component.kind for path in LADDER]
    rungs = {name for name, kind in Attention.kinds.items() if kind.__name__ in minigpt.attention.__all__}
    assert sorted(kinds) == sorted(rungs)
    assert [path.stem for path in LADDER] == kinds


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_is_tiny_but_for_the_attention(name: str) -> None:
    tiny, hybrid = (load(RunConfig, file) for file in ("tiny.yaml", name))
    assert isinstance(hybrid.model.attention, tuple)
    assert replace(hybrid, model=replace(hybrid.model, attention=tiny.model.attention)) == tiny


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("tiny.yaml", 4 * 2 * 128 * 128),  # layers, keys and values, positions, width
        ("hybrid_linear.yaml", 2 * 128 * 128 + 3 * 4 * 32 * 32),  # one layer of keys and values, three of four states
        ("hybrid_window.yaml", 2 * 2 * 128 * (128 + 32)),
    ],
)
def test_a_hybrid_keeps_less(name: str, numbers: int) -> None:
    """After a whole context, in float32; the figures of configs/README.md are these, divided by its 128 tokens."""
    kept = cost(make_fast(GPT(load(RunConfig, name).model, 50))).cache_bytes_per_token * 128
    assert kept == 4 * numbers


def test_the_rungs_are_identical_but_for_the_attention() -> None:
    def without_attention(path: Path) -> list[str]:
        lines = path.read_text("utf-8").splitlines()
        kept = [line for line in lines if not line.startswith("#") and not line.startswith("  attention: ")]
        assert len([line for line in lines if line.startswith("  attention: ")]) == 1
        return kept

    first, *others = map(without_attention, LADDER)
    assert len(first) > 10
    assert all(other == first for other in others)
    configs = [load(RunConfig, path) for path in LADDER]
    plain = ModelConfig().attention
    assert len({replace(config, model=replace(config.model, attention=plain)) for config in configs}) == 1


# ---- the shapes that others know ----


@pytest.mark.parametrize(
    ("name", "vocabulary", "parameters", "of_positions"),
    [
        ("gpt2.yaml", 50257, 124_439_808, 1024 * 768),
        ("llama_1b.yaml", 128_256, 1_235_814_400, 0),  # 1.24 billion, as its card says, with Meta's vocabulary
        ("shakespeare_char_cpu.yaml", 65, 804_096, 804_096 - 795_904),  # nanoGPT reports 0.80 and 10.65 million:
        ("shakespeare_char.yaml", 65, 10_745_088, 10_745_088 - 10_646_784),  # its count leaves the positions out
    ],
)
def test_the_parameters_are_those_that_others_report(
    name: str, vocabulary: int, parameters: int, of_positions: int
) -> None:
    model = shape(load(RunConfig, name).model, vocabulary)
    parts = count_parameters(model)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert parts["position"] == of_positions


def test_the_recipes_of_others_are_those_that_they_document() -> None:
    tokenizer = load(RunConfig, "gpt2.yaml").data.tokenizer.component
    assert issubclass(tokenizer, Public) and tokenizer.kind == "gpt2"
    config = load(RunConfig, "shakespeare_char_cpu.yaml")
    model, training = config.model, config.training
    assert (model.n_layer, model.n_embd, model.block_size, model.dropout) == (4, 128, 64, 0.0)
    multi_head = from_dict(ModelConfig, {"attention": {"kind": "multi_head", "n_head": 4}})
    assert model.attention == multi_head.attention
    assert (training.batch_size, training.max_steps, training.optimizer.learning_rate) == (12, 2000, 1e-3)


@pytest.mark.parametrize("recipe", ["fast", "long"])
def test_the_recipes_have_nanogpts_shape_and_no_more_parameters(recipe: str) -> None:
    fast, slow = (load(RunConfig, f"shakespeare_char_{name}.yaml") for name in (recipe, "cpu"))
    for key in ("n_layer", "n_embd", "block_size", "bias", "dropout"):
        assert getattr(fast.model, key) == getattr(slow.model, key)
    assert fast.model.attention == replace(slow.model.attention, qk_norm=recipe == "long")  # type: ignore[call-arg]
    assert sum(count_parameters(shape(fast.model, 65)).values()) <= 804_096
    assert replace(fast.data, windows="random") == slow.data


def test_the_ablation_takes_the_fast_recipe_apart() -> None:
    ablation, fast = load_comparison("shakespeare_ablation.yaml"), load(RunConfig, "shakespeare_char_fast.yaml")
    whole = ablation.variants[ablation.settings.baseline]
    assert whole.model == fast.model and whole.data == fast.data
    assert replace(whole.training, eval_every=1, sample_every=0) == replace(fast.training, eval_every=1)
    assert len({str(config) for config in ablation.variants.values()}) == len(ablation.variants)


def test_the_comparison_of_windows_is_that_of_the_longer_recipe() -> None:
    windows, long = load_comparison("shakespeare_windows.yaml"), load(RunConfig, "shakespeare_char_long.yaml")
    shuffled = windows.variants["shuffled"]
    assert shuffled.model == long.model and shuffled.data == long.data
    assert replace(shuffled.training, eval_every=1) == replace(long.training, eval_every=1)
    assert {config.data.windows for config in windows.variants.values()} == {"random", "shuffled"}


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_variant_of_a_comparison_can_be_made(path: Path) -> None:
    for config in load_comparison(path.name).variants.values():
        optimizer = config.training.optimizer
        assert optimizer.component(optimizer, shape(config.model, 65)).parts


# ---- each of them trains ----


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = furnish(tmp_path_factory.mktemp("home"))
    (folder / "text.txt").write_text((folder / "text.txt").read_text("utf-8") * 4, encoding="utf-8")
    return folder


@pytest.mark.quick("tiny.yaml", "ladder/multi_head.yaml")
@pytest.mark.parametrize("name", ["tiny.yaml", *HYBRIDS, *(f"ladder/{path.name}" for path in LADDER)])
def test_a_small_config_trains(home: Path, name: str) -> None:
    run = Path(name).stem
    small = "data.source=text.txt", "training.batch_size=2", "model.block_size=64"
    ended = script("train.py", "--config", name, *SHORT, *small, cwd=home)
    assert (ended.code, ended.err) == (0, "")
    assert "done: 2 steps" in ended.out
    lines = read_metrics(home / "runs" / run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert 0 < lines[-1]["val/loss"] < 4
