"""The emulator in processes of its own: reports it writes, switches, forks, process groups, the Triton interpreter."""

from __future__ import annotations

import importlib.util
import json
import textwrap

import pytest
from torch_npu_emulator.environment import SITE

ATTENTION = """
import torch, torch_npu
def attend(tokens=3):
    q = torch.zeros(tokens, 4, 64, dtype=torch.bfloat16).npu()
    cache = torch.zeros(8, 128, 128, dtype=torch.bfloat16).npu()
    torch_npu.npu_fused_infer_attention_score(
        q, cache, cache, block_table=torch.zeros(1, 4, dtype=torch.int32).npu(), actual_seq_lengths=[tokens],
        actual_seq_lengths_kv=[300], num_heads=4, num_key_value_heads=2, input_layout="TND", block_size=128,
        softmax_lse_flag=True)
"""
ROW = 2 * 2 * 64 * 2  # bytes of one token's keys and values


def read_settings(environ):
    """The emulator's settings of an environment; the module that reads them needs nothing but the standard library."""
    path = SITE / "torch_npu" / "emulator" / "setting_values.py"
    spec = importlib.util.spec_from_file_location("emulator_setting_values", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.read(environ)


class TestSettings:
    @pytest.mark.parametrize("environ", [{}, {"NPU_EMU_DEVICES": "", "NPU_EMU_FAULT": ""}])
    def test_defaults(self, environ):
        settings = read_settings(environ)
        assert (settings.devices, settings.device_bytes, settings.triton) == (8, 2 << 30, "standin")
        assert not settings.float32_attention
        assert not settings.device_limits
        assert not settings.faults
        assert settings.counters_folder is settings.oplog_path is None

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("NPU_EMU_DEVICES", "0", "NPU_EMU_DEVICES='0': accepted is a number from 1 to 16"),
            ("NPU_EMU_DEVICES", "many", "NPU_EMU_DEVICES='many': accepted is a number"),
            ("NPU_EMU_TOTAL_GIB", "-1", "NPU_EMU_TOTAL_GIB='-1': accepted is a number from 0.01 to 1024"),
            ("NPU_EMU_FLOAT32_ATTENTION", "yes", "NPU_EMU_FLOAT32_ATTENTION='yes': accepted are 0, 1"),
            ("NPU_EMU_DEVICE_LIMITS", "on", "NPU_EMU_DEVICE_LIMITS='on': accepted are 0, 1"),
            ("NPU_EMU_TRITON", "real", "NPU_EMU_TRITON='real': accepted are standin, interpreter"),
            (
                "NPU_EMU_FAULT",
                "lse_shift,typo",
                r"NPU_EMU_FAULT: unknown fault \['typo'\]; known are fia_uniform_average",
            ),
        ],
    )
    def test_a_value_that_is_not_understood_is_refused(self, name, value, message):
        with pytest.raises(ImportError, match=message):
            read_settings({name: value})

    def test_faults_by_name(self, run_emulated):
        assert read_settings({"NPU_EMU_FAULT": " lse_shift , lse_base2,"}).faults == {"lse_shift", "lse_base2"}
        source = """
            import torch
            from torch_npu.emulator import settings
            print(settings.fault("lse_shift"), settings.fault("kv_length_plus_one"))
            settings.fault("typo")
        """
        result = run_emulated(textwrap.dedent(source), NPU_EMU_FAULT="lse_shift")
        assert result.stdout.split() == ["True", "False"]
        assert "KeyError: 'typo'" in result.stderr

    def test_a_wrong_setting_ends_the_import_with_its_message(self, run_emulated):
        result = run_emulated("import torch", NPU_EMU_FAULT="typo")
        assert result.returncode != 0
        assert "NPU_EMU_FAULT: unknown fault ['typo']" in result.stderr


