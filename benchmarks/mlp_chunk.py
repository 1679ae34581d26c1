"""Peak memory of a prefill with its MLPs in 1, 2, 4 and 8 parts, on the emulated NPU.

    python benchmarks/mlp_chunk.py [--rows 4096] [--out FILE.json]

Starts the real vllm + vllm-ascend once a setting, in a process of its own, with one random bfloat16 model of a few
layers whose MLP is 2.75 times as wide as its hidden size (Qwen2.5-14B: 2.7). After a first prefill the device's peak is
set back and one prompt of `--rows` tokens is read in one step; the peak above what was allocated before is the
prefill's. The emulated device counts every byte its allocator hands out; fragmentation, and the working memory of a
real device's kernels, are not in it.

Needs the packages of `make test`; the table goes to standard output, the numbers to `--out`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCHEMA = "split-batch.mlp-chunk/1"
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
    from vllm_ascend_split_batch.mlp_chunk_plugin import MLP_CHUNK

    Path(result).write_text(
        json.dumps(
            {
                "peak_bytes": npu.max_memory_allocated() - before,
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4096, help="tokens of the prompt, read in one step")
    parser.add_argument("--out", type=Path, help="write the numbers to this file")
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
    print("parts | peak MiB | below stock MiB | said to save at least | first token | MLPs cut")
    for one in found:
        below = (stock["peak_bytes"] - one["peak_bytes"]) / MIB
        same = "stock's" if one["token"] == stock["token"] else "ANOTHER"
        print(
            f"{one['parts']:5} | {one['peak_bytes'] / MIB:8.1f} | {below:15.1f} | {one['said_to_save'] / MIB:21.1f} | "
            f"{same:11} | {one['engaged']}"
        )
    if arguments.out:
        document = {
            "schema": SCHEMA,
            "rows": arguments.rows,
            "model": {"hidden": HIDDEN, "intermediate": INTERMEDIATE, "layers": LAYERS, "dtype": "bfloat16"},
            "settings": found,
        }
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    right = all(one["token"] == stock["token"] for one in found)
    falling = all(one["peak_bytes"] <= before["peak_bytes"] for before, one in itertools.pairwise(found))
    return 0 if right and falling else 1


if __name__ == "__main__":
    sys.exit(main())
