"""The NodePools that the documentation shows, so that tests run what users copy."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from testbed.objects import KubernetesObject

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "autoscalers.md"
_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documented_pools(page: Path = PAGE) -> Mapping[str, KubernetesObject]:
    """Returns the NodePools of the page by their names. Raises ValueError if it has none, or two of a name."""
    objects = [found for block in _BLOCK.findall(page.read_text()) for found in yaml.safe_load_all(block)]
    pools = {found["metadata"]["name"]: found for found in objects if found["kind"] == "NodePool"}
    if not pools or len(pools) < len(objects):
        raise ValueError(f"{page} has {len(objects)} objects, of which {len(pools)} are different NodePools")
    return pools
