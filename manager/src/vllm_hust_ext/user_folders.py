"""The user's own folders, also where nobody knows them: a process without HOME and without an account."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

NAME = "vllm-hust-ext"


def user_folder(kind: Literal["config", "state"]) -> Path:
    """The user's configuration or state folder. It is a relative path where the home folder is not known."""
    import platformdirs

    find = platformdirs.user_config_dir if kind == "config" else platformdirs.user_state_dir
    try:
        return Path(find(NAME))
    except RuntimeError:  # newer releases of platformdirs raise, older ones leave the "~" in place
        return Path("~", NAME)
