"""Split patterns: how published vocabularies cut a text into words before they merge bytes.

An untrusted pattern could run without end, so only the patterns below are run. They come from the models' own
tokenizer.json files; llama.cpp names them in `tokenizer.ggml.pre` (src/llama-vocab.cpp).
"""

from __future__ import annotations

END = r"\s+(?!\S)|\s+"  # the spaces before a word, except the last one, which belongs to the word
LETTER, LOWER, UPPER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # English contractions

GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{END}"
LLAMA3 = rf"{SHORT}|{LETTER}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{END}"
QWEN2 = rf"{SHORT}|{LETTER}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{END}"
TEKKEN = rf"{LETTER}{UPPER}*{LOWER}+|{LETTER}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{END}"
GPT4O = (
    rf"{LETTER}{UPPER}*{LOWER}+{SHORT}?|{LETTER}{UPPER}+{LOWER}*{SHORT}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{END}"
)
CL100K = LLAMA3.replace(SHORT, r"'(?i:[sdmt]|ll|ve|re)")  # GPT-4's own: it splits into the same words
CHARACTERS = r"[\s\S]"  # each character by itself
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"  # noqa: RUF001  the commas and full stops of other scripts

# Digits one by one, and GPT-2's pattern for the text between them: so spaces before a digit end such a text, too.
SMOLLM = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

KNOWN = frozenset({GPT2, LLAMA3, QWEN2, TEKKEN, GPT4O, CL100K, SMOLLM, CHARACTERS, BLOOM})

NAMES = {
    GPT2: ("gpt-2", "phi-2", "mpt", "olmo"),
    SMOLLM: ("smollm", "starcoder", "refact", "command-r"),
    LLAMA3: ("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "falcon3"),
    QWEN2: ("qwen2", "deepseek-r1-qwen"),
    TEKKEN: ("tekken",),
    GPT4O: ("gpt-4o", "llama4"),
}
"""A pattern -> its names in `tokenizer.ggml.pre`; the first is the one that is written."""
OF_GGUF = {name: pattern for pattern, names in NAMES.items() for name in names}
"""`tokenizer.ggml.pre` -> its pattern."""
OF_TIKTOKEN = {
    "bpe": ("gpt-2", GPT2),
    "gpt2": ("gpt-2", GPT2),
    "cl100k_base": ("dbrx", CL100K),
    "o200k_base": ("gpt-4o", GPT4O),
}
"""A kind of tokenizer that tiktoken runs -> the name of its pattern in a GGUF file, and its pattern."""
