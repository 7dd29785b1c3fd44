"""Templates of pods, and what becomes of them when their object is created."""

from collections.abc import Mapping

import msgspec

from extender.kubernetes.pod_templates import PodTemplate, pod_templates
from extender.placement.annotations import Overrides
from extender.placement.facts import ImageFact, images_of
from extender.placement.node_kinds import NodeKind
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.templates import (
    ChangedTemplate,
    TemplateAnswer,
    TemplateOwner,
    TemplateQuestion,
    Templates,
    read_template,
)
from tests.builders import Json

NOBODY = TemplateOwner()


def job(**spec: object) -> Json:
    containers = [{"name": "c", "image": "app:1", "args": ["run"]}]
    template = {"spec": {"containers": containers, "initContainers": [{"name": "i", "image": "init:1"}], **spec}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}


def template_of(document: Json) -> PodTemplate:
    [found] = pod_templates(document)
    return found


def reviewed(
    templates: Templates,
    found: PodTemplate,
    *facts: ImageFact,
    owner: TemplateOwner = NOBODY,
    cluster: ClusterNodes = NO_NODES,
    kinds: Mapping[NodeKind, int] | None = None,
) -> TemplateAnswer:
    """What becomes of the template when its object is created; one fact counts for all images."""
    pod = read_template(msgspec.json.encode(found.template))
    question = TemplateQuestion(pod, Overrides(), images_of(pod))
    all_facts = facts if len(facts) > 1 else facts * len(question.images)
    return templates.review(ChangedTemplate(found, owner, question), all_facts, cluster, kinds)
