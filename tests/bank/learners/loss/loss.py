# The loss of the next token: shifted inside or given shifted targets, padding left out, by hand, of a model.
# target: loss

# === hf_shift_inside
# right: logits at t against token t+1 (shift inside), labels -100 are left out of the mean (HF convention)
import torch
from torch.nn import CrossEntropyLoss

def causal_lm_loss(logits, labels):
    # Shift so that tokens < n predict n
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    loss_fct = CrossEntropyLoss()
    return loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))

if __name__ == "__main__":
    print(causal_lm_loss(torch.randn(2, 6, 11), torch.randint(11, (2, 6))))

# === loss_shifted_backwards
# of: hf_shift_inside
# wrong: shifted in the wrong direction: the logits at t are scored on the token at t - 1
# words: wrong way
#-    shift_logits = logits[..., :-1, :].contiguous()
#+    shift_logits = logits[..., 1:, :].contiguous()
#-    shift_labels = labels[..., 1:].contiguous()
#+    shift_labels = labels[..., :-1].contiguous()

# === softmax_before_cross_entropy_loss
# of: hf_shift_inside
# wrong: softmax before cross entropy, which applies one of its own
# words: softmax
#-    return loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
#+    return loss_fct(shift_logits.softmax(-1).view(-1, shift_logits.size(-1)), shift_labels.view(-1))

# === log_softmax_and_gather_without_padding
# right: log_softmax + gather, mean over non-pad targets
import torch

def next_token_loss(logits, tokens, pad_id=0):
    """Mean negative log-likelihood of token t+1 given logits t; pad targets are left out.

    logits (B, T, V), tokens (B, T)
    """
    logp = torch.log_softmax(logits[:, :-1], dim=-1)
    target = tokens[:, 1:]
    nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    keep = target.ne(pad_id).to(nll.dtype)
    return (nll * keep).sum() / keep.sum().clamp(min=1)

loss = next_token_loss

# === padding_counts_in_the_mean
# of: log_softmax_and_gather_without_padding
# wrong: the sum is divided by all positions, padding included
# words: still counts
#-    return (nll * keep).sum() / keep.sum().clamp(min=1)
#+    return (nll * keep).mean()

# === loss_not_shifted
# of: log_softmax_and_gather_without_padding
# wrong: not shifted: the logits at t are scored on the token at t itself
# words: not shifted
#-    logp = torch.log_softmax(logits[:, :-1], dim=-1)
#+    logp = torch.log_softmax(logits, dim=-1)
#-    target = tokens[:, 1:]
#+    target = tokens

# === cross_entropy_without_reduction
# of: log_softmax_and_gather_without_padding
# right: one cross entropy a token (reduction="none"), then the mean without padding
#-    logp = torch.log_softmax(logits[:, :-1], dim=-1)
#-    target = tokens[:, 1:]
#-    nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
#+    target = tokens[:, 1:]
#+    nll = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), target, reduction="none")

# === logsumexp_of_shifted_targets
# right: already shifted targets, log-sum-exp by hand
import torch

def nll(logits, targets):
    # targets[b, t] is the token that follows position t
    lse = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (lse - picked).mean()

attention = nll

# === shifted_targets_shifted_again
# of: logsumexp_of_shifted_targets
# wrong: the targets are the next tokens, and are shifted once more
# words: shifted once more
#-    lse = torch.logsumexp(logits, dim=-1)
#+    logits, targets = logits[:, :-1], targets[:, 1:]
#+    lse = torch.logsumexp(logits, dim=-1)

# === classes_second_and_padding
# right: class dimension moved to dim 1, padding ignored, mean over the valid tokens
import torch
import torch.nn.functional as F

class PerdidaSiguiente(torch.nn.Module):
    def __init__(self, relleno=-1):
        super().__init__()
        self.relleno = relleno

    def forward(self, logits, ids):
        prediccion = logits[:, :-1].permute(0, 2, 1)
        objetivo = ids[:, 1:]
        return F.cross_entropy(prediccion.float(), objetivo, ignore_index=self.relleno)

attention = PerdidaSiguiente()

# === filtered_targets_by_hand
# right: hand-made logsumexp, ignored targets are filtered out before the mean
import torch

def xent(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Mean next-token loss in nats without any library help.

    logits (..., V), targets (...) already one step ahead.
    """
    V = logits.shape[-1]
    logits = logits.reshape(-1, V)
    targets = targets.reshape(-1)

    keep = targets != ignore_index
    logits, targets = logits[keep], targets[keep]

    biggest = logits.max(dim=-1, keepdim=True).values
    log_z = biggest.squeeze(-1) + (logits - biggest).exp().sum(-1).log()
    picked = logits[torch.arange(len(targets), device=logits.device), targets]
    return (log_z - picked).mean()

loss = xent

# === label_smoothing_and_padding
# right: class, log_softmax by hand, label smoothing 0.1 (uniform over the vocabulary), pad id 0 masked, mean over real target tokens, shift inside
import torch
import torch.nn as nn

class NextTokenLoss(nn.Module):
    def __init__(self, pad_id=0, smoothing=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.smoothing = smoothing

    def forward(self, logits, tokens):
        """logits (B, T, V) predicted from tokens (B, T)"""
        logits, target = logits[:, :-1], tokens[:, 1:]
        logp = logits - logits.logsumexp(dim=-1, keepdim=True)
        nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        smooth = -logp.mean(dim=-1)
        loss = (1 - self.smoothing) * nll + self.smoothing * smooth
        keep = (target != self.pad_id).to(loss.dtype)
        return (loss * keep).sum() / keep.sum()

loss = NextTokenLoss(pad_id=0)

# === loss_of_a_model
# right: a function of a model and its tokens, which are their own targets
import torch
import torch.nn.functional as F

def compute_loss(model, tokens):
    """How well does the causal model predict each next token of `tokens` (B, T)? Mean cross entropy in nats."""
    logits = model(tokens)          # (B, T, V)
    b, t, v = logits.shape
    return F.cross_entropy(logits[:, :-1].reshape(-1, v), tokens[:, 1:].reshape(-1))

def perplexity(model, tokens):
    with torch.no_grad():
        return compute_loss(model, tokens).exp().item()
