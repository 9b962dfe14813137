/* config.json in both forms: the same configuration, defaults of transformers, and refusals that name the key. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/config.h"
#include "tests/shared/reference.h"

static dw_status read_with(dw_config *config, const char *json, const dw_config_overrides *overrides, dw_error *err)
{
    json_error_t problem;
    char path[] = "MODEL";
    dw_checkpoint checkpoint = {.path = path, .config = json_loads(json, 0, &problem)};
    dw_status status;
    cr_assert_not_null(checkpoint.config, "%s", problem.text);
    status = dw_config_read(config, &checkpoint, overrides, err);
    json_decref(checkpoint.config);
    return status;
}

static dw_config read_good(const char *json)
{
    const dw_config_overrides none = {0};
    dw_config config;
    dw_error err;
    cr_assert_eq(read_with(&config, json, &none, &err), DW_OK, "%s", err.message);
    return config;
}

static void expect_refused(const char *json, const char *words)
{
    const dw_config_overrides none = {0};
    dw_config config;
    dw_error err = {.message = ""};
    cr_assert_eq(read_with(&config, json, &none, &err), DW_INPUT, "no error about '%s'", words);
    cr_assert(strncmp(err.message, "MODEL", 5) == 0 && strstr(err.message, words) != NULL, "'%s' lacks '%s'", err.message,
              words);
}

#define LLAMA                                                                                                                  \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "                   \
    "\"intermediate_size\": 112"
#define MODEL(type)                                                                                                            \
    "{\"model_type\": \"" type "\", \"hidden_size\": 64, \"num_hidden_layers\": 12, \"num_attention_heads\": 8, "              \
    "\"num_key_value_heads\": 4, \"intermediate_size\": 112"

/* Both forms of every reference model. */
Test(config_json, both_forms_of_a_configuration_are_the_same)
{
    static const char *const names[] = {
        "gpt2",          "gpt2-bare",     "neox-parallel", "neox-sequential", "neox-float16",   "qwen2-tied",
        "qwen2-untied",  "llama-headdim", "llama-llama3",  "llama-linear",    "mistral-window", "llama-bf16-shards",
        "llama-float16", "llama-yarn",    "qwen2-yarn",    "llama-dynamic",   "qwen3",          "gemma3",
        "gemma3-plain",  "qwen2-window",  "gpt2-untied",   "neox-partial",    "mistral-mixed"};
    const dw_config_overrides none = {0};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        static const char *const forms[] = {"config.json", "config.alt.json"};
        char path[] = "MODEL";
        dw_config config[2];
        dw_error err;
        for (int i = 0; i < 2; i++) {
            char file[128];
            snprintf(file, sizeof file, "models/%s/%s", names[n], forms[i]);
            dw_checkpoint checkpoint = {.path = path, .config = reference_json(file)};
            cr_assert_eq(dw_config_read(&config[i], &checkpoint, &none, &err), DW_OK, "%s: %s", names[n], err.message);
            json_decref(checkpoint.config);
        }
        cr_assert_eq(memcmp(config[0].window, config[1].window, (size_t)config[0].layers * sizeof(int64_t)), 0, "%s", names[n]);
        dw_config_free(&config[0]);
        dw_config_free(&config[1]);
        cr_assert_eq(memcmp(&config[0], &config[1], sizeof config[0]), 0, "%s", names[n]);
    }
}

