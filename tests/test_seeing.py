"""Seeing: the numbers of the explorer's page against independent computations, over every kind, and a page's file."""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plugin_kinds import PLUGIN_KINDS
from running import furnish, script, well
from torch import Tensor

import minigpt
from minigpt import GPT, ModelConfig
from minigpt.attention import Attention, MultiHead
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary
from minigpt.learning.small_training import watch
from minigpt.seeing import pack as packing
from minigpt.seeing.document import document, write_page
from minigpt.seeing.explorer import SCRIPTS, explore, habits
from minigpt.seeing.numbers import Layer, Numbers, costs, far_outside, look
from minigpt.seeing.pack import QUERIES, STEPS, arrays, fitting, pack
from minigpt.seeing.trace import attention_maps
from minigpt.system.errors import UserError
from minigpt.text.languages.language import Stories
from minigpt.text.tokenizer import Byte, Char
from minigpt.training.floor import character_probabilities

STORY = "\nMia was a shy fox. She met Tom."
LETTERS = Char("".join(sorted({*STORY, *"abcdefghijklmnopqrstuvwxyz"})))
KINDS = {**Attention.kinds, **PLUGIN_KINDS}


def make_model(attention: type[Attention] = MultiHead, position: type[Position] = Rotary, layers: int = 2) -> GPT:
    """A model with random weights, large enough that heads differ."""
    options: dict[str, Any] = {"n_layer": layers, "n_embd": 16, "block_size": 48, "attention": attention.Config()}
    model = GPT(ModelConfig(position=position.Config(), **options), LETTERS.vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def ids_of(text: str) -> Tensor:
    return torch.from_numpy(LETTERS.encode(text))[None]  # (1, T)


def seen(model: GPT, text: str = STORY) -> Numbers:
    return look(model, LETTERS, ids_of(text), Stories())


def unpacked(packed: dict[str, Any]) -> dict[str, Tensor]:
    """The arrays of a page, read by numpy."""
    raw, found = gzip.decompress(base64.b64decode(packed["bytes"])), dict[str, Tensor]()
    for name, (start, shape, unit) in packed["index"].items():
        n = int(np.prod(shape))
        if unit == 0:
            values = np.frombuffer(raw, np.uint8, n, start).astype(bool)
        else:
            high, low = (np.frombuffer(raw, np.uint8, n, start + i * n).astype(np.uint16) for i in (0, 1))
            values = (high << 8 | low).view(np.float16).astype(np.float32) * unit
        found[name] = torch.from_numpy(values.reshape(shape))
    return found


def data_of(html: str, name: str = "data") -> Any:
    """The JSON that a page holds under an id."""
    (text,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', html)
    return json.loads(text)


# ---- the numbers ----


def test_losses_and_weights_are_those_of_the_model() -> None:
    model, ids = make_model(), ids_of(STORY)
    numbers = seen(model)
    expected = character_probabilities(model, LETTERS, STORY)
    torch.testing.assert_close((-numbers.surprise).exp(), torch.tensor(expected), rtol=1e-4, atol=1e-6)
    for layer, weights in zip(numbers.layers, attention_maps(model, ids)):
        torch.testing.assert_close(layer.weights, weights[0], rtol=1e-4, atol=1e-6)
    logits = model(ids)[0]  # (T, V)
    torch.testing.assert_close(numbers.lens_top[-1], logits.argmax(dim=-1))
    torch.testing.assert_close(numbers.chance[:, 0], logits.softmax(dim=-1).amax(dim=-1), rtol=1e-4, atol=1e-6)


def test_the_loss_without_a_head_is_that_of_a_model_whose_head_has_no_values() -> None:
    model = make_model()
    numbers = seen(model)
    for number, (layer, head) in enumerate(numbers.heads):
        other = copy.deepcopy(model)
        attention: Any = other.attentions()[layer]
        d = 16 // 4
        with torch.no_grad():
            attention.value.weight[head * d : (head + 1) * d] = 0
            attention.value.bias[head * d : (head + 1) * d] = 0
        expected = -torch.tensor(character_probabilities(other, LETTERS, STORY)).log()
        torch.testing.assert_close(numbers.without[number], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(numbers.worth[number], (expected - numbers.surprise).mean(), rtol=1e-3, atol=1e-4)


def test_the_steps_lead_from_queries_and_keys_to_the_weights() -> None:
    (layer, _) = seen(make_model(position=Alibi)).layers
    assert [*layer.steps] == ["scores", "with bias"] and layer.law == "softmax" and layer.sums_to_one
    assert layer.query is not None and layer.key is not None
    product = layer.query @ layer.key.mT * layer.scale  # (H, T, T)
    torch.testing.assert_close(product.tril(), layer.steps["scores"], rtol=1e-4, atol=1e-5)
    by_hand = layer.steps["with bias"].masked_fill(~layer.visible, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(by_hand, layer.weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "law", "steps", "gates", "signed"),
    [
        ("multi_head", "softmax", ["scores"], [], False),  # there is no step for a bias
        ("average_loop", "", [], [], False),
        ("average_softmax", "softmax", ["scores"], [], False),
        ("sink", "sink", ["scores"], [], False),
        ("linear", "share", ["products"], [], False),
        ("retention", "product", ["products", "left"], ["kept"], True),
        ("mamba2", "product", ["products", "left"], ["written", "kept"], True),
        ("log_linear", "product", ["products", "left", "level counts"], ["written", "kept"], True),
        ("stick_breaking", "product", ["scores", "share", "left"], [], False),
        ("gated_linear", "", ["products", "left"], ["kept"], True),
        ("gated_delta_net", "", ["products"], ["kept", "replaced"], True),
        ("long_convolution", "", [], [], True),
        ("forgetting", "softmax", ["own score", "ln of what is kept", "scores"], ["kept"], False),
        ("selective", "softmax", ["own score", "votes against it", "scores"], [], False),
        ("sigmoid", "", ["scores"], [], False),
        (
            "talking_heads",
            "sum",
            [*(f"score {g}" for g in range(1, 5)), "scores", *(f"softmax {g}" for g in range(1, 5))],
            [],
            True,
        ),
        ("differential", "sum", ["softmax", "other softmax"], [], False),  # as yet its two softmaxes are alike
    ],
)
def test_each_family_says_how_its_weights_come_about(
    kind: str, law: str, steps: list[str], gates: list[str], signed: bool
) -> None:
    layer = seen(make_model(Attention.kinds[kind], NoPosition)).layers[0]
    assert (layer.law, [*layer.steps], [*layer.gates], layer.signed) == (law, steps, gates, signed)


def test_a_product_is_that_of_the_steps_and_gates_that_are_named() -> None:
    layer = seen(make_model(Attention.kinds["log_linear"], NoPosition)).layers[0]
    assert layer.product == ["products", "left", "level counts", "written"]
    *maps, gate = layer.product
    total = torch.stack([layer.steps[name] for name in maps]).prod(dim=0) * layer.gates[gate][:, None]  # (H, T, T)
    torch.testing.assert_close(total, layer.weights, rtol=1e-4, atol=1e-6)


def test_a_sum_that_is_none_is_not_told() -> None:
    class Wrong(MultiHead):
        def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
            maps, half = super().stages(query, key), torch.full((1, 4), 0.5)
            return {"part": maps["weights"], "x part": half, **maps}

    layer = seen(make_model(Wrong)).layers[0]
    assert not layer.sums and layer.law == "softmax" and "part" in layer.steps


def test_heads_that_are_views_of_one_say_so() -> None:
    views = [f"{view} view of head {h}" for view in ("compressed", "chosen", "window") for h in range(1, 5)]
    layer = seen(make_model(Attention.kinds["native_sparse"])).layers[0]
    assert layer.notes == views and layer.head_gates is not None and layer.head_gates.shape == (12, len(STORY))
    writes = [f"write {write} of head {h}" for write in (1, 2) for h in range(1, 5)]
    assert seen(make_model(Attention.kinds["delta_product"])).layers[0].notes == writes


def test_the_gate_of_retention_is_what_its_heads_keep() -> None:
    """1 - 1/32, 1 - 1/64, ...; three tokens later its cube is left."""
    layer = seen(make_model(Attention.kinds["retention"], NoPosition)).layers[0]
    kept = 1 - 2.0 ** (-5 - torch.arange(4.0))  # (H,)
    torch.testing.assert_close(layer.gates["kept"], kept[:, None].expand(4, len(STORY)), rtol=1e-5, atol=0)
    torch.testing.assert_close(layer.steps["left"][:, 8, 5], kept**3, rtol=1e-5, atol=0)
    torch.testing.assert_close(layer.weights, layer.steps["products"] * layer.steps["left"], rtol=1e-4, atol=1e-6)


def test_a_page_opens_where_one_token_is_looked_at_and_makes_the_difference() -> None:
    numbers, weights = seen(make_model(layers=1)), torch.zeros(4, len(STORY), len(STORY))
    weights[:, :, 0] = 1.0
    weights[1, 5] = 0
    weights[1, 5, 5] = 1.0  # looks at itself: however much it changes, nothing is seen to come from elsewhere
    numbers.layers[0].weights[:] = weights
    numbers.surprise[:] = 0.1
    numbers.without[:] = 0.1
    numbers.without[1, 5], numbers.without[2, 7] = 9.0, 3.0
    assert numbers.telling() == (2, 7)
    numbers.layers[0].weights[3, 9] = weights[1, 5]
    numbers.without[3, 9] = 0.11  # however little this look is worth, it is not one at the first token
    assert numbers.telling() == (3, 9)


def test_a_text_of_one_token_has_nothing_to_predict() -> None:
    numbers = seen(make_model(), "M")
    assert numbers.telling() == (0, 0) and numbers.worth.tolist() == [0.0] * 8
    assert data_of(explore(make_model(), LETTERS, ids_of("M")).html)["start"] == {"head": 0, "token": 0}


def test_the_ideal_reader_reads_line_by_line_and_stops_where_no_story_goes_on() -> None:
    reading = seen(make_model()).reading
    assert reading is not None and len(reading.ideal) == len(STORY) and all(reading.ideal)
    two = seen(make_model(), "\nMia was.\nMia").reading
    assert two is not None and len(two.ideal) == len("\nMia was.") and two.ideal[-1] == 0
    assert seen(make_model(), "Mia was").reading is None


def test_habits_worked_out_by_hand() -> None:
    """Row 0 sees itself; row 1 itself and the one before, with 1/4 and 3/4; signs do not count."""
    (found,) = habits(torch.tensor([[[2.0, 0.0], [-0.75, 0.25]]]))
    many = (1 + 4 / 3**0.75) / 2  # exp of the entropies 0 and ln 4 - 3/4 ln 3
    assert found == pytest.approx([0.625, 0.75, 0.875, many, 0.375], abs=1e-4)


# ---- every kind ----


@pytest.mark.quick(5)
@pytest.mark.parametrize("position", [NoPosition, Rotary, Alibi])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_without_nan_and_left_as_it_was(kind: str, position: type[Position]) -> None:
    model, ids = make_model(KINDS[kind], position, layers=1), ids_of(STORY[:20])
    before, things = model(ids), [dict(attention.__dict__) for attention in model.attentions()]
    page = explore(model, LETTERS, ids, language=Stories())  # its JSON refuses NaN
    found = unpacked(data_of(page.html, "arrays"))
    assert all(array.isfinite().all() for array in found.values())
    layers = data_of(page.html)["layers"]
    for i, (layer, weights) in enumerate(zip(layers, attention_maps(model, ids))):
        assert layer["heads"] == len(weights[0])
        close = 1e-3 * max(1.0, float(weights.abs().max()))
        torch.testing.assert_close(found[f"{i}.weights"], weights[0].float(), rtol=1e-3, atol=close)
    assert torch.equal(model(ids), before)
    assert [dict(attention.__dict__) for attention in model.attentions()] == things


def test_a_stage_of_another_shape_or_that_is_no_number_is_left_out() -> None:
    class Odd(MultiHead):
        def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
            wide, bad = query.repeat(1, 2, 1, 1), torch.full((1, 1, query.shape[2]), torch.nan)
            return {"halves": wide, "nothing": bad, **super().stages(query, key)}

    layer = seen(make_model(Odd)).layers[0]
    assert [*layer.steps] == ["scores"] and not layer.gates


# ---- in few bytes ----


def test_what_is_packed_is_unpacked() -> None:
    values = {"a": torch.randn(3, 4), "b": torch.tensor([True, False]), "c": torch.tensor([1e30, -2e30])}
    values["d"] = torch.ones(0)
    found = unpacked(pack(values))
    assert [*found] == [*values] and torch.equal(found["b"], values["b"]) and found["d"].shape == (0,)
    torch.testing.assert_close(found["a"], values["a"], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found["c"], values["c"], rtol=1e-3, atol=0)


def test_weights_outlive_the_rest_where_there_is_no_room() -> None:
    numbers = seen(make_model())
    sizes = [len(pack(arrays(numbers, left_out))["bytes"]) for left_out in ([], [QUERIES], [QUERIES, STEPS])]
    assert sizes[0] > sizes[1] > sizes[2]
    rooms = {sizes[0]: [], sizes[0] - 1: [QUERIES], sizes[1] - 1: [QUERIES, STEPS], 1: [QUERIES, STEPS]}
    for room, left_out in rooms.items():
        packed, found = fitting(numbers, room)
        assert found == left_out and "0.weights" in packed["index"]
        assert ("0.query" in packed["index"]) == (QUERIES not in left_out)
        assert ("0.steps.scores" in packed["index"]) == (STEPS not in left_out)


def test_a_page_says_what_was_left_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing.fitting, "__defaults__", (1,))
    page = explore(make_model(), LETTERS, ids_of(STORY))
    said = f"To keep this page small, it was made without {QUERIES} and without {STEPS}."
    assert data_of(page.html)["missing"] == said


def test_more_weights_than_a_page_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST", 8 * 10 * 10)
    with pytest.raises(UserError, match="give a text of at most 10 tokens"):
        explore(make_model(), LETTERS, ids_of(STORY))


# ---- the file ----


def test_the_policy_names_the_script_and_the_style_and_nothing_else_can_run() -> None:
    tokens = Char("".join(sorted(set("</script><b>&\"' x"))))
    text = "</script><b>\"'&"
    model = GPT(ModelConfig(n_layer=1, n_embd=16, block_size=48), tokens.vocab_size).eval()
    html = explore(model, tokens, torch.from_numpy(tokens.encode(text))[None], {"run": "<i>x</i>"}, command="<u>").html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    for tag, found in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*?)</script>")):
        (inside,) = re.findall(found, html, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "<i>x" not in html and "<u>" not in html and "<b>&" not in html
    assert data_of(html)["tokens"] == list(text)


COLOUR = re.compile(r"(?<![\w&$])#(?:[\da-f]{3,4}|[\da-f]{6}|[\da-f]{8})\b(?!-)|\b(?:rgb|hsl)a?\(\s*\d", re.I)
MARKUP = re.compile(r"<(?:svg|html)[\s>]", re.I)


def test_pictures_pages_and_colours_are_made_in_one_place() -> None:
    """Pictures by `drawing.py` and, in a page, by whole-draw.js; pages by `document.py`; no other file has a colour."""
    folders = [Path(minigpt.__file__).parent, Path(minigpt.__file__).parents[1] / "scripts"]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".js", ".css", ".html")]
    found = dict[str, list[str]]()
    for path in files:
        code = path.read_text(encoding="utf-8")
        if path.name != "drawing.py":
            found[path.name] = COLOUR.findall(code)
        if path.name != "document.py":
            found[path.name] = [*found.get(path.name, []), *MARKUP.findall(code)]
        if path.suffix == ".js" and path.name != "whole-draw.js":
            found[path.name] += re.findall("createElementNS", code)
    assert {name: what for name, what in found.items() if what} == {} and len(files) > 300


