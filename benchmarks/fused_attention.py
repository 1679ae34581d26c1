"""The emulated fused attention against torch's own, called once per request on gathered pages.

    python -m torch_npu_emulator -- python benchmarks/fused_attention.py [--out FILE]

For each shape, in one process and taking turns: (a) one ``npu_fused_infer_attention_score`` call over the paged cache,
through the whole operator with its checks, and (b) per request ``index_select`` of its pages and
``scaled_dot_product_attention`` on them, as plain CPU tensors and in the fastest of three forms (enable_gqa, repeated
heads, grouped rows). Decode: one query token per request. Prefix: all query tokens of the batch as one sequence without
mask over a shared prefix (the first stage of cascade attention); (b) is one call for the batch. Prefill: one request,
causal. Times are the shortest of many, in microseconds; ratio is (a) / (b), below 1 the operator is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

PAGE = 128
HEADS = ((9, 3, 64), (32, 8, 128))


def paired_times(functions: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Shortest times in microseconds of functions that are called in turn: what else runs on the machine only adds."""
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 400):
        for function, kept in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            kept.append((time.perf_counter() - start) * 1e6)
    return [min(kept) for kept in times]


def case(kind: str, batch: int, keys: int, heads: int, kv_heads: int, size: int, seconds: float) -> dict[str, Any]:
    import torch
    import torch_npu

    torch.manual_seed(0)
    scale = 1 / math.sqrt(size)
    pages = -(-keys // PAGE)
    rows = 1 if kind == "prefix" else batch
    blocks = rows * pages
    cache = torch.randn(2, blocks, PAGE, kv_heads * size).to(torch.bfloat16)
    table = torch.randperm(blocks).view(rows, pages).to(torch.int32)
    tokens = {"decode": batch, "prefix": batch, "prefill": keys}[kind]
    query = torch.randn(tokens, heads, size).to(torch.bfloat16)
    ends = {"decode": list(range(1, batch + 1)), "prefix": [tokens], "prefill": [tokens]}[kind]
    lengths = [keys] * rows
    mask = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu() if kind != "prefix" else None
    arguments = {
        "atten_mask": mask,
        "block_table": table.npu(),
        "actual_seq_lengths": ends,
        "actual_seq_lengths_kv": lengths,
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "scale": scale,
        "sparse_mode": 0 if kind == "prefix" else 3,
        "input_layout": "TND",
        "block_size": PAGE,
        "softmax_lse_flag": kind == "prefix",
    }
    npu_query, npu_key, npu_value = query.npu(), cache[0].npu(), cache[1].npu()
    row_of = [row.long() for row in table]

    def fused() -> Any:
        return torch_npu.npu_fused_infer_attention_score(npu_query, npu_key, npu_value, **arguments)[0]

    def per_request(attend: Callable[[Any, Any, Any], Any]) -> Callable[[], Any]:
        """Gathers each request's pages and calls ``attend`` with [1, heads, rows, D] tensors."""

        def run() -> Any:
            results = []
            for i, row in enumerate(row_of):
                key, value = (
                    c.index_select(0, row).view(-1, kv_heads, size)[:keys].transpose(0, 1).unsqueeze(0) for c in cache
                )
                own = query[i : i + 1] if kind == "decode" else query
                results.append(attend(own.transpose(0, 1).unsqueeze(0), key, value).squeeze(0).transpose(0, 1))
            return torch.cat(results)

        return run

    def grouped(q: Any, k: Any, v: Any) -> Any:
        """Query heads that share a key-value head as rows of one head: only without a mask."""
        rows = q.shape[2]
        result = sdpa(q.reshape(1, kv_heads, -1, size), k, v, scale=scale)
        return result.reshape(1, heads, rows, size)

    def repeated(q: Any, k: Any, v: Any) -> Any:
        """Each key-value head repeated for its query heads, as a view."""
        k, v = (t.unsqueeze(2).expand(-1, -1, heads // kv_heads, -1, -1).reshape(1, heads, -1, size) for t in (k, v))
        return sdpa(q, k, v, scale=scale, is_causal=kind == "prefill")

    def enable_gqa(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, scale=scale, is_causal=kind == "prefill", enable_gqa=True)

    sdpa = torch.nn.functional.scaled_dot_product_attention
    forms = {"repeated": repeated, "enable_gqa": enable_gqa}
    if kind != "prefill":
        forms["grouped"] = grouped
    with torch.inference_mode():
        expected = per_request(forms["repeated"])().float()
        difference = (fused().cpu().float() - expected).abs().max().item()
        fused_us, *others = paired_times([fused, *(per_request(form) for form in forms.values())], seconds)
    best = min(zip(others, forms, strict=True))
    return {
        "kind": kind,
        "batch": batch,
        "keys": keys,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": size,
        "fused_us": round(fused_us, 1),
        "gathered_sdpa_us": round(best[0], 1),
        "gathered_sdpa_form": best[1],
        "gathered_sdpa_all_us": {form: round(us, 1) for form, us in zip(forms, others, strict=True)},
        "ratio": round(fused_us / best[0], 3),
        "max_difference": difference,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="write the results as JSON")
    parser.add_argument("--seconds", type=float, default=0.5, help="time per shape (default: 0.5)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    options = parser.parse_args()
    try:
        import torch
        import torch_npu  # noqa: F401
    except ImportError:
        print("start this under the emulated NPU: python -m torch_npu_emulator -- python ...", file=sys.stderr)
        return 2
    if options.threads:
        torch.set_num_threads(options.threads)
    shapes = [("decode", b, k) for b in (1, 8, 16, 32) for k in (128, 512, 2048, 8192)]
    shapes += [("prefix", b, k) for b in (8, 16, 32) for k in (2048, 8192)]
    shapes += [("prefill", 1, k) for k in (128, 512, 2048)]
    print(
        f"{'form':8} {'batch':>5} {'keys':>5} {'heads':>6} {'D':>4} {'fused us':>10} {'sdpa us':>10} {'ratio':>6}  form"
    )
    results = []
    for heads, kv_heads, size in HEADS:
        for kind, batch, keys in shapes:
            result = case(kind, batch, keys, heads, kv_heads, size, options.seconds)
            results.append(result)
            print(
                f"{kind:8} {batch:5} {keys:5} {heads:3}/{kv_heads:<2} {size:4} {result['fused_us']:10.1f} "
                f"{result['gathered_sdpa_us']:10.1f} {result['ratio']:6.2f}  {result['gathered_sdpa_form']}",
                flush=True,
            )
    slower = [r for r in results if r["ratio"] > 1]
    print(
        f"slower than gathered pages: {len(slower)} of {len(results)}; worst ratio {max(r['ratio'] for r in results)}"
    )
    if options.out:
        document = {
            "benchmark": "fused_attention",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "dtype": "bfloat16",
            "page": PAGE,
            "results": results,
        }
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
