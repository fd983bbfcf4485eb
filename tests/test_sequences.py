"""Sequences against enumeration with itertools, plain loops and dense matrices written here."""

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kllab import K1, K2, K3, exact, gradients, sequences
from kllab._masks import one_of, weigh
from kllab.checks import InputError
from kllab.pairs import word_frequencies
from kllab.sequences import Tree, aggregate, eos_mask, expected_gradient, reward_to_go

NAN, INF = math.nan, math.inf


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- masks, aggregation, rewards to go


def plain_aggregate(rows, how):
    """From lists of kept values, one list a sequence, and the padded length."""
    (rows, width) = rows
    rows = [row for row in rows if row]
    if how == "token_mean":
        return math.fsum(itertools.chain(*rows)) / sum(map(len, rows))
    if how == "seq_sum":
        return math.fsum(itertools.chain(*rows)) / len(rows)
    if how == "seq_mean_token_mean":
        return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)
    return math.fsum(itertools.chain(*rows)) / (len(rows) * width)


@st.composite
def masked(draw):
    """Values with rubbish in masked places, their mask, and the kept values as lists."""
    count, width = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
    rows = [draw(st.lists(numbers, min_size=width, max_size=width)) for _ in range(count)]
    mask = torch.tensor(
        [draw(st.lists(st.booleans(), min_size=width, max_size=width)) for _ in range(count)]
    )
    assume(bool(mask.any()))
    values = torch.tensor(rows, dtype=torch.float64)
    rubbish = draw(st.sampled_from([NAN, INF, -INF, 1e300, 7.0]))
    kept = [[v for v, k in zip(*pair, strict=True) if k] for pair in zip(rows, mask, strict=True)]
    return values.masked_fill(~mask, rubbish), mask, (kept, width)


@given(masked(), st.sampled_from(sequences.HOW))
def test_aggregate_is_the_plain_sum_whatever_stands_in_masked_places(case, how):
    values, mask, plain = case
    values.requires_grad_()
    out = aggregate(values, mask, how=how)
    assert float(out.detach()) == pytest.approx(plain_aggregate(plain, how), rel=1e-12, abs=1e-9)
    out.backward()
    lengths = mask.sum(-1, keepdim=True).double()
    sequences_left = (lengths > 0).sum().double()
    want = {
        "token_mean": 1 / lengths.sum(),
        "seq_sum": 1 / sequences_left,
        "seq_mean_token_mean": 1 / (sequences_left * lengths),
        "padded_mean": 1 / (sequences_left * mask.shape[-1]),
    }[how]
    torch.testing.assert_close(
        values.grad, torch.where(mask, want, 0.0), rtol=1e-12, atol=0, check_dtype=False
    )


def test_one_data_set_logged_as_four_numbers():
    values = torch.full((2, 100), NAN, dtype=torch.float64)
    values[0, :10], values[1] = 0.2, 0.02
    mask = torch.zeros(2, 100)
    mask[0, :10], mask[1] = 1, 1
    got = {how: float(aggregate(values, mask, how=how)) for how in sequences.HOW}
    assert got == pytest.approx(
        {
            "token_mean": 4 / 110,  # printed .0364
            "seq_mean_token_mean": 0.11,
            "seq_sum": 2.0,
            "padded_mean": 0.02,
        },
        rel=1e-14,
    )


@pytest.mark.parametrize("how", sequences.HOW)
def test_aggregate_leaves_out_what_is_all_masked_and_takes_any_leading_axes(how):
    values = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[0, 1], mask[1, 2] = False, False
    kept = values[mask.any(-1)]
    assert float(aggregate(values, mask, how=how)) == pytest.approx(
        float(aggregate(kept, None, how=how)), rel=1e-14
    )
    assert float(aggregate(values.tolist(), mask.int().tolist(), how=how)) == pytest.approx(
        float(aggregate(values, mask, how=how)), rel=1e-14
    )


def test_aggregate_sums_half_precision_in_float32():
    values = torch.full((1, 10_000), 0.1, dtype=torch.bfloat16)
    total = aggregate(values, how="seq_sum")
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(10_000 * float(values[0, 0]), rel=1e-5)
    assert aggregate(values.double(), how="seq_sum").dtype == torch.float64


def test_aggregate_keeps_infinities_that_have_a_sum():
    values = torch.tensor([[1.0, INF], [2.0, 3.0]])
    assert float(aggregate(values, how="token_mean")) == INF


@pytest.mark.parametrize(
    ("values", "mask", "how", "message"),
    [
        ([[1.0]], None, "mean", "how: expected one of token_mean, seq_sum, .*, got 'mean'"),
        ([[1.0, 2.0]], [[0, 0]], "seq_sum", "mask: expected at least one token, got none"),
        ([[1.0, 2.0]], [[1]], "seq_sum", r"mask: expected shape \(1, 2\), got shape \(1, 1\)"),
        ([[1.0, 2.0]], [[1, 2]], "seq_sum", "mask: expected booleans, or zeros and ones"),
        ([[1.0, NAN]], [[1, 1]], "token_mean", "values: expected no NaN"),
        ([[INF, -INF]], None, "token_mean", "values: expected no NaN and no inf - inf"),
        (torch.ones(1, 2).int(), None, "seq_sum", "values: expected floating values"),
        (torch.tensor(1.0), None, "seq_sum", r"values: .*, got torch.float32 \(\)"),
        (torch.ones(2, 0), None, "seq_sum", r"values: .*, got torch.float32 \(2, 0\)"),
    ],
)
def test_aggregate_refuses(values, mask, how, message):
    mask = None if mask is None else torch.tensor(mask)
    with pytest.raises(InputError, match=message):
        aggregate(values, mask, how=how)


