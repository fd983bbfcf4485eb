"""The sampler against exact laws: its table to the last unit, its draws by chi-square and
collision counts at fixed n and fixed seeds.

A Monte Carlo test here passes on all of seeds 0-99 and rejects a twin, the sampler one would
write instead, on at least 99 of them.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kllab import _alias, _compile, sampling
from kllab.checks import InputError
from kllab.sampling import Categorical, on_device

SEEDS = range(100)
ALPHA = 1e-5
HEAD = 20

needs_numba = pytest.mark.skipif(_compile.numba_module() is None, reason="needs numba")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chi_square_accepts(counts: torch.Tensor, law: torch.Tensor) -> bool:
    """Pearson's statistic within its two-sided bound: neither too far from the law nor too near."""
    expected = counts.sum() * law
    assert expected.min() > 5
    statistic = float(((counts - expected) ** 2 / expected).sum())
    tail = stats.chi2.sf(statistic, len(law) - 1)
    return ALPHA / 2 < tail < 1 - ALPHA / 2


def poisson_accepts(count: int, mean: float) -> bool:
    below, above = stats.poisson.cdf(count, mean), stats.poisson.sf(count - 1, mean)
    return min(below, above) > ALPHA / 2


class TailLaw:
    """20 likely tokens, then five groups of equal tokens at 1e-8 down to 1e-12, in one bin each."""

    probabilities = (1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
    sizes = (2_000, 20_000, 200_000, 1_000_000, 8_000_000)
    draws = 1_000_000

    def __init__(self):
        tail = sum(p * n for p, n in zip(self.probabilities, self.sizes, strict=True))
        head = torch.arange(1, HEAD + 1, dtype=torch.float64) ** -1.0
        head *= (1 - tail) / head.sum()
        groups = [
            torch.full((n,), p, dtype=torch.float64)
            for p, n in zip(self.probabilities, self.sizes, strict=True)
        ]
        self.p = torch.cat([head, *groups])
        self.edges = HEAD + torch.tensor((0, *self.sizes)).cumsum(0)
        self.bins = torch.cat([head, torch.stack([group.sum() for group in groups])])

    def accepts(self, tokens: torch.Tensor) -> bool:
        in_tail = tokens[tokens >= HEAD]
        tail = torch.bucketize(in_tail, self.edges[1:], right=True).bincount(minlength=5)
        head = tokens[tokens < HEAD].bincount(minlength=HEAD)
        return chi_square_accepts(torch.cat([head, tail]), self.bins)


@pytest.fixture(scope="module")
def tail_law():
    return TailLaw()


def test_tail_bins_down_to_1e_12(tail_law):
    law = Categorical(tail_law.p.log())
    shape = (tail_law.draws,)
    refused = [s for s in SEEDS if not tail_law.accepts(law.sample(shape, generator=seeded(s)))]
    assert refused == []


def test_tail_bins_reject_float32_multinomial(tail_law):
    p = tail_law.p.float()
    refused = [
        not tail_law.accepts(torch.multinomial(p, tail_law.draws, True, generator=seeded(s)))
        for s in SEEDS
    ]
    assert sum(refused) >= 99


class CollisionLaw:
    """1 % of the mass on 4 million equal tokens: how many pairs of draws meet in one of them?

    Poisson with mean C(n, 2) Σ p², as p is tiny. A uniform number of 24 bits reaches only
    .01 * 2 ** 24 = 168,000 of the tokens, so its draws meet far more often.
    """

    tokens, mass, draws = 4_000_000, 0.01, 500_000

    def __init__(self):
        self.p = torch.full((self.tokens + 1,), self.mass / self.tokens, dtype=torch.float64)
        self.p[0] = 1 - self.mass
        self.mean = math.comb(self.draws, 2) * self.mass**2 / self.tokens

    def accepts(self, tokens: torch.Tensor) -> bool:
        _, counts = tokens[tokens > 0].unique(return_counts=True)
        return poisson_accepts(int((counts * (counts - 1) // 2).sum()), self.mean)


@pytest.fixture(scope="module")
def collision_law():
    return CollisionLaw()


def test_tail_tokens_are_all_reachable(collision_law):
    law = Categorical(collision_law.p.log())
    shape = (collision_law.draws,)
    refused = [
        s for s in SEEDS if not collision_law.accepts(law.sample(shape, generator=seeded(s)))
    ]
    assert refused == []


def test_reachability_rejects_24_bit_uniforms(collision_law):
    height = collision_law.p.cumsum(0)

    def twin(seed):
        uniform = torch.rand(collision_law.draws, generator=seeded(seed)).double()
        return torch.searchsorted(height, uniform, right=True)

    assert sum(not collision_law.accepts(twin(s)) for s in SEEDS) >= 99


def fixed_laws():
    """Laws with and without ties, light, heavy and impossible tokens; in several sizes."""
    zipf = torch.arange(1, 5001, dtype=torch.float64) ** -1.1
    tail = torch.full((100_001,), 1e-17, dtype=torch.float64)
    tail[0] = 1 - 1e-12
    return {
        "one token": torch.ones(1, dtype=torch.float64),
        "certain": torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64),
        "thirds": torch.full((3,), 1 / 3, dtype=torch.float64),
        "full bins": torch.full((8,), 1 / 8, dtype=torch.float64),
        "half and half": torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=torch.float64),
        "rare": torch.tensor([1e-300, 1e-12, 1e-6, 1 - 1e-6 - 1e-12], dtype=torch.float64),
        "uniform, odd size": torch.full((128_257,), 1 / 128_257, dtype=torch.float64),
        "zipf": zipf / zipf.sum(),
        "faint tail": tail,
    }


def check_table(q: torch.Tensor) -> None:
    """The table gives each token the whole units that it should have, which are near q."""
    units = _alias.units(q[None])[0]
    entries = _alias.table(q[None])
    given = _alias.implied(entries)[0]
    assert int(units.sum()) == 2**62
    assert torch.equal(given[: len(q)], units)
    assert not given[len(q) :].any()
    assert not units[q == 0].any()
    off = (units.double() / 2**62 - q).abs()
    assert off.max() <= 1e-15
    assert (off <= 1e-12 * q)[q > 1e-3].all()


@pytest.mark.parametrize("name", fixed_laws())
def test_the_table_is_exact(name):
    check_table(fixed_laws()[name])


@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=70), st.integers(1, 12))
def test_the_table_is_exact_for_any_law(weights, power):
    q = torch.tensor(weights, dtype=torch.float64) ** power
    if q.sum() > 0:
        check_table(q / q.sum())


