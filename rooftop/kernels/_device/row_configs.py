"""How rows that registers hold are shared out among threads: softmax, rms_norm and layer_norm. For any number of rows and columns.

A row is `vectors` of 16 bytes. It belongs to a team of threads, a few lanes of a warp or a block, and a thread holds as many of the vectors as it
takes, rounded up: the binary depends on that number, never on the columns. What is weighed:

    bytes in flight   a multiprocessor of an H200 must have about 40 KiB on their way to keep its part of the memory busy
    registers         a vector takes 4; the more a thread holds, the larger the part of the register file that is data
    rows in flight    several a multiprocessor, so that one reads while another adds up and a third writes
    padding           threads that hold fewer vectors than the others wait for them
"""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Device, Meta, Problem

ROW_BYTES = 65536  # the longest row: 512 threads of 8 vectors, two blocks a multiprocessor; with a residual 1024 threads of 4 and 4
REGISTER_FILE = 65536
FLYING = 64 * 1024  # bytes that should be on their way to a multiprocessor: 40 KiB suffice, and a row spends part of its time adding up


@dataclass(frozen=True)
class Rows:
    """What decides: how many rows, the vectors of one, the vectors beside it that a thread holds at once, and the least team."""

    rows: int
    vectors: int
    tensors: int  # 2 with a residual
    least: int  # singles of rows off 16 bytes are one a thread
    device: Device


def of(p: Problem, names: tuple[str, ...]) -> Rows:
    """Of the rows of p["x"]; `names` are the tensors that must lie on 16 bytes, with whole vectors a row, for it to have no singles."""
    x = p["x"]
    of_vector = 16 // x.itemsize
    columns = x.shape[1]
    aligned = columns % of_vector == 0 and all(_aligned(m) for name in names if (m := p.get(name)) is not None)
    vectors = columns // of_vector  # off 16 bytes the rest are singles
    return Rows(x.shape[0], max(1, vectors), 2 if p.get("residual") is not None else 1, 1 if aligned else 2 * of_vector, p.device)


def _aligned(m: Meta) -> bool:
    return m.align >= 16 and all(m.strides[d] * m.itemsize % 16 == 0 for d in range(len(m.shape) - 1) if m.strides[d] != 1 and m.shape[d] > 1)


def _config(team: int, vectors: int, rows: int, r: Rows) -> dict[str, int]:
    """`registers`: the most that a thread may use. With 32 a multiprocessor has all of its 2048 threads, with 64 half of them;
    rows off 16 bytes need more than 32 for where they begin."""
    return {"team": team, "vectors": vectors, "rows": rows, "registers": 32 if vectors <= 2 and rows == r.tensors == r.least == 1 else 64}


def _team(vectors: int, each: int) -> int:
    """Threads of a block for a row of so many vectors, `each` a thread."""
    return max(64, 32 * -(-vectors // (32 * each)))


def _flying(r: Rows, each: int, team: int) -> int:
    """Bytes on their way to a multiprocessor whose blocks have all just begun."""
    held = each * r.tensors
    registers = 32 if held <= 2 and r.tensors == 1 else min(64, 8 * -(-(28 + 4 * held) // 8))
    return min(32, 2048 // team, REGISTER_FILE // (registers * team)) * r.vectors * r.tensors * 16


def choose(r: Rows) -> dict[str, int]:
    most = 8 // r.tensors
    if r.rows * r.vectors <= 2048 * r.device.sms and 32 < r.vectors <= 1024 * most:
        # The card holds all of it at once: as few vectors a thread as there are threads, so that none waits for its own second one.
        each = -(-r.vectors // 1024)
        return _config(_team(r.vectors, each), each, 1, r)
    if r.vectors <= 32 * min(most, 8 if r.least == 1 else 6):
        # A row fits a warp: no barrier. Rows of up to 512 bytes take as many lanes as they have vectors, and several of them stand side by side.
        lanes = min(32, max(r.least, 1 << (r.vectors - 1).bit_length()))
        each = -(-r.vectors // lanes)
        rows = max(1, (4 if r.least == 1 else 2) // (each * r.tensors))  # four vectors a thread; two of rows off 16 bytes, each with its own head
        while rows > 1 and (rows == 3 or r.rows * lanes < rows * 512 * r.device.sms):
            rows -= 1  # rather more warps than more rows a warp: 16 warps a multiprocessor first
        return _config(lanes, each, rows, r)
    # A row a block. The first with little padding and enough in flight; else the one with the least padding.
    threads = 512 if r.vectors <= 512 * most else 1024  # two blocks of 512 beat one of 1024: one reads while the other adds up
    found = [(each, _team(r.vectors, each)) for each in (4, 3, 5, 6, 2, 7, 8) if each <= most and _team(r.vectors, each) <= threads]
    padding = {(each, team): each * team / r.vectors - 1 for each, team in found}
    good = [(each, team) for each, team in found if padding[each, team] <= 0.06 and _flying(r, each, team) >= FLYING]
    each, team = good[0] if good else min(found, key=lambda one: (round(padding[one], 2), -_flying(r, *one)))
    return _config(team, each, 1, r)


def configs(r: Rows) -> list[dict[str, int]]:
    """What tuning may try beside it."""
    most, warps, found = 8 // r.tensors, min(32, r.least), []
    for lanes in (1, 2, 4, 8, 16, 32):
        each = -(-r.vectors // lanes)
        if warps <= lanes < 2 * max(warps, r.vectors):
            found += [_config(lanes, each, rows, r) for rows in (1, 2, 4) if each * rows <= most]
    return found + [_config(_team(r.vectors, each), each, 1, r) for each in range(1, most + 1) if _team(r.vectors, each) <= 1024]


def refuses(p: Problem) -> str | None:
    """Why registers do not hold these rows, or None."""
    x = p["x"]
    if x.shape[1] * x.itemsize > ROW_BYTES:
        return f"a row must fit one block's registers, {ROW_BYTES} bytes; given {x.shape[1] * x.itemsize}"
    return None


def power_of_two(p: Problem) -> bool:
    columns = p["x"].shape[1]
    return columns & (columns - 1) == 0
