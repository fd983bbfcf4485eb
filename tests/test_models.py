"""models.compare against the models' own logits of one text at a time, and sums written here.

Models are tiny and random, saved to a folder and loaded from there; nothing opens a connection.
"""

import os
import socket
import subprocess
import sys
import weakref
from typing import ClassVar

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is first imported

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from kllab import models
from kllab.checks import InputError

WORDS = ("<unk>", "<s>", "<pad>", "the", "a", "cat", "dog", "mat", "sat", "ran", "on", "and")
V = len(WORDS)
TEXTS = ["the cat sat on the mat", "a dog ran", "the dog and a cat ran and sat on a mat"]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Nothing may look up or call another machine, not even to catch the error."""
    tried = []

    def refuse(*arguments, **_):
        tried.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not tried


def gpt2(seed: int, *, vocabulary: int = V, dropout: float = 0.0, kind=GPT2LMHeadModel):
    torch.manual_seed(seed)
    shape = {"n_positions": 32, "n_embd": 8, "n_layer": 2, "n_head": 2, "initializer_range": 1.0}
    shape |= {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    config = GPT2Config(vocab_size=vocabulary, **shape, bos_token_id=1, eos_token_id=1)
    return kind(config).double().eval()


def llama(seed: int, *, vocabulary: int = V):
    torch.manual_seed(seed)
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "max_position_embeddings": 32, "initializer_range": 1.0}
    config = LlamaConfig(vocab_size=vocabulary, **shape, bos_token_id=1, eos_token_id=1)
    return LlamaForCausalLM(config).double().eval()


def word_tokenizer(words=WORDS, *, lower: bool = False, bos: bool = False):
    made = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if lower:
        made.normalizer = normalizers.Lowercase()
    if bos:
        made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<pad>")


def saved(folder, model, tokenizer=None) -> str:
    model.save_pretrained(folder)
    (tokenizer or word_tokenizer()).save_pretrained(folder)
    return str(folder)


def words_to_ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def law(model, prefix: list[int], size: int = V) -> torch.Tensor:
    """Log-probabilities of the token after a prefix, the model run on that prefix alone."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prefix])).logits[0, -1, :size].double()
    return logits - logits.max() - (logits - logits.max()).exp().sum().log()


def expected(model_q, model_p, texts: list[list[int]]) -> dict[str, list[float]]:
    """Each column of the table by sums over the vocabulary, a prefix at a time."""
    rows = []
    for text, ids in enumerate(texts):
        for at in range(1, len(ids)):
            log_q, log_p = law(model_q, ids[:at]), law(model_p, ids[:at])
            q, log_r = log_q.exp(), log_p - log_q
            row = {"text": text, "position": at, "tokens": ids[at]}
            row |= {"logprob": log_q[ids[at]], "ref_logprob": log_p[ids[at]]}
            row |= {"log_r": log_r[ids[at]], "kl_qp": -(q * log_r).sum()}
            row["kl_pq"] = (log_p.exp() * log_r).sum()
            for name, k in (("k1", -log_r), ("k2", log_r**2 / 2), ("k3", log_r.exp() - 1 - log_r)):
                mean = (q * k).sum()
                row |= {f"{name}_mean": mean, f"{name}_sd": (q * (k - mean) ** 2).sum().sqrt()}
            rows.append({name: float(value) for name, value in row.items()})
    return {name: [row[name] for row in rows] for name in rows[0]}


def assert_agrees(result, want: dict[str, list[float]], *, rtol=1e-9, atol=1e-11):
    frame = result.to_frame()
    assert list(frame) == list(want)
    for name, values in want.items():
        got, values = (torch.tensor(list(x), dtype=torch.float64) for x in (frame[name], values))
        torch.testing.assert_close(got, values, rtol=rtol, atol=atol, msg=lambda m, n=name: n + m)


KINDS = {"gpt2": (gpt2, gpt2), "llama": (llama, llama), "mixed": (gpt2, llama)}


