"""The formats by name."""

# ruff: noqa: RUF001  (DeepSeek's markers have wide bars)

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable

from vjax.parsing.tools.channels import Channels, headers, thoughts
from vjax.parsing.tools.core import Calls, Format
from vjax.parsing.tools.cursor import Malformed, Step
from vjax.parsing.tools.json_calls import JsonCalls
from vjax.parsing.tools.literal import Dialect
from vjax.parsing.tools.named import Named
from vjax.parsing.tools.nested import Nested
from vjax.parsing.tools.pythonic import Pythonic
from vjax.parsing.tools.tags import Tags

Reader = Callable[[Calls], Step[None]]

CHATML = ("<|im_end|>",)
LLAMA = ("<|eot_id|>", "<|eom_id|>")
MINIMAX = ("[e~[",)
DEEPSEEK = ("<｜end▁of▁sentence｜>",)
KIMI_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?\Z")


def by_start(*readers: tuple[tuple[str, ...], Reader]) -> Reader:
    """The reader whose markers the block begins with."""

    def read(calls: Calls) -> Step[None]:
        every = [marker for markers, _ in readers for marker in markers]
        found = yield from calls.cursor.sees(*every)
        for markers, reader in readers:
            if found in markers:
                return (yield from reader(calls))
        raise Malformed

    return read


def json_in(start: str | tuple[str, ...], *closes: str, drop: tuple[str, ...] = (), special: bool = False) -> Format:
    """JSON behind a marker and before another."""
    starts = (start,) if isinstance(start, str) else start
    return Format(JsonCalls((starts,), closes), starts, drop=drop, special=special)


def mistral_id() -> str:
    return "".join(random.choices(string.ascii_letters + string.digits, k=9))


def mistral_name(header: str) -> tuple[str, str | None]:
    name, _, id = header.partition("[CALL_ID]")
    return name.strip(), id.strip() or None


def kimi_name(header: str) -> tuple[str, str | None]:
    id = header.strip()
    found = KIMI_ID.match(id)
    return (found.group(1) if found else ""), id


def solar_name(header: str) -> tuple[str, str | None]:
    id, _, name = header.partition("<|tool_call:name|>")
    return name.strip(), id.strip() or None


def coder(*outer: str, closes: tuple[str, ...] = ()) -> Format:
    """Qwen3-Coder's tags, in one of these."""
    tags = Tags(
        call=("<function=",),
        named=(">",),
        key=("<parameter=",),
        keyed=(">",),
        value_end=("</parameter>",),
        call_end=("</function>",),
        opens=outer,
        closes=closes,
        stops=("<parameter=", "</function>"),
        newlines=True,
    )
    return Format(tags, (*outer, "<function="), drop=(*CHATML, "<seed:eos>"))


def pairs(start: str = "<tool_call>", prefix: str = "", sep: str = "", outer: str = "", suffix: str = "") -> Tags:
    """GLM's tags: the name, then keys and values in turn."""
    key = f"<{prefix}arg_key{suffix}>"
    call_end = start.replace("<", "</")
    return Tags(
        call=(start,),
        named=(sep,) if sep else (key, call_end),
        key=(key,),
        keyed=(f"<{prefix}arg_value{suffix}>",),
        value_end=(f"</{prefix}arg_value{suffix}>",),
        call_end=(call_end,),
        opens=(outer,) if outer else (),
        closes=(outer.replace("<", "</"),) if outer else (),
    )


def hunyuan_v3(calls: Calls) -> Step[None]:
    """Every tag may carry the checkpoint's suffix, such as `<tool_call:opensource>`."""
    cursor = calls.cursor
    start = yield from cursor.expect("<tool_calls", "<tool_call")
    suffix, _ = yield from cursor.header(">")
    if suffix and not re.match(r":[\w.-]{1,64}\Z", suffix):
        raise Malformed
    tags = pairs(f"<tool_call{suffix}>", sep=f"<tool_sep{suffix}>", outer=f"<tool_calls{suffix}>", suffix=suffix)
    yield from tags(calls, opened=start == "<tool_call")


