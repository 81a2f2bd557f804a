"""The ladder gives every worked example to the last printed digit, and the kinds compute the same as its functions.

T positions, S positions of the keys, D width of a token, d width of a query and a key, e width of a value.
"""

import pytest
import torch
from torch import Tensor, nn

from minigpt.attention.ladder import (
    attend,
    attention_weights,
    average_loop,
    average_matrix,
    average_softmax,
    dot_product,
    query_key,
)
from minigpt.learning.worked_examples import GRANT_KEY, GRANT_QUERY

AVERAGES = (average_loop, average_matrix, average_softmax)


def doubles(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def printed(x: Tensor, decimals: int = 4) -> list[list[float]]:
    """The numbers as they would be printed."""
    return [[float(f"{number:.{decimals}f}") for number in row] for row in x.tolist()]


# ---- "sky is blue": learned queries, keys and values, scaled, no mask ----

SKY = doubles([[-1.0720, -0.5001], [-0.0120, -0.4311], [-0.0050, -0.5321]])
SKY_QUERY = SKY @ doubles([[-0.0271, -0.3840], [-0.3940, -0.6610]])
SKY_KEY = SKY @ doubles([[-0.4109, 0.5777], [-0.1162, -0.1661]])
SKY_VALUE = SKY @ doubles([[-0.2045, 0.1210], [-0.1712, -0.4462]])


def test_sky_is_blue_queries_keys_and_values() -> None:
    assert printed(SKY_QUERY) == [[0.2261, 0.7422], [0.1702, 0.2896], [0.2098, 0.3536]]
    assert printed(SKY_KEY) == [[0.4986, -0.5362], [0.0550, 0.0647], [0.0639, 0.0855]]
    assert printed(SKY_VALUE) == [[0.3048, 0.0934], [0.0763, 0.1909], [0.0921, 0.2368]]


def test_sky_is_blue_scores() -> None:
    scores = SKY_QUERY @ SKY_KEY.mT
    assert printed(scores) == [[-0.2853, 0.0604, 0.0779], [-0.0704, 0.0281, 0.0356], [-0.0850, 0.0344, 0.0436]]
    assert printed(scores / 2**0.5) == [[-0.2017, 0.0427, 0.0551], [-0.0498, 0.0199, 0.0252], [-0.0601, 0.0243, 0.0309]]


def test_sky_is_blue_weights_and_output() -> None:
    assert printed(attention_weights(SKY_QUERY, SKY_KEY, causal=False)) == [
        [0.2801, 0.3577, 0.3622], [0.3175, 0.3404, 0.3422], [0.3141, 0.3418, 0.3441],
    ]  # fmt: skip
    output = attend(SKY_QUERY, SKY_KEY, SKY_VALUE, causal=False)
    assert printed(output) == [[0.1460, 0.1802], [0.1543, 0.1757], [0.1535, 0.1761]]


# ---- "My name is Grant": mask and scale, d = e = 8 ----

GRANT_VALUE = doubles(
    [
        [0.82470654, 1.01832051, -0.0742799, -1.0382902, 1.47397322, 1.17119684, -0.93415327, 0.85873486],
        [2.66896272, -0.04549671, 1.40019354, 0.44697015, -0.79854277, 0.04474527, -0.68296445, 1.97098558],
        [-0.64020382, -0.10911464, 0.95848003, -0.69247603, -0.51030663, -1.35656217, -0.32177026, 0.55925046],
        [-0.33430803, -0.67501889, -0.45962707, 0.2391161, -1.69305168, -1.55507137, 0.24472677, -1.42243927],
    ]
)


def test_grant_scores() -> None:
    """To six decimals: the queries and keys above are themselves rounded to eight."""
    scores = doubles(
        [
            [-5.13162632, 0.72634813, 1.23159053, -3.95904473],
            [0.02466978, -4.66322154, -2.5655427, 0.9960772],
            [-0.22543252, -0.42313976, -1.76373004, 0.52464226],
            [-0.73596461, 1.28358903, 1.53191185, 0.80203887],
        ]
    )
    assert printed(GRANT_QUERY @ GRANT_KEY.mT, 6) == printed(scores, 6)


def test_grant_variances() -> None:
    """Scores of width 8 vary about 8 times too much; the scale brings them back."""
    scores = GRANT_QUERY @ GRANT_KEY.mT
    parts = torch.stack([x.var(correction=0) for x in (GRANT_QUERY, GRANT_KEY, scores, scores * 8**-0.5)])
    assert printed(parts[None], 6) == [[0.848678, 1.004426, 4.539987, 0.567498]]


def test_grant_weights() -> None:
    assert printed(attention_weights(GRANT_QUERY, GRANT_KEY), 8) == [
        [1.0, 0.0, 0.0, 0.0],
        [0.83989135, 0.16010865, 0.0, 0.0],
        [0.39793326, 0.37106759, 0.23099914, 0.0],
        [0.14297456, 0.29198042, 0.31877391, 0.24627112],
    ]


def test_grant_output() -> None:
    output = doubles(
        [
            [0.82470654, 1.01832051, -0.0742799, -1.0382902, 1.47397322, 1.17119684, -0.93415327, 0.85873486],
            [1.11998792, 0.84799417, 0.16179606, -0.80048716, 1.11012375, 0.9908422, -0.89393577, 1.03681582],
            [1.17065721, 0.36313586, 0.71141608, -0.40727543, 0.17234923, 0.169297, -0.69948529, 1.20227442],
            [0.61078621, -0.06871078, 0.59055451, -0.17979845, -0.60204035, -0.6348897, -0.37527522, 0.52623517],
        ]
    )
    assert printed(attend(GRANT_QUERY, GRANT_KEY, GRANT_VALUE), 6) == printed(output, 6)


# ---- the causal average ----

AVERAGE_INPUT = [
    [0.1808, -0.0700], [-0.3596, -0.9152], [0.6258, 0.0255], [0.9545, 0.0643], [0.3612, 1.1679],
    [-1.3499, -0.5102], [0.2360, -0.2398], [-0.9211, 1.5433],
]  # fmt: skip
AVERAGE_OUTPUT = [
    [0.1808, -0.0700], [-0.0894, -0.4926], [0.1490, -0.3199], [0.3504, -0.2238], [0.3525, 0.0545],
    [0.0688, -0.0396], [0.0927, -0.0682], [-0.0341, 0.1332],
]  # fmt: skip


@pytest.mark.parametrize("average", AVERAGES)
def test_causal_average_of_the_seeded_input(average) -> None:
    torch.manual_seed(1337)
    x = torch.randn(4, 8, 2)
    assert printed(x[0]) == AVERAGE_INPUT
    assert printed(average(x)[0]) == AVERAGE_OUTPUT


@pytest.mark.parametrize("average", AVERAGES)
def test_causal_average_of_the_printed_input(average) -> None:
    """Four printed decimals move the output by at most 0.0001."""
    difference = average(doubles(AVERAGE_INPUT)) - doubles(AVERAGE_OUTPUT)
    assert difference.abs().max() <= 0.0001


@pytest.mark.parametrize("average", AVERAGES)
def test_causal_average_of_three_tokens(average) -> None:
    assert printed(average(torch.eye(3))) == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.3333, 0.3333, 0.3333]]
    b = doubles([[8.0, 6.0], [5.0, 2.0], [4.0, 4.0]])
    assert printed(average(b)) == [[8.0, 6.0], [6.5, 4.0], [5.6667, 4.0]]


