"""The command line. ``main`` is the one place where exceptions become messages and exit codes."""

from vllm_hust_ext.cli.main import main

__all__ = ["main"]
