"""Live cells of the lessons: what torch computed is noted, and the page computes it again from other numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Visit, overflow, violations
from torch import Tensor

from minigpt.attention.ladder import attend, average_loop, average_matrix, average_softmax, dot_product, query_key
from minigpt.learning import as_page, small_training
from minigpt.learning.course import Cell, lesson_of, lessons
from minigpt.learning.output import Output
from minigpt.learning.tape import MOST_INPUTS, OPERATIONS, Tape, live
from minigpt.seeing.document import document

IS_LIVE = re.compile(r'data-live=|data-turn="[^"]*&quot;live&quot;: {')
LIVE = [lesson.number for lesson in lessons() if any(cell.live for cell in lesson.cells)]


def tensor_of(numbers: Mapping[str, Any]) -> Tensor:
    """A tensor from a page: in double precision, or truths."""
    truths = bool(numbers["data"]) and isinstance(numbers["data"][0], bool)
    data = numbers["data"] if truths else [float(x) for x in numbers["data"]]  # infinity is a text
    return torch.tensor(data, dtype=torch.bool if truths else torch.float64).view(numbers["shape"])


def replayed_by_torch(tape: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the operations of a page make of other inputs, by torch itself."""
    values = {node: tensor_of(numbers) for node, numbers in tape["constants"].items()} | inputs

    def resolved(argument: Any) -> Any:
        if isinstance(argument, list):
            return [resolved(each) for each in argument]
        if isinstance(argument, dict):
            return values[str(argument["node"])]
        return float(argument) if isinstance(argument, str) else argument

    for node, (operation, arguments, options, part) in tape["operations"].items():
        sign = {name: value for name, value in options.items() if name == "alpha"}
        result = resolved(arguments[0])
        if operation != "_to_copy":  # everything is in double precision
            result = getattr(torch.ops.aten, operation)(*resolved(arguments), **sign)
        values[node] = result if part is None else result[part]
    return values


