# Several heads by torch's own nn.MultiheadAttention: its masks, its layout, and what is easily given to it wrongly.
# target: multi_head

# === torch_module_additive_mask
# right: nn.MultiheadAttention inside a wrapper, its causal mask made by generate_square_subsequent_mask
import torch
import torch.nn as nn

class SelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1, batch_first=True)

    def forward(self, x):
        T = x.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T, device=x.device, dtype=x.dtype)
        out, _ = self.mha(x, x, x, attn_mask=mask, need_weights=False)
        return out

attention = SelfAttention(48, 6)

# === torch_module_time_first
# of: torch_module_additive_mask
# convention: batch_first is left out and the mask is made for the first axis: x is (T, B, D)
#-        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1, batch_first=True)
#+        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1)
#-        T = x.size(1)
#+        T = x.size(0)

# === torch_module_transposed_inside
# of: torch_module_additive_mask
# right: time first inside, batch first outside
#-        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1, batch_first=True)
#+        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1)
#-        out, _ = self.mha(x, x, x, attn_mask=mask, need_weights=False)
#-        return out
#+        seq = x.transpose(0, 1)  # (T, B, C)
#+        out, _ = self.mha(seq, seq, seq, attn_mask=mask, need_weights=False)
#+        return out.transpose(0, 1)

# === torch_module_true_is_hidden
# of: torch_module_additive_mask
# right: a boolean mask, True where hidden
#-        mask = nn.Transformer.generate_square_subsequent_mask(T, device=x.device, dtype=x.dtype)
#+        mask = torch.arange(T)[None, :] > torch.arange(T)[:, None]

# === torch_module_true_where_it_may_look
# of: torch_module_additive_mask
# wrong: a boolean mask that is True for the past: in torch's module True means hidden
# words: mask|future|later
#-        mask = nn.Transformer.generate_square_subsequent_mask(T, device=x.device, dtype=x.dtype)
#+        mask = torch.ones(T, T, dtype=torch.bool).tril(-1)

# === torch_module_without_mask
# of: torch_module_additive_mask
# wrong: no mask is passed
# words: future|later|mask
#-        out, _ = self.mha(x, x, x, attn_mask=mask, need_weights=False)
#+        out, _ = self.mha(x, x, x, need_weights=False)

# === torch_module_subclassed
# right: nn.MultiheadAttention with positional arguments, a float mask, average weights returned too
import torch
from torch import nn

class SelfAttention(nn.MultiheadAttention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads, batch_first=True, bias=False)

    def forward(self, x):
        mask = torch.full((x.size(1),) * 2, -torch.inf).triu(diagonal=1)
        out, weights = super().forward(x, x, x, need_weights=True, attn_mask=mask, average_attn_weights=False)
        return out

attention = SelfAttention(48, 6)

# === torch_module_adds_ones
# of: torch_module_subclassed
# wrong: a float mask of ones and zeros is added: nothing is hidden
# words: added|add|nothing is hidden|mask
#-        mask = torch.full((x.size(1),) * 2, -torch.inf).triu(diagonal=1)
#+        mask = torch.ones(x.size(1), x.size(1)).tril()
