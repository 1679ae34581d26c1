"""``python -m vllm_ascend_split_batch.planning``: see `vllm_ascend_split_batch.planning.commands`."""

import sys

from vllm_ascend_split_batch.planning.commands import main

if __name__ == "__main__":
    sys.exit(main())
