"""Installed, not cloned: what stands beside the package in a checkout is within it, and is found there.

The quick tests lay the checkout's files out as a wheel does. The slow ones build a wheel and an sdist, and install them
into bare environments that see the libraries of this one, but not its minigpt: nothing is downloaded.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from running import ROOT, SCRIPTS, environment, furnish

import minigpt
from minigpt.config.options import CONFIGS, load
from minigpt.learning.as_notebook import START
from minigpt.system import places, version
from minigpt.training.assemble import RunConfig

FEW = ("training.max_steps=2", "training.eval_every=2", "data.stories={count: 200, validation: 20}")
COMMANDS = {path.stem for path in SCRIPTS.glob("*.py")} - {"begin"}
INSTALLED = COMMANDS - {"benchmark", "docs"}  # these need a checkout


def ran(*words: object, cwd: Path, code: int = 0, **variables: str) -> str:
    """What a command prints on stdout, in the environment of a user who has no checkout; or on stderr, if it fails."""
    own = environment(**variables)
    for name in ("PYTHONPATH", "MINIGPT_DATA"):
        own.pop(name, None)
    ended = subprocess.run([*map(str, words)], cwd=cwd, env=own | variables, capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    return ended.stderr if code else ended.stdout


# ---- what `import minigpt` does ----


def test_importing_minigpt_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys, minigpt; minigpt.__version__; assert not {'torch', 'numpy', 'minigpt.model'} & set(sys.modules)"
    ran(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT))


def test_the_names_of_the_package_are_those_that_an_editor_knows() -> None:
    """And each is what stands where an editor looks for it; a part can be reached without its own import."""
    (block,) = (node for node in ast.parse(Path(minigpt.__file__).read_text("utf-8")).body if isinstance(node, ast.If))
    known = {alias.asname: (node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    assert known.keys() == set(minigpt.__all__) <= set(dir(minigpt))
    for name, (module, own_name) in known.items():
        assert name is not None and module is not None
        assert getattr(minigpt, name) is getattr(importlib.import_module(module), own_name)
    assert minigpt.attention.__name__ == "minigpt.attention"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = minigpt.nothing
    assert (Path(minigpt.__file__).parent / "py.typed").exists()


# ---- where things are, and what commands are called ----


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as a wheel lays it out."""
    site = tmp_path_factory.mktemp("site")
    (site / "minigpt").mkdir()
    for path in [*(ROOT / "minigpt").iterdir(), SCRIPTS, CONFIGS]:
        if path.name != "__pycache__":
            (site / "minigpt" / path.name).symlink_to(path)
    return site


def test_alone_it_lists_its_commands_with_a_sentence_each(site: Path, tmp_path: Path) -> None:
    listed = ran(sys.executable, "-m", "minigpt", cwd=tmp_path, PYTHONPATH=str(site))
    lines = dict(re.findall(r"^  (\w+) +(\S.*)$", listed, flags=re.M))
    assert lines.keys() == COMMANDS and lines["train"] == "Train a model."
    assert not [line for line in lines.values() if not line.endswith((".", "?", ".webp", ".svg"))]
    wrong = ran(sys.executable, "-m", "minigpt", "trian", cwd=tmp_path, code=2, PYTHONPATH=str(site))
    assert wrong.startswith("error: there is no command 'trian'; did you mean 'train'?") and wrong.count("\n") == 1


@pytest.mark.slow
def test_an_installed_command_trains_beside_the_user_and_keeps_its_cache_with_him(site: Path, tmp_path: Path) -> None:
    furnish(tmp_path)
    own = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "caches")}
    said = ran(sys.executable, "-m", "minigpt", "train", "--config", "small.yaml", cwd=tmp_path, **own)
    assert said.endswith("text: python -m minigpt sample --run runs/small\n")
    assert list((tmp_path / "caches" / "minigpt" / "cache").glob("*/ids.bin"))
    record = json.loads((tmp_path / "runs" / "small" / "environment.json").read_text("utf-8"))
    assert record["minigpt"] == minigpt.__version__ and record["commit"] is None
    (tmp_path / "text.txt").unlink()
    lost = ran(sys.executable, "-m", "minigpt", "train", "--config", "small.yaml", cwd=tmp_path, code=2, **own)
    assert f"(looked in {tmp_path})" in lost


CALLS = [
    (str(SCRIPTS / "train.py"), f"python {SCRIPTS}/sample.py", f"torchrun {SCRIPTS}/sample.py"),
    (str(ROOT / "minigpt" / "__main__.py"), "python -m minigpt sample", "torchrun -m minigpt sample"),
    ("/usr/local/bin/minigpt", "minigpt sample", "torchrun -m minigpt sample"),
    ("C:/venv/Scripts/minigpt.exe", "minigpt sample", "torchrun -m minigpt sample"),
    ("/lib/ipykernel_launcher.py", "python scripts/sample.py", "torchrun scripts/sample.py"),
]


