"""Tensor-parallel ranks: agreement by a store, and a failure that not every rank shares."""

from __future__ import annotations

import threading
import time

from vllm_ascend_split_batch.sampling.ranks import Ranks, RanksDiverged, of_this_process


class Store:
    """A store of one process: `wait` gives up like torch's."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values[key].encode()

    def wait(self, keys, timeout):
        end = time.monotonic() + timeout.total_seconds()
        while not all(key in self.values for key in keys):
            if time.monotonic() > end:
                raise RuntimeError("timed out")
            time.sleep(0.005)


#: Seconds a rank waits for the others: where they come, however late their threads start; where they do not.
LONG, SHORT = 60, 0.05


def on_ranks(function, ranks=(4, 5), patience=LONG):
    """What `function(Ranks)` returns or raises on each rank, each in a thread of its own."""
    store, results = Store(), {}

    def run(rank):
        try:
            results[rank] = function(Ranks(store, rank, [4, 5], patience))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_with_the_same_settings_agree():
    assert on_ranks(lambda ranks: ranks.agree("seed=1")) == {4: True, 5: True}


def test_ranks_with_other_settings_do_not_and_both_know():
    assert on_ranks(lambda ranks: ranks.agree(f"seed={ranks._rank}")) == {4: False, 5: False}


def test_a_rank_that_does_not_answer_is_no_agreement():
    assert on_ranks(lambda ranks: ranks.agree("seed=1"), ranks=(4,), patience=SHORT) == {4: False}


def test_a_failure_of_all_ranks_passes():
    assert on_ranks(lambda ranks: ranks.failed_everywhere(3)) == {4: None, 5: None}


def test_a_failure_of_one_rank_ends_the_engine_by_name():
    result = on_ranks(lambda ranks: ranks.failed_everywhere(3), ranks=(5,), patience=SHORT)[5]
    assert isinstance(result, RanksDiverged)
    assert "step 3 failed on rank 5" in str(result)
    assert "Unset VLLM_HUST_FI_SAMPLING" in str(result)


def test_failures_of_different_steps_are_not_shared():
    results = on_ranks(lambda ranks: ranks.failed_everywhere(ranks._rank), patience=SHORT)
    assert all(isinstance(result, RanksDiverged) for result in results.values())


def test_one_rank_alone_needs_nobody():
    class Group:
        world_size = 1

    assert of_this_process(Group()) is None
