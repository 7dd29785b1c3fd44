"""Converts the operator's settings to the policies that placement takes."""

from extender.config.tree import Config
from extender.images.platform import Compatibility, normalize_platform, parse_platform
from extender.placement.annotations import Choice, Mode, Overrides
from extender.placement.facts import RuntimeClass
from extender.placement.gate import CRITICAL_CLASSES, AfterGate, GateSettings
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy


def policy_of(config: Config) -> Policy:
    """The policy for every decision."""
    scheduler, placement = config.scheduler, config.placement
    return Policy(
        pending=scheduler.pending,
        unknown=scheduler.unknown,
        assume=frozenset(map(parse_platform, scheduler.assume)),
        compatibility=Compatibility(
            run_386_on_amd64="386-on-amd64" in placement.compatibility,
            run_arm_on_arm64="arm-on-arm64" in placement.compatibility,
        ),
        preference={
            normalize_platform("", architecture).architecture: boost
            for architecture, boost in placement.preference.items()
        },
        preference_by=placement.preference_by,
        runtime_classes={
            name: RuntimeClass(name, frozenset(map(parse_platform, platforms)))
            for name, platforms in placement.runtime_classes.items()
        },
        overrides=Overrides(mode=Mode(placement.mode)),
    )


def admission_settings_of(config: Config) -> AdmissionSettings:
    """The policy for pods that are being created."""
    scheduler, admission = config.scheduler, config.admission
    may_assume = scheduler.unknown is Choice.ASSUME and admission.node_affinity.required
    return AdmissionSettings(
        tolerations=admission.tolerations,
        node_affinity=admission.node_affinity,
        scheduler_name=admission.scheduler_name,
        gate=GateSettings(
            unknown=admission.unknown,
            after=AfterGate.ASSUME if may_assume else AfterGate.PASS,
            exempt_classes=CRITICAL_CLASSES.union(admission.gate.exempt_priority_classes),
        ),
        impossible=admission.impossible,
        platforms_annotation=admission.platforms_annotation,
    )
