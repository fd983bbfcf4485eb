"""What chapter 08 says, against sums over tokens, integrals and closed forms written here."""

import math

import numpy as np
import oracles
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

import kllab
from kllab import K1, K2, K3, exact, gradients, runtime
from kllab.gradients import dictionary, penalty_for

Z = norm.isf(1e-6)


def upside_down(log_r):
    return torch.expm1(-log_r) + log_r


def k3_plus(logprob, ref_logprob):
    return gradients.straight_through(K3, K2, logprob, ref_logprob)


def log_cosh(log_r):
    return log_r.cosh().log()


def arc(r):
    return 1 - r + 2 * r * (np.arctan(r) - math.pi / 4)


FUNCTIONS = {
    "k1": K1,
    "k2": K2,
    "k3": K3,
    "abs": torch.abs,
    "upside down": upside_down,
    "k3+": k3_plus,
}
# Weight on the score, as functions of l = log r.
WEIGHTS = {
    ("k1", "loss"): lambda l: np.ones_like(l),
    ("k2", "loss"): lambda l: -l,
    ("k3", "loss"): lambda l: 1 - np.exp(l),
    ("abs", "loss"): lambda l: -np.sign(l),
    ("upside down", "loss"): lambda l: np.exp(-l) - 1,
    ("k3+", "loss"): lambda l: -l,
    ("k1", "reward"): lambda l: -l,
    ("k3", "reward"): lambda l: np.exp(l) - 1 - l,
    ("upside down", "reward"): lambda l: np.exp(-l) - 1 + l,
    ("k3+", "reward"): lambda l: np.exp(l) - 1 - l,
}
FOLLOWED = {
    ("k1", "loss"): {},
    ("k2", "loss"): {"kl_qp": 1},
    ("k3", "loss"): {"kl_pq": 1},
    ("abs", "loss"): {"tv": 2},
    ("upside down", "loss"): {"chi2_qp": 0.5},
    ("k3+", "loss"): {"kl_qp": 1},
    ("k1", "reward"): {"kl_qp": 1},
    ("k3", "reward"): {"kl_qp": 1, "kl_pq": -1},
    ("upside down", "reward"): {"chi2_qp": 0.5, "kl_qp": -1},
    ("k3+", "reward"): {"kl_qp": 1, "kl_pq": -1},
}
PLACES = {"loss": gradients.as_loss, "reward": gradients.as_reward}


def random_pair(seed=0, V=6):
    return np.random.default_rng(seed).dirichlet(np.ones(V), size=2)


def tensor(a):
    return torch.from_numpy(np.log(a))


def summed(c, q):
    """Σ q(x) c(x) (e_x − q)."""
    return sum(q[x] * c[x] * (np.eye(len(q))[x] - q) for x in range(len(q)))


def slope_of(divergence, q, step=1e-6):
    """∇ of Σ q f(p/q) at the logits, by central differences of a function of q."""
    z, g = np.log(q), np.zeros(len(q))
    for i in range(len(q)):
        for sign in (1, -1):
            moved = np.exp(z + sign * step * np.eye(len(q))[i])
            g[i] += sign * divergence(moved / moved.sum()) / (2 * step)
    return g


def named(terms, q, p):
    total = np.zeros(len(q))
    for name, size in terms.items():
        total += size * np.array(
            [float(g) for g in oracles.logit_gradient(name, np.log(q), np.log(p))]
        )
    return total


# --- the puzzle -------------------------------------------------------------------------------


def test_the_gradient_of_the_absolute_log_ratio_is_that_of_twice_total_variation():
    q, p = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    g = gradients.expected(torch.abs, tensor(q), tensor(p), usage="loss").numpy()
    assert g.tolist() == pytest.approx([0.42, -0.28, -0.14], abs=1e-12)
    assert np.allclose(g, slope_of(lambda a: np.abs(p - a).sum(), q), atol=1e-8)
    m = exact.moments(torch.abs, kllab.pairs.categorical(tensor(q), tensor(p)))
    assert m.mean == pytest.approx(0.59968, abs=5e-6)
    # Its own mean has another gradient.
    own = slope_of(lambda a: (a * np.abs(np.log(p / a))).sum(), q)
    assert np.linalg.norm(g - own) > 0.03


