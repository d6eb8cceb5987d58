"""How select_rows, select_lists and warp_rows (selections__cuda_sm80.cu) and short_rows (_top_k_short.cuh) divide rows: threads, entries in
shared memory, blocks per row and, with several, the launches that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import DTYPES, Device, Launch, Meta, Problem, pow2
from rooftop.ops._ordering import LONGEST

MOST = 2048  # entries that a block selects
WARP = 256  # elements of a row that a warp sorts in registers
THREADS = (64, 128, 192, 320)  # of a block; 640 of a multiprocessor leave each 96 registers
LIST = 32768  # entries of lists that a block reads
GROUPS = 128  # groups of elements of a short row, whose maxima give the threshold
# the most that short_rows selects: three quarters of the groups, so that rarely more than twice as many elements reach the threshold
SHORT = 96
TURNED = 2**31 - 1  # `tie` of _sort_keys.cuh: of equals the last comes first
RESERVED = 2048  # bytes of shared memory besides the entries: a histogram, counters and what the driver reserves

Arguments = Mapping[str, tuple[Any, str]]


def sense(descending: bool, nan: str) -> int:
    """Bits of `sense` in _sort_keys.cuh."""
    return (0 if descending else 1) | (2 if nan == "smallest" else 0)


def rows_of(p: Problem) -> tuple[int, int]:
    rows, n = p["x"].shape
    return rows, n


def not_taken(p: Problem) -> str | None:
    """Why no kernel that sorts or selects supports the problem, or None."""
    x = p["x"]
    rows, n = rows_of(p)
    if n > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if n >= LONGEST or rows >= 2**31:
        return f"rows of at most {LONGEST} elements, fewer than 2^31 of them"
    if x.numel == 0:
        return "there is nothing to order"
    return None


def key_bytes(p: Problem) -> int:
    return 8 if p["x"].dtype == "i64" else 4


def items(p: Problem) -> int:
    """Elements that a thread processes in an iteration."""
    return 8 if p["x"].dtype == "i64" else 16


def _capacity(device: Device, entry: int, threads: int, each: int, k: int, whole: int) -> int | None:
    """Entries that a block holds: those of an iteration besides the k kept, and half as many again that accumulate between two selections.
    `whole`: the number of elements. None: they do not fit."""
    round_ = threads * each
    least = max(pow2(k), k + round_)
    room = (device.shared_per_block - RESERVED) // entry
    if whole <= round_:
        least = max(pow2(k), round_)
    least = -(-least // 4) * 4  # keys and indices start on 16 bytes
    if least > room:
        return None
    half = (device.shared_per_block - 2 * RESERVED) // (2 * entry)  # two blocks a multiprocessor
    wanted = least if whole <= round_ else least + max(2048, k + k // 2)
    return (min(wanted, half) if least <= half else min(wanted, room)) // 4 * 4


def _threads(p: Problem, k: int, length: int, each: int) -> tuple[int, int] | None:
    """(threads, capacity) of a block for so many elements: the fewest threads that process them in one iteration, or the most that fit."""
    wanted = next((t for t in THREADS if t * each >= length), THREADS[-1])
    for threads in reversed([t for t in THREADS if t <= wanted]):
        if (capacity := _capacity(p.device, key_bytes(p) + 4, threads, each, k, length)) is not None:
            return threads, capacity
    return None


def short(p: Problem) -> tuple[int, int] | None:
    """(threads, packs of 16 bytes a thread) of the smallest block whose registers hold a row."""
    x = p["x"]
    n, size = x.shape[1], DTYPES[x.dtype].bytes
    aligned = x.align >= 16 and (x.shape[0] == 1 or x.strides[0] * size % 16 == 0)
    packs = -(-(n + (0 if aligned else 16 // size - 1)) * size // 16)
    most = 4 if size == 2 else 8  # 32 keys of a thread, 16 of 64 bits
    for threads in (128, 256, 512):
        for each in (most // 4, most // 2, most):
            if threads * each >= packs and (threads == 128 or each == most):
                return threads, each
    return None


def plan(p: Problem, k: int) -> dict[str, Any] | None:
    """The config for the first k, 1 <= k <= n, of each row; None if no block holds them."""
    rows, n = rows_of(p)
    if n <= WARP:
        return {"way": "warp", "each": max(1, pow2(-(-n // 32)))}
    if k > MOST:
        return None
    if k <= SHORT and (held := short(p)) is not None:
        return {"way": "short", "threads": held[0], "each": held[1]}
    each = items(p)
    slots = 2 * p.device.sms
    splits = max(1, min(slots // rows, n // max(4096, 4 * k)))
    per = -(-n // splits)
    per = -(-per // 16) * 16 if splits > 1 else n
    splits = -(-n // per)
    first = _threads(p, k, per, each)
    later = _threads(p, k, LIST, 8)
    if first is None or later is None:
        return None
    return {
        "way": "select", "threads": first[0], "capacity": first[1], "splits": splits, "per": per, "list_threads": later[0],
        "list_capacity": later[1]
    }


def _levels(k: int, splits: int) -> list[tuple[int, int, int]]:
    """(entries of a row, entries of a block, blocks a row) of each launch over lists."""
    found = []
    while splits > 1:
        n = splits * k
        per = max(LIST // k, 2) * k
        splits = -(-n // per)
        found.append((n, per, splits))
    return found


def scratch(p: Problem, config: Mapping[str, Any], k: int) -> dict[str, Meta]:
    if config["way"] != "select" or config["splits"] == 1:
        return {}
    rows, _ = rows_of(p)
    dtype = "u64" if p["x"].dtype == "i64" else "u32"
    lists = [config["splits"], *(s for _, _, s in _levels(k, config["splits"]) if s > 1)]
    found: dict[str, Meta] = {}
    for i, splits in enumerate(lists):
        found |= {f"keys{i}": Meta((rows * splits * k,), dtype), f"indices{i}": Meta((rows * splits * k,), "u32")}
    return found


def given(p: Problem) -> tuple[Arguments, Arguments]:
    """x and its lengths: the first arguments of every kernel that reads rows."""
    lengths = p.get("lengths")
    _, n = rows_of(p)
    return (
        {"x": ("x", "ptr"), "xs": (p["x"].strides[0], "i64")},
        {
            "n": (n, "u32"), "lengths": ("lengths" if lengths is not None else None, "ptr"),
            "wide": (int(lengths is not None and lengths.dtype == "i64"), "i32")
        },
    )


def results(p: Problem, first: int, count: int, values: str | None, indices: str | None, mask: str | None, marks: bool) -> Arguments:
    return {
        "first": (first, "u32"), "count": (count, "u32"), "values": (values, "ptr"), "indices": (indices, "ptr"), "mask": (mask, "ptr"),
        "marks": (int(marks), "i32"),
    }


def launch(p: Problem, kernel: str, grid: int, block: int, args: Arguments, shared: int = 0) -> Launch:
    values, types = zip(*args.values(), strict=True)
    return Launch(
        kernel, (grid,), dict(zip(args, values, strict=True)), types=types, block=(block,), shared=shared, pdl=p.device.arch >= 90
    )


def fill(p: Problem, mask: str, value: bool) -> Launch:
    """A mask that holds `value` up to a row's length."""
    rows, n = rows_of(p)
    _, lengths = given(p)
    args = {"mask": (mask, "ptr"), "rows": (rows, "i64"), **lengths, "value": (int(value), "i32")}
    each = 256 if p.get("lengths") is not None else 256 * 16
    return launch(p, "fill_mask", max(1, min(8 * p.device.sms, -(-rows * n // each))), 256, args)


def launches(p: Problem, config: Mapping[str, Any], k: int, sense: int, tie: int, to: Arguments, rest: bool = False) -> list[Launch]:
    """Writes the first k of each row in order, from place `to["first"]` on."""
    rows, n = rows_of(p)
    t = DTYPES[p["x"].dtype].cuda
    x, lengths = given(p)
    order: Arguments = {"sense": (sense, "u32"), "tie": (tie, "u32")}
    if config["way"] == "warp":
        args = {**x, "rows": (rows, "u32"), **lengths, **order, **to, "rest": (int(rest), "i32")}
        return [launch(p, f"warp_rows<{t}, {config['each']}>", -(-rows // 4), 128, args)]
    if config["way"] == "short":
        taken: Arguments = {"k": (k, "u32"), "bits": (31 if tie else max(1, (n - 1).bit_length()), "i32")}
        name = f"short_rows<{t}, {config['threads']}, {config['each']}, {GROUPS}>"
        return [launch(p, name, rows, config["threads"], {**x, **lengths, **taken, **order, **to})]
    bits, entry, splits = (31 if tie else max(1, (n - 1).bit_length())), key_bytes(p) + 4, config["splits"]

    def lists(i: int, there: bool) -> Arguments:
        return {"list_keys": (f"keys{i}" if there else None, "ptr"), "list_indices": (f"indices{i}" if there else None, "ptr")}

    capacity, threads = config["capacity"], config["threads"]
    share: Arguments = {
        "k": (k, "u32"), "splits": (splits, "u32"), "per": (config["per"], "u32"), "capacity": (capacity, "u32"), "bits": (bits, "i32")
    }
    args = {**x, **lengths, **share, **order, **lists(0, splits > 1), **to}
    found = [launch(p, f"select_rows<{t}, {threads}>", rows * splits, threads, args, capacity * entry)]
    capacity, threads = config["list_capacity"], config["list_threads"]
    for i, (entries, per, blocks) in enumerate(_levels(k, splits)):
        share = {
            "n": (entries, "u32"), "k": (k, "u32"), "splits": (blocks, "u32"), "per": (per, "u32"), "capacity": (capacity, "u32"),
            "bits": (bits, "i32"),
        }
        source: Arguments = {"in_keys": (f"keys{i}", "ptr"), "in_indices": (f"indices{i}", "ptr")}
        args = {**source, **share, **order, **lists(i + 1, blocks > 1), **x, "columns": (n, "u32"), **to}
        found.append(launch(p, f"select_lists<{t}, {threads}>", rows * blocks, threads, args, capacity * entry))
    return found
