"""Arrays of the other byte order, and of Fortran's order, through numcodecs: the values that were given, or one line that refuses them."""

import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
try:
    import numcodecs
except ImportError:
    sys.exit(77)


def back(x, how):
    codec = numcodecs.get_codec({"id": "rooftop", **how})
    out = np.zeros_like(x)
    try:
        codec.decode(codec.encode(x), out=out)
    except (TypeError, ValueError) as error:
        print("refused:", str(error).splitlines()[0])
        return 0.0
    return float(np.abs(out.astype("f8") - x.astype("f8")).max())


line = np.cumsum(np.random.default_rng(1).normal(size=(40, 25)), axis=0)
for made in (line.astype(">f4"), line.astype("<f4"), (line * 100).astype(">i4"), np.asfortranarray(line.astype("f4"))):
    for how, most in (({"lossless": True}, 0.0), ({"abs": 0.01}, 0.0101)):
        if made.dtype.kind == "i" and "abs" in how:
            continue
        error = back(made, how)
        print(made.dtype.str, made.flags.f_contiguous, how, error)
        assert error <= most, (made.dtype, how, error)
try:
    import zarr
except ImportError:
    sys.exit(0)
for order in "CF":
    x = line.astype("f4")
    codec = numcodecs.get_codec({"id": "rooftop", "lossless": True})
    store = zarr.storage.MemoryStore()
    a = zarr.create_array(store=store, shape=x.shape, chunks=(10, 7), dtype=x.dtype, compressors=codec, zarr_format=2, fill_value=0, order=order)
    a[:] = x
    assert (a[:] == x).all(), order
