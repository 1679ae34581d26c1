"""Tensors, memory, streams of the emulated device."""

from __future__ import annotations

import gc

import pytest
import torch
import torch_npu
from torch_npu.emulator import settings

NPU = torch.device("npu")


class TestTensors:
    def test_are_really_on_npu(self):
        x = torch.ones(2, 3, device="npu")
        assert x.device == torch.device("npu:0")
        assert x.is_npu
        assert not x.is_cpu
        assert torch.ones(2).npu().device.type == "npu"
        assert torch.ones(2).to("npu:1").device == torch.device("npu:1")

    def test_the_result_of_an_operator_is_on_npu_and_right(self):
        a, b = torch.randn(4, 5), torch.randn(5, 3)
        result = a.npu() @ b.npu() + 1
        assert result.device.type == "npu"
        assert torch.equal(result.cpu(), a @ b + 1)

    def test_cpu_is_a_copy(self):
        x = torch.zeros(3, device="npu")
        y = x.cpu()
        y.fill_(1)
        assert x.sum().item() == 0

    def test_a_view_shares_memory(self):
        x = torch.zeros(4, 4, device="npu")
        x[1:3, ::2].fill_(1)
        x.view(2, 8)[0, 0] = 5
        expected = torch.zeros(4, 4)
        expected[1:3, ::2] = 1
        expected[0, 0] = 5
        assert torch.equal(x.cpu(), expected)

    def test_a_view_made_by_an_operator_shares_memory(self):
        x = torch.zeros(6, device="npu")
        x.unfold(0, 2, 2)[1].fill_(3)
        x.as_strided((2,), (1,), 4).fill_(7)
        assert x.tolist() == [0, 0, 3, 3, 7, 7]

    def test_in_place_operators_change_their_argument(self):
        x = torch.zeros(3, device="npu")
        assert x.add_(2) is x
        assert x.tolist() == [2, 2, 2]

    def test_an_out_argument_is_resized(self):
        out = torch.empty(0, device="npu")
        a = torch.arange(6.0, device="npu")
        assert torch.mul(a, 2, out=out) is out
        assert out.tolist() == [0, 2, 4, 6, 8, 10]

    def test_lists_of_tensors(self):
        parts = torch.arange(6, device="npu").split(2)
        assert torch.cat(list(parts)).tolist() == list(range(6))
        assert [p.device.type for p in torch.unbind(torch.ones(2, 2, device="npu"))] == ["npu", "npu"]

    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool]
    )
    def test_dtypes_go_there_and_back(self, dtype):
        x = torch.tensor([0, 1, 1, 0]).to(dtype)
        assert torch.equal(x.npu().cpu(), x)

    def test_numpy_is_refused(self):
        with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
            torch.ones(2, device="npu").numpy()

    def test_sparse_layouts_are_refused(self):
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.empty(2, 2, layout=torch.sparse_coo, device="npu").add(1)


class TestMixing:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x, h: x + h,
            lambda x, h: x @ h,
            lambda x, h: torch.cat([x, h]),
            lambda x, h: torch.where(x > 0, x, h),
            lambda x, h: x.masked_fill_(h > 0, 1.0),
            lambda x, h: torch.nn.functional.linear(x, h),
            lambda x, h: x.index_select(0, torch.tensor([0])),
            lambda x, h: x.index_put_((torch.tensor([0]),), h[:1]),
        ],
    )
    def test_host_and_device_tensors_are_refused(self, function):
        with pytest.raises(RuntimeError, match=r"[Ee]xpected all tensors to be on the same device"):
            function(torch.ones(2, 2, device="npu"), torch.ones(2, 2))

    def test_numbers_and_zero_dimensional_host_tensors_are_numbers(self):
        x = torch.ones(2, device="npu")
        assert (x + torch.tensor(2.0)).tolist() == [3, 3]

    def test_host_indices_are_copied_to_the_device(self):
        x = torch.arange(4, device="npu")
        assert x[torch.tensor([3, 1])].tolist() == [3, 1]
        x[torch.tensor([0])] = 9
        assert x.tolist() == [9, 1, 2, 3]


class TestDevices:
    def test_count_name_and_properties(self):
        assert torch.npu.is_available()
        assert torch.npu.device_count() == 8
        assert torch.npu.get_device_name() == "Ascend910B1"
        assert torch.npu.get_soc_version() == 220
        properties = torch.npu.get_device_properties(0)
        assert (properties.cube_core_num, properties.vector_core_num) == (24, 48)
        assert properties.total_memory == settings.DEVICE_BYTES

    def test_the_current_device(self):
        assert torch.npu.current_device() == 0
        with torch.npu.device(2):
            assert torch.npu.current_device() == 2
            assert torch.ones(1, device="npu").device.index == 2
        assert torch.npu.current_device() == 0
        torch.npu.set_device("npu:3")
        assert torch.npu.current_device() == 3
        torch.npu.set_device(0)

    def test_a_device_that_does_not_exist(self):
        with pytest.raises(RuntimeError, match="npu:8 does not exist: the emulated machine has 8"):
            torch.npu.set_device(8)
        with pytest.raises(RuntimeError, match="npu:9 does not exist"):
            torch.ones(1, device="npu:9")
        with pytest.raises(ValueError, match="expected an npu device, got cpu"):
            torch.npu.set_device("cpu")

    def test_jit_compile_is_refused(self):
        torch.npu.set_compile_mode(jit_compile=False)
        with pytest.raises(NotImplementedError, match="jit_compile=True"):
            torch.npu.set_compile_mode(jit_compile=True)

    def test_unknown_options_are_refused(self):
        torch.npu.config.allow_internal_format = False
        with pytest.raises(AttributeError):
            torch.npu.config.made_up = True
        with pytest.raises(AttributeError):
            torch.npu.made_up  # noqa: B018


