"""Adds, removes and moves modules, parameters and buffers by dotted path."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.constants import identity_of
from onnx2nn.fx.trace_errors import TraceError


def container(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Returns the module that holds the object at the dotted `path`, created where missing, and the object's name."""
    if "." not in path:
        return root, path
    *steps, name = path.split(".")
    for step in steps:
        inner = child_of(root, step)
        if inner is None:
            root.add_module(step, inner := nn.Module())
        root = inner
    return root, name


def has_room(root: nn.Module, path: str) -> bool:
    """Returns whether a parameter can be registered at the dotted `path`: nothing stands there or in its way."""
    *steps, name = path.split(".")
    for step in steps:
        inner = getattr(root, step, None)
        if not isinstance(inner, nn.Module):
            return inner is None
        root = inner
    return getattr(root, name, None) is None


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules that a module holds itself, by name; a shared one under all its names.

    `named_children` leaves the second name of a module out, and `named_modules` visits all modules inside.
    """
    held: dict[str, nn.Module | None] = vars(module)["_modules"]
    return {name: inner for name, inner in held.items() if inner is not None}


def members_of(module: nn.Module) -> list[str]:
    """Returns the names of the parameters, buffers and modules that a module holds itself."""
    kinds = ("_parameters", "_buffers", "_modules")
    return [name for kind in kinds for name, value in vars(module)[kind].items() if value is not None]


def child_of(module: nn.Module | None, name: str) -> nn.Module | None:
    """Returns the module of a name that a module holds itself, None for no module; in a fraction of torch's time."""
    child: nn.Module | None = None if module is None else vars(module)["_modules"].get(name)
    return child


def module_at(root: nn.Module, path: Iterable[str]) -> nn.Module | None:
    """Returns the module at a path, None where there is none."""
    found: nn.Module | None = root
    for step in path:
        found = child_of(found, step)
    return found


def set_child(module: nn.Module, name: str, child: nn.Module) -> None:
    """Makes a module hold another under a name, in the place of what it held there; in a fraction of torch's time."""
    vars(module)["_modules"][name] = child


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that a module holds itself, by name; a shared one under all its names."""
    held: dict[str, nn.Parameter | None] = vars(module)["_parameters"]
    return {name: value for name, value in held.items() if value is not None}


def own_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers that a module holds itself, by name; a shared one under all its names."""
    held: dict[str, torch.Tensor | None] = vars(module)["_buffers"]
    return {name: value for name, value in held.items() if value is not None}


def is_persistent(module: nn.Module, name: str) -> bool:
    """Returns whether the state_dict holds a parameter or buffer that a module holds itself."""
    return name not in vars(module)["_non_persistent_buffers_set"]


def holds_parameters(module: nn.Module) -> bool:
    """Returns whether a module, or one in it, has parameters."""
    return bool(own_parameters(module)) or any(map(holds_parameters, children_of(module).values()))


def order_children(module: nn.Module, names: Iterable[str]) -> None:
    """Puts the modules that a module holds in the order of their `names`."""
    held = vars(module)["_modules"]
    for name in names:
        held[name] = held.pop(name)


def arrange(root: nn.Module, *orders: Iterable[str]) -> None:
    """Puts what modules hold in the order of the author's declarations, as far as `orders` tell it.

    Modules of torch keep their order: that of a Sequential is the order of its calls. What has no such key keeps its
    place among the others.

    Args:
        root: the outermost module.
        orders: keys of the author's state_dict, each in its order. Modules with keys in the first are not ordered by
            the second: torch.export lists the buffers of modules with parameters before those of others.
    """
    keys = dict.fromkeys(_keys_of(root))
    known = [dict.fromkeys(key for key in order if key in keys) for order in orders]
    if all(list(order) == [key for key in keys if key in order] for order in known):
        return
    groups: dict[str, dict[str, int]] = {}
    for number, order in enumerate(known):
        for path in order:
            while path:
                path, _, name = path.rpartition(".")
                groups.setdefault(path, {}).setdefault(name, number)
    for path, group in groups.items():
        holder = root.get_submodule(path)
        if type(holder) is nn.Module or isinstance(holder, fx.GraphModule):
            for kind, number in itertools.product(("_parameters", "_buffers", "_modules"), range(len(known))):
                _sort(vars(holder)[kind], [name for name, found in group.items() if found == number])


def _keys_of(root: nn.Module) -> Iterator[str]:
    """Yields the keys of parameters and buffers, shared ones under all their names, in the order of a state_dict."""
    for path, module in root.named_modules(remove_duplicate=False):
        for name in (*own_parameters(module), *own_buffers(module)):
            yield f"{path}.{name}" if path else name


def _sort(held: dict[str, Any], names: Iterable[str]) -> None:
    """Puts those items of a dict that are among `names` in their order; the others keep their positions."""
    ordered = [name for name in names if name in held]
    known = set(ordered)
    if ordered != [name for name in held if name in known]:
        wanted = iter(ordered)
        for name in [next(wanted) if name in known else name for name in held]:
            held[name] = held.pop(name)


def paths_around(path: Any) -> Iterator[str]:
    """Yields a dotted path and the paths of the enclosing modules."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def remove(root: nn.Module, path: str, kept: Collection[str] = ()) -> None:
    """Removes the object at the dotted `path`, and enclosing modules that become empty, but for `kept` ones."""
    while path:
        around, _, name = path.rpartition(".")
        holder = root.get_submodule(around)
        delattr(holder, name)
        if type(holder) is not nn.Module or around in kept or not _is_empty(holder):
            return
        path = around


def _is_empty(module: nn.Module) -> bool:
    """Returns whether a module holds no modules, parameters and buffers, in any number of which the first one tells."""
    held = (vars(module)[kind] for kind in ("_modules", "_parameters", "_buffers"))
    return all(value is None for values in held for value in values.values())


def put_module(root: nn.Module, path: str, module: nn.Module) -> None:
    """Puts `module` at the dotted `path`; constants in a container that stands there move into it."""
    holder, name = container(root, path)
    before = getattr(holder, name, None)
    if isinstance(before, nn.Module):
        _move(before, module)  # first: on an error the container stays in place
    holder.add_module(name, module)


def _move(source: nn.Module, target: nn.Module) -> None:
    """Moves the state of `source` to `target`; under a common key both must hold the same tensor."""
    persistent = source.state_dict(keep_vars=True).keys()
    for name, value in _own_state(source):
        held = getattr(target, name, None)
        if isinstance(held, torch.Tensor) and identity_of(held) == identity_of(value):
            continue
        if hasattr(target, name):
            raise TraceError(f"a layer has another {name!r} than the constant of this name")
        if isinstance(value, nn.Parameter):
            target.register_parameter(name, value)
        else:
            target.register_buffer(name, value, persistent=name in persistent)
    for name, inner in source.named_children():
        if isinstance(own := getattr(target, name, None), nn.Module):
            _move(inner, own)
        elif hasattr(target, name):
            raise TraceError(f"a layer has a weight {name!r}, in the place of which constants stand")
        else:
            target.add_module(name, inner)


def _own_state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters and buffers of a module, without those of its submodules."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)