@given(masked(), st.sampled_from([0.0, 0.5, 0.97, 1.0]))
def test_reward_to_go_is_the_plain_double_sum(case, discount):
    values, mask, _ = case
    got = reward_to_go(values, mask, discount=discount)
    for row, keep, out in zip(values.tolist(), mask.tolist(), got.tolist(), strict=True):
        for t in range(len(row)):
            later = range(t, len(row))
            want = math.fsum(discount ** (j - t) * row[j] for j in later if keep[j])
            assert out[t] == pytest.approx(want if keep[t] else 0.0, rel=1e-11, abs=1e-9)


def test_reward_to_go_without_a_mask_and_with_a_wrong_discount():
    assert reward_to_go([1.0, 2.0, 4.0], discount=0.5).tolist() == [3.0, 4.0, 4.0]
    for discount in (-0.1, 1.1, NAN):
        with pytest.raises(InputError, match="discount: expected"):
            reward_to_go([1.0], discount=discount)
    with pytest.raises(InputError, match="mask: expected shape"):
        reward_to_go(torch.ones(2, 3), torch.ones(3))


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_eos_mask_ends_after_the_first_end(rows):
    got = eos_mask(torch.tensor(rows), eos=2).tolist()
    for row, keep in zip(rows, got, strict=True):
        end = row.index(2) if 2 in row else len(row)
        assert keep == [t <= end for t in range(len(row))]


@pytest.mark.parametrize("tokens", [torch.ones(3), torch.tensor(1), torch.ones(3).bool()])
def test_eos_mask_refuses(tokens):
    with pytest.raises(InputError, match="tokens: expected integers"):
        eos_mask(tokens, eos=0)


def test_small_helpers():
    assert weigh(torch.tensor([-INF, 0.0]), torch.tensor([NAN, 3.0])).tolist() == [0.0, 3.0]
    with pytest.raises(InputError, match="x: expected one of a, b, got 'c'"):
        one_of("x", "c", ("a", "b"))


# --- trees


def plain_sequences(V, T, eos):
    """Every sequence as a tuple, in lexicographic order, by brute force."""
    out = set()
    for y in itertools.product(range(V), repeat=T):
        out.add(y[: y.index(eos) + 1] if eos in y else y)
    return sorted(out)


def plain_rows(V, T, eos):
    """Prefix -> row: by length, then in the order of tokens."""
    alive = [a for a in range(V) if a != eos]
    prefixes = [h for t in range(T) for h in itertools.product(alive, repeat=t)]
    return {h: i for i, h in enumerate(prefixes)}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Plain:
    """A tabular model by dictionaries: token probabilities, scores, sums one sequence at a time."""

    def __init__(self, tree, logits):
        self.rows = plain_rows(tree.V, tree.T, tree.eos)
        self.sequences = plain_sequences(tree.V, tree.T, tree.eos)
        self.table = softmax(np.asarray(logits))

    def token_probs(self, y):
        return [self.table[self.rows[y[:t]], y[t]] for t in range(len(y))]

    def prob(self, y):
        return math.prod(self.token_probs(y))

    def scores(self, y):
        """∇ log q(y_t | y_<t) for each t, (T, N, V)."""
        out = []
        for t in range(len(y)):
            g = np.zeros_like(self.table)
            row = self.rows[y[:t]]
            g[row] = -self.table[row]
            g[row, y[t]] += 1
            out.append(g)
        return np.array(out)


trees = st.builds(
    lambda V, T, end: Tree(V, T, None if end is None else end % V),
    st.integers(1, 4),
    st.integers(1, 4),
    st.none() | st.integers(0, 3),
)


def random_logits(tree, seed, count=2, scale=1.0):
    rng = np.random.default_rng(seed)
    return torch.tensor(scale * rng.normal(size=(count, tree.rows, tree.V)))


@given(trees)
def test_a_tree_lists_what_brute_force_lists(tree):
    want, rows = plain_sequences(tree.V, tree.T, tree.eos), plain_rows(tree.V, tree.T, tree.eos)
    got = [tuple(a for a in y if a >= 0) for y in tree.tokens.tolist()]
    assert got == want
    assert tree.rows == len(rows)
    for y, prefix, mask in zip(want, tree.prefix.tolist(), tree.mask.tolist(), strict=True):
        padding = tree.T - len(y)
        assert prefix == [rows[y[:t]] for t in range(len(y))] + [-1] * padding
        assert mask == [True] * len(y) + [False] * padding


@given(trees, st.integers(0, 99))
def test_log_probs_and_reach_are_products_along_the_path(tree, seed):
    logits = random_logits(tree, seed)
    token, whole, reach = tree.token_log_probs(logits), tree.log_probs(logits), tree.reach(logits)
    assert reach.shape == (2, tree.rows)
    for b in range(2):
        plain = Plain(tree, logits[b])
        for s, y in enumerate(plain.sequences):
            want = plain.token_probs(y) + [1.0] * (tree.T - len(y))
            np.testing.assert_allclose(token[b, s].exp(), want, rtol=1e-12)
            assert float(whole[b, s].exp()) == pytest.approx(math.prod(want), rel=1e-12)
        for h, row in plain.rows.items():
            arrived = math.fsum(plain.prob(y) for y in plain.sequences if y[: len(h)] == h)
            assert float(reach[b, row].exp()) == pytest.approx(arrived, rel=1e-12)


