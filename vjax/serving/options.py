"""`ServerOptions`: what the HTTP server needs beside the engine's options, named as in vLLM."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vjax.config import option
from vjax.errors import ModelError
from vjax.parsing.reasoning import NAMES as REASONING
from vjax.parsing.tools import NAMES as CALLS


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The command line is generated from these fields."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for all")
    port: int = option(8000, "port to listen on")
    uds: str | None = option(None, "Unix domain socket to listen on instead")
    served_model_name: list[str] | None = option(None, "names that clients may use; the first is reported")
    api_key: list[str] | None = option(None, "keys that clients must send to /v1; or one in $VJAX_API_KEY")
    chat_template: str | None = option(None, "file with a jinja chat template, instead of the model's own")
    trust_request_chat_template: bool = option(False, "let requests bring a chat template of their own")
    reasoning_parser: str | None = option(
        None,
        "how the model marks its thoughts, by vLLM's name for its family, or auto for what the chat template tells",
    )
    tool_call_parser: str | None = option(
        None, "how the model writes calls of tools, by vLLM's name, or auto for what the chat template shows"
    )
    enable_auto_tool_choice: bool = option(False, "let the model choose whether to call; needs --tool-call-parser")
    response_role: str = option("assistant", "role of answers")
    generation_config: Literal["auto", "vllm"] = option(
        "auto", "auto: sampling defaults of the model; vllm: the API's own"
    )
    allowed_origins: list[str] | None = option(None, "origins that browsers may call from")
    allowed_methods: list[str] | None = option(None, "methods that browsers may use; all by default")
    allowed_headers: list[str] | None = option(None, "headers that browsers may send; all by default")
    allow_credentials: bool = option(False, "let browsers send cookies")
    root_path: str = option("", "path under which a proxy shows the server")
    ssl_keyfile: str | None = option(None, "TLS key file")
    ssl_certfile: str | None = option(None, "TLS certificate file")
    max_request_body_bytes: int = option(32 << 20, "largest request body", size=True)
    max_num_queued_reqs: int | None = option(
        None, "most requests that may wait behind those that can run at once; the next get a 503 with Retry-After"
    )
    enable_server_dev_mode: bool = option(
        False, "serve the routes for operators: /sleep, /reset_prefix_cache, /abort_requests, /start_profile ..."
    )
    profile_dir: str | None = option(None, "folder for the traces of /start_profile")
    shutdown_timeout: int = option(15, "seconds that open requests may take to finish when the server stops")
    stream_interval: int = option(1, "tokens between two chunks of a stream, at least")
    enable_prompt_tokens_details: bool = option(False, "report cached tokens in usage")
    enable_force_include_usage: bool = option(False, "send usage on every stream")
    enable_per_request_metrics: bool = option(False, "report the times of a request in its answer")
    enable_tokenizer_info_endpoint: bool = option(False, "serve /tokenizer_info, which shows the chat template")
    fingerprint_mode: Literal["full", "hash", "none"] = option(
        "full", "system_fingerprint in answers: version, model and dtype with a hash of the options, or the hash alone"
    )
    responses_store: int = option(
        0, "memory for answers of /v1/responses, for previous_response_id and background; 0: none is kept", size=True
    )
    enable_request_id_headers: bool = option(False, "send X-Request-Id back")
    return_tokens_as_token_ids: bool = option(False, "show tokens in logprobs as token_id:N")
    enable_log_requests: bool = option(False, "log every request")
    uvicorn_log_level: Literal["debug", "info", "warning", "error", "critical"] = option("info", "uvicorn's log level")
    disable_uvicorn_access_log: bool = option(False, "no line a request")

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ModelError(f"--port must be in [0, 65535], got {self.port}.")
        for flag, name, names in (
            ("--reasoning-parser", self.reasoning_parser, REASONING),
            ("--tool-call-parser", self.tool_call_parser, CALLS),
        ):
            if name is not None and name != "auto" and name not in names:
                raise ModelError(f"{flag} must be auto or one of {', '.join(sorted(names))}; got {name!r}.")
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ModelError("--enable-auto-tool-choice needs --tool-call-parser.")
        if not all(self.served_model_name or ()):
            raise ModelError("--served-model-name must not be empty.")
        if self.stream_interval < 1:
            raise ModelError("--stream-interval must be positive.")
        if self.responses_store < 0:
            raise ModelError("--responses-store must not be negative.")
        if self.max_request_body_bytes < 1:
            raise ModelError("--max-request-body-bytes must be positive.")
        if self.max_num_queued_reqs is not None and self.max_num_queued_reqs < 0:
            raise ModelError("--max-num-queued-reqs must not be negative.")
        if self.profile_dir is not None and not self.enable_server_dev_mode:
            raise ModelError("--profile-dir needs --enable-server-dev-mode.")
        if self.shutdown_timeout < 0:
            raise ModelError("--shutdown-timeout must not be negative.")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ModelError("--ssl-keyfile and --ssl-certfile are needed together.")
        for flag, path in (("--ssl-keyfile", self.ssl_keyfile), ("--ssl-certfile", self.ssl_certfile)):
            if path is not None and not Path(path).is_file():
                raise ModelError(f"{flag}: {path} is not a file.")

    def api_keys(self) -> list[str]:
        """A command line can be seen by every process of the machine; the environment is for keys that must not."""
        own = os.environ.get("VJAX_API_KEY")
        return self.api_key or ([own] if own else [])

    def read_chat_template(self) -> str | None:
        """The text of `--chat-template`: a file, or the template itself. Raises `ModelError` naming the file."""
        given = self.chat_template
        if given is None or any(mark in given for mark in ("{{", "{%", "\n")):
            return given
        try:
            return Path(given).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"--chat-template: {given} cannot be read ({error}).") from None
