# Groups as an axis of the queries, keys never repeated; one key head for all (multi-query); functions of given heads.
# target: grouped_query

# === queries_with_a_group_axis
# right: grouped einsum, keys never repeated, query heads (G, R)
import torch
from torch import nn

class Grouped(nn.Module):
    def __init__(self, d_model=72, num_heads=6, num_kv_heads=3):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.d_head = num_heads, num_kv_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.d_head)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.d_head)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.num_kv_heads, self.num_heads // self.num_kv_heads, self.d_head)
        k = self.k_proj(x).view(b, n, self.num_kv_heads, self.d_head)
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.d_head)
        s = torch.einsum("bigrd,bjgd->bgrij", q, k) / self.d_head**0.5
        s = s.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
        y = torch.einsum("bgrij,bjgd->bigrd", s.softmax(-1), v)
        return self.o_proj(y.flatten(2))

attention = Grouped()

# === heads_joined_in_another_order
# of: queries_with_a_group_axis
# convention: the output's heads are written as (R, G): another order of the heads before the learned projection
#-        y = torch.einsum("bgrij,bjgd->bigrd", s.softmax(-1), v)
#+        y = torch.einsum("bgrij,bjgd->birgd", s.softmax(-1), v)

# === divides_by_root_of_all_keys
# of: queries_with_a_group_axis
# wrong: divides by the square root of the keys' whole width, G d, instead of d
# words: G d|key|sqrt|scale|all
#-        s = torch.einsum("bigrd,bjgd->bgrij", q, k) / self.d_head**0.5
#+        s = torch.einsum("bigrd,bjgd->bgrij", q, k) / self.k_proj.out_features**0.5

# === weights_with_group_axes
# right: no repetition: weights and queries carry (group, query-in-group) axes, einsum throughout; 3 kv heads
"""GQA without ever copying keys or values: give the queries an extra axis instead.

b batch, t/s time of query/key, g group (= kv head), r queries per group, d head dim
"""
import torch
from torch import nn, einsum

