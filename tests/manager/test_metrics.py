"""The manager's own vLLM plugin: counters as Prometheus metrics; off means absent."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from .scratch import Scratch
from .test_status import ENGINE


def python(scratch: Scratch, body: str, **env: str | None) -> str:
    done = subprocess.run(
        [str(scratch.python), "-c", body], env=scratch.environment(env), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_off_means_absent(scratch: Scratch) -> None:
    body = (
        "import os, sys; before = set(sys.modules)\n"
        "from vllm_hust_ext.metrics_plugin import load\n"
        "load()\n"
        "print(sorted(m for m in set(sys.modules) - before))\n"
    )
    for value in (None, "", "0", "off", "anything"):
        seen = python(scratch, body, VLLM_HUST_EXT_METRICS=value)
        assert set(ast.literal_eval(seen)) - {"__future__"} == {"vllm_hust_ext", "vllm_hust_ext.metrics_plugin"}


def test_counters_of_live_processes(scratch: Scratch, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    body = (
        ENGINE
        + "write('worker', 7, 9, reasons={'below_threshold': 2})\n"
        + "from vllm_hust_ext.metrics_plugin import load\n"
        + "load(); load()\n"
        + "import prometheus_client\n"
        + "print(prometheus_client.generate_latest().decode())\n"
        + "print('PID', os.getpid())\n"
        + "write('worker', 7, 9, start_ticks=1)\n"  # now the file speaks of a process that is gone
        + "print('AGAIN', prometheus_client.generate_latest().decode().count('role=\"worker\"'))\n"
    )
    text = python(scratch, body, VLLM_HUST_EXT_METRICS="1", VLLM_HUST_EXT_REPORT_DIR=str(tmp_path))
    pid = text.split("PID ")[1].split()[0]
    labels = f'carrier="cascade",extension="org.example.one",pid="{pid}",'
    assert f'vllm_hust_ext_engaged_total{{{labels}role="worker"}} 7.0' in text
    assert f'vllm_hust_ext_calls_total{{{labels}role="worker"}} 9.0' in text
    assert f'vllm_hust_ext_not_engaged_total{{{labels}reason="below_threshold",role="worker"}} 2.0' in text
    own = f'carrier="cascade",counter="c",extension="org.example.one",pid="{pid}"'
    assert f'vllm_hust_ext_counter_total{{{own},role="worker"}} 5.0' in text
    assert f'vllm_hust_ext_state{{{labels}role="worker",state="installed"}} 1.0' in text
    assert "AGAIN 0" in text


@pytest.mark.parametrize("folder", [None, "", "/no/such/folder"])
def test_it_never_raises(scratch: Scratch, folder: str | None) -> None:
    body = "from vllm_hust_ext.metrics_plugin import load; load(); print('alive')"
    assert python(scratch, body, VLLM_HUST_EXT_METRICS="1", VLLM_HUST_EXT_REPORT_DIR=folder).endswith("alive\n")


def test_run_metrics_sets_the_gate_and_keeps_the_plugin_in_a_list(scratch: Scratch) -> None:
    ask = "import os; print(os.environ.get('VLLM_HUST_EXT_METRICS'), os.environ.get('VLLM_PLUGINS'))"
    assert scratch.run("run", "--metrics", "--", "python", "-c", ask).out == "1 None\n"
    listed = scratch.run("run", "--metrics", "--", "python", "-c", ask, env={"VLLM_PLUGINS": "ascend"})
    assert listed.out == "1 ascend,vllm_hust_ext_metrics\n"
    assert scratch.run("run", "--", "python", "-c", ask).out == "None None\n"