# ---- learned scores, not scaled; the example names the roles the other way round: scores = key @ query^T ----


def seeded_layers() -> tuple[Tensor, nn.Linear, nn.Linear]:
    """The input and the two layers of the example, drawn in its order."""
    torch.manual_seed(1337)
    torch.randn(4, 8, 2)
    torch.randint(0, 10, (3, 2))
    x = torch.randn(1, 8, 32)
    return x, nn.Linear(32, 16), nn.Linear(32, 16)


@torch.no_grad()
def test_unscaled_learned_scores() -> None:
    x, key, query = seeded_layers()
    weights = attention_weights(key(x), query(x), scale=1.0)  # its "key" asks, its "query" answers
    assert printed(weights[0]) == [
        [1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.8568, 0.1432, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.9035, 0.0319, 0.0646, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.0794, 0.7826, 0.0262, 0.1117, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.2599, 0.0619, 0.0666, 0.5537, 0.0579, 0.0000, 0.0000, 0.0000],
        [0.1648, 0.0910, 0.0811, 0.1171, 0.1276, 0.4185, 0.0000, 0.0000],
        [0.5038, 0.0824, 0.0079, 0.2029, 0.0508, 0.0840, 0.0683, 0.0000],
        [0.1233, 0.1467, 0.1079, 0.1274, 0.0938, 0.3208, 0.0458, 0.0343],
    ]


