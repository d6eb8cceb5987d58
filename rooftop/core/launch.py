"""Launches compiled CUDA C++ on the GPU: loads it once, then launches with little CPU time."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from math import prod
from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.compile import Binary
from rooftop.core.spec import Launch, TensorMap

CTYPES: dict[str, type] = {  # by the types in `Launch.types`
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool, "ptr": ctypes.c_uint64, "map": ctypes.c_char * tensor_maps.BYTES,
}
OPTIONS = ("carveout", "spread")  # of `Launch.options`
_NOTHING = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"
_HALF = 120_000  # bytes of shared memory of which a multiprocessor can hold only one block's


class LaunchError(RuntimeError):
    """A driver call failed when loading or launching."""


def _checked(result: tuple[Any, ...], what: str) -> Any:
    status, *values = result
    if int(status) != 0:
        raise LaunchError(f"{what}: the driver answers {status.name}")
    return values[0] if values else None


def _config(driver: Any, grid: Sequence[int], block: Sequence[int], shared: int, attributes: Sequence[Any] = ()) -> Any:
    """The driver's description of a launch, without the stream."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
    config.sharedMemBytes = shared
    if attributes:
        config.attrs, config.numAttrs = list(attributes), len(attributes)
    return config


def _attribute(driver: Any, name: str) -> Any:
    made = driver.CUlaunchAttribute()
    made.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return made


def _clusters(driver: Any, cluster: Sequence[int]) -> Any:
    made = _attribute(driver, "CLUSTER_DIMENSION")
    made.value.clusterDim.x, made.value.clusterDim.y, made.value.clusterDim.z = (*cluster, 1, 1)[:3]
    return made


def _attributes(driver: Any, launch: Launch, clusters: bool) -> list[Any]:
    """The driver's launch attributes, without the geometry."""
    found = [_clusters(driver, launch.cluster)] if clusters else []
    if launch.pdl:
        found.append(_attribute(driver, "PROGRAMMATIC_STREAM_SERIALIZATION"))
        found[-1].value.programmaticStreamSerializationAllowed = 1
    if launch.cooperative:
        found.append(_attribute(driver, "COOPERATIVE"))
        found[-1].value.cooperative = 1
    if launch.options.get("spread"):
        found.append(_attribute(driver, "CLUSTER_SCHEDULING_POLICY_PREFERENCE"))
        found[-1].value.clusterSchedulingPolicyPreference = driver.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
    if "carveout" in launch.options:
        found.append(_attribute(driver, "PREFERRED_SHARED_MEMORY_CARVEOUT"))
        found[-1].value.sharedMemCarveout = int(launch.options["carveout"])
    return found


def resident_clusters(index: int) -> tuple[int, ...]:
    """How many clusters of 1, 2, 4, 8 and 16 blocks are resident at once on GPU `index` (sm_90 or later), with one block a
    multiprocessor."""
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
            config = _config(driver, (blocks,), (128,), _HALF, [_clusters(driver, (blocks,))])
            found.append(int(_checked(driver.cuOccupancyMaxActiveClusters(driver.CUfunction(int(kernel)), config), "counting clusters")))
        _checked(driver.cuLibraryUnload(library), "unloading an empty kernel")
        return tuple(found)
    finally:
        _checked(driver.cuCtxPopCurrent(), f"GPU {index}")


class Module:
    """Machine code loaded into the driver. Stays loaded until the process ends, because its kernels may still be running."""

    def __init__(self, binary: Binary) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._binary = binary
        self._shared: dict[tuple[str, int], int] = {}  # dynamic shared memory granted to a kernel, on a GPU
        self._library = _checked(driver.cuLibraryLoadData(binary.cubin, [], [], 0, [], [], 0), f"loading code for {binary.target}")

    def prepare(self, launch: Launch, names: Sequence[str], device: int) -> PreparedCuda:
        """A launch with everything set except the addresses. `names` is the order of the addresses in later calls."""
        symbol = self._binary.names[launch.kernel]
        kernel = _checked(self._driver.cuLibraryGetKernel(self._library, symbol.encode()), f"finding {launch.kernel}")
        granted = self._shared[symbol, device] = max(launch.shared, self._shared.get((symbol, device), 0))
        return PreparedCuda(self._driver, kernel, launch, names, device, granted)


