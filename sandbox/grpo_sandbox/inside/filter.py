"""A seccomp filter that refuses system calls which no task needs or a jail must not allow.

It refuses what Docker's default profile refuses without capabilities, and in addition:

* files that exist in memory only (memfd), which no memory limit counts;
* sockets of other families than Unix, since there is no network, and the contents of their buffers
  are not counted either; in a jail with a bridge (see `bridge`) programs may connect by TCP, and
  listen nowhere, so that they cannot make connections among themselves;
* every way in which two calls could communicate by a file that both may only read, or by a device:
  locks, watches, times, queries and hints about the page cache, waiting at an address of a file
  that both have in memory, commands to a file system or a device. A file is the same one in all
  jails, even if each jail sees it in a folder of its own;
* commands to the disks of the whole machine;
* every system call that is newer than this list.

Source: linux/seccomp.h, linux/filter.h, asm/unistd.h; Docker's profile: moby/profiles/seccomp.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
LAST_KNOWN = 448
"""process_mrelease. Later calls are refused as if the kernel did not have them."""
REFUSED = {
    # name: (number on x86_64, number on aarch64)
    "mincore": (27, 232),
    "flock": (73, 32),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "utime": (132, None),
    "uselib": (134, None),
    "personality": (135, 92),
    "ustat": (136, None),
    "sysfs": (139, None),
    "vhangup": (153, 58),
    "pivot_root": (155, 41),
    "_sysctl": (156, None),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "sync": (162, 81),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "create_module": (174, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "nfsservctl": (180, 42),
    "readahead": (187, 213),
    "lookup_dcookie": (212, 18),
    "fadvise64": (221, 223),
    "clock_settime": (227, 112),
    "utimes": (235, None),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "get_mempolicy": (239, 236),
    "mq_open": (240, 180),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "inotify_init": (253, None),
    "inotify_add_watch": (254, 27),
    "migrate_pages": (256, 238),
    "futimesat": (261, None),
    "unshare": (272, 97),
    "utimensat": (280, 88),
    "move_pages": (279, 239),
    "inotify_init1": (294, 26),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "syncfs": (306, 267),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "memfd_create": (319, 279),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "memfd_secret": (447, 447),
    "process_mrelease": (448, 448),
}
PRETENDED = ("flock", "utime", "utimes", "futimesat", "utimensat")
"""Calls that a session's filter lets seem to succeed, as `touch`, `tar` and `cp -p` need them."""
ABSENT = {"x86_64": (327, 328), "aarch64": (286, 287)}
"""preadv2 and pwritev2, which reveal whether a page is in the page cache. The C library works
without them."""
SESSION = {"x86_64": 112, "aarch64": 157}
"""setsid."""
SHARED = {"x86_64": (29, 64, 68), "aarch64": (194, 190, 186)}
"""shmget, semget, msgget: memory that outlives a process and is not counted with it."""
CLONE, CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
SOCKET, SOCKETPAIR = {"x86_64": 41, "aarch64": 198}, {"x86_64": 53, "aarch64": 199}
LISTENING = {"x86_64": (49, 50), "aarch64": (200, 201)}
"""bind and listen."""
STREAMS = (1, 1 | 0x800, 1 | 0x80000, 1 | 0x80800)
"""SOCK_STREAM, with SOCK_NONBLOCK and SOCK_CLOEXEC."""
TCP = (0, 6)
"""IPPROTO_TCP, by its default and by its number."""
FCNTL = {"x86_64": 72, "aarch64": 25}
ALLOWED_FCNTLS = (0, 1, 2, 3, 4, 1030, 1031, 1032)
"""Copies and flags of descriptors, and sizes of pipes. There are no leases, watches or hints, and
the locks of others cannot be queried."""
LOCKING_FCNTLS = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW and the same for open files: they seem to succeed, because SQLite takes locks.
The files that a call may write are its own anyway, and no other process sees them."""
IOCTL = {"x86_64": 16, "aarch64": 29}
ALLOWED_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
FUTEX = {"x86_64": 202, "aarch64": 98}
FUTEX_PRIVATE = 128
FUTEX_WAITS, FUTEX_WAKES = (0, 9, 9 | 256), (1, 10)
"""Operations by which the C library waits for the end of a thread, which the kernel reports."""
ESCAPES = 0x7E028000
"""Every CLONE_NEW... flag that `clone` takes, and CLONE_PARENT, since a sibling is not counted with
the call."""
AF_UNIX, AF_INET = 1, 2
X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_AT, _SECOND_AT, _THIRD_AT = 0, 4, 16, 24, 32
"""Where the kernel puts the call's number, its kind of processor, and its first three arguments."""
_ALLOWED = (_RETURN, 0, 0, _ALLOW)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


