"""A program, built to run as it is: its source twice, once as it stands and once watched, with CUDA's runtime beneath it
(runtime/program.cpp)."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from rooftop.core import head_text, settings, whole_file
from rooftop.core.compile import CompileError
from rooftop.core.digests import without_comments
from rooftop.lab.simt import build, host, link, ordinary, precompiled, program_headers, program_text
from rooftop.lab.simt.precompiled import sum_of
from rooftop.lab.simt.tokens import tokenise
from rooftop.lab.simt.translate import MARK, cluster_dims, constants, translate

DEFINES = ("-DSIMT_PROGRAM", "-fno-builtin-printf", "-fno-builtin-puts", "-fno-builtin-putchar", "-fno-builtin-vprintf")
OWN = {  # what the program calls of the C and C++ libraries -> what it calls instead
    "exit": "simt_own_exit", "_exit": "simt_own_quit", "_Exit": "simt_own_quit", "quick_exit": "simt_own_quit", "abort": "simt_own_abort",
    "time": "simt_own_time", "clock": "simt_own_clock", "clock_gettime": "simt_own_clock_gettime", "gettimeofday": "simt_own_gettimeofday",
    "_ZNSt6chrono3_V212system_clock3nowEv": "simt_own_system_clock", "_ZNSt6chrono3_V212steady_clock3nowEv": "simt_own_steady_clock",
    "_ZNSt13random_device9_M_getvalEv": "simt_own_random_device", "fopen": "simt_own_fopen", "fopen64": "simt_own_fopen",
    "_ZNSt13basic_filebufIcSt11char_traitsIcEE4openEPKcSt13_Ios_Openmode": "simt_own_filebuf_open", "system": "simt_own_system",
    "popen": "simt_own_popen", "fork": "simt_own_fork", "socket": "simt_own_socket", "getchar": "simt_own_getchar",
    "sleep": "simt_own_sleep",
    "usleep": "simt_own_usleep", "printf": "simt_own_printf", "vprintf": "simt_own_vprintf",
    **{
        f"_ZNSt{len(stream) + 6}basic_{stream}IcSt11char_traitsIcEE{call}E{name}St13_Ios_Openmode": f"simt_own_{stream}_{own}{text}"
        for stream in ("ofstream", "ifstream", "fstream") for call, own in (("C1", "of"), ("4open", "open"))
        for name, text in (("PKc", ""), ("RKNSt7__cxx1112basic_stringIcS1_SaIcEEE", "_text"))
    },
}
CALLER = "the caller"  # what a main() of ours is shown as
UNITS_IN = ("src", "source", "kernels", "kernel", "lib", "utils", "util", "common")
UNITS = 5  # times that files are added for what the others of a program call
PLAIN = "plain."  # before the names of the plain build's functions
UNDEFINED = re.compile(r"undefined reference to [`‘'](?:[^(]*[\s:*&])?~?(\w+)(?:<[^(]*>)?[('’]")  # the function's name, behind its type and its class
_TWENTY = re.compile(  # what only C++20 has; of CUDA's vectors, which have no constructors, also int2(a, b)
    r"^[ \t]*#[ \t]*include[ \t]*<(?:concepts|span|numbers|ranges|bit|compare)>|\bconcept\s+\w+\s*="
    r"|[^\w:.](?:float|double|u?char|u?short|u?int|u?long|u?longlong)[2-4]\s*\((?:[^()]|\([^()]*\))*,", re.M
)
_MAIN = re.compile(r"\bmain\s*\(")
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"\n]+)[>\"]")
_BY_NAME = ("T", "t", "W", "w", "V", "v", "u")


@dataclass(frozen=True)
class Source:
    """A program's files. `texts`: by the name that is shown, its own first; `includes`: of each, the shown names of the headers that are
    the user's."""

    path: Path
    texts: Mapping[str, str]
    includes: Mapping[str, Mapping[str, str]]
    missing: tuple[str, ...] = ()  # headers that are nowhere: "file:line: name"
    added: str = ""  # C++ behind it: a main() of ours
    device: bool = False  # without its host code
    guessed: str = ""  # what of it is assumed, so that a fault may come of that
    others: tuple[tuple[str, str], ...] = ()  # in place of `added` and what is said of it, where those have faults
    units: tuple[str, ...] = ()  # other files of the program's, compiled behind it

    @property
    def shown(self) -> str:
        return next(iter(self.texts))

    @property
    def whole(self) -> str:
        return "\n".join(self.texts.values())


