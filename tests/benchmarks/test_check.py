"""What counts as the same output."""

import pytest
import torch

from benchmarks.check import relative_error


def test_equal_outputs_have_no_error():
    x = torch.randn(5, 3)
    assert relative_error((x, x[0]), [x.double(), x[0].double()]) == 0


def test_error_is_relative_to_the_element_plus_the_rms():
    reference = torch.tensor([3.0, 4.0])  # rms sqrt(12.5)
    assert relative_error(torch.tensor([3.0, 5.0]), reference) == pytest.approx(1 / (4 + 12.5**0.5))


def test_a_wrong_small_element_is_seen_beside_a_large_one():
    reference = torch.cat([torch.ones(999), torch.tensor([10.0])])
    wrong = reference.clone()
    wrong[0] = 0.5
    assert relative_error(wrong, reference) > 0.2


@pytest.mark.parametrize(
    "out, reference",
    [
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        ((torch.zeros(2),), (torch.zeros(2), torch.zeros(2))),
        (torch.tensor([float("nan")]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([float("nan")])),
        (torch.tensor([float("inf")]), torch.tensor([float("-inf")])),
        (torch.tensor([float("inf")]), torch.tensor([float("nan")])),
        (torch.tensor([1e-30]), torch.tensor([0.0])),
    ],
)
def test_shape_nan_inf_and_noise_on_zero_are_infinite_errors(out, reference):
    assert relative_error(out, reference) == float("inf")


def test_nan_and_inf_in_the_same_places_are_equal():
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 2.0])
    assert relative_error(x, x.double()) == 0


def test_a_runner_that_returns_no_tensor_is_an_error():
    with pytest.raises(TypeError, match="got float"):
        relative_error([1.0], [torch.tensor(1.0)])