def test_no_asset_leads_outside_or_makes_tags_of_text() -> None:
    page = explore(make_model(), LETTERS, ids_of(STORY)).html
    assert not re.findall(r"https?:|//\w+\.\w|@import|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", page)
    assert len(SCRIPTS) == len(set(SCRIPTS))


def test_a_page_replaces_only_pages(tmp_path: Path) -> None:
    page, other, link = (tmp_path / name for name in ("page.html", "other.html", "link.html"))
    assert write_page(page, document("one", "")) == page
    write_page(page, document("two", ""))
    assert "<title>two" in page.read_text("utf-8")
    other.write_text("<html>mine</html>", encoding="utf-8")
    link.symlink_to(page)
    for path, what in ((other, "no page of minigpt"), (link, "no page of minigpt"), (tmp_path, "a folder: give")):
        with pytest.raises(UserError, match=what):
            write_page(path, "<html>")
    with pytest.raises(UserError, match="there is no folder"):
        write_page(tmp_path / "nowhere" / "page.html", "<html>")
    assert other.read_text("utf-8") == "<html>mine</html>"


# ---- texts far outside what a model was trained on ----


def test_a_text_that_the_model_writes_is_on_average_as_likely_at_temperature_two() -> None:
    """Over all texts of four tokens, weighted by their probability: what Markov's inequality needs."""
    V, total, certain = 4, 0.0, 0.0
    logits = 4 * torch.randn(V, V, generator=torch.Generator().manual_seed(0))  # (V, V): of what follows each token
    for text in itertools.product(range(V), repeat=4):
        (paid, warmer) = costs(logits[list(text[:-1])], torch.tensor(text[1:])).double()  # (3,) each
        total += float((-paid).sum().exp() * (paid - warmer).sum().exp())
        certain += float((-paid).sum().exp())
    assert certain == pytest.approx(V) and total == pytest.approx(V)  # for each of the V first tokens


