"""Bodies that each POST route takes, with every kind of field at some depth: what the tests of bad input spoil."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]

SAMPLING: Body = {
    "model": "fake", "n": 1, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["zz"], "stop_token_ids": [1],
    "bad_words": ["q"], "ignore_eos": True, "max_tokens": 2, "min_tokens": 1, "logit_bias": {"98": 1.5},
    "allowed_token_ids": [98, 99], "skip_special_tokens": True, "spaces_between_special_tokens": True,
    "include_stop_str_in_output": True, "truncate_prompt_tokens": 4, "truncation_side": "left",
    "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 3}, "vllm_xargs": {"k": [1]},
    "stream_interval": 2, "user": "me", "request_id": "r", "priority": 1, "cache_salt": "s", "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}  # fmt: skip
STREAM: Body = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BEAMS: Body = {"use_beam_search": True, "length_penalty": 0.5, "n": 2, "max_tokens": 2}
TOOL: Body = {
    "type": "function",
    "function": {"name": "f", "description": "d", "strict": True, "parameters": {"type": "object", "properties": {}}},
}
CALL: Body = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGES: list[Body] = [
    {"role": "system", "content": "be", "name": "n"},
    {"role": "user", "content": [{"type": "text", "text": "ab"}]},
    {"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": [CALL]},
    {"role": "tool", "content": "d", "tool_call_id": "c"},
]
CHAT: Body = {
    **SAMPLING, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "tools": [TOOL], "tool_choice": "auto",
    "response_format": {"type": "text"}, "reasoning_effort": "low", "documents": [{"title": "t", "text": "x"}],
    "chat_template": "{{ messages[0].content }}", "chat_template_kwargs": {"k": 1}, "add_special_tokens": True,
    "max_completion_tokens": 2, "parallel_tool_calls": True, "include_reasoning": True,
}  # fmt: skip
ASK: Body = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}
TEXT: Body = {**SAMPLING, "prompt": "abc", "logprobs": 1, "prompt_logprobs": 1, "add_special_tokens": True}
ANTHROPIC: Body = {
    "model": "fake",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "ab", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "d"}]}],
        },
    ],
    "system": [{"type": "text", "text": "be"}],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
    "chat_template_kwargs": {"k": 1},
}
RESPONSE: Body = {
    "model": "fake",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ab"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "d"}]},
    ],
    "instructions": "be", "max_output_tokens": 2, "store": True, "background": False, "parallel_tool_calls": True,
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}],
    "tool_choice": "auto", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}},
    "truncation": "auto", "top_logprobs": 1, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"},
    "temperature": 0.5, "top_p": 0.5, "user": "me", "stop": ["zz"],
}  # fmt: skip

# By path; a route without its bodies fails the tests.
EXAMPLES: dict[str, list[Body]] = {
    "/v1/chat/completions": [CHAT, {**ASK, **STREAM, "logprobs": True}, {**ASK, **BEAMS}, {**ASK, "echo": True,
        "continue_final_message": True, "add_generation_prompt": False, "return_prompt_text": True}],
    "/v1/chat/completions/batch": [{**ASK, "messages": [MESSAGES[:2], ASK["messages"]], "logprobs": True}],
    "/v1/chat/completions/render": [CHAT],
    "/v1/completions": [TEXT, {"prompt": ["a", "b"], **STREAM}, {"prompt": [[97], [98]], "max_tokens": 0, "echo": True,
        "logprobs": 0}, {"prompt": [97], **BEAMS}, {"prompt": "a", "n": 1, "best_of": 2, "max_tokens": 2}],
    "/v1/completions/render": [TEXT, {"prompt": [[97], [98]], "suffix": ""}],
    "/v1/responses": [RESPONSE, {"input": "ab", "stream": True, "max_output_tokens": 2}, {"input": "ab",
        "background": True, "max_output_tokens": 2}],
    "/v1/messages": [{**ANTHROPIC, "max_tokens": 2, "stop_sequences": ["zz"], "temperature": 0.5, "top_p": 0.5,
        "top_k": 3, "metadata": {"user_id": "me"}, "cache_salt": "s", "priority": 1, "vllm_xargs": {"k": 1}},
        {"messages": [{"role": "user", "content": "ab"}], "system": "be", "max_tokens": 2, "stream": True}],
    "/v1/messages/count_tokens": [ANTHROPIC],
    "/inference/v1/generate": [
        {"model": "fake", "token_ids": [97, 98], "request_id": "r", "cache_salt": "s", "priority": 1,
         "sampling_params": {name: value for name, value in SAMPLING.items() if name in (
             "n", "presence_penalty", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "bad_words",
             "ignore_eos", "max_tokens", "min_tokens", "logit_bias", "allowed_token_ids", "repetition_detection",
             "truncate_prompt_tokens", "stream_interval")} | {"logprobs": 1, "logprob_token_ids": [97],
             "extra_args": {"k": 1}}},
        {"token_ids": [97], **STREAM, "sampling_params": {"max_tokens": 2}}],
    "/generative_scoring": [{"model": "fake", "query": "a", "items": ["b", "c"], "label_token_ids": [97, 98],
        "apply_softmax": True, "item_first": True, "add_special_tokens": True, "request_id": "r", "cache_salt": "s",
        "priority": 1}, {"query": [97], "items": [[98]], "label_token_ids": [97]}],
    "/invocations": [CHAT, TEXT],
    "/tokenize": [{"model": "fake", "prompt": "ab", "add_special_tokens": True, "return_token_strs": True},
        {"messages": MESSAGES, "tools": [TOOL], "chat_template": "{{ messages[0].content }}",
         "chat_template_kwargs": {"k": 1}, "add_generation_prompt": True, "continue_final_message": False}],
    "/detokenize": [{"model": "fake", "tokens": [97, 98]}],
}  # fmt: skip
# These take no body.
BODILESS = {"/ping", "/v1/responses/{id}/cancel"}

# The same of models that encode, and of one that classifies.
ENCODING: dict[str, list[Body]] = {
    path: [{"model": "fake", "input": ["ab", "cd"], "encoding_format": "float", "dimensions": 2,
            "use_activation": False, "truncate_prompt_tokens": 8, "truncation_side": "left",
            "priority": 1, "request_id": "r", "user": "me"},
           {"messages": MESSAGES, "encoding_format": "base64", "endianness": "little"}]
    for path in ("/v1/embeddings", "/pooling")
} | {
    path: [{"queries": "a", "documents": ["ab", "b"], "max_tokens_per_query": 4, "max_tokens_per_doc": 4},
           {"text_1": ["a"], "text_2": ["b"]}]
    for path in ("/score", "/v1/score")
} | {
    path: [{"query": "a", "documents": ["ab", "b"], "top_n": 1, "max_tokens_per_doc": 4}]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank")
}  # fmt: skip
CLASSIFYING: dict[str, list[Body]] = {"/classify": [{"input": ["ab", "c"], "use_activation": True}]}
