"""The host's engine core of a balanced deployment, all its ranks in one process. Imported on the emulated NPU alone."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from vllm_ascend.patch.platform import patch_dyntra_lb_core as core

from tests.host_model.balance_cases import ActivationCase, PlanCase


def run_plan(case: PlanCase) -> list[Any]:
    """The plan of each rank, by the host's planner."""
    ranks = [([*rank.running, *rank.waiting], len(rank.running)) for rank in case.ranks]
    plans = core.DyntraLBDPEngineCoreProc._balance_load(
        ranks, len(ranks), max_num_seqs=case.max_num_seqs, threshold=case.bubble_threshold
    )
    return [[plan["out_blk"], plan["in_blk"], plan["freeze"]] for plan in plans]


class Collectives:
    """Stands in for torch.distributed among threads: one a rank."""

    ReduceOp = SimpleNamespace(MAX="max")

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._slots: list[torch.Tensor] = [torch.empty(0)] * ranks
        self.rank = threading.local()

    def all_reduce(self, tensor: torch.Tensor, op: str, group: object) -> None:
        assert op == "max"
        gathered = self._exchange(tensor)
        tensor.copy_(torch.stack(gathered).amax(0))
        self._barrier.wait()

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, group: object) -> None:
        for output, gathered in zip(outputs, self._exchange(tensor), strict=True):
            output.copy_(gathered)
        self._barrier.wait()

    def _exchange(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._slots[self.rank.number] = tensor.clone()
        self._barrier.wait()
        return list(self._slots)


def run_activation(case: ActivationCase) -> list[Any]:
    """After each step: whether each rank balances, whether it is armed, and its steps without a long request."""
    collectives = Collectives(case.ranks)
    ranks = [rank_of(case) for _ in range(case.ranks)]
    told: list[list[Any]] = [[None] * case.ranks for _ in case.steps]

    def live(number: int) -> None:
        collectives.rank.number, rank = number, ranks[number]
        for step, (counter, arrivals) in enumerate(case.steps):
            rank.step_counter = counter
            for blocks in arrivals[number]:
                rank.note(blocks)
            rank.run_balance_load()
            told[step][number] = [
                rank.scheduler._lb_kv_prefetch_enabled,
                bool(rank._lb_dynamic_enable or not case.settings.dynamic),
                rank._lb_dynamic_step,
            ]

    parent = core.DyntraLBDPEngineCoreProc.__mro__[1]
    with mock.patch.object(core, "dist", collectives), mock.patch.object(parent, "add_request"):
        threads = [threading.Thread(target=live, args=(number,)) for number in range(case.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return told


class Rank(core.DyntraLBDPEngineCoreProc):
    """An engine core without an engine."""

    def __init__(self) -> None: ...

    def note(self, blocks: int) -> None:
        """The host's own `add_request`, while what it calls at its end is left out (see `run_activation`)."""
        self.add_request(SimpleNamespace(all_token_ids=range(blocks)))


def rank_of(case: ActivationCase) -> Any:
    settings, rank = case.settings, Rank()
    places = 2
    rank.dp_rank, rank.dp_group, rank.current_wave = 0, None, 0
    rank._lb_enable_diagnostics = False
    rank._lb_mode = "dynamic" if settings.dynamic else "static"
    rank._lb_start_step, rank._lb_end_step = settings.start_step, settings.end_step
    rank._lb_threshold = settings.bubble_threshold
    rank._lb_long_req_threshold = settings.long_request_blocks
    rank._lb_dynamic_max_step = settings.dynamic_max_step
    rank._lb_dynamic_enable = rank._lb_pending_long_req = False
    rank._lb_dynamic_step = rank._lb_pending_long_req_blk = 0
    rank._lb_dp_size_cached, rank._lb_max_slots_cached, rank._lb_max_num_seqs = case.ranks, 2 * places, places
    rank._lb_data_np = np.zeros(2 * places + 2, dtype=np.int32)
    rank._lb_data_t = torch.as_tensor(rank._lb_data_np)
    rank._lb_all_data_np = [np.zeros(2 * places + 2, dtype=np.int32) for _ in range(case.ranks)]
    rank._lb_all_data_t_buf = [torch.as_tensor(array) for array in rank._lb_all_data_np]
    rank._lb_dynamic_flag_np = np.zeros(2, dtype=np.int32)
    rank._lb_dynamic_flag_t = torch.as_tensor(rank._lb_dynamic_flag_np)
    rank.scheduler = SimpleNamespace(
        running=[], prepare_dyntra_lb_step=list, cache_config=SimpleNamespace(block_size=1), modifications=None
    )
    return rank
