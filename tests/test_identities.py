"""Numbers that sources print, and that the book repeats, from calls of the package.

Schulman (2020) is http://joschu.net/blog/kl-approx.html.  Where a number comes from a random
model, the model is drawn here by the same NumPy generator.
"""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from kllab import K1, K2, K3, exact, pairs
from kllab.divergences import HALF_SQUARED_LOG, get
from kllab.estimators import bregman, with_lambda
from kllab.gradients import coefficient, expected


def tensor(values):
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def categorical(q, p):
    return pairs.categorical(tensor(q).log(), tensor(p).log())


def kl(pair):
    return exact.target_value("kl_qp", pair)


def between(q, p):
    """The Gaussian pair of two (mean, sd) laws: units in which q is N(0, 1)."""
    return pairs.gaussian((p[0] - q[0]) / q[1], p[1] / q[1])


def shift(mu):
    return pairs.gaussian(mu, 1.0)


def variance(estimator, mu):
    return exact.moments(estimator, shift(mu)).variance


# --- Schulman's two tables --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "estimator", "printed_bias", "printed_sd", "bias", "sd"),
    [
        (0.1, K1, 0.0, 20.0, "0.0000", "20.00000"),
        (0.1, K2, 0.002, 1.42, "0.0025", "1.41774"),
        (0.1, K3, 0.0, 1.42, "0.0000", "1.41657"),
        (1.0, K1, 0.0, 2.0, "0.0000", "2.00000"),
        (1.0, K2, 0.25, 1.73, "0.2500", "1.73205"),
        (1.0, K3, 0.0, 1.7, "0.0000", "1.69503"),
    ],
)
def test_schulmans_tables(mu, estimator, printed_bias, printed_sd, bias, sd):
    """Bias and standard deviation over the true value, exact; and what 10⁷ samples printed."""
    m = exact.moments(estimator, shift(mu))
    true = kl(shift(mu))
    assert true == pytest.approx(mu**2 / 2, rel=1e-13)
    assert f"{abs(m.bias) / true:.4f}" == bias
    assert f"{m.sd / true:.5f}" == sd
    # The printed run differs by its own error at most, .002 for .0025 included.
    standard_error = m.sd / true / math.sqrt(1e7)
    assert abs(m.bias / true - printed_bias) <= 3 * standard_error + 1e-4
    assert m.sd / true == pytest.approx(printed_sd, abs=0.006)


def test_closed_forms_of_the_tables():
    for mu in (0.1, 0.7, 1.0, 2.0):
        true = mu**2 / 2
        assert math.sqrt(variance(K1, mu)) / true == pytest.approx(2 / mu, rel=1e-10)
        k2 = exact.moments(K2, shift(mu))
        assert k2.bias / true == pytest.approx(mu**2 / 4, rel=1e-9)
        assert k2.sd / true == pytest.approx(math.sqrt(2 + mu**2), rel=1e-9)
        assert variance(K3, mu) == pytest.approx(math.expm1(mu**2) - mu**2, rel=1e-8)


def test_the_tables_bias_of_two_thousandths():
    """At n = 10⁷ the bias column is good to 4.5e-4."""
    m = exact.moments(K2, shift(0.1))
    assert f"{m.sd / 0.005 / math.sqrt(1e7):.1e}" == "4.5e-04"


def test_the_codes_true_kl_is_the_other_one():
    """q = N(.1, 1.5), p = N(0, 1): a script that compares with KL(p‖q) reports a 73 % bias."""
    pair = between((0.1, 1.5), (0.0, 1.0))
    there, back = (exact.target_value(name, pair) for name in ("kl_qp", "kl_pq"))
    assert (f"{there:.5f}", f"{back:.5f}") == ("0.22453", "0.12991")
    assert f"{there / back - 1:.0%}" == "73%"
    equal = shift(0.3)
    assert exact.target_value("kl_qp", equal) == pytest.approx(
        exact.target_value("kl_pq", equal), rel=1e-13
    )


