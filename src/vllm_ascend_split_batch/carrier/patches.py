"""Patches: replacing attributes of the host, all or none, and taking them back in any order.

Several carriers may wrap the same attribute and leave in another order than they came. Each wrapper sits behind a small
*entry* function; the attribute holds the newest entry, and each entry knows what it was laid over. A patch that leaves
from the top uncovers what lies below, past entries that have left already, down to the host's own object, so that the
host is afterwards what it was, attribute for attribute. A patch that leaves from the middle, or from under somebody
else's wrapper, cannot be taken out; its entry then passes every call through to what it was laid over.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from . import fork
from .record import Record
from .seams import ABSENT, Seam, find_owner, function_of, kind_of, raw_attribute

RESTORED, PASSING = "restored", "passing through"

_lock = threading.RLock()


def _new_lock() -> None:
    # A fork may happen while another thread holds the lock, and that thread does not exist in the child.
    global _lock
    _lock = threading.RLock()


class Patch(Record):
    """Replace the attribute a seam names.

    ``factory`` is called once, with the original, and returns the replacement. For a method the original is the plain
    function (call it with ``self``), for a static method its function, for a class method its function (call it with
    the class), for a property its getter; the replacement takes the same place. Wrappers should take ``*args`` and
    ``**kwargs`` and hand them on: the host may call by position or by keyword. For anything that cannot be called the
    original and the replacement are values. For a seam that is absent the original is ``None``, and the replacement,
    put there as it is, disappears again at the end.
    """

    seam: Seam
    factory: Callable[[Any], Any]

    def __init__(self, seam: Seam, factory: Callable[[Any], Any]) -> None:
        super().__init__(seam=seam, factory=factory)

    @property
    def label(self) -> str:
        return self.seam.target

    def place(self) -> Place:
        return AttributePlace(find_owner(self.seam), self.seam.path[-1])

    def absent_before(self) -> bool:
        return self.seam.absent


class DictEntry(Record):
    """Set one entry of a dictionary of the host, such as vLLM's table of environment variables."""

    seam: Seam
    key: Any
    factory: Callable[[Any], Any]

    def __init__(self, seam: Seam, key: Any, factory: Callable[[Any], Any]) -> None:
        super().__init__(seam=seam, key=key, factory=factory)

    @property
    def label(self) -> str:
        return f"{self.seam.target}[{self.key!r}]"

    def place(self) -> Place:
        mapping = getattr(find_owner(self.seam), self.seam.path[-1], None)
        if not isinstance(mapping, MutableMapping):
            raise TypeError(f"{self.seam.target} is not a dictionary")
        return ItemPlace(mapping, self.key)

    def absent_before(self) -> bool:
        return False


class Place:
    """Somewhere an object can be put: compared by identity of the holder and by name."""

    holder: Any
    name: Any

    @property
    def key(self) -> tuple[int, Any]:
        return id(self.holder), self.name

    def own(self) -> Any:
        """What lies there itself, not inherited; ``ABSENT`` when nothing."""
        raise NotImplementedError

    def visible(self) -> Any:
        """What lies there or is inherited."""
        raise NotImplementedError

    def put(self, value: Any) -> None:
        """Put ``value`` there; ``ABSENT`` removes what is there."""
        raise NotImplementedError


class AttributePlace(Place):
    """An attribute of a class or module."""

    def __init__(self, holder: Any, name: str) -> None:
        self.holder, self.name = holder, name

    def own(self) -> Any:
        return vars(self.holder).get(self.name, ABSENT)

    def visible(self) -> Any:
        return raw_attribute(self.holder, self.name)

    def put(self, value: Any) -> None:
        if value is ABSENT:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, value)


class ItemPlace(Place):
    """An entry of a dictionary."""

    def __init__(self, holder: MutableMapping[Any, Any], name: Any) -> None:
        self.holder, self.name = holder, name

    def own(self) -> Any:
        return self.holder.get(self.name, ABSENT)

    visible = own

    def put(self, value: Any) -> None:
        if value is ABSENT:
            del self.holder[self.name]
        else:
            self.holder[self.name] = value


class Layer:
    """One patch that has been laid over a place."""

    def __init__(self, place: Place, below: Any, installed: Any, pass_through: Callable[[], None] | None) -> None:
        self.place = place
        self.below = below
        self.installed = installed
        self.pass_through = pass_through
        self.left = False


