"""Changes to the admission model, each with the kind of case that must notice it."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable

from vllm_ascend_split_batch.host_model.admission.releases import AdmissionRules

MUTANTS = [
    ("short first", "short_request_first", "request.prompt_tokens <= self.settings.threshold", "request.prompt_tokens < self.settings.threshold"),
    ("short first", "short_request_first", "* 1000.0 >= limit", "* 1000.0 > limit"),
    ("short first", "short_request_first", "limit > 0 and since", "since"),
    ("short first", "short_request_first", "since = self._waiting_since.pop(request, None)", "since = self._waiting_since.get(request)"),
    ("short first", "short_request_first", "        self._pinned = (lane, request)\n", ""),
    ("short first", "short_request_first", "self._lanes[lane].prepend(request)", "self._lanes[lane].add(request)"),
    ("short first", "short_request_first", "counters.streak >= WARNING_STREAK", "counters.streak > WARNING_STREAK"),
    ("short first", "short_request_first", "elif lane is Lane.SHORT:", "elif lane is not Lane.LONG:"),
    ("short first", "short_request_first", "request.computed > 0 or request.outputs > 0", "request.outputs > 0"),
    ("batch jobs", "job_predictor", "NEWEST_WEIGHT = 0.1", "NEWEST_WEIGHT = 0.2"),
    ("batch jobs", "job_predictor", "MOST_SAMPLES = 10", "MOST_SAMPLES = 2"),
    ("batch jobs", "job_predictor", "UNKNOWN_JOB_TOKENS = 128", "UNKNOWN_JOB_TOKENS = 1"),
    ("batch jobs", "batch_job_aware", "COLD_START_ADDITIONS = 3", "COLD_START_ADDITIONS = 2"),
    ("batch jobs", "batch_job_aware", "tokens > self._settings.short_decode_token_threshold", "tokens >= self._settings.short_decode_token_threshold"),
    ("batch jobs", "batch_job_aware", "budget > self._settings.low_available_tokens_threshold", "budget >= 4 * self._settings.low_available_tokens_threshold"),
    ("batch jobs", "batch_job_aware", "bool(long and short) or long_first", "long_first"),
    ("batch jobs", "batch_job_aware", "bisect_right(self._lengths", "len(self._lengths) and bisect_right(self._lengths[1:]"),
    ("batch jobs", "batch_job_aware", "                del self._additions[job]\n", ""),
    ("batch jobs", "batch_job_aware", "self._settings.max_jobs and len(self._jobs)", "len(self._jobs)"),
    ("batch jobs", "block_reserve", "room = -after % self._block_size", "room = self._block_size - after % self._block_size"),
    ("batch jobs", "block_reserve", "min(prompt_left, self._max_tokens)", "prompt_left"),
    ("batch jobs", "block_reserve", "if running != self._running_then:", "if True:"),
    ("batch jobs", "block_reserve", "self._running_then >= 0 and running == self._running_then + 1", "False"),
    ("engines", "batch_job_aware", "            self._count -= 1\n", "            self._count -= 1\n            self._peeked = None if request is self._peeked else self._peeked\n"),
    ("plans", "planner", "change <= 0 if heavier", "change < 0 if heavier"),
    ("plans", "planner", "(average + change / len(ranks))", "average"),
    ("plans", "planner", "out.added and not added", "False"),
    ("plans", "planner", "STEP_PER_BLOCK = 19.2", "STEP_PER_BLOCK = 1.92"),
    ("plans", "planner", "if threshold >= 1:", "if True:"),
    ("plans", "planner", "rank.freeze = not kept", "rank.freeze = not rank.out"),
    ("plans", "planner", "            order.sort(key=lambda rank: rank.blocks, reverse=True)\n        swapped", "        swapped"),
    ("activations", "load_balance.settings", "blocks > self._settings.long_request_blocks", "blocks >= self._settings.long_request_blocks"),
    ("activations", "load_balance.settings", "counter >= settings.start_step", "counter > settings.start_step"),
    ("activations", "load_balance.settings", "self._count(told or new)", "self._count(new)"),
    ("activations", "load_balance.settings", "self.steps_without_long >= self._settings.dynamic_max_step", "self.steps_without_long > self._settings.dynamic_max_step"),
    ("connected engines", "scheduler", "for request in reversed(passed_over)", "for request in passed_over"),
    ("engines", "scheduler", "if not self.settings.chunked_prefill and tokens > budget:", "if False:"),
    ("engines", "scheduler", "len(self.running) < self.settings.max_num_seqs", "len(self.running) <= self.settings.max_num_seqs"),
    ("engines", "scheduler", "if new + found + margin > blocks.free - reserved:", "if new + margin > blocks.free - reserved:"),
    ("engines", "scheduler", "if whole + margin > blocks.free:", "if whole > blocks.free:"),
    ("engines", "scheduler", "self.policy.stopped(request)", "None"),
    ("engines", "scheduler", "if not step.result.preempted and not step.result.recomputed:", "if True:"),
    ("engines", "scheduler", "request.prompt_tokens + last >= self.settings.max_model_len", "False"),
    ("engines", "scheduler", "            victim.outputs -= 1\n", ""),
    ("engines", "kv_blocks", "request.freed.count -= blocks", "pass"),
    ("engines", "kv_blocks", "            blocks -= front.count\n            front.count = 0\n", "            blocks -= front.count\n"),
    ("engines", "decode_rounds", "request.hashed_tokens = max(request.hashed_tokens, computed - self._in_flight)", "request.hashed_tokens = computed"),
    ("engines", "decode_rounds", "(self.count - request.computed) % self._block_size", "-request.computed % self._block_size"),
    ("engines", "running_pass", "min(tokens, threshold) if threshold else tokens", "tokens"),
    ("engines", "running_pass", "key=lambda request: (request.priority, request.arrival)", "key=lambda request: request.priority"),
    ("engines", "running_pass", "budget += step.chunks.pop(victim, 0)", "step.chunks.pop(victim, 0)"),
    ("engines", "queues", "self._requests.appendleft(request)", "self._requests.append(request)"),
    ("engines", "request", "(self.priority, self.arrival, self.request_id)", "(self.priority, self.request_id)"),
    ("connected engines", "loads", "min(request.computed, request.num_tokens - 1)", "request.computed"),
    ("connected engines", "loads", "RequestStatus.PREEMPTED if request.preemptions", "RequestStatus.PREEMPTED if False"),
    ("connected engines", "loads", "        if self._states.pop(request) is LoadState.RECEIVED:\n            return False\n", "        del self._states[request]\n        return False\n"),
    ("connected engines", "loads", "            self._blocks.release(request)\n        self._failed", "            pass\n        self._failed"),
    ("connected engines", "recompute", "if not recompute:", "if True:"),
    ("connected engines", "recompute", "connector.offload is not None and connector.offload(victim)", "connector.offload is not None"),
    ("connected engines", "scheduler", "for other in self._prefilling) if reserves else 0", "for other in self._prefilling) if False else 0"),
    ("connected engines", "scheduler", "if request.blocks and self._still_written(request):", "if False:"),
    ("balanced engines", "load_balance.admission", "self.waiting.prepend(request, now)", "self.waiting.add(request, now)"),
    ("balanced engines", "load_balance.admission", "limit = 2 * self.settings.max_num_seqs - len(self.running)", "limit = 100"),
    ("balanced engines", "load_balance.admission", "return self._allowed is None or request in self._allowed", "return True"),
]  # fmt: skip

# Where a rule of the release keeps a changed line from being reached, or from saying anything else, the model is as it
# was: the mutant must not be noticed there.
NOTICED_WHERE: dict[tuple[str, str], Callable[[AdmissionRules], bool]] = {
    ("batch_job_aware", "            self._count -= 1\n"): lambda rules: rules.has_policies,
    ("scheduler", "if whole + margin > blocks.free:"): lambda rules: rules.has_watermark,
    ("scheduler", "self.policy.stopped(request)"): lambda rules: rules.has_policies,
    ("scheduler", "if request.blocks and self._still_written(request):"): lambda rules: rules.defers_frees,
}
