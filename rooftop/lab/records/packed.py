"""The form of a file of records: text, `.jsonl`, as a run writes it line by line; or that text in xz, `.jsonl.xz`, a fifth of the size, as
`rooftop records merge` and `rooftop records prune` leave it. A file is read by what stands in it, whatever its name.

Still a file a run: a packed file has no lines that git could merge, so two machines must not write into one."""

from __future__ import annotations

import lzma
from pathlib import Path

from rooftop.core.whole_file import MOST

PLAIN, PACKED = ".jsonl", ".jsonl.xz"
FIRST = b"\xfd7zXZ\0"  # bytes of a packed file
MEMORY = 64 << 20  # bytes that unpacking may take; what `content` packs takes 9 MiB


def named(path: Path) -> bool:
    """Whether a file's name says that it is one of records."""
    return path.name.endswith((PLAIN, PACKED))


def name(path: Path) -> Path:
    """What the file of these records is called once it is packed."""
    return path.with_name(path.name.removesuffix(".xz").removesuffix(PLAIN) + PACKED)


def below(folder: Path) -> list[Path]:
    """The files of records in a folder and those within it, in the order of their names."""
    return sorted(path for path in folder.rglob(f"*{PLAIN}*") if named(path))


def text(content: bytes) -> bytes:
    """The text that a file of records holds. Raises ValueError where a packed one is damaged, cut off, or would be larger than a file
    may."""
    if not content.startswith(FIRST):
        return content
    unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        found = unpack.decompress(content, MOST + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"the packed file is damaged: {error}") from None
    if len(found) > MOST:
        raise ValueError(f"unpacked it has more than {MOST:,} bytes")
    if not unpack.eof or unpack.unused_data:
        raise ValueError("the packed file is cut off" if not unpack.eof else "something stands after the end of the packed file")
    return found


def content(text: bytes, path: Path) -> bytes:
    """What a file of this name holds of a text: packed where its name says so. Nothing of nothing. The same text gives the same bytes."""
    return lzma.compress(text) if text and path.name.endswith(PACKED) else text
