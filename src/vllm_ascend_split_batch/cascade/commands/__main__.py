"""``python -m vllm_ascend_split_batch.cascade.commands``: see the package."""

import sys

from vllm_ascend_split_batch.cascade.commands import main

if __name__ == "__main__":
    sys.exit(main())