def test_k3_is_not_always_better():
    """Var k3 > Var k1 from μ² = 1.2564 (KL .6282), > Var k2 from μ² = 1.4512 (KL .7256)."""
    for other, square, at in ((K1, "1.2564", "0.6282"), (K2, "1.4512", "0.7256")):

        def excess(s, other=other):
            return variance(K3, math.sqrt(s)) - variance(other, math.sqrt(s))

        root = optimize.brentq(excess, 0.5, 3.0, xtol=1e-12)
        assert f"{root:.4f}" == square
        assert f"{kl(shift(math.sqrt(root))):.4f}" == at
        assert excess(root - 0.01) < 0 < excess(root + 0.01)
    at_two = [f"{math.sqrt(variance(e, 2.0)) / 2:.3f}" for e in (K1, K2, K3)]
    assert at_two == ["1.000", "2.449", "3.521"]


@pytest.mark.parametrize(
    ("mu", "lam", "best", "k3"),
    [
        (0.1, "0.9950", "1.4130", "1.4166"),
        (1.0, "0.5820", "1.2931", "1.6950"),
        (2.0, "0.0746", "0.9620", "3.5213"),
    ],
)
def test_lambda_star(mu, lam, best, k3):
    """λ* = μ²/(e^{μ²} − 1), from the parabola that the variance is in λ."""
    low, middle, high = (variance(with_lambda("kl_qp", x), mu) for x in (-1.0, 0.0, 1.0))
    star = (low - high) / (2 * (low + high - 2 * middle))
    assert f"{star:.4f}" == lam
    assert star == pytest.approx(mu**2 / math.expm1(mu**2), rel=1e-8)
    sd = math.sqrt(variance(with_lambda("kl_qp", star), mu)) / (mu**2 / 2)
    assert f"{sd:.4f}" == best
    assert f"{math.sqrt(variance(K3, mu)) / (mu**2 / 2):.4f}" == k3


@pytest.mark.parametrize(("mu", "n"), [(1.0, 16.0), (0.1, 6.4e7)])
def test_where_k2_loses_to_k1(mu, n):
    """Equal mean squared errors: Var k1 / n = Var k2 / n + bias²."""
    m = exact.moments(K2, shift(mu))
    crossover = (variance(K1, mu) - m.variance) / m.bias**2
    assert crossover == pytest.approx(n, rel=1e-9 if mu == 1 else 0.006)


@pytest.mark.parametrize(
    ("true", "printed"),
    [
        (0.005, {1: ".480", 16: ".421", 64: ".345", 256: ".212", 1024: ".055"}),
        (0.05, {1: ".437", 16: ".264", 64: ".103", 256: ".006"}),
        (0.5, {1: ".309", 16: ".023"}),
    ],
)
def test_how_often_the_mean_of_k1_is_negative(true, printed):
    pair = shift(math.sqrt(2 * true))
    for n, digits in printed.items():
        law = exact.sampling_distribution(K1, pair, n)
        assert f"{law.cdf(0.0).item():.3f}" == "0" + digits
        assert law.error < 2e-3
    beyond = 4 * max(printed)
    assert exact.sampling_distribution(K1, pair, beyond).cdf(0.0).item() < 1e-3


@pytest.mark.parametrize(
    ("true", "k1", "k3"), [(0.005, 40000, 200), (0.05, 4000, 206), (0.5, 400, 287)]
)
def test_samples_for_ten_percent(true, k1, k3):
    mu = math.sqrt(2 * true)
    needed = [variance(e, mu) / true**2 / 0.1**2 for e in (K1, K3)]
    assert [int(x + 1e-6) for x in needed] == [k1, k3]


# --- k2 is no f-divergence --------------------------------------------------------------------


def test_k2s_second_derivative_changes_sign_at_e():
    """f'' = (1 − log r)/r²; from (r f')' = r f' ' in log r: f'' r² = d(r f')/dl − r f'."""
    for r, sign in ((2.0, 1), (math.e - 0.01, 1), (math.e + 0.01, -1), (3.0, -1)):
        l = tensor(math.log(r)).requires_grad_()
        slope = HALF_SQUARED_LOG.r_df(l) + 0 * l
        (curvature,) = torch.autograd.grad(slope, l)
        second = (curvature - slope).item() / r**2
        assert second == pytest.approx((1 - math.log(r)) / r**2, rel=1e-9)
        assert math.copysign(1, second) == sign
    assert (1 - math.log(3)) / 9 < 0


def checks_generator():
    """The generator of the reference calculation, where its section on f-divergences begins."""
    generator = np.random.default_rng(7)
    generator.normal(size=12)
    return generator