@pytest.mark.parametrize(
    ("surprising", "usual", "told"),
    [
        (8, 0.2, True),
        (8, None, False),  # there is no record
        (0, 0.2, False),
        (1, 0.01, False),  # far above the usual loss, and no more than chance
        (8, 1.5, False),  # a model that is too certain of every text
    ],
)
def test_a_text_is_far_outside_that_was_nearly_impossible_and_costs_more_than_usual(
    surprising: int, usual: float | None, told: bool
) -> None:
    """Of 40 tokens with a probability of 0.999 each, some did not come."""
    logits = torch.full((40, 50), math.log(0.001 / 49))  # (n, V)
    logits[:, 0] = math.log(0.999)
    targets = torch.tensor([1] * surprising + [0] * (40 - surprising))
    mean = (surprising * math.log(49_000) - (40 - surprising) * math.log(0.999)) / 40
    said = far_outside(costs(logits, targets), usual, Byte())
    assert bool(said) == told
    assert not told or f"costs the model {mean:.2f} nats a token, its validation text 0.20: what you see" in said


@pytest.mark.slow
def test_what_is_far_outside_of_a_small_model_of_the_stories() -> None:
    """No beginning of a new story is, and every text is that has another grammar, another language, or digits."""
    trained = watch(250, 250, ("model.n_layer=2", "model.n_embd=64", "data.tokenizer=byte"))
    model, usual = trained.run.model, trained.losses[-1][1]

    def outside(text: str) -> list[str]:
        ids = torch.from_numpy(trained.run.tokenizer.encode("\n" + text)).long()  # (T,)
        with torch.no_grad():
            found = costs(model(ids[None])[0, :-1], ids[1:])  # (2, T - 1)
        return [far_outside(found[:, :n], usual, trained.run.tokenizer) for n in range(1, len(ids))]

    assert not any(said for story in Stories().tell(-5, 50) for said in outside(story.strip()))
    assert not any(outside("Mia was a shy fox. She met Tom."))
    for text in (
        "Mia was a shy fox. She met Tom. Tom fed shy Mia.",
        "Das ist ein Satz.",
        "Es lebe die Freiheit, und mit ihr das Größte!",
        "3.14159",
        "def f(x): return x",
    ):
        assert outside(text)[-1], text


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that is certain of what it has learned."""
    folder = furnish(tmp_path_factory.mktemp("sure"))
    (folder / "text.txt").write_text("the cat sat\n" * 200, encoding="utf-8")
    fast = "training.optimizer={kind: muon, learning_rate: 0.05, adamw_learning_rate: 0.015}"
    well(script("train.py", "--config", "small.yaml", "training.max_steps=60", fast, cwd=folder))
    return folder


@pytest.mark.slow
def test_the_terminal_and_the_page_say_that_a_text_is_far_outside(sure: Path) -> None:
    """And nothing of a swapped model, or without the record of a training: the losses are not known."""
    said = "This text costs the model "
    drawn = well(script("show_attention.py", "--prompt", "ttttthhhh", cwd=sure)).splitlines()
    assert drawn[-2].startswith(said) and "nats a character, its validation text 0." in drawn[-2]
    lines = well(script("explore.py", "--prompt", "ttttthhhh", "--out", "page.html", cwd=sure)).splitlines()
    assert lines[0] == drawn[-2] == data_of((sure / "page.html").read_text("utf-8"))["outside"]
    for command in ("show_attention.py", "explore.py"):
        assert said not in well(script(command, "--prompt", "the cat sat", cwd=sure))
    swapped = script("explore.py", "--prompt", "ttttthhhh", "model.attention=average_softmax", cwd=sure)
    assert swapped.code == 0 and said not in swapped.out
    metrics = sure / "runs" / "small" / "metrics.jsonl"
    metrics.rename(sure / "elsewhere")
    try:
        assert said not in well(script("explore.py", "--prompt", "ttttthhhh", cwd=sure))
    finally:
        (sure / "elsewhere").rename(metrics)


# ---- the command, and a notebook ----


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run."""
    folder = furnish(tmp_path_factory.mktemp("home"))
    well(script("train.py", "--config", "small.yaml", cwd=folder))
    return folder


