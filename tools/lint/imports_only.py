"""A contract for import-linter: modules may import only what a list names.

import-linter's own `forbidden` contract lists what may not be imported, so it lets through whatever the list omits.
"""

import sys
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class ImportsOnly(Contract):
    """Holds if `source_modules` and all modules below them directly import only the packages of `may_import`.

    `standard_library = true` allows all modules of Python's standard library as well.
    """

    type_name = "imports_only"

    source_modules = fields.ListField(subfield=fields.StringField())
    may_import = fields.ListField(subfield=fields.StringField())
    standard_library = fields.BooleanField(required=False, default=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 -- the name is import-linter's
        """Compares the import graph with the list."""
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
        """Prints each import that the list does not allow."""
        for line in check.metadata["foreign"]:
            output.print_error(f"- {line}", bold=False)


def _is_within(module: str, packages: set[str]) -> bool:
    """Whether `module` is one of `packages` or below one."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in packages for length in range(1, len(parts) + 1))
