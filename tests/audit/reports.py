"""Public reports about KL in training code, each as a small function, as tensors, or with a reason.

Every function is derived anew from what a report says, never copied.  A faulty one stands beside
its repaired twin, and differs from it in nothing but the fault.  The page of reports is built from
this file, and ``test_reports.py`` holds it.

``q`` is the sampled law in divergence names; log-probabilities are in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from audit import logged
from audit.logged import Tensors

# --- one sample: right, apart from a placement ------------------------------------------------


def log_ratio(logprob, ref_logprob):
    return logprob - ref_logprob


def half_square(logprob, ref_logprob):
    return (logprob - ref_logprob).square() / 2


def bregman(logprob, ref_logprob):
    d = ref_logprob - logprob
    return torch.expm1(d) - d


def upside_down(logprob, ref_logprob):
    return bregman(ref_logprob, logprob)


def absolute(logprob, ref_logprob):
    return (logprob - ref_logprob).abs()


def ratio_in_the_exponent(logprob, ref_logprob):
    ratio = (ref_logprob - logprob).exp()
    return ratio.exp() - 1 - ratio


@torch.no_grad()
def under_no_grad(logprob, ref_logprob):
    return half_square(logprob, ref_logprob)


def no_such_mode(logprob, ref_logprob):
    raise NotImplementedError("k3+")


def straight_through(logprob, ref_logprob):
    push = half_square(logprob, ref_logprob)
    return push - push.detach() + bregman(logprob, ref_logprob).detach()


def with_score_term(logprob, ref_logprob):
    """A weight whose value is one adds the term that differentiating k1 leaves out."""
    return (logprob - logprob.detach()).exp() * (logprob - ref_logprob)


def as_printed_in_float32(logprob, ref_logprob):
    """exp minus one minus its argument: two digits are left where policies agree to 1e-3."""
    d = (ref_logprob - logprob).float()
    return d.exp() - 1 - d


# --- one sample from an older policy ----------------------------------------------------------


def stale_half_square(logprob, ref_logprob, old_logprob):
    return half_square(logprob, ref_logprob)


def stale_bregman(logprob, ref_logprob, old_logprob):
    return bregman(logprob, ref_logprob)


def weighted_half_square(logprob, ref_logprob, old_logprob):
    return (logprob - old_logprob).exp() * half_square(logprob, ref_logprob)


def constant_weight_half_square(logprob, ref_logprob, old_logprob):
    return (logprob - old_logprob).exp().detach() * half_square(logprob, ref_logprob)


def weighted_bregman(logprob, ref_logprob, old_logprob):
    return (logprob - old_logprob).exp() * bregman(logprob, ref_logprob)


# --- clamps ------------------------------------------------------------------------------------


def clamped_after_exp(logprob, ref_logprob):
    return bregman(logprob, ref_logprob).clamp(-10, 10)


def clamped_before_exp(logprob, ref_logprob):
    """e^10 still fits float16."""
    d = (ref_logprob - logprob).clamp(-10, 10)
    return torch.expm1(d) - d


def clamped_at_twenty(logprob, ref_logprob):
    d = (ref_logprob - logprob).clamp(-20, 20)
    return torch.expm1(d) - d


# --- masks and means --------------------------------------------------------------------------


def mean_of(value):
    def function(logprob, ref_logprob):
        return value(logprob, ref_logprob).mean()

    return function


def token_mean_of(value):
    """Masked places are replaced before any arithmetic."""

    def function(logprob, ref_logprob, mask):
        keep = mask.bool()
        logprob, ref_logprob = (torch.where(keep, x, 0.0) for x in (logprob, ref_logprob))
        return value(logprob, ref_logprob).sum() / keep.sum()

    return function


def sequence_sum_of(value):
    def function(logprob, ref_logprob, mask):
        keep = mask.bool()
        logprob, ref_logprob = (torch.where(keep, x, 0.0) for x in (logprob, ref_logprob))
        return value(logprob, ref_logprob).sum(-1).mean()

    return function


def mean_with_pads(value):
    """Pads count nothing in the sum and everything in the number of tokens."""

    def function(logprob, ref_logprob, mask):
        keep = mask.bool()
        logprob, ref_logprob = (torch.where(keep, x, 0.0) for x in (logprob, ref_logprob))
        return value(logprob, ref_logprob).mean()

    return function


def mask_after_exp(logprob, ref_logprob, mask):
    return bregman(logprob, ref_logprob) * mask


def mask_before_exp(logprob, ref_logprob, mask):
    d = torch.where(mask.bool(), ref_logprob - logprob, 0.0)
    return torch.expm1(d) - d


def sum_with_pads(logprob, ref_logprob, mask):
    return log_ratio(logprob, ref_logprob).sum(-1).mean()


# --- the table ---------------------------------------------------------------------------------

ROLLOUT = ("logprob", "ref_logprob")  # (train, rollout): samples are from the second
OLD = ("logprob", "old_logprob")  # (new, old): samples are from the second


@dataclass(frozen=True)
class Code:
    """A faulty function and its repaired twin, with the call that both get.

    ``codes`` must be found in the faulty one and must not in the repaired one; ``terms`` is what
    the usage's quantity is, for the faulty one and for the repaired one; ``remain`` are all the
    codes that the repaired one still has, because they are true of it.
    """

    faulty: Callable
    repaired: Callable
    codes: tuple[str, ...]
    usage: str = "metric"
    samples: str = "logprob"
    names: tuple[str, ...] | None = None
    claim: str = "kl_qp"
    right_claim: str | None = None  # where the words were wrong, and the code was not
    terms: dict[str, float] | None = None
    right_terms: dict[str, float] = field(default_factory=lambda: {"kl_qp": 1.0})
    remain: tuple[str, ...] = ()

    @property
    def call(self) -> dict:
        call = {"usage": self.usage, "samples": self.samples, "claim": self.claim}
        return call | ({"names": self.names} if self.names else {})


@dataclass(frozen=True)
class Logged:
    """Tensors as a run would log them: ``sick`` and ``healthy`` take a generator.

    ``codes`` must be found in the sick ones, and nothing at all in the healthy ones.  No codes:
    nothing can be found, and ``why_not`` says so.
    """

    sick: Callable[[torch.Generator], Tensors]
    codes: tuple[str, ...]
    healthy: Callable[[torch.Generator], Tensors] = logged.healthy
    why_not: str = ""


@dataclass(frozen=True)
class Report:
    """``threads``: owner/name#number.  ``why_not``: the reason, where nothing of ours can tell."""

    number: str
    kind: str
    threads: tuple[str, ...]
    fault: str
    cases: tuple[Code | Logged, ...] = ()
    why_not: str = ""


