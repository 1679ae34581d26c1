"""The attention of a model folder, from its config.json. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.cascade.cost_model import AttentionShape
from vllm_ascend_split_batch.cascade.named_files import expanded, read_regular, shown
from vllm_ascend_split_batch.command_group import CommandError

#: The type in which vLLM's `dtype=auto` runs weights of each type on an Ascend device: float32 is narrowed.
_RUNS_AS = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16", "float32": "bfloat16", "float": "bfloat16"}
_ELEMENT_BYTES = 2
#: Of a count in a configuration, far beyond any model.
_LARGEST = 1 << 40


def read_shape(folder: str, *, tensor_parallel: int = 1) -> AttentionShape:
    """The attention one rank runs of the model in `folder`.

    Raises:
        CommandError: there is no usable config.json, or its attention is none that cascade serves.
    """
    path, config = _read(folder)
    if config.get("kv_lora_rank"):
        raise CommandError(f"--model {folder}: multi-head latent attention (kv_lora_rank) is not served by cascade")
    heads = _count(config, "num_attention_heads", path)
    kv_heads = _count(config, "num_key_value_heads", path, heads)
    size = _count(config, "head_dim", path, max(1, _count(config, "hidden_size", path, heads) // heads))
    if heads % kv_heads:
        raise CommandError(f"--model {folder}: {heads} query heads are no multiple of {kv_heads} KV heads")
    if heads % tensor_parallel:
        raise CommandError(f"--tensor-parallel {tensor_parallel}: {heads} query heads cannot be divided by it")
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        raise CommandError(
            f"--tensor-parallel {tensor_parallel}: {kv_heads} KV heads cannot be divided by it, nor it by them"
        )
    _dtype(path, config)
    return AttentionShape(
        query_heads=heads // tensor_parallel,
        kv_heads=max(1, kv_heads // tensor_parallel),
        head_size=size,
        element_bytes=_ELEMENT_BYTES,
        layers=_count(config, "num_hidden_layers", path),
    )


def read_dtype(folder: str) -> str:
    """The element type in which an engine runs the model in `folder`, "bfloat16" or "float16".

    Raises:
        CommandError: as `read_shape`.
    """
    return _dtype(*_read(folder))


def read_positions(folder: str) -> int:
    """The longest sequence, in tokens, that the model in `folder` was made for.

    Raises:
        CommandError: as `read_shape`.
    """
    path, config = _read(folder)
    return _count(config, "max_position_embeddings", path)


def _dtype(path: Path, config: Mapping[str, Any]) -> str:
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if not isinstance(dtype, str) or dtype not in _RUNS_AS:
        raise CommandError(f"{path}: dtype is {shown(repr(dtype))}, known: {', '.join(_RUNS_AS)}")
    return _RUNS_AS[dtype]


def _read(folder: str) -> tuple[Path, Mapping[str, Any]]:
    """The path of config.json and its text model's settings."""
    path = Path(folder) / "config.json"
    try:
        path = expanded(path)
        config = json.loads(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise CommandError(
            f"--model {folder}: {path} cannot be read ({error.strerror}); name a folder with a model in it"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"--model {folder}: {path} is no JSON ({error})") from None
    if not isinstance(config, Mapping):
        raise CommandError(f"--model {folder}: {path} holds no JSON object")
    config = {**config, **(config["text_config"] if isinstance(config.get("text_config"), Mapping) else {})}
    return path, config


def _count(config: Mapping[str, Any], name: str, path: Path, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise CommandError(f"{path}: {name} is {shown(repr(value))}, a whole number of at least 1 is needed")
    return value
