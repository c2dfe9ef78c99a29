"""The program of a module as its author could have written it; torch.fx writes one for Python to run."""

from __future__ import annotations

import ast
import inspect
from typing import cast

from torch import nn

from onnx2nn.fx.modules.module_tree import children_of


def readable(code: str, module: nn.Module) -> str:
    """Returns the source of a program in which lists are indexed, slices are slices, and no value is released.

    It computes the same. What runs is torch's, which sets values to None to free their memory.

    Args:
        code: a `forward`, as torch.fx writes it.
        module: of the program.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, RecursionError):  # shown as it is
        return code
    return f"\n{ast.unparse(ast.fix_missing_locations(_Readable(module).visit(tree)))}\n"


class _Readable(ast.NodeTransformer):
    """Rewrites what torch.fx writes otherwise than an author.

    Args:
        root: the module that the program calls `self`.
    """

    def __init__(self, root: nn.Module):
        self.root = root

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        """Drops `x = None`."""
        return None if isinstance(node.value, ast.Constant) and node.value.value is None else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Writes `getattr(self.layers, "0")` as an index."""
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str(name))]):
                if _is_item(self._module(holder), name):
                    return ast.Subscript(holder, ast.Constant(int(name)), ast.Load())
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Writes `slice(None, 3, None)` between brackets as `:3`."""
        self.generic_visit(node)
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if any(map(_is_slice, items)):
            elements = [_as_slice(item) if _is_slice(item) else item for item in items]
            node.slice = ast.Tuple(elements, ast.Load()) if isinstance(node.slice, ast.Tuple) else elements[0]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Writes functions of `torch.nn.functional` under their public names."""
        self.generic_visit(node)
        if ast.unparse(node.value) == "torch._C._nn":
            public = getattr(nn.functional, node.attr, None)
            if inspect.isbuiltin(public):  # the same function
                node.value = ast.parse("torch.nn.functional", mode="eval").body
        return node

    def _module(self, expression: ast.expr) -> object:
        """Returns the module that an expression of attributes and indices names, None for any other."""
        match expression:
            case ast.Name(id="self"):
                return self.root
            case ast.Attribute(value=inner, attr=name):
                return getattr(self._module(inner), name, None)
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(index))):
                around = self._module(inner)
                return cast(nn.ModuleList, around)[index] if _is_indexed(around) else None
        return None


def _is_indexed(container: object) -> bool:
    """Returns whether a module is indexed by numbers: a list, an `nn.Sequential`, a block of numbered modules."""
    return (
        isinstance(container, nn.Module) and hasattr(container, "__getitem__") and type(container) is not nn.ModuleDict
    )


def _is_item(container: object, name: str) -> bool:
    """Returns whether a module in a list has the name of its index."""
    if not _is_indexed(container) or not name.isdecimal():
        return False
    children = children_of(cast(nn.Module, container))
    return name in [key for index, key in enumerate(children) if key == str(index)]


def _is_slice(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "slice"


def _as_slice(node: ast.expr) -> ast.Slice:
    assert isinstance(node, ast.Call)
    bounds = [None if isinstance(arg, ast.Constant) and arg.value is None else arg for arg in node.args]
    return ast.Slice(*bounds)
