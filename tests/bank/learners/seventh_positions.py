"""A seventh lot of learners' programs: rotary, ALiBi, windows, caches, linear attention."""

# === seventh_cache_keys_twice
# target: multi_head,cache
# wrong: copy-paste: the new values are appended to the cached keys instead of the cached values
# words: keys twice
import torch
import torch.nn as nn
import torch.nn.functional as F

class IncrementalAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, cache=None):
        """x: (B, T, C); returns output and the new cache"""
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        if cache is not None:
            k = torch.cat([cache["k"], k], dim=2)
            v = torch.cat([cache["k"], v], dim=2)
        n_past = k.shape[2] - T
        i = torch.arange(T, device=x.device).unsqueeze(1) + n_past
        j = torch.arange(k.shape[2], device=x.device).unsqueeze(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(j <= i))
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.out_proj(y), {"k": k, "v": v}

attention = IncrementalAttention(48, 6)

# === seventh_linear_read_first
# target: linear_attention
# wrong: the output is read before the present key and value enter the state, so a token never sees itself
# words: does not see itself
import torch
import torch.nn.functional as F

def causal_linear_attention(q, k, v, eps=1e-6):
    """q, k, v: (B, T, D); position t uses positions 0..t"""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    B, T, D = q.shape
    kv = torch.zeros(B, D, v.shape[-1])
    ksum = torch.zeros(B, D)
    y = torch.zeros_like(v)
    for t in range(T):
        y[:, t] = torch.einsum("bd,bde->be", q[:, t], kv) / (torch.einsum("bd,bd->b", q[:, t], ksum) + eps)[:, None]
        kv = kv + torch.einsum("bd,be->bde", k[:, t], v[:, t])
        ksum = ksum + k[:, t]
    return y

if __name__ == "__main__":
    print(causal_linear_attention(*torch.randn(3, 2, 8, 16)).shape)

# === seventh_rotary_mixed_tables
# target: multi_head,rotary
# wrong: mixed conventions: the interleaved rotation (-x1, x0 in pairs) is combined with cos/sin tables laid out for halves (cat instead of repeat_interleave)
# words: angles stand in halves
import torch

def build_tables(seq_len, dim, base=10000.0):
    pos = torch.arange(seq_len, dtype=torch.float32)
    freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    ang = pos[:, None] * freq[None, :]
    ang = torch.cat([ang, ang], dim=-1)
    return ang.cos(), ang.sin()

def apply_rope(x):
    """x: (..., T, D); pairs (0,1), (2,3), ..."""
    cos, sin = build_tables(x.shape[-2], x.shape[-1])
    rotated = torch.empty_like(x)
    rotated[..., 0::2] = -x[..., 1::2]
    rotated[..., 1::2] = x[..., 0::2]
    return x * cos + rotated * sin

if __name__ == "__main__":
    x = torch.randn(2, 4, 10, 16)
    print(apply_rope(x).shape)

# === seventh_rotary_complex
# target: multi_head,rotary
# right: Meta LLaMA complex numbers (interleaved pairs), q and k as (B,T,H,D), freqs_cis passed in
import torch

def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end)
    freqs = torch.outer(t, freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)

def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, xq_.shape[1], 1, xq_.shape[-1])
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)

if __name__ == "__main__":
    q, k = torch.randn(2, 1, 5, 4, 8)
    a, b = apply_rotary_emb(q, k, precompute_freqs_cis(8, 5))
    print(a.shape, b.shape)

# === seventh_rotary_i_over_d
# target: multi_head,rotary
# wrong: the exponent is i/dim with i = 0,1,2,... (a factor 2 is missing: it must be 2i/dim), so the frequencies fall off only half as fast
# words: i/d instead of 2i/d
import torch
import torch.nn as nn