def read(path: Path, folders: Sequence[Path] = (), text: str | None = None) -> Source:
    """A file, and the headers of the user's that it includes: beside it, in `folders`, or where such files keep them. `text`: in place of
    the file's own."""
    texts: dict[str, str] = {str(path): head_text.read(path) if text is None else text}
    places = {str(path): path.resolve()}
    includes: dict[str, dict[str, str]] = {}
    missing: list[str] = []
    queue = [str(path)]
    while queue:
        shown = queue.pop(0)
        includes[shown] = {}
        for token in tokenise(texts[shown]):
            if token.kind != "directive" or (match := _INCLUDE.match(token.text)) is None:
                continue
            header = program_headers.found(match[2], match[1] == '"', places[shown].parent, path.resolve().parent, folders)
            if header is None:
                if not program_headers.known(match[2]) and not program_headers.HOSTS.fullmatch(match[2]):
                    missing.append(f"{shown}:{token.line}: " + (f'"{match[2]}"' if match[1] == '"' else f"<{match[2]}>"))
                continue
            name = next((n for n, p in places.items() if p == header), None)
            if name is None:
                name = os.path.relpath(header, Path.cwd()) if not path.is_absolute() else str(header)
                texts[name], places[name] = _beside(header), header
                queue.append(name)
            includes[shown][match[2]] = name
    return Source(path, texts, includes, tuple(missing))


def _beside(path: Path) -> str:
    """The text of a file that nobody named: what of it is not UTF-8, in a comment say, is no reason to refuse the one that was named."""
    return head_text.lines(whole_file.regular(path, head_text.SOURCE).decode("utf-8", "replace"))


def has_main(source: Source) -> bool:
    return any(_MAIN.search(without_comments(text)) for text in source.texts.values())


def main_beside(source: Source, folders: Sequence[Path]) -> Source | None:
    """The program in the file's folder: the one file there with a main(), and the others that have none. None where there is not one such
    file."""
    top = source.path.resolve()
    mains = [p for p in _units(source.path) if p.resolve() != top and _MAIN.search(without_comments(_beside(p)))]
    names = set(_defined(source.texts[source.shown]))
    mains = [p for p in mains if names & set(re.findall(r"\w+", read(p, folders, _beside(p)).whole))]
    including = [p for p in mains if any(Path(n).name == top.name for n in list(read(p, folders, _beside(p)).texts)[1:])]
    chosen = including or (mains if len(mains) == 1 else [])
    if len(chosen) != 1:
        return None
    other = read(chosen[0], folders, _beside(chosen[0]))
    return other if including else together(other, folders)


def _defined(text: str) -> list[str]:
    """The names of the functions that a text defines."""
    tokens, at, names = tokenise(text), 0, []
    while at < len(tokens):
        try:
            end, opens = host.declaration(tokens, at)
        except host.UnreadableError:
            break
        part = [t for t in tokens[at:end] if t.kind not in ("space", "newline", "comment", "directive")]
        body = None if opens else host.body(part)
        head = part[: body or 0]
        names += [
            t.text for t, after in pairwise(head) if t.kind == "word" and after.text == "(" and not t.text.startswith("__")
            and t.text != "operator"
        ][:1]
        at = end
    return names


def without(source: Source, said: str) -> tuple[Source, list[str]]:
    """`source` without the declarations in which a compiler found errors, and what is left out: "file:line: error" of each."""
    texts, gone = dict(source.texts), []
    for shown, line, error in re.findall(r"^(\S[^:\n]*):(\d+):(?:\d+:)? *(?:error: )?(.*)$", said, re.M):
        tokens, at = tokenise(texts.get(shown, "")), 0
        while at < len(tokens):
            end, opens = host.declaration(tokens, at)
            part, at = tokens[at:end], end
            code = [t for t in part if t.kind not in ("space", "newline", "comment", "directive")]
            if not opens and code and code[0].line <= int(line) <= part[-1].line:
                first = sum(len(t.text) for t in tokens[: end - len(part)])
                text = "".join(t.text if t.kind == "directive" else "\n" * t.text.count("\n") for t in part)
                texts[shown] = texts[shown][:first] + text + texts[shown][first + sum(len(t.text) for t in part) :]
                gone.append(f"{shown}:{line}: {error}")
                break
    return replace(source, texts=texts), gone


def _units(path: Path) -> list[Path]:
    return sorted(p for p in path.parent.iterdir() if p.suffix in (".cu", ".cpp", ".cc") and p.is_file())


