"""A sparse matrix in one of four layouts, and the way from each to each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rooftop.formats import two_four
from rooftop.ops.spmm_csr import rows_of
from rooftop.sparse.indices import (
    BLOCKS,
    LAYOUTS,
    block_of,
    check_indices,
    check_matrix,
    check_offsets,
    check_range,
    offsets_of,
    ordered,
    short,
    size_of,
)

TENSORS = ("values", "columns", "offsets", "rows", "meta")
FACTS = ("layout", "size", "block", "turned")


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """A sparse matrix. `from_dense`, `csr`, `coo`, `bsr`, `from_torch` and `from_scipy` create one; `to` changes its layout.

    It is a pytree node (its tensors are the leaves) and supports `torch.save`. Gradients flow to `values`, also through changes of layout.

    values    "csr" and "coo": [nnz]; "bsr": [blocks, H, W]; "2:4": [M, 2 ceil(K / 4)], the two stored elements of each four
    columns   int32: the column of each element; "bsr": the block column of each block; "2:4": None
    offsets   int32, "csr" [M + 1] and "bsr" [ceil(M / H) + 1]: row m has the elements (blocks) offsets[m] to offsets[m + 1] - 1. Else None
    rows      int32 [nnz], "coo": the row of each element. Else None
    meta      int32, "2:4": which are kept (rooftop/formats/two_four.py). Else None
    layout    one of LAYOUTS
    size      (M, K) of the matrix that is stored
    block     (H, W) of "bsr", else None
    turned    True if this is the transpose of the stored matrix: `t()` moves no data

    Elements of a row are in the order of their columns, each column at most once."""

    values: Tensor
    columns: Tensor | None
    offsets: Tensor | None
    rows: Tensor | None
    meta: Tensor | None
    layout: str
    size: tuple[int, int]
    block: tuple[int, int] | None = None
    turned: bool = False

    # -- making one ---------------------------------------------------------------------------------------------------

    @classmethod
    def from_dense(cls, x: Tensor, layout: str = "csr", *, block: tuple[int, int] | int | None = None, n: int = 1024) -> SparseTensor:
        """The nonzero elements of `x` [M, K] (NaN counts as nonzero, -0.0 as zero).

        layout: "csr", "coo", "bsr", "2:4", or "auto": the sparse layout that `rooftop.sparse.advise` predicts to be the fastest in a
        product with `n` columns.
        block: for "bsr": rows and columns of a block, each 8, 16, 32, 64 or 128; one number for both; None: (32, 32).

        Raises TypeError if x is not a floating-point or int8 tensor, and for fp8 other than e4m3fn and e5m2; ValueError for other shapes,
        more than 2^31 rows or columns, an unknown layout, a block of other sizes, and for "2:4" if a group of four has more than two
        nonzero elements: `rooftop.prune_24` selects two."""
        check_matrix("from_dense", x)
        if layout == "auto":
            import rooftop

            advice = rooftop.sparse.advise(x, n)
            return cls.from_dense(x, advice.sparse.layout, block=advice.sparse.block)
        block_of(layout, block)
        there = (x.view(torch.uint8) & 0x7F if x.dtype.itemsize == 1 and x.dtype.is_floating_point else x) != 0
        if layout == "2:4":
            kept = two_four.padded(there)
            kept = kept.view(x.shape[0], kept.shape[1] // 4, 4)
            most = int(kept.sum(-1).amax()) if kept.numel() else 0
            if most > 2:
                what = f"a group of four neighbours of a row has {most} elements that are not zero"
                raise ValueError(f"from_dense: {what}; 2:4 takes two (rooftop.prune_24 chooses them)")
            return two_four_of(x, two_four.select(kept.flatten(1).to(torch.uint8)))
        rows, columns = there.nonzero(as_tuple=True)
        made = cls(x[rows, columns], short(columns), None, short(rows), None, "coo", size_of(x.shape))
        return made.to(layout, block=block)

    @classmethod
    def coo(cls, rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int], *, check: bool = True) -> SparseTensor:
        """From coordinates, int32 or int64, in any order; values with the same coordinates are added.

        check: False assumes that they are within the shape, sorted by rows then columns, and unique, and does not read, sort or
        synchronise.

        Raises TypeError for indices of other dtypes, ValueError for other shapes, more than 2^31 rows or columns, and an index that is out
        of range."""
        check_indices("coo", {"rows": rows, "columns": columns}, values.device)
        size = size_of(shape)
        if rows.shape != columns.shape or values.shape != rows.shape:
            raise ValueError(
                f"coo: rows {tuple(rows.shape)}, columns {tuple(columns.shape)} and values {tuple(values.shape)}; all must be [nnz]"
            )
        if check:
            check_range("rows", rows, size[0])
            check_range("columns", columns, size[1])
            rows, columns, values = ordered(rows, columns, values, size)
        return cls(values, short(columns), None, short(rows), None, "coo", size)

    @classmethod
    def csr(cls, offsets: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int], *, check: bool = True) -> SparseTensor:
        """From compressed rows, as in `torch.sparse_csr_tensor` and scipy, int32 or int64, in any order within a row; values with the same
        column are added.

        check: False assumes that all indices are valid, and that the elements of a row are sorted and unique.

        Raises TypeError for indices of other dtypes, ValueError for other shapes, offsets that decrease or do not run from 0 to nnz,
        columns out of range."""
        check_indices("csr", {"offsets": offsets, "columns": columns}, values.device)
        size = size_of(shape)
        if offsets.shape[0] != size[0] + 1 or values.shape != columns.shape:
            given = f"offsets {tuple(offsets.shape)}, columns {tuple(columns.shape)}, values {tuple(values.shape)}"
            raise ValueError(f"csr: {given}; a matrix {size} takes [{size[0] + 1}], [nnz] and [nnz]")
        made = cls(values, short(columns), short(offsets), None, None, "csr", size)
        if check:
            check_offsets(offsets, columns.shape[0])
            check_range("columns", columns, size[1])
            made = cls.coo(made.to("coo").rows, columns, values, size).to("csr")
        return made

    @classmethod
    def bsr(cls, offsets: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int], *, check: bool = True) -> SparseTensor:
        """From blocks [blocks, H, W] in compressed rows, as in `torch.sparse_bsr_tensor`; elements of blocks beyond `shape` are ignored.
        Blocks are sorted, and those at the same position are added.

        check: False assumes that they are sorted, unique and in range, and that elements beyond the shape are zero.

        Raises TypeError and ValueError as `csr`."""
        check_indices("bsr", {"offsets": offsets, "columns": columns}, values.device)
        size = size_of(shape)
        if values.dim() != 3 or any(n not in BLOCKS for n in values.shape[1:]) or columns.shape[0] != values.shape[0]:
            raise ValueError(
                f"bsr: values {tuple(values.shape)}, columns {tuple(columns.shape)}; must be [blocks, H, W] and [blocks], H and W of "
                f"{BLOCKS}"
            )
        high, wide = values.shape[1:]
        tall, across = -(-size[0] // high), -(-size[1] // wide)
        if offsets.shape[0] != tall + 1:
            raise ValueError(f"bsr: offsets {tuple(offsets.shape)}; a matrix {size} in blocks of {high} rows takes [{tall + 1}]")
        if check:
            check_offsets(offsets, columns.shape[0])
            check_range("columns", columns, across)
            of, columns, values = ordered(rows_of(offsets, columns.shape[0]), columns, values, (tall, across))
            offsets = offsets_of(of, tall)
            i, j = torch.arange(high, device=values.device), torch.arange(wide, device=values.device)
            inside = ((of[:, None] * high + i) < size[0])[:, :, None] & ((columns.long()[:, None] * wide + j) < size[1])[:, None, :]
            values = torch.where(inside, values, torch.zeros_like(values)) if size[0] % high or size[1] % wide else values
        return cls(values, short(columns), short(offsets), None, None, "bsr", size, (high, wide))

    @classmethod
    def from_torch(cls, x: Tensor) -> SparseTensor:
        """Of a torch tensor in the layout COO, CSR, CSC or BSR. Raises TypeError for another."""
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"from_torch: x is a {type(x).__name__}; it must be a tensor")
        size = tuple(x.shape)
        if x.layout == torch.sparse_coo and len(size) == 2 and x.dense_dim() == 0:
            rows, columns = x._indices()
            return cls.coo(rows, columns, x._values(), size)
        if x.layout == torch.sparse_csr and len(size) == 2:
            return cls.csr(x.crow_indices(), x.col_indices(), x.values(), size)
        if x.layout == torch.sparse_csc and len(size) == 2:
            return cls.csr(x.ccol_indices(), x.row_indices(), x.values(), size[::-1]).t()
        if x.layout == torch.sparse_bsr and len(size) == 2:
            return cls.bsr(x.crow_indices(), x.col_indices(), x.values(), size)
        raise TypeError(
            f"from_torch: x is {x.layout} of {len(size)} dimensions; accepted are sparse_coo, sparse_csr, sparse_csc and sparse_bsr of two"
        )

    @classmethod
    def from_scipy(cls, x: Any, device: Any = "cpu") -> SparseTensor:
        """Of a scipy sparse matrix or array, any of its formats; "bsr" where it is one with blocks that we take, else "csr"."""
        if getattr(x, "format", "") == "bsr" and all(n in BLOCKS for n in x.blocksize):
            offsets, columns, values = (torch.as_tensor(t, device=device) for t in (x.indptr, x.indices, x.data))
            return cls.bsr(offsets, columns, values, x.shape)
        if not hasattr(x, "tocsr"):
            raise TypeError(f"from_scipy: x is a {type(x).__name__}; it must be a scipy sparse matrix or array")
        x = x.tocsr()
        offsets, columns, values = (torch.as_tensor(t, device=device) for t in (x.indptr, x.indices, x.data))
        return cls.csr(offsets, columns, values, x.shape)

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        return self.size[::-1] if self.turned else self.size

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def stored(self) -> int:
        """Elements that are stored, zeros within blocks and groups of four included."""
        return self.values.numel()

    @property
    def density(self) -> float:
        """Elements that are stored over all."""
        return self.stored / max(1, self.size[0] * self.size[1])

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._leaves() if t is not None)

    def t(self) -> SparseTensor:
        """The transpose; no data moves. `contiguous()` stores it as such."""
        return replace(self, turned=not self.turned)

    def contiguous(self) -> SparseTensor:
        """Stored as it is, not as the transpose of what is stored. A transposed 2:4 matrix, which is none by rows, becomes "csr"."""
        if not self.turned:
            return self
        size = self.size[::-1]
        if self.layout == "bsr":
            assert self.columns is not None and self.offsets is not None and self.block is not None
            of = rows_of(self.offsets, self.columns.shape[0])
            order = torch.argsort(self.columns, stable=True)
            ends = offsets_of(self.columns, -(-self.size[1] // self.block[1]))
            return SparseTensor(
                self.values[order].transpose(1, 2).contiguous(), short(of[order]), ends, None, None, "bsr", size, self.block[::-1]
            )
        coo = replace(self, turned=False).to("coo")
        assert coo.rows is not None and coo.columns is not None
        order = torch.argsort(coo.columns, stable=True)
        made = SparseTensor(coo.values[order], coo.rows[order], None, coo.columns[order], None, "coo", size)
        return made if self.layout == "coo" else made.to("csr")

    def to(self, to: Any = None, *, block: tuple[int, int] | int | None = None, dtype: torch.dtype | None = None) -> SparseTensor:
        """Another layout (one of LAYOUTS, "bsr" with its `block`), another device, or another dtype of the values. All on the tensor's
        device.

        From "bsr" and "2:4" only what is not zero goes on to "csr" and "coo". Raises ValueError as `from_dense`."""
        if dtype is not None:
            return (
                replace(self, values=self.values.to(dtype)) if to is None
                else replace(self, values=self.values.to(dtype)).to(to, block=block)
            )
        if not isinstance(to, str) or to not in LAYOUTS:
            if isinstance(to, torch.dtype):
                return replace(self, values=self.values.to(to))
            if to is None or (isinstance(to, str) and to.partition(":")[0] not in ("cpu", "cuda", "meta")):
                raise ValueError(f"to: {to!r} is no layout and no device; layouts are {', '.join(LAYOUTS)}")
            return self._with([None if t is None else t.to(to) for t in self._leaves()])
        size = block_of(to, block)
        if self.turned:
            return self.contiguous().to(to, block=block)
        if to == self.layout and (to != "bsr" or size == self.block):
            return self
        if to == "2:4":
            return SparseTensor.from_dense(self.to_dense(), "2:4")
        rows, columns, values = self._coordinates()
        if to == "coo":
            return SparseTensor(values, short(columns), None, short(rows), None, "coo", self.size)
        if to == "csr":
            return SparseTensor(values, short(columns), offsets_of(rows, self.size[0]), None, None, "csr", self.size)
        assert size is not None
        (high, wide), across = size, -(-self.size[1] // size[1])
        r, c = rows.long(), columns.long()
        keys, inverse = torch.unique(r // high * across + c // wide, sorted=True, return_inverse=True)
        blocks = values.new_zeros(keys.shape[0], high, wide).index_put((inverse, r % high, c % wide), values)
        ends = offsets_of(keys // max(1, across), -(-self.size[0] // high))
        return SparseTensor(blocks, short(keys % max(1, across)), ends, None, None, "bsr", self.size, size)

    def to_dense(self) -> Tensor:
        """The matrix with its zeros."""
        m, k = self.size
        if self.layout == "2:4":
            assert self.meta is not None
            found = two_four.expand(self.values, self.meta, k)
        elif self.layout == "bsr":
            from rooftop.ops.spmm_bsr import dense_of

            assert self.columns is not None and self.offsets is not None
            found = dense_of(self.values, self.columns, self.offsets, m, k)
        else:
            rows, columns, values = self._coordinates()
            found = values.new_zeros(m, k).index_put((rows.long(), columns.long()), values)
        return found.t() if self.turned else found

    def to_torch(self) -> Tensor:
        """A torch tensor in the same layout; 2:4 as CSR. Raises ValueError for blocks that do not divide the shape."""
        x = self.contiguous()
        if x.layout == "coo":
            return torch.sparse_coo_tensor(torch.stack((x.rows, x.columns)), x.values, x.size, is_coalesced=True)
        if x.layout == "bsr":
            assert x.block is not None
            if x.size[0] % x.block[0] or x.size[1] % x.block[1]:
                given = f"a matrix {x.size} in blocks of {x.block[0]} x {x.block[1]}"
                raise ValueError(f"to_torch: given {given}; torch takes blocks that divide the shape (or use to('csr'))")
            return torch.sparse_bsr_tensor(x.offsets, x.columns, x.values, x.size)
        x = x.to("csr")
        return torch.sparse_csr_tensor(x.offsets, x.columns, x.values, x.size)

    def to_scipy(self) -> Any:
        """A scipy CSR array on the CPU. Raises ImportError without scipy, TypeError for dtypes that numpy has not."""
        import scipy.sparse  # type: ignore[import-untyped]

        x = self.contiguous().to("csr")
        if x.dtype in (torch.bfloat16,) or x.dtype.itemsize == 1:
            raise TypeError(f"to_scipy: numpy has no {x.dtype}; ask for another with to(dtype=...)")
        values, columns, offsets = (t.detach().cpu().numpy() for t in (x.values, x.columns, x.offsets))  # type: ignore[union-attr]
        return scipy.sparse.csr_array((values, columns, offsets), shape=x.size)

    def __matmul__(self, other: Tensor) -> Tensor:
        import rooftop

        return rooftop.sparse.matmul(self, other)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        import rooftop

        return rooftop.sparse.matmul(other, self)

    def verify(self) -> None:
        """Raises ValueError where its tensors do not fit each other, an index is out of range or out of order. Waits for the device."""
        if self.layout == "2:4":
            wanted = (two_four.meta_shape(*self.size), (self.size[0], 2 * -(-self.size[1] // 4)))
            if self.meta is None or (tuple(self.meta.shape), tuple(self.values.shape)) != wanted:
                raise ValueError(f"a 2:4 matrix {self.size} takes metadata and values of {wanted}; given values {tuple(self.values.shape)}")
            codes = two_four.unpack(self.meta, self.size[0], wanted[1][1] // 2)
            if not bool(torch.isin(codes, torch.tensor(two_four.CODES, device=codes.device, dtype=codes.dtype)).all()):
                raise ValueError(f"metadata hold codes other than {two_four.CODES}")
            return
        if self.layout == "coo":
            made = SparseTensor.coo(self.rows, self.columns, self.values, self.size)
        else:
            make = SparseTensor.csr if self.layout == "csr" else SparseTensor.bsr
            made = make(self.offsets, self.columns, self.values, self.size)
        if (
            made.columns is None or self.columns is None or made.columns.shape != self.columns.shape
            or not torch.equal(made.columns, self.columns)
        ):
            raise ValueError("columns are out of order or come again within a row")
        if self.layout == "coo" and not torch.equal(made.rows, self.rows):
            raise ValueError("rows are out of order; elements must be in the order of rows, then columns")

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and values of what is stored, by rows then columns; without zeros from blocks and groups of four."""
        if self.layout == "coo":
            assert self.rows is not None and self.columns is not None
            return self.rows, self.columns, self.values
        if self.layout == "csr":
            assert self.offsets is not None and self.columns is not None
            return rows_of(self.offsets, self.columns.shape[0]), self.columns, self.values
        if self.layout == "2:4":
            assert self.meta is not None
            at = two_four.places(two_four.unpack(self.meta, self.size[0], self.values.shape[1] // 2))
            rows, i = ((self.values != 0) & (at < self.size[1])).nonzero(as_tuple=True)
            return rows, at[rows, i], self.values[rows, i]
        assert self.offsets is not None and self.columns is not None and self.block is not None
        block, i, j = (self.values != 0).nonzero(as_tuple=True)
        rows = rows_of(self.offsets, self.columns.shape[0])[block].long() * self.block[0] + i
        columns = self.columns.long()[block] * self.block[1] + j
        if self.size[0] % self.block[0] or self.size[1] % self.block[1]:
            inside = (rows < self.size[0]) & (columns < self.size[1])
            block, i, j, rows, columns = (t[inside] for t in (block, i, j, rows, columns))
        order = torch.argsort(rows * (self.size[1] + self.block[1]) + columns)
        return rows[order], columns[order], self.values[block, i, j][order]

    def _leaves(self) -> list[Tensor | None]:
        return [self.values, self.columns, self.offsets, self.rows, self.meta]

    def _with(self, leaves: Any) -> SparseTensor:
        return SparseTensor(*leaves, *(getattr(self, n) for n in FACTS))

    def __repr__(self) -> str:
        block = f", blocks of {self.block[0]} x {self.block[1]}" if self.block else ""
        return f"SparseTensor({self.layout}, {self.shape[0]} x {self.shape[1]}{block}, {self.dtype}, {self.device}, {self.stored} stored)"


def two_four_of(x: Tensor, codes: Tensor) -> SparseTensor:
    """The elements of a dense matrix that 2:4 codes [M, ceil(K / 4)] keep."""
    values, meta = two_four.compress(x, codes)
    return SparseTensor(values, None, None, None, meta, "2:4", size_of(x.shape))


def _flatten(x: SparseTensor) -> tuple[list[Any], Any]:
    leaves = x._leaves()
    there = tuple(n for n, t in zip(TENSORS, leaves, strict=True) if t is not None)
    return [t for t in leaves if t is not None], (there, tuple(getattr(x, n) for n in FACTS))


def _unflatten(leaves: Any, context: Any) -> SparseTensor:
    there, facts = context
    found = dict(zip(there, leaves, strict=True))
    return SparseTensor(*(found.get(n) for n in TENSORS), *facts)  # type: ignore[arg-type]


torch.utils._pytree.register_pytree_node(SparseTensor, _flatten, _unflatten, serialized_type_name="rooftop.sparse.SparseTensor")
torch.serialization.add_safe_globals([SparseTensor])