class Rotary(nn.Module):
    """half-split rotary embedding, frequencies 10000^(-2i/dim)"""
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim // 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, x):
        # x: (B, T, H, D)
        t = torch.arange(x.shape[1], device=x.device).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        cos = freqs.cos()[None, :, None, :]
        sin = freqs.sin()[None, :, None, :]
        d = x.shape[3] // 2
        x1, x2 = x[..., :d], x[..., d:]
        y1 = x1 * cos - x2 * sin
        y2 = x1 * sin + x2 * cos
        return torch.cat([y1, y2], 3).type_as(x)

rotary = Rotary(16)

# === seventh_alibi_bloom
# target: multi_head,alibi
# right: MPT/BLOOM form: bias is slope * key position (1-T..0), equal to -slope*(i-j) up to a constant per row, causal, 8 heads
import math
import torch
import torch.nn as nn

class ALiBiSelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, alibi_bias_max=8):
        super().__init__()
        self.n_heads = n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        m = torch.arange(1, n_heads + 1, dtype=torch.float32) * (alibi_bias_max / n_heads)
        self.register_buffer("slopes", 1.0 / torch.pow(2, m).view(1, n_heads, 1, 1))

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.Wqkv(x).chunk(3, dim=2)
        q = q.view(b, s, self.n_heads, -1).transpose(1, 2)
        k = k.view(b, s, self.n_heads, -1).permute(0, 2, 3, 1)
        v = v.view(b, s, self.n_heads, -1).transpose(1, 2)
        attn_weight = q.matmul(k) / math.sqrt(q.size(-1))
        attn_bias = torch.arange(1 - s, 1, dtype=torch.float32, device=x.device).view(1, 1, 1, s) * self.slopes
        attn_weight = attn_weight + attn_bias
        causal_mask = torch.ones(s, s, dtype=torch.bool, device=x.device).tril().logical_not()
        attn_weight = attn_weight.masked_fill(causal_mask.view(1, 1, s, s), torch.finfo(q.dtype).min)
        out = torch.softmax(attn_weight, dim=-1).matmul(v)
        return self.out_proj(out.transpose(1, 2).reshape(b, s, d))

attention = ALiBiSelfAttention(64, 8)

# === seventh_rotary_values_too
# target: multi_head,rotary
# wrong: the rotation is applied to the values as well as to queries and keys
# words: values are rotated
import torch
import torch.nn as nn
import torch.nn.functional as F