def _units_near(path: Path, headers: Iterable[Path] = ()) -> list[Path]:
    """In folders of the program's: below the file's, and beside it or one of the headers that it includes."""
    below, beside = ([p for p in sorted(f.iterdir()) if p.is_dir()] for f in (path.parent, path.resolve().parent.parent))
    folders = below + [p for p in beside if p.name in UNITS_IN]
    for of in dict.fromkeys(h.resolve().parent for h in headers):
        folders += [p for p in (of, *(of.parent / name for name in UNITS_IN)) if p.is_dir() and p not in folders and p != path.resolve().parent]
    return [unit for folder in folders for unit in _units(folder / path.name)]


def together(source: Source, folders: Sequence[Path], wanted: Collection[str] | None = None) -> Source:
    """A program with the files beside it that have no main() of their own; `wanted`: of each of these functions with the first that defines
    it."""
    made, open_ = source, None if wanted is None else set(wanted)
    for path in [*_units(source.path), *(() if wanted is None else _units_near(source.path, map(Path, list(source.texts)[1:])))]:
        if open_ is not None:
            if not (of := open_ & set(_defined(_beside(path)))):
                continue
            open_ -= of
        path = path if source.path.is_absolute() else Path(os.path.relpath(path))  # so that a header has one name
        if str(path) not in made.texts and not _MAIN.search(without_comments(_beside(path))):
            unit = read(path, folders, _beside(path))
            made = replace(
                made, texts={**made.texts, **unit.texts}, includes={**made.includes, **unit.includes}, units=(*made.units, str(path))
            )
    return made


@dataclass(frozen=True)
class Program:
    """A built program. `pairs`: places of what both builds hold, from the library's first byte: plain, watched."""

    path: Path
    pairs: tuple[tuple[int, int], ...]
    seconds: float
    kernels: tuple[str, ...] = field(default=())  # name expressions of the watched ones


def built(source: Source, mode: str, only: str | None = None, options: Sequence[str] = ()) -> Program:
    """The library that runs a program; where it calls what other files define, with those beside it that do. See `built_alone`."""
    said: CompileError | None = None
    for _ in range(UNITS):
        try:
            return built_alone(source, mode, only, options)
        except CompileError as error:
            if said is None or re.search("is declared neither|has no such header", str(error)):
                said = error  # not what comes of files that do not belong together
            absent = set(UNDEFINED.findall(str(error)))
            more = together(source, (), absent) if absent else source
            if more.units == source.units:
                break
            source = more
    assert said is not None
    raise said


