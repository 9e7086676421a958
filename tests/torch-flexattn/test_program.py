"""Programs: their text, equal nodes, and what is left out."""

from __future__ import annotations

import math

import pytest
from torch_flexattn.program import Builder, Program, parse


def constants(*values: tuple[float, str]) -> Program:
    builder = Builder([("float32", 2)], ["int64", "float32"])
    return builder.finish([builder.const(value, dtype) for value, dtype in values])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (math.inf, "float32"),
        (-math.inf, "float64"),
        (1e-45, "float32"),
        (-0.0, "float32"),
        (0.0, "float64"),
        (5e-324, "float64"),
        (1.7976931348623157e308, "float64"),
        (0.1, "float16"),
        (1e22, "float32"),
        (1e16, "float32"),
        (2**62, "int64"),
        (-(2**63), "int64"),
        (-1, "int32"),
        (True, "bool"),
        (False, "bool"),
        (0, "int32"),
    ],
)
def test_constants_survive_the_text(value: float, dtype: str) -> None:
    program = constants((value, dtype))
    again = parse(program.text)
    assert again == program
    assert repr(again.nodes[0].value) == repr(value)
    assert again.key == program.key


def test_nan_survives_the_text() -> None:
    program = constants((math.nan, "float32"))
    again = parse(program.text)
    assert math.isnan(again.nodes[0].value)
    assert (again.text, again.key) == (program.text, program.key)


def test_equal_nodes_are_one_and_lookalikes_are_not() -> None:
    builder = Builder()
    same = {builder.const(0.0, "float32") for _ in range(3)}
    assert len(same) == 1
    values = [
        (0.0, "float32"),
        (-0.0, "float32"),
        (0, "int32"),
        (False, "bool"),
        (1, "int32"),
        (True, "bool"),
        (1.0, "float32"),
    ]
    numbers = [builder.const(value, dtype) for value, dtype in values]
    assert len(set(numbers)) == len(values)
    assert [repr(builder.nodes[n].value) for n in numbers] == [repr(value) for value, _ in values]
    assert builder.const(math.nan, "float32") == builder.const(math.nan, "float32")


def test_lines_of_code_are_no_part_of_a_program() -> None:
    first, second = Builder(), Builder()
    programs = [b.finish([b.add("q", "int32", line=line)]) for b, line in ((first, "a.py:1"), (second, "b.py:2"))]
    assert programs[0] == programs[1]
    assert hash(programs[0]) == hash(programs[1])
    assert programs[0].text == programs[1].text


def test_what_no_output_needs_is_left_out() -> None:
    builder = Builder()
    q, kv = builder.add("q", "int32"), builder.add("kv", "int32")
    builder.add("mul", "int32", q, q)
    builder.add("exp", "float32", builder.cast(q, "float32"))
    program = builder.finish([builder.add("ge", "bool", q, kv)])
    assert [node.op for node in program.nodes] == ["q", "kv", "ge"]
    assert program.output == 2


def test_dependencies_are_those_of_the_operands() -> None:
    builder = Builder([("int32", 1)])
    b, kv = builder.add("b", "int32"), builder.add("kv", "int32")
    read = builder.add("gather", "int32", kv, value=0)
    program = builder.finish([builder.add("lt", "bool", read, b), builder.const(1, "int32")])
    assert program.depends_on == {"b", "kv"}
    assert program.dependencies[program.outputs[1]] == frozenset()


def test_casts_of_constants_and_scalars_are_done_at_once() -> None:
    builder = Builder(scalars=["int32"])
    one, scalar = builder.const(1, "int32"), builder.add("scalar", "int32", value=0)
    assert builder.nodes[builder.cast(one, "float32")].value == 1.0
    assert builder.cast(one, "int32") == one
    assert str(builder.nodes[builder.cast(scalar, "float32")]) == "scalar float32 0"
    truncated = builder.nodes[builder.cast(builder.const(-2.5, "float32"), "int32")]
    assert truncated.op == "cast"
    assert builder.nodes[builder.cast(builder.const(0.1, "float64"), "float32")].value == 0.10000000149011612


def test_an_integer_constant_that_would_wrap_is_cast_at_run_time() -> None:
    builder = Builder()
    node = builder.nodes[builder.cast(builder.const(2**40, "int64"), "int32")]
    assert node.op == "cast"


def test_inlining_renumbers_captures_and_scalars() -> None:
    inner = parse(
        "captures float32[1]\nscalars int32\n%0 = q int32\n%1 = scalar int32 0\n%2 = add int32 %0 %1\n"
        "%3 = gather float32 0 %2\nreturn %3"
    )
    builder = Builder([("int32", 1), ("float32", 1)], ["float32", "int32"])
    outer = builder.inline(inner, [1], [1], {"q": builder.add("kv", "int32")})
    assert builder.finish(outer).text.splitlines()[2:] == [
        "%0 = kv int32",
        "%1 = scalar int32 1",
        "%2 = add int32 %0 %1",
        "%3 = gather float32 1 %2",
        "return %3",
    ]


GOOD = "captures\nscalars\n%0 = q int32\n%1 = kv int32\n%2 = ge bool %0 %1\nreturn %2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "captures\nscalars\nreturn",
        "hello\nworld\nagain",
        GOOD.replace("%2 = ge", "%3 = ge"),
        GOOD.replace("int32", "int33"),
        GOOD.replace("%0 %1", "%0 %2"),
        GOOD.replace("%0 %1", "%0 %-1"),
        GOOD.replace("return %2", "return %9"),
        GOOD.replace("return %2", "return"),
        GOOD.replace("ge bool", "launch bool"),
        GOOD.replace("ge bool %0 %1", "ge bool %0"),
        GOOD.replace("%0 = q int32", "%0 = const int32 __import__('os')"),
        GOOD.replace("%0 = q int32", "%0 = const int32"),
        GOOD.replace("%0 = q int32", "%0 = scalar int32 0"),
        GOOD.replace("%0 = q int32", "%0 = gather int32 0"),
        GOOD.replace("captures", "captures float32"),
        GOOD + "\n",
        GOOD.replace("captures", "captures  "),
        GOOD.replace("%0 = q int32", '%0 = const int32 "text"'),
        GOOD.replace("return %2", "return %-1"),
        GOOD.replace("captures", "captures int32[1]").replace("%1 = kv int32", "%1 = gather int32 0"),
        GOOD.replace("scalars", "scalars text"),
    ],
)
def test_text_of_no_program_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the text of a program"):
        parse(text)


def test_good_text_is_read() -> None:
    assert parse(GOOD).text == GOOD
