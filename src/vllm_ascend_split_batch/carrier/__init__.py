"""The plugin framework: gates, seams, patches, fail-open. The standard library only.

A front door declares what it is; nothing of the capability is imported until its gate is open and the host is there::

    # greeting_plugin.py, the entry point's module
    from vllm_ascend_split_batch.carrier import Carrier, Flag, Integer, Seam

    GREETING = Carrier(
        "greeting",
        gates=(Flag("VLLM_HUST_GREETING", help="greet more warmly"), Integer("VLLM_HUST_GREETING_MIN", 3, minimum=1)),
        seams=(
            Seam("some_host.room:Door.open", parameters=("guest", "loudly"), why="guests are greeted here"),
            Seam("some_host.room:Door.close", why="the greeting ends here"),
        ),
        binding="vllm_ascend_split_batch.greeting.binding",
        extension_id="org.vllm-hust.greeting",
    )
    load = GREETING.load

    # greeting/binding.py, imported once some_host.room is imported and both seams match; it may import torch
    from vllm_ascend_split_batch.carrier import Context, Patch, Refused

    def patches(context: Context) -> list[Patch]:
        if not warm_enough():
            raise Refused("it is too cold here")              # one warning; the host's own path
        guard, least = context.guard, context.settings["VLLM_HUST_GREETING_MIN"]
        opening = guard.site("Door.open")                      # counted; guard.site(..., counted=False) for inner steps

        def greet(door, guest, *args, **kwargs):
            if guest.size < least:
                return guard.decline("small guest")           # the host's own function runs for this call
            guard.count("greetings")
            return warm(door, guest)                           # if it raises, too: logged once, counted, latched

        return [context.patch("some_host.room:Door.open", opening.around(greet))]

``Carrier.uninstall()`` takes everything back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .carrier import Carrier, Context, Refused
from .gates import Choice, Flag, Gate, Integer, Number, Settings, Text
from .guard import NATIVE, Guard, Site
from .log import logger
from .seams import Calls, Seam, SeamStatus, verify

if TYPE_CHECKING:
    from .patches import DictEntry, Patch, PatchSet

__all__ = [
    "NATIVE",
    "Calls",
    "Carrier",
    "Choice",
    "Context",
    "DictEntry",
    "Flag",
    "Gate",
    "Guard",
    "Integer",
    "Number",
    "Patch",
    "PatchSet",
    "Refused",
    "Seam",
    "SeamStatus",
    "Settings",
    "Site",
    "Text",
    "logger",
    "verify",
]


def __getattr__(name: str) -> object:
    # Front doors declare and do not patch: what patches is imported where a gate is open.
    if name in ("DictEntry", "Patch", "PatchSet"):
        from . import patches

        return getattr(patches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
