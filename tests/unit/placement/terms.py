"""Requirements of node affinity as JSON."""

from typing import Any

from tests.builders import ARCH, OS, Json, expression

NO_NODE = {"key": "kubernetes.io/arch", "operator": "In", "values": ["no-common-platform"]}
LINUX, ZONE, IN_BOTH = expression(OS, "linux"), expression("zone", "a"), expression(ARCH, "amd64", "arm64")
IN_AMD64, IN_ARM64 = expression(ARCH, "amd64"), expression(ARCH, "arm64")


def matching(*expressions: Any, **fields: Any) -> Json:
    return {"matchExpressions": list(expressions), **fields}
