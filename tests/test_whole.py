"""The page of the whole model in a real browser: its pass against torch, its sums and switches, and who can read it."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from browser import THEMES, Visit, chromium, cut, overflow, violations, visit
from running import furnish, script, well
from torch import Tensor

from minigpt import GPT, ModelConfig
from minigpt.attention import Attention, MultiHead
from minigpt.attention.position import Position
from minigpt.model.blocks import Block
from minigpt.model.config import AnyBlock
from minigpt.model.mlp import MLP
from minigpt.model.norm import Norm
from minigpt.seeing.edits import Edits, edited
from minigpt.seeing.explorer import Page
from minigpt.seeing.trace import tracing
from minigpt.seeing.weights import BLOCKS, KINDS, MLPS, cutter, in_int8, unable
from minigpt.seeing.whole import Side, hidden_tokens, replaced_tokens, side_data, whole
from minigpt.system.errors import UserError
from minigpt.text.tokenizer import BPE, Byte, Char, Tokenizer

assert chromium and visit and Block  # fixtures, and the kinds of blocks
STORY = "\nMia was shy. She met Tom <b>"
LETTERS = Char("".join(sorted({*STORY, *"Jacklimes"})))
READY = "body[data-ready]"
STORIES = """data: {source: stories, stories: {count: 300, validation: 60}, tokenizer: char, windows: documents}
model: {n_layer: 1, n_embd: 16, block_size: 128, position: rotary, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 2, eval_every: 2}
"""


def model_of(attention: Any = None, seed: int = 3, loud: bool = True, **options: Any) -> GPT:
    """A model with random weights, so large that heads look at single tokens and norms are not at one."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "block_size": 48, **options}
    model = GPT(ModelConfig(**shape, attention=attention or MultiHead.Config(n_head=2)), LETTERS.vocab_size).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(8 if loud and "shares" not in name else 1)
            else:
                weight.add_(0.2 * torch.randn_like(weight))
    return model


def side_of(model: GPT, text: str = STORY, name: str = "a test") -> Side:
    return Side(model, LETTERS, torch.from_numpy(LETTERS.encode(text))[None], {"run": name})


def page_of(model: GPT, **options: Any) -> Page:
    return whole([side_of(model)], **options)


@pytest.fixture(scope="module")
def model() -> GPT:
    return model_of()


@pytest.fixture(scope="module")
def pages(model: GPT, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"packed": page_of(model), "live": page_of(model, live=True)}
    made["two"] = whole([side_of(model), side_of(model_of(seed=4), name="<i>another</i>")])
    return {name: page.save(folder / f"{name}.html").path for name, page in made.items()}


def ready(visit: Visit, path: Path, address: str = "", **options: Any) -> Any:
    page = visit(path.as_uri() + address, **options)
    page.wait_for_selector(READY)
    return page


PASS = """async () => {
    const [run, array] = [dataOf("data").runs[0], arraysOf(await unpack(dataOf("arrays0")))];
    const pass = forward(run, array, run.ids);
    const rows = (x, n) => Array.from({length: pass.T}, (_, t) => [...x.subarray(t * n, (t + 1) * n)]);
    const last = pass.x.length - 1;
    const logits = Array.from({length: pass.T}, (_, t) => [...pass.logits(last, t)]);
    const votes = pass.votes(pass.T - 2, 3).map(({key, vote}) => [key, vote]);
    const attention = pass.parts.find((made) => made.weights);
    return {stations: pass.x.map((x) => rows(x, run.D)), logits, votes,
        weights: attention ? [...attention.weights] : null};
}"""


def traced(model: GPT) -> tuple[Tensor, Any]:
    """The logits (T, V) of the story, and the trace of the pass."""
    with torch.no_grad(), tracing(model) as trace:
        return model(side_of(model).ids)[0], trace


