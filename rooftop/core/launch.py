"""Compiled CUDA C++ on the GPU: load once, then launch again and again at little cost to the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from rooftop.core.compile import Binary
from rooftop.core.spec import Launch

CTYPES: dict[str, type] = {  # of `Launch.types`
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool, "ptr": ctypes.c_uint64,
}  # fmt: skip
_NOTHING = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"
_HALF = 120_000  # bytes of shared memory of which a multiprocessor has room for one block's


class LaunchError(RuntimeError):
    """The driver refused to load or to launch."""


def _checked(result: tuple[Any, ...], what: str) -> Any:
    status, *values = result
    if int(status) != 0:
        raise LaunchError(f"{what}: the driver answers {status.name}")
    return values[0] if values else None


def _config(driver: Any, grid: Sequence[int], block: Sequence[int], shared: int, cluster: Sequence[int], chained: bool = False) -> Any:
    """The driver's description of a launch, but for the stream."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
    config.sharedMemBytes = shared
    attributes = []
    if cluster:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = (*cluster, 1, 1)[:3]
        attributes.append(attribute)
    if chained:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if attributes:
        config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def resident_clusters(index: int) -> tuple[int, ...]:
    """How many clusters of 1, 2, 4, 8 and 16 blocks run at once on GPU `index`, of sm_90 or later, a block to a multiprocessor."""
    from cuda.bindings import driver

    device = _checked(driver.cuDeviceGet(index), f"GPU {index}")
    context = _checked(driver.cuDevicePrimaryCtxRetain(device), f"GPU {index}")
    _checked(driver.cuCtxPushCurrent(context), f"GPU {index}")
    try:
        library = _checked(driver.cuLibraryLoadData(_NOTHING, [], [], 0, [], [], 0), "loading an empty kernel")
        kernel = _checked(driver.cuLibraryGetKernel(library, b"nothing"), "finding an empty kernel")
        shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        large = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _checked(driver.cuKernelSetAttribute(shared, _HALF, kernel, device), "shared memory of an empty kernel")
        _checked(driver.cuKernelSetAttribute(large, 1, kernel, device), "clusters of an empty kernel")
        found = []
        for blocks in (1, 2, 4, 8, 16):
            config = _config(driver, (blocks,), (128,), _HALF, (blocks,))
            found.append(int(_checked(driver.cuOccupancyMaxActiveClusters(driver.CUfunction(int(kernel)), config), "counting clusters")))
        _checked(driver.cuLibraryUnload(library), "unloading an empty kernel")
        return tuple(found)
    finally:
        _checked(driver.cuCtxPopCurrent(), f"GPU {index}")


class Module:
    """Machine code loaded into the driver. Lives as long as the process: kernels launched from it may still run."""

    def __init__(self, binary: Binary) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._binary = binary
        self._library = _checked(driver.cuLibraryLoadData(binary.cubin, [], [], 0, [], [], 0), f"loading code for {binary.target}")

    def prepare(self, launch: Launch, names: Sequence[str], device: int) -> PreparedCuda:
        """A launch with everything but the addresses settled. `names` gives the order of the addresses of a later call."""
        symbol = self._binary.names[launch.kernel]
        kernel = _checked(self._driver.cuLibraryGetKernel(self._library, symbol.encode()), f"finding {launch.kernel}")
        return PreparedCuda(self._driver, kernel, launch, names, device)


class PreparedCuda:
    """One kernel launch whose addresses alone change: ``prepared(stream, addresses)``. Safe to call from several threads."""

    def __init__(self, driver: Any, kernel: Any, launch: Launch, names: Sequence[str], device: int) -> None:
        if launch.shared:  # what is static counts towards the 48 KiB that need no leave
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(driver.cuKernelSetAttribute(attribute, launch.shared, kernel, device), f"{launch.shared} bytes of shared memory for {launch.kernel}")
        blocks = 1
        for extent in launch.cluster:
            blocks *= extent
        if blocks > 8:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _checked(driver.cuKernelSetAttribute(attribute, 1, kernel, device), f"a cluster of {blocks} blocks for {launch.kernel}")
        self._what = launch.kernel
        self._function = driver.CUfunction(int(kernel))
        self._launch = driver.cuLaunchKernelEx
        self._lock = threading.Lock()
        self._values = [
            CTYPES[kind](0 if value is None or isinstance(value, str) else value)
            for kind, value in zip(launch.types, launch.args.values(), strict=True)
        ]
        self._slots = [(cell, names.index(v)) for cell, v in zip(self._values, launch.args.values(), strict=True) if isinstance(v, str)]
        self._params = (ctypes.c_void_p * max(len(self._values), 1))(*(ctypes.addressof(v) for v in self._values))
        self._address = ctypes.addressof(self._params)
        # A launch of single blocks is not said to be one of clusters: those start later.
        self._config = _config(driver, launch.grid, launch.block, launch.shared, launch.cluster if blocks > 1 else (), launch.chained)
        self._stream = -1

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        with self._lock:
            if stream != self._stream:
                self._config.hStream = stream
                self._stream = stream
            for cell, index in self._slots:
                cell.value = addresses[index]
            status = self._launch(self._config, self._function, self._address, 0)[0]
        if status != 0:
            raise LaunchError(f"launching {self._what}: the driver answers {status.name}")
