"""vllm-hust-ext: an extension manager for vLLM hosts.

It reads metadata and files. It imports no extension and no host, and it knows no capability by name.
"""

__version__ = "0.4.0"
