"""What a process that runs simulated code, or compiles a source, is kept from: the network, other processes and programs, all files but
those it needs.

Means of Linux, each used where the system has it (docs/trust.md): a seccomp filter (which calls of the system are answered), Landlock
(which files may be read or written), a network namespace of its own, limits of resources. The filter allows a list of calls and refuses all
others. It is written here as it stands in the kernel, a few instructions a call: the packages that could assemble it need libseccomp, which
a wheel does not bring along everywhere.
Sources: seccomp(2), landlock(7), Documentation/userspace-api/landlock.rst of Linux.

Needs the standard library alone, since it is a program too: `python sandbox.py JSON COMMAND...` confines itself and becomes the command
(`tool`)."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

Numbers = tuple[int | None, int | None]  # of a call: on x86-64 and on 64-bit ARM; None: it is not there
Test = tuple[int, int, int, bool]  # of a call's argument: which half of which (see `_half`), code of the jump, value, what it must come to

# Calls that are answered whatever their arguments are.
ALLOWED: dict[str, Numbers] = {
    # memory of its own
    "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "brk": (12, 214),
    # the libraries that it loads, by descriptors that it was given or that Landlock let it open; the answer
    "read": (0, 63), "pread64": (17, 67), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80),
    # threads of its own: workers, and the one that looks whether they get anywhere
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getcpu": (309, 168), "getpid": (39, 172), "gettid": (186, 178),
    # its signals: a simulated thread that crashes ends its launch, not the process
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    # time and chance, where the C library does not find them without a call
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None), "getrandom": (318, 278),
    "exit": (60, 93), "exit_group": (231, 94),
}
# the C library then makes another call, which is looked at
ABSENT: dict[str, Numbers] = {"clone3": (435, 435), "openat2": (437, 437), "statx": (332, 291)}
AUDIT = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # place in the pairs above, the architecture as seccomp sees it
ALLOW, REFUSE, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # of classic BPF
_NUMBER, _ARCH = 0, 4  # offsets in seccomp_data
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWNET = 0x10000, 0x10000000, 0x40000000
CLONE_NEW = 0x7E020080  # namespaces of its own, each of them
MAP_SHARED, MAP_HUGETLB = 0x1, 0x40000  # pages that are counted nowhere once they have left the resident set
MADV_DONTNEED, AT_EMPTY_PATH = 4, 0x1000


def _half(argument: int, high: bool = False) -> int:
    """Where half of an argument lies in seccomp_data: on machines that store the low half first."""
    return 16 + 8 * argument + 4 * high


def looked_at(pid: int) -> dict[str, tuple[Numbers, tuple[Test, ...]]]:
    """Calls that are answered where their arguments pass every test. `pid`: the process that is confined."""
    own: tuple[Test, ...] = ((_half(0), _EQUAL, pid, True),)
    # a limit, which is not set
    asks: tuple[Test, ...] = ((_half(0), _EQUAL, 0, True), (_half(2), _EQUAL, 0, True), (_half(2, True), _EQUAL, 0, True))
    return {
        "clone": ((56, 220), ((_half(0), _ANY_BIT, CLONE_THREAD, True), (_half(0), _ANY_BIT, CLONE_NEW, False))),
        "open": ((2, None), ((_half(1), _ANY_BIT, WRITES, False),)),
        "openat": ((257, 56), ((_half(2), _ANY_BIT, WRITES, False),)),
        "newfstatat": ((262, 79), ((_half(3), _ANY_BIT, AT_EMPTY_PATH, True),)),  # what the C library's fstat is
        "mmap": ((9, 222), ((_half(3), _ANY_BIT, MAP_SHARED | MAP_HUGETLB, False),)),
        "madvise": ((28, 233), ((_half(2), _AT_LEAST, MADV_DONTNEED + 1, False),)),
        "kill": ((62, 129), own),
        "tgkill": ((234, 131), own),
        "prlimit64": ((302, 261), asks),
    }


LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_DIR, MAKE_FILE, TRUNCATE = (
    1, 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 7, 1 << 8, 1 << 14
)
READS, WRITES_INTO = READ_FILE | READ_DIR, READ_FILE | READ_DIR | WRITE_FILE | REMOVE_FILE | MAKE_DIR | MAKE_FILE | TRUNCATE
LANDLOCK_RIGHTS = (13, 14, 15, 15, 16)  # rights of files that version 1, 2, ... knows
NET_VERSION, SCOPE_VERSION = 4, 6  # from which on it keeps from TCP; from signals and named sockets of others
SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/proc/self/maps",
    "/dev/null"
)
PROGRAMS = (*SYSTEM, "/usr/bin", "/bin", "/usr/include", "/usr/local/include", "/usr/libexec")  # of a tool
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_PDEATHSIG = 38, 22, 1
CAPSET = (126, 91)
FILE_BYTES = 1 << 30  # that a tool may write into one file
NOTHING = "seccomp filters (the network and other programs are open to simulated code)"


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: Any) -> int:
    return int(_libc().syscall(ctypes.c_long(number), *arguments))


def limits(seconds: int, file_bytes: int = 0, memory: int | None = None) -> None:
    """CPU time of this process, no core dumps, no file that grows beyond `file_bytes`; `memory`: bytes of addresses."""
    wanted = [(resource.RLIMIT_CPU, seconds, seconds + 5), (resource.RLIMIT_CORE, 0, 0), (resource.RLIMIT_FSIZE, file_bytes, file_bytes)]
    for what, soft, hard in (*wanted, *([(resource.RLIMIT_AS, memory, memory)] if memory is not None else [])):
        _, most = resource.getrlimit(what)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(what, (soft, hard))


def on_the_clock(seconds: int) -> int:
    """In how many seconds that must end which may take so many of CPU time: others may use the processor, but nobody sleeps for ever."""
    return 4 * seconds + 2


def confine(readable: Iterable[Path]) -> None:
    """Keep this process, for the rest of its life, from all but what a simulation needs. `readable`: folders and files beside the system's
    libraries.

    What the system has no means for is left open: `missing` says what."""
    _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _no_network()
    _landlocked({**dict.fromkeys(map(Path, SYSTEM), READS), **dict.fromkeys(readable, READS)})
    _no_capabilities()
    if filterable():
        _filter(program(os.getpid()))


def confine_tool(readable: Iterable[Path], writable: Iterable[Path] = ()) -> None:
    """The same for a compiler: it starts programs and writes files, into `writable` alone. By Landlock, where it is."""
    _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _no_network()
    into = dict.fromkeys(writable, WRITES_INTO)
    _landlocked(
        {
            **dict.fromkeys(map(Path, PROGRAMS), READS | EXECUTE), **dict.fromkeys(readable, READS | EXECUTE),
            Path("/dev/null"): WRITES_INTO, **into
        }
    )
    _no_capabilities()


def confine_python(readable: Iterable[Path], listed: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Keep the calling thread, and those that it starts, from the network and from all files but `readable`; of the folders `listed` the
    names alone. It may start no program. Whether the system can (Landlock)."""
    if not landlock_version():
        return False
    _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _no_network()
    _landlocked({
        **dict.fromkeys(map(Path, SYSTEM), READS), **dict.fromkeys(listed, READ_DIR), **dict.fromkeys(readable, READS),
        **dict.fromkeys(writable, WRITES_INTO),
    })
    _no_capabilities()
    return True


