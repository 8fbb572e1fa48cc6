"""Recurrent layers and hybrids with attention."""

from __future__ import annotations

from tests.goldens.cases.case import Case, decoder

LFM2 = (
    Case(
        "lfm2",
        decoder(
            "Lfm2ForCausalLM",
            "lfm2",
            hidden_size=40,
            intermediate_size=None,
            block_ff_dim=91,
            block_multiple_of=16,
            block_ffn_dim_multiplier=1.1,
            num_hidden_layers=4,
            full_attn_idxs=[1, 3],
            conv_L_cache=3,
            conv_bias=True,
            hidden_act=None,
            rms_norm_eps=None,
            norm_eps=1e-5,
            rope_theta=1e4,
            tie_word_embeddings=None,
            tie_embedding=True,
        ),
        switches=({"rope_theta": 1e6}, {"norm_eps": 1e-2}, {"full_attn_idxs": [0, 1, 2, 3]}),
        gguf=False,
    ),
    Case(
        "lfm2-exact-width",
        decoder(
            "Lfm2ForCausalLM",
            "lfm2",
            hidden_size=40,
            num_attention_heads=5,
            num_key_value_heads=5,
            intermediate_size=51,
            block_auto_adjust_ff_dim=False,
            layer_types=["conv", "full_attention", "conv"],
            num_hidden_layers=3,
            conv_L_cache=5,
            conv_bias=False,
            hidden_act=None,
            rms_norm_eps=None,
            norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 5e3},
            tie_word_embeddings=False,
        ),
        switches=({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},),
        gguf=False,
    ),
)


QWEN3_NEXT = (
    Case(
        "qwen3-next-dense",
        decoder(
            "Qwen3NextForCausalLM",
            "qwen3_next",
            hidden_size=40,
            num_hidden_layers=3,
            full_attention_interval=2,
            mlp_only_layers=[0, 1, 2],
            head_dim=24,
            partial_rotary_factor=0.5,
            rope_theta=1e4,
            attention_bias=True,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=12,
            linear_value_head_dim=9,
            linear_conv_kernel_dim=3,
            rms_norm_eps=1e-6,
        ),
        switches=({"rope_theta": 1e2}, {"partial_rotary_factor": 0.25}, {"rms_norm_eps": 0.1}),
        zero_centred_norms=True,
        gguf=False,
    ),
)

QWEN3_5 = (
    Case(
        "qwen3-5",
        decoder(
            "Qwen3_5ForCausalLM",
            "qwen3_5_text",
            hidden_size=36,
            num_hidden_layers=4,
            num_key_value_heads=1,
            head_dim=32,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "mrope_interleaved": True,
                "mrope_section": [3, 3, 2],
            },
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=16,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        ),
        switches=(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
            {"layer_types": ["linear_attention"] * 4},
        ),
        zero_centred_norms=True,
        gguf=False,
    ),
)

NO_LIMIT = [0.0, {"__float__": "Infinity"}]  # as transformers 5 writes it

MAMBA2 = (
    Case(
        "mamba2",
        decoder(
            "Mamba2ForCausalLM",
            "mamba2",
            hidden_size=32,
            expand=2,
            num_heads=8,
            head_dim=8,
            n_groups=2,
            state_size=12,
            conv_kernel=4,
            use_bias=True,
            use_conv_bias=True,
            num_hidden_layers=3,
            num_attention_heads=None,
            num_key_value_heads=None,
            intermediate_size=None,
            max_position_embeddings=None,
            rms_norm_eps=None,
            layer_norm_epsilon=1e-5,
            time_step_limit=NO_LIMIT,
            tie_word_embeddings=True,
        ),
        switches=({"layer_norm_epsilon": 1e-2}, {"time_step_limit": [0.9, {"__float__": "Infinity"}]}),
        gguf=False,
    ),
)

RECURRENT = LFM2 + QWEN3_NEXT + QWEN3_5 + MAMBA2
