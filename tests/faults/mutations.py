"""One random change to a folder: what an untrusted run or comparison could contain. Used by `fuzz.py`.

It changes a value in a file of JSON, YAML or safetensors, the bytes of a file, or the type of a file. Then it makes the
checksums of a checkpoint or a result valid again, as an attacker would.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

LIKELY = ("config.yaml", "tokenizer.json", "state.json", "metrics.jsonl", "speeds.json", *["result.json"] * 4)
LARGE = 1 << 28  # bytes: neither changed nor given new checksums
HOLE = "@@HOLE@@"  # where an invalid value goes into a text
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r<script>alert(1)</script>\nerror: forged"
ODD = (  # JSON, or nearly
    *("null", "true", "-1", "0", "1", "2", "7", "0.5", "20000", "2147483648", "1000000000", "100000000000"),
    *("9223372036854775808", "18446744073709551616", "1" + "0" * 400, "9" * 5000, "-9223372036854775809"),
    *("1e308", "-1e308", "1e999", "NaN", "-Infinity", "1e-320", ".inf", "1_000", "0x10", "!!python/name:os.system"),
    *('""', '"x"', '"5"', '"\\u0000"', '"\\ud800"', '"\\u202e\\u0085"', '"auto"', '"int8"', '"cuda"', '"bpe"'),
    *('"../../outside/secret.txt"', '"/proc/kmsg"', '"/dev/zero"', '"/**"', '"stories"', '"muon"', '"single_head"'),
    *("[]", "{}", "[[[[1]]]]", "[1, 2]", '{"kind": "x"}', "[" * 100_000, "[" * 500 + "]" * 500, "{" * 3000, "*a"),
    *(json.dumps(HOSTILE), json.dumps("x" * 200_000), json.dumps([0] * 50_000), json.dumps("\n" * 5000)),
)
NAMES = (
    "evil.py",
    "x\x1b[2Jy",
    "a\nb",
    "-rf",
    "step-000009",
    "step-999999999999",
    ".writing-000009-1",
    "n" * 200,
    "\udcff",
)


def spoil(folder: Path, outside: Path, draw: random.Random) -> str:
    """Change a run's or a comparison's folder once or twice; returns what was changed, for a person to read."""
    done = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        files = sorted(path for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
        files = [path for path in files if path.stat().st_size < LARGE]
        if not files:
            break
        likely = [path for name in LIKELY for path in files if path.name == name]
        path = draw.choice(likely or files) if draw.random() < 0.6 else draw.choice(files)
        act = draw.choices((a_value, some_bytes, another_kind, an_extra), (60, 22, 13, 5))[0]
        with suppress(ValueError, OSError, yaml.YAMLError, KeyError, TypeError, RecursionError):
            done.append(f"{str(path.relative_to(folder))!a}: {act(path, outside, draw)}")
    if draw.random() < 0.85:
        update_checksums(folder)
    return "; ".join(done)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in a tree, as a container and the key or number in it."""
    keys = list(tree) if isinstance(tree, dict) else list(range(min(len(tree), 50))) if isinstance(tree, list) else []
    return [place for key in keys for place in [(tree, key), *places(tree[key])]]


def change(tree: Any, draw: random.Random) -> tuple[str, str]:
    """Change one place of a tree; returns the tree as a text, and what was done."""
    found = places(tree)
    if not found:
        return draw.choice(ODD), "all of it"
    owner, key = draw.choice(found)
    what, value = draw.random(), draw.choice(ODD)
    if what < 0.7:
        owner[key] = HOLE
        return json.dumps(tree).replace(f'"{HOLE}"', value), f"{key!r:.40} = {value[:60]!r}"
    if what < 0.8:
        del owner[key]
        return json.dumps(tree), f"{key!r:.40} is left out"
    if what < 0.9 and isinstance(owner, dict):
        new = draw.choice(("x", HOSTILE, "", "__class__", "../../outside/x", "k" * 5000))
        owner[new] = owner.pop(key)
        return json.dumps(tree), f"{key!r:.40} is named {new[:20]!r}"
    if isinstance(owner, dict):
        owner[HOLE] = 1
        return json.dumps(tree).replace(f'"{HOLE}": 1', f'"{key}": {value}'), f"{key!r:.40} twice, {value[:60]!r}"
    owner.append(owner[key])
    return json.dumps(tree), f"{key!r:.40} once more"


