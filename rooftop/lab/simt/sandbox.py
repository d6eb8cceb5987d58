"""What a process that runs simulated code is kept from: the network, other processes and programs, all files but the libraries that it loads.

Three means of Linux, each used where the system has it (docs/trust.md): a seccomp filter (which calls of the system are refused), Landlock (which files
may be read), a network namespace of its own. Sources: seccomp(2), landlock(7), Documentation/userspace-api/landlock.rst of Linux."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

# Calls that are refused, by name: their numbers on x86-64 and on 64-bit ARM (None: it is not there).
DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200), "listen": (50, 201), "socketpair": (53, 199),
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "tkill": (200, 130), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138), "kcmp": (312, 272), "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "kexec_load": (246, 104), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116),
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "open_by_handle_at": (304, 265),
    "creat": (85, None), "truncate": (76, 45), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "link": (86, None), "linkat": (265, 37), "unlink": (87, None), "unlinkat": (263, 35), "symlink": (88, None), "symlinkat": (266, 36),
    "mknod": (133, None), "mknodat": (259, 33), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "setuid": (105, 146), "setgid": (106, 144), "setresuid": (117, 147), "setresgid": (119, 149), "capset": (126, 91),
    "fallocate": (285, 47), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
}  # fmt: skip
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}  # answered as if the kernel did not have them: their arguments cannot be looked at
CLONE, OPEN, OPENAT, KILL, TGKILL, PRLIMIT = (56, 220), (2, None), (257, 56), (62, 129), (234, 131), (302, 261)
AUDIT = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # place in the pairs above, the architecture as seccomp sees it
ALLOW, REFUSE, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWNET = 0x10000, 0x10000000, 0x40000000
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # of classic BPF
_NUMBER, _ARCH = 0, 4  # offsets in seccomp_data; arguments follow at 16, eight bytes each, the low half first
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
READ_FILE, READ_DIR = 1 << 2, 1 << 3
LANDLOCK_RIGHTS = (13, 14, 15, 15, 16)  # rights of files that version 1, 2, ... knows
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/proc/self/maps", "/dev/null")
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_DUMPABLE = 38, 22, 4


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: Any) -> int:
    return int(_libc().syscall(ctypes.c_long(number), *arguments))


def limits(seconds: int) -> None:
    """CPU time of this process, no core dumps, no file that grows."""
    for what, soft, hard in ((resource.RLIMIT_CPU, seconds, seconds + 5), (resource.RLIMIT_CORE, 0, 0), (resource.RLIMIT_FSIZE, 0, 0)):
        _, most = resource.getrlimit(what)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(what, (soft, hard))


def confine(readable: Iterable[Path]) -> None:
    """Keep this process, for the rest of its life, from all but what a simulation needs. `readable`: folders and files beside the system's libraries.

    What the system has no means for is left open: `missing` says what."""
    _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _no_network()
    if landlock_version():
        _only_reading([*map(Path, SYSTEM), *readable])
    if filterable():
        _filter(program(os.getpid()))


def missing() -> list[str]:
    """What this system cannot keep simulated code from; empty where it is all there."""
    found = []
    if not filterable():
        found.append("seccomp filters (the network and other programs are open to simulated code)")
    if not landlock_version():
        found.append("Landlock (files that you can read, simulated code can read)")
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


def _only_reading(paths: Iterable[Path]) -> None:
    version = landlock_version()
    handled = (1 << LANDLOCK_RIGHTS[min(version, len(LANDLOCK_RIGHTS)) - 1]) - 1
    rules = _syscall(LANDLOCK_CREATE, struct.pack("Q", handled), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if rules < 0:
        return
    for path in paths:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # not here
            continue
        rights = READ_FILE | READ_DIR if path.is_dir() else READ_FILE
        _syscall(LANDLOCK_ADD, ctypes.c_int(rules), ctypes.c_int(1), struct.pack("=Qi", rights, opened), ctypes.c_uint32(0))
        os.close(opened)
    _syscall(LANDLOCK_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    os.close(rules)


def program(pid: int) -> list[tuple[int, int, int, int]]:
    """The filter for the process `pid`, as instructions of classic BPF: code, jump if true, jump if false, value."""
    column, architecture = AUDIT[platform.machine()]
    made: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, KILL_PROCESS), (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, REFUSE | errno.ENOSYS),  # x32
    ]  # fmt: skip
    for numbers, error in [*((n, errno.EPERM) for n in DENIED.values()), *((n, errno.ENOSYS) for n in ABSENT.values())]:
        if (number := numbers[column]) is not None:
            made += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, REFUSE | error)]

    def looks(numbers: tuple[int | None, int | None], argument: int, *judged: tuple[int, int, int, int]) -> None:
        """For one call: load an argument, judge it by one test that skips the refusal where it is true."""
        if (number := numbers[column]) is not None:
            made.extend([(_EQUAL, 0, len(judged) + 3, number), (_LOAD, 0, 0, 16 + 8 * argument), *judged, (_RETURN, 0, 0, REFUSE | errno.EPERM),
                         (_RETURN, 0, 0, ALLOW)])  # fmt: skip

    looks(CLONE, 0, (_ANY_BIT, 1, 0, CLONE_THREAD))
    looks(OPEN, 1, (_ANY_BIT, 0, 1, WRITES))
    looks(OPENAT, 2, (_ANY_BIT, 0, 1, WRITES))
    looks(KILL, 0, (_EQUAL, 1, 0, pid))
    looks(TGKILL, 0, (_EQUAL, 1, 0, pid))
    looks(PRLIMIT, 0, (_EQUAL, 1, 0, 0))
    made.append((_RETURN, 0, 0, ALLOW))
    return made


def _filter(instructions: list[tuple[int, int, int, int]]) -> None:
    code = b"".join(struct.pack("=HBBI", *i) for i in instructions)
    held = ctypes.create_string_buffer(code, len(code))
    told = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(held)))
    if _libc().prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), told, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "a seccomp filter cannot be set")
