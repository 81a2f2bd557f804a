"""Learners' programs, a fourth lot: MLPs, blocks and whole models."""

# === fourth_mlp_conv
# target: mlp
# right: two convolutions of width one over (B, D, T)
import torch
from torch import nn

class ConvMLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(d, 4 * d, 1), nn.Conv1d(4 * d, d, 1)

    def forward(self, x):
        return self.c2(nn.functional.gelu(self.c1(x.transpose(1, 2)))).transpose(1, 2)

mlp = ConvMLP(24)

# === fourth_mlp_conv_wide
# target: mlp
# wrong: the activation is forgotten
# words: activation
# like: fourth_mlp_conv
#-        return self.c2(nn.functional.gelu(self.c1(x.transpose(1, 2)))).transpose(1, 2)
#+        return self.c2(self.c1(x.transpose(1, 2))).transpose(1, 2)

# === fourth_mlp_gated_joined
# target: mlp
# right: SwiGLU with both matrices in one layer, chunked
import torch
from torch import nn
import torch.nn.functional as F

class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w12, self.w3 = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(x1) * x2)

mlp = SwiGLU(24, 64)

# === fourth_block_encoder_layer
# target: block
# right: nn.TransformerEncoderLayer, pre-norm, with a mask
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), dtype=x.dtype)
        return self.layer(x, src_mask=mask, is_causal=True)

block = Block(48, 6)

# === fourth_block_encoder_no_mask
# target: block
# wrong: no mask is passed
# words: mask|future
# like: fourth_block_encoder_layer
#-        return self.layer(x, src_mask=mask, is_causal=True)
#+        return self.layer(x)

# === fourth_block_encoder_post
# target: block
# convention: post-norm, as in the first Transformer
# like: fourth_block_encoder_layer
#-        self.layer = nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
#+        self.layer = nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, activation="gelu", batch_first=True)

# === fourth_block_llama
# target: block,rotary
# right: Llama's block: RMSNorm, rotary by halves, SwiGLU
import torch
from torch import nn
import torch.nn.functional as F

class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

def rope(x):
    T, d = x.shape[-2:]
    f = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    a, b = x.chunk(2, -1)
    return torch.cat((a * f.cos() - b * f.sin(), b * f.cos() + a * f.sin()), -1)

class LlamaBlock(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w2, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False), nn.Linear(dim, hidden, bias=False)

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        h = x + self.attend(self.attention_norm(x))
        g = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(g)) * self.w3(g))

block = LlamaBlock(48, 6, 128)

# === fourth_block_llama_gate_sigmoid
# target: block,rotary
# wrong: the gate has no activation
# words: gate|silu
# like: fourth_block_llama
#-        return h + self.w2(F.silu(self.w1(g)) * self.w3(g))
#+        return h + self.w2(self.w1(g) * self.w3(g))

# === fourth_block_llama_norm_of_x
# target: block,rotary
# wrong: the second norm reads x, not h
# words: x, h
# like: fourth_block_llama
#-        g = self.ffn_norm(h)
#+        g = self.ffn_norm(x)

# === fourth_block_llama_values_turned
# target: block,rotary
# wrong: values are rotated too
# words: values are rotated
# like: fourth_block_llama
#-        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
#+        y = F.scaled_dot_product_attention(rope(q), rope(k), rope(v), is_causal=True)

# === fourth_nano
# target: gpt
# right: nanoGPT: no biases, dropout, a dataclass, only the last logits without targets
import math
from dataclasses import dataclass
import torch
import torch.nn as nn
from torch.nn import functional as F

@dataclass
class GPTConfig:
    block_size: int = 32
    vocab_size: int = 41
    n_layer: int = 2
    n_head: int = 3
    n_embd: int = 36
    dropout: float = 0.1

class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(c.n_embd, 3 * c.n_embd), nn.Linear(c.n_embd, c.n_embd)
        self.attn_dropout, self.resid_dropout = nn.Dropout(c.dropout), nn.Dropout(c.dropout)
        self.n_head, self.n_embd = c.n_head, c.n_embd
        self.register_buffer("bias", torch.tril(torch.ones(c.block_size, c.block_size)).view(1, 1, c.block_size, c.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))

class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc, self.c_proj, self.dropout = nn.Linear(c.n_embd, 4 * c.n_embd), nn.Linear(4 * c.n_embd, c.n_embd), nn.Dropout(c.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(c.n_embd), CausalSelfAttention(c), nn.LayerNorm(c.n_embd), MLP(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd), wpe=nn.Embedding(config.block_size, config.n_embd),
            drop=nn.Dropout(config.dropout), h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=nn.LayerNorm(config.n_embd)))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        assert t <= self.config.block_size
        pos = torch.arange(0, t, dtype=torch.long).unsqueeze(0)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return self.lm_head(x[:, [-1], :]), None

model = GPT(GPTConfig())

# === fourth_nano_scale
# target: gpt
# wrong: the scores are divided by the root of T
# words: sqrt(T)|number of tokens
# like: fourth_nano
#-        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
#+        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-2)))

