"""A model's text in each format, what it says, and its calls."""

# ruff: noqa: RUF001  (DeepSeek's markers have wide bars)

from __future__ import annotations

import json
from typing import Any

from vjax.parsing.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart
from vjax.parsing.tools import tool_parser

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "hot": {"type": "boolean"},
        "near": {"type": "array", "items": {"type": "number"}},
        "more": {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CITY = 'Åre "5" <b>\n{x}'
ARGUMENTS = {"city": CITY, "days": 3, "hot": True, "near": [1.5, -2], "more": {"a": None, "b": ["c"]}}
JSON = json.dumps(ARGUMENTS)
RAW = json.dumps(ARGUMENTS, ensure_ascii=False, separators=(",", ":"))


def obj(key: str = "arguments", names: str = "name") -> str:
    return f'{{"{names}": "weather", "{key}": {JSON}}}'


def now(key: str = "arguments", names: str = "name") -> str:
    return f'{{"{names}": "now", "{key}": {{}}}}'


def tags(call: str, key: str, value_end: str, call_end: str, line: str = "", between: str = "") -> str:
    """A call in tags, with `%` for the name or key."""
    text = call.replace("%", "weather")
    for name, value in ARGUMENTS.items():
        word = value if isinstance(value, str) else json.dumps(value)
        text += between + key.replace("%", name) + line + word + line + value_end
    return text + between + call_end


BARE = f"weather(city={CITY!r}, days=3, hot=True, near=[1.5, -2], more={{'a': None, \"b\": ('c',)}})"
BRACES = '{city:@Åre "5" <b>\n{x}@,days:3,hot:true,near:[1.5,-2],more:{a:null,b:[@c@]}}'
CODER = tags("<function=%>\n", "<parameter=%>\n", "\n</parameter>\n", "</function>")
INVOKES = tags('<invoke name="%">\n', '<parameter name="%">', "</parameter>\n", "</invoke>\n")
DSML = '<｜DSML｜invoke name="weather">\n' + "".join(
    f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
    f"{value if isinstance(value, str) else json.dumps(value)}</｜DSML｜parameter>\n"
    for key, value in ARGUMENTS.items()
)
DSML += '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'
PAIRS = tags("<tool_call>%\n", "<arg_key>%</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>")
TYPES = {"city": "string", "days": "number", "hot": "boolean", "near": "array", "more": "object"}
XTML = tags('<|open|>call tool="%" index="1"<|sep|>', '<|open|>argument key="%" type="@%"<|sep|>', "<|close|>argument<|sep|>", "<|close|>call<|sep|>")  # fmt: skip
for key, kind in TYPES.items():
    XTML = XTML.replace(f'type="@{key}"', f'type="{kind}"')
IFM = tags("<ifm|tool_call>%\n", "<ifm|arg_key>%</ifm|arg_key>\n<ifm|arg_value>", "</ifm|arg_value>\n", "</ifm|tool_call>")  # fmt: skip
NS = "]<]minimax[>["
M3 = (
    f'{NS}<invoke name="weather">{NS}<city>{CITY}{NS}</city>{NS}<days>3{NS}</days>{NS}<hot>true{NS}</hot>'
    f"{NS}<near>{NS}<item>1.5{NS}</item>{NS}<item>-2{NS}</item>{NS}</near>"
    f"{NS}<more>{NS}<a>null{NS}</a>{NS}<b>{NS}<item>c{NS}</item>{NS}</b>{NS}</more>{NS}</invoke>\n"
)
BOTH = [("weather", ARGUMENTS), ("now", {})]
HERMES = f"Let me look.\n<tool_call>\n{obj()}\n</tool_call>\n<tool_call>\n{now()}\n</tool_call><|im_end|>"
QWEN = f"Let me look.\n\n<tool_call>\n{CODER}\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON}<|call|>"
    "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
)
MUSE = (
    "<|message|>Let me look.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n"
    + INVOKES.replace("<", "<atem:").replace("<atem:/", "</atem:").replace("<atem:b>", "<b>")
    + '</atem:function_calls><|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n<atem:invoke name="now">'
    "\n</atem:invoke>\n</atem:function_calls><|eot|>"
)
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
P = "<|plamo:{}:plamo|>".format

