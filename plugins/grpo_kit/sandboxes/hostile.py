"""The hostile programs with which `kit.sandbox` checks a sandbox, by the name of their check."""

from __future__ import annotations

SECRET = "GRPO_SANDBOX_CHECK_SECRET"
"""A variable of the caller that programs must not see."""
SOURCES = {
    "CPU time": """
def f(x):
    while True: pass
""",
    "output": """
def f(x):
    while True: print("x" * 1000)
""",
    "folder size": """
def f(x):
    for i in range(100_000): open(str(i), "wb").write(b"x" * 10**6)
""",
    "fork bomb": """
import os
def f(x):
    while True:
        try: os.fork()
        except OSError: pass
""",
    "processes": """
import os, time
def f(x):
    for made in range(1000):
        try:
            if os.fork() == 0: time.sleep(100)
        except OSError: return made
    return 1000
""",
    "writing elsewhere": """
import os
def f(x):
    found = []
    for folder in ("/", "/tmp", "/etc", "/usr", "/usr/lib", "/dev", "/dev/shm", "/home",
                   "/var/tmp"):
        try: open(os.path.join(folder, "grpo-check"), "w").close()
        except OSError: continue
        if os.path.realpath(folder) != os.getcwd(): found.append(folder)
    return found
""",
    "other processes": """
import os
def f(x):
    try: os.kill(-1, 9)
    except OSError: pass
""",
    "equal to everything": """
class A:
    def __eq__(self, other): return True
def f(x): return A()
""",
    "forged claim": """
import os
def f(x):
    for descriptor in range(3, 64):
        try: os.write(descriptor, bytes(4096))
        except OSError: pass
    os._exit(0)
""",
    "daemon": """
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(1000)
        os._exit(0)
    return x
""",
    "ignored signals": """
import signal, time
def f(x):
    for number in range(1, 64):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    time.sleep(100)
""",
    "memory of several": """
import os, time
def f(x):
    readers = []
    for _ in range(4):
        reader, writer = os.pipe()
        if os.fork() == 0:
            kept = bytearray(40 << 20)
            os.write(writer, b"x")
            time.sleep(100)
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    return sum(len(os.read(reader, 1)) for reader in readers)
""",
    "wall clock": "import time\ndef f(x): time.sleep(100)",
    "memory": "def f(x): return len(bytearray(10**9))",
    "result": "def f(x): return 'x' * 10**6",
    "file size": "def f(x): open('a', 'wb').write(b'x' * 10**7)",
    "network": "import socket\ndef f(x): socket.create_connection(('1.1.1.1', 53), 1)",
    "environment": f"import os\ndef f(x): return os.environ.get({SECRET!r})",
    "attributes that stay": """
import os
def f(x):
    os.chmod('.', 0o123)
    os.setxattr('.', 'user.left', b'left')
    return x
""",
    "unnamed memory": """
import os
def f(x):
    for n in range(30): os.write(os.memfd_create(str(n)), bytes(1 << 20))
    return x
""",
    "namespaces": """
import ctypes
def f(x):
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        raise OSError(ctypes.get_errno(), "unshare")
""",
    "keyring": """
import ctypes, platform
def f(x):
    number = {"x86_64": 248, "aarch64": 217}[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, b"user", b"grpo", b"left", 4, -3) < 0:
        raise OSError(ctypes.get_errno(), "add_key")
""",
    "packet sockets": "import socket\ndef f(x): socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "virtual machine sockets": """
import socket
def f(x): socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
""",
    "answers on disk": """
import os
def f(x):
    found = []
    for folder, folders, names in os.walk("/"):
        if folder == "/": folders[:] = [name for name in folders if name not in ("proc", "sys")]
        own = [name for name in folders if name.startswith(("grpo_env_", "grpo_core"))]
        found += [os.path.join(folder, name) for name in own]
    return found[:3]
""",
    "its own end": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "supervisor's memory": "def f(x): return open('/proc/1/mem', 'rb').read(1)",
    "root": "import os\ndef f(x): os.setuid(0); open('/proc/1/mem', 'rb').read(1)",
    "leaving": "import os\ndef f(x): os._exit(0)",
    "files that stay": """
import os
def f(x):
    os.makedirs('a/b')
    open('a/b/c', 'w').close()
    os.chmod('a', 0)
    return x
""",
    "crash": "import ctypes\ndef f(x): ctypes.string_at(0)",
}

MARKS = {
    name: f"kf{digit * 16}zz"
    for name, digit in zip(
        ("source", "input", "printed", "complained", "returned"), "12345", strict=True
    )
}
VICTIM = f"""
import sys
held = {MARKS["source"]!r}
def f(x):
    print({MARKS["printed"]!r} * 3)
    print({MARKS["complained"]!r} * 3, file=sys.stderr)
    return x + {MARKS["returned"]!r}
"""
"""A program that holds, prints and returns marks; its input is a mark, too."""
SEARCH = r"""
import ctypes, os, re
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
MARK = re.compile(rb"kf\d{16}zz")

def areas():
    try:
        for line in open("/proc/self/maps"):
            span, rights = line.split()[:2]
            if rights.startswith("r") and "[v" not in line:
                start, end = (int(part, 16) for part in span.split("-"))
                yield start, min(end, start + (64 << 20))
    except OSError:  # no /proc: search around known addresses
        function = ctypes.addressof(ctypes.c_int.in_dll(libc, "daylight"))
        for place in (libc.sbrk(0), id(object()), id([]), id(b"x" * 100_000), function):
            start = (place & ~4095) - (48 << 20)
            yield max(4096, start), start + (80 << 20)

def search():
    seen, reader, writer = set(), *os.pipe()
    for start, end in areas():
        last = b""
        for page in range(start, end, 4096):
            if libc.write(writer, ctypes.c_void_p(page), 4096) != 4096:
                last = b""
                continue
            content = last[-40:] + os.read(reader, 4096)
            seen.update(mark.decode() for mark in MARK.findall(content))
            last = content
    return sorted(seen)
"""
"""Defines `search`, which returns every mark in the memory of its process; it holds none itself."""
THIEF = f"{SEARCH}\ndef f(x): return search()"
"""A program that returns the marks of other programs in its memory."""
