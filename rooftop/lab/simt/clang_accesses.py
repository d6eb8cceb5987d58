"""What clang++ makes of a source, kept as the source has it: copies of aggregates whole, accesses at their lines.

clang++ copies an aggregate by `llvm.memcpy` and then takes it apart: of a float4 it reads four floats, each of which is aligned, and a copy
through a variable of the thread's own gets the one line where the variable is read. g++ is told not to (`-fno-tree-sra`); clang++ has no
such option. It moves what a loop reads again and again before the loop, and makes two reads in the arms of a branch one behind it, and both
it then gives no line. So its text is taken before any optimisation (`clang++ -Xclang -disable-llvm-passes -S -emit-llvm`) and changed, and
later steps keep to it:

- a copy that the GPU would make by one access becomes one load and one store of a vector; others of up to 64 bytes become several, of 4 bytes at most;
- before the first access of a block of the code, to memory that is not the thread's own, stands an empty `asm` that might not return: no later access is
  moved before it;
- behind the last one, where the block ends without a choice, stands an empty `asm` that might write a byte of the thread's own: no read is moved past it.

Neither makes an instruction. A static variable of the source becomes one that other files might use: of one that no other file can, the
optimiser makes a truth value where it only ever holds two, and parts where it is a struct. See https://llvm.org/docs/LangRef.html for the
text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

# Type by size in bytes: vectors, since integers of an aggregate's size are taken apart as well.
TYPES = {1: "i8", 2: "<2 x i8>", 4: "<2 x i16>", 8: "<2 x i32>", 16: "<4 x i32>"}
MOST = 64  # bytes of a copy that is not left to a call
_NAME = r"[%@][-\w.$]+"
_POINTER = rf"(?:i8\*|ptr)((?: [a-z]+(?:\(\d+\))?(?: \d+)?)*) ({_NAME})"  # its attributes and its name
_COPY = re.compile(rf"(?:tail |notail )?call void @llvm\.mem(?:cpy|move)\.p0(?:i8)?\.p0(?:i8)?\.i\d+\({_POINTER}, {_POINTER}, i\d+ (\d+), i1 (?:false|0)\)(.*)")
_ALIGN = re.compile(r"\balign (\d+)")
_LINE = re.compile(r", (!dbg ![\w.]+)")
_LOCAL = re.compile(rf"({_NAME}) = (?:alloca |(?:getelementptr|bitcast) [^@]*?(?:\*|\bptr) ({_NAME}))")  # of a pointer, what it points into
_ACCESS = re.compile(rf"(?:{_NAME} = load|store) (?!atomic|volatile).*?(?:\*|\bptr) ({_NAME}), align ")
# a static variable, not of the runtime's
_INTERNAL = re.compile(r"(@(?!_ZGV|_ZZ?N[KVR]?(?:4simt|St)|_ZSt|_ZL?__|simt_|__|\.)[-\w.$]+ = )internal (global )")
_START = '  call void asm sideeffect "", ""() convergent readnone'
_END = '  call void asm sideeffect "", "X"({pointer} nocapture %kept.here) argmemonly nounwind'


def keep(text: str) -> str:
    """LLVM's text `text`, unoptimised, with its copies whole and its accesses where they are."""
    # up to LLVM 14 a pointer has the type of what it points to
    pointer = "ptr" if re.search(r"\(ptr\b|, ptr %|alloca ptr", text) else "i8*"
    made: list[str] = []
    body: list[str] | None = None
    for line in text.split("\n"):
        if line.startswith("define "):
            made.append(line)
            body = []
        elif body is not None and line == "}":
            made += [*_function(body, pointer), line]
            body = None
        elif body is None:
            made.append(_INTERNAL.sub(r"\1hidden \2", line) if line.startswith("@") else line)
        else:
            body.append(line)
    return "\n".join(made)


def _function(body: list[str], pointer: str) -> list[str]:
    """The lines of a function, changed."""
    numbers = count()
    lines = [new for line in body for new in _copied(line, numbers)]
    own: set[str] = set()  # pointers into what the thread has of its own
    made: list[str] = []
    touched = ends = False  # whether this block accesses other memory; whether any such block ends without a choice
    for line in lines:
        code = line.lstrip()
        if line[:1] not in ("", " "):
            touched = False  # a label
        elif (found := _LOCAL.match(code)) and (found[2] is None or found[2] in own):
            own.add(found[1])
        elif (found := _ACCESS.match(code)) and found[1] not in own and not touched:
            made.append(_START)
            touched = True
        elif touched and code.startswith("br label "):
            made.append(_END.format(pointer=pointer))
            ends = True
        made.append(line)
    if ends:
        made.insert(next(i for i, line in enumerate(made) if line[:1] == " "), "  %kept.here = alloca i8, align 1")
    return made


def _copied(line: str, numbers: Iterator[int]) -> Iterator[str]:
    """`line`, or the loads and stores that a copy of an aggregate is."""
    match = _COPY.match(line.lstrip()) if "@llvm.mem" in line else None
    if match is None or not 0 < int(match[5]) <= MOST:
        yield line
        return
    to_attributes, to, from_attributes, source, size, rest = match.groups()
    place = found[0] if (found := _LINE.search(rest)) else ""
    to_align, from_align = _align(to_attributes), _align(from_attributes)
    part = int(size) if int(size) in TYPES and min(to_align, from_align) >= int(size) else min(to_align, from_align, 4)
    typed = "i8*" in line
    if int(size) % part:
        yield line
        return
    for at in range(0, int(size), part):
        n = next(numbers)
        kind = TYPES[part]
        given = []
        for word, name in (("from", source), ("to", to)):
            if at:
                yield f"  %kept.{word}.at.{n} = getelementptr i8, {'i8*' if typed else 'ptr'} {name}, i64 {at}{place}"
                name = f"%kept.{word}.at.{n}"
            if typed:
                yield f"  %kept.{word}.{n} = bitcast i8* {name} to {kind}*{place}"
                name = f"%kept.{word}.{n}"
            given.append(f"{kind + '*' if typed else 'ptr'} {name}")
        yield f"  %kept.{n} = load {kind}, {given[0]}, align {min(from_align, part) if at else from_align}{place}"
        yield f"  store {kind} %kept.{n}, {given[1]}, align {min(to_align, part) if at else to_align}{place}"


def _align(attributes: str) -> int:
    """Bytes; 1 where nothing is said."""
    return int(found[1]) if (found := _ALIGN.search(attributes)) else 1