Test(config_json, what_is_absent_has_the_default_of_the_class)
{
    dw_config c = read_good("{" LLAMA "}");
    cr_assert(c.kv_heads == 4 && c.head_dim == 16 && c.context == 2048 && c.norm_epsilon == 1e-6 && c.rope.base == 10000);
    cr_assert(c.is_tied == 0 && c.activation == DW_SILU && c.window[2] == 0 && c.rope_dims == 16 && c.vocabulary == -1);
    dw_config_free(&c);
    c = read_good(MODEL("mistral") "}");
    cr_assert(c.window[0] == 4096 && c.window[11] == 4096 && c.context == 131072);
    cr_assert_str_eq(c.family->name, "mistral");
    dw_config_free(&c);
    c = read_good(MODEL("mistral") ", \"sliding_window\": null}");
    cr_assert_eq(c.window[0], 0);
    dw_config_free(&c);
    c = read_good(MODEL("qwen2") ", \"sliding_window\": 100}");
    cr_assert_eq(c.window[11], 0, "a window that is not used");
    dw_config_free(&c);
    c = read_good(MODEL("qwen2") ", \"sliding_window\": 100, \"use_sliding_window\": true, \"max_window_layers\": 10}");
    cr_assert(c.window[9] == 0 && c.window[10] == 100 && c.window[11] == 100);
    dw_config_free(&c);
    c = read_good(MODEL("qwen3") "}");
    cr_assert_eq(c.head_dim, 128);
    dw_config_free(&c);
    c = read_good(MODEL("gemma3_text") "}");
    cr_assert(c.head_dim == 256 && c.is_tied == 1 && c.activation == DW_GELU_TANH && c.query_scale == 1);
    cr_assert(c.window[0] == 4096 && c.window[5] == 0 && c.window[10] == 4096 && c.window[11] == 0);
    cr_assert(c.rope.base == 1000000 && c.local_rope.base == 10000);
    dw_config_free(&c);
    c = read_good("{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 2, \"n_head\": 3}");
    cr_assert(c.feed_forward == 192 && c.context == 1024 && c.is_tied == 1 && c.rope_pairs == DW_ROPE_ABSENT);
    dw_config_free(&c);
    c = read_good(MODEL("gpt_neox") "}");
    cr_assert(c.rope_dims == 2 && c.is_parallel == 1 && c.activation == DW_GELU && c.norm_epsilon == 1e-5);
    dw_config_free(&c);
}

Test(config_json, a_scaling_that_extends_the_context_says_so)
{
    static const struct {
        const char *scaling;
        int64_t context;
    } cases[] = {
        {"{\"type\": \"linear\", \"factor\": 4}", 512},
        {"{\"rope_type\": \"dynamic\", \"factor\": 4}", 2048},
        {"{\"rope_type\": \"yarn\", \"factor\": 4}", 2048},
        {"{\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 128}", 512},
        {"{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}", 512},
        {"{\"rope_type\": \"default\"}", 512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[512];
        dw_config c;
        snprintf(json, sizeof json, "{" LLAMA ", \"max_position_embeddings\": 512, \"rope_scaling\": %s}", cases[i].scaling);
        c = read_good(json);
        cr_assert_eq(c.context, cases[i].context, "%s: %lld", cases[i].scaling, (long long)c.context);
        dw_config_free(&c);
    }
}

Test(config_json, the_command_line_overrides_base_and_scaling)
{
    const dw_config_overrides overrides = {.rope_base = 5e5, .rope_scaling = "yarn:4:256"};
    dw_config c;
    dw_error err;
    cr_assert_eq(read_with(&c, "{" LLAMA ", \"max_position_embeddings\": 512, \"rope_theta\": 1234.5}", &overrides, &err),
                 DW_OK);
    cr_assert(c.rope.base == 5e5 && c.rope.kind == DW_ROPE_YARN && c.rope.factor == 4 && c.rope.original_context == 256);
    cr_assert(c.context == 1024 && c.rope.beta_fast == 32 && fabs(c.rope.attention_factor - 1.1386) < 1e-4);
    dw_config_free(&c);
    cr_assert_eq(read_with(&c, "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 2, \"n_head\": 3}", &overrides, &err),
                 DW_USAGE);
    cr_assert_not_null(strstr(err.message, "learned positions"));
}

Test(config_json, values_of_the_option_are_checked)
{
    static const char *const bad[] = {"",         "linear",      "linear:",     "linear:0.5", "linear:4:5",
                                      "yarn:4:",  "yarn:4:0",    "yarn:4:512x", "llama3:8",   "none:2",
                                      "Linear:4", "dynamic:nan", "linear:1e7"};
    dw_rope rope;
    dw_error err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(dw_rope_scaling_parse(bad[i], NULL, &err), DW_USAGE, "'%s'", bad[i]);
        cr_assert_not_null(strstr(err.message, "--rope-scaling"));
    }
    cr_assert_eq(dw_rope_scaling_parse("dynamic:2.5", &rope, &err), DW_OK);
    cr_assert(rope.kind == DW_ROPE_DYNAMIC && rope.factor == 2.5);
    cr_assert_eq(dw_rope_scaling_parse("none", &rope, &err), DW_OK);
}

