"""Reads and checks the text of a head: TOML in the first comment of a `.cu` file. docs/head.md describes the format,
`rooftop.core.head` evaluates it."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rooftop.core import helpers, settings, tensor_maps, whole_file
from rooftop.core.expressions import ExpressionError, integer, names
from rooftop.core.head import Head
from rooftop.core.head_parts import BRACES, Arg, HeadError, LaunchHead, MapArg, NumberArg, TensorArg
from rooftop.core.prediction_names import refused
from rooftop.core.spec import DTYPES

C_TYPES: Mapping[str, str] = {
    "i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double", "bool": "bool",
}
_TENSOR = re.compile(r"^\s*(\w+)\s*:\s*(\w+)\s*\[([^\]]*)\]\s*(\?)?\s*$")
_NUMBER = re.compile(r"^\s*(\w+)\s*:\s*(\w+)\s*(?:=\s*(.+?))?\s*$")
_MAP = re.compile(r"^\s*(\w+)\s*:\s*map\s*=\s*(\w+)\s*\[([^\]]*)\]\s*(.*?)\s*$")
_MAP_WORD = re.compile(r"(swizzle|promote|fill|as)\s+([^\s\[\]]+)\s*|(steps)\s*\[([^\]]*)\]\s*")
_ZEROED = re.compile(r"\s*=\s*0\s*$")
# functions that the .py file beside a .cu may define
PYTHON = ("supports", "choose", "configs", "launches", "scratch", "zeroed", "explains", "for_any_rows")
_OPEN = re.compile(r"\s*/\*\s*rooftop\b")
SOURCE = 1 << 24  # bytes of a file of source that is read


def read(path: Path) -> str:
    """The text of a kernel's file. Raises HeadError with the line if it is not UTF-8, OSError for what is no file, or too long for a
    source."""
    content = whole_file.regular(path, SOURCE)
    try:
        return lines(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise HeadError(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from None


def lines(text: str) -> str:
    """A source as compilers read it: line feeds alone, right behind the backslashes that continue a line, and no mark of its byte order."""
    return re.sub(r"\\[ \t]+\n", r"\\\n", text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


def split(text: str, path: str) -> tuple[str, int]:
    """The TOML of the head and the line number on which it starts (from 1)."""
    match = _OPEN.match(text)
    if not match:
        raise HeadError(
            f"{path}: no head: the file must begin with a comment `/* rooftop ... */` (docs/head.md); rooftop new head {path} --op OP writes it, and "
            "rooftop simt, inspect, place, check --like, diagnose, bench take the file as it is"
        )
    end = text.find("*/", match.end())
    if end < 0:
        raise HeadError(f"{path}: the head's comment is not closed with */")
    return text[match.end() : end], text.count("\n", 0, match.end()) + 1


def parse(text: str, path: str | Path, *, op: str = "", toml: bool = False) -> Head:
    """Parses the head of a `.cu` file's text (or, with `toml`, of a rung that is only a head). `op`: of a file whose head names none.

    Raises HeadError with the file, the line if known, and what is accepted."""
    where = str(path)
    body, first = (text, 1) if toml else split(text, where)
    data = _of_op(_toml(body, first, where), op, where)
    try:
        own = _build(data, text, where, toml)
    except ExpressionError as error:
        raise HeadError(f"{where}: {error}") from None
    _check_no_cycle(own)
    return own if toml else dataclasses.replace(own, folders=helpers.folders(settings.CHECKOUT / where, own.op or op))


def _toml(body: str, first: int, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(body)
    except (ValueError, RecursionError) as error:  # TOML's own; a number of thousands of digits; brackets without end
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) + first - 1 if found else first
        raise HeadError(f"{where}:{line}: the head is not valid TOML: {error}") from None


def _of_op(data: dict[str, Any], op: str, where: str) -> dict[str, Any]:
    """The head of one of the ops that a file lists, of the first one without `op`. For a backward, what `[bwd]` says stands in place of
    what is said of all."""
    if "bwd" not in data:
        return data
    own, ops = data.pop("bwd"), data.get("ops")
    if not isinstance(own, dict) or not isinstance(ops, list) or not any(str(x).endswith("_bwd") for x in ops):
        raise HeadError(f"{where}: bwd is a table of what differs for the backward ops that `ops` lists, such as softmax_bwd")
    if given := sorted(set(own) & {"op", "ops", "python"}):
        raise HeadError(f"{where}: [bwd] sets {given[0]}, which is the same for all ops of a file")
    return {**data, **own} if (op or str(ops[0])).endswith("_bwd") else data


def _check_no_cycle(head: Head) -> None:
    """Raises HeadError if a name of `let` refers to itself, directly or through others."""
    uses = {name: names(text) & set(head.let) for name, text in head.let.items()}
    while free := {name for name, found in uses.items() if not found}:
        uses = {name: found - free for name, found in uses.items() if name not in free}
    if uses:
        name = min(uses)
        raise HeadError(f"{head.path}: let.{name}: {head.let[name]!r} refers to {name!r} itself")


def _formulas(table: Mapping[str, Any], path: str) -> dict[str, str]:
    for name, text in table.items():
        if not (name.isascii() and name.isidentifier()):
            raise HeadError(f"{path}: let.{name}: a name is letters, digits and _")
        try:
            _reads(text, f"{path}: let.{name}")
        except ExpressionError as error:
            raise HeadError(f"{path}: let.{name}: {error}") from None
    return dict(table)


def shown(path: Path) -> str:
    """The path in error messages and on pages: relative to the checkout if it is inside."""
    try:
        return str(path.resolve().relative_to(settings.CHECKOUT))
    except ValueError:
        return str(path)


HEAD_NAMES = ("IDEA", "PREDICT", "LIMIT")  # constants of a rung in Python


def without_head(text: str) -> str:
    """The Python `text` of an implementation without the constants of its head, which have no effect on what runs."""
    if not re.search(rf"^({'|'.join(HEAD_NAMES)}) = ", text, re.M):
        return text
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in HEAD_NAMES:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines)


def of_python(text: str, path: str | Path) -> Head:
    """The head of a rung in Python: the literal values of IDEA, PREDICT and LIMIT, read without importing the file. Raises HeadError
    without an IDEA."""
    found: dict[str, Any] = {}
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise HeadError(f"{path}:{error.lineno}: not Python: {error.msg}") from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in HEAD_NAMES:
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                raise HeadError(f"{path}:{node.lineno}: {node.targets[0].id} must be a plain value") from None
    if not isinstance(found.get("IDEA"), str):
        raise HeadError(f"{path}: a rung in Python needs its idea: IDEA = \"...\", and PREDICT = {{\"speedup\": 1.5}}, LIMIT = \"...\"")
    _predictable(found.get("PREDICT", {}), path)
    return Head(path=str(path), source=text, idea=found["IDEA"], predict=found.get("PREDICT", {}), limit=found.get("LIMIT", ""))


_KEYS = {
    "op": str, "idea": str, "predict": dict, "limit": str, "arch": int, "dtypes": list, "args": list, "requires": dict, "demands": dict,
    "config": dict, "configs": list, "choice": list, "valid": str, "scratch": dict, "launch": list, "implementation": str,
    "let": dict, "python": list, "tensors": list, "without": list, "ops": list,
}
_LAUNCH_KEYS = {"kernel", "grid", "block", "when", "cluster", "shared", "pdl", "cooperative", "args"}
_TAKEN = frozenset({"sms", "card", "arch", "T", "op"})  # names defined in every expression


def _build(data: dict[str, Any], source: str, path: str, toml: bool) -> Head:
    for key, value in data.items():
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it may hold {', '.join(_KEYS)}"
            raise HeadError(f"{path}: the head has an unknown key {key!r}{hint}")
        if not isinstance(value, _KEYS[key]):
            raise HeadError(f"{path}: {key} must be a {_KEYS[key].__name__}, not {type(value).__name__}")
    if toml:
        if "implementation" not in data or "launch" in data:
            raise HeadError(f"{path}: a rung that is a .toml names the shipped kernel (implementation = ...) and launches nothing itself")
    elif "args" not in data or not (data.get("launch") or "launches" in data.get("python", [])):
        raise HeadError(f"{path}: a head needs args and at least one [[launch]]")
    if strange := [x for x in data.get("python", []) if x not in PYTHON]:
        raise HeadError(f"{path}: python lists {', '.join(map(repr, strange))}; the .py file may define {', '.join(PYTHON)}")
    for one, other in (("launches", "launch"), ("choose", "choice"), ("configs", "configs"), ("scratch", "scratch")):
        if one in data.get("python", []) and other in data:
            raise HeadError(f"{path}: {other} is in the head, and python lists {one}: use one of them")
    for dtype in data.get("dtypes", []):
        if dtype not in DTYPES:
            raise HeadError(f"{path}: dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    _predictable(data.get("predict", {}), path)
    for key in ("has", "lacks"):
        listed = data.get("demands", {}).get(key, [])
        if not isinstance(listed, list) or not all(isinstance(x, str) for x in listed):
            raise HeadError(f"{path}: demands.{key} must be a list of instructions such as [\"LDG.128\"], not {listed!r}")
    if not isinstance(data.get("demands", {}).get("spills", 0), int):
        raise HeadError(f"{path}: demands.spills must be a number of bytes, not {data['demands']['spills']!r}")
    for condition, why in data.get("requires", {}).items():
        if not isinstance(why, str):
            raise HeadError(f"{path}: requires {condition!r} needs a reason as text, not {why!r}")
    known = {"has", "lacks", "spills"}
    if unknown := set(data.get("demands", {})) - known:
        raise HeadError(f"{path}: demands has {', '.join(sorted(unknown))}; it may hold {', '.join(sorted(known))}")
    config = data.get("config", {})
    choices = []
    for choice in data.get("choice", []):
        constants = {k: v for k, v in choice.items() if k != "when"}
        if "when" not in choice or set(constants) - set(config):
            raise HeadError(f"{path}: a [[choice]] needs `when` and only constants of [config] ({', '.join(config)})")
        _reads(choice["when"], f"{path}: [[choice]] when")
        choices.append((choice["when"], constants))
    for extra in data.get("configs", []):
        if set(extra) - set(config):
            raise HeadError(f"{path}: configs set {', '.join(sorted(set(extra) - set(config)))}, which [config] does not have")
    for condition in data.get("requires", {}):
        names(condition)
    if "valid" in data:
        names(data["valid"])
    args = tuple(_arg(a, path) for a in data.get("args", []))
    tensors = [_arg(a, path) for a in data.get("tensors", [])]
    if not all(isinstance(a, TensorArg) for a in tensors):
        raise HeadError(f"{path}: tensors may contain only tensors, such as \"x: T[M, N]\"; numbers and maps are args")
    if not all(isinstance(n, str) for n in data.get("ops", [])):
        raise HeadError(f"{path}: ops must list names of ops, such as [\"rms_norm\", \"layer_norm\"], not {data['ops']!r}")
    if not all(isinstance(n, str) for n in data.get("without", [])):
        raise HeadError(f"{path}: without must list names of tensors, such as [\"weight\"], not {data['without']!r}")
    if both := sorted({a.name for a in (*args, *tensors)} & set(data.get("without", []))):
        raise HeadError(f"{path}: without lists {', '.join(both)}, which the kernel takes")
    launches = tuple(_launch_heads(data.get("launch", []), path))
    dims = {d for listed in (args, tensors, *(x.args or () for x in launches)) for a in listed if isinstance(a, TensorArg) for d in a.dims}
    for name in _formulas(data.get("let", {}), path):
        if name in config:
            raise HeadError(f"{path}: let.{name}: a constant of [config] has this name; use another one")
        if name in dims | _TAKEN:
            raise HeadError(
                f"{path}: let.{name}: a name of its own is needed; {'a dimension' if name in dims else 'every expression'} has this one"
            )
    scratch, zeroed = {}, []
    for name, text in data.get("scratch", {}).items():
        if isinstance(text, str) and _ZEROED.search(text):
            zeroed.append(name)
        parsed = _arg(f"{name}: {_ZEROED.sub('', str(text))}", path, extents=True)
        if not isinstance(text, str) or not isinstance(parsed, TensorArg):
            raise HeadError(
                f"{path}: scratch.{name} must read like \"f32[R, 8]\", or \"i32[R] = 0\" where it must hold zeros, not {text!r}"
            )
        scratch[name] = parsed
    further = (one for extra in data.get("configs", []) for one in _combinations(extra))
    return Head(
        path=path, source=source, without=tuple(data.get("without", [])),
        op=data.get("op"), idea=data.get("idea", ""), predict=data.get("predict", {}), limit=data.get("limit", ""),
        arch=data.get("arch", 80), dtypes=tuple(data.get("dtypes", [])), args=args,
        requires=data.get("requires", {}), demands=data.get("demands", {}), config=config,
        configs=tuple({**config, **one} for one in further), choices=tuple(choices), valid=data.get("valid"),
        scratch=scratch, zeroed=tuple(zeroed), launches=launches, implementation=data.get("implementation"), let=data.get("let", {}),
        python=tuple(data.get("python", [])), tensors=tuple(a for a in tensors if isinstance(a, TensorArg)), ops=tuple(data.get("ops", [])),
    )


def _predictable(predict: Mapping[str, Any], path: str | Path) -> None:
    for name, number in predict.items():
        if why := refused(name):
            raise HeadError(f"{path}: predict.{name}: {why}")
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise HeadError(f"{path}: predict.{name} must be a number, not {number!r}")
        if not math.isfinite(number):
            raise HeadError(f"{path}: predict.{name} is {number}; it must be finite")


def _launch_heads(tables: list[dict[str, Any]], path: str) -> Iterator[LaunchHead]:
    for number, table in enumerate(tables, 1):
        where = f"{path}: [[launch]] {number}"
        if unknown := set(table) - _LAUNCH_KEYS:
            raise HeadError(f"{where} has {', '.join(sorted(unknown))}; it may hold {', '.join(sorted(_LAUNCH_KEYS))}")
        if missing := {"kernel", "grid", "block"} - set(table):
            raise HeadError(f"{where} lacks {', '.join(sorted(missing))}")

        def texts(key: str, table: dict[str, Any] = table, where: str = where) -> tuple[str, ...]:
            value = table.get(key, [])
            if not isinstance(value, list) or len(value) > 3 or (not value and key in table):
                raise HeadError(f"{where}: {key} must be a list of one to three expressions, not {value!r}")
            for item in value:
                names(str(item))
            return tuple(str(item) for item in value)

        if "when" in table:
            _reads(table["when"], f"{where}: when")
        if not isinstance(table["kernel"], str):
            raise HeadError(f"{where}: kernel must be a text such as \"softmax<{{T}}>\", not {table['kernel']!r}")
        for inside in BRACES.findall(table["kernel"]):
            names(inside)
        shared = str(table.get("shared", 0))
        names(shared)
        for key, most in (("grid", (2**31 - 1, 65535, 65535)), ("block", (1024, 1024, 64)), ("cluster", (16, 16, 16))):
            for text, limit in zip(texts(key), most, strict=False):
                if not names(text) and not 1 <= integer(text, {}) <= limit:
                    raise HeadError(f"{where}: {key} {text[:40]!r} is out of range; it must be 1 to {limit}")
        for key in ("pdl", "cooperative"):
            if not isinstance(table.get(key, False), bool):
                raise HeadError(f"{where}: {key} must be true or false; given {table[key]!r}")
        yield LaunchHead(
            kernel=table["kernel"], grid=texts("grid"), block=texts("block"), cluster=texts("cluster"), when=table.get("when"),
            shared=shared, pdl=table.get("pdl", False),
            args=tuple(_arg(a, path) for a in table["args"]) if "args" in table else None, cooperative=table.get("cooperative", False),
        )


def _reads(text: Any, where: str) -> None:
    if not isinstance(text, str):
        raise HeadError(f"{where} must be a condition, not {text!r}")
    names(text)


def _combinations(constants: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The sets of constants that an entry of `configs` stands for: a list gives several values; the last name's value changes fastest."""
    several = [value if isinstance(value, list) else [value] for value in constants.values()]
    for values in itertools.product(*several):
        yield dict(zip(constants, values, strict=True))


