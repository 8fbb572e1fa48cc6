"""Recurrent layers and hybrids with attention."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import Case, Config, decoder

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
    ),
)


def kimi_linear(heads: int, taps: int, full: int, **fields: Any) -> Config:
    """Three layers, of which `full` attends; the others have so many heads and inputs of their convolution."""
    return decoder(
        "KimiLinearForCausalLM",
        "kimi_linear",
        **{
            "hidden_size": 40,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "kv_lora_rank": 12,
            "q_lora_rank": None,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
            "linear_attn_config": {
                "head_dim": 8,
                "num_heads": heads,
                "short_conv_kernel_size": taps,
                "full_attn_layers": [full],
                "kda_layers": [at for at in (1, 2, 3) if at != full],
            },
            "max_position_embeddings": None,
            "model_max_length": 128,
            "pad_token_id": 0,
            **fields,
        },
    )


KIMI_EXPERTS = {
    "first_k_dense_replace": 1,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 10,
    "moe_renormalize": True,
}

KIMI_LINEAR = (
    Case(
        "kimi-linear-dense",
        kimi_linear(heads=3, taps=4, full=2, first_k_dense_replace=3),
        switches=({"rms_norm_eps": 0.1},),
        gguf=False,
        renamed=((r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj"),),
    ),
)


def lfm2_moe(**fields: Any) -> Config:
    return decoder(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        hidden_size=32,
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        num_dense_layers=1,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=18,
        hidden_act=None,
        rms_norm_eps=None,
        norm_eps=1e-5,
        rope_theta=1e4,
        tie_word_embeddings=True,
        **fields,
    )


MIXTURES = (
    Case(
        "qwen3-next",
        decoder(
            "Qwen3NextForCausalLM",
            "qwen3_next",
            hidden_size=32,
            num_hidden_layers=3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            mlp_only_layers=[2],
            head_dim=16,
            rope_theta=1e4,
            linear_num_key_heads=4,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=14,
        ),
        switches=({"num_experts_per_tok": 1}, {"norm_topk_prob": False}),
        zero_centred_norms=True,
        gguf=False,
    ),
    Case(  # as published: experts in all layers, which GGUF wants
        "qwen3-next-experts",
        decoder(
            "Qwen3NextForCausalLM",
            "qwen3_next",
            hidden_size=24,
            full_attention_interval=2,
            head_dim=16,
            partial_rotary_factor=0.25,
            rope_theta=1e4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_conv_kernel_dim=3,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=10,
            shared_expert_intermediate_size=14,
        ),
        zero_centred_norms=True,
    ),
    Case(
        "qwen3-5-moe",
        decoder(
            "Qwen3_5MoeForCausalLM",
            "qwen3_5_moe_text",
            hidden_size=24,
            intermediate_size=None,
            num_hidden_layers=2,
            full_attention_interval=2,
            head_dim=16,
            rope_theta=1e4,
            linear_num_key_heads=1,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=6,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=14,
        ),
        switches=({"num_experts_per_tok": 1},),
        zero_centred_norms=True,
    ),
    Case(
        "lfm2-moe",
        lfm2_moe(routed_scaling_factor=1.5),
        switches=({"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}, {"num_experts_per_tok": 1}),
        gguf=False,  # llama.cpp knows of no factor here
    ),
    Case(  # as published
        "lfm2-moe-unscaled",
        lfm2_moe(conv_L_cache=3),
        switches=({"routed_scaling_factor": 1.5}, {"norm_topk_prob": False}),
    ),
    Case(
        "kimi-linear",
        kimi_linear(
            heads=2,
            taps=3,
            full=3,
            num_experts=6,
            num_shared_experts=2,
            num_expert_group=3,
            topk_group=2,
            routed_scaling_factor=1.7,
            **KIMI_EXPERTS,
        ),
        switches=(
            {"routed_scaling_factor": 1.0},
            {"num_experts_per_token": 1},
            {"topk_group": 1},
            {"moe_renormalize": False},
        ),
        gguf=False,
        renamed=KIMI_LINEAR[0].renamed,
    ),
    Case(  # as published: one group of experts, as many heads in both kinds of layers
        "kimi-linear-one-group",
        kimi_linear(
            heads=4,
            taps=4,
            full=2,
            hidden_size=32,
            num_experts=5,
            num_shared_experts=1,
            num_expert_group=1,
            topk_group=1,
            moe_router_activation_func="sigmoid",
            routed_scaling_factor=2.4,
            **KIMI_EXPERTS,
        ),
        renamed=KIMI_LINEAR[0].renamed,
    ),
    Case(
        "nemotron-h-moe",
        decoder(
            "NemotronHForCausalLM",
            "nemotron_h",
            hidden_size=32,
            head_dim=12,
            num_hidden_layers=4,
            layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
            hidden_act=None,
            mamba_num_heads=6,
            mamba_head_dim=8,
            n_groups=3,
            ssm_state_size=8,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=14,
            moe_shared_expert_intermediate_size=18,
            moe_latent_size=20,
            routed_scaling_factor=1.6,
            n_group=2,
            topk_group=1,
            rms_norm_eps=None,
            layer_norm_epsilon=1e-5,
        ),
        switches=({"routed_scaling_factor": 1.0}, {"num_experts_per_tok": 1}, {"topk_group": 2}),
    ),
)

RECURRENT = LFM2 + QWEN3_NEXT + QWEN3_5 + MAMBA2 + BAMBA + FALCON_H1 + NEMOTRON_H + KIMI_LINEAR + MIXTURES