@pytest.mark.parametrize("name", oracles.REGISTERED)
@pytest.mark.parametrize("eos", [None, 1])
def test_sequence_divergence_and_its_gradient(name, eos):
    tree = Tree(3, 3, eos)
    q, p = random_logits(tree, 7)
    generator, model, ref = oracles.GENERATORS[name], Plain(tree, q), Plain(tree, p)
    value, gradient = [], np.zeros_like(model.table)
    for y in model.sequences:
        prob = model.prob(y)
        r = ref.prob(y) / prob
        value.append(prob * float(generator.f(r)))
        gradient += prob * float(generator.f(r) - r * generator.df(r)) * model.scores(y).sum(0)
    assert float(tree.divergence(name, q, p)) == pytest.approx(math.fsum(value), rel=1e-12)
    np.testing.assert_allclose(tree.gradient(name, q, p), gradient, rtol=1e-10, atol=1e-13)
    both = tree.gradient(name, torch.stack([q, p]), p)
    np.testing.assert_allclose(both[0], gradient, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(both[1], 0, atol=1e-13)


def test_impossible_tokens_are_exact_in_value_and_gradient():
    tree = Tree(3, 2)
    q, p = random_logits(tree, 3)
    q[0, 0] = q[2, 1] = -INF
    p[3, 2] = -INF
    q[3, 2] = -INF
    kl = tree.divergence("kl_qp", q, p)
    model, ref = Plain(tree, q), Plain(tree, p)
    possible = [y for y in model.sequences if model.prob(y) > 0]
    want = math.fsum(model.prob(y) * math.log(model.prob(y) / ref.prob(y)) for y in possible)
    assert float(kl) == pytest.approx(want, rel=1e-12)
    want = sum(
        model.prob(y) * math.log(model.prob(y) / ref.prob(y)) * model.scores(y).sum(0)
        for y in possible
    )
    np.testing.assert_allclose(tree.gradient("kl_qp", q, p), want, rtol=1e-10, atol=1e-14)
    for fn in (K1, K3):
        assert float(sequences.expected_token_sum(tree, fn, q, p)) == pytest.approx(
            # k3 misses the reference's mass where the policy has none, a token at a time
            float(kl) if fn is K1 else plain_token_sum(tree, q, p, k3),
            rel=1e-12,
        )
    both = expected_gradient(tree, K1, q, p, usage="both")
    np.testing.assert_allclose(both, want, rtol=1e-10, atol=1e-14)
    rb = sequences.rao_blackwell(tree, "kl_qp", q, p)
    assert float(sequences.moments(tree, q, rb)[0]) == pytest.approx(float(kl), rel=1e-12)
    p[1, 0] = -INF  # now the policy can do what the reference cannot
    q[0, 0] = 0.0
    assert float(tree.divergence("kl_qp", q, p)) == INF
    assert float(sequences.expected_token_sum(tree, K1, q, p)) == INF


def test_a_branch_that_is_never_taken_costs_nothing():
    tree = Tree(2, 2)
    q, p = random_logits(tree, 4)
    q[0, 1] = -INF  # row 2 is out of reach, and there the reference has no token 0
    p[2, 0] = -INF
    rb = sequences.rao_blackwell(tree, "kl_qp", q, p)
    mean, variance = sequences.moments(tree, q, rb)
    assert float(mean) == pytest.approx(float(tree.divergence("kl_qp", q, p)), rel=1e-12)
    assert float(variance) == pytest.approx(0.0, abs=1e-28)
    assert torch.isfinite(rb).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "V: expected"),
        ((2, 0), "T: expected"),
        ((2, 2, 2), "eos: expected"),
        ((2, 23), "V, T: expected at most 4,194,304 sequences"),
        ((200_000, 2, 0), "V, T: expected at most"),
    ],
)
def test_trees_refuse(arguments, message):
    with pytest.raises(InputError, match=message):
        Tree(*arguments)


def test_trees_refuse_logits_that_do_not_fit():
    tree = Tree(2, 2)
    with pytest.raises(InputError, match=r"logits: expected shape \(\.\.\., 3, 2\)"):
        tree.log_probs(torch.zeros(2, 2))
    with pytest.raises(InputError, match="logits: expected float32 or float64"):
        tree.reach(torch.zeros(3, 2).half())
    with pytest.raises(InputError, match=r"values: expected shape \(\.\.\., 4\)"):
        sequences.moments(tree, torch.zeros(3, 2), torch.zeros(3))


def counts_fit(counts, probs, n, sds=5.0):
    """Each count within 5 exact standard deviations; 1e-6 two-sided a count."""
    sd = np.sqrt(n * probs * (1 - probs))
    return bool((np.abs(counts - n * probs) <= sds * sd).all())


def test_samples_follow_the_policy_and_not_another_one():
    tree = Tree(3, 2, eos=0)
    logits = random_logits(tree, 5)
    drawn = tree.sample(logits, 20_000, generator=seeded())
    assert drawn.shape == (20_000, 2)
    for b, other in ((0, 1), (1, 0)):
        counts = np.bincount(drawn[:, b], minlength=len(tree.tokens))
        law = [tree.log_probs(logits[i]).exp().numpy() for i in (b, other)]
        assert counts_fit(counts, law[0], 20_000)
        assert not counts_fit(counts, law[1], 20_000)


# --- sums over tokens: values, weights and the two parts of the gradient


def k1(l):
    return l


def k2(l):
    return l * l / 2


def k3(l):
    return math.expm1(-l) + l


def plain_token_sum(tree, q, p, fn, old=None, weight="none"):
    model, ref = Plain(tree, q), Plain(tree, p)
    sampler = model if old is None else Plain(tree, old)
    total = []
    for y in model.sequences:
        if sampler.prob(y) == 0:
            continue
        a, b, mu = model.token_probs(y), ref.token_probs(y), sampler.token_probs(y)
        w = [x / m for x, m in zip(a, mu, strict=True)]
        w = {
            "none": [1.0] * len(y),
            "token": w,
            "prefix": list(itertools.accumulate(w, lambda x, z: x * z)),
            "sequence": [math.prod(w)] * len(y),
        }[weight]
        values = [fn(math.log(x / z)) for x, z in zip(a, b, strict=True)]
        total.append(sampler.prob(y) * sum(x * v for x, v in zip(w, values, strict=True)))
    return math.fsum(total)