@torch.no_grad()
def test_variance_of_scores() -> None:
    """Products of width 16 vary about 16 times as much as their parts; the scale 1/sqrt(16) undoes it."""
    x, key, query = seeded_layers()
    value, output = nn.Linear(32, 16), nn.Linear(16, 32)
    mixed = attend(key(x), query(x), value(x), scale=1.0)
    assert mixed.shape == (1, 8, 16)
    assert output(mixed).shape == (1, 8, 32)
    k, q = torch.randn(1, 8, 16), torch.randn(1, 8, 16)  # drawn after the four layers
    scores = q @ k.mT
    variances = torch.stack([k.var(), q.var(), scores.var(), (scores * 16**-0.5).var()])
    assert printed(variances[None]) == [[1.1767, 0.8625, 16.9947, 1.0622]]


# ---- "Your journey starts with one step": no learned weights, then a learned head; no mask ----

JOURNEY = torch.tensor(
    [
        [0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55],
    ]
)  # fmt: skip


def test_journey_scores() -> None:
    assert printed(JOURNEY @ JOURNEY.mT) == [
        [0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310],
        [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865],
        [0.9422, 1.4754, 1.4570, 0.8296, 0.7154, 1.0605],
        [0.4753, 0.8434, 0.8296, 0.4937, 0.3474, 0.6565],
        [0.4576, 0.7070, 0.7154, 0.3474, 0.6654, 0.2935],
        [0.6310, 1.0865, 1.0605, 0.6565, 0.2935, 0.9450],
    ]


def test_journey_weights() -> None:
    assert printed(attention_weights(JOURNEY, JOURNEY, causal=False, scale=1.0)) == [
        [0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452],
        [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581],
        [0.1390, 0.2369, 0.2326, 0.1242, 0.1108, 0.1565],
        [0.1435, 0.2074, 0.2046, 0.1462, 0.1263, 0.1720],
        [0.1526, 0.1958, 0.1975, 0.1367, 0.1879, 0.1295],
        [0.1385, 0.2184, 0.2128, 0.1420, 0.0988, 0.1896],
    ]


def test_journey_dot_product() -> None:
    assert printed(dot_product(JOURNEY, causal=False)) == [
        [0.4421, 0.5931, 0.5790], [0.4419, 0.6515, 0.5683], [0.4431, 0.6496, 0.5671],
        [0.4304, 0.6298, 0.5510], [0.4671, 0.5910, 0.5266], [0.4177, 0.6503, 0.5645],
    ]  # fmt: skip


def seeded_head() -> tuple[Tensor, Tensor, Tensor]:
    """W_query, W_key and W_value of the example, drawn in its order."""
    torch.manual_seed(123)
    return torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2)


def test_journey_head_is_drawn_from_its_seed() -> None:
    w_query, w_key, w_value = seeded_head()
    assert printed(w_query) == [[0.2961, 0.5166], [0.2517, 0.6886], [0.0740, 0.8665]]
    assert printed(w_key) == [[0.1366, 0.1025], [0.1841, 0.7264], [0.3153, 0.6871]]
    assert printed(w_value) == [[0.0756, 0.1966], [0.3164, 0.4017], [0.1186, 0.8274]]


def test_journey_third_token() -> None:
    w_query, w_key, w_value = seeded_head()
    query, key, value = JOURNEY[2:3] @ w_query, JOURNEY @ w_key, JOURNEY @ w_value
    assert printed(query) == [[0.4300, 1.4343]]
    assert printed(query @ key.mT) == [[1.2544, 1.8284, 1.7877, 1.0654, 0.5508, 1.5238]]
    assert printed(attention_weights(query, key, causal=False)) == [[0.1503, 0.2256, 0.2192, 0.1315, 0.0914, 0.1819]]
    assert printed(attend(query, key, value, causal=False)) == [[0.3058, 0.8203]]


def test_journey_head() -> None:
    w_query, w_key, w_value = seeded_head()
    assert printed(attend(JOURNEY @ w_query, JOURNEY @ w_key, JOURNEY @ w_value, causal=False)) == [
        [0.2996, 0.8053], [0.3061, 0.8210], [0.3058, 0.8203], [0.2948, 0.7939], [0.2927, 0.7891],
        [0.2990, 0.8040],
    ]  # fmt: skip


# ---- what holds beyond the examples ----


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (2, 5, 4), (2, 3, 6, 1)])
@pytest.mark.parametrize("average", AVERAGES)
def test_each_average_is_the_running_mean(average, shape) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    count = torch.arange(1, shape[-2] + 1)[:, None]
    mean = average(x)
    assert mean.dtype == torch.float64
    torch.testing.assert_close(mean, x.cumsum(dim=-2) / count, rtol=0, atol=1e-14)


