#include "model/family.h"

#include <stddef.h>

/* ---- names in GGUF files: one set for all families ---- */

static const char *const gguf_names[DW_PARTS] = {
    [DW_PART_EMBEDDING] = "token_embd",
    [DW_PART_POSITIONS] = "position_embd",
    [DW_PART_OUTPUT_NORM] = "output_norm",
    [DW_PART_HEAD] = "output",
    [DW_PART_ROPE_FACTORS] = "rope_freqs",
    [DW_PART_ATTENTION_NORM] = "attn_norm",
    [DW_PART_Q] = "attn_q",
    [DW_PART_K] = "attn_k",
    [DW_PART_V] = "attn_v",
    [DW_PART_QKV] = "attn_qkv",
    [DW_PART_Q_NORM] = "attn_q_norm",
    [DW_PART_K_NORM] = "attn_k_norm",
    [DW_PART_ATTENTION_OUTPUT] = "attn_output",
    [DW_PART_ATTENTION_POST_NORM] = "post_attention_norm",
    [DW_PART_FEED_FORWARD_NORM] = "ffn_norm",
    [DW_PART_GATE] = "ffn_gate",
    [DW_PART_UP] = "ffn_up",
    [DW_PART_DOWN] = "ffn_down",
    [DW_PART_FEED_FORWARD_POST_NORM] = "post_ffw_norm",
};

/* ---- names in Hugging Face checkpoints ---- */

static const char *const llama_names[DW_PARTS] = {
    [DW_PART_EMBEDDING] = "embed_tokens",
    [DW_PART_OUTPUT_NORM] = "norm",
    [DW_PART_HEAD] = "lm_head",
    [DW_PART_ATTENTION_NORM] = "input_layernorm",
    [DW_PART_Q] = "self_attn.q_proj",
    [DW_PART_K] = "self_attn.k_proj",
    [DW_PART_V] = "self_attn.v_proj",
    [DW_PART_ATTENTION_OUTPUT] = "self_attn.o_proj",
    [DW_PART_FEED_FORWARD_NORM] = "post_attention_layernorm",
    [DW_PART_GATE] = "mlp.gate_proj",
    [DW_PART_UP] = "mlp.up_proj",
    [DW_PART_DOWN] = "mlp.down_proj",
};

static const char *const qwen3_names[DW_PARTS] = {
    [DW_PART_EMBEDDING] = "embed_tokens",
    [DW_PART_OUTPUT_NORM] = "norm",
    [DW_PART_HEAD] = "lm_head",
    [DW_PART_ATTENTION_NORM] = "input_layernorm",
    [DW_PART_Q] = "self_attn.q_proj",
    [DW_PART_K] = "self_attn.k_proj",
    [DW_PART_V] = "self_attn.v_proj",
    [DW_PART_Q_NORM] = "self_attn.q_norm",
    [DW_PART_K_NORM] = "self_attn.k_norm",
    [DW_PART_ATTENTION_OUTPUT] = "self_attn.o_proj",
    [DW_PART_FEED_FORWARD_NORM] = "post_attention_layernorm",
    [DW_PART_GATE] = "mlp.gate_proj",
    [DW_PART_UP] = "mlp.up_proj",
    [DW_PART_DOWN] = "mlp.down_proj",
};

static const char *const gemma3_names[DW_PARTS] = {
    [DW_PART_EMBEDDING] = "embed_tokens",
    [DW_PART_OUTPUT_NORM] = "norm",
    [DW_PART_HEAD] = "lm_head",
    [DW_PART_ATTENTION_NORM] = "input_layernorm",
    [DW_PART_Q] = "self_attn.q_proj",
    [DW_PART_K] = "self_attn.k_proj",
    [DW_PART_V] = "self_attn.v_proj",
    [DW_PART_Q_NORM] = "self_attn.q_norm",
    [DW_PART_K_NORM] = "self_attn.k_norm",
    [DW_PART_ATTENTION_OUTPUT] = "self_attn.o_proj",
    [DW_PART_ATTENTION_POST_NORM] = "post_attention_layernorm",
    [DW_PART_FEED_FORWARD_NORM] = "pre_feedforward_layernorm",
    [DW_PART_GATE] = "mlp.gate_proj",
    [DW_PART_UP] = "mlp.up_proj",
    [DW_PART_DOWN] = "mlp.down_proj",
    [DW_PART_FEED_FORWARD_POST_NORM] = "post_feedforward_layernorm",
};

static const char *const gpt2_names[DW_PARTS] = {
    [DW_PART_EMBEDDING] = "wte",
    [DW_PART_POSITIONS] = "wpe",
    [DW_PART_OUTPUT_NORM] = "ln_f",
    [DW_PART_HEAD] = "lm_head",
    [DW_PART_ATTENTION_NORM] = "ln_1",
    [DW_PART_QKV] = "attn.c_attn",
    [DW_PART_ATTENTION_OUTPUT] = "attn.c_proj",
    [DW_PART_FEED_FORWARD_NORM] = "ln_2",
    [DW_PART_UP] = "mlp.c_fc",
    [DW_PART_DOWN] = "mlp.c_proj",
};

