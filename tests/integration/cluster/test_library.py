"""kubernetes-asyncio as the service imports it: little of it at first, and all of it for who asks."""

import asyncio
import json
import sys

_LIGHTEN = "from extender.cluster.library import lighten_library; lighten_library()\n"
_WHAT_WE_USE = """
from kubernetes_asyncio import client, config
from kubernetes_asyncio.client.rest import RESTClientObject
from kubernetes_asyncio.config import ConfigException
client.Configuration(), config.load_incluster_config, config.load_kube_config
"""
_TELL = """
import json, sys
print(json.dumps([name for name in sys.modules if name.startswith("kubernetes_asyncio")]))
"""


async def modules_after(program: str) -> set[str]:
    """The library's modules that a process of its own has imported once it has run `program`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", program + _TELL, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return set(json.loads(said))


async def test_what_we_use_brings_no_models() -> None:
    """The loaders of both configurations come without a single one of the generated classes."""
    modules = await modules_after(_LIGHTEN + _WHAT_WE_USE)
    assert "kubernetes_asyncio.config.kube_config" in modules
    assert not [name for name in modules if name.startswith("kubernetes_asyncio.client.models.")]
    assert not [name for name in modules if name.startswith("kubernetes_asyncio.client.api.")]


async def test_the_rest_is_there_for_who_asks() -> None:
    """As it is without us, the same objects included; a name that there is not is an AttributeError."""
    uses = (
        "from kubernetes_asyncio.client import configuration as c; assert client.Configuration is c.Configuration",
        "assert not hasattr(client, 'Nonsense')",
        "assert client.V1Pod().kind is None and client.CoreV1Api.__init__",
        "from kubernetes_asyncio.client.models import V1Pod; assert V1Pod is client.V1Pod",
        "from kubernetes_asyncio.client import *; assert V1Node().kind is None",
        "import kubernetes_asyncio; assert kubernetes_asyncio.__version__ and kubernetes_asyncio.watch.Watch",
    )
    await modules_after(_LIGHTEN + _WHAT_WE_USE + "\n".join(uses))


async def test_a_library_that_is_imported_already_is_left_alone() -> None:
    """Whoever imported it may hold its modules."""
    before = "import kubernetes_asyncio; before = kubernetes_asyncio.client\n"
    await modules_after(before + _LIGHTEN + "import sys; assert sys.modules['kubernetes_asyncio.client'] is before")