def compared(page: Any, model: GPT, near: float) -> dict[str, Any]:
    """Holds the page's stations, first weights, logits and votes against torch's, and returns the page's."""
    found: dict[str, Any] = page.evaluate(PASS)
    logits, trace = traced(model)
    close = {"rtol": near, "atol": near * float(logits.abs().max())}
    torch.testing.assert_close(torch.tensor(found["logits"]), logits, **close)
    ends = [trace.outputs["dropout"], *(trace.outputs[f"blocks.{i}"] for i in range(len(model.blocks)))]
    step = (len(found["stations"]) - 1) // len(model.blocks)
    for end, station in zip(ends, found["stations"][::step]):
        torch.testing.assert_close(torch.tensor(station), end[0], rtol=near, atol=near * float(end.abs().max()))
    if found["weights"]:
        torch.testing.assert_close(torch.tensor(found["weights"]), trace.weights[0].flatten(), rtol=near, atol=near)
    cap = model.config.head_cap
    total = torch.tensor(sum(vote for _, vote in found["votes"]))
    torch.testing.assert_close(total if cap is None else cap * (total / cap).tanh(), logits[-2, 3], **close)
    return found


# ---- the pass in the page equals torch's ----

POSITIONS = "none", "learned", "sinusoidal", "convolution", "rotary", "alibi"


def live_models() -> list[Any]:
    """Every kind that the page computes; every position, norm, MLP and block; each once, and some options."""
    kinds = [{"attention": Attention.kinds[kind].Config()} for kind in sorted(KINDS)]
    kinds += [
        {"attention": Attention.kinds["dot_product"].Config(include_self=False, scaled=True), "position": "rotary"},
        {"attention": Attention.kinds["grouped_query"].Config(n_head=4, n_kv_head=2, qk_norm="whole"), "bias": False},
        {"attention": MultiHead.Config(n_head=2, qk_norm=True, head_dim=6), "position": "rotary"},
        {"attention": Attention.kinds["average_matrix"].Config(), "position": "alibi"},
        {"tied_head": False, "head_bias": True, "head_cap": 9.0, "embedding_norm": True, "embedding_scale": 3.0},
    ]
    positions = [{"position": kind} for kind in POSITIONS]
    mlps, blocks = [{"mlp": kind} for kind in sorted(MLPS)], [{"block": kind} for kind in sorted(BLOCKS)]
    norms = [{"norm": "rmsnorm"}, {"norm": {"kind": "layernorm", "weights": False}}]
    return [*kinds, *positions, *mlps, *blocks, *norms]


def built(options: dict[str, Any]) -> GPT:
    """The model of these options, whose parts may be named by their kinds."""
    families: dict[str, Any] = {"position": Position, "mlp": MLP, "block": AnyBlock, "norm": Norm}
    made = dict(options)
    for name, family in families.items():
        if isinstance(made.get(name), (str, dict)):
            given = {"kind": made[name]} if isinstance(made[name], str) else dict(made[name])
            made[name] = family.kinds[given.pop("kind")].Config(**given)
    return model_of(loud="attention" not in options or len(options) > 1, **made)


@pytest.mark.quick("7")
@pytest.mark.parametrize("every", [7, 1])
def test_the_live_pass_equals_torch_with_the_same_weights(visit: Visit, pages: dict[str, Path], every: int) -> None:
    """One page, and in turn the data and weights of each model."""
    page = ready(visit, pages["live"])
    put = """([data, arrays]) => {
        document.getElementById("data").textContent = JSON.stringify(data);
        document.getElementById("arrays0").textContent = JSON.stringify(arrays);
    }"""
    for options in live_models()[::every]:
        model = built(options)
        assert unable(model) == "", options
        data, arrays = side_data(side_of(model), live=True)
        page.evaluate(put, [{"runs": [data]}, arrays])
        with in_int8(model):
            compared(page, model, 1e-4)


@pytest.mark.quick(3)
@pytest.mark.parametrize("kind", ["multi_head", "gated", "differential", "gated_delta_net", "sink", "native_sparse"])
def test_the_packed_pass_has_the_models_numbers(visit: Visit, tmp_path: Path, kind: str) -> None:
    model = model_of(Attention.kinds[kind].Config(n_head=2), loud=kind == "multi_head")
    found = compared(ready(visit, page_of(model).save(tmp_path / "page.html").path), model, 4e-3)
    heads = traced(model)[1].weights[0].shape[1]
    assert sum(key.startswith("h") for key, _ in found["votes"]) == 2 * heads


# ---- what a head holds besides its weights ----

SUMS = """() => [...document.querySelectorAll("#panel .formula")].map((one) => one.textContent)"""
NAMED = {  # kind: what its page says by name
    "linear": "by which a reading is divided",
    "gated_delta_net": "rate",
    "delta_product": "2 products",
    "mlstm": "written",
    "log_linear": "level counts",
    "sink": "the sink: score",
    "differential": "lambda",
    "gated": "is handed on behind a gate",
    "latent": "the latent, by matrices of their own",
    "tensor_product": "vector 2 of the value",
}