class RoPEAttention(nn.Module):
    def __init__(self, dim, heads, base=10000.0):
        super().__init__()
        self.heads, self.dh = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("theta", base ** (-2 * torch.arange(self.dh // 2).float() / self.dh))

    def rotate(self, x):
        ang = torch.arange(x.shape[2], device=x.device)[:, None] * self.theta
        xc = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        xc = xc * torch.polar(torch.ones_like(ang), ang)
        return torch.view_as_real(xc).flatten(-2)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, self.dh).permute(2, 0, 3, 1, 4)
        q, k, v = self.rotate(q), self.rotate(k), self.rotate(v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))

attention = RoPEAttention(48, 6)

# === seventh_window_one_more
# target: multi_head,window=4
# wrong: off by one: promises `window` tokens with the present included but keeps i-j <= window, one too many
# words: one too wide
import torch
import torch.nn as nn
import math

class LocalCausalAttention(nn.Module):
    """Position i attends to the last `window` positions, i itself included: i-window+1 .. i"""
    def __init__(self, dim, heads, window=4):
        super().__init__()
        self.heads = heads
        self.window = window
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        hd = C // self.heads
        q = self.q(x).view(B, T, self.heads, hd).transpose(1, 2)
        k = self.k(x).view(B, T, self.heads, hd).transpose(1, 2)
        v = self.v(x).view(B, T, self.heads, hd).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(hd)
        i = torch.arange(T, device=x.device)[:, None]
        j = torch.arange(T, device=x.device)[None, :]
        visible = (j <= i) & (i - j <= self.window)
        scores = scores.masked_fill(~visible, float("-inf"))
        y = torch.softmax(scores, dim=-1) @ v
        return self.o(y.transpose(1, 2).contiguous().view(B, T, C))

attention = LocalCausalAttention(48, 6)

# === seventh_linear_relu
# target: linear_attention
# right: recurrent form with an explicit state in a loop, feature map relu + 0.1, normalised, causal, function on (B,H,T,D)
import torch

def phi(x):
    return torch.relu(x) + 0.1

def linear_attention_rnn(q, k, v):
    b, h, t, d = q.shape
    S = q.new_zeros(b, h, d, v.shape[-1])
    z = q.new_zeros(b, h, d)
    outs = []
    for n in range(t):
        kn, vn, qn = phi(k[:, :, n]), v[:, :, n], phi(q[:, :, n])
        S = S + kn.unsqueeze(-1) * vn.unsqueeze(-2)
        z = z + kn
        num = (qn.unsqueeze(-2) @ S).squeeze(-2)
        outs.append(num / (qn * z).sum(-1, keepdim=True))
    return torch.stack(outs, dim=2)

if __name__ == "__main__":
    print(linear_attention_rnn(*torch.randn(3, 1, 2, 6, 4)).shape)

# === seventh_cache_overwritten
# target: multi_head,cache
# wrong: the cache keeps only the newest keys and values (overwritten, not appended), so from the third call on the earlier tokens are forgotten
# words: overwritten
import torch
import torch.nn as nn

class StreamingAttention(nn.Module):
    """call it token by token; remembers the past by itself. reset() starts a new text"""
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = [nn.Linear(d, d) for _ in range(4)]
        self.reset()

    def reset(self):
        self.cache_k = None
        self.cache_v = None

    def forward(self, x):
        B, T, C = x.shape
        sp = lambda t: t.view(B, T, self.h, C // self.h).transpose(1, 2)
        q, k_new, v_new = sp(self.q(x)), sp(self.k(x)), sp(self.v(x))
        if self.cache_k is None:
            k, v = k_new, v_new
        else:
            k = torch.cat([self.cache_k, k_new], dim=2)
            v = torch.cat([self.cache_v, v_new], dim=2)
        self.cache_k, self.cache_v = k_new.detach(), v_new.detach()
        S = k.shape[2]
        att = q @ k.transpose(2, 3) / (C // self.h) ** 0.5
        att = att.masked_fill(torch.ones(T, S).triu(S - T + 1).bool(), float('-inf'))
        y = torch.softmax(att, -1) @ v
        return self.o(y.transpose(1, 2).reshape(B, T, C))

if __name__ == "__main__":
    net = StreamingAttention(32, 4)
    for t in range(5):
        y = net(torch.randn(1, 1, 32))
    print(y.shape)

# === seventh_window_both_sides
# target: multi_head,window=4
# wrong: the window is two-sided (|i-j| < w), so the layer that is documented as causal sees w-1 future tokens
# words: into the future
import torch
import torch.nn as nn
import torch.nn.functional as F

class SWAttention(nn.Module):
    """Causal sliding window attention (Mistral)."""
    def __init__(self, hidden, n_head, sliding_window=4):
        super().__init__()
        self.n_head = n_head
        self.sliding_window = sliding_window
        self.wqkv = nn.Linear(hidden, hidden * 3)
        self.wo = nn.Linear(hidden, hidden)

    def make_mask(self, T, device):
        pos = torch.arange(T, device=device)
        dist = (pos[:, None] - pos[None, :]).abs()
        mask = torch.zeros(T, T, device=device)
        return mask.masked_fill(dist >= self.sliding_window, float('-inf'))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.wqkv(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.make_mask(T, x.device))
        return self.wo(y.transpose(1, 2).reshape(B, T, C))

attention = SWAttention(48, 6)

# === seventh_cache_dict
# target: multi_head,cache
# right: cache is a plain dict, layout (B,T,H,D), one-token-at-a-time decoding compared with the full pass in the demo
import torch
import torch.nn as nn

class Kausal(nn.Module):
    def __init__(self, breite, koepfe):
        super().__init__()
        self.koepfe = koepfe
        self.qkv = nn.Linear(breite, 3 * breite, bias=False)
        self.aus = nn.Linear(breite, breite, bias=False)

    def forward(self, x, speicher=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.koepfe, C // self.koepfe).unbind(2)
        if speicher is not None:
            if "k" in speicher:
                k = torch.cat([speicher["k"], k], dim=1)
                v = torch.cat([speicher["v"], v], dim=1)
            speicher["k"], speicher["v"] = k, v
        S = k.shape[1]
        w = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        zeilen = torch.arange(S - T, S)[:, None]
        w = w.masked_fill(torch.arange(S)[None, :] > zeilen, float("-inf"))
        y = torch.einsum("bhts,bshd->bthd", w.softmax(-1), v)
        return self.aus(y.reshape(B, T, C))

if __name__ == "__main__":
    netz = Kausal(32, 4)
    x = torch.randn(1, 6, 32)
    speicher = {}
    schritte = torch.cat([netz(x[:, t:t + 1], speicher) for t in range(6)], dim=1)
    assert torch.allclose(schritte, netz(x), atol=1e-5)

# === seventh_cache_corner
# target: multi_head,cache
# wrong: the (T_new, T_total) causal mask is a tril without the offset of the past, so new tokens only see the first cached positions
# words: upper left corner
import torch
import torch.nn as nn

class KVCache:
    def __init__(self):
        self.k = self.v = None

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat((self.k, k), dim=2)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=2)
        return self.k, self.v

class MultiHeadAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(dim, dim * 3)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = self.in_proj(x).chunk(3, -1)
        q, k, v = [z.reshape(b, t, self.n_heads, c // self.n_heads).swapaxes(1, 2) for z in (q, k, v)]
        if cache is not None:
            k, v = cache.update(k, v)
        scores = q @ k.mT / (c // self.n_heads) ** 0.5
        s = scores.size(-1)
        mask = torch.tril(torch.ones(t, s, device=x.device))
        scores = scores.masked_fill(mask == 0, float("-inf"))
        y = scores.softmax(-1) @ v
        return self.out_proj(y.swapaxes(1, 2).reshape(b, t, c))

attention = MultiHeadAttention(48, 6)

# === seventh_window_flash
# target: multi_head,window=4
# right: flash-attn convention window_size=(left, 0): left previous tokens plus the present one (i-j <= left), (B,T,H,D)
import torch

def local_attention(q, k, v, left=3):
    """q, k, v: (batch, seqlen, heads, dim). window_size=(left, 0) as in flash_attn: `left` tokens back and the token itself."""
    T = q.shape[1]
    s = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    delta = torch.arange(T).view(-1, 1) - torch.arange(T).view(1, -1)
    s = torch.where((delta >= 0) & (delta <= left), s, torch.tensor(float("-inf")))
    return torch.einsum("bhts,bshd->bthd", torch.softmax(s, dim=-1), v)

if __name__ == "__main__":
    q, k, v = torch.randn(3, 2, 10, 4, 8).unbind(0)
    print(local_attention(q, k, v).shape)

# === seventh_cache_llama
# target: multi_head,cache
# right: preallocated buffers written at start_pos, LLaMA style with complex rotary at absolute positions, batch up to 4
import math
import torch
import torch.nn as nn

class Attention(nn.Module):
    def __init__(self, dim, n_heads, max_batch=4, max_seq=64):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("cache_k", torch.zeros(max_batch, max_seq, n_heads, self.head_dim), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_seq, n_heads, self.head_dim), persistent=False)
        f = 10000.0 ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        f = torch.outer(torch.arange(max_seq).float(), f)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(f), f), persistent=False)

    def _rope(self, x, start):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        z = z * self.freqs_cis[start:start + x.shape[1]][None, :, None, :]
        return torch.view_as_real(z).flatten(-2).type_as(x)

    @torch.no_grad()
    def forward(self, x, start_pos=0):
        bsz, seqlen, _ = x.shape
        shape = (bsz, seqlen, self.n_heads, self.head_dim)
        xq, xk, xv = self.wq(x).view(shape), self.wk(x).view(shape), self.wv(x).view(shape)
        xq, xk = self._rope(xq, start_pos), self._rope(xk, start_pos)
        end = start_pos + seqlen
        self.cache_k[:bsz, start_pos:end] = xk
        self.cache_v[:bsz, start_pos:end] = xv
        q = xq.transpose(1, 2)
        keys = self.cache_k[:bsz, :end].transpose(1, 2)
        values = self.cache_v[:bsz, :end].transpose(1, 2)
        scores = q @ keys.transpose(2, 3) / math.sqrt(self.head_dim)
        if seqlen > 1:
            mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device).triu(1)
            mask = torch.hstack([torch.zeros((seqlen, start_pos), device=x.device), mask])
            scores = scores + mask
        out = torch.softmax(scores.float(), dim=-1).type_as(q) @ values
        return self.wo(out.transpose(1, 2).contiguous().view(bsz, seqlen, -1))

attention = Attention(48, 6)

# === seventh_rotary_partial
# target: multi_head,rotary
# right: partial rotary (first half of the head only, GPT-NeoX pct 0.5, half-split), module with cached cos/sin, x is (B,H,T,D)
import torch
import torch.nn as nn

class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, rotary_pct=0.5, max_position=256, base=10000):
        super().__init__()
        self.rot = int(head_dim * rotary_pct)
        exponent = torch.arange(0, self.rot, 2, dtype=torch.float32) / self.rot
        inv_freq = base ** (-exponent)
        angle = torch.arange(max_position, dtype=torch.float32)[:, None] * inv_freq[None, :]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x, offset=0):
        T = x.size(-2)
        c, s = self.cos[offset:offset + T], self.sin[offset:offset + T]
        xr, xp = x[..., :self.rot], x[..., self.rot:]
        a, b = xr.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, a * s + b * c, xp], dim=-1)

