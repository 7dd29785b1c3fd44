"""The base of all structs whose Go types have JSON tags: their keys are camelCase."""

import msgspec


class Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A struct of the Kubernetes API: keys in camelCase, unknown keys ignored."""
