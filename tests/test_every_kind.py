"""Every kind as a user swaps it in, by one word: the real commands, with a small model.

It trains, writes the same with its cache as without, is drawn, profiled, stored in fewer bits and compared.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import script, well

from minigpt.attention import Attention
from minigpt.training.run import load

KINDS = [name for name, kind in Attention.kinds.items() if kind.__module__.startswith("minigpt.")]
SMALL = """\
data: {source: stories, stories: {count: 60, validation: 8}, tokenizer: char}
model: {n_layer: 2, n_embd: 32, block_size: 32, position: rotary, bias: false, norm: {kind: layernorm, weights: false},
  mlp: swiglu}
training: {batch_size: 8, max_steps: 3, eval_every: 3, sample_every: 0, device: cpu}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the config."""
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    return tmp_path


def swapped(kind: str) -> list[str]:
    """The words of a training of the small model with a kind swapped in."""
    return ["train.py", "--config", "small.yaml", f"model.attention={kind}"]


@pytest.mark.parametrize("kind", KINDS[3::11])
def test_a_kind_trains_writes_and_is_drawn(kind: str, home: Path) -> None:
    """Every eleventh: `test_all_kinds_are_compared` trains all, and of each the laws ask what it writes and shows."""
    said = script(*swapped(kind), "--name", "r", cwd=home)
    assert said.code == 0, said.err
    last = (home / "runs" / "r" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    assert 0 < json.loads(last)["val/loss"] < 5
    run = load(home / "runs" / "r", "cpu")
    texts = ["".join(run.stream("Mia was a ", use_cache, max_tokens=45, seed=1)) for use_cache in (True, False)]
    assert texts[0] == texts[1] and len(texts[0]) >= 45  # past the context of 32, which restarts
    drawn = well(script("show_attention.py", "--prompt", "Mia was a shy fox.", cwd=home))
    assert f"layer 2, head 1 ({kind})" in drawn


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_profiled_or_trains_in_plain_form_or_writes_with_fewer_bits(
    kind: str, home: Path, whole: bool
) -> None:
    """A sixth of the kinds each, unless `--whole` is given; without commands, other chapters ask all of every kind.

    The checks before a training are those of the test above.
    """
    turn = KINDS.index(kind) % 6
    if not whole and turn > 2:
        pytest.skip("one of those that --whole adds")
    if whole or turn == 0:
        profile = script(*swapped(kind), "--profile", 2, cwd=home)
        assert profile.code == 0 and "attention" in profile.out
    if whole or turn > 0:
        plain = script(*swapped(kind), "--plain", "--skip-checks", "--name", "p", cwd=home)
        assert plain.code == 0, plain.err
    for weights in ("bfloat16", "int8") if whole or turn == 2 else ():
        written = script("sample.py", "--weights", weights, "--max-tokens", 40, "--prompt", "Mia", cwd=home)
        assert written.code == 0, written.err


@pytest.mark.slow
def test_all_kinds_are_compared(home: Path) -> None:
    lines = "".join(f"  {kind}: {{model.attention: {kind}}}\n" for kind in KINDS)
    head = f"compare: {{baseline: {KINDS[0]}, seeds: [1], processes: 2}}\nvariants:\n{lines}"
    (home / "all.yaml").write_text(head + SMALL, encoding="utf-8")
    done = script("compare.py", "--config", "all.yaml", "--skip-checks", cwd=home)
    assert done.code == 0, done.err
    assert all(kind in done.out for kind in KINDS)
