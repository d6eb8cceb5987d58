"""Softmax of rows, as such a file is found: kernel, wrapper, a check of its own."""

import torch
import triton
import triton.language as tl


@triton.jit
def rows(out, x, stride, n, WIDE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, WIDE)
    v = tl.load(x + row * stride + at, mask=at < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + at, e / tl.sum(e, axis=0), mask=at < n)


def softmax(x):
    assert x.is_cuda and x.dim() == 2
    out = torch.empty_like(x)
    rows[(x.shape[0],)](out, x, x.stride(0), x.shape[1], WIDE=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(5, 781, device="cuda")
    print("right" if torch.allclose(softmax(x), torch.softmax(x, dim=-1), atol=1e-6) else "wrong")
    print(triton.testing.do_bench(lambda: softmax(x)))
