"""Keeps engines from dying on an assertion of torch's AOTAutograd cache.

vLLM's ahead-of-time compilation asks torch for the AOTAutograd cache even where the compiler did not. Torch 2.13's
cache asserts that a compiler's result is an `OutputCode` of inductor; the host's fusion-pass path returns a plain
graph, and the engine ends while it starts. The guard runs that path with the cache off. What is lost is that cache's
entry, which could not have been written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from vllm_ascend_split_batch.aot_cache_guard_plugin import COMPILE
from vllm_ascend_split_batch.carrier import Context, Patch, Refused

#: Torch's switches. The first alone does not turn the cache off where TORCHINDUCTOR_AUTOGRAD_CACHE=1 forces it on; the
#: second is what makes torch ask the cache for a compiler that never asked for it.
SWITCHES = ("enable_autograd_cache", "force_autograd_cache")


def patches(context: Context) -> list[Patch]:
    """The carrier's one patch.

    Raises:
        Refused: this torch has no such assertion, or its cache is off already.
    """
    from torch._functorch import config as cache_config
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from vllm_ascend.ascend_config import get_ascend_config

    if not asserts_output_code(AOTAutogradCache.make_entry):
        raise Refused("not needed here: this torch's AOTAutograd cache takes any compiler's result")
    if not cache_config.enable_autograd_cache:
        raise Refused("not needed here: torch's AOTAutograd cache is off already (TORCHINDUCTOR_AUTOGRAD_CACHE=0)")
    guard = _Guard(context, cache_config, get_ascend_config)
    return [context.patch(COMPILE, guard.around)]


def asserts_output_code(make_entry: Any) -> bool:
    """Whether torch's cache, when it makes an entry, insists on inductor's `OutputCode`: read from its source."""
    return re.search(r"isinstance\(\w+, OutputCode\)", inspect.getsource(make_entry)) is not None


class _Guard:
    def __init__(self, context: Context, cache_config: Any, ascend_config: Callable[[], Any]) -> None:
        self._guard = context.guard
        self._site = context.guard.site("AscendCompiler.compile")
        self._cache_config = cache_config
        self._ascend_config = ascend_config

    def around(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of `compile`: the host's own function, inside torch's own switch for the cache."""

        def compile(*args: Any, **kwargs: Any) -> Any:
            switch = self._site.run(self._switch, _no_switch)
            if switch is None:
                return native(*args, **kwargs)
            with switch:
                return native(*args, **kwargs)

        return compile

    def _switch(self) -> Any:
        """A context in which the cache is off, or NATIVE where the host needs none."""
        if self._ascend_config().ascend_compilation_config.enable_npugraph_ex:
            return self._guard.decline("npugraph_ex")
        if not self._cache_config.enable_autograd_cache:
            return self._guard.decline("cache_off_already")
        return self._cache_config.patch({name: False for name in SWITCHES if hasattr(self._cache_config, name)})


def _no_switch() -> None:
    return None
