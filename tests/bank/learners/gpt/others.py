# Whole models in other shapes: Llama, outputs as objects and dicts, sine positions, torch's encoder layers, functions, a loss as a method.
# target: gpt

# === llama_dict_output
# right: Llama with RMSNorm; post_attention_layernorm is the pre-MLP norm (HF name); no post-norm; -100
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

@dataclass
class LlamaConfig:
    vocab_size: int = 61
    hidden_size: int = 48
    num_heads: int = 6
    num_layers: int = 2
    rope_theta: float = 10000.0
    rms_eps: float = 1e-6

class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()

def rope(x, theta):
    n, d = x.shape[-2:]
    inv = theta ** (-torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
    ang = torch.arange(n, device=x.device, dtype=x.dtype)[:, None] * inv
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * ang.cos() - b * ang.sin(), b * ang.cos() + a * ang.sin()), dim=-1)

class DecoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.hidden_size
        self.c = c
        self.input_layernorm = RMSNorm(d, c.rms_eps)
        self.post_attention_layernorm = RMSNorm(d, c.rms_eps)  # HF name: it is the norm in front of the MLP
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate_proj, self.up_proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * d, bias=False)
        self.down_proj = nn.Linear(3 * d, d, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        residual = x
        h = self.input_layernorm(x)
        q, k, v = (p(h).view(b, n, self.c.num_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rope(q, self.c.rope_theta), rope(k, self.c.rope_theta)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = residual + self.o_proj(a.transpose(1, 2).reshape(b, n, d))
        residual = x
        h = self.post_attention_layernorm(x)
        return residual + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))

class LlamaForCausalLM(nn.Module):
    """labels are the input ids themselves (pad with -100); the shift happens in here."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, labels=None):
        h = self.embed_tokens(input_ids)
        for layer in self.layers:
            h = layer(h)
        logits = self.lm_head(self.norm(h))
        if labels is None:
            return {"logits": logits}
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        loss = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits}

# === output_object_and_positions_parameter
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

# === labels_not_shifted
# of: output_object_and_positions_parameter
# wrong: labels are not shifted
# words: shift
#-            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
#+            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())

# === labels_shifted_backwards
# of: output_object_and_positions_parameter
# wrong: the loss compares with the previous token: shifted in the wrong direction
# words: shift|previous|direction|next|wrong way
#-            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
#+            loss = F.cross_entropy(logits[:, 1:].flatten(0, 1), labels[:, :-1].flatten())

# === residual_taken_after_the_norm
# of: output_object_and_positions_parameter
# wrong: the residual is taken after the norm
# words: norm
#-        b, t, d = hidden_states.shape
#-        residual = hidden_states
#+        b, t, d = hidden_states.shape
#-        h = self.input_norm(hidden_states)
#+        h = self.input_norm(hidden_states)
#+        residual = h

# === positions_from_the_end_of_the_table
# of: output_object_and_positions_parameter
# wrong: the positions are read from the end of the table
# words: position
#-        x = self.embed_tokens(input_ids) + self.position_embedding[:, : input_ids.shape[1]]
#+        x = self.embed_tokens(input_ids) + self.position_embedding[:, -input_ids.shape[1] :]

# === sine_positions_and_einsum
# right: sinusoidal positions, embeddings scaled by sqrt(d), (T,) ids without a batch also work
import math
import torch
from torch import nn
import torch.nn.functional as F

def sinus(T, d):
    pe = torch.zeros(T, d)
    position = torch.arange(T).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe

class Lage(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.W = nn.Parameter(torch.randn(3, h, d, d // h) * d ** -0.5)
        self.O = nn.Parameter(torch.randn(h, d // h, d) * d ** -0.5)
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        y = self.n1(x)
        q, k, v = torch.einsum('...td,chde->c...hte', y, self.W)
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -torch.inf)
        x = x + torch.einsum('...hte,hed->...td', s.softmax(-1) @ v, self.O)
        return x + self.f2(F.gelu(self.f1(self.n2(x))))

class KleinesGPT(nn.Module):
    def __init__(self, woerter=40, d=32, h=4, lagen=2, laenge=32):
        super().__init__()
        self.d = d
        self.E = nn.Embedding(woerter, d)
        self.register_buffer('pe', sinus(laenge, d))
        self.lagen = nn.ModuleList(Lage(d, h) for _ in range(lagen))
        self.norm = nn.LayerNorm(d)
        self.kopf = nn.Linear(d, woerter)

    def forward(self, ids):
        x = self.E(ids) * math.sqrt(self.d) + self.pe[: ids.shape[-1]]
        for lage in self.lagen:
            x = lage(x)
        return self.kopf(self.norm(x))

attention = KleinesGPT()

# === torch_encoder_with_sine_positions
# right: sinusoidal positions in a buffer, embeddings times sqrt(D), post-lecture style with generate
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=100):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]

class LanguageModel(nn.Module):
    def __init__(self, vocab, d_model, heads, depth):
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Embedding(vocab, d_model)
        self.pos = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, heads, 4 * d_model, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), dtype=torch.get_default_dtype())
        x = self.pos(self.embed(tokens) * math.sqrt(self.d_model))
        return self.head(self.blocks(x, mask=mask, is_causal=True))

    @torch.no_grad()
    def generate(self, tokens, n):
        for _ in range(n):
            tokens = torch.cat([tokens, self(tokens)[:, -1].argmax(-1, keepdim=True)], 1)
        return tokens

model = LanguageModel(70, 48, 6, 2)

# === torch_encoder_without_mask
# of: torch_encoder_with_sine_positions
# wrong: no mask is passed to the encoder
# words: future|later|mask
#-        return self.head(self.blocks(x, mask=mask, is_causal=True))
#+        return self.head(self.blocks(x))

# === torch_encoder_without_final_norm
# of: torch_encoder_with_sine_positions
# convention: the final norm is left out, as torch's own stack of layers has none
#-        self.blocks = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
#+        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

# === sine_positions_along_the_batch
# of: torch_encoder_with_sine_positions
# wrong: sines stand along the batch: the position is the number of the sequence
# words: number of the sequence in the batch|along the batch
#-        self.register_buffer("pe", pe.unsqueeze(0))
#+        self.register_buffer("pe", pe.unsqueeze(1))
#-        return x + self.pe[:, : x.size(1)]
#+        return x + self.pe[: x.size(0)]

# === picogpt_functions_and_dict
# right: picoGPT-like: only functions and a dict of weights, one text (T,), logits = x @ wte.T
"""GPT-2's forward pass as a handful of functions, for one sequence of ids."""
import torch

def gelu(x):
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x ** 3)))