DIRECTION = "Signs, directions, pairs of policies"
GRADIENT = "Gradients"
STALE = "Stale samples"
NUMERICS = "Overflow, NaN, clamps"
MASKS = "Masks, padding, means"
SAMPLER = "What was sampled"
COST = "Cost and expectations"

# Two reports have the same cause.
CLAMPED_TOO_LATE = Code(
    clamped_after_exp,
    clamped_before_exp,
    ("nan_gradient",),
    usage="loss",
    claim="kl_pq",
    terms={"kl_pq": 1.0},
    right_terms={"kl_pq": 1.0},
    remain=("clamp_value", "clamp_gradient"),
)

REPORTS = (
    Report(
        "1",
        DIRECTION,
        ("CarperAI/trlx#438", "CarperAI/trlx#441"),
        "A logged mean KL never came near the value that a recipe aims at: the ratio in k3 stood "
        "upside down, and the mean went over prompt and padding.",
        (
            Code(
                mean_with_pads(upside_down),
                sequence_sum_of(log_ratio),
                ("upside_down", "padding_in_mean"),
                terms={"chi2_qp": 1.0, "kl_qp": -1.0},
            ),
        ),
    ),
    Report(
        "2",
        DIRECTION,
        ("modelscope/ms-swift#7145",),
        "Of two metrics of one divergence, one was negative and the other positive: the mean log "
        "ratio had the other sign, and both were labelled with the other direction.",
        (
            Code(
                lambda train, rollout: train - rollout,
                lambda train, rollout: rollout - train,
                ("wrong_sign",),
                samples="ref_logprob",
                names=ROLLOUT,
                terms={"kl_qp": -1.0},
            ),
            Code(
                lambda train, rollout: bregman(rollout, train),
                lambda train, rollout: bregman(rollout, train),
                ("wrong_direction",),
                samples="ref_logprob",
                names=ROLLOUT,
                claim="kl_pq",
                right_claim="kl_qp",
                terms={"kl_qp": 1.0},
                remain=("overflow",),
            ),
        ),
    ),
    Report(
        "3",
        DIRECTION,
        ("hpcaitech/ColossalAI#3696",),
        "The penalty in the reward was k3 with the ratio upside down.",
        (
            Code(
                upside_down,
                log_ratio,
                ("upside_down",),
                usage="reward",
                terms={"chi2_qp": 0.5, "kl_qp": -1.0},
            ),
        ),
    ),
    Report(
        "4",
        DIRECTION,
        ("DLR-RM/stable-baselines3#417", "DLR-RM/stable-baselines3#419"),
        "To stop early on a number that cannot be negative, a first patch took k3 with the old "
        "policy on top; the review caught it.",
        (
            Code(
                lambda new, old: upside_down(old, new),
                lambda new, old: bregman(old, new),
                ("upside_down",),
                samples="old_logprob",
                names=OLD,
                terms={"chi2_qp": 1.0, "kl_qp": -1.0},
                remain=("overflow",),
            ),
        ),
    ),
    Report(
        "5",
        DIRECTION,
        ("openai/spinningup#137", "openai/spinningup#292"),
        "The mean log ratio was negative, so early stopping did not fire; somebody took its "
        "absolute value, which estimates another quantity.",
        (
            Code(
                lambda new, old: absolute(old, new),
                lambda new, old: bregman(old, new),
                ("bias", "unknown"),
                samples="old_logprob",
                names=OLD,
                remain=("overflow",),
            ),
        ),
    ),
    Report(
        "6",
        DIRECTION,
        ("Rolv-Arild/rocket-learn#12",),
        "A KL spiked to infinity: the ratio stood where its logarithm belongs.",
        (
            Code(
                ratio_in_the_exponent,
                bregman,
                ("constant", "bias", "overflow"),
                remain=("overflow",),
            ),
        ),
    ),
    Report(
        "7",
        DIRECTION,
        (
            "nebuly-ai/optimate#298",
            "lucidrains/PaLM-rlhf-pytorch#43",
            "google-deepmind/rlax#14",
            "pytorch/pytorch#57459",
        ),
        "A KL between whole distributions takes its arguments in the other order.",
        why_not="The audit asks what one sampled token is worth, and these functions take whole "
        "distributions. Called on two unequal ones, they tell their order at once.",
    ),
    Report(
        "10",
        DIRECTION,
        ("THUDM/slime#2254", "zai-org/GLM-5#34"),
        "A text says KL(teacher‖student); the code samples from the student and computes "
        "KL(student‖teacher).",
        (
            Code(
                log_ratio,
                log_ratio,
                ("wrong_direction",),
                claim="kl_pq",
                right_claim="kl_qp",
                terms={"kl_qp": 1.0},
            ),
        ),
    ),
    Report(
        "11",
        DIRECTION,
        ("verl-project/verl#6377",),
        "Bounds on the ratio are compared with minus its logarithm, so an asymmetric interval "
        "keeps the mirrored one.",
        why_not="The function answers keep or drop. It estimates nothing, so there is no "
        "divergence to compare it with; only its own documentation says which side is meant.",
    ),
    Report(
        "13",
        GRADIENT,
        ("NovaSky-AI/SkyRL#1340", "NovaSky-AI/SkyRL#1353"),
        "The KL loss had no effect: its function ran without gradients.",
        (
            Code(
                under_no_grad,
                half_square,
                ("no_grad",),
                usage="loss",
            ),
        ),
    ),
    Report(
        "14",
        GRADIENT,
        ("verl-project/verl#2953", "verl-project/verl#6058"),
        "The gradient of k3 as a loss is not that of KL(policy‖reference); the mode that repairs "
        "it then raised for months.",
        (
            Code(
                bregman,
                straight_through,
                ("wrong_direction",),
                usage="loss",
                terms={"kl_pq": 1.0},
                remain=("overflow",),
            ),
            Code(
                no_such_mode,
                straight_through,
                ("raises",),
                usage="loss",
                remain=("overflow",),
            ),
        ),
    ),
    Report(
        "15",
        GRADIENT,
        ("huggingface/trl#4967", "huggingface/trl#6503"),
        "k1 as a loss has no expected gradient; differentiating an importance weight repairs it, "
        "on policy too.",
        (
            Code(
                log_ratio,
                half_square,
                ("zero_gradient",),
                usage="loss",
            ),
            Code(
                stale_bregman,
                weighted_bregman,
                ("off_policy",),
                usage="loss",
                samples="old_logprob",
                remain=("overflow",),
            ),
        ),
    ),
    Report(
        "16",
        GRADIENT,
        ("NVIDIA-NeMo/RL#2506", "NVIDIA-NeMo/RL#2958"),
        "The loss left out the term that comes from the samples' own distribution.",
        (
            Code(
                log_ratio,
                with_score_term,
                ("zero_gradient",),
                usage="loss",
            ),
        ),
    ),
    Report(
        "17",
        GRADIENT,
        ("OpenRLHF/OpenRLHF#1309", "OpenRLHF/OpenRLHF#1101", "OpenRLHF/OpenRLHF#797"),
        "On samples of an older policy no estimator as a loss is right without a weight.",
        (
            Code(
                stale_half_square,
                constant_weight_half_square,
                ("off_policy",),
                usage="loss",
                samples="old_logprob",
            ),
        ),
    ),
    Report(
        "18",
        GRADIENT,
        ("THUDM/slime#1039", "THUDM/slime#1004"),
        "A differentiated weight is right for k1 and k3, and bends the gradient of k2.",
        (
            Code(
                weighted_half_square,
                constant_weight_half_square,
                ("mixed_sign", "unknown"),
                usage="loss",
                samples="old_logprob",
            ),
        ),
    ),
    Report(
        "19",
        GRADIENT,
        ("NovaSky-AI/SkyRL#805", "NovaSky-AI/SkyRL#1445"),
        "A default of k3 as a loss was changed to k2 as a loss or k1 in the reward.",
        (
            Code(
                bregman,
                half_square,
                ("wrong_direction",),
                usage="loss",
                terms={"kl_pq": 1.0},
            ),
            Code(
                bregman,
                log_ratio,
                ("mixed_sign",),
                usage="reward",
                terms={"kl_qp": 1.0, "kl_pq": -1.0},
            ),
        ),
    ),
    Report(
        "20",
        GRADIENT,
        ("natolambert/rlhf-book#489",),
        "With k3 a run had early spikes and ended less correct than with k1 or k2.",
        why_not="The thread does not settle the cause. Sampling was truncated and k3 has a heavy "
        "tail; each would be seen in logged tensors, and this report has none.",
    ),
    Report(
        "23",
        STALE,
        ("huggingface/trl#3025", "huggingface/trl#4638", "verl-project/verl#2983"),
        "KL(policy‖reference) is evaluated on tokens of an older policy.",
        (
            Code(
                stale_bregman,
                weighted_bregman,
                ("off_policy",),
                samples="old_logprob",
                remain=("overflow",),
            ),
            Logged(logged.stale, ("mean_ratio",)),
        ),
    ),
    Report(
        "24",
        STALE,
        ("agentscope-ai/Trinity-RFT#419", "nvidia-cosmos/cosmos-rl#423"),
        "w·k3 is added, with log w clamped at 20.",
        why_not="Nothing was wrong: it is the repair of the report above.",
    ),
    Report(
        "25",
        NUMERICS,
        ("huggingface/trl#3015", "huggingface/trl#5984"),
        "The exponential in k3 overflows where the reference likes a token much better.",
        (
            Code(
                bregman,
                log_ratio,
                ("overflow",),
            ),
        ),
    ),
    Report(
        "26",
        NUMERICS,
        ("OpenRLHF/OpenRLHF#525", "OpenRLHF/OpenRLHF#1160", "OpenRLHF/OpenRLHF#1335"),
        "A clamp after the exponential: the value is finite, its gradient is zero times infinity.",
        (CLAMPED_TOO_LATE,),
    ),
    Report(
        "27",
        NUMERICS,
        ("verl-project/verl#751", "verl-project/verl#1779", "verl-project/verl#2928"),
        "A model collapsed to one token with a KL of NaN; a clamp before the exponential and one "
        "after it repaired it, the second with a lower bound that never binds.",
        (CLAMPED_TOO_LATE,),
    ),
    Report(
        "28",
        NUMERICS,
        ("NVIDIA-NeMo/RL#874", "NVIDIA-NeMo/RL#876"),
        "The loss was NaN in the first step, from k3; a clamp at 20 is enough for float32 and not "
        "for float16.",
        (
            Code(
                bregman,
                clamped_before_exp,
                ("overflow",),
                remain=("clamp_value",),
            ),
            Code(
                clamped_at_twenty,
                clamped_before_exp,
                ("overflow",),
                remain=("clamp_value",),
            ),
        ),
    ),
    Report(
        "29",
        NUMERICS,
        ("meta-pytorch/torchforge#664",),
        "The mean KL was 1.6 million and its largest value 6.8 thousand million: one token.",
        (Logged(logged.one_token_carries_it, ("one_token",)),),
    ),
    Report(
        "30",
        MASKS,
        (
            "modelscope/ms-swift#9767",
            "NovaSky-AI/SkyRL#1633",
            "huggingface/trl#5594",
            "modelscope/ms-swift#8343",
        ),
        "The mask multiplies after the exponential, and infinity times zero is NaN.",
        (
            Code(
                mask_after_exp,
                mask_before_exp,
                ("padding_leak",),
                remain=("overflow",),
            ),
        ),
    ),
    Report(
        "32",
        MASKS,
        ("huggingface/trl#6803", "allenai/open-instruct#756"),
        "A logged sum went over padding too.",
        (
            Code(
                sum_with_pads,
                sequence_sum_of(log_ratio),
                ("padding_leak",),
            ),
            Logged(logged.pads_as_ones, ("above_zero", "padding")),
        ),
    ),
    Report(
        "33",
        MASKS,
        ("natolambert/rlhf-book#216",),
        "A mean went over padding, which halves it when half of the places are padding.",
        (
            Code(
                mean_with_pads(log_ratio),
                token_mean_of(log_ratio),
                ("padding_in_mean",),
            ),
            Logged(logged.pads_as_zeros, ("padding",)),
        ),
    ),
    Report(
        "36",
        MASKS,
        ("CarperAI/trlx#582",),
        "The mask is not shifted with the log-probabilities, which belong to the next token.",
        (Logged(logged.mask_not_shifted, ("mean_ratio",)),),
    ),
    Report(
        "37",
        MASKS,
        ("huggingface/trl#2562", "huggingface/trl#2581"),
        "A token-level and a sequence-level KL gave identical runs.",
        why_not="They are identical: a coefficient times a sum is the sum of the coefficient times "
        "each token. The audit gives both the same terms.",
    ),
    Report(
        "38",
        MASKS,
        ("huggingface/trl#1161", "huggingface/trl#1180"),
        "The log showed k1 while the penalty was another estimator, so a warning about a negative "
        "KL was about something that nobody used.",
        why_not="Each function is right. The fault is that the log calls one and the loss another, "
        "and neither the audit of one function nor its tensors knows of the other.",
    ),
    Report(
        "43",
        MASKS,
        ("huggingface/trl#3556", "verl-project/verl#2034"),
        "Is the sum of the tokens' k3 the k3 of the sequence?",
        why_not="It is not, and both are unbiased for the divergence of whole sequences: nothing "
        "is wrong. They differ in noise.",
    ),
    Report(
        "44",
        MASKS,
        ("huggingface/trl#3104", "huggingface/trl#4"),
        "Must a token's KL be summed over the whole vocabulary?",
        why_not="It need not: one sampled token is unbiased for that sum, and noisier.",
    ),
    Report(
        "45",
        SAMPLER,
        ("huggingface/trl#235", "huggingface/trl#355", "hiyouga/LLaMA-Factory#664"),
        "The logged KL is negative, even its mean: generation kept few tokens, or banned one.",
        (
            Logged(logged.top_two, ("negative_kl", "mean_ratio")),
            Logged(logged.without_end, ("negative_kl", "mean_ratio")),
        ),
    ),
    Report(
        "46",
        SAMPLER,
        ("huggingface/trl#262", "huggingface/trl#417", "huggingface/trl#2708"),
        "Padding on the left or missing position ids: the same weights gave different "
        "log-probabilities.",
        (Logged(logged.policy_scored_differently(0.5), ("swapped", "mean_ratio")),),
    ),
    Report(
        "47",
        SAMPLER,
        ("huggingface/trl#6789", "NVIDIA-NeMo/RL#69"),
        "The engine's log-probabilities are renormalised over the kept tokens, the trainer's are "
        "not: every token's log ratio is the logarithm of the kept mass.",
        (Logged(logged.renormalised_by_the_engine, ("truncated", "ratio_below_one")),),
    ),
    Report(
        "48",
        SAMPLER,
        ("huggingface/trl#3029", "OpenRLHF/OpenRLHF#853", "huggingface/trl#4159"),
        "One side applies the temperature and the other does not, or it divides log-probabilities "
        "where it should divide logits.",
        (
            Logged(
                logged.cooler,
                (),
                why_not="Where both models are close, every ratio is near 1 whatever was sampled.",
            ),
            Logged(logged.engine_at_another_temperature, ("temperature",)),
            Logged(logged.divided_log_probabilities, ("ratio_below_one",)),
        ),
    ),
    Report(
        "49",
        SAMPLER,
        ("NVIDIA-NeMo/RL#3743", "sail-sg/Precision-RL#10"),
        "Engine and trainer differ by rounding; k3 turns that noise into half its variance.",
        (
            Logged(logged.in_half_precision, ("half_precision",)),
            Logged(logged.noisy(0.3), ("noise", "mean_ratio")),
        ),
    ),
    Report(
        "49b",
        SAMPLER,
        ("allenai/open-instruct#1473",),
        "The difference between engine and trainer grew with a learning rate of zero: two tensors "
        "were indexed differently.",
        (Logged(logged.misaligned, ("misaligned", "mean_ratio")),),
    ),
    Report(
        "50",
        SAMPLER,
        ("verl-project/verl#2088", "huggingface/trl#3500"),
        "The KL is not zero before the first step, from rounding or from dropout on one side.",
        (
            Logged(logged.noisy(0.3), ("noise", "mean_ratio")),
            Logged(logged.policy_scored_differently(1.0), ("swapped", "mean_ratio")),
        ),
    ),
    Report(
        "53",
        COST,
        ("huggingface/trl#541", "verl-project/verl#6726", "modelscope/ms-swift#9882"),
        "The KL over the whole vocabulary takes more memory than there is.",
        why_not="The number is right; its cost depends on the caller's shapes.",
    ),
    Report(
        "55",
        COST,
        ("hiyouga/LLaMA-Factory#6805", "huggingface/trl#2703", "unslothai/unsloth#2291"),
        "The loss starts at zero, and people ask how it learns.",
        why_not="Nothing is wrong: where policy and reference agree, k2 and k3 and their gradients "
        "are exactly zero, and the reward's part averages to zero while its gradient does not.",
    ),
)
