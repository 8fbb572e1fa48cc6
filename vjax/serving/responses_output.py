"""A growing answer of the Responses API: its items, and the events that tell of them."""

from __future__ import annotations

import copy
import time
import uuid
from typing import Any

from vjax.serving.errors import as_api_error, error_body
from vjax.serving.responses_input import ResponsesRequest

Event = dict[str, Any]


class Reply:
    """One answer. Its methods give the events to send, in order; `response` is the answer so far."""

    def __init__(self, body: ResponsesRequest, model: str, stored: bool) -> None:
        extra = body.model_extra or {}
        self.sequence = 0
        self.response: dict[str, Any] = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "queued" if body.background else "in_progress",
            "background": bool(body.background),
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": body.reasoning,
            "store": stored,
            "temperature": extra.get("temperature"),
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs,
            "top_p": extra.get("top_p"),
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": extra.get("user"),
        }
        self._open: Any = None  # the kind of the last item while it grows

    @property
    def id(self) -> str:
        id: str = self.response["id"]
        return id

    @property
    def over(self) -> bool:
        return self.response["status"] not in ("queued", "in_progress")

    def start(self) -> list[Event]:
        created = self._told("created")
        self.response["status"] = "in_progress"
        return [created, self._told("in_progress")]

    def take(self, kind: str, piece: Any) -> list[Event]:
        """What `dialects.pieces` gave."""
        if kind == "tool":
            events = self._switch(
                ("tool", piece["index"]),
                {
                    "id": f"fc_{uuid.uuid4().hex}",
                    "type": "function_call",
                    "call_id": piece["id"] or f"call_{uuid.uuid4().hex}",
                    "name": piece["name"] or "",
                    "arguments": "",
                },
            )
            if piece["arguments"]:
                self._item["arguments"] += piece["arguments"]
                events.append(self._of_item("function_call_arguments.delta", delta=piece["arguments"]))
            return events
        if kind == "reasoning":
            item = {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": [], "content": []}
            events = self._switch(kind, item, {"type": "reasoning_text", "text": ""})
            self._part["text"] += piece
            return [*events, self._of_part("reasoning_text.delta", delta=piece)]
        item = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "content": []}
        events = self._switch(kind, item, {"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        text, logprobs = piece["delta"]["content"], (piece.get("logprobs") or {}).get("content") or []
        self._part["text"] += text
        self._part["logprobs"] += logprobs
        return [*events, self._of_part("output_text.delta", delta=text, logprobs=logprobs)]

    def end(self, choice: dict[str, Any] | None, usage: dict[str, Any] | None) -> list[Event]:
        """The last events. `choice`: the chat's, for why it ended."""
        reason = (choice or {}).get("finish_reason")
        cut = reason == "length"
        events = [] if self.response["output"] else self.take("text", {"delta": {"content": ""}})
        events += self._close("incomplete" if cut else "completed")
        self.response["usage"] = None if usage is None else _usage(usage)
        if reason == "abort":
            return [*events, self._fail("server_error", "the server stopped.")]
        if cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.response["completed_at"] = int(time.time())
        self.response["status"] = "incomplete" if cut else "completed"
        return [*events, self._told(self.response["status"])]

    def fail(self, error: Exception) -> list[Event]:
        return [self._fail("server_error", error_body(as_api_error(error))["error"]["message"])]

    def cancel(self) -> list[Event]:
        """A cancelled answer keeps what it has."""
        events = self._close("incomplete")
        self.response["status"] = "cancelled"
        return [*events, self._told("incomplete")]

    def error_event(self, error: Exception) -> Event:
        told = error_body(as_api_error(error))["error"]
        return self._event("error", code=str(told["code"]), message=told["message"], param=told["param"])

    @property
    def _item(self) -> dict[str, Any]:
        item: dict[str, Any] = self.response["output"][-1]
        return item

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self._item["content"][-1]
        return part

    def _switch(self, kind: Any, item: dict[str, Any], part: dict[str, Any] | None = None) -> list[Event]:
        """End the open item and begin another, unless it is of that kind."""
        if self._open == kind:
            return []
        events = self._close("completed")
        self._open = kind
        self.response["output"].append({**item, "status": "in_progress"})
        events.append(self._of_list("output_item.added"))
        if part is not None:
            self._item["content"].append(part)
            events.append(self._of_part("content_part.added", part=dict(part)))
        return events

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, kind, self._open = self._item, self._open, None
        item["status"] = status
        if item["type"] == "function_call":
            call = {"arguments": item["arguments"], "name": item["name"]}
            return [self._of_item("function_call_arguments.done", **call), self._of_list("output_item.done")]
        part = copy.deepcopy(self._part)
        if kind == "reasoning":
            done = self._of_part("reasoning_text.done", text=part["text"])
        else:
            done = self._of_part("output_text.done", text=part["text"], logprobs=part["logprobs"])
        return [done, self._of_part("content_part.done", part=part), self._of_list("output_item.done")]

    def _fail(self, code: str, message: str) -> Event:
        self.response["status"], self.response["error"] = "failed", {"code": code, "message": message}
        return self._told("failed")

    def _told(self, name: str) -> Event:
        return self._event(f"response.{name}", response=copy.deepcopy(self.response))

    def _of_list(self, name: str) -> Event:
        index = len(self.response["output"]) - 1
        return self._event(f"response.{name}", output_index=index, item=copy.deepcopy(self._item))

    def _of_item(self, name: str, /, **fields: Any) -> Event:
        index = len(self.response["output"]) - 1
        return self._event(f"response.{name}", item_id=self._item["id"], output_index=index, **fields)

    def _of_part(self, name: str, /, **fields: Any) -> Event:
        return self._of_item(name, content_index=0, **fields)

    def _event(self, name: str, /, **fields: Any) -> Event:
        event = {"type": name, "sequence_number": self.sequence, **fields}
        self.sequence += 1
        return event


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    prompt, output = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens") or 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": output.get("reasoning_tokens") or 0},
        "total_tokens": usage["total_tokens"],
    }
