"""Two language models of your own, as pairs (q, p): one at each position of your texts.

Causal language models of Hugging Face's ``transformers``, which only models given by name need:
``pip install "kllab[models]"``.  Both read the same prefix; q is the next-token law of ``model_q``,
p that of ``model_p``, log r = log p − log q, in nats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kllab import exact, pairs
from kllab.checks import InputError, as_count

CHUNK = 2**22
"""Logits of each model that are in float64 at a time, and at most one position's more."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two models over texts, as :func:`compare` returns it: N positions, text after text.

    ``text``, ``position``: (N,) which text, and the place in it of the token that came; the models
    have read what stands before.  ``tokens``: (N,) that token.  ``logprob``, ``ref_logprob``:
    (N,) float64, its log q and log p.  ``left_out``: (N, 2) the mass that q and p put on logits
    beyond the vocabulary.  ``statistics``: (N,) each divergence between the two laws and the
    moments of k1, k2, k3 under x ~ q, see :func:`kllab.exact.statistics`.  All on the CPU.
    ``laws``: what :meth:`pair` calls.
    """

    text: Tensor
    position: Tensor
    tokens: Tensor
    logprob: Tensor
    ref_logprob: Tensor
    left_out: Tensor
    statistics: exact.Statistics
    laws: Callable[[int, int], list[Tensor]]

    @property
    def log_r(self) -> Tensor:
        """log p − log q of the tokens that came, (N,); 0 where both are −inf."""
        same = self.ref_logprob == self.logprob
        return torch.where(same, 0.0, self.ref_logprob - self.logprob)

    def pair(self, i: int) -> pairs.CategoricalPair:
        """The two next-token laws at one of the N positions; both models read its prefix again.

        Raises ``InputError`` unless 0 <= i < N.
        """
        i = as_count("i", i, most=len(self.tokens) - 1)
        laws = self.laws(int(self.text[i]), int(self.position[i]))
        return pairs.categorical(*laws, name=f"models(position={i})")

    def to_frame(self):
        """A pandas ``DataFrame``, one row per position."""
        import pandas as pd

        names = ("text", "position", "tokens", "logprob", "ref_logprob", "log_r")
        columns = {name: getattr(self, name) for name in names}
        columns |= {name: self.statistics[name] for name in ("kl_qp", "kl_pq")}
        for name in ("k1", "k2", "k3"):
            columns[f"{name}_mean"] = self.statistics[name].mean
            columns[f"{name}_sd"] = self.statistics[name].variance.sqrt()
        return pd.DataFrame({name: column.numpy() for name, column in columns.items()})


def compare(
    model_q, model_p, texts, *, tokenizer=None, device=None, max_length: int = 512
) -> Comparison:
    """The next-token laws of two causal language models at each position of some texts.

    Parameters
    ----------
    model_q, model_p : models, or names or folders that ``transformers`` loads; q is sampled.
    texts : strings, or sequences of token ids, or what a tokenizer returned for a batch, padded on
        either side.  The first token of a text is read and not predicted, so n tokens give n − 1
        positions.  Whether a BOS token leads is the tokenizer's choice.
    tokenizer : of both models.  By default each model given by name has its own, and these must
        agree: on the id of each token, and on the tokens of these texts.
    device : where both models are moved to.  By default a model stays where it is, and one given by
        name runs on the CPU.
    max_length : how many tokens of a text are read.

    The vocabulary ends at the tokenizer's largest id.  Many models have more logits, to fill a
    round number: these are dropped, the others normalised, and ``left_out`` says what mass that
    took.  Without a tokenizer all logits count, and both models must have as many.

    Models run in evaluation mode and their own precision, one text at a time and without padding;
    logits are upcast to float64, and each module's mode is put back.  Beyond the models, memory is
    that of both models' logits for one text.

    Raises
    ------
    InputError : for two vocabularies or tokenizers, a string without a tokenizer, ids that are not
        in the vocabulary, texts all shorter than two tokens, or logits that are NaN or +inf.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> small = {"vocab_size": 50, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    >>> config = GPT2Config(**small, bos_token_id=0, eos_token_id=0)
    >>> result = compare(GPT2LMHeadModel(config), GPT2LMHeadModel(config), [[3, 14, 15], [2, 6]])
    >>> result.text.tolist(), result.position.tolist(), result.tokens.tolist()
    ([0, 0, 1], [1, 2, 1], [14, 15, 6])
    >>> result.statistics.k3.mean.allclose(result.statistics.kl_qp)
    True
    >>> result.pair(2)
    CategoricalPair('models(position=2)', V=50)
    """
    max_length = as_count("max_length", max_length, least=2)
    named = [m for m in (model_q, model_p) if isinstance(m, (str, os.PathLike))]
    tokenizers = [_loaded("AutoTokenizer", m) for m in named] if tokenizer is None else [tokenizer]
    texts, V = _tokenized([texts] if isinstance(texts, str) else texts, tokenizers)
    models = [_loaded("AutoModelForCausalLM", m) if m in named else m for m in (model_q, model_p)]
    models = models if device is None else [model.to(device) for model in models]
    q, p = (model.get_input_embeddings().weight.shape[0] for model in models)
    if min(q, p) < (V or max(q, p)):
        raise InputError("model_q, model_p", f"logits for the same {V or q} tokens", f"{q} and {p}")
    V = V or q
    rows = [_checked_ids(ids, V)[:max_length] for ids in texts]
    if not any(len(ids) > 1 for ids in rows):
        raise InputError("texts", "a text of two tokens or more", "none")
    pieces = (piece for text, ids in enumerate(rows) for piece in _pieces(models, text, ids, V))

    def laws(text: int, position: int) -> list[Tensor]:
        logits = _logits(models, rows[text][:position])
        return [x[-1, :V].cpu().double().log_softmax(-1) for x in logits]

    return Comparison(*map(_joined, zip(*pieces, strict=True)), laws)


def _loaded(kind: str, name):
    """``transformers`` is imported where something is loaded, and only there."""
    import transformers

    return getattr(transformers, kind).from_pretrained(name)


def _tokenized(texts, tokenizers: list) -> tuple[list, int | None]:
    """The ids of each text, without padding, and how many ids there are, where that is known."""
    if isinstance(texts, Mapping):
        batch = zip(texts["input_ids"], texts["attention_mask"], strict=True)
        texts = [torch.as_tensor(ids)[torch.as_tensor(keep) == 1] for ids, keep in batch]
    texts = list(texts)
    if not tokenizers:
        if any(isinstance(text, str) for text in texts):
            raise InputError("tokenizer", "one, for texts that are strings", "None")
        return texts, None
    ids = [[t(x)["input_ids"] if isinstance(x, str) else x for x in texts] for t in tokenizers]
    known = [t.get_vocab() for t in tokenizers]
    differ = [token for token, _ in sorted(known[0].items() ^ known[-1].items())]
    both = zip(texts, ids[0], ids[-1], strict=True)
    differ += [text for text, a, b in both if isinstance(text, str) and a != b]
    if differ:
        raise InputError("model_p", "the tokenizer of model_q", f"other ids for {differ[0]!r:.60}")
    return ids[0], max(known[0].values()) + 1


def _checked_ids(ids, V: int) -> Tensor:
    """(n,) int64 from 0 to V − 1."""
    ids = torch.as_tensor(ids, device="cpu")
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    if ids.ndim != 1 or (len(ids) and not (whole and ((ids >= 0) & (ids < V)).all())):
        expected = f"strings, or token ids (n,) from 0 to {V - 1}"
        raise InputError("texts", expected, f"{ids.tolist()!s:.60}")
    return ids.long()


@torch.no_grad()
def _logits(models: list, ids: Tensor) -> list[Tensor]:
    """What each model says after each token of (n,): (n, V or more)."""
    with ExitStack() as stack:
        for module in (module for model in models for module in model.modules()):
            stack.callback(setattr, module, "training", module.training)
        batches = [(model.eval(), ids[None].to(model.device)) for model in models]
        return [m(input_ids=x, attention_mask=torch.ones_like(x)).logits[0] for m, x in batches]


def _pieces(models: list, text: int, ids: Tensor, V: int) -> Iterator[tuple]:
    """The fields of a comparison up to ``statistics``, for one stretch of a text after another."""
    if len(ids) > 1:
        axes = torch.arange(1, len(ids)), *_logits(models, ids[:-1])
        for at, *logits in zip(*(x.split(CHUNK // V + 1) for x in axes), strict=True):
            yield torch.full_like(at, text), at, ids[at], *_measured(logits, ids[at], V)


def _measured(logits: list[Tensor], tokens: Tensor, V: int) -> tuple:
    """What the two laws, (n, V or more) logits each, say of the tokens (n,) and of each other."""
    home = logits[0].device if logits[0].is_cuda else "cpu"  # elsewhere there may be no float64
    wide = [x.to(home, torch.float64).log_softmax(-1) for x in logits]
    if any(x.isnan().any() for x in wide):
        raise InputError("model_q, model_p", "logits without NaN and +inf", "some that are")
    laws = [x[:, :V].log_softmax(-1) for x in wide]
    came = [x.gather(-1, tokens.to(home)[:, None])[:, 0] for x in laws]
    left_out = torch.stack([x[:, V:].exp().sum(-1) for x in wide], -1)
    return *came, left_out, exact.statistics(*laws)


def _joined(parts: Sequence):
    """One result from those of the pieces, a dataclass field by field."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).cpu()
    of = type(parts[0])
    return of(*(_joined([getattr(part, f.name) for part in parts]) for f in fields(of)))
