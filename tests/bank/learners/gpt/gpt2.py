# Whole models in GPT-2's shape: learned positions, blocks with norms, a final norm, a head, a loss inside.
# target: gpt

# === gpt2_tied_head
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

# === gpt2_untied_head
# of: gpt2_tied_head
# right: the head has its own weights
#-        self.wte.weight = self.lm_head.weight


# === weights_drawn_by_apply
# of: gpt2_tied_head
# right: apply() draws the weights of every layer
#-        self.wte.weight = self.lm_head.weight
#+        self.wte.weight = self.lm_head.weight
#+        self.apply(self.draw)
#-    def forward(self, idx, targets=None):
#+    def draw(self, module):
#+        if isinstance(module, (nn.Linear, nn.Embedding)):
#+            nn.init.normal_(module.weight, mean=0.0, std=0.02)
#+
#+    def forward(self, idx, targets=None):

# === gpt2_logits_only
# of: gpt2_tied_head
# right: no loss in the model
#-    def forward(self, idx, targets=None):
#+    def forward(self, idx):
#-        loss = None
#-        if targets is not None:
#-            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
#-        return logits, loss
#+        return logits

# === positions_not_added
# of: gpt2_tied_head
# wrong: the position embedding is made and never added
# words: position
#-        x = self.wte(idx) + self.wpe(pos)
#+        x = self.wte(idx)

# === every_token_at_the_last_position
# of: gpt2_tied_head
# wrong: every token gets the position of the last one
# words: position
#-        x = self.wte(idx) + self.wpe(pos)
#+        x = self.wte(idx) + self.wpe(pos[-1])

# === positions_added_before_every_block
# of: gpt2_tied_head
# wrong: the positions are added again before every block
# words: position
#-            x = block(x)
#+            x = block(x + self.wpe(pos))

# === positions_of_the_sequences
# of: gpt2_tied_head
# wrong: the position is the number of the sequence in the batch
# words: position
#-        pos = torch.arange(T, device=idx.device)
#+        pos = torch.arange(B, device=idx.device)[:, None]

# === positions_looked_up_by_token
# of: gpt2_tied_head
# wrong: the positions are looked up with the ids of the tokens
# words: ids of the tokens
#-        x = self.wte(idx) + self.wpe(pos)
#+        x = self.wte(idx) + self.wpe(idx)
#-model = GPT(vocab_size=37, block_size=32, n_layer=2, n_head=6, n_embd=48)
#+model = GPT(vocab_size=37, block_size=64, n_layer=2, n_head=6, n_embd=48)

# === final_norm_not_applied
# of: gpt2_tied_head
# wrong: the final norm is made and not applied
# words: norm
#-        x = self.ln_f(x)


# === every_block_reads_the_embeddings
# of: gpt2_tied_head
# wrong: every block reads the embeddings; only the last one counts
# words: block|layer
#-            x = block(x)
#+            y = block(x)
#-        x = self.ln_f(x)
#+        x = self.ln_f(y)

# === block_outputs_thrown_away
# of: gpt2_tied_head
# wrong: the loop throws away what the blocks return: no block counts
# words: block
#-            x = block(x)
#+            block(x)

# === one_block_many_times
# of: gpt2_tied_head
# wrong: [Block(...)] * n puts one block in twice: the layers share their weights
# words: share|same|one block|block
#-        self.h = nn.ModuleList([Block(n_embd, n_head) for _ in range(n_layer)])
#+        self.h = nn.ModuleList([Block(n_embd, n_head)] * n_layer)

# === model_without_mask
# of: gpt2_tied_head
# wrong: the attention has no mask: the model reads the token that it is to predict
# words: mask|future|causal
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
#+        y = F.scaled_dot_product_attention(q, k, v)

# === mask_in_training_alone
# of: gpt2_tied_head
# wrong: is_causal=self.training: in evaluation the attention sees the whole text
# words: no causal mask
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)

# === sequences_of_a_batch_mixed
# of: gpt2_tied_head
# wrong: view(T, B, C) without a transpose: sequences of a batch are mixed
# words: batch|sequence
#-        x = self.wte(idx) + self.wpe(pos)
#+        x = self.wte(idx) + self.wpe(pos)
#+        x = x.view(T, B, -1)
#-            x = block(x)
#+            x = block(x)
#+        x = x.view(B, T, -1)