def test_tables_of_a_batch_are_those_of_its_laws():
    q = torch.rand(7, 45, dtype=torch.float64, generator=seeded()).pow(9)
    q /= q.sum(-1, keepdim=True)
    assert torch.equal(_alias.table(q), torch.cat([_alias.table(row[None]) for row in q]))


def test_every_word_goes_to_its_token():
    # Probabilities in units of 2^-20, 16 bins: the middles of all 2^20 stretches of 2^42 words.
    units = torch.tensor([1, 0, 5, 2**18, 3, 0, 2**19, 7, 0, 11], dtype=torch.int64)
    units[8] = 2**20 - units.sum()
    entries = _alias.table((units / 2**20).double()[None])[0]
    place, bin_ = torch.arange(2**16)[:, None], torch.arange(16)
    words = ((place << 42) + 2**41 << 4) | bin_
    tokens = _alias.tokens(words, entries)
    assert tokens.flatten().bincount(minlength=len(units)).tolist() == units.tolist()


def test_the_first_and_last_words_never_give_an_impossible_token():
    weights = torch.rand(50, 1001, dtype=torch.float64, generator=seeded(1))
    weights[:, ::3] = 0  # impossible tokens first, last and in between
    entries = _alias.table(weights / weights.sum(-1, keepdim=True))
    every_bin = torch.arange(entries.shape[-1])
    for words in (every_bin, 2**62 - 1 - every_bin):
        for row in entries:
            tokens = _alias.tokens(words, row)
            assert (tokens % 3 != 0).all()
            assert (tokens < 1001).all()


def test_words_are_splitmix64():
    # The first outputs of the published generator from seed 0; a word is their upper 62 bits.
    published = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)
    stream = _alias.key(seeded(), "cpu")
    stream[:2] = 0
    words = _alias.words(torch.arange(1, 5), stream)
    assert words.tolist() == [output >> 2 for output in published]


def lag_z_scores(values: torch.Tensor, lags: int) -> torch.Tensor:
    """Autocorrelation at lags 1 to ``lags`` over its standard error, 1/√n."""
    v = (values - values.mean()) / values.std(correction=0)
    n = len(v)
    products = [(v[lag:] * v[:-lag]).sum() / math.sqrt(n - lag) for lag in range(1, lags + 1)]
    return torch.stack(products)


