"""A stranger's file, run as far as it is needed: definitions first, then the statements that make the names in use.

What follows the definitions (an optimizer, a training loop, plots, files that are read) does not run. Nothing is
compiled or moved to a device, drawing is left out, what cannot be imported is replaced by something that raises when it
is used, and new numbers are float64.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import linecache
import math
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt.checks.learners.sizes import CONSTANTS, SIZES, meaning, sizes
from minigpt.model.replaced import replaced
from minigpt.system.errors import UserError

DRAWING = ("matplotlib", "seaborn", "wandb", "tensorboard", "tensorboardX", "plotly", "IPython", "torchviz", "pylab")
FACTORIES = (torch.empty, torch.randn, torch.rand, torch.zeros, torch.ones, torch.full)
SMALL, LARGE, MOST = 400_000, 3_000_000, 60_000_000  # most numbers: of what is quick to read; of a table; of a module
SECONDS = 4.0  # of processor time, to make something
WIDE = 96  # a file whose width is larger is run with a smaller one first
DEVICE = re.compile(r"^(cuda|mps|xpu|npu)")
LOADS = re.compile(r"from_pretrained|\bload\w*\(|\bopen\(|download")
WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class TooLarge(Exception):
    """A module has more numbers than are quick to read."""


class Mild(TorchFunctionMode):
    """Computes on the CPU and in float64, and notes float32; raises TooLarge past `most` new numbers, or SECONDS."""

    def __init__(self, most: float = MOST) -> None:
        super().__init__()
        self.most, self.float32, self.until = most, False, time.process_time() + SECONDS

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.most == math.inf:
            return func(*args, **(kwargs or {}))  # another file's code
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if func is Tensor.float:
            func, self.float32 = Tensor.double, True
        result = func(*map(self.milder, args), **{name: self.milder(value) for name, value in (kwargs or {}).items()})
        self.most -= result.numel() if func in FACTORIES else 0
        if self.most < 0 or time.process_time() > self.until:
            raise TooLarge("it has too many numbers, or takes too long to make")
        return result

    def milder(self, value: Any) -> Any:
        """float64 for float32, the CPU for any device."""
        if value.__class__ is torch.dtype and value in WIDER:
            self.float32 = True
            return WIDER[value]
        name = value if value.__class__ is str else value.type if value.__class__ is torch.device else ""
        return "cpu" if DEVICE.match(name) else value


class Absent(types.ModuleType):
    """Stands for what could not be imported, and for everything in it; drawing does nothing, the rest raises."""

    def __init__(self, name: str, why: str, loading: list[bool]):
        super().__init__(name)
        self.__dict__.update(why=why, loading=loading)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}", self.why, self.loading)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]  # a decorator
        if self.why and not self.loading[0]:
            raise UserError(f"the file uses {self.__name__}, which could not be imported: {self.why}")
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (nn.Module,) if re.search("Mod(ule|el)$", self.__name__) else ()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    __getitem__ = __enter__ = __or__ = __ror__ = lambda self, *others: self
    __instancecheck__ = __exit__ = lambda self, *others: False


def unchanged(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A decorator that changes nothing, with arguments or without."""
    return unchanged if function is None or not callable(function) else function


@contextmanager
def harmless(most: float = MOST, folder: Path | None = None) -> Iterator[Mild]:
    """Float64 on the CPU, nothing compiled, no arguments of a command, and the files of a folder can be imported."""
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        for place, name, value in (
            (torch, "compile", unchanged), (torch.jit, "script", unchanged), (sys, "argv", sys.argv[:1]),
            (torch.cuda, "is_available", lambda: False), (sys, "path", [*([str(folder)] if folder else []), *sys.path]),
        ):  # fmt: skip
            stack.enter_context(replaced(place, name, value))
        yield stack.enter_context(Mild(most))