def test_the_command_writes_a_page_into_the_run_or_where_it_is_told(home: Path) -> None:
    said = well(script("explore.py", "--prompt", "the cat", cwd=home))
    assert said.startswith("wrote runs/small/explorer.html: ")
    html = (home / "runs" / "small" / "explorer.html").read_text("utf-8")
    assert data_of(html)["tokens"] == list("the cat") and "--prompt 'the cat'" in data_of(html)["command"]
    well(script("explore.py", "--run", "small", "--prompt", "the mat", "--out", "mine.html", cwd=home))
    assert data_of((home / "mine.html").read_text("utf-8"))["tokens"] == list("the mat")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "error: --prompt: give a text to look at"),
        (("--prompt", "the Zebra"), "error: the prompt: unknown character 'Z' (U+005A) at index 4"),
        (("--prompt", "the cat sat on a mat"), "error: the text has 20 tokens; the context holds 16"),
        (("--prompt", "the", "--out", "no/page.html"), "error: no/page.html: there is no folder no: make it first"),
        (("--prompt", "the", "--out", "text.txt"), "error: text.txt: exists and is no page of minigpt"),
    ],
)
def test_a_mistake_is_one_line(home: Path, arguments: tuple[str, ...], said: str) -> None:
    ended = script("explore.py", *arguments, cwd=home)
    assert ended.code == 2 and said in ended.err and ended.err.count("\n") == 1


def test_a_notebook_shows_the_page_in_a_frame_that_cannot_reach_it(home: Path) -> None:
    run = minigpt.load(home / "runs" / "small", device="cpu")
    page = run.explore("the cat", out=str(home / "notebook.html"))
    frame = page._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"') and "<script>" not in frame
    assert page.path.read_text("utf-8") == page.html and str(page.path) in repr(page)
    with pytest.raises(UserError, match="the text is empty"):
        run.explore("")


def test_layers_of_different_kinds_keep_their_own_numbers_of_heads() -> None:
    """Two heads below, one above."""
    kinds = (MultiHead.Config(n_head=2), Attention.kinds["average_matrix"].Config())
    model = GPT(ModelConfig(n_layer=2, n_embd=16, block_size=48, attention=kinds), LETTERS.vocab_size).eval()  # type: ignore[arg-type]
    numbers = seen(model)
    assert numbers.heads == [(0, 0), (0, 1), (1, 0)] and len(numbers.without) == 3
    assert [type(layer) for layer in numbers.layers] == [Layer, Layer]
