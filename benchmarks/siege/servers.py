"""What the service asks: `python -m benchmarks.siege.servers ROLE CERTIFICATE KEY`; honest or attacking.

The honest program is the API server, the name server, the mirror, and the registries of everybody. It prints a line
when it listens, and ends when standard input is closed.
"""

import asyncio
import logging
import os
import ssl
import sys

import uvloop
from aiohttp import web

from benchmarks.siege.answers import NODES
from benchmarks.siege.api_server import ApiServer
from benchmarks.siege.name_server import NameServer
from benchmarks.siege.network import (
    API_PORT,
    API_SERVER,
    ATTACKING_REGISTRY,
    HONEST_REGISTRIES,
    MIRROR_ADDRESS,
    NAME_SERVER,
)
from benchmarks.siege.registries import Answer, Registries


async def _serve(role: str, certificate: str, key: str) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    answer = Registries().answer
    if role == "honest":
        await asyncio.get_running_loop().create_datagram_endpoint(NameServer, local_addr=(NAME_SERVER, 53))
        await _listen(ApiServer(NODES).answer, API_SERVER, API_PORT, None)
        for address in (*HONEST_REGISTRIES, MIRROR_ADDRESS):
            await _listen(answer, address, 443, tls)
    else:
        await _listen(answer, ATTACKING_REGISTRY, 443, tls)
    print("true", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # watches are open, and many requests hang


async def _listen(answer: Answer, address: str, port: int, tls: ssl.SSLContext | None) -> None:
    runner = web.ServerRunner(web.Server(answer, access_log=None, handler_cancellation=True))
    await runner.setup()
    await web.TCPSite(runner, address, port, ssl_context=tls, backlog=1024).start()


if __name__ == "__main__":
    logging.getLogger("asyncio").disabled = True  # uvloop reports each TLS connection that is cut off
    uvloop.run(_serve(*sys.argv[1:]))