@pytest.mark.parametrize("weight", sequences.WEIGHTS)
@pytest.mark.parametrize(("fn", "plain"), [(K1, k1), (K2, k2), (K3, k3)])
@pytest.mark.parametrize("eos", [None, 2])
def test_expected_token_sums(fn, plain, weight, eos):
    tree = Tree(3, 3, eos)
    q, p, old = random_logits(tree, 11, count=3)
    got = sequences.expected_token_sum(tree, fn, q, p, old_logits=old, weight=weight)
    assert float(got) == pytest.approx(plain_token_sum(tree, q, p, plain, old, weight), rel=1e-11)
    on_policy = sequences.expected_token_sum(tree, fn, torch.stack([q, old]), p, weight=weight)
    want = [plain_token_sum(tree, x, p, plain) for x in (q, old)]
    np.testing.assert_allclose(on_policy, want, rtol=1e-11)
    as_function = sequences.expected_token_sum(tree, lambda a, b: fn(b - a), q, p)
    assert float(as_function) == pytest.approx(want[0], rel=1e-11)


def seeded_noise_model(seed, noise):
    """The 3-token, 3-step models behind the printed table: reference and noisy policy."""
    tree, rng = Tree(3, 3), np.random.default_rng(seed)
    ref = rng.normal(size=(tree.rows, 3))
    return tree, torch.tensor(ref + noise * rng.normal(size=(tree.rows, 3))), torch.tensor(ref)


@pytest.mark.parametrize("usage", gradients.USAGES)
@pytest.mark.parametrize("credit", sequences.CREDITS)
@pytest.mark.parametrize("eos", [None, 0])
@pytest.mark.parametrize(
    ("fn", "plain", "slope"),
    [(K1, k1, lambda l: 1.0), (K2, k2, lambda l: l), (K3, k3, lambda l: -math.expm1(-l))],
)
def test_expected_gradients_are_plain_sums_over_scores(fn, plain, slope, credit, usage, eos):
    tree = Tree(3, 3, eos)
    q, p, old = random_logits(tree, 13, count=3)
    model, ref, sampler = Plain(tree, q), Plain(tree, p), Plain(tree, old)
    for source, given_old in ((model, None), (sampler, old)):
        want = np.zeros_like(model.table)
        for y in model.sequences:
            l = np.log(model.token_probs(y)) - np.log(ref.token_probs(y))
            v, s = np.array([plain(x) for x in l]), model.scores(y)
            answers = {
                "to_go": [v[t:].sum() for t in range(len(y))],
                "token": v,
                "sequence": [v.sum()] * len(y),
            }[credit]
            for t in range(len(y)):
                if usage != "reward":
                    want += source.prob(y) * slope(l[t]) * s[t]
                if usage != "loss":
                    want += source.prob(y) * answers[t] * s[t]
        got = expected_gradient(tree, fn, q, p, usage=usage, credit=credit, old_logits=given_old)
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-14)


def test_what_a_token_answers_for():
    values, mask = (
        torch.tensor([[1.0, 2.0, 4.0], [8.0, NAN, NAN]]),
        torch.tensor([[1, 1, 1], [1, 0, 0]]),
    )
    want = {
        "to_go": [[7.0, 6.0, 4.0], [8.0, 0.0, 0.0]],
        "token": [[1.0, 2.0, 4.0], [8.0, 0.0, 0.0]],
        "sequence": [[7.0, 7.0, 7.0], [8.0, 0.0, 0.0]],
    }
    for credit, expected in want.items():
        assert sequences.credited(values, mask.bool(), credit).tolist() == expected


def relative(a, b):
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))


def test_the_printed_sizes_of_the_partial_gradient():
    # Logit noise .1/.3/1/2, the mean of 20 seeds, to the printed digits.
    printed = {
        0.1: (0.031, 0.037, 0.061),
        0.3: (0.094, 0.110, 0.183),
        1.0: (0.300, 0.322, 0.590),
        2.0: (0.492, 0.504, 1.323),
    }
    for noise, want in printed.items():
        errors = []
        for seed in range(20):
            tree, q, p = seeded_noise_model(seed, noise)
            kl_qp, kl_pq = (tree.gradient(name, q, p) for name in ("kl_qp", "kl_pq"))
            k2_loss = expected_gradient(tree, K2, q, p, usage="loss")
            k3_loss = expected_gradient(tree, K3, q, p, usage="loss")
            errors.append(
                (relative(k2_loss, kl_qp), relative(k3_loss, kl_pq), relative(k3_loss, kl_qp))
            )
        np.testing.assert_allclose(np.mean(errors, 0), want, rtol=0, atol=6e-4)


def test_exact_placements_of_the_sequence_kl():
    tree, q, p = seeded_noise_model(0, 1.0)
    true = tree.gradient("kl_qp", q, p)
    for got in (
        expected_gradient(tree, K1, q, p, usage="reward"),
        expected_gradient(tree, K3, q, p, usage="both"),
        sequences.gradient_parts(tree, K1, q, p).full,
        sequences.gradient_parts(tree, K3, q, p).full,
    ):
        assert relative(got, true) < 1e-12
    parts = sequences.gradient_parts(tree, K3, q, p)
    assert relative(parts.pathwise, true) == pytest.approx(0.856, abs=5e-4)
    assert relative(parts.score, true) == pytest.approx(1.53, abs=5e-3)
    assert float(parts.relative_error) == pytest.approx(0.856, abs=5e-4)
    # k1 as loss is noise around zero; a token's own k1 as reward is the k2 loss.
    assert expected_gradient(tree, K1, q, p, usage="loss").abs().max() < 1e-15
    token_reward = expected_gradient(tree, K1, q, p, usage="reward", credit="token")
    k2_loss = expected_gradient(tree, K2, q, p, usage="loss")
    assert relative(token_reward, k2_loss) < 1e-12


