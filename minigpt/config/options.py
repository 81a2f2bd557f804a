"""Configuration: strict YAML -> frozen dataclasses.

The schema of a config is a dataclass (`Options`), declared beside the code that uses it. This file converts the tree
from `strict_yaml` to such a dataclass. `kind:` chooses one of several variants (`Component`), and `group.key=value` on
the command line overrides the file. All mistakes of a file are reported at once, each with file:line:column.
"""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from minigpt.config.overrides import Empty, as_mapping, is_exact, kind_of, layers, options_of, override
from minigpt.config.strict_yaml import Node, from_python, parse_yaml, plain, read_text, scalar
from minigpt.config.upgrade import FORMAT, stamped, take_format, upgrade_config
from minigpt.system.errors import ConfigError, Mistake, UserError, meant
from minigpt.system.places import CONFIGS


@dataclass(frozen=True)
class Range:
    """The allowed range of a number: `Annotated[int, Range(1)]` is a whole number of at least 1."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, number: float) -> bool:
        above = number > self.low if self.open_low else number >= self.low
        below = number < self.high if self.open_high else number <= self.high
        return above and below

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f"{'above' if self.open_low else 'of at least'} {_digits(self.low)}"
        high = "" if self.high == math.inf else f"{'below' if self.open_high else 'at most'} {_digits(self.high)}"
        return " and ".join(part for part in (low, high) if part)


def _digits(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


# Every whole number has an upper limit: a config may be untrusted, and torch counts with 64 bits.
MOST = 10**9
Count = Annotated[int, Range(1, MOST)]  # 1, 2, 3, ...
Natural = Annotated[int, Range(0, MOST)]  # 0, 1, 2, ...
Size = Annotated[int, Range(1, 2**20)]  # a width, a number of heads
Seed = Annotated[int, Range(0, 2**63 - 1)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Rate = Annotated[float, Range(0, 1, open_high=True)]  # a fraction below 1, such as the dropout rate


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of every group of options: a frozen, keyword-only dataclass that checks its values.

    Types and ranges are read from the annotations; a subclass extends `mistakes` to check several fields together.
    The constructor raises ConfigError, so that a notebook gets the same messages as a YAML file.
    """

    without: ClassVar[tuple[str, ...]] = ()
    """Options of the parent class that have no effect here. They are unknown keys, and keep their defaults."""
    renamed: ClassVar[dict[str, str]] = {}
    """{name in an earlier version: name now}. An old name is an unknown key, and the message gives the new name."""
    meaning: ClassVar[dict[str, str]] = {}
    """{option: what it means here} where other kinds mean something else by the name. A swap does not keep it there."""

    def __post_init__(self) -> None:
        mistakes = [*_without_effect(self), *_field_mistakes(type(self), vars(self))] or list(self.mistakes())
        if mistakes:
            raise ConfigError([(f"{type(self).__qualname__}.{field}", problem) for field, problem in mistakes])

    def mistakes(self) -> Iterator[Mistake]:
        """Checks of several fields together: yields (field, what is wrong). Called only if every field is valid."""
        yield from ()


