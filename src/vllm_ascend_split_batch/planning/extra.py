"""What to say where a package of the extra `planner` is missing."""

from vllm_ascend_split_batch import __version__

#: With the version, because an index may offer another distribution of this name: beside the installed one this adds
#: the extra's packages alone, and where it is not installed it fails instead of installing something else.
INSTALL_EXTRA = (
    f"pip install 'vllm-ascend-split-batch[planner]=={__version__}' (from the checkout: pip install '.[planner]')"
)
