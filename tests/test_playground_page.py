"""The playground's page in a real browser: it writes, is changed, and says so; by keyboard, in both themes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from browser import THEMES, Visit, chromium, cut, overflow, violations, visit  # noqa: F401 (fixtures)
from test_playground import HEAD, asked, home, run, server, talks, unlikely  # noqa: F401 (fixtures)

from minigpt.learning.playground.server import Server


@pytest.fixture
def page(visit: Visit, server: Server) -> Any:  # noqa: F811
    """The page of three runs, after each has written."""
    return ready(visit(server.address), 1)


def ready(page: Any, times: int) -> Any:
    """The page, when so many writings have ended."""
    page.set_default_timeout(120_000)  # of a busy machine
    page.locator(f"body[data-ready='{times}']").wait_for(state="attached")
    return page


def drawn(token: str) -> str:
    """A token as the strip draws it."""
    return {" ": "\u00b7", "\n": "\u21b5"}.get(token, token)


def pane(page: Any, number: int = 0) -> Any:
    return page.locator("section.pane").nth(number)


def text(page: Any, number: int = 0) -> str:
    """The tokens of a pane, as they are drawn."""
    return "".join(pane(page, number).locator(".token:not(.next)").all_text_contents())


def test_it_writes_what_sampling_writes_in_every_pane(page: Any, server: Server) -> None:  # noqa: F811
    for number, name in enumerate(["stories", "average"]):
        one = server.playground.open_runs[number].run
        expected = one.generate("Mia was a shy fox. She met Tom.", max_tokens=40)
        assert pane(page, number).get_by_role("heading", level=2).text_content() == name
        assert text(page, number).rstrip("\u21b5") == "\u21b5" + expected.replace(" ", "\u00b7")
    assert "What could have stood" in pane(page).inner_text() or "What may come next" in pane(page).inner_text()
    spoken = page.locator("#say").text_content()
    assert spoken.startswith(("stories: ", "average: ", "own: "))


def test_a_talk_has_a_line_for_each_turn_and_goes_on(visit: Visit, talks: Server) -> None:  # noqa: F811
    page = ready(visit(talks.address), 1)
    page.locator("#prompt").fill("Who has it?")
    page.locator("#write").click()
    ready(page, 2)
    page.get_by_label("What you say next to chat").fill("And the hat?")
    page.get_by_role("button", name="Say").click()
    ready(page, 3)
    assert "<|user|>And\u00b7the\u00b7hat?<|assistant|>" in text(page)
    starts = page.locator(".break + .word .token:first-child").all_text_contents()
    marks = [each for each in page.locator(".token").all_text_contents() if each in ("<|user|>", "<|assistant|>")]
    assert len(marks) >= 4 and [each for each in starts if each in marks] == marks[1:]


@pytest.mark.slow
def test_the_file_that_a_browser_is_started_with_leads_to_the_page(
    chromium: Any,  # noqa: F811
    server: Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server.entrance())
    page.wait_for_url(server.address)
    ready(page, 1)
    assert list(tmp_path.iterdir()) == []
    context.close()


@pytest.mark.slow
def test_one_token_at_a_time_by_keyboard_and_a_forced_one(page: Any) -> None:
    page.locator("#prompt").fill("Mia")
    page.locator("#one").focus()
    page.keyboard.press("Enter")
    ready(page, 2)
    before = text(page)
    assert len(before) == len("\u21b5Mia") + 1
    listed = pane(page).locator(".likeliest button:not(.taken)").first
    wanted = listed.locator(".name").text_content()
    listed.focus()
    page.keyboard.press("Enter")
    ready(page, 3)
    assert text(page).startswith(before[:-1] + wanted.replace("\u2423", "\u00b7"))
    assert pane(page).locator(".token.forced").count() == 1
    chosen = pane(page).locator(".token[aria-selected=true]")
    chosen.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    pane(page).locator("h3", has_text="where \u2018M\u2019 stands").wait_for()


@pytest.mark.slow
def test_a_beginning_far_outside_has_a_note_until_another_one_is_given(page: Any, server: Server) -> None:  # noqa: F811
    player = server.playground.open_runs[0].player
    strange = player.run.tokenizer.decode(unlikely(player, 100)[1:]).replace("\n", "a")
    note = pane(page).locator(".note", has_text="how it reads what it does not know")
    page.locator("#prompt").fill(strange)
    page.locator("#write").click()
    ready(page, 2)
    assert note.is_visible()
    page.locator("#prompt").fill("Mia")
    page.locator("#write").click()
    ready(page, 3)
    assert not note.is_visible()


def test_a_head_off_rewrites_the_text_and_its_losses_stand_beside_the_old(page: Any, server: Server) -> None:  # noqa: F811
    box, before = pane(page), text(page)
    box.locator("table").wait_for()
    box.get_by_role("button", name="Layer 2, head 1 off").click()
    ready(page, 2)
    hello = asked(server, "hello")[0]["runs"][0]
    [found] = asked(server, "encode", run=0, text=hello["beginning"], begins=True)
    question = {"run": 0, "ids": found["ids"], "begun": len(found["ids"]), "settings": hello["settings"], "tokens": 40}
    lines = asked(server, "write", edits=HEAD, **question)
    assert text(page)[-len(lines) + 1 :] == "".join(drawn(one["token"]) for one in lines[:-1])
    assert box.get_by_role("heading", level=2).text_content().endswith("layer 2, head 1 off")
    box.get_by_text("as trained").first.wait_for()
    box.locator("p", has_text="Validation loss").filter(has_text="as trained").wait_for()
    box.get_by_role("button", name="As trained").click()
    ready(page, 3)
    assert text(page) == before


@pytest.mark.slow
def test_an_edit_before_the_first_token_is_not_lost(page: Any, server: Server) -> None:  # noqa: F811
    """Another head is switched off while the writing without the first one has not brought a token yet."""
    held: list[Any] = []
    page.route("**/api/write", lambda route: held.append(route))
    box = pane(page)
    with page.expect_request("**/api/write"):
        box.get_by_role("button", name="Layer 1, head 1 off").click()
    box.get_by_role("button", name="Layer 2, head 1 off").click()
    page.wait_for_timeout(200)
    for route in held:
        with suppress(Exception):  # it was given up
            route.continue_()
    page.unroute("**/api/write")
    ready(page, 3)
    hello = asked(server, "hello")[0]["runs"][0]
    [found] = asked(server, "encode", run=0, text=hello["beginning"], begins=True)
    question = {"run": 0, "ids": found["ids"], "begun": len(found["ids"]), "settings": hello["settings"], "tokens": 40}
    one, both = (
        asked(server, "write", edits=HEAD | {"heads_off": off}, **question) for off in ([[0, 0]], [[0, 0], [1, 0]])
    )
    expected = "".join(drawn(line["token"]) for line in both[:-1])
    assert [line.get("id") for line in one] != [line.get("id") for line in both]
    assert text(page)[-len(expected) :] == expected
    box.get_by_text("Its own text surprises the changed model by").wait_for()
    assert box.get_by_text("the changes are not in it").is_visible()


@pytest.mark.slow
def test_sliders_move_the_line_and_not_the_die(page: Any) -> None:
    box = pane(page)
    die = box.locator(".line .die").evaluate("e => e.style.getPropertyValue('--from')")
    page.locator("#top-k").evaluate("e => { e.value = 3; e.dispatchEvent(new Event('input')); }")
    box.get_by_text("3 tokens are possible").wait_for()
    assert box.locator(".line .part").count() in (3, 4)  # and what stands in the text
    assert box.locator(".line .die").evaluate("e => e.style.getPropertyValue('--from')") == die
    page.locator("#temperature").evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
    box.get_by_text("No die is needed").wait_for()


@pytest.mark.slow
def test_the_explorer_opens_for_the_text(page: Any) -> None:
    with page.expect_popup() as found:
        pane(page).get_by_role("button", name="Open this text in the explorer").click()
    found.value.locator("body[data-ready]").wait_for(state="attached")


def frame(page: Any) -> Any:
    """The whole model in its tab, when it can be used."""
    inside = page.frame_locator("#view-whole iframe")
    inside.locator("body[data-ready]").wait_for(state="attached")
    return inside


@pytest.mark.slow
def test_the_whole_model_is_a_tab_with_the_parts_that_are_off(page: Any) -> None:
    pane(page).get_by_role("button", name="Layer 1, MLP off").click()
    pane(page).get_by_role("button", name="See the whole model").click()
    assert "adds 0.0" in frame(page).locator(".flow").inner_text()
    assert page.get_by_role("tabpanel", name="The whole model").is_visible() and not page.is_visible("#prompt")
    assert "MLP" in page.inner_text("#whole-says")
    with page.expect_popup() as found:
        page.get_by_role("link", name="In a tab of its own").click()
    found.value.locator("body[data-ready]").wait_for(state="attached")


@pytest.mark.slow
def test_the_tabs_are_gone_through_by_keyboard_and_say_what_they_are(page: Any) -> None:
    page.locator("#tab-write").focus()
    page.keyboard.press("ArrowRight")
    frame(page)
    chosen = page.get_by_role("tab", selected=True)
    assert chosen.inner_text() == "The whole model" and chosen.evaluate("e => e === document.activeElement")
    before = page.locator("#view-whole iframe").get_attribute("src")
    second = page.locator("#of input").nth(1)
    second.focus()
    second.press("Space")
    page.wait_for_selector(f"#view-whole iframe:not([src='{before}'])")
    assert "average" in str(page.locator("#view-whole iframe").get_attribute("title"))
    frame(page)
    for width, theme in THEMES[1:3]:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        assert violations(page) == [] and overflow(page) <= 0
    page.locator("#tab-whole").press("Home")
    assert page.is_visible("#prompt") and not page.is_visible("#view-whole")


def test_a_page_without_its_token_says_what_to_do(visit: Visit, server: Server) -> None:  # noqa: F811
    page = visit(server.address.split("#")[0])
    page.get_by_role("alert").filter(has_text="this playground is for its own page").wait_for()
    page.complaints.clear()  # the browser reports the refusal


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), THEMES)
def test_the_page_is_accessible_and_fits(visit: Visit, server: Server, width: int, theme: str) -> None:  # noqa: F811
    page = ready(visit(server.address, width, theme), 1)
    pane(page).get_by_role("button", name="Layer 1, head 1 off").click()
    pane(page).locator("table").wait_for()
    assert violations(page) == [] and overflow(page) <= 0
    assert cut(page) == [] and not page.locator("body").evaluate("() => matchMedia('print').matches")