def test_near_the_reference_only_the_absolute_value_keeps_pulling():
    p, away = np.array([0.4, 0.4, 0.2]), np.array([0.7, 0.2, 0.1])
    lengths = {}
    for share in (1e-2, 1e-4):
        q = p + share * (away - p)
        for name in ("k2", "k3", "abs"):
            g = gradients.expected(FUNCTIONS[name], tensor(q), tensor(p), usage="loss")
            lengths[name, share] = float(g.norm())
    assert lengths["abs", 1e-4] == pytest.approx(0.6, abs=0.01)
    assert lengths["abs", 1e-2] == pytest.approx(0.6, abs=0.01)
    for name in ("k2", "k3"):
        assert lengths[name, 1e-4] == pytest.approx(lengths[name, 1e-2] / 100, rel=0.02)


# --- the integrals ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "usage"), WEIGHTS)
def test_the_integral_finds_what_the_dictionary_says(name, usage):
    """f = −r ∫ c/r² dr, as the page computes it, up to c (r − 1)."""
    c = WEIGHTS[name, usage]
    log_r = np.array([-2.5, -1.0, -0.2, 0.3, 1.0, 2.0])
    area = [quad(lambda t: float(c(np.array(t))) * math.exp(-t), 0, l)[0] for l in log_r]
    f = -np.exp(log_r) * np.array(area)
    entry = dictionary(FUNCTIONS[name], usage=usage)
    known = entry.f(torch.from_numpy(log_r)).numpy()
    lean = (f - known) / np.expm1(log_r)
    assert np.allclose(lean, lean[0], atol=1e-7)


def test_a_multiple_of_r_minus_one_changes_no_divergence():
    q, p = random_pair(1)
    base = q @ arc(p / q)
    for c in (-3.0, 0.5):
        assert q @ (arc(p / q) + c * (p / q - 1)) == pytest.approx(base, abs=1e-14)


# --- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "usage"), FOLLOWED)
def test_each_entry_of_the_table(name, usage):
    entry, want = dictionary(FUNCTIONS[name], usage=usage), FOLLOWED[name, usage]
    assert entry.verdict == ("fits" if want else "zero")
    assert entry.terms == pytest.approx(want)
    for seed in range(3):
        q, p = random_pair(seed)
        by_weight = summed(WEIGHTS[name, usage](np.log(p / q)), q)
        assert np.allclose(by_weight, named(want, q, p), atol=1e-12)
        ours = gradients.expected(FUNCTIONS[name], tensor(q), tensor(p), usage=usage)
        assert np.allclose(ours, by_weight, atol=1e-12)


@pytest.mark.parametrize("name", ["k2", "abs"])
def test_those_without_a_name_as_rewards(name):
    assert dictionary(FUNCTIONS[name], usage="reward").verdict == "unknown"
    q, p = random_pair(2)
    value = {"k2": lambda l: l**2 / 2, "abs": np.abs}[name]
    # What k2 follows as a reward is E[k2] − KL(q‖p).
    ours = gradients.expected(FUNCTIONS[name], tensor(q), tensor(p), usage="reward").numpy()
    assert np.allclose(ours, summed(value(np.log(p / q)), q), atol=1e-12)
    if name == "k2":
        mean = slope_of(lambda a: (a * np.log(p / a) ** 2).sum() / 2, q)
        assert np.allclose(ours, mean - named({"kl_qp": 1}, q, p), atol=1e-7)


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("k1", {"kl_qp": 1}),
        ("k3", {"kl_qp": 1}),
        ("upside down", {"chi2_qp": 1, "kl_qp": -1}),
        ("k3+", {"kl_qp": 1}),
        ("k2", None),
        ("abs", None),
    ],
)
def test_the_mean_is_another_column(name, terms):
    fn = FUNCTIONS[name]
    pairwise = fn if name == "k3+" else lambda logprob, ref_logprob: fn(ref_logprob - logprob)
    value = kllab.audit(pairwise, usage="metric").value
    assert value.verdict == ("unknown" if terms is None else "fits")
    q, p = random_pair(3)
    mean = q @ pairwise(tensor(q), tensor(p)).numpy()
    if terms is not None:
        assert value.terms == pytest.approx(terms)
        sums = sum(size * float(oracles.divergence(d, q, p)) for d, size in terms.items())
        assert mean == pytest.approx(sums, rel=1e-10)
        assert dictionary(fn, usage="both").terms == pytest.approx(
            terms if name != "k3+" else {"kl_qp": 2, "kl_pq": -1}
        )


