"""Let helper threads of OpenMP sleep soon where other programs want the cores."""

from __future__ import annotations

import os

SPINS = 2000
"""How often a helper thread of libgomp looks for work before it sleeps: about 0.1 ms.

The pieces of a decoding step follow one another within that time. libgomp's own default is 300,000,
some 15 ms: beside other programs the helpers then spend most of their time on the cores waiting,
while the thread that would give them work waits for a core.
"""


def sleep_soon() -> None:
    """Set the variable by which libgomp knows it, unless the user has set one of its variables.

    It has an effect only before torch is imported, since libgomp reads it when it is loaded.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)