/* In transformers null is not absent: as many as heads, whatever the class has otherwise. */
Test(config_json, kv_heads_of_null_are_as_many_as_heads)
{
    static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char json[256];
        dw_config c;
        snprintf(json, sizeof json,
                 "{\"model_type\": \"%s\", \"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "
                 "\"intermediate_size\": 112, \"num_key_value_heads\": null}",
                 types[i]);
        c = read_good(json);
        cr_assert_eq(c.kv_heads, 4, "%s: %lld", types[i], (long long)c.kv_heads);
        dw_config_free(&c);
    }
}

/* "layer_types": three strings. */
#define SLIDING "\"sliding_attention\""
#define FULL "\"full_attention\""
#define LAYERS(type)                                                                                                           \
    "{\"model_type\": \"" type "\", \"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "               \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 112, \"layer_types\": "

Test(config_json, layer_types_say_which_layers_have_the_window)
{
    dw_config c = read_good(LAYERS("qwen2") "[" FULL "," SLIDING "," FULL "], \"sliding_window\": 9, "
                                            "\"use_sliding_window\": true}");
    cr_assert(c.window[0] == 0 && c.window[1] == 9 && c.window[2] == 0);
    dw_config_free(&c);
    c = read_good(LAYERS("gemma3_text") "[" SLIDING "," FULL "," SLIDING "], \"sliding_window\": 9}");
    cr_assert(c.window[0] == 9 && c.window[1] == 0 && c.window[2] == 9);
    dw_config_free(&c);
    c = read_good(LAYERS("mistral") "[" SLIDING "," SLIDING "," SLIDING "], \"sliding_window\": 9}");
    cr_assert(c.window[0] == 9 && c.window[1] == 9 && c.window[2] == 9);
    dw_config_free(&c);
    c = read_good(LAYERS("mistral") "[" FULL "," FULL "," FULL "], \"sliding_window\": null}");
    cr_assert(c.window[0] == 0 && c.window[2] == 0);
    dw_config_free(&c);
}

Test(config_json, layer_types_that_contradict_the_window_are_refused)
{
    static const char *const none = "has sliding_attention, but there is no sliding_window in use";
    expect_refused(LAYERS("llama") "[" FULL "," SLIDING "," FULL "], \"sliding_window\": 9}", none);
    expect_refused(LAYERS("qwen2") "[" FULL "," SLIDING "," FULL "], \"sliding_window\": 9}", none);
    expect_refused(LAYERS("mistral") "[" FULL "," SLIDING "," FULL "], \"sliding_window\": null}", none);
    expect_refused(MODEL("gemma3_text") ", \"sliding_window\": null}", none);
    expect_refused(LAYERS("mistral") "[" SLIDING "," FULL "," SLIDING "], \"sliding_window\": 9}",
                   "layer_types holds 'full_attention' for layer 1, but sliding_window is 9");
}

