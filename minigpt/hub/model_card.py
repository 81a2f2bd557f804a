"""README.md of an exported folder: what the model is, how it was trained, how it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from minigpt.config.options import to_python
from minigpt.hub.make_run import ORIGIN
from minigpt.system.folder import read_record
from minigpt.text.hf_tokenizer import Published
from minigpt.text.languages.language import Stories
from minigpt.training.run import ENVIRONMENT, MAX_CHANGES, Run

PLAIN = """\
```python
from transformers import AutoModelForCausalLM, {reader}

folder = "."  # this folder
model = AutoModelForCausalLM.from_pretrained(folder{consent})
tokenizer = {reader}.from_pretrained(folder{consent})
ids = tokenizer({prompt!r}, return_tensors="pt")["input_ids"]
print(tokenizer.decode(model.generate(ids, max_new_tokens=50, do_sample=True)[0]))
```
"""

CARRIED = """\
No class of transformers computes this model, so its code is in this folder: `modeling_minigpt.py` and the files of
minigpt (MIT License) that it needs, unchanged but for their imports. transformers runs them only with
`trust_remote_code=True`: read them before you give it. Every token that `generate` writes is computed from the whole
context; texts of a batch must be of one length.
"""

TOKENS = """\
Special tokens in a text are read as plain text, as in minigpt; `AutoTokenizer.from_pretrained(folder,
split_special_tokens=False)` reads them as special tokens.
"""


def model_card(run: Run, remote_code: bool, architecture: str) -> str:
    """The text of README.md. `architecture` is the class of transformers that reads the folder."""
    tags = ["minigpt", "custom_code"] if remote_code else ["minigpt"]
    about = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": tags}
    facts = run.facts() | {"vocabulary": f"{run.tokenizer.vocab_size:,} ids ({run.tokenizer.kind})"}
    table = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    language = run.config.data.language or Stories()  # an import that tells texts is taken to tell stories
    prompt = f"\n{language.beginning(0)}" if run.tells() else "The"  # the built-in texts follow a line end
    consent = ", trust_remote_code=True" if remote_code else ""
    load = PLAIN.format(consent=consent, prompt=prompt, reader=tokenizer_class(run, architecture))
    notes = (CARRIED if remote_code else "") + (
        TOKENS if run.tokenizer.special_tokens and not isinstance(run.tokenizer, Published) else ""
    )
    return (
        f"---\n{as_yaml(about)}---\n\n# {run.folder.name}\n\n{beginning(run)}, here as `{architecture}`.\n\n"
        f"| | |\n|---|---|\n{table}\n## How to load it\n\n{load}\n{notes}\n"
        f"## Its config in minigpt\n\n```yaml\n{as_yaml(recipe(run))}```\n"
    )


def beginning(run: Run) -> str:
    """Where the weights are from: trained with minigpt, from a model elsewhere, or from another run."""
    if (run.folder / ORIGIN).is_file():
        origin = read_record(run.folder / ORIGIN, MAX_CHANGES, {}) or {}
        source = f"It was made from `{last_part(origin.get('from'))}` (`{last_part(origin.get('model_type'))}`)"
        return f"{source}, not trained with minigpt. The licence is that of its source. A language model"
    weights = (read_record(run.folder / ENVIRONMENT, MAX_CHANGES, {}) or {}).get("weights")
    if isinstance(weights, dict):
        start = f"Its training with minigpt began with the weights of the run `{last_part(weights.get('run'))}`"
        return f"{start}, whose licence holds for it too. A language model"
    return "A small language model that was trained with minigpt"


def last_part(path: Any) -> str:
    """The last part of a path or a name from a record, which is untrusted."""
    return Path(str(path)).name[:100].replace("`", "'")


def tokenizer_class(run: Run, architecture: str) -> str:
    """The class that reads the tokenizer. In a Qwen 2 folder, AutoTokenizer always uses Qwen 2's split pattern."""
    strange = architecture == "Qwen2ForCausalLM" and not isinstance(run.tokenizer, Published)
    return "PreTrainedTokenizerFast" if strange else "AutoTokenizer"


def recipe(run: Run) -> dict[str, Any]:
    """The config of the run; of the path of its text, only the last part is kept."""
    config: dict[str, Any] = to_python(run.config)
    source = config["data"]["source"]
    if isinstance(source, str):
        config["data"]["source"] = Path(source).name
    return config


def as_yaml(values: dict[str, Any]) -> str:
    """Values as YAML."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
