"""A family of Hugging Face models: its config.json in minigpt's options, and minigpt's names of its tensors.

One table of names serves both directions; `theirs` is Hugging Face's side, `ours` is minigpt's. To read a folder,
`read_config` gives the options of the model, and each `Rule` converts one tensor of theirs to one or several of ours.
To write a folder, the same rules are applied backwards. `write` makes the config.json, which is then read again: an
option that does not come back has no counterpart in the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from minigpt.config.options import from_dict
from minigpt.hub.keys import BEFORE_TEXT, NO_EFFECT, Keys, show, under_one_name
from minigpt.hub.layouts import SAME, Layout, Tensors
from minigpt.hub.spelled import Spelled, differences, spell_out
from minigpt.model import ModelConfig
from minigpt.runs.checkpoint import tensors_of
from minigpt.system.errors import ConfigError, UserError
from minigpt.training.memory import outline


class NoCounterpart(UserError):
    """An option of a model that a family cannot express."""

    def __init__(self, option: str, why: str):
        self.option, self.why = option, why
        super().__init__(f"model.{option}: {why}")


@dataclass(frozen=True)
class Rule:
    """One tensor of theirs, and the tensors of ours that are made from it."""

    theirs: str
    ours: tuple[str, ...]
    inward: Callable[[Tensors], Tensors]
    """[theirs] -> ours"""
    outward: Callable[[Tensors], Tensors]
    """ours -> [theirs]"""
    transposed: bool = False

    def shape(self, ours: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The shape of their tensor: ours, concatenated along dimension 0, and transposed if `transposed`."""
        found = (sum(shape[0] for shape in ours), *ours[0][1:])
        return found[::-1] if self.transposed else found


