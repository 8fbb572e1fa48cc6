"""Starts a server on a small real model, asks it one question through the official `openai` client, and stops it.

python scripts/demo.py [--keep-running] [--model MODEL] [--question TEXT]
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

QUESTION = "What is the capital of France, and what is it known for?"
MAX_TOKENS = 96
START_TIMEOUT = 900.0  # seconds: the first start also downloads 100 MB and compiles
STOP_TIMEOUT = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve a small model and ask it one question.")
    parser.add_argument("--model", default="smollm2-demo")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--keep-running", action="store_true", help="leave the server running until Ctrl-C")
    args = parser.parse_args()
    try:
        import openai
    except ImportError:
        print('demo: the openai client is missing: pip install "vjax[demo]"', file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    port = free_port()
    command = [sys.executable, "-m", "vjax.serve", args.model, "--port", str(port)]
    print("$", " ".join(["python", *command[1:]]), flush=True)
    started = time.perf_counter()
    server = subprocess.Popen([*command, "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"])
    try:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/health")
        print(f"\nReady after {time.perf_counter() - started:.1f} s.", flush=True)
        ask(f"http://127.0.0.1:{port}/v1", args.question)
        if args.keep_running:
            print(f"\nThe server runs on http://127.0.0.1:{port}/v1 until Ctrl-C.", flush=True)
            return server.wait()
        return 0
    except (DemoError, openai.OpenAIError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        stop(server)


class DemoError(Exception):
    """What went wrong, for the person who started the demo."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_until_healthy(server: subprocess.Popen[bytes], url: str) -> None:
    """The server's own progress shows meanwhile. Raises `DemoError` when it does not come up."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if (code := server.poll()) is not None:
            raise DemoError(f"the server ended with exit code {code}; its last lines say why.")
        try:
            with direct.open(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise DemoError(f"the server was not ready after {START_TIMEOUT:.0f} s.")


def ask(base_url: str, question: str) -> None:
    """Prints the answer as it arrives, then its speed."""
    import openai

    # No proxy on the way to this machine. By environment, as openai's HTTP library changes with its version.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120) as client:
        model = client.models.list().data[0].id
        print(f"\n{model} is asked: {question}\n", flush=True)
        started = time.perf_counter()
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=MAX_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
        )
        usage, times = None, []
        for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices and (text := chunk.choices[0].delta.content):
                times.append(time.perf_counter())
                print(text, end="", flush=True)
    report(usage, [at - started for at in times])


def report(usage: Any, times: list[float]) -> None:
    """`times`: seconds from the question to each piece of the answer."""
    if usage is None or not times:
        raise DemoError("the answer was empty.")
    tokens = usage.completion_tokens
    rate = f", then {(tokens - 1) / (times[-1] - times[0]):.1f} tokens/s" if len(times) > 1 else ""
    print(
        f"\n\n{usage.prompt_tokens} prompt tokens, {tokens} generated: first token after {times[0]:.2f} s{rate}.",
        flush=True,
    )


def stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
