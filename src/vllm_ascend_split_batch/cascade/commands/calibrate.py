"""Measure both arms on this machine's device and write the profile that the decision needs. Takes a few minutes."""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.cascade.commands.model_config import read_dtype, read_shape
from vllm_ascend_split_batch.cascade.commands.settings import lower_floors, setting
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape
from vllm_ascend_split_batch.cascade.decision import switched_on_from
from vllm_ascend_split_batch.cascade.fitting import Cell, FitError, fit
from vllm_ascend_split_batch.cascade.named_files import expanded
from vllm_ascend_split_batch.cascade.profiles import (
    EMULATED_DEVICE,
    MODES,
    TIERS,
    Coverage,
    Fit,
    Key,
    Profile,
    Range,
    device_key,
    document,
)
from vllm_ascend_split_batch.command_group import CommandError, number, positive, positives

HELP = "measure this device into a profile file"

#: The attention of a 14B model, where no model is named.
DEFAULT_SHAPE = AttentionShape(query_heads=40, kv_heads=8, head_size=128, element_bytes=2, layers=48)
DEFAULT_DTYPE = "bfloat16"
#: Share of the host's attention time that must be saved at least, and the most layers a step is timed with.
LEAST_MARGIN, MOST_LAYERS = 0.03, 32
#: Where the host's own path differs from itself by more than this share in half of the cells, the device is not idle.
MOST_NOISE = 0.25
#: Mebibytes up to which shared blocks are found again in the device's cache. Ascend 910B: 192. A processor that is
#: bound by arithmetic has no such limit.
CACHE_MIB = 192.0
#: What `--seconds` and `--most-noise` take.
SECONDS, NOISE = number(1e-3, 3600), number(1e-6, 10)
#: Exit status where the arms' results differ: not a measurement that failed, but kernels that are wrong.
WRONG_KERNELS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``calibrate``."""
    parser.add_argument("--out", metavar="FILE", default="cascade-profile.json", help="default cascade-profile.json")
    parser.add_argument("--model", metavar="DIR", help="measure this model's attention; default: that of a 14B model")
    parser.add_argument(
        "--tensor-parallel", type=positive, default=1, metavar="N", help="ranks that share the heads; 1"
    )
    parser.add_argument("--tier", choices=TIERS, default="wheel", help="kernels; default wheel")
    parser.add_argument("--modes", type=_modes, default=MODES, metavar="M,M", help="eager, graph; default both")
    parser.add_argument("--batches", type=positives, default=(4, 8, 16, 32, 64), metavar="N,N,...")
    parser.add_argument("--prefixes", type=positives, default=(512, 1024, 2048, 4096, 8192, 16384), metavar="N,N,...")
    parser.add_argument("--suffixes", type=positives, default=(64, 512), metavar="N,N,...")
    parser.add_argument("--seconds", type=SECONDS, default=1.0, metavar="S", help="time per cell; default 1")
    parser.add_argument(
        "--most-noise",
        type=NOISE,
        default=MOST_NOISE,
        metavar="SHARE",
        help=f"write nothing when the host's own path differs from itself by more in half of the cells; {MOST_NOISE}",
    )
    parser.add_argument("--memory-gib", type=positive, default=8, metavar="N", help="device memory to use at most; 8")
    parser.add_argument("--cells", metavar="FILE", help="also write the measured cells")


def run(options: argparse.Namespace) -> int:
    """Measure, fit, write; exit status 0 with a profile, 1 without, `WRONG_KERNELS` where the arms differ."""
    out = _writable("--out", options.out)
    cells_out = _writable("--cells", options.cells) if options.cells else None
    if out == cells_out:
        raise CommandError(f"--out, --cells: both are {out}; name two files")
    batches = list(_cells(options))
    shape, dtype = DEFAULT_SHAPE, DEFAULT_DTYPE
    if options.model:
        shape = read_shape(options.model, tensor_parallel=options.tensor_parallel)
        dtype = read_dtype(options.model)
    torch_npu = _device()
    tier = _kernels(options.tier, shape, dtype)
    most_blocks, layers = _sizes(batches, shape, options.memory_gib)
    print(f"{len(batches)} cells, {layers} layers, {_shape_text(shape, dtype)}", file=sys.stderr)
    found: list[Profile] = []
    measured: list[dict[str, Any]] = []
    on_from: list[dict[int, int | None]] = []
    for mode in options.modes:
        key = Key(device_key(torch_npu), options.tier, mode)
        timings = _measure(tier, mode, shape, dtype, layers, most_blocks, batches, options.seconds)
        sources = _sources(torch_npu, dtype, layers)
        found.append(
            profile_of(key, [timing.cell for timing in timings], shape, timings, sources, most_noise=options.most_noise)
        )
        measured.append(_measured(key, shape, dtype, layers, timings))
        on_from.append(_on_from(found[-1], timings, shape))
        print(_summary(found[-1], on_from[-1]))
    _write(out, document(found))
    if cells_out is not None:
        _write(cells_out, measured)
    print(_how_to_use(out, on_from))
    return 0


def _modes(text: str) -> tuple[str, ...]:
    modes = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(modes) <= set(MODES):
        raise argparse.ArgumentTypeError(f"{text!r} is not eager, graph or eager,graph")
    return modes


def _sizes(batches: Sequence[tuple[int, int, int]], shape: AttentionShape, memory_gib: int) -> tuple[int, int]:
    """Blocks of the largest cell, and the layers that the memory holds."""
    from vllm_ascend_split_batch.cascade.measurement import BLOCK

    most_blocks = max(_blocks(cell, BLOCK) for cell in batches)
    layer_bytes = most_blocks * BLOCK * shape.kv_bytes
    layers = min(MOST_LAYERS, shape.layers, (memory_gib << 30) // layer_bytes)
    if layers < 1:
        raise CommandError(
            f"the largest cell needs {layer_bytes / 2**30:.1f} GiB of keys and values a layer; raise --memory-gib or "
            "ask for smaller --batches, --prefixes"
        )
    return most_blocks, layers


def _measure(
    tier: Any,
    mode: str,
    shape: AttentionShape,
    dtype: str,
    layers: int,
    most_blocks: int,
    batches: Sequence[tuple[int, int, int]],
    seconds: float,
) -> list[Any]:
    """The `Timing` of every cell in one mode."""
    from vllm_ascend_split_batch.cascade.measurement import BLOCK, Bench, this_npu

    timings = []
    try:
        sizes: dict[str, Any] = {"most_blocks": most_blocks, "layers": layers, "dtype": dtype}
        if mode == "graph":
            from vllm_ascend_split_batch.cascade.graph_measurement import GraphBench, npu_graph_tools

            columns = max(prefix // BLOCK + -(-suffix // BLOCK) for _, prefix, suffix in batches)
            bench: Bench = GraphBench(npu_graph_tools(tier), this_npu(), tier, shape, most_columns=columns, **sizes)
        else:
            bench = Bench(this_npu(), tier, shape, **sizes)
        for number, (requests, prefix, suffix) in enumerate(batches, 1):
            timing = bench.measure(requests, prefix, suffix, seconds=seconds)
            timings.append(timing)
            cell = timing.cell
            print(
                f"{mode} {number:>3}/{len(batches)}  {requests:>3} requests, {prefix:>6} shared, {suffix:>5} own: "
                f"stock {cell.stock_us:>9.1f}, cascade {cell.cascade_us:>9.1f} us a layer (noise {timing.noise:.1%})",
                file=sys.stderr,
            )
    except ArithmeticError as error:
        raise CommandError(f"{error}; the kernels of this device are not to be used", WRONG_KERNELS) from None
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        others = ", ".join(other for other in MODES if other != mode)
        raise CommandError(
            f"the device failed in mode {mode} ({message}); nothing was written; --modes {others} leaves it out",
            1,
        ) from None
    return timings


def profile_of(
    key: Key,
    cells: Sequence[Cell],
    shape: AttentionShape,
    timings: Sequence[Any],
    sources: tuple[str, ...],
    *,
    most_noise: float = MOST_NOISE,
) -> Profile:
    """The profile that the measured cells give.

    Raises:
        CommandError: the cells do not determine one.
    """
    try:
        coefficients, quality = fit(
            cells,
            shape,
            cascade_step_us=statistics.median(timing.plan_us for timing in timings),
            cache_mib=None if key.device == EMULATED_DEVICE else CACHE_MIB,
        )
    except FitError as error:
        raise CommandError(f"{error} (--batches, --prefixes, --suffixes)", 1) from None
    noise = statistics.median(timing.noise for timing in timings)
    if noise > most_noise:
        raise CommandError(
            f"the host's own path differs from itself by {noise:.0%} in half of the cells: device or machine are busy; "
            "nothing was written, measure again when they are idle",
            1,
        )
    suffixes = [cell.suffix_tokens // cell.requests for cell in cells]
    coverage = Coverage(
        AttentionShape(shape.query_heads, shape.kv_heads, shape.head_size, shape.element_bytes),
        requests=Range(min(cell.requests for cell in cells), max(cell.requests for cell in cells)),
        prefix_tokens=Range(min(cell.prefix_tokens for cell in cells), max(cell.prefix_tokens for cell in cells)),
        suffix_tokens=Range(min(suffixes), max(suffixes)),
    )
    margin = max(LEAST_MARGIN, quality.median_error, noise)
    return Profile(
        key,
        sources,
        "measured",
        min(1.0, round(margin, 3)),
        coefficients,
        coverage,
        Fit(quality.cells, quality.median_error, quality.largest_error),
    )


def _cells(options: argparse.Namespace) -> Iterator[tuple[int, int, int]]:
    for name in ("batches", "prefixes", "suffixes"):
        values: tuple[int, ...] = getattr(options, name)
        if len(values) < 2:
            raise CommandError(f"--{name}: {values[0]} alone tells nothing of what it costs; name two at least")
    for prefix in options.prefixes:
        if prefix % 128:
            raise CommandError(f"--prefixes: {prefix} is no multiple of the block size 128")
    yield from itertools.product(options.batches, options.prefixes, options.suffixes)


def _blocks(cell: tuple[int, int, int], block: int) -> int:
    requests, prefix, suffix = cell
    return prefix // block + requests * -(-suffix // block)


def _device() -> Any:
    try:
        import torch
        import torch_npu

        if not torch.npu.is_available():
            raise RuntimeError("torch.npu.is_available() is false")
        torch.npu.set_device(torch.npu.current_device())
    except Exception as error:
        raise CommandError(
            f"there is no usable NPU in this environment ({type(error).__name__}: {error}); run calibrate where the "
            "engine will run, with the device free",
            1,
        ) from None
    return torch_npu


def _kernels(name: str, shape: AttentionShape, dtype: str) -> Any:
    """The tier, once it is there and has passed its self-test."""
    import torch

    from vllm_ascend_split_batch.cascade import self_test, tiers
    from vllm_ascend_split_batch.cascade.measurement import BLOCK
    from vllm_ascend_split_batch.cascade.two_stage import Heads

    allowed = setting("VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT")
    try:
        tier = tiers.make(name, fp32_prefix=False, allowed_fingerprint=allowed)
    except tiers.Unavailable as error:
        raise CommandError(str(error), 1) from None
    heads = Heads(shape.query_heads, shape.kv_heads, shape.head_size, 1 / math.sqrt(shape.head_size))
    device = torch.device("npu", torch.npu.current_device())
    try:
        problem = self_test.failure(tier, device, getattr(torch, dtype), heads, BLOCK)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem:
        raise CommandError(f"the kernels of tier {name} fail their self-test on this device: {problem}", 1)
    return tier


def _sources(torch_npu: Any, dtype: str, layers: int) -> tuple[str, ...]:
    import torch

    device = device_key(torch_npu)
    versions = f"torch {torch.__version__.split('+')[0]}, torch_npu {torch_npu.__version__}"
    how = f"{dtype}, steps of {layers} layers, the smallest of repeated times"
    return (f"measured by `cascade calibrate` on {device} with {versions}: {how}",)


def _measured(key: Key, shape: AttentionShape, dtype: str, layers: int, timings: Sequence[Any]) -> dict[str, Any]:
    return {
        "device": key.device,
        "tier": key.tier,
        "mode": key.mode,
        "dtype": dtype,
        "layers": layers,
        "query_heads": shape.query_heads,
        "kv_heads": shape.kv_heads,
        "head_size": shape.head_size,
        "cells": [
            {
                "requests": timing.cell.requests,
                "prefix_tokens": timing.cell.prefix_tokens,
                "suffix_tokens": timing.cell.suffix_tokens,
                "stock_us": round(timing.cell.stock_us, 2),
                "stock_again_us": round(timing.stock_again_us, 2),
                "cascade_us": round(timing.cell.cascade_us, 2),
                "plan_us": round(timing.plan_us, 2),
                "rounds": timing.rounds,
            }
            for timing in timings
        ],
    }


def _on_from(profile: Profile, timings: Sequence[Any], shape: AttentionShape) -> dict[int, int | None]:
    """By measured number of requests, the shared tokens from which the profile says yes; 256 own tokens a request."""
    batches = sorted({timing.cell.requests for timing in timings})
    return {requests: switched_on_from(requests, 256 * requests, profile, shape) for requests in batches}


def _summary(profile: Profile, on_from: dict[int, int | None]) -> str:
    assert profile.fit is not None
    quality = profile.fit
    errors = f"median error {quality.median_error:.1%}, largest {quality.largest_error:.1%}"
    lines = [f"fit, {profile.key.mode}: {quality.cells} cells, {errors}; margin {profile.margin:.1%}"]
    for requests, tokens in on_from.items():
        lines.append(f"{requests:>4} requests: " + ("never" if tokens is None else f"from {tokens} shared tokens"))
    return "\n".join(lines)


def _how_to_use(out: Path, on_from: Sequence[dict[int, int | None]]) -> str:
    pays = [(requests, tokens) for mode in on_from for requests, tokens in mode.items() if tokens is not None]
    floors = lower_floors(pays)
    remark = f"; {floors} lowers the floors, below which no profile is asked" if floors else ""
    return f"written to {out}; use it with VLLM_ASCEND_CASCADE_PROFILE={out.resolve()}{remark}"


def _shape_text(shape: AttentionShape, dtype: str) -> str:
    return f"{shape.query_heads} query and {shape.kv_heads} KV heads of {shape.head_size}, {dtype}"


def _writable(option: str, name: str) -> Path:
    """The file, links followed, once it is known that it can be written, before minutes are spent on measuring."""
    try:
        path = expanded(name)
        _refuse_special(path)
        path = Path(os.path.realpath(path))
    except OSError as error:
        raise CommandError(f"{option} {name}: cannot be written there ({error.strerror}); name another file") from None
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise CommandError(
            f"{option} {name}: cannot be written there; name a file in a folder that exists and is yours"
        )
    return path


def _refuse_special(path: Path) -> None:
    """Raise `OSError` for a pipe, a device, a folder: what is there would be replaced by a file."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "what is there is no regular file", str(path))


def _write(path: Path, content: Any) -> None:
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(content, indent=2) + "\n")
        os.chmod(temporary, 0o644)
        _refuse_special(path)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise CommandError(f"{path}: cannot be written ({error.strerror})", 1) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
