"""The macros that NVRTC defines, and none of the host's: what `#if` chooses in the simulator it chooses on a GPU.

The host's compiler and the headers of its library define some two thousand of their own. A source that NVRTC is to compile finds them
undefined, once the simulator's header has been read. `DEFINED` was found by asking NVRTC 13.0 for each of 30,000 names; a test asks the one
that is here.

What no list of macros can hide is that another compiler reads the source (`__has_include`, extensions of the language): docs/trust.md says
what that means."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rooftop.core.compile import ToolchainError, nvrtc_version

# Names that NVRTC defines and the host does not, with their values.
DEFINED: dict[str, str] = {
    "__CUDACC_RTC__": "1", "__CUDACC_DEVICE_ATOMIC_BUILTINS__": "1", "__CUDA_FTZ": "0", "__CUDA_PREC_DIV": "1", "__CUDA_PREC_SQRT": "1",
    "__USE_FAST_MATH__": "0", "__EDG__": "1", "__EDG_VERSION__": "606", "__EDG_IA64_ABI": "1", "__EDG_CONSTEXPR_ENABLED__": "1",
    "__EDG_RUNTIME_USES_NAMESPACES": "1",
    "__EDG_TYPE_TRAITS_ENABLED": "1", "__EDG_PTRDIFF_TYPE__": "long", "__EDG_SIZE_TYPE__": "unsigned long", "__ARRAY_OPERATORS": "1",
    "__CHAR16_T_AND_CHAR32_T": "1", "__EXCEPTIONS": "1", "__cpp_exceptions": "199711L", "__RTTI": "1", "__cpp_rtti": "199711L",
    "__PLACEMENT_DELETE": "1",
    "__SIGNED_CHARS__": "1", "__VARIADIC_TEMPLATES": "1", "__cdecl": "", "CUDARTAPI": "", "CUDART_CB": "", "cudaHostAllocDefault": "0x00",
    "__specialization_static": "static", "__CUDACC_VER__": '"__CUDACC_VER__ is no longer supported"', "__NV_SILENCE_DEPRECATION_BEGIN": "",
    "__NV_SILENCE_DEPRECATION_END": "", "CUDART_DEVICE": "", "__cudart_builtin__": "", "__device_builtin__": "",
    "__device_builtin_surface_type__": "",
    "__device_builtin_texture_type__": "", "__nv_register_params__": "", "__tile_builtin__": "", "__tile_global__": "", "__THROW": "",
    "_WCHAR_T": "",
    **dict.fromkeys((f"__{n}_H__" for n in (
        "CUDA_RUNTIME_API", "DEVICE_ATOMIC_FUNCTIONS", "DEVICE_DOUBLE_FUNCTIONS", "DEVICE_TYPES", "LIBRARY_TYPES", "MATH_FUNCTIONS",
        "SM_30_INTRINSICS",
        "SM_32_INTRINSICS", "SM_35_INTRINSICS", "SURFACE_TYPES", "TEXTURE_TYPES", "VECTOR_FUNCTIONS", "CUDA_RUNTIME", "COMMON_FUNCTIONS",
        "DEVICE_FUNCTIONS",
        "DEVICE_LAUNCH_PARAMETERS", "DRIVER_TYPES", "HOST_DEFINES", "VECTOR_TYPES")), ""),
}
# Names that both define, beside those of the language: the host's stay.
BOTH = re.compile(
    r"__cplusplus|__LP64__|__STDC__|__STDC_HOSTED__|__STDCPP_DEFAULT_NEW_ALIGNMENT__|__PRAGMA_REDEFINE_EXTNAME|NULL|assert|__cpp_(?:aggregate_bases|aggregate_nsdmi|alias_templates|aligned_new|attributes|binary_literals|capture_star_this|constexpr|decltype"
    r"|decltype_auto|deduction_guides|delegating_constructors|enumerator_attributes|fold_expressions|generic_lambdas|guaranteed_copy_elision"
    r"|hex_float|if_constexpr|inheriting_constructors|init_captures|initializer_lists|inline_variables|lambdas|namespace_attributes"
    r"|nested_namespace_definitions|noexcept_function_type|nontype_template_args|nontype_template_parameter_auto|nsdmi|range_based_for"
    r"|raw_strings|ref_qualifiers|return_type_deduction|rvalue_references|sized_deallocation|static_assert|structured_bindings"
    r"|template_template_args|threadsafe_static_init|unicode_characters|unicode_literals|user_defined_literals|variable_templates"
    r"|variadic_templates|variadic_using)"
)
HIDDEN = ("CUDA_VERSION",)  # of the simulator's own, which stand for nvcc's
_NAME = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)


def nvrtc(compiler: Path, flags: Sequence[str], header: Path, arch: int) -> str:
    """Directives that stand between the simulator's `header` and a source which NVRTC compiles for `arch`: 80, 89, 90."""
    version = _version()
    own = {**DEFINED, "__CUDACC_VER_MAJOR__": version[0], "__CUDACC_VER_MINOR__": version[1], "__CUDACC_VER_BUILD__": version[2],
           "__CUDA_API_VER_MAJOR__": version[0], "__CUDA_API_VER_MINOR__": version[1], "__CUDA_ARCH_LIST__": str(arch * 10)}
    own["CUDART_VERSION"] = own["__CUDART_API_VERSION"] = str(int(version[0]) * 1000 + int(version[1]) * 10)
    if arch >= 90:  # compiled for sm_90a
        own |= {
            f"__CUDA_ARCH_FEAT_SM{arch}_ALL": "1", "__CUDA_ARCH_SPECIFIC__": str(arch * 10), "__CUDA_ARCH_FAMILY_SPECIFIC__": str(arch * 10)
        }
    hidden = [*_of_the_host(compiler, tuple(flags), header), *HIDDEN, *(n for n in own if n.startswith(("CUDART_V", "__CUDACC_VER_M")))]
    return "".join(f"#undef {n}\n" for n in hidden) + "".join(f"#define {n} {value}\n" for n, value in own.items())


@cache
def _of_the_host(compiler: Path, flags: tuple[str, ...], header: Path) -> tuple[str, ...]:
    """The macros that the host's compiler and library have defined once `header` is read, without those of the simulator and of BOTH."""
    done = subprocess.run([str(compiler), *flags, "-dM", "-E", "-x", "c++", str(header)], capture_output=True, text=True)
    if done.returncode != 0:
        words = done.stderr[:200].strip() or "nothing"
        how = f"signal {-done.returncode} ended it" if done.returncode < 0 else f"it ended with {done.returncode} and said {words}"
        raise ToolchainError(f"{compiler} does not work: {how}, listing its macros")
    own = {n for p in header.parent.rglob("*") if p.is_file() for n in _NAME.findall(p.read_text(encoding="utf-8"))}
    return tuple(sorted(n for n in set(_NAME.findall(done.stdout)) - own if not BOTH.fullmatch(n)))


@cache
def _version() -> tuple[str, str, str]:
    """Of the NVRTC that is here; where there is none, of the one whose macros these are."""
    try:
        major, minor = nvrtc_version().split(".")
    except ToolchainError:
        return "13", "0", "88"
    try:
        build = importlib.metadata.version("nvidia-cuda-nvrtc").split(".")[2]
    except (importlib.metadata.PackageNotFoundError, IndexError):
        build = "88"
    return major, minor, build