_contexts: dict[int, Any] = {}  # primary contexts by device, each retained once


def _enter_context(driver: Any, device: int) -> bool:
    """Make the device's primary context current in this thread. A thread that has not called the CUDA runtime yet has no context:
    autograd's threads, for example, if one of these kernels is their first launch."""
    if device not in _contexts:
        _contexts[device] = _checked(
            driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(device), "finding the device")), "finding its context"
        )
    return bool(driver.cuCtxSetCurrent(_contexts[device])[0] == 0)


class PreparedCuda:
    """One kernel launch in which only the addresses change: ``prepared(stream, addresses)``. Thread-safe."""

    def __init__(self, driver: Any, kernel: Any, launch: Launch, names: Sequence[str], device: int, granted: int = 0) -> None:
        """`granted`: the most dynamic shared memory that any launch of the kernel requests. It is an attribute of the kernel, not of the
        launch: a lower value would make launches fail that were prepared before."""
        if unknown := set(launch.options) - set(OPTIONS):
            raise ValueError(f"{launch.kernel}: options are {', '.join(sorted(unknown))}; a launch of CUDA C++ takes {', '.join(OPTIONS)}")
        if launch.shared:  # static shared memory counts towards the 48 KiB that need no opt-in
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            set_to = driver.cuKernelSetAttribute(attribute, max(granted, launch.shared), kernel, device)
            _checked(set_to, f"{launch.shared} bytes of shared memory for {launch.kernel}")
        blocks = prod(launch.cluster)
        if blocks > 8:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _checked(driver.cuKernelSetAttribute(attribute, 1, kernel, device), f"a cluster of {blocks} blocks for {launch.kernel}")
        self._what = launch.kernel
        self._driver, self._device = driver, device
        self._function = driver.CUfunction(int(kernel))
        self._launch = driver.cuLaunchKernelEx
        self._lock = threading.Lock()
        given = list(zip(launch.types, launch.args.items(), strict=True))
        cells = [CTYPES[kind]() for kind, _ in given]
        self._slots = [(cell, names.index(v)) for cell, (_, (_, v)) in zip(cells, given, strict=True) if isinstance(v, str)]
        for cell, (_, (_, v)) in zip(cells, given, strict=True):
            if isinstance(v, (int, float)):
                cell.value = v
        maps = [(cell, v) for cell, (_, (_, v)) in zip(cells, given, strict=True) if isinstance(v, TensorMap)]
        encode = tensor_maps.encode_function(driver) if maps else None
        self._maps = [(cell, names.index(v.tensor), tensor_maps.Encoder(encode, v)) for cell, v in maps if encode is not None]
        self._params = (ctypes.c_void_p * max(len(cells), 1))(*(ctypes.addressof(v) for v in cells))
        self._address = ctypes.addressof(self._params)
        self._cells = cells  # `_params` has their addresses
        # Launches of single blocks do not get the cluster attribute, which would make them start later.
        self._config = _config(driver, launch.grid, launch.block, launch.shared, _attributes(driver, launch, blocks > 1))
        self._stream = -1  # that of `_config`

    def __call__(self, stream: int, addresses: Sequence[Any]) -> None:
        with self._lock:
            if stream != self._stream:
                self._config.hStream = self._stream = stream
            for cell, index in self._slots:
                cell.value = addresses[index]
            for cell, index, encoder in self._maps:
                cell.raw = encoder(addresses[index])
            status = self._launch(self._config, self._function, self._address, 0)[0]
            if status != 0 and status.name == "CUDA_ERROR_INVALID_CONTEXT" and _enter_context(self._driver, self._device):
                status = self._launch(self._config, self._function, self._address, 0)[0]
        if status != 0:
            raise LaunchError(f"launching {self._what}: the driver answers {status.name}")