# name -> text
TEXTS: dict[str, str] = {
    "hermes": HERMES,
    "qwen3_json": HERMES,
    "qwen3_coder": QWEN,
    "qwen3_xml": QWEN,
    "mimo": QWEN,
    "step5": QWEN,
    "step3p5": "Let me look.<tool_call>\n" + CODER + "</tool_call><tool_call><function=now></tool_call>",
    "seed_oss": QWEN.replace("tool_call>", "seed:tool_call>"),
    "llama3_json": f"{obj('parameters')}; {now('parameters')}<|eot_id|>",
    "llama4_json": f"<|python_tag|>{obj('parameters')};\n{now('parameters')}",
    "pythonic": f"[{BARE}, now()]",
    "llama4_pythonic": f"<|python_start|>[{BARE}, now()]<|python_end|><|eot|>",
    "olmo3": f"Let me look.\n<function_calls>\n{BARE}\nnow()\n</function_calls>",
    "lfm2": f"Let me look.<|tool_call_start|>[{BARE}, now()]<|tool_call_end|><|im_end|>",
    "mistral": f"Let me look.[TOOL_CALLS]weather[ARGS]{JSON}[TOOL_CALLS]now{{}}</s>",
    "deepseek_v3": "Let me look.<｜tool▁calls▁begin｜>"
    f"{V3.format('weather', JSON)}\n{V3.format('now', '{}')}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    "deepseek_v31": "Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    + JSON
    + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v32": f"Let me look.\n\n<｜DSML｜function_calls>\n{DSML}</｜DSML｜function_calls>",
    "deepseek_v4": f"Let me look.\n\n<｜DSML｜tool_calls>\n{DSML}</｜DSML｜tool_calls>",
    "deepseek_v41": "Let me look.\n\n<｜DSML｜ calls>\n"
    + DSML.replace("｜DSML｜", "｜DSML｜ ")
    + "</｜DSML｜ calls><｜end▁of▁sentence｜>",
    "kimi_k2": "Let me look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>functions.now:1"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>",
    "kimi_k3": "<|open|>response<|sep|>Let me look.<|close|>response<|sep|><|open|>tools<|sep|>"
    + XTML
    + '<|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>',
    "glm45": f"Let me look.\n{PAIRS}\n<tool_call>now\n</tool_call>",
    "glm47": "Let me look."
    + PAIRS.replace("weather\n", "weather").replace("key>\n", "key>").replace("value>\n", "value>")
    + "<tool_call>now</tool_call>",
    "poolside_v1": f"Let me look.\n{PAIRS}\n<tool_call>now\n</tool_call>\n</assistant>",
    "ling3": f"Let me look.\n{PAIRS}\n<tool_call>now\n\n</tool_call><|role_end|>",
    "hy_v3": "Let me look.<tool_calls:opensource>\n"
    + tags("<tool_call>%<tool_sep>\n", "<arg_key>%</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>")
    .replace("call>", "call:opensource>")
    .replace("sep>", "sep:opensource>")
    .replace("key>", "key:opensource>")
    .replace("value>", "value:opensource>")
    + "\n<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    "hy_v4": "Let me look.<tool_calls>"
    + PAIRS.replace("weather\n", "weather<tool_sep>")
    + "<tool_call>now<tool_sep></tool_call></tool_calls>",
    "k2_horizon": f"Let me look.<ifm|tool_calls>{IFM}<ifm|tool_call>now</ifm|tool_call></ifm|tool_calls>",
    "minimax_m1": f"Let me look.\n<tool_calls>\n{obj()}\n{now()}\n</tool_calls>",
    "minimax_m2": f'Let me look.\n<minimax:tool_call>\n{INVOKES}<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": f'Let me look.{NS}<tool_call>\n{M3}{NS}<invoke name="now">{NS}</invoke>\n{NS}</tool_call>[e~[',
    "step3": "Let me look.<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    + INVOKES.replace("<", "<steptml:").replace("<steptml:/", "</steptml:").replace("<steptml:b>", "<b>")
    + "<｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
    "granite": f"<|tool_call|>[{obj()}, {now()}]<|end_of_text|>",
    "granite4": HERMES.replace("<|im_end|>", "<|end_of_text|>"),
    "granite-20b-fc": f"Let me look. <function_call> {obj()} <function_call> {now()}",
    "internlm": f"Let me look.<|action_start|><|plugin|>\n{obj('parameters')}<|action_end|>\n"
    f"<|action_start|><|plugin|>{now('parameters')}<|action_end|>",
    "jamba": f"Let me look.\n<tool_calls>[\n{obj()},\n{now()}\n]</tool_calls>",
    "hunyuan_a13b": f"<answer>Let me look.\n<tool_calls>[{obj()}, {now()}]</tool_calls></answer>",
    "ernie45": f"<response>\nLet me look.\n</response>\n<tool_call>\n{obj()}\n</tool_call>\n<tool_call>{now()}</tool_call>",
    "longcat": f"Let me look.\n<longcat_tool_call>{obj()}</longcat_tool_call>\n"
    f"<longcat_tool_call>{now()}</longcat_tool_call>",
    "phi4_mini_json": f"Let me look. functools[{obj()}, {now()}]",
    "xlam": f"```json\n[{obj()}, {now()}]\n```",
    "cohere_command3": f"<|START_ACTION|>[\n    {obj('parameters', 'tool_name')},\n"
    f'    {{"tool_call_id": "1", "tool_name": "now", "parameters": {{}}}}\n]<|END_ACTION|>',
    "cohere_command4": "<|START_TEXT|>Let me look.<|END_TEXT|><|START_ACTION|>"
    f"[{obj('parameters', 'tool_name')}, {now('parameters', 'tool_name')}]<|END_ACTION|>",
    "openai": HARMONY,
    "gemma4": "Let me look.<|tool_call>call:weather"
    + BRACES.replace("@", '<|"|>')
    + "<tool_call|><|tool_call>call:now{}<tool_call|>",  # fmt: skip
    "functiongemma": "<start_function_call>call:weather"
    + BRACES.replace("@", "<escape>")
    + "<end_function_call><start_function_call>call:now{}<end_function_call>",
    "gigachat3": f"Let me look.<|function_call|>{obj()}<|message_sep|>\n\nfunction call<|role_sep|>\n{now()}<|message_sep|>",
    "apertus": f'Let me look.<|tools_prefix|>[{{"weather": {JSON}}}, {{"now": {{}}}}]<|tools_suffix|>',
    "minicpm5": "Let me look.\n"
    + tags('<function name="%">', '<param name="%">', "</param>", "</function>").replace(CITY, f"<![CDATA[{CITY}]]>")
    + '\n<function name="now"></function><|im_end|>',
    "inkling": "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Let me look.<|end_message|>"
    f'<|message_model|>weather<|content_invoke_tool_json|>{{"args": {RAW}, "name": "weather"}}<|end_message|>'
    '<|message_model|>now<|content_invoke_tool_json|>{"name":"now","args":{}}<|end_message|>'
    "<|content_model_end_sampling|>",
    "dots": f'Let me look.\n<dots_function_call>\n{INVOKES}<invoke name="now"></invoke></dots_function_call>',
    "muse": MUSE,
    "musespark1x": MUSE,
    "muse_glimmer": MUSE,
    "plamo3": f"Let me look.{P('begin_tool_requests')}"
    + "".join(
        f"{P('begin_tool_request')}{P('begin_tool_name')}{name}{P('end_tool_name')}{P('begin_tool_arguments')}"
        f"<|plamo:constrain|>json<|plamo:msg|>{text}{P('end_tool_arguments')}{P('end_tool_request')}"
        for name, text in (("weather", JSON), ("now", "{}"))
    )
    + P("end_tool_requests")
    + "<|plamo:tag|>",
    "nemotron_v2": f"Let me look.\n<TOOLCALL>[{obj()}, {now()}]</TOOLCALL>",
    "solar_open": "Let me look.<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>weather<|tool_call:args|>"
    + JSON
    + "<|tool_call:end|><|tool_call:begin|>c3d4<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>",
    "functionary_v31": f"Let me look.<function=weather>{JSON}</function><function=now>{{}}</function><|eom_id|>",
    "json_array": f"[{obj('parameters')}, {now('parameters')}]",
}


def pieces_of(name: str, parts: list[str], tools: list[dict[str, Any]] = TOOLS) -> list[Piece]:
    parser = tool_parser(name, tools)
    return [piece for part in parts for piece in parser.feed(part)] + parser.finish()


def joined(pieces: list[Piece]) -> list[tuple[Any, ...]]:
    """Pieces with neighbours joined; ids that a parser makes up are left out."""
    out: list[tuple[Any, ...]] = []
    for piece in pieces:
        if isinstance(piece, ToolStart):
            out.append(("start", piece.index, piece.name))
            continue
        head = (type(piece).__name__, piece.index if isinstance(piece, ToolArguments) else -1)
        if out and out[-1][:2] == head:
            out[-1] = (*head, out[-1][2] + piece.text)
        else:
            out.append((*head, piece.text))
    return out


def answer(pieces: list[Piece]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Reasoning, content, calls."""
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    said = {Reasoning: "", Content: ""}
    for piece in pieces:
        if isinstance(piece, ToolStart):
            assert piece.index == len(names)
            names[piece.index], texts[piece.index] = piece.name, ""
        elif isinstance(piece, ToolArguments):
            texts[piece.index] += piece.text
        else:
            said[type(piece)] += piece.text
    return said[Reasoning], said[Content], [(name, json.loads(texts[index])) for index, name in names.items()]
