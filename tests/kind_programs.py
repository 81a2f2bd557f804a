# ruff: noqa: E501
"""Programs as learners write them, of kinds beyond softmax attention; each with wrong lines in the place of right ones."""

HEAD = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
PROGRAMS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {}
"""name: (kind, code, [(line, wrong line)])."""

PROGRAMS["window"] = (
    "sliding_window",
    """
class SWA(nn.Module):
    def __init__(self, dim, n_heads, window_size):
        super().__init__()
        self.n_heads, self.window_size = n_heads, window_size
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.Wqkv(x).chunk(3, dim=-1)
        q, k, v = [z.view(B, T, self.n_heads, -1).transpose(1, 2) for z in (q, k, v)]
        att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        i = torch.arange(T)
        ok = (i[None, :] <= i[:, None]) & (i[:, None] - i[None, :] < self.window_size)
        att = att.masked_fill(~ok, float("-inf")).softmax(-1)
        return self.out_proj((att @ v).transpose(1, 2).reshape(B, T, C))

attention = SWA(24, 4, 3)
""",
    [
        ("i[None, :] < self.window_size", "i[None, :] <= self.window_size"),
        ("(i[None, :] <= i[:, None])", "(i[None, :] < i[:, None] + 2)"),
        ("math.sqrt(q.size(-1))", "math.sqrt(C)"),
        ("i[:, None] - i[None, :] < self", "i[None, :] - i[:, None] < self"),
    ],
)

PROGRAMS["softcap"] = (
    "soft_cap",
    """
class GemmaAttention(nn.Module):
    def __init__(self, hidden, heads, kv_heads, cap):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim, self.cap = heads, kv_heads, hidden // heads, cap
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)

    def forward(self, hidden_states):
        b, t, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = k.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        v = v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        scores = torch.matmul(q, k.transpose(2, 3)) * self.head_dim**-0.5
        scores = torch.tanh(scores / self.cap) * self.cap
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
        w = F.softmax(scores, dim=-1)
        return self.o_proj((w @ v).transpose(1, 2).reshape(b, t, -1))

attention = GemmaAttention(24, 4, 2, 2.0)
""",
    [
        ("torch.tanh(scores / self.cap) * self.cap", "torch.tanh(scores) * self.cap"),
        ("torch.tanh(scores / self.cap) * self.cap", "torch.tanh(scores / self.cap)"),
        ("triu(1)", "triu(2)"),
        (
            "v = v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)",
            "v = v.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)",
        ),
        (" * self.head_dim**-0.5", ""),
    ],
)

PROGRAMS["mla"] = (
    "latent",
    """
class RMS(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.g = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g

class MLA(nn.Module):
    def __init__(self, d_model, n_heads, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        self.n_heads, self.kv_lora_rank, self.qk_rope_head_dim = n_heads, kv_lora_rank, qk_rope_head_dim
        self.d = d_model // n_heads
        self.q_proj = nn.Linear(d_model, n_heads * (self.d + qk_rope_head_dim), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(d_model, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = RMS(kv_lora_rank)
        self.kv_b_proj = nn.Linear(kv_lora_rank, n_heads * 2 * self.d, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, -1).transpose(1, 2)
        c, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(c)).view(B, T, self.n_heads, 2 * self.d).transpose(1, 2)
        k_nope, v = kv.split([self.d, self.d], dim=-1)
        k = torch.cat([k_nope, k_pe.unsqueeze(1).expand(-1, self.n_heads, -1, -1)], dim=-1)
        scores = q @ k.mT * (self.d + self.qk_rope_head_dim) ** -0.5
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

attention = MLA(24, 3, 10, 4)
""",
    [("(self.d + self.qk_rope_head_dim) ** -0.5", "self.d ** -0.5"), (".triu(1)", ".triu(2)")],
)