def test_counters_and_log_of_a_process_and_its_forked_child(run_emulated, tmp_path):
    source = ATTENTION + textwrap.dedent("""
        import multiprocessing, os
        def child():
            attend(2); attend(2)
        if __name__ == "__main__":
            attend(3)
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start(); process.join()
            print(os.getpid(), process.pid)
    """)
    # One thread: a fork after OpenMP has started its threads is beyond torch itself.
    env = {
        "NPU_EMU_COUNTERS": str(tmp_path / "counters"),
        "NPU_EMU_OPLOG": str(tmp_path / "log"),
        "OMP_NUM_THREADS": "1",
    }
    result = run_emulated(source, **env)
    assert result.returncode == 0, result.stderr
    parent, child = result.stdout.split()
    op = "npu::npu_fused_infer_attention_score"
    for pid, calls in ((parent, 1), (child, 2)):
        document = json.loads((tmp_path / "counters" / f"{pid}.json").read_text())
        assert document["schema"] == "torch-npu-emulator.counters/1"
        assert document["pid"] == int(pid)
        assert document["launches"][op] == calls
        assert document["kv_bytes"] == {"token": calls * 300 * ROW, "page": calls * 384 * ROW}
        lines = [json.loads(line) for line in (tmp_path / "log" / f"{pid}.jsonl").read_text().splitlines()]
        assert len(lines) == calls
    assert lines[0] == {
        "op": op,
        "layout": "TND",
        "query_rows": 2,
        "sequences": 1,
        "query_lengths": [2],
        "kv_lengths": [300],
        "masked": False,
        "sparse_mode": 0,
        "paged": True,
        "kv_bytes_token": 300 * ROW,
        "kv_bytes_page": 384 * ROW,
        "lse": True,
        "replay": False,
    }
    assert not list((tmp_path / "counters").glob(".*"))


