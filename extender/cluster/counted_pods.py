"""Pods whose starts are counted: their label, and what to watch. Pods without it are not read."""

from extender.cluster.listwatch import Resource
from extender.cluster.pods import PODS
from extender.placement.annotations import PREFIX

COUNTED_LABEL = f"{PREFIX}count-starts"
"""The label of pods whose starts are counted; its value is `true`."""
COUNTED_PODS = Resource(name="counted-pods", path=PODS, query={"labelSelector": f"{COUNTED_LABEL}=true"})