def lag_law() -> tuple[Categorical, torch.Tensor]:
    log_q = torch.log_softmax(-1.1 * torch.arange(1.0, 1001.0, dtype=torch.float64).log(), -1)
    return Categorical(log_q), torch.randn(1000, dtype=torch.float64, generator=seeded(7))


def test_replicate_means_are_uncorrelated():
    law, value = lag_law()
    for seed in range(20):
        tokens = law.sample((4096, 64), generator=seeded(seed))
        assert lag_z_scores(value[tokens].mean(-1), 64).abs().max() < 4.5


def test_overlapping_streams_are_seen():
    # The twin: each replicate's stream starts one step after its neighbour's.
    law, value = lag_law()
    for seed in range(20):
        line = value[law.sample(4096 + 63, generator=seeded(seed))]
        z = lag_z_scores(line.unfold(0, 64, 1).mean(-1), 64)
        assert z[0] / math.sqrt(4095) > 0.95
        assert z.abs().max() > 4.5


def test_draws_do_not_depend_on_how_they_are_split():
    law = Categorical(torch.log_softmax(torch.randn(50, generator=seeded()), -1))
    stream = law.stream(seeded(1))
    whole = law.draw(3, 1000, stream)
    parts = [law.draw(3 + start, 125, stream) for start in range(0, 1000, 125)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(law.draw(3, 1000, law.stream(seeded(2))), whole)


def test_streams_of_neighbouring_seeds_have_nothing_in_common():
    seen = [_alias.words(torch.arange(1000), _alias.key(seeded(s), "cpu")) for s in range(50)]
    assert len(torch.cat(seen).unique()) == 50_000
    ones = torch.stack([(words >> bit) & 1 for words in seen for bit in range(62)])
    assert abs(float(ones.double().mean()) - 0.5) < 5 / (2 * math.sqrt(ones.numel()))


@needs_numba
@pytest.mark.parametrize("draws", [1, 63, 64, 10_007])
def test_machine_code_draws_the_same_tokens(monkeypatch, draws):
    law = Categorical(torch.log_softmax(torch.randn(3, 5000, generator=seeded()), -1))
    plain = law.sample((1, draws), generator=seeded(3))
    used = []
    draw = _compile.numba_module().draw
    monkeypatch.setattr(_compile.numba_module(), "draw", lambda *a: used.append(1) or draw(*a))
    monkeypatch.setattr(_compile, "WORTH", 1)
    monkeypatch.delenv("KLLAB_COMPILE", raising=False)
    assert torch.equal(law.sample((1, draws), generator=seeded(3)), plain)
    assert used


def test_impossible_tokens_are_never_drawn():
    log_q = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64).log()
    counts = Categorical(log_q).sample(100_000, generator=seeded()).bincount(minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert chi_square_accepts(counts[[1, 3]], torch.tensor([0.25, 0.75]))


def test_one_token():
    assert Categorical([0.0]).sample((2, 2), generator=seeded()).tolist() == [[0, 0], [0, 0]]


def test_shape_dtype_and_each_law_of_a_batch():
    # Row (i, j) can only give token 3 i + j.
    log_q = torch.full((2, 3, 6), -math.inf, dtype=torch.float64)
    for i in range(2):
        for j in range(3):
            log_q[i, j, 3 * i + j] = 0.0
    law = Categorical(log_q)
    assert (law.V, law.batch_shape, law.device.type) == (6, (2, 3), "cpu")
    tokens = law.sample((4, 5), generator=seeded())
    assert tokens.dtype == torch.int64
    assert tokens.shape == (4, 5, 2, 3)
    assert (tokens == torch.arange(6).reshape(2, 3)).all()


def test_rows_and_successive_draws_are_independent():
    first, second = torch.tensor([0.1, 0.3, 0.6]), torch.tensor([0.5, 0.2, 0.3])
    law = Categorical(torch.stack([first, second]).log())
    n = 60_000
    a, b = law.sample(n, generator=seeded()).T
    joint = (3 * a + b).bincount(minlength=9)
    assert chi_square_accepts(joint, torch.outer(first, second).flatten())
    next_to = (3 * a[:-1:2] + a[1::2]).bincount(minlength=9)
    assert chi_square_accepts(next_to, torch.outer(first, first).flatten())


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_no_draws(shape):
    assert Categorical([0.0]).sample(shape, generator=seeded()).shape == shape


def test_empty_batch():
    assert Categorical(torch.zeros(0, 5)).sample((3,), generator=seeded()).shape == (3, 0)


def test_scalar_draw():
    token = Categorical([math.log(0.5)] * 2).sample((), generator=seeded())
    assert token.shape == ()


def test_chunks_change_nothing_and_bound_the_memory(monkeypatch):
    log_q = torch.log_softmax(torch.randn(3, 50, dtype=torch.float64, generator=seeded()), -1)
    law = Categorical(log_q)
    whole = law.sample((7, 11), generator=seeded(5))
    monkeypatch.setattr(sampling, "CHUNK", 10)
    asked, draw = [], Categorical.draw
    monkeypatch.setattr(
        Categorical, "draw", lambda self, *a, **kw: asked.append(a[1]) or draw(self, *a, **kw)
    )
    assert torch.equal(law.sample((7, 11), generator=seeded(5)), whole)
    assert max(asked) <= 10
    assert sum(asked) == 7 * 11 * 3


def test_the_generator_decides_and_advances():
    law = Categorical(torch.log_softmax(torch.zeros(1000), -1))
    generator = seeded(1)
    first, second = law.sample(100, generator=generator), law.sample(100, generator=generator)
    assert torch.equal(first, law.sample(100, generator=seeded(1)))
    assert not torch.equal(first, second)
    assert not torch.equal(first, law.sample(100, generator=seeded(2)))


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    Categorical([math.log(0.5)] * 2).sample(10, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)


def test_float32_input_is_renormalised_in_float64():
    log_q = torch.log_softmax(torch.randn(5000, generator=seeded()), -1)
    same = torch.log_softmax((log_q + 5e-4).double(), -1)
    assert torch.equal(
        Categorical(log_q + 5e-4).sample(20_000, generator=seeded(3)),
        Categorical(same).sample(20_000, generator=seeded(3)),
    )


def test_no_gradient_is_kept():
    log_q = torch.log_softmax(torch.zeros(3, requires_grad=True), -1)
    assert not Categorical(log_q).sample(2, generator=seeded()).requires_grad


@pytest.mark.parametrize(
    ("log_q", "message"),
    [
        ([0.5, 0.5], "log_q: expected normalised"),
        ([0.0, math.nan], "log_q: expected no NaN"),
        (torch.zeros(1, dtype=torch.bfloat16), "log_q: expected float32 or float64; upcast"),
        (torch.zeros(1, dtype=torch.int64), "log_q: expected float32 or float64"),
        (torch.tensor(0.0), "log_q: expected a trailing vocabulary axis"),
    ],
)
def test_refuses_what_is_no_log_probability(log_q, message):
    with pytest.raises(InputError, match=message):
        Categorical(log_q)


def test_sample_refuses():
    law = Categorical([0.0])
    with pytest.raises(TypeError, match="generator"):
        law.sample((2,))
    with pytest.raises(InputError, match=r"generator: expected a torch.Generator, got 0"):
        law.sample((2,), generator=0)
    with pytest.raises(InputError, match=r"shape: expected sizes .* got \(2, -1\)"):
        law.sample((2, -1), generator=seeded())


def test_on_device_keeps_a_generator_that_is_at_home():
    generator = seeded()
    assert on_device(generator, torch.device("cpu")) is generator
    with pytest.raises(InputError, match=r"generator: expected a torch\.Generator, got None"):
        on_device(None, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_in_law(tail_law):
    law = Categorical(tail_law.p.log().cuda())
    for seed in range(10):
        tokens = law.sample((tail_law.draws,), generator=seeded(seed))
        assert tokens.is_cuda
        assert tail_law.accepts(tokens.cpu())
    at_home = torch.Generator("cuda").manual_seed(0)
    small = torch.log_softmax(torch.randn(1000, dtype=torch.float64, generator=seeded()), -1)
    on_cpu, on_gpu = (
        Categorical(x).sample(5000, generator=seeded(1)) for x in (small, small.cuda())
    )
    assert torch.equal(on_gpu.cpu(), on_cpu)
    assert on_device(at_home, law.device) is at_home
    assert tail_law.accepts(law.sample((tail_law.draws,), generator=at_home).cpu())
    generator = seeded()
    streams = [law.sample(1000, generator=generator) for _ in range(2)]
    assert not torch.equal(*streams)
    with pytest.raises(InputError, match="generator: expected a generator on the CPU"):
        on_device(at_home, "cpu")
