"""Peak memory of a prefill, and of one MLP in it, with the MLPs in 1, 2, 4 and 8 parts, on the emulated NPU.

    python benchmarks/mlp_chunk.py [--rows 4096] [--out FILE.json]

Starts the real vllm + vllm-ascend once a setting, in a process of its own, with one random bfloat16 model of a few
layers whose MLP is 2.75 times as wide as its hidden size (Qwen2.5-14B: 2.7). After a first prefill the device's peak is
set back and one prompt of `--rows` tokens is read in one step; the peak above what was allocated before is the
prefill's. The prompt is then read again with the peak set back at the start of each MLP: what one MLP needs above what
was allocated when it began, which is what the carrier says it lowers. The emulated device counts every tensor's bytes;
fragmentation, and the working memory of a real device's kernels, are not in it.

Ends with code 1 where a first token is another, where more parts take more memory, or where an MLP's peak falls by
other bytes than the carrier says.

Needs the packages of `make test`. The table goes to standard output, the numbers to `--out`, a plot of them beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.cascade.acceptance.folder import MANIFEST, write_manifest

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "split-batch.mlp-chunk/2"
PARTS = (1, 2, 4, 8)
HIDDEN, INTERMEDIATE, LAYERS, HEADS, VOCABULARY = 1024, 2816, 2, 16, 512
MIB = 1 << 20


def build(folder: Path) -> Path:
    """Write the random model."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 4,
        max_position_embeddings=65536,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    network: Any = transformers.Qwen2ForCausalLM(config)
    network.to(torch.bfloat16).save_pretrained(folder)
    return folder


def largest_mlp_peak(npu: Any, model: Any, prefill: Callable[[], int]) -> int:
    """Bytes that one MLP of a prefill has allocated at most, beyond what was allocated when it began."""
    before = [0]
    peaks: list[int] = []

    def begin(*_: Any) -> None:
        before[0] = npu.memory_allocated()
        npu.reset_peak_memory_stats()

    def end(*_: Any) -> None:
        peaks.append(npu.max_memory_allocated() - before[0])

    mlps = [layer.mlp for layer in model.model.layers]
    hooks = [hook for mlp in mlps for hook in (mlp.register_forward_pre_hook(begin), mlp.register_forward_hook(end))]
    prefill()
    for hook in hooks:
        hook.remove()
    return max(peaks)


def child(model: str, rows: int, result: str) -> None:
    """One engine in this process: the prefill's peak, its time and its first token."""
    import time

    import torch
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    engine = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=rows + 128,
        max_num_seqs=4,
        max_num_batched_tokens=rows,
        kv_cache_memory_bytes=256 * MIB,
        block_size=128,
        enable_prefix_caching=False,
    )
    npu: Any = torch.npu

    def prefill() -> int:
        sampling = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        prompt = TokensPrompt(prompt_token_ids=[3 + i % (VOCABULARY - 3) for i in range(rows)])
        return int(engine.generate([prompt], sampling, use_tqdm=False)[0].outputs[0].token_ids[0])

    prefill()
    before = npu.memory_allocated()
    npu.reset_peak_memory_stats()
    started = time.perf_counter()
    token = prefill()
    seconds = time.perf_counter() - started
    peak = npu.max_memory_allocated() - before
    mlp_peak = largest_mlp_peak(npu, engine.apply_model(lambda model: model)[0], prefill)
    from vllm_ascend_split_batch.mlp_chunk_plugin import MLP_CHUNK

    Path(result).write_text(
        json.dumps(
            {
                "peak_bytes": peak,
                "mlp_peak_bytes": mlp_peak,
                "seconds": seconds,
                "token": token,
                "engaged": MLP_CHUNK.guard.engaged,
                "said_to_save": MLP_CHUNK.guard.counters.get("peak_bytes_saved", 0),
            }
        )
    )


def run(model: Path, rows: int, parts: int, folder: Path) -> dict[str, Any]:
    """The child's result for one setting."""
    import torch_npu_emulator

    base = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "NPU_EMU_"))}
    base |= {"VLLM_HUST_MLP_CHUNKS": str(parts), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "NPU_EMU_TOTAL_GIB": "8"}
    result = folder / f"{parts}.json"
    log = folder / f"{parts}.log"
    command = [sys.executable, __file__, "--child", str(model), str(rows), str(result)]
    with log.open("w") as output:
        ran = subprocess.run(command, env=torch_npu_emulator.environment(base), stdout=output, stderr=output)
    if ran.returncode:
        raise SystemExit(f"the engine with {parts} parts ended with code {ran.returncode}:\n{log.read_text()[-3000:]}")
    return {"parts": parts, **json.loads(result.read_text())}


def plot(rows: int, found: list[dict[str, Any]]) -> str:
    """The peaks as an SVG."""
    sys.path.insert(0, str(ROOT))
    from tools.svg_plot import Axis, Series, rows_of_dots

    names = {"prefill": "peak_bytes", "one MLP of it": "mlp_peak_bytes"}
    series = [Series(label, values=[one[name] / MIB for one in found]) for label, name in names.items()]
    labels = ["stock" if one["parts"] == 1 else f"{one['parts']} parts" for one in found]
    highest = max(one["peak_bytes"] for one in found) / MIB
    axis = Axis("MiB above what was allocated before", 0, math.ceil(highest / 20) * 20)
    return rows_of_dots(f"Peak memory of a prefill of {rows} rows with mlp-chunk", labels, series, axis)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4096, help="tokens of the prompt, read in one step")
    parser.add_argument("--out", type=Path, help="write the numbers to this file, and a plot beside it")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], int(arguments.child[1]), arguments.child[2])
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build(folder / "model")
        found = [run(model, arguments.rows, parts, folder) for parts in PARTS]
    stock = found[0]
    print(f"one prefill of {arguments.rows} rows, hidden size {HIDDEN}, intermediate size {INTERMEDIATE}, bfloat16")
    print("      | the prefill's        | one MLP's            | the carrier |             |")
    print("parts | peak MiB  below stock | peak MiB  below stock | says        | first token | MLPs cut")
    for one in found:
        columns = [
            f"{one[name] / MIB:8.1f} {(stock[name] - one[name]) / MIB:12.1f}"
            for name in ("peak_bytes", "mlp_peak_bytes")
        ]
        same = "stock's" if one["token"] == stock["token"] else "ANOTHER"
        said = f"{one['said_to_save'] / MIB:11.1f}"
        print(f"{one['parts']:5} | {columns[0]} | {columns[1]} | {said} | {same:11} | {one['engaged']}")
    if arguments.out:
        document = {
            "schema": SCHEMA,
            "rows": arguments.rows,
            "model": {"hidden": HIDDEN, "intermediate": INTERMEDIATE, "layers": LAYERS, "dtype": "bfloat16"},
            "settings": found,
        }
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
        arguments.out.with_suffix(".svg").write_text(plot(arguments.rows, found))
        if (arguments.out.parent / MANIFEST).exists():
            write_manifest(arguments.out.parent)
    right = all(one["token"] == stock["token"] for one in found)
    falling = all(one["peak_bytes"] <= before["peak_bytes"] for before, one in itertools.pairwise(found))
    as_said = all(stock["mlp_peak_bytes"] - one["mlp_peak_bytes"] == one["said_to_save"] for one in found)
    return 0 if right and falling and as_said else 1


if __name__ == "__main__":
    sys.exit(main())
