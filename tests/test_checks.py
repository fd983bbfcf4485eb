"""Every error names the argument, what was expected and what came."""

import math

import numpy as np
import pytest
import torch

from kllab.checks import (
    InputError,
    as_count,
    as_generator,
    as_log,
    as_log_probs,
    as_number,
    as_shape,
    same_vocabulary,
)

HALF = math.log(0.5)


def refused(call, argument, expected, received):
    with pytest.raises(ValueError, match=argument) as caught:
        call()
    error = caught.value
    assert isinstance(error, InputError)
    assert error.argument == argument
    assert expected in error.expected
    assert received in error.received
    assert str(error) == f"{argument}: expected {error.expected}, got {error.received}"


@pytest.mark.parametrize(
    ("value", "expected", "received"),
    [
        (torch.zeros(2, dtype=torch.float16), "upcast", "torch.float16"),
        (torch.zeros(2, dtype=torch.bfloat16), "upcast", "torch.bfloat16"),
        (torch.zeros(2, dtype=torch.int64), "float32 or float64", "torch.int64"),
        (torch.zeros(2, dtype=torch.bool), "float32 or float64", "torch.bool"),
        (torch.zeros(2, dtype=torch.complex64), "float32 or float64", "torch.complex64"),
        (np.zeros(2, dtype=np.float16), "upcast", "torch.float16"),
        (np.zeros(2, dtype=np.int32), "float32 or float64", "torch.int32"),
        (np.array(["a"], dtype=object), "a tensor, an array or floats", "ndarray"),
        (torch.tensor([0.0, math.nan, math.nan]), "no NaN", "2 NaN values"),
        ([0, -1], "a tensor, an array or floats", "integers"),
        (0, "a tensor, an array or floats", "0"),
        (True, "a tensor, an array or floats", "True"),
        (None, "a tensor, an array or floats", "None"),
        ("log", "a tensor, an array or floats", "str"),
        ([[0.5], [0.25, 0.25]], "a tensor, an array or floats", "list"),
    ],
)
def test_as_log_refuses(value, expected, received):
    refused(lambda: as_log("log_r", value), "log_r", expected, received)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, torch.float64),
        ([0.5, -math.inf], torch.float64),
        ([1, 0.5], torch.float64),
        (np.float32(0.5), torch.float32),
        (np.array([0.5, 0.25]), torch.float64),
        (torch.tensor([0.5]), torch.float32),
    ],
)
def test_as_log_accepts_floats_and_keeps_their_dtype(value, dtype):
    tensor = as_log("log_r", value)
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(value, dtype=tensor.numpy().dtype))


def test_as_log_reads_a_reversed_view():
    assert as_log("log_r", np.array([1.0, 2.0, 3.0])[::-1]).tolist() == [3.0, 2.0, 1.0]


def test_as_log_keeps_the_graph():
    leaf = torch.zeros(2, requires_grad=True)
    assert as_log("log_r", leaf) is leaf


@pytest.mark.parametrize(
    ("value", "expected", "received"),
    [
        (torch.tensor(0.0), "(..., V)", "shape ()"),
        (torch.zeros(3, 0), "(..., V)", "shape (3, 0)"),
        (torch.tensor([0.5, 0.5]), "normalised", "|logsumexp| = 1.19"),
        (torch.tensor([-math.inf, -math.inf]), "normalised", "|logsumexp| = inf"),
        (torch.tensor([math.inf, 0.0]), "normalised", "|logsumexp| = inf"),
        (torch.tensor([[HALF, HALF], [HALF, 0.0]]), "normalised", "|logsumexp| = 0.405"),
    ],
)
def test_as_log_probs_refuses(value, expected, received):
    refused(lambda: as_log_probs("log_q", value), "log_q", expected, received)


@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float64, 1e-6), (torch.float32, 1e-3)], ids=["f64", "f32"]
)
def test_as_log_probs_tolerance(dtype, within):
    exact = torch.tensor([HALF, HALF], dtype=torch.float64)
    as_log_probs("log_q", (exact + 0.9 * within).to(dtype))
    as_log_probs("log_q", (exact - 0.9 * within).to(dtype))
    for shift in (1.1 * within, -1.1 * within):
        with pytest.raises(InputError, match=f"<= {within:g}"):
            as_log_probs("log_q", (exact + shift).to(dtype))