def test_a_forked_child_that_leaves_the_device_alone_writes_no_counters(run_emulated, tmp_path):
    source = ATTENTION + textwrap.dedent("""
        import multiprocessing, os, time
        if __name__ == "__main__":
            attend(3)
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1.2,))
            process.start(); process.join()
            print(os.getpid())
    """)
    folder = tmp_path / "counters"
    result = run_emulated(source, NPU_EMU_COUNTERS=str(folder), OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    assert [file.name for file in folder.iterdir()] == [f"{result.stdout.strip()}.json"]


def test_the_log_may_be_one_file(run_emulated, tmp_path):
    result = run_emulated(ATTENTION + "attend()\n", NPU_EMU_OPLOG=str(tmp_path / "calls.jsonl"))
    assert result.returncode == 0, result.stderr
    assert len((tmp_path / "calls.jsonl").read_text().splitlines()) == 1


def test_reports_are_written_while_the_process_runs(run_emulated, tmp_path):
    source = ATTENTION + textwrap.dedent("""
        import os, pathlib, time
        attend()
        path = pathlib.Path(os.environ["NPU_EMU_COUNTERS"]) / f"{os.getpid()}.json"
        end = time.monotonic() + 20
        while not (path.exists() and "fused_infer" in path.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        print(path.exists())
        os.kill(os.getpid(), 9)
    """)
    result = run_emulated(source, NPU_EMU_COUNTERS=str(tmp_path))
    assert result.stdout.strip() == "True"
    assert result.returncode == -9


def test_without_the_launcher_the_site_folder_explains_itself(tmp_path):
    import os
    import subprocess
    import sys

    env = {k: v for k, v in os.environ.items() if not k.startswith("NPU_EMU_")} | {"PYTHONPATH": str(SITE)}
    result = subprocess.run(
        [sys.executable, "-c", "import torch"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert "start the command with 'python -m torch_npu_emulator -- COMMAND'" in result.stderr


def test_a_backend_of_another_torch_is_refused(run_emulated, tmp_path):
    source = textwrap.dedent("""
        import os, subprocess, sys
        env = {**os.environ, "NPU_EMU_BACKEND": "/cache/npu_backend-torch1.0.0_cpu-x86_64-0.so"}
        result = subprocess.run([sys.executable, "-c", "import torch"], env=env, capture_output=True, text=True)
        print(result.stderr)
    """)
    assert "backend was built for torch 1.0.0_cpu, this process has torch 2." in run_emulated(source).stdout


def test_process_groups_named_hccl_work_on_npu_tensors(run_emulated):
    source = textwrap.dedent("""
        import os, sys, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp
        def work(rank, path):
            torch.npu.set_device(rank)
            dist.init_process_group("hccl", init_method=f"file://{path}", rank=rank, world_size=2)
            x = torch.full((3,), float(rank + 1), device="npu")
            dist.all_reduce(x)
            parts = [torch.empty(2, device="npu") for _ in range(2)]
            dist.all_gather(parts, torch.full((2,), float(rank), device="npu"))
            whole = torch.empty(4, device="npu")
            dist.all_gather_into_tensor(whole, torch.full((2,), float(rank), device="npu"))
            y = torch.tensor([7.0 if rank == 0 else 0.0], device="npu")
            dist.broadcast(y, 0)
            if rank == 0: dist.send(torch.tensor([5], device="npu"), 1)
            else:
                z = torch.zeros(1, dtype=torch.long, device="npu"); dist.recv(z, 0); assert z.item() == 5
            dist.barrier()
            assert x.device == torch.device("npu", rank) and x.tolist() == [3.0] * 3
            assert [p.tolist() for p in parts] == [[0, 0], [1, 1]] and whole.tolist() == [0, 0, 1, 1]
            assert y.tolist() == [7.0] and dist.is_hccl_available()
            dist.destroy_process_group()
        if __name__ == "__main__":
            mp.spawn(work, (tempfile.mktemp(),), nprocs=2)
            print("agreed")
    """)
    result = run_emulated(source)
    assert result.stdout.strip() == "agreed", result.stderr


@pytest.mark.interpreter
@pytest.mark.host
def test_the_stand_in_agrees_with_the_hosts_kernel_in_tritons_interpreter(run_emulated):
    for package in ("triton", "vllm_ascend"):
        pytest.importorskip(package) if package == "triton" else None
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    source = textwrap.dedent("""
        import torch, torch_npu
        import vllm_ascend.ops.triton.compute_slot_mapping as host
        from torch_npu.host import triton_kernels
        generator = torch.Generator().manual_seed(0)
        for lengths in ([1, 1, 1], [5, 1, 0, 7], [40]):
            block_size, columns, capacity = 16, 6, 64
            starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
            tokens = int(starts[-1])
            # The kernel reads a window of the table: positions of a request go up one by one.
            first = torch.randint(0, 50, (len(lengths),), generator=generator).tolist()
            positions = torch.cat([torch.arange(n) + at for n, at in zip(lengths, first)])
            table = torch.randint(0, 90, (8, columns), generator=generator, dtype=torch.int32)
            results = []
            real = host._compute_slot_mapping_kernel
            for kernel in (real, triton_kernels.standin_jit(real.fn)):
                slots = torch.full((capacity,), 77, dtype=torch.int32, device="npu")
                kernel[(len(lengths) + 1,)](
                    tokens, capacity, starts.npu(), positions.npu(), table.npu(), columns, block_size, slots,
                    KV_CACHE_BLOCK_SIZE=16, BLOCKS_PER_KV_BLOCK=1, TOTAL_CP_WORLD_SIZE=1, TOTAL_CP_RANK=0,
                    CP_KV_CACHE_INTERLEAVE_SIZE=1, PAD_ID=-1, TILE_BLOCK_SIZE=1024, BLOCK_TABLE_WINDOW_SIZE=128)
                results.append(slots.tolist())
            assert results[0] == results[1], results
            assert type(host._compute_slot_mapping_kernel).__name__ == "InterpretedFunction"
        print("agreed")
    """)
    result = run_emulated(source, NPU_EMU_TRITON="interpreter", timeout=300)
    assert result.stdout.strip().endswith("agreed"), result.stderr[-3000:]