# === residual_of_normed_x
# of: gpt2_tied_head
# wrong: the first residual of a block adds the normed x
# words: norm, residual|x +|instead
#-        x = x + self.attn(self.ln_1(x))
#+        x = self.ln_1(x)
#+        x = x + self.attn(x)

# === first_norm_used_for_mlp
# of: gpt2_tied_head
# wrong: the MLP reads ln_1
# words: norm
#-        x = x + self.mlp(self.ln_2(x))
#+        x = x + self.mlp(self.ln_1(x))

# === activation_after_second_layer
# of: gpt2_tied_head
# wrong: the activation stands behind the second layer of the MLP
# words: activation|mlp
#-        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
#+        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd), nn.GELU())

# === model_gives_probabilities
# of: gpt2_tied_head
# wrong: the logits go through a softmax before cross_entropy, which takes one itself
# words: softmax|probabilit
#-        logits = self.lm_head(x)
#+        logits = F.softmax(self.lm_head(x), dim=-1)

# === targets_shifted_again
# of: gpt2_tied_head
# wrong: the targets, which hold the next tokens, are shifted again
# words: shift
#-            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
#+            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())

# === nanogpt_last_logits_without_targets
# right: nanoGPT: dataclass config, targets, tied weights, SDPA, ignore_index, last position only without targets
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)

class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))

class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))

class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x

@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 61
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = False

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                wpe=nn.Embedding(config.block_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                ln_f=LayerNorm(config.n_embd, bias=config.bias),
            )
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits = self.lm_head(x[:, [-1], :])
            loss = None
        return logits, loss

model = GPT(GPTConfig())

# === softmax_before_cross_entropy
# of: nanogpt_last_logits_without_targets
# wrong: softmax before cross_entropy, which applies one of its own
# words: softmax
#-            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
#+            probs = F.softmax(logits, dim=-1)
#+            loss = F.cross_entropy(probs.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

# === dict_config_and_shortcuts
# right: dict config, learned positions, separate submodules, logits only
import torch
import torch.nn as nn

CONFIG = {"vocab_size": 53, "context_length": 32, "emb_dim": 48, "n_heads": 6, "n_layers": 2, "drop_rate": 0.1, "qkv_bias": False}

class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = self.dropout(torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1))
        context_vec = (attn_weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)

class LayerNorm(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(var + self.eps) + self.shift

class FeedForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(cfg["emb_dim"], 4 * cfg["emb_dim"]), nn.GELU(), nn.Linear(4 * cfg["emb_dim"], cfg["emb_dim"])
        )

    def forward(self, x):
        return self.layers(x)

class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.att = MultiHeadAttention(
            cfg["emb_dim"], cfg["emb_dim"], cfg["context_length"], cfg["drop_rate"], cfg["n_heads"], cfg["qkv_bias"]
        )
        self.ff = FeedForward(cfg)
        self.norm1 = LayerNorm(cfg["emb_dim"])
        self.norm2 = LayerNorm(cfg["emb_dim"])
        self.drop_shortcut = nn.Dropout(cfg["drop_rate"])

    def forward(self, x):
        shortcut = x
        x = self.drop_shortcut(self.att(self.norm1(x)))
        x = x + shortcut
        shortcut = x
        x = self.drop_shortcut(self.ff(self.norm2(x)))
        return x + shortcut

class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg["vocab_size"], cfg["emb_dim"])
        self.pos_emb = nn.Embedding(cfg["context_length"], cfg["emb_dim"])
        self.drop_emb = nn.Dropout(cfg["drop_rate"])
        self.trf_blocks = nn.Sequential(*[TransformerBlock(cfg) for _ in range(cfg["n_layers"])])
        self.final_norm = LayerNorm(cfg["emb_dim"])
        self.out_head = nn.Linear(cfg["emb_dim"], cfg["vocab_size"], bias=False)

    def forward(self, in_idx):
        seq_len = in_idx.shape[1]
        x = self.tok_emb(in_idx) + self.pos_emb(torch.arange(seq_len, device=in_idx.device))
        x = self.trf_blocks(self.drop_emb(x))
        return self.out_head(self.final_norm(x))

model = GPTModel(CONFIG)

# === model_norm_with_unbiased_variance
# of: dict_config_and_shortcuts
# wrong: the norm's variance is the unbiased one
# words: unbiased|d - 1|n - 1|variance|correction
#-        var = x.var(dim=-1, keepdim=True, unbiased=False)
#+        var = x.var(dim=-1, keepdim=True)