@pytest.mark.parametrize(("typed", "alone", "by_torchrun"), CALLS)
def test_a_command_is_named_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, typed: str, alone: str, by_torchrun: str
) -> None:
    monkeypatch.setattr(sys, "argv", [typed])
    monkeypatch.setattr(places, "CALLED", places._called())
    assert (places.command("sample"), places.command("sample", "torchrun")) == (alone, by_torchrun)
    assert places.as_called("see `python scripts/sample.py --run x`") == f"see `{alone} --run x`"


def test_relative_is_the_folder_of_a_script_that_was_typed_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS.parent)
    monkeypatch.setattr(sys, "argv", ["scripts/train.py"])
    assert places._called() == f"python {Path('scripts') / '{}.py'}"


def strings(path: Path) -> Iterator[str]:
    """The strings of a program but for its docstrings, and for what `as_called` is given."""
    nodes = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "as_called"
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif not (called or text):
            nodes += ast.iter_child_nodes(node)


def test_no_message_names_a_file_that_only_a_checkout_has() -> None:
    paths = [*(ROOT / "minigpt").rglob("*.py"), *(SCRIPTS / f"{name}.py" for name in INSTALLED)]
    named = {(path.name, text) for path in paths if path.name != "places.py" for text in strings(path)
             if re.search(r"scripts/\w+\.py|pip install -e", text) and not text.startswith("<!--")}  # fmt: skip
    assert named == set()


def test_a_config_beside_the_user_comes_first_and_it_is_said_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = list[str]()
    assert load(RunConfig, "tiny.yaml", tell=said.append).model.n_layer == 4
    (tmp_path / "tiny.yaml").write_text("model: {n_layer: 3}", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("{}", encoding="utf-8")
    assert load(RunConfig, "tiny.yaml", tell=said.append).model.n_layer == 3
    load(RunConfig, "mine.yaml", tell=said.append)
    assert said == [
        f"config: {CONFIGS / 'tiny.yaml'}, which comes with minigpt",
        "config: tiny.yaml in this folder, and not the one of this name that comes with minigpt",
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no repository")
def test_the_commit_is_that_of_the_repository() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    assert (version.commit() or "").removesuffix("-dirty") == head


# ---- the README on an index ----


@pytest.fixture(scope="module")
def package() -> ModuleType:
    """`.ci/package.py`, which hatchling asks."""
    pytest.importorskip("hatchling", reason='hatchling is not installed: pip install -e ".[test]"')
    spec = importlib.util.spec_from_file_location("package", ROOT / ".ci" / "package.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADDRESSES = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")


@pytest.mark.parametrize("repository", ["https://example.org/us/ours", ""])
def test_every_link_of_the_readme_on_an_index_is_an_address(package: ModuleType, repository: str) -> None:
    """And nothing is left out where the address of the repository is known."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = package.for_an_index(readme, repository, "c0ffee-dirty")
    before, after = ([a or b for a, b in ADDRESSES.findall(text)] for text in (readme, shown))
    assert all(address.startswith("https://") for address in after)
    assert len(before) > 20 and (len(after) == len(before)) == bool(repository)
    if repository:
        files = [path.partition("#")[0] for address in after if address.startswith(repository)
                 for path in [re.sub(r"^.*/(?:blob|raw)/c0ffee/", "", address)]]  # fmt: skip
        assert len(files) > 15 and all((ROOT / path).exists() for path in files)
    assert "`minigpt/attention/ladder.py`" in shown and shown.count("```") == readme.count("```")


# ---- built, and installed into bare environments ----


@pytest.fixture(scope="module")
def built(package: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    out = tmp_path_factory.mktemp("built")
    ran(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", out, cwd=ROOT)
    return out


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to all that this environment has installed, but for minigpt."""
    return linked(tmp_path_factory.mktemp("libraries"), "minigpt")


def linked(folder: Path, left_out: str) -> Path:
    """The folder, with links to what this environment has installed, but for names with a word in them."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.search(rf"{left_out}|^pip|^__pycache__|\.pth$", path.name):
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def bare(tmp_path: Path, libraries: Path) -> Iterator[Path]:
    """The folder of the programs of a new environment with pip, which sees these libraries."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{libraries}\n", encoding="utf-8")
    yield tmp_path / "venv" / "bin"
    shutil.rmtree(tmp_path / "venv")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["minigpt-*.whl", "minigpt-*.tar.gz"])