static const char *const gpt_neox_names[DW_PARTS] = {
    [DW_PART_EMBEDDING] = "embed_in",
    [DW_PART_OUTPUT_NORM] = "final_layer_norm",
    [DW_PART_HEAD] = "embed_out",
    [DW_PART_ATTENTION_NORM] = "input_layernorm",
    [DW_PART_QKV] = "attention.query_key_value",
    [DW_PART_ATTENTION_OUTPUT] = "attention.dense",
    [DW_PART_FEED_FORWARD_NORM] = "post_attention_layernorm",
    [DW_PART_UP] = "mlp.dense_h_to_4h",
    [DW_PART_DOWN] = "mlp.dense_4h_to_h",
};

/* Buffers that older versions of transformers wrote along with the weights. */
static const char *const llama_ignored[] = {".rotary_emb.inv_freq", NULL};
static const char *const gpt2_ignored[] = {".attn.bias", ".attn.masked_bias", NULL};
static const char *const gpt_neox_ignored[] = {".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq",
                                               NULL};

/* ---- the families ---- */

#define TYPES(...) ((const char *const[]){__VA_ARGS__, NULL})

static const dw_family families[] = {
    {.name = "gemma3",
     .architecture = "gemma3",
     .types = TYPES("gemma3_text"),
     .gguf_pairs = DW_ROPE_HALVES,
     .activation = DW_GELU_TANH,
     .norm_offset = 1,
     .is_gated = 1,
     .has_qk_norm = 1,
     .has_post_norms = 1,
     .has_local_layers = 1,
     .scales_embedding = 1,
     .hf_prefix = "model.",
     .hf_names = gemma3_names,
     .hf_layers = "layers",
     .hf_ignored = llama_ignored},
    {.name = "gpt2",
     .architecture = "gpt2",
     .types = TYPES("gpt2"),
     .gguf_pairs = DW_ROPE_ABSENT,
     .norm = DW_NORM_LAYER,
     .activation = DW_GELU_TANH,
     .norm_has_bias = 1,
     .qkv = DW_QKV_COLUMNS,
     .gguf_qkv_is_one = 1,
     .qkv_has_bias = 1,
     .output_has_bias = 1,
     .feed_forward_has_bias = 1,
     .is_transposed = 1,
     .hf_prefix = "transformer.",
     .hf_names = gpt2_names,
     .hf_layers = "h",
     .hf_ignored = gpt2_ignored},
    {.name = "gpt_neox",
     .architecture = "gptneox",
     .types = TYPES("gpt_neox"),
     .gguf_pairs = DW_ROPE_HALVES,
     .norm = DW_NORM_LAYER,
     .activation = DW_GELU,
     .norm_has_bias = 1,
     .qkv = DW_QKV_BY_HEAD,
     .gguf_qkv_is_one = 1,
     .qkv_has_bias = 1,
     .output_has_bias = 1,
     .feed_forward_has_bias = 1,
     .hf_prefix = "gpt_neox.",
     .hf_names = gpt_neox_names,
     .hf_layers = "layers",
     .hf_ignored = gpt_neox_ignored},
    {.name = "llama",
     .architecture = "llama",
     .types = TYPES("llama"),
     .gguf_pairs = DW_ROPE_NEIGHBOURS,
     .is_gated = 1,
     .hf_prefix = "model.",
     .hf_names = llama_names,
     .hf_layers = "layers",
     .hf_ignored = llama_ignored},
    /* A llama with a window; its GGUF files say that they are llama. */
    {.name = "mistral",
     .types = TYPES("mistral"),
     .gguf_pairs = DW_ROPE_NEIGHBOURS,
     .is_gated = 1,
     .hf_prefix = "model.",
     .hf_names = llama_names,
     .hf_layers = "layers",
     .hf_ignored = llama_ignored},
    {.name = "qwen2",
     .architecture = "qwen2",
     .types = TYPES("qwen2"),
     .gguf_pairs = DW_ROPE_HALVES,
     .qkv_has_bias = 1,
     .is_gated = 1,
     .hf_prefix = "model.",
     .hf_names = llama_names,
     .hf_layers = "layers",
     .hf_ignored = llama_ignored},
    {.name = "qwen3",
     .architecture = "qwen3",
     .types = TYPES("qwen3"),
     .gguf_pairs = DW_ROPE_HALVES,
     .is_gated = 1,
     .has_qk_norm = 1,
     .hf_prefix = "model.",
     .hf_names = qwen3_names,
     .hf_layers = "layers",
     .hf_ignored = llama_ignored},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

const dw_family *dw_family_of_gguf(dw_string architecture)
{
    for (int i = 0; i < FAMILIES; i++) {
        if (families[i].architecture != NULL && dw_string_is(architecture, families[i].architecture)) return &families[i];
    }
    return NULL;
}

const dw_family *dw_family_of_hf(dw_string model_type)
{
    for (int i = 0; i < FAMILIES; i++) {
        for (const char *const *type = families[i].types; *type != NULL; type++) {
            if (dw_string_is(model_type, *type)) return &families[i];
        }
    }
    return NULL;
}

const char *dw_family_gguf_names(void)
{
    return "gemma3, gpt2, gptneox, llama (Mistral, too), qwen2, qwen3";
}

const char *dw_family_hf_names(void)
{
    return "gemma3_text, gpt2, gpt_neox, llama, mistral, qwen2, qwen3";
}

const char *dw_part_gguf_name(dw_part part)
{
    return gguf_names[part];
}
