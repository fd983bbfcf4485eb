"""What chapter 13 says, against sums and closed forms written here; and its example files."""

import ast
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import kllab
from kllab import K1, K2, K3, exact, gradients, runtime, sequences, training
from kllab.__main__ import main
from kllab.estimators import bregman, with_lambda

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "13_three_arguments_settled.ipynb"
EXAMPLES = ROOT / "book" / "examples"
ROLLOUT, TRAIN = np.array([0.7, 0.2, 0.1]), np.array([0.6, 0.25, 0.15])


def kl(a, b):
    return float((a * np.log(a / b)).sum())


def chi2(a, b):
    return float((a**2 / b).sum() - 1)


def pairs(count=200, size=4, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(size), size=(count, 2))


def over(fn, q, p):
    """The exact mean under q of a function of log(p/q), as the package evaluates it."""
    return float(torch.from_numpy(q) @ fn(torch.from_numpy(np.log(p / q))))


# --- the rule ---------------------------------------------------------------------------------

TERMS = {
    "−log r": (lambda l: -l, kl),
    "r − 1": (torch.expm1, lambda q, p: 0.0),
    "r log r": (lambda l: l.exp() * l, lambda q, p: kl(p, q)),
    "1/r − 1": (lambda l: torch.expm1(-l), chi2),
    "r² − 1": (lambda l: torch.expm1(2 * l), lambda q, p: chi2(p, q)),
    "k3": (K3, kl),
    "k3, sampler on top": (lambda l: K3(-l), lambda q, p: chi2(q, p) - kl(q, p)),
    "gap of r log r": (bregman("kl_pq"), lambda q, p: kl(p, q)),
    "(r − 1)²": (lambda l: torch.expm1(l) ** 2, lambda q, p: chi2(p, q)),
}


@pytest.mark.parametrize("name", TERMS)
def test_what_is_below_the_line_decides(name):
    term, target = TERMS[name]
    for q, p in pairs():
        assert over(term, q, p) == pytest.approx(target(q, p), rel=1e-9, abs=1e-12)


def test_k3_is_the_sampler_first_in_every_pair_and_the_other_one_in_none():
    """(a): what the review said of the k3 line fails on each of many pairs."""
    for q, p in pairs(1_000, 5):
        assert over(K3, q, p) == pytest.approx(kl(q, p), rel=1e-9)
        assert abs(over(K3, q, p) - kl(p, q)) > 1e-9


# --- (a) --------------------------------------------------------------------------------------


def test_the_printed_numbers_of_the_puzzle():
    assert over(lambda l: l, ROLLOUT, TRAIN) == pytest.approx(-0.022730, abs=5e-7)
    assert over(K3, ROLLOUT, TRAIN) == pytest.approx(0.022730, abs=5e-7)
    assert kl(TRAIN, ROLLOUT) == pytest.approx(0.024115, abs=5e-7)
    assert chi2(ROLLOUT, TRAIN) - kl(ROLLOUT, TRAIN) == pytest.approx(0.020603, abs=5e-7)


def test_the_clamp_takes_the_dropped_token_out_of_the_metric():
    q, p = np.array([0.9999, 0.0001]), np.array([0.9, 0.1])
    clamped = K3.clamped(log_r=(-20, 20), value=(-10, 10))
    by_hand = q * np.minimum(p / q - 1 - np.log(p / q), 10.0)
    assert over(clamped, q, p) == pytest.approx(by_hand.sum(), rel=1e-9)
    assert 1 - by_hand.sum() / kl(q, p) == pytest.approx(0.939, abs=5e-4)


def test_a_mask_that_looks_at_the_ratio_bends_k1_and_k3_apart():
    q, p = np.array([0.7, 0.25, 0.05]), np.array([0.5, 0.3, 0.2])
    kept = np.where(p / q <= 2, q, 0)
    kept = kept[:2] / kept.sum()
    ratio = (p / q)[:2]
    k1, k3 = (kept * -np.log(ratio)).sum(), (kept * (ratio - 1 - np.log(ratio))).sum()
    assert k3 < kl(q, p) < k1
    assert (k1, k3) == (pytest.approx(0.1999, abs=5e-5), pytest.approx(0.0421, abs=5e-5))
    assert k3 - k1 == pytest.approx((kept * ratio).sum() - 1)


