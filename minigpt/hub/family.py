"""A family of Hugging Face models: its config.json in minigpt's options, and minigpt's names of its tensors.

One table of names serves both directions; `external` is Hugging Face's side, `internal` minigpt's. To read a
folder, `read_config` gives the options of the model, and each `Rule` converts one external tensor to internal ones.
To write a folder, the same rules are applied backwards. `write` makes the config.json, which is then read again: an
option that does not come back has no counterpart in the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from torch import Tensor

from minigpt.config.options import from_dict
from minigpt.hub.keys import BEFORE_TEXT, NO_EFFECT, Keys, show, under_one_name
from minigpt.hub.layouts import IDENTITY, Layout, Tensors
from minigpt.hub.spelled import Spelled, differences, spell_out
from minigpt.model import ModelConfig
from minigpt.system.errors import ConfigError, UserError
from minigpt.training.checkpoint import tensors_of
from minigpt.training.memory import outline

QKV = "attention.query attention.key attention.value"  # of ours, which some models keep in one matrix


class NoCounterpart(UserError):
    """An option of a model that a family cannot express."""

    def __init__(self, option: str, why: str):
        self.option, self.why = option, why
        super().__init__(f"model.{option}: {why}")


@dataclass(frozen=True)
class Rule:
    """One external tensor, and the internal ones that are made from it."""

    external: str
    internal: tuple[str, ...]
    inward: Callable[[Tensors], Tensors]
    """[external] -> internal"""
    outward: Callable[[Tensors], Tensors]
    """internal -> [external]"""
    transposed: bool = False

    def shape(self, internal: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The external shape: the internal ones, concatenated along dimension 0, and transposed if `transposed`."""
        shape = (sum(shape[0] for shape in internal), *internal[0][1:])
        return shape[::-1] if self.transposed else shape


class Family:
    """One family. A subclass with a `model_type` is added to FAMILIES."""

    model_type: ClassVar[str] = ""
    architecture: ClassVar[str] = ""
    """The class of transformers that config.json names."""
    prefix: ClassVar[str] = "model."
    """The prefix of the names of all tensors except the head's. A folder of a model without its head lacks it."""
    head: ClassVar[str] = "lm_head"
    embeddings: ClassVar[str] = "model.embed_tokens"
    names: ClassVar[dict[str, str]] = {}
    """The modules outside the layers -> ours."""
    sizes: ClassVar[dict[str, str]] = {
        "num_hidden_layers": "n_layer", "hidden_size": "n_embd", "max_position_embeddings": "block_size"
    }  # fmt: skip
    """The keys of sizes -> our options."""
    layer: ClassVar[str] = "model.layers.{}"
    """A layer; {} is its number."""
    layer_names: ClassVar[dict[str, str]] = {}
    """The modules of a layer -> ours in a block; several of ours, with spaces between them, are one of theirs."""
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

    def read_sizes(self, keys: Keys) -> dict[str, Any]:
        """The options of `sizes`, and whether the head is tied to the embeddings."""
        return {ours: keys.integer(key) for key, ours in self.sizes.items()} | {
            "tied_head": keys.flag("tie_word_embeddings")
        }

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        """The layouts of modules in `names` and, for a layer with this attention, `layer_names`; of others: as ours."""
        return {}

    def read_config(self, config: Mapping[str, Any]) -> ModelConfig:
        """The model's options from a config.json. Raises UserError, which names the key that has no counterpart."""
        harmless = " ".join([*NO_EFFECT.values(), *self.no_effect.values()]).split()
        keys = Keys(
            under_one_name(config, self.other_names), self.model_type, defaults=self.defaults, no_effect=harmless
        )
        keys.must("model_type", self.model_type)
        keys.integer("vocab_size")
        keys.must(BEFORE_TEXT, "\n")
        values = self.read(keys)
        keys.finish()
        try:
            return from_dict(ModelConfig, values)
        except ConfigError as error:
            problems = "; ".join(f"{path.removeprefix('ModelConfig.')}: {why}" for path, why in error.mistakes)
            raise UserError(f"config.json: this model cannot be built here: {problems}") from None

    def nearest(self, model: ModelConfig, vocab_size: int) -> tuple[dict[str, Any], list[NoCounterpart]]:
        """The config.json that comes nearest to a model, and every option that this family cannot express.

        Raises NoCounterpart if the family has no config.json that comes near.
        """
        options = spell_out(model)
        config = {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": vocab_size,
            "tie_word_embeddings": model.tied_head,
            "torch_dtype": "float32",
        } | {key: options[ours] for key, ours in self.sizes.items()}
        try:
            config |= self.write(options)
        except KeyError as error:  # the model's norm or block, such as a plugin's, lacks this option
            raise NoCounterpart(error.args[0], f"{self.model_type} has this option, and this model has not") from None
        try:
            read_again = spell_out(self.read_config(config))
        except UserError as error:
            raise NoCounterpart("attention", f"{self.model_type} cannot have it: {error}") from None
        return config, [
            NoCounterpart(name, f"{show(value)} has no counterpart in {self.model_type} (there: {show(other)})")
            for name, value, other in differences(options, read_again)
        ]

    def rules(self, model: ModelConfig) -> list[Rule]:
        """The rules for all tensors of a model; each internal tensor is in exactly one rule."""
        parameters, spelled = set(tensors_of(outline(model, 1))), spell_out(model)

        def rules_of(names: Mapping[str, str], attention: Spelled, outer: str = "", inner: str = "") -> Iterator[Rule]:
            layouts = self.layouts(attention, spelled)
            for (module, ours), parameter in product(names.items(), ("weight", "bias")):
                internal = tuple(f"{inner}{name}.{parameter}" for name in ours.split())
                if internal[0] in parameters:
                    layout = layouts.get(module, IDENTITY)
                    external = f"{outer}{module}.{parameter}"
                    yield Rule(external, internal, layout.inward, layout.outward, layout.transposed)

        rules = [*rules_of(self.names, spelled["attention"][0])]
        for layer, attention in enumerate(spelled["attention"]):
            rules += rules_of(self.layer_names, attention, f"{self.layer.format(layer)}.", f"blocks.{layer}.")
        covered = [name for rule in rules for name in rule.internal]
        assert sorted(covered) == sorted(parameters), set(covered) ^ parameters
        return rules


FAMILIES: dict[str, Family] = {}


def to_internal(rules: list[Rule], read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The internal tensors by name, made from the external ones, which are read one at a time."""
    for rule in rules:
        tensors = rule.inward([read(rule.external)])
        for name, tensor in zip(rule.internal, tensors, strict=True):
            yield name, tensor.contiguous() if len(tensors) == 1 else tensor.clone()


def to_external(rules: list[Rule], internal: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The external tensors by name, made from the internal ones, one at a time."""
    for rule in rules:
        (tensor,) = rule.outward([internal[name] for name in rule.internal])
        yield rule.external, tensor.contiguous()