def test_k1_as_a_reward_and_k2_as_a_loss_are_the_same_sample_by_sample():
    l = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros_like(l)
    reward = gradients.coefficient(K1, zero, l, usage="reward")
    loss = gradients.coefficient(K2, zero, l, usage="loss")
    assert reward.equal(loss)
    assert reward.equal(-l)


# --- from samples -------------------------------------------------------------------------------


def sampled(fn, usage, pair, x):
    logits = pair.log_q.expand(len(x), -1).clone().requires_grad_()
    logprob = logits.log_softmax(-1).gather(-1, x)
    PLACES[usage](fn, logprob, pair.log_p[x]).mean(-1).sum().backward()
    return logits.grad.numpy().mean(0)


def bound(c, q, n):
    each = np.stack([c[x] * (np.eye(len(q))[x] - q) for x in range(len(q))])
    mean = q @ each
    return mean, Z * np.sqrt(q @ (each - mean) ** 2 / n) + 1e-12


@pytest.mark.parametrize(("name", "usage"), WEIGHTS)
def test_samples_agree_with_the_entry_and_reject_the_wrong_one(name, usage):
    q, p = np.exp(np.array([[0.3, -0.4, 0.9, 0.0], [-0.5, 0.8, 0.1, 0.2]]))
    q, p = q / q.sum(), p / p.sum()
    pair = kllab.pairs.categorical(tensor(q), tensor(p))
    batches, n = 100, 256
    mean, most = bound(WEIGHTS[name, usage](np.log(p / q)), q, batches * n)
    kl, other = named({"kl_qp": 1}, q, p), named({"kl_pq": 1}, q, p)
    wrong = other if FOLLOWED[name, usage] == {"kl_qp": 1} else kl
    noticed = 0
    for seed in range(100):
        x = pair.sample((batches, n), generator=runtime.generator("08 test", seed))
        g = sampled(FUNCTIONS[name], usage, pair, x)
        assert (np.abs(g - mean) <= most).all(), seed
        noticed += bool((np.abs(g - wrong) > most).any())
    assert noticed >= 99


# --- the rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("h", "loss", "reward"),
    [  # convex in log r?  falling in log r?
        (lambda l: -l, True, True),
        (lambda l: l**2 / 2, True, False),
        (lambda l: l**4, True, False),
        (torch.abs, True, False),
        (lambda l: torch.expm1(l) - l, True, False),
        (log_cosh, True, False),
        (lambda l: torch.expm1(l) ** 2 / 2, False, False),
        (torch.nn.functional.softplus, True, False),
        (lambda l: -torch.nn.functional.softplus(l), False, True),
        (lambda l: torch.exp(-l), True, True),
        (lambda l: -torch.tanh(l), False, True),
        (lambda l: torch.exp(-(l**2)), False, False),
    ],
)
def test_a_loss_must_be_convex_in_log_r_and_a_reward_must_fall(h, loss, reward):
    l = torch.linspace(-2.9, 2.9, 401, dtype=torch.float64)
    value = h(l)
    rises = value.diff()
    assert bool((rises.diff() >= -1e-12).all()) == loss
    assert bool((rises <= 1e-12).all()) == reward
    for usage, expected in (("loss", loss), ("reward", reward)):
        entry = dictionary(h, usage=usage)
        assert entry.is_convex == expected
        r = torch.linspace(0.06, 18, 4001, dtype=torch.float64)  # and f itself, by differences
        bends = entry.f(r.log()).diff().diff()
        assert bool((bends >= -1e-9).all()) == expected


