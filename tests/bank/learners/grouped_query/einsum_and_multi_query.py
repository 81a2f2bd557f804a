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
