"""How many bytes an object keeps in memory, counted the same on every run."""

import sys


def retained_bytes(root: object) -> int:
    """The size of the object and of everything it refers to; what is reached twice counts once."""
    seen: set[int] = set()
    waiting, total = [root], 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        waiting += _parts(thing)
    return total


def _parts(thing: object) -> list[object]:
    if isinstance(thing, dict):
        return [*thing, *thing.values()]
    if isinstance(thing, tuple | list | set | frozenset):
        return list(thing)
    names = getattr(thing, "__struct_fields__", None) or getattr(thing, "__dict__", {})
    return [getattr(thing, name) for name in names]
