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

QWEN3_5_VISION = {
    "model_type": "qwen3_5_vision",
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_heads": 2,
    "out_hidden_size": 24,
    "num_position_embeddings": 4,
    "patch_size": 2,
}
QWEN3_5 += (
    Case(  # the text model of a checkpoint with a vision tower, as published
        "qwen3-5-with-vision",
        decoder(
            "Qwen3_5ForConditionalGeneration",
            "qwen3_5",
            text_config=decoder(
                "Qwen3_5ForCausalLM",
                "qwen3_5_text",
                hidden_size=24,
                head_dim=16,
                full_attention_interval=2,
                linear_num_key_heads=2,
                linear_num_value_heads=4,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0]},
            ),
            vision_config=QWEN3_5_VISION,
            tie_word_embeddings=False,
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

BAMBA = (
    Case(
        "bamba",
        decoder(
            "BambaForCausalLM",
            "bamba",
            hidden_size=32,
            num_hidden_layers=3,
            attn_layer_indices=[1],
            mamba_n_heads=4,
            mamba_d_head="auto",
            mamba_n_groups=1,
            mamba_d_state=12,
            mamba_expand=2,
            mamba_d_conv=4,
            mamba_proj_bias=True,
            attention_bias=True,
            mlp_bias=True,
            rope_theta=1e4,
        ),
        switches=({"rope_theta": 1e2}, {"attn_layer_indices": [0]}, {"rms_norm_eps": 0.1}),
        gguf=False,
    ),
)

SSM_MULTIPLIERS = [1.3, 0.8, 1.4, 0.7, 1.2]

FALCON_H1 = (
    Case(
        "falcon-h1",
        decoder(
            "FalconH1ForCausalLM",
            "falcon_h1",
            hidden_size=32,
            head_dim=10,
            num_hidden_layers=2,
            mamba_d_ssm=24,
            mamba_n_heads=6,
            mamba_d_head=4,
            mamba_n_groups=2,
            mamba_d_state=10,
            mamba_d_conv=3,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            mamba_proj_bias=False,
            projectors_bias=True,
            attention_in_multiplier=1.4,
            attention_out_multiplier=0.7,
            embedding_multiplier=3.5,
            key_multiplier=0.6,
            lm_head_multiplier=0.8,
            mlp_multipliers=[1.3, 0.7],
            ssm_in_multiplier=1.25,
            ssm_out_multiplier=0.6,
            ssm_multipliers=SSM_MULTIPLIERS,
            rope_theta=1e11,
        ),
        switches=(
            {"mamba_norm_before_gate": True},
            {"attention_in_multiplier": 1.0},
            {"attention_out_multiplier": 1.0},
            {"embedding_multiplier": 1.0},
            {"key_multiplier": 1.0},
            {"lm_head_multiplier": 1.0},
            {"mlp_multipliers": [1.0, 0.7]},
            {"mlp_multipliers": [1.3, 1.0]},
            {"ssm_in_multiplier": 1.0},
            {"ssm_out_multiplier": 1.0},
            *({"ssm_multipliers": [*SSM_MULTIPLIERS[:i], 1.0, *SSM_MULTIPLIERS[i + 1 :]]} for i in range(5)),
        ),
        gguf=False,
    ),
    Case(
        "falcon-h1-plain-gate",
        decoder(
            "FalconH1ForCausalLM",
            "falcon_h1",
            hidden_size=24,
            num_hidden_layers=2,
            mamba_d_ssm=24,
            mamba_n_heads=3,
            mamba_n_groups=1,
            mamba_d_state=8,
            mamba_rms_norm=False,
            mamba_conv_bias=False,
            mamba_proj_bias=True,
            tie_word_embeddings=True,
        ),
        switches=({"mamba_rms_norm": True},),
        gguf=False,
    ),
)

NEMOTRON_H = (
    Case(
        "nemotron-h",
        decoder(
            "NemotronHForCausalLM",
            "nemotron_h",
            hidden_size=32,
            head_dim=12,
            num_hidden_layers=5,
            hybrid_override_pattern="M-M*-",
            mlp_hidden_act="relu2",
            hidden_act=None,
            mamba_num_heads=4,
            mamba_head_dim=10,
            n_groups=2,
            ssm_state_size=8,
            conv_kernel=4,
            use_conv_bias=True,
            time_step_min=0.6,
            rms_norm_eps=None,
            layer_norm_epsilon=1e-5,
        ),
        switches=({"time_step_min": 0.001}, {"mlp_hidden_act": "relu"}, {"layer_norm_epsilon": 0.1}),
        gguf=False,
    ),
)

KIMI_LINEAR = (
    Case(
        "kimi-linear-dense",
        decoder(
            "KimiLinearForCausalLM",
            "kimi_linear",
            hidden_size=40,
            num_hidden_layers=3,
            num_key_value_heads=4,
            kv_lora_rank=12,
            q_lora_rank=None,
            qk_nope_head_dim=6,
            qk_rope_head_dim=4,
            v_head_dim=5,
            linear_attn_config={
                "head_dim": 8,
                "num_heads": 3,
                "short_conv_kernel_size": 4,
                "full_attn_layers": [2],
                "kda_layers": [1, 3],
            },
            first_k_dense_replace=3,
            max_position_embeddings=None,
            model_max_length=128,
            pad_token_id=0,
        ),
        switches=({"rms_norm_eps": 0.1},),
        gguf=False,
        renamed=((r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj"),),
    ),
)

RECURRENT = LFM2 + QWEN3_NEXT + QWEN3_5 + MAMBA2 + BAMBA + FALCON_H1 + NEMOTRON_H + KIMI_LINEAR