PROGRAMS["mla_parts"] = (
    "latent",
    """
class MultiheadLatent(nn.Module):
    def __init__(self, d_model, heads, rank, rope_dim):
        super().__init__()
        self.heads, self.hd, self.rope_dim, self.rank = heads, d_model // heads, rope_dim, rank
        self.W_dkv = nn.Linear(d_model, rank, bias=False)
        self.W_kr = nn.Linear(d_model, rope_dim, bias=False)
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_qr = nn.Linear(d_model, heads * rope_dim, bias=False)
        self.W_uk = nn.Linear(rank, d_model, bias=False)
        self.W_uv = nn.Linear(rank, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        c = self.W_dkv(x)
        split = lambda z: z.view(B, T, self.heads, -1).transpose(1, 2)
        s = split(self.W_q(x)) @ split(self.W_uk(c)).mT + split(self.W_qr(x)) @ self.W_kr(x)[:, None].mT
        s = s / math.sqrt(self.hd + self.rope_dim)
        s = torch.where(torch.ones(T, T, dtype=torch.bool).tril(), s, -torch.inf)
        return self.W_o((s.softmax(-1) @ split(self.W_uv(c))).transpose(1, 2).reshape(B, T, D))

attention = MultiheadLatent(24, 3, 10, 4)
""",
    [
        ("math.sqrt(self.hd + self.rope_dim)", "math.sqrt(self.hd)"),
        (".tril(), s", ".tril(-1) | torch.eye(T).bool() | torch.ones(T, T).triu(1).tril(1).bool(), s"),
    ],
)

PROGRAMS["deltanet"] = (
    "delta_net",
    """
class DeltaNet(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.b_proj = nn.Linear(dim, heads, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        H, d = self.heads, D // self.heads
        q = F.silu(self.q(x)).view(B, T, H, d)
        k = F.silu(self.k(x)).view(B, T, H, d)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        v = self.v(x).view(B, T, H, d)
        beta = torch.sigmoid(self.b_proj(x))
        S = x.new_zeros(B, H, d, d)
        out = []
        for t in range(T):
            kt, vt, bt = k[:, t], v[:, t], beta[:, t, :, None]
            old = torch.einsum("bhd,bhde->bhe", kt, S)
            S = S + torch.einsum("bhd,bhe->bhde", kt, bt * (vt - old))
            out.append(torch.einsum("bhd,bhde->bhe", q[:, t] * d**-0.5, S))
        y = torch.stack(out, 1)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-12)
        return self.o(y.reshape(B, T, D))

attention = DeltaNet(24, 3)
""",
    [
        ("bt * (vt - old)", "bt * vt - old"),
        ("bt * (vt - old)", "vt - bt * old"),
        ("torch.sigmoid(self.b_proj(x))", "self.b_proj(x)"),
        (
            '            S = S + torch.einsum("bhd,bhe->bhde", kt, bt * (vt - old))\n            out.append(torch.einsum("bhd,bhde->bhe", q[:, t] * d**-0.5, S))',
            '            out.append(torch.einsum("bhd,bhde->bhe", q[:, t] * d**-0.5, S))\n            S = S + torch.einsum("bhd,bhe->bhde", kt, bt * (vt - old))',
        ),
        ("bt * (vt - old)", "bt * (vt + old)"),
    ],
)

