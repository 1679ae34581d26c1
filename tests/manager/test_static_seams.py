"""The static seam check: matched, differs, missing, and unknown where the sources cannot tell."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_hust_ext import environment, hosts, source_index, static_seams
from vllm_hust_ext.source_index import SourceIndex

from tests.mutants import mutant  # noqa: F401

from .scratch import Scratch, manifest

GOLDEN = Path(__file__).parents[2] / "docs" / "formats" / "golden"

DOOR = """
from __future__ import annotations
import abc, functools
from typing import TYPE_CHECKING, Generic, TypeVar
from .base import Base, made, Renamed as Other
from . import base as module
if TYPE_CHECKING:
    from nowhere import Phantom
T = TypeVar("T")
try:
    import absent_package
except ImportError:
    absent_package = None

def greet(a): ...

def open_all(first, *others, loudly=False, **options):
    greet(1); greet(2)

class Door(Base, Generic[T]):
    colour = "red"
    def open(self, key, /, width, *, slowly=False):
        greet(1)
        self.door.greet(2)
        def inner():
            x.greet(3)
    @staticmethod
    def fixed(a, b): ...
    @classmethod
    def made(cls, a): ...
    @property
    def size(self): ...
    @functools.lru_cache(maxsize=None)
    def cached(self, a): ...
    @mystery
    def wrapped(self, a): ...
    alias = open
    if TYPE_CHECKING:
        typed_only: int = 0
    if 1 > 0:
        def either(self, a): ...
    else:
        def either(self, a): ...
    if 1 > 0:
        def differing(self, a): ...
    else:
        def differing(self, b): ...
    annotated: int

class Dynamic(Base):
    def __getattr__(self, name): ...

class Strange(absent_package.Thing):
    def own(self, a): ...

class FromAttribute(module.Base): ...
class ViaAlias(Other): ...
class Computed(made("x")): ...
class Plain: ...
"""
BASE = """
from .root import Root as _Root
def made(x): ...
class Base(_Root):
    def inherited(self, a, b=1): ...
Renamed = Base
"""
ROOT = """
import abc
class Root(abc.ABC):
    @abc.abstractmethod
    def deepest(self, one): ...
