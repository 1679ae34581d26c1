"""Rope buffers that nobody reads are not filled.

Once a step the host gathers cosines and sines for the step's positions into two buffers. Most models take theirs from
the cache instead. Where the loaded model has no reader, the step's positions are only remembered. Should a reader turn
up at run time after all, it finds the buffers filled for this very step, and every later step fills them as the host
does: a reader runs in Python before it can be part of a captured graph.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vllm_ascend_split_batch.carrier import Context, Patch, Refused, Seam
from vllm_ascend_split_batch.zerocost_plugin import LOAD_MODEL, READ, UPDATE, UPDATE_ITSELF

from .readers import ACCESSOR, find_in_model

HOST_MODULE = READ.partition(":")[0]


def patches(context: Context) -> list[Patch]:
    """The feature's patches: the update, and the model's loading. The accessor is wrapped when skipping begins.

    Raises:
        Refused: the runner's update is not the host's.
    """
    rope = sys.modules[HOST_MODULE]
    runner_module = sys.modules[UPDATE.partition(":")[0]]
    if inspect.unwrap(runner_module.update_cos_sin) is not inspect.unwrap(rope.update_cos_sin):
        raise Refused("the runner's update_cos_sin is not the one of the rotary embedding")
    buffers = _Buffers(context, rope)
    return [
        context.patch(UPDATE, buffers.around_update),
        context.patch(UPDATE_ITSELF, buffers.around_update_itself),
        context.patch(LOAD_MODEL, buffers.around_load_model),
    ]


def _imported_accessors(rope: ModuleType) -> list[Seam]:
    """Where `from ... import get_cos_and_sin_slice` has put the accessor already."""
    accessor = vars(rope)[ACCESSOR]
    return [
        Seam(f"{name}:{attribute}", why="an imported accessor of the buffers")
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and module is not rope
        for attribute, value in list(vars(module).items())
        if value is accessor and attribute.isidentifier()
    ]


class _Buffers:
    def __init__(self, context: Context, rope: ModuleType) -> None:
        self._context = context
        self._guard = context.guard
        self._rope = rope
        self._update_site = context.guard.site("update_cos_sin")
        self._search_site = context.guard.site("search for readers", counted=False)
        self._watching = False
        self._skipping = False
        #: The positions of a step whose buffers were not filled; None where the buffers are up to date.
        self._pending: Any = None
        self._fill: Callable[[Any], None] = rope.update_cos_sin

    # The model ----------------------------------------------------------------------------------------------------

    def around_load_model(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def load_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
            result = native(runner, *args, **kwargs)
            self._skipping = False
            self._search_site.run(self._search, _nothing, runner)
            return result

        return load_model

    def _search(self, runner: Any) -> None:
        if getattr(runner, "drafter", None) is not None:
            self._context.withdraw("a draft model is loaded, whose readers are not searched for")
            return
        readers = find_in_model(runner.get_model(), HOST_MODULE)
        if readers:
            self._context.withdraw(f"the rope buffers are read by {', '.join(readers)}")
            return
        if not self._watching:
            rope = self._rope
            self._context.add(
                [
                    self._context.patch(READ, self._around_read),
                    *(Patch(seam, self._around_read) for seam in _imported_accessors(rope)),
                ]
            )
            self._watching = True
        self._skipping = True

    # The buffers --------------------------------------------------------------------------------------------------

    def around_update(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def update_cos_sin(*args: Any, **kwargs: Any) -> Any:
            self._pending = None
            return self._update_site.run(self._remember, native, *args, **kwargs)

        return update_cos_sin

    def around_update_itself(self, native: Callable[..., Any]) -> Callable[..., Any]:
        self._fill = native

        def update_cos_sin(*args: Any, **kwargs: Any) -> Any:
            # Somebody else fills the buffers: what was remembered before is older.
            self._pending = None
            return native(*args, **kwargs)

        return update_cos_sin

    def _remember(self, positions: Any) -> Any:
        if not self._skipping:
            return self._guard.decline("model_not_searched")
        rope = self._rope
        if rope._cos_sin_cache is None or rope._cos is None or rope._sin is None:
            return self._guard.decline("nothing_to_fill")
        self._pending = positions
        return None

    def _around_read(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def get_cos_and_sin_slice(*args: Any, **kwargs: Any) -> Any:
            if self._pending is not None:
                self._fill_late()
            return native(*args, **kwargs)

        return get_cos_and_sin_slice

    def _fill_late(self) -> None:
        """A reader that the search did not find: fill for this step, and never skip again."""
        positions, self._pending = self._pending, None
        self._skipping = False
        self._fill(positions)
        self._guard.count("filled_late")
        self._context.withdraw("the rope buffers are read after all, by code that the search did not find")


def _nothing(*_: Any) -> None:
    """What stands in for a search that failed: nothing is skipped."""