def test_normalised_to_second_order():
    """D_f / f''(1) over ½χ², 8-way softmax at ε = .5, .1, .02."""
    generator = checks_generator()
    q = softmax(generator.normal(size=8))
    direction = generator.normal(size=8)
    printed = {
        "kl_pq": ("1.076", "1.015", "1.003"),
        "kl_qp": ("1.214", "1.033", "1.006"),
        "half_squared_log": ("1.391", "1.052", "1.009"),
        "chi2_pq": ("1.000", "1.000", "1.000"),
        "chi2_qp": ("1.444", "1.053", "1.009"),
        "hellinger2": ("1.136", "1.024", "1.005"),
        "js": ("1.127", "1.024", "1.005"),
    }
    for i, eps in enumerate((0.5, 0.1, 0.02)):
        log_q, log_p = tensor(q).log(), tensor(softmax(np.log(q) + eps * direction)).log()
        half_chi2 = exact.divergence("chi2_pq", log_q, log_p).item() / 2
        for name, digits in printed.items():
            d = get(name)
            ratio = exact.divergence(d, log_q, log_p).item() / d.d2f1 / half_chi2
            assert f"{ratio:.3f}" == digits[i], (name, eps)


def test_mean_k2_below_the_kl():
    """In 20,000 random three-way pairs E[k2] < KL in 29 %, with ratios from .07 to 5.9."""
    generator = checks_generator()
    generator.normal(size=16)
    logits = 2 * generator.normal(size=(20_000, 2, 3))
    log_q, log_p = torch.log_softmax(tensor(logits), -1).unbind(1)
    ratio = exact.divergence(HALF_SQUARED_LOG, log_q, log_p) / exact.divergence(
        "kl_qp", log_q, log_p
    )
    assert f"{(ratio < 1).double().mean():.0%}" == "29%"
    assert (f"{ratio.min():.2f}", f"{ratio.max():.1f}") == ("0.07", "5.9")


# --- supports, tails, clamps ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "printed"),
    [(0.5, "1.1547"), (1.2, "1.0206"), (1.5, "1.1547"), (1.9, "2.2942"), (1.99, "7.0888")],
)
def test_mean_square_of_r(ratio, printed):
    """E_q[r²] = χ²(p‖q) + 1 by the ratio of variances var_p / var_q."""
    pair = pairs.gaussian(0.0, math.sqrt(ratio))
    assert f"{exact.target_value('chi2_pq', pair) + 1:.4f}" == printed
    assert math.isfinite(exact.moments(K3, pair).variance)
    by_quadrature = exact.moments(lambda l: torch.exp(2 * l), pair)
    assert abs(by_quadrature.mean - float(printed)) <= by_quadrature.error + 5e-5


def test_the_boundary_of_finite_variance():
    for ratio in (2.001, 2.5):
        pair = pairs.gaussian(0.0, math.sqrt(ratio))
        assert exact.target_value("chi2_pq", pair) == math.inf
        m = exact.moments(K3, pair)
        assert m.variance == math.inf
        assert math.isfinite(m.mean)
    assert exact.moments(K3, pairs.gaussian(0.0, math.sqrt(2.0))).variance == math.inf


def test_a_narrow_policy_and_a_wide_reference():
    """q = N(.1, .2), p = N(0, 1): k1 is tame, k3 has no variance, so its sample sd is no number."""
    pair = between((0.1, 0.2), (0.0, 1.0))
    assert f"{kl(pair):.4f}" == "1.1344"
    assert f"{exact.moments(K1, pair).sd:.3f}" == "0.679"
    assert exact.moments(K3, pair).variance == math.inf
    as_variance = between((0.1, math.sqrt(0.2)), (0.0, 1.0))
    assert f"{exact.moments(K1, as_variance).sd:.3f}" == "0.567"
    other_way = between((0.0, 1.0), (0.1, 0.2))
    assert f"{exact.moments(K1, other_way).sd:.1f}" == "17.2"


def test_a_dropped_token():
    """Policy (1 − 1.5e-4, 1.5e-4), reference (.8, .2): a clamp at 10 removes 89 % of the value."""
    pair = categorical([1 - 1.5e-4, 1.5e-4], [0.8, 0.2])
    assert f"{kl(pair):.5f}" == "0.22188"
    assert f"{exact.moments(K3, pair).mean:.5f}" == "0.22188"
    clamped = exact.moments(K3.clamped(log_r=(-20, 20), value=(-10, 10)), pair)
    assert f"{clamped.mean:.5f}" == "0.02461"
    assert f"{clamped.bias / kl(pair):.0%}" == "-89%"
    assert f"{exact.moments(K1, pair).sd:.3f}" == "0.091"
    assert f"{exact.moments(K3, pair).sd:.1f}" == "16.2"
    assert f"{-torch.expm1(pair.log_r[1]).item():.0f}" == "-1332"