def test_the_main_job_runs_from_what_is_installed(built: Path, bare: Path, tmp_path: Path, what: str) -> None:
    (file,) = built.glob(what)
    ran(bare / "python", "-m", "pip", "install", "--no-deps", "--no-build-isolation", file, cwd=tmp_path)
    (site,) = bare.parent.glob("lib/python*/site-packages")
    before = {path for path in site.rglob("*") if "__pycache__" not in path.parts}
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    listed = re.findall(r"^  (\w+) ", ran(bare / "minigpt", cwd=tmp_path), flags=re.M)
    assert set(listed) == INSTALLED
    said = ran(bare / "minigpt", "train", "--config", "tiny.yaml", *FEW, cwd=tmp_path, **own)
    assert said.startswith(f"config: {site / 'minigpt' / 'configs' / 'tiny.yaml'}, which comes with minigpt\n")
    assert said.endswith("text: minigpt sample --run runs/tiny\n")
    assert ran(bare / "minigpt", "sample", "--prompt", "Mia", cwd=tmp_path, **own).startswith("Mia")
    assert "minigpt/attention" in ran(bare / "python", "-m", "minigpt", "follow", cwd=tmp_path, **own)
    assert {path for path in site.rglob("*") if "__pycache__" not in path.parts} == before
    record = json.loads((tmp_path / "runs" / "tiny" / "environment.json").read_text("utf-8"))
    assert record["minigpt"] == minigpt.__version__ and record["commit"] == version.commit()


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no repository")
def test_an_sdist_is_the_repository_with_its_commit(built: Path) -> None:
    with tarfile.open(*built.glob("*.tar.gz")) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert names == {*tracked.splitlines(), "PKG-INFO", version.COMMIT.relative_to(ROOT).as_posix()}


@pytest.mark.slow
def test_commands_and_tests_run_from_an_sdist(built: Path, bare: Path, tmp_path: Path) -> None:
    with tarfile.open(*built.glob("*.tar.gz")) as file:
        file.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("minigpt-*/")
    own = {"PYTHONPATH": str(folder), "HOME": str(tmp_path)}
    said = ran(bare / "python", "scripts/train.py", "--config", "tiny.yaml", *FEW, cwd=folder, **own)
    assert said.endswith("text: python scripts/sample.py --run runs/tiny\n")
    words = (bare / "python", "-m", "pytest", "-q", "-n", "0", "tests/test_ladder.py", "tests/test_readme.py")
    assert re.search(r"\d+ passed", ran(*words, cwd=folder, **own))


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_goes_on_elsewhere(built: Path, bare: Path, tmp_path: Path) -> None:
    """In a new environment it installs minigpt, and no torch; in its folder, another process goes on."""
    cells = json.loads(START.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (beside,) = built.glob("*.whl")
    for machine, steps in (("one", 2), ("two", 4)):
        (tmp_path / machine).mkdir()
        shutil.copy(beside, tmp_path / machine)
        changed = {'FOLDER = "."': f"FOLDER = {str(tmp_path / 'drive')!r}", "STEPS = 320": f"STEPS = {steps}",
                   '"tiny.yaml", ': '"tiny.yaml", *FEW, '}  # fmt: skip
        program = f"FEW = {FEW[1:]!r}\n{code}"
        for old, new in changed.items():
            assert old in program
            program = program.replace(old, new)
        (tmp_path / machine / "start.py").write_text(program, encoding="utf-8")
        own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
        said = ran(bare / "python", "start.py", cwd=tmp_path / machine, **own)
        assert ("resumed after step 2" in said) == (machine == "two"), said
    (site,) = bare.parent.glob("lib/python*/site-packages")
    assert (site / "minigpt").is_dir() and not (site / "torch").exists()
    assert sorted(path.name for path in (tmp_path / "drive" / "runs").iterdir()) == ["bounded", "first"]


@pytest.mark.slow
def test_the_notebook_replaces_no_torch_that_is_too_old(built: Path, bare: Path, tmp_path: Path) -> None:
    (site,) = bare.parent.glob("lib/python*/site-packages")
    (tmp_path / "others").mkdir()
    (site / "libraries.pth").write_text(f"{linked(tmp_path / 'others', 'minigpt|torch')}\n", encoding="utf-8")
    for name, text in {"torch/__init__.py": "", "torch-1.0.dist-info/METADATA": "Name: torch\nVersion: 1.0\n"}.items():
        (site / name).parent.mkdir()
        (site / name).write_text(f"Metadata-Version: 2.1\n{text}" if text else "", encoding="utf-8")
    shutil.copy(*built.glob("*.whl"), tmp_path)
    setup = json.loads(START.read_text(encoding="utf-8"))["cells"][0]["source"]
    (tmp_path / "setup.py").write_text("".join(setup), encoding="utf-8")
    said = ran(bare / "python", "setup.py", cwd=tmp_path, code=1, PIP_NO_INDEX="1")
    assert "RuntimeError: pip cannot install minigpt" in said and "torch==1.0" in said
    assert (site / "torch-1.0.dist-info").exists() and not (site / "minigpt").exists()