@pytest.fixture(params=KINDS)
def two(request):
    """Two models of float64, so that runs over a prefix and over a text agree to many digits."""
    return tuple(make(seed) for seed, make in enumerate(KINDS[request.param]))


IDS = [words_to_ids(text) for text in TEXTS]


# --- values -------------------------------------------------------------------------------------


def test_each_column_is_what_the_models_say_of_one_prefix_at_a_time(two):
    want = expected(*two, IDS)
    assert min(want["kl_qp"]) > 0.01
    assert_agrees(models.compare(*two, IDS), want)


def test_folders_and_strings(two, tmp_path):
    paths = [saved(tmp_path / name, model) for name, model in zip("qp", two, strict=True)]
    want = expected(*(AutoModelForCausalLM.from_pretrained(path) for path in paths), IDS)
    # Loaded in float32 by some versions, whatever was saved.
    assert_agrees(models.compare(*paths, TEXTS), want, rtol=2e-3, atol=2e-5)
    one_by_name = models.compare(two[0], tmp_path / "p", TEXTS)
    assert_agrees(one_by_name, want, rtol=2e-3, atol=2e-5)


def test_objects_with_a_tokenizer(two):
    result = models.compare(*two, TEXTS, tokenizer=word_tokenizer())
    assert_agrees(result, expected(*two, IDS))


def test_every_divergence_and_float64(two):
    result = models.compare(*two, IDS)
    for i, (text, at) in enumerate(zip(result.text, result.position, strict=True)):
        q, p = (law(model, IDS[text][:at]).exp() for model in two)
        assert float(result.statistics.tv[i]) == pytest.approx(float((q - p).abs().sum() / 2))
        assert float(result.statistics.chi2_pq[i]) == pytest.approx(float((p**2 / q).sum()) - 1)
    assert {result.logprob.dtype, result.ref_logprob.dtype, result.log_r.dtype} == {torch.float64}
    assert result.statistics.kl_qp.shape == result.tokens.shape == (sum(map(len, IDS)) - 3,)


def test_the_same_weights_differ_by_exactly_nothing(tmp_path):
    folder = saved(tmp_path, gpt2(0).float())
    model = AutoModelForCausalLM.from_pretrained(folder)
    for other in (model, folder):
        result = models.compare(model, other, TEXTS, tokenizer=word_tokenizer())
        stats = result.statistics
        for value in (stats.kl_qp, stats.kl_pq, stats.tv, stats.k3.variance, result.log_r):
            assert value.tolist() == [0.0] * len(result.tokens)


def test_a_pair_is_the_two_laws_at_its_position(two):
    result = models.compare(*two, IDS)
    for i in (0, 6, len(result.tokens) - 1):
        pair = result.pair(i)
        prefix = IDS[result.text[i]][: result.position[i]]
        torch.testing.assert_close(pair.log_q, law(two[0], prefix))
        torch.testing.assert_close(pair.log_p, law(two[1], prefix))
        kl = float((pair.log_q.exp() * -pair.log_r).sum())
        assert kl == pytest.approx(float(result.statistics.kl_qp[i]), rel=1e-9)
    for i in (-1, len(result.tokens), 0.0):
        with pytest.raises(InputError, match="i: expected a whole number"):
            result.pair(i)


# --- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tensors", ["pt", None])
def test_padding_changes_nothing(side, tensors, two):
    tokenizer = word_tokenizer()
    tokenizer.padding_side = side
    batch = tokenizer(TEXTS, padding=True, return_tensors=tensors)
    assert len(batch["input_ids"][1]) > len(IDS[1])
    assert_agrees(models.compare(*two, batch), models.compare(*two, IDS).to_frame(), rtol=0, atol=0)


