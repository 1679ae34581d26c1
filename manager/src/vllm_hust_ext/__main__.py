"""``python -m vllm_hust_ext`` is the same program as ``vllm-hust-ext``."""

from vllm_hust_ext.cli import main

if __name__ == "__main__":
    main()