def test_as_log_probs_accepts_an_empty_batch_and_minus_infinity():
    assert as_log_probs("log_q", torch.zeros(0, 5)).shape == (0, 5)
    assert as_log_probs("log_q", [0.0, -math.inf]).tolist() == [0.0, -math.inf]


def test_same_vocabulary_broadcasts_and_refuses():
    log_q, log_p = same_vocabulary(torch.zeros(2, 1, 3), torch.zeros(4, 3))
    assert log_q.shape == log_p.shape == (2, 4, 3)
    refused(
        lambda: same_vocabulary(torch.zeros(3), torch.zeros(4)), "log_p", "3 tokens", "4 tokens"
    )
    refused(  # one token does not stretch over a vocabulary
        lambda: same_vocabulary(torch.zeros(3), torch.zeros(1)), "log_p", "3 tokens", "1 tokens"
    )
    refused(
        lambda: same_vocabulary(torch.zeros(2, 3), torch.zeros(4, 3)),
        "log_p",
        "broadcasts with (2, 3)",
        "shape (4, 3)",
    )
    refused(
        lambda: same_vocabulary(torch.zeros(3), torch.zeros(3, device="meta")),
        "log_p",
        "device cpu",
        "meta",
    )


@pytest.mark.parametrize(
    ("value", "bounds", "expected", "received"),
    [
        (math.nan, {}, "a finite number", "nan"),
        (math.inf, {}, "a finite number", "inf"),
        (-math.inf, {}, "a finite number", "-inf"),
        (0.0, {"above": 0.0}, "above 0", "0.0"),
        (1.5, {"above": 0.0, "at_most": 1.0}, "above 0 and at most 1", "1.5"),
        ("one", {}, "a finite number", "str"),
        (None, {}, "a finite number", "None"),
        (torch.zeros(2), {}, "a finite number", "Tensor"),
        (10**400, {}, "a finite number", "1000"),
    ],
)
def test_as_number_refuses(value, bounds, expected, received):
    refused(lambda: as_number("tau", value, **bounds), "tau", expected, received)


@pytest.mark.parametrize("value", [1, 1.0, np.float64(1.0), torch.tensor(1.0)])
def test_as_number_accepts(value):
    number = as_number("tau", value, above=0.0, at_most=1.0)
    assert type(number) is float
    assert number == 1.0


@pytest.mark.parametrize(
    ("value", "bounds", "expected", "received"),
    [
        (0, {"least": 1}, "at least 1", "0"),
        (6, {"least": 1, "most": 5}, "at least 1 and at most 5", "6"),
        (1.0, {}, "a whole number", "float"),
        (True, {}, "a whole number", "True"),
        (None, {}, "a whole number", "None"),
    ],
)
def test_as_count_refuses(value, bounds, expected, received):
    refused(lambda: as_count("k", value, **bounds), "k", expected, received)


def test_as_count_accepts_its_bounds():
    assert [as_count("k", k, least=1, most=5) for k in (1, np.int64(5))] == [1, 5]


@pytest.mark.parametrize("value", [-1, (2, -1), 1.5, "ab", (2, 1.0), None, torch.tensor([2, 3])])
def test_as_shape_refuses(value):
    refused(lambda: as_shape("shape", value), "shape", "whole numbers >= 0", repr(value))


def test_as_shape_accepts():
    assert as_shape("shape", [2, 0]) == (2, 0)
    assert as_shape("shape", torch.Size([4])) == (4,)
    assert as_shape("shape", np.int64(3)) == (3,)


@pytest.mark.parametrize(("value", "received"), [(0, "0"), (None, "None"), ("seed", "str")])
def test_as_generator_refuses(value, received):
    refused(lambda: as_generator("generator", value), "generator", "a torch.Generator", received)
