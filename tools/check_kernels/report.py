"""The check's table."""

from __future__ import annotations

from collections.abc import Sequence

from .compilation import CAPACITY_BYTES, Result

LEGEND = """\
UB, L1, L0C: KiB that the compiler's plan needs, of KiB that a core has (L0A and L0B are filled behind its last pass).
scattered: loads and stores that are done element by element + row by row instead of as one block."""


def table(results: Sequence[Result]) -> str:
    """One line per variant: cores, KiB of each buffer against its size, scattered accesses, and what is wrong."""
    title = "kernel and variant"
    width = max(len(title), *(len(result.name) for result in results)) if results else len(title)
    buffers = list(CAPACITY_BYTES)
    sizes = "".join(f"{f'{name}/{CAPACITY_BYTES[name] >> 10}':>9}" for name in buffers)
    lines = [f"{title:<{width}}  cores{sizes}  scattered  seconds"]
    for result in results:
        used = "".join(
            f"{-(-result.used[name] // 1024) if name in result.used else '-':>9}" for name in buffers
        )
        scattered = f"{result.element_loops}+{result.row_loops}"
        lines.append(f"{result.name:<{width}}  {result.cores:<5}{used}  {scattered:>9}  {result.seconds:7.1f}")
        if result.retried:
            lines.append(f"    fits only with these off: {result.retried}")
        if result.crashes:
            lines.append(f"    the compiler crashed {result.crashes} times, and was run again")
        if result.error is not None:
            lines.append(f"    FAILED: {result.error}")
    return "\n".join([*lines, "", LEGEND])