def invokes(outer: str, invoke: str = "invoke", parameter: str = "parameter", drop: tuple[str, ...] = ()) -> Format:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>`, with these tags in this one."""
    opens, closes = (f"<{outer}>", f"</{outer}>") if outer else ("", "")
    tags = Tags(
        call=(f"<{invoke} ",),
        named=(">",),
        key=(f"<{parameter} ",),
        keyed=(">",),
        value_end=(f"</{parameter}>",),
        call_end=(f"</{invoke}>",),
        opens=(opens,) if outer else (),
        closes=(closes,) if outer else (),
        attribute="name",
        cdata=not outer,
    )
    return Format(tags, (opens,) if outer else (f"<{invoke} ",), drop=drop)


def braces(start: str, end: str, quote: str, drop: tuple[str, ...]) -> Format:
    """Gemma's `call:name{key:value}`."""
    dialect = Dialect((quote, '"'), escapes=False, bare_keys=True)
    named = Named((f"{start}call:",), closes=(end,), dialect=dialect)
    return Format(named, (start,), drop=drop, special=True)


def deepseek(named: Named) -> Format:
    return Format(named, (*named.opens[:1], "<｜tool▁call▁begin｜>"), drop=DEEPSEEK, special=True)


HERMES = json_in("<tool_call>", "</tool_call>", drop=CHATML)
CODER = coder("<tool_call>", closes=("</tool_call>",))
LLAMA_JSON = Format(
    JsonCalls((("<|python_tag|>",),), between=(";",)), ("<|python_tag|>",), bare=("{",), drop=LLAMA, special=True
)
JSON_LISTS = json_in("<tool_calls>", "</tool_calls>", drop=("<answer>", "</answer>"))
GLM = Format(pairs(), ("<tool_call>",), drop=("<|role_end|>", "</assistant>"))
HUNYUAN = Format(hunyuan_v3, ("<tool_calls", "<tool_call"))
COHERE = json_in(
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    drop=(
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|END_OF_TURN_TOKEN|>",
    ),
    special=True,
)
MISTRAL_LIST = JsonCalls((("[TOOL_CALLS]",),), id="id")
MISTRAL_NAMED = Named(("[TOOL_CALLS]",), ("[ARGS]",), name=mistral_name)
MISTRAL = Format(
    by_start(
        (("[TOOL_CALLS][", "[TOOL_CALLS] [", "[TOOL_CALLS]{", "[TOOL_CALLS] {"), MISTRAL_LIST),
        (("[TOOL_CALLS]",), MISTRAL_NAMED),
    ),
    ("[TOOL_CALLS]",),
    drop=("</s>",),
    new_id=mistral_id,
    special=True,
)
HARMONY = Format(
    Channels(("<|end|>", "<|call|>", "<|return|>")),
    ("<|channel|>", "<|start|>", "<|message|>"),
    bare=("to=",),
    drop=("<|end|>", "<|call|>", "<|return|>"),
    special=True,
)
MUSE_TAGS = invokes("atem:function_calls", "atem:invoke", "atem:parameter").read
MUSE = Format(
    by_start(
        (("<atem:function_calls>",), MUSE_TAGS),
        (("<|start|>", "<|message|>", "to="), Channels(("<|eom|>", "<|eot|>"), calls_in_body=True)),
    ),
    ("<atem:function_calls>", "<|start|>", "<|message|>"),
    bare=("to=",),
    drop=("<|eom|>", "<|eot|>"),
    special=True,
)
INKLING_BLOCKS = ("<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>")
INKLING_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
INKLING = Format(
    by_start(
        (("<|message_model|>",), headers(*INKLING_BLOCKS)),
        (("<|content_thinking|>",), thoughts("<|content_thinking|>", *INKLING_ENDS, "<|message_model|>")),
        (INKLING_BLOCKS[2:], JsonCalls((INKLING_BLOCKS[2:],), INKLING_ENDS, arguments=("args", "arguments"))),
    ),
    ("<|message_model|>", *INKLING_BLOCKS[1:]),
    drop=("<|content_text|>", *INKLING_ENDS),
    special=True,
)
KIMI_K3 = Tags(
    call=("<|open|>call ",),
    named=("<|sep|>",),
    key=("<|open|>argument ",),
    keyed=("<|sep|>",),
    value_end=("<|close|>argument<|sep|>",),
    call_end=("<|close|>call<|sep|>",),
    opens=("<|open|>tools<|sep|>",),
    closes=("<|close|>tools<|sep|>",),
    attribute="tool",
    key_attribute="key",
)
STEP3 = Tags(
    call=("<steptml:invoke ",),
    named=(">",),
    key=("<steptml:parameter ",),
    keyed=(">",),
    value_end=("</steptml:parameter>",),
    call_end=("</steptml:invoke>",),
    opens=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "function", "<｜tool_sep｜>"),
    closes=("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
    attribute="name",
)
XLAM_OPENS = ("[TOOL_CALLS]", "<tool_call>", "<tool_calls>")
PLAMO = "<|plamo:{}:plamo|>".format
PLAMO_CALLS = Named(
    call=(PLAMO("begin_tool_name"),),
    named=(PLAMO("begin_tool_arguments"),),
    opens=(PLAMO("begin_tool_requests"), PLAMO("begin_tool_request")),
    closes=(PLAMO("end_tool_arguments"), PLAMO("end_tool_request"), PLAMO("end_tool_requests")),
    fences=("<|plamo:constrain|>json", "<|plamo:msg|>"),
    name=lambda header: (header.removesuffix(PLAMO("end_tool_name")).strip(), None),
)
DEEPSEEK_ENDS = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")

FORMATS: dict[str, Format] = {
    "hermes": HERMES,
    "qwen3_json": HERMES,
    "qwen3_coder": CODER,
    "qwen3_xml": CODER,
    "mimo": CODER,
    "step5": CODER,
    "step3p5": CODER,
    "seed_oss": coder("<seed:tool_call>", closes=("</seed:tool_call>",)),
    "llama3_json": LLAMA_JSON,
    "llama4_json": LLAMA_JSON,
    "pythonic": Format(Pythonic(), bare=("[",), drop=LLAMA),
    "llama4_pythonic": Format(
        Pythonic(("<|python_start|>",), ("<|python_end|>",)),
        ("<|python_start|>",),
        bare=("[",),
        drop=("<|eot|>", "<|eom|>"),
        special=True,
    ),
    "olmo3": Format(Pythonic(("<function_calls>",), ("</function_calls>",)), ("<function_calls>",), drop=CHATML),
    "lfm2": Format(
        Pythonic(("<|tool_call_start|>",), ("<|tool_call_end|>",)), ("<|tool_call_start|>",), drop=CHATML, special=True
    ),
    "mistral": MISTRAL,
    "deepseek_v3": deepseek(
        Named(
            ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>",),
            opens=("<｜tool▁calls▁begin｜>",),
            closes=DEEPSEEK_ENDS,
            fences=("```json", "```"),
        )
    ),
    "deepseek_v31": deepseek(
        Named(("<｜tool▁call▁begin｜>",), ("<｜tool▁sep｜>",), opens=("<｜tool▁calls▁begin｜>",), closes=DEEPSEEK_ENDS)
    ),
    "deepseek_v32": invokes("｜DSML｜function_calls", "｜DSML｜invoke", "｜DSML｜parameter", DEEPSEEK),
    "deepseek_v4": invokes("｜DSML｜tool_calls", "｜DSML｜invoke", "｜DSML｜parameter", DEEPSEEK),
    "deepseek_v41": invokes("｜DSML｜ calls", "｜DSML｜ invoke", "｜DSML｜ parameter", DEEPSEEK),
    "kimi_k2": Format(
        Named(
            ("<|tool_call_begin|>",),
            ("<|tool_call_argument_begin|>",),
            opens=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
            closes=("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
            name=kimi_name,
        ),
        ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>"),
        drop=CHATML,
        special=True,
    ),
    "kimi_k3": Format(
        KIMI_K3,
        KIMI_K3.opens,
        drop=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        special=True,
    ),
    "glm45": GLM,
    "glm47": GLM,
    "poolside_v1": GLM,
    "ling3": GLM,
    "hy_v3": HUNYUAN,
    "hy_v4": HUNYUAN,
    "k2_horizon": Format(
        pairs("<ifm|tool_call>", "ifm|", outer="<ifm|tool_calls>"),
        ("<ifm|tool_calls>", "<ifm|tool_call>"),
        special=True,
    ),
    "minimax_m2": invokes("minimax:tool_call", drop=MINIMAX),
    "minimax_m3": Format(Nested("]<]minimax[>["), ("]<]minimax[>[<tool_call>",), drop=MINIMAX, special=True),
    "step3": Format(STEP3, STEP3.opens[:2], special=True),
    "minimax_m1": Format(
        JsonCalls((("<tool_calls>",),), ("</tool_calls>",), between=(",",)),
        ("<tool_calls>",),
        drop=("<end_of_sentence>",),
    ),
    "nemotron_v2": json_in("<TOOLCALL>", "</TOOLCALL>", drop=("<SPECIAL_12>",)),
    "solar_open": Format(
        Named(
            ("<|tool_call:begin|>",),
            ("<|tool_call:args|>",),
            opens=("<|tool_calls|>",),
            closes=("<|tool_call:end|>",),
            name=solar_name,
        ),
        ("<|tool_calls|>", "<|tool_call:begin|>"),
        drop=("<|calls|>", "<|end|>"),
        special=True,
    ),
    "functionary_v31": Format(Named(("<function=",), (">",), closes=("</function>",)), ("<function=",), drop=LLAMA),
    "granite": json_in(("<|tool_call|>", "<tool_call>"), "</tool_call>", drop=("<|end_of_text|>",)),
    "granite4": json_in("<tool_call>", "</tool_call>", drop=("<|end_of_text|>",)),
    "granite-20b-fc": json_in("<function_call>", "</function_call>", drop=("<|endoftext|>",)),
    "internlm": Format(
        JsonCalls((("<|action_start|>",), ("<|plugin|>",)), ("<|action_end|>",)),
        ("<|action_start|>",),
        drop=CHATML,
        special=True,
    ),
    "jamba": JSON_LISTS,
    "hunyuan_a13b": JSON_LISTS,
    "ernie45": json_in("<tool_call>", "</tool_call>", drop=("<response>", "</response>")),
    "longcat": json_in("<longcat_tool_call>", "</longcat_tool_call>", drop=("</longcat_s>",)),
    "phi4_mini_json": Format(
        JsonCalls((("functools", "<|tool_call|>"),), ("<|/tool_call|>",)),
        ("functools[", "<|tool_call|>"),
        drop=("<|end|>",),
    ),
    "xlam": Format(
        JsonCalls((XLAM_OPENS, ("```json", "```")), ("```", "[/TOOL_CALLS]", "</tool_call>", "</tool_calls>")),
        XLAM_OPENS,
        bare=("[", "{", "```"),
    ),
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "openai": HARMONY,
    "gemma4": braces("<|tool_call>", "<tool_call|>", '<|"|>', ("<turn|>", "<|tool_response>")),
    "functiongemma": braces(
        "<start_function_call>", "<end_function_call>", "<escape>", ("<end_of_turn>", "<start_function_response>")
    ),
    "gigachat3": json_in(
        ("<|function_call|>", "function call<|role_sep|>"),
        "<|message_sep|>",
        drop=("assistant<|role_sep|>", "<|message_sep|>"),
        special=True,
    ),
    "apertus": Format(
        JsonCalls((("<|tools_prefix|>",),), ("<|tools_suffix|>",), by_name=True),
        ("<|tools_prefix|>",),
        drop=("<|assistant_end|>",),
        special=True,
    ),
    "minicpm5": invokes("", "function", "param", CHATML),
    "inkling": INKLING,
    "dots": invokes("dots_function_call"),
    "muse": MUSE,
    "musespark1x": MUSE,
    "muse_glimmer": MUSE,
    "plamo3": Format(PLAMO_CALLS, PLAMO_CALLS.opens, drop=("<|plamo:tag|>",), special=True),
}
JSON_ARRAY = Format(JsonCalls(), bare=("[", "{"))
