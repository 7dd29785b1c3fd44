"""Simulated time with sockets and threads."""

import asyncio
import time

from testbed.simulated_time import run_simulated


def test_time_jumps_while_both_ends_of_a_connection_wait_and_stands_still_while_a_thread_works() -> None:
    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)
        writer.write(await reader.readline())
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer_late, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"line\n")
            work = asyncio.to_thread(time.sleep, 0.05)
            line, _ = await asyncio.gather(reader.readline(), work)
            assert line == b"line\n"
            writer.close()
        async with asyncio.timeout(0.01):
            await asyncio.to_thread(time.sleep, 0.05)
        assert asyncio.get_running_loop().time() == 3600

    run_simulated(run())