def tool(command: Sequence[str], *, readable: Iterable[Path], writable: Iterable[Path], seconds: int, memory: int) -> list[str]:
    """`command` as this process runs it confined (`confine_tool`), within `seconds` of CPU time and `memory` bytes for each of its
    processes. It ends, with what it has started, when the thread that runs it does."""
    folders = {"readable": [str(p) for p in readable], "writable": [str(p) for p in writable]}
    told = {**folders, "seconds": seconds, "memory": memory, "asks": os.getpid()}
    return [sys.executable, "-I", "-S", __file__, json.dumps(told), *command]


def missing() -> list[str]:
    """What this system cannot keep simulated code from; empty where it is all there."""
    found = []
    if not filterable():
        found.append(NOTHING)
    if not landlock_version():
        found.append("Landlock (files that you can read, simulated code can read, and its source can name to the compiler)")
    return found


@cache
def landlock_version() -> int:
    """0 where the system has no Landlock."""
    return max(_syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)), 0)


@cache
def filterable() -> bool:
    """Whether a seccomp filter can be set here: asked by a filter that cannot be read, which a system without them refuses otherwise."""
    if platform.machine() not in AUDIT:
        return False
    refused = _libc().prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), None, ctypes.c_ulong(0), ctypes.c_ulong(0))
    return bool(refused and ctypes.get_errno() == errno.EFAULT)


