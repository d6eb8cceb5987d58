"""Inline PTX to calls of the runtime (rooftop/lab/simt/runtime/ptx.h): the text of an asm statement, instruction by instruction.

What each instruction becomes is in `ptx_instructions`. What is not listed there stops the kernel where it is executed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooftop.lab.simt.ptx_instructions import TYPES, Line, Operand, Unknown, name_of, statement

__all__ = ["Operand", "translate"]


def translate(template: str, operands: Sequence[Operand], where: str) -> str:
    """A statement that does what the instructions of `template` do."""
    declared: list[str] = []
    body: list[str] = []
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template, flags=re.S)
    labels = re.findall(r"([A-Za-z_$][\w$]*)\s*:(?!:)", text)
    for piece in re.split(r";|(?<=[A-Za-z_$0-9])\s*:(?!:)", _scopes(text)):
        words = " ".join(piece.split())
        if not words:
            continue
        if words in labels:
            body.append(f"{words}:;")
        elif words.startswith(".reg"):
            declared += _declare(words)
        elif words.startswith(".pragma"):
            continue
        else:
            try:
                body.append(_instruction(words, operands))
            except (Unknown, KeyError, IndexError, ValueError, StopIteration):
                name = re.sub(r"^@!?\S+\s+", "", words).split()[0]
                body.append(f'simt::not_simulated("{name} at {where}");')
    opened = f"__label__ {', '.join(dict.fromkeys(labels))}; " if labels else ""
    return "do { " + opened + " ".join(declared) + " " + " ".join(body) + " } while (0)"


def _scopes(text: str) -> str:
    """Without the braces that only open and close a scope of registers."""
    kept: list[str] = []
    depth = 0
    for match in re.finditer(r"[{}]|[^{}]+", text):
        token = match[0]
        if token == "{":
            before = "".join(kept).rstrip()
            if not before or before[-1] in ";:}" or (before[-1] == ";"):
                kept.append(" ")
                continue
            depth += 1
        elif token == "}" and depth == 0:
            kept.append(" ")
            continue
        elif token == "}":
            depth -= 1
        kept.append(token)
    return "".join(kept)


def _declare(words: str) -> list[str]:
    match = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", words)
    if not match:
        raise Unknown
    made = []
    for name in match[2].split(","):
        if many := re.fullmatch(r"\s*([%\w$]+)<(\d+)>\s*", name):
            made += [f"{TYPES[match[1]]} {name_of(many[1] + str(i))} = {{}};" for i in range(int(many[2]))]
        else:
            made.append(f"{TYPES[match[1]]} {name_of(name)} = {{}};")
    return made


def _instruction(words: str, operands: Sequence[Operand]) -> str:
    guard = ""
    if match := re.match(r"@(!?)\s*(\S+)\s+(.*)", words):
        guard = f"if ({match[1]}{Line([], [], operands).value(match[2])}) "
        words = match[3]
    name, _, rest = words.partition(" ")
    line = Line(name.split("."), _split(rest), operands)
    if name == "bra" or name.startswith("bra."):
        return f"{guard}goto {rest.strip()};"
    made = statement(line)
    return f"{guard}{{ {made} }}"


def _split(text: str) -> list[str]:
    found, depth, now = [], 0, ""
    for c in text:
        depth += (c in "{[") - (c in "}]")
        if c == "," and depth == 0:
            found.append(now.strip())
            now = ""
        else:
            now += c
    return [*found, now.strip()] if now.strip() else found