def a_value(path: Path, outside: Path, draw: random.Random) -> str:
    """Change a value, or a key, of a file that has such."""
    raw = path.read_bytes()
    if path.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", raw[:8])
        text, done = change(json.loads(raw[8 : 8 + size]), draw)
        path.write_bytes(struct.pack("<Q", len(text.encode())) + text.encode() + raw[8 + size :])
        return done
    if path.suffix == ".jsonl":
        lines = raw.decode().splitlines()
        number = draw.randrange(len(lines))
        lines[number], done = change(json.loads(lines[number]), draw)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
        return f"line {number + 1}: {done}"
    tree = yaml.safe_load(raw) if path.suffix == ".yaml" else json.loads(raw)
    if path.name == "result.json" and draw.random() < 0.8:
        text, done = change(json.loads(tree["result"]), draw)
        tree = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "result": text}
        path.write_text(json.dumps(tree), encoding="utf-8")
        return f"checksums updated, {done}"
    text, done = change(tree, draw)
    path.write_text(text, encoding="utf-8")
    return done


def some_bytes(path: Path, outside: Path, draw: random.Random) -> str:
    """Change the bytes of a file, whatever they mean."""
    raw = bytearray(path.read_bytes())
    what = draw.choice(("cut", "flip", "flip", "empty", "zeros", "brackets", "huge", "more", "insert", "long"))
    at = draw.randrange(len(raw) + 1)
    if what == "huge":
        with path.open("r+b") as file:
            file.truncate(5 << 30)
        return "5 GiB, sparse"
    if what == "flip" and raw:
        raw[at - 1] ^= 1 << draw.randrange(8)
    pieces = {"zeros": bytes(1000), "brackets": b"[" * 100_000, "insert": draw.randbytes(3), "more": bytes(raw)}
    new = {"cut": bytes(raw[:at]), "empty": b"", "flip": bytes(raw), "long": b"- " * 100_000}.get(what)
    path.write_bytes(bytes(raw[:at]) + pieces[what] + bytes(raw[at:]) if new is None else new)
    return f"{what} at {at}"


def another_kind(path: Path, outside: Path, draw: random.Random) -> str:
    """Put a link, a pipe, a folder or nothing where a file was, or a link where its folder was."""
    what = draw.choice(("gone", "pipe", "folder", "secret", "new", "zero", "itself", "link to the folder"))
    if what == "link to the folder":
        if path.parent.parent.name not in ("checkpoints", "cmp", "small"):
            raise ValueError("not the folder itself")
        shutil.move(path.parent, outside / "moved")
        path.parent.symlink_to(outside / "moved")
        return what
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        (path / "in it").mkdir(parents=True)
    elif what != "gone":
        to = {"secret": outside / "secret.txt", "new": outside / "new", "zero": Path("/dev/zero"), "itself": path}
        path.symlink_to(to[what])
    return what


def an_extra(path: Path, outside: Path, draw: random.Random) -> str:
    """Put something beside a file."""
    name, what = draw.choice(NAMES), draw.choice(("file", "pipe", "link", "folder"))
    beside = path.with_name(name)
    if what == "file":
        beside.write_text("open('CANARY', 'w')\n", encoding="utf-8")
    elif what == "pipe":
        os.mkfifo(beside)
    elif what == "link":
        beside.symlink_to(outside)
    else:
        beside.mkdir()
        shutil.copy(path, beside)
    return f"beside it {name!r:.30}, a {what}"


def update_checksums(folder: Path) -> None:
    """Make the sums in all manifests right, where that can be done."""
    for path in filter(Path.is_file, list(folder.rglob("manifest.json"))):  # not a pipe, which a mutation may have made
        with suppress(Exception):
            manifest = json.loads(path.read_text("utf-8"))
            for name, said in manifest["files"].items():
                said |= {"size": (path.parent / name).lstat().st_size, "sha256": _sum(path.parent / name)}
            for name in manifest.get("run", ()):
                manifest["run"][name] = _sum(path.parents[2] / name)
            path.write_text(json.dumps(manifest), encoding="utf-8")


def _sum(path: Path) -> str:
    """The SHA-256 of a plain file; raises OSError for what should not be read."""
    there = path.lstat()
    if not stat.S_ISREG(there.st_mode) or there.st_size >= LARGE:
        raise OSError(f"{path}: not read")
    return hashlib.sha256(path.read_bytes()).hexdigest()