def test_a_batch_of_ragged_texts_is_its_texts_one_by_one(two):
    together = models.compare(*two, IDS)
    for text, ids in enumerate(IDS):
        alone = models.compare(*two, [ids])
        rows = together.text == text
        assert together.logprob[rows].equal(alone.logprob)
        assert together.statistics.k3.variance[rows].equal(alone.statistics.k3.variance)


def test_texts_too_short_for_a_position_are_left_out(two):
    result = models.compare(*two, [[3], [], IDS[0], torch.tensor([4]), np.array(IDS[1])])
    assert result.text.tolist() == [2] * 5 + [4] * 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_ids_of_any_integer_kind(dtype, two):
    result = models.compare(*two, [torch.tensor(ids, dtype=dtype) for ids in IDS])
    assert result.logprob.equal(models.compare(*two, IDS).logprob)


def test_one_string_is_one_text_and_a_generator_is_many(two):
    one = models.compare(*two, TEXTS[0], tokenizer=word_tokenizer())
    assert one.tokens.tolist() == IDS[0][1:]
    many = models.compare(*two, (text for text in TEXTS), tokenizer=word_tokenizer())
    assert many.tokens.tolist() == [token for ids in IDS for token in ids[1:]]
    assert models.compare(*two, torch.tensor([[3, 4], [5, 6]])).tokens.tolist() == [4, 6]


def test_a_leading_bos_makes_the_first_word_a_prediction(two):
    result = models.compare(*two, TEXTS, tokenizer=word_tokenizer(bos=True))
    assert result.tokens.tolist() == [token for ids in IDS for token in ids]
    assert_agrees(result, expected(*two, [[1, *ids] for ids in IDS]))


def test_max_length_is_what_is_read(two):
    result = models.compare(*two, IDS, max_length=3)
    assert_agrees(result, expected(*two, [ids[:3] for ids in IDS]))


# --- vocabularies -------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(V + 5, V), (V, V + 3), (V + 2, V + 7)])
def test_logits_beyond_the_tokenizer_are_dropped_and_the_others_normalised(sizes):
    two = gpt2(0, vocabulary=sizes[0]), llama(1, vocabulary=sizes[1])
    result = models.compare(*two, TEXTS, tokenizer=word_tokenizer())
    assert_agrees(result, expected(*two, IDS))
    assert result.pair(0).V == V
    for side, (model, size) in enumerate(zip(two, sizes, strict=True)):
        for i, (text, at) in enumerate(zip(result.text, result.position, strict=True)):
            mass = float(law(model, IDS[text][:at], size)[V:].exp().sum())
            assert float(result.left_out[i, side]) == pytest.approx(mass, rel=1e-9, abs=0)
            assert (mass > 0) == (size > V)


def test_without_a_tokenizer_every_logit_counts():
    two = gpt2(0, vocabulary=V + 5), gpt2(1, vocabulary=V + 5)
    result = models.compare(*two, [[V + 4, 0, V + 4]])
    assert result.pair(0).V == V + 5
    assert result.left_out.tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize("sizes", [(V, V + 1), (V + 1, V)])
def test_two_vocabularies_are_refused(sizes):
    two = (gpt2(0, vocabulary=size) for size in sizes)
    with pytest.raises(InputError, match=rf"tokens, got {sizes[0]} and {sizes[1]}"):
        models.compare(*two, IDS)


@pytest.mark.parametrize("sizes", [(V - 1, V), (V, V - 1)])
def test_a_model_without_logits_for_all_tokens_is_refused(sizes):
    two = (gpt2(0, vocabulary=size) for size in sizes)
    with pytest.raises(InputError, match=rf"same {V} tokens, got {sizes[0]} and {sizes[1]}"):
        models.compare(*two, ["the cat"], tokenizer=word_tokenizer())


def test_the_vocabulary_reaches_to_the_largest_id():
    """Ids may have gaps, so their number is not enough."""
    vocabulary = {"<unk>": 0, "the": 1, "last": V - 1}
    made = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    result = models.compare(gpt2(0), gpt2(1), ["the last"], tokenizer=tokenizer)
    assert (result.pair(0).V, result.tokens.tolist()) == (V, [V - 1])


