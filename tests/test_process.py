"""Processes that exchange lines of JSON: whole answers only, an end that is noticed, and no Ctrl-C of the parent's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from minigpt.system.process import JsonProcess

ECHO = "[print(line, end='', flush=True) for line in sys.stdin]"


def test_a_message_is_answered_in_one_line() -> None:
    with JsonProcess(ECHO) as process:
        for message in ({"text": "ü\n"}, {"n": [1, 2.5, None]}):
            process.send(message)
            assert process.receive() == message
    assert process.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("statement", ["print('{\"half\": ', end='')", "sys.exit(7)"])
def test_a_process_that_ends_has_no_answer(statement: str) -> None:
    with JsonProcess(statement) as process:
        process.send({})
        assert process.receive() is None
        process.process.wait()
        assert not process.send({})  # nobody reads it any more
        assert process.receive() is None


def test_half_a_message_of_a_parent_that_ended_is_not_read() -> None:
    each = "import json; from minigpt.system.process import messages; "
    with JsonProcess(f"{each}[print(json.dumps(one), flush=True) for one in messages()]") as process:
        assert process.send({"n": 1}) and process.receive() == {"n": 1}
        assert process.process.stdin
        process.process.stdin.write('{"n": ')
        process.process.stdin.close()
        assert (process.receive(), process.process.wait()) == (None, 0)


def test_it_imports_from_the_folders_of_its_parent_wherever_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder, "" in the `sys.path` of a notebook, stays the parent's."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "whose.py").write_text(f"print('[\"{folder}\"]', flush=True)", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend("")
    with JsonProcess("import os; os.chdir('../there'); import whose") as process:
        assert process.receive() == ["here"]


def test_it_ignores_ctrl_c_and_has_the_environment_and_arguments_it_is_given(tmp_path: Path) -> None:
    statement = "import json, os; sys.stdin.readline(); print(json.dumps([os.environ['OURS'], sys.argv[1]]), flush=1)"
    with JsonProcess(f"print('{{}}', flush=True); {statement}", "ü", variables={"OURS": "here"}) as process:
        assert process.receive() == {}
        process.process.send_signal(signal.SIGINT)
        process.send({})
        assert process.receive() == ["here", "ü"]