class GQA(nn.Module):
    def __init__(self, width: int, q_heads: int = 6, kv_heads: int = 3):
        super().__init__()
        d = width // q_heads
        self.g, self.r, self.d = kv_heads, q_heads // kv_heads, d
        self.wq = nn.Parameter(torch.randn(width, kv_heads, q_heads // kv_heads, d) * width ** -0.5)
        self.wk = nn.Parameter(torch.randn(width, kv_heads, d) * width ** -0.5)
        self.wv = nn.Parameter(torch.randn(width, kv_heads, d) * width ** -0.5)
        self.wo = nn.Parameter(torch.randn(kv_heads, q_heads // kv_heads, d, width) * width ** -0.5)

    def forward(self, x):
        q = einsum("btw,wgrd->btgrd", x, self.wq)
        k = einsum("bsw,wgd->bsgd", x, self.wk)
        v = einsum("bsw,wgd->bsgd", x, self.wv)
        logits = einsum("btgrd,bsgd->bgrts", q, k).mul(self.d ** -0.5)
        t = torch.arange(x.shape[1], device=x.device)
        logits = logits.masked_fill(t[None, :] > t[:, None], float("-inf"))
        w = logits.softmax(dim=-1)
        y = einsum("bgrts,bsgd->btgrd", w, v)
        return einsum("btgrd,grdw->btw", y, self.wo)

# === parameters_of_heads_repeated
# right: weights of three axes, keys repeated, one einsum of three operands at the end
import torch
from torch import nn

class G(nn.Module):
    def __init__(s, D, H, K):
        super().__init__()
        s.D, s.H, s.K, s.E = D, H, K, D // H
        s.q = nn.Parameter(torch.randn(D, H, s.E) * D**-.5)
        s.k = nn.Parameter(torch.randn(D, K, s.E) * D**-.5)
        s.v = nn.Parameter(torch.randn(D, K, s.E) * D**-.5)
        s.o = nn.Parameter(torch.randn(H, s.E, D) * D**-.5)

    def forward(s, x):
        B, T, D = x.shape
        q = torch.einsum('btd,dhe->bhte', x, s.q)
        k = torch.einsum('btd,dhe->bhte', x, s.k).repeat_interleave(s.H // s.K, 1)
        v = torch.einsum('btd,dhe->bhte', x, s.v).repeat_interleave(s.H // s.K, 1)
        a = torch.einsum('bhie,bhje->bhij', q, k) * s.E ** -0.5
        a = a.masked_fill(torch.ones(T, T).tril() == 0, -float('inf'))
        a = a.softmax(-1)
        return torch.einsum('bhij,bhje,hed->bid', a, v, s.o)

attention = G(32, 4, 2)

# === parameters_of_heads_divided_by_root_of_width
# of: parameters_of_heads_repeated
# wrong: the scale is the root of the model's width, not of the head's
# words: sqrt(D)
#-        a = torch.einsum('bhie,bhje->bhij', q, k) * s.E ** -0.5
#+        a = torch.einsum('bhie,bhje->bhij', q, k) * D ** -0.5

# === multi_query
# right: one key head for all, by broadcasting
import torch
from torch import nn

class MQA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.to_q, self.to_k, self.to_v, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, self.d), nn.Linear(dim, self.d), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q = self.to_q(x).reshape(b, n, self.heads, self.d).transpose(1, 2)
        k, v = self.to_k(x)[:, None], self.to_v(x)[:, None]
        s = q @ k.transpose(-1, -2) / self.d**0.5
        s = s + torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))

attention = MQA(50, 5)

# === multi_query_divides_by_root_of_width
# of: multi_query
# wrong: divides by sqrt(D), not by the root of the one key head's width
# words: width of the model|sqrt(D)
#-        s = q @ k.transpose(-1, -2) / self.d**0.5
#+        s = q @ k.transpose(-1, -2) / c**0.5

# === multi_query_sees_the_next_token
# of: multi_query
# wrong: the mask begins one too late: every token sees the next one
# words: next token
#-        s = s + torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
#+        s = s + torch.triu(torch.full((n, n), float("-inf")), diagonal=2)

# === multi_query_by_einsum
# of: multi_query
# right: keys and values without an axis for heads, by einsum
#-        q = self.to_q(x).reshape(b, n, self.heads, self.d).transpose(1, 2)
#-        k, v = self.to_k(x)[:, None], self.to_v(x)[:, None]
#-        s = q @ k.transpose(-1, -2) / self.d**0.5
#+        q = self.to_q(x).reshape(b, n, self.heads, self.d)
#+        k, v = self.to_k(x), self.to_v(x)
#+        s = torch.einsum("bthd,bsd->bhts", q, k) / self.d**0.5
#-        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))
#+        return self.to_out(torch.einsum("bhts,bsd->bthd", s.softmax(-1), v).reshape(b, n, c))

# === multi_query_heads_folded_into_time
# right: joined layer (embed, head, head); heads folded into the time axis and bmm with one shared key
import torch
from torch import nn

class MultiQueryAttention(nn.Module):
    """n_head query heads, a single key head and a single value head (Shazeer 2019)."""

    def __init__(self, embed_dim, n_head):
        super().__init__()
        self.embed_dim, self.n_head = embed_dim, n_head
        self.head_dim = embed_dim // n_head
        self.c_attn = nn.Linear(embed_dim, embed_dim + 2 * self.head_dim)
        self.c_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden):
        B, T, _ = hidden.shape
        query, key, value = self.c_attn(hidden).split((self.embed_dim, self.head_dim, self.head_dim), dim=2)
        # fold the heads into the time axis: keys and values are shared by all of them
        query = query.reshape(B, T * self.n_head, self.head_dim) / self.head_dim ** 0.5
        att = torch.bmm(query, key.transpose(1, 2)).view(B, T, self.n_head, T)
        allowed = torch.ones(T, T, dtype=torch.bool, device=hidden.device).tril().view(1, T, 1, T)
        att = att.masked_fill(~allowed, torch.finfo(att.dtype).min).softmax(dim=-1)
        out = torch.bmm(att.view(B, T * self.n_head, T), value).view(B, T, self.embed_dim)
        return self.c_proj(out)

attention = MultiQueryAttention(48, 6)

# === multi_query_of_parameters
# right: weights of each query head, one of keys, by einsum; the output's stored (heads, D, d)
import torch
from torch import nn, einsum

class MultiQueryAttention(nn.Module):
    # Shazeer 2019, "One write-head is all you need", appendix style einsums

    def __init__(self, dim, heads=8):
        super().__init__()
        k = dim // heads
        self.P_q = nn.Parameter(torch.randn(heads, dim, k) * dim ** -0.5)
        self.P_k = nn.Parameter(torch.randn(dim, k) * dim ** -0.5)
        self.P_v = nn.Parameter(torch.randn(dim, k) * dim ** -0.5)
        self.P_o = nn.Parameter(torch.randn(heads, dim, k) * dim ** -0.5)

    def forward(self, X):
        n = X.shape[1]
        Q = einsum('bnd,hdk->bhnk', X, self.P_q)
        K = einsum('bmd,dk->bmk', X, self.P_k)
        V = einsum('bmd,dv->bmv', X, self.P_v)
        logits = einsum('bhnk,bmk->bhnm', Q, K) / K.shape[-1] ** 0.5
        future = torch.arange(n)[:, None] < torch.arange(n)
        weights = logits.masked_fill(future.to(X.device), -1e30).softmax(-1)
        O = einsum('bhnm,bmv->bhnv', weights, V)
        return einsum('bhnv,hdv->bnd', O, self.P_o)

# === grouped_function_heads_before_time
# right: pure function on q (B,H,T,D), k and v (B,Hkv,T,D): q viewed as groups, no copies
import torch

def grouped_query_attention(q, k, v):
    """Query head h uses key/value head h // (H / Hkv)."""
    B, H, T, D = q.shape
    Hkv = k.shape[1]
    G = H // Hkv
    q = q.reshape(B, Hkv, G, T, D)
    scores = torch.einsum("bkgtd,bksd->bkgts", q, k) * D ** -0.5
    mask = torch.arange(T).unsqueeze(0) > torch.arange(T).unsqueeze(1)
    scores = scores.masked_fill(mask.to(q.device), float("-inf"))
    out = torch.einsum("bkgts,bksd->bkgtd", scores.softmax(-1), v)
    return out.reshape(B, H, T, D)

# === grouped_function_time_before_heads
# right: function on q (B,T,H,D) and k, v (B,T,G,D); five-index einsum, consecutive query heads share a kv head, causal
import torch

def grouped_query_attention(q, k, v):
    B, T, H, D = q.shape
    G = k.shape[2]
    R = H // G
    q = q.reshape(B, T, G, R, D) * D ** -0.5
    sim = torch.einsum("btgrd,bsgd->bgrts", q, k)
    allowed = torch.arange(T)[:, None] >= torch.arange(T)[None]
    sim = sim.masked_fill(~allowed, float("-inf"))
    out = torch.einsum("bgrts,bsgd->btgrd", sim.softmax(-1), v)
    return out.reshape(B, T, H, D)

if __name__ == "__main__":
    q, k, v = torch.randn(2, 7, 6, 8), torch.randn(2, 7, 2, 8), torch.randn(2, 7, 2, 8)
    print(grouped_query_attention(q, k, v).shape)