OTHER = (*WORDS[:-1], "or")


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (word_tokenizer(OTHER), "'and'"),
        (word_tokenizer((*WORDS[:4], WORDS[5], WORDS[4], *WORDS[6:])), "'a'"),
        (word_tokenizer(lower=True), "'the Cat sat'"),
    ],
)
def test_two_tokenizers_are_refused_with_what_differs(other, named, tmp_path):
    paths = saved(tmp_path / "q", gpt2(0)), saved(tmp_path / "p", gpt2(1), other)
    with pytest.raises(InputError, match=f"model_p.*tokenizer of model_q.*other ids for {named}"):
        models.compare(*paths, ["the cat", "the Cat sat"])
    # Whoever knows better says which one to take.
    assert len(models.compare(*paths, ["the Cat"], tokenizer=word_tokenizer()).tokens) == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([[0, V]], rf"token ids \(n,\) from 0 to {V - 1}, got \[0, {V}\]"),
        ([[0, -1]], "got \\[0, -1\\]"),
        ([[0.0, 1.0]], "token ids"),
        ([torch.tensor([True, False])], "token ids"),
        ([[[0, 1]]], "token ids"),
        ([0, 1], "token ids"),
        ([], "two tokens or more, got none"),
        ([[1], [], [2]], "two tokens or more, got none"),
        (["the cat"], "tokenizer: expected one"),
        ("the cat", "tokenizer: expected one"),
    ],
)
def test_what_is_no_text_is_refused(texts, message):
    with pytest.raises(InputError, match=message):
        models.compare(gpt2(0), gpt2(1), texts)


@pytest.mark.parametrize("length", [1, 0, 2.5])
def test_a_length_without_a_position_is_refused(length):
    with pytest.raises(InputError, match="max_length: expected a whole number, at least 2"):
        models.compare(gpt2(0), gpt2(1), IDS, max_length=length)


# --- how models are run -------------------------------------------------------------------------


def test_half_precision_is_upcast_after_the_logits():
    q, p = gpt2(0).bfloat16(), gpt2(1).float()
    result = models.compare(q, p, IDS)
    i = 0
    for ids in IDS:
        with torch.no_grad():
            logits = [m(input_ids=torch.tensor([ids[:-1]])).logits[0] for m in (q, p)]
        assert logits[0].dtype == torch.bfloat16
        for at, rows in enumerate(zip(*(x.double() for x in logits), strict=True), start=1):
            log_q, log_p = (row - row.exp().sum().log() for row in rows)
            assert float(result.logprob[i]) == pytest.approx(float(log_q[ids[at]]), rel=1e-12)
            kl = float((log_q.exp() * (log_q - log_p)).sum())
            assert float(result.statistics.kl_qp[i]) == pytest.approx(kl, rel=1e-10)
            i += 1


def test_dropout_is_off_and_each_module_keeps_its_mode():
    q, p = gpt2(0, dropout=0.5).train(), gpt2(1, dropout=0.5)
    q.transformer.h[0].eval()
    modes = [[module.training for module in model.modules()] for model in (q, p)]
    result = models.compare(q, p, IDS)
    result.pair(0)
    assert modes == [[module.training for module in model.modules()] for model in (q, p)]
    assert_agrees(result, expected(q.eval(), p, IDS))


def test_modes_come_back_after_an_error():
    class Fails(GPT2LMHeadModel):
        def forward(self, **_):
            assert not self.training
            raise RuntimeError("out of memory")

    q, p = gpt2(0).train(), gpt2(1, kind=Fails).train()
    with pytest.raises(RuntimeError, match="out of memory"):
        models.compare(q, p, IDS)
    assert all(module.training for model in (q, p) for module in model.modules())