@pytest.fixture(scope="module")
def truncation_example():
    """Policy P over 20 tokens and reference Q, .3 of logit noise apart."""
    generator = checks_generator()
    generator.normal(size=16 + 120_000)
    for _ in range(17):  # 5,010,000 and 12,000,000 draws of the sections before
        generator.standard_normal(1_000_000)
    generator.standard_normal(10_000)
    policy = softmax(generator.normal(size=20) * 1.5)
    reference = softmax(np.log(policy) + 0.3 * generator.normal(size=20))
    return policy, reference


def test_truncated_sampling(truncation_example):
    """Sampling from the top .9 while scoring with the whole policy: r no longer has mean 1."""
    policy, reference = truncation_example
    pair = categorical(policy, reference)
    sampled = pairs.top_p(pair.log_q, 0.9).log_q.exp()
    assert f"{kl(pair):.5f}" == "0.03396"
    assert f"{(sampled * pair.log_r.exp()).sum():.4f}" == "0.9927"
    assert f"{(sampled * K1(pair.log_r)).sum():.5f}" == "0.04052"
    assert f"{(sampled * K3(pair.log_r)).sum():.5f}" == "0.03325"


def test_tempered_sampling(truncation_example):
    """Sampling at temperature .6, scoring at 1."""
    policy, reference = truncation_example
    pair = categorical(policy, reference)
    sampled = pairs.temperature(pair.log_q, 0.6).log_q.exp()
    assert f"{(sampled * K1(pair.log_r)).sum():.4f}" == "0.0760"
    assert f"{(sampled * K3(pair.log_r)).sum():.4f}" == "0.0203"


# --- identities of section 0 ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_k1_and_k3_have_one_mean_and_upside_down_another(seed):
    generator = np.random.default_rng(seed)
    pair = categorical(softmax(generator.normal(size=9)), softmax(generator.normal(size=9)))
    true = kl(pair)
    assert exact.moments(K1, pair).mean == pytest.approx(true, rel=1e-12)
    assert exact.moments(K3, pair).mean == pytest.approx(true, rel=1e-12)
    upside_down = exact.moments(lambda l: K3(-l), pair).mean
    chi2 = exact.divergence("chi2_qp", pair.log_q, pair.log_p).item()
    assert upside_down == pytest.approx(chi2 - true, rel=1e-12)
    forward = exact.moments(bregman("kl_pq"), pair)
    assert forward.mean == pytest.approx(exact.target_value("kl_pq", pair), rel=1e-12)


def test_upside_down_on_gaussians():
    """e^{μ²} − 1 − μ²/2: .00505 for .005, which looks fine, and 1.218 for .5."""
    for mu, printed in ((0.1, ".00505"), (1.0, "1.218")):
        m = exact.moments(lambda l: K3(-l), shift(mu))
        assert f"{m.mean:.{5 if mu < 1 else 3}f}".lstrip("0") == printed


def test_the_binary_example():
    """q = (.8, .2), p = (.5, .5): both KLs, and their derivatives in q(A)."""
    share = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    log_q = torch.stack([share, 1 - share]).log()
    log_p = tensor([0.5, 0.5]).log()
    grads = {}
    for name, printed in (("kl_qp", "0.192745"), ("kl_pq", "0.223144")):
        value = exact.divergence(name, log_q, log_p)
        assert f"{value.item():.6f}" == printed
        (grads[name],) = torch.autograd.grad(value, share, retain_graph=True)
    assert f"{grads['kl_qp'].item():.6f}" == "1.386294"
    assert f"{grads['kl_pq'].item():.3f}" == "1.875"
    # k3 in the reward follows KL(q‖p) − KL(p‖q): here with the wrong sign.
    assert f"{(grads['kl_qp'] - grads['kl_pq']).item():.6f}" == "-0.488706"


