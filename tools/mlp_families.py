"""The table of MLP classes in docs/carriers/mlp-chunk.md, from the source files of an installed vLLM.

    python tools/mlp_families.py                 print the table of the installed vLLM
    python tools/mlp_families.py --models DIR    of the model files in DIR
    python tools/mlp_families.py --write         put it into the document
    python tools/mlp_families.py --check         exit 1 where the document says otherwise

A class is listed when its constructor makes a column-parallel and a row-parallel projection and no attention. Its
forward is read exactly as the carrier reads it on the loaded model; nothing of vLLM is imported. Whether an instance is
cut depends on more: its projections must be unquantised and its own, its activation elementwise.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "carriers" / "mlp-chunk.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"

sys.path.insert(0, str(ROOT / "src"))

from vllm_ascend_split_batch.mlp.structure import NotAChain, chain_of_definition  # noqa: E402 - the source tree first


def installed_models() -> Path:
    """The folder of the installed vLLM's model files."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("mlp_families: no vllm is installed here; name its model files with --models DIR")
    return Path(spec.origin).parent / "model_executor" / "models"


def candidates(models: Path) -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """(file, class, forward) of every class with both kinds of projection."""
    for path in sorted(models.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
            if "__init__" in methods and "forward" in methods and _projects(methods["__init__"]):
                yield path.relative_to(models).with_suffix("").as_posix(), node.name, methods["forward"]


def _projects(constructor: ast.FunctionDef) -> bool:
    names = {node.id for node in ast.walk(constructor) if isinstance(node, ast.Name)}
    column = any("ColumnParallelLinear" in name for name in names)
    attention = any("QKVParallel" in name or "Attention" in name for name in names)
    return column and "RowParallelLinear" in names and not attention


def table(models: Path) -> str:
    """The two lists as Markdown."""
    cut: dict[str, list[str]] = {}
    other: list[str] = []
    for file, name, forward in candidates(models):
        try:
            chain = chain_of_definition(forward)
        except NotAChain as error:
            other.append(f"| `{name}` | {file} | {_plain(str(error))} |")
        else:
            cut.setdefault(f"{chain.up} → {chain.act} → {chain.down}", []).append(f"`{name}` ({file})")
    steps = sorted(cut.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [f"{sum(map(len, cut.values()))} classes are dense MLPs:", ""]
    lines += ["| steps of the forward | classes |", "|---|---|"]
    lines += [f"| {chain} | {', '.join(sorted(names))} |" for chain, names in steps]
    lines += ["", f"{len(other)} classes have such projections and do something else, and run as they are:", ""]
    lines += ["| class | file | why |", "|---|---|---|", *sorted(other)]
    return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, help="folder of model files; default: the installed vLLM's")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    parser.add_argument("--check", action="store_true", help="exit 1 where the document says otherwise")
    arguments = parser.parse_args()
    text = table(arguments.models or installed_models())
    if not (arguments.write or arguments.check):
        print(text)
        return 0
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}\n{text}\n{END}{after}"
    if arguments.check and new != document:
        print("mlp_families: the document's table is another; run python tools/mlp_families.py --write")
        return 1
    if arguments.write:
        DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
