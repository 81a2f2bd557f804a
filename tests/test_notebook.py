"""From a notebook: a training, its stop button, what a run shows, and bars where there is somebody to see them."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from running import ROOT, environment, furnish, wait_until

import minigpt
from minigpt.attention import MultiHead
from minigpt.config.options import load as load_config
from minigpt.config.options import to_yaml
from minigpt.system import waiting
from minigpt.system.errors import UserError
from minigpt.system.plugin import PLUGINS
from minigpt.training.report import read_metrics

MINE = """\
from minigpt.attention.softmax.multi_head import MultiHead
class Mine(MultiHead, kind="mine_of_a_notebook"):
    pass
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notebook's folder, with the small config."""
    monkeypatch.chdir(furnish(tmp_path))
    monkeypatch.setenv("MINIGPT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("minigpt.text.corpus.DATA", tmp_path / "data")
    return tmp_path


def test_a_run_is_trained_and_trained_further(place: Path) -> None:
    """Paths may be texts; what comes back writes at once, and is the run of that folder."""
    (place / "mine.py").write_text(MINE, encoding="utf-8")
    try:
        run = minigpt.train("small.yaml", "model.attention.kind=mine_of_a_notebook", plugins=["mine.py"])
        assert (run.folder / "plugins" / "mine.py").is_file() and run.step == 8
        longer = minigpt.resume(str(run.folder), "training.max_steps=10")
        assert longer.step == 10 and len(read_metrics(run.folder / "metrics.jsonl")) == 10
        assert longer.generate("the") == minigpt.load(str(run.folder)).generate("the")
    finally:
        PLUGINS.pop("minigpt_plugin_mine", None)
        minigpt.Attention.kinds.pop("mine_of_a_notebook", None)


def test_a_notebook_that_is_run_again_goes_on_where_it_stopped(place: Path) -> None:
    """As after a machine that is gone: a run without a checkpoint is begun anew, one that has ended is loaded."""
    half = minigpt.train("small.yaml", "training.max_steps=4", name="mine", resume=True)
    assert half.folder.name == "mine" and half.step == 4
    whole = minigpt.train("small.yaml", "training.max_steps=8", name="mine", resume=True)
    assert whole.folder == half.folder and whole.step == 8
    metrics = (whole.folder / "metrics.jsonl").read_bytes()
    again = minigpt.train("small.yaml", "training.max_steps=8", name="mine", resume=True)
    assert again.folder == half.folder and again.generate("the") == whole.generate("the")
    assert (whole.folder / "metrics.jsonl").read_bytes() == metrics
    shutil.rmtree(whole.folder / "checkpoints")
    anew = minigpt.train("small.yaml", "training.max_steps=4", name="mine", resume=True)
    assert anew.folder.name == "mine-2" and anew.step == 4
    assert minigpt.train("small.yaml", name="mine", resume=True).folder == anew.folder


BUILT = minigpt.RunConfig(
    data=minigpt.DataConfig(source="text.txt"),
    model=minigpt.ModelConfig(n_layer=1, n_embd=16, block_size=16, attention=MultiHead.Config(n_head=2)),
    training=minigpt.TrainingConfig(batch_size=4, max_steps=4, sample_every=0, device="cpu"),
)


def test_a_config_is_built_in_python_and_read_back_from_yaml(place: Path) -> None:
    Path("built.yaml").write_text(to_yaml(BUILT), encoding="utf-8")
    assert load_config(minigpt.RunConfig, "built.yaml") == BUILT
    run = minigpt.train(BUILT, "training.max_steps=2")
    assert run.folder == Path("runs/run") and run.step == 2
    assert run.config.model == BUILT.model and run.config.data == BUILT.data


def test_the_config_of_the_page_trains(place: Path) -> None:
    page = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    smaller = {"n_embd=64": "n_embd=64, block_size=16", "max_steps=50": "max_steps=2",
               '"training.batch_size=16"': '"training.batch_size=4", "data.source=text.txt"'}  # fmt: skip
    for old, new in smaller.items():
        assert old in code
        code = code.replace(old, new)
    exec(code, {})
    assert (place / "runs" / "mine" / "checkpoints").is_dir()


def test_a_config_built_in_python_is_as_strict_as_a_file() -> None:
    with pytest.raises(UserError, match=r"ModelConfig\.n_layer: expected a whole number of at least 1 .*, found 0"):
        minigpt.ModelConfig(n_layer=0)
    with pytest.raises(UserError, match=r"expected one of .*multi_head.*, found 'multi_head'"):
        minigpt.ModelConfig(attention="multi_head")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="n_layr"):
        minigpt.ModelConfig(n_layr=2)  # type: ignore[call-arg]
    assert "n_layer" in inspect.signature(minigpt.ModelConfig).parameters  # what an editor completes


