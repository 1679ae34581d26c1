"""Graph twins: a second captured graph per batch size, whose attention runs in two stages.

A captured graph cannot switch its attention. So for each size of uniform decode batches a twin of the host's graph is
captured, and a step that was admitted to two-stage attention replays the twin in place of the host's own graph.
"""
