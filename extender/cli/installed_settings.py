"""By which settings a command decides about a cluster: those of the installation there, unless options say so."""

from collections.abc import Sequence

import msgspec

from extender.cli.console import print_problem
from extender.cli.installation_objects import InstalledPart, read_parts
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.openshift_objects import DIGEST_MIRRORS
from extender.config.reading import parse_config, to_yaml
from extender.config.tree import Config

INSTALLATION = "app.kubernetes.io/name=multiarch-extender"
"""The label of everything that the chart and the manifests install."""
_OTHERS = "--config FILE gives others"
# Of registries, what decides. Files are those of the pods, and clouds and accounts the service's own.
_OF_REGISTRIES = ("plain_http", "allow", "deny", "private_addresses", "pull_secrets", "verify")


class GivenSettings(msgspec.Struct, frozen=True):
    """What was given to a command: its settings with the defaults, and the file and assignments that they are from."""

    own: Config
    file: str | None
    assignments: Sequence[str]

    async def beside(self, client: ClusterClient) -> Config:
        """The settings to decide by in that cluster; says on standard error whose they are.

        Raises:
            ClusterError: the cluster cannot be asked.
        """
        if self.file:
            print_problem(f"settings: those of {self.file}")
            return self.own
        try:
            found = await read_parts(client, INSTALLATION)
        except ClusterRefused as exc:
            print_problem(f"settings: the defaults, as no installation can be read ({exc}); {_OTHERS}")
            return self.own
        parts = deciding_parts(found)
        if not parts:
            problem = next((each.refusal or each.problem for each in found), "none was found")
            print_problem(f"settings: the defaults, as no installation can be read ({problem}); {_OTHERS}")
            return self.own
        settings = self.of_parts(parts)
        names = " and ".join(each.subject for each in parts)
        without = ""
        if settings.registry.mirrors_of_openshift and not await _may_list_mirrors(client):
            settings = msgspec.structs.replace(
                settings, registry=msgspec.structs.replace(settings.registry, mirrors="")
            )
            without = ", without OpenShift's mirrors, which this account may not list"
        print_problem(f"settings: those of {names}{without}; {_OTHERS}")
        return settings

    def of_parts(self, parts: Sequence[InstalledPart]) -> Config:
        """What was assigned, over the settings of these parts, of which the last one that asks a scheduler counts."""
        if self.file or not parts:
            return self.own
        own, installed = self.own, parts[0].config or self.own
        for each in parts:
            if each.config and each.config.scheduler.listen:
                installed = msgspec.structs.replace(installed, scheduler=each.config.scheduler)
        of_registries = {name: getattr(installed.registry, name) for name in _OF_REGISTRIES}
        if installed.registry.mirrors_of_openshift:
            of_registries["mirrors"] = installed.registry.mirrors
        registry = msgspec.structs.replace(own.registry, **of_registries)
        text = to_yaml(msgspec.structs.replace(installed, registry=registry))
        settings = parse_config(text, "the installed settings", self.assignments)
        return msgspec.structs.replace(settings, cluster=own.cluster, cache=own.cache, log=own.log)


def deciding_parts(parts: Sequence[InstalledPart]) -> list[InstalledPart]:
    """The part that reviews pods, else the first, and the one that a scheduler asks; none if no settings are known."""
    known = [(each, each.config) for each in parts if each.config]
    reviewing = [each for each, config in known if config.admission.listen]
    scheduling = [each for each, config in known if config.scheduler.listen]
    first = (reviewing or [each for each, _ in known])[:1]
    return [*first, *(each for each in scheduling[:1] if each not in first)]


async def _may_list_mirrors(client: ClusterClient) -> bool:
    try:
        await client.get(DIGEST_MIRRORS.path(""), {"limit": "1"})
    except ClusterRefused as exc:
        return exc.status != 403
    return True
