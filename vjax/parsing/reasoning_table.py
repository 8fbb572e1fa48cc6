"""How model families mark their thoughts, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Marks:
    """`starts` and `ends` stand around thoughts. `on`: answers begin inside them, if nothing says otherwise."""

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    on: bool = False
    switches: tuple[str, ...] = ()  # template variables that turn thinking on and off
    opens_when_on: bool = True  # with a switch on, the answer begins inside
    anywhere: bool = False  # thoughts may begin behind text, too
    until: tuple[str, ...] = ()  # what ends thoughts and belongs to the answer
    wraps: tuple[str, ...] = ()  # a mark before the answer and one behind it
    drop: tuple[str, ...] = ()  # tokens in the answer that are no text
    prefix: str = ""
    suffixed: bool = False  # checkpoints write `<think:NAME>`
    format: str = ""  # the tool format whose parser tells thoughts, too, since both are messages of one kind
    lead: str = ""  # stands between thoughts and answer

    def with_suffix(self, suffix: str) -> Marks:
        def add(marks: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(mark[:-1] + suffix + ">" for mark in marks)

        return replace(self, starts=add(self.starts), ends=add(self.ends), until=add(self.until))


OWN = "think"  # ours, for `auto`: believes the prompt and the answer only

ENABLE = ("enable_thinking",)
BOTH = ("enable_thinking", "thinking")

_ON = Marks(on=True)
_HYBRID = Marks(on=True, switches=ENABLE)
_GLM = Marks(on=True, switches=BOTH, until=("<tool_call>",))
_DEEPSEEK_V4 = Marks(switches=("thinking", "reasoning_effort"))
_COHERE = Marks(
    ("<|START_THINKING|>",), ("<|END_THINKING|>",), anywhere=True,
    drop=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)  # fmt: skip
_MUSE = Marks(
    (" to=self<|message|>",), ("<|eom|><|start|>assistant",), format="muse", lead=" to=user<|message|>"
)  # fmt: skip

MARKS = {
    OWN: Marks(until=("<|tool_calls_section_begin|>",)),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "deepseek_r1": _ON,
    "deepseek_v3": Marks(switches=BOTH),
    "deepseek_v4": _DEEPSEEK_V4,
    "deepseek_v41": _DEEPSEEK_V4,
    "ernie45": Marks(on=True, wraps=("<response>", "</response>")),
    "gemma4": Marks(("<|channel>thought\n", "<|channel>"), ("<channel|>",), anywhere=True),
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": Marks(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    "granite_thinking_parser": _HYBRID,
    "holo2": Marks(on=True, switches=BOTH),
    "hunyuan_a13b": Marks(wraps=("<answer>", "</answer>")),
    "hy_v3": Marks(switches=("reasoning_effort",), suffixed=True, until=("<tool_calls>",)),
    "hy_v4": Marks(on=True, switches=("reasoning_effort",), suffixed=True, until=("<tool_calls>",)),
    "inkling": Marks(
        ("<|content_thinking|>",), ("<|end_message|><|message_model|>",), format="inkling", lead="<|content_text|>",
    ),
    "k2_horizon": Marks(
        ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        on=True, until=("<ifm|tool_calls>",),
    ),
    "kimi_k2": Marks(on=True, switches=BOTH, until=("<|tool_calls_section_begin|>",)),
    "ling3": _GLM,
    "mimo": _HYBRID,
    "minicpmv": _HYBRID,
    "minimax_m2": _ON,
    "minimax_m2_append_think": Marks(starts=(), ends=(), prefix="<think>"),
    "minimax_m3": Marks(("<mm:think>",), ("</mm:think>",), switches=("thinking_mode",)),
    "mistral": Marks(("[THINK]",), ("[/THINK]",), anywhere=True),
    "muse": _MUSE,
    "musespark1x": _MUSE,
    "muse_glimmer": _MUSE,
    "nemotron_v3": _HYBRID,
    "olmo3": _ON,
    "openai_gptoss": Marks(
        ("<|channel|>analysis<|message|>",), ("<|end|><|start|>assistant",), format="openai",
        lead="<|channel|>final<|message|>",
    ),
    "plamo3": Marks(
        ("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",), on=True, switches=ENABLE,
    ),
    "poolside_v1": Marks(on=True, switches=ENABLE, until=("<tool_call>",)),
    "qwen3": _HYBRID,
    "seed_oss": Marks(("<seed:think>",), ("</seed:think>",), on=True),
    "step3": _ON,
    "step3p5": _ON,
    "step5": _ON,
}  # fmt: skip