class TestMemory:
    def test_allocated_and_peak_bytes_are_real(self):
        gc.collect()
        before = torch.npu.memory_allocated()
        torch.npu.reset_peak_memory_stats()
        x = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
        assert torch.npu.memory_allocated() - before == 1 << 20
        y = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
        del x, y
        assert torch.npu.memory_allocated() == before
        assert torch.npu.max_memory_allocated() - before == 2 << 20
        stats = torch.npu.memory_stats()
        assert stats["allocated_bytes.all.current"] == before
        assert stats["allocated_bytes.all.peak"] == before + (2 << 20)

    def test_free_memory_falls_by_what_is_allocated(self):
        free, total = torch.npu.mem_get_info()
        x = torch.empty(4096, dtype=torch.uint8, device="npu")
        assert torch.npu.mem_get_info() == (free - 4096, total)
        del x

    def test_memory_is_counted_on_its_own_device(self):
        before = torch.npu.memory_allocated(5)
        x = torch.empty(512, dtype=torch.uint8, device="npu:5")
        assert torch.npu.memory_allocated(5) - before == 512
        del x

    def test_more_than_the_device_has_is_out_of_memory(self):
        before = torch.npu.memory_allocated()
        with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory. Tried to allocate"):
            torch.empty(settings.DEVICE_BYTES + 1, dtype=torch.uint8, device="npu")
        assert torch.npu.memory_allocated() == before

    def test_results_of_operators_count_and_views_do_not(self):
        x = torch.ones(1 << 18, device="npu")
        before = torch.npu.memory_allocated()
        torch.npu.reset_peak_memory_stats()
        y = torch.erfc(x)
        assert torch.npu.memory_allocated() - before == 1 << 20
        z = torch.erfc(y)
        assert torch.npu.memory_allocated() - before == 2 << 20
        del y
        assert torch.npu.memory_allocated() - before == 1 << 20
        part = z[5:].view(-1)
        z.mul_(2)
        del z
        assert torch.npu.memory_allocated() - before == 1 << 20
        del part
        assert torch.npu.memory_allocated() == before
        assert torch.npu.max_memory_allocated() - before == 2 << 20

    def test_a_result_counts_on_the_device_of_its_arguments(self):
        x = torch.ones(256, device="npu:5")
        before = [torch.npu.memory_allocated(device) for device in (0, 5)]
        y = torch.erfc(x)
        assert [torch.npu.memory_allocated(device) for device in (0, 5)] == [before[0], before[1] + 1024]
        del y
        assert torch.npu.memory_allocated(5) == before[1]

    def test_a_resized_out_argument_counts_by_its_new_size(self):
        a, out = torch.ones(256, device="npu"), torch.empty(0, device="npu")
        before = torch.npu.memory_allocated()
        torch.mul(a, 2, out=out)
        assert torch.npu.memory_allocated() - before == 1024
        torch.mul(a.repeat(2), 2, out=out.resize_(0))
        assert torch.npu.memory_allocated() - before == 2048
        del out
        assert torch.npu.memory_allocated() == before

    def test_results_in_one_memory_share_it_and_count_once(self):
        library = torch.library.Library("emulated_device_test", "FRAGMENT")
        library.define("halves(Tensor x) -> (Tensor, Tensor)")
        library.impl("halves", lambda x: torch.erfc(x).chunk(2), "CPU")
        x = torch.ones(256, device="npu")
        before = torch.npu.memory_allocated()
        first, second = torch.ops.emulated_device_test.halves(x)
        assert torch.npu.memory_allocated() - before == 1024
        first.as_strided((256,), (1,)).fill_(3)
        assert second.tolist() == [3] * 128
        del first
        assert torch.npu.memory_allocated() - before == 1024
        del second
        assert torch.npu.memory_allocated() == before

    def test_a_result_that_the_device_has_no_room_for_is_out_of_memory(self):
        x = torch.ones(1024, device="npu")
        held = torch.empty(torch.npu.mem_get_info()[0] - 4000, dtype=torch.uint8, device="npu")
        before = torch.npu.memory_allocated()
        with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate 4096 bytes on npu:0"):
            torch.erfc(x)
        assert torch.npu.memory_allocated() == before
        assert torch.erfc(x[:1000]).numel() == 1000  # which just fits
        del held

    def test_pinned_memory_is_host_memory(self):
        assert torch.ones(3).pin_memory().device.type == "cpu"
        with pytest.raises(RuntimeError, match="pinned"):
            torch.empty(3, device="npu", pin_memory=True)

    @pytest.mark.parametrize("name", ["MemPool", "use_mem_pool", "NPUPluggableAllocator", "memory_snapshot"])
    def test_sleep_mode_is_refused(self, name):
        with pytest.raises(NotImplementedError, match=f"{name}.* is not modelled by the emulated NPU"):
            getattr(torch.npu.memory, name)()


