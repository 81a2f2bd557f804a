"""Runs of earlier versions, read as today's: a number in each of their files, and a step for each number since.

    config.yaml                                              format: 4
    tokenizer.json  state.json  manifest.json  result.json   "format": 4

The number is raised with every change of a key, of a default or of a meaning in any of these files. What has an earlier
one goes through the steps from there on when it is read: in memory, before any override; nothing is written. A step is
never edited once it was released: the next change is a new step. What a step cannot carry over is refused by its name:
the step leaves the key as it is, so that it is an unknown key, or raises UserError.

    1   a rotary position turns the features i and i + d/2 of a head; at first, `gelu` is its tanh approximation
    2   a rotary position turns the features 2 i and 2 i + 1
    3   a checkpoint has the SHA-256 sums of the run's own files
    4   the number is in every file, not only in the manifest of a checkpoint; norms and MLPs are kinds with options
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from minigpt.system.errors import UserError
from minigpt.system.version import __version__

FORMAT = 4
SEALED = 3  # the first format whose checkpoints have the sums of the run's own files
EVERYWHERE = 4  # the first format whose number is in every file
Values = dict[str, Any]
Tell = Callable[[str], object]  # is given a sentence on what an option of an earlier version is taken for
Step = TypeVar("Step")
Class = TypeVar("Class", bound=type)


class Later(UserError):
    """A file was written by a later version."""


# ---- the number ----


def stamped(values: Values) -> Values:
    """The values of a file with today's format in front, and the version that writes it, which a message may name."""
    return {"format": FORMAT, "minigpt": __version__} | values


def take_format(values: Values, unsaid: Any = FORMAT) -> int:
    """Take the format and the version out of the values of a file. `unsaid`: the format of a file without a number.

    Raises UserError, without the file's name, for what is no number of a format, and Later for that of a later version.
    """
    number, writer = values.pop("format", unsaid), str(values.pop("minigpt", ""))
    if type(number) is not int or number < 1:
        raise UserError(f"format {str(number)[:40]!r} is not the number of a format: damaged or edited")
    if number > FORMAT:
        writer = writer if re.fullmatch(r"[\w.+-]{1,40}", writer) else "of a later version"
        reader = f"this is minigpt {__version__}, which reads the formats 1 to {FORMAT}"
        raise Later(f"format {number}, written by minigpt {writer}; {reader}")
    return number


# ---- 1 -> 2 ----


def tanh_in_gelu(config: Values, tell: Tell) -> None:
    """`gelu` was its tanh approximation, and became the exact function before there was `training.cuda_graphs`.

    `model.embedding_norm` is older than that change: a config that has this key alone may mean either.
    """
    model = _group(config, "model")
    if model.get("mlp") == "gelu" and "cuda_graphs" not in _group(config, "training"):
        model["mlp"] = "gelu_tanh"
        if "embedding_norm" in model:
            when = "gelu became the exact function at about the time of this run, and was the tanh approximation before"
            tell(f"model.mlp: {when}: it is read as gelu_tanh, and with model.mlp=gelu as the exact one")


OF_HEADS = re.compile(r"blocks\.(\d+)\.attention\.(query|key)(\.weight|\.bias|_norm\.weight)(\|.*)?")
TURNED = ("single_head", "multi_head", "grouped_query")  # the kinds of that time with layers for queries and keys