class Component:
    """A class that a config chooses by `kind:`; its options are the dataclass `Config` nested in it.

    A direct subclass starts a family (`class Attention(nn.Module, Component)`); a subclass with a kind is registered
    in it (`class MultiHead(Attention, kind="multi_head")`). A field annotated with the family's `Config` accepts the
    options of every registered class, those of a plugin too. `config.component` is the class that options belong to.
    """

    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Any]]]

    @dataclass(frozen=True, kw_only=True)
    class Config(Options):
        """No options."""

        component: ClassVar[type[Any]]

    def __init_subclass__(cls, kind: str = "", **keywords: Any):
        super().__init_subclass__(**keywords)
        if Component in cls.__bases__:
            cls.kinds = {}
        if "Config" not in vars(cls):  # each class has its own Config, because `component` points back to the class
            names = {"__doc__": cls.Config.__doc__, "__module__": cls.__module__}
            cls.Config = dataclass(frozen=True, kw_only=True)(type("Config", (cls.Config,), names))  # type: ignore[misc]
        if not (issubclass(cls.Config, Component.Config) and "__dataclass_fields__" in vars(cls.Config)):
            parent = cls.__mro__[1].__name__
            raise TypeError(f"{cls.__name__}.Config must be a @dataclass(frozen=True, kw_only=True) on {parent}.Config")
        cls.Config.__qualname__ = f"{cls.__qualname__}.Config"
        cls.Config.component = cls
        cls.kind = kind
        if kind:
            registered = cls.kinds.get(kind)
            if registered and (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
                raise UserError(
                    f"the kind {kind!r} of {cls.__module__} is taken by {registered.__module__}: choose another name"
                )
            cls.kinds[kind] = cls


READ: dict[type[Options], Mapping[str, Any]] = {}  # results of `hints`: reading annotations takes a millisecond


def hints(schema: type[Options]) -> Mapping[str, Any]:
    """The annotation of every option of a dataclass, without class variables."""
    if schema not in READ:
        types = get_type_hints(schema, include_extras=True)
        READ[schema] = {field.name: types[field.name] for field in fields(schema) if field.name not in schema.without}
    return READ[schema]


def _defaults(schema: type[Options]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(schema)}


def _is_options(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other annotation is its only member."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a Python value is valid for an annotation."""
    if get_origin(hint) is Annotated:
        base, *limits = get_args(hint)
        return _fits(base, value) and all(value in limit for limit in limits)
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and len(value) > 0 and all(_fits(get_args(hint)[0], item) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if len(_members(hint)) > 1:
        return any(_fits(member, value) for member in _members(hint))
    return isinstance(value, hint)


def type_in_words(hint: Any) -> str:
    """An annotation in words: 'a whole number of at least 1'."""
    if get_origin(hint) is Annotated:
        base, *limits = get_args(hint)
        return " ".join([type_in_words(base), *map(str, limits)])
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each {type_in_words(get_args(hint)[0])}"
    if len(_members(hint)) > 1:
        return ", or ".join(map(type_in_words, _members(hint)))
    if _is_options(hint):
        kinds = ", ".join(hint.component.kinds) or "those of a plug-in" if hasattr(hint, "component") else ""
        return f"one of {kinds}" if kinds else "a group of options"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return words[hint]


def _show(value: Any) -> str:
    text = {"True": "true", "False": "false", "None": "null"}.get(repr(value), repr(value))
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


def _without_effect(options: Options) -> Iterator[Mistake]:
    """The mistakes for options in `without` that were given a value."""
    for field in fields(options):
        if field.name in options.without and getattr(options, field.name) != field.default:
            yield field.name, "this kind has no such option"


def _field_mistakes(schema: type[Options], values: dict[str, Any]) -> Iterator[Mistake]:
    for name, hint in hints(schema).items():
        if name in values and not _fits(hint, values[name]):
            yield name, f"expected {type_in_words(hint)}, found {_show(values[name])}"


Schema = TypeVar("Schema", bound=Options)
INVALID = object()  # `_convert` returns it for a value whose mistake it has reported
Tell = Callable[[str], object]  # is given a sentence for each kind that was swapped


@dataclass
class Notes:
    """What the conversion of a tree finds besides the values."""

    mistakes: list[Mistake]
    swaps: list[tuple[str, str, str, str]]  # (place, kind, verb, option) for each option of a kind that was replaced
    lists: list[tuple[str, Node]]  # (place, list) where an option takes one value


def build(schema: type[Schema], node: Node, mistakes: Sequence[Mistake] = (), tell: Tell | None = None) -> Schema:
    """Convert a tree to a dataclass. `tell` is given a sentence for each place where an override has swapped a kind.

    Raises ConfigError with these mistakes and all in the tree.
    """
    notes = Notes([*mistakes], [], [])
    config = _convert(schema, node, "", notes)
    if notes.mistakes:
        raise ConfigError(list(dict.fromkeys(notes.mistakes)))
    if tell is not None:
        for place in dict.fromkeys(place for place, *_ in notes.swaps):
            tell(_sentence(place, [rest for where, *rest in notes.swaps if where == place]))
    assert isinstance(config, schema)
    return config


def lists_of_values(schema: type[Options], node: Node) -> list[tuple[str, Node]]:
    """Each list in a tree where an option takes one value, but is no kind: (its dotted path, the list)."""
    notes = Notes([], [], [])
    _convert(schema, node, "", notes)
    return notes.lists


def _convert(hint: Any, node: Node, path: str, notes: Notes, default: Any = None) -> Any:
    members = [get_args(member)[0] if get_origin(member) is Annotated else member for member in _members(hint)]
    if isinstance(node.value, Empty):
        return None if type(None) in members else ""
    groups = [member for member in members if _is_options(member)]
    lists = [get_args(member)[0] for member in members if get_origin(member) is tuple]
    if groups and lists and isinstance(node.value, (list, dict, str)):
        return _convert_layers(lists[0], node, path, notes, default)
    if isinstance(node.value, list) and lists:
        items = [_convert(lists[0], item, f"{path}[{i}]", notes) for i, item in enumerate(node.value)]
        return INVALID if any(item is INVALID for item in items) else tuple(items)
    if groups and hasattr(groups[0], "component") and isinstance(node.value, (dict, str)):
        kinds = {name: kind for group in groups for name, kind in group.component.kinds.items()}
        if str in members and isinstance(node.value, str) and node.value not in kinds:
            return node.value  # a text that is not the name of a kind
        return _convert_kind(kinds, as_mapping(node), path, notes, default)
    if groups and isinstance(node.value, dict):
        return _convert_group(groups[0], node, path, notes)
    if isinstance(node.value, (list, dict)) or (groups and not (node.value is None and path)):
        notes.lists += [(path, node)] if isinstance(node.value, list) and not groups else []
        value = "a list" if isinstance(node.value, list) else _show(node.value)
        value = "a group of options" if isinstance(node.value, dict) else value
        first = next(iter(fields(groups[0])), None) if groups and path else None
        example = f", as in {path}={{{first.name}: {_show(first.default)}}}" if first else ""
        expected = f"{type_in_words(hint)}{example}"
        notes.mistakes.append((node.where, f"{path or 'a config'}: expected {expected}, found {value}"))
        return INVALID
    return float(node.value) if type(node.value) is int and float in members and int not in members else node.value


def _convert_layers(hint: Any, node: Node, path: str, notes: Notes, default: Any) -> Any:
    """A kind for all layers, or a list of kinds that is repeated over them: as long as it was written, or longer where
    the layers keep options that differ."""
    written = len(node.value) if isinstance(node.value, list) else 1
    paths = [f"{path}[{i}]" for i in range(written)] if isinstance(node.value, list) else [path]
    kinds = layers(node)
    items = [_convert(hint, kind, paths[i % written], notes, default) for i, kind in enumerate(kinds)]
    if any(item is INVALID for item in items):
        return INVALID
    allowed = {name: None for item in items for name in hints(type(item))}
    optional = {name: child for kind in kinds for name, child in kind.value.items() if child.optional}
    for name in optional.keys() - allowed.keys():
        notes.mistakes.append((optional[name].where, f"{path}.{name}: unknown key{suggest(name, allowed)}"))
    period = next((n for n in range(written, len(items), written or 1) if items == items[:n] * (len(items) // n)), None)
    items = items[:period]
    return tuple(items) if isinstance(node.value, list) or len(items) > 1 else items[0]


def _convert_kind(kinds: dict[str, Any], node: Node, path: str, notes: Notes, default: Any) -> Any:
    """The options of a component. `kind` chooses the class; without it, the class of the default is taken."""
    usual = Node(getattr(getattr(default, "component", None), "kind", None), node.where, {})
    kind = kind_of(node) or usual
    if kind.value is None:
        notes.mistakes.append((kind.where, f"{path}: kind is missing: expected one of {', '.join(kinds)}"))
    elif not isinstance(kind.value, str):
        notes.mistakes.append((kind.where, f"{path}: a kind is one word: expected one of {', '.join(kinds)}"))
    elif kind.value not in kinds:
        notes.mistakes.append((kind.where, f"{path}: unknown kind {_show(kind.value)}{suggest(kind.value, kinds)}"))
    else:
        with_former = _keep(kinds, kind.value, usual.value, node, path, notes)
        return _convert_group(kinds[kind.value].Config, with_former, path, notes)
    return INVALID


def _convert_group(schema: type[Options], node: Node, path: str, notes: Notes) -> Any:
    before, dot = len(notes.mistakes), f"{path}." if path else ""
    types, values = hints(schema), {}
    defaults = _defaults(schema)
    for name, child in node.value.items():
        if name in types:
            value = _convert(types[name], child, f"{dot}{name}", notes, defaults[name])
            if value is not INVALID:
                values[name] = value
        elif not child.optional and not (name == "kind" and hasattr(schema, "component")):
            new_name = schema.renamed.get(name)
            problem = f"it is called {dot}{new_name} now" if new_name else f"unknown key{suggest(name, types)}"
            notes.mistakes.append((node.keys[name], f"{dot}{name}: {problem}"))
    for name, problem in _field_mistakes(schema, values):
        notes.mistakes.append((node.value[name].where, f"{dot}{name}: {problem}"))
    if len(notes.mistakes) > before:
        return INVALID
    try:
        return schema(**values)
    except ConfigError as error:
        for field_path, problem in error.mistakes:
            name = field_path.removeprefix(f"{schema.__qualname__}.")
            notes.mistakes.append((locate(node, name), f"{dot}{name}: {problem}"))
        return INVALID


def _keep(kinds: dict[str, Any], kind: str, usual: str, node: Node, path: str, notes: Notes) -> Node:
    """A kind with those options of the kind that it replaces that have the same name and meaning in both; an exact one,
    {kind: NAME}, as it is. `usual` is the kind of a former node that names none.

    An option that the former kind does not have is taken from other layers. What differs from the defaults is told.
    """

    def schema_of(name: Node | None) -> type[Options]:
        return getattr(kinds.get(name.value if name else usual), "Config", Component.Config)

    schema, exact, same = kinds[kind].Config, is_exact(node), dict[str, Node]()
    former_names = {*options_of(node.former), *hints(schema_of(kind_of(node.former)))}
    beside = [pair for other in node.others for pair in options_of(other).items() if pair[0] in hints(schema)]
    options = options_of(node.former) | {name: value for name, value in beside[::-1] if name not in former_names}
    for name, (value, named) in options.items():
        if name in node.value:
            continue
        former = schema_of(named)
        if name not in hints(schema) or not _accepts(schema, former, name, value):
            verb = "" if exact or not _changes(former, name, value) else "has no"
        elif former.meaning.get(name) != schema.meaning.get(name):
            verb = "" if exact or not _changes(former, name, value) else "means something else by"
        else:
            same[name] = value
            verb = "" if not _changes(schema, name, value) else "leaves out" if exact else "keeps"
        if verb:
            subject = f"{{kind: {kind}}}" if exact else kind
            notes.swaps.append((re.sub(r"\[\d+\]", "", path), subject, verb, f"{name}: {_text(value)}"))
    if exact:
        return node
    return replace(node, value=same | node.value, keys={name: value.where for name, value in same.items()} | node.keys)


def _sentence(place: str, swaps: Sequence[Sequence[str]]) -> str:
    """What the kinds at one place do with the options of those that they replace."""
    kinds = dict[str, dict[str, list[str]]]()  # {kind: {verb: [option]}}
    for kind, verb, option in dict.fromkeys(map(tuple, swaps)):
        kinds.setdefault(kind, {}).setdefault(verb, []).append(option)
    clauses = [
        f"{kind} {', '.join(' '.join([verb, ', '.join(options)]) for verb, options in verbs.items())}"
        for kind, verbs in kinds.items()
    ]
    verbs = {verb for verbs in kinds.values() for verb in verbs}
    clauses += ["written as {kind: NAME}, a kind has its own defaults"] * ("keeps" in verbs)
    clauses += ["written as a bare name, a kind keeps them"] * ("leaves out" in verbs)
    return f"{place}: {'; '.join(clauses)}"


def _read(schema: type[Options], name: str, value: Node) -> Any:
    """The value of one option; INVALID if it has a mistake, or is unknown."""
    scratch = Notes([], [], [])
    if name not in hints(schema):
        return INVALID
    read = _convert(hints(schema)[name], value, name, scratch, _defaults(schema)[name])
    return INVALID if scratch.mistakes or read is INVALID or [*_field_mistakes(schema, {name: read})] else read


def _accepts(schema: type[Options], former: type[Options], name: str, value: Node) -> bool:
    """Whether the value of an option of the former schema is one of the new schema. Mistakes of a file are kept."""
    return hints(schema)[name] == hints(former).get(name) or _read(schema, name, value) is not INVALID


def _changes(schema: type[Options], name: str, value: Node) -> bool:
    """Whether a value is not the default of an option."""
    read = _read(schema, name, value)
    return read is INVALID or read != _defaults(schema)[name]


def _text(value: Node) -> str:
    """A value as text; of a group of options, the kind."""
    if isinstance(value.value, dict):
        return _text(kind_of(value) or Node("...", value.where, {}))
    if isinstance(value.value, list):
        return f"[{', '.join(map(_text, value.value))}]"
    return value.value if isinstance(value.value, str) else _show(value.value)


def suggest(word: Any, words: Iterable[str]) -> str:
    """The end of a message: the most similar known word, if there is one, and all known words."""
    return f"{meant(str(word), words)} (known: {', '.join(words) or 'none'})"


def locate(node: Node, path: str) -> str:
    """The place (file:line:column) of a dotted path, or of the nearest enclosing group that the file contains."""
    for name in path.split("."):
        if not isinstance(node.value, dict) or name not in node.value:
            break
        node = node.value[name]
    return node.where


def find(name: str | Path) -> Path:
    """The path of a config: a file beside the user comes first, then one in `configs/`, which comes with minigpt."""
    path = Path(name)
    return path if path.exists() or path.is_absolute() or not (CONFIGS / path).exists() else CONFIGS / path


def load(
    schema: type[Schema], source: str | Path | Schema, overrides: Sequence[str] = (), tell: Tell | None = None
) -> Schema:
    """Read a YAML file, apply `group.key=value` overrides, and convert it to a dataclass; or apply them to options.

    `tell` is as for `build` and `read_tree`.

    Raises ConfigError.
    """
    mistakes: list[Mistake] = []
    if isinstance(source, Options):
        tree = from_python(to_python(source), schema.__name__)
    else:
        tree = read_tree(source, mistakes, tell)
    return overridden(schema, tree, overrides, mistakes, tell)


def overridden(
    schema: type[Schema], tree: Node, overrides: Sequence[str], mistakes: list[Mistake], tell: Tell | None
) -> Schema:
    """`build` for a tree with overrides. Raises ConfigError with these mistakes, the overrides' and the tree's."""
    for argument in overrides:
        try:
            override(tree, argument, mistakes)
        except ConfigError as error:
            mistakes += error.mistakes
    return build(schema, tree, mistakes, tell)


def read_tree(name: str | Path, mistakes: list[Mistake], tell: Tell | None = None, unsaid: int = FORMAT) -> Node:
    """The groups of a YAML file, a path or a name in `configs/`, in today's form. Adds to `mistakes`.

    `tell` is given a sentence that says which file it is, where the name is that of one in `configs/`, and what
    `upgrade_config` tells. `unsaid`: the format of a file without a number. Raises ConfigError.
    """
    path = find(name)
    if not path.exists():
        shipped = [file.relative_to(CONFIGS).as_posix() for file in sorted(CONFIGS.rglob("*.yaml"))]
        raise ConfigError([(str(name), f"no such file{suggest(name, shipped)}")])
    if tell is not None and path.absolute().is_relative_to(CONFIGS):
        tell(f"config: {path}, which comes with minigpt")
    elif tell is not None and (CONFIGS / path).exists() and not path.is_absolute():
        tell(f"config: {path} in this folder, and not the one of this name that comes with minigpt")
    tree = parse_yaml(read_text(path), str(path), mistakes)
    if tree.value is None:
        raise ConfigError([(str(path), "the file is empty or has only comments; write {} for all defaults")])
    if not isinstance(tree.value, dict):
        raise ConfigError([(tree.where, "a config is a group of options, `key: value`")])
    return in_todays_form(tree, str(path), tell, unsaid)


def in_todays_form(tree: Node, name: str, tell: Tell | None = None, unsaid: int = FORMAT) -> Node:
    """The tree of a config of any format, as `read_tree` returns it. Raises ConfigError."""
    stamp = {key: plain(tree.value.pop(key)) for key in ("format", "minigpt") if key in tree.value}
    try:
        number = take_format(stamp, unsaid)
    except UserError as error:
        raise ConfigError([(name, str(error))]) from None
    if number == FORMAT:
        return tree
    config = plain(tree)
    upgrade_config(config, number, tell or (lambda sentence: None))
    return from_python(config, name)


def from_dict(schema: type[Schema], values: dict[str, Any]) -> Schema:
    """Convert plain Python values to a dataclass, as `load` does a file: `from_dict(ModelConfig, {"n_layer": 2})`."""
    return build(schema, from_python(values, schema.__name__))


def to_python(value: Any) -> Any:
    """Options as plain dicts and lists, `kind` first."""
    if isinstance(value, Options):
        kind = {"kind": value.component.kind} if isinstance(value, Component.Config) else {}
        names = [field.name for field in fields(value) if field.name not in value.without]
        return kind | {name: to_python(getattr(value, name)) for name in names}
    return [to_python(item) for item in value] if isinstance(value, tuple) else value


class _Dumper(yaml.SafeDumper):
    """Writes quotes around text that would be read back as something else, such as a number."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = scalar(text) == text and text.isprintable()  # an unquoted line end would be read back as a space
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def to_yaml(config: Options) -> str:
    """YAML with the format in front and every option, defaults too; `load` reads an equal config from it, later too."""
    return yaml.dump(stamped(to_python(config)), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
