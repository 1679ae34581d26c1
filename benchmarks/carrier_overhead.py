"""What the plugin framework adds to one call of a host function.

    python benchmarks/carrier_overhead.py [--out FILE.json]

A method of a small class is called bare, behind a patch whose wrapper only passes the call on, behind two such patches,
behind a patch that has left but could not be taken out, and behind a guarded body that declines, serves, or is latched.
Prints the time of one call and what it is above the bare one; bar: a declining guard adds under 2 microseconds.
Needs neither a host nor torch.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import timeit
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.carrier import NATIVE, Guard, Patch, PatchSet, Seam

MODULE = "host_of_carrier_overhead"
BAR_US = 2.0
CALLS = 100_000
ROUNDS = 7


class Door:
    """Stands for a class of the host."""

    def open(self, guest: int, loudly: bool = False) -> int:
        """What is called."""
        return guest


def one_call_us() -> float:
    """Microseconds of one call, the fastest of some rounds."""
    door = Door()
    return min(timeit.repeat(lambda: door.open(3, loudly=True), number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def passing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that does nothing."""
    return lambda *args, **kwargs: original(*args, **kwargs)


def patched(*factories: Callable[[Any], Any]) -> list[PatchSet]:
    """The method patched with each factory, the last outermost."""
    sets = [PatchSet([Patch(Seam(f"{MODULE}:Door.open"), factory)]) for factory in factories]
    for one in sets:
        one.install()
    return sets


def measure() -> dict[str, float]:
    """Microseconds of one call, by what lies over the method."""
    module = types.ModuleType(MODULE)
    module.Door = Door  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
    logging.getLogger("vllm.split_batch").setLevel(logging.CRITICAL)

    guard = Guard("benchmark")
    latched = Guard("benchmark")
    latched.latched = True
    site, latched_site = guard.site("open"), latched.site("open")
    cases: dict[str, tuple[Callable[[Any], Any], ...]] = {
        "bare": (),
        "one patch": (passing,),
        "two patches": (passing, passing),
        "guard, declines": (site.around(lambda *args, **kwargs: NATIVE),),
        "guard, declines for a reason": (site.around(lambda *args, **kwargs: guard.decline("reason")),),
        "guard, serves": (site.around(lambda *args, **kwargs: 3),),
        "guard, latched": (latched_site.around(lambda *args, **kwargs: 3),),
    }
    times: dict[str, float] = {}
    for name, factories in cases.items():
        sets = patched(*factories)
        times[name] = one_call_us()
        for one in sets:
            one.uninstall()
    inner, outer = patched(passing, passing)
    inner.uninstall()
    times["one patch, over one that has left"] = one_call_us()
    outer.uninstall()
    return times


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    arguments = parser.parse_args()
    times = measure()
    print(f"{'over the method':<36}{'us a call':>10}{'added':>8}")
    for name, time in times.items():
        print(f"{name:<36}{time:>10.3f}{time - times['bare']:>8.3f}")
    added = times["guard, declines for a reason"] - times["bare"]
    print(f"a declining guard adds {added:.3f} us, bar {BAR_US} us: {'met' if added < BAR_US else 'MISSED'}")
    if arguments.out:
        arguments.out.write_text(json.dumps({"us_per_call": times, "bar_us": BAR_US, "python": sys.version}, indent=1))
    return 0 if added < BAR_US else 1


if __name__ == "__main__":
    sys.exit(main())