def _arg(text: Any, path: str, *, extents: bool = False) -> Arg:
    """Parses a parameter. Its dimensions bind shape names; with `extents` (scratch, which the caller allocates) they are expressions."""
    if not isinstance(text, str):
        raise HeadError(f"{path}: an arg must be a text such as \"x: f32[M, N]\", not {text!r}")
    if found := _MAP.match(text):
        return _map(found, text, path)
    if found := _TENSOR.match(text):
        name, dtype, dims, optional = found.groups()
        if dtype != "T" and dtype not in DTYPES:
            raise HeadError(f"{path}: arg {text!r}: {dtype!r} is not T or one of {', '.join(DTYPES)}")
        parts = tuple(d.strip() for d in dims.split(",") if d.strip())
        for part in parts:
            if extents:
                names(part)
            elif not (part.isascii() and (part.isidentifier() or part.isdigit())):
                raise HeadError(f"{path}: arg {text!r}: dimension {part!r} is neither a shape name nor a whole number")
        return TensorArg(name, dtype, parts, bool(optional))
    if found := _NUMBER.match(text):
        name, kind, expression = found.groups()
        if kind not in C_TYPES:
            raise HeadError(f"{path}: arg {text!r}: {kind!r} is not one of {', '.join(C_TYPES)} (a tensor is written x: f32[M, N])")
        names(expression or name)
        return NumberArg(name, kind, expression or name)
    raise HeadError(f"{path}: arg {text!r} is neither \"name: dtype[dims]\" nor \"name: type\" nor \"name: type = expression\"")


def _map(found: re.Match[str], text: str, path: str) -> MapArg:
    """`a_map: map = a[64, 64] swizzle 128`: the tensor, the box of one copy, and further settings in any order."""
    name, tensor, box, rest = found.groups()
    said: dict[str, str] = {}
    at = 0
    while at < len(rest):
        word = _MAP_WORD.match(rest, at)
        key = word and (word[1] or word[3])
        if word is None or key is None or key in said:
            raise HeadError(
                f"{path}: arg {text!r}: {rest[at:]!r} is not swizzle 128, steps [1, 2], as tf32, promote 256 or fill nan, each once at most"
            )
        said[key] = word[2] or word[4]
        at = word.end()
    boxes, steps = (tuple(d.strip() for d in one.split(",") if d.strip()) for one in (box, said.get("steps", "")))
    made = MapArg(
        name, tensor, boxes, said.get("swizzle", "0"), steps, said.get("as", ""), said.get("promote", "256"), said.get("fill", "zero")
    )
    for expression in made.expressions():
        names(expression)
    if made.fill not in tensor_maps.FILLS:
        raise HeadError(f"{path}: arg {text!r}: fill is {' or '.join(tensor_maps.FILLS)}")
    return made