PROGRAMS["gated_delta"] = (
    "gated_delta_net",
    """
class GatedDeltaNet(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.a_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(num_heads))
        self.dt_bias = nn.Parameter(torch.ones(num_heads))
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (z.view(B, T, self.num_heads, self.head_dim) for z in self.qkv(x).chunk(3, -1))
        q, k = F.normalize(F.silu(q), dim=-1) / self.head_dim**0.5, F.normalize(F.silu(k), dim=-1)
        beta = self.b_proj(x).sigmoid()
        g = -self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias)
        state, ys = torch.zeros(B, self.num_heads, self.head_dim, self.head_dim, dtype=x.dtype), []
        for t in range(T):
            state = state * g[:, t].exp()[..., None, None]
            read = (state * k[:, t, :, :, None]).sum(-2)
            delta = (v[:, t] - read) * beta[:, t, :, None]
            state = state + k[:, t, :, :, None] * delta[:, :, None, :]
            ys.append((state * q[:, t, :, :, None]).sum(-2))
        y = torch.stack(ys, 1)
        y = F.rms_norm(y, (self.head_dim,), eps=1e-12)
        return self.o_proj(y.flatten(2))

attention = GatedDeltaNet(24, 3)
""",
    [
        ("g[:, t].exp()", "(-g[:, t]).exp()"),
        ("-self.A_log.exp() * F.softplus", "-self.A_log * F.softplus"),
        ("F.softplus(self.a_proj(x) + self.dt_bias)", "(self.a_proj(x) + self.dt_bias).sigmoid()"),
        ("(v[:, t] - read) * beta[:, t, :, None]", "v[:, t] * beta[:, t, :, None]"),
        (
            "            state = state * g[:, t].exp()[..., None, None]\n            read = (state * k[:, t, :, :, None]).sum(-2)",
            "            read = (state * k[:, t, :, :, None]).sum(-2)\n            state = state * g[:, t].exp()[..., None, None]",
        ),
    ],
)

PROGRAMS["gla"] = (
    "gated_linear",
    """
class GLA(nn.Module):
    def __init__(self, d, h, low_rank=16):
        super().__init__()
        self.h = h
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.gk_proj = nn.Sequential(nn.Linear(d, low_rank, bias=False), nn.Linear(low_rank, d))
        self.o_proj = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v, g = [f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj, self.gk_proj)]
        alpha = torch.sigmoid(g) ** (1 / 16)
        q = q * q.shape[-1] ** -0.5
        S, out = 0.0, []
        for i in range(n):
            S = S * alpha[:, :, i, :, None] + k[:, :, i, :, None] * v[:, :, i, None, :]
            out.append((q[:, :, i, None, :] @ S).squeeze(2))
        o = torch.stack(out, 2)
        o = o / (o.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return self.o_proj(o.transpose(1, 2).reshape(b, n, d))

attention = GLA(24, 3)
""",
    [
        ("torch.sigmoid(g) ** (1 / 16)", "torch.sigmoid(g)"),
        ("alpha[:, :, i, :, None] +", "alpha[:, :, i, None, :] +"),
        ("S = S * alpha[:, :, i, :, None] + k", "S = S + alpha[:, :, i, :, None] * k"),
        ("torch.sigmoid(g) ** (1 / 16)", "g.exp() ** (1 / 16)"),
    ],
)

PROGRAMS["retnet"] = (
    "retention",
    """
class MultiScaleRetention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.dk = num_heads, embed_dim // num_heads
        self.W_Q = nn.Parameter(torch.randn(embed_dim, embed_dim) / embed_dim)
        self.W_K = nn.Parameter(torch.randn(embed_dim, embed_dim) / embed_dim)
        self.W_V = nn.Parameter(torch.randn(embed_dim, embed_dim) / embed_dim)
        self.W_O = nn.Parameter(torch.randn(embed_dim, embed_dim) / embed_dim)
        self.register_buffer("gammas", 1 - 2.0 ** (-5 - torch.arange(num_heads, dtype=torch.float64)))

    def forward(self, X):
        B, T, D = X.shape
        Q, K, V = [(X @ W).reshape(B, T, self.num_heads, self.dk).permute(0, 2, 1, 3) for W in (self.W_Q, self.W_K, self.W_V)]
        n = torch.arange(T, dtype=torch.float64)
        decay = (self.gammas.double()[:, None, None] ** (n[:, None] - n[None, :])).tril()
        ret = (Q @ K.mT / math.sqrt(self.dk) * decay) @ V
        ret = ret / (ret.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt()
        return ret.permute(0, 2, 1, 3).reshape(B, T, D) @ self.W_O

attention = MultiScaleRetention(24, 3)
""",
    [("(-5 - torch.arange", "(-4 - torch.arange"), (".tril()\n", "\n"), ("* decay) @ V", "+ decay) @ V")],
)

