import triton
import triton.language as tl

from rooftop.core.spec import Launch


@triton.jit
def kern(x, y, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    k = 0
    while k < 1:
        k = k * 1
    m = i < N
    v = tl.load(x + i, mask=m)
    tl.store(y + i, v * v, mask=m)


def supports(p):
    return None if p["x"].contiguous and p["y"].contiguous else "not contiguous"


def choose(p):
    return {"B": 128}


def launches(p, config):
    n = p["x"].numel
    return [Launch(kernel=kern, grid=(-(-n // 128),), args={"x": "x", "y": "y", "N": n, "B": config["B"]})]
