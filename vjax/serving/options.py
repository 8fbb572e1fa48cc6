"""`ServerOptions`: what the HTTP server needs beside the engine's options, named as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vjax.config import option


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The command line is generated from these fields."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for all")
    port: int = option(8000, "port to listen on")
    uds: str | None = option(None, "Unix domain socket to listen on instead")
    served_model_name: list[str] | None = option(None, "names that clients may use; the first is reported")
    api_key: list[str] | None = option(None, "keys that clients must send as bearer tokens to /v1")
    chat_template: str | None = option(None, "file with a jinja chat template, instead of the model's own")
    response_role: str = option("assistant", "role of answers")
    generation_config: str = option("auto", "auto: sampling defaults of the model; vllm: the API's own")
    allowed_origins: list[str] | None = option(None, "origins that browsers may call from")
    root_path: str = option("", "path under which a proxy shows the server")
    ssl_keyfile: str | None = option(None, "TLS key file")
    ssl_certfile: str | None = option(None, "TLS certificate file")
    max_request_body_bytes: int = option(32 << 20, "largest request body", size=True)
    shutdown_timeout: int = option(15, "seconds that open requests may take to finish when the server stops")
    enable_prompt_tokens_details: bool = option(False, "report cached tokens in usage")
    enable_force_include_usage: bool = option(False, "send usage on every stream")
    enable_request_id_headers: bool = option(False, "send X-Request-Id back")
    return_tokens_as_token_ids: bool = option(False, "show tokens in logprobs as token_id:N")
    enable_log_requests: bool = option(False, "log every request")
    uvicorn_log_level: Literal["debug", "info", "warning", "error", "critical"] = option("info", "uvicorn's log level")
    disable_uvicorn_access_log: bool = option(False, "no line a request")
