"""A contract for import-linter: modules that import what a list names, and nothing else.

Its own `forbidden` contract lists what may not be imported, so that what nobody thought of passes.
"""

import sys
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class ImportsOnly(Contract):
    """Kept when `source_modules` and all below them directly import nothing outside the packages of `may_import`.

    `standard_library = true` allows all of Python's own modules as well.
    """

    type_name = "imports_only"

    source_modules = fields.ListField(subfield=fields.StringField())
    may_import = fields.ListField(subfield=fields.StringField())
    standard_library = fields.BooleanField(required=False, default=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare the graph with the list."""
        allowed = set(cast("list[str]", self.may_import))
        if cast("bool", self.standard_library):
            allowed |= sys.stdlib_module_names
        foreign = [
            f"{importer} -> {imported}"
            for source in cast("list[str]", self.source_modules)
            for importer in sorted({source, *graph.find_descendants(source)})
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not _is_within(imported, allowed)
        ]
        return ContractCheck(kept=not foreign, metadata={"foreign": foreign})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that the list does not name."""
        for line in check.metadata["foreign"]:
            output.print_error(f"- {line}", bold=False)


def _is_within(module: str, packages: set[str]) -> bool:
    """Whether `module` is one of `packages` or lies below one."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in packages for length in range(1, len(parts) + 1))
