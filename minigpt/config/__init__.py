"""Configs: strict YAML, read into frozen dataclasses in which every option has a default and a sentence."""

from minigpt.config.options import (
    Component,
    Count,
    Fraction,
    Interval,
    Natural,
    NonNegative,
    Options,
    Positive,
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
    "Interval",
    "Natural",
    "NonNegative",
    "Options",
    "Positive",
    "Rate",
    "Seed",
    "Size",
    "from_dict",
    "load",
    "to_python",
    "to_yaml",
]
