"""Extension manifests: documents of revisions 0.2, 0.3 and 1.0, read into one :class:`Manifest`."""

from vllm_hust_ext.manifest.loading import FILE_NAMES, Fault, InvalidManifest, load_manifest, parse_manifest
from vllm_hust_ext.manifest.model import Manifest

__all__ = ["FILE_NAMES", "Fault", "InvalidManifest", "Manifest", "load_manifest", "parse_manifest"]
