"""Inline PTX to calls of the runtime (rooftop/lab/simt/runtime/ptx.h): the text of an asm statement, instruction by instruction.

Which instructions and modifiers are known says `ptx_table`, what each becomes `ptx_instructions`. What is not known stops the kernel where
it is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rooftop.lab.simt.ptx_instructions import TYPES, Line, Operand, Refused, name_of, statement

__all__ = ["Operand", "not_simulated", "translate"]


def translate(template: str, operands: Sequence[Operand]) -> str:
    """A statement that does what the instructions of `template` do."""
    declared: dict[str, str] = {}  # register -> its type, in PTX
    body: list[str] = []
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template, flags=re.S).replace("%=", "_")
    labels = re.findall(r"([A-Za-z_$][\w$]*)\s*:(?!:)", text)
    for piece in re.split(r";|(?<=[A-Za-z_$0-9])\s*:(?!:)", _scopes(text)):
        words = " ".join(piece.split())
        if not words:
            continue
        if words in labels:
            body.append(f"{words}:;")
        elif words.startswith(".pragma"):
            continue
        else:
            try:
                if words.startswith(".reg"):
                    declared |= _declare(words, declared)
                else:
                    body.append(_instruction(words, operands, declared))
            except Refused as refused:
                body.append(not_simulated(str(refused)))
            except (KeyError, IndexError, ValueError, StopIteration):
                body.append(not_simulated(f"{words.replace(chr(34), chr(39))}: its operands cannot be read"))
    opened = f"__label__ {', '.join(dict.fromkeys(labels))}; " if labels else ""
    registers = " ".join(f"{TYPES[kind]} {name_of(name)} = {{}};" for name, kind in declared.items())
    return "do { " + opened + registers + " " + " ".join(body) + " } while (0)"


def not_simulated(what: str) -> str:
    """A statement that stops the kernel there, saying so."""
    return f'simt::not_simulated("{what}");'


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


def _declare(words: str, before: Mapping[str, str]) -> dict[str, str]:
    """The registers that a `.reg` declares, with their types."""
    match = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", words)
    if not match or match[1] not in TYPES:
        raise Refused(f"{words}: registers of a type that the simulator does not know")
    made: dict[str, str] = {}
    for name in match[2].split(","):
        if many := re.fullmatch(r"\s*([%\w$]+)<(\d+)>\s*", name):
            made |= {f"{many[1]}{i}": match[1] for i in range(int(many[2]))}
        else:
            made[name.strip()] = match[1]
    if twice := [n for n in made if before.get(n, match[1]) != match[1]]:
        raise Refused(f"{words}: {twice[0]} is declared twice, with different types")
    return made


def _instruction(words: str, operands: Sequence[Operand], registers: Mapping[str, str]) -> str:
    guard = ""
    if match := re.match(r"@(!?)\s*(\S+)\s+(.*)", words):
        guard = f"if ({match[1]}{Line([], [], operands, registers).value(match[2])}) "
        words = match[3]
    name, _, rest = words.partition(" ")
    line = Line(name.split("."), _split(rest), operands, registers)
    made = statement(line)
    return f"{guard}{made}" if line.words[0] == "bra" else f"{guard}{{ {made} }}"


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
