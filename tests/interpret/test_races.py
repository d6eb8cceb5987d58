"""Races between the programs of a launch: planted ones are found at their lines, and their twins, which are right, pass."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from rooftop.lab.interpret import interpreter


@triton.jit
def one_word(x, y, out, flag, N: tl.constexpr):
    tl.store(out, tl.load(out) + tl.load(x + tl.program_id(0)))  # race


@triton.jit
def one_word_atomic(x, y, out, flag, N: tl.constexpr):
    tl.atomic_add(out, tl.load(x + tl.program_id(0)))


@triton.jit
def other_values(x, y, out, flag, N: tl.constexpr):
    tl.store(out, tl.program_id(0))  # race


@triton.jit
def same_value(x, y, out, flag, N: tl.constexpr):
    tl.store(out, 7.0)


@triton.jit
def neighbours(x, y, out, flag, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(y + at + 1)  # race
    tl.store(y + at, v)


@triton.jit
def neighbours_elsewhere(x, y, out, flag, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.load(y + at + 1))


@triton.jit
def overlap(x, y, out, flag, N: tl.constexpr):
    at = tl.program_id(0) * (N // 2) + tl.arange(0, N)
    tl.store(out + at, tl.load(x + at) + tl.program_id(0))  # race


@triton.jit
def overlap_of_equals(x, y, out, flag, N: tl.constexpr):
    at = tl.program_id(0) * (N // 2) + tl.arange(0, N)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def last_adds_relaxed(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    tl.store(y + i, tl.load(x + i))
    if tl.atomic_add(flag, 1, sem="relaxed") == tl.num_programs(0) - 1:
        tl.store(out, tl.sum(tl.load(y + tl.arange(0, N))))  # race


@triton.jit
def last_adds(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    tl.store(y + i, tl.load(x + i))
    if tl.atomic_add(flag, 1) == tl.num_programs(0) - 1:
        tl.store(out, tl.sum(tl.load(y + tl.arange(0, N))))


@triton.jit
def flag_before_data(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    if i > 0:
        while tl.atomic_add(flag + i - 1, 0, sem="acquire") == 0:
            pass
        tl.store(out + i, tl.load(y + i - 1))  # race
    tl.atomic_xchg(flag + i, 1, sem="release")
    tl.store(y + i, tl.load(x + i))


@triton.jit
def data_before_flag(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    if i > 0:
        while tl.atomic_add(flag + i - 1, 0, sem="acquire") == 0:
            pass
        tl.store(out + i, tl.load(y + i - 1))
    tl.store(y + i, tl.load(x + i))
    tl.atomic_xchg(flag + i, 1, sem="release")


@triton.jit
def another_flag(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    tl.store(y + i, tl.load(x + i))
    tl.atomic_xchg(flag + i, 1, sem="release")
    tl.atomic_add(flag + 30 - i, 0, sem="acquire")
    tl.store(out + i, tl.load(y + tl.maximum(i - 1, 0)))  # race


@triton.jit
def through_a_third(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    tl.atomic_add(flag, 1)
    tl.store(y + i, tl.load(x + i))
    tl.atomic_add(flag, 1)
    tl.store(out + i, tl.load(y + tl.maximum(i - 2, 0)))


@triton.jit
def counter_read_plainly(x, y, out, flag, N: tl.constexpr):
    tl.atomic_add(flag + tl.program_id(0), 1, sem="relaxed")
    tl.store(out + tl.program_id(0), tl.load(flag + tl.maximum(tl.program_id(0) - 1, 0)).to(tl.float32))  # race


@triton.jit
def counter_read_by_an_atomic(x, y, out, flag, N: tl.constexpr):
    tl.atomic_add(flag + tl.program_id(0), 1, sem="relaxed")
    n = tl.atomic_add(flag + tl.maximum(tl.program_id(0) - 1, 0), 0, sem="relaxed")
    tl.store(out + tl.program_id(0), n.to(tl.float32))


@triton.jit
def polls_a_plain_store(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    if i > 0:
        while tl.load(flag + i - 1, volatile=True) == 0:  # race
            pass
    tl.store(flag + i, 1)


@triton.jit
def polls_an_atomic(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    if i > 0:
        while tl.load(flag + i - 1, volatile=True) == 0:
            pass
    tl.atomic_xchg(flag + i, 1, sem="relaxed")


@triton.jit
def polls_and_reads_on(x, y, out, flag, N: tl.constexpr):
    i = tl.program_id(0)
    if i > 0:
        while tl.load(flag + i - 1, volatile=True) == 0:
            pass
        tl.store(out + i, tl.load(y + i - 1))  # race
    tl.store(y + i, tl.load(x + i))
    tl.atomic_xchg(flag + i, 1, sem="release")


@triton.jit
def bytes_of_one_word(x, y, out, flag, N: tl.constexpr):
    at = out.to(tl.pointer_type(tl.int8)) + tl.program_id(0) * 3 + tl.arange(0, 4)
    tl.store(at, (tl.program_id(0) + 1).to(tl.int8))  # race


@triton.jit
def bytes_apart(x, y, out, flag, N: tl.constexpr):
    at = out.to(tl.pointer_type(tl.int8)) + tl.program_id(0) * 2 + tl.arange(0, 2)
    tl.store(at, (tl.program_id(0) + 1).to(tl.int8))


PAIRS = [
    (one_word, one_word_atomic), (other_values, same_value), (neighbours, neighbours_elsewhere), (overlap, overlap_of_equals),
    (last_adds_relaxed, last_adds), (flag_before_data, data_before_flag), (another_flag, through_a_third),
    (counter_read_plainly, counter_read_by_an_atomic), (bytes_of_one_word, bytes_apart),
    (polls_a_plain_store, polls_an_atomic), (polls_and_reads_on, data_before_flag),
]


def launch(kernel: Any, **more: torch.Tensor) -> dict[str, Any]:
    args: dict[str, Any] = {"x": torch.arange(1.0, 65.0), "y": torch.arange(1.0, 65.0), "out": torch.zeros(64), "flag": torch.zeros(64, dtype=torch.int32)}
    args.update(more)
    interpreter.run(kernel, (4,), {**args, "N": 4})
    return args


@pytest.mark.parametrize("kernel", [a for a, _ in PAIRS], ids=lambda k: k.__name__)
def test_a_planted_race_is_found_at_its_line(kernel: Any) -> None:
    with pytest.raises(interpreter.RaceBetweenPrograms) as caught:
        launch(kernel)
    text = str(caught.value)
    line = next(kernel.starting_line_number + i for i, code in enumerate(kernel.raw_src) if "# race" in code)
    where, other = re.findall(r"test_races\.py:(\d+)", text)[:2]
    assert text.startswith(f"{kernel.__name__}, program (") and "nothing orders the two" in text
    assert int(where) == line or kernel is neighbours, text
    assert kernel.starting_line_number < int(other) < kernel.starting_line_number + len(kernel.raw_src)
    assert re.search(r"by program \(\d, 0, 0\) at test_races", text)


@pytest.mark.parametrize("kernel", [b for _, b in PAIRS], ids=lambda k: k.__name__)
def test_its_twin_passes(kernel: Any) -> None:
    launch(kernel)


def test_the_message_names_the_element_of_a_view_and_both_accesses() -> None:
    whole = torch.zeros(100)
    with pytest.raises(interpreter.RaceBetweenPrograms) as caught:
        launch(other_values, out=whole[10:20])
    assert "program (1, 0, 0)" in str(caught.value) and "stores another value where element 0 of argument 'out'" in str(caught.value)
    assert "stored by program (0, 0, 0) at test_races.py" in str(caught.value)


def test_two_arguments_of_one_tensor_are_one_memory() -> None:
    shared = torch.arange(1.0, 65.0)
    with pytest.raises(interpreter.RaceBetweenPrograms, match=r"element 4 of argument 'out'.*was loaded by program"):
        launch(neighbours_elsewhere, y=shared, out=shared)
    launch(neighbours_elsewhere, y=shared, out=torch.zeros(64))


def test_what_a_launch_before_wrote_is_ordered() -> None:
    args = launch(overlap_of_equals)
    launch(one_word_atomic, out=args["out"])
    launch(overlap_of_equals, out=args["out"])
