"""The settings of an installation that the user names, as far as they count on another machine."""

from collections.abc import Sequence

import msgspec

from extender.cli.console import print_problem
from extender.cli.installation_objects import INSTALLATION, InstalledWorkload, read_workloads
from extender.cluster.client import ClusterClient
from extender.config.reading import parse_config, to_yaml
from extender.config.tree import Config
from extender.errors import ConfigError

_OF_REGISTRIES = ("deny", "pull_secrets")
"""Which may be asked, and for whom: they send nothing anywhere. The others open addresses, or are files and accounts
of the service's pods."""


class GivenSettings(msgspec.Struct, frozen=True):
    """What was given to a command: its settings with the defaults, its assignments, and an installation's namespace."""

    own: Config
    assignments: Sequence[str] = ()
    installed_in: str = ""

    async def beside(self, client: ClusterClient) -> Config:
        """The settings to decide by; says on standard error what does not count of those of an installation.

        Raises:
            ClusterError: the installation cannot be read.
            ConfigError: there is none, or the service would not take its settings.
        """
        if not self.installed_in:
            return self.own
        workloads = _deciding_workloads(
            await read_workloads(client, INSTALLATION, self.installed_in), self.installed_in
        )
        names = " and ".join(each.subject for each in workloads)
        print_problem(
            f"settings: those of {names}, without registry.plain_http, allow, private_addresses, files and programs: "
            "give these by --set"
        )
        return self._combined([each.config or self.own for each in workloads])

    def _combined(self, found: Sequence[Config]) -> Config:
        """What was assigned, over the first settings with the last ones' scheduler."""
        own, installed = self.own, msgspec.structs.replace(found[0], scheduler=found[-1].scheduler)
        of_registries = {name: getattr(installed.registry, name) for name in _OF_REGISTRIES}
        registry = msgspec.structs.replace(own.registry, **of_registries)
        text = to_yaml(msgspec.structs.replace(installed, registry=registry))
        settings = parse_config(text, "the installed settings", self.assignments)
        return msgspec.structs.replace(settings, cluster=own.cluster, cache=own.cache, log=own.log)


def given_settings(
    own: Config, file: str | None, assignments: Sequence[str] | None, installed_in: str
) -> GivenSettings:
    """What was given to a command. Raises ConfigError if both a file and an installation were."""
    if file and installed_in:
        raise ConfigError("--config and --installed-in exclude each other")
    return GivenSettings(own, assignments or (), installed_in)


def _deciding_workloads(workloads: Sequence[InstalledWorkload], namespace: str) -> list[InstalledWorkload]:
    """The workload that reviews pods, else the first, and the one that a scheduler asks. Raises ConfigError."""
    if not workloads:
        raise ConfigError(f"--installed-in {namespace}: nothing there has the label {INSTALLATION}")
    for each in workloads:
        if each.config is None:
            raise ConfigError(f"--installed-in {namespace}: {each.subject}: {each.refusal or each.problem}")
    reviewing = [each for each in workloads if each.config and each.config.admission.listen]
    scheduling = [each for each in workloads if each.config and each.config.scheduler.listen]
    first = (reviewing or list(workloads))[:1]
    return [*first, *(each for each in scheduling[:1] if each not in first)]