def test_no_gradient_is_kept(two):
    result = models.compare(*two, IDS)
    pair = result.pair(0)
    for value in (result.logprob, result.statistics.kl_qp, pair.log_q, pair.log_p):
        assert not value.requires_grad
    assert all(parameter.grad is None for model in two for parameter in model.parameters())


def test_pieces_of_a_text_change_nothing(two, monkeypatch):
    whole = models.compare(*two, IDS).to_frame()
    for chunk in (1, 2 * V, 3 * V + 1):
        monkeypatch.setattr(models, "CHUNK", chunk)
        assert_agrees(models.compare(*two, IDS), whole, rtol=1e-12, atol=1e-13)


def test_only_one_text_has_its_logits_in_memory():
    made, alive = [], []

    class Watched(GPT2LMHeadModel):
        def forward(self, **inputs):
            alive.append(sum(array() is not None for array in made))
            out = super().forward(**inputs)
            memory = out.logits.numpy().copy()
            made.append(weakref.ref(memory))
            out.logits = torch.from_numpy(memory)
            return out

    models.compare(gpt2(0, kind=Watched), gpt2(1, kind=Watched), IDS)
    assert alive == [0, 1] * len(IDS)


def test_models_move_only_when_asked(monkeypatch):
    moved = []
    to = GPT2LMHeadModel.to
    q, p = gpt2(0), gpt2(1)
    monkeypatch.setattr(
        GPT2LMHeadModel, "to", lambda self, where: moved.append(where) or to(self, where)
    )
    models.compare(q, p, IDS)
    assert moved == []
    models.compare(q, p, IDS, device="cpu")
    assert moved == ["cpu", "cpu"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees(two):
    want = expected(*two, IDS)
    ids = [torch.tensor(row, device="cuda") for row in IDS]
    result = models.compare(two[0].cuda(), two[1], ids)  # p on another device
    assert_agrees(result, want)
    assert_agrees(models.compare(*two, IDS, device="cuda"), want)
    assert {result.logprob.device.type, result.pair(0).log_q.device.type} == {"cpu"}


# --- logits that are no numbers -----------------------------------------------------------------


class Edited(GPT2LMHeadModel):
    """A model whose logits of some tokens are what ``edit`` says."""

    edit: ClassVar[dict[int, float]] = {}

    def forward(self, **inputs):
        out = super().forward(**inputs)
        for token, value in self.edit.items():
            out.logits[..., token] = value
        return out


def edited(seed: int, edit: dict[int, float], **options):
    model = gpt2(seed, kind=Edited, **options)
    model.edit = edit
    return model


def test_tokens_that_a_model_never_gives():
    never = -float("inf")
    q, p = edited(0, {3: never, 4: never}), edited(1, {3: never, 5: never})
    result = models.compare(q, p, [[0, 3, 4, 5, 6]])
    assert result.log_r.tolist()[:3] == [0.0, float("inf"), never]
    assert result.log_r[3].isfinite()
    assert result.statistics.kl_qp.tolist() == [float("inf")] * 4
    assert not any(result.to_frame().isna().any())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("token", [2, V])
@pytest.mark.parametrize("side", [0, 1])
def test_nan_and_plus_infinity_are_refused(side, token, value):
    wide = {"vocabulary": V + 1}
    two = [gpt2(0, **wide), gpt2(1, **wide)]
    two[side] = edited(2, {token: value}, **wide)
    with pytest.raises(InputError, match=r"without NaN and \+inf"):
        models.compare(*two, TEXTS, tokenizer=word_tokenizer())


# --- installation -------------------------------------------------------------------------------


def test_objects_need_no_transformers_and_the_front_does_not_import_this():
    code = """
import sys, kllab
assert "kllab.models" not in sys.modules
sys.modules["transformers"] = None  # as where it is not installed
import kllab.models
try:
    kllab.models.compare("a", "b", ["text"])
except ImportError as error:
    print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "transformers\n"
