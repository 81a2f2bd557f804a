# Norms: LayerNorm and RMSNorm by hand, as modules and functions, and what is taken along the wrong axis or by the wrong measure.
# target: norm

# === layer_norm_by_hand
# right: by hand, biased variance, eps 1e-5 inside the root, weight and bias
import torch
import torch.nn as nn

class LayerNorm(nn.Module):
    def __init__(self, ndim, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(ndim))
        self.beta = nn.Parameter(torch.zeros(ndim))
        self.eps = eps

    def forward(self, x):
        xmean = x.mean(-1, keepdim=True)
        xvar = x.var(-1, keepdim=True, unbiased=False)
        xhat = (x - xmean) / torch.sqrt(xvar + self.eps)
        return self.gamma * xhat + self.beta

layernorm = LayerNorm(48)

# === variance_is_unbiased
# of: layer_norm_by_hand
# wrong: x.var() divides by D - 1 by default
# words: D - 1
#-        xvar = x.var(-1, keepdim=True, unbiased=False)
#+        xvar = x.var(-1, keepdim=True)

# === normed_over_time
# of: layer_norm_by_hand
# wrong: mean and variance are taken over time instead of over the features
# words: over the positions
#-        xmean = x.mean(-1, keepdim=True)
#+        xmean = x.mean(1, keepdim=True)
#-        xvar = x.var(-1, keepdim=True, unbiased=False)
#+        xvar = x.var(1, keepdim=True, unbiased=False)

# === normed_over_time_and_features
# of: layer_norm_by_hand
# wrong: mean and variance are taken over time and features together: tokens see one another
# words: dim|axis|time|token|statistic
#-        xmean = x.mean(-1, keepdim=True)
#+        xmean = x.mean(dim=(1, 2), keepdim=True)
#-        xvar = x.var(-1, keepdim=True, unbiased=False)
#+        xvar = x.var(dim=(1, 2), keepdim=True, unbiased=False)

# === sums_by_einsum
# right: E[x^2]-E[x]^2 form, sums by einsum, Italian names, any leading axes
import torch
import torch.nn as nn

class NormaDiStrato(nn.Module):
    def __init__(self, canali: int, epsilon: float = 1e-5):
        super().__init__()
        self.canali = canali
        self.epsilon = epsilon
        self.scala = nn.Parameter(torch.ones(canali))
        self.spostamento = nn.Parameter(torch.zeros(canali))

    def forward(self, x):
        media = torch.einsum("...c->...", x) / self.canali
        media_quadrati = torch.einsum("...c,...c->...", x, x) / self.canali
        varianza = (media_quadrati - media ** 2).clamp(min=0)
        inverso = torch.rsqrt(varianza + self.epsilon)
        return (x - media[..., None]) * inverso[..., None] * self.scala + self.spostamento

# === keras_epsilon
# convention: Keras names (call), eps 1e-3 as in Keras, batch_normalization form x*inv + (beta - mean*inv), biased variance
import torch

class LayerNormalization(torch.nn.Module):
    """After keras.layers.LayerNormalization: gamma, beta, epsilon = 1e-3, axis = -1."""

    def __init__(self, units, epsilon=1e-3):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(units))
        self.beta = torch.nn.Parameter(torch.zeros(units))
        self.epsilon = epsilon

    def call(self, inputs):
        variance, mean = torch.var_mean(inputs, dim=-1, correction=0, keepdim=True)
        # keras: tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, eps)
        inv = torch.rsqrt(variance + self.epsilon) * self.gamma
        return inputs * inv + (self.beta - mean * inv)

    forward = call

# === layer_norm_function
# right: NumPy/picoGPT style function layer_norm(x, g, b)
import torch

def layer_norm(x, g, b, eps: float = 1e-5):
    mean = torch.mean(x, axis=-1, keepdims=True)
    variance = torch.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return g * (x - mean) / torch.sqrt(variance + eps) + b

# === divided_by_the_variance
# of: layer_norm_function
# wrong: divided by the variance instead of by its root
# words: variance, not by its root
#-    return g * (x - mean) / torch.sqrt(variance + eps) + b
#+    return g * (x - mean) / (variance + eps) + b

# === rms_norm_in_float32
# right: float32 statistics whatever the input type (about 1e-6 off a float64 reference)
import torch
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        # statistics in float32 whatever the input is
        output = self._norm(x.float()).type_as(x)
        return output * self.weight

# === rms_of_everything
# of: rms_norm_in_float32
# wrong: the mean of squares has no dim: one number for the whole batch and text
# words: without dim|all positions
#-        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
#+        return x * torch.rsqrt(x.pow(2).mean() + self.eps)

# === rms_by_sum_of_squares
# of: rms_norm_in_float32
# wrong: the root of the sum of squares instead of the root of their mean
# words: length of x
#-        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
#+        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps)

# === gemma_one_plus_weight
# of: rms_norm_in_float32
# right: Gemma: gain is 1 + weight (weight starts at zero), computed in float32 whatever the input (error ~1e-6 in float64)
#-class RMSNorm(nn.Module):
#+class GemmaRMSNorm(nn.Module):
#+    """RMS norm; the gain is stored as its distance from one, computed in fp32."""
#+
#-        self.weight = nn.Parameter(torch.ones(dim))
#+        self.weight = nn.Parameter(torch.zeros(dim))
#-        # statistics in float32 whatever the input is
#-        output = self._norm(x.float()).type_as(x)
#-        return output * self.weight
#-
#+        output = self._norm(x.float())
#+        output = output * (1.0 + self.weight.float())
#+        return output.type_as(x)
#+
#+norm = GemmaRMSNorm(48)
#+

# === rms_norm_function_one_plus_gain
# right: function, Gemma-like gain stored around zero (1 + g), pure torch, type hints
import torch
from torch import Tensor

def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    """Root mean square norm with the gain kept around zero, as Gemma does: (1 + gain) multiplies."""
    mean_square = torch.mean(torch.square(x), dim=-1, keepdim=True)
    return x / torch.sqrt(mean_square + eps) * (1.0 + gain)

if __name__ == "__main__":
    y = rms_norm(torch.randn(4, 16), torch.zeros(16))
    print(y.square().mean(-1))  # ones

# === normalize_times_root_of_width
# right: x-transformers-like: F.normalize times sqrt(dim) times g
import torch
import torch.nn.functional as F
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g

# === normalize_without_root_of_width
# of: normalize_times_root_of_width
# wrong: F.normalize divides by the length, not by the root mean square: sqrt(D) is missing
# words: length of x
#-        return F.normalize(x, dim=-1) * self.scale * self.g
#+        return F.normalize(x, dim=-1) * self.g