@dataclass(frozen=True)
class Row:
    """A row of a family's table: a module of theirs, the modules of ours, and the layout that converts their tensors.

    In the names of modules within a layer, `{}` stands for the layer's number.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: Layout = SAME

    def rules(self, there: set[str], layer: int = 0) -> Iterator[Rule]:
        """The rules for the parameters of this module; `there` has the names of all parameters of our model."""
        for parameter in ("weight", "bias"):
            ours = tuple(f"{name.format(layer)}.{parameter}" for name in self.ours)
            if ours[0] in there:
                theirs, layout = f"{self.theirs.format(layer)}.{parameter}", self.layout
                yield Rule(theirs, ours, layout.inward, layout.outward, layout.transposed)


def row(theirs: str, *ours: str, layout: Layout = SAME) -> Row:
    """A `Row`, with the modules of ours as separate arguments."""
    return Row(theirs, ours, layout)


class Family:
    """One family. A subclass with a `model_type` is added to FAMILIES."""

    model_type: ClassVar[str] = ""
    architecture: ClassVar[str] = ""
    """The class of transformers that config.json names."""
    prefix: ClassVar[str] = "model."
    """The prefix of the names of all tensors except the head's. A folder of a model without its head lacks it."""
    head: ClassVar[str] = "lm_head"
    embeddings: ClassVar[str] = "model.embed_tokens"
    renamed: ClassVar[dict[str, str]] = {}
    """Other names that some files have for modules -> the names in the rules."""
    buffers: ClassVar[str] = r".*\.rotary_emb\.inv_freq"
    """A regular expression for tensors that hold no weights and are not read: the config determines them."""
    defaults: ClassVar[dict[str, Any]] = {}
    """The values that transformers gives to missing keys; null without one here."""
    other_names: ClassVar[dict[str, str]] = {}
    """Other names of keys -> the names that `read` asks for."""
    no_effect: ClassVar[dict[str, str]] = {}
    """Why keys change no logit -> the keys, beside those of all families (`NO_EFFECT` in `keys.py`)."""

    def __init_subclass__(cls) -> None:
        if cls.model_type:
            FAMILIES[cls.model_type] = cls()

    def read(self, keys: Keys) -> dict[str, Any]:
        """The options of `ModelConfig` from the keys of a config.json. Raises UserError for what has no counterpart."""
        raise TypeError(f"{type(self).__name__} must define read(keys)")

    def write(self, model: Spelled) -> dict[str, Any]:
        """The keys of the config.json that comes nearest to a model. `nearest` reads it again and compares."""
        raise TypeError(f"{type(self).__name__} must define write(model)")

    def model_rows(self) -> list[Row]:
        """The rows for the modules outside the layers."""
        raise TypeError(f"{type(self).__name__} must define model_rows()")

    def layer_rows(self, attention: Spelled, model: Spelled) -> list[Row]:
        """The rows for the modules of a layer with this attention."""
        raise TypeError(f"{type(self).__name__} must define layer_rows(attention, model)")

    def read_config(self, theirs: Mapping[str, Any]) -> ModelConfig:
        """The model's options from a config.json. Raises UserError, which names the key that has no counterpart."""
        harmless = " ".join([*NO_EFFECT.values(), *self.no_effect.values()]).split()
        named = under_one_name(theirs, self.other_names)
        keys = Keys(named, self.model_type, defaults=self.defaults, no_effect=harmless)
        keys.must("model_type", self.model_type)
        keys.whole("vocab_size")
        keys.must(BEFORE_TEXT, "\n")
        values = self.read(keys)
        keys.finish()
        try:
            return from_dict(ModelConfig, values)
        except ConfigError as error:
            what = "; ".join(f"{where.removeprefix('ModelConfig.')}: {why}" for where, why in error.mistakes)
            raise UserError(f"config.json: this model cannot be built here: {what}") from None

    def write_config(self, model: ModelConfig, vocab_size: int) -> dict[str, Any]:
        """The config.json of a model. Raises NoCounterpart, which names the option that this family cannot express."""
        theirs, missing = self.nearest(model, vocab_size)
        for lack in missing:
            raise lack
        return theirs

    def nearest(self, model: ModelConfig, vocab_size: int) -> tuple[dict[str, Any], list[NoCounterpart]]:
        """The config.json that comes nearest to a model, and every option that this family cannot express.

        Raises NoCounterpart if the family has no config.json that comes near.
        """
        ours = spell_out(model)
        theirs = {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": vocab_size,
            "tie_word_embeddings": model.tied_head,
            "torch_dtype": "float32",
        }
        try:
            theirs |= self.write(ours)
        except KeyError as error:  # the model's norm or block, such as a plugin's, lacks this option
            raise NoCounterpart(error.args[0], f"{self.model_type} has this option, and this model has not") from None
        try:
            back = spell_out(self.read_config(theirs))
        except UserError as error:
            raise NoCounterpart("attention", f"{self.model_type} cannot have it: {error}") from None
        what = f"has no counterpart in {self.model_type}"
        odd = differences(ours, back)
        return theirs, [NoCounterpart(at, f"{show(mine)} {what} (there: {show(other)})") for at, mine, other in odd]

    def rules(self, model: ModelConfig) -> list[Rule]:
        """The rules for all tensors of a model; each tensor of ours is in exactly one rule."""
        there, spelled = set(tensors_of(outline(model, 1))), spell_out(model)
        found = [rule for row in self.model_rows() for rule in row.rules(there)]
        for layer, attention in enumerate(spelled["attention"]):
            rows = self.layer_rows(attention, spelled)
            found += [rule for row in rows for rule in row.rules(there, layer)]
        covered = [name for rule in found for name in rule.ours]
        assert sorted(covered) == sorted(there), set(covered) ^ there
        return found


FAMILIES: dict[str, Family] = {}


def to_ours(rules: list[Rule], read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our tensors by name, made from theirs, which are read one at a time."""
    for rule in rules:
        tensors = rule.inward([read(rule.theirs)])
        for name, tensor in zip(rule.ours, tensors, strict=True):
            yield name, tensor.contiguous() if len(tensors) == 1 else tensor.clone()


def to_theirs(rules: list[Rule], ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors by name, made from ours, one at a time."""
    for rule in rules:
        (tensor,) = rule.outward([ours[name] for name in rule.ours])
        yield rule.theirs, tensor.contiguous()
