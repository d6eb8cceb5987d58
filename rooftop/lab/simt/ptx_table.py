"""The instructions of PTX that the simulator knows, with their modifiers. What is not here it refuses, by name and line: this table
decides.

A form is what follows an instruction's name, in the order of NVIDIA's PTX ISA 9.0: one word of each group `a|b` stands there, of a group
that ends in `?` one or none. `ptx_instructions` says what each becomes, by the words that stand there: a word that changes a result is
looked at there, others say where data lies, how it is cached, or which rounding is meant where there is but one."""

from __future__ import annotations

import re
from functools import cache

_INTEGER, _BITS = "u16|u32|u64|s16|s32|s64", "b16|b32|b64"
_ANY = "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
_MOVED = "pred|b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"
_RND = "rn|rz|rm|rp"
_HALVES = "f16|f16x2"
_BRAINS = "bf16|bf16x2"
_CTA = "shared|shared::cta"
_SPACE = "global|shared|shared::cta|shared::cluster?"
_SCOPE = "cta|cluster|gpu|sys"
_KEEP = "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate?"
_KEEP2 = "L2::evict_normal|L2::evict_first|L2::evict_last?"
_HINTS = f"{_KEEP} {_KEEP2} L2::cache_hint? L2::64B|L2::128B|L2::256B?"
_VECTOR = "v2|v4|v8?"
_ORDER = "eq|ne|lt|le|gt|ge"
_FLOAT_ORDER = f"{_ORDER}|equ|neu|ltu|leu|gtu|geu|num|nan"
_JOINED = "and|or|xor?"
_ARITHMETIC = (_INTEGER, f"{_RND}? ftz? sat? f32", f"{_RND}? f64", f"rn? ftz? sat? {_HALVES}", f"rn? {_BRAINS}")
_LARGER = (
    _INTEGER, "relu s32", "ftz? NaN? xorsign? abs? f32", "f64", f"ftz? NaN? xorsign? abs? {_HALVES}", f"NaN? xorsign? abs? {_BRAINS}",
)
_SIGN = ("s16|s32|s64", "ftz? f32", "f64", f"ftz? {_HALVES}", _BRAINS)
_APPROX = ("approx ftz? f32",)
_ROOT = ("approx ftz? f32", f"{_RND} ftz? f32", f"{_RND} f64")
_ATOMIC = tuple(
    f"relaxed|acquire|release|acq_rel? {_SCOPE}? {_SPACE} {which}"
    for which in (
        "add L2::cache_hint? u32|s32|u64|f32|f64", "min|max L2::cache_hint? u32|u64|s32|s64", "and|or|xor|exch L2::cache_hint? b32|b64",
        "inc|dec L2::cache_hint? u32", "cas L2::cache_hint? b16|b32|b64", "add|min|max noftz L2::cache_hint? f16|f16x2|bf16|bf16x2",
    )
)

