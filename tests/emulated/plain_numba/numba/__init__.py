"""numba's decorators without the compiler: the decorated function runs as the Python it is.

Enough for the host's n-gram proposer, whose only use of numba is speed. On the path of the one test that needs it.
"""

from __future__ import annotations

from typing import Any

prange = range


def jit(*args: Any, **_: Any) -> Any:
    if len(args) == 1 and callable(args[0]):
        return args[0]
    return lambda function: function


njit = jit


def get_num_threads() -> int:
    return 1


def set_num_threads(_: int) -> None:
    pass
