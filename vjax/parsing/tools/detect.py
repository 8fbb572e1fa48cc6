"""Which format a chat template writes calls in."""

# ruff: noqa: RUF001  (DeepSeek's markers have wide bars)

from __future__ import annotations

# The first line whose strings are all in the template decides, so what is special comes before what is common.
SIGNS: tuple[tuple[str, ...], ...] = (
    ("minimax_m3", "]<]minimax[>["),
    ("minimax_m2", "<minimax:tool_call>"),
    ("minimax_m1", "<tool_calls>", "<beginning_of_sentence>"),
    ("muse", "atem:invoke"),
    ("inkling", "<|content_invoke_tool_json|>"),
    ("kimi_k3", "<|open|>", "<|sep|>"),
    ("kimi_k2", "<|tool_call_argument_begin|>"),
    ("plamo3", "begin_tool_name:plamo"),
    ("plamo3", "plamo:begin_", "tool_name"),
    ("k2_horizon", "<ifm|tool_call"),
    ("dots", "<dots_function_call>"),
    ("step3", "steptml:invoke"),
    ("deepseek_v41", "｜DSML｜ calls"),
    ("deepseek_v32", "｜DSML｜", "function_calls"),
    ("deepseek_v4", "｜DSML｜", "tool_calls"),
    ("deepseek_v3", "<｜tool▁call▁begin｜>", "```json"),
    ("deepseek_v31", "<｜tool▁call▁begin｜>"),
    ("seed_oss", "<seed:tool_call>"),
    ("minicpm5", "<function name=", "<param name="),
    ("hy_v3", "<tool_sep"),
    ("functiongemma", "<start_function_call>"),
    ("gemma4", "<|tool_call>"),
    ("solar_open", "<|tool_call:begin|>"),
    ("lfm2", "<|tool_call_start|>"),
    ("lfm2", "List of tools: ["),
    ("lfm2", "<|tool_list_start|>"),
    ("mistral", "[TOOL_CALLS]"),
    ("cohere_command4", "<|START_ACTION|>", "<|START_TEXT|>"),
    ("cohere_command3", "<|START_ACTION|>"),
    ("gigachat3", "<|function_call|>"),
    ("gigachat3", "function call", "<|role_sep|>"),
    ("apertus", "<|tools_prefix|>"),
    ("internlm", "<|action_start|>"),
    ("longcat", "<longcat_tool_call>"),
    ("nemotron_v2", "<TOOLCALL>"),
    ("phi4_mini_json", "functools"),
    ("phi4_mini_json", "<|/tool_call|>"),
    ("granite", "<|tool_call|>"),
    ("openai", "<|channel|>", "<|message|>"),
    ("poolside_v1", "<arg_key>", "</assistant>"),
    ("ling3", "<arg_key>", "<role>"),
    ("glm45", "<arg_key>", "\\n<arg_key>"),
    ("glm45", "<arg_key>", "\n<arg_key>"),
    ("glm47", "<arg_key>"),
    ("qwen3_coder", "<function=", "<parameter="),
    ("functionary_v31", "<function=", "</function>"),
    ("granite4", "<tool_call>", "<|start_of_role|>"),
    ("ernie45", "<tool_call>", "<response>"),
    ("hunyuan_a13b", "<tool_calls>", "<answer>"),
    ("jamba", "<tool_calls>"),
    ("hermes", "<tool_call>"),
    ("granite-20b-fc", "<function_call>"),
    ("olmo3", "<function_calls>"),
    ("llama4_pythonic", "<|python_start|>"),
    ("llama3_json", "<|start_header_id|>", '"parameters"'),
    ("llama4_json", "<|header_start|>", '"parameters"'),
)


def detect(chat_template: str) -> str | None:
    """The name of the format that a chat template writes calls in, None if it is not known."""
    for name, *signs in SIGNS:
        if all(sign in chat_template for sign in signs):
            return name
    return None
