"""``vllm-hust-ext extension VERB``."""

import click

from vllm_hust_ext.cli.lazy import LazyGroup

_PACKAGE = "vllm_hust_ext.cli.extension"
_VERBS = {
    "list": f"{_PACKAGE}.inventory:list_",
    "inspect": f"{_PACKAGE}.inventory:inspect",
    "validate": f"{_PACKAGE}.inventory:validate",
    "check": f"{_PACKAGE}.verdict:check",
    "why": f"{_PACKAGE}.verdict:why",
    "status": f"{_PACKAGE}.status:status",
    "enable": f"{_PACKAGE}.intent:enable",
    "disable": f"{_PACKAGE}.intent:disable",
    "mask": f"{_PACKAGE}.intent:mask",
    "forget": f"{_PACKAGE}.intent:forget",
    "configure": f"{_PACKAGE}.intent:configure",
    "plan": f"{_PACKAGE}.launch:plan",
    "render": f"{_PACKAGE}.launch:render",
    "env": f"{_PACKAGE}.launch:env",
}


@click.group(cls=LazyGroup, commands_from=_VERBS)
def extension() -> None:
    """Installed extensions: what they are, whether they fit, whether they are on."""