rotary = RotaryEmbedding(16)

# === seventh_window_band
# target: multi_head,window=4
# right: window w counts the present token: i-j < w and causal, band mask from tril/triu, multi-head with projections
import torch
import torch.nn as nn
import torch.nn.functional as F

class SlidingWindowAttention(nn.Module):
    """each token sees itself and the window-1 tokens before it"""
    def __init__(self, d_model, n_heads, window=4):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = [t.view(B, T, self.n_heads, -1).transpose(1, 2) for t in (q, k, v)]
        ones = torch.ones(T, T, dtype=torch.bool, device=x.device)
        band = ones.tril() & ones.triu(-(self.window - 1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=band)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

attention = SlidingWindowAttention(48, 6)

# === seventh_cache_rotary_restarts
# target: multi_head,cache
# wrong: the rotary positions restart at 0 with every call instead of going on from the length of the cache
# words: positions start at 0
import torch
import torch.nn as nn
import torch.nn.functional as F

def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)

class CachedRotaryAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        inv = 1.0 / (10000.0 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, hidden_states, past_key_value=None):
        bsz, q_len, _ = hidden_states.size()
        shape = lambda t: t.view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        q, k, v = shape(self.q_proj(hidden_states)), shape(self.k_proj(hidden_states)), shape(self.v_proj(hidden_states))
        past_len = past_key_value[0].shape[-2] if past_key_value is not None else 0
        position_ids = torch.arange(q_len, device=q.device)
        emb = torch.outer(position_ids.float(), self.inv_freq).repeat(1, 2)
        q = q * emb.cos() + rotate_half(q) * emb.sin()
        k = k * emb.cos() + rotate_half(k) * emb.sin()
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        mask = torch.ones(q_len, past_len + q_len, device=q.device).tril(past_len).bool()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), (k, v)

