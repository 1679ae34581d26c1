"""The command group ``cascade``: a file per subcommand; ``python -m vllm_ascend_split_batch.cascade.commands``."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_ascend_split_batch import command_group

#: Modules of this package, in the order of the help text.
SUBCOMMANDS = ("explain", "calibrate", "accept")
PROGRAM = "vllm-hust-ext cascade"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; see `command_group.run`."""
    return command_group.run(
        __name__,
        SUBCOMMANDS,
        arguments,
        program=PROGRAM,
        description="Cascade decode attention: predict, measure, accept.",
    )