def built_alone(source: Source, mode: str, only: str | None = None, options: Sequence[str] = ()) -> Program:
    """The library that runs a program, `mode` as in `build.build`; `only`: the kernel to be watched. Raises CompileError,
    NoCompilerError."""
    started = time.perf_counter()
    tool = build.compiler()
    texts = list(source.texts.values())
    marks = host.marks(texts)
    kernels = {k.name.rpartition("::")[2] for text in texts for k in ordinary.kernels(text)}
    places = build.marks_of_places(tool) if mode == "count" else ()
    common = tuple(f for f in build._flags(tool) if f != "-fno-exceptions") + (("-std=c++20",) if _TWENTY.search(source.whole) else ())
    watched_flags = (
        *common, *DEFINES, *(f for f in build.KERNEL if f != "-fno-rtti"),
        *((*build.CLANG, *build.steady(tool)) if tool.clang else build.GCC)
    )
    plain_flags = (
        *common, *DEFINES, "-g1", "-gdwarf-4", "-O2", "-fno-strict-aliasing", "-fpermissive", "-fno-gnu-unique", "-fdata-sections"
    )
    if re.search(r"^[ \t]*#[ \t]*include[ \t]*<omp\.h>", source.whole, re.M):
        plain_flags = (*plain_flags, "-fopenmp")
    work_key = build._key(
        *source.texts, *texts, *(f"{a} {b}" for of in source.includes.values() for a, b in of.items()), source.added, only or "",
        *watched_flags, *plain_flags, *options, str(source.device), *source.units, tool.version, build._runtime_digest(),
    )
    key = build._key(work_key, *places)
    target = settings.load().cache / "simt" / key[:2] / f"{key}.{mode}.so"
    if build._whole(target):
        _, under_way = build._part(*build.WORKER)
        if under_way is not None:
            under_way.result()
        return Program(target, _pairs(target), 0.0)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary, ThreadPoolExecutor(2) as both:
        work = Path(temporary)
        text, pointed = _written(source, work, marks, kernels)
        dims = cluster_dims(source.whole)
        table = "".join(f'{{"{name}", {{{_three(given)}}}}}, ' for name, given in dims.items())
        clusters = f'extern "C" const simt::ClusterDims simt_cluster_dims[] = {{{table}{{nullptr, {{0, 0, 0}}}}}};\n'
        caller = f'#line 1 "{MARK}{CALLER}"\n{source.added}\n' if source.added else ""
        used = "#undef __global__\n#define __global__ __attribute__((used))\n" if pointed else ""
        begins = '#include "simt.h"\n#define SIMT_ARCH 900\n'
        dropped = f'#define SIMT_HOST inline\n#define SIMT_MAIN extern "C" inline\n#define main simt_main\n{used}'
        (work / "kernel.cpp").write_text(f"{begins}{dropped}{text}{caller}", encoding="utf-8")
        (work / "plain.cpp").write_text(f"{begins}#define SIMT_HOST\n#define SIMT_MAIN\n{text}{caller}{clusters}", encoding="utf-8")

        def compiled(name: str, flags: Sequence[str]) -> None:
            kept = build._folder() / build._key(str(build.RUNTIME), build._runtime_digest(steps=False), tool.version, *flags)
            command = [*flags, *options, f"-I{work / 'include'}", f"-I{build.RUNTIME / 'include'}", f"-I{build.RUNTIME / 'libraries'}"]
            first = [str(tool.path), *precompiled.options(tool.path, tool.clang, tuple(flags), build.RUNTIME / "simt.h", kept)]
            extra = places if name == "kernel" else ()
            build._run([*first, *command, *extra, "-c", f"{name}.cpp", "-o", f"{name}.o"], work, source.shown, source.whole)

        plain = both.submit(_once_for_all_modes, work_key, work / "plain.o", lambda: compiled("plain", plain_flags))
        watched = both.submit(compiled, "kernel", watched_flags)
        try:
            plain.result()
        finally:
            watched.exception()
        watched.result()
        _named_apart(work)
        named = constants(source.whole)
        nm = build._binutils("nm")
        script, theirs = link.script(nm, work / "kernel.o", named, work / "plain.o")
        (work / "layout").write_text(script, encoding="utf-8")
        worker, objects = build.engine(mode, *build.PROGRAM)
        shared = (f"-L{worker.parent}", f"-l:{worker.name}", "-Wl,-rpath,$ORIGIN/../engine", "-Wl,-T,layout", "-Wl,--no-undefined")
        openmp = ("-fopenmp",) if "-fopenmp" in plain_flags else ()
        build._run(
            [
                str(tool.path), "-shared", "-Wl,-Bsymbolic", "-o", "out.so", "kernel.o", "plain.o", *map(str, objects), *shared, "-pthread",
                *openmp
            ],
            work, source.shown, source.whole,
        )
        (work / "variables").write_text(link.written(nm, work / "out.so", theirs), encoding="utf-8")
        frames = (
            max(build._frames((work / f"{n}.su").read_text(encoding="utf-8")) for n in ("kernel",)) if (work / "kernel.su").is_file() else 0
        )
        (work / "stack").write_text(str(2 * frames + build.SPARE_STACK), encoding="utf-8")
        (work / "pairs").write_text("".join(f"{a} {b}\n" for a, b in _matched(nm, work / "out.so")), encoding="utf-8")
        (work / "sum").write_text(sum_of(*(work / beside for beside in ("out.so", *build.BESIDE))), encoding="utf-8")
        for beside in (*build.BESIDE, "pairs", "sum"):
            os.replace(work / beside, target.with_suffix(f".{beside}"))
        os.replace(work / "out.so", target)
    return Program(target, _pairs(target), time.perf_counter() - started)


_PLAIN: dict[str, Future[bytes]] = {}  # plain builds, done or under way
KEPT = 8  # of these
_LOCK = threading.Lock()


def _once_for_all_modes(key: str, target: Path, compiled: Callable[[], None]) -> None:
    """A program's plain build, which is the same for all modes: who comes first compiles it."""
    with _LOCK:
        first = key not in _PLAIN
        built = _PLAIN.setdefault(key, Future())
        if len(_PLAIN) > KEPT:
            del _PLAIN[next(iter(_PLAIN))]
    if not first:
        target.write_bytes(built.result())
        return
    try:
        compiled()
        built.set_result(target.read_bytes())
    except BaseException as error:
        with _LOCK:
            _PLAIN.pop(key, None)
        built.set_exception(error)
        raise


def _three(extent: str) -> str:
    parts = [p.strip() for p in extent.split(",")]
    return ", ".join([*parts, "1", "1", "1"][:3])


