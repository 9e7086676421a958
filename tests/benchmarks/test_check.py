"""What counts as the same output."""

import pytest
import torch

from benchmarks.check import bound_share, relative_error


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


def test_share_is_of_each_elements_own_bound():
    reference = torch.tensor([1.0, 100.0])
    bound = torch.tensor([0.5, 50.0])
    assert bound_share(torch.tensor([1.25, 101.0]), reference, bound) == pytest.approx(0.5)
    assert bound_share(torch.tensor([1.0, 160.0]), reference, bound) == pytest.approx(1.2)


def test_a_bound_of_zero_allows_equality_alone():
    reference, bound = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])
    assert bound_share(torch.tensor([0.0, 1.5]), reference, bound) == pytest.approx(0.5)
    assert bound_share(torch.tensor([1e-30, 1.0]), reference, bound) == float("inf")


def test_nan_is_no_small_share():
    assert bound_share(torch.tensor([float("nan")]), torch.tensor([1.0]), torch.tensor([1.0])) == float("inf")


def test_a_bound_of_another_shape_is_an_error():
    with pytest.raises(ValueError, match=r"bound has shapes \[\(2, 1\)\]"):
        bound_share(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 1))
