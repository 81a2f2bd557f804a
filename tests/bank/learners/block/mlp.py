# The MLP of a block: activations by hand and from torch, gates, convolutions, functions of weights.
# target: mlp

# === gelu_in_sequential
# right: up, GELU, down in a Sequential
from torch import nn

class FeedForward(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))

    def forward(self, x):
        return self.net(x)

mlp = FeedForward(48)

# === gelu_by_tanh
# of: gelu_in_sequential
# right: the tanh form of GELU
#-        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))
#+        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(approximate="tanh"), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))

# === no_activation
# of: gelu_in_sequential
# wrong: no activation: two linear maps are one
# words: activation|linear|GELU|ReLU
#-        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))
#+        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd),  nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))

# === activation_last
# of: gelu_in_sequential
# wrong: the activation stands after the second layer
# words: activation|GELU|after|second|end
#-        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))
#+        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd), nn.GELU(), nn.Dropout(0.1))

# === activation_twice
# of: gelu_in_sequential
# wrong: an activation after each layer
# words: activation|GELU|after|second|twice
#-        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))
#+        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.GELU(), nn.Dropout(0.1))

# === activation_first
# of: gelu_in_sequential
# wrong: the activation is applied to the input and not to the hidden layer
# words: activation|input|before|first
#-        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))
#+        self.net = nn.Sequential(nn.GELU(), nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))

# === adds_its_input
# of: gelu_in_sequential
# wrong: adds x inside, so that a block would add it twice
# words: residual|adds x|add|twice
#-        return self.net(x)
#+        return x + self.net(x)

# === relu_and_dropout
# right: ReLU, as in the first Transformer
import torch
from torch import nn

class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model=40, d_ff=160, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2, self.dropout = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model), nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))

mlp = PositionwiseFeedForward()

# === mlp_mixes_tokens
# of: relu_and_dropout
# wrong: the hidden layer is divided by its spread over time (dim=1): tokens see one another
# words: token|position|time|future
#-        return self.w_2(self.dropout(self.w_1(x).relu()))
#+        h = self.w_1(x).relu()
#+        h = h / (h.std(dim=1, keepdim=True, correction=0) + 1e-5)
#+        return self.w_2(self.dropout(h))

# === mlp_drops_in_evaluation
# of: relu_and_dropout
# wrong: units are dropped in evaluation too
# words: dropout is active
#-        return self.w_2(self.dropout(self.w_1(x).relu()))
#+        return self.w_2(nn.functional.dropout(self.w_1(x).relu(), 0.2))

# === module_dict_and_own_gelu
# right: tanh GELU by hand, ModuleDict, dropout
import math
import torch
import torch.nn as nn

class NewGELU(nn.Module):
    """ the tanh approximation used by GPT-2 and BERT (google's repo) """

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

class MLP(nn.Module):
    def __init__(self, n_embd, resid_pdrop=0.1):
        super().__init__()
        self.mlp = nn.ModuleDict(dict(
            c_fc=nn.Linear(n_embd, 4 * n_embd),
            c_proj=nn.Linear(4 * n_embd, n_embd),
            act=NewGELU(),
            dropout=nn.Dropout(resid_pdrop),
        ))

    def forward(self, x):
        m = self.mlp
        return m.dropout(m.c_proj(m.act(m.c_fc(x))))

mlp = MLP(48)

# === activation_made_and_not_called
# of: module_dict_and_own_gelu
# wrong: the activation is made and never called
# words: no activation
#-        return m.dropout(m.c_proj(m.act(m.c_fc(x))))
#+        return m.dropout(m.c_proj(m.c_fc(x)))

# === gelu_with_wrong_constant
# of: module_dict_and_own_gelu
# wrong: the constant of the tanh form is 0.44715 instead of 0.044715
# words: 0.44715
#-        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
#+        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.44715 * torch.pow(x, 3.0))))

# === functions_of_weights_and_erf
# right: picoGPT-like functions with weights (in, out) as arguments, exact GELU written with erf
import math

import torch

def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

def linear(x, w, b):
    # [m, in], [in, out], [out] -> [m, out]
    return x @ w + b

def ffn(x, w_up, b_up, w_down, b_down):
    """position-wise feed forward network: up, bend, down"""
    return linear(gelu(linear(x, w_up, b_up)), w_down, b_down)