def holds(line: str) -> bool | None:
    """Whether a sum that is written out is right; None where the line is none."""
    plain = re.sub(r"\([^)]*[a-z\u2018][^)]*\)|,(?=\d{3})", "", line).replace("\u2212", "-")
    sides = re.findall(r"(?:^|[:;,=] )([-\d.+*/ \u00d7\u00f7e^()]+?) = (-?[\d.e-]+)", plain)
    checked = [
        abs(eval(left.replace("\u00d7", "*").replace("\u00f7", "/")) - float(right))
        for left, right in sides
        if left[1:].strip("0123456789. ")
    ]
    return max(checked) < 0.02 if checked else None


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", NAMED)
def test_what_a_kind_holds_besides_weights_stands_in_its_head_by_name_and_adds_up(
    visit: Visit, tmp_path: Path, kind: str
) -> None:
    model = model_of(Attention.kinds[kind].Config(n_head=2), loud=False)
    page = ready(visit, page_of(model).save(tmp_path / "page.html").path, "#token=9&part=h2.1")
    assert NAMED[kind] in page.inner_text("#panel"), page.inner_text("#panel")
    told = {line: holds(line) for line in page.evaluate(SUMS)}
    assert False not in told.values() and True in told.values(), told


STATES = """async (t) => {
    const array = arraysOf(await unpack(dataOf("arrays0")));
    return [0, 1].map((h) => { const {d, e, after} = stateAt(array, 1, h, t); return [d, e, [...after]]; });
}"""


@pytest.mark.quick("linear")
@pytest.mark.parametrize("kind", ["linear", "retention", "kimi_delta", "delta_product"])
def test_the_state_that_a_page_sums_up_is_the_one_that_the_kind_decodes_with(
    visit: Visit, tmp_path: Path, kind: str
) -> None:
    model = model_of(Attention.kinds[kind].Config(n_head=2), loud=False)
    page = ready(visit, page_of(model).save(tmp_path / "page.html").path, "#token=20&part=h2.1")
    attention, call = model.attentions()[1], traced(model)[1].calls[1][-1]
    state = attention.empty(call.key, call.value)
    for t in range(21):
        each = (x[:, :, t] for x in (call.query, call.key, call.value))
        state = attention.advance(state, *each)[0]  # (1, 2, d, e)
    for (d, e, found), expected in zip(page.evaluate(STATES, 20), state[0]):
        torch.testing.assert_close(
            torch.tensor(found).view(d, e), expected, rtol=1e-2, atol=5e-3 * float(state.abs().max())
        )
    picture = page.locator(".matrix").last
    before = page.inner_text("#panel .formula:has-text('column')")
    picture.click(position={"x": 3, "y": 3})
    assert page.inner_text("#panel .formula:has-text('column')").startswith("row 1, column 1") and before
    assert violations(page) == [] and overflow(page) == 0


def test_a_state_that_a_user_wrote_otherwise_is_not_shown_as_another(model: GPT) -> None:
    """Its writes are no products of keys: the page says how large it is, and draws no matrix."""
    other = model_of(Attention.kinds["retention"].Config(n_head=2), loud=False)
    for attention in other.attentions():
        attention.advance = lambda state, query, key, value: (state + value[..., None, :] ** 2, value)  # type: ignore
    index = side_data(side_of(other, STORY[:9]), live=False)[1]["index"]
    assert "1.state" in index and "1.state.rows" not in index


def test_blocks_with_norms_behind_and_blocks_of_a_users_own_are_shown_too(visit: Visit, tmp_path: Path) -> None:
    class Halved(Block):
        def forward(self, x: Tensor, past: Any) -> Tensor:
            return 0.5 * x + self.attention(x, past)  # (B, T, D)

    own = model_of()
    for layer in range(2):
        own.blocks[layer].__class__ = Halved
    for name, model in {"post_norm": built({"block": "sandwich", "attention": MultiHead.Config()}), "own": own}.items():
        compared(ready(visit, page_of(model).save(tmp_path / f"{name}.html").path), model, 4e-3)
    assert "blocks of your own" in unable(own)
    with pytest.raises(UserError, match="blocks of your own"):
        page_of(own, live=True)


