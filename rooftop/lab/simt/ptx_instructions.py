"""What each instruction of inline PTX becomes: `out(destination, operation<types>(in<type>(source), ...))`.

`in` and `out` carry bits between the types of the asm operands and those that the instruction names. Source of the instructions' meaning:
NVIDIA's PTX ISA 9.0. `ptx_table` lets only forms through that are told apart here. One table, in one file however long it grows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rooftop.lab.simt.ptx_table import refusal

TYPES = {
    "pred": "bool", "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t",
    "b32": "uint32_t",
    "u32": "uint32_t", "s32": "int32_t", "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "f32": "float", "f64": "double",
    "f16": "__half",
    "bf16": "__nv_bfloat16", "f16x2": "__half2", "bf16x2": "__nv_bfloat162", "tf32": "float",
}
WIDE = {"u16": "uint32_t", "s16": "int32_t", "u32": "uint64_t", "s32": "int64_t"}
SPECIAL = {
    "laneid": "simt::lane_index()", "warpid": "simt::warp_index()", "clock": "uint32_t(simt::clock_now())",
    "clock64": "uint64_t(simt::clock_now())",
    "globaltimer": "uint64_t(simt::clock_now())", "smid": "0u", "nsmid": "1u", "cluster_ctarank": "simt::cluster_rank()",
    "cluster_nctarank": "(simt::cluster_extent().x * simt::cluster_extent().y * simt::cluster_extent().z)",
    **{
        f"{name}.{axis}": f"{cpp}.{axis}"
        for name, cpp in (
            ("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"),
            ("cluster_nctaid", "simt::cluster_extent()"),
            ("cluster_ctaid", "simt::cluster_block()"), ("clusterid", "simt::cluster_index()"), ("nclusterid", "simt::clusters()"),
        )
        for axis in "xyz"
    },
    "lanemask_eq": "(1u << simt::lane_index())", "lanemask_lt": "((1u << simt::lane_index()) - 1)",
    "lanemask_le": "((2u << simt::lane_index()) - 1)",
    "lanemask_gt": "~((2u << simt::lane_index()) - 1)", "lanemask_ge": "~((1u << simt::lane_index()) - 1)",
}


@dataclass(frozen=True)
class Operand:
    constraint: str  # "=r", "l", ...
    expression: str


class Refused(Exception):
    """What the simulator does not know; the text says what that is."""


def name_of(text: str) -> str:
    return "simt_r_" + re.sub(r"\W", "_", text.strip().lstrip("%"))


@dataclass
class Line:
    """An instruction in parts: its dotted words, and its operands as C++."""

    words: list[str]
    args: list[str]
    operands: Sequence[Operand]
    registers: Mapping[str, str]  # those that the statement declares, with their types

    def value(self, text: str) -> str:
        text = text.strip()
        if match := re.fullmatch(r"%(\d+)", text):
            return f"({self.operands[int(match[1])].expression})"
        if text.startswith("%") and text[1:] in SPECIAL and text not in self.registers and name_of(text) not in self.registers:
            return SPECIAL[text[1:]]  # as NVCC reads it too, where it is no operand
        if text.startswith("%%"):
            if text[2:] not in SPECIAL:
                raise Refused(f"{'.'.join(self.words)} of the special register %{text[2:]}: the simulator does not know it")
            return SPECIAL[text[2:]]
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            return f"__uint_as_float(0x{match[1]}u)"
        if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
            return f"__longlong_as_double(0x{match[1]}ll)"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?|[-+]?\d*\.\d+(e[-+]?\d+)?", text):
            return text
        if text.startswith("!"):
            return f"!{self.value(text[1:])}"
        return name_of(text)

    def source(self, index: int, kind: str) -> str:
        given = f"simt::ptx::in<{kind}>({self.value(self.args[index])})"
        return f"simt::ptx::ftz({given})" if self.has("ftz") and kind in FLUSHED else given

    def many(self, index: int) -> list[str]:
        """The members of a vector operand, or the one operand."""
        text = self.args[index].strip()
        return [self.value(t) for t in text[1:-1].split(",")] if text.startswith("{") else [self.value(text)]

    def address(self, index: int) -> tuple[str, str]:
        """What stands between the brackets: a register, and an offset in bytes."""
        match = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]", self.args[index].strip())
        if not match:
            raise Refused(f"{'.'.join(self.words)} with the address {self.args[index]}: the simulator cannot read it")
        return self.value(match[1]), match[2] or "0"

    def has(self, *words: str) -> bool:
        return any(w in self.words for w in words)

    @property
    def type(self) -> str:
        return next(w for w in reversed(self.words) if w in TYPES)


FLUSHED = ("float", "__half", "__half2", "__nv_bfloat16", "__nv_bfloat162")
MODES = ("rn", "rz", "rm", "rp")


def _out(target: str, value: str) -> str:
    return "" if target == name_of("_") else f"simt::ptx::out({target}, {value});"


def _result(x: Line, kind: str, value: str) -> str:
    """A result as the modifiers have it: subnormal numbers are zero, it is held to 0 to 1, or what is negative is zero."""
    for word in ("ftz", "sat", "relu"):
        if x.has(word) and (word != "ftz" or kind in FLUSHED):
            value = f"simt::ptx::{word}<{kind}>({value})"
    return _out(x.value(x.args[0]), value)


_UNARY = {
    "ex2": "ex2", "lg2": "lg2", "rcp": "rcp", "rsqrt": "rsqrt", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "tanh": "tanh", "neg": "neg",
    "abs": "abs",
    "not": "bit_not", "popc": "popc", "clz": "clz", "brev": "brev", "cnot": "cnot",
}
_BINARY = {
    "add": "add", "sub": "sub", "div": "div", "rem": "rem", "min": "min", "max": "max", "and": "bit_and", "or": "bit_or", "xor": "bit_xor"
}
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_ATOMIC = {"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd", "or": "atomicOr", "xor": "atomicXor", "exch": "atomicExch",
           "inc": "atomicInc", "dec": "atomicDec"}
_IGNORED = ("prefetch", "prefetchu", "griddepcontrol", "createpolicy", "applypriority")


def statement(x: Line) -> str:
    """What the instruction becomes. Raises Refused."""
    if reason := refusal(".".join(x.words)):
        raise Refused(reason)
    op = x.words[0]
    if op in _IGNORED:
        return ""
    special: Callable[[Line], str] | None = _TABLE.get(op)
    if special is not None:
        return special(x)
    kind = TYPES[x.type]
    if x.has("rz", "rm", "rp"):
        return _directed(x, kind)
    if op in ("min", "max") and x.has("NaN", "xorsign"):
        which = f"{kind}, {int(op == 'max')}, {int(x.has('NaN'))}, {int(x.has('xorsign'))}"
        return _result(x, kind, f"simt::ptx::limit<{which}>({x.source(1, kind)}, {x.source(2, kind)})")
    if op in _UNARY:
        result = f"simt::ptx::{_UNARY[op]}({x.source(1, kind)})"
    else:
        result = f"simt::ptx::{_BINARY[op]}<{kind}>({x.source(1, kind)}, {x.source(2, kind)})"
    if x.has("sat") and x.type == "s32":
        result = f"simt::ptx::{op}_sat({x.source(1, kind)}, {x.source(2, kind)})"
        return _out(x.value(x.args[0]), result)
    return _result(x, kind, result)


def _directed(x: Line, kind: str) -> str:
    """Arithmetic on floats that is not rounded to the nearest."""
    mode = next(w for w in x.words if w in MODES)
    letter = {"add": "+", "sub": "-", "mul": "*", "mad": "f", "fma": "f", "div": "/", "rcp": "r", "sqrt": "q"}[x.words[0]]
    sources = [x.source(i, kind) for i in range(1, len(x.args))]
    sources += ["0"] * (3 - len(sources))
    return _result(x, kind, f"simt::maths::rounded('{letter}', '{mode[1]}', {', '.join(sources)})")


def _mul(x: Line) -> str:
    kind = TYPES[x.type]
    a, b = x.source(1, kind), x.source(2, kind)
    adds = x.words[0] in ("mad", "fma")
    if x.has("rz", "rm", "rp"):
        return _directed(x, kind)
    if x.has("wide"):
        wide = WIDE[x.type]
        result = f"{wide}({a}) * {wide}({b})"
    elif x.has("hi"):
        result = f"simt::ptx::mul_hi<{kind}>({a}, {b})"
    else:
        result = f"simt::ptx::mul<{kind}>({a}, {b})"
    if adds:
        wide_kind = WIDE[x.type] if x.has("wide") else kind
        c = x.source(3, wide_kind)
        result = f"simt::ptx::fma<{kind}>({a}, {b}, {c})" if not x.has("wide", "hi") else f"simt::ptx::add<{wide_kind}>({result}, {c})"
    return _result(x, kind, result)


def _shift(x: Line) -> str:
    kind = TYPES[x.type]
    return _out(x.value(x.args[0]), f"simt::ptx::{x.words[0]}<{kind}>({x.source(1, kind)}, {x.source(2, 'uint32_t')})")


def _mov(x: Line) -> str:
    kind = TYPES[x.type]
    to, of = x.many(0), x.many(1)
    if len(to) == len(of) == 1:
        return _out(to[0], f"simt::ptx::in<{kind}>({of[0]})")
    if len(to) == 1:
        return f"simt::ptx::pack({to[0]}, {', '.join(of)});"
    names = [f"simt_u{i}" if t == name_of("_") else t for i, t in enumerate(to)]
    unused = "".join(f"simt::ptx::Unused<{kind}, {len(to)}> {n}; " for n, t in zip(names, to, strict=True) if n != t)
    return f"{unused}simt::ptx::unpack(simt::ptx::in<{kind}>({of[0]}), {', '.join(names)});"


def _pointer(x: Line, index: int) -> str:
    register, offset = x.address(index)
    return f"simt::ptx::{'shared_' if any(w.startswith('shared') for w in x.words) else ''}pointer({register}, {offset})"


def _load(x: Line) -> str:
    kind = TYPES[x.type]
    to = x.many(0)
    where = _pointer(x, 1)
    volatile = "volatile " if x.has("volatile", "relaxed", "acquire") else ""
    if x.has("acquire") or (x.has("relaxed") and len(to) == 1):
        return _out(to[0], f"simt::ptx::load_atomic<{kind}>({where}, {int(x.has('acquire'))})")
    if len(to) == 1:
        return _out(to[0], f"*static_cast<const {volatile}{kind}*>({where})")
    got = f"const auto simt_v = *static_cast<const simt::ptx::Vector<{kind}, {len(to)}>*>({where});"
    return got + " " + " ".join(_out(t, f"simt_v.v[{i}]") for i, t in enumerate(to))


def _store(x: Line) -> str:
    kind = TYPES[x.type]
    values = [f"simt::ptx::in<{kind}>({v})" for v in x.many(1)]
    if x.has("async"):
        given = f"const simt::ptx::Vector<{kind}, {len(values)}> simt_v{{{{{', '.join(values)}}}}};"
        return f"{given} simt::store_async({_shared(x, 0)}, &simt_v, sizeof simt_v, {_shared(x, 2)});"
    where = _pointer(x, 0)
    if x.has("release") or (x.has("relaxed") and len(values) == 1):
        return f"simt::ptx::store_atomic<{kind}>({where}, {values[0]}, {int(x.has('release'))});"
    if len(values) == 1:
        return f"*static_cast<{'volatile ' if x.has('volatile') else ''}{kind}*>({where}) = {values[0]};"
    return f"*static_cast<simt::ptx::Vector<{kind}, {len(values)}>*>({where}) = simt::ptx::Vector<{kind}, {len(values)}>{{{{{', '.join(values)}}}}};"


def _atom(x: Line) -> str:
    kind = TYPES[x.type]
    first = 1 if x.words[0] == "atom" else 0
    name = next((w for w in x.words if w in _ATOMIC or w == "cas"), "")
    pointer = f"static_cast<{kind}*>({_pointer(x, first)})"
    values = ", ".join(x.source(i, kind) for i in range(first + 1, len(x.args) - int(x.has("L2::cache_hint"))))
    if x.has("release", "acq_rel", "acquire"):
        fence = "simt::fence(); "
    else:
        fence = ""
    call = f"atomicCAS({pointer}, {values})" if name == "cas" else f"{_ATOMIC[name]}({pointer}, {values})"
    return fence + (_out(x.value(x.args[0]), call) if first else f"{call};")


def _setp(x: Line) -> str:
    kind = TYPES[x.type]
    sign = x.words[1]
    if sign in ("lo", "ls", "hi", "hs"):
        kind = {"int32_t": "uint32_t", "int64_t": "uint64_t", "int16_t": "uint16_t"}.get(kind, kind)
    made = f"const auto simt_a = {x.source(1, kind)}; const auto simt_b = {x.source(2, kind)}; "
    test = f"simt_a {(_COMPARE | _UNORDERED).get(sign, '==')} simt_b"
    if x.type in ("f16", "bf16", "f32", "f64"):
        nan = "simt::ptx::nan(simt_a, simt_b)"
        test = (
            nan if sign == "nan" else f"!{nan}" if sign == "num" else f"({nan} || {test})" if sign in _UNORDERED else f"(!{nan} && {test})"
        )
    targets = x.args[0].split("|")
    joined = next((c for w, c in (("and", "&&"), ("or", "||"), ("xor", "!=")) if w in x.words), "")
    third = f" {joined} {x.value(x.args[3])}" if joined else ""
    made += f"const bool simt_p = ({test}){third}, simt_q = !({test}){third}; "
    return made + " ".join(f"{x.value(t)} = {p};" for t, p in zip(targets, ("simt_p", "simt_q"), strict=False) if t.strip() != "_")


def _selp(x: Line) -> str:
    kind = TYPES[x.type]
    return _out(x.value(x.args[0]), f"({x.value(x.args[3])} ? {x.source(1, kind)} : {x.source(2, kind)})")


def _cvt(x: Line) -> str:
    kinds = [w for w in x.words[1:] if w in TYPES or w in ("e4m3x2", "e5m2x2")]
    to, of = kinds[0], kinds[1]
    target = x.value(x.args[0])
    relu = int(x.has("relu"))
    if to in ("f16x2", "bf16x2") and of == "f32":  # the first source is the upper half
        half = TYPES[to.removesuffix("x2")]
        return _out(
            target, f"simt::ptx::two<{TYPES[to]}, {half}>({x.source(1, 'float')}, {x.source(2, 'float')}, {relu}, {int(x.has('rz'))})"
        )
    if to in ("e4m3x2", "e5m2x2"):
        both = f"{x.source(1, 'float')}, {x.source(2, 'float')}" if of == "f32" else x.source(1, "__half2")
        return _out(target, f"simt::ptx::fp8_two<{int(to == 'e5m2x2')}, {relu}>({both})")
    if of in ("e4m3x2", "e5m2x2"):
        return _result(x, "__half2", f"simt::ptx::fp8_widen<{int(of == 'e5m2x2')}>({x.source(1, 'uint16_t')})")
    if to == "tf32":
        return _result(x, "float", f"simt::ptx::to_tf32({x.source(1, 'float')}, {int(x.has('rna'))})")
    mode = next((w for w in x.words if w in (*MODES, "rni", "rzi", "rmi", "rpi")), "rn")
    if x.has("sat") and to[0] in "su":
        return _out(target, f"simt::ptx::clamped<{TYPES[to]}>({x.source(1, TYPES[of])}, '{mode[1]}')")
    return _result(x, TYPES[to], f"simt::ptx::convert<{TYPES[to]}>({x.source(1, TYPES[of])}, '{mode[1]}', {int(mode.endswith('i'))})")


def _lop3(x: Line) -> str:
    return _out(x.value(x.args[0]), f"simt::ptx::lop3({', '.join(x.source(i, 'uint32_t') for i in (1, 2, 3, 4))})")


def _three(name: str) -> Callable[[Line], str]:
    def make(x: Line) -> str:
        kind = TYPES[x.type]
        return _out(x.value(x.args[0]), f"simt::ptx::{name}<{kind}>({', '.join(x.source(i, kind) for i in range(1, len(x.args)))})")

    return make


def _shf(x: Line) -> str:
    name = "l" if x.has("l") else "r"
    clamp = "c" if x.has("clamp") else ""
    return _out(x.value(x.args[0]), f"__funnelshift_{name}{clamp}({', '.join(x.source(i, 'uint32_t') for i in (1, 2, 3))})")


def _shfl(x: Line) -> str:
    mode = next(w for w in x.words if w in ("bfly", "up", "down", "idx"))
    target, _, flag = x.args[0].partition("|")
    made = "bool simt_p; " + _out(
        x.value(target), f"simt::ptx::shfl('{mode[0]}', {', '.join(x.source(i, 'uint32_t') for i in (1, 2, 3, 4))}, simt_p)"
    )
    return made + (f" {x.value(flag)} = simt_p;" if flag else "")


def _vote(x: Line) -> str:
    name = {"all": "__all_sync", "any": "__any_sync", "ballot": "__ballot_sync"}[next(w for w in x.words if w in ("all", "any", "ballot"))]
    return _out(x.value(x.args[0]), f"{name}({x.source(2, 'uint32_t')}, {x.value(x.args[1])})")


def _redux(x: Line) -> str:
    name = next(w for w in x.words if w in ("add", "min", "max", "and", "or", "xor"))
    return _out(x.value(x.args[0]), f"__reduce_{name}_sync({x.source(2, 'uint32_t')}, {x.source(1, TYPES[x.type])})")


def _barrier(x: Line) -> str:
    if x.has("warp"):
        return f"__syncwarp({x.source(0, 'uint32_t')});"
    if x.has("cluster"):
        return "simt::cluster_arrive();" if x.has("arrive") else "simt::cluster_wait();"
    threads = x.value(x.args[1]) if len(x.args) > 1 else "0"
    if x.has("arrive"):
        return f"simt::block_arrive(int({x.value(x.args[0])}), int({threads}));"
    return f"simt::block_barrier(int({x.value(x.args[0])}), int({threads}), simt::PLAIN, 0);"


def _cp(x: Line) -> str:
    if x.has("commit_group"):
        return "simt::copy_commit();"
    if x.has("wait_all"):
        return "simt::copy_wait_all();"
    if x.has("wait_group"):
        return f"simt::copy_wait({x.value(x.args[0])});"
    if x.has("mbarrier"):
        return f"simt::copy_arrive(simt::ptx::shared_pointer({x.address(0)[0]}, {x.address(0)[1]}), {int(x.has('noinc'))});"
    size = x.value(x.args[2])
    third = x.args[3].strip() if len(x.args) - int(x.has("L2::cache_hint")) > 3 else ""
    if x.registers.get(third.lstrip("!")) == "pred":  # ignore-src: nothing is read, zeros are written
        filled = f"({x.value(third)} ? 0u : {size})"
    else:
        filled = x.source(3, "uint32_t") if third else size
    register, offset = x.address(1)
    return f"simt::copy_async({_shared(x, 0)}, simt::ptx::pointer({register}, {offset}), {size}, {filled});"


def _shared(x: Line, index: int) -> str:
    register, offset = x.address(index)
    return f"simt::ptx::shared_pointer({register}, {offset})"


def _matrix(x: Line) -> str:
    load = x.words[0] == "ldmatrix"
    registers, where = (x.many(0), _shared(x, 1)) if load else (x.many(1), _shared(x, 0))
    trans = int(x.has("trans"))
    if load:
        return f"uint32_t simt_m[{len(registers)}]; simt::ptx::ldmatrix<{len(registers)}, {trans}>({where}, simt_m); " + " ".join(
            _out(r, f"simt_m[{i}]") for i, r in enumerate(registers)
        )
    given = ", ".join(f"simt::ptx::in<uint32_t>({r})" for r in registers)
    return f"const uint32_t simt_m[] = {{{given}}}; simt::ptx::stmatrix<{len(registers)}, {trans}>({where}, simt_m);"


_MMA_ELEMENT = {"f16": "F16", "bf16": "BF16", "tf32": "TF32", "s8": "S8", "u8": "U8", "e4m3": "E4M3", "e5m2": "E5M2"}


def _mma(x: Line) -> str:
    sparse = x.has("sp::ordered_metadata")
    depth = x.words[4 if sparse else 3].removeprefix("m16n8k")
    d, a, b = x.words[-4:-1]
    to, of_a, of_b, of_c = x.many(0), x.many(1), x.many(2), x.many(3)

    def words(values: list[str]) -> str:
        return ", ".join(f"simt::ptx::in<uint32_t>({v})" for v in values)

    kinds = f"simt::ptx::{_MMA_ELEMENT[a]}, simt::ptx::{_MMA_ELEMENT[b]}"
    accumulator = {"f32": "float", "f16": "__half", "s32": "int32_t"}[d]
    if sparse:
        call = f"simt::ptx::sparse_mma<{kinds}>(simt_a, simt_b, simt_c, {x.source(4, 'uint32_t')}, {x.source(5, 'uint32_t')}); "
        given = f"uint32_t simt_a[] = {{{words(of_a)}}}, simt_b[] = {{{words(of_b)}}}, simt_c[] = {{{words(of_c)}}}; "
        return given + call + " ".join(_out(t, f"simt_c[{i}]") for i, t in enumerate(to))
    return (
        f"uint32_t simt_a[] = {{{words(of_a)}}}, simt_b[] = {{{words(of_b)}}}, simt_c[] = {{{words(of_c)}}}; "
        f"simt::ptx::mma<{depth}, {kinds}, {accumulator}>(simt_a, simt_b, simt_c); " + " ".join(
            _out(t, f"simt_c[{i}]") for i, t in enumerate(to)
        )
    )


def _mbarrier(x: Line) -> str:
    if x.has("init"):
        return f"simt::mbarrier_init({_shared(x, 0)}, {x.source(1, 'uint32_t')});"
    if x.has("inval"):
        return ""
    if x.has("arrive"):
        if x.has("expect_tx"):
            expected = f"simt::mbarrier_expect({_shared(x, 1)}, {x.source(2, 'uint32_t')});"
            call = f"simt::mbarrier_arrive({_shared(x, 1)}, 1)"
            return f"{expected} {call};" if x.args[0].strip() == "_" else f"{expected} {_out(x.value(x.args[0]), call)}"
        count = x.source(2, "uint32_t") if len(x.args) > 2 else "1"
        call = f"simt::mbarrier_arrive({_shared(x, 1)}, {count})"
        return f"{call};" if x.args[0].strip() == "_" else _out(x.value(x.args[0]), call)
    if x.has("test_wait", "try_wait"):
        state = f"{x.source(2, 'uint32_t')} & 1" if x.has("parity") else f"{x.source(2, 'uint64_t')} & 1"
        return f"{x.value(x.args[0])} = simt::mbarrier_test({_shared(x, 1)}, {state});"
    raise AssertionError(x.words)  # not in ptx_table


def _cvta(x: Line) -> str:
    shared = x.has("shared")
    if x.has("to"):
        result = f"simt::shared_address(simt::ptx::pointer({x.value(x.args[1])}, 0))" if shared else x.source(1, "uint64_t")
    else:
        result = f"reinterpret_cast<uint64_t>(simt::ptx::shared_pointer({x.value(x.args[1])}, 0))" if shared else x.source(1, "uint64_t")
    return _out(x.value(x.args[0]), result)


def _space(x: Line) -> str:
    space = "SHARED" if x.has("shared") else "GLOBAL"
    return f"{x.value(x.args[0])} = simt::memory_of(simt::ptx::pointer({x.value(x.args[1])}, 0)) == simt::{space};"


def _elect(x: Line) -> str:
    leader, _, flag = x.args[0].partition("|")
    found = f"const uint32_t simt_l = simt::ptx::leader({x.source(1, 'uint32_t')});"
    return f"{found} {_out(x.value(leader), 'simt_l')} {x.value(flag)} = simt_l == simt::lane_index();"


_TABLE: dict[str, Callable[[Line], str]] = {
    "mul": _mul, "mad": _mul, "fma": _mul, "shl": _shift, "shr": _shift, "mov": _mov, "ld": _load, "ldu": _load, "st": _store,
    "atom": _atom, "red": _atom,
    "setp": _setp, "selp": _selp, "cvt": _cvt, "lop3": _lop3, "shf": _shf, "shfl": _shfl, "vote": _vote, "redux": _redux, "bar": _barrier,
    "barrier": _barrier, "cp": _cp, "ldmatrix": _matrix, "stmatrix": _matrix, "mma": _mma,
    "movmatrix": lambda x: _out(x.value(x.args[0]), f"simt::ptx::movmatrix({x.source(1, 'uint32_t')})"), "mbarrier": _mbarrier, "cvta": _cvta,
    "prmt": lambda x: _out(x.value(x.args[0]), f"__byte_perm({', '.join(x.source(i, 'uint32_t') for i in (1, 2, 3))})"),
    "bfe": _three("bfe"), "bfi": _three("bfi"),
    "dp4a": lambda x: _out(x.value(x.args[0]), f"__dp4a({', '.join(x.source(i, TYPES[x.type]) for i in (1, 2, 3))})"),
    "membar": lambda x: "simt::fence();", "fence": lambda x: "simt::fence();", "nanosleep": lambda x: "simt::pause();",
    "trap": lambda x: 'simt::trap("trap");', "activemask": lambda x: _out(x.value(x.args[0]), "simt::active_mask()"),
    "mapa": lambda x: _out(x.value(x.args[0]), f"simt::ptx::mapa({x.source(1, 'uint32_t')}, {x.source(2, 'uint32_t')})"),
    "elect": _elect, "bra": lambda x: f"goto {x.args[0]};",
    "isspacep": _space,
}
