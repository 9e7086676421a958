"""What functions bring along: numbers that stay open, values that make another program, and nothing stale."""

from __future__ import annotations

import functools
import gc
import operator
import os
import random
import threading
import types
import weakref
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import (
    KindError,
    UnsupportedModError,
    create_block_mask,
    flex_attention,
    mask_mod,
    masks,
    score_mod,
    trace,
)
from torch_flexattn.closure import read

ZERO = torch.tensor(0, dtype=torch.int32)
INDEX = torch.arange(6, dtype=torch.int32)
WINDOW = 2
FLAG = True
CALLED = None


class Options:
    window = 2


def window_of(mask) -> int:
    """How many keys the last query sees: the window, of masks that are windows."""
    return int(mask_mod(mask)(ZERO, ZERO, INDEX[-1], INDEX).sum())


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Every function that is recorded."""
    trace.forget()
    seen: list[object] = []
    record = trace._record

    def counted(function, kind, closure):
        seen.append(function)
        return record(function, kind, closure)

    monkeypatch.setattr(trace, "_record", counted)
    yield seen
    trace.forget()


def in_cell(w: int):
    return lambda b, h, q, kv: q - kv < w


def in_default(w: int):
    return lambda b, h, q, kv, size=w: q - kv < size


def in_keyword_default(w: int):
    def near(b, h, q, kv, *, size=w):
        return q - kv < size

    return near


def in_partial(w: int):
    return functools.partial(lambda size, b, h, q, kv: q - kv < size, w)


def in_keyword_of_partial(w: int):
    return functools.partial(lambda b, h, q, kv, size: q - kv < size, size=w)


def in_inner_function(w: int):
    def near(q, kv):
        return q - kv < w

    return lambda b, h, q, kv: near(q, kv)


def in_deep_functions(w: int, depth: int = 12):
    if depth == 0:
        return in_cell(w)
    inner = in_deep_functions(w, depth - 1)
    return lambda b, h, q, kv: inner(b, h, q, kv)


def in_tuple(w: int):
    sizes = (7, (w, 1))
    return lambda b, h, q, kv: q - kv < sizes[1][0]


def in_list(w: int):
    sizes = [w]
    return lambda b, h, q, kv: q - kv < sizes[0]


class Bound:
    def __init__(self, unit: int) -> None:
        self.unit = unit

    def near(self, b, h, q, kv, size=2):
        return q - kv < size * self.unit


@pytest.mark.parametrize(
    "make",
    [
        in_cell,
        in_default,
        in_keyword_default,
        in_partial,
        in_keyword_of_partial,
        in_inner_function,
        in_deep_functions,
        in_tuple,
        in_list,
    ],
)
def test_another_number_is_no_other_program(make, recordings: list[object]) -> None:
    assert [window_of(make(w)) for w in (1, 2, 3, 5)] == [1, 2, 3, 5]
    assert len(recordings) == 1


def test_numbers_in_globals_stay_open(recordings: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    def nested(b, h, q, kv):
        near = lambda distance: distance < WINDOW  # noqa: E731
        return near(q - kv)

    for mask in (lambda b, h, q, kv: q - kv < WINDOW, nested):
        recordings.clear()
        monkeypatch.setitem(globals(), "WINDOW", 2)
        assert window_of(mask) == 2
        monkeypatch.setitem(globals(), "WINDOW", 4)
        assert window_of(mask) == 4
        assert len(recordings) == 1


def test_a_flag_that_changes_is_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = lambda b, h, q, kv: q - kv < (2 if FLAG else 5)  # noqa: E731
    assert window_of(mask) == 2
    monkeypatch.setitem(globals(), "FLAG", False)
    assert window_of(mask) == 5


def test_values_inside_objects_are_never_stale() -> None:
    @dataclass
    class Inner:
        window: int = 2

    @dataclass
    class Outer:
        inner: Inner

    class Slots:
        __slots__ = ("window",)

    class Property:
        base = 1

        @property
        def window(self):
            return self.base * 2

    slots, held, data, space = Slots(), Property(), Outer(Inner()), types.SimpleNamespace(window=2)
    table, module, array = {"window": 2, "deep": [{"w": 2}]}, types.ModuleType("settings"), np.array([2])
    slots.window, module.window = 2, 2
    cases = [
        (lambda b, h, q, kv: q - kv < slots.window, slots, "window", 4),
        (lambda b, h, q, kv: q - kv < held.window, held, "base", 2),
        (lambda b, h, q, kv: q - kv < data.inner.window, data.inner, "window", 4),
        (lambda b, h, q, kv: q - kv < space.window, space, "window", 4),
        (lambda b, h, q, kv: q - kv < module.window, module, "window", 4),
        (lambda b, h, q, kv: q - kv < Options.window, Options, "window", 4),
    ]
    for mask, owner, name, value in cases:
        before = getattr(owner, name)
        assert window_of(mask) == 2
        setattr(owner, name, value)
        assert window_of(mask) == 4
        setattr(owner, name, before)
        assert window_of(mask) == 2
    for mask, owner, key in (
        (lambda b, h, q, kv: q - kv < table["window"], table, "window"),
        (lambda b, h, q, kv: q - kv < table["deep"][0]["w"], table["deep"][0], "w"),
        (lambda b, h, q, kv: q - kv < int(array[0]), array, 0),
    ):
        assert window_of(mask) == 2
        owner[key] = 4
        assert window_of(mask) == 4


@pytest.mark.parametrize(
    "first, second, expected", [(operator.ge, operator.lt, [2, 4]), (torch.ge, torch.lt, [2, 4]), (max, min, [4, 2])]
)
def test_a_global_bound_to_another_function_of_a_library(first, second, expected, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "CALLED", first)
    if first is max:
        mask = lambda b, h, q, kv: q - kv < CALLED(2, 4)  # noqa: E731
    else:
        mask = lambda b, h, q, kv: CALLED(q - 4, kv)  # noqa: E731
    assert window_of(mask) == expected[0]
    monkeypatch.setitem(globals(), "CALLED", second)
    assert window_of(mask) == expected[1]


def test_a_global_that_hides_a_builtin_is_noticed(monkeypatch) -> None:
    mask = lambda b, h, q, kv: q - kv < max(2, 4)  # noqa: E731
    assert window_of(mask) == 4
    monkeypatch.setitem(globals(), "max", min)
    assert window_of(mask) == 2


def test_an_attribute_with_the_name_of_a_global_is_not_that_global() -> None:
    options = types.SimpleNamespace(random=3)
    assert window_of(lambda b, h, q, kv: q - kv < options.random) == 3


GENERATOR = random.Random(0)
NUMPY_GENERATOR = np.random.default_rng(0)
HOLDER = types.SimpleNamespace(inner=deque([2]))


def first_of(held):
    return lambda b, h, q, kv: q - kv < held[0]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (lambda b, h, q, kv: q - kv < random.random(), "the module random"),
        (lambda b, h, q, kv: q - kv < np.random.rand(), r"numpy\.random"),  # noqa: NPY002
        (lambda b, h, q, kv, draw=random.random: q - kv < draw(), "generator of random numbers"),
        (lambda b, h, q, kv, draw=random.randint: q - kv < draw(1, 3), "generator of random numbers"),
        (lambda b, h, q, kv: q - kv < GENERATOR.random(), "generator of random numbers"),
        (lambda b, h, q, kv: q - kv < NUMPY_GENERATOR.integers(3), "generator of random numbers"),
        (first_of(deque([2])), "type deque"),
        (first_of(bytearray([2])), "type bytearray"),
        (first_of(array("i", [2])), "type array"),
        (first_of([iter([2, 3])]), "type list_iterator"),
        (lambda b, h, q, kv: q - kv < HOLDER.inner[0], "type deque"),
        (lambda b, h, q, kv: q - kv < int(os.environ["WINDOW"]), r"os\.environ"),
        (lambda b, h, q, kv: q - kv < Options.__dict__["window"], "type mappingproxy"),
    ],
)
def test_what_nobody_can_watch_is_refused(mask, words: str) -> None:
    with pytest.raises(UnsupportedModError, match=rf"<lambda> \(test_closure.py:\d+\) reads .*{words}"):
        mask_mod(mask)


def test_what_is_not_read_may_be_anything() -> None:
    class Window:
        def __init__(self) -> None:
            self.window, self.history, self.random = 2, deque([1]), random.Random(0)

        def mask(self, b, h, q, kv):
            return q - kv < self.window + self.__dict__["window"] - 1

    assert window_of(Window().mask) == 3


def test_callable_objects_and_methods(recordings: list[object]) -> None:
    class Near:
        def __init__(self, window: int) -> None:
            self.window = window

        def __call__(self, b, h, q, kv):
            return self.inside(q - kv)

        def inside(self, distance):
            return (distance < self.window) & (distance < 10 * WINDOW)

    near = Near(2)
    assert window_of(near) == 2
    near.window = 3
    assert window_of(near) == 3
    bound = Bound(1)
    assert window_of(bound.near) == 2
    bound.unit = 2
    assert window_of(bound.near) == 4
    assert window_of(functools.partial(bound.near, size=1)) == 2
    before = len(recordings)
    near.window = 2
    assert window_of(near) == 2
    assert len(recordings) == before


def test_a_function_reached_in_two_ways() -> None:
    class Holder:
        pass

    def near(distance, size=2):
        return distance < size

    holder, last = Holder(), near
    holder.near = near
    mask = lambda b, h, q, kv: holder.near(q - kv) & last(q - kv)  # noqa: E731
    assert window_of(mask) == 2
    near.__defaults__ = (4,)
    assert window_of(mask) == 4


def test_modules_bring_their_parameters_and_attributes() -> None:
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.arange(6.0))
            self.register_buffer("shift", torch.tensor(10.0))
            self.factor = 2.0
            self.inner = nn.ParameterList([torch.ones(6)])

        def forward(self, score, b, h, q, kv):
            return (score + self.table[q] * self.factor + self.shift) * self.inner[0][kv]

    bias = Bias()
    mod = score_mod(bias)
    assert mod(torch.tensor(1.0), ZERO, ZERO, torch.tensor(3), torch.tensor(0)).item() == 17.0
    assert {id(c) for c in mod.captures} == {id(bias.table), id(bias.shift), id(bias.inner[0])}
    bias.factor = 3.0
    assert score_mod(bias)(torch.tensor(1.0), ZERO, ZERO, torch.tensor(3), torch.tensor(0)).item() == 20.0
    bias.table = nn.Parameter(torch.zeros(6))
    assert score_mod(bias)(torch.tensor(1.0), ZERO, ZERO, torch.tensor(3), torch.tensor(0)).item() == 11.0


def test_the_same_tensor_is_captured_once() -> None:
    table = torch.arange(6)
    alias, again = table, [table]
    mod = mask_mod(lambda b, h, q, kv: (table[q] >= alias[kv]) & (again[0][q] > 0))
    assert len(mod.captures) == 1
    assert mod.captures[0] is table


def test_control_flow_on_a_number_fixes_that_number_alone(recordings: list[object]) -> None:
    def make(levels: int, window: int):
        def mask(b, h, q, kv):
            seen = q - kv < window
            for _ in range(levels):
                seen = seen | (kv == 0)
            return seen

        return mask

    first, second, third = (mask_mod(make(2, w)) for w in (1, 2, 3))
    assert first.program is second.program is third.program
    assert [m.scalars for m in (first, second, third)] == [(1,), (2,), (3,)]
    assert len(recordings) == 1
    assert mask_mod(make(3, 1)).scalars == (1,)
    assert len(recordings) == 2
    assert window_of(make(0, 2)) == 2
    assert window_of(make(1, 2)) == 3


def test_integers_of_64_bits_are_another_program() -> None:
    make = lambda n: lambda b, h, q, kv: (q.long() * n > 2**33) & (kv >= 0)  # noqa: E731
    assert mask_mod(make(5)).program != mask_mod(make(2**33)).program
    mask = mask_mod(make(2**33))
    assert mask(ZERO, ZERO, INDEX, ZERO).tolist() == [False, False, True, True, True, True]
    big = 2**40
    assert mask_mod(lambda b, h, q, kv: q < big)(ZERO, ZERO, INDEX, ZERO).all()


def test_ints_and_floats_are_different_programs() -> None:
    make = lambda n: lambda s, b, h, q, kv: s + q // n  # noqa: E731
    assert score_mod(make(2)).program != score_mod(make(2.0)).program


def test_cells_that_are_rebound_and_lambdas_of_a_loop(recordings: list[object]) -> None:
    window = 2
    mask = lambda b, h, q, kv: q - kv < window  # noqa: E731
    assert window_of(mask) == 2
    window = 5
    assert window_of(mask) == 5
    assert [window_of(lambda b, h, q, kv, w=w: q - kv < w) for w in range(1, 5)] == [1, 2, 3, 4]
    assert len(recordings) == 2


def test_recursion_ends_and_follows_its_numbers() -> None:
    def count(b, h, q, kv, depth=2):
        return (q == kv) if depth == 0 else count(b, h, q, kv + 1, depth - 1) | (q == kv)

    assert window_of(count) == 3
    count.__defaults__ = (4,)
    assert window_of(count) == 5

    def even(q, n=2):
        return q >= 0 if n == 0 else odd(q, n - 1)

    def odd(q, n=1):
        return q < 0 if n == 0 else even(q, n - 1)

    assert mask_mod(lambda b, h, q, kv: even(q))(ZERO, ZERO, INDEX, ZERO).all()


def test_masks_used_inside_functions() -> None:
    near = masks.sliding_window(2)
    mask = lambda b, h, q, kv: near(b, h, q, kv) | (kv == 0)  # noqa: E731
    assert window_of(mask) == 3
    near = masks.sliding_window(3)
    assert window_of(mask) == 4


@pytest.mark.parametrize("combine", [theirs.and_masks, theirs.or_masks])
def test_masks_that_pytorch_combined(combine, recordings: list[object]) -> None:
    table = torch.tensor([True, False, True, True, False, True])
    pairs = [(in_cell(2), in_default(4)), (in_cell(3), in_default(5)), (in_cell(2), lambda b, h, q, kv: table[kv])]
    pairs.append((in_cell(2), masks.causal()))
    for pair in pairs:
        both = combine(*pair)
        found = mask_mod(both)(ZERO, ZERO, INDEX[:, None], INDEX)
        torch.testing.assert_close(found, both(ZERO, ZERO, INDEX[:, None], INDEX).expand(6, 6))
    assert len(recordings) == 4  # causal itself, and three kinds: other numbers are no other program


def test_sizes_that_are_read_are_part_of_the_program() -> None:
    make = lambda table: lambda b, h, q, kv: table[q % table.shape[0]] >= kv  # noqa: E731
    one, two, three = torch.full((4,), 2), torch.full((5,), 2), torch.full((4,), 1)
    programs = [mask_mod(make(t)).program for t in (one, two, three)]
    assert programs[0] != programs[1]
    assert programs[0] is programs[2]
    size = torch.Size([2, 3])
    assert window_of(lambda b, h, q, kv: q - kv < size[1]) == 3


def test_thousands_of_functions_leave_nothing_behind() -> None:
    class Held:
        def __call__(self, b, h, q, kv):
            return q >= kv

    first = Held()
    mask_mod(first)
    gone = weakref.ref(first)
    del first
    for number in range(trace.KEPT + 10):
        closure = read(lambda b, h, q, kv, name=str(number): q >= kv)
        with trace._lock:
            recipe = trace._Recipe(mask_mod(lambda b, h, q, kv: q >= kv).program, (), (), tuple(closure.held))
            trace._keep("mask", closure, frozenset(), recipe)
    gc.collect()
    assert len(trace._recipes) <= trace.KEPT
    assert len(trace._fixed) <= trace.KEPT
    assert gone() is None


def test_a_captured_tensor_is_not_kept_alive() -> None:
    table = torch.zeros(6)
    gone = weakref.ref(table)
    mask_mod(lambda b, h, q, kv: table[q] >= kv)
    table = None
    gc.collect()
    assert gone() is None


def test_threads_record_a_function_once(recordings: list[object]) -> None:
    results, errors = [], []

    def work(w: int) -> None:
        try:
            results.append(window_of(in_cell(w)) == w)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(1 + n % 5,)) for n in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert results == [True] * 12
    assert len(recordings) == 1


def branches(b, h, q, kv):
    if q > kv:
        return q == kv
    return q > kv


def takes_item(b, h, q, kv):
    return q.item() > 3


def uses_and(b, h, q, kv):
    return q > kv and kv > 2


def draws(b, h, q, kv):
    return torch.rand(()) > 0.5


def writes(b, h, q, kv):
    q += 1
    return q > kv


def writes_a_table(b, h, q, kv):
    TABLE[q] = 1.0
    return q > kv


def writes_elsewhere(b, h, q, kv):
    return torch.add(q, 1, out=kv) > kv


def raises_to_an_index(b, h, q, kv):
    return 3**q > kv


def reads_a_column(b, h, q, kv):
    return PAIRS[:, q] > 0


def reads_behind_dots(b, h, q, kv):
    return PAIRS[..., q] > 0


def prints(b, h, q, kv):
    print(q)
    return q > kv


def formats(b, h, q, kv):
    return q > len(f"{kv}")


def returns_one(b, h, q, kv):
    return 1


def calls_numpy(b, h, q, kv):
    return np.maximum(q, kv) > kv


def sums(b, h, q, kv):
    return TABLE.sum() > q


def computes(b, h, q, kv):
    return (TABLE * 2)[q] > 0


def reads_by_float(b, h, q, kv):
    return TABLE[q * 1.0] > 0


def returns_nothing(b, h, q, kv):
    pass


def returns_two(b, h, q, kv):
    return torch.stack([q, kv]) > 0


def returns_score(b, h, q, kv):
    return q - kv


def complex_table(b, h, q, kv):
    return COMPLEX[q].real > 0


TABLE = torch.zeros(6)
PAIRS = torch.zeros(6, 6)
COMPLEX = torch.zeros(6, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("function", "kind", "offset", "words"),
    [
        (branches, UnsupportedModError, 1, "torch.where"),
        (takes_item, UnsupportedModError, 0, "torch.where"),
        (uses_and, UnsupportedModError, 1, "use torch.where, &, |, ~"),
        (draws, UnsupportedModError, 1, "dropout_p"),
        (writes, UnsupportedModError, 1, "in place"),
        (writes_a_table, UnsupportedModError, 1, "writes in place"),
        (writes_elsewhere, UnsupportedModError, 1, "writes to out=…: use the value that is returned"),
        (raises_to_an_index, UnsupportedModError, 1, "a power that is no number from 0 up"),
        (reads_a_column, UnsupportedModError, 1, "all dimensions"),
        (reads_behind_dots, UnsupportedModError, 1, "all dimensions"),
        (prints, UnsupportedModError, 1, "prints or formats"),
        (formats, UnsupportedModError, 1, "prints or formats"),
        (returns_one, KindError, 0, "a bool, got 1"),
        (calls_numpy, UnsupportedModError, 1, "use PyTorch's functions"),
        (sums, UnsupportedModError, 1, "calls sum"),
        (computes, UnsupportedModError, 1, "compute it once outside"),
        (reads_by_float, KindError, 1, "indexes with torch.float32"),
        (returns_nothing, KindError, 0, "a bool, got NoneType"),
        (returns_two, KindError, 0, r"one value, got a tensor of shape \(2,\)"),
        (returns_score, KindError, 0, "got torch.int32: is it a score_mod"),
    ],
)
def test_errors_name_the_line_and_the_remedy(function, kind: type, offset: int, words: str) -> None:
    line = function.__code__.co_firstlineno + offset
    with pytest.raises(kind, match=rf"(?s)test_closure.py:{line}\D.*{words}"):
        mask_mod(function)


def test_wrong_numbers_of_arguments_say_which_form_is_wanted() -> None:
    with pytest.raises(TypeError, match=r"test_closure.py:\d+\) must be mask_mod\(b, h, q_idx, kv_idx\)"):
        mask_mod(lambda score, b, h, q, kv: q > kv)
    with pytest.raises(TypeError, match=r"test_closure.py:\d+\) must be score_mod\(score, b, h, q_idx, kv_idx\)"):
        score_mod(lambda b, h, q, kv: q * 1.0)
    with pytest.raises(TypeError, match="is it a mask_mod"):
        score_mod(lambda s, b, h, q, kv: q >= kv)
    with pytest.raises(TypeError, match="mask_mod must be a function, got int"):
        mask_mod(3)
    with pytest.raises(TypeError, match=r"mask_mod must be a function, got Tensor: masks\.from_dense makes"):
        mask_mod(TABLE)
    with pytest.raises(TypeError, match=r"score_mod must be a function, got Tensor: scores\.add_mask makes"):
        score_mod(TABLE)
    with pytest.raises(TypeError, match="got BlockMask: it goes to block_mask"):
        mask_mod(create_block_mask(masks.causal(), None, None, 4, 4))
    with pytest.raises(TypeError, match=r"too many positional arguments: it makes one, call causal\(…\)"):
        mask_mod(masks.causal)
    with pytest.raises(TypeError, match="the two were swapped"):
        mask_mod(score_mod(lambda s, b, h, q, kv: s))


def test_a_type_error_inside_the_function_is_not_taken_for_its_signature() -> None:
    with pytest.raises(UnsupportedModError, match=r"at test_closure.py:\d+, cannot be recorded: TypeError: clamp"):
        mask_mod(lambda b, h, q, kv: torch.clamp(q, nothing=3) > kv)


def test_a_layer_whose_function_reads_its_own_parameter() -> None:
    """Its ``forward`` reaches far, into what cannot be watched; the function reads one attribute."""
    draws = random.Random(0)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(2, 8))

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            draws.random()
            return flex_attention(q, q, q, lambda s, b, h, i, j: s + self.bias[h, j], lambda b, h, i, j: i >= j)

    layer, q = Layer(), torch.randn(1, 2, 8, 4)
    bias = layer.bias.detach()
    wanted = flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, j], lambda b, h, i, j: i >= j)
    assert torch.equal(layer(q), wanted)


def test_a_layer_that_is_called_again_is_recorded_once(recordings: list[object]) -> None:
    """Its ``forward`` calls attention, whose memory of functions grows with each that is recorded."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(2, 8))

        def biased(self, score, b, h, q_idx, kv_idx):
            return score + self.bias[h, kv_idx]

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            q = flex_attention(q, q, q, self.biased)
            return flex_attention(q, q, q, lambda s, b, h, i, j: s - self.bias[h, i])

    layer, q = Layer(), torch.randn(1, 2, 8, 4)
    for _ in range(3):
        layer(q)
    assert len(recordings) == 2
    assert [t is layer.bias for t in read(layer.biased).tensors] == [True]
