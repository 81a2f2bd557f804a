"""Another attention in a run that is there: which weights stay, what starts fresh, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from running import furnish, script, well

import minigpt
from minigpt import Run
from minigpt.attention import Attention
from minigpt.attention.position import Rotary
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.system.errors import UserError
from minigpt.system.plugin import load_plugin
from minigpt.training.assemble import build_model
from minigpt.training.checkpoint import tensors_of
from minigpt.training.run import open_run
from minigpt.training.swap import move, swapped

GROUPED = """\
data: {source: text.txt}
model:
  n_layer: 3
  n_embd: 24
  block_size: 16
  position: rotary
  attention: {kind: grouped_query, n_head: 4, n_kv_head: 2, head_dim: 10, qk_norm: true}
training: {batch_size: 4, max_steps: 3, eval_every: 3, sample_every: 0, device: cpu, seed: 7}
sampling: {max_tokens: 20}
"""
LIST = ["model.attention=[sliding_window, grouped_query]", "model.attention.window=4"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of three layers: `small` has grouped queries, `mixed` a list of two kinds."""
    folder = furnish(tmp_path_factory.mktemp("home"), GROUPED)
    well(script("train.py", "--config", "small.yaml", cwd=folder))
    well(script("train.py", "--config", "small.yaml", "--name", "mixed", *LIST, cwd=folder))
    return folder


def opened(home: Path, *overrides: str, name: str = "small") -> Run:
    return minigpt.load(home / "runs" / name, device="cpu", overrides=overrides)


def logits(run: Run, text: str = "the cat sat on") -> torch.Tensor:
    with torch.no_grad():
        return run.model.double()(run.prompt_ids(text))


def line(run: Run, what: str) -> str:
    (found,) = [note for note in run.notes if note.startswith(f"{what}: ")]
    return found


def kinds(run: Run) -> Sequence[str]:
    return [attention.kind for attention in run.model.attentions()]


# ---- what stays ----


def test_a_kind_that_computes_the_same_with_the_same_weights_changes_nothing(home: Path) -> None:
    before = opened(home)
    after = opened(home, "model.attention=sliding_window", "model.attention.window=16")
    assert kinds(after) == ["sliding_window"] * 3
    assert torch.allclose(logits(after), logits(before), rtol=0, atol=1e-12)
    assert line(after, "fresh") == "fresh: nothing"
    assert line(after, "dropped") == "dropped: nothing"
    assert not torch.equal(logits(opened(home, "model.attention={kind: sliding_window, window: 3}")), logits(before))


def test_options_that_the_new_kind_has_too_stay(home: Path) -> None:
    found = opened(home, "model.attention=sliding_window").config.model.attention
    assert (found.n_head, found.n_kv_head, found.head_dim, found.qk_norm) == (4, 2, 10, True)
    one = opened(home, "model.attention=sliding_window", "model.attention.qk_norm=false").config.model.attention
    assert (one.n_kv_head, one.head_dim, one.qk_norm) == (2, 10, False)
    exact = opened(home, "model.attention={kind: sliding_window, head_dim: 10}")
    assert exact.config.model.attention == SlidingWindow.Config(head_dim=10)
    assert "{kind: sliding_window} leaves out qk_norm: true, n_kv_head: 2; " in exact.notes[0]
    position = opened(home, "model.position={base: 500}").config.model.position
    assert position == Rotary.Config(base=500.0)


def test_grouped_heads_unrolled_into_many_are_the_same_model(home: Path) -> None:
    before, after = opened(home), opened(home, "model.attention=multi_head")
    assert kinds(after) == ["multi_head"] * 3
    assert after.model.attentions()[0].n_kv_head == 4
    assert (logits(after) - logits(before)).abs().max() <= 1e-12
    cached, ids = after.model.make_cache(), after.prompt_ids("the cat sat on")
    with torch.no_grad():
        steps = torch.cat([after.model(ids[:, [t]], cached) for t in range(ids.shape[1])], dim=1)
    assert (steps - logits(before)).abs().max() <= 1e-12
    names = ("key.weight", "key.bias", "value.weight", "value.bias")
    said = ", ".join(f"attention.{name}" for name in names)
    assert line(after, "repeated") == f"repeated: 12 tensors, {3 * 2 * (40 * 24 + 40):,} numbers: layers 1-3: {said}"
    assert line(after, "fresh") == "fresh: nothing"


