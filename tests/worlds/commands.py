"""What `explain` and `fix` say of pods in a world, by the functions that they call once they have read their input.

They have the settings of a replica, and ask the world's registries and API server themselves.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from unittest.mock import patch

import yaml

from extender.cli.explain import explain_all
from extender.cli.explain_target import ExplainTarget
from extender.cli.lookups import answer_of, open_lookups
from extender.cli.manifest_files import Manifests, SourcedObject
from extender.cluster.client import ClusterClient
from extender.cluster.configuration import Access
from extender.cluster.workload_lists import list_nodes
from extender.config.reading import load_config
from extender.images.content import Content, Failure
from extender.manifests.fixing import ManifestStream
from extender.placement.facts import ImageFact, PodImage, fact_of
from extender.placement.templates import Templates
from extender.reports.explanation import Explanation, cluster_nodes
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_settings_of, policy_of
from testbed.machines import machine_in
from tests.worlds.circumstances import Circumstances
from tests.worlds.plan import Manifest

_MACHINE = "extender.cli.lookups.THIS_MACHINE"


class Commands:
    """Runs commands on a machine of their own."""

    def __init__(self, world: Circumstances) -> None:
        replica = world.replicas[0]
        self._access = replica.access
        self._config = load_config(None, replica.settings)
        self._machine = machine_in(world.network, "commands")

    async def explain(self, manifests: Sequence[Manifest]) -> Sequence[Explanation]:
        """What `explain -f` says of the pods, in order."""
        given = Manifests([SourcedObject(each, "pods.yaml") for each in manifests])
        async with self._client() as client:
            subjects = await ExplainTarget.parse(None, "", given).find(client)
            return await explain_all(subjects, self._config, client)

    async def fix(self, manifest: Manifest, namespace: Manifest) -> Manifest | None:
        """The pod as `fix -f` writes it beside its namespace; None where it is left as it is, with a warning."""
        async with self._client() as client:
            cluster = cluster_nodes(await list_nodes(client))
        fixer = Templates(policy_of(self._config), admission_settings_of(self._config), cluster=cluster)
        stream = ManifestStream(yaml.safe_dump_all([namespace, manifest]), fixer)
        answers = await self._look_up(stream.images)

        def facts_of(images: Sequence[PodImage]) -> list[ImageFact]:
            return [fact_of(image, answers[image.reference], may_be_pending=False) for image in images]

        text, findings = stream.fix(facts_of)
        if any(each.change.unknown or each.change.warnings or each.change.gap for each in findings):
            return None
        fixed: Manifest = list(yaml.safe_load_all(text))[1]
        return fixed

    async def _look_up(self, images: Sequence[PodImage]) -> dict[str, Content | Failure]:
        with patch(_MACHINE, self._machine):
            async with open_lookups(self._config, ClusterView()) as (_, pod_resolver):
                resolver, keyring = pod_resolver.resolver, pod_resolver.keyring
                return {
                    image.reference: answer_of(await resolver.describe(image.reference, keyring)) for image in images
                }

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClusterClient]:
        async def load() -> Access:
            return self._access

        client = ClusterClient(self._access, load, self._machine.clock)
        with patch(_MACHINE, self._machine):
            try:
                yield client
            finally:
                await client.close()