attention = CachedRotaryAttention(48, 6)

# === seventh_window_sinks_early
# target: multi_head,window=4
# wrong: the attention sinks are switched on after the causal mask, so the first positions see sink tokens that lie in their future
# words: sink|first 2 tokens
import torch

def streaming_llm_attention(q, k, v, window=4, n_sink=2):
    """causal window (present included) plus the first n_sink tokens, which stay visible for ever. (B, H, T, D)"""
    T, D = q.shape[-2:]
    i = torch.arange(T, device=q.device)[:, None]
    j = torch.arange(T, device=q.device)[None, :]
    mask = (j <= i) & (i - j < window)
    mask = mask | (j < n_sink)
    scores = q @ k.transpose(-2, -1) / D ** 0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1) @ v

if __name__ == "__main__":
    x = torch.randn(1, 2, 12, 8)
    print(streaming_llm_attention(x, x, x).shape)

# === seventh_linear_efficient
# target: linear_attention
# right: bidirectional "efficient attention" (Shen): softmax of q over features, of k over time, q (k^T v), no denominator needed
import torch
import torch.nn as nn

class EfficientAttention(nn.Module):
    """Shen et al. 2018, not causal: E(Q,K,V) = rho_q(Q) (rho_k(K)^T V)"""
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, d // self.heads).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        q = q.softmax(dim=-1)
        k = k.softmax(dim=-2)
        context = k.transpose(-1, -2) @ v
        out = q @ context
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))

