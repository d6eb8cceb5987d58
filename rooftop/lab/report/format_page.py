"""The tables of docs/formats.md, from rooftop/formats/number_formats.py: the bits of each format, its ranges, every code with its value."""

from __future__ import annotations

from rooftop.formats.number_formats import ELEMENTS, FORMATS, Format, decode


def drawing(f: Format) -> str:
    """The bits of a code, highest first: `s` sign, `e` exponent, `m` mantissa; of ints `i`."""
    letters = f"{'s' * bool(f.exponent)}{'e' * f.exponent}{'m' * f.mantissa}" if f.exponent else "i" * f.bits
    numbers = "".join(f"{f.bits - 1 - i:^3}" for i in range(f.bits))
    edge = "+" + "--+" * f.bits
    return "\n".join(["```text", f" {numbers}", edge, "|" + "".join(f"{c:^2}|" for c in letters), edge, "```"])


def value(v: float) -> str:
    """A value as it is: NaN, inf, or the shortest decimal that is it exactly, with the power of two where that is long."""
    if v != v:
        return "NaN"
    if v in (float("inf"), -float("inf")):
        return "inf" if v > 0 else "-inf"
    text = f"{v:.10g}"
    if float(text) == v:
        return "-0" if str(v) == "-0.0" else text
    mantissa, exponent = v.hex().split("p")
    return f"{float.fromhex(mantissa + 'p0'):g} · 2^{int(exponent)}"


def codes(f: Format) -> str:
    """Every code: rows by its high digit, columns by its low one, in hexadecimal; of floats the half without a sign."""
    import torch

    count = 2 ** (f.bits - 1) if f.exponent else 2**f.bits
    values = [value(v) for v in decode(torch.arange(count, dtype=torch.uint8), f.name).tolist()]
    wide = min(16, 8 if f.bits < 8 else 16)
    lines = ["| code | " + " | ".join(f"+{i:x}" for i in range(wide)) + " |", "|---|" + "---:|" * wide]
    lines += [f"| 0x{at:02x} | " + " | ".join(values[at : at + wide]) + " |" for at in range(0, count, wide)]
    return "\n".join(lines)


def ranges() -> str:
    """What the formats hold, one a row."""
    lines = [
        "| format | bits | exponent, mantissa | bias | largest | smallest normal | smallest above zero | NaN | infinity |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for f in ELEMENTS.values():
        split, bias = (f"{f.exponent}, {f.mantissa}", str(f.bias)) if f.exponent else ("", "")
        lines.append(
            f"| {f.name} | {f.bits} | {split} | {bias} | {value(f.max)} | {value(f.normal)} | {value(f.smallest)} | "
            f"{'yes' if f.nan else 'no'} | {'yes' if f.inf else 'no'} |"
        )
    return "\n".join(lines)


def shared() -> str:
    """The formats whose groups must share a scale."""
    lines = ["| format | codes | group | scale | bits an element |", "|---|---|---:|---|---:|"]
    for f in FORMATS.values():
        if f.group:
            lines.append(
                f"| {f.name} | {f.element} | {f.group} | {f.scale}{', and a float32 of the tensor' * (f.kind == 'nv')} | "
                f"{f.bits + 8 / f.group:g} |"
            )
    return "\n".join(lines)


def tables() -> str:
    """Each format with its drawing and its codes."""
    found = []
    for f in ELEMENTS.values():
        if f.exponent:
            count = 2**f.mantissa - 1
            text = f"Codes 0x01 to 0x{count:02x} are subnormal" if count > 1 else "Code 0x01 is subnormal"
            text = (
                f"{text}: multiples of {value(f.smallest)} below {value(f.normal)}. A negative number has 0x{1 << (f.bits - 1):02x} more."
            )
        else:
            text = f"Without zero points the codes of {value(f.min)} to {value(f.max)} are used; code 0x{f.zero:02x} is zero."
        found.append(f"### {f.name}\n\n{drawing(f)}\n\n{text}\n\n{codes(f)}")
    return "\n\n".join(found)


def chances() -> str:
    """What stochastic rounding does to eight values between two codes of each format, of 65536 draws each."""
    import torch

    from rooftop.formats import random_bits
    from rooftop.formats.number_formats import encode

    draws, fractions = 1 << 16, (1 / 256, 1 / 32, 0.2, 1 / 3, 0.5, 0.7, 0.9, 255 / 256)
    lines = [
        "| format | chi-square of 8 fractions | furthest mean, in its standard deviations | other codes than the two neighbours |",
        "|---|---:|---:|---:|"
    ]
    for i, f in enumerate(ELEMENTS.values()):
        values = decode(torch.arange(2**f.bits, dtype=torch.uint8), f.name)
        sizes = sorted({v for v in values.tolist() if 0 <= v <= f.max})
        random = random_bits.halves(29, len(fractions) * draws, start=i * len(fractions) * draws)
        chi, worst, others = 0.0, 0.0, 0
        for k, fraction in enumerate(fractions):
            a, b = sizes[k % (len(sizes) - 1)], sizes[k % (len(sizes) - 1) + 1]
            v = torch.tensor(a + (b - a) * fraction, dtype=torch.float64).float()
            up = (float(v) - a) / (b - a)
            got = decode(encode(v.expand(draws), f.name, "stochastic", random[k * draws : (k + 1) * draws]), f.name)
            n = int((got == b).sum())
            others += draws - n - int((got == a).sum())
            off = (n - draws * up) / (draws * up * (1 - up)) ** 0.5
            chi, worst = chi + off * off, max(worst, abs(off))
        lines.append(f"| {f.name} | {chi:.1f} | {worst:.1f} | {others} |")
    return "\n".join(lines)
