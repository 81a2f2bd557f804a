"""Settings for all tests: one thread, one seed, and the same hypothesis examples in every run."""

import functools
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from browser import chromium, visit  # noqa: F401  (fixtures of every test)

pytest.register_assert_rewrite(
    "laws", "small_configs", "running", "benchmarking"
)  # so that a failing law shows its numbers
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; the commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
SHARED = Path(__file__).parents[2] / "shared" / "tiktoken_cache"
if SHARED.is_dir():  # published encodings, where somebody has put them beside the checkout
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(SHARED))
hypothesis.settings.register_profile("course", deadline=None, derandomize=True)
hypothesis.settings.load_profile("course")


LONGEST = [  # files that take the longest, quick and slow tests together
    "planning", "bank", "docs", "systems", "lessons", "benchmark", "distributed", "whole", "examples", "contract",
    "installed", "threads", "mutants", "compiled", "hub", "stories", "hf_tokenizer", "live", "written_options",
    "tasks", "objective", "sharding", "best", "own_training", "laws_kinds", "experiment", "playground_page",
    "checks", "interruptions", "id_shards", "class", "export_gguf", "check", "reading_laws", "edges", "mistakes",
    "hub_folder", "export_tokenizers", "export_models", "power", "chat", "swaps", "laws_models", "gguf", "scaling",
    "explorer", "kill", "hub_download", "every_kind", "devices",
]  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest -m slow --whole`: the slow tests that sample their cases take all of them."""
    parser.addoption("--whole", action="store_true", help="slow tests: every case, not a sample of them")
    parser.addoption("--part", default="1/1", help="slow tests: of their files every N-th from the K-th: K/N")


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One process more than there are cores: many a test waits for a signal, a browser or another process."""
    return (yield) + 1


def pytest_configure(config: pytest.Config) -> None:
    """The process that only hands out the tests to others does not import torch."""
    if config.getoption("dist", "no") == "no":
        gc.disable()  # until all tests are collected: next to nothing of them is garbage
        import torch
        from fork_server import seed_quickly

        torch.set_num_threads(1)  # the models here are tiny: threads would cost more than they bring
        if not torch.cuda.is_available():
            seed_quickly()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first: a process that has a file of its own begins none that the others would wait for.

    Of the cases of a test that are marked `sample(n)`, every n-th, unless `--whole` is given. Of those marked `quick`,
    every n-th, or those of the given ids; the others are slow.
    """
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    cases = Counter[str]()
    for item in items:
        if mark := item.get_closest_marker("quick"):
            name, _, case = item.nodeid.removesuffix("]").partition("[")
            if cases[name] % mark.args[0] if isinstance(mark.args[0], int) else case not in mark.args:
                item.add_marker("slow")
            cases[name] += 1
    first, parts = map(int, config.getoption("--part").split("/"))
    files = list(dict.fromkeys(item.path for item in items if item.get_closest_marker("slow")))
    others = {*files} - {*files[first - 1 :: parts]}
    left = {item for item in items if item.path in others and item.get_closest_marker("slow")}
    if not config.getoption("--whole"):
        seen = Counter[str]()
        for item in items:
            left_to_slow = item.get_closest_marker("slow") or not item.get_closest_marker("quick")
            if left_to_slow and (mark := item.get_closest_marker("sample")):
                name = item.nodeid.partition("[")[0]
                if seen[name] % mark.args[0]:
                    left.add(item)
                seen[name] += 1
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays to the end: the garbage collector need not look through it again."""
    gc.freeze()
    gc.set_threshold(20_000)  # of thousands of small models, most are gone before anyone looks for garbage
    gc.enable()


@pytest.fixture(scope="session")
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether every case was asked for."""
    return bool(request.config.getoption("--whole"))


@pytest.fixture
def captured(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile runs what it captured of the model, forward and backward; with `--whole` it generates C++ of it."""
    import torch

    if not whole:
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager_decomp_partition"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, alone or among others."""
    import torch

    torch.manual_seed(1337)


@pytest.fixture(autouse=True, scope="module")
def kinds_as_before() -> Iterator[None]:
    """A kind that a chapter's plugins register is gone when the next chapter begins, whichever that is."""
    from minigpt.config.options import Component
    from minigpt.system.plugin import PLUGINS

    families = {family: dict(family.kinds) for family in Component.__subclasses__()}
    plugins = dict(PLUGINS)
    yield
    for family, kinds in families.items():
        family.kinds.clear()
        family.kinds.update(kinds)
    for module in PLUGINS.keys() - plugins.keys():
        sys.modules.pop(module, None)
        del PLUGINS[module]
    gc.collect()
    gc.freeze()  # what a chapter leaves is kept by modules and caches: no garbage either