PROGRAMS["diff"] = (
    "differential",
    """
class DiffAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, depth=0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads // 2
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.lambda_q1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_q2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.subln = nn.Parameter(torch.ones(2 * self.head_dim))

    def forward(self, x):
        bsz, n, _ = x.shape
        q = self.q_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, self.num_heads, 2 * self.head_dim).transpose(1, 2)
        a = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        a = (a + torch.triu(torch.full((n, n), -torch.inf), 1)).softmax(-1).view(bsz, self.num_heads, 2, n, n)
        lam = (self.lambda_q1 * self.lambda_k1).sum().exp() - (self.lambda_q2 * self.lambda_k2).sum().exp() + self.lambda_init
        a = a[:, :, 0] - lam * a[:, :, 1]
        y = a @ v
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.subln * (1 - self.lambda_init)
        return self.out_proj(y.transpose(1, 2).reshape(bsz, n, -1))

attention = DiffAttention(24, 3)
""",
    [
        ("a[:, :, 0] - lam * a", "a[:, :, 0] + lam * a"),
        (".exp() + self.lambda_init", ".exp()"),
        (" * (1 - self.lambda_init)", ""),
        ("self.head_dim**-0.5", "(2 * self.head_dim)**-0.5"),
    ],
)

PROGRAMS["sigmoid"] = (
    "sigmoid",
    """
class SigmoidAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.full((heads, 1, 1), -3.0))

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.to_qkv(x).reshape(b, n, self.heads, 3, -1)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        s = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + self.bias
        s = s.sigmoid().tril()
        return self.to_out(torch.einsum("bhij,bhjd->bihd", s, v).flatten(2))

attention = SigmoidAttention(24, 3)
""",
    [
        ("s.sigmoid().tril()", "s.tril().sigmoid()"),
        (" + self.bias", ""),
        ("s.sigmoid().tril()", "s.softmax(-1).tril()"),
        ("+ self.bias", "- self.bias"),
    ],
)

PROGRAMS["sinks"] = (
    "sink",
    """
class SinkAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.sinks = nn.Parameter(torch.zeros(n_head))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
        e = att.exp()
        att = e / (e.sum(-1, keepdim=True) + self.sinks.exp()[:, None, None])
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))

attention = SinkAttention(24, 4)
""",
    [
        ("self.sinks.exp()[:, None, None]", "self.sinks[:, None, None]"),
        ("math.sqrt(k.size(-1))", "k.size(-1)"),
        (" + self.sinks.exp()[:, None, None]", ""),
    ],
)

PROGRAMS["talking"] = (
    "talking_heads",
    """
class TalkingHeads(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.proj_l = nn.Linear(num_heads, num_heads, bias=False)
        self.proj_w = nn.Linear(num_heads, num_heads, bias=False)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = q * self.scale @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = attn.masked_fill(torch.ones(N, N).triu(1) > 0, -torch.inf).softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

attention = TalkingHeads(24, 4)
""",
    [
        ("        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)\n", ""),
        ("q * self.scale @", "q @"),
        (".triu(1) > 0", ".triu() > 1"),
    ],
)

PROGRAMS["fox"] = (
    "forgetting",
    """
class ForgettingAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False), nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj, self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False), nn.Linear(hidden_size, hidden_size, bias=False)
        self.fgate_proj = nn.Linear(hidden_size, num_heads, bias=True)

    def forward(self, x):
        b, l, _ = x.shape
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        log_f = F.logsigmoid(self.fgate_proj(x)).transpose(1, 2)
        c = log_f.cumsum(-1)
        bias = c[..., :, None] - c[..., None, :]
        s = q @ k.mT / q.shape[-1] ** 0.5 + bias
        s = s.masked_fill(~torch.ones(l, l, dtype=torch.bool).tril(), float("-inf"))
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(-2))

attention = ForgettingAttention(24, 3)
""",
    [
        ("c[..., :, None] - c[..., None, :]", "c[..., None, :] - c[..., :, None]"),
        ("F.logsigmoid(self.fgate_proj(x))", "torch.sigmoid(self.fgate_proj(x))"),
        ("log_f.cumsum(-1)", "log_f"),
    ],
)