def test_fifty_tokens_towards_the_reference():
    """cv(k1), cv(k3), λ*, the bias of k2, and how far the two KLs' gradients are apart."""
    generator = np.random.default_rng(1)
    generator.normal(size=12)
    log_p = tensor(softmax(generator.normal(size=50))).log()
    direction = tensor(generator.normal(size=50))
    apart, cv1, cv3, lams, biases = [], [], [], [], []
    for eps in (1, 0.3, 0.1, 0.03, 0.01, 0.001):
        logits = (log_p + eps * direction).requires_grad_()
        log_q = torch.log_softmax(logits, -1)
        grads = [
            torch.autograd.grad(exact.divergence(d, log_q, log_p), logits, retain_graph=True)[0]
            for d in ("kl_qp", "kl_pq")
        ]
        apart.append(((grads[0] - grads[1]).norm() / grads[0].norm()).item())
        pair = pairs.categorical(log_q.detach(), log_p)
        k1, k2, k3 = (exact.moments(e, pair) for e in (K1, K2, K3))
        cv1.append(k1.sd / k1.mean)
        cv3.append(k3.sd / k3.mean)
        biases.append(k2.bias / k1.mean)
        chi2 = exact.target_value("chi2_pq", pair)
        # Var(k1 + λ(r − 1)) at λ = 0 and 1 and Var(r − 1) = χ² give the parabola.
        lams.append((k1.variance - k3.variance + chi2) / (2 * chi2))
    assert [float(f"{x:.2g}") for x in apart[1:]] == [0.095, 0.028, 0.0083, 0.0028, 0.00028]
    assert f"{apart[0]:.3f}" == "0.513"
    assert [f"{x:.3g}" for x in cv1] == ["2.35", "7.63", "22.7", "75.6", "227", "2.26e+03"]
    assert [f"{x:.2f}" for x in cv3] == ["1.86", "1.14", "1.03", "1.00", "1.00", "0.99"]
    assert [f"{x:.3f}" for x in lams] == ["0.577", "0.928", "0.984", "0.996", "0.999", "1.000"]
    assert [f"{100 * x:.2g}" for x in biases] == [
        "-7",
        "-2.4",
        "-0.76",
        "-0.23",
        "-0.075",
        "-0.0075",
    ]


def test_off_policy():
    """Eight tokens, reference, old and new policy .5 of logit noise apart each."""
    generator = np.random.default_rng(3)
    logits = generator.normal(size=8)
    reference = softmax(logits)
    old = softmax(logits + 0.5 * generator.normal(size=8))
    new = softmax(np.log(old) + 0.5 * generator.normal(size=8))
    log_r = tensor(reference).log() - tensor(new).log()
    log_w = tensor(new).log() - tensor(old).log()
    assert f"{kl(categorical(new, reference)):.5f}" == "0.08020"
    mean = {
        "k3": (tensor(old) * K3(log_r)).sum(),
        "k1": (tensor(old) * K1(log_r)).sum(),
        "w k3": (tensor(old) * K3(log_r, log_weight=log_w)).sum(),
        "w k1": (tensor(old) * K1(log_r, log_weight=log_w)).sum(),
    }
    assert {name: f"{value:.5f}" for name, value in mean.items()} == {
        "k3": "0.08569",
        "k1": "0.03757",
        "w k3": "0.08020",
        "w k1": "0.08020",
    }


def test_rollout_metrics_by_direction():
    """Samples from the rollout: E[ρ − 1 − log ρ] is KL(rollout‖train), not KL(train‖rollout)."""
    generator = np.random.default_rng(1)
    generator.normal(size=12 + 100)
    rollout, train = softmax(generator.normal(size=3)), softmax(generator.normal(size=3))
    pair = categorical(rollout, train)  # x ~ rollout, r = train / rollout
    there, back = (exact.target_value(name, pair) for name in ("kl_qp", "kl_pq"))
    assert (f"{there:.5f}", f"{back:.5f}") == ("0.42208", "0.34851")
    assert exact.moments(K3, pair).mean == pytest.approx(there, rel=1e-12)
    # The other direction from the same samples: ρ log ρ − (ρ − 1).
    other = exact.moments(lambda l: torch.exp(l) * l - torch.expm1(l), pair)
    assert other.mean == pytest.approx(back, rel=1e-12)


