"""Programs that try to be paid without solving anything, or to hurt whoever runs next. The task of all: `f(x)` returns x + 1.

Each is named after what it tries; none may be seen to return x + 1, and after each the next call must find everything as it was.
"""

from __future__ import annotations

import re

_SOURCES = r"""
#### leaving early

# exit 0
import sys
def f(x): sys.exit(0)

# exit at import
import sys
sys.exit(0)

# os._exit
import os
def f(x): os._exit(0)

# skip
import unittest
def f(x): raise unittest.SkipTest

# return None
def f(x): return None

# no function
x = 1

# not callable
f = 2

# syntax error
def f(x) return 1

#### objects that compare as they like

# equal to everything
class A:
    def __eq__(self, other): return True
def f(x): return A()

# int that is equal
class A(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def f(x): return A(0)

# class trick
class A:
    @property
    def __class__(self): return int
def f(x): return A()

# bool for int
def f(x): return True

# float for int
def f(x): return float(x + 1)

# list for value
def f(x): return [x + 1]

# text for value
def f(x): return str(x + 1)

# generator
def f(x): yield x + 1

# lambda
def f(x): return lambda: x + 1

# nan
def f(x): return float('nan')

# huge integer
def f(x): return 10 ** 10_000

# deep list
def f(x):
    out = []
    for _ in range(5000): out = [out]
    return out

# cyclic list
def f(x):
    out = []
    out.append(out)
    return out

# huge value
def f(x): return 'x' * 10**7

#### looking for the answer, forging the verdict

# frames
import sys
def f(x):
    frame, seen = sys._getframe(), []
    while frame: seen.append(sorted(frame.f_locals)); frame = frame.f_back
    return seen

# garbage
import gc
def f(x): return [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]

# forged claim
import os
def f(x):
    os.write(3, b'{"ok": 99999}')
    os._exit(0)

# forged frames
import os
def f(x):
    for fd in range(256):
        try: os.write(fd, b'\0' * 7 + b'\x0b{"ok": true}')
        except OSError: pass
    os._exit(0)

# duplicate keys
import os
def f(x):
    os.write(3, b'{"error": "", "ok": 1, "ok": 2}')
    os._exit(0)

# deep claim
import os
def f(x):
    os.write(3, b'{"ok": ' + b'[' * 30000)
    os._exit(0)

# long digits
import os
def f(x):
    os.write(3, b'{"ok": ' + b'1' * 60000 + b'}')
    os._exit(0)

# tagged bomb
import os
def f(x):
    os.write(3, b'{"ok": {"i": "' + b'9' * 60000 + b'"}}')
    os._exit(0)

# result on stdout
def f(x): print('{"ok": 1}'); print('passed')

#### patching

# patched builtins
import builtins
builtins.len = lambda _: 1
builtins.isinstance = lambda *_: True
builtins.type = lambda _: int
class A: pass
def f(x): return A()

# patched json
import json
json.dumps = lambda *a, **k: '{"ok": true}'
def f(x): return x

# patched time
import time
time.monotonic = time.time = lambda: 0.0
def f(x):
    while True: pass

# exit hooks
import atexit, os
atexit.register(lambda: os.write(3, b'{}'))
def f(x): return x

# shadow modules
for name in ('json.py', 'conftest.py', 'sitecustomize.py', 'x.pth'):
    open(name, 'w').write('raise SystemExit')
def f(x): return x

#### taking time and space

# endless loop
def f(x):
    while True: pass

# sleep
import time
def f(x): time.sleep(100)

# ignored signals
import signal, time
def f(x):
    for n in range(1, 64):
        try: signal.signal(n, signal.SIG_IGN)
        except (OSError, ValueError): pass
    time.sleep(100)

# stopped
import os, signal
def f(x): os.kill(os.getpid(), signal.SIGSTOP)

# deep recursion
import sys
sys.setrecursionlimit(10**9)
def f(x): return f(x) + 1

# recursion
def f(x): return f(x)

# memory
def f(x): return len(bytearray(10**10))

# memory piece by piece
def f(x):
    kept = []
    while True: kept.append(bytearray(10**6))

# memory of many
import os
def f(x):
    for _ in range(10):
        if os.fork() == 0: break
    kept = [bytearray(10**7) for _ in range(20)]
    while True: pass

# fork bomb
import os
def f(x):
    while True:
        try: os.fork()
        except OSError: pass

# threads
import threading, time
def f(x):
    while True: threading.Thread(target=time.sleep, args=(100,)).start()

# endless output
def f(x):
    while True: print('x' * 1000)

# endless errors
import sys
def f(x):
    while True: sys.stderr.write('x' * 1000)

# endless claim
import os
def f(x):
    while True: os.write(3, b'x' * 1000)

# full disk
def f(x):
    for i in range(1000): open(f'file{i}', 'wb').write(b'x' * 10**6)

# big file
def f(x): open('file', 'wb').write(b'x' * 10**9)

# inodes
def f(x):
    for i in range(10**7): open(str(i), 'w').close()

# deep folders
import os
def f(x):
    for _ in range(500): os.mkdir('a', 0); os.chmod('a', 0o700); os.chdir('a')
    os.chmod('.', 0)

#### staying

# daemon
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(1000)
        os._exit(0)
    return x

# thread that stays
import threading, time
def f(x):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return x

# child that holds the pipes
import os, time
def f(x):
    if os.fork() == 0:
        while True: time.sleep(1)
    os._exit(0)

# files that stay
import os
def f(x):
    os.makedirs('a/b'); open('a/b/c', 'w').write('left'); os.symlink('/etc/passwd', 'link'); os.chmod('a', 0)
    return x

# no parent's death
import ctypes, os, time
def f(x):
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    if os.fork() == 0: time.sleep(1000)
    time.sleep(1000)

#### the supervisor, the neighbours, the machine

# kill everything
import os
def f(x): os.kill(-1, 9)

# kill the parent
import os
def f(x):
    for pid in (os.getppid(), 1):
        if pid > 0 and pid != os.getpid(): os.kill(pid, 9)
    return x

# supervisor's memory
def f(x): return open('/proc/1/mem', 'rb').read(1)

# supervisor's descriptors
import os
def f(x): return [os.readlink(f'/proc/1/fd/{n}') for n in os.listdir('/proc/1/fd')]

# supervisor's arguments
import ctypes
def f(x): return ctypes.CDLL(None).ptrace(16, 1, 0, 0)

# crash
import ctypes
def f(x): ctypes.string_at(0)

# closed descriptors
import os
def f(x):
    os.closerange(0, 256)
    return x

# root
import os
def f(x): os.setuid(0)

# mount
import ctypes
def f(x): return ctypes.CDLL(None).mount(b'none', b'/work', b'tmpfs', 0, 0)

# write the system
def f(x): open('/usr/lib/python3/evil.pth', 'w').write('')

# write the root
def f(x): open('/evil', 'w').write('')

# shared memory
def f(x): open('/dev/shm/left', 'w').write('left')

# network
import socket
def f(x): socket.create_connection(('1.1.1.1', 53), 1)

# name service
import socket
def f(x): return socket.gethostbyname('example.com')

# abstract socket
import socket
def f(x):
    s = socket.socket(socket.AF_UNIX); s.bind('\0left'); return x

# device
def f(x): return open('/dev/mem', 'rb').read(1)

#### the kernel

# session keyring
import ctypes, platform
def f(x):
    number = {'x86_64': 250, 'aarch64': 219}[platform.machine()]
    if ctypes.CDLL(None, use_errno=True).syscall(number, 0, -3, 0) < 0: raise OSError(ctypes.get_errno(), 'keyctl')
    return x + 1

# new key
import ctypes, platform
def f(x):
    number = {'x86_64': 248, 'aarch64': 217}[platform.machine()]
    if ctypes.CDLL(None, use_errno=True).syscall(number, b'user', b'a', b'b', 1, -3) < 0: raise OSError(ctypes.get_errno(), 'add_key')
    return x + 1

# user namespace
import ctypes
def f(x):
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0: raise OSError(ctypes.get_errno(), 'unshare')
    return x + 1

# user namespace by clone
import ctypes, platform
def f(x):
    number = {'x86_64': 56, 'aarch64': 220}[platform.machine()]
    pid = ctypes.CDLL(None, use_errno=True).syscall(number, 0x10000011, 0, 0, 0, 0)
    if pid == 0: ctypes.CDLL(None)._exit(0)
    if pid < 0: raise OSError(ctypes.get_errno(), 'clone')
    return x + 1

# user namespace by clone3
import ctypes, os
def f(x):
    arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
    pid = ctypes.CDLL(None, use_errno=True).syscall(435, arguments, 88)
    if pid == 0: ctypes.CDLL(None)._exit(0)
    if pid < 0: raise OSError(ctypes.get_errno(), 'clone3')
    return x + 1

# page faults
import ctypes, platform
def f(x):
    number = {'x86_64': 323, 'aarch64': 282}[platform.machine()]
    if ctypes.CDLL(None, use_errno=True).syscall(number, 1) < 0: raise OSError(ctypes.get_errno(), 'userfaultfd')
    return x + 1

# io_uring
import ctypes
def f(x):
    if ctypes.CDLL(None, use_errno=True).syscall(425, 4, (ctypes.c_char * 200)()) < 0: raise OSError(ctypes.get_errno(), 'io_uring')
    return x + 1

# bpf
import ctypes, platform
def f(x):
    number = {'x86_64': 321, 'aarch64': 280}[platform.machine()]
    if ctypes.CDLL(None, use_errno=True).syscall(number, 0, (ctypes.c_uint32 * 4)(1, 4, 4, 1), 16) < 0: raise OSError(1, 'bpf')
    return x + 1

# performance events
import ctypes, platform
def f(x):
    number = {'x86_64': 298, 'aarch64': 241}[platform.machine()]
    if ctypes.CDLL(None, use_errno=True).syscall(number, (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0) < 0: raise OSError(1, 'perf')
    return x + 1

# new kind of mount
import ctypes
def f(x):
    if ctypes.CDLL(None, use_errno=True).syscall(430, b'tmpfs', 0) < 0: raise OSError(ctypes.get_errno(), 'fsopen')
    return x + 1

# calls of a 32-bit kernel
import ctypes
def f(x):
    if ctypes.CDLL(None, use_errno=True).syscall(0x40000000 | 39) < 0: raise OSError(ctypes.get_errno(), 'x32')
    return x + 1

# packet socket
import socket
def f(x): return x + bool(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))

# packet socket in a network of its own
import ctypes, socket
def f(x):
    ctypes.CDLL(None).unshare(0x50000000)
    return x + bool(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))

# virtual machine socket
import socket
def f(x): return x + bool(socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))

# netlink socket
import socket
def f(x): return x + bool(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))

# crypto socket
import socket
def f(x): return x + bool(socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET))

# memory in files without a name
import os
def f(x):
    for n in range(40): os.write(os.memfd_create(str(n)), bytes(7 << 20))
    return x + 1

# secret memory
import ctypes
def f(x):
    if ctypes.CDLL(None, use_errno=True).syscall(447, 0) < 0: raise OSError(ctypes.get_errno(), 'memfd_secret')
    return x + 1

#### references

# an environment's package
import importlib, sys
def f(x):
    sys.path += ['/usr/lib/python3/dist-packages', '/usr/local/lib/python3/dist-packages', '/usr/local/lib/python3.11/dist-packages']
    return importlib.import_module('grpo_env_fizzbuzz') and x + 1

# a package anywhere
import os
def f(x):
    for folder, folders, files in os.walk('/'):
        if any(name.startswith('grpo_') for name in (*folders, *files)): return x + 1
    raise FileNotFoundError

#### blame

# signal of a machine
import os, signal
def f(x): os.kill(os.getpid(), signal.SIGTERM)

# killed at random
import os, random
def f(x):
    random.seed()
    os.kill(os.getpid(), random.choice([1, 2, 3, 9, 15]))

# stop the supervisor
import os, signal
def f(x):
    for pid in (1, os.getppid()):
        if pid > 0 and pid != os.getpid(): os.kill(pid, signal.SIGSTOP)

# end of the request stream
import os
def f(x):
    for descriptor in range(3, 64):
        try: os.close(descriptor)
        except OSError: pass
    raise KeyError

# deeper folders
import os
def f(x):
    for _ in range(2000):
        os.mkdir('a' * 200); os.chdir('a' * 200)

# folders without rights
import os
def f(x):
    for i in range(50):
        os.makedirs(f'{i}/a/b'); open(f'{i}/a/b/c', 'w').close()
        for path in (f'{i}/a/b', f'{i}/a', f'{i}'): os.chmod(path, 0)
    raise KeyError

# processes that stop each other
import os, signal
def f(x):
    for _ in range(10):
        if os.fork() == 0:
            while True: os.kill(0, signal.SIGSTOP)
    while True: pass

# stops whatever comes to end it
import os, signal, time
def f(x):
    if os.fork() == 0:
        begun = os.getpid()
        while True:
            for pid in range(begun, begun + 20):
                try: os.kill(pid, signal.SIGSTOP)
                except OSError: pass
    time.sleep(100)

# an error that cannot be written
def f(x): raise ValueError(chr(0xd800) * 3)

# zombies
import os
def f(x):
    for _ in range(100):
        if os.fork() == 0: os._exit(0)

# wipe out the deadline
import resource
def f(x):
    for name in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        resource.setrlimit(name, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    while True: pass

# score of memory
import os
def f(x):
    open('/proc/self/oom_score_adj', 'w').write('-1000')
    while True: os.fork()

#### what two jails share

# question for a lock
import fcntl, os, struct
def f(x):
    fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
    return x + 1

# wait at a page of a file
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def f(x):
    page = libc.mmap(None, 4096, 1, 2, os.open(os.__file__, os.O_RDONLY), ctypes.c_long(0))
    number, held = {'x86_64': 202, 'aarch64': 98}[platform.machine()], ctypes.c_uint32.from_address(page).value
    libc.syscall(number, ctypes.c_void_p(page), 0, held, (ctypes.c_long * 2)(0, 1000), None, 0)
    return x + (ctypes.get_errno() == 110)

# many waits at pages of files
import ctypes
def f(x):
    if ctypes.CDLL(None, use_errno=True).syscall(449, None, 0, 0, None, 1) < 0: raise OSError(ctypes.get_errno(), 'futex_waitv')
    return x + 1

# pages that are in memory
import os
def f(x): return x + os.preadv(os.open(os.__file__, os.O_RDONLY), [bytearray(1)], 0, os.RWF_NOWAIT)

# pages that are in memory, asked otherwise
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def f(x):
    page = libc.mmap(None, 4096, 1, 2, os.open(os.__file__, os.O_RDONLY), ctypes.c_long(0))
    if libc.mincore(ctypes.c_void_p(page), 4096, ctypes.create_string_buffer(1)) < 0: raise OSError(ctypes.get_errno(), 'mincore')
    return x + 1

# order to a device
import fcntl
def f(x): return x + bool(fcntl.ioctl(open('/dev/urandom'), 0x80045200, bytes(4)))

# flags of a file of the machine
import fcntl, os
def f(x): return x + bool(fcntl.ioctl(os.open(os.__file__, os.O_RDONLY), 0x80086601, bytes(8)))

# life of a file of the machine
import fcntl, os
def f(x): return x + bool(fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), 1036, bytes([3, 0, 0, 0, 0, 0, 0, 0])) is not None)

# disks of the machine
import ctypes, platform
def f(x):
    number = {'x86_64': 162, 'aarch64': 81}[platform.machine()]
    if ctypes.CDLL(None, use_errno=True).syscall(number) < 0: raise OSError(ctypes.get_errno(), 'sync')
    return x + 1

# disk of a file
import ctypes, os
def f(x):
    if ctypes.CDLL(None, use_errno=True).syncfs(os.open(os.__file__, os.O_RDONLY)) < 0: raise OSError(ctypes.get_errno(), 'syncfs')
    return x + 1

# terminal
import os
def f(x):
    leader, follower = os.openpty()
    return x + os.write(leader, b'a')

#### rights and processes

# capabilities
import ctypes
def f(x):
    held = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) < 0 or not any(held): raise OSError('capget')
    return x + 1

# sibling of its own
import ctypes, os, platform
def f(x):
    number = {'x86_64': 56, 'aarch64': 220}[platform.machine()]
    pid = ctypes.CDLL(None, use_errno=True).syscall(number, 0x8000 | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    if pid < 0: raise OSError(ctypes.get_errno(), 'clone')
    return x + 1

# processes that nobody counts
import os, signal, time
def f(x):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(10):
        if os.fork() == 0:
            try: os.setsid()
            except OSError: pass
            while True: pass
    time.sleep(0.8)
    return x

# before all others
import os
def f(x): return x + (os.nice(-20) < 0)

# before all others, always
import os
def f(x): return x + (os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) is None)

# its whole group
import os
def f(x): os.killpg(0, 9)

# main thread that ends
import ctypes, threading, time
def f(x):
    threading.Thread(target=time.sleep, args=(100,)).start()
    ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[__import__('platform').machine()], 0)

# another program in its place
import os, sys
def f(x): os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', 'import os; os.write(3, bytes(2)); os.write(1, b"2")'])

# signals that wait
import os, signal
def f(x):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 64))
    for _ in range(50_000):
        try: os.kill(os.getpid(), 40)
        except OSError: break
    return x

# sockets within sockets
import os, socket
def f(x):
    held = []
    for _ in range(400):
        a, b = socket.socketpair()
        try: socket.send_fds(a, [b'x' * 1000], [a.fileno(), b.fileno(), *held])
        except OSError: break
        held = [a.fileno()]
        a.detach(), b.close()
    return x

#### the end of a call

# description that never ends
class E(Exception):
    def __str__(self):
        while True: pass
def f(x): raise E

# output that is never flushed
import sys
class Stream:
    def flush(self):
        while True: pass
    def write(self, text): return len(text)
sys.stdout = Stream()
def f(x): return x

# claim that trickles
import os, time
def f(x):
    for byte in b'{"ok":' + b' ' * 1000 + b'2}':
        os.write(3, bytes([byte])); time.sleep(0.05)

# claim in two halves
import os
def f(x):
    os.write(3, b'{"ok": ')
    return x + 1

# claim that takes long to build
import json, os
def f(x):
    os.write(3, json.dumps({"ok": {"s": [{"i": str(n * (2**61 - 1))} for n in range(1, 1800)]}}).encode())
    os._exit(0)
"""

ATTACKS: dict[str, str] = {
    **dict(re.findall(r"^# (.+)\n((?:(?!#).*\n)+)", _SOURCES, re.MULTILINE)),
    "raw source": "\x00\ud800",
    "megabyte of source": "#" * 2_000_000 + "\ndef f(x): return x",
}
