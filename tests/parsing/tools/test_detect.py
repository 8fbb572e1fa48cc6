"""The format is known from a chat template."""

# ruff: noqa: RUF001  (DeepSeek's markers have wide bars)

from __future__ import annotations

import pytest

from tests.parsing.tools.cases import TEXTS
from vjax.parsing.tools import NAMES, detect
from vjax.parsing.tools.detect import SIGNS

TEMPLATES = [
    ("hermes", "{{ '<tool_call>\\n{\"name\": \"' + call.name + '\"' }}<|im_end|>"),
    ("qwen3_coder", "'<tool_call>\\n<function=' + call.name + '>\\n' ... '<parameter=' + name + '>\\n'"),
    ("glm45", "<tool_call>{{ call.name }}\n{% for k, v in a %}\n<arg_key>{{ k }}</arg_key>\n<arg_value>"),
    ("glm47", "{{- '<tool_call>' + call.name -}}<arg_key>{{ k }}</arg_key><arg_value>"),
    ("llama3_json", "<|start_header_id|>assistant ... '{\"name\": \"' + call.name + '\", ' + '\"parameters\": '"),
    ("openai", "<|start|>assistant<|channel|>analysis<|message|>"),
    ("muse", "<|start|>assistant to={{ name }}<|message|><atem:function_calls>\n<atem:invoke name="),
    ("mistral", "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"),
    ("deepseek_v3", "'<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + name + '\\n```json\\n'"),
    ("deepseek_v31", "'<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments"),
    ("deepseek_v32", "{% set dsml = '｜DSML｜' %}'<' + dsml + 'function_calls>'"),
    ("kimi_k2", "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>"),
    ("gemma4", "'<|tool_call>call:' + name + '{'"),
    ("granite4", "<|start_of_role|>assistant<|end_of_role|><tool_call>"),
    ("jamba", "'<tool_calls>[' ... ']</tool_calls>'"),
    ("minimax_m2", "<minimax:tool_call>"),
    (None, "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"),
]


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_detect(name: str | None, template: str) -> None:
    assert detect(template) == name


def test_signs_name_formats_and_stand_in_their_texts() -> None:
    """A format's own text is a template that shows a call: what is detected reads it."""
    assert {name for name, *_ in SIGNS} <= set(NAMES)
    for name in ("seed_oss", "step3", "apertus", "longcat", "minicpm5", "inkling", "dots", "k2_horizon", "plamo3"):
        assert detect(TEXTS[name]) == name