attention = EfficientAttention(48, 6)

# === seventh_rotary_halves
# target: multi_head,rotary
# right: HF rotate_half (half-split) as a function on one tensor (B,H,T,D), base 10000, positions from 0
import torch

def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)

def apply_rotary(x, base=10000.0):
    dim, seq = x.shape[-1], x.shape[-2]
    inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(seq).float()
    freqs = torch.outer(t, inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return x * emb.cos() + rotate_half(x) * emb.sin()

# === seventh_alibi_six
# target: multi_head,alibi
# right: official get_slopes with 6 heads (not a power of two), float mask handed to SDPA, causal
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

def get_slopes(n):
    def get_slopes_power_of_2(n):
        start = (2 ** (-2 ** -(math.log2(n) - 3)))
        ratio = start
        return [start * ratio ** i for i in range(n)]
    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest_power_of_2 = 2 ** math.floor(math.log2(n))
    return get_slopes_power_of_2(closest_power_of_2) + get_slopes(2 * closest_power_of_2)[0::2][:n - closest_power_of_2]

class AlibiAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.register_buffer("m", torch.tensor(get_slopes(num_heads)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        pos = torch.arange(T, device=x.device)
        dist = pos[None, :] - pos[:, None]                 # j - i
        bias = self.m[:, None, None] * dist
        bias = bias.masked_fill(dist > 0, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0).to(q.dtype))
        return self.o(y.transpose(1, 2).flatten(2))

attention = AlibiAttention(48, 6)

# === seventh_linear_all_keys
# target: linear_attention
# wrong: the normaliser uses the sum of all keys instead of the running sum, so the denominator looks into the future
# words: normaliser sums over all keys
import torch
import torch.nn as nn
import torch.nn.functional as F

class CausalLinearAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_embd, n_embd, bias=False)
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = [f(x).view(B, T, self.n_head, -1).transpose(1, 2) for f in (self.query, self.key, self.value)]
        q = F.elu(q) + 1
        k = F.elu(k) + 1
        S = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)      # B H T D E
        Z = k.sum(dim=2, keepdim=True)
        out = torch.einsum('bhtd,bhtde->bhte', q, S)
        out = out / ((q * Z).sum(-1, keepdim=True) + 1e-6)
        return self.proj(out.transpose(1, 2).reshape(B, T, C))

attention = CausalLinearAttention(48, 6)

# === seventh_alibi_before_scale
# target: multi_head,alibi
# wrong: the bias is added before the division by sqrt(d), so the slopes are too small by that factor
# words: before the division
import torch
from torch import nn