def test_what_k3_follows_as_a_reward_can_be_negative():
    q, p = np.array([0.8, 0.2]), np.array([0.5, 0.5])
    entry = dictionary(K3, usage="reward")
    followed = q @ entry.f(tensor(p / q)).numpy()
    forth, back = float(oracles.divergence("kl_qp", q, p)), float(oracles.divergence("kl_pq", q, p))
    assert followed == pytest.approx(forth - back, abs=1e-12)
    assert followed == pytest.approx(0.192745 - 0.223144, abs=1e-6)


# --- the way back ---------------------------------------------------------------------------------

WAY_BACK = {
    "kl_qp": (lambda l, r: l**2 / 2, lambda l, r: -l),
    "kl_pq": (lambda l, r: r - 1 - l, lambda l, r: 1 - r),
    "chi2_pq": (lambda l, r: (r**2 - 1) / 2 - l, lambda l, r: 1 - r**2),
    "chi2_qp": (lambda l, r: 2 * (1 / r - 1 + l), lambda l, r: 2 / r - 2),
    "hellinger2": (lambda l, r: 2 * (r.sqrt() - 1) - l, lambda l, r: 1 - r.sqrt()),
    "jeffreys": (lambda l, r: l**2 / 2 + r - 1 - l, lambda l, r: 1 - r - l),
    "tv": (lambda l, r: l.abs() / 2, lambda l, r: -l.sign() / 2),
    "js": (None, lambda l, r: -torch.log((1 + r) / 2) / 2),
}


@pytest.mark.parametrize("name", WAY_BACK)
def test_the_penalties_of_the_inverse_table(name):
    l = torch.linspace(-4, 4, 101, dtype=torch.float64)
    for usage, formula in zip(("loss", "reward"), WAY_BACK[name], strict=True):
        if formula is None:
            continue
        h = lambda l, formula=formula: formula(l, l.exp())  # noqa: E731
        assert torch.allclose(penalty_for(name, usage=usage)(l), h(l), atol=1e-13)
        assert dictionary(h, usage=usage).terms == pytest.approx({name: 1})
        q, p = random_pair(4, V=4)
        ours = gradients.expected(h, tensor(q), tensor(p), usage=usage)
        assert np.allclose(ours, named({name: 1}, q, p), atol=1e-12)


@pytest.mark.parametrize("a", [-2.0, -1.0, -0.3, 0.5, 0.7, 2.0, 3.0])
def test_one_dial_runs_through_the_alpha_family(a):
    q, p = random_pair(5, V=4)
    ours = gradients.expected(lambda l: K3(a * l) / a**2, tensor(q), tensor(p), usage="loss")
    assert np.allclose(ours, named({f"alpha({a})": 1}, q, p), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("a", "terms"),
    [
        (-1.0, {"chi2_qp": 0.5}),
        (0.5, {"hellinger2": 2}),
        (1.0, {"kl_pq": 1}),
        (2.0, {"chi2_pq": 0.5}),
    ],
)
def test_settings_of_the_dial_that_have_a_name(a, terms):
    assert dictionary(lambda l: K3(a * l) / a**2, usage="loss").terms == pytest.approx(terms)
    small = 1e-4  # towards a = 0 it is k2
    l = torch.linspace(-2, 2, 41, dtype=torch.float64)
    assert torch.allclose(K3(small * l) / small**2, l**2 / 2, rtol=1e-3)


