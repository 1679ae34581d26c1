"""A carrier: one capability, off until its gate is open, bound to the host once its seams are verified."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import near_misses
from .gates import Flag, Gate, Settings
from .guard import Guard
from .log import logger, warn_once
from .seams import MATCHED, PENDING, Seam, SeamStatus, verify_all

if TYPE_CHECKING:  # what only an open gate needs is imported then: every vLLM process imports this module
    from .patches import DictEntry, Patch, PatchSet
    from .post_import import Waiter

CLOSED, ARMED, INSTALLED, REFUSED = "closed", "armed", "installed", "refused"
LATCHED, UNINSTALLED = "latched", "uninstalled"

_ENVIRONMENT_TABLE = Seam("vllm.envs:environment_variables", why="names that vLLM does not know make it warn")


class Refused(Exception):
    """Raised by a binding that cannot serve this process (a kernel is missing, say): its message is what is logged."""


class Context:
    """What a binding gets: the carrier's settings, its guard, and a way to patch the seams it declared.

    Attributes:
        settings: values of the gates, by variable. guard: fail-open state and counters. log: the logger to use.
    """

    def __init__(self, carrier: Carrier, settings: Settings) -> None:
        self.settings = settings
        self.guard = carrier.guard
        self.log = logger
        self._carrier = carrier
        self._seams = {seam.target: seam for seam in carrier.seams}

    def patch(self, target: str, factory: Callable[[Any], Any]) -> Patch:
        """A patch of the declared seam ``target``; see :class:`Patch`. ``KeyError`` when it was not declared."""
        from .patches import Patch

        try:
            return Patch(self._seams[target], factory)
        except KeyError:
            raise KeyError(f"{target} is not among the declared seams: {', '.join(self._seams)}") from None

    def add(self, patches: Iterable[Patch | DictEntry]) -> None:
        """Install patches of places that are only there after the binding, all of them or none.

        ``uninstall()`` takes them back with the others. For a body of a patch, not for the binding itself.

        Raises:
            RuntimeError: the carrier is not installed.
        """
        self._carrier.extend(patches)

    def withdraw(self, reason: str) -> None:
        """Take all patches back: what can only be seen once the host runs, such as its model, rules the carrier out.

        For a body of a patch. Calls that are in progress end as they began.
        """
        self._carrier.withdraw(reason)


class Carrier:
    """One capability: its gates, the seams it needs, and the module that binds it to the host.

    Args:
        name: the entry point's name, which logs and reports use.
        gates: the variables it reads. The first one is the master gate, unless ``is_open`` is given.
        seams: everything of the host that it relies on. All must match, or nothing is touched.
        binding: ``"package.module"`` or ``"package.module:function"``; the function (``patches`` by default) takes a
            :class:`Context` and returns the patches. The module is imported when the host's modules are there and every
            seam matches, never before.
        is_open: says from the settings whether the carrier is switched on.
        load_line: a line to log at INFO at every load, open or closed; ``{VARIABLE}`` stands for a setting, and
            ``{VARIABLE:d}`` writes a flag as 0 or 1. Without one, loading is logged at DEBUG.
        extension_id: the bundle that the manager knows it by.
    """

    def __init__(
        self,
        name: str,
        *,
        gates: Sequence[Gate],
        seams: Sequence[Seam],
        binding: str,
        is_open: Callable[[Settings], bool] | None = None,
        load_line: str | None = None,
        extension_id: str | None = None,
    ) -> None:
        if is_open is None and not (gates and isinstance(gates[0], Flag)):
            raise ValueError(f"carrier {name}: without is_open the first gate must be a Flag")
        self.name = name
        self.gates = tuple(gates)
        self.seams = tuple(seams)
        self.binding = binding
        self.is_open = is_open or (lambda settings: bool(settings[self.gates[0].name]))
        self.load_line = load_line
        self.extension_id = extension_id

        self.guard = Guard(name)
        self.guard.on_latch = self._latch
        self.state = CLOSED
        self.state_reason = "not loaded"
        self.settings = Settings([])
        self.seam_statuses = [SeamStatus(seam.target, PENDING) for seam in self.seams]
        self._patches: PatchSet | None = None
        self._variables: PatchSet | None = None
        self._waiters: list[Waiter] = []
        self._line_logged: str | None = None

    def __repr__(self) -> str:
        return f"<Carrier {self.name}: {self.state} ({self.state_reason})>"

    # Loading ----------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """The entry point. Never raises; a second call in the same process changes nothing.

        Gate closed: nothing is imported, patched or written. Gate open: the carrier waits for the host to import the
        modules of its seams, and binds then (at once where they are imported already).
        """
        try:
            self._load()
        except Exception:
            # An exception here would end the engine, and silently keep every later plugin from loading.
            self._become(REFUSED, "loading failed")
            with contextlib.suppress(Exception):
                logger.exception("%s: loading failed; the host runs without it", self.name)

    def _load(self) -> None:
        if self.state not in (CLOSED, UNINSTALLED):
            return
        self.settings = Settings.read(self.gates)
        for sentence in [*near_misses.find(gate.name for gate in self.gates), *self.settings.problems]:
            warn_once(sentence)
        is_open = self.is_open(self.settings)
        self._log_load(is_open)
        if not is_open:
            self._become(CLOSED, "its gate is closed")
            return
        self._become(ARMED, "waits for the host to import " + ", ".join(self._awaited()))
        self._report()
        from .post_import import when_imported

        self._waiters = [
            when_imported([_ENVIRONMENT_TABLE.module], self._register_variables),
            when_imported(self._awaited(), self._bind),
        ]

    def _log_load(self, is_open: bool) -> None:
        if self.load_line is None:
            logger.debug("%s loaded (%s)", self.name, "open" if is_open else "closed")
            return
        line = self.load_line.format_map(self.settings)
        if line != self._line_logged:
            self._line_logged = line
            logger.info("%s", line)

    def _awaited(self) -> list[str]:
        return list(dict.fromkeys(seam.module for seam in self.seams if not seam.absent))

    def _report(self) -> None:
        from .engine_report import engine_report

        engine_report().add(self)

    # Binding ----------------------------------------------------------------------------------------------------------

    def _register_variables(self) -> None:
        """Make our ``VLLM_`` variables known to vLLM: no warning, and a part of its compile-cache key."""
        if self.state not in (ARMED, INSTALLED):
            return
        from .patches import DictEntry, PatchSet

        names = [name for name in self.settings if name.startswith("VLLM_")]
        variables = PatchSet(DictEntry(_ENVIRONMENT_TABLE, name, self._getter(name)) for name in names)
        try:
            variables.install()
        except Exception as error:
            logger.warning("%s: its variables stay unknown to vLLM, which may warn about them: %s", self.name, error)
        else:
            self._variables = variables

    def _getter(self, name: str) -> Callable[[Any], Any]:
        value = self.settings[name]
        return lambda before: before if before is not None else lambda: value

    def _bind(self) -> None:
        if self.state != ARMED:
            return
        from .patches import PatchSet

        self.seam_statuses = verify_all(self.seams)
        wrong = [status for status in self.seam_statuses if status.status != MATCHED]
        if wrong:
            self._refuse("; ".join(f"{status.target}: {status.status}, {status.detail}" for status in wrong))
            return
        try:
            patches = PatchSet(self._made_patches())
            patches.install()
        except Refused as error:
            self._refuse(str(error))
        except Exception as error:
            self._refuse(f"binding failed: {type(error).__name__}: {error}", error)
        else:
            self._patches = patches
            self._become(INSTALLED, f"{len(patches.patches)} patches in place")
            logger.info("%s: installed (%s)", self.name, ", ".join(patch.label for patch in patches.patches))

    def extend(self, patches: Iterable[Patch | DictEntry]) -> None:
        """Add patches to the installed ones; see :meth:`Context.add`."""
        if self.state != INSTALLED or self._patches is None:
            raise RuntimeError(f"{self.name} is {self.state}: patches can be added while it is installed")
        self._patches.extend(patches)
        self.state_reason = f"{len(self._patches.patches)} patches in place"

    def _made_patches(self) -> Iterable[Patch | DictEntry]:
        module, _, attribute = self.binding.partition(":")
        make: Callable[[Context], Iterable[Patch | DictEntry]] = getattr(
            importlib.import_module(module), attribute or "patches"
        )
        return make(Context(self, self.settings))

    def _refuse(self, reason: str, error: Exception | None = None) -> None:
        self._become(REFUSED, reason)
        logger.log(
            logging.WARNING, "%s: not installed, the host runs its own path: %s", self.name, reason, exc_info=error
        )

    # Afterwards -------------------------------------------------------------------------------------------------------

    def uninstall(self) -> dict[str, str]:
        """Take everything back; the host is then what it was.

        Returns:
            For each patch ``"restored"``, or ``"passing through"`` where another wrapper lies on top of it.
        """
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters = []
        outcomes: dict[str, str] = {}
        for installed in (self._patches, self._variables):
            if installed is not None:
                outcomes |= installed.uninstall()
        passing = [label for label, outcome in outcomes.items() if outcome != "restored"]
        if self.state != CLOSED:
            self._become(
                UNINSTALLED,
                f"passing through under another wrapper: {', '.join(passing)}" if passing else "everything restored",
            )
            logger.info("%s: uninstalled (%s)", self.name, self.state_reason)
        return outcomes

    def withdraw(self, reason: str) -> None:
        """Take the patches back and refuse this process for ``reason``; nothing where nothing is installed."""
        if self.state not in (INSTALLED, LATCHED) or self._patches is None:
            return
        self._patches.uninstall()
        self._refuse(reason)

    def _latch(self, reason: str) -> None:
        self._become(LATCHED, reason)

    def _become(self, state: str, reason: str) -> None:
        # The report's thread may read between the two: a state with the reason of the one before is harmless.
        self.state, self.state_reason = state, reason

    # Documents --------------------------------------------------------------------------------------------------------

    def restart_counting(self) -> None:
        """In a forked child: what was counted so far is the parent's."""
        self.guard.reset()

    def report(self) -> dict[str, Any]:
        """This carrier's entry in the engine report."""
        guard = self.guard
        return {
            "name": self.name,
            "extension_id": self.extension_id,
            "state": self.state,
            "state_reason": self.state_reason,
            "gates": [
                {"name": reading.name, "value": reading.value, "raw": reading.raw, "source": reading.source}
                for reading in self.settings.readings.values()
            ],
            "seams": [
                {"target": status.target, "status": status.status, "detail": status.detail}
                for status in self.seam_statuses
            ],
            "engaged": guard.engaged,
            "calls": guard.calls,
            "counters": dict(guard.counters),
            "reasons": dict(guard.reasons),
            "failures": dict(guard.failures),
            "last_failure": guard.last_failure,
        }

    def sidecar(self, extension_id: str, verified_on: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The seams sidecar of a bundle that has this carrier only; see :func:`sidecar.document`."""
        from .sidecar import document

        return document([self], extension_id, verified_on)