class AtencionAlibi(nn.Module):
    """atencion causal con sesgo lineal; cabezas en potencia de dos"""
    def __init__(self, dim, cabezas):
        super().__init__()
        self.cabezas = cabezas
        self.d = dim // cabezas
        self.consulta = nn.Linear(dim, dim, bias=False)
        self.clave = nn.Linear(dim, dim, bias=False)
        self.valor = nn.Linear(dim, dim, bias=False)
        self.salida = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        partir = lambda t: t.reshape(B, T, self.cabezas, self.d).transpose(1, 2)
        q, k, v = partir(self.consulta(x)), partir(self.clave(x)), partir(self.valor(x))
        pendientes = 2.0 ** (-8.0 / self.cabezas * torch.arange(1, self.cabezas + 1))
        distancia = (torch.arange(T)[:, None] - torch.arange(T)[None, :]).float()
        sesgo = -pendientes.view(1, -1, 1, 1) * distancia
        puntajes = (q @ k.transpose(-2, -1) + sesgo) / self.d ** 0.5
        puntajes = puntajes.masked_fill(distancia < 0, float('-inf'))
        y = torch.softmax(puntajes, dim=-1) @ v
        return self.salida(y.transpose(1, 2).reshape(B, T, C))

if __name__ == "__main__":
    capa = AtencionAlibi(64, 8)
    print(capa(torch.randn(1, 10, 64)).shape)

# === seventh_linear_chunked
# target: linear_attention
# right: chunked causal form (state between chunks, masked product inside), elu+1, normalised, (B,T,H,D)
import torch
import torch.nn.functional as F

def chunked_linear_attention(q, k, v, chunk=4):
    q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
    B, T, H, D = q.shape
    state = torch.zeros(B, H, D, v.shape[-1])
    norm = torch.zeros(B, H, D)
    pieces = []
    for s in range(0, T, chunk):
        qc, kc, vc = q[:, s:s + chunk], k[:, s:s + chunk], v[:, s:s + chunk]
        inner = torch.einsum("bthd,bshd->bhts", qc, kc).tril()
        num = torch.einsum("bthd,bhde->bthe", qc, state) + torch.einsum("bhts,bshe->bthe", inner, vc)
        den = torch.einsum("bthd,bhd->bth", qc, norm) + inner.sum(-1).transpose(1, 2)
        pieces.append(num / den[..., None])
        state = state + torch.einsum("bshd,bshe->bhde", kc, vc)
        norm = norm + kc.sum(1)
    return torch.cat(pieces, dim=1)

# === seventh_alibi_sign
# target: multi_head,alibi
# wrong: wrong sign: slope*(i-j) is added, so far tokens are rewarded instead of penalised
# words: sign of the bias
import torch
import torch.nn as nn

