"""List programs that try to reach sockets outside of their session."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_core import SESSION_PORT
from grpo_kit.sandboxes.hostile_sessions import FREE

NAME = "session socket"
"""How the names of the checks begin."""

ANSWER, OTHER = "grpo", "other"
"""What the socket answers, and what everything else does that must not be reached."""

CLIENT = f"""
import socket
def ask(address, word="hello"):
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(kind) as connection:
        connection.settimeout(3)
        connection.connect(address)
        connection.sendall(word.encode() + b"\\n")
        return connection.recv(100).decode().strip()
HERE = ("127.0.0.1", {SESSION_PORT})
def free(work, *arguments):
    try: found = work(*arguments)
    except Exception: return
    if found != "{ANSWER}": print("{FREE}", arguments)
"""
"""The beginning of each program; `free` tells of what works and should not."""

HONEST = f"{CLIENT}\nprint(ask(HERE))"


@dataclass(frozen=True, slots=True)
class Attack:
    """A program that tries to reach more than the socket, or to take it from others."""

    name: str
    source: str
    """What follows `CLIENT`; PORT and BESIDE stand for what must not be reached."""


ATTACKS = (
    Attack(
        "other sockets",
        """
import os
paths = [BESIDE, "/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket"]
for folder, _, names in os.walk("/"):
    if not folder.startswith(("/proc", "/sys")):
        paths += [os.path.join(folder, name) for name in names]
for path in paths[:20000]: free(ask, path)
for name in ("grpo", "/tmp/.X11-unix/X0", "/run/systemd/private"): free(ask, "\\0" + name)
""",
    ),
    Attack(
        "other addresses",
        """
for host in ("1.1.1.1", "10.0.0.1", "172.17.0.1", "192.168.0.1", "169.254.169.254"):
    for port in (53, 80): free(ask, (host, port))
""",
    ),
    Attack(
        "loopback of this machine",
        """
for host in ("127.0.0.1", "0.0.0.0", "127.1.2.3", "localhost"): free(ask, (host, PORT))
""",
    ),
    Attack(
        "names",
        """
free(socket.getaddrinfo, "example.com", 80)
free(socket.gethostbyname, "example.com")
""",
    ),
    Attack(
        "other protocols",
        """
for family in (2, 10, 16, 17, 40, 29, 31):
    for kind in (1, 2, 3, 5, 10):
        if (family, kind) != (2, 1): free(socket.socket, family, kind)
for protocol in (1, 33, 58, 132, 262): free(socket.socket, 2, 1, protocol)
""",
    ),
    Attack(
        "many connections",
        """
import os, time
for _ in range(8):
    if os.fork() == 0:
        kept = []
        try:
            while True:
                connection = socket.socket()
                connection.setblocking(False)
                kept.append(connection)
                connection.connect_ex(HERE)
        except OSError: time.sleep(2)
        os._exit(0)
time.sleep(2)
""",
    ),
    Attack(
        "huge streams",
        """
import os, time
def stream(word, work):
    if os.fork() == 0:
        connection = socket.create_connection(HERE, 5)
        connection.sendall(word)
        end = time.time() + 3
        while time.time() < end: work(connection)
        os._exit(0)
for _ in range(3):
    stream(b"swallow\\n", lambda connection: connection.sendall(b"x" * 1000000))
    stream(b"stuck\\n", lambda connection: connection.send(b"x" * 1000000))
    stream(b"endless\\n", lambda connection: connection.recv(1000000))
stream(b"endless\\n", lambda connection: time.sleep(3))
time.sleep(3.5)
""",
    ),
    Attack(
        "connections that stay",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        kept = [socket.create_connection(HERE, 5) for _ in range(20)]
        for connection in kept: connection.sendall(b"stuck\\n" + b"x" * 1000000)
    time.sleep(100)
time.sleep(1)
""",
    ),
)
