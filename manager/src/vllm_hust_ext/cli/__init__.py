"""The command line. ``main`` is the one place where exceptions become messages and exit codes."""

try:
    from vllm_hust_ext.cli.main import main
except KeyboardInterrupt:  # Ctrl-C while the libraries are being imported
    raise SystemExit(130) from None

__all__ = ["main"]
