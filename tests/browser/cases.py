"""What the tests of every browser figure need to know about each of them.

A figure with a `Case` here passes `test_figures.py`; what only one figure does has a file of its
own.  Selectors are CSS and look into the figure's shadow root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness import handle_selector

from kllab import explorables


@dataclass(frozen=True)
class Drag:
    """Something to move sideways: its selector, by how many pixels, what its value becomes."""

    grip: str
    by: int
    low: float
    high: float


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], explorables.Explorable]
    says: tuple[str, ...]  # in the default state
    plots: int
    picture: str  # how the text alternative of the static picture begins
    caption: str  # words of its caption
    stops: tuple[str, ...]  # what the Tab key reaches, in order
    keys: tuple[tuple[str, str], ...]  # (selector, key), pressed one after the other
    keyed: str  # the link's text afterwards
    mouse: Drag  # on a page of 1280 px
    finger: Drag  # on one of 360 px
    again: str  # the button that draws anew
    change: tuple[tuple[str, str], ...]  # (selector, what to put there), see `put`
    changed: str  # the link's text afterwards
    hostile: str  # a link that is wrong in the figure's own terms
    beyond: tuple[str, Mapping[str, object]]  # a link out of range, and the state that it gives
    full: str  # a link to a state with much on the screen
    crowded: tuple[str, ...]  # links to states where labels come close; the last is the widest
    model: Mapping[str, object]  # values of a host's model

    def __str__(self) -> str:
        return self.name

    @property
    def tag(self) -> str:
        return f"kl-{self.name}"

    @property
    def key(self) -> str:
        """The figure's id, which is its parameter in a link."""
        return f"fig-{self.name}"


def slider(name: str) -> str:
    return f".control-{name} input"


TWO_GAUSSIANS = Case(
    name="two-gaussians",
    make=explorables.two_gaussians,
    says=(
        "k1 is right on average but falls below 0 in 10\u00a0% of runs",
        "k2 is 35\u00a0% too high",
    ),
    plots=4,
    picture="Left: the densities",
    caption="k2 is 35 % too high",
    stops=(
        *("mean", "scale", "k1", "k2", "k3", "scale of p", "mean of p", "n", "seed"),
        *("Draw one run of 16", "Draw 100 runs", "Reset", "Copy link"),
    ),
    keys=(
        (handle_selector("mean of p"), "End"),
        (handle_selector("scale of p"), "Home"),
        (slider("n"), "ArrowRight"),
    ),
    keyed="mean:2.5,scale:0.4,n:32",
    mouse=Drag(handle_selector("mean of p"), -60, -1.6, -0.6),
    finger=Drag(handle_selector("mean of p"), -48, -2.4, 0),
    again="Draw 100 runs",
    change=(
        (slider("mean"), "1.2"),
        (slider("n"), "3"),
        (slider("seed"), "77"),
        ("input[value=k2]", ""),
        ("button:text('Draw one run')", ""),
    ),
    changed="mean:1.2,n:8,seed:77,runs:201,show:k1+k3",
    hostile="mean:NaN,n:-1,show:none",
    beyond=(
        "mean:-9,scale:1e300,n:1e9,seed:1e99,runs:-3,show:k3+k9",
        {"mean": -2.5, "scale": 2, "n": 1024, "seed": 2**32 - 1, "runs": 0, "show": ["k3"]},
    ),
    full="scale:1.8,runs:1000,show:k1%2Bk3",
    crowded=(
        *("", "mean:0.1,scale:1", "mean:2.5,scale:0.4,n:1"),
        *("mean:-1,scale:2,n:1024", "mean:-0.1,scale:1,n:1024"),
    ),
    model={"mean": 1, "n": 4},
)

