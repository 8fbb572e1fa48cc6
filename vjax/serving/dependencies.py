"""What routes ask of a request before they run."""

from __future__ import annotations

from email.message import Message

from fastapi import Depends, Request

from vjax.serving.errors import ApiError
from vjax.serving.service import Service


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _read_json(request: Request) -> None:
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    if message.get_content_type() != "application/json" or not request.headers.get("content-type"):
        raise ApiError(400, "the Content-Type must be application/json.", "header.content-type", "Bad Request")


read_json = Depends(_read_json)
