"""In a process of the emulated NPU: what the carriers find on the live host, and whether the host is whole afterwards.

    python -m torch_npu_emulator -- python tools/hosts/live_child.py JOB.json RESULT.json

No engine is started. The host's worker is imported as an engine imports it; then every carrier in turn is switched on,
bound, and taken back, and finally all of them together. Before and after, every attribute of every module and class of
the host is compared by identity.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOST_PACKAGES = ("vllm", "vllm_ascend", "torch_npu")
#: The emulated NPU's own book-keeping, which no real torch_npu has.
EMULATION = ("torch_npu.host", "torch_npu.emulator")
WORKER = "vllm_ascend.worker.worker"
SEED = 4


class Snapshot:
    """Every attribute of the host's modules and classes, and the entries of their dictionaries, lists and sets.

    It holds the objects themselves, so that no identity is used twice.
    """

    def __init__(self, also: Collection[str]) -> None:
        self.holders: dict[str, tuple[Any, dict[Any, Any]]] = {}
        for label, holder, content in _holders(also):
            self.holders[label] = (holder, content)

    def differences(self) -> list[str]:
        """What is otherwise now: holders that were there then, compared entry by entry."""
        found: list[str] = []
        for label, (holder, before) in self.holders.items():
            after = _content(holder)
            for key in before.keys() | after.keys():
                old, new = before.get(key, _NOTHING), after.get(key, _NOTHING)
                if old is new or (old is _NOTHING and isinstance(new, ModuleType)):  # a submodule imported meanwhile
                    continue
                what = "added" if old is _NOTHING else "removed" if new is _NOTHING else "replaced"
                found.append(f"{label}{_key(key)} {what}")
        return sorted(found)


class _Nothing:
    pass


_NOTHING = _Nothing()


def _key(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{str(key)[:80]!r}]"


def _holders(also: Collection[str]) -> Iterator[tuple[str, Any, dict[Any, Any]]]:
    """(name, object, content) of the host's modules and those in `also`, of the classes they define, and of the
    containers in either.
    """
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        emulation = any(name == part or name.startswith(f"{part}.") for part in EMULATION)
        wanted = name.partition(".")[0] in HOST_PACKAGES and not emulation
        if not (wanted or name in also) or not isinstance(module, ModuleType):
            continue
        pending: list[tuple[str, Any]] = [(name, module)]
        while pending:
            label, holder = pending.pop()
            if id(holder) in seen:
                continue
            seen.add(id(holder))
            content = _content(holder)
            yield label, holder, content
            if isinstance(holder, (ModuleType, type)):
                for key, value in content.items():
                    own_class = isinstance(value, type) and getattr(value, "__module__", None) == name
                    if own_class or type(value) in (dict, list, set):
                        pending.append((f"{label}.{key}", value))


def _content(holder: Any) -> dict[Any, Any]:
    if type(holder) is dict:
        return {f"key {id(key)}" if not isinstance(key, str) else key: value for key, value in holder.items()}
    if type(holder) is list:
        return dict(enumerate(holder))
    if type(holder) is set:
        return {f"member {id(member)}": member for member in holder}
    # The interpreter's own: caches that isinstance() fills.
    return {
        key: value
        for key, value in vars(holder).items()
        if not key.startswith("_abc_") and key != "__warningregistry__"
    }


def import_host(carriers: list[Any]) -> dict[str, str]:
    """Import what an engine's worker imports, and the modules of all seams; what could not be, with the reason."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    importlib.import_module(WORKER)
    from vllm_ascend.utils import adapt_patch

    adapt_patch()
    failed: dict[str, str] = {}
    for carrier in carriers:
        for seam in carrier.seams:
            try:
                importlib.import_module(seam.module)
            except Exception as error:
                failed[seam.module] = f"{type(error).__name__}: {error}"
    return failed


def on_and_off(carrier: Any, carriers: list[Any], variables: dict[str, str]) -> dict[str, Any]:
    """Switch one carrier on, look, take it back, look again; twice, because its binding may import more of the host,
    which only the second look has seen before. Carriers that the same variables open come and go with it.
    """
    from vllm_ascend_split_batch.carrier import verify

    modules = {seam.module for each in carriers for seam in each.seams}
    before = Snapshot(modules)
    _load(carriers, variables)
    state, reason = carrier.state, carrier.state_reason
    changed = before.differences()
    outcomes = {each.name: each.uninstall() for each in reversed(carriers)}[carrier.name]
    left = before.differences()
    again = Snapshot(modules)
    _load(carriers, variables)
    for each in carriers:
        each.uninstall()
    left += again.differences()
    seams = [(seam, verify(seam)) for seam in carrier.seams]
    return {
        "state": state,
        "state_reason": reason,
        "seams": [
            {"target": seam.target, "check": seam.check, "status": status.status, "detail": status.detail}
            for seam, status in seams
        ],
        "changed": changed,
        "outcomes": outcomes,
        "left": sorted(set(left)),
    }


def all_on_and_off(carriers: list[Any], switched_on: dict[str, dict[str, str]]) -> dict[str, Any]:
    """All carriers on at once, taken back in an order of chance."""
    before = Snapshot({seam.module for carrier in carriers for seam in carrier.seams})
    _load(carriers, {name: value for variables in switched_on.values() for name, value in variables.items()})
    states = {carrier.name: carrier.state for carrier in carriers}
    changed = before.differences()
    order = random.Random(SEED).sample(carriers, len(carriers))
    for carrier in order:
        carrier.uninstall()
    return {
        "states": states,
        "changed": len(changed),
        "order": [carrier.name for carrier in order],
        "left": before.differences(),
    }


def _load(carriers: list[Any], variables: dict[str, str]) -> None:
    """What a process with these variables does: every front door is asked, and opens by its own gate."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        for carrier in carriers:
            carrier.load()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main(job_path: str, result_path: str) -> None:
    """Run the job: `{"switched_on": {carrier: variables}}`."""
    switched_on: dict[str, dict[str, str]] = json.loads(Path(job_path).read_text())["switched_on"]
    sys.path.insert(0, str(ROOT))
    from tools.write_sidecars import carriers as declared

    carriers = declared()
    failed = import_host(carriers)
    ready = [carrier for carrier in carriers if carrier.name in switched_on]
    result: dict[str, Any] = {
        "not_imported": failed,
        "not_switched_on": sorted(carrier.name for carrier in carriers if carrier.name not in switched_on),
        "carriers": {carrier.name: on_and_off(carrier, carriers, switched_on[carrier.name]) for carrier in ready},
        "together": all_on_and_off(carriers, switched_on),
    }
    Path(result_path).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:3])
