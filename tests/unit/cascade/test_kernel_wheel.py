"""The verdict on the kernel wheel: absent, broken, incomplete, unknown, unpaired, allowed, known."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from vllm_ascend_split_batch.cascade import kernel_wheel


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package `ascend_kernel` on the path; returns a function that writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ascend_kernel", raising=False)

    def write(source: str = "", library: bytes | None = b"library") -> str:
        package = tmp_path / "ascend_kernel"
        (package / "lib").mkdir(parents=True)
        (package / "__init__.py").write_text(source)
        if library is not None:
            (package / "lib" / "libascend_kernel.so").write_bytes(library)
        return hashlib.md5(library or b"").hexdigest()[:16]

    yield write
    sys.modules.pop("ascend_kernel", None)


@pytest.fixture
def ops(monkeypatch):
    """A torch whose dispatcher knows the named ops for the device."""

    def install(*names: str) -> None:
        torch = ModuleType("torch")
        torch.ops = SimpleNamespace(npu=SimpleNamespace(**dict.fromkeys(kernel_wheel.OPS, object())))
        known = {f"npu::{name}" for name in names}
        torch._C = SimpleNamespace(
            _dispatch_has_kernel_for_dispatch_key=lambda name, key: name in known and key == "PrivateUse1"
        )
        monkeypatch.setitem(sys.modules, "torch", torch)

    return install


def test_the_heading_it_sends_to_is_there():
    (heading,) = re.findall('README, "([^"]+)"', kernel_wheel.INSTALL_HINT)
    readme = Path(__file__).resolve().parents[3] / "README.md"
    assert f"## {heading}" in readme.read_text().splitlines()


def test_absent_says_how_to_install():
    verdict = kernel_wheel.probe()
    assert not verdict.usable
    assert "not installed" in verdict.detail
    assert "release v2026.9.26" in verdict.detail


@pytest.mark.parametrize("error", ["ImportError('libhccl.so')", "OSError('libascendcl')", "RuntimeError('abi')"])
def test_a_wheel_that_does_not_load_is_unusable(wheel, error):
    wheel(f"raise {error}")
    verdict = kernel_wheel.probe()
    assert not verdict.usable
    assert "cannot be loaded" in verdict.detail


def test_an_op_that_exists_without_a_device_kernel_counts_as_missing(wheel, ops):
    wheel()
    ops("lse_merge")
    verdict = kernel_wheel.probe()
    assert not verdict.usable
    assert "npu::fa_fp32_stage1" in verdict.detail
    assert "npu::lse_merge" not in verdict.detail


def test_an_unknown_library_is_refused_and_names_the_way_to_allow_it(wheel, ops):
    found = wheel()
    ops(*kernel_wheel.OPS)
    verdict = kernel_wheel.probe()
    assert not verdict.usable
    assert f"VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT={found}" in verdict.detail
    assert verdict.fingerprint == found


def test_a_fingerprint_the_user_vouches_for_is_allowed(wheel, ops):
    found = wheel()
    ops(*kernel_wheel.OPS)
    assert kernel_wheel.probe(found.upper()).usable
    assert not kernel_wheel.probe("0" * 16).usable


def test_a_wheel_without_its_library_is_refused(wheel, ops):
    wheel(library=None)
    ops(*kernel_wheel.OPS)
    assert "libascend_kernel.so" in kernel_wheel.probe().detail


@pytest.mark.parametrize(("installed", "usable"), [("2.13.0rc1", True), ("2.10.0.post4", False), (None, False)])
def test_a_known_build_needs_the_stack_it_was_validated_with(wheel, ops, monkeypatch, installed, usable):
    found = wheel()
    ops(*kernel_wheel.OPS)
    monkeypatch.setattr(kernel_wheel, "KNOWN_BUILDS", (kernel_wheel.Build(found, "2026.9.26", "2.13.0rc1", "9.1.0"),))
    monkeypatch.setattr(kernel_wheel, "_torch_npu_version", lambda: installed)
    verdict = kernel_wheel.probe()
    assert verdict.usable is usable
    assert verdict.limits_apply
    if not usable:
        assert "2.13.0rc1" in verdict.detail


@pytest.mark.parametrize(
    ("source", "limits"),
    [("", True), ("ENFORCES_DEVICE_LIMITS = False", False), ("ENFORCES_DEVICE_LIMITS = True", True)],
)
def test_the_emulated_stand_in_needs_no_library_and_decides_about_limits(wheel, ops, source, limits):
    wheel("__emulated__ = True\n" + source, library=None)
    ops(*kernel_wheel.OPS)
    verdict = kernel_wheel.probe()
    assert verdict.usable
    assert verdict.limits_apply is limits


def test_probing_never_raises(wheel, monkeypatch):
    wheel("raise SystemError('broken')")
    assert not kernel_wheel.probe().usable
    monkeypatch.setattr(kernel_wheel, "_judge", lambda allowed: 1 / 0)
    assert "ZeroDivisionError" in kernel_wheel.probe().detail