def test_a_page_whose_numbers_are_not_the_models_refuses(visit: Visit, model: GPT, tmp_path: Path) -> None:
    html = page_of(model, live=True).html
    changed = re.sub(r'"scale":0\.25', '"scale":0.3', html)  # the scale of the scores: 1 / sqrt(16)
    assert changed != html
    (tmp_path / "page.html").write_text(changed, encoding="utf-8")
    page = ready(visit, tmp_path / "page.html")
    assert page.is_visible("#problem") and not page.is_visible("main")


# ---- switches ----


def off(page: Any, key: str) -> str:
    """What the page says of a part that is off, at the token of its address."""
    page.evaluate("key => { location.hash = location.hash.replace(/&?off=.*/, '') + `&off=${key}`; }", key)
    page.wait_for_selector("#off:not(.hidden)")
    return str(page.inner_text("#off"))


@pytest.mark.parametrize("name", ["packed", "live"])
def test_a_switch_is_what_the_edit_does(visit: Visit, model: GPT, pages: dict[str, Path], name: str) -> None:
    page, ids = ready(visit, pages[name], "#token=9"), side_of(model).ids
    edits = {"h2.1": Edits(heads_off=frozenset({(1, 0)})), "a1": Edits(attentions_off=frozenset({0}))}
    edits["m2"] = Edits(mlps_off=frozenset({1}))
    for key, edit in edits.items():
        with torch.no_grad(), edited(model, edit):
            costs = -model(ids)[0].log_softmax(dim=-1)[:-1].gather(1, ids[0, 1:, None])  # (T - 1, 1)
        loss = re.search(r"\u2192 ([\d.]+)\.", off(page, key))
        assert loss and float(loss[1]) == pytest.approx(float(costs.mean()), rel=0.03 if name == "live" else 2e-3)


def test_a_part_that_is_off_changes_the_stations_after_it(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["packed"], "#token=9")
    lenses = "[...document.querySelectorAll('.station .lens b')].map((e) => e.textContent)"
    before = page.evaluate(lenses)
    off(page, "a1")
    after = page.evaluate(lenses)
    assert after[0] == before[0] and all(a != b for a, b in zip(after[1:], before[1:]))


def test_a_live_page_combines_switches_and_reads_a_text_that_is_typed(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["live"], "#token=9")
    both = off(page, "h1.1,m2,t3")
    assert "head 1.1, MLP 2, token 3 hidden" in both and both != off(page, "h1.1")
    page.fill("#own-text", "Tom was met.")
    page.press("#own-text", "Enter")
    assert page.locator("#text .token").count() == 13
    page.fill("#own-text", "Tom was z.")
    page.press("#own-text", "Enter")
    assert "does not know \u2018z\u2019" in page.inner_text("#own-says") and page.locator("#text .token").count() == 13


ODD = (  # of each: characters that cut words, or that Python, Rust and JavaScript do not hold for the same
    *("a", "B", "\u00e9", "e\u0301", "\u0434", "\u4e2d", "\u0e01\u0e33", "\u05d0", "\U0001d4d0"),
    *("1", "\u0663", "\u00bd", "\u2168", "'s", "'ll", "'", "\u2019t", "!", "...", "\u3002", "_", "-"),
    *(" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u0085", "\u3000", "\u2028", "\x1c", "\ufeff", "\u200b"),
    *("\x00", "\ufffd", "\U0001f469\u200d\U0001f4bb"),
)


def odd_texts(count: int, parts: tuple[str, ...] = ODD) -> list[str]:
    """Texts of up to twenty of these, some of them repeated."""
    random = Random(5)
    return ["".join(random.choices(parts, k=random.randint(1, 20))) for _ in range(count)]


CUTTERS = {
    "char": Char("".join(sorted({*"".join(ODD)}))),
    "byte": Byte(),
    "bpe": BPE.fit(BPE.Config(vocab_size=330), [STORY, "She'll say she's shy. ", *odd_texts(60)]),
    "marked": BPE(["ab", "abc", "bc", "  ", "\u00c3\u00a9"]).with_marks("end_of_text"),
}


