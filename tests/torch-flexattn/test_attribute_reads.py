"""What a function reads of a layer: what else the layer holds may change, and nothing that is read may be stale."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch
from torch import nn
from torch_flexattn import flex_attention, mask_mod, trace
from torch_flexattn.attribute_reads import attributes_read

SEEN: list[float] = []
ZERO, INDEX = torch.tensor(0, dtype=torch.int32), torch.arange(9, dtype=torch.int32)


def width_of(layer: nn.Module) -> int:
    return layer.width


class Layer(nn.Module):
    """Its masks are windows, whose width is reached in many ways."""

    default = 3

    def __init__(self) -> None:
        super().__init__()
        self.width, self.calls = 3, 0
        self.history: list[float] = []
        self.inner = nn.Module()
        self.inner.width = 3
        self.options = {"width": 3}

    @property
    def doubled(self) -> int:
        return 2 * self.half

    @property
    def half(self) -> float:
        return self.width / 2

    def scaled(self) -> int:
        return self.width

    def by_attribute(self, b, h, q, kv):
        return q - kv < self.width

    def by_method(self, b, h, q, kv):
        return q - kv < self.scaled()

    def by_property(self, b, h, q, kv):
        return q - kv < self.doubled

    def by_function(self, b, h, q, kv):
        return q - kv < width_of(self)

    def by_any(*arguments):
        self, _, _, q, kv = arguments
        return q - kv < self.width

    def by_name(self, b, h, q, kv):
        return q - kv < vars(self)["width"]

    def by_inner_function(self, b, h, q, kv):
        return (lambda distance: distance < self.width)(q - kv)

    def by_submodule(self, b, h, q, kv):
        return q - kv < self.inner.width

    def by_dict(self, b, h, q, kv):
        return q - kv < self.options["width"]

    def by_class(self, b, h, q, kv):
        return q - kv < self.default

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(float(self.calls))
        SEEN.append(float(self.calls))
        q = flex_attention(q, q, q, mask_mod=self.by_attribute)
        return flex_attention(q, q, q, mask_mod=lambda b, h, i, j: i - j < self.width)


class Heir(Layer):
    def by_attribute(self, b, h, q, kv):
        return super().by_attribute(b, h, q, kv)


WAYS = [name for name in vars(Layer) if name.startswith("by_")]


def seen(mask) -> int:
    return int(mask_mod(mask)(ZERO, ZERO, INDEX[-1], INDEX).sum())


def widen(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    layer.width = layer.inner.width = layer.options["width"] = 5
    monkeypatch.setattr(Layer, "default", 5)


@pytest.mark.parametrize("kind", [Layer, Heir])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_is_never_stale(kind: type[Layer], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = kind()
    inside = lambda b, h, q, kv: getattr(layer, way)(b, h, q, kv)  # noqa: E731
    assert (seen(getattr(layer, way)), seen(inside)) == (3, 3)
    widen(layer, monkeypatch)
    assert (seen(getattr(layer, way)), seen(inside)) == (5, 5)


class Part:
    """Holds the width of a window, on its own or further inside."""

    def __init__(self, part: Part | None = None) -> None:
        self.width, self.part = 3, part

    def inner(self) -> int:
        return self.part.width  # type: ignore[union-attr]

    def near(self, b, h, q, kv):
        return q - kv < self.inner()


class Deep:
    def __init__(self) -> None:
        self.part = Part(Part())

    def __call__(self, b, h, q, kv):
        return q - kv < self.part.inner()


class Listed(nn.Module):
    width_of_all = 3

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Layer()])

    @classmethod
    def of_all(cls) -> int:
        return cls.width_of_all

    def near(self, b, h, q, kv):
        return q - kv < self.parts[0].inner.width

    def as_all(self, b, h, q, kv):
        return q - kv < self.of_all()


def inner_of(part: Part) -> int:
    return part.part.width  # type: ignore[union-attr]


PART, DEEP, LISTED = Part(Part()), Deep(), Listed()


@pytest.mark.parametrize(
    ("mask", "holder", "name"),
    [
        (lambda b, h, q, kv: q - kv < inner_of(PART), PART.part, "width"),
        (lambda b, h, q, kv: q - kv < PART.inner(), PART.part, "width"),
        (lambda b, h, q, kv: q - kv < getattr(PART, "part").width, PART.part, "width"),  # noqa: B009
        (lambda b, h, q, kv: q - kv < attrgetter("part.width")(PART), PART.part, "width"),
        (PART.near, PART.part, "width"),
        (DEEP, DEEP.part.part, "width"),
        (LISTED.near, LISTED.parts[0].inner, "width"),
        (lambda b, h, q, kv: q - kv < LISTED.parts[0].inner.width, LISTED.parts[0].inner, "width"),
        (LISTED.as_all, Listed, "width_of_all"),
        (lambda b, h, q, kv: q - kv < LISTED.of_all(), Listed, "width_of_all"),
    ],
)
def test_what_is_reached_in_several_steps_is_never_stale(mask, holder, name: str, monkeypatch) -> None:
    assert seen(mask) == 3
    monkeypatch.setattr(holder, name, 5)
    assert seen(mask) == 5


def test_a_method_or_property_that_is_another_now(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer()
    assert (seen(layer.by_method), seen(layer.by_property)) == (3, 3)
    monkeypatch.setattr(Layer, "scaled", lambda self: 4)
    monkeypatch.setattr(Layer, "half", property(lambda self: 2))
    assert (seen(layer.by_method), seen(layer.by_property)) == (4, 4)
    layer.scaled = lambda: 2  # type: ignore[method-assign]
    assert seen(layer.by_method) == 2


def test_what_else_changes_takes_no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    trace.forget()
    recorded: list[object] = []
    record = trace._record
    monkeypatch.setattr(trace, "_record", lambda *arguments: recorded.append(arguments) or record(*arguments))
    layer, q = Layer(), torch.randn(1, 1, 9, 4)
    for _ in range(3):
        layer(q)
    assert len(recorded) == 2


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("by_attribute", {"width"}),
        ("by_method", {"scaled", "width"}),
        ("by_property", {"doubled", "half", "width"}),
        ("by_inner_function", {"width"}),
        ("by_submodule", {"inner"}),
        ("by_class", {"default"}),
        *((way, None) for way in ("by_function", "by_any", "by_name", "forward")),
    ],
)
def test_names_that_the_code_tells(way: str, names: set[str] | None) -> None:
    assert attributes_read(Layer(), getattr(Layer, way).__code__, None) == names


def test_other_objects_are_not_followed() -> None:
    class Dynamic(Layer):
        def __getattr__(self, name: str) -> object:
            return 3 if name == "wide" else super().__getattr__(name)

    assert attributes_read(Dynamic(), Layer.by_attribute.__code__, None) is None
    assert attributes_read(object(), Layer.by_attribute.__code__, None) is None
    assert attributes_read(Heir(), Heir.by_attribute.__code__, None) is None