"""
STAR = "from .door import *\nfrom .base import Base as Base2\n"
SOURCES = {
    "some_host/__init__.py": "",
    "some_host/door.py": DOOR,
    "some_host/base.py": BASE,
    "some_host/root.py": ROOT,
    "some_host/star.py": STAR,
    "some_host/wild.py": "from nowhere import *\n",
    "some_host/broken.py": "def (",
    "some_host/lazy.py": "def __getattr__(name): ...\n",
}


@pytest.fixture
def index(tmp_path: Path) -> SourceIndex:
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return SourceIndex([str(tmp_path), *environment.current().path])


def ask(index: SourceIndex, target: str, check: str = "exists", module: Any = static_seams, **more: Any) -> str:
    seam = {"target": f"some_host.{target}", "check": check, **more}
    return str(module._check_one(index, "c", seam).status.value)


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("door:greet", "matched"),
        ("door:Door", "matched"),
        ("door:Door.colour", "matched"),
        ("door:Door.inherited", "matched"),
        ("door:Door.deepest", "matched"),
        ("door:FromAttribute.deepest", "matched"),
        ("door:ViaAlias.inherited", "matched"),
        ("star:Door.open", "matched"),
        ("star:Base2.inherited", "matched"),
        ("door:Door.nothing", "missing"),
        ("door:nothing", "missing"),
        ("door:Nothing.open", "missing"),
        ("door:Door.typed_only", "missing"),
        ("door:Door.annotated", "missing"),
        ("door:Phantom", "missing"),
        ("nowhere:x", "missing"),
        ("door:Dynamic.nothing", "unknown"),
        ("door:Strange.nothing", "unknown"),
        ("door:Strange.own", "matched"),
        ("door:Computed.nothing", "unknown"),
        ("wild:x", "unknown"),
        ("lazy:x", "unknown"),
        ("broken:x", "unknown"),
        ("door:Plain.nothing", "missing"),
    ],
)
def test_exists(index: SourceIndex, target: str, answer: str) -> None:
    assert ask(index, target) == answer


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("door:Door.nothing", "matched"),
        ("door:Door.open", "differs"),
        ("door:Door.deepest", "differs"),
        ("door:Dynamic.nothing", "unknown"),
        ("door:Strange.nothing", "unknown"),
        ("door:nothing", "matched"),
        ("nowhere:x", "missing"),
    ],
)
def test_absent(index: SourceIndex, target: str, answer: str) -> None:
    assert ask(index, target, "absent") == answer


@pytest.mark.parametrize(
    ("target", "names", "answer"),
    [
        ("door:greet", ["a"], "matched"),
        ("door:open_all", ["first", "*others", "loudly", "**options"], "matched"),
        ("door:open_all", ["first", "others", "loudly", "options"], "differs"),
        ("door:Door.open", ["key", "width", "slowly"], "matched"),
        ("door:Door.open", ["width", "key", "slowly"], "differs"),
        ("door:Door.open", ["key", "..."], "matched"),
        ("door:Door.open", ["key", "width", "slowly", "..."], "matched"),
        ("door:Door.open", ["width", "..."], "differs"),
        ("door:Door.open", ["key", "...", "slowly"], "differs"),
        ("door:Door.open", ["self", "key", "width", "slowly"], "differs"),
        ("door:Door.inherited", ["a", "b"], "matched"),
        ("door:Door.fixed", ["a", "b"], "matched"),
        ("door:Door.made", ["a"], "matched"),
        ("door:Door.cached", ["a"], "matched"),
        ("door:Door.alias", ["key", "width", "slowly"], "unknown"),
        ("door:Door.wrapped", ["a"], "unknown"),
        ("door:Door.size", [], "differs"),
        ("door:Door.colour", [], "unknown"),
        ("door:Door", [], "differs"),
        ("door:Door.either", ["a"], "unknown"),
        ("door:Door.differing", ["a"], "unknown"),
        ("door:Door.differing", ["c"], "differs"),
    ],
)
def test_parameters(index: SourceIndex, target: str, names: list[str], answer: str) -> None:
    assert ask(index, target, "parameters", parameters=names) == answer


def test_call_count(index: SourceIndex) -> None:
    assert ask(index, "door:Door.open", "call_count", callee="greet", count=3) == "matched"
    assert ask(index, "door:Door.open", "call_count", callee="door.greet", count=1) == "matched"
    assert ask(index, "door:Door.open", "call_count", callee="reet", count=0) == "matched"
    assert ask(index, "door:Door.open", "call_count", callee="greet", count=2) == "differs"


def test_an_unknown_check_is_unknown(index: SourceIndex) -> None:
    assert ask(index, "door:greet", "smells_right") == "unknown"


def test_a_package_that_is_not_installed_is_unknown(index: SourceIndex) -> None:
    seam = {"target": "not_there.at_all:x", "check": "exists"}
    assert static_seams._check_one(index, "c", seam).status.value == "unknown"


def test_mutants_are_noticed(index: SourceIndex, mutant: Any) -> None:  # noqa: F811
    lax = mutant(static_seams, "if names == wanted_names or", "if set(names) >= set(wanted_names) or")
    assert ask(index, "door:Door.open", "parameters", lax, parameters=["width", "key", "slowly"]) == "matched"
    blind = mutant(source_index, "for base in node.bases:", "for base in []:")
    assert not blind.SourceIndex(index._path).resolve("some_host.door", "Door.inherited").found


def sidecar(**changes: Any) -> dict[str, Any]:
    document = json.loads((GOLDEN / "seams-all-checks.json").read_text())
    document["extension_id"] = "org.example.one"
    document["carriers"][0]["seams"] = [
        s for s in document["carriers"][0]["seams"] if s["target"].startswith("vllm_ascend")
    ]
    return {**document, **changes}


ATTENTION = (
    "class AscendAttentionMetadataBuilder:\n    def build(self, common_prefix_len,"
    " common_attn_metadata, fast_build=False): ...\n"
)


def installed(
    scratch: Scratch, document: Any, source: str = ATTENTION, version: str = "0.27.1rc1", core: str = "0.27.1"
) -> dict[str, Any]:
    path = "vllm_ascend/attention/attention_v1.py"
    scratch.site.host(version, core, sources={path: source, "vllm_ascend/attention/__init__.py": ""})
    scratch.site.extension(
        manifest(host={"provider": "vllm", "name": "vllm-ascend", "version_range": ">=0.25,<0.30"}),
        extra={"one/manifests/vllm-hust-extension-seams.json": json.dumps(document)},
    )
    done = scratch.extension("inspect", "org.example.one", "--json")
    found: dict[str, Any] = done.json["verdict"]
    assert done.code == (0 if found["fits"] else 1)
    return found


def test_verified_on_exactly_these_versions(scratch: Scratch) -> None:
    assert installed(scratch, sidecar())["status"] == "verified"


def test_a_local_build_of_a_verified_release_counts(scratch: Scratch) -> None:
    assert installed(scratch, sidecar(), core="0.27.1+empty")["status"] == "verified"


def test_seams_match_but_never_run(scratch: Scratch) -> None:
    found = installed(scratch, sidecar(), version="0.28.0rc1", core="0.28.0")
    assert found["status"] == "seams-match"
    assert any("never run on these host versions" in r["message"] for r in found["reasons"])


def test_a_differing_seam_is_named(scratch: Scratch) -> None:
    found = installed(scratch, sidecar(), ATTENTION.replace("fast_build", "quick_build"))
    assert found["status"] == "incompatible"
    (against,) = [r for r in found["reasons"] if r["outcome"] == "fails"]
    assert "AscendAttentionMetadataBuilder.build" in against["message"]
    assert "quick_build" in against["message"]
    done = scratch.extension("list")
    assert "incompatible" in done.out


def test_a_missing_seam_is_named(scratch: Scratch) -> None:
    found = installed(scratch, sidecar(), "")
    assert found["status"] == "incompatible"
    assert found["seams"]["results"][0]["status"] == "missing"


def test_unknown_is_no_match(scratch: Scratch) -> None:
    source = ATTENTION.replace("    def", "    @mystery\n    def")
    found = installed(scratch, sidecar(verified_on=[]), source)
    assert found["status"] == "compatible"
    assert found["seams"]["results"][0]["status"] == "unknown"


def one_seam(**seam: Any) -> dict[str, Any]:
    return sidecar(carriers=[{"name": "x", "seams": [seam]}])


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        sidecar(schema="other/1"),
        sidecar(extension_id="org.other"),
        sidecar(carriers={}),
        sidecar(carriers=[{"name": "x"}]),
        sidecar(verified_on=[1]),
        one_seam(target="no colon", check="exists"),
        one_seam(target="a.b:c", check="parameters"),
    ],
)
def test_a_sidecar_that_cannot_be_used_is_unknown(scratch: Scratch, document: Any) -> None:
    assert installed(scratch, document)["status"] == "unknown"


# -- the real host ----------------------------------------------------------------------------------------------------

HAS_HOST = importlib.util.find_spec("vllm_ascend") is not None


@pytest.mark.host
@pytest.mark.skipif(not HAS_HOST, reason="vllm-ascend is not installed here")
def test_the_installed_host() -> None:
    here = environment.current()
    found = hosts.find_hosts(here)
    version = importlib.metadata.version("vllm-ascend")
    assert found.found["vllm-ascend"].version == version
    index = found.sources
    build = index.resolve("vllm_ascend.attention.attention_v1", "AscendAttentionMetadataBuilder.build")
    assert build.found
    assert build.certain
    # a method that vllm-ascend's runner inherits from vLLM's, in another distribution
    runner = index.resolve("vllm_ascend.worker.model_runner_v1", "NPUModelRunner.initialize_kv_cache_tensors")
    assert runner.found
    inherited = index.resolve("vllm_ascend.worker.model_runner_v1", "NPUModelRunner.get_supported_tasks")
    assert inherited.found
    assert "vllm_ascend" not in str(inherited.bindings[0].module.path)
    assert not index.resolve("vllm_ascend.worker.model_runner_v1", "NPUModelRunner.no_such_attribute").found


@pytest.mark.host
@pytest.mark.skipif(not HAS_HOST, reason="vllm-ascend is not installed here")
def test_inspect_in_this_environment_imports_no_host() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "vllm_hust_ext", "extension", "list", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    ids = [e["bundle_id"] for e in json.loads(listed.stdout)["extensions"] if e["valid"]]
    for extension_id in ids:
        verbose = [sys.executable, "-X", "importtime", "-m", "vllm_hust_ext", "extension", "inspect", extension_id]
        done = subprocess.run(verbose, capture_output=True, text=True, check=False)
        imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
        assert not imported & {"vllm", "vllm_ascend", "torch", "vllm_ascend_split_batch"}
