"""Learners' programs: a whole small GPT. Those with `like:` are another one with a few lines replaced."""

# === gpt_plain
# target: gpt
# right: GPT-2's shape, tied head, loss in the model from targets that the caller has shifted
import torch
import torch.nn as nn
from torch.nn import functional as F

class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x

class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        B, T = idx.shape
        pos = torch.arange(T, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

model = GPT(vocab_size=37, block_size=32, n_layer=2, n_head=6, n_embd=48)

# === gpt_lecture
# target: gpt
# right: as in the lecture: heads in a list, untied head with a bias, dropout
import torch
import torch.nn as nn
from torch.nn import functional as F

n_embd, n_head, n_layer, block_size, dropout, vocab_size = 40, 5, 3, 24, 0.2, 29

class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        T = x.shape[1]
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return self.dropout(F.softmax(wei, dim=-1)) @ self.value(x)

class MultiHeadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd // n_head) for _ in range(n_head)])
        self.proj, self.dropout = nn.Linear(n_embd, n_embd), nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa = MultiHeadAttention()
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))

class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        tok = self.token_embedding_table(idx)
        pos = self.position_embedding_table(torch.arange(T))
        logits = self.lm_head(self.ln_f(self.blocks(tok + pos)))
        if targets is None:
            return logits, None
        B, T, C = logits.shape
        return logits, F.cross_entropy(logits.view(B * T, C), targets.view(B * T))

model = LanguageModel()

# === gpt_llama
# target: gpt
# right: RMSNorm, rotary, SwiGLU, no biases, an untied head; labels are shifted inside
import torch
import torch.nn as nn
import torch.nn.functional as F

class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

def rope(x):
    T, d = x.shape[-2:]
    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)

class Layer(nn.Module):
    def __init__(self, d, h, m):
        super().__init__()
        self.h, self.n1, self.n2 = h, RMSNorm(d), RMSNorm(d)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(d, m, bias=False), nn.Linear(d, m, bias=False), nn.Linear(m, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (w(y).view(b, t, self.h, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

class Llama(nn.Module):
    def __init__(self, vocab=31, d=48, h=6, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(Layer(d, h, 128) for _ in range(layers))
        self.norm, self.head = RMSNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
        return logits, loss

model = Llama()

# === gpt_logits_only
# target: gpt
# right: no loss in the model; positions in a parameter
# like: gpt_plain
#-    def forward(self, idx, targets=None):
#+    def forward(self, idx):
#-        loss = None
#-        if targets is not None:
#-            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
#-        return logits, loss
#+        return logits

# === gpt_untied
# target: gpt
# right: the head has its own weights
# like: gpt_plain
#-        self.wte.weight = self.lm_head.weight

# === gpt_positions_forgotten
# target: gpt
# wrong: the position embedding is made and never added
# words: position
# like: gpt_plain
#-        x = self.wte(idx) + self.wpe(pos)
#+        x = self.wte(idx)

# === gpt_one_position
# target: gpt
# wrong: every token gets the position of the last one
# words: position
# like: gpt_plain
#-        x = self.wte(idx) + self.wpe(pos)
#+        x = self.wte(idx) + self.wpe(pos[-1])

# === gpt_position_twice
# target: gpt
# wrong: the positions are added again before every block
# words: position
# like: gpt_plain
#-            x = block(x)
#+            x = block(x + self.wpe(pos))

# === gpt_final_norm_forgotten
# target: gpt
# wrong: the final norm is made and not applied
# words: norm
# like: gpt_plain
#-        x = self.ln_f(x)

# === gpt_only_last_block
# target: gpt
# wrong: every block reads the embeddings; only the last one counts
# words: block|layer
# like: gpt_plain
#-            x = block(x)
#-        x = self.ln_f(x)
#+            y = block(x)
#+        x = self.ln_f(y)

# === gpt_loss_not_shifted
# target: gpt
# wrong: the loss compares a position's logits with its own token: the model learns to copy
# words: shift|next|same|own
# like: gpt_llama
#-        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
#+        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

# === gpt_loss_shifted_backwards
# target: gpt
# wrong: the loss compares with the previous token: shifted in the wrong direction
# words: shift|previous|direction|next
# like: gpt_llama
#-        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
#+        loss = F.cross_entropy(logits[:, 1:].reshape(-1, logits.shape[-1]), labels[:, :-1].reshape(-1))

# === gpt_softmax_before_loss
# target: gpt
# wrong: the logits go through a softmax before cross_entropy, which takes one itself
# words: softmax|probabilit
# like: gpt_plain
#-        logits = self.lm_head(x)
#+        logits = F.softmax(self.lm_head(x), dim=-1)

# === gpt_no_mask
# target: gpt
# wrong: the attention has no mask: the model reads the token that it is to predict
# words: mask|future|causal
# like: gpt_plain
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
#+        y = F.scaled_dot_product_attention(q, k, v)

# === gpt_blocks_shared
# target: gpt
# wrong: [Block(...)] * n puts one block in twice: the layers share their weights
# words: share|same|one block|block
# like: gpt_plain
#-        self.h = nn.ModuleList([Block(n_embd, n_head) for _ in range(n_layer)])
#+        self.h = nn.ModuleList([Block(n_embd, n_head)] * n_layer)

# === gpt_sees_batch
# target: gpt
# wrong: view(T, B, C) without a transpose: sequences of a batch are mixed
# words: batch|sequence
# like: gpt_plain
#-        for block in self.h:
#-            x = block(x)
#+        x = x.view(T, B, -1)
#+        for block in self.h:
#+            x = block(x)
#+        x = x.view(B, T, -1)

# === gpt_residual_in_norm
# target: gpt
# wrong: the first residual of a block adds the normed x
# words: norm, residual|x +|instead
# like: gpt_plain
#-        x = x + self.attn(self.ln_1(x))
#+        x = self.ln_1(x)
#+        x = x + self.attn(x)
