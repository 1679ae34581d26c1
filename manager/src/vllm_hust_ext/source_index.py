"""The installed sources as a read-only index: modules, classes, functions and base classes, by AST.

It answers what is certain and says so where it cannot tell; it never imports or runs anything.
"""

from __future__ import annotations

import ast
import builtins
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MAX_DEPTH = 24
"""Re-exports and base classes followed at most; a longer chain is a cycle or not worth an answer."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Binding:
    """One way in which a name gets its value in a module or class body."""

    node: ast.AST
    module: Module
    conditional: bool
    """Inside ``if`` or ``try``: it may or may not be what runs."""
    imported: tuple[str, str | None] | None = None
    """(module, attribute) for an import; attribute None for the module itself."""


@dataclass
class Module:
    name: str
    path: Path
    is_package: bool
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Lookup:
    """What was found for a name.

    ``bindings`` are its definitions (several where they are conditional). ``certain`` is False where something that
    could not be followed may define or replace it; ``why`` then says what.
    """

    bindings: tuple[Binding, ...] = ()
    certain: bool = True
    why: str = ""

    @property
    def found(self) -> bool:
        return bool(self.bindings)


class ModuleNotFound(Exception):
    """No source file of that module; ``installed`` tells whether its top-level package is there."""

    def __init__(self, message: str, *, installed: bool) -> None:
        super().__init__(message)
        self.installed = installed


class Unreadable(Exception):
    """The source file is there and cannot be parsed by this Python."""


class SourceIndex:
    """Sources of the packages on ``path``; ``packages`` maps top-level packages to folders that are known already."""

    def __init__(self, path: Sequence[str], packages: Mapping[str, Path] | None = None) -> None:
        self._path = [Path(p or ".") for p in path]
        self._packages = dict(packages or {})
        self._modules: dict[str, Module] = {}

    # -- modules ------------------------------------------------------------------------------------------------------

    def module(self, dotted: str) -> Module:
        """Parse module ``dotted``.

        Raises:
            ModuleNotFound: there is no such source file.
            Unreadable: it cannot be parsed.
        """
        if dotted not in self._modules:
            self._modules[dotted] = self._parse(dotted)
        return self._modules[dotted]

    def _locate(self, dotted: str) -> tuple[Path, bool]:
        top, *rest = dotted.split(".")
        roots = [self._packages[top]] if top in self._packages else [folder / top for folder in self._path]
        installed = False
        for root in roots:
            exists = os.path.isdir(root) or os.path.isfile(root.with_suffix(".py"))
            installed = installed or exists
            target = root.joinpath(*rest)
            if os.path.isfile(target / "__init__.py"):
                return target / "__init__.py", True
            if os.path.isfile(target.with_name(target.name + ".py")):
                return target.with_name(target.name + ".py"), False
            if exists and top in self._packages:
                break
        if not installed:
            raise ModuleNotFound(f"package {top} is not installed", installed=False)
        raise ModuleNotFound(f"module {dotted} does not exist in the installed {top}", installed=True)

    def _parse(self, dotted: str) -> Module:
        path, is_package = self._locate(dotted)
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(f"{path} cannot be parsed: {error}") from None
        module = Module(dotted, path, is_package)
        for name, binding, star in self._bindings(tree.body, module, conditional=False):
            if star is not None:
                module.stars.append(star)
            else:
                module.bindings.setdefault(name, []).append(binding)
        return module

    # -- bodies -------------------------------------------------------------------------------------------------------

    def _bindings(
        self, body: Sequence[ast.stmt], module: Module, conditional: bool
    ) -> Iterator[tuple[str, Binding, str | None]]:
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, Binding(node, module, conditional), None
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    target = alias.name if alias.asname else alias.name.split(".")[0]
                    yield alias.asname or target, Binding(node, module, conditional, (target, None)), None
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node, module)
                for alias in node.names:
                    if alias.name == "*":
                        yield "*", Binding(node, module, conditional), source
                    else:
                        yield alias.asname or alias.name, Binding(node, module, conditional, (source, alias.name)), None
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                if isinstance(node, ast.AnnAssign) and node.value is None:
                    continue  # an annotation alone binds nothing
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target_node in targets:
                    for leaf in ast.walk(target_node):
                        if isinstance(leaf, ast.Name):
                            yield leaf.id, Binding(node, module, conditional), None
            elif isinstance(node, ast.If):
                if not _is_type_checking(node.test):
                    yield from self._bindings(node.body, module, True)
                yield from self._bindings(node.orelse, module, not _is_type_checking(node.test) or conditional)
            elif isinstance(node, ast.Try):
                for part in (node.body, *(h.body for h in node.handlers), node.orelse, node.finalbody):
                    yield from self._bindings(part, module, True)
            elif isinstance(node, (ast.With, ast.For, ast.While)):
                yield from self._bindings(node.body, module, True)

    @staticmethod
    def _absolute(node: ast.ImportFrom, module: Module) -> str:
        if not node.level:
            return node.module or ""
        parts = module.name.split(".")
        keep = len(parts) - node.level + (1 if module.is_package else 0)
        return ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])

    # -- look-up ------------------------------------------------------------------------------------------------------

    def attribute(self, module_name: str, name: str, depth: int = 0) -> Lookup:
        """The definitions of ``module.name``, with imports followed to where the thing is defined."""
        if depth > _MAX_DEPTH:
            return Lookup(certain=False, why=f"the imports of {name} go in a circle")
        module = self.module(module_name)
        direct = module.bindings.get(name, [])
        if direct:
            return self._follow(direct, name, depth)
        try:
            self._locate(f"{module_name}.{name}")
        except ModuleNotFound:
            pass
        else:
            if module.is_package:
                return Lookup(
                    (Binding(ast.Module(body=[], type_ignores=[]), self.module(f"{module_name}.{name}"), False),)
                )
        certain, why = True, ""
        for star in module.stars:
            try:
                found = self.attribute(star, name, depth + 1)
            except (ModuleNotFound, Unreadable) as error:
                certain, why = False, f"'from {star} import *' in {module.name} cannot be followed: {error}"
                continue
            if found.found:
                return found
            if not found.certain:
                certain, why = False, found.why
        if "__getattr__" in module.bindings:
            certain, why = False, f"{module.name} makes attributes on demand (__getattr__)"
        return Lookup(certain=certain, why=why)

    def _follow(self, bindings: Sequence[Binding], name: str, depth: int) -> Lookup:
        unconditional = [i for i, b in enumerate(bindings) if not b.conditional]
        relevant = bindings[unconditional[-1] :] if unconditional else bindings
        results: list[Binding] = []
        certain, why = True, ""
        for binding in relevant:
            if binding.imported is None:
                results += self._behind_alias(binding, depth)
                continue
            source, attribute = binding.imported
            try:
                if attribute is None:
                    results.append(
                        Binding(ast.Module(body=[], type_ignores=[]), self.module(source), binding.conditional)
                    )
                    continue
                found = self.attribute(source, attribute, depth + 1)
            except (ModuleNotFound, Unreadable) as error:
                certain, why = False, f"{name} is imported from {source}, which cannot be followed: {error}"
                continue
            results += found.bindings
            if not found.found or not found.certain:
                certain = False
                why = found.why or f"{name} is imported from {source}, where it is not found"
        return Lookup(tuple(results), certain, why)

    def _behind_alias(self, binding: Binding, depth: int) -> tuple[Binding, ...]:
        """What ``Name = Other`` stands for, where that is a definition in the sources; else the assignment itself."""
        value = binding.node.value if isinstance(binding.node, ast.Assign) else None
        if isinstance(value, (ast.Name, ast.Attribute)):
            try:
                found = self.expression(value, binding.module, depth + 1)
            except (ModuleNotFound, Unreadable):
                return (binding,)
            if found.found and found.certain:
                return found.bindings
        return (binding,)

    def member(self, owner: Binding, name: str, depth: int = 0) -> Lookup:
        """The definitions of attribute ``name`` of a class, in its body or its base classes (left to right, depth
        first).
        """
        node = owner.node
        if not isinstance(node, ast.ClassDef):
            return Lookup(
                certain=False,
                why=f"{ast.unparse(node)[:60] if isinstance(node, ast.expr) else 'it'} is not a class statement",
            )
        if depth > _MAX_DEPTH:
            return Lookup(certain=False, why=f"the base classes of {node.name} go in a circle")
        body: dict[str, list[Binding]] = {}
        for key, binding, _ in self._bindings(node.body, owner.module, False):
            body.setdefault(key, []).append(binding)
        if name in body:
            bindings = body[name]
            last = [i for i, b in enumerate(bindings) if not b.conditional]
            return Lookup(
                tuple(bindings[last[-1] :] if last else bindings),
                bool(last),
                "" if last else "it is defined under a condition",
            )
        certain, why = True, ""
        if name == "__init__" and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            certain, why = False, f"{node.name} is a dataclass, whose __init__ is made at run time"
        for base in node.bases:
            found = self._member_of_base(base, owner.module, name, depth)
            if found.found:
                return Lookup(found.bindings, certain and found.certain, why or found.why)
            if not found.certain:
                certain, why = False, found.why
        if "__getattr__" in body:
            certain, why = False, f"{node.name} makes attributes on demand (__getattr__)"
        return Lookup(certain=certain, why=why)

    def _member_of_base(self, base: ast.expr, module: Module, name: str, depth: int) -> Lookup:
        if isinstance(base, ast.Subscript):  # Generic[T]
            base = base.value
        text = ast.unparse(base)
        if text.rpartition(".")[2] == "Generic" and not name.startswith("__") and self._is_from_typing(base, module):
            return Lookup()  # written in C from Python 3.12 on; it has special methods only
        try:
            found = self.expression(base, module, depth + 1)
        except (ModuleNotFound, Unreadable) as error:
            return Lookup(certain=False, why=f"base class {text} cannot be followed: {error}")
        if not found.found:
            builtin = getattr(builtins, text, None)
            if isinstance(builtin, type):
                return (
                    Lookup((Binding(base, module, False),))
                    if name in vars(builtin) and builtin is not object
                    else Lookup()
                )
            return Lookup(certain=False, why=found.why or f"base class {text} is not found")
        results: list[Binding] = []
        certain, why = found.certain, found.why
        for binding in found.bindings:
            member = self.member(binding, name, depth + 1)
            results += member.bindings
            if not member.certain or (not member.found and len(found.bindings) > 1):
                certain, why = False, member.why or f"base class {text} has several definitions"
        return Lookup(tuple(results), certain, why)

    @staticmethod
    def _is_from_typing(base: ast.expr, module: Module) -> bool:
        """Whether ``Generic`` or ``typing.Generic`` in ``module`` is the one of the standard library."""
        first = ast.unparse(base).split(".")[0]
        sources = [b.imported[0] for b in module.bindings.get(first, []) if b.imported is not None]
        return bool(sources) and all(source in ("typing", "typing_extensions") for source in sources)

    def expression(self, node: ast.expr, module: Module, depth: int = 0) -> Lookup:
        """What a name or dotted name means in ``module``."""
        if isinstance(node, ast.Name):
            if node.id not in module.bindings and not module.stars:
                return Lookup()
            return self.attribute(module.name, node.id, depth)
        if isinstance(node, ast.Attribute):
            owner = self.expression(node.value, module, depth)
            for binding in owner.bindings:
                if isinstance(binding.node, ast.Module):
                    return self.attribute(binding.module.name, node.attr, depth + 1)
                return self.member(binding, node.attr, depth + 1)
            return owner
        return Lookup(certain=False, why=f"{ast.unparse(node)[:60]} is computed at run time")

    def resolve(self, module_name: str, qualified: str) -> Lookup:
        """The definitions of ``module:Class.attribute`` (or ``module:function``)."""
        first, *rest = qualified.split(".")
        found = self.attribute(module_name, first)
        for name in rest:
            if not found.found:
                return found
            results: list[Binding] = []
            certain, why = found.certain, found.why
            for binding in found.bindings:
                if isinstance(binding.node, ast.Module):
                    member = self.attribute(binding.module.name, name)
                else:
                    member = self.member(binding, name)
                results += member.bindings
                if not member.certain or (not member.found and len(found.bindings) > 1):
                    certain, why = False, member.why or f"{name} is not in every definition of its class"
            found = Lookup(tuple(results), certain, why)
        return found


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def parameter_names(node: FunctionNode, *, bound: bool) -> list[str]:
    """Names of the parameters in order, variadic ones with their stars.

    ``bound`` leaves the first positional one (self, cls) out.
    """
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if bound and names:
        names = names[1:]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    names += [a.arg for a in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return names