def test_parts_of_a_batch_are_the_parts_of_its_members():
    tree = Tree(2, 3)
    q = random_logits(tree, 21, count=4).reshape(2, 2, tree.rows, 2)
    p = random_logits(tree, 22, count=1)[0]
    batch = sequences.gradient_parts(tree, K2, q, p)
    assert batch.relative_error.shape == (2, 2)
    for i, j in itertools.product(range(2), repeat=2):
        one = sequences.gradient_parts(tree, K2, q[i, j], p)
        torch.testing.assert_close(batch.full[i, j], one.full, rtol=1e-12, atol=1e-15)
        assert float(batch.relative_error[i, j]) == pytest.approx(float(one.relative_error))


def test_a_constant_as_loss_has_gradient_zero():
    tree = Tree(2, 2)
    q, p = random_logits(tree, 23)
    got = expected_gradient(tree, lambda a, b: torch.ones_like(a), q, p, usage="loss")
    assert got.shape == q.shape
    assert (got == 0).all()


def two_steps():
    """Reference, old and new policy of the printed staleness numbers."""

    def logits(seed, base=None, noise=1.0):
        drawn = np.random.default_rng(seed).normal(size=(4, 3))
        return drawn if base is None else base + noise * drawn

    ref = logits(0)
    old = logits(1, ref, 0.7)
    return Tree(3, 2), *(torch.tensor(x) for x in (logits(2, old, 0.7), ref, old))


def test_token_weights_leave_the_prefixes_as_the_old_policy_drew_them():
    tree, q, p, old = two_steps()
    kl = float(tree.divergence("kl_qp", q, p))
    weighted = {
        weight: float(sequences.expected_token_sum(tree, K3, q, p, old_logits=old, weight=weight))
        for weight in sequences.WEIGHTS
    }
    assert kl == pytest.approx(0.26300, abs=5e-6)
    assert weighted["token"] == pytest.approx(0.23253, abs=5e-6)
    assert weighted["token"] / kl - 1 == pytest.approx(-0.116, abs=5e-4)
    assert weighted["prefix"] == pytest.approx(kl, rel=1e-12)
    assert weighted["sequence"] == pytest.approx(kl, rel=1e-12)
    # What is wrong is the law of the prefixes alone: KL of each row, old frequencies.
    rows = exact.divergence("kl_qp", torch.log_softmax(q, -1), torch.log_softmax(p, -1))
    assert weighted["token"] == pytest.approx(float(tree.reach(old).exp() @ rows), rel=1e-12)
    assert kl == pytest.approx(float(tree.reach(q).exp() @ rows), rel=1e-12)


def test_differentiated_prefix_weights_follow_the_sequence_kl_off_policy():
    tree, q, p, old = two_steps()
    true = tree.gradient("kl_qp", q, p)
    for fn in (K1, K3):
        for weight, error in (("prefix", 1e-12), ("sequence", 1e-12)):
            got = expected_gradient(tree, fn, q, p, usage="loss", old_logits=old, weight=weight)
            assert relative(got, true) < error
        token = expected_gradient(tree, fn, q, p, usage="loss", old_logits=old, weight="token")
        assert relative(token, true) > 0.05
    # On policy a weight is 1, and still changes what is followed: token for token ∇KL.
    on_policy = expected_gradient(tree, K3, q, p, usage="loss", weight="token")
    k2_loss = expected_gradient(tree, K2, q, p, usage="loss")
    assert relative(on_policy, k2_loss) < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"usage": "metric"}, "usage: expected one of loss, reward, both, got 'metric'"),
        ({"usage": "reward", "credit": "all"}, "credit: expected one of to_go, token, sequence"),
        ({"usage": "loss", "weight": "is"}, "weight: expected one of none, token"),
        (
            {"usage": "loss", "fn": lambda a, b: a.sum()},
            r"fn: expected one value per sample, shape .* got shape \(\)",
        ),
        ({"usage": "loss", "fn": lambda a, b: 1.0}, "fn: expected one value per .* got float"),
    ],
)
def test_expected_gradient_refuses(options, message):
    tree = Tree(2, 2)
    q, p = random_logits(tree, 1)
    options = {"fn": K1} | options
    with pytest.raises(InputError, match=message):
        expected_gradient(tree, options.pop("fn"), q, p, **options)


# --- Rao-Blackwell


def test_rao_blackwell_can_be_noisier_over_a_sequence():
    tree = Tree(2, 2)
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.01, 0.99]], dtype=torch.float64).log()
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.99, 0.01]], dtype=torch.float64).log()
    plain = tree.log_probs(q) - tree.log_probs(p)
    replaced = sequences.rao_blackwell(tree, "kl_qp", q, p)
    mean_mc, var_mc = sequences.moments(tree, q, plain)
    mean_rb, var_rb = sequences.moments(tree, q, replaced)
    assert float(mean_mc) == pytest.approx(2.39545, abs=5e-6)
    assert float(mean_rb) == pytest.approx(float(mean_mc), rel=1e-13)
    assert float(var_mc) == pytest.approx(3.31591, abs=5e-6)
    assert float(var_rb) == pytest.approx(5.06974, abs=5e-6)


