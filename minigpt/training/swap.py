"""Another attention in a trained model: a run's config with other `model` options, and the weights that fit it.

    python scripts/sample.py --run tiny model.attention=average_softmax

A weight with the same name and shape is kept. Any other weight starts as in a new model of that config with the run's
seed. Where there are more key and value heads than before, each old one is repeated. That changes no output: each query
head reads the same keys and values as before.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from minigpt.attention import MultiHead
from minigpt.config.options import Tell, overridden, read_tree, to_python
from minigpt.config.overrides import put
from minigpt.config.strict_yaml import Node, from_python
from minigpt.model import GPT
from minigpt.system.errors import Mistake, UserError
from minigpt.system.places import command
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import tensors_of

WITH_HEADS = re.compile(r"blocks\.(\d+)\.attention\.(key|value|key_norm)\.(weight|bias)")


# ---- the config ----


def swapped(config: RunConfig, overrides: Sequence[str], tell: Tell | None = None) -> RunConfig:
    """A run's config with other options of the model, such as `model.attention=average_softmax`.

    `tell` is given a sentence for each kind that is swapped: what it keeps of the run's. Raises ConfigError, and
    UserError for an override that is not of the model.
    """
    for argument in overrides:
        if not argument.startswith("model."):
            raise UserError(
                f"{argument}: only options of the model can be swapped in a run, as in model.attention=average_softmax;"
                f" a new run has its own text and training: {command('train')} --from-run"
            )
    return overridden(RunConfig, from_python(to_python(config), "the run's config"), overrides, [], tell)


def continued(
    config: RunConfig, file: str | Path | None, overrides: Sequence[str], tell: Tell | None = None
) -> RunConfig:
    """The config of a new run that starts with the weights of another, and has its tokenizer and its model.

    Text, training and sampling are those of `file` (a path, or a name in `configs/`), or, without it, of the other run.
    The model's options in `file` change those of the run, and `overrides` change all; `tell` is as in `swapped`.
    Raises ConfigError, and UserError for another tokenizer.
    """
    tree, mistakes = from_python(to_python(config), "the run's config"), list[Mistake]()
    if file is not None:
        of_file, tokenizer = read_tree(file, mistakes, tell), tree.value["data"].value["tokenizer"]
        model = of_file.value.pop("model", Node({}, of_file.where, {}))
        tree.value |= {name: Node({}, of_file.where, {}) for name in tree.value if name != "model"} | of_file.value
        tree.keys |= of_file.keys
        if isinstance(tree.value["data"].value, dict):
            tree.value["data"].value.setdefault("tokenizer", tokenizer)
        if isinstance(model.value, dict):
            for name, value in model.value.items():
                put(tree.value["model"], name, value, model.keys[name])
        else:
            tree.value["model"] = model
    changed = overridden(RunConfig, tree, overrides, mistakes, tell)
    if changed.data.tokenizer != config.data.tokenizer:
        kind = config.data.tokenizer.component.kind
        raise UserError(f"data.tokenizer: the weights belong to the tokenizer of their run, {kind}: leave it out")
    return changed


def tuned_name(folder: Path) -> str:
    """The default name of a run that starts with the weights of the run in `folder`."""
    return f"{folder.resolve().name}-tuned"


# ---- the weights ----


@dataclass(frozen=True)
class Moved:
    """Tensors by {name: how many numbers}: kept, repeated or fresh in the new model, and dropped from the run."""

    kept: Mapping[str, int]
    repeated: Mapping[str, int]
    fresh: Mapping[str, int]
    dropped: Mapping[str, int]

    def lines(self) -> list[str]:
        """A line for each of the four, with the names of the tensors."""
        return [f"{fate}: {_listed(sizes)}" for fate, sizes in vars(self).items() if sizes or fate != "repeated"]


@torch.no_grad()
def move(model: GPT, saved: Mapping[str, Tensor], former: GPT) -> Moved:
    """Copy those tensors of a run that fit into a model. `former` is the run's model; it may be on the meta device."""
    parts: dict[str, dict[str, int]] = {"kept": {}, "repeated": {}, "fresh": {}}
    plain, tensors = with_computed(saved, former), tensors_of(model)
    computed = {weight for name in tensors if name not in saved and (weight := weight_of(name)) != name}
    assigned = {weight for weight in computed if assign(model, weight, plain.get(weight))}
    for name, tensor in tensors.items():
        if name in plain and plain[name].shape == tensor.shape:
            fate, source = "kept", plain[name]
        elif weight_of(name) in assigned:
            fate, source = "kept", tensor
        elif (repeated := _repeated(name, plain, former, model)) is not None and repeated.shape == tensor.shape:
            fate, source = "repeated", repeated
        else:
            fate, source = "fresh", tensor
        if fate != "fresh":
            tensor.copy_(source)
        parts[fate][name] = tensor.numel()
    used = parts["kept"].keys() | parts["repeated"].keys() | assigned
    dropped = {n: tensor.numel() for n, tensor in saved.items() if n not in used and weight_of(n) not in used}
    return Moved(**parts, dropped=dropped)


