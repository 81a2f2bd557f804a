"""Configs: strict YAML, read into frozen dataclasses in which every option has a default and a sentence.

In: a file, and `group.key=value` from the command line. Out: frozen options, or every mistake with its file, line and
column. Imports: system.
"""

from minigpt.config.options import (
    Component,
    Count,
    Fraction,
    Natural,
    NonNegative,
    Options,
    Positive,
    Range,
    Rate,
    Seed,
    Size,
    from_dict,
    load,
    to_python,
    to_yaml,
)

__all__ = [
    "Component",
    "Count",
    "Fraction",
    "Natural",
    "NonNegative",
    "Options",
    "Positive",
    "Range",
    "Rate",
    "Seed",
    "Size",
    "from_dict",
    "load",
    "to_python",
    "to_yaml",
]