def test_how_often_a_random_two_step_model_breaks_the_inequality():
    # Six binary logits with sd 1.5: a softmax of two has their difference as its logit.
    tree, n = Tree(2, 2), 100_000
    logits = 1.5 * np.random.default_rng(0).normal(size=(2, n, 3))
    q, p = (torch.tensor(np.stack([x, 0 * x], -1)) for x in logits)
    var_mc = sequences.moments(tree, q, tree.log_probs(q) - tree.log_probs(p))[1]
    var_rb = sequences.moments(tree, q, sequences.rao_blackwell(tree, "kl_qp", q, p))[1]
    share = float((var_rb > var_mc).double().mean())
    assert share == pytest.approx(0.007, abs=5 * math.sqrt(0.007 / n))
    assert (var_mc / var_rb).min() > 0.01  # a search finds .01; random models stay above


@given(st.integers(0, 10_000), st.sampled_from([None, 0, 2]), st.sampled_from(oracles.REGISTERED))
@settings(max_examples=30)
def test_rao_blackwell_rows_along_the_path(seed, eos, name):
    tree = Tree(3, 2, eos)
    q, p = random_logits(tree, seed)
    model, ref, f = Plain(tree, q), Plain(tree, p), oracles.GENERATORS[name].f
    got = sequences.rao_blackwell(tree, name, q, p)
    for s, y in enumerate(model.sequences):
        rows = [model.rows[y[:t]] for t in range(len(y))]
        want = math.fsum(
            a * float(f(b / a))
            for row in rows
            for a, b in zip(model.table[row], ref.table[row], strict=True)
        )
        assert float(got[s]) == pytest.approx(want, rel=1e-10, abs=1e-14)
    if name == "kl_qp":
        mean, _ = sequences.moments(tree, q, got)
        assert float(mean) == pytest.approx(float(tree.divergence("kl_qp", q, p)), rel=1e-11)


# --- scaling with length, best of n


@pytest.mark.parametrize(
    ("T", "printed"),
    [  # sd/true of k1, of summed token k3, of sequence k3; bias/true of sequence k2
        (1, (20.0, 1.417, 1.417, 0.0025)),
        (100, (2.0, 0.1417, 1.695, 0.25)),
        (1000, (0.632, 0.0448, 29.7, 2.5)),
        (2000, (0.447, 0.0317, 2203.0, 5.0)),
    ],
)
def test_scaling_with_length(T, printed):
    kl = T * 0.1**2 / 2
    tokens_k1, sequence_k1 = sequences.shifted_tokens(K1, 0.1, T)
    tokens_k3, sequence_k3 = sequences.shifted_tokens(K3, 0.1, T)
    _, sequence_k2 = sequences.shifted_tokens(K2, 0.1, T)
    assert tokens_k1.sd == pytest.approx(sequence_k1.sd, rel=1e-10)
    for m in (tokens_k1, sequence_k1, tokens_k3, sequence_k3):
        assert m.mean == pytest.approx(kl, rel=1e-9)
    got = (tokens_k1.sd, tokens_k3.sd, sequence_k3.sd, sequence_k2.bias)
    np.testing.assert_allclose([x / kl for x in got], printed, rtol=1.2e-3)
    closed = (
        math.sqrt(T) * 0.1,
        math.sqrt(T * (math.expm1(0.01) - 0.01)),
        math.sqrt(math.expm1(T * 0.01) - T * 0.01),
        kl**2 / 2,
    )
    np.testing.assert_allclose(got, closed, rtol=1e-8)


def test_shifted_tokens_sum_bias_and_error_too():
    tokens, one = sequences.shifted_tokens(K2, 0.5, 7)[0], sequences.shifted_tokens(K2, 0.5, 1)[0]
    assert tokens.bias == pytest.approx(7 * one.bias, rel=1e-12)
    assert tokens.bias == pytest.approx(7 * 0.5**4 / 8, rel=1e-10)
    assert tokens.error == pytest.approx(7 * one.error, rel=1e-12, abs=0)
    assert one.error > 0
    with pytest.raises(InputError, match="T: expected"):
        sequences.shifted_tokens(K1, 0.1, 0)


PRINTED_BEST_OF_N = {
    2: 0.193, 4: 0.636, 8: 1.204, 16: 1.835, 63: 3.159, 64: 3.175,
    128: 3.860, 256: 4.549, 512: 5.240,
}  # fmt: skip


@pytest.mark.parametrize(("n", "printed"), PRINTED_BEST_OF_N.items())
def test_best_of_n_without_ties(n, printed):
    assert sequences.best_of_n_kl(n) == pytest.approx(printed, abs=6e-4)
    # The limit of many equally likely items, from below.
    log_p = torch.full((200_000,), 1 / 200_000, dtype=torch.float64).log()
    kl = float(exact.divergence("kl_qp", sequences.best_of_n(log_p, n), log_p))
    assert sequences.best_of_n_kl(n) - 0.01 < kl < sequences.best_of_n_kl(n)


@pytest.mark.parametrize(
    ("items", "printed"), [(2, 0.668), (5, 1.100), (20, 1.198), (1000, 1.2044)]
)
def test_best_of_eight_with_ties(items, printed):
    log_p = torch.full((items,), 1 / items, dtype=torch.float64).log()
    kl = float(exact.divergence("kl_qp", sequences.best_of_n(log_p, 8), log_p))
    assert kl == pytest.approx(printed, abs=5e-4 if items < 1000 else 5e-5)