# --- in no table ------------------------------------------------------------------------------


def test_log_cosh_follows_the_arctangent():
    entry = dictionary(log_cosh, usage="loss")
    assert (entry.verdict, entry.is_convex) == ("unknown", True)
    l = np.linspace(-3, 3, 121)
    assert np.allclose(entry.f(torch.from_numpy(l)), arc(np.exp(l)), atol=1e-9)
    for seed in range(5):
        q, p = random_pair(seed)
        ours = gradients.expected(log_cosh, tensor(q), tensor(p), usage="loss").numpy()
        want = slope_of(lambda a, p=p: a @ arc(p / a), q)
        assert np.allclose(ours, want, atol=1e-7)
        assert 0 < q @ arc(p / q) < math.pi / 2
    # Two laws without a common token: f(0), and lim f(r)/r.
    assert arc(0.0) + arc(1e9) / 1e9 == pytest.approx(math.pi / 2, abs=1e-8)
    assert (np.diff(arc(np.linspace(0, 20, 2001)), 2) > 0).all()


def test_log_cosh_from_samples():
    q, p = random_pair(6, V=5)
    pair = kllab.pairs.categorical(tensor(q), tensor(p))
    mean, most = bound(-np.tanh(np.log(p / q)), q, 200 * 256)
    kl, noticed = named({"kl_qp": 1}, q, p), 0
    for seed in range(100):
        x = pair.sample((200, 256), generator=runtime.generator("08 log cosh", seed))
        g = sampled(log_cosh, "loss", pair, x)
        assert (np.abs(g - mean) <= most).all(), seed
        noticed += bool((np.abs(g - kl) > most).any())
    assert noticed >= 99


# --- play, exercises, break it ----------------------------------------------------------------


def test_softplus_has_a_name_as_a_negative_reward():
    assert dictionary(torch.nn.functional.softplus, usage="loss").verdict == "unknown"
    entry = dictionary(lambda l: -torch.nn.functional.softplus(l), usage="reward")
    assert entry.terms == pytest.approx({"js": 2})


def test_half_of_a_square_is_no_divergence_as_a_loss():
    entry = dictionary(lambda l: torch.expm1(l) ** 2 / 2, usage="loss")
    assert entry.terms == pytest.approx({"kl_pq": -1, "chi2_pq": 1})
    assert not entry.is_convex


def test_one_over_r_follows_the_same_in_both_places():
    q, p = random_pair(7, V=4)
    for usage, size in (("loss", 0.5), ("reward", 0.5), ("both", 1)):
        ours = gradients.expected(lambda l: torch.exp(-l), tensor(q), tensor(p), usage=usage)
        assert np.allclose(ours, named({"chi2_qp": size}, q, p), atol=1e-12)


def test_the_reward_of_jensen_and_shannon_is_bounded_above():
    reward = penalty_for("js", usage="reward")
    ends = reward(torch.tensor([-200.0, 200.0], dtype=torch.float64))
    assert float(ends[0]) == pytest.approx(math.log(2) / 2, rel=1e-12)
    assert float(ends[1]) == pytest.approx(-(200 - math.log(2)) / 2, rel=1e-12)


def test_beyond_a_clamp_nothing_pulls():
    def clamped(log_r):
        return K3(log_r).clamp(max=10)

    entry = dictionary(clamped, usage="loss")
    assert entry.terms == pytest.approx({"kl_pq": 1})
    assert entry.region[1] == pytest.approx(2.6109, abs=1e-3)
    l = torch.tensor([2.60, 2.62], dtype=torch.float64)
    c = gradients.coefficient(clamped, torch.zeros(2), l, usage="loss")
    assert c.tolist() == pytest.approx([1 - math.exp(2.6), 0])