@pytest.mark.parametrize("name", CUTTERS)
def test_the_page_cuts_any_text_as_the_tokenizer_does(visit: Visit, pages: dict[str, Path], name: str) -> None:
    tokenizer, page = CUTTERS[name], ready(visit, pages["live"])
    texts = odd_texts(400) + ([] if name == "char" else odd_texts(100, ("a", "b", "c", "\u00e9", " ")))
    found = page.evaluate("([cut, texts]) => texts.map((text) => idsOf(cut, text).ids)", [cutter(tokenizer), texts])
    for text, ids in zip(texts, found):
        assert ids == tokenizer.encode(text).tolist(), text.encode("unicode_escape")
    half = page.evaluate("cut => idsOf(cut, 'a' + String.fromCharCode(0xd800))", cutter(tokenizer))
    assert half == {"ids": [], "problem": "Half a surrogate pair is no character."}


@pytest.mark.quick("byte")
@pytest.mark.parametrize("name", ["byte", "bpe"])
def test_a_text_is_typed_on_a_phone_for_every_tokenizer_that_is_trained(
    visit: Visit, tmp_path: Path, name: str
) -> None:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"n_layer": 1, "n_embd": 16, "block_size": 48, "attention": MultiHead.Config(n_head=2)}
    tokenizer = CUTTERS[name]
    model = GPT(ModelConfig(**shape), tokenizer.vocab_size).eval()
    side = Side(model, tokenizer, torch.from_numpy(tokenizer.encode(STORY))[None])
    page = ready(visit, whole([side], live=True).save(tmp_path / "page.html").path, width=390)
    assert page.input_value("#own-text") == STORY[1:]
    text = "She'll say \u00e9 \U0001f469.\nTom"
    page.fill("#own-text", text)
    page.press("#own-text", "Enter")
    ids = [*tokenizer.encode("\n"), *tokenizer.encode(text)]
    assert page.locator("#text .token").count() == len(ids)
    with torch.no_grad(), in_int8(model):
        chance, top = model(torch.tensor([ids]))[0, -1].softmax(dim=-1).max(dim=0)
    says, token = page.inner_text("#next"), page.evaluate("dataOf('data').runs[0].vocabulary")[int(top)]
    assert page.evaluate("([token, p]) => `${quoted(token)} ${percent(p)}`", [token, float(chance)]) in says
    assert overflow(page) == 0
    page.click(".flow .part .stop.small")
    assert "Head 1.1" in page.inner_text("#panel h2") and violations(page) == []


def test_a_page_that_cannot_cut_texts_says_why(visit: Visit, tmp_path: Path) -> None:
    class Own(Char, kind="own_letters"):
        """Not the page's business."""

    letters = Own(LETTERS.alphabet)
    del Tokenizer.kinds["own_letters"]
    side = Side(model_of(), letters, torch.from_numpy(letters.encode(STORY))[None])
    page = ready(visit, whole([side], live=True).save(tmp_path / "page.html").path)
    assert not page.is_visible("#own")
    size = f"the {len(LETTERS.alphabet)} pieces of the tokenizer own_letters"
    assert page.inner_text("#unread") == f"It reads no text of your own: how {size} are cut is not in this page."


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", Attention.kinds)
def test_the_output_of_every_kind_but_one_splits_by_heads(kind: str) -> None:
    """The page of the one kind shows its layer as a whole, and says so."""
    data, _ = side_data(side_of(model_of(Attention.kinds[kind].Config(), loud=False), STORY[:12]), live=False)
    assert all(layer["split"] for layer in data["layers"]) == (kind != "delta_product")


