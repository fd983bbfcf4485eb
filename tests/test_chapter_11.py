"""What chapter 11 says, against plain loops over sequences, and samples against exact errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian

from kllab import K1, K2, K3, penalties, sequences
from kllab.sequences import Tree, expected_gradient, expected_token_sum, moments, reward_to_go

norm = np.linalg.norm


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Plain:
    """Prefixes and sequences listed by hand; a sequence's values token by token."""

    def __init__(self, V, T):
        self.V, self.T = V, T
        steps = (itertools.product(range(V), repeat=t) for t in range(T))
        self.row = {h: i for i, h in enumerate(itertools.chain(*steps))}
        self.sequences = list(itertools.product(range(V), repeat=T))

    def steps(self, y):
        return [(self.row[y[:t]], y[t]) for t in range(self.T)]

    def prob(self, table, y):
        return math.prod(table[i, a] for i, a in self.steps(y))

    def reach(self, table):
        """How often each prefix is arrived at."""
        return np.array([
            math.prod(table[self.row[h[:t]], h[t]] for t in range(len(h))) for h in self.row
        ])  # fmt: skip

    def each(self, q, p):
        """(probability under q, k1 of each token, its score as an array) of each sequence."""
        for y in self.sequences:
            k1, scores = [], []
            for i, a in self.steps(y):
                k1.append(math.log(q[i, a] / p[i, a]))
                s = np.zeros_like(q)
                s[i] = -q[i]
                s[i, a] += 1
                scores.append(s)
            yield self.prob(q, y), np.array(k1), np.array(scores)

    def gradient(self, q, p, credit):
        """Σ_y Q(y) Σ_t credit(k1)_t s_t."""
        return sum(w * np.einsum("t,tnv->nv", credit(k1), s) for w, k1, s in self.each(q, p))

    def second_moment(self, q, p, credit):
        """E‖Σ_t credit_t s_t‖²."""
        return sum(
            w * (np.einsum("t,tnv->nv", credit(k1), s) ** 2).sum() for w, k1, s in self.each(q, p)
        )


def returns(k1):
    return k1[::-1].cumsum()[::-1]


def own(k1):
    return k1


def pull(k1):
    """k3 as loss: 1 − r."""
    return 1 - np.exp(-k1)


def noisy(seed, noise, V=3, T=3):
    rng, plain = np.random.default_rng(seed), Plain(V, T)
    ref = rng.normal(size=(len(plain.row), V))
    return plain, ref + noise * rng.normal(size=ref.shape), ref


def gap(a, b):
    return norm(a - b) / norm(b)


def z_scores(values, mean, variance):
    """(mean of samples − mean) / exact standard error, over the last axis."""
    return (values.mean(-1) - mean) / math.sqrt(variance / values.shape[-1])


# --- the puzzle


Q = np.array([[0.6, 0.4], [0.5, 0.5], [0.1, 0.9]])
P = np.array([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]])
FUTURE = 0.8 * math.log(9)  # KL((.1, .9)‖(.9, .1))


def test_the_token_loss_and_the_sequence_kl_pull_the_first_token_in_opposite_directions():
    tree, q, p = Tree(2, 2), *(torch.tensor(x).log() for x in (Q, P))
    kept = expected_gradient(tree, K2, q, p, usage="loss")
    true = tree.gradient("kl_qp", q, p)
    own_row = 0.4 * 0.6 * math.log(0.4 / 0.6)  # q (1 − q) times the difference of log-ratios
    assert float(kept[0, 1]) == pytest.approx(own_row, rel=1e-12)
    assert float(true[0, 1]) == pytest.approx(own_row + 0.4 * 0.6 * FUTURE, rel=1e-12)
    assert kept[0, 1] < 0 < true[0, 1]
    np.testing.assert_allclose([own_row, float(true[0, 1])], [-0.0973, 0.3246], atol=5e-5)
    np.testing.assert_allclose(kept[1:], true[1:], atol=1e-15)  # nothing comes after the last one