TANGENT_LINE = Case(
    name="tangent-line",
    make=explorables.tangent_line,
    says=(
        "curve lies 0.584 above the line",
        "no sample is ever below 0, and the variance of one sample is 0.718",
        "λ* = 0.582 has 42\u00a0% less variance, with 24\u00a0% of samples below 0",
    ),
    plots=3,
    picture="Left: the curve",
    caption="at λ* = 0.582 it is 0.418",
    stops=(
        *("f", "r", "mean", "r on the curve", "lambda", "λ = 0", "tangent"),
        *("least variance, λ*", "λ on the parabola", "New samples", "Reset", "Copy link"),
    ),
    keys=(
        (handle_selector("r on the curve"), "ArrowLeft"),
        (handle_selector("r on the curve"), "ArrowLeft"),
        (handle_selector("λ on the parabola"), "ArrowLeft"),
        (".control-f select", "ArrowDown"),
        ("button:text('New samples')", "Enter"),
    ),
    keyed="f:kl_pq,lambda:0.99,r:2.4,seed:2",
    mouse=Drag(handle_selector("λ on the parabola"), -100, 0.2, 0.6),
    finger=Drag(handle_selector("λ on the parabola"), -48, 0.2, 0.9),
    again="New samples",
    change=(
        (slider("mean"), "0.5"),
        (".control-f select", "jeffreys"),
        ("button:text('least variance')", ""),
    ),
    changed="f:jeffreys,mean:0.5,lambda:best",
    hostile="f:nope,lambda:NaN,r:-,mean:",
    beyond=(
        "f:constructor,lambda:1e300,r:1e300,mean:-5,seed:-1",
        {"f": "kl_qp", "lambda": 1e5, "r": 4, "mean": 0.1, "seed": 0},
    ),
    full="f:chi2_pq,lambda:-4,mean:1.5",
    crowded=(
        *("", "lambda:0,r:4", "mean:0.1,lambda:0.5", "f:chi2_pq,lambda:best,mean:2,r:0.05"),
        *("f:tv,lambda:best,r:0.5", "f:js,r:3.9,lambda:-0.3", "f:chi2_pq,lambda:3,mean:2"),
    ),
    model={"f": "js", "lambda": "best"},
)

VOCABULARY = Case(
    name="vocabulary",
    make=explorables.vocabulary,
    says=(
        "KL(q‖p) is 0.598 nats",
        "q draws ranks from 1,024 on in 0.1\u00a0% of its samples",
        "95\u00a0% of k3’s variance and 4.9\u00a0% of k1’s",
        "one token, rank 347, carries 44\u00a0% of the k3 mean",
    ),
    plots=5,
    picture="Left: what each octave",
    caption="95 % of k3’s",
    stops=(
        *("temperature", "noise", "top", "n", "seed"),
        *("Next sample of 64", "Reset", "Copy link"),
    ),
    keys=(
        (slider("temperature"), "ArrowRight"),
        (slider("noise"), "Home"),
        (slider("top"), "ArrowLeft"),
        (slider("n"), "End"),
        ("button:text('Next sample of 4,096')", "Enter"),
    ),
    keyed="temperature:0.65,top:0.99,noise:0,n:4096,sample:2",
    mouse=Drag(slider("temperature"), 50, 0.9, 1.3),
    finger=Drag(slider("top"), -120, 0.7, 0.9),
    again="Next sample of 64",
    change=((slider("temperature"), "0.8"), (slider("top"), "0.97"), (slider("seed"), "77")),
    changed="temperature:0.8,top:0.97,seed:77",
    hostile="temperature:NaN,top:-,noise:,n:none",
    beyond=(
        "temperature:0,top:-1,noise:1e300,n:1e9,sample:-3,seed:1e99",
        {"temperature": 0.5, "top": 0.5, "noise": 1, "n": 4096, "seed": 2**32 - 1, "sample": 1},
    ),
    full="temperature:0.8,top:0.95,n:1024",
    crowded=(
        *("", "temperature:1,noise:0", "temperature:1,noise:0,top:0.9", "temperature:1,noise:0.05"),
        *("temperature:1.5,noise:1,n:4096", "temperature:0.5,noise:1,n:1"),
        "temperature:0.5,noise:1,n:4096",
    ),
    model={"temperature": 1, "n": 16},
)

