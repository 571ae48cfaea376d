"""Choose the environment variables that a worker inherits.

Only listed variables are passed on, because the others may hold passwords.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

_LISTED = """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TZDIR
    LD_LIBRARY_PATH LD_PRELOAD DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH
    VIRTUAL_ENV CONDA_PREFIX
    PYTHONHASHSEED PYTHONHOME PYTHONUTF8 PYTHONIOENCODING PYTHONWARNINGS PYTHONNOUSERSITE
    PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS BLIS_NUM_THREADS NUMEXPR_NUM_THREADS
    NUMEXPR_MAX_THREADS VECLIB_MAXIMUM_THREADS RAYON_NUM_THREADS TOKENIZERS_PARALLELISM
    MALLOC_ARENA_MAX GLIBC_TUNABLES
    HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_DATASETS_CACHE HF_MODULES_CACHE HF_ENDPOINT
    HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE NLTK_DATA
    CUDA_VISIBLE_DEVICES MUJOCO_GL PYOPENGL_PLATFORM MPLBACKEND MPLCONFIGDIR
    """.split()  # noqa: SIM905 - sixty quoted names would be harder to read
_PREFIXES = ("LC_", "GRPO_", "COVERAGE_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "AUTH", "CREDENTIAL", "COOKIE")


def worker_environment(folder: str, further_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables of a worker.

    It inherits those that are listed here or named in the settings. It can import everything that
    this process can. Unless this process sets PYTHONHASHSEED, hashes are fixed, so that a task that
    depends on them is the same in all workers.

    Args:
        folder: the folder for the worker's temporary files.
        further_names: variables besides the listed ones that the worker inherits if they are set.
    """
    names = {name for name in os.environ if _is_listed(name)} | set(further_names)
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    import_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {"PYTHONHASHSEED": "0", **inherited, "PYTHONPATH": import_path, "TMPDIR": folder}


def _is_listed(name: str) -> bool:
    """Return whether every worker inherits the variable; a prefix does not admit secrets."""
    if name in _LISTED:
        return True
    return name.startswith(_PREFIXES) and not any(word in name.upper() for word in _SECRET_WORDS)