# Per place, the layers from the oldest to the newest that still lie there. They keep the holder alive, so that its
# id() stays its own.
_layers: dict[tuple[int, Any], list[Layer]] = {}


def lay(patch: Patch | DictEntry) -> Layer:
    """Install one patch; whatever goes wrong is raised, with nothing changed."""
    fork.in_child(_new_lock)
    with _lock:
        place = patch.place()
        _uncover(place)
        below, visible = place.own(), place.visible()
        if patch.absent_before() and visible is not ABSENT:
            raise LookupError(f"{patch.label} exists already")
        if not patch.absent_before() and visible is ABSENT and isinstance(patch, Patch):
            raise LookupError(f"{patch.label} does not exist")
        installed, pass_through = _replacement(patch, place, visible)
        layer = Layer(place, below, installed, pass_through)
        place.put(installed)
        _layers.setdefault(place.key, []).append(layer)
        return layer


def lift(layer: Layer) -> str:
    """Take one patch back; says whether the place was restored or the entry now passes calls through."""
    with _lock:
        if not layer.left:
            layer.left = True
            if layer.pass_through is not None:
                layer.pass_through()
            _uncover(layer.place)
        return PASSING if layer in _layers.get(layer.place.key, ()) else RESTORED


def _uncover(place: Place) -> None:
    """Remove from the top of a place the layers that have left."""
    layers = _layers.get(place.key, [])
    while layers and layers[-1].left and place.own() is layers[-1].installed:
        place.put(layers.pop().below)
    if not layers:
        _layers.pop(place.key, None)


def _replacement(patch: Patch | DictEntry, place: Place, visible: Any) -> tuple[Any, Callable[[], None] | None]:
    if isinstance(patch, DictEntry) or patch.seam.absent:
        return patch.factory(None if visible is ABSENT else visible), None
    kind = kind_of(visible)
    if kind in ("data", "class"):
        return patch.factory(visible), None
    original = function_of(visible)
    entry, pass_through = _entry(original, patch.factory(original))
    # A callable object in a class is not bound to instances; a function put in its place must not be either.
    unbound = isinstance(place.holder, type) and not hasattr(type(visible), "__get__")
    if kind == "staticmethod" or unbound:
        return staticmethod(entry), pass_through
    if kind == "classmethod":
        return classmethod(entry), pass_through
    if kind == "property":
        return property(entry, visible.fset, visible.fdel, visible.__doc__), pass_through
    return entry, pass_through


def _entry(original: Any, wrapper: Any) -> tuple[Any, Callable[[], None]]:
    """The function that is put in place, and the switch that makes it pass calls straight to ``original``."""
    if not callable(wrapper):
        raise TypeError(f"the replacement of {getattr(original, '__qualname__', original)!r} cannot be called")
    target = wrapper

    @functools.wraps(original)
    def entry(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    def pass_through() -> None:
        nonlocal target
        target = original

    return entry, pass_through


def _lay_all(patches: Iterable[Patch | DictEntry]) -> list[tuple[str, Layer]]:
    laid: list[tuple[str, Layer]] = []
    try:
        for patch in patches:
            laid.append((patch.label, lay(patch)))
    except BaseException:
        for _, layer in reversed(laid):
            lift(layer)
        raise
    return laid


class PatchSet:
    """A number of patches that are in place together or not at all."""

    def __init__(self, patches: Iterable[Patch | DictEntry]) -> None:
        self.patches = tuple(patches)
        self._laid: list[tuple[str, Layer]] = []

    @property
    def installed(self) -> bool:
        return bool(self._laid)

    def install(self) -> None:
        """Install every patch. When one cannot be installed, those before it are taken back and the error is raised."""
        if not self._laid:
            self._laid = _lay_all(self.patches)

    def extend(self, patches: Iterable[Patch | DictEntry]) -> None:
        """Install further patches, all of them or none, which then belong to the set."""
        added = tuple(patches)
        self._laid += _lay_all(added)
        self.patches += added

    def uninstall(self) -> dict[str, str]:
        """Take every patch back, in any order relative to other sets.

        Returns:
            For each patch, ``"restored"``, or ``"passing through"`` where something else lies on top: another carrier's
            live patch, which restores the place when it leaves, or a wrapper that is not ours.
        """
        laid, self._laid = self._laid, []
        return {label: lift(layer) for label, layer in reversed(laid)}
