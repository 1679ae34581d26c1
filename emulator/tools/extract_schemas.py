"""Prints operator schemas out of a published torch_npu: the library registers them from strings, as they were written.

    cd emulator/tools
    python extract_schemas.py torch_npu-2.10.0.post4-*.whl $(python extract_schemas.py --names)

Takes the wheel or one of its libraries, and operator names without overload; without names, prints all. ``--names``
prints the names that are stored now. The file is ``site/torch_npu/schemas/torch_npu-<version>.txt``.
"""

from __future__ import annotations

import pathlib
import re
import sys
import zipfile

STORED = (
    pathlib.Path(__file__).parent.parent / "src/torch_npu_emulator/site/torch_npu/schemas/torch_npu-2.10.0.post4.txt"
)
# A printable string that reads: name[.overload](arguments) -> results.
_SCHEMA = re.compile(rb"[A-Za-z_]\w*(?:\.\w+)?\([^\x00-\x1f\x7f-\xff]*\) ?-> ?[^\x00-\x1f\x7f-\xff]+")


def schemas_in(path: pathlib.Path) -> list[str]:
    """All schemas in a wheel or a library, sorted, each once."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            # Two libraries register operators: the package's own one and that of the ATB operators.
            libraries = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    else:
        libraries = [path.read_bytes()]
    strings = (s for library in libraries for s in library.split(b"\0"))
    # Named dimensions (one overload) are no type that torch.library can define.
    return sorted({s.decode() for s in strings if _SCHEMA.fullmatch(s) and b"Dimname" not in s})


def name_of(schema: str) -> str:
    return schema.split("(")[0].split(".")[0]


def main(arguments: list[str]) -> int:
    if arguments == ["--names"]:
        print("\n".join(sorted({name_of(line) for line in STORED.read_text().splitlines()})))
        return 0
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    found = schemas_in(pathlib.Path(arguments[0]))
    wanted = set(arguments[1:])
    missing = wanted - {name_of(schema) for schema in found}
    if missing:
        print(f"no schema of: {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    print("\n".join(schema for schema in found if not wanted or name_of(schema) in wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
