"""Converts the operator's settings to the policies that placement takes."""

import msgspec

from extender.config.tree import Config
from extender.images.platform import Compatibility, normalize_platform, parse_platform
from extender.placement.facts import RuntimeClass
from extender.placement.gate import CRITICAL_CLASSES, GateSettings
from extender.placement.nodes import NodeConditions
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Mode, Overrides, Policy


def policy_of(config: Config) -> Policy:
    """The policy for every decision."""
    scheduler, placement = config.scheduler, config.placement
    return Policy(
        pending=scheduler.pending,
        unknown=scheduler.unknown,
        assume=frozenset(map(parse_platform, scheduler.assume)),
        compatibility=msgspec.convert(placement, Compatibility, from_attributes=True),  # settings of the same names
        preference={
            normalize_platform("", architecture).architecture: boost
            for architecture, boost in placement.preference.items()
        },
        preference_by=placement.preference_by,
        preferred_nodes=preferred_nodes_of(config),
        runtime_classes={
            name: RuntimeClass(name, frozenset(map(parse_platform, platforms)))
            for name, platforms in placement.runtime_classes.items()
        },
        overrides=Overrides(mode=Mode(placement.mode)),
    )


def preferred_nodes_of(config: Config) -> NodeConditions:
    """The nodes to which a preference may pull pods."""
    nodes = config.placement.preferred_nodes
    return NodeConditions(nodes.labels, nodes.without_resources, frozenset(nodes.without_taints))


def admission_settings_of(config: Config) -> AdmissionSettings:
    """The policy for pods that are being created."""
    admission = config.admission
    return AdmissionSettings(
        tolerations=admission.tolerations,
        node_affinity=admission.node_affinity,
        scheduler_name=admission.scheduler_name,
        gate=GateSettings(
            unknown=admission.unknown,
            after=admission.gate.then,
            exempt_classes=CRITICAL_CLASSES.union(admission.gate.exempt_priority_classes),
        ),
        impossible=admission.impossible,
        platforms_annotation=admission.platforms_annotation,
    )