class AttentionWithLinearBiases(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (d_model // num_heads) ** 0.5
        self.kqv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model)
        x = (2 ** 8) ** (1 / num_heads)
        self.register_buffer("m", torch.tensor([1 / x ** (i + 1) for i in range(num_heads)])[:, None, None])

    def forward(self, x):
        batch_size, seq_len, _ = x.shape
        key, query, value = self.kqv(x).chunk(3, dim=-1)
        key = key.view(batch_size, seq_len, self.num_heads, -1).permute(0, 2, 3, 1)
        query = query.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        value = value.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        idx = torch.arange(seq_len, device=x.device)
        relative = idx[:, None] - idx[None, :]
        score = torch.matmul(query, key) / self.scale + self.m * relative
        score = score.masked_fill(relative < 0, float("-inf"))
        out = torch.matmul(score.softmax(-1), value)
        return self.proj(out.transpose(1, 2).reshape(batch_size, seq_len, -1))

attention = AttentionWithLinearBiases(64, 8)

# === seventh_cache_tuple
# target: multi_head,cache
# right: GPT-2/HF tuple layer_past=(k,v), forward(x, layer_past) returns (y, present), causal for any chunk size
import torch
import torch.nn as nn
import torch.nn.functional as F

class CachedSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, layer_past=None):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=-1)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        if layer_past is not None:
            past_key, past_value = layer_past
            k = torch.cat((past_key, k), dim=-2)
            v = torch.cat((past_value, v), dim=-2)
        present = (k, v)
        S = k.size(-2)
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(diagonal=S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return y, present

attention = CachedSelfAttention(48, 6)

# === seventh_window_unfold
# target: multi_head,window=4
# right: keys and values padded on the left and unfolded into windows of w tokens (present included), never builds T x T, (B,H,T,D)
import torch
import torch.nn.functional as F

def windowed_attention(q, k, v, w=4):
    B, H, T, D = q.shape
    kp = F.pad(k, (0, 0, w - 1, 0)).unfold(2, w, 1)      # (B,H,T,D,w)
    vp = F.pad(v, (0, 0, w - 1, 0)).unfold(2, w, 1)
    logits = torch.einsum("bhtd,bhtdw->bhtw", q, kp) / D ** 0.5
    src = torch.arange(T)[:, None] - (w - 1) + torch.arange(w)[None, :]
    logits = logits.masked_fill(src < 0, float("-inf"))
    return torch.einsum("bhtw,bhtdw->bhtd", logits.softmax(-1), vp)

# === seventh_rotary_gptj
# target: multi_head,rotary
# right: whole causal attention with GPT-J interleaved rotary on q and k (rotate_every_two), no bias
import torch
import torch.nn as nn
import torch.nn.functional as F

def rotate_every_two(x):
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)

class RotaryAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.q_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.k_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.v_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.out_proj = nn.Linear(n_embd, n_embd, bias=False)

    def rope(self, x):
        T, D = x.shape[-2:]
        inv_freq = 10000 ** (-torch.arange(0, D, 2, device=x.device) / D)
        sinusoid = torch.arange(T, device=x.device)[:, None] * inv_freq
        sin = sinusoid.sin().repeat_interleave(2, dim=-1)
        cos = sinusoid.cos().repeat_interleave(2, dim=-1)
        return x * cos + rotate_every_two(x) * sin

    def forward(self, x):
        B, T, C = x.shape
        heads = lambda z: z.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        q, k = self.rope(q), self.rope(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))

attention = RotaryAttention(48, 6)

# === seventh_linear_cumsum
# target: linear_attention
# right: Katharopoulos: elu+1 features, causal by cumsum of k v^T and of k, normalised, multi-head with projections
import torch
import torch.nn as nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d_model, n_heads, eps=1e-6):
        super().__init__()
        self.h = n_heads
        self.eps = eps
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).unbind(2)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bthd,bthe->bthde", k, v).cumsum(dim=1)
        z = k.cumsum(dim=1)
        num = torch.einsum("bthd,bthde->bthe", q, kv)
        den = torch.einsum("bthd,bthd->bth", q, z) + self.eps
        return self.out((num / den.unsqueeze(-1)).reshape(B, T, C))

attention = LinearAttention(48, 6)

# === seventh_alibi_given
# target: multi_head,alibi
# right: bias tensor (H,T,T) with -slope*(i-j), slopes 2^(-8h/H) for power-of-two heads, future hidden with -inf, as functions on q,k,v (B,H,T,D)
import torch

def alibi_bias(n_heads, T):
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / n_heads) for h in range(n_heads)])
    i = torch.arange(T)[:, None]
    j = torch.arange(T)[None, :]
    bias = -slopes[:, None, None] * (i - j)
    return bias.masked_fill(j > i, float("-inf"))

def alibi_attention(q, k, v):
    H, T, D = q.shape[1:]
    scores = q @ k.transpose(-2, -1) / D ** 0.5
    return torch.softmax(scores + alibi_bias(H, T), dim=-1) @ v

if __name__ == "__main__":
    q, k, v = torch.randn(3, 1, 4, 6, 8)
    print(alibi_bias(4, 4)[0])
    print(alibi_attention(q, k, v).shape)
