"""What the manager says of published packages with bundles, as a table and as JSON.

Each package is installed alone into a folder of its own (``pip install --no-deps --target``); only its metadata and
manifests are read. The hosts are metadata of host releases, so the verdicts rest on versions, not on sources.

    python benchmarks/published_bundles.py [--out docs/evidence/manager]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import vllm_hust_ext

from tests.manager.published import HOSTS, PACKAGES, fetch
from tests.manager.scratch import Scratch, Site, make_scratch, make_venv


def observe(scratch: Scratch, package: str, folder: Path) -> list[dict[str, Any]]:
    """One row per bundle and host; one row for a package without a readable registration."""
    rows: list[dict[str, Any]] = []
    for host, versions in HOSTS.items():
        site = Site(scratch.root / f"host-{host}")
        site.host(*versions)
        config = scratch.root / package / host / "config.json"
        env = {"PYTHONPATH": f"{folder}:{site.path}", "VLLM_HUST_EXT_CONFIG": str(config)}
        listed = scratch.extension("list", "--json", env=env).json
        for view in listed["extensions"]:
            name = view["bundle_id"]
            enable = scratch.extension("enable", name, env=env)
            dry_run = scratch.run("run", "--dry-run", "--json", "--with", name, "--", "python", "-c", "pass", env=env)
            rows.append(
                {
                    "package": package,
                    "extension": name,
                    "revision": view["schema_version"],
                    "range": f"{view['host']['name']} {view['host']['version_range']}",
                    "host": {"vllm-ascend": versions[0], "vllm": versions[1]},
                    "verdict": view["verdict"]["status"],
                    "reasons_against": [
                        r["message"] for r in view["verdict"]["reasons"] if r["outcome"] in ("fails", "unknown")
                    ],
                    "activatable": view["activation_ready"],
                    "carried_by": [p["name"] for p in view["carriers"]["plugins"]],
                    "carrier_source": view["carriers"]["source"],
                    "enable_exit_code": enable.code,
                    "dry_run_exit_code": dry_run.code,
                }
            )
            scratch.extension("disable", name, env=env)
        for mistaken in listed["mistaken_registrations"]:
            rows.append({"package": package, "extension": mistaken["name"], "mistaken_group": mistaken["group"]})
            return rows
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line per bundle, a column per host."""
    hosts = [f"vllm-ascend {a}, vllm {c}" for a, c in HOSTS.values()]
    lines = [
        "| package | extension | asks for | carried by | enable | " + " | ".join(hosts) + " |",
        "|---" * (5 + len(hosts)) + "|",
    ]
    seen: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        seen.setdefault((row["package"], row["extension"]), []).append(row)
    for (package, extension), group in seen.items():
        first = group[0]
        if "mistaken_group" in first:
            lines.append(
                (f"| {package} | {extension} | - | - | not managed: registered in group `{first['mistaken_group']}` |")
                + " - |" * len(hosts)
            )
            continue
        carried = (
            ", ".join(first["carried_by"]) + f" ({first['carrier_source']})"
            if first["carried_by"]
            else first["carrier_source"]
        )
        enable = "yes" if first["enable_exit_code"] == 0 else "refused: import_only"
        lines.append(
            (f"| {package} | {extension} | {first['range']} | {carried} | {enable} | ")
            + " | ".join(r["verdict"] for r in group)
            + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = make_scratch(Path(folder), make_venv(Path(folder) / "venv"))
        for number, package in enumerate(PACKAGES, 1):
            print(f"[{number}/{len(PACKAGES)}] {package}", file=sys.stderr, flush=True)
            rows += observe(scratch, package, fetch(package, Path(folder) / "published"))
    text = table(rows)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "published_bundles.json").write_text(
            json.dumps({"manager": vllm_hust_ext.__version__, "rows": rows}, indent=2) + "\n"
        )
        head = (
            "# Published bundles\n\nWhat the manager says of packages published by others, each"
            " installed alone into a folder of its own. Made"
            " by `python benchmarks/published_bundles.py --out docs/evidence/manager`; the reasons are"
            " in `published_bundles.json`.\n\n"
            "The hosts are metadata of these releases, not running engines: the verdicts rest on"
            " versions, protocols and stored proofs. *unknown*"
            " means that something needed for an answer is not known (a protocol version that no stock"
            " vLLM states, a proof of qualification"
            " that is not stored); `run` refuses it unless it is allowed by name.\n\n"
        )
        (arguments.out / "published_bundles.md").write_text(head + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