FORMS: dict[str, tuple[str, ...]] = {
    # -- arithmetic
    "add": ("sat s32", *_ARITHMETIC), "sub": ("sat s32", *_ARITHMETIC),
    "mul": (f"hi|lo {_INTEGER}", "wide u16|s16|u32|s32", *_ARITHMETIC[1:]),
    "mad": (f"hi|lo {_INTEGER}", "wide u16|s16|u32|s32", f"{_RND}? ftz? sat? f32", f"{_RND}? f64"),
    "fma": (f"{_RND} ftz? sat? f32", f"{_RND} f64", f"rn ftz? sat? {_HALVES}", f"rn ftz? relu {_HALVES}", f"rn relu? {_BRAINS}"),
    "div": (_INTEGER, "approx|full ftz? f32", f"{_RND} ftz? f32", f"{_RND} f64"), "rem": (_INTEGER,), "min": _LARGER, "max": _LARGER,
    "abs": _SIGN, "neg": _SIGN, "rcp": _ROOT, "sqrt": _ROOT, "rsqrt": ("approx ftz? f32", "approx f64"),
    "ex2": (*_APPROX, f"approx {_HALVES}", f"approx ftz {_BRAINS}"), "lg2": _APPROX, "sin": _APPROX, "cos": _APPROX,
    "tanh": (f"approx f32|{_HALVES}|{_BRAINS}",),
    # -- bits
    "popc": ("b32|b64",), "clz": ("b32|b64",), "brev": ("b32|b64",), "not": (f"pred|{_BITS}",), "cnot": (_BITS,), "and": (f"pred|{_BITS}",),
    "or": (f"pred|{_BITS}",), "xor": (f"pred|{_BITS}",), "shl": (_BITS,), "shr": (f"{_BITS}|{_INTEGER}",), "shf": ("l|r clamp|wrap b32",),
    "lop3": ("b32",), "prmt": ("b32",), "bfe": ("u32|u64|s32|s64",), "bfi": ("b32|b64",), "dp4a": ("u32 u32", "s32 s32"),
    # -- comparison, choice, moves and conversions
    "setp": (
        f"{_ORDER}|lo|ls|hi|hs {_JOINED} {_BITS}|{_INTEGER}", f"{_FLOAT_ORDER} {_JOINED} ftz? f32|f16",
        f"{_FLOAT_ORDER} {_JOINED} f64|bf16",
    ),
    "selp": (_MOVED.removeprefix("pred|"),), "mov": (_MOVED,),
    "cvt": (
        "sat? u8|u16|u32|u64|s8|s16|s32|s64 u8|u16|u32|u64|s8|s16|s32|s64",
        "rni|rzi|rmi|rpi ftz? sat? u8|u16|u32|u64|s8|s16|s32|s64 f16|f32|f64|bf16",
        f"{_RND} ftz? sat? f32|f64 u8|u16|u32|u64|s8|s16|s32|s64", "rn f16|bf16 u8|u16|u32|s8|s16|s32", f"{_RND} ftz? sat? f32 f64",
        "ftz? sat? f32|f64 f16|bf16|f32", "rni|rzi|rmi|rpi ftz? sat? f32 f32", "rni|rzi|rmi|rpi sat? f64 f64", "rn f16 f64",
        f"{_RND} ftz? sat? f16 f32", "rn|rz relu? f16|bf16|f16x2|bf16x2 f32", "rna|rn relu? tf32 f32",
        "rn satfinite relu? e4m3x2|e5m2x2 f32|f16x2",
        "rn relu? f16x2 e4m3x2|e5m2x2",
    ),
    "cvta": (f"to? global|{_CTA} u32|u64",), "isspacep": (f"global|{_CTA}",), "mapa": ("shared::cluster? u32|u64",),
    # -- memory
    "ld": (
        f"weak? {_SPACE} {_HINTS} {_VECTOR} {_ANY}",
        f"weak? {_SPACE} ca|cg|cs|lu|cv L2::cache_hint? L2::64B|L2::128B|L2::256B? {_VECTOR} {_ANY}",
        f"global ca|cg|cs? nc {_HINTS} {_VECTOR} {_ANY}", f"volatile {_SPACE} {_VECTOR} {_ANY}",
        f"relaxed|acquire {_SCOPE} {_SPACE} {_HINTS} {_VECTOR} {_ANY}",
    ),
    "ldu": (f"global? {_VECTOR} {_ANY}",),
    "st": (
        f"weak? {_SPACE} {_KEEP} {_KEEP2} L2::cache_hint? {_VECTOR} {_ANY}", f"weak? {_SPACE} wb|cg|cs|wt L2::cache_hint? {_VECTOR} {_ANY}",
        f"volatile {_SPACE} {_VECTOR} {_ANY}", f"relaxed|release {_SCOPE} {_SPACE} {_KEEP} {_KEEP2} L2::cache_hint? {_VECTOR} {_ANY}",
        "async weak? shared::cluster mbarrier::complete_tx::bytes v2|v4? b32|b64|u32|u64|s32|s64|f32|f64",
    ),
    "atom": _ATOMIC, "red": _ATOMIC,
    "cp": (
        f"async ca|cg {_CTA} global L2::cache_hint? L2::64B|L2::128B|L2::256B?", "async commit_group|wait_all|wait_group",
        f"async mbarrier::arrive noinc? {_CTA}? b64",
    ),
    "prefetch": ("global? L1|L2", "global L2::evict_last|L2::evict_normal", "tensormap", "param tensormap"), "prefetchu": ("L1",),
    "applypriority": ("global? L2::evict_normal",),
    "createpolicy": (
        "fractional L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged L2::evict_first|L2::evict_unchanged? b64",
        "range global? L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged L2::evict_first|L2::evict_unchanged? b64",
    ),
    "membar": ("cta|gl|sys",),
    "fence": (
        f"sc|acq_rel|acquire|release? {_SCOPE}", "mbarrier_init release cluster", "proxy alias|async|async::global|async::shared::cta",
    ),
    # -- threads
    "bar": ("sync|arrive", "cta sync|arrive", "warp sync"),
    "barrier": ("cta? sync|arrive aligned?", "cluster arrive release|relaxed? aligned?", "cluster wait acquire? aligned?"),
    "mbarrier": (
        f"init {_CTA}? b64", f"inval {_CTA}? b64", f"arrive release? cta|cluster? {_CTA}? b64",
        f"arrive expect_tx release? cta|cluster? {_CTA}? b64",
        f"test_wait|try_wait parity? acquire? cta|cluster? {_CTA}? b64",
    ),
    "shfl": ("sync up|down|bfly|idx b32",), "vote": ("sync all|any pred", "sync ballot b32"),
    "redux": ("sync add|min|max u32|s32", "sync and|or|xor b32"),
    "activemask": ("b32",), "elect": ("sync",), "nanosleep": ("u32",), "griddepcontrol": ("wait|launch_dependents",), "trap": ("",),
    "ldmatrix": (f"sync aligned m8n8 x1|x2|x4 trans? {_CTA}? b16", f"sync aligned x1|x2|x4 trans? m8n8 {_CTA}? b16"),
    "stmatrix": (f"sync aligned m8n8 x1|x2|x4 trans? {_CTA}? b16", f"sync aligned x1|x2|x4 trans? m8n8 {_CTA}? b16"),
    "mma": (
        "sync aligned m16n8k8|m16n8k16 row col f32 f16 f16 f32", "sync aligned m16n8k8|m16n8k16 row col f16 f16 f16 f16",
        "sync aligned m16n8k8|m16n8k16 row col f32 bf16 bf16 f32", "sync aligned m16n8k4|m16n8k8 row col f32 tf32 tf32 f32",
        "sync aligned m16n8k16|m16n8k32 row col s32 s8|u8 s8|u8 s32", "sync aligned m16n8k32 row col f32 e4m3|e5m2 e4m3|e5m2 f32",
        "sync aligned m16n8k32 row col f16 e4m3|e5m2 e4m3|e5m2 f16", "sp::ordered_metadata sync aligned m16n8k32 row col f32 f16 f16 f32",
        "sp::ordered_metadata sync aligned m16n8k32 row col f32 bf16 bf16 f32",
    ),
    "movmatrix": ("sync aligned m8n8 trans b16",),
    "bra": ("uni?",),
}


@cache
def _patterns(name: str) -> tuple[re.Pattern[str], ...]:
    def group(text: str) -> str:
        words = "|".join(re.escape(w) for w in text.removesuffix("?").split("|"))
        return f"(?:\\.(?:{words})){'?' if text.endswith('?') else ''}"

    return tuple(re.compile("".join(map(group, form.split()))) for form in FORMS[name])


def refusal(name: str) -> str | None:
    """None, or why the instruction `name`, with its modifiers, is not simulated."""
    op, *modifiers = name.split(".")
    if op not in FORMS:
        return f"{name}: the simulator does not know this instruction"
    rest = name[len(op) :]
    if any(p.fullmatch(rest) for p in _patterns(op)):
        return None
    known = {w for form in FORMS[op] for group in form.split() for w in group.removesuffix("?").split("|")}
    unknown = [f".{w}" for w in modifiers if w not in known]
    return f"{name}: of {op} the simulator does not know {' '.join(unknown) if unknown else 'these modifiers together'}"
