"""torch.compile computes the same: a whole training, and each kind with its gradients, in its fast form.

The training runs the code that torch generates in C++. The rest is only captured for that, forward and backward, unless
all kinds are asked for (`captured`): a kernel takes the C++ compiler a second, and a model has twenty.

B batch, T positions.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from running import Ended, furnish, process, script

from minigpt.attention import Attention
from minigpt.config.options import from_dict
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig
from minigpt.training.loop import BatchLoss, TrainingConfig, accumulate, compiled
from minigpt.training.report import read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # of torch's compiler about torch
]
SAMPLE = ("multi_head", "sliding_window", "gated_delta_net")  # a kernel, blocks, chunks with a state


def test_compiled_training_learns_the_same(tmp_path: Path) -> None:
    """CUDA graphs too as far as that goes: without a GPU torch leaves them out. Compiled, rotary has another form."""
    furnish(tmp_path)
    for kind, run, options in [("multi_head", process, ["compile"]), ("linear", script, ["compile", "cuda_graphs"])]:
        plain = losses(script, f"{kind}-plain", tmp_path, f"model.attention={{kind: {kind}, n_head: 2}}")
        on = [f"training.{option}=true" for option in options]
        found = losses(run, f"{kind}-compiled", tmp_path, f"model.attention={{kind: {kind}, n_head: 2}}", *on)
        assert len(plain) >= 8 and plain[-1] < plain[0]
        assert found == pytest.approx(plain, rel=1e-4)


def losses(run: Callable[..., Ended], name: str, folder: Path, *options: str) -> list[float]:
    """The loss of each step of a training by command."""
    given = ["--config", "small.yaml", "--name", name, "model.position=rotary", "training.optimizer.learning_rate=0.01"]
    ended = run("train.py", *given, *options, cwd=folder)
    assert ended.code == 0, ended.err
    return [line["train/loss"] for line in read_metrics(folder / "runs" / name / "metrics.jsonl")]


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("kind", Attention.kinds)
def test_a_compiled_kind_has_the_same_loss_and_gradients(kind: str, whole: bool) -> None:
    if not whole and kind not in SAMPLE:
        pytest.skip("a sample of the kinds is compiled; all of them with --whole")
    options = Attention.kinds[kind].Config
    heads = {"n_head": 2} if hasattr(options, "n_head") else {}
    check_compiled(ModelConfig(n_layer=1, n_embd=32, block_size=80, attention=options(**heads)))


GEMMA = {"norm": "rmsnorm", "mlp": "geglu_tanh", "block": "sandwich", "embedding_scale": 4.0, "head_cap": 3.0}
GPT_J = {"mlp": "gelu_tanh", "block": "parallel_one_norm", "tied_head": False, "head_bias": True}


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("options", [GEMMA, GPT_J], ids=["like Gemma 2", "like GPT-J"])
def test_so_have_the_blocks_norms_and_mlps_of_published_models(options: dict[str, object]) -> None:
    check_compiled(from_dict(ModelConfig, {"n_layer": 2, "n_embd": 32, "block_size": 80} | options))


def check_compiled(shape: ModelConfig) -> None:
    """Equal loss and gradients of a model of this shape, compiled and as it is."""
    torch.compiler.reset()
    plain = make_fast(GPT(shape, vocab_size=20))
    model = copy.deepcopy(plain)
    x, y = torch.randint(20, (2, 2, 80))  # (B, T) each
    config = TrainingConfig(batch_size=2, compile=True, device="cpu", precision="float32")
    calls = (plain, None), (model, compiled(model, config))
    losses = [accumulate(called, x, y, config, BatchLoss(called, forward)).item() for called, forward in calls]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
