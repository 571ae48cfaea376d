"""Programs that look for what an earlier call in the same jail left: its source, its input, what it printed and what it returned.

The earlier program's texts hold marks of the form kf<16 digits>zz. A thief returns every mark it meets; its own source matches no mark.
"""

from __future__ import annotations

import os
import re

from grpo_core.kit.hostile import SEARCH

_SOURCES = r"""
# memory
def f(x): return search()

# objects
import gc
def f(x): return sorted(set(MARK.findall(repr([o for o in gc.get_objects() if isinstance(o, (dict, list, tuple, set))])[:10**7].encode())))

# frames
import sys
def f(x):
    texts, frame = [], sys._getframe()
    while frame:
        texts.append(repr(frame.f_locals)[:10**6] + repr(frame.f_globals)[:10**6])
        frame = frame.f_back
    return sorted(set(MARK.findall("".join(texts).encode())))

# modules
import sys
def f(x): return sorted(set(MARK.findall(repr([vars(m) for m in list(sys.modules.values()) if hasattr(m, "__dict__")])[:10**7].encode())))

# descriptors
import os, select
def f(x):
    seen = b""
    for descriptor in range(4, 1024):
        try:
            if select.select([descriptor], [], [], 0)[0]: seen += os.read(descriptor, 10**6)
        except (OSError, ValueError): pass
    return sorted(set(MARK.findall(seen)))

# other processes
import glob
def f(x):
    seen = b""
    for name in ("cmdline", "environ", "stat", "comm", "status", "maps", "stack"):
        for path in glob.glob(f"/proc/[0-9]*/{name}"):
            try: seen += open(path, "rb").read(10**6)
            except OSError: pass
    return sorted(set(MARK.findall(seen)))

# memory of the supervisor
import os
def f(x):
    seen = b""
    for pid in (1, os.getppid()):
        try:
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                memory.seek(id(object()) & ~4095)
                seen += memory.read(10**6)
        except OSError: pass
    return sorted(set(MARK.findall(seen)))

# memory of the supervisor by system call
import ctypes, os
def f(x):
    class Span(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    room = ctypes.create_string_buffer(1 << 20)
    ours, theirs = Span(ctypes.addressof(room), 1 << 20), Span(id(object()) & ~4095, 1 << 20)
    for pid in (1, os.getppid()): libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return sorted(set(MARK.findall(room.raw)))

# files anywhere
import os
def f(x):
    seen = b""
    for root in ("/work", "/tmp", "/var/tmp", "/dev/shm", "/run", "/home", "/root", "/dev/mqueue"):
        for folder, folders, names in os.walk(root):
            seen += " ".join(names + folders).encode()
            for name in names:
                try: seen += open(os.path.join(folder, name), "rb").read(10**6)
                except OSError: pass
    return sorted(set(MARK.findall(seen)))

# deleted pages in large buffers
import ctypes, mmap
def f(x):
    seen = set()
    libc.malloc.restype = ctypes.c_void_p
    for size in (64, 512, 4096, 65_536, 10**6) * 50:
        place = libc.malloc(size)
        seen.update(MARK.findall(ctypes.string_at(place, size)))
    return sorted(seen)
"""
THIEVES = {name: f"{SEARCH}\n{source}" for name, source in re.findall(r"^# (.+)\n((?:(?!# ).*\n)+)", _SOURCES, re.MULTILINE)}