def test_a_sampled_tail_beside_an_exact_head():
    """P = (.8, .2), Q = (.5, .5), token A summed exactly: the tail needs (u + 1) ∇log P, not u."""
    share = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    log_q, log_p = torch.stack([share, 1 - share]).log(), tensor([0.5, 0.5]).log()
    head = log_q[0].exp() * (log_q[0] - log_p[0])
    (at_head,) = torch.autograd.grad(head, share, retain_graph=True)
    (score,) = torch.autograd.grad(log_q[1], share)
    tail = {
        usage: log_q[1].exp() * coefficient(K1, log_q[1], log_p[1], usage=usage) * score
        for usage in ("reward", "both")
    }
    assert f"{(at_head + tail['reward']).item():.5f}" == "2.38629"
    assert f"{(at_head + tail['both']).item():.5f}" == "1.38629"  # log 4, as of the binary example


def test_a_ratio_upside_down_in_a_companion_code():
    """log q − log p taken for log r: E[k3] is χ² − KL, and k1 as a reward has the sign reversed."""
    generator = np.random.default_rng(0)
    log_p = tensor(softmax(generator.normal(size=8))).log()
    log_q = tensor(softmax(log_p.numpy() + generator.normal(size=8))).log()
    pair = pairs.categorical(log_q, log_p)
    assert f"{kl(pair):.4f}" == "0.1153"
    assert f"{exact.moments(lambda l: K3(-l), pair).mean:.4f}" == "0.1253"
    assert f"{exact.moments(lambda l: K1(-l), pair).mean:.4f}" == "-0.1153"
    wrong = expected(lambda l: K1(-l), log_q, log_p, usage="reward")
    true = expected(K1, log_q, log_p, usage="reward")
    cosine = torch.nn.functional.cosine_similarity(wrong, true, dim=0)
    assert cosine.item() == pytest.approx(-1, abs=1e-12)


# --- sequences as one Gaussian shift ----------------------------------------------------------


@pytest.mark.parametrize(
    ("T", "k1", "tokens", "sequence", "k2_bias"),
    [
        (1, "20.000", "1.417", "1.417", "0%"),
        (100, "2.000", "0.1417", "1.695", "25%"),
        (1000, "0.632", "0.0448", "29.7", "250%"),
        (2000, "0.447", "0.0317", "2203", "500%"),
    ],
)
def test_scaling_with_length(T, k1, tokens, sequence, k2_bias):
    """T tokens, each a shift by .1: the sequence ratio is a shift by .1 √T."""
    pair, true = shift(0.1 * math.sqrt(T)), T * 0.005
    assert kl(pair) == pytest.approx(true, rel=1e-12)

    def digits(value, like):
        return f"{value:.{len(like.partition('.')[2])}f}"

    assert digits(exact.moments(K1, pair).sd / true, k1) == k1
    summed = math.sqrt(T * variance(K3, 0.1)) / true
    assert digits(summed, tokens) == tokens
    assert digits(exact.moments(K3, pair).sd / true, sequence) == sequence
    assert f"{exact.moments(K2, pair).bias / true:.0%}" == k2_bias


@pytest.mark.parametrize(
    ("n", "printed"),
    [
        *((2, ".193"), (4, ".636"), (8, "1.204"), (16, "1.835"), (63, "3.159")),
        *((64, "3.175"), (128, "3.860"), (256, "4.549"), (512, "5.240")),
    ],
)
def test_best_of_n(n, printed):
    """log n − (n − 1)/n, as the limit of many equiprobable items with distinct rewards."""
    assert f"{math.log(n) - (n - 1) / n:.3f}".lstrip("0") == printed
    assert best_of(n, 400_000) == pytest.approx(float(printed), abs=6e-4)


@pytest.mark.parametrize(
    ("items", "printed"), [(2, "0.668"), (5, "1.100"), (20, "1.198"), (1000, "1.2044")]
)
def test_best_of_eight_with_few_items(items, printed):
    decimals = len(printed.partition(".")[2])
    assert f"{best_of(8, items):.{decimals}f}" == printed


def best_of(n, items):
    """KL of the best of n uniform draws from ``items`` ranked items against one draw."""
    rank = np.arange(2, items + 1)
    log_q = n * np.log(rank / items) + np.log(-np.expm1(n * np.log1p(-1 / rank)))
    log_q = np.append(-n * math.log(items), log_q)
    uniform = torch.full((items,), -math.log(items), dtype=torch.float64)
    return exact.divergence("kl_qp", torch.log_softmax(tensor(log_q), -1), uniform).item()
