# Products of x with itself, not scaled, and the mixture of x by them.
# target: dot_product

# === products_with_itself
# right: x @ x^T, unscaled
import torch

def dot_product(x):
    T = x.shape[1]
    scores = x @ x.transpose(-2, -1)
    scores = scores.masked_fill(~torch.tril(torch.ones(T, T)).bool(), float("-inf"))
    return torch.softmax(scores, -1) @ x

attention = dot_product

# === products_masked_after_softmax
# of: products_with_itself
# wrong: the mask multiplies after the softmax, so rows no longer sum to one
# words: after|sum to|softmax
#-    scores = scores.masked_fill(~torch.tril(torch.ones(T, T)).bool(), float("-inf"))
#-    return torch.softmax(scores, -1) @ x
#+    return (torch.softmax(scores, -1) * torch.ones(T, T).tril()) @ x

# === products_with_inverted_mask
# of: products_with_itself
# wrong: the mask is inverted: the past is hidden and the future is seen
# words: future|invert|hides|mask
#-    scores = scores.masked_fill(~torch.tril(torch.ones(T, T)).bool(), float("-inf"))
#+    scores = scores.masked_fill(torch.tril(torch.ones(T, T), diagonal=-1).bool(), float("-inf"))

# === products_without_mask
# of: products_with_itself
# wrong: no mask: every position sees the whole text
# words: mask|future|causal
#-    scores = scores.masked_fill(~torch.tril(torch.ones(T, T)).bool(), float("-inf"))
#-    return torch.softmax(scores, -1) @ x
#+    return torch.softmax(scores, -1) @ x

# === products_softmax_over_queries
# of: products_with_itself
# wrong: softmax over the queries (dim 1) instead of the keys
# words: column|quer|dim|axis
# seen: labmlai/annotated_deep_learning_paper_implementations#146
#-    return torch.softmax(scores, -1) @ x
#+    return torch.softmax(scores, 1) @ x

# === products_without_softmax
# of: products_with_itself
# wrong: no softmax: the raw scores weigh the values
# words: softmax
#-    scores = scores.masked_fill(~torch.tril(torch.ones(T, T)).bool(), float("-inf"))
#-    return torch.softmax(scores, -1) @ x
#+    return scores.tril() @ x

# === products_masked_after_exp
# of: products_with_itself
# wrong: masked after exp, and the row's maximum may be a hidden one: all of the past becomes 0, and 0/0, where scores are large
# words: 0/0
#-    scores = scores.masked_fill(~torch.tril(torch.ones(T, T)).bool(), float("-inf"))
#-    return torch.softmax(scores, -1) @ x
#+    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values).tril()
#+    return e / e.sum(-1, keepdim=True) @ x

# === products_of_normalised_keys
# of: products_with_itself
# wrong: the keys are normalised first
# words: normal|length|cosine|norm
#-    scores = x @ x.transpose(-2, -1)
#+    scores = x @ (x / x.norm(dim=-1, keepdim=True)).transpose(-2, -1)

# === products_in_a_loop
# right: a loop over queries, with a softmax written by hand
import torch

def dot_attention(x):
    out = torch.empty_like(x)
    for t in range(x.shape[1]):
        past = x[:, : t + 1]
        s = (past * x[:, t : t + 1]).sum(-1)
        s = s - s.max(dim=1, keepdim=True).values
        w = s.exp()
        w = w / w.sum(dim=1, keepdim=True)
        out[:, t] = (w.unsqueeze(-1) * past).sum(1)
    return out

attention = dot_attention

# === scores_alone
# right: raw unscaled scores q.k^T by einsum for any number of leading axes, says that scaling and softmax come later
"""Step 2 of my notes: compare all the queries with all the keys."""
import torch
from torch import Tensor

def similarity(queries: Tensor, keys: Tensor) -> Tensor:
    """(..., n, d) and (..., m, d)  ->  (..., n, m), entry [i, j] is <q_i, k_j>.

    No scaling and no softmax here, those come in the next step.
    """
    assert queries.shape[-1] == keys.shape[-1], "feature sizes differ"
    return torch.einsum("...nd,...md->...nm", queries, keys)

if __name__ == "__main__":
    q, k = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    s = similarity(q, k)
    assert torch.allclose(s[1, 3, 2], (q[1, 3] * k[1, 2]).sum(), atol=1e-5)
    print("ok", s.shape)

# === squeezes_all_axes
# of: products_in_a_loop
# wrong: squeeze() without an axis: a text of one token, or a batch of one text, loses an axis
# words: length 1|batch of one
#-    return out
#+    return out.squeeze()

# === scores_without_gradient
# wrong: the weights are computed under no_grad: what they are computed from does not learn
# words: gradient
import torch

def dot_product(x):
    with torch.no_grad():
        scores = x @ x.mT
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return weights @ x

# === softmax_in_float16
# wrong: the softmax is computed in float16
# words: float16
import torch

def dot_product(x):
    scores = x @ x.mT
    scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(scores, -1, dtype=torch.float16).to(x.dtype) @ x