SIMPLEX_FLOW = Case(
    name="simplex-flow",
    make=explorables.simplex_flow,
    says=(
        "k3 in the reward follows KL(q‖p) − KL(p‖q), not KL(q‖p), though its mean is KL(q‖p)",
        "steps against −∇KL(q‖p), 0.140 times as far",
        "ends with A alone, where KL(q‖p) is 0.916; the true gradient leads to p",
    ),
    plots=3,
    picture="Left: the triangle",
    caption="ends at (1.00, 0.00, 0.00)",
    stops=(
        *("penalty", "usage", "qA", "qB", "qC", "reference p", "policy q"),
        *("With a reward", "pA", "pB", "pC", "Reset", "Copy link"),
    ),
    keys=(
        (handle_selector("policy q"), "ArrowRight"),
        (handle_selector("reference p"), "ArrowUp"),
        (slider("qC"), "Home"),
        (".control-usage select", "ArrowUp"),
        ("button:text('With a reward')", "Enter"),
        (slider("beta"), "End"),
    ),
    keyed="usage:loss,q:0.76+0.23+0.01,p:0.39+0.39+0.22,reward:1+0+0,beta:2",
    mouse=Drag(handle_selector("policy q"), 80, 0.45, 0.55),
    finger=Drag(slider("qA"), -40, 0.1, 0.4),
    again="With a reward",
    change=(
        (slider("qA"), "0.5"),
        (".control-penalty select", "k2"),
        (".control-usage select", "loss"),
        ("button:text('With a reward')", ""),
        (slider("rewardC"), "-0.5"),
        (slider("beta"), "0.8"),
    ),
    changed="penalty:k2,usage:loss,q:0.5+0.33+0.17,reward:1+0+-0.5,beta:0.8",
    hostile="q:1+2,p:-1+1+1,reward:x+y+z,beta:NaN,penalty:k9,usage:both+loss",
    beyond=(
        "q:0+0+7,p:1+1+0,reward:9+-9+0,beta:1e300,penalty:constructor",
        {
            "penalty": "k3",
            "usage": "reward",
            "q": [0.01, 0.01, 0.98],
            "p": [0.49, 0.5, 0.01],
            "reward": [1, -1, 0],
            "beta": 2,
        },
    ),
    full="penalty:abs,usage:both,q:0.05+0.15+0.8,reward:1+-1+0.5",
    crowded=(
        *("", "q:0.4+0.4+0.2", "q:0.4+0.4+0.2,reward:0+0+0", "q:0.01+0.98+0.01,p:0.01+0.97+0.02"),
        *("penalty:k1,usage:loss", "penalty:k3,usage:loss,q:0.9+0.05+0.05,reward:1+0+0,beta:0.2"),
        "penalty:flipped,usage:reward,q:0.01+0.01+0.98,p:0.02+0.01+0.97,reward:1+0+-1,beta:0.2",
    ),
    model={"penalty": "k2", "usage": "loss"},
)