Test(config_json, what_would_be_computed_wrongly_is_refused)
{
    expect_refused("{}", "model_type is missing");
    expect_refused("{\"model_type\": \"mamba\"}", "model_type 'mamba' is not supported; supported: gemma3_text, gpt2");
    expect_refused("{\"model_type\": 5}", "model_type must be a string");
    expect_refused("{\"model_type\": \"llama\"}", "num_hidden_layers is missing");
    expect_refused("{" LLAMA ", \"num_key_value_heads\": 3}", "4 heads are not a multiple of 3 KV heads");
    expect_refused("{" LLAMA ", \"num_key_value_heads\": 0}", "num_key_value_heads is 0; 1 to 65536");
    expect_refused("{" LLAMA ", \"num_key_value_heads\": \"4\"}", "num_key_value_heads must be a whole number");
    expect_refused("{" LLAMA ", \"head_dim\": 1024}", "head_dim is 1024; 1 to 512");
    expect_refused("{" LLAMA ", \"head_dim\": 15}", "15 dimensions of a head of 15 rotate");
    expect_refused("{" LLAMA ", \"hidden_act\": \"relu\"}", "hidden_act is 'relu'; there are silu, gelu");
    expect_refused("{" LLAMA ", \"rms_norm_eps\": 0}", "rms_norm_eps is 0; it must lie between 0 and 1");
    expect_refused("{" LLAMA ", \"attention_bias\": true}", "attention_bias is true; in family llama only false is supported");
    expect_refused("{" LLAMA ", \"mlp_bias\": true}", "mlp_bias is not supported; it may only be false");
    expect_refused("{" LLAMA ", \"rope_theta\": -1}", "the RoPE base is -1");
    expect_refused("{" LLAMA ", \"rope_scaling\": \"linear\"}", "rope_scaling must be an object or null");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"type\": \"longrope\", \"factor\": 4}}",
                   "RoPE scaling 'longrope' is not supported; there are default, linear, dynamic, llama3 and yarn");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"su\"}}", "RoPE scaling 'su' is not supported");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"type\": \"linear\", \"factor\": 2}}",
                   "rope_type 'yarn' and type 'linear'");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\"}}", "RoPE scaling 'linear' has no factor");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}}", "is 0.5; it must be 1 or more");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}",
                   "they must ascend from above 0");
    expect_refused("{" LLAMA ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", "a rotary share of 0.5");
    expect_refused("{" LLAMA ", \"layer_types\": [\"full_attention\"]}", "layer_types must be an array of 3 strings");
    expect_refused("{" LLAMA ", \"quantization_config\": {\"bits\": 4}}", "quantization_config is not supported");
    expect_refused("{" LLAMA ", \"rope_theta\": 1e-300}", "the RoPE base is 1e-300; above 1 and up to 1e+30 is supported");
    expect_refused("{" LLAMA ", \"rope_theta\": 1}", "the RoPE base is 1; above 1");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 1e300}}",
                   "the factor of RoPE scaling 'dynamic' is 1e+300; it must be 1 or more, up to 1e+06");
    expect_refused("{" LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2, \"alpha\": 1000}}",
                   "RoPE scaling has the key alpha, which is unknown and could change results");
    expect_refused("{" LLAMA ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"factor\": 4}}}",
                   "RoPE scaling has the key full_attention");
    expect_refused("{" LLAMA ", \"max_position_embeddings\": 4294967296}",
                   "max_position_embeddings is 4294967296; 1 to 2147483648");
    expect_refused(MODEL("mistral") ", \"sliding_window\": 0}", "sliding_window is 0");
    expect_refused(MODEL("qwen3") ", \"layer_types\": [\"chunked_attention\",1,1,1,1,1,1,1,1,1,1,1]}", "'chunked_attention'");
    expect_refused(MODEL("gpt_neox") ", \"rotary_pct\": 1.5}", "a rotary share of 1.5");
    expect_refused(MODEL("gpt_neox") ", \"attention_bias\": false}", "attention_bias is false");
    expect_refused(MODEL("gemma3_text") ", \"final_logit_softcapping\": 30.0}", "final_logit_softcapping is not supported");
    expect_refused("{\"model_type\": \"gpt2\", \"n_embd\": 50, \"n_layer\": 2, \"n_head\": 3}",
                   "n_embd 50 is not a multiple of n_head 3");
    expect_refused(
        "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 2, \"n_head\": 3, \"scale_attn_by_inverse_layer_idx\": true}",
        "scale_attn_by_inverse_layer_idx is not supported");
}
