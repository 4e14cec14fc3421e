"""Takes the address of the repository from `url` in setup.cfg: a hook of MkDocs."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

__all__ = ["address", "on_config"]

SETUP = Path(__file__).parents[2] / "setup.cfg"


def on_config(config: Any) -> Any:
    """Called by MkDocs with its settings."""
    if found := address(SETUP.read_text(encoding="utf-8")):
        config.repo_url = found
        config.repo_name = found.removeprefix("https://").partition("/")[2] or found
    return config


def address(setup: str) -> str | None:
    """Return the address of the repository, or None as long as it is not known.

    Args:
        setup: the text of setup.cfg.
    """
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    return parser.get("metadata", "url", fallback="").rstrip("/") or None
