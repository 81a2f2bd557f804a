"""The explorer in a real browser: three kinds of attention, keyboard, address, guesses, a phone, a notebook's frame."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import THEMES, Visit, chromium, cut, overflow, violations, visit
from running import furnish, script, well
from torch import Tensor

from minigpt import GPT, ModelConfig
from minigpt.attention import Attention, MultiHead
from minigpt.attention.linear.gated_linear import GatedLinear
from minigpt.attention.softmax.differential import Differential
from minigpt.attention.softmax.talking_heads import TalkingHeads
from minigpt.seeing.explorer import Page, explore
from minigpt.text.languages.language import Stories
from minigpt.text.tokenizer import Byte, Char, Tokenizer

assert chromium and visit  # fixtures
STORY = "\nMia was shy. She met Tom <b>"
LETTERS = Char("".join(sorted({*STORY, *"Jacklimes"})))
READY = "body[data-ready]"


class Signed(MultiHead):
    """A learner's kind: a softmax minus a part of the softmax of the opposite scores."""

    rows_sum_to_one = weights_nonnegative = False
    kind = "signed"

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return super().weights(query, key) - 0.6 * super().weights(-query, key)  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        wanted, unwanted = super().weights(query, key), super().weights(-query, key)  # (B, H, T, S) each
        return {"wanted": wanted, "unwanted": unwanted, "weights": self.weights(query, key)}


def page_of(
    kind: type[Attention], text: str = STORY, tokenizer: Tokenizer = LETTERS, usual: float | None = None
) -> Page:
    """A page of a model with random weights, so large that heads look at single tokens."""
    torch.manual_seed(3)
    options: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "block_size": 64, "attention": kind.Config(n_head=2)}
    model = GPT(ModelConfig(**options), tokenizer.vocab_size).eval()
    with torch.no_grad():
        for attention in model.attentions():
            attention.query.weight.mul_(400)
            attention.value.weight.mul_(20)
    ids = torch.from_numpy(tokenizer.encode(text))[None]  # (1, T)
    return explore(model, tokenizer, ids, {"run": "<i>a test</i>"}, Stories(), "python scripts/explore.py", usual)


PAGES = {"multi_head": MultiHead, "gated_linear": GatedLinear, "signed": Signed}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: page_of(kind).save(folder / f"{name}.html").path for name, kind in PAGES.items()}


def ready(visit: Visit, path: Path, address: str = "", **options: Any) -> Any:
    page = visit(path.as_uri() + address, **options)
    page.wait_for_selector(READY)
    return page


def said(page: Any) -> str:
    return page.inner_text("#said")


def place(page: Any) -> str:
    """The address as the page has it now; `page.url` is told of a change a little later."""
    found: str = page.evaluate("location.href")
    return found


# ---- all can read it ----


@pytest.mark.quick(11)
@pytest.mark.parametrize(("width", "theme"), THEMES)
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_accessible_and_fits(
    visit: Visit, pages: dict[str, Path], name: str, width: int, theme: str
) -> None:
    """Nothing against WCAG 2.2 A and AA, and nothing beyond the right edge."""
    page = ready(visit, pages[name], width=width, theme=theme)
    assert violations(page) == [] and overflow(page) == 0


@pytest.mark.quick("MultiHead")
@pytest.mark.parametrize("kind", [MultiHead, TalkingHeads])  # the latter has the most columns
def test_nothing_is_cut_on_paper_and_the_weights_are_in_sight_on_a_phone(
    visit: Visit, tmp_path: Path, kind: type[Attention]
) -> None:
    page = ready(visit, page_of(kind).save(tmp_path / "page.html").path)
    assert cut(page) == []
    page.set_viewport_size({"width": 390, "height": 900})
    box = "(e) => [e.getBoundingClientRect().left, e.getBoundingClientRect().right]"
    edges = page.evaluate(f"[...document.querySelectorAll('#steps .pinned')].map({box})")
    assert len(edges) > 4 and all(0 <= left < right <= 390 for left, right in edges)