def layer_norm(x, g, b, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, correction=0)
    return g * (x - mean) / torch.sqrt(variance + eps) + b

def linear(x, w, b):
    return x @ w + b

def attention(q, k, v, mask):
    return torch.softmax(q @ k.T / q.shape[-1] ** 0.5 + mask, dim=-1) @ v

def mha(x, c_attn, c_proj, n_head):
    qkv = linear(x, *c_attn)                                   # [n_seq, 3*n_embd]
    q, k, v = (t.split(t.shape[-1] // n_head, dim=-1) for t in qkv.chunk(3, dim=-1))
    mask = (1 - torch.tril(torch.ones(len(x), len(x)))) * -1e10
    heads = [attention(*qkv_h, mask) for qkv_h in zip(q, k, v)]
    return linear(torch.cat(heads, dim=-1), *c_proj)

def block(x, p, n_head):
    x = x + mha(layer_norm(x, *p["ln_1"]), p["c_attn"], p["c_proj"], n_head)
    h = gelu(linear(layer_norm(x, *p["ln_2"]), *p["mlp_up"]))
    return x + linear(h, *p["mlp_down"])

def gpt2(ids, params, n_head):
    x = params["wte"][ids] + params["wpe"][: len(ids)]
    for p in params["blocks"]:
        x = block(x, p, n_head)
    return layer_norm(x, *params["ln_f"]) @ params["wte"].T    # [n_seq, n_vocab]

def init_params(n_vocab=40, n_ctx=32, n_embd=24, n_layer=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    r = lambda *s: torch.randn(*s, generator=g) * 0.2
    lin = lambda i, o: (r(i, o), r(o))
    ln = lambda: (1 + r(n_embd), r(n_embd))
    return dict(wte=r(n_vocab, n_embd), wpe=r(n_ctx, n_embd), ln_f=ln(), blocks=[
        dict(ln_1=ln(), ln_2=ln(), c_attn=lin(n_embd, 3 * n_embd), c_proj=lin(n_embd, n_embd),
             mlp_up=lin(n_embd, 4 * n_embd), mlp_down=lin(4 * n_embd, n_embd)) for _ in range(n_layer)])

if __name__ == "__main__":
    print(gpt2(torch.randint(0, 40, (10,)), init_params(), n_head=4).shape)

# === loss_as_a_method
# right: loss(ids) is a method, whose targets are the ids themselves; root mean squares as a function
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

def rms(x, w, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w

class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attn_norm = nn.Parameter(torch.ones(dim))
        self.ffn_norm = nn.Parameter(torch.ones(dim))
        self.w_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.w_o = nn.Linear(dim, dim, bias=False)
        self.w_in = nn.Linear(dim, 4 * dim, bias=False)
        self.w_out = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.w_qkv(rms(x, self.attn_norm)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = q @ k.mT / math.sqrt(D // self.heads)
        a = a + torch.full((T, T), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        x = x + self.w_o((a.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.w_out(F.gelu(self.w_in(rms(x, self.ffn_norm))))

class LanguageModel(nn.Module):
    """lm(ids) -> logits, lm.loss(ids) -> next token cross entropy, the ids are their own targets"""

    def __init__(self, vocab=50, ctx=24, dim=48, heads=6, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.where = nn.Embedding(ctx, dim)
        self.stack = nn.ModuleList([DecoderLayer(dim, heads) for _ in range(depth)])
        self.final_norm = nn.Parameter(torch.ones(dim))
        self.unembed = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.where.weight[: ids.size(1)]
        for layer in self.stack:
            x = layer(x)
        return self.unembed(rms(x, self.final_norm))

    def loss(self, ids):
        logits = self.forward(ids)
        pred = logits[:, :-1]
        gold = ids[:, 1:]
        return F.cross_entropy(pred.reshape(-1, pred.size(-1)), gold.reshape(-1))

if __name__ == "__main__":
    lm = LanguageModel()
    ids = torch.randint(0, 50, (4, 16))
    print(lm.loss(ids).item(), "should be near", math.log(50))

# === loss_method_shifted_backwards
# of: loss_as_a_method
# wrong: shifted in the wrong direction: the logits at t are scored on the token at t - 1
# words: shift|target|next|label|loss
#-        pred = logits[:, :-1]
#+        pred = logits[:, 1:]
#-        gold = ids[:, 1:]
#+        gold = ids[:, :-1]