# === model_divides_by_root_of_width
# of: dict_config_and_shortcuts
# wrong: the scores are divided by the root of the model's width
# words: sqrt(d)|width of the model
#-        attn_weights = self.dropout(torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1))
#+        attn_weights = self.dropout(torch.softmax(attn_scores / self.d_out**0.5, dim=-1))

# === model_divides_by_root_of_length
# of: dict_config_and_shortcuts
# wrong: the scores are divided by the root of T
# words: sqrt(T)|number of tokens
#-        attn_weights = self.dropout(torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1))
#+        attn_weights = self.dropout(torch.softmax(attn_scores / keys.shape[-2] ** 0.5, dim=-1))

# === first_shortcut_used_twice
# of: dict_config_and_shortcuts
# wrong: the second shortcut is that of the first
# words: residual|shortcut|x +
#-        x = x + shortcut
#-        shortcut = x
#+        x = x + shortcut

# === lecture_list_of_heads_and_generate
# right: lecture notebook GPT with list of heads, block size 8
import torch
import torch.nn as nn
from torch.nn import functional as F

block_size = 8
n_embd = 24
n_head = 3
n_layer = 2
dropout = 0.2
vocab_size = 65
device = 'cpu'

class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))

class FeedFoward(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)

class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.sa = MultiHeadAttention(n_head, n_embd // n_head)
        self.ffwd = FeedFoward(n_embd)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        x = x + self.ffwd(self.ln2(x))
        return x

class GPTLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head=n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        tok_emb = self.token_embedding_table(idx)
        pos_emb = self.position_embedding_table(torch.arange(T, device=device))
        x = tok_emb + pos_emb
        x = self.blocks(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        if targets is None:
            loss = None
        else:
            B, T, C = logits.shape
            loss = F.cross_entropy(logits.view(B * T, C), targets.view(B * T))
        return logits, loss

    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            idx_cond = idx[:, -block_size:]
            logits, loss = self(idx_cond)
            probs = F.softmax(logits[:, -1, :], dim=-1)
            idx = torch.cat((idx, torch.multinomial(probs, num_samples=1)), dim=1)
        return idx

attention = GPTLanguageModel()

# === mask_buffer_is_triu
# of: lecture_list_of_heads_and_generate
# wrong: the mask is triu
# words: mask|upside|future
#-        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
#+        self.register_buffer('tril', torch.triu(torch.ones(block_size, block_size)))

# === logits_viewed_as_classes_before_time
# of: lecture_list_of_heads_and_generate
# wrong: logits (B, T, V) are viewed as (B, V, T), not transposed: the loss mixes classes and positions
# words: reshaped to (B
#-            loss = F.cross_entropy(logits.view(B * T, C), targets.view(B * T))
#+            loss = F.cross_entropy(logits.view(B, C, T), targets)

# === cache_without_its_positions
# of: gpt2_tied_head
# wrong: with a cache the positions of the next tokens begin at 0 again
# words: positions
#-    def forward(self, x):
#-        B, T, C = x.size()
#+    def forward(self, x, past):
#+        B, T, C = x.size()
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
#+        if past is not None:
#+            k, v = (torch.cat((*past.get(name, ()), y), dim=2) for name, y in (("k", k), ("v", v)))
#+            past["k"], past["v"] = (k,), (v,)
#+        S = k.size(2)
#+        y = F.scaled_dot_product_attention(q, k, v, torch.ones(T, S, dtype=torch.bool).tril(S - T))
#-    def forward(self, x):
#-        x = x + self.attn(self.ln_1(x))
#+    def forward(self, x, past=None):
#+        x = x + self.attn(self.ln_1(x), past)
#-    def forward(self, idx, targets=None):
#+    def make_cache(self):
#+        return [{} for _ in self.h]
#+
#+    def forward(self, idx, targets=None, past=None):
#-        for block in self.h:
#-            x = block(x)
#+        for i, block in enumerate(self.h):
#+            x = block(x, past[i] if past is not None else None)

# === cache_with_its_positions
# of: cache_without_its_positions
# right: a cache of each layer that the model makes, positions counted on behind what it holds
#-        pos = torch.arange(T, device=idx.device)
#+        start = past[0]["k"][0].size(2) if past and past[0] else 0
#+        pos = torch.arange(start, start + T, device=idx.device)
