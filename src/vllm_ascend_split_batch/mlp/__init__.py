"""A prefill's MLP in parts: the same rows, the same products, less memory at once.

`structure` recognises a dense MLP by the source of its forward; `chunking` says how many rows a part takes and what
that saves; both are pure. `modules` checks the modules of a loaded model, `operator` is the one operator that
torch.compile sees, `binding` knows the host's model runner and its steps.
"""
