"""A product with configs, heuristics, a hook before each launch, and a wrapper on top of autograd."""

import torch
import triton
import triton.language as tl


def cleared(arguments, reset_only=False):
    arguments["c"].zero_()


@triton.autotune(
    configs=[
        triton.Config({"M": 16, "N": 16}, num_warps=2),
        triton.Config({"M": 32, "N": 16}, num_warps=4, num_stages=2, pre_hook=lambda arguments: arguments["c"].fill_(7.0)),
    ],
    key=["m", "n", "k"],
    reset_to_zero=["c"],
)
@triton.heuristics({"EVEN": lambda arguments: arguments["k"] % 16 == 0})
@triton.jit
def product(a, b, c, m, n, k, sa, sb, sc, M: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, 16):
        inner = start + tl.arange(0, 16)
        inside = inner < k
        if EVEN:
            left = tl.load(a + i[:, None] * sa + inner[None, :], mask=(i < m)[:, None], other=0.0)
        else:
            left = tl.load(a + i[:, None] * sa + inner[None, :], mask=(i < m)[:, None] & inside[None, :], other=0.0)
        right = tl.load(b + inner[:, None] * sb + j[None, :], mask=inside[:, None] & (j < n)[None, :], other=0.0)
        total += tl.dot(left, right)
    tl.store(c + i[:, None] * sc + j[None, :], total.to(c.dtype.element_ty), mask=(i < m)[:, None] & (j < n)[None, :])


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        assert a.shape[1] == b.shape[0], "sizes"
        c = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
        grid = lambda meta: (triton.cdiv(a.shape[0], meta["M"]), triton.cdiv(b.shape[1], meta["N"]))  # noqa: E731
        product[grid](a, b, c, a.shape[0], b.shape[1], a.shape[1], a.stride(0), b.stride(0), c.stride(0))
        return c


def matmul(a, b):
    return Product.apply(a, b)
