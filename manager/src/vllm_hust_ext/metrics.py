"""Extensions' counters as Prometheus metrics, in the front-end process of vLLM.

The collector reads the report folder when ``/metrics`` is asked. It sees the processes of this node, and only where
vLLM serves its metrics from one API server process: with several, vLLM reads metrics from files of its own, which
know no collectors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from vllm_hust_ext.engine_reports import EngineReport, read_folder
from vllm_hust_ext.process_identity import Life

_LABELS = ["extension", "carrier", "role", "pid"]
_lock = threading.Lock()
_registered: dict[str, ReportCollector] = {}


class ReportCollector:
    """Turns the reports of live processes in ``folder`` into metrics at each scrape."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @staticmethod
    def _families() -> dict[str, Any]:
        return {
            "calls": CounterMetricFamily(
                "vllm_hust_ext_calls", "How often a carrier was asked to take over.", labels=_LABELS
            ),
            "engaged": CounterMetricFamily("vllm_hust_ext_engaged", "How often a carrier took over.", labels=_LABELS),
            "not_engaged": CounterMetricFamily(
                "vllm_hust_ext_not_engaged", "Why a carrier did not take over.", labels=[*_LABELS, "reason"]
            ),
            "failures": CounterMetricFamily(
                "vllm_hust_ext_failures", "Calls that failed and ran the host's own path.", labels=[*_LABELS, "cause"]
            ),
            "counters": CounterMetricFamily(
                "vllm_hust_ext_counter", "Counters of a carrier's own.", labels=[*_LABELS, "counter"]
            ),
            "state": GaugeMetricFamily(
                "vllm_hust_ext_state", "1 for the state that a carrier is in.", labels=[*_LABELS, "state"]
            ),
        }

    def describe(self) -> Iterator[Any]:
        """Names for the registry, without reading anything."""
        yield from self._families().values()

    def collect(self) -> Iterator[Any]:
        """The current numbers; a folder that cannot be read gives none."""
        families = self._families()
        reports, _ = read_folder(self.folder)
        for report in reports:
            if report.life is Life.LIVE:
                self._add(families, report)
        yield from families.values()

    @staticmethod
    def _add(families: dict[str, Any], report: EngineReport) -> None:
        for carrier in report.carriers:
            labels = [carrier.extension_id or "", carrier.name, report.role, str(report.process.pid)]
            families["calls"].add_metric(labels, carrier.calls)
            families["engaged"].add_metric(labels, carrier.engaged)
            families["state"].add_metric([*labels, carrier.state], 1)
            for family, values in (
                ("not_engaged", carrier.reasons),
                ("failures", carrier.failures),
                ("counters", carrier.counters),
            ):
                for name, count in values.items():
                    families[family].add_metric([*labels, name], count)


def register(folder: str) -> ReportCollector:
    """Register one collector per folder with the process's default registry; a second call changes nothing."""
    with _lock:
        if folder not in _registered:
            collector = ReportCollector(folder)
            REGISTRY.register(collector)
            _registered[folder] = collector
        return _registered[folder]