# === gelu_with_erf_of_x
# of: functions_of_weights_and_erf
# wrong: erf(x) instead of erf(x / sqrt(2)) in the GELU
# words: erf(x / sqrt(2))
#-    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
#+    return 0.5 * x * (1 + torch.erf(x))

# === squared_relu_function_of_dict
# right: squared ReLU (Primer / modded-nanoGPT), functional with a dict of weights, weights stored (in, out)
import torch

def init_mlp(d, hidden, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "W_in": torch.randn(d, hidden, generator=g) / d ** 0.5,
        "W_out": torch.randn(hidden, d, generator=g) / hidden ** 0.5,
    }

def mlp(params, x):
    h = torch.relu(x @ params["W_in"]) ** 2
    return h @ params["W_out"]

if __name__ == "__main__":
    p = init_mlp(48, 192)
    print(mlp(p, torch.randn(4, 48)).shape)

# === convolutions_of_width_one
# right: 1x1 Conv1d as position-wise linear layers (3-D input only), clamp_min(0) * h
from torch import nn

class FeedForward(nn.Module):
    """Squared ReLU (Primer, So et al. 2021)."""

    def __init__(self, d_model, d_ff=None):
        super().__init__()
        d_ff = d_ff or 4 * d_model
        # 1x1 convolutions are the same thing as position-wise linear layers
        self.up = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.down = nn.Conv1d(d_ff, d_model, kernel_size=1)

    def forward(self, x):
        h = self.up(x.transpose(1, 2))
        h = h.clamp_min(0) * h
        return self.down(h).transpose(1, 2)

# === swiglu
# right: SwiGLU as in Llama
import torch.nn.functional as F
from torch import nn

class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))

mlp = MLP(48, 128)

# === gate_without_silu
# of: swiglu
# wrong: the gate of SwiGLU has no SiLU: a product of two linear maps
# words: silu|activation|gate
#-        return self.w2(F.silu(self.w1(x)) * self.w3(x))
#+        return self.w2(self.w1(x) * self.w3(x))

# === swiglu_of_a_namespace
# right: SwiGLU with its activation as a module, sizes from a SimpleNamespace
import torch
from torch import nn
from types import SimpleNamespace

class GatedMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_state):
        return self.down_proj(self.act_fn(self.gate_proj(hidden_state)) * self.up_proj(hidden_state))

attention = GatedMLP(SimpleNamespace(hidden_size=32, intermediate_size=88))

# === silu_of_the_product
# of: swiglu_of_a_namespace
# wrong: silu is applied to the product of gate and up instead of to the gate alone
# words: product of gate
#-        return self.down_proj(self.act_fn(self.gate_proj(hidden_state)) * self.up_proj(hidden_state))
#+        return self.down_proj(self.act_fn(self.gate_proj(hidden_state) * self.up_proj(hidden_state)))

# === swiglu_flax_kernels
# right: flax port: kernels (in, 2, out), up first then gate, silu written out
# port of a flax MlpBlock: kernels are stored (in, out), both input kernels stacked on a middle axis
import torch
from torch import nn

def lecun_normal(*shape, fan_in):
    return nn.Parameter(torch.randn(*shape) * fan_in ** -0.5)

class MlpBlock(nn.Module):
    """SwiGLU: wo(silu(gate) * up), no biases."""

    def __init__(self, emb_dim: int, mlp_dim: int | None = None):
        super().__init__()
        mlp_dim = mlp_dim or emb_dim * 8 // 3
        self.wi = lecun_normal(emb_dim, 2, mlp_dim, fan_in=emb_dim)
        self.wo = lecun_normal(mlp_dim, emb_dim, fan_in=mlp_dim)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        up, gate = torch.einsum("...d,dgf->...gf", inputs, self.wi).unbind(-2)
        return torch.einsum("...f,fd->...d", up * (gate * gate.sigmoid()), self.wo)

# === sublayer_of_the_first_transformer
# convention: the residual and the norm of the first Transformer's sublayer are inside
import torch.nn as nn
import torch.nn.functional as F

class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.inner, self.outer = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(self, x):
        return self.layer_norm(x + self.outer(F.relu(self.inner(x))))

mlp = PositionwiseFeedForward(48, 96)
