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

OF_GGUF = {
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "mpt": GPT2,
    "olmo": GPT2,
    "smollm": SMOLLM,
    "starcoder": SMOLLM,
    "refact": SMOLLM,
    "command-r": SMOLLM,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "dbrx": LLAMA3,
    "smaug-bpe": LLAMA3,
    "falcon3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": TEKKEN,
    "gpt-4o": GPT4O,
    "llama4": GPT4O,
}
"""`tokenizer.ggml.pre` -> its pattern."""
