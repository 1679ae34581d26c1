"""A plugin of vLLM that plants the fault named by `PLANTED_FAULT`: for engines that a test does not start itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Longer than a whole step of stock.
DELAY_SECONDS = 0.15


def load() -> None:
    """What vLLM calls in each of its processes."""
    fault = os.environ["PLANTED_FAULT"]
    if fault == "slow":
        _delay_each_decision()
    else:
        import planted_twin_faults

        planted_twin_faults.plant(fault)


def installed(folder: Path) -> str:
    """Make `folder` a place of installed packages with this plugin; the `PYTHONPATH` it takes."""
    facts = folder / "planted_by_plugin-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-by-plugin\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[vllm.general_plugins]\nplanted-fault = planted_by_plugin:load\n")
    return os.pathsep.join((str(folder), str(Path(__file__).parent)))


def _delay_each_decision() -> None:
    """Once a step, in an engine; calibration, which times the kernels, does not see it."""
    from vllm_ascend_split_batch.cascade.binding import Cascade

    decide = Cascade.decide

    def late(self, *args, **kwargs):
        time.sleep(DELAY_SECONDS)
        return decide(self, *args, **kwargs)

    Cascade.decide = late
