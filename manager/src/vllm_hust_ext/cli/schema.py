"""``vllm-hust-ext schema``: the JSON Schema of a document that the manager reads."""

from __future__ import annotations

import json

import click

from vllm_hust_ext.cli.common import json_option
from vllm_hust_ext.cli.output import Output
from vllm_hust_ext.errors import ExitCode

DOCUMENTS = ("manifest-0.2", "manifest-0.3", "manifest-1.0")


@click.command()
@click.argument("document", type=click.Choice(DOCUMENTS))
@json_option
def schema(document: str, json_mode: bool) -> int:
    """Print the JSON Schema (2020-12) of a manifest revision. It is JSON with and without --json."""
    from vllm_hust_ext.manifest.loading import without_pydantic_plugins

    revision = {"manifest-0.2": "0.2-experimental", "manifest-0.3": "0.3", "manifest-1.0": "1.0"}[document]
    with without_pydantic_plugins():
        from vllm_hust_ext.manifest.documents import json_schema

        text = json.dumps(json_schema(revision), indent=2, sort_keys=True)
    Output(json_mode).raw(text + "\n")
    return ExitCode.OK
