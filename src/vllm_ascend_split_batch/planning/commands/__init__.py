"""The command group ``planner``: a file per subcommand, also run as ``python -m vllm_ascend_split_batch.planning``."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_ascend_split_batch import command_group

#: Modules of this package, in the order of the help text.
SUBCOMMANDS = ("plan", "simulate", "advise", "record", "generate")
PROGRAM = "vllm-hust-ext planner"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; see `command_group.run`."""
    return command_group.run(
        __name__,
        SUBCOMMANDS,
        arguments,
        program=PROGRAM,
        description="Split batches, waiting queues and padding: plan, simulate, advise.",
    )
