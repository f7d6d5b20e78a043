"""The environment of a tool's processes: built from nothing, so that no key of the caller's can be read there."""

from __future__ import annotations

import sys
from pathlib import Path

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool_environment(home: str, scratch: str) -> dict[str, str]:
    """Variables for a command whose home is `home` and whose temporary folder is `scratch`.

    The folder of the running interpreter stands first in PATH: `python` is the one that agentprof runs on. The rest
    makes equal commands print equal text: no colour, one width, one time zone, one hash seed.
    """
    return {
        "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        "HOME": home,
        "TMPDIR": scratch,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