def test_one_key_head_for_all_becomes_two_but_two_do_not_become_one(home: Path) -> None:
    one = opened(home, "model.attention.n_kv_head=1")
    shapes = {name for name, _ in one.model.named_parameters() if "key.weight" in name or "value.weight" in name}
    assert all(name.split(".", 2)[2] in line(one, "fresh") for name in shapes)
    assert "repeated" not in "".join(one.notes)


def test_key_heads_are_not_repeated_for_other_query_heads(home: Path) -> None:
    other = opened(home, "model.attention.n_head=8", "model.attention.n_kv_head=4")
    assert "attention.key.weight" in line(other, "fresh")
    assert "repeated" not in "".join(other.notes)


def test_a_head_that_is_untied_begins_as_the_embeddings(home: Path) -> None:
    before, after = opened(home), opened(home, "model.tied_head=false")
    assert torch.equal(logits(after), logits(before))
    assert line(after, "repeated").endswith("head.weight")


# ---- what is new ----


def test_what_is_new_starts_as_in_a_new_model_of_that_config_and_seed(home: Path) -> None:
    overrides = ["model.attention=gated", "model.embedding_norm=true"]
    run = opened(home, *overrides)
    source = open_run(home / "runs/small")
    fresh = tensors_of(build_model(swapped(source.config, overrides), source.tokenizer))
    moved = move(build_model(run.config, run.tokenizer), source.saved.model, source.outline())
    assert any("attention.gate" in name for name in moved.fresh)
    assert {"embedding_norm.weight", "embedding_norm.bias"} < set(moved.fresh)
    for name, tensor in tensors_of(run.model).items():
        expected = {**source.saved.model, **{name: fresh[name] for name in moved.fresh}}
        assert name in moved.repeated or torch.equal(tensor, expected[name]), name
    assert set(moved.fresh) | set(moved.kept) | set(moved.repeated) == set(fresh)


def test_what_has_no_place_is_dropped_and_listed(home: Path) -> None:
    run = opened(home, "model.attention=average_softmax")
    assert not list(run.model.attentions()[0].parameters())
    dropped = line(run, "dropped")
    assert "layers 1-3: attention.key.bias, attention.key.weight" in dropped
    assert "tokens.weight" in line(run, "kept")
    shallow = opened(home, "model.n_layer=2")
    assert "layer 3: attention" in line(shallow, "dropped")
    assert line(shallow, "fresh") == "fresh: nothing"
    deep = opened(home, "model.n_layer=5")
    assert "layers 4-5: " in line(deep, "fresh")


def test_another_context_keeps_all_but_a_table_of_positions(home: Path) -> None:
    longer = opened(home, "model.block_size=32")
    assert line(longer, "fresh") == "fresh: nothing"
    assert torch.equal(logits(longer), logits(opened(home)))
    learned = opened(home, "model.position=learned")
    assert line(learned, "fresh") == f"fresh: 1 tensor, {16 * 24} numbers: position.table.weight"


# ---- a kind for each layer ----


COMPUTED = """\
from torch.nn.utils import parametrizations
from minigpt.attention import MultiHead

class Computed(MultiHead, kind="computed"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        parametrizations.weight_norm(self.query)
        parametrizations.spectral_norm(self.value)
"""