def test_averaging_is_attention_whose_scores_are_all_zero() -> None:
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    nothing = x.new_zeros(2, 6, 4)
    torch.testing.assert_close(attend(nothing, nothing, x), average_loop(x), rtol=0, atol=1e-14)
    widthless = x.new_zeros(2, 6, 0)
    torch.testing.assert_close(attend(widthless, widthless, x, scale=1.0), average_loop(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_the_dot_product_is_attention_without_learned_weights(causal, scale) -> None:
    x = torch.randn(2, 3, 6, 4, dtype=torch.float64)
    expected = attend(x, x, x, causal=causal, scale=scale)
    torch.testing.assert_close(dot_product(x, causal, scale), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("causal", [True, False])
def test_learned_queries_and_keys_are_attention_whose_values_are_x(causal) -> None:
    x = torch.randn(2, 3, 6, 4, dtype=torch.float64)
    W_query, W_key = torch.randn(2, 4, 3, dtype=torch.float64)
    expected = attend(x @ W_query, x @ W_key, x, causal=causal)
    torch.testing.assert_close(query_key(x, W_query, W_key, causal), expected, rtol=0, atol=1e-14)
    same = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(query_key(x, same, same, causal), dot_product(x, causal, 1 / 2), rtol=0, atol=1e-14)


def test_unscaled_dot_products_behind_a_norm_choose_one_token_and_scaled_ones_weigh_many() -> None:
    """The others of each of 32 tokens with |x|^2 = D = 64: their products vary by 8, and the largest wins."""
    torch.manual_seed(0)
    x = torch.randn(100, 32, 64, dtype=torch.float64)
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt()  # |x|^2 = 64
    others = (x @ x.mT)[:, ~torch.eye(32, dtype=torch.bool)].view(100, 32, 31)
    assert others.std() == pytest.approx(8, rel=0.02)
    assert others.softmax(dim=-1).max(dim=-1).values.mean() > 0.75
    assert (others / 8).softmax(dim=-1).max(dim=-1).values.mean() < 0.25
    torch.testing.assert_close(dot_product(x), x, rtol=0, atol=1e-3)  # each sees itself alone


def test_only_learned_queries_and_keys_find_the_next_in_a_ring_of_three() -> None:
    """A score that is symmetric in both tokens would rise all the way round."""
    x, next_of = torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64).roll(1, dims=0)
    found = query_key(x, x, 100 * next_of, causal=False)  # the key of b is what a looks for
    torch.testing.assert_close(found, x[[1, 2, 0]], rtol=0, atol=1e-12)
    W = torch.randn(1000, 3, 3, dtype=torch.float64)
    scores = W + W.mT
    right = torch.stack([scores[:, a, (a + 1) % 3] > scores[:, a, (a + 2) % 3] for a in range(3)])  # (3, 1000)
    assert right.sum(dim=0).max() == 2


def test_scale_none_is_one_over_the_root_of_the_width() -> None:
    query, key = torch.randn(5, 9), torch.randn(5, 9)
    torch.testing.assert_close(attention_weights(query, key), attention_weights(query, key, scale=1 / 3))


def test_attend_is_the_weights_times_the_values() -> None:
    query, key, value = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 3)
    assert torch.equal(attend(query, key, value), attention_weights(query, key) @ value)


def test_without_the_mask_the_order_of_the_keys_does_not_matter() -> None:
    query, key, value = (torch.randn(6, 4, dtype=torch.float64) for _ in range(3))
    order = torch.randperm(6)
    shuffled = attend(query, key[order], value[order], causal=False)
    torch.testing.assert_close(shuffled, attend(query, key, value, causal=False), rtol=0, atol=1e-14)


@pytest.mark.parametrize("T", [1, 2, 5, 8])
def test_fewer_queries_than_keys_are_the_last_of_them(T) -> None:
    """As when decoding with a cache: query t stands at position S - T + t."""
    query, key, value = (torch.randn(3, 8, 4, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(
        attention_weights(query[:, -T:], key), attention_weights(query, key)[:, -T:], rtol=0, atol=1e-14
    )
    torch.testing.assert_close(attend(query[:, -T:], key, value), attend(query, key, value)[:, -T:], rtol=0, atol=1e-14)


@pytest.mark.parametrize("huge", [1.0, 1e4, 1e12])
def test_no_rung_sees_the_future_however_large_it_is(huge) -> None:
    """A mask that subtracts a finite number would give way, and one that multiplies would make NaN."""
    x = torch.randn(6, 4, dtype=torch.float64)
    changed = torch.cat((x[:3], huge * torch.randn(3, 4, dtype=torch.float64)))
    W = torch.randn(4, 4, dtype=torch.float64)
    for rung in (*AVERAGES, dot_product, lambda x: query_key(x, W, x.new_ones(4, 4)), lambda x: attend(x, x, x)):
        assert torch.equal(rung(changed)[:3], rung(x)[:3])
        assert rung(huge * x).isfinite().all()