@pytest.mark.parametrize("T", [1, 2, 3, 5])
def test_the_chi_squared_of_a_sequence_by_listing_all(T):
    """Product and geometric mean of ratios; at two tokens the second is 0 for every pair."""
    for q, p in [(ROLLOUT, TRAIN), *pairs(3, 3, seed=1)]:
        tree = sequences.Tree(V=3, T=T)
        log_mu, log_pi = (
            tree.log_probs(torch.from_numpy(np.log(law)).expand(tree.rows, 3)).numpy()
            for law in (q, p)
        )
        listed = [(np.exp(log_mu + c * (log_pi - log_mu))).sum() - 1 for c in (2, 2 / T)]
        product, geometric = (1 + chi2(p, q)) ** T - 1, (q * (p / q) ** (2 / T)).sum() ** T - 1
        assert listed == pytest.approx([product, geometric], rel=1e-9, abs=1e-12)
        if T == 2:
            assert geometric == pytest.approx(0, abs=1e-12)
        assert (geometric > 1e-9) == (T == 1)
    long = (ROLLOUT * (TRAIN / ROLLOUT) ** 2e-6).sum() ** 1e6 - 1
    assert long == pytest.approx(math.exp(-2 * kl(ROLLOUT, TRAIN)) - 1, abs=1e-6)


# --- (b) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [25.0, 10.0, 0.2])
def test_what_was_logged_bounds_k1_in_every_batch(root):
    """Jensen, over random batches scaled to the logged mean of e^l − 1 − l."""
    low, high = 0.0, 50.0
    for _ in range(200):  # bisection: the formula grows for positive l
        middle = (low + high) / 2
        low, high = (middle, high) if math.expm1(middle) - middle < root**2 else (low, middle)
    printed = {25.0: 6.45, 10.0: 4.66, 0.2: 0.27}[root]
    assert low == pytest.approx(printed, abs=5e-3)
    rng = np.random.default_rng(int(root * 10))
    for _ in range(50):
        shape = rng.normal(0.3, 1.0, 64)
        least, most = 0.0, 1.0
        while (np.expm1(most * shape) - most * shape).mean() < root**2:
            most *= 2
        for _ in range(100):
            middle = (least + most) / 2
            below = (np.expm1(middle * shape) - middle * shape).mean() < root**2
            least, most = (middle, most) if below else (least, middle)
        assert (least * shape).mean() <= low + 1e-9


def test_one_policy_and_seven_numbers():
    """Wald: a homogeneous token's mean times the mean length, by sums over lengths."""
    q, p, u = np.array([0.8, 0.1, 0.1]), np.array([0.3, 0.5, 0.2]), np.array([0.2, 0.3, 0.5])
    length = sum(0.9**t for t in range(8))
    over_token, in_prompt = chi2(q, p) - kl(q, p), 12 * (u * (q / p - 1 - np.log(q / p))).sum()
    tree = sequences.Tree(V=3, T=8, eos=2)
    logits, ref = (torch.from_numpy(np.log(law)).expand(tree.rows, 3) for law in (q, p))
    k1, k3, turned = (
        float(sequences.expected_token_sum(tree, fn, logits, ref))
        for fn in (K1, K3, lambda a, b: K3(a - b))
    )
    assert k1 == pytest.approx(length * kl(q, p))
    assert k3 == pytest.approx(k1)
    assert turned == pytest.approx(length * over_token)
    assert float(tree.divergence("kl_qp", logits, ref)) == pytest.approx(k1)
    printed = [3.158, 3.158, 0.554, 0.395, 3.696, 9.415, 0.471]
    whole = turned + in_prompt
    numbers = [k1, k3, k1 / length, k1 / 8, turned, whole, whole / 20]
    assert numbers == pytest.approx(printed, abs=5e-4)
    errors = [min(max(x / k1 - 1, -0.2), 0.2) for x in numbers]
    assert errors == pytest.approx([0, 0, -0.2, -0.2, 0.17, 0.2, -0.2], abs=5e-3)
    assert in_prompt > whole / 2
    on_prompts = 12 * (u * np.log(q / p)).sum()
    assert on_prompts == pytest.approx(12 * (kl(u, p) - kl(u, q)))
    assert on_prompts < 0


def test_the_controller_holds_what_it_is_fed():
    """The optimum is a power law of another exponent; the loop is written anew."""
    rank = np.arange(1, 201.0)

    def tokens(beta):
        weight = rank ** (-1 + 1 / beta)
        return weight / weight.sum()

    base, ends = tokens(np.inf), []
    for fed in ("sum", "over", "mean"):
        beta = 5.0
        for _ in range(300):
            q = tokens(beta)
            last = kl(q, base)
            over_token = chi2(q, base) - last
            metric = {"sum": 20 * last, "over": 20 * over_token, "mean": last}[fed]
            beta *= 1 + min(max(metric / 6 - 1, -0.2), 0.2) * 0.0512
        ends.append(20 * last)
    assert ends[0] == pytest.approx(6, abs=5e-3)
    assert ends[1] == pytest.approx(5.316, abs=5e-3)
    assert ends[2] > 40
    zipf = kllab.pairs.zipf(200, 1.0, 1.0).log_p
    ours = training.bandit(zipf, torch.from_numpy(np.log(rank)), 0.7).log_optimum
    assert np.allclose(ours.exp().numpy(), tokens(0.7), rtol=1e-9)