PROGRAMS["gated_out"] = (
    "gated",
    """
class GatedAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo, self.wg = (nn.Linear(d_model, d_model, bias=False) for _ in range(5))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (w(x).view(B, T, self.n_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        return self.wo(y * torch.sigmoid(self.wg(x)))

attention = GatedAttention(24, 4)
""",
    [
        ("self.wo(y * torch.sigmoid(self.wg(x)))", "self.wo(y) * torch.sigmoid(self.wg(x))"),
        ("torch.sigmoid(self.wg(x))", "self.wg(x)"),
        ("self.wg(x)", "self.wg(y)"),
    ],
)

PROGRAMS["ssd"] = (
    "mamba2",
    """
class SSD(nn.Module):
    def __init__(self, dim, nheads):
        super().__init__()
        self.nheads = nheads
        self.C, self.B, self.x_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.dt_proj = nn.Linear(dim, nheads)
        self.A_log = nn.Parameter(torch.zeros(nheads))
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, u):
        b, l, d = u.shape
        heads = lambda z: z.view(b, l, self.nheads, -1)
        C, B, x = heads(F.silu(self.C(u))), heads(F.silu(self.B(u))), heads(self.x_proj(u))
        dt = F.softplus(self.dt_proj(u))
        dA = torch.exp(-dt * torch.exp(self.A_log))
        h, ys = torch.zeros(b, self.nheads, B.shape[-1], x.shape[-1], dtype=u.dtype), []
        for t in range(l):
            h = h * dA[:, t, :, None, None] + dt[:, t, :, None, None] * B[:, t, :, :, None] * x[:, t, :, None, :]
            ys.append(torch.einsum("bhn,bhnp->bhp", C[:, t], h))
        y = torch.stack(ys, 1) / C.shape[-1] ** 0.5
        y = y / torch.sqrt(y.square().mean(-1, keepdim=True) + 1e-12)
        return self.out_proj(y.flatten(2))

attention = SSD(24, 3)
""",
    [
        ("dt[:, t, :, None, None] * B[:", "B[:"),
        ("torch.exp(-dt * torch.exp(self.A_log))", "torch.exp(-torch.exp(self.A_log)) + 0 * dt"),
        ("F.softplus(self.dt_proj(u))", "self.dt_proj(u).exp()"),
    ],
)

PROGRAMS["topk"] = (
    "top_k",
    """
class TopKAttention(nn.Module):
    def __init__(self, d, h, topk):
        super().__init__()
        self.h, self.topk = h, topk
        self.q, self.k, self.v, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (f(x).view(B, T, self.h, D // self.h).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.mT / (D // self.h) ** 0.5
        s = s.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        kth = s.topk(min(self.topk, T), dim=-1).values[..., -1:]
        s = s.masked_fill(s < kth, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

attention = TopKAttention(24, 4, 3)
""",
    [("s < kth", "s <= kth - 1e30"), ("values[..., -1:]", "values[..., -2:-1]"), ("(D // self.h) ** 0.5", "D ** 0.5")],
)

FUNCTIONS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {}
"""The same for functions of queries, keys, values and gates."""

FUNCTIONS["delta"] = (
    "delta_net",
    """
def delta_rule(q, k, v, beta):
    B, H, T, d = q.shape
    S = q.new_zeros(B, H, d, v.shape[-1]); out = []
    for t in range(T):
        kt, vt, bt = k[:, :, t], v[:, :, t], beta[:, :, t, None]
        old = (S * kt[..., None]).sum(-2)
        S = S + kt[..., None] * (bt * (vt - old))[..., None, :]
        out.append((S * q[:, :, t, :, None]).sum(-2))
    return torch.stack(out, 2)
attention = delta_rule
""",
    [("bt * (vt - old)", "bt * vt - old"), ("(vt - old)", "(vt + old)")],
)