def test_best_of_n_by_drawing_every_sample():
    p = torch.tensor([0.2, 0.0, 0.5, 0.3], dtype=torch.float64)
    want = np.zeros(4)
    for drawn in itertools.product(range(4), repeat=3):
        want[max(drawn)] += math.prod(float(p[i]) for i in drawn)
    np.testing.assert_allclose(sequences.best_of_n(p.log(), 3).exp(), want, rtol=1e-13)
    np.testing.assert_allclose(sequences.best_of_n(p.log(), 1).exp(), p, rtol=1e-13)
    # The worst item keeps its digits where F^n is far below the smallest step near 1.
    tiny = torch.tensor([1e-9, 1 - 1e-9], dtype=torch.float64).log()
    assert float(sequences.best_of_n(tiny, 8)[0]) == pytest.approx(8 * math.log(1e-9), rel=1e-9)
    rare = torch.tensor([-115.0, -115.0, 0.0], dtype=torch.float64)  # F^8 is below 1e-308
    got = sequences.best_of_n(rare, 8)
    assert got[:2].tolist() == pytest.approx([-920.0, -920.0 + math.log(2**8 - 1)], rel=1e-12)
    for n in (0, 1.5):
        with pytest.raises(InputError, match="n: expected"):
            sequences.best_of_n(p.log(), n)
        with pytest.raises(InputError, match="n: expected"):
            sequences.best_of_n_kl(n)


# --- the bigram models

FIVE = ("the", "of", "new", "york", "city")


def dense_five():
    """The copy of five words as (6, 5) matrices straight from the published counts."""
    import wordsegment

    words = word_frequencies()  # loads the tables
    place = [words.words.index(word) for word in FIVE]
    u, v = (table[place].exp().numpy() for table in (words.log_q, words.log_p))
    u, v = u / u.sum(), v / v.sum()
    counts = wordsegment.UNIGRAMS
    heads = math.fsum(c for b, c in wordsegment.BIGRAMS.items() if b.split(" ")[0] in counts)
    starts = math.fsum(c for b, c in wordsegment.BIGRAMS.items() if b.startswith("<s> "))
    share = heads / math.fsum(counts.values())
    seen = np.zeros((6, 5))
    for i, a in enumerate((*FIVE, "<s>")):
        total = starts / share if a == "<s>" else counts[a]
        seen[i] = [wordsegment.BIGRAMS.get(f"{a} {b}", 0.0) / total for b in FIVE]
    beta = 1 - seen.sum(1, keepdims=True)
    return seen + beta * u, seen + beta * v


@pytest.fixture(scope="module")
def five():
    return sequences.word_bigrams(FIVE)


@pytest.fixture(scope="module")
def enumerated():
    """All 5^6 sequences of six words: probabilities under q, l and the states of each step."""
    q, p = dense_five()
    y = np.array(list(itertools.product(range(5), repeat=6)))
    before = np.concatenate([np.full((len(y), 1), 5), y[:, :-1]], 1)
    return q[before, y].prod(1), np.log(q / p)[before, y], before, y


def test_bigram_rows_are_those_of_the_counts(five):
    q, p = dense_five()
    previous, token = torch.meshgrid(
        torch.tensor([0, 1, 2, 3, 4, -1]), torch.arange(5), indexing="ij"
    )
    log_q, log_p = five.log_probs(previous, token)
    np.testing.assert_allclose(log_q.exp(), q, rtol=1e-12)
    np.testing.assert_allclose(log_p.exp(), p, rtol=1e-12)
    assert five.words == FIVE
    assert 10 < len(five.seen) < 30  # some bigrams of these words are listed, some are not


def test_sequence_kl_by_propagation_is_that_of_the_enumeration(five, enumerated):
    weight, l, before, _ = enumerated
    assert math.fsum(weight) == pytest.approx(1, rel=1e-12)
    kl = math.fsum(weight * l.sum(1))
    assert float(five.kl_steps(6).sum()) == pytest.approx(kl, abs=1e-10, rel=1e-10)
    np.testing.assert_allclose(five.kl_steps(6), weight @ l, rtol=0, atol=1e-12)
    for t in range(6):
        law = np.bincount(before[:, t], weight, minlength=6)
        np.testing.assert_allclose(five.state_law(t), law, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("fn", "plain"),
    [
        (K1, lambda l: l),
        (K2, lambda l: l**2 / 2),
        (K3, lambda l: np.expm1(-l) + l),
        (lambda log_r: torch.exp(2 * log_r), lambda l: np.exp(-2 * l)),
    ],
)
def test_moments_of_token_sums_are_those_of_the_enumeration(five, enumerated, fn, plain):
    weight, l, before, _ = enumerated
    q, p = dense_five()
    rows = (q * plain(np.log(q / p))).sum(1)
    np.testing.assert_allclose(five.row_means(fn), rows, rtol=1e-10, atol=1e-15)
    for rao_blackwell, values in ((False, plain(l)), (True, rows[before])):
        for T in (1, 2, 6):
            total = values[:, :T].sum(1)
            mean = math.fsum(weight * total)
            variance = math.fsum(weight * (total - mean) ** 2)
            got = five.moments(fn, T, rao_blackwell=rao_blackwell)
            assert got == pytest.approx((mean, variance), rel=1e-10, abs=1e-14)


def test_token_log_probs_of_sequences(five, enumerated):
    weight, l, _, y = enumerated
    log_q, log_p = five.token_log_probs(torch.tensor(y))
    np.testing.assert_allclose(log_q.sum(-1).exp(), weight, rtol=1e-11)
    np.testing.assert_allclose(log_q - log_p, l, rtol=0, atol=1e-12)


def test_bigram_samples_follow_q_and_not_p(five):
    q, p = dense_five()
    drawn = five.sample(40_000, 2, generator=seeded()).numpy()
    fits = []
    for model in (q, p):
        law = model[5][:, None] * model[:5]
        counts = np.bincount(drawn @ [5, 1], minlength=25)
        fits.append(counts_fit(counts, law.ravel(), 40_000))
    assert fits == [True, False]
    again = five.sample(40_000, 2, generator=seeded()).numpy()
    assert (again == drawn).all()


