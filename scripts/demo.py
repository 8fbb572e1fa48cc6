"""Starts a server on a small real model, asks it one question through the `openai` client, and stops it.

python scripts/demo.py [--keep-running] [--model MODEL] [--question TEXT]
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

START_TIMEOUT = 900.0  # seconds: the first start also downloads 100 MB and compiles
STOP_TIMEOUT = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve a small model and ask it one question.")
    parser.add_argument("--model", default="smollm2-demo")
    parser.add_argument("--question", default="Why is the sky blue? Answer in two sentences.")
    parser.add_argument("--keep-running", action="store_true", help="leave the server running until Ctrl-C")
    args = parser.parse_args()
    try:
        from openai import OpenAI
    except ImportError:
        print('demo: the openai client is missing: pip install "vjax[demo]"', file=sys.stderr)
        return 1
    port = free_port()
    command = [sys.executable, "-m", "vjax.serve", args.model, "--port", str(port), "--disable-uvicorn-access-log"]
    print("$", " ".join(["python", *command[1:]]), flush=True)
    server = subprocess.Popen([*command, "--uvicorn-log-level", "warning"])
    try:
        if not wait_until_healthy(server, f"http://127.0.0.1:{port}/health"):
            return 1
        ask(OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=120), args.question)
        if args.keep_running:
            print(f"\nThe server runs on http://127.0.0.1:{port}/v1 until Ctrl-C.", flush=True)
            return server.wait()
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        stop(server)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_until_healthy(server: subprocess.Popen[bytes], url: str) -> bool:
    """The server's own progress shows meanwhile. False, with a line that says why, when it does not come up."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if (code := server.poll()) is not None:
            print(f"demo: the server ended with exit code {code}; its last lines say why.", file=sys.stderr)
            return False
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    print(f"demo: the server was not ready after {START_TIMEOUT:.0f} s.", file=sys.stderr)
    return False


def ask(client: Any, question: str) -> None:
    """Prints the answer as it arrives, then its speed."""
    model = client.models.list().data[0].id
    print(f"\n> {question}\n", flush=True)
    started = time.perf_counter()
    first = last = started
    tokens = 0
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            last = time.perf_counter()
            first = last if first == started else first
            print(text, end="", flush=True)
    rate = f"{(tokens - 1) / (last - first):.1f} tokens/s" if tokens > 1 and last > first else "one token"
    print(f"\n\nTime to first token {first - started:.3f} s, then {rate} ({tokens} tokens).", flush=True)


def stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