PREFIXES = Case(
    name="prefixes",
    make=explorables.prefixes,
    says=(
        "k2 as a loss has gradient −0.101 at the first token, so descent raises q(A)",
        "It drops the score of that token times the KL that follows, +0.281",
        "is +0.180: the dropped term turns the sign, and descent lowers q(A)",
        "the least is 0.540, at q(A) = 0.327",
    ),
    plots=3,
    picture="Left: for three logits",
    caption="leaves out +0.281 of a gradient of +0.180",
    stops=(
        *("loss", "q", "qa", "qb", "p", "pa", "pb"),
        *("q(A) in the tree", "q(A|A) in the tree", "q(A|B) in the tree", "q(A) on the curve"),
        *("Token loss rests", "Least KL(Q‖P)", "Reset", "Copy link"),
    ),
    keys=(
        (handle_selector("q(A) in the tree"), "PageDown"),
        (handle_selector("q(A) on the curve"), "ArrowRight"),
        (handle_selector("q(A|A) in the tree"), "End"),
        (handle_selector("q(A|B) in the tree"), "Home"),
        (slider("p"), "ArrowLeft"),
        (".control-loss select", "ArrowDown"),
    ),
    keyed="loss:k3,q:0.41,qa:0.98,qb:0.02,p:0.59",
    mouse=Drag(handle_selector("q(A) on the curve"), -60, 0.2, 0.35),
    finger=Drag(handle_selector("q(A) in the tree"), -48, 0.1, 0.4),
    again="Least KL",
    change=(
        (slider("qb"), "0.7"),
        (slider("pa"), "0.35"),
        (".control-loss select", "k3"),
        ("button:text('Least KL')", ""),
    ),
    changed="loss:k3,q:least,qb:0.7,pa:0.35",
    hostile="loss:k9,q:most,qa:least,qb:NaN,p:,pa:-",
    beyond=(
        "loss:constructor,q:1e300,qa:-1,qb:0.999,p:token,pa:1e-9,pb:2",
        {"loss": "k2", "q": 0.98, "qa": 0.02, "qb": 0.98, "p": 0.6, "pa": 0.02, "pb": 0.98},
    ),
    full="loss:k3,q:0.1,qa:0.98,pa:0.02,qb:0.02,pb:0.98",
    crowded=(
        *("", "q:token", "q:least", "loss:k3,q:0.1,qa:0.98,pa:0.02,qb:0.02,pb:0.98"),
        *("q:0.98,p:0.98,qa:0.02,pa:0.98", "q:0.02,qb:0.98,pb:0.02", "loss:k3,p:0.02,q:0.98"),
        *("q:token,qa:0.2,qb:0.5", "loss:kl,q:least,qa:0.98,pa:0.02,p:0.02,qb:0.49,pb:0.51"),
    ),
    model={"loss": "kl", "q": "least"},
)

DICTIONARY = Case(
    name="dictionary",
    make=explorables.dictionary,
    says=(
        "Its mean is KL(q‖p), and no sample is below 0",
        "As a loss it follows KL(p‖q).",
        "worth 0.718, and its score has the weight −1.72, against −1.00 for KL(q‖p)",
    ),
    plots=3,
    picture="Left: the value of r - 1 - l",
    caption="the gradient is that of KL(p‖q)",
    stops=(
        *("example", "formula", "as loss", "as reward", "as both", "l", "log r of the sample"),
        *("Reset", "Copy link"),
    ),
    keys=(
        (handle_selector("log r of the sample"), "ArrowLeft"),
        (handle_selector("log r of the sample"), "PageDown"),
        (slider("l"), "ArrowRight"),
        (".control-example select", "ArrowDown"),
        ("button:text('as reward')", "Enter"),
    ),
    keyed="formula:abs(l),usage:reward,l:0.5",
    mouse=Drag(handle_selector("log r of the sample"), -100, -1.4, -0.8),
    finger=Drag(handle_selector("log r of the sample"), -48, -0.3, 0.3),
    again="as reward",
    change=(
        (".control-formula input", "clamp(l, -2, 2)^2/2"),
        (slider("l"), "-2.5"),
        ("button:text('as both')", ""),
    ),
    changed="formula:clamp(l;-2;2)^2/2,usage:both,l:-2.5",
    hostile="formula:constructor(l),usage:metric,l:x",
    beyond=(
        "formula:max(l;0)/0*0,usage:both,l:1e300",
        {"formula": "max(l, 0)/0*0", "usage": "both", "l": 3},
    ),
    full="formula:clamp(k3;-2;2),usage:reward,l:0.5",
    crowded=(
        *("", "formula:l^2/2", "formula:-l,l:3", "formula:-l,l:-3"),
        *("formula:clamp(k3;-10;10),l:2.8", "formula:clamp(k3;0;1.5),l:-1"),
        *("formula:max(l;0),l:-1.5", "formula:clamp(l;-0.5;0.5),l:0", "formula:exp(5*l),l:-3"),
        *("formula:1e7*k3,usage:reward", "formula:log(l),l:-1", "formula:0*l,usage:both"),
        "formula:detach(clamp(0.3*r^2-2*sqrt(r)+abs(l)/4;-10;1.5)-k2)+k2/3,usage:both,l:-3",
    ),
    model={"formula": "abs(l)", "usage": "reward"},
)

CASES = (SIMPLEX_FLOW, TWO_GAUSSIANS, TANGENT_LINE, VOCABULARY, PREFIXES, DICTIONARY)
