"""Thoughts before a form: free text up to the mark that ends them, and the form of the answer from there on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from vjax.engine.structural_tag import Rules
from vjax.structured_outputs import Thinking

FORM = "form"
ANYTHING = "(<[*]>)*"  # tokens, special ones too


def with_thoughts(thinking: Thinking, form: str | None, rules: Rules, tokens: Sequence[bytes]) -> str:
    """llguidance's description of both. `form`: that of the answer, None for any. Raises `ValueError`."""
    starts = _either(rules.literal(mark) for mark in thinking.starts)
    ends = list(thinking.ends)
    if thinking.budget is None:
        thoughts = rules.rule(" | ".join(rules.until(end) for end in ends))
    else:
        end = next((f"<[{tokens.index(mark)}]>" for end in ends if (mark := end.strip().encode()) in tokens), None)
        if end is None:
            raise ValueError("this model's mark for the end of its thoughts is not one token, so none can be forced")
        # A rule's `max_tokens` cannot be zero.
        thoughts = rules.rule(f"{rules.limited(thinking.budget)} {end}" if thinking.budget else end)
    answer = " ".join(filter(None, [rules.literal(thinking.lead) if thinking.lead else "", r"/\n*/ " if form else ""]))
    answer += f"@{FORM}" if form else ANYTHING
    if thinking.opened:
        start = f"{starts}? {thoughts} {answer}"
    elif form:
        start = f"({starts} {thoughts})? {answer}"
    else:
        start = f"{starts} {thoughts} {answer} | {_other_than(thinking.starts, tokens)} {answer}"
    lark = "\n".join(["%llguidance {}", f"start: {start}", *rules.lines, ""])
    return json.dumps({"grammars": [{"lark_grammar": lark}, *([] if form is None else [_named(form)])]})


def _either(parts: Iterable[str]) -> str:
    return f"({' | '.join(parts)})"


def _other_than(marks: Sequence[str], tokens: Sequence[bytes]) -> str:
    """A first token that begins no thoughts."""
    ids = {tokens.index(mark.strip().encode()) for mark in marks if mark.strip().encode() in tokens}
    if not ids:
        raise ValueError("this model's mark for the start of its thoughts is not one token")
    return f"<[^{','.join(map(str, sorted(ids)))}]>"


def _named(form: str) -> dict[str, object]:
    if not form.startswith("{"):
        return {"name": FORM, "lark_grammar": form}
    (grammar,) = json.loads(form)["grammars"]
    return {**grammar, "name": FORM}
