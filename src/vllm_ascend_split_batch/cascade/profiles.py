"""Profiles: what a device charges for attention, who measured it, and where it holds.

A profile belongs to one (device, kernel tier, mode). It carries the coefficients of `cost_model`, or the statement that
two stages lost everywhere they were measured. Without a profile nothing is predicted and cascade stays off. A document
holds one or more profiles; its page is docs/formats/cascade-profile.md. Reading is strict: a field that is missing,
unknown or of the wrong kind is an error that names file, field and what to do. Pure standard library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from .cost_model import LARGEST, AttentionShape, Coefficients
from .named_files import expanded, read_regular, shown

SCHEMA = "vllm-ascend-split-batch.cascade-profile/1"
TIERS = ("wheel", "host", "own")
MODES = ("eager", "graph")
#: The device key of an emulated NPU, whatever device it emulates: its times are those of the machine below.
EMULATED_DEVICE = "emulated-npu"
_DATA = "profile_data"
#: Of a rate: its inverse stays finite.
_SLOWEST = 1e-9

_REMEASURE = "write a new one with `vllm-hust-ext cascade calibrate --out FILE`"


class ProfileError(Exception):
    """A profile document cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class Key:
    """What a profile is looked up by: device name, kernel tier, "eager" or "graph"."""

    device: str
    tier: str
    mode: str

    def __str__(self) -> str:
        return f"device {self.device}, tier {self.tier}, {self.mode}"


@dataclass(frozen=True)
class Range:
    """The smallest and largest value that was measured."""

    low: int
    high: int


@dataclass(frozen=True)
class Coverage:
    """What was measured: shape of the attention, requests, shared tokens, further tokens per request."""

    shape: AttentionShape
    requests: Range
    prefix_tokens: Range
    suffix_tokens: Range


@dataclass(frozen=True)
class Fit:
    """How far the coefficients are from the measurements, as shares of the measured times."""

    cells: int
    median_error: float
    largest_error: float


@dataclass(frozen=True)
class Profile:
    """One profile.

    Attributes:
        key: what it is for.
        sources: where the figures come from, one sentence each.
        origin: the file it was read from, or "shipped".
        margin: the share of the host's attention time that must be saved before cascade is switched on.
        coefficients, coverage, fit: None where `lost` says that there is nothing to predict.
        lost: why cascade is never to be used here, or None.
    """

    key: Key
    sources: tuple[str, ...]
    origin: str
    margin: float = 0.0
    coefficients: Coefficients | None = None
    coverage: Coverage | None = None
    fit: Fit | None = None
    lost: str | None = None


def device_key(torch_npu: Any) -> str:
    """The device key of this process's current device.

    Args:
        torch_npu: the imported module; an emulated one has an `emulator` attribute.
    """
    return EMULATED_DEVICE if hasattr(torch_npu, "emulator") else str(torch_npu.npu.get_device_name()).strip()


# Finding -----------------------------------------------------------------------------------------------------------


def shipped() -> tuple[Profile, ...]:
    """The profiles that come with this distribution."""
    folder = resources.files(__package__).joinpath(_DATA)
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".json")), key=lambda entry: entry.name)
    return tuple(
        profile for entry in files for profile in parse(entry.read_text("utf-8"), where=entry.name, origin="shipped")
    )


def load(path: str | Path) -> tuple[Profile, ...]:
    """The profiles of a file.

    Raises:
        ProfileError: the file cannot be read or used.
    """
    try:
        path = expanded(path)
        text = read_regular(path).decode("utf-8")
    except OSError as error:
        cause = error.strerror or error
        raise ProfileError(f"{path}: cannot be read ({cause}); name an existing profile file") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: is no UTF-8 text; {_REMEASURE}") from None
    return parse(text, where=str(path), origin=str(path))


def find(key: Key, *collections: Iterable[Profile]) -> Profile | None:
    """The first profile of the key; earlier collections (the user's own) win."""
    return next((profile for profiles in collections for profile in profiles if profile.key == key), None)


def missing_reason(key: Key) -> str:
    """Why cascade is off without a profile, and what to do."""
    return (
        f"no profile for {key}: nothing is known of what cascade costs there; measure it on the device with "
        "`vllm-hust-ext cascade calibrate --out FILE` and set VLLM_ASCEND_CASCADE_PROFILE=FILE"
    )


# Writing -----------------------------------------------------------------------------------------------------------


def document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """The JSON document of profiles; `parse` reads it back."""
    return {"schema": SCHEMA, "profiles": [_entry(profile) for profile in profiles]}


def _entry(profile: Profile) -> dict[str, Any]:
    entry: dict[str, Any] = {**asdict(profile.key), "sources": list(profile.sources)}
    if profile.lost is not None:
        return {**entry, "lost": profile.lost}
    assert profile.coefficients is not None
    assert profile.coverage is not None
    assert profile.fit is not None
    coverage = profile.coverage
    shape = asdict(coverage.shape)
    del shape["layers"]
    ranges = {name: list(asdict(getattr(coverage, name)).values()) for name in _RANGES}
    return {
        **entry,
        "margin": profile.margin,
        "coefficients": asdict(profile.coefficients),
        "measured": {**shape, **ranges},
        "fit": asdict(profile.fit),
    }


# Reading -----------------------------------------------------------------------------------------------------------

