"""``vllm-hust-ext completion``: the line that switches shell completion on."""

from __future__ import annotations

import click

from vllm_hust_ext.cli.common import json_option
from vllm_hust_ext.cli.output import Output
from vllm_hust_ext.errors import ExitCode

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str, json_mode: bool) -> int:
    """Print the completion script of a shell, for example: eval "$(vllm-hust-ext completion bash)"."""
    from click.shell_completion import get_completion_class

    from vllm_hust_ext.cli.main import COMPLETE_VARIABLE, PROGRAM, root

    found = get_completion_class(shell)
    assert found is not None  # click ships all of SHELLS
    script = found(root, {}, PROGRAM, COMPLETE_VARIABLE).source()
    out = Output(json_mode)
    if json_mode:
        out.document("completion", {"shell": shell, "script": script})
    else:
        out.raw(script + "\n")
    return ExitCode.OK