def replayed_by_page(seen: Any, tape: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same by the page's script."""
    data = {node: {"shape": list(x.shape), "data": x.flatten().tolist()} for node, x in inputs.items()}
    replayed = seen.evaluate("([tape, inputs]) => replay(tape, inputs)", [tape, data])
    return {node: tensor_of(numbers) for node, numbers in replayed.items()}


def agree(seen: Any, tape: Mapping[str, Any]) -> None:
    """Page and torch compute the same, to six digits, from the lesson's inputs and from others."""
    tape, random = json.loads(json.dumps(tape)), torch.Generator().manual_seed(1)
    for size in (0, 1, 30):
        inputs = {
            node: tensor_of(x) + size * torch.randn(x["shape"], generator=random, dtype=torch.float64)
            for node, x in tape["inputs"].items()
        }
        by_torch, by_page = replayed_by_torch(tape, inputs), replayed_by_page(seen, tape, inputs)
        for node in tape["operations"]:
            torch.testing.assert_close(by_page[node], by_torch[node].double(), rtol=1e-6, atol=1e-9)


@pytest.fixture
def scripts(visit: Visit, tmp_path: Path) -> Any:
    """A page with the lessons' scripts, and no lesson."""
    texts = [(as_page.HERE / name).read_text(encoding="utf-8") for name in ("replay.js", "asking.js")]
    path = tmp_path / "page.html"
    path.write_text(document("t", "<main><h1>t</h1></main>", "", texts, {"texts": {}}), encoding="utf-8")
    return visit(path)


def test_the_page_has_each_operation_as_torch_has_it(scripts: Any) -> None:
    tape = Tape()
    torch.manual_seed(3)
    with tape.recording():
        x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
        assert live([x], True) and live([y], True)
        mask, column = torch.ones(3, 4).bool().tril(), torch.randn(3, 1, dtype=torch.float64)
        positive = x.abs() + 1
        results = [x + y, x - y, torch.sub(x, y, alpha=2), torch.add(x, column, alpha=3), 1 - x, x * column, x / 2]
        results += [x / positive, x**2, 2 * x, -x, (x / 100).exp(), positive.sqrt(), positive.log(), x.cos(), x.sin()]
        results += [x.clamp(min=0), x.clamp(-0.5, 0.5), x.sum(), x.sum(dim=0), x.mean(dim=-1, keepdim=True), x.mean()]
        results += [x.amax(dim=1), x.norm(dim=-1), torch.linalg.vector_norm(x, ord=1, dim=0), x.softmax(dim=0)]
        results += [x @ y.T, y @ x.mT, x @ y[0], x[0] @ y[0], torch.outer(x[0], y[1]), torch.stack([x, y]) @ y.T]
        results += [x.masked_fill(mask, -torch.inf), x.tril(), x.tril(-1), x[:, 1:3], x[-2:], x[::2], x[1], x[..., -1]]
        results += [x.unflatten(-1, (2, 2)).transpose(0, 1), x.permute(1, 0), x.reshape(-1), x.view(2, 6), x.flatten()]
        results += [x.unsqueeze(1), (x[:, None] + 1).squeeze(1), x[:1].expand(5, 4), (x + 1).t()]
        results += [*x, *x.unbind(1), torch.cat([x, y]), torch.cat([x, y], dim=-1), torch.stack([x, y], dim=1)]
        results += [x.float().double(), x.clone(), attend(x, y, x), dot_product(x), query_key(x, y.T, y.T)]
        results += [average_loop(x), average_matrix(x.float()), average_softmax(x.float()), positive.T.contiguous()]
        results += [torch.stack([x, y]) @ torch.stack([y, x]).mT]
        assert [i for i, each in enumerate(results) if live([each]) is None] == []
    assert {operation for operation, *_ in tape.as_data()["operations"].values()} == OPERATIONS
    agree(scripts, tape.as_data())


def test_what_was_written_to_or_cannot_be_computed_again_is_not_live() -> None:
    tape = Tape()
    with tape.recording():
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        assert live([x], True) == {"nodes": [0], "input": True}
        doubled = x * 2
        assert live([doubled], True) == {"nodes": [1], "input": False}
        doubled[0] = 5.0
        assert live([doubled], True) is None and live([doubled + x]) is None
        assert live([x.sort().values]) is None and live([torch.div(x, 2, rounding_mode="floor")]) is None
        filled = torch.zeros(2, 2)
        filled[0] = 1  # nothing live leads to it
        assert live([filled * 1.0], True) is not None
        assert live([torch.zeros(MOST_INPUTS + 1, 1)], True) is None
        x.add_(1)
        assert live([x], True) is None and live([x * 3]) is None
    assert live([x], True) is None  # outside of a live cell
    assert tape.as_data()["inputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]  # as it was when it was shown


@pytest.mark.quick("1", "7")
@pytest.mark.parametrize("number", LIVE)
def test_a_lesson_is_computed_again_as_torch_does(number: int, scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in ("OWN_STEPS", "SHORT_STEPS"):  # what is live of a trained model is as live after a few
        monkeypatch.setattr(small_training, steps, 4)
    real, dead = as_page.run, list[str]()

    def run(cell: Cell, *arguments: Any) -> Sequence[Output]:
        outputs = real(cell, *arguments)
        tables = [each for each in outputs if cell.live and "lesson-table" in each.html]
        dead.extend(each.text for each in tables if not IS_LIVE.search(each.html))
        return outputs

    monkeypatch.setattr(as_page, "run", run)
    html = as_page.lesson_page(lesson_of(number)).html
    tape = json.loads(re.search(r'id="tape">(.*?)</script>', html, re.S)[1])  # type: ignore[index]
    assert tape["inputs"] and tape["operations"] and dead == []
    agree(scripts, tape)


@pytest.mark.slow
def test_a_number_and_a_token_are_changed_and_all_follows(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "lesson.html"
    path.write_text(as_page.lesson_page(lesson_of(2)).html, encoding="utf-8")
    seen = visit(path)

    def table(title: str) -> Tensor:
        box = seen.locator("main table", has=seen.locator(f'caption:text-is("{title}")'))
        cell = "cell => Number(cell.querySelector('input')?.value ?? cell.textContent)"
        rows = f"table => [...table.rows].slice(1).map(row => [...row.querySelectorAll('td')].map({cell}))"
        return torch.tensor(box.evaluate(rows))

    def shows(title: str, expected: Tensor) -> None:
        torch.testing.assert_close(table(title), expected, atol=0.006, rtol=0)  # two digits behind the point

    vectors, scores = "the vectors of six tokens", "the scores: x @ x.mT"
    x, one = table(vectors), seen.get_by_label("starts, second")
    one.fill("-2")
    changed = x.clone()
    changed[2, 1] = -2
    shows(scores, changed @ changed.T)
    for number in (1, 2):  # an answer puts everything back: what is revealed was computed from the lesson's numbers
        seen.locator(f"#q-{number} button").nth(1).click()
    shows(vectors, x)
    shows(scores, x @ x.T)
    one.fill("-2")
    seen.get_by_label("Token 1", exact=True).select_option("step")
    changed[0] = x[5]
    weights = (changed @ changed.T).softmax(dim=-1)
    shows("the weights: the softmax of each row", weights)
    heads = seen.locator("main table", has=seen.locator(f'caption:text-is("{scores}")')).locator("th")
    assert heads.all_inner_texts().count("step") == 4 and "Your" not in seen.inner_text("#q-1 .lesson-figure")
    assert "speak of the numbers as they were" in seen.inner_text("main")
    seen.evaluate("scrollTo(0, 0)")  # no field is half under the bar of questions
    assert violations(seen) == [] and overflow(seen) == 0
    names = seen.evaluate("['a b', ' '].map(name => barsOf([1], [name], 't').querySelector('.name').textContent)")
    assert names == ["a b", "\u2423"]  # a space is drawn where it is all of a name
    one.fill("")  # not a number yet
    shows("the weights: the softmax of each row", weights)
    seen.get_by_role("button", name="As it was").first.click()
    shows(scores, x @ x.T)
    assert heads.all_inner_texts().count("step") == 2