def test_rows_with_nothing_listed_and_rows_with_everything_listed():
    u = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    v = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    pair = sequences.bigrams([1, 1], [1, 0], [0.5, 0.5], u, v)
    # Word 1 is followed by its bigrams alone, so both models agree there.
    np.testing.assert_allclose(pair.row_means(K1), [K, 0.0, K], rtol=1e-12, atol=1e-16)
    tokens = pair.sample(4000, 3, generator=seeded())
    after_one = tokens[:, 1][tokens[:, 0] == 1]
    assert abs(float(after_one.double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(len(after_one))
    empty = sequences.bigrams([], [], torch.empty(0, dtype=torch.float64), u, v)
    np.testing.assert_allclose(empty.kl_steps(3), [K] * 3, rtol=1e-12)
    assert empty.sample(5, 4, generator=seeded()).shape == (5, 4)
    mean, variance = empty.moments(K1, 1000)
    one = exact.moments(K1, TwoWords(u, v))
    assert (mean, variance) == pytest.approx((1000 * one.mean, 1000 * one.variance), rel=1e-11)
    # A constant in every value changes no variance, even where the sum's square is 1e12.
    _, shifted = empty.moments(lambda log_r: 1000 - log_r, 1000)
    assert shifted == pytest.approx(variance, rel=1e-8)


K = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)


class TwoWords:
    def __init__(self, log_q, log_p):
        self.log_q, self.log_p = log_q, log_p


def test_the_full_vocabulary_against_its_counts():
    import wordsegment

    pair = sequences.word_bigrams()
    assert sequences.word_bigrams() is pair
    assert pair.V == word_frequencies().V > 200_000
    index = {word: i for i, word in enumerate(pair.words)}
    for a, b in (("new", "york"), ("york", "new"), ("of", "the"), ("san", "aardvark")):
        listed = {
            key: count / wordsegment.UNIGRAMS[a]
            for key, count in wordsegment.BIGRAMS.items()
            if key.split(" ")[0] == a and key.split(" ")[1] in index
        }
        beta = 1 - math.fsum(listed.values())
        got = pair.log_probs(torch.tensor(index[a]), torch.tensor(index[b]))
        for log_prob, single in zip(got, (pair.log_u, pair.log_v), strict=True):
            want = listed.get(f"{a} {b}", 0.0) + beta * math.exp(float(single[index[b]]))
            assert float(log_prob.exp()) == pytest.approx(want, rel=1e-10)
    # A row with bigrams sums to 1 over all 212,165 words.
    everything = torch.arange(pair.V)
    for word in ("new", "misplace"):
        log_q, log_p = pair.log_probs(torch.full_like(everything, index[word]), everything)
        assert float(log_q.exp().sum()) == pytest.approx(1, abs=1e-11)
        assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-11)
        kl = float((log_q.exp() * (log_q - log_p)).sum())
        assert float(pair.row_means(K3)[index[word]]) == pytest.approx(kl, rel=1e-9)
    assert float(pair.state_law(3).sum()) == pytest.approx(1, abs=1e-12)


def test_a_thousand_words_against_monte_carlo():
    """Exact mean and variance of 1,000-step sums, and 300 sampled sequences within 3 s.e."""
    pair, T, n = sequences.word_bigrams(), 1000, 300
    steps = pair.kl_steps(T)
    log_q, log_p = pair.token_log_probs(pair.sample(n, T, generator=seeded()))
    kl = float(steps.sum())
    for fn in (K1, K3):
        mean, variance = pair.moments(fn, T)
        assert mean == pytest.approx(kl, rel=1e-10)
        sums = fn(log_p - log_q).sum(-1)
        error = math.sqrt(variance / n)
        assert abs(float(sums.mean()) - kl) < 3 * error
        # The twin: k2 estimates another number, 62 % higher, and is told apart.
        assert abs(float(K2(log_p - log_q).sum(-1).mean()) - kl) > 20 * error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": [0, 0], "column": [1, 1], "seen": [0.1, 0.1]}, "row, column: .*each bigram once"),
        ({"row": [3]}, "row, column: expected 0 <= row <= 2"),
        ({"row": [-1]}, "row, column: expected"),
        ({"column": [2]}, "row, column: expected"),
        ({"seen": [1.5]}, "seen: expected .* got a row of 1.5"),
        ({"seen": [0.0]}, "seen: expected s > 0"),
        ({"seen": [0.1, 0.2]}, "row, column, seen: expected one entry each"),
        ({"log_u": [0.5, 0.5]}, "log_u: expected normalised"),
        ({"log_v": [-INF, 0.0]}, "log_v: expected every word possible"),
        ({"log_v": [0.0]}, r"log_v: expected one vocabulary, shape \(2,\)"),
    ],
)
def test_bigrams_refuse(changes, message):
    half = [math.log(0.5)] * 2
    arguments = {"row": [0], "column": [1], "seen": [0.5], "log_u": half, "log_v": half}
    with pytest.raises(InputError, match=message):
        sequences.bigrams(**(arguments | changes))


@pytest.mark.parametrize("words", [("the", "thequickbrown"), ("the", "the"), ()])
def test_word_bigrams_refuse(words):
    with pytest.raises(InputError, match="words: expected different words of both tables"):
        sequences.word_bigrams(words)


def test_bigrams_come_in_any_order_and_sizes_are_checked():
    u = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    rows, columns, seen = [2, 0, 0], [0, 1, 0], [0.3, 0.2, 0.4]
    one = sequences.bigrams(rows, columns, seen, u, u.flip(0))
    other = sequences.bigrams(rows[::-1], columns[::-1], seen[::-1], u, u.flip(0))
    assert one.kl_steps(4).equal(other.kl_steps(4))
    assert one.row.tolist() == [0, 0, 2]
    for call in (one.kl_steps, lambda T: one.moments(K1, T)):
        with pytest.raises(InputError, match="T: expected"):
            call(0)
    with pytest.raises(InputError, match="n: expected"):
        one.sample(0, 1, generator=seeded())
