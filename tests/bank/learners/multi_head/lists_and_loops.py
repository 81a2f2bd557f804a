# Several heads one by one: modules in a list, a loop over slices of features, outputs summed; bugs that a list or a loop hides.
# target: multi_head

# === list_of_heads
# right: Karpathy's list of heads (ModuleList), concatenation, projection with bias, dropout, causal
import torch
import torch.nn as nn
from torch.nn import functional as F

block_size = 64
dropout = 0.1

class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ v

class MultiHeadAttention(nn.Module):
    """ multiple heads of self-attention in parallel """
    def __init__(self, n_embd, num_heads):
        super().__init__()
        head_size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))

attention = MultiHeadAttention(48, 6)

# === list_without_projection
# of: list_of_heads
# wrong: the output projection is defined and not applied
# words: project|output
#-        return self.dropout(self.proj(out))
#+        return out

# === list_divides_by_root_of_width
# of: list_of_heads
# wrong: each head divides by sqrt(C), the width of the model
# words: width of the model|sqrt(D)|embedding
#-        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
#+        wei = q @ k.transpose(-2, -1) * C ** -0.5

# === list_holds_one_head_many_times
# of: list_of_heads
# wrong: the list holds one head many times
# words: same head|one head|share
#-        self.heads = nn.ModuleList([Head(n_embd, head_size) for _ in range(num_heads)])
#+        self.heads = nn.ModuleList([Head(n_embd, head_size)] * num_heads)

# === list_takes_first_head_twice
# of: list_of_heads
# wrong: the first head stands twice in the concatenation, the last one never
# words: head
#-        out = torch.cat([h(x) for h in self.heads], dim=-1)
#+        out = torch.cat([self.heads[0](x)] + [h(x) for h in self.heads[:-1]], dim=-1)

# === zeros_after_softmax_without_normalising
# of: list_of_heads
# wrong: masked with 0 after the softmax, without normalising again
# words: after the softmax
#-        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
#-        wei = self.dropout(F.softmax(wei, dim=-1))
#+        wei = self.dropout(F.softmax(wei, dim=-1)) * self.tril[:T, :T]

# === list_of_joined_heads
# right: a list of heads, each with one fused layer, bmm
import torch
import torch.nn as nn

class OneHead(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.size, self.qkv = size, nn.Linear(width, 3 * size, bias=False)

    def forward(self, x, hidden):
        q, k, v = torch.split(self.qkv(x), self.size, dim=-1)
        a = torch.bmm(q, k.permute(0, 2, 1)).mul_(self.size**-0.5).masked_fill_(hidden, float("-inf"))
        return torch.bmm(a.softmax(2), v)

class ManyHeads(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.heads = nn.ModuleList(OneHead(width, width // n) for _ in range(n))
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        hidden = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        return self.mix(torch.cat([head(x, hidden) for head in self.heads], 2))

attention = ManyHeads(48, 6)

# === list_joined_in_reverse
# of: list_of_joined_heads
# convention: the heads are joined in reverse order: they are learned, and so is the projection
#-        return self.mix(torch.cat([head(x, hidden) for head in self.heads], 2))
#+        return self.mix(torch.cat([head(x, hidden) for head in reversed(self.heads)], 2))

# === list_stacked_before_time
# of: list_of_joined_heads
# wrong: the heads are stacked in front of the positions and reshaped: positions and heads are mixed
# words: transpose|join|mix
#-        return self.mix(torch.cat([head(x, hidden) for head in self.heads], 2))
#+        return self.mix(torch.stack([head(x, hidden) for head in self.heads], 1).reshape(x.shape))

# === outputs_of_heads_summed
# right: no concat: every head has its own output matrix and the results are summed, plus one bias
import torch
import torch.nn as nn
import torch.nn.functional as F

class Head(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.ModuleDict({n: nn.Linear(d_in, d_out, bias=False) for n in "qkv"})

    def forward(self, x):
        q, k, v = (self.qkv[n](x) for n in "qkv")
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

class MultiHeadAttention(nn.Module):
    """sum over heads instead of concat: each head has its own piece of W_O"""

    def __init__(self, d_model, n_heads):
        super().__init__()
        d_head = d_model // n_heads
        self.heads = nn.ModuleList([Head(d_model, d_head) for _ in range(n_heads)])
        self.outs = nn.ModuleList([nn.Linear(d_head, d_model, bias=False) for _ in range(n_heads)])
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        y = self.bias
        for h, o in zip(self.heads, self.outs):
            y = y + o(h(x))
        return y

# === loop_over_slices
# right: a loop over heads, each on a slice of the columns
import torch
from torch import nn

class Simple(nn.Module):
    def __init__(self, width=45, heads=5):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.Q, self.K, self.V, self.O = [nn.Linear(width, width, bias=b) for b in (True, True, True, False)]

    def forward(self, x):
        Q, K, V = self.Q(x), self.K(x), self.V(x)
        n = x.shape[1]
        outs = []
        for h in range(self.heads):
            s = slice(h * self.size, (h + 1) * self.size)
            score = Q[..., s] @ K[..., s].mT / self.size**0.5
            for i in range(n):
                score[:, i, i + 1 :] = -float("inf")
            outs.append(torch.softmax(score, -1) @ V[..., s])
        return self.O(torch.cat(outs, -1))

attention = Simple()

# === loop_over_slices_that_overlap
# of: loop_over_slices
# wrong: the slices of the heads overlap: head h begins at h, not at h d
# words: slice|head|overlap|feature
#-            s = slice(h * self.size, (h + 1) * self.size)
#+            s = slice(h, h + self.size)
