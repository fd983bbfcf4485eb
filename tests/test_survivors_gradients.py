"""What mutation testing of ``gradients`` found untested, one test each."""

import dataclasses

import pytest
import torch

from kllab import K1, K2, K3, _fit
from kllab.gradients import (
    as_reward_centred,
    as_reward_leave_one_out,
    coefficient,
    covariance,
    dictionary,
    expected,
    less_baseline,
    penalty_for,
    placed,
    variance,
)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


L = f64(0.5, 0.5).log()


@pytest.mark.parametrize(
    "call",
    [
        lambda: as_reward_centred(K2, L, L, None, 0),
        lambda: as_reward_leave_one_out(K2, L, L, None, 0),
        lambda: coefficient(K2, L, L, None, "loss"),
        lambda: expected(K2, L, L, "loss"),
        lambda: variance(K2, L, L, "loss"),
        lambda: covariance(K2, L, L, "loss"),
        lambda: dictionary(K2, "loss"),
        lambda: penalty_for("kl_qp", "loss"),
        lambda: placed(L, L, "loss"),
        lambda: less_baseline(L, "mean"),
    ],
)
def test_options_have_to_be_named(call):
    with pytest.raises(TypeError, match="positional"):
        call()


def test_the_dictionary_shows_fn_log_probabilities_and_no_ratio_beyond_three_nats():
    seen = []

    def fn(logprob, ref_logprob):
        seen.append((logprob.detach(), ref_logprob.detach()))
        return (ref_logprob - logprob) ** 2 / 2

    dictionary(fn, usage="both")
    logprob, ref_logprob = (torch.cat(side) for side in zip(*seen, strict=True))
    assert logprob.max() < 0
    assert ref_logprob.max() < 0
    step = 2.0**-12
    assert (ref_logprob - logprob).abs().max() == pytest.approx(_fit.REACH + step, abs=1e-9)
    means = ((logprob + ref_logprob) / 2).round(decimals=6).unique()
    assert len(means) == 2


def test_a_removable_gap_at_one_in_a_function_that_is_not_even():
    entry = dictionary(lambda l: torch.expm1(l) / l, usage="reward")
    assert entry.constant == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("usage", ["loss", "reward", "both"])
def test_a_usage_that_was_put_together_is_the_same_usage(usage):
    built = "".join(list(usage))
    assert built is not usage
    log_r = f64(-0.7, 0.3)
    got = penalty_for("chi2_pq", usage=built)(log_r)
    assert got.equal(penalty_for("chi2_pq", usage=usage)(log_r))
    assert dictionary(K2, usage=built).terms == dictionary(K2, usage=usage).terms
    values = f64(2.0, -1.0)
    assert placed(values, L, usage=built).equal(placed(values, L, usage=usage))


@pytest.mark.parametrize("how", ["none", "mean", "leave_one_out"])
def test_a_baseline_that_was_put_together_is_the_same_baseline(how):
    values = f64(1.0, 2.0, 6.0)
    got = less_baseline(values, how="".join(list(how)))
    assert got.equal(less_baseline(values, how=how))


def test_a_column_that_is_free_already_is_left_out_of_a_fit():
    """Less its free part only rounding is left of it, which must not pass for a direction."""
    l = _fit.grid(2.0**-6)
    free = {"r - 1": torch.expm1(l), "constant": torch.ones_like(l)}
    columns = {"kl_qp": K3(l)}
    alone = _fit.combination(torch.sin(5 * l), columns, free)
    columns["kl_pq"] = 3e9 * torch.expm1(l) + 2e9
    beside = _fit.combination(torch.sin(5 * l), columns, free)
    assert alone.verdict == beside.verdict == "unknown"
    assert beside.residual == pytest.approx(alone.residual, rel=1e-12)
    with pytest.raises(TypeError, match="positional"):
        _fit.combination(torch.sin(l), columns, free, torch.float64)


def test_one_token_alone_is_asked_once():
    calls = []

    def fn(l):
        calls.append(len(l))
        return l

    assert expected(fn, f64(2.0), f64(0.0), usage="loss").tolist() == [0.0]
    assert calls == [1]


@pytest.mark.parametrize("fn", [K1, K2])
def test_an_entry_is_told_by_the_value_of_its_verdict(fn):
    entry = dictionary(fn, usage="loss")
    built = "".join(list(entry.verdict))
    assert str(dataclasses.replace(entry, verdict=built)) == str(entry)