def _no_network() -> None:
    """A network namespace with nothing in it, where the system lets users make one."""
    for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET):
        if _libc().unshare(ctypes.c_int(flags)) == 0:
            return


def _no_capabilities() -> None:
    """What root may do more than others."""
    if platform.machine() in AUDIT:
        _syscall(CAPSET[AUDIT[platform.machine()][0]] or 0, struct.pack("Ii", 0x20080522, 0), bytes(24))


def _landlocked(paths: dict[Path, int]) -> None:
    """From now on files are open to this process by these rights alone, to which a folder's name stands for all in it."""
    version = landlock_version()
    if not version:
        return
    handled = (1 << LANDLOCK_RIGHTS[min(version, len(LANDLOCK_RIGHTS)) - 1]) - 1
    asked = [handled, *([3] if version >= NET_VERSION else []), *([3] if version >= SCOPE_VERSION else [])]
    rules = _syscall(LANDLOCK_CREATE, struct.pack(f"{len(asked)}Q", *asked), ctypes.c_size_t(8 * len(asked)), ctypes.c_uint32(0))
    if rules < 0:
        raise OSError(ctypes.get_errno(), "Landlock takes no rules")
    for path, rights in paths.items():
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # not here
            continue
        given = rights & handled & (-1 if path.is_dir() else EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE)
        _syscall(LANDLOCK_ADD, ctypes.c_int(rules), ctypes.c_int(1), struct.pack("=Qi", given, opened), ctypes.c_uint32(0))
        os.close(opened)
    if _syscall(LANDLOCK_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0)):
        raise OSError(ctypes.get_errno(), "Landlock does not hold")
    os.close(rules)


def program(pid: int) -> list[tuple[int, int, int, int]]:
    """The filter for the process `pid`, as instructions of classic BPF: code, jump if true, jump if false, value."""
    column, architecture = AUDIT[platform.machine()]
    made: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, KILL_PROCESS), (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, REFUSE | errno.ENOSYS),  # x32
    ]
    for numbers, answer in (*((n, ALLOW) for n in ALLOWED.values()), *((n, REFUSE | errno.ENOSYS) for n in ABSENT.values())):
        if (number := numbers[column]) is not None:
            made += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]
    for numbers, tests in looked_at(pid).values():
        if (number := numbers[column]) is None:
            continue
        block: list[tuple[int, int, int, int]] = []
        for i, (place, code, value, wanted) in enumerate(tests):
            refuse = 2 * (len(tests) - i - 1) + 1  # instructions to pass over, to the refusal that ends the block
            block += [(_LOAD, 0, 0, place), (code, 0, refuse, value) if wanted else (code, refuse, 0, value)]
        made += [(_EQUAL, 0, len(block) + 2, number), *block, (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, REFUSE | errno.EPERM)]
    made.append((_RETURN, 0, 0, REFUSE | errno.EPERM))
    return made


def _filter(instructions: list[tuple[int, int, int, int]]) -> None:
    code = b"".join(struct.pack("=HBBI", *i) for i in instructions)
    held = ctypes.create_string_buffer(code, len(code))
    told = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(held)))
    if _libc().prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), told, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "a seccomp filter cannot be set")


def _watched(asks: int) -> None:
    """From here on this is a process of its own. The one that was called waits for it and ends as it does; should the process `asks`, which
    called it, end before, it ends the group: a compiler's driver and what that has started."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    _libc().prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != asks:  # it has ended already
        os._exit(1)
    child = os.fork()
    if not child:
        return
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        if code not in (-signal.SIGKILL, -signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _become(told: str, command: list[str]) -> None:
    given = json.loads(told)
    os.setpgid(0, 0)  # who ends it ends what it has started
    limits(given["seconds"], FILE_BYTES, given["memory"])
    _watched(given["asks"])
    confine_tool(map(Path, given["readable"]), map(Path, given["writable"]))
    os.execv(command[0], command)


if __name__ == "__main__":
    _become(sys.argv[1], sys.argv[2:])