def test_a_mistake_does_not_keep_the_folder(place: Path) -> None:
    """A notebook keeps the last error, and with it all that its call had."""
    run = minigpt.train("small.yaml")
    with pytest.raises(UserError, match="has done all its 8 steps") as kept:
        minigpt.resume(run.folder)
    assert minigpt.resume(run.folder, "training.max_steps=9").step == 9
    assert kept.value.__traceback__ is not None


def test_what_is_recorded_is_the_plugin_that_was_loaded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook has gone to another folder since, and the file was edited."""
    (place / "mine.py").write_text(MINE, encoding="utf-8")
    try:
        minigpt.load_plugin("mine.py")
        (place / "mine.py").write_text(MINE + "# edited\n", encoding="utf-8")
        (place / "elsewhere").mkdir()
        monkeypatch.chdir(furnish(place / "elsewhere"))
        run = minigpt.train("small.yaml", "model.attention.kind=mine_of_a_notebook")
        assert (run.folder / "plugins" / "mine.py").read_text("utf-8") == MINE
    finally:
        PLUGINS.pop("minigpt_plugin_mine", None)
        minigpt.Attention.kinds.pop("mine_of_a_notebook", None)


def test_a_run_shows_a_few_facts_and_its_curve_and_no_text_of_it_is_markup(place: Path) -> None:
    run = minigpt.train("small.yaml")
    loss = read_metrics(run.folder / "metrics.jsonl")[-1]["val/loss"]
    assert repr(run).startswith("<Run runs/small: step 8, attention multi_head, shape 1 layers of 16, context 16, ")
    assert f"validation loss {loss:.4f}" in repr(run) and len(repr(run)) < 200
    shown = run._repr_html_()
    assert shown.count("<polyline") == 2 and f"{loss:.4f}" in shown and "batch_size" not in shown
    evil = run.folder.rename(place / "runs" / "<script>")
    run.folder = evil
    assert "<script>" not in run._repr_html_() and "&lt;script&gt;" in run._repr_html_()


STOPPED = """\
import minigpt, sys
from minigpt.system.signals import Stopped
try:
    minigpt.train("small.yaml", "training.max_steps=100000", "training.eval_every=100000")
except Stopped as end:
    print("ended:", *end._render_traceback_())
sys.stdin.readline()
"""


@pytest.mark.slow
def test_the_stop_button_ends_a_training_and_not_the_kernel(place: Path) -> None:
    """It is a SIGINT. What was trained is there, and the process, which is not a command of ours, goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as kernel:
        metrics = Path("runs/small/metrics.jsonl")
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, kernel)
        os.kill(kernel.pid, signal.SIGINT)
        said, _ = kernel.communicate("\n", timeout=100)
    assert kernel.returncode == 0
    assert "ended: stopped by SIGINT; a checkpoint is written, and minigpt.resume() goes on from there" in said
    done = len(read_metrics(metrics))
    assert minigpt.resume("small", f"training.max_steps={done + 2}", "training.eval_every=2").step == done + 2


def test_a_mistake_is_one_line_in_a_notebook(place: Path) -> None:
    with pytest.raises(UserError) as wrong:
        minigpt.train("small.yaml", "model.n_layr=2")
    (line,) = wrong.value._render_traceback_()
    assert re.match("error: command line: model.n_layr=2: model.n_layr: unknown key; did you mean 'n_layer'", line)


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_has_bars_only_where_it_can_draw_them(monkeypatch: pytest.MonkeyPatch, widgets: bool) -> None:
    """Without ipywidgets there are lines, as in a log, and no warning."""
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", shell)  # type: ignore[arg-type]
    monkeypatch.setattr(waiting.importlib.util, "find_spec", lambda name: widgets or None)
    own = ModuleType("tqdm.notebook")
    own.tqdm = lambda **options: ("the notebook's", options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm.notebook", own)
    made = waiting.progress_bar(total=3)
    assert made == ("the notebook's", {"total": 3}) if widgets else made.disable
    assert waiting.shows_bars() == widgets
    assert waiting.progress_bar(False, total=3).disable