def test_a_dark_page_is_printed_light_and_is_dark_again(visit: Visit, pages: dict[str, Path]) -> None:
    """As Chromium prints it; the maps are drawn again for it."""
    page = ready(visit, pages["multi_head"], theme="dark")
    look = """() => {
        const [canvas, pen] = [document.querySelector("#map canvas"), new OffscreenCanvas(1, 1).getContext("2d")];
        pen.drawImage(canvas, 1 - canvas.width, 0); // its upper right corner
        return [getComputedStyle(document.documentElement).colorScheme, pen.getImageData(0, 0, 1, 1).data[0]];
    }"""
    before = page.evaluate(look)
    page.evaluate(f"() => addEventListener('beforeprint', () => {{ window.seen = ({look})(); }})")
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.evaluate("window.seen[0]") == "light" and page.evaluate("window.seen[1]") > 200 > 60 > before[1]
    assert page.evaluate(look) == before


def test_the_keyboard_alone_moves_along_the_text_and_through_the_heads(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"], "#layer=1&head=1&token=9")
    for _ in range(20):  # to the text, by its one stop
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('token')"):
            break
    page.keyboard.press("ArrowRight")
    assert "token=10" in place(page) and "(token 10)" in said(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    page.keyboard.press("Home")
    assert place(page).endswith("token=1")
    page.keyboard.press("End")
    assert f"token={len(STORY)}" in place(page) and "nothing came next" in said(page)
    page.focus("#heads [aria-selected=true]")
    page.keyboard.press("Home")
    before = page.inner_text("#head-title")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#head-title") != before and said(page).startswith(page.inner_text("#head-title")[:15])
    page.focus(".look >> nth=1")
    page.keyboard.press("Enter")
    assert "key=" in place(page) and page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_what_is_said_names_the_cause_with_its_numbers(visit: Visit, pages: dict[str, Path]) -> None:
    """Both probabilities are those of the model, and both sentences are what the page shows."""
    page = ready(visit, pages["multi_head"])
    token, p, q = page.evaluate("""async () => {
        const numbers = numbersOf(dataOf("data"), await unpack(dataOf("arrays")));
        const {head, token} = dataOf("data").start;
        const both = [numbers.surprise(token + 1), numbers.without(head, token + 1)];
        return [quoted(dataOf("data").tokens[token + 1]), ...both.map((nats) => percent(Math.exp(-nats)))];
    }""")
    page.click("#text [aria-selected=true]")  # what is only shown is not said
    assert f"Without this head, {token} would have come as {q} instead of {p}." in said(page)
    assert page.inner_text("#cause") in said(page) and page.inner_text("#looks") in said(page)


# ---- the numbers ----


def test_the_softmax_of_the_page_is_the_model_s(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"])
    worst, uneven = page.evaluate("""async () => {
        const numbers = numbersOf(dataOf("data"), await unpack(dataOf("arrays")));
        let [worst, uneven] = [0, 0];
        numbers.heads.forEach((_, h) => {
            for (let t = 0; t < numbers.T; t++) {
                const [weights, seen] = [numbers.weights(h, t), numbers.seen(h, t)];
                const mine = softmax(numbers.step(h, "scores", t), seen).weights;
                const even = softmax(numbers.step(h, "scores", t), seen, 0).weights;
                weights.forEach((w, s) => { worst = Math.max(worst, Math.abs(w - mine[s])); });
                even.forEach((w, s) => { uneven = Math.max(uneven, Math.abs(w - (s <= t ? 1 / (t + 1) : 0))); });
            }
        });
        return [worst, uneven];
    }""")
    assert worst < 0.005 and uneven < 1e-6  # half precision; and times zero is the running mean


def test_larger_scores_sharpen_the_row_and_can_be_taken_back(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"], "#layer=1&head=1&token=20")
    trained = page.inner_text("#steps tbody tr >> nth=0")
    page.focus("#factor")
    page.keyboard.press("Home")
    assert "the running mean" in page.inner_text(".larger") and "0.050" in page.inner_text("#steps tbody tr >> nth=0")
    assert page.evaluate("document.activeElement.id") == "factor"
    page.click("text=as trained")
    assert page.inner_text("#steps tbody tr >> nth=0") == trained


@pytest.mark.parametrize("name", ["gated_linear", "signed"])
def test_kinds_without_a_softmax_have_no_slider_and_words_that_are_true(
    visit: Visit, pages: dict[str, Path], name: str
) -> None:
    page = ready(visit, pages[name], "#layer=1&head=1&token=20")
    assert page.query_selector("#factor") is None
    assert "Its weights add up to" in page.inner_text("#looks") and "subtracts" in page.inner_text("#looks")
    assert "can be below zero" in page.inner_text("#head-says") and "below zero" in page.inner_text("#map .scale")
    steps = {"gated_linear": ["kept", "product", "is left"], "signed": ["wanted", "unwanted"]}[name]
    assert all(step in page.inner_text("#steps thead") for step in steps)
    assert (page.query_selector("#shades input[value=gate-kept]") is not None) == (name == "gated_linear")


def test_a_weight_that_is_a_difference_is_written_out_with_its_lambda(visit: Visit, tmp_path: Path) -> None:
    """The numbers of the formula are those of the row, and give the weight."""
    page = ready(visit, page_of(Differential).save(tmp_path / "page.html").path, "#layer=2&head=1&token=20&key=7")
    titles = page.inner_text("#steps thead")
    taken = re.search(r"other softmax\s*\u00d7 \u2212(0\.\d+)", titles)
    numbers = re.findall(r"[\d.]+", page.inner_text("#steps .formula").split(" = ", 1)[1].replace("\u2212", " "))
    ours, factor, others = map(float, numbers[:3])
    assert taken and float(taken[1]) == factor
    weight = float(page.inner_text("#steps .formula").rsplit("= ", 1)[1].replace("\u2212", "-"))
    assert weight == pytest.approx(ours - factor * others, abs=2e-3)


def test_a_text_far_outside_has_a_note_and_another_has_none(
    visit: Visit, pages: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.seeing.numbers.CHANCE", 1e9)  # what random weights give is never certain
    told = page_of(MultiHead, usual=0.1)
    note = ready(visit, told.save(tmp_path / "far.html").path).locator("#outside")
    assert note.is_visible() and note.inner_text() == told.outside != ""
    assert not ready(visit, pages["multi_head"]).locator("#outside").is_visible()


# ---- what is chosen ----


def test_pointing_previews_leaving_restores_and_clicking_keeps(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"], "#layer=1&head=1&token=9")
    first, before = page.inner_text("#head-title"), place(page)
    other = page.locator("#heads [aria-label^='Layer 2, head 2']")
    other.hover()
    page.wait_for_function("() => document.getElementById('head-title').textContent.startsWith('Layer 2, head 2')")
    assert place(page) == before
    page.mouse.move(5, 5)
    page.wait_for_function("() => document.getElementById('head-title').textContent.startsWith('Layer 1, head 1')")
    assert page.inner_text("#head-title") == first
    other.click()
    page.mouse.move(5, 5)
    page.locator("#map canvas >> nth=0").click(position={"x": 40, "y": 200})
    assert "layer=2&head=2" in place(page) and "key=" in place(page)


def test_an_address_brings_back_what_was_chosen(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"])
    page.check("#shades input[value=surprise]", force=True)
    page.click("#text .token >> nth=20")
    page.click(".look >> nth=2")
    parts, address = ("#headline", "#legend", ".two", "#lens"), place(page)
    chosen = [page.inner_text(part) for part in parts]
    again = ready(visit, pages["multi_head"], "#" + address.split("#")[1])
    assert [again.inner_text(part) for part in parts] == chosen and place(again) == address
    assert again.is_checked("#shades input[value=surprise]")


@pytest.mark.slow
def test_a_broken_address_opens_the_page_as_if_there_were_none(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"])
    plain = page.inner_text("main")
    broken = "layer=0&head=1 layer=9&head=9 token=99999 layer=1&head=-1&token=1e9 key=% shade=toString"
    for address in ("", *broken.split()):
        page.goto(f"{pages['multi_head'].as_uri()}#{address}")
        page.reload()
        page.wait_for_selector(READY)
        assert page.inner_text("main") == plain


def test_a_button_goes_to_the_token_where_the_head_matters_most(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"])
    assert "The page opened here because" in page.inner_text("#opened")
    page.locator("#habits button >> nth=1").click()
    head = page.locator("#habits button >> nth=1").inner_text()
    assert page.locator("#habits tr.open").inner_text().startswith(head) and said(page).startswith(head)
    page.focus("#most")
    page.keyboard.press("Enter")
    rises, t = page.evaluate("""async () => {
        const numbers = numbersOf(dataOf("data"), await unpack(dataOf("arrays")));
        const h = [...document.querySelectorAll("#heads .head")].find((one) => one.ariaSelected === "true").dataset.h;
        const rise = (_, i) => numbers.without(Number(h), i + 1) - numbers.surprise(i + 1);
        const rises = Array.from({length: numbers.T - 1}, rise);
        return [rises, new URLSearchParams(location.hash.slice(1)).get("token") - 1];
    }""")
    assert rises[t] == max(rises) > 0


# ---- guess first ----


def test_a_guess_comes_before_the_map(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"])
    page.click("#guess")
    assert not any(page.locator(part).first.is_visible() for part in ("#map canvas", "#heads canvas", "#steps table"))
    assert page.inner_text("#looks") == "" and "Where does this head look" in said(page)
    asked, s, weight = page.evaluate("""async () => {
        const numbers = numbersOf(dataOf("data"), await unpack(dataOf("arrays")));
        const h = dataOf("data").start.head;
        const t = [...document.querySelectorAll("#text .token")].findIndex((one) => one.ariaSelected === "true");
        return [t, strongest(numbers.weights(h, t)), Math.max(...numbers.weights(h, t))];
    }""")
    assert weight > 0.5
    way = "ArrowLeft" if s < asked else "ArrowRight"
    for _ in range(abs(asked - s)):  # moving does not answer
        page.keyboard.press(way)
        assert not page.locator("#map canvas").first.is_visible()
    page.keyboard.press("Enter")
    assert page.inner_text("#guessing").startswith("Yes.") and "1 of 1 right" in page.inner_text("#guessing")
    assert page.locator("#map canvas").first.is_visible() and page.inner_text("#looks") != ""


# ---- elsewhere ----


def test_the_button_wins_over_the_system_s_theme(visit: Visit, pages: dict[str, Path]) -> None:
    page = ready(visit, pages["multi_head"], theme="dark")
    dark = page.evaluate("colour('ground')")
    page.click("#theme")
    assert sum(page.evaluate("colour('ground')")) > 600 > sum(dark)
    page.reload()
    page.wait_for_selector(READY)
    assert sum(page.evaluate("colour('ground')")) > 600


def test_a_notebook_s_frame_shows_it(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "notebook.html").write_text(f"<!doctype html>{page_of(MultiHead)._repr_html_()}", encoding="utf-8")
    page = visit(tmp_path / "notebook.html")
    frame = page.frame_locator("iframe")
    frame.locator(READY).wait_for()
    frame.locator("#heads .head >> nth=2").click()
    assert "Without this head" in frame.locator("#cause").inner_text()


@pytest.mark.slow
def test_the_screenshots_of_the_readme_are_small_pictures(tmp_path: Path, chromium: Any) -> None:
    furnish(tmp_path)
    well(script("train.py", "--config", "small.yaml", cwd=tmp_path))
    well(script("screenshots.py", "--run", "small", "--prompt", "the cat", "--out", "pictures", cwd=tmp_path))
    pictures = [path.read_bytes() for path in sorted((tmp_path / "pictures").iterdir())]
    assert all(picture[:4] + picture[8:12] == b"RIFFWEBP" and len(picture) < 60_000 for picture in pictures)
    assert len(set(pictures)) == 2


def test_bytes_and_single_tokens_are_drawn(visit: Visit, tmp_path: Path) -> None:
    page = ready(visit, page_of(MultiHead, "é", Byte()).save(tmp_path / "bytes.html").path)
    assert page.locator("#text .token").all_inner_texts() == ["⟨c3⟩", "⟨a9⟩"]
    one = ready(visit, page_of(MultiHead, "M").save(tmp_path / "one.html").path)
    assert "sees itself alone" in one.inner_text("#looks") and "text ends" in one.inner_text("#cause")
    assert not one.is_enabled("#guess")
