"""Compares three ways to carry the engine's messages between two processes: a Unix socket with asyncio streams (what
vjax uses), pyzmq over ipc, and a multiprocessing pipe read by a thread.

    python -m benches.ipc [--rows 64] [--turns 3000]

Prints, for each, the round trip of a one-request message (median, 99th percentile) and the turns per second that a
child can hand over at `rows` outputs each, decoded in the parent's event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from vjax.engine.messages import EngineOutput, EngineRequest, EngineStats
from vjax.engine.wire import Add, ToEngine, ToFrontend, Turn
from vjax.sampling_params import SamplingParams

LENGTH = struct.Struct("<I")
ECHOES = 2000
encode = msgspec.msgpack.Encoder().encode
decode_add = msgspec.msgpack.Decoder(ToEngine).decode
decode_turn = msgspec.msgpack.Decoder(ToFrontend).decode


def turn(rows: int) -> Turn:
    return Turn([EngineOutput(f"chatcmpl-{i:032x}", [1000 + i]) for i in range(rows)], EngineStats(running=rows))


def child(receive: Callable[[], bytes], send: Callable[[bytes], Any], rows: int, turns: int) -> None:
    """Echoes, then floods."""
    for _ in range(ECHOES):
        decode_add(receive())
        send(encode(turn(1)))
    receive()
    for _ in range(turns):
        send(encode(turn(rows)))
    receive()


async def parent(receive: Callable[[], Awaitable[bytes]], send: Callable[[bytes], Awaitable[Any]], turns: int) -> str:
    message = Add([EngineRequest("chatcmpl-0", list(range(200)), SamplingParams())])
    trips = []
    for _ in range(ECHOES):
        start = time.perf_counter()
        await send(encode(message))
        decode_turn(await receive())
        trips.append((time.perf_counter() - start) * 1e6)
    await send(encode(message))
    start = time.perf_counter()
    for _ in range(turns):
        decode_turn(await receive())
    rate = turns / (time.perf_counter() - start)
    await send(encode(message))
    trips.sort()
    return f"round trip {statistics.median(trips):6.0f} us, p99 {trips[-ECHOES // 100]:6.0f} us; {rate:8.0f} turns/s"


def socket_child(sock: socket.socket, rows: int, turns: int) -> None:
    stream = sock.makefile("rb")
    child(
        lambda: stream.read(LENGTH.unpack(stream.read(4))[0]),
        lambda data: sock.sendall(LENGTH.pack(len(data)) + data),
        rows,
        turns,
    )


async def over_socket(rows: int, turns: int) -> str:
    ours, theirs = socket.socketpair()
    process = spawn(socket_child, theirs, rows, turns)
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)

    async def receive() -> bytes:
        return await reader.readexactly(LENGTH.unpack(await reader.readexactly(4))[0])

    async def send(data: bytes) -> None:
        writer.write(LENGTH.pack(len(data)) + data)

    try:
        return await parent(receive, send, turns)
    finally:
        writer.close()
        process.join(10)


def zmq_child(address: str, rows: int, turns: int) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.connect(address)
        child(sock.recv, sock.send, rows, turns)


async def over_zmq(rows: int, turns: int) -> str:
    import zmq.asyncio

    with tempfile.TemporaryDirectory() as folder, zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.bind(f"ipc://{folder}/engine")
        process = spawn(zmq_child, f"ipc://{folder}/engine", rows, turns)
        try:
            return await parent(sock.recv, sock.send, turns)
        finally:
            process.join(10)


def pipe_child(pipe: Any, rows: int, turns: int) -> None:
    child(pipe.recv_bytes, pipe.send_bytes, rows, turns)


async def over_pipe(rows: int, turns: int) -> str:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = spawn(pipe_child, theirs, rows, turns)
    loop, inbox = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        for _ in range(ECHOES + turns):
            loop.call_soon_threadsafe(inbox.put_nowait, ours.recv_bytes())

    async def send(data: bytes) -> None:
        ours.send_bytes(data)

    thread = asyncio.create_task(asyncio.to_thread(read))
    try:
        return await parent(inbox.get, send, turns)
    finally:
        await thread
        process.join(10)


def spawn(target: Callable[..., None], *args: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=target, args=args, daemon=True)
    process.start()
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3000)
    args = parser.parse_args()
    print(f"{len(encode(turn(args.rows)))} bytes a turn of {args.rows} outputs")
    for name, way in (("socket", over_socket), ("pyzmq", over_zmq), ("pipe", over_pipe)):
        print(f"{name:7}", asyncio.run(way(args.rows, args.turns)), flush=True)


if __name__ == "__main__":
    main()