def neighbours_turn(tensors: Values, config: Values) -> Values:
    """A rotary position turned the features i and i + d/2 of a head, and turns the neighbours 2 i and 2 i + 1.

    The rows of the layers that make these features, (H d, D), are put in the new order, and so is what the optimizer
    knows of them: all scores are the same.
    """
    kinds = _kinds(config)
    if _group(config, "model", "position").get("kind") != "rotary":
        return tensors
    for kind in (each["kind"] for each in kinds):
        if kind not in TURNED and not kind.startswith("average"):
            problem = "rotary positions turned other features in format 1, which none of its weights can make up for"
            raise UserError(f"model.attention: {kind}: {problem}")

    def reordered(name: str, tensor: Any) -> Any:
        match = OF_HEADS.fullmatch(name)
        if match is None or tensor.ndim == 0:  # the optimizer's count of steps
            return tensor
        kind = kinds[int(match[1]) % len(kinds)]
        half = (kind["head_dim"] or config["model"]["n_embd"] // kind.get("n_head", 1)) // 2
        if len(tensor) % (2 * half):  # not of this model, which is told later
            return tensor
        return tensor.reshape(-1, 2, half, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    return {name: reordered(name, tensor) for name, tensor in tensors.items()}


def losses_in_state(state: Values) -> None:
    """The training losses since the last evaluation were not kept: the next one shows the mean of those after it."""
    if "evaluations" in state:
        state.setdefault("losses", [])


# ---- 3 -> 4; these changes came one by one, so that a file of an earlier format has some of them, or none ----


def norms_and_mlps_are_kinds(config: Values, tell: Tell) -> None:
    """`norm: rmsnorm` and `norm_weights: false` became `norm: {kind: rmsnorm, weights: false}`; so did `mlp_width`."""
    model = _group(config, "model")
    for part, option in (("norm", "weights"), ("mlp", "width")):
        if f"{part}_{option}" in model:
            model[part] = {"kind": model.get(part), option: model.pop(f"{part}_{option}")}


GONE = {"per_head": False, "mlp_pieces": 1, "first_momentum": None, "head_learning_rate": None}  # without an effect


def options_of_training_are_gone(config: Values, tell: Tell) -> None:
    """Muon could step each head by itself, and matrices in pieces; `zero_start` said how weights begin."""
    _group(config, "model").pop("zero_start", None)
    optimizer = _group(config, "training", "optimizer")
    for option, without_effect in GONE.items():
        if (value := optimizer.pop(option, without_effect)) != without_effect:
            tell(f"training.optimizer.{option}: {value} is no option any more: training goes on without it")


def waves_fade_otherwise(config: Values, tell: Tell) -> None:
    """The waves of a long convolution faded at rates 0.2 % below today's, until before there was `training.loggers`."""
    long = [kind for kind in _kinds(config) if kind["kind"] == "long_convolution"]
    if long and "loggers" not in _group(config, "training"):
        change = "long_convolution's waves changed their rates by 0.2 % at about the time of this run"
        tell(f"model.attention: {change}: it is read with those of today")


def no_step_was_skipped(state: Values) -> None:
    """There was no float16, in which a step is skipped where its gradients overflow."""
    if "evaluations" in state:
        state.setdefault("skipped", 0)


# ---- plug-ins: they stay as they were written, and a run keeps a copy ----


def takes_names(**today: str) -> Callable[[Class], Class]:
    """Let a class that plug-ins build take arguments by earlier names too, each with that of today."""

    def change(kind: Class) -> Class:
        build: Callable[..., None] = kind.__init__  # type: ignore[misc]

        @wraps(build)
        def build_by_any_name(self: object, *args: Any, **kwargs: Any) -> None:
            build(self, *args, **{today.get(name, name): value for name, value in kwargs.items()})

        kind.__init__ = build_by_any_name  # type: ignore[misc]
        return kind

    return change


# ---- the chain ----

OF_CONFIGS: Mapping[int, Sequence[Callable[[Values, Tell], None]]] = {
    1: [tanh_in_gelu],
    3: [norms_and_mlps_are_kinds, options_of_training_are_gone, waves_fade_otherwise],
}
OF_STATES: Mapping[int, Sequence[Callable[[Values], None]]] = {1: [losses_in_state], 3: [no_step_was_skipped]}
OF_TENSORS: Mapping[int, Sequence[Callable[[Values, Values], Values]]] = {1: [neighbours_turn]}


def upgrade_config(config: Values, number: int, tell: Tell) -> None:
    """Change the values of a config of format `number` to today's. Raises UserError."""
    for step in _since(number, OF_CONFIGS):
        step(config, tell)


def upgrade_state(state: Values, number: int) -> None:
    """Change the values of a state.json of format `number` to today's."""
    for step in _since(number, OF_STATES):
        step(state)


def upgrade_tensors(tensors: Values, number: int, config: Values) -> Values:
    """Weights and an optimizer's state of format `number` in today's form, as is the `config`. Raises UserError."""
    for step in _since(number, OF_TENSORS):
        tensors = step(tensors, config)
    return tensors


def changes_tensors(number: int) -> bool:
    """Whether the tensors of format `number` are not those of today."""
    return any(True for _ in _since(number, OF_TENSORS))


def _since(number: int, steps: Mapping[int, Sequence[Step]]) -> Iterator[Step]:
    return (step for n in range(number, FORMAT) for step in steps.get(n, ()))


def _group(values: Values, *path: str) -> Values:
    """A group of options; empty where a file that was edited has none."""
    for name in path:
        values = values.get(name) or {}
        if not isinstance(values, dict):
            return {}
    return values


def _kinds(config: Values) -> list[Values]:
    """The kinds of attention with their options, as they are repeated over the layers."""
    attention = _group(config, "model").get("attention")
    kinds = attention if isinstance(attention, list) else [attention]
    return [kind for kind in kinds if isinstance(kind, dict) and isinstance(kind.get("kind"), str)]