@pytest.mark.slow
def test_a_weight_that_is_computed_is_taken_as_it_is_computed_and_the_other_way_round(tmp_path: Path) -> None:
    """A weight norm computes any weight. A spectral norm does not: its weight is kept as far as its norm allows."""
    furnish(tmp_path, GROUPED.replace("grouped_query", "computed").replace("n_kv_head: 2, ", ""))
    (tmp_path / "mine.py").write_text(COMPUTED, encoding="utf-8")
    well(script("train.py", "--config", "small.yaml", "--plugin", "mine.py", cwd=tmp_path))
    plain = ("train.py", "--config", "small.yaml", "--name", "plain", "model.attention.kind=multi_head")
    well(script(*plain, cwd=tmp_path))
    load_plugin(tmp_path / "mine.py")
    try:
        swapped = opened(tmp_path, "model.attention=multi_head")
        assert torch.allclose(logits(swapped), logits(opened(tmp_path)), rtol=0, atol=1e-6)
        assert line(swapped, "fresh") == "fresh: nothing" and line(swapped, "dropped") == "dropped: nothing"
        back: Any = opened(tmp_path, "model.attention=computed", name="plain")
        before: Any = opened(tmp_path, name="plain")
        for ours, theirs in zip(back.model.attentions(), before.model.attentions()):
            assert torch.allclose(ours.query.weight, theirs.query.weight, atol=1e-6)
        assert "attention.query.parametrizations.weight.original1" in line(back, "kept")
        assert "attention.query" not in line(back, "fresh") + line(back, "dropped")
    finally:
        Attention.kinds.pop("computed")


def test_a_list_is_repeated_over_the_layers_and_each_kind_keeps_the_options(home: Path) -> None:
    run = opened(home, *LIST)
    assert kinds(run) == ["sliding_window", "grouped_query", "sliding_window"]
    assert [(a.n_head, a.n_kv_head) for a in run.model.attentions()] == [(4, 2)] * 3
    assert torch.equal(logits(run), logits(opened(home, *LIST)))


def test_one_kind_in_place_of_a_list_and_an_option_for_all_of_it(home: Path) -> None:
    assert kinds(opened(home, name="mixed")) == ["sliding_window", "grouped_query", "sliding_window"]
    assert kinds(opened(home, "model.attention=grouped_query", name="mixed")) == ["grouped_query"] * 3
    windows = opened(home, "model.attention=sliding_window", name="mixed").model.attentions()
    assert [layer.config.window for layer in windows] == [4, 4, 4]  # the run's own
    unscaled = opened(home, "model.attention.scaled=false", name="mixed").model.attentions()
    assert [attention.config.scaled for attention in unscaled] == [False] * 3


# ---- the commands ----


@pytest.mark.parametrize("command", ["sample.py", "explore.py", "show_attention.py"])
def test_the_commands_take_a_swap(home: Path, command: str) -> None:
    options = ["--layer", "1", "--head", "1"] if command == "show_attention.py" else []
    ended = script(
        command, "--run", "small", *options, "--prompt", "the cat", "model.attention=average_softmax", cwd=home
    )
    assert ended.code == 0, ended.err
    swap, kept, fresh, dropped = ended.err.splitlines()
    assert swap == "model.attention: average_softmax has no head_dim: 10, qk_norm: true, n_kv_head: 2"
    assert kept.startswith("kept: 27 tensors")
    assert fresh == "fresh: nothing"
    assert "layers 1-3: attention.key.bias" in dropped


def test_what_is_shown_of_a_swapped_run_says_so(home: Path) -> None:
    run = opened(home, "model.attention=average_softmax")
    assert run.name == "small model.attention=average_softmax"
    assert "with model.attention=average_softmax: step 3, attention average_softmax" in repr(run)
    assert "validation loss" not in run.facts()  # it was another model's
    assert "validation loss" in opened(home).facts()
    assert "small model.attention=average_softmax" in run.explore("the cat", home / "page.html").html
    assert run.explore("the cat").path == home / "runs/small/explorer-attention-average_softmax.html"
    assert opened(home).explore("the cat").path == home / "runs/small/explorer.html"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.source=other.txt", "data.source=other.txt: only options of the model can be swapped in a run"),
        ("training.max_steps=5", "train.py --from-run"),
        ("model.attention=averag", "unknown kind 'averag'"),
        ("model.attention={kind: multi_head, n_head: 5, head_dim: null}", "5 heads do not divide n_embd, 24"),
        ("model.attention=3", "model.attention: expected"),
        ("model.n_layer=none", "model.n_layer: expected"),
        ("model.atention=none", "did you mean 'attention'"),
    ],
)
def test_a_swap_that_cannot_be_is_one_line(home: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        opened(home, override)
    assert "\n" not in str(caught.value)
