"""Launch configs of the kernels that hold a row in registers (softmax, rms_norm, layer_norm), for any number of rows and columns.

A row is `vectors` vectors of 16 bytes. A *team* of threads works on it: some lanes of a warp, or a whole block. Each thread holds
ceil(vectors / team) vectors. The kernel is compiled for that number and not for the number of columns. The choice weighs

    bytes in flight   a multiprocessor of an H200 needs about 40 KiB of outstanding loads to use its share of the memory bandwidth
    registers         a vector takes 4 registers; the more vectors a thread holds, the larger the part of the register file that is data
    rows in flight    several rows a multiprocessor: one is loaded while another is summed and a third is stored
    padding           threads with fewer vectors than the others idle

Example: layer_norm of bf16, 16384 rows of 8192 columns, on an H200. A row is 8192 * 2 / 16 = 1024 vectors. It does not fit a warp (32 lanes
* 8 vectors), so a block takes it, of at most 512 threads. The candidates are tried in the order 4, 3, 5, 6, 2, 7, 8 vectors a thread. 4
vectors
need 256 threads: no padding. The kernel is compiled for up to 64 registers and uses 48 (`rooftop inspect`), so five such blocks are
resident and 5 * 16 KiB = 80 KiB are in flight, more than `FLYING` (64 KiB): the config is team=256, vectors=4, registers=64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Device, Launch, Meta, Problem, instance

# the longest row: 512 threads of 8 vectors, two blocks a multiprocessor; with a residual 1024 threads of 4 vectors of each tensor
ROW_BYTES = 65536
REGISTER_FILE = 65536
# bytes that should be in flight to a multiprocessor: 40 KiB are enough while loading, but part of a row's time is arithmetic
FLYING = 64 * 1024


@dataclass(frozen=True)
class Rows:
    """What the choice depends on."""

    rows: int
    vectors: int  # of 16 bytes, of one row
    tensors: int  # row tensors that a thread holds at once: 1, or 2 with a residual, or in the backward of softmax
    least: int  # fewest threads of a team: more than 1 for unaligned rows, whose single elements are one a thread
    device: Device


def of(p: Problem, names: tuple[str, ...], held: int = 1) -> Rows:
    """The facts of the first of the tensors `names`, whose rows must all start on 16 bytes and be whole vectors; otherwise rows have single
    elements at their ends. `held`: row tensors that a thread holds at once."""
    x = p[names[0]]
    of_vector = 16 // x.itemsize
    columns = x.shape[1]
    aligned = columns % of_vector == 0
    for name in names if aligned else ():
        if (m := p.get(name)) is not None and not _aligned(m):
            aligned = False
            break
    vectors = columns // of_vector  # off 16 bytes the rest are singles
    return Rows(x.shape[0], max(1, vectors), held, 1 if aligned else 2 * of_vector, p.device)


def _aligned(m: Meta) -> bool:
    for extent, step in zip(m.shape[:-1], m.strides, strict=False):
        if extent > 1 and step != 1 and step * m.itemsize % 16:
            return False
    return m.align >= 16


def _config(team: int, vectors: int, rows: int, r: Rows) -> dict[str, int]:
    """`registers`: the most registers a thread may use (it sets __launch_bounds__). With 32, 2048 threads are resident on a multiprocessor;
    with 64,
    1024. Unaligned rows need more than 32, for the addresses of their ends."""
    return {"team": team, "vectors": vectors, "rows": rows, "registers": 32 if vectors <= 2 and rows == r.tensors == r.least == 1 else 64}


def _team(vectors: int, each: int) -> int:
    """Threads of a block for a row of `vectors` vectors, `each` of them a thread."""
    return max(64, 32 * -(-vectors // (32 * each)))


def _flying(r: Rows, each: int, team: int) -> int:
    """Bytes in flight to a multiprocessor when all its resident blocks have just issued their loads. 28 registers for addresses and sums
    and 4 for each vector is what the compiler uses, in steps of 8."""
    held = each * r.tensors
    registers = 32 if held <= 2 and r.tensors == 1 else min(64, 8 * -(-(28 + 4 * held) // 8))
    return min(32, 2048 // team, REGISTER_FILE // (registers * team)) * r.vectors * r.tensors * 16


def choose(r: Rows) -> dict[str, int]:
    most = 8 // r.tensors
    if r.rows * r.vectors <= 2048 * r.device.sms and 32 < r.vectors <= 1024 * most:
        # The whole tensor fits the card at once: one vector a thread where there are enough threads.
        each = -(-r.vectors // 1024)
        return _config(_team(r.vectors, each), each, 1, r)
    if r.vectors <= 32 * min(most, 8 if r.least == 1 else 6):
        # A row fits a warp: no barrier. Rows of up to 512 bytes take as many lanes as they have vectors; a warp holds several of them.
        lanes = min(32, max(r.least, 1 << (r.vectors - 1).bit_length()))
        each = -(-r.vectors // lanes)
        # four vectors a thread; two for unaligned rows, each with its own start
        rows = max(1, (4 if r.least == 1 else 2) // (each * r.tensors))
        while rows > 1 and (rows == 3 or r.rows * lanes < rows * 512 * r.device.sms):
            rows -= 1  # more warps before more rows a warp, until there are 16 warps a multiprocessor
        return _config(lanes, each, rows, r)
    # One block a row. The first candidate with at most 6 % padding and enough bytes in flight; if there is none, the one with the least
    # padding.
    threads = 512 if r.vectors <= 512 * most else 1024  # two blocks of 512 beat one of 1024: one loads while the other computes
    best, least = (0, 0), (inf, 0)
    for each in (4, 3, 5, 6, 2, 7, 8):
        if each <= most and (team := _team(r.vectors, each)) <= threads:
            padding, flying = each * team / r.vectors - 1, _flying(r, each, team)
            if padding <= 0.06 and flying >= FLYING:
                return _config(team, each, 1, r)
            if (round(padding, 2), -flying) < least:
                best, least = (team, each), (round(padding, 2), -flying)
    return _config(*best, 1, r)


def blocks(r: Rows, threads: int) -> list[dict[str, int]]:
    """All configs of a block a row, of `threads` threads at most."""
    teams = [(_team(r.vectors, each), each) for each in range(1, 8 // r.tensors + 1)]
    return [_config(team, each, 1, r) for team, each in teams if team <= threads]


def configs(r: Rows) -> list[dict[str, int]]:
    """More configs, for `rooftop tune`."""
    most, warps, found = 8 // r.tensors, min(32, r.least), []
    for lanes in (1, 2, 4, 8, 16, 32):
        each = -(-r.vectors // lanes)
        if warps <= lanes < 2 * max(warps, r.vectors):
            found += [_config(lanes, each, rows, r) for rows in (1, 2, 4) if each * rows <= most]
    return found + blocks(r, 1024)


def refuses(row: Meta) -> str | None:
    """Why the rows of a tensor do not fit in registers, or None."""
    size = row.shape[1] * row.itemsize
    return f"a row must fit one block's registers, {ROW_BYTES} bytes; given {size}" if size > ROW_BYTES else None


def launch(name: str, p: Problem, config: Mapping[str, int], head: Head, *flags: bool) -> Launch:
    """`<name>_warp`, where a row takes a warp or less, or `<name>_block`; `flags`: the last template arguments."""
    team, vectors, rows, registers = config["team"], config["vectors"], config["rows"], config["registers"]
    element, (args, types), count = DTYPES[p["y"].dtype].cuda, head.arguments(p, config), p["y"].shape[0]
    if team <= 32:
        kernel = instance(f"{name}_warp", element, team, vectors, rows, registers, *flags)
        block, grid = 256, -(-count // (rows * (256 // team)))
    else:
        kernel, block, grid = instance(f"{name}_block", element, vectors, registers, *flags), team, count
    return Launch(kernel, (grid,), args, types=types, block=(block,), pdl=p.device.pdl)
