"""minigpt's models as models of Hugging Face's transformers: `export_hf.py --remote-code` copies this file.

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

It uses the textbook implementations, not the fast ones. `generate` has no cache: every token is computed from the whole
context, which moves on by half its size when it is full, as in minigpt.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from minigpt.config.options import from_dict
from minigpt.model.config import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.model.sampling import window_start


class MinigptConfig(PretrainedConfig):  # type: ignore[misc]
    """`minigpt`: the options of the model, as a run's config.yaml has them; `vocab_size`: how many ids there are."""

    model_type = "minigpt"

    def __init__(self, minigpt: dict[str, Any] | None = None, vocab_size: int = 1, **others: Any):
        self.minigpt, self.vocab_size = minigpt or {}, vocab_size
        super().__init__(**others)


class MinigptForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A causal language model: ids (B, T) -> logits (B, T, V)."""

    config_class = MinigptConfig
    _tied_weights_keys = {"model.head.weight": "model.tokens.weight"}  # noqa: RUF012 (transformers names it so)

    def __init__(self, config: MinigptConfig):
        super().__init__(config)
        with torch.device("cpu"):  # transformers would make it on the meta device, where constants have no values
            self.model = GPT(from_dict(ModelConfig, config.minigpt), config.vocab_size)
        for module in self.modules():
            module._non_persistent_buffers_set.clear()  # these constants are saved and loaded too
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Does nothing: the constructor of GPT has initialised the weights."""

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of the tokens."""
        return self.model.tokens

    def get_output_embeddings(self) -> nn.Module:
        """The head, which a config may tie to the embeddings."""
        return self.model.head

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> dict[str, Any]:
        """The part of the ids (B, n) that is the context of the next token: (B, at most block_size)."""
        start = window_start(input_ids.shape[1], self.model.config.block_size)
        mask = None if attention_mask is None else attention_mask[:, start:]
        return {"input_ids": input_ids[:, start:], "attention_mask": mask}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **others: Any
    ) -> CausalLMOutput:
        """The logits (B, T, V) of ids (B, T), and with labels (B, T), the mean loss.

        Labels are shifted here, and -100 is ignored. Raises ValueError for padding: the model reads every token.
        """
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("the texts of a batch must be of one length: minigpt's models know no padding")
        logits = self.model(input_ids)  # (B, T, V)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
            extras = [extra for layer in self.model.attentions() if (extra := layer.extra_loss()) is not None]
            loss = sum(extras, loss)
        return CausalLMOutput(loss=loss, logits=logits)