def test_tokens_that_are_hidden_or_replaced_are_those_of_the_model(model: GPT) -> None:
    ids = side_of(model).ids
    with torch.no_grad():
        hidden, logits = hidden_tokens(model, ids), model(ids)[0]
        replaced, others = replaced_tokens(model, LETTERS, ids, logits)
        text = ids.clone()
        text[0, 4] = int(LETTERS.encode(others[4])[0])
        costs = -model(text)[0].log_softmax(dim=-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        with edited(model, Edits(cut=frozenset((layer, 9, 4) for layer in (0, 1)))):
            cut_once = -model(ids)[0].log_softmax(dim=-1)[9, ids[0, 10]]
    torch.testing.assert_close(replaced[4, :-1], costs)
    assert others[4] != LETTERS.decode([int(ids[0, 4])])
    before = -logits.log_softmax(dim=-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(hidden[4, :4], before[:4])  # what stands before it never saw it
    assert not torch.allclose(hidden[4, 5:-1], before[5:]) and not torch.isclose(hidden[4, 9], before[9])
    assert not torch.isclose(cut_once, before[9])


def test_heads_are_named_by_the_share_of_their_weight_that_a_test_finds(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["packed"])
    ask = """([tokens, keys]) => {
        const found = headTest(tokens, (t) => tokens.map((_, s) => (s === keys[t] ? 1 : 0)));
        return [found.name, found.score];
    }"""
    text = list("abcabc")
    cases = {"previous token": [0, 0, 1, 2, 3, 4], "own token": [0, 1, 2, 3, 4, 5], "first token": [0] * 6}
    cases |= {"same token": [0, 1, 2, 0, 1, 2], "induction": [0, 1, 2, 1, 2, 3]}
    for name, keys in cases.items():
        found, score = page.evaluate(ask, [text, keys])
        assert found == name and score == pytest.approx(1)
    assert page.evaluate(ask, [text, [0, 1, 0, 2, 2, 2]])[0] == ""


# ---- all can read it ----

VIEWS = "", "part=a1", "part=h2.1", "part=m1", "view=heads", "view=logits", "view=embedding", "view=token", "off=h1.1"


@pytest.mark.slow
def test_every_view_is_accessible_and_fits_on_a_phone(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["packed"], "#token=20")
    for number, view in enumerate(VIEWS):
        page.evaluate("view => { location.hash = `token=20&${view}`; }", view)
        for width, theme in THEMES[number % 4 : number % 4 + 1]:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(50)
            assert violations(page) == [] and overflow(page) == 0, view


@pytest.mark.slow
def test_nothing_is_cut_on_paper(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["packed"], "#token=20&part=h2.1")
    assert cut(page) == []


def test_the_keyboard_alone_goes_along_the_text_and_through_the_flow(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["packed"], "#token=9")
    page.keyboard.press("ArrowRight")
    assert page.input_value("#along") == "10"
    page.focus(".flow .stop")
    titles = []
    for _ in range(5):
        page.keyboard.press("ArrowDown")
        titles.append(page.inner_text("#panel h2"))
    assert titles[:3] == ["The norm before attention 1", "Attention 1", "Head 1.1"]
    assert page.input_value("#along") == "10"
    page.keyboard.press("Escape")
    assert page.inner_text("#panel h2") == "How the answer forms"


@pytest.mark.slow
def test_it_is_played_step_by_step_and_the_answer_comes_last(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["packed"], "#token=9")
    answer = page.inner_text("#next").split("Next: ")[1][:3]
    titles = []
    for _ in range(40):
        page.click("#step")
        if not page.locator(".told").count():
            break
        titles.append(page.inner_text(".told h2"))
        assert (answer in page.inner_text("#next")) == (titles[-1] == "The answer")
    block = ["Normed", "Attention reads", "Attention mixes", "Attention writes", "Normed", "The MLP computes"]
    assert titles == ["A token becomes a vector", *2 * [*block, "Added, not replaced"], "The answer"]


def test_two_runs_stand_beside_each_other_and_move_together(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["two"], "#token=9")
    page.get_by_label("beside each other").check(force=True)
    flows = page.locator("section.flow-box")
    assert flows.count() == 2 and "<i>another</i>" in flows.nth(1).inner_text()
    before = [flow.inner_text() for flow in flows.all()]
    page.keyboard.press("End")
    page.click("#on")
    assert all(flow.inner_text() != text for flow, text in zip(flows.all(), before))
    assert overflow(page) == 0


def test_runs_that_cut_the_text_differently_are_refused(model: GPT) -> None:
    with pytest.raises(UserError, match="different tokens"):
        whole([side_of(model), side_of(model, STORY[:-1])])


# ---- the command ----


def test_the_command_makes_it_of_a_story_of_the_runs_own(tmp_path: Path) -> None:
    furnish(tmp_path, STORIES)
    well(script("train.py", "--config", "small.yaml", cwd=tmp_path))
    assert "wrote page.html" in well(script("explore.py", "--whole", "--out", "page.html", cwd=tmp_path))
    well(script("explore.py", "--whole", "--live", "--beside", "small", "--out", "live.html", cwd=tmp_path))
    refused = script("explore.py", "--live", "--prompt", "Mia", cwd=tmp_path)
    assert refused.code == 2 and "give --whole too" in refused.err