class SystemCallFilter:
    """A filter for this machine's processor, ready to be applied to a process.

    Applying the whole filter takes a third of a millisecond, so a supervisor applies it once, to
    itself, without the calls that its children need to isolate themselves; each child adds those.

    Raises:
        OSError: The system calls of this processor are not listed here.
    """

    def __init__(self, code: bytes) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._buffer = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.addressof(self._buffer))

    @classmethod
    def of_jail(
        cls, still_needed: tuple[str, ...], pretended: tuple[str, ...] = (), *, tcp: bool = False
    ) -> SystemCallFilter:
        """Return the whole filter without the calls named in `still_needed`.

        Args:
            pretended: Names of calls that seem to succeed and do nothing.
            tcp: Whether programs may connect by TCP, and in exchange listen nowhere.
        """
        return cls(build(_machine(), still_needed, pretended, tcp=tcp))

    @classmethod
    def of_call(cls, names: tuple[str, ...]) -> SystemCallFilter:
        """Return a filter that refuses the calls named in `names` and keeps a call in its session.

        The kernel gives each session a fair share of the processors, however many processes it
        has. `setsid` seems to succeed, so that a correct program that calls it stays correct.
        """
        machine = _machine()
        column = list(ARCHITECTURES).index(machine)
        numbers = [number for name in names if (number := REFUSED[name][column]) is not None]
        stay = _if(_EQUAL, SESSION[machine], 0)
        return cls(_pack([(_LOAD, 0, 0, _NUMBER_AT), *_refuse_all(numbers), *stay, _ALLOWED]))

    def apply(self) -> None:
        """Put this process and all its later children under the filter, for good."""
        address = ctypes.byref(self._program)
        if (
            self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            or self._libc.prctl(_PR_SET_SECCOMP, _FILTER, address, 0, 0) != 0
        ):
            raise OSError(ctypes.get_errno(), "this system has no seccomp filters")


def build(
    machine: str,
    still_needed: tuple[str, ...] = (),
    pretended: tuple[str, ...] = (),
    *,
    tcp: bool = False,
) -> bytes:
    """Return the filter as instructions of classic BPF, 8 bytes each."""
    column = list(ARCHITECTURES).index(machine)
    numbers = {name: number for name, row in REFUSED.items() if (number := row[column]) is not None}
    seeming = [numbers[name] for name in pretended if name in numbers]
    refused = [
        number for name, number in numbers.items() if name not in (*still_needed, *pretended)
    ]
    local = _unless((AF_UNIX,), errno.EAFNOSUPPORT)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        _error(errno.ENOSYS),  # the same kernel's calls for 32-bit programs have other numbers
        (_LOAD, 0, 0, _NUMBER_AT),
        *_if(_AT_LEAST, X32, errno.ENOSYS),
        *_if(_AT_LEAST, LAST_KNOWN + 1, errno.ENOSYS),
        *_if(_EQUAL, CLONE3, errno.ENOSYS),  # its flags cannot be read: libc falls back to clone
        *_refuse_each(ABSENT[machine], errno.ENOSYS),
        *_refuse_each(seeming, 0),
        *_refuse_all([*refused, *SHARED[machine], *(LISTENING[machine] if tcp else ())]),
        *_if_call(CLONE[machine], _FIRST_AT, _if(_ANY_BIT, ESCAPES, errno.EPERM)),
        *_if_call(FCNTL[machine], _SECOND_AT, _fcntl_steps()),
        *_if_call(IOCTL[machine], _SECOND_AT, _unless(ALLOWED_IOCTLS, errno.ENOTTY)),
        *_if_call(FUTEX[machine], _SECOND_AT, _futex_steps()),
        *_if_call(SOCKET[machine], _FIRST_AT, _local_or_tcp_steps() if tcp else local),
        *_if_call(SOCKETPAIR[machine], _FIRST_AT, local),
        _ALLOWED,
    ]
    return _pack(code)


def _machine() -> str:
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise OSError(
            errno.ENOTSUP, f"no system call filter for {machine}; there is one for {names}"
        )
    return machine


def _pack(code: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _refuse_all(numbers: list[int]) -> list[tuple[int, int, int, int]]:
    return _refuse_each(numbers, errno.EPERM)


def _refuse_each(values: Iterable[int], number: int) -> list[tuple[int, int, int, int]]:
    """Refuse the call with error `number`, or let it seem to succeed (0), for each of `values`."""
    return [step for value in values for step in _if(_EQUAL, value, number)]


def _if_call(
    number: int, argument_at: int, steps: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Run `steps` with one of the arguments loaded, if the call has this number."""
    block = [(_LOAD, 0, 0, argument_at), *steps, (_LOAD, 0, 0, _NUMBER_AT)]
    return [(_EQUAL, 0, len(block), number), *block]


def _fcntl_steps() -> list[tuple[int, int, int, int]]:
    return [*_refuse_each(LOCKING_FCNTLS, 0), *_unless(ALLOWED_FCNTLS, errno.EPERM)]


def _local_or_tcp_steps() -> list[tuple[int, int, int, int]]:
    """Refuse sockets other than Unix sockets and those of TCP over IPv4."""
    tcp = [
        *_unless((AF_INET,), errno.EAFNOSUPPORT),
        (_LOAD, 0, 0, _SECOND_AT),
        *_unless(STREAMS, errno.ESOCKTNOSUPPORT),
        (_LOAD, 0, 0, _THIRD_AT),
        *_unless(TCP, errno.EPROTONOSUPPORT),
    ]
    return [(_EQUAL, len(tcp), 0, AF_UNIX), *tcp]


def _futex_steps() -> list[tuple[int, int, int, int]]:
    """Refuse to wait, or to wake, at an address that another jail may have as the same page."""
    steps = [
        *_refuse_each(FUTEX_WAITS, errno.EAGAIN),
        *_refuse_each(FUTEX_WAKES, 0),  # no process waits
        _error(errno.ENOSYS),
    ]
    return [(_ANY_BIT, len(steps), 0, FUTEX_PRIVATE), *steps]


def _unless(values: tuple[int, ...], number: int) -> list[tuple[int, int, int, int]]:
    """Refuse the call with error `number` unless the loaded value is one of `values`."""
    steps = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*steps, _error(number)]


def _if(test: int, value: int, number: int) -> list[tuple[int, int, int, int]]:
    """Refuse the call with error `number` if `test` holds for the loaded value."""
    return [(test, 0, 1, value), _error(number)]


def _error(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | number)
