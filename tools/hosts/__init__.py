"""The matrix of host releases: every carrier on every vllm-ascend release, one release after another.

    python -m tools.hosts                               everything, on every release
    python -m tools.hosts --releases "0.27.1rc1 0.30.0rc2"
    python -m tools.hosts --static                      only the seams in the releases' source files (no engine)

For each release it makes a copy of `.venv` by hard links, puts that release and the vLLM of its line into it, and there

* compares the carriers' seams on the live host with the manager's reading of the source files,
* installs and uninstalls every carrier, and compares every attribute of the host with what it was,
* runs the carriers' proof tests (`tests/proofs.py`) and the comparisons of the host model with the real classes.

What it finds goes to `docs/evidence/carriers/`: one JSON file a release, and a table. Work lies in `.hosts/`: source
files of the releases, the copy of the environment (removed afterwards, unless `--keep`), logs. A part that was run on
the same sources of ours is not run again; `--again` runs it.
"""
