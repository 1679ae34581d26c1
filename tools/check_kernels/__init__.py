"""Compile the Triton kernels of `kernels/` for an Ascend 910B2, as far as that goes without CANN, and check buffers.

    python3 -m tools.check_kernels                       every kernel source of split_batch_kernels
    python3 -m tools.check_kernels --only prefix_kernel  kernels and variants whose name contains this
    python3 -m tools.check_kernels --source FILE.py      one more kernel source, from anywhere

`environment` makes a virtual environment of its own, `lower` runs in it and turns each variant into the compiler's
input, `compilation` runs the compiler and reads its plan of the on-chip buffers, `report` prints. The compiler stops
where machine code would be made, by the one part of it that is not published.
"""