class TestStreams:
    def test_the_current_stream(self):
        default = torch.npu.current_stream()
        assert default is torch.npu.default_stream()
        other = torch.npu.Stream()
        with torch.npu.stream(other):
            assert torch.npu.current_stream() is other
        assert torch.npu.current_stream() is default
        with other:
            assert torch.npu.current_stream() is other
        assert torch.npu.current_stream() is default

    def test_events(self):
        start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
        with pytest.raises(RuntimeError, match="two recorded events"):
            start.elapsed_time(end)
        start.record()
        end = torch.npu.current_stream().record_event(end)
        assert start.elapsed_time(end) >= 0
        assert end.query()
        with pytest.raises(RuntimeError, match="enable_timing"):
            torch.npu.Event().elapsed_time(end)

    def test_waiting_for_a_wrong_thing_is_refused(self):
        with pytest.raises(TypeError, match=r"expected a torch.npu.Event, got int"):
            torch.npu.current_stream().wait_event(3)
        with pytest.raises(TypeError, match=r"expected a torch.npu.Stream, got Event"):
            torch.npu.current_stream().wait_stream(torch.npu.Event())

    def test_a_tensor_can_be_recorded_on_a_stream(self):
        torch.ones(1, device="npu").record_stream(torch.npu.current_stream())
        with pytest.raises(TypeError, match=r"expected a torch.npu.Stream, got int"):
            torch.ones(1, device="npu").record_stream(3)


class TestRandom:
    def test_seeds_are_reproducible(self):
        torch.npu.manual_seed_all(7)
        first = torch.randn(4, device="npu").tolist()
        state = torch.npu.get_rng_state()
        second = torch.randn(4, device="npu").tolist()
        torch.npu.manual_seed(7)
        assert torch.randn(4, device="npu").tolist() == first
        torch.npu.set_rng_state(state)
        assert torch.randn(4, device="npu").tolist() == second

    def test_generators(self):
        one = torch.Generator(device="npu").manual_seed(1)
        other = torch.Generator(device="npu").manual_seed(1)
        assert (
            torch.empty(5, device="npu").exponential_(generator=one).tolist()
            == torch.empty(5, device="npu").exponential_(generator=other).tolist()
        )


class TestOtherNames:
    def test_the_profiler_is_refused(self):
        with pytest.raises(NotImplementedError, match="profiling is not modelled"):
            torch_npu.profiler.profile()
        with pytest.raises(AttributeError, match="profiling is not modelled"):
            torch_npu.profiler.ExportType  # noqa: B018

    def test_dynamic_profiling_steps_without_a_profile(self):
        from torch_npu.profiler import dynamic_profile

        dynamic_profile.step()
        with pytest.raises(NotImplementedError, match="profiling is not modelled"):
            dynamic_profile.init("path")

    def test_formats(self):
        x = torch.ones(2, 2, device="npu")
        assert torch_npu.get_npu_format(x) == torch_npu.Format.ND == 2
        assert torch.equal(torch_npu.npu_format_cast(x, 2).cpu(), x.cpu())
        with pytest.raises(NotImplementedError, match="memory format 29 is not modelled"):
            torch_npu.npu_format_cast(x, torch_npu.Format.FRACTAL_NZ)

    def test_acl_memcpy_is_refused(self):
        import acl.rt

        with pytest.raises(NotImplementedError, match=r"acl.rt.memcpy \(sleep mode\)"):
            acl.rt.memcpy(0, 0, 0, 0, 0)

    def test_the_distribution_and_the_variable_say_that_the_npu_is_emulated(self):
        import importlib.metadata
        import os

        assert importlib.metadata.version("torch-npu-emulator") == os.environ["TORCH_NPU_EMULATOR"]
        assert torch_npu.emulator is not None


@pytest.mark.parametrize("view", ["conj", "conj().imag", "_neg_view"])
def test_views_that_are_conjugated_or_negated(view):
    numbers = torch.randn(4, 3, dtype=torch.float32 if view == "_neg_view" else torch.complex64)

    def taken(x):
        if view == "_neg_view":
            return torch._neg_view(x)
        return x.conj().imag if view.endswith("imag") else x.conj()

    assert torch.equal(taken(numbers.npu()).cpu(), taken(numbers))
    assert torch.equal((taken(numbers.npu()) + 1).cpu(), taken(numbers) + 1)
    target = torch.zeros_like(taken(numbers)).npu()
    target.copy_(taken(numbers.npu()))
    assert torch.equal(target.cpu(), taken(numbers))