class Statement:
    """A statement at the top level: the names that it binds, that it reads, and of what it changes something."""

    def __init__(self, node: ast.stmt):
        self.node, self.ran, self.binds, self.changes = node, False, set[str](), set[str]()
        self.defines = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        self.imports = isinstance(node, (ast.Import, ast.ImportFrom))
        inner = list(ast.walk(node))
        self.reads = {one.id for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        calls = any(isinstance(one, ast.Call) for one in inner)
        self.simple = isinstance(node, (ast.Assign, ast.AnnAssign)) and not calls
        self.look(node)

    def look(self, node: ast.AST) -> None:
        """Fill `binds` and `changes`; the bodies of functions and classes bind nothing here."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            self.binds |= {node.name} if not isinstance(node, ast.Lambda) else set()
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.binds |= {(one.asname or one.name).split(".")[0] for one in node.names}
        if isinstance(getattr(node, "ctx", None), ast.Store):
            (self.binds if isinstance(node, ast.Name) else self.changes).add(base(node))
        if isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):  # W.normal_(), a.append(1)
            in_place = getattr(call.func, "attr", "").endswith("_")  # init.zeros_(W)
            self.changes |= {base(call.func), *(base(one) for one in call.args if in_place)}
        for inner in ast.iter_child_nodes(node):
            self.look(inner)


def base(node: ast.AST) -> str:
    """The name that an expression like a.b[0].c() begins with; "" if it does not begin with one."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


class File:
    """A file that is run once. `small`: widths that it sets itself are made small where they are large."""

    def __init__(self, path: Path, small: bool = False):
        self.path, self.small, self.float32, self.errors = path, small, False, dict[str, Exception]()
        self.text = path.read_text(encoding="utf-8-sig")
        self.tree = ast.parse(self.text, str(path))
        self.nodes = list(ast.walk(self.tree))
        mains = [node for node in self.tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
        self.statements = [Statement(node) for node in self.tree.body if node not in mains]
        self.module = self.new_module()
        self.names = vars(self.module)
        self.loading = [True]
        before = set(sys.modules)
        first = [one for one in self.statements if one.defines or one.imports or one.simple]
        self.run([*first, *self.makers({name for one in first if one.defines for name in one.reads})], LARGE)
        self.fill()
        self.loading[0] = False
        for name in set(sys.modules) - before:  # the file beside another may have the same name
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == self.path.resolve().parent:
                del sys.modules[name]

    @classmethod
    def of(cls, kind: type, path: Path) -> File:
        """What stands beside a class that is not in a file of its own, such as a notebook's: nothing is run again."""
        file = cls.__new__(cls)
        file.path, file.small, file.float32, file.errors = path, False, False, {}
        file.text, file.statements, file.loading = "".join(linecache.getlines(str(path))), [], [False]
        file.tree, file.nodes = ast.parse(""), []
        file.module = sys.modules.get(kind.__module__, types.ModuleType(kind.__module__))
        methods = [one for one in vars(kind).values() if isinstance(one, types.FunctionType)]
        file.names = methods[0].__globals__ if methods else vars(file.module)
        return file

    def new_module(self) -> types.ModuleType:
        """An empty module, in packages named after its folders, so that relative imports find files beside it."""
        parents = [self.path.resolve().parent, *self.path.resolve().parent.parents][:3][::-1]
        package = ""
        for number, folder in enumerate(parents):
            package += f"{'.' if package else ''}learner_{number}"
            sys.modules[package] = holder = types.ModuleType(package)
            holder.__path__ = [str(folder)]
        name = f"{package}.{self.path.stem}"
        module = types.ModuleType(name)
        module.__dict__.update(__file__=str(self.path), __package__=package)
        sys.modules[name] = module  # dataclasses look there
        return module

    def makers(self, needed: set[str]) -> list[Statement]:
        """The statements that make these names, and all that these need."""
        ids, needed, size = set[int](), set(needed), -1
        own = {"sys"} | {name for one in self.statements if not one.imports for name in one.binds}
        while size != len(ids):
            size = len(ids)
            for one in self.statements:
                looped = isinstance(one.node, (ast.For, ast.While, ast.With))
                if not one.imports and (one.binds & needed or (one.changes & own & needed and not looped)):
                    ids.add(id(one))
                    needed |= one.reads
        return [one for one in self.statements if id(one) in ids]

    def run(self, statements: list[Statement], most: int = MOST) -> None:
        """Run statements, each once, in their order; an error is kept by the names that are missing then."""
        wanted = {id(one) for one in statements}
        for one in self.statements:
            if id(one) in wanted and not one.ran:
                with harmless(math.inf if one.imports else most, self.path.resolve().parent) as mild:
                    try:
                        self.execute(one)
                        one.ran = True
                    except (Exception, SystemExit) as error:  # the learner's code: anything
                        last = error if isinstance(error, Exception) else UserError("the file ends Python")
                        self.errors |= dict.fromkeys(one.binds, last)
                self.float32 |= mild.float32

    def execute(self, one: Statement) -> None:
        """Run a statement. Imports that fail, or only draw, are replaced; a large size is made small."""
        node = one.node
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                self.load(node, alias)
            return
        self.exec(node)
        if self.small and one.simple and not one.reads:
            for name in one.binds:
                value, most = self.names.get(name), SIZES.get(meaning(name), 0)
                if type(value) is int and value > most > 0 and meaning(name) != "window":
                    self.names[name] = most

    def exec(self, node: ast.stmt) -> None:
        """Run a statement as it is."""
        later = re.search(r"(?m)^from __future__ import .*annotations", self.text)  # annotations are not evaluated
        flags = __future__.annotations.compiler_flag if later else 0
        exec(compile(ast.Module([node], []), str(self.path), "exec", flags, dont_inherit=True), self.names)

    def load(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
        """One import."""
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        name = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        bound = (alias.asname or alias.name).split(".")[0]
        why = ""
        if name.split(".")[0] not in DRAWING and name != "torch.utils.tensorboard":
            alone = copy.copy(node)
            alone.names = [alias]
            try:
                self.exec(alone)
                return
            except (Exception, SystemExit) as error:  # another file's code: anything
                why = f"{'.' * level}{name}: {str(error) or type(error).__name__}"
        if bound != "*":
            self.names[bound] = Absent(bound, why, self.loading)

    def fill(self) -> None:
        """Give a usual value to the names that functions read and nothing defines, such as vocab_size of lost data."""
        known = self.sizes()
        stored = {one.id for one in self.nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        stored |= {one.arg for one in self.nodes if isinstance(one, ast.arg)}
        for one in self.statements:
            for name in one.reads if one.defines else ():
                if name in self.names or hasattr(builtins, name) or (name in stored and name not in self.errors):
                    continue
                value = {**known, **CONSTANTS}.get(meaning(name))
                if value is not None and len(name) > 1:
                    self.names[name] = value

    def sizes(self) -> dict[str, int]:
        """The sizes that the file sets at its top level, and usual ones for the others."""
        own = {meaning(name): value for name, value in reversed(list(self.names.items()))
               if type(value) is int and value > 0 and len(name) > 1}  # fmt: skip
        fixed = {axis: own[axis] for axis in ("D", "H", "G", "T", "V", "L", "window") if axis in own}
        if "d" in own and "H" in own and "D" not in own:
            fixed["D"] = own["d"] * own["H"]
        return sizes(**fixed)

    def value(self, name: str, most: int = MOST) -> Any:
        """A name of the file; what makes it is run now. None where that fails."""
        self.run(self.makers({name}), most)
        return self.names.get(name)

    def assigned(self) -> list[str]:
        """The names that get the result of a call at the top level, in order; not of what is loaded from elsewhere."""
        calls = [one for one in self.statements if isinstance(one.node, (ast.Assign, ast.AnnAssign)) and not one.simple]
        return [name for one in calls if not LOADS.search(ast.unparse(one.node)) for name in one.binds]

    def own(self, kind: Callable[[Any], bool]) -> dict[str, Any]:
        """The functions or classes that the file itself defines, in order."""
        return {name: value for name, value in self.names.items()
                if kind(value) and getattr(value, "__module__", None) == self.module.__name__}  # fmt: skip


def is_wide(path: Path) -> bool:
    """Whether a file sets a large width at its top level."""
    listed = re.findall(r"(?m)^(\w+) *(?::[^=]*)?= *(\d+)", path.read_text(encoding="utf-8-sig"))
    return any(int(number) > WIDE and meaning(name) == "D" for name, number in listed)
