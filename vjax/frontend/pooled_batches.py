"""Batches of texts on an engine that encodes, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from vjax.errors import RequestError
from vjax.frontend.files import FrontendFiles
from vjax.frontend.inputs import Prompt
from vjax.frontend.pooling import Pair, PoolingInputs, PreparedPooling, as_array
from vjax.outputs import PoolingRequestOutput
from vjax.pooling_params import PoolingParams

if TYPE_CHECKING:
    from vjax.engine.child import Core


class PooledBatches:
    """Not thread-safe."""

    def __init__(self, engine: Core, files: FrontendFiles) -> None:
        self.engine = engine
        self.inputs = PoolingInputs(files.tokenizer, engine.limits, lower_case=files.lower_case)
        self._numbers = itertools.count()

    def run(
        self, prompts: Sequence[Prompt | Pair], params: Sequence[PoolingParams], show: bool,
        add_special_tokens: bool = True,
    ) -> list[PoolingRequestOutput]:  # fmt: skip
        """One output for each prompt. Raises `RequestError` for any bad one before any of them starts."""
        requests: list[PreparedPooling] = []
        for at, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            try:
                name = str(next(self._numbers))
                requests.append(self.inputs.process(name, prompt, one, add_special_tokens=add_special_tokens))
            except RequestError as error:
                where = f"prompt {at}: " if len(prompts) > 1 else ""
                raise RequestError(f"{where}{error}", error.param) from None
        pieces = [piece for request in requests for piece in request.pieces]
        found: dict[str, np.ndarray] = {}
        try:
            for piece in pieces:
                self.engine.add(piece)
            with tqdm(total=len(pieces), desc="Texts", disable=not show, dynamic_ncols=True) as bar:
                while len(found) < len(pieces):
                    outputs = self.engine.step()
                    found |= {one.request_id: as_array(one.pooled) for one in outputs if one.pooled is not None}
                    bar.update(len(outputs))
        except BaseException:  # Ctrl-C above all: the next call must find an empty engine
            self.engine.abort(piece.request_id for piece in pieces)
            raise
        return [request.output([found[piece.request_id] for piece in request.pieces]) for request in requests]