# --- (c) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "p", "quieter"),
    [
        ((0.5, 0.5), (0.45, 0.55), (True, True)),
        ((0.9, 0.1), (0.99, 0.01), (True, False)),
        ((0.99, 0.01), (0.1, 0.9), (False, True)),
    ],
)
def test_the_gap_reduces_the_variance_only_sometimes(q, p, quieter):
    q, p = np.array(q), np.array(p)
    r = p / q

    def sd(values):
        return math.sqrt((q * (values - (q * values).sum()) ** 2).sum())

    by_hand = {
        "kl_qp": (sd(-np.log(r)), sd(r - 1 - np.log(r))),
        "kl_pq": (sd(r * np.log(r)), sd(r * np.log(r) - r + 1)),
    }
    pair = kllab.pairs.categorical(torch.from_numpy(np.log(q)), torch.from_numpy(np.log(p)))
    for (name, (plain, gap)), gains in zip(by_hand.items(), quieter, strict=True):
        assert (gap < plain) == gains
        assert exact.moments(with_lambda(name, 0.0), pair).sd == pytest.approx(plain)
        assert exact.moments(bregman(name), pair).sd == pytest.approx(gap)


def test_x_f_of_x_turns_the_sign_and_not_the_direction():
    for q, p in pairs(20):
        r = p / q
        assert (q * r * -np.log(1 / r)).sum() == pytest.approx(kl(p, q))  # r f(1/r)
        assert (q * r * -np.log(r)).sum() == pytest.approx(-kl(p, q))  # x f(x)


def test_the_clamp_takes_the_push_from_the_dropped_token():
    """Σ q c (e − q) by hand; c = −h', zero beyond the clamp."""
    q, p = np.array([0.9999, 0.0001]), np.array([0.9, 0.1])
    l = np.log(p / q)
    score = (np.arange(2) == 1)[None, :] - q[1]
    free = K3.clamped(log_r=(-20, 20), value=(-10, 10))
    pulls = {}
    for fn, c in ((K2, -l), (K3, 1 - p / q), (free, (1 - p / q) * (l < 2.6))):
        by_hand = float((q * c * score).sum())
        log_q, log_p = (torch.from_numpy(np.log(x)) for x in (q, p))
        ours = gradients.expected(fn, log_q, log_p, usage="loss")
        assert float(ours[1]) == pytest.approx(by_hand, rel=1e-9)
        pulls[fn.name] = by_hand
    assert pulls["k3"] == pytest.approx(-0.0999)  # q − p
    assert 0 < -pulls["k3 clamped"] < 2e-4 * -pulls["k3"]


@pytest.mark.parametrize("seed", range(10))
def test_k1_in_the_reward_is_k2_in_the_loss_and_k3_is_not(seed):
    """Sample by sample; on average the gradient of KL(q‖p), for k3 that of KL(p‖q)."""
    q, p = pairs(1, 4, seed)[0]
    log_q, log_p = torch.from_numpy(np.log(q)), torch.from_numpy(np.log(p))
    pair = kllab.pairs.categorical(log_q, log_p)
    x = pair.sample((20_000,), generator=runtime.generator("13 test", seed))
    reward, loss, wrong = (
        gradients.coefficient(fn, log_q[x], log_p[x], usage=usage)
        for fn, usage in ((K1, "reward"), (K2, "loss"), (K3, "loss"))
    )
    assert torch.equal(reward, loss)
    assert not torch.allclose(reward, wrong)
    true = q * (np.log(q / p) - kl(q, p))
    for fn, usage, target in ((K1, "reward", true), (K2, "loss", true), (K3, "loss", q - p)):
        ours = gradients.expected(fn, log_q, log_p, usage=usage).numpy()
        assert np.allclose(ours, target, atol=1e-12)
    score = (x[:, None] == torch.arange(4)).double() - log_q.exp()
    for c, target in ((reward, true), (wrong, q - p)):
        pushes = (c[:, None] * score).numpy()
        se = pushes.std(0) / math.sqrt(len(pushes))
        assert (abs(pushes.mean(0) - target) < 5 * se).all()