def test_a_forgotten_detach_adds_entropy():
    q, p = random_pair(8)

    def careless(logprob, ref_logprob):
        return (logprob - ref_logprob) * logprob

    with pytest.raises(kllab.checks.InputError, match="ref_logprob − logprob alone"):
        dictionary(careless, usage="loss")
    ours = gradients.expected(careless, tensor(q), tensor(p), usage="loss").numpy()
    want = slope_of(lambda a: a @ np.log(a / p) + a @ np.log(a), q)
    assert np.allclose(ours, want, atol=1e-7)
    assert np.linalg.norm(ours - named({"kl_qp": 1}, q, p)) > 0.05


@pytest.mark.parametrize("rate", [0.4, 0.2, 0.1])
def test_descent_on_the_absolute_value_does_not_settle(rate):
    """The page's descent, beside one with gradients written here: Σ q c (e − q)."""
    p, start = np.array([0.4, 0.4, 0.2]), np.array([0.7, 0.2, 0.1])
    stays = {}
    for name in ("k2", "abs"):
        ours, z, path = tensor(start), np.log(start), []
        for _ in range(500):
            g = gradients.expected(FUNCTIONS[name], ours, tensor(p), usage="loss")
            ours = ours - rate * g
            q = np.exp(z) / np.exp(z).sum()
            z = z - rate * summed(WEIGHTS[name, "loss"](np.log(p / q)), q)
            path.append(np.abs(np.exp(z) / np.exp(z).sum() - p).sum())
            if name == "k2":
                assert np.allclose(ours.softmax(-1), np.exp(z) / np.exp(z).sum(), atol=1e-12)
        stays[name] = max(path[400:])
    assert stays["k2"] < 1e-4
    assert 0.1 * rate < stays["abs"] < rate


def test_the_gradient_of_its_own_mean_is_shorter():
    q, p = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    own = slope_of(lambda a: (a * np.abs(np.log(p / a))).sum(), q)
    ours = gradients.expected(torch.abs, tensor(q), tensor(p), usage="both")
    assert np.allclose(ours, own, atol=1e-8)
    assert np.linalg.norm(own) == pytest.approx(0.4888, abs=1e-4)
    assert np.linalg.norm([0.42, -0.28, -0.14]) == pytest.approx(0.5238, abs=1e-4)


def from_one(c, log_r):
    """f = −r ∫ c/r² dr from r = 1."""
    return -math.exp(log_r) * quad(lambda t: float(c(t)) * math.exp(-t), 0, log_r)[0]


@pytest.mark.parametrize("h", [lambda l: l**2 / 2, lambda l: math.expm1(l) - l, abs])
def test_a_distance_as_a_reward_has_an_f_below_zero_right_of_one(h):
    assert all(from_one(h, l) < 0 for l in (0.01, 0.1, 1.0, 3.0))
    assert all(from_one(h, l) > 0 for l in (-0.01, -0.1, -1.0, -3.0))


def test_the_middle_ground():
    """½(r − 1)² as a loss: f is never negative, not convex, and merging tokens can raise D_f."""

    def f(r):
        return -r * np.log(r) + r - 1 + (r - 1) ** 2

    for l in (-3.0, -1.0, -0.1, 0.1, 1.0, 2.5):
        minus_slope = from_one(lambda t: -(math.exp(t) - 1) * math.exp(t), l)
        assert minus_slope == pytest.approx(f(math.exp(l)), abs=1e-9)
    r = np.geomspace(1e-4, 1e3, 5001)
    assert (f(r) >= -1e-12).all()
    assert (np.diff(f(np.linspace(0.01, 0.4, 101)), 2) < 0).all()

    rng, raised = np.random.default_rng(0), 0
    for _ in range(2000):
        q, p = rng.dirichlet(np.ones(3), size=2)
        merged_q, merged_p = (np.array([a[0] + a[1], a[2]]) for a in (q, p))
        raised += merged_q @ f(merged_p / merged_q) > q @ f(p / q) + 1e-9
    assert raised > 0