def _written(source: Source, work: Path, marks: Collection[str], kernels: Collection[str]) -> tuple[str, bool]:
    """The translated text; its headers beside it. And whether a kernel is launched by its address.

    No loop is unrolled: a program has many kernels and instances of each, and unrolled they take minutes to compile."""
    (work / "include").mkdir()
    names = {shown: f"simt_{i}_{Path(shown).name}" for i, shown in enumerate(source.texts)}
    files: dict[str, str] = {}
    pointed = False
    for shown, text in source.texts.items():
        tokens = host.left_out(tokenise(text), marks) if source.device else tokenise(text)
        tokens, by_pointer = program_text.prepare(tokens, marks, kernels)
        pointed |= by_pointer
        includes = {name: names[other] for name, other in source.includes[shown].items()}
        files[shown] = translate(text, shown, tokens=tokens, includes=includes)
    top = [source.shown] * any(source.shown in named.values() for named in source.includes.values())  # it includes itself
    if top and _once(source.texts[source.shown]):
        top = []
        (work / "include" / names[source.shown]).touch()
    for shown in (*top, *list(source.texts)[1:]):
        if shown in source.units:
            continue
        (work / "include" / names[shown]).write_text("#pragma once\n" * _once(source.texts[shown]) + files[shown], encoding="utf-8")
    parts: list[str] = []
    seen: set[str] = set()
    for i, shown in enumerate((source.shown, *source.units)):
        own = set(_defined(source.texts[shown])) if source.units else set()
        again = sorted(own & seen)  # each file's own, of the same name
        seen |= own
        apart = "".join(f"#define {n} {n}_of_file_{i + 1}\n" for n in again)
        macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", source.texts[shown], re.M) if source.units else []
        parts.append(apart + files[shown] + "".join(f"\n#undef {n}" for n in (*again, *macros)))
    return "\n".join(parts) + "\n", pointed


def _once(text: str) -> bool:
    return "#pragma once" in text


def _named_apart(work: Path) -> None:
    """The plain build's functions get other names; its variables are the watched build's, which are laid out so that accesses are seen."""
    nm, objcopy = str(build._binutils("nm")), str(build._binutils("objcopy"))

    def symbols(name: str) -> list[tuple[str, str]]:
        done = subprocess.run([nm, "-p", f"{name}.o"], cwd=work, capture_output=True, text=True, check=True)
        return [(p[-2], p[-1]) for line in done.stdout.splitlines() if len(p := line.split()) >= 2]

    kernel, plain = symbols("kernel"), symbols("plain")
    undefined = [f"{n} {OWN[n]}" for kind, n in plain if kind == "U" and n in OWN]
    own = [
        f"{n} {'simt_user_main' if n == 'main' else PLAIN + n}" for kind, n in plain if kind in (*_BY_NAME, "n")
        and not n.startswith("DW.ref")
    ]
    shared = {n for kind, n in kernel if kind in "BDRVu"} & {n for kind, n in plain if kind in "BDR"}
    (work / "names").write_text("".join(f"{x}\n" for x in (*own, *undefined)), encoding="utf-8")
    (work / "weak").write_text("".join(f"{n}\n" for n in sorted(shared)), encoding="utf-8")
    build._run([objcopy, "--redefine-syms=names", *(["--weaken-symbols=weak"] if shared else []), "plain.o"], work, "plain.o")
    called = [f"--redefine-sym={n}={OWN[n]}" for kind, n in kernel if kind == "U" and n in OWN]
    build._run([objcopy, *called, "--remove-section=.init_array*", "--remove-section=.rela.init_array*", "kernel.o"], work, "kernel.o")


def _matched(nm: Path, library: Path) -> list[tuple[int, int]]:
    done = subprocess.run([str(nm), "-p", str(library)], capture_output=True, text=True, check=True)
    plain: dict[str, int] = {}
    watched: dict[str, int] = {}
    for line in done.stdout.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[1] in _BY_NAME:
            name = parts[2]
            (plain if name.startswith(PLAIN) else watched)[name.removeprefix(PLAIN).replace("9simt_main", "4main")] = int(parts[0], 16)
    return sorted((at, watched[name]) for name, at in plain.items() if name in watched and ".cold" not in name)


def _pairs(library: Path) -> tuple[tuple[int, int], ...]:
    return tuple(
        (int(a), int(b)) for a, b in (line.split() for line in library.with_suffix(".pairs").read_text(encoding="utf-8").splitlines())
    )