@pytest.mark.parametrize("seed", range(5))
def test_with_returns_only_the_reward_follows_the_response(seed):
    """The truth by central differences of a sum over all responses."""
    tree = sequences.Tree(V=3, T=3)
    draw = torch.Generator().manual_seed(seed)
    logits, ref = torch.randn(2, tree.rows, 3, dtype=torch.float64, generator=draw)
    paths = tree.tokens.numpy()

    def log_probs(table):
        rows = table - np.log(np.exp(table).sum(-1, keepdims=True))
        place = [0, 1, 4]  # where the prefixes of length 0, 1, 2 begin
        out = np.zeros(len(paths))
        for t in range(3):
            index = np.zeros(len(paths), int)
            for s in range(t):
                index = index * 3 + paths[:, s]
            out += rows[place[t] + index, paths[:, t]]
        return out

    def response_kl(table):
        log_p, log_q = log_probs(ref.numpy()), log_probs(table)
        return (np.exp(log_q) * (log_q - log_p)).sum()

    truth = np.zeros((tree.rows, 3))
    for at in np.ndindex(truth.shape):
        step = np.zeros_like(truth)
        step[at] = 1e-5
        table = logits.numpy()
        truth[at] = (response_kl(table + step) - response_kl(table - step)) / 2e-5

    def off(fn, usage, credit="to_go"):
        g = sequences.expected_gradient(tree, fn, logits, ref, usage=usage, credit=credit)
        return np.linalg.norm(g.numpy() - truth) / np.linalg.norm(truth)

    assert off(K1, "reward") < 1e-7
    assert off(K2, "loss") > 0.1
    assert off(K1, "reward", "token") == pytest.approx(off(K2, "loss"))


# --- the example files ------------------------------------------------------------------------

VERDICTS = [
    ("rollout_kl.py:kl_before --samples ref_logprob --claim kl_pq", 1, "−kl_qp"),
    ("rollout_kl.py:kl_after --samples ref_logprob --claim kl_qp", 0, "kl_qp"),
    ("rollout_kl.py:k3_kl --samples ref_logprob --claim kl_qp", 0, "kl_qp"),
    ("rollout_kl.py:k3_kl --samples ref_logprob --claim kl_pq", 1, "kl_qp"),
    ("rollout_kl.py:k3_turned_over --samples ref_logprob --claim kl_qp", 1, "−kl_qp + chi2_qp"),
    ("mean_kl.py:response_sum --claim kl_qp", 0, "kl_qp"),
    ("mean_kl.py:of_the_update --samples old_logprob --claim kl_qp", 0, "kl_qp"),
    ("mean_kl.py:place_mean --claim kl_qp", 1, "−kl_qp + chi2_qp"),
    ("mean_kl.py:place_sum --claim kl_qp", 1, "−kl_qp + chi2_qp"),
    ("low_var_kl.py:k1 --usage reward --claim kl_qp", 0, "kl_qp"),
    ("low_var_kl.py:k1 --usage loss --claim kl_qp", 1, "no expected gradient"),
    ("low_var_kl.py:k2 --usage loss --claim kl_qp", 0, "kl_qp"),
    ("low_var_kl.py:low_var_kl --claim kl_qp", 0, "kl_qp"),
    ("low_var_kl.py:low_var_kl --usage loss --claim kl_qp", 1, "kl_pq"),
    ("low_var_kl.py:ppo_kl --samples old_logprob --claim kl_qp", 0, "kl_qp"),
]


@pytest.mark.parametrize(("words", "code", "found"), VERDICTS, ids=lambda x: str(x)[:40])
def test_the_command_gives_the_verdict_of_the_page(words, code, found, capsys):
    got = main(["audit", *f"{EXAMPLES}/{words}".split()])
    first = capsys.readouterr().out.splitlines()[0]
    assert got == code, first
    assert first.partition(", claimed")[0].endswith(found), first
    assert first.startswith("agrees" if code == 0 else "differs")


def functions(source):
    return {
        node.name: ast.unparse(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(
    ("cell", "file"),
    [("case-a", "rollout_kl.py"), ("case-b", "mean_kl.py"), ("case-c", "low_var_kl.py")],
)
def test_the_page_shows_what_the_files_hold(cell, file):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    shown = functions("".join(next(c for c in cells if c["id"] == cell)["source"]))
    assert shown == functions((EXAMPLES / file).read_text(encoding="utf-8"))


def test_the_page_prints_every_verdict_that_the_command_gives():
    """The same questions; the page asks one less, the claim of the review."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    asked = "".join(next(c for c in cells if c["id"] == "audits")["source"])
    table = next(
        node.value
        for node in ast.parse(asked).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "ASKED"
    )
    on_page = [tuple(ast.unparse(x).strip("'") for x in row.elts) for row in table.elts]
    by_command = []
    for words, _, _ in VERDICTS:
        target, *options = words.split()
        given = dict(zip(options[::2], options[1::2], strict=True))
        usage, samples = given.get("--usage", "metric"), given.get("--samples", "logprob")
        by_command.append((target.partition(":")[2], usage, samples, given["--claim"]))
    review = ("k3_kl", "metric", "ref_logprob", "kl_pq")
    assert sorted([*on_page, review]) == sorted(by_command)
