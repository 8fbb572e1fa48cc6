"""How well documents answer queries: from embeddings, or by a model that reads both together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vjax.errors import RequestError
from vjax.frontend.inputs import Prompt
from vjax.frontend.pooling import Pair, PoolingInputs

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer

Render = Callable[[str, str], str]  # a query and a document as one text


class Scoring:
    """Queries and documents, one with each, or one query with all. `prompts` are to be encoded; `scores` and `tokens`
    are then by pair.

    Raises `RequestError` for lists that do not fit, or a model that cannot score.
    """

    def __init__(
        self, inputs: PoolingInputs, queries: Sequence[str], documents: Sequence[str], *, render: Render | None = None,
        most_query: int | None = None, most_document: int | None = None,
        names: tuple[str, str] = ("queries", "documents"),
    ) -> None:  # fmt: skip
        if not inputs.scores:
            raise RequestError("this model has several classes, so it does not score pairs.", "model")
        if not queries or not documents:
            raise RequestError(f"{names[0] if not queries else names[1]} must not be empty.",
                               names[0] if not queries else names[1])  # fmt: skip
        if len(queries) not in (1, len(documents)):
            raise RequestError(
                f"{names[0]} must be one text or as many as {names[1]}: {len(queries)} and {len(documents)}.", names[0]
            )
        self.embeds = "embed" in inputs.pooling.tasks
        self.pairs = len(documents)
        self._queries = len(queries)
        self.prompts: list[Prompt | Pair]
        if self.embeds:
            self.prompts = [*queries, *documents]
            self.limits = [most_query] * len(queries) + [most_document] * len(documents)
            return
        both = list(zip(queries if len(queries) > 1 else [queries[0]] * self.pairs, documents, strict=True))
        if render is not None:
            self.prompts = [render(query, document) for query, document in both]
        else:
            self.prompts = [Pair(query, document, most_query, most_document) for query, document in both]
        self.limits = [None] * self.pairs

    @property
    def task(self) -> str:
        return "embed" if self.embeds else "classify"

    def scores(self, arrays: Sequence[np.ndarray]) -> list[float]:
        """Cosines of embeddings, or what the classifier says, by pair."""
        if not self.embeds:
            return [float(values[0]) for values in arrays]
        vectors = np.stack(arrays).astype(np.float32)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        queries, documents = vectors[: self._queries], vectors[self._queries :]
        return [float(value) for value in np.sum(queries * documents, axis=1)]

    def tokens(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        """The ids of each pair."""
        if not self.embeds:
            return list(prompts)
        queries, documents = prompts[: self._queries], prompts[self._queries :]
        return [[*queries[at if len(queries) > 1 else 0], *document] for at, document in enumerate(documents)]


def as_texts(value: object, name: str) -> list[str]:
    """A text or a list of them. Raises `RequestError` naming the field."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        raise RequestError(f"{name} must be a text or a list of texts.", name)
    return list(found)


def render_pair(tokenizer: Tokenizer, template: str | None, query: str, document: str, **variables: Any) -> str:
    """A query and a document by a chat template with these roles; the model's own template when None."""
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    return tokenizer.render_chat(messages, chat_template=template, add_generation_prompt=False, **variables)
