"""Numbers that a call is assumed to have where nothing says them, by their names: of functions and kernels, in C++ and in Python."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

EXTENTS = {1: (1000,), 2: (48, 40), 3: (48, 40, 56), 4: (12, 20, 16, 24)}  # of whole numbers that are sizes, by how many there are
SMALL = re.compile(  # names of whole numbers that are no sizes
    r"kernel|radius|window|stride|pad|(?-i:^k$)|k(er)?_?size|iter|steps|head|class|group|^n?dims?$|^axis$|^rank$", re.I
)
FEW = 3  # what those are
MOST = 1 << 20  # elements of an array of assumed size
LONGEST = 1 << 24  # the same of a kernel that is launched alone
SPARE = 4  # times what the sizes say, where a kernel reads past that


def whole_numbers(names: Sequence[str], large: Collection[str] | None = None) -> dict[str, int]:
    """Values by name. `large`: those that are sizes, where more than their names says it."""
    if large is None:
        product = {"m", "n", "k"} <= {n.lower() for n in names}  # of matrices, whose k is no small number
        large = [n for n in names if not SMALL.search(n) or len(names) == 1 or (product and n.lower() == "k")]
    sizes = EXTENTS.get(len(large), (8,) * len(large))
    return {**dict.fromkeys(names, FEW), **dict(zip(large, sizes, strict=True))}
