"""Cascade decode attention: the shared prefix of a batch is read once, each request's own suffix as usual.

Layers, from pure to host-bound: `shared_prefix` (finds the prefix), `admission` (may this step use it), `step_plan` and
`two_stage` (what a step and a layer compute), `kernel_wheel` (is the merge kernel there and known), `binding` (where it
meets the host). Nothing here is imported while the gate is closed.
"""
