"""How long a kernel takes from a new source text to the result of its first call: `rooftop.load` beside torch's `load_inline`."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HEAD = """/* rooftop
op     = "add"
idea   = "One thread an element."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "sum"
grid   = ["ceil(n / 256)"]
block  = [256]
*/
"""
KERNEL = """__global__ void sum(int n, const float* x, const float* y, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i] * (1.0f + 0.0f * %d);
}
"""
CALL = """torch::Tensor add(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty_like(x);
    int n = x.numel();
    sum<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(n, x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>());
    return out;
}
"""


def measure(repeats: int = 7, inline_repeats: int = 1, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Records of kind `build`, one for each way: seconds from a source text never seen before to a result on the device (median of `n`).

    Imports, the CUDA context and the compilers' own start are paid beforehand, by an untimed build of each kind but `load_inline`'s.
    Raises RuntimeError without a GPU; a way that cannot be had here (no nvcc, say) is left out, and said."""
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab.records import store
    from rooftop.public_names import load

    x, y = (torch.randn(1 << 20, device="cuda") for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:

        def ours(number: int) -> None:
            load(Path(folder) / "sum.cu", source=HEAD + KERNEL % number)(x, y)

        def inline(number: int) -> None:
            from torch.utils.cpp_extension import load_inline

            name = f"rooftop_sum_{number}"
            place = Path(folder) / name
            place.mkdir()
            source = "#include <ATen/cuda/CUDAContext.h>\n" + KERNEL % number + CALL
            load_inline(
                name, cpp_sources="torch::Tensor add(torch::Tensor x, torch::Tensor y);", cuda_sources=source, functions=["add"],
                build_directory=str(place), extra_cuda_cflags=[f"-arch=sm_{device.arch}"],
            ).add(x, y)

        def timed(call: Callable[[int], None], number: int) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            call(number)
            torch.cuda.synchronize()
            return time.perf_counter() - began

        device = device_of(torch.cuda.current_device())
        ours(secrets.randbits(30))
        seen = secrets.randbits(30)
        ways = {
            "rooftop.load, a new source": [timed(ours, secrets.randbits(30)) for _ in range(repeats)],
            "rooftop.load, a source compiled before": [timed(ours, seen) for _ in range(repeats + 1)][1:],
        }
        try:
            ways["torch.utils.cpp_extension.load_inline, a new source"] = [
                timed(inline, secrets.randbits(30)) for _ in range(inline_repeats)
            ]
        except (RuntimeError, OSError, ImportError) as error:
            say(f"load_inline cannot be had here: {str(error).splitlines()[0]}")
    about = store.about(device)
    return [
        {
            "kind": "build", "subject": name, "seconds": median(taken), "all": taken, "n": len(taken), "device": about,
            "versions": store.versions()
        }
        for name, taken in ways.items()
    ]
