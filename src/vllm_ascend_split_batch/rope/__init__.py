"""Three defects of the host's rotary embeddings, each found by looking at the host and repaired where it is.

`defects` looks, knowing Python's introspection only; `llama3`, `mrope` and `yarn` repair; `binding` knows the host.
"""