LEAVERS = {
    "an attribute of the folder": ("os.setxattr('.', 'user.left', b'left')", "os.listxattr('.')", []),
    "the mode of the folder": ("os.chmod('.', 0o123)", "oct(os.stat('.').st_mode & 0o7777)", "0o777"),
    "the times of the folder": ("os.utime('.', (1, 1))", "os.stat('.').st_mtime < 10**9 or os.stat('.').st_atime < 10**9", False),
    "a hidden file": ("open('.left', 'w').write('left')", "os.listdir('.')", []),
    "a folder nobody may enter": ("os.makedirs('a/b/c'); os.chmod('a/b', 0); os.chmod('a', 0)", "os.listdir('.')", []),
    "a link to itself": ("os.symlink('.', 'a'); os.symlink('a', 'b')", "os.listdir('.')", []),
    "a pipe in the folder": ("os.mkfifo('a')", "os.listdir('.')", []),
    "a socket in the folder": ("import socket; socket.socket(socket.AF_UNIX).bind('a')", "os.listdir('.')", []),
    "an abstract socket held by a daemon": (
        "import socket, time\n    s = socket.socket(socket.AF_UNIX); s.bind('\\0left'); s.listen()\n"
        "    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(1000)\n        os._exit(0)",
        "__import__('socket').socket(__import__('socket').AF_UNIX).connect_ex('\\0left') != 0",
        True,
    ),
    "a port held by a daemon": (
        "import socket, time\n    s = socket.socket(); s.bind(('127.0.0.1', 7777)); s.listen()\n"
        "    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(1000)\n        os._exit(0)",
        "__import__('ctypes').CDLL(None).socket(2, 1, 0)",
        -1,
    ),
    "a lock on a file of the machine": (
        "import fcntl, time\n    file = open(os.__file__); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(1000)\n        os._exit(0)",
        "__import__('ctypes').CDLL(None).flock(os.open(os.__file__, os.O_RDONLY), 1)",
        -1,
    ),
    "a watch on a file of the machine": ("pass", "__import__('ctypes').CDLL(None).inotify_init1(0)", -1),
    "the times of a device": ("os.utime('/dev/null', (1, 1))", "os.stat('/dev/null').st_mtime < 10", False),
    "the times of a device, of now": (
        "os.utime('/dev/null')",
        "__import__('ctypes').CDLL(None).utimensat(-100, b'/dev/null', None, 0)",
        -1,
    ),
    "files that are held by descriptors on their way": (
        "import socket\n    fds = []\n    for n in 'ab':\n        fd = os.open(n, os.O_RDWR | os.O_CREAT); fds.append(fd)\n"
        "        os.write(fd, b'x' * (7900 << 10)); os.unlink(n)\n    a, b = socket.socketpair()\n"
        "    socket.send_fds(a, [b'x'], [a.fileno(), b.fileno(), *fds]); socket.send_fds(b, [b'x'], [a.fileno(), b.fileno()])",
        "os.write(os.open('c', os.O_RDWR | os.O_CREAT), b'x' * (7000 << 10))",
        7000 << 10,
    ),
    "a key in the session keyring": (
        "import ctypes, platform\n    number = 248 if platform.machine() == 'x86_64' else 217\n"
        "    ctypes.CDLL(None).syscall(number, b'user', b'left', b'left', 4, -3)",
        "__import__('ctypes').CDLL(None).syscall(249 if os.uname().machine == 'x86_64' else 218, b'user', b'left', None, 0) >= 0",
        False,
    ),
    "shared memory": (
        "import ctypes; ctypes.CDLL(None).shmget(77, 4096, 0o1666)",
        "__import__('ctypes').CDLL(None).shmget(77, 4096, 0o666) >= 0",
        False,
    ),
    "a message queue": (
        "import ctypes; ctypes.CDLL(None).msgget(77, 0o1666)",
        "__import__('ctypes').CDLL(None).msgget(77, 0o666) >= 0",
        False,
    ),
    "a host name": (
        "import socket\n    try: socket.sethostname('left')\n    except OSError: pass",
        "__import__('socket').gethostname()",
        "jail",
    ),
    "a lower priority of the supervisor": (
        "\n    for pid in (1, os.getppid()):\n        try: os.setpriority(os.PRIO_PROCESS, pid, 19)\n        except OSError: pass",
        "os.getpriority(os.PRIO_PROCESS, 0)",
        0,
    ),
    "other limits of the supervisor": (
        "import resource\n    for pid in (1, os.getppid()):\n        try: resource.prlimit(pid, resource.RLIMIT_NOFILE, (20, 20))\n"
        "        except OSError: pass",
        "__import__('resource').getrlimit(__import__('resource').RLIMIT_NOFILE)[0]",
        64,
    ),
    "one processor for the supervisor": (
        "\n    one = {min(os.sched_getaffinity(0))}\n    for pid in (1, os.getppid()):\n"
        "        try: os.sched_setaffinity(pid, one)\n        except OSError: pass",
        "len(os.sched_getaffinity(0))",
        len(os.sched_getaffinity(0)),
    ),
}
"""What a program does to leave a trace; an expression that would see it; its value where there is none."""
