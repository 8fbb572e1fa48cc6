from __future__ import annotations

from datetime import datetime

import pytest

from tests.tokenizing.vocabularies import CHATML
from vjax.errors import RequestError
from vjax.tokenizing import chat_template
from vjax.tokenizing.chat_template import compile_template, render_chat

USER = {"role": "user", "content": "Hi"}


def test_blocks_are_trimmed_as_models_expect() -> None:
    template = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend"
    assert render_chat(template, [USER]) == "Hi\nend"


def test_tojson_keeps_order_and_letters() -> None:
    tools = [{"name": "ß", "a": "<&'>"}]
    assert render_chat("{{ tools | tojson }}", [], tools=tools) == '[{"name": "ß", "a": "<&\'>"}]'
    assert render_chat("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", []) == '{\n "a": 2,\n "b": 1\n}'
    assert render_chat("{{ 'ß' | tojson(ensure_ascii=true) }}", []) == '"\\u00df"'


def test_extensions() -> None:
    loop = "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    assert render_chat(loop, [USER, USER]) == "Hi"
    assert render_chat("a{% generation %}b{{ 1 }}{% endgeneration %}c", []) == "ab1c"
    assert render_chat("{{ strftime_now('%Y') }}", []) in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_variables_reach_the_template() -> None:
    template = (
        "{{ bos_token }}{{ documents | length }}{{ add_generation_prompt }}{{ enable_thinking }}{{ tools is none }}"
    )
    text = render_chat(template, [], documents=[{}], bos_token="<s>", enable_thinking=False)
    assert text == "<s>1TrueFalseTrue"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{{ raise_exception('roles must alternate') }}", "line 2: roles must alternate"),
        ("a\n\n{% for %}", "line 3: "),
        ("{{ nothing.at.all }}", "line 1: 'nothing' is undefined"),
        ("{{ 'a' + 1 }}", "line 1: can only concatenate str"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ 'aaaa' * 100000 }}", "repetition"),
        ("{{ 1000000 * [0] }}", "repetition"),
        ("{{ 9 ** 9 }}", "powers"),
        ("{{ 'a'.ljust(1000000000) }}", "'ljust' of 'str' object is unsafe"),
        ("{{ 'a' | center(1000000000) }}", "No filter named 'center'"),
        ("{{ lipsum(1000000) }}", "'lipsum' is undefined"),
        ("{% for i in range(10000000) %}{% endfor %}", "Range too big"),
        ("{% include 'x' %}", "no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_failures_name_the_line(template: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render_chat(template, [USER])
    assert "\n" not in str(caught.value)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="longer than"):
        render_chat("x" * (chat_template.MAX_TEMPLATE_CHARS + 1), [])
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 1000)
    with pytest.raises(RequestError, match="more than 1000 characters"):
        render_chat("{% for i in range(99999) %}{{ i }}{% endfor %}", [])


def test_compiled_once() -> None:
    assert compile_template(CHATML) is compile_template(CHATML)


def test_messages_are_not_changed() -> None:
    messages = [USER, {"role": "assistant", "content": "Sure"}]
    render_chat(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == [USER, {"role": "assistant", "content": "Sure"}]


@pytest.mark.parametrize(
    ("content", "template", "expected"),
    [
        ("Sure, ", CHATML, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure, "),
        ("", CHATML, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        ("<|im_end|>", CHATML, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|>"),
        ("Sure, ", "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", "[Hi][Sure,"),
        ([{"type": "text", "text": "A"}], "{{ messages[-1].content[0].text }}/end", "A"),
    ],
)
def test_continue_final_message(content: object, template: str, expected: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    assert render_chat(template, messages, add_generation_prompt=False, continue_final_message=True) == expected


@pytest.mark.parametrize(
    ("messages", "template", "generation", "message"),
    [
        ([USER], CHATML, True, "exclude each other"),
        ([], CHATML, False, "needs a message"),
        ([{"role": "assistant", "content": None}], CHATML, False, "ends in text"),
        ([USER], "nothing of it", False, "does not print"),
    ],
)
def test_continue_failures(messages: list[dict[str, object]], template: str, generation: bool, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render_chat(template, messages, add_generation_prompt=generation, continue_final_message=True)
