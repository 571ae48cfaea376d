"""Programs that look for what an earlier call in the same jail left: its source, its input, what it printed and what it returned.

The earlier program's texts hold marks of the form kf<16 digits>zz. A thief returns every mark it meets; its own source matches no mark.
"""

import os
import re

from grpo_kit.sandboxes.hostile import SEARCH

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
THIEVES = {
    name: f"{SEARCH}\n{source}"
    for name, source in re.findall(r"^# (.+)\n((?:(?!# ).*\n)+)", _SOURCES, re.MULTILINE)
}

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
    "the times of a device, of now": ("os.utime('/dev/null')", "__import__('ctypes').CDLL(None).utimensat(-100, b'/dev/null', None, 0)", -1),
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
    "shared memory": ("import ctypes; ctypes.CDLL(None).shmget(77, 4096, 0o1666)", "__import__('ctypes').CDLL(None).shmget(77, 4096, 0o666) >= 0", False),
    "a message queue": ("import ctypes; ctypes.CDLL(None).msgget(77, 0o1666)", "__import__('ctypes').CDLL(None).msgget(77, 0o666) >= 0", False),
    "a host name": ("import socket\n    try: socket.sethostname('left')\n    except OSError: pass", "__import__('socket').gethostname()", "jail"),
    "the times of the terminals, in steps of eight seconds": ("pass", "os.path.exists('/dev/ptmx')", False),
    "a lower priority of the supervisor": (
        "\n    for pid in (1, os.getppid()):\n        try: os.setpriority(os.PRIO_PROCESS, pid, 19)\n        except OSError: pass",
        "os.getpriority(os.PRIO_PROCESS, 0) == 19",
        False,
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
}  # fmt: skip
"""What a program does to leave a trace; an expression that would see it; its value where there is none."""

_DIALOGUES = r"""
# a lock on an open file of the machine
import fcntl, os, struct, time
def says(x):
    kept = os.open(os.__file__, os.O_RDONLY)
    fcntl.fcntl(kept, 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, x, 1, 0))
    time.sleep(2)
def hears():
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, start, _, _ = struct.unpack("hhqqi4x", fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), 36, asked))
    return start if kind != fcntl.F_UNLCK else None

# a lock on a device
import fcntl, os, time
def says(x):
    kept = open("/dev/null", "w")
    fcntl.lockf(kept, fcntl.LOCK_EX, 1, x)
    time.sleep(2)
def hears():
    with open("/dev/null", "w") as device:
        for place in range(500, 1000):  # others of the machine may hold one
            try: fcntl.lockf(device, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError: return place
            fcntl.lockf(device, fcntl.LOCK_UN, 1, place)

# the end of a thread at a page of a file
import ctypes, os, platform, threading, time
libc = ctypes.CDLL(None, use_errno=True)
futex, clear = {"x86_64": (202, 218), "aarch64": (98, 96)}[platform.machine()]
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, 4096, 1, 2, os.open(os.__file__, os.O_RDONLY), ctypes.c_long(0))
def says(x):
    for _ in range(100):
        threading.Thread(target=lambda: libc.syscall(clear, ctypes.c_void_p(page + 4 * x))).start()
        time.sleep(0.02)
def hears():
    place = page + 4 * 789
    held, span = ctypes.c_uint32.from_address(place).value, (ctypes.c_long * 2)(0, 100_000_000)
    return 789 if libc.syscall(futex, ctypes.c_void_p(place), 0, held, span, None, 0) == 0 else None

# an abstract socket
import socket, time
def says(x):
    kept = socket.socket(socket.AF_UNIX); kept.bind(f"\0{x}"); kept.listen()
    time.sleep(2)
def hears():
    for place in range(1000):
        with socket.socket(socket.AF_UNIX) as asked:
            if asked.connect_ex(f"\0{place}") == 0: return place

# signals
import os, signal, time
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(789))
def says(x):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for pid in (0, -1, *range(2, 1000)):
        try: os.kill(pid, signal.SIGUSR1)
        except OSError: pass
    time.sleep(1)
def hears(): return heard[0] if heard else None
"""
_HEARING = """
def f(x):
    until = time.monotonic() + 1
    while time.monotonic() < until:
        if (heard := hears()) is not None: return heard
        time.sleep(0.01)
"""
DIALOGUES = {
    name: (f"{source}\ndef f(x): says(x)", f"{source}\n{_HEARING}")
    for name, source in re.findall(r"^# (.+)\n((?:(?!# ).*\n)+)", _DIALOGUES, re.MULTILINE)
}
"""Two programs that run at the same time in two jails: the first has a number below 1000, which the second wants to know."""
_MASK = 0x5A5A5A5A5A5A
HOW_MUCH = f"""{SEARCH}
def f(hidden):
    (reader, writer), found = os.pipe(), set()
    for start, end in areas():
        for page in range(start, end, 4096):
            if libc.write(writer, ctypes.c_void_p(page), 4096) == 4096:
                found.update(number ^ {_MASK} for number in memoryview(os.read(reader, 4096)).cast("Q") if number ^ {_MASK} in hidden)
    return len(found)
"""
"""Returns how many of some sizes are anywhere in its memory, which it is given by `hide`, so as not to find them there."""


def hide(sizes: list[int]) -> list[int]:
    """Return the sizes as `HOW_MUCH` takes them."""
    return [size ^ _MASK for size in sizes]