_RANGES = ("requests", "prefix_tokens", "suffix_tokens")
_SHAPE = ("query_heads", "kv_heads", "head_size", "element_bytes")
_RATES = ("read_gb_s", "reuse_gb_s", "cache_mib", "prefix_tflop_s")
_TIMES = ("stock_launch_us", "stock_request_us", "cascade_launch_us", "cascade_request_us", "cascade_step_us")


def parse(text: str, *, where: str, origin: str) -> tuple[Profile, ...]:
    """The profiles of a document.

    Args:
        where: how errors name the document. origin: what the profiles say they are from.

    Raises:
        ProfileError: it is no JSON, or not what docs/formats/cascade-profile.md describes.
    """
    try:
        raw = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{where}: is no JSON ({error}); {_REMEASURE}") from None
    top = _Fields(raw, where, "")
    schema = top.take("schema", _text)
    if schema != SCHEMA:
        raise ProfileError(f"{where}: schema is {shown(repr(schema))}, this release reads {SCHEMA!r}; {_REMEASURE}")
    entries = top.take("profiles", _list)
    top.done()
    if not entries:
        raise ProfileError(f"{where}: profiles is empty; {_REMEASURE}")
    profiles = tuple(_profile(_Fields(entry, where, f"profiles[{i}]"), origin) for i, entry in enumerate(entries))
    keys = [profile.key for profile in profiles]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise ProfileError(f"{where}: profiles[{index}]: a second profile for {shown(str(key))}; keep one of them")
    return profiles


def _profile(fields: _Fields, origin: str) -> Profile:
    key = Key(fields.take("device", _text), fields.take("tier", _one_of(TIERS)), fields.take("mode", _one_of(MODES)))
    sources = tuple(fields.take("sources", _texts))
    if "lost" in fields:
        lost = fields.take("lost", _text)
        fields.done()
        return Profile(key, sources, origin, lost=lost)
    margin = fields.take("margin", _number(0.0, 1.0))
    numbers = fields.inside("coefficients")
    coefficients = Coefficients(
        **{name: numbers.take(name, _number(0.0)) for name in _TIMES},
        **{name: numbers.take(name, _rate) for name in _RATES},
    )
    numbers.done()
    measured = fields.inside("measured")
    shape = AttentionShape(**{name: measured.take(name, _count) for name in _SHAPE})
    if shape.query_heads % shape.kv_heads:
        measured.fail("query_heads", f"{shape.query_heads} is no multiple of kv_heads {shape.kv_heads}")
    coverage = Coverage(shape, **{name: measured.take(name, _range) for name in _RANGES})
    measured.done()
    quality = fields.inside("fit")
    fit = Fit(
        quality.take("cells", _count),
        quality.take("median_error", _number(0.0)),
        quality.take("largest_error", _number(0.0)),
    )
    quality.done()
    fields.done()
    return Profile(key, sources, origin, margin, coefficients, coverage, fit)


class _Wrong(ValueError):
    """A value is not of the expected kind; the message completes "FIELD is VALUE, "."""


class _Fields:
    """An object whose fields are taken one by one; what is left at the end is unknown."""

    def __init__(self, raw: Any, where: str, path: str) -> None:
        self._where, self._path = where, path
        if not isinstance(raw, Mapping):
            raise ProfileError(f"{where}: {path or 'the document'} is no JSON object; {_REMEASURE}")
        self._raw = dict(raw)

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def take(self, name: str, kind: Callable[[Any], Any]) -> Any:
        if name not in self._raw:
            raise ProfileError(f"{self._where}: {self._of(name)} is missing; {_REMEASURE}")
        value = self._raw.pop(name)
        try:
            return kind(value)
        except _Wrong as error:
            self.fail(name, f"is {shown(json.dumps(value))}, accepted: {error}")

    def inside(self, name: str) -> _Fields:
        if name not in self._raw:
            raise ProfileError(f"{self._where}: {self._of(name)} is missing; {_REMEASURE}")
        return _Fields(self._raw.pop(name), self._where, self._of(name))

    def done(self) -> None:
        for name in self._raw:
            field = self._of(shown(name))
            raise ProfileError(f"{self._where}: {field} is no field of a profile; remove it or {_REMEASURE}")

    def fail(self, name: str, problem: str) -> None:
        raise ProfileError(f"{self._where}: {self._of(name)} {problem}; correct it or {_REMEASURE}")

    def _of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong("a text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Wrong("a list")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item.strip() for item in value):
        raise _Wrong("a list of at least one text")
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def kind(value: Any) -> str:
        if value not in words:
            raise _Wrong(" or ".join(words))
        return str(value)

    return kind


def _number(low: float, high: float = LARGEST) -> Callable[[Any], float]:
    def kind(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise _Wrong(f"a number from {low:g} to {high:g}")
        return float(value)

    return kind


def _rate(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _SLOWEST <= value <= LARGEST:
        raise _Wrong(f"a number from {_SLOWEST:g} to {LARGEST:g}, or null")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise _Wrong(f"a whole number from 1 to {LARGEST:g}")
    return value


def _range(value: Any) -> Range:
    if not isinstance(value, list) or len(value) != 2:
        raise _Wrong("two whole numbers, the smallest and the largest that was measured")
    low, high = _count(value[0]), _count(value[1])
    if low > high:
        raise _Wrong("two whole numbers, the smaller first")
    return Range(low, high)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {shown(repr(name))} occurs twice in one object")
        found[name] = value
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")
