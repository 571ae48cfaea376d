"""Choose the environment variables that code of others inherits: by name, never by prefix."""

from __future__ import annotations

import os
from collections.abc import Iterable

INHERITED = frozenset(
    """
    PATH HOME USER LOGNAME SHELL TZ TZDIR
    LANG LANGUAGE LC_ALL LC_ADDRESS LC_COLLATE LC_CTYPE LC_IDENTIFICATION LC_MEASUREMENT
    LC_MESSAGES LC_MONETARY LC_NAME LC_NUMERIC LC_PAPER LC_TELEPHONE LC_TIME
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
    GRPO_CACHE GRPO_DISABLE_PLUGINS
    COVERAGE_PROCESS_START COVERAGE_FILE COVERAGE_RCFILE COVERAGE_CORE
    """.split()  # noqa: SIM905 - eighty quoted names would be harder to read
)
"""The variables that Python, libraries and this project need, none of which holds a password."""


def inherited_variables(further_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables of this process that code of others may see.

    Args:
        further_names: names besides `INHERITED`, which the user has given
            (`verify.worker_environment`).
    """
    names = INHERITED.union(further_names)
    return {name: value for name, value in os.environ.items() if name in names}