def weight_of(name: str) -> str:
    """The name of the weight that a parametrisation computes from the tensor of this name; of any other, its own."""
    return re.sub(r"\.parametrizations\.(\w+)\..*", r".\1", name)


def with_computed(saved: Mapping[str, Tensor], former: GPT) -> dict[str, Tensor]:
    """The tensors of a run, and the weights that parametrisations of its model compute from them."""
    weights = {weight for name in saved if (weight := weight_of(name)) != name}
    tensors = dict(saved)
    for path, _, last in (weight.rpartition(".") for weight in sorted(weights)):
        layer = copy.deepcopy(former.get_submodule(path)).to_empty(device="cpu").eval()
        layer.load_state_dict({n[len(path) + 1 :]: t for n, t in saved.items() if n.startswith(f"{path}.")})
        tensors[f"{path}.{last}"] = getattr(layer, last)
    return tensors


def assign(model: GPT, name: str, weight: Tensor | None) -> bool:
    """Set a weight that a parametrisation computes to this one, and return whether that is possible."""
    path, _, last = name.rpartition(".")
    layer = model.get_submodule(path)
    if weight is None or not is_parametrized(layer, last) or getattr(layer, last).shape != weight.shape:
        return False
    try:
        setattr(layer, last, weight)
    except (RuntimeError, NotImplementedError, ValueError):  # it has no inverse, or not of this weight
        return False
    return True


def _repeated(name: str, saved: Mapping[str, Tensor], former: GPT, model: GPT) -> Tensor | None:
    """A tensor that follows exactly from the run's tensors: keys or values with each head repeated, or the head of the
    model, if it was tied to the token embeddings. None for any other tensor."""
    if name == "head.weight":
        return saved.get("tokens.weight")
    match = WITH_HEADS.fullmatch(name)
    if match is None or name not in saved:
        return None
    layer = int(match[1])
    old, new = former.attentions()[layer], model.attentions()[layer]
    if not (isinstance(old, MultiHead) and isinstance(new, MultiHead)) or old.n_head != new.n_head:
        return None
    G, more = old.n_kv_head, new.n_kv_head // old.n_kv_head
    if new.n_kv_head % G or len(saved[name]) % G:
        return None
    return saved[name].unflatten(0, (G, -1)).repeat_interleave(more, dim=0).flatten(0, 1)  # (G more d, ...)


def _listed(sizes: Mapping[str, int]) -> str:
    """The count of tensors and numbers, and the names, once for all blocks: `layers 1-4: attention.key.weight`."""
    if not sizes:
        return "nothing"
    layers: dict[str, list[int]] = {}
    for name in sizes:
        block = re.match(r"blocks\.(\d+)\.", name)
        layers.setdefault(name[block.end() :] if block else name, []).extend([int(block[1]) + 1] if block else [])
    names: dict[str, list[str]] = {}
    for name, numbers in layers.items():
        names.setdefault(f"{_spans(numbers)}: " if numbers else "", []).append(name)
    tensors = f"{len(sizes):,} tensor{'s' * (len(sizes) != 1)}, {sum(sizes.values()):,} numbers"
    return f"{tensors}: " + "; ".join(span + ", ".join(of_span) for span, of_span in names.items())


def _spans(layers: Iterable[int]) -> str:
    """Layers as text: [1, 2, 4, 5, 6] -> `layers 1-2, 4-6`."""
    numbers = sorted(layers)
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    spans = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"layer{'s' * (len(numbers) > 1)} {spans}"