# === fourth_nano_mask_bias
# target: gpt
# wrong: the mask is triu
# words: mask|upside|future
# like: fourth_nano
#-        self.register_buffer("bias", torch.tril(torch.ones(c.block_size, c.block_size)).view(1, 1, c.block_size, c.block_size))
#+        self.register_buffer("bias", torch.triu(torch.ones(c.block_size, c.block_size)).view(1, 1, c.block_size, c.block_size))

# === fourth_nano_positions_of_batch
# target: gpt
# wrong: the position is the number of the sequence
# words: position
# like: fourth_nano
#-        pos = torch.arange(0, t, dtype=torch.long).unsqueeze(0)
#+        pos = torch.arange(0, b, dtype=torch.long).unsqueeze(1)

# === fourth_nano_norm_shared
# target: gpt
# wrong: the MLP reads ln_1
# words: norm
# like: fourth_nano
#-        x = x + self.mlp(self.ln_2(x))
#+        x = x + self.mlp(self.ln_1(x))

# === fourth_nano_loss_shifted
# target: gpt
# wrong: the targets, which hold the next tokens, are shifted again
# words: shift
# like: fourth_nano
#-            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
#+            return logits, F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), targets[:, 1:].reshape(-1))

# === fourth_nano_block_output
# target: gpt
# wrong: the loop throws away what the blocks return, and the residual was in place nowhere: no block counts
# words: block
# like: fourth_nano
#-            x = block(x)
#+            block(x)

# === fourth_nano_relu_last
# target: gpt
# wrong: the activation stands behind the second layer of the MLP
# words: activation|mlp
# like: fourth_nano
#-        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))
#+        return self.dropout(F.gelu(self.c_proj(self.c_fc(x))))

# === fourth_gpt_dict_output
# target: gpt
# right: Hugging Face style: input_ids, labels, an output object, tied head by F.linear, learned positions as a parameter
from dataclasses import dataclass
from typing import Optional
import torch
from torch import nn
import torch.nn.functional as F

@dataclass
class Output:
    logits: torch.Tensor
    loss: Optional[torch.Tensor] = None

class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.input_norm, self.post_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.dense = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, hidden_states):
        b, t, d = hidden_states.shape
        residual = hidden_states
        h = self.input_norm(hidden_states)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        hidden_states = residual + self.dense(h)
        residual = hidden_states
        return residual + self.down(F.gelu(self.up(self.post_norm(hidden_states)), approximate="tanh"))

class TinyLM(nn.Module):
    def __init__(self, vocab_size=33, hidden=40, heads=4, layers=3, max_len=24):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden)
        self.position_embedding = nn.Parameter(torch.zeros(1, max_len, hidden))
        self.layers = nn.ModuleList([Layer(hidden, heads) for _ in range(layers)])
        self.final_norm = nn.LayerNorm(hidden)

    def forward(self, input_ids, labels=None):
        x = self.embed_tokens(input_ids) + self.position_embedding[:, : input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.final_norm(x), self.embed_tokens.weight)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(logits=logits, loss=loss)

model = TinyLM()

# === fourth_gpt_labels_same
# target: gpt
# wrong: labels are not shifted
# words: shift
# like: fourth_gpt_dict_output
#-            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
#+            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())

# === fourth_gpt_norm_replaces
# target: gpt
# wrong: the residual is taken after the norm
# words: norm
# like: fourth_gpt_dict_output
#-        residual = hidden_states
#-        h = self.input_norm(hidden_states)
#+        h = self.input_norm(hidden_states)
#+        residual = h

# === fourth_gpt_positions_reversed
# target: gpt
# wrong: the positions are read from the end of the table
# words: position
# like: fourth_gpt_dict_output
#-        x = self.embed_tokens(input_ids) + self.position_embedding[:, : input_ids.shape[1]]
#+        x = self.embed_tokens(input_ids) + self.position_embedding[:, -input_ids.shape[1] :]

# === fourth_gpt_encoder
# target: gpt
# right: nn.TransformerEncoder with a mask, learned positions
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self, vocab, d, heads, layers, length):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        return self.head(self.norm(self.encoder(self.tok(ids) + self.pos.weight[:n], mask=mask)))

model = Tiny(29, 40, 5, 2, 16)

# === fourth_gpt_encoder_no_mask
# target: gpt
# wrong: the mask is not passed
# words: mask|future
# like: fourth_gpt_encoder
#-        return self.head(self.norm(self.encoder(self.tok(ids) + self.pos.weight[:n], mask=mask)))
#+        return self.head(self.norm(self.encoder(self.tok(ids) + self.pos.weight[:n])))

# === fourth_gpt_encoder_post_no_norm
# target: gpt
# wrong: the final norm is left out
# words: final norm
# like: fourth_gpt_encoder
#-        return self.head(self.norm(self.encoder(self.tok(ids) + self.pos.weight[:n], mask=mask)))
#+        return self.head(self.encoder(self.tok(ids) + self.pos.weight[:n], mask=mask))
