"""Files as an attacker would make them: checkpoints with a valid manifest, tokenizers, configs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from minigpt.training import run as runs
from minigpt.training.checkpoint import FILES, FORMAT, save, tensors_of

Spoil = Callable[[Path], None]  # of a checkpoint's folder
Content = bytes | Callable[[], bytes]  # a large one is made when it is needed


class Canary:
    """A pickle of it, when loaded, makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.path}'",)


def pickles(canary: Path) -> Iterator[tuple[str, bytes]]:
    """The canary in every format in which torch and Python ever wrote one."""
    for protocol in (0, 2, 5):
        yield f"pickle protocol {protocol}", pickle.dumps(Canary(canary), protocol)
    for name, zipped in (("torch's zip", True), ("torch's old format", False)):
        buffer = io.BytesIO()
        torch.save({"weight": Canary(canary)}, buffer, _use_new_zipfile_serialization=zipped)
        yield name, buffer.getvalue()


def made(content: Content) -> bytes:
    """The bytes of a file."""
    return content() if callable(content) else content


def header(values: Any, data: bytes = b"", size: int | None = None) -> bytes:
    """A safetensors file."""
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    """A tensor as a header lists it."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def one(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    """A header of one tensor."""
    return {"weight": entry(shape, begin, end, dtype)}


EIGHT = bytes(8)
EMPTY = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'

TENSORS: dict[str, Content] = {
    "a header of 2^63 bytes": header({}, size=1 << 63),
    "a header of 2^64 - 1 bytes": header({}, size=(1 << 64) - 1),
    "a header of 100 MB": lambda: header(b"{" + b" " * 100_000_000 + b"}"),
    "a header of 80,000 empty tensors": lambda: header(
        b"{" + b",".join(b'"%d":' % n + EMPTY for n in range(80_000)) + b"}"
    ),
    "a header that is longer than the file": header({}, size=1000),
    "no header": b"",
    "half a header": b"\x08\0\0",
    "a header of 100,000 levels": header(b'{"a":' * 100_000),
    "a header with endless digits": header(b'{"a":' + b"9" * 1_000_000 + b"}"),
    "a header that is a list": header(b"[]"),
    "more numbers than bytes": header(one([3], 0, 8), EIGHT),
    "fewer numbers than bytes": header(one([1], 0, 8), EIGHT),
    "a negative shape": header(one([-2], 0, 8), EIGHT),
    "a shape that overflows": header(one([1 << 62, 1 << 62], 0, 8), EIGHT),
    "a shape that overflows to nothing": header(one([1 << 63, 0], 0, 0)),
    "offsets beyond the end": header(one([1 << 40], 0, 1 << 42), EIGHT),
    "offsets that overflow": header(one([2], 0, (1 << 64) - 1), EIGHT),
    "negative offsets": header(one([2], -8, 0), EIGHT),
    "offsets that run backwards": header(one([2], 8, 0), EIGHT),
    "offsets inside the header": header(one([2], -1, 7), EIGHT),
    "tensors that overlap": header({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    "two tensors in one place": header({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, EIGHT),
    "a gap between tensors": header({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)),
    "bytes that belong to nobody": header(one([2], 0, 8), bytes(80)),
    "an unknown type": header(one([2], 0, 8, "F99"), EIGHT),
    "a type that no model here has": header(one([8], 0, 8, "F8_E4M3"), EIGHT),
    "a type of half bytes": header(one([16], 0, 8, "F4"), EIGHT),
    "NaN": header(one([2], 0, 8), struct.pack("<2f", 1, float("nan"))),
    "infinity": header(one([2], 0, 8), struct.pack("<2f", 1, float("inf"))),
}

STATES: dict[str, Content] = {
    "100,000 levels": b'{"step": ' + b"[" * 100_000,
    "endless digits": b'{"step": ' + b"9" * 1_000_000 + b"}",
    "endless digits after a point": b'{"step": 10, "seconds": 0.' + b"1" * 1_000_000 + b"e400}",
    "NaN": b'{"step": 10, "seconds": NaN}',
    "infinity": b'{"step": 10, "seconds": -Infinity}',
    "a float that overflows": b'{"step": 10, "seconds": 1e999}',
    "a list": b"[10]",
    "no step": b"{}",
    "another step": b'{"step": 11}',
    "a step that is true": b'{"step": true}',
    "a step that is a fraction": b'{"step": 10.0}',
    "a step that is a path": b'{"step": "../../10"}',
    "not UTF-8": b'{"step": 10, "x": "\xff"}',
    "a pickle": pickle.dumps({"step": 10}),
    "17 MB": lambda: b'{"step": 10}' + b" " * (17 << 20),
}

FILE = {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
MANIFESTS: dict[str, Any] = {
    "a name with ..": dict.fromkeys((*FILES[:2], "../state.json"), FILE),
    "one more name with ..": dict.fromkeys((*FILES, "../../secret.txt"), FILE),
    "an absolute name": dict.fromkeys((*FILES[:2], "/etc/passwd"), FILE),
    "a name with a zero byte": dict.fromkeys((*FILES[:2], "state.json\0"), FILE),
    "names in a list": list(FILES),
    "sizes that are texts": {name: {"size": "0", "sha256": ""} for name in FILES},
    "files that are numbers": dict.fromkeys(FILES, 7),
    "no files": {},
}

TOKENIZERS: dict[str, Content] = {
    "a pickle": pickle.dumps({"kind": "byte"}),
    "100,000 levels": b'{"kind": "char", "alphabet": ' + b"[" * 100_000,
    "endless digits": b'{"kind": "char", "alphabet": ' + b"9" * 1_000_000 + b"}",
    "NaN for a kind": b'{"kind": NaN}',
    "infinity for an alphabet": b'{"kind": "char", "alphabet": Infinity}',
    "a path for a kind": b'{"kind": "../../plugins/evil"}',
    "an absolute path for a kind": b'{"kind": "/tmp/evil.py"}',
    "a module for a kind": b'{"kind": "os.system"}',
    "an attribute for a kind": b'{"kind": "__class__", "alphabet": "ab"}',
    "a file for an argument": b'{"kind": "char", "alphabet": "ab", "path": "../../secret.txt"}',
    "a plugin for an argument": b'{"kind": "byte", "plugin": "evil.py"}',
    "two million empty lists": lambda: b'{"kind": "bpe", "pieces": [' + b"[]," * 2_000_000 + b"[]]}",
    "33 MB": lambda: b'{"kind": "byte"}' + b" " * (33 << 20),
    "a list": b"[]",
    "not UTF-8": b'{"kind": "char", "alphabet": "\xff"}',
}

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)
CONFIGS: dict[str, str] = {
    "a tag that runs a command": "data: !!python/object/apply:os.system ['touch CANARY']",
    "a tag that builds an object": "data: !!python/object/new:subprocess.Popen {args: [['touch', 'CANARY']]}",
    "a tag that imports": "!!python/module:os",
    "a tag on a good value": "training: {max_steps: !!python/object:int 5}",
    "a tag that names a class": "model: !!python/name:os.system",
    "a tag on a key": "!!python/object/apply:os.system ['touch CANARY']: 1",
    "a tag by a directive": "%TAG ! tag:yaml.org,2002:python/\n---\ndata: !object/apply:os.system ['touch CANARY']",
    "aliases that explode": BOMB,
    "an alias to itself": "a: &a [*a]",
    "a merge of itself": "a: &a\n  <<: *a",
    "5,000 lists in lists": "a: " + "[" * 5000 + "]" * 5000,
    "5,000 groups in groups": "{a: " * 5000 + "1" + "}" * 5000,
    "5,000 lists in block style": "- " * 5000 + "a",
    "5,000 complex keys": "? " * 5000 + "a",
    "endless digits": "training: {max_steps: " + "9" * 200_000 + "}",
    "endless digits in quotes": "training: {max_steps: '" + "9" * 200_000 + "'}",
    "endless digits after a point": "training: {grad_clip: 0." + "9" * 200_000 + "}",
    "an exponent without end": "training: {grad_clip: 1e" + "9" * 50 + "}",
    "NaN": "training: {grad_clip: .nan}",
    "infinity": "training: {grad_clip: 1e999}",
    "20,000 keys": "".join(f"k{n}: 1\n" for n in range(20_000)),
    "20,000 kinds": "model: {attention: [" + "multi_head," * 20_000 + "]}",
    "a megabyte": "#" * (1 << 20),
    "a plugin": "plugin: evil.py",
    "a pickle": pickle.dumps(Canary(Path("CANARY")), 0).decode("ascii"),
}


def checkpoint(folder: Path) -> Path:
    """One good checkpoint, of step 10."""
    return save(folder, 10, tensors_of(torch.nn.Linear(2, 1, bias=False)), {}, {"seconds": 1.0})


def update_manifest(path: Path) -> None:
    """Make the manifest valid for the present files, as an attacker would."""
    said = {}
    for name in FILES:
        raw = (path / name).read_bytes()
        said[name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    run = json.loads((path / "manifest.json").read_text("utf-8"))["run"]
    manifest = {"format": FORMAT, "files": said, "run": run}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def update_run(folder: Path) -> None:
    """Make every manifest of a run right for the config and the tokenizer that lie there now."""
    for path in (folder / "checkpoints").iterdir():
        manifest = json.loads((path / "manifest.json").read_text("utf-8"))
        manifest["run"] = runs.seal(folder)
        (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
