"""What the host imports beside torch_npu: absent packages, its extension, its Triton kernel."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch
from torch_npu.emulator import counters
from torch_npu.host import absent_packages, import_hooks, triton_kernels


class TestAbsentPackages:
    @pytest.fixture(autouse=True)
    def finder(self, monkeypatch):
        finder = absent_packages._Finder(("made_up_package", "numba_made_up"))
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
        yield
        for name in [n for n in sys.modules if n.startswith("made_up_package")]:
            del sys.modules[name]

    def test_names_can_be_imported_passed_and_subclassed(self):
        module = importlib.import_module("made_up_package.sub.part")
        from made_up_package.sub import Thing

        class Own(Thing):
            pass

        assert module.CONSTANT is not None
        with pytest.raises(
            NotImplementedError, match=r"made_up_package.sub.Thing was called, but made_up_package is not"
        ):
            Own()

    def test_a_call_names_itself(self):
        import made_up_package

        with pytest.raises(
            NotImplementedError, match=r"made_up_package.a.b was called, but made_up_package is not installed"
        ):
            made_up_package.a.b(1)

    def test_a_package_that_nobody_listed_is_missing_as_ever(self):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("another_made_up_package")

    def test_decorators_are_applied_and_raise_when_called(self):
        njit = absent_packages._Name("numba.njit")

        @njit
        def bare(x):
            return x

        @njit(cache=True)
        def with_options(x):
            return x

        for function in (bare, with_options):
            with pytest.raises(NotImplementedError, match=r"numba.njit was called, but numba is not installed"):
                function(1)

    def test_a_number_needed_at_import_is_the_true_one(self):
        assert abs(absent_packages._Name("scipy.stats.norm.ppf")(0.75) - 0.6744897501960817) < 1e-12

    def test_installed_packages_are_left_alone(self):
        for finder in sys.meta_path:
            if isinstance(finder, absent_packages._Finder):
                assert all(
                    importlib.util.find_spec(p).loader is finder for p in finder._packages if p in ("scipy", "numba")
                )


class TestImportHooks:
    def test_run_after_the_module_which_keeps_its_loader(self, tmp_path, monkeypatch):
        (tmp_path / "hooked_module.py").write_text("value = 1\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        seen = []
        import_hooks.after_import("hooked_module", lambda module: seen.append(module.value))
        module = importlib.import_module("hooked_module")
        assert seen == [1]
        assert isinstance(module.__spec__.loader, importlib.machinery.SourceFileLoader)
        import_hooks.after_import("hooked_module", lambda module: seen.append("at once"))
        assert seen == [1, "at once"]


class TestHostExtension:
    def test_is_served_and_refuses_sleep_mode(self):
        from torch_npu.host import vllm_ascend

        finder = vllm_ascend._ExtensionFinder()
        spec = finder.find_spec(vllm_ascend.EXTENSION)
        module = finder.create_module(spec)
        finder.exec_module(module)
        assert hasattr(torch.ops._C_ascend, "npu_add_rms_norm_bias")
        with pytest.raises(NotImplementedError, match=r"python_create_and_map \(sleep mode\)"):
            module.python_create_and_map()
        assert finder.find_spec("vllm_ascend.other") is None


def slot_mapping_reference(num_tokens, max_tokens, starts, positions, table, block_size, slots):
    """One token after the other."""
    slots = list(slots)
    for r in range(len(starts) - 1):
        for t in range(starts[r], starts[r + 1]):
            slots[t] = table[r][positions[t] // block_size] * block_size + positions[t] % block_size
    for t in range(num_tokens, max_tokens):
        slots[t] = -1
    return slots


class TestTritonStandins:
    @pytest.mark.parametrize("lengths", [[1, 1, 1], [5, 1, 0, 7], [40], []])
    def test_slot_mapping(self, lengths):
        generator = torch.Generator().manual_seed(len(lengths))
        block_size, columns, capacity = 16, 6, 64
        starts = [0, *torch.tensor(lengths, dtype=torch.long).cumsum(0).tolist()]
        tokens = starts[-1]
        positions = torch.randint(0, block_size * columns, (tokens,), generator=generator)
        table = torch.randint(0, 90, (8, columns), generator=generator, dtype=torch.int32)
        slots = torch.full((capacity,), 77, dtype=torch.int32)
        expected = slot_mapping_reference(
            tokens + 2, capacity, starts, positions.tolist(), table.tolist(), block_size, slots.tolist()
        )
        on_npu = slots.npu()
        kernel = triton_kernels.standin_jit(lambda: None)
        kernel.__name__ = "_compute_slot_mapping_kernel"
        with counters.window() as counted:
            kernel[(len(lengths) + 1,)](
                tokens + 2,
                capacity,
                torch.tensor(starts, dtype=torch.int32).npu(),
                positions.npu(),
                table.npu(),
                columns,
                block_size,
                on_npu,
                TOTAL_CP_WORLD_SIZE=1,
                PAD_ID=-1,
                OTHER=3,
            )
        assert on_npu.tolist() == expected
        assert counted["launches"] == {"triton::_compute_slot_mapping_kernel": 1}
        assert counted["copies"]["device_to_host"] == 0

    def test_context_parallel_slots_are_refused(self):
        with pytest.raises(NotImplementedError, match="context parallelism has no stand-in"):
            triton_kernels.STANDINS["_compute_slot_mapping_kernel"](
                (2,), 1, 1, torch.zeros(2), None, None, 1, 1, None, TOTAL_CP_WORLD_SIZE=2
            )

    def test_another_kernel_is_refused_by_name(self):
        @triton_kernels.standin_jit(do_not_specialize=["n"])
        def some_other_kernel(n):
            pass

        with pytest.raises(NotImplementedError, match=r"some_other_kernel has no stand-in.*NPU_EMU_TRITON=interpreter"):
            some_other_kernel[(1,)](3)
        with pytest.raises(RuntimeError, match="launched with a grid"):
            some_other_kernel(3)

    def test_jit_is_replaced_where_vllm_found_no_triton(self):
        placeholder = types.SimpleNamespace(HAS_TRITON=False, triton=types.SimpleNamespace(jit=None))
        triton_kernels._serve_standins(placeholder)
        assert placeholder.triton.jit is triton_kernels.standin_jit
        with pytest.raises(RuntimeError, match="another accelerator is in this machine"):
            triton_kernels._serve_standins(types.SimpleNamespace(HAS_TRITON=True))