FUNCTIONS["gated_delta"] = (
    "gated_delta_net",
    """
def gdn(q, k, v, g, beta, scale=None):
    B, T, H, d = q.shape
    q = F.silu(q); k = F.silu(k)
    q, k = q / (q.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt(), k / (k.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    q = q * (scale or d ** -0.5)
    S = torch.zeros(B, H, d, d, dtype=q.dtype); o = torch.zeros_like(v)
    for i in range(T):
        S = S * g[:, i].exp()[..., None, None]
        u = beta[:, i, :, None] * (v[:, i] - torch.einsum("bhd,bhde->bhe", k[:, i], S))
        S = S + torch.einsum("bhd,bhe->bhde", k[:, i], u)
        o[:, i] = torch.einsum("bhd,bhde->bhe", q[:, i], S)
    return o
attention = gdn
""",
    [("(v[:, i] - torch", "(v[:, i] + torch"), ("beta[:, i, :, None] * (", "(")],
)

FUNCTIONS["win"] = (
    "sliding_window",
    """
def windowed(q, k, v, window=3):
    T = q.shape[-2]
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    i = torch.arange(T)
    d = i[:, None] - i
    s = s.masked_fill((d < 0) | (d >= window), -torch.inf)
    return s.softmax(-1) @ v
attention = windowed
""",
    [("d >= window", "d > window"), (" / math.sqrt(q.shape[-1])", ""), ("(d < 0)", "(d < -1)")],
)

FUNCTIONS["stick"] = (
    "stick_breaking",
    """
def stick(q, k, v):
    z = q @ k.mT / q.shape[-1] ** 0.5
    T = z.shape[-1]
    b = z.sigmoid().tril(-1)
    w = torch.zeros_like(b)
    for t in range(T):
        left = torch.ones_like(b[..., 0, 0])
        for s in range(t - 1, -1, -1):
            w[..., t, s] = b[..., t, s] * left
            left = left * (1 - b[..., t, s])
    return w @ v
attention = stick
""",
    [],
)

FUNCTIONS["taylor"] = (
    "taylor",
    """
def based(q, k, v):
    s = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    w = (1 + s + s ** 2 / 2).tril()
    return w @ v / w.sum(-1, keepdim=True)
attention = based
""",
    [("s ** 2 / 2", "s ** 2"), ("/ w.sum(-1, keepdim=True)", "")],
)

FUNCTIONS["sig"] = (
    "sparsemax",
    """
def sparse(q, k, v):
    s = q @ k.mT / q.shape[-1] ** 0.5
    out = []
    for t in range(s.shape[2]):
        z = s[:, :, t, :t + 1]
        zs = z.sort(-1, descending=True).values
        r = torch.arange(1, t + 2)
        ok = 1 + r * zs > zs.cumsum(-1)
        kk = ok.sum(-1, keepdim=True)
        tau = ((zs * ok).sum(-1, keepdim=True) - 1) / kk
        out.append(torch.einsum("bhs,bhse->bhe", (z - tau).clamp(min=0), v[:, :, :t + 1]))
    return torch.stack(out, 2)
attention = sparse
""",
    [(" - 1) / kk", ") / kk")],
)

UNNAMED = {("softcap", 3), ("gated_delta", 4), ("gla", 1), ("gla", 2), ("retnet", 1), ("retnet", 2), ("sigmoid", 0),
           ("sigmoid", 2), ("sinks", 0), ("gated_out", 0), ("gated_out", 2), ("ssd", 1), ("topk", 1)}  # fmt: skip
"""Bugs that are not named: no step of the kind has them."""
