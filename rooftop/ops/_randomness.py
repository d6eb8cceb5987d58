"""The seed of a call that uses random bits: the one that is given, else one drawn from torch's generator, as torch's own functions draw.

The bits of a call follow from 32 bits of seed and each element's index (rooftop/formats/random_bits.py), which kernels get as a number when
they are launched. Without a seed those 32 bits come

    on the CPU   from the generator's next number, as `torch.randint` draws it
    on a GPU     from the seed and the Philox offset of the generator of that GPU, both of which the host knows; the offset is then moved on
                 by 4, as a kernel of torch moves it: `torch.manual_seed`, `get_rng_state`, `torch.utils.checkpoint` and `fork_rng` have
                 their usual effect
    in a trace   from a number of the CPU's default generator that is drawn at each call of the compiled function

While a CUDA graph is captured there is none to draw: the graph would hold it, and every replay would use the same bits. Such a call needs a
seed."""

from __future__ import annotations

from typing import Any

from rooftop.core.argument_checks import whole_seed
from rooftop.core.contract import Rows
from rooftop.formats.random_bits import signed

WIDE = 0xFFFFFFFFFFFFFFFF
STEP = 4  # numbers that a Philox counter gives at a time; offsets are multiples of it

PLACE = "the random numbers of a row follow from its place in the call"  # under `rooftop.invariant()`


def unless_drawn(independent: Rows) -> Rows:
    """For `Judging.rows`: `independent`, but of codes that are rounded at random why they do depend on each other."""
    return lambda p: PLACE if p.option("rounding") in ("stochastic", "dither") else independent(p)


def one_of_them(op: str, generator: Any) -> None:
    """Raises ValueError for a generator beside a seed."""
    if generator is not None:
        raise ValueError(f"{op}: seed and generator are both given; a generator draws the seed: give one of them")


def seed(op: str, given: Any, generator: Any, like: Any, used: bool = True) -> Any:
    """The seed of a call on the device of the tensor `like`, as a signed 32-bit number. `used`: whether it matters; if not, nothing is
    drawn.

    Raises TypeError for a seed that is no whole number, or what is no generator; ValueError for both together, or a generator of another
    device; RuntimeError without a seed while a CUDA graph is captured."""
    import torch

    if given is not None:
        whole_seed(op, given)
        one_of_them(op, generator)
        return signed(given)
    device = like.device
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"{op}: generator is {generator!r}, a {type(generator).__name__}; it must be a torch.Generator, or None")
        wanted = "cuda" if device.type == "cuda" else "cpu"
        if generator.device.type != wanted or (wanted == "cuda" and (generator.device.index or 0) != device.index):
            raise ValueError(
                f"{op}: generator draws on {generator.device} and the tensors lie on {device}; it must be a generator of {wanted}"
                             f"{f':{device.index}' if wanted == 'cuda' else ''}")
    if not used or device.type == "meta":
        return 0
    if torch.compiler.is_compiling():
        with torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True):  # a number of the graph, not a break in it
            return torch.randint(-(2**31), 2**31, (), dtype=torch.int64, generator=generator).item()
    if device.type != "cuda":
        return torch.randint(-(2**31), 2**31, (), dtype=torch.int64, device="cpu", generator=generator).item()
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{op}: a CUDA graph is being captured, which would repeat one drawn seed in every replay; give seed=")
    return _of_philox(torch.cuda.default_generators[device.index] if generator is None else generator)


def _of_philox(generator: Any) -> int:
    """From the generator's seed and offset, which moves on."""
    offset = generator.get_offset()
    generator.set_offset(offset + STEP)
    return signed(_mixed(generator.initial_seed() + _mixed(offset // STEP + 1)))


def _mixed(n: int) -> int:
    """64 bits in which each depends on all of `n`: the finaliser of SplitMix64 (Steele, Lea & Flood 2014)."""
    n = (n * 0x9E3779B97F4A7C15) & WIDE
    n = ((n ^ (n >> 30)) * 0xBF58476D1CE4E5B9) & WIDE
    n = ((n ^ (n >> 27)) * 0x94D049BB133111EB) & WIDE
    return n ^ (n >> 31)