def test_where_the_first_token_ends_if_the_rest_stays():
    tilt = 0.5 * math.exp(-FUTURE) / (0.5 + 0.5 * math.exp(-FUTURE))
    assert tilt == pytest.approx(0.147, abs=5e-4)
    tree, q, p = Tree(2, 2), *(torch.tensor(x).log() for x in (Q, P))
    for place, want in ((tilt, 0.0), (0.5, 0.25 * FUTURE)):
        q[0] = torch.tensor([1 - place, place], dtype=torch.float64).log()
        token_loss = expected_gradient(tree, K2, q, p, usage="loss")[0, 1]
        assert float(tree.gradient("kl_qp", q, p)[0, 1]) == pytest.approx(want, abs=1e-15)
        assert (abs(float(token_loss)) < 1e-15) == (place == 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_samples_show_the_kept_and_the_dropped_term_and_reject_the_token_loss(seed):
    tree, q = Tree(2, 2), torch.tensor(Q).log()
    n, generator = 20_000, torch.Generator().manual_seed(seed)
    y = tree.tokens[tree.sample(q, n, generator=generator)].numpy()
    first, second = y[:, 0], y[:, 1]
    k1 = np.log(Q[0, first] / P[0, first]), np.log(Q[1 + first, second] / P[1 + first, second])
    score = (first == 1) - 0.4  # of the logit of B as first token
    exactly = [
        (w, l, s[0, 0, 1]) for w, l, s in Plain(2, 2).each(Q, P)
    ]  # fmt: skip
    for sampled, credit, mean in (
        (k1[0] * score, lambda l: l[0], 0.24 * math.log(2 / 3)),
        (k1[1] * score, lambda l: l[1], 0.24 * FUTURE),
        ((k1[0] + k1[1]) * score, sum, 0.24 * (math.log(2 / 3) + FUTURE)),
    ):
        second = sum(w * (credit(l) * s) ** 2 for w, l, s in exactly)
        variance = second - mean**2
        assert sum(w * credit(l) * s for w, l, s in exactly) == pytest.approx(mean, rel=1e-12)
        assert abs(z_scores(sampled, mean, variance)) < 5
    # The wrong placement is seen: its samples are nowhere near the gradient of KL(Q‖P).
    variance = sum(w * (l[0] * s) ** 2 for w, l, s in exactly) - (0.24 * math.log(2 / 3)) ** 2
    assert abs(z_scores(k1[0] * score, 0.24 * (math.log(2 / 3) + FUTURE), variance)) > 100


# --- the chain rule, and sums against the whole ratio


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_of_the_tokens_estimates_the_kl_of_the_sequences(seed):
    plain, zq, zp = noisy(seed, 1.0)
    q, p = softmax(zq), softmax(zp)
    kl = sum(plain.prob(q, y) * math.log(plain.prob(q, y) / plain.prob(p, y))
             for y in plain.sequences)  # fmt: skip
    rows = (q * np.log(q / p)).sum(-1)
    assert plain.reach(q) @ rows == pytest.approx(kl, rel=1e-12)
    tree = Tree(3, 3)
    for k in (K1, K3):
        ours = expected_token_sum(tree, k, torch.tensor(zq), torch.tensor(zp))
        assert float(ours) == pytest.approx(kl, rel=1e-12)
        # 20,000 sampled sums, against the variance of the enumeration.
        log_r = tree.token_log_probs(torch.tensor(zp)) - tree.token_log_probs(torch.tensor(zq))
        sums = k(log_r).sum(-1).numpy()
        law = np.array([plain.prob(q, y) for y in plain.sequences])
        drawn = tree.sample(torch.tensor(zq), 20_000, generator=torch.Generator().manual_seed(seed))
        assert abs(z_scores(sums[drawn.numpy()], kl, law @ (sums - kl) ** 2)) < 5


def test_the_spread_of_the_whole_ratio_at_a_thousand_tokens():
    summed, whole = sequences.shifted_tokens(K3, 0.1, 1000)
    by_hand = math.sqrt(math.expm1(10) - 10), math.sqrt(1000 * (math.expm1(0.01) - 0.01))
    assert (whole.sd, summed.sd) == pytest.approx(by_hand, rel=1e-8)
    assert whole.sd / 5 == pytest.approx(29.7, abs=0.05)
    assert summed.sd / 5 == pytest.approx(0.0448, abs=5e-5)
    assert whole.sd / summed.sd == pytest.approx(660, abs=5)
    assert sequences.shifted_tokens(K2, 0.1, 1000)[1].bias / 5 == pytest.approx(1000 * 0.01 / 4)
    seen = []
    for seed in range(10):
        x = 0.1 * np.random.default_rng(seed).normal(size=(2_000, 1_000))
        l = x.sum(1) - 5
        tokens = (np.expm1(x - 0.005) - (x - 0.005)).sum(1)
        seen.append((np.expm1(l) - l).std())
        assert abs(z_scores(tokens, 5, summed.variance)) < 5
    assert np.median(seen) < whole.sd / 2  # what samples show as their own error is too small


# --- the size of the dropped term


def test_the_size_at_four_noise_levels():
    printed = {0.1: (0.031, 0.037, 0.061), 0.3: (0.094, 0.110, 0.183),
               1.0: (0.300, 0.322, 0.590), 2.0: (0.492, 0.504, 1.323)}  # fmt: skip
    means, least, most = {}, {}, {}
    for noise, want in printed.items():
        errors = []
        for seed in range(20):
            plain, zq, zp = noisy(seed, noise)
            q, p = softmax(zq), softmax(zp)
            true = plain.gradient(q, p, returns)
            forward = plain.reach(p)[:, None] * (q - p)
            k2, k3 = plain.gradient(q, p, own), plain.gradient(q, p, pull)
            errors.append((gap(k2, true), gap(k3, forward), gap(k3, true)))
            if seed < 3:  # what the page calls
                tree, *z = Tree(3, 3), torch.tensor(zq), torch.tensor(zp)
                for k, loss in ((K2, k2), (K3, k3)):
                    ours = expected_gradient(tree, k, *z, usage="loss")
                    np.testing.assert_allclose(ours, loss, rtol=1e-9, atol=1e-14)
                np.testing.assert_allclose(tree.gradient("kl_qp", *z), true, atol=1e-14)
        means[noise] = np.mean(errors, 0)
        least[noise], most[noise] = np.min(errors, 0)[0], np.max(errors, 0)[0]
        np.testing.assert_allclose(means[noise], want, rtol=0, atol=6e-4)
    # Proportional to the noise, and of very different size in single models.
    np.testing.assert_allclose(means[0.3] / means[0.1], 3.0, rtol=0.03)
    assert least[1.0] == pytest.approx(0.07, abs=5e-3)
    assert most[1.0] == pytest.approx(0.71, abs=5e-3)


def test_the_missing_part_is_no_factor_and_grows_with_the_length():
    plain, zq, zp = noisy(0, 1.0)
    q, p = softmax(zq), softmax(zp)
    true, kept = plain.gradient(q, p, returns), plain.gradient(q, p, own)
    best = (kept * true).sum() / (kept**2).sum()
    assert gap(best * kept, true) > 0.9 * gap(kept, true)
    mean = {}
    for T in (1, 2, 4, 8):
        errors, tree = [], Tree(2, T)
        for seed in range(20):
            rng = np.random.default_rng(seed)
            ref = rng.normal(size=(tree.rows, 2))
            z = torch.tensor(ref + 0.3 * rng.normal(size=ref.shape)), torch.tensor(ref)
            k2 = expected_gradient(tree, K2, *z, usage="loss")
            errors.append(gap(k2.numpy(), tree.gradient("kl_qp", *z).numpy()))
        mean[T] = np.mean(errors)
    assert mean[1] < 1e-12
    assert mean[2] < mean[4] < mean[8]
    assert [round(mean[T], 3) for T in (2, 4, 8)] == [0.061, 0.077, 0.138]


@pytest.mark.parametrize("seed", range(5))
def test_k3_as_token_loss_weighs_the_rows_of_the_other_direction_by_the_wrong_prefixes(seed):
    plain, zq, zp = noisy(seed, 1.0)
    q, p = softmax(zq), softmax(zp)
    tree, *z = Tree(3, 3), torch.tensor(zq), torch.tensor(zp)
    loss = expected_gradient(tree, K3, *z, usage="loss")
    np.testing.assert_allclose(loss, plain.reach(q)[:, None] * (q - p), atol=1e-14)
    forward = tree.gradient("kl_pq", *z)
    np.testing.assert_allclose(forward, plain.reach(p)[:, None] * (q - p), atol=1e-14)


# --- returns: exact, and at a price


def surrogates():
    """As a training loop would write them, and as the page does."""

    def reward(logprob, ref, mask):
        k1 = penalties.k1_in_reward(logprob, ref, mask)
        return (reward_to_go(k1, mask) * logprob).sum(-1)

    def backwards(logprob, ref, mask):
        return (penalties.k1_in_reward(logprob, ref, mask).cumsum(-1) * logprob).sum(-1)

    def token_loss(logprob, ref, mask):
        return penalties.k2_in_loss(logprob, ref, mask).sum(-1)

    return {"returns": reward, "before": backwards, "own": token_loss}


def each_sequence(surrogate, tree, zq, zp):
    ref = tree.token_log_probs(zp)
    return jacobian(lambda z: surrogate(tree.token_log_probs(z), ref, tree.mask), zq).numpy()


def test_returns_are_exact_and_their_samples_show_it_for_any_seed():
    plain, zq, zp = noisy(0, 1.0)
    q, p = softmax(zq), softmax(zp)
    law = np.array([plain.prob(q, y) for y in plain.sequences])
    true, kept = plain.gradient(q, p, returns), plain.gradient(q, p, own)
    tree, *z = Tree(3, 3), torch.tensor(zq), torch.tensor(zp)
    way, held = true - kept, {}
    for name, surrogate in surrogates().items():
        g = each_sequence(surrogate, tree, *z)
        want = true if name == "returns" else kept  # what comes before counts nothing
        np.testing.assert_allclose(np.einsum("s,snv->nv", law, g), want, atol=1e-13)
        held[name] = ((g - kept) * way).sum((-2, -1)) / (way**2).sum()
    assert gap(kept, true) == pytest.approx(0.194, abs=5e-4)
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        y = tree.sample(z[0], 100_000, generator=draw).numpy()
        for name, share in (("returns", 1.0), ("own", 0.0)):
            variance = law @ (held[name] - share) ** 2
            assert abs(z_scores(held[name][y], share, variance)) < 5
            assert abs(z_scores(held[name][y], 1 - share, variance)) > 20


def test_which_batch_makes_returns_the_better_estimate():
    median = {}
    for noise in (0.1, 1.0):
        even = []
        for seed in range(20):
            plain, zq, zp = noisy(seed, noise)
            q, p = softmax(zq), softmax(zp)
            true, kept = plain.gradient(q, p, returns), plain.gradient(q, p, own)
            spread = {
                c: plain.second_moment(q, p, c) - norm(g) ** 2
                for c, g in ((returns, true), (own, kept))
            }
            assert spread[returns] > spread[own]
            even.append((spread[returns] - spread[own]) / norm(kept - true) ** 2)
        median[noise] = np.median(even)
    assert median[0.1] == pytest.approx(4_838, rel=1e-3)
    assert median[1.0] == pytest.approx(61, abs=0.5)
    # The whole sequence's sum has the same mean and more noise.
    whole = [plain.second_moment(q, p, c) for c in (returns, lambda k1: k1.sum() + 0 * k1)]
    assert whole[1] > whole[0]


def test_exact_rows_need_the_later_ones_too():
    plain, zq, zp = noisy(0, 1.0)
    q, p = softmax(zq), softmax(zp)
    true, kept = plain.gradient(q, p, returns), plain.gradient(q, p, own)
    tree, *z = Tree(3, 3), torch.tensor(zq), torch.tensor(zp)
    law = np.array([plain.prob(q, y) for y in plain.sequences])

    def rows(x, later):
        kl = penalties.full_kl(x[tree.prefix], z[1][tree.prefix])
        after = (reward_to_go(kl) - kl).detach()
        return (kl + later * after * tree.token_log_probs(x)).sum(-1)

    for later, want in ((0.0, kept), (1.0, true)):
        g = jacobian(lambda x, later=later: rows(x, later), z[0]).numpy()
        np.testing.assert_allclose(np.einsum("s,snv->nv", law, g), want, atol=1e-13)
    noise = np.einsum("s,snv->", law, (g - true) ** 2)
    assert noise < (plain.second_moment(q, p, returns) - norm(true) ** 2) / 3


def test_the_end_token_belongs_to_the_sum():
    # Two steps of A or the end: KL(Q‖P) by hand from its three sequences.
    q, p = np.array([[0.3, 0.7], [0.6, 0.4]]), np.array([[0.5, 0.5], [0.2, 0.8]])
    law_q = np.array([0.3, 0.7 * 0.6, 0.7 * 0.4])
    law_p = np.array([0.5, 0.5 * 0.2, 0.5 * 0.8])
    kl = float(law_q @ np.log(law_q / law_p))
    tree, zq, zp = Tree(2, 2, eos=0), torch.tensor(q).log(), torch.tensor(p).log()
    k3 = K3(tree.token_log_probs(zp) - tree.token_log_probs(zq))
    assert float(moments(tree, zq, k3.sum(-1))[0]) == pytest.approx(kl, rel=1e-12)
    text = torch.where(tree.mask & (tree.tokens != 0), k3, 0.0).sum(-1)
    assert abs(float(moments(tree, zq, text)[0]) / kl - 1) > 0.1


# --- stale samples


def stale_models():
    def rows(seed, base=0.0, noise=1.0):
        return base + noise * np.random.default_rng(seed).normal(size=(4, 3))

    ref = rows(0)
    old = rows(1, ref, 0.7)
    return rows(2, old, 0.7), old, ref


def test_token_weights_leave_the_prefixes_of_the_old_policy_for_any_seed():
    new, old, ref = stale_models()
    N, O, R = (softmax(z) for z in (new, old, ref))
    row_kl = (N * np.log(N / R)).sum(-1)
    kl = row_kl[0] + N[0] @ row_kl[1:]
    token = row_kl[0] + O[0] @ row_kl[1:]
    assert kl == pytest.approx(0.26300, abs=5e-6)
    assert token == pytest.approx(0.23253, abs=5e-6)
    assert token / kl - 1 == pytest.approx(-0.116, abs=5e-4)
    tree, *z = Tree(3, 2), torch.tensor(new), torch.tensor(ref)
    options = {"old_logits": torch.tensor(old)}
    for weight, want in (("token", token), ("prefix", kl), ("sequence", kl)):
        ours = expected_token_sum(tree, K3, *z, weight=weight, **options)
        assert float(ours) == pytest.approx(want, rel=1e-12)

    pairs = list(itertools.product(range(3), repeat=2))
    law = np.array([O[0, a] * O[1 + a, b] for a, b in pairs])
    w = np.array([(N[0, a] / O[0, a], N[1 + a, b] / O[1 + a, b]) for a, b in pairs])
    r = np.array([(R[0, a] / N[0, a], R[1 + a, b] / N[1 + a, b]) for a, b in pairs])
    k3 = r - 1 - np.log(r)
    values = {"token": (w * k3).sum(1), "prefix": (w.cumprod(1) * k3).sum(1)}
    for seed in range(20):
        y = np.random.default_rng(seed).choice(9, size=100_000, p=law / law.sum())
        for name, mean in (("token", token), ("prefix", kl)):
            variance = law @ (values[name] - mean) ** 2
            assert abs(z_scores(values[name][y], mean, variance)) < 5
        assert abs(z_scores(values["token"][y], kl, law @ (values["token"] - token) ** 2)) > 10


def test_the_gradient_off_policy_needs_prefix_weights():
    new, old, ref = stale_models()
    N, R = softmax(new), softmax(ref)
    true = Plain(3, 2).gradient(N, R, returns)
    tree, *z = Tree(3, 2), torch.tensor(new), torch.tensor(ref)
    error = {
        weight: gap(
            expected_gradient(
                tree, K3, *z, usage="loss", weight=weight, old_logits=torch.tensor(old)
            ).numpy(),
            true,
        )
        for weight in sequences.WEIGHTS
    }
    assert error["prefix"] < 1e-12
    assert error["sequence"] < 1e-12
    assert error["token"] == pytest.approx(0.425, abs=5e-4)
    assert error["none"] > 5


# --- averaging over the vocabulary, and one number for a batch


def test_averaging_each_step_can_add_variance():
    q = {"": 0.5, "0": 0.5, "1": 0.01}  # probability of the token 0 after each prefix
    p = {"": 0.25, "0": 0.5, "1": 0.99}

    def kl(a, b):
        return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))

    outcomes = []
    for a, b in itertools.product((0, 1), repeat=2):
        qa, pa, (qb, pb) = q[""], p[""], (q[str(a)], p[str(a)])
        probs = [(qa, pa) if a == 0 else (1 - qa, 1 - pa), (qb, pb) if b == 0 else (1 - qb, 1 - pb)]
        k1 = sum(math.log(x / y) for x, y in probs)
        outcomes.append((probs[0][0] * probs[1][0], k1, kl(qa, pa) + kl(qb, pb)))
    w, plain, rows = np.array(outcomes).T
    mean = w @ plain
    assert mean == pytest.approx(2.39545, abs=5e-6)
    assert w @ rows == pytest.approx(mean, rel=1e-13)
    variance = [w @ (x - w @ x) ** 2 for x in (plain, rows, plain - rows)]
    np.testing.assert_allclose(variance[:2], (3.31591, 5.06974), atol=5e-6)
    cross = 2 * (w @ ((rows - mean) * (plain - rows)))
    assert variance[0] == pytest.approx(variance[1] + variance[2] + cross, rel=1e-12)
    np.testing.assert_allclose((variance[2], cross), (0.720, -2.474), atol=6e-4)

    tree = Tree(2, 2)
    z = [torch.tensor(np.array([[x[h], 1 - x[h]] for h in q])).log() for x in (q, p)]
    ours = sequences.rao_blackwell(tree, "kl_qp", *z)
    assert float(moments(tree, z[0], ours)[1]) == pytest.approx(variance[1], rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_exceptions_are_rare(seed):
    rng = np.random.default_rng(seed)
    tree, z = Tree(2, 2), 1.5 * rng.normal(size=(2, 20_000, 3))
    q, p = (torch.tensor(np.stack([x, 0 * x], -1)) for x in z)
    k1 = tree.log_probs(q) - tree.log_probs(p)
    rows = sequences.rao_blackwell(tree, "kl_qp", q, p)
    worse = moments(tree, q, rows)[1] > moments(tree, q, k1)[1]
    assert 0.004 < float(worse.double().mean()) < 0.011


def test_one_batch_and_four_log_lines():
    values = torch.zeros(2, 100, dtype=torch.float64)
    values[0, :10], values[1] = 0.2, 0.02
    mask, want = values > 0, {
        "token_mean": (4 / 110, 1 / 110, 1 / 110),
        "seq_mean_token_mean": ((0.2 + 0.02) / 2, 1 / 20, 1 / 200),
        "seq_sum": (2.0, 1 / 2, 1 / 2),
        "padded_mean": (4 / 200, 1 / 200, 1 / 200),
    }  # fmt: skip
    for how, (line, short, long) in want.items():
        x = values.clone().requires_grad_()
        total = sequences.aggregate(x, mask, how=how)
        (push,) = torch.autograd.grad(total, x)
        assert total.item() == pytest.approx(line, rel=1e-12)
        assert (float(push[0, 0]), float(push[1, 0])) == pytest.approx((short, long), rel=1e-12)
        assert (push[0, 10:] == 0).all()
    rounded = [round(line, 3) for line, *_ in want.values()]
    assert rounded == [0.036, 0.11, 2.0, 0.02]
