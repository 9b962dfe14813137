/* The configuration in the metadata of GGUF files, which need no tensors for it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/config.h"
#include "tests/shared/fixtures.h"

/* A file that is being written, and what is read from it. */
typedef struct {
    gguf_writer *writer;
    const char *architecture;
    dw_checkpoint *checkpoint;
    dw_config config;
} model;

static const char *key_of(const model *m, const char *suffix)
{
    static char key[96];
    snprintf(key, sizeof key, "%s.%s", m->architecture, suffix);
    return key;
}

static void put_count(const model *m, const char *suffix, uint32_t value)
{
    gguf_put_u32(m->writer, key_of(m, suffix), value);
}

static void put_number(const model *m, const char *suffix, float value)
{
    gguf_put_f32(m->writer, key_of(m, suffix), value);
}

static void put_text(const model *m, const char *suffix, const char *value)
{
    gguf_put_string(m->writer, key_of(m, suffix), value);
}

/* 4 heads of 16 in `layers` layers; everything that has no default, and key_length where heads are not hidden / heads. */
static model begin(const char *architecture, uint32_t layers, uint32_t hidden)
{
    const int layer_norm = strcmp(architecture, "gpt2") == 0 || strcmp(architecture, "gptneox") == 0;
    model m = {.writer = gguf_new(3), .architecture = architecture};
    gguf_put_string(m.writer, "general.architecture", architecture);
    put_count(&m, "block_count", layers);
    put_count(&m, "context_length", 1024);
    put_count(&m, "embedding_length", hidden);
    put_count(&m, "feed_forward_length", 96);
    put_number(&m, layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-6f);
    return m;
}

static model begin_llama(void)
{
    model m = begin("llama", 3, 64);
    put_count(&m, "attention.head_count", 4);
    return m;
}

static dw_status read_with(model *m, const dw_config_overrides *overrides, dw_error *err)
{
    const char *path = fixture_path("model.gguf");
    gguf_write(m->writer, path);
    gguf_free(m->writer);
    cr_assert_eq(dw_checkpoint_open(&m->checkpoint, path, DW_FILE_MAP, err), DW_OK, "%s", err->message);
    return dw_config_read(&m->config, m->checkpoint, overrides, err);
}

static const dw_config *read_good(model *m)
{
    const dw_config_overrides none = {0};
    dw_error err;
    cr_assert_eq(read_with(m, &none, &err), DW_OK, "%s", err.message);
    return &m->config;
}

static void end(model *m)
{
    dw_config_free(&m->config);
    dw_checkpoint_close(m->checkpoint);
}

/* The words must be in a one-line message that begins with the path. */
static void expect_refused(model *m, const char *words)
{
    const dw_config_overrides none = {0};
    dw_error err = {.message = ""};
    cr_expect_eq(read_with(m, &none, &err), DW_INPUT, "no error about '%s'", words);
    cr_expect(strstr(err.message, m->checkpoint->path) == err.message && strchr(err.message, '\n') == NULL, "'%s'",
              err.message);
    cr_expect(strstr(err.message, words) != NULL, "'%s' lacks '%s'", err.message, words);
    dw_checkpoint_close(m->checkpoint);
}

/* ---- shape and switches ---- */

Test(config_gguf, what_no_file_says_comes_from_the_family)
{
    static const struct {
        const char *architecture;
        const char *name;
        dw_rope_pairs pairs;
        dw_activation activation;
    } cases[] = {
        {"gemma3", "gemma3", DW_ROPE_HALVES, DW_GELU_TANH}, {"gpt2", "gpt2", DW_ROPE_ABSENT, DW_GELU_TANH},
        {"gptneox", "gpt_neox", DW_ROPE_HALVES, DW_GELU},   {"llama", "llama", DW_ROPE_NEIGHBOURS, DW_SILU},
        {"qwen2", "qwen2", DW_ROPE_HALVES, DW_SILU},        {"qwen3", "qwen3", DW_ROPE_HALVES, DW_SILU},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model m = begin(cases[i].architecture, 3, 64);
        const dw_config *c;
        put_count(&m, "attention.head_count", 4);
        if (strcmp(cases[i].architecture, "gptneox") == 0) gguf_put_bool(m.writer, "gptneox.use_parallel_residual", 1);
        c = read_good(&m);
        cr_assert_str_eq(c->family->name, cases[i].name);
        cr_assert(c->rope_pairs == cases[i].pairs && c->activation == cases[i].activation, "%s", cases[i].name);
        cr_assert(c->layers == 3 && c->hidden == 64 && c->feed_forward == 96 && c->heads == 4 && c->kv_heads == 4);
        cr_assert(c->head_dim == 16 && c->context == 1024 && c->vocabulary == -1 && c->is_tied == -1 && c->query_scale == 1);
        cr_assert(c->norm_epsilon == (double)1e-6f && c->window[0] == 0 && c->window[2] == 0);
        cr_assert_eq(c->is_parallel, strcmp(cases[i].architecture, "gptneox") == 0);
        if (c->rope_pairs != DW_ROPE_ABSENT) {
            cr_assert(c->rope_dims == 16 && c->rope.base == 10000 && c->rope.kind == DW_ROPE_NONE);
            cr_assert(c->rope.attention_factor == 1 && c->local_rope.base == 10000 && c->rope.factors == NULL);
        }
        end(&m);
    }
}

/* Some converters write a number of every layer. */
Test(config_gguf, counts_may_be_arrays_of_equal_numbers)
{
    static const int32_t equal[3] = {2, 2, 2};
    static const int32_t different[3] = {2, 2, 1};
    model m = begin_llama();
    gguf_put_array(m.writer, "llama.attention.head_count_kv", GGUF_I32, 4, equal, 3);
    cr_assert_eq(read_good(&m)->kv_heads, 2);
    end(&m);
    m = begin_llama();
    gguf_put_array(m.writer, "llama.attention.head_count_kv", GGUF_I32, 4, different, 3);
    expect_refused(&m, "llama.attention.head_count_kv differs from layer to layer");
    m = begin_llama();
    gguf_put_array(m.writer, "llama.attention.head_count_kv", GGUF_I32, 4, equal, 0);
    expect_refused(&m, "llama.attention.head_count_kv is an empty array");
}

Test(config_gguf, an_activation_may_be_named)
{
    model m = begin_llama();
    put_text(&m, "hidden_act", "gelu_new");
    cr_assert_eq(read_good(&m)->activation, DW_GELU_TANH);
    end(&m);
    m = begin_llama();
    put_text(&m, "hidden_act", "relu");
    expect_refused(&m, "llama.hidden_act is 'relu'; there are silu, gelu, gelu_new and gelu_pytorch_tanh");
}

/* ---- RoPE ---- */

Test(config_gguf, linear_scaling_in_both_spellings)
{
    static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear", "rope.scaling.factor"};
    for (int i = 0; i < 3; i++) {
        model m = begin_llama();
        const dw_config *c;
        if (i == 2) put_text(&m, "rope.scaling.type", "linear");
        put_number(&m, factors[i], 4);
        put_number(&m, "rope.freq_base", 50000);
        c = read_good(&m);
        cr_assert(c->rope.kind == DW_ROPE_LINEAR && c->rope.factor == 4 && c->rope.base == 50000 && c->context == 1024);
        cr_assert_eq(memcmp(&c->rope, &c->local_rope, sizeof c->rope), 0);
        end(&m);
    }
}

Test(config_gguf, factors_that_change_nothing_are_no_scaling)
{
    static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear"};
    for (int i = 0; i < 2; i++) {
        model m = begin_llama();
        put_number(&m, factors[i], 1);
        cr_assert_eq(read_good(&m)->rope.kind, DW_ROPE_NONE);
        end(&m);
    }
}

Test(config_gguf, yarn_extends_the_context_and_has_its_defaults)
{
    model m = begin("qwen2", 3, 64);
    const dw_config *c;
    put_count(&m, "attention.head_count", 4);
    put_text(&m, "rope.scaling.type", "yarn");
    put_number(&m, "rope.scaling.factor", 4);
    c = read_good(&m);
    cr_assert(c->rope.kind == DW_ROPE_YARN && c->rope.factor == 4 && c->rope.original_context == 1024 && c->context == 4096);
    cr_assert(c->rope.beta_fast == 32 && c->rope.beta_slow == 1 && c->rope.truncate == 1);
    cr_assert(fabs(c->rope.attention_factor - 1.138629436111989) < 1e-12);
    end(&m);
    m = begin_llama();
    put_text(&m, "rope.scaling.type", "yarn");
    put_number(&m, "rope.scaling.factor", 4);
    put_count(&m, "rope.scaling.original_context_length", 128);
    put_number(&m, "rope.scaling.attn_factor", 0.5f);
    put_number(&m, "rope.scaling.yarn_attn_factor", 1.5f);
    put_number(&m, "rope.scaling.yarn_ext_factor", 1);
    put_number(&m, "rope.scaling.yarn_beta_fast", 16);
    put_number(&m, "rope.scaling.yarn_beta_slow", 2);
    c = read_good(&m);
    cr_assert(c->rope.original_context == 128 && c->context == 1024 && c->rope.beta_fast == 16 && c->rope.beta_slow == 2);
    cr_assert(fabs(c->rope.attention_factor - 0.75) < 1e-12);
    end(&m);
}

Test(config_gguf, scalings_that_would_be_computed_wrongly_are_refused)
{
    static const struct {
        const char *kind, *key;
        float value;
        const char *words;
    } cases[] = {
        {"longrope", NULL, 0, "llama.rope.scaling.type is 'longrope'; none, linear and yarn are supported"},
        {"dynamic", NULL, 0, "llama.rope.scaling.type is 'dynamic'"},
        {"linear", NULL, 0, "llama.rope.scaling.type is 'linear', but rope.scaling.factor is missing"},
        {"linear", "rope.scaling.factor", 0.5f,
         "the factor of RoPE scaling 'linear' is 0.5; it must be 1 or more, up to 1e+06"},
        {"linear", "rope.scaling.factor", INFINITY, "the factor of RoPE scaling 'linear' is inf"},
        {"none", "rope.scaling.factor", 4, "llama.rope.scaling.type is 'none', but the factor is 4"},
        {NULL, "rope.scaling.attn_factor", 1.2f, "llama.rope.scaling.attn_factor is 1.2; without yarn only 1 is supported"},
        {NULL, "rope.scaling.yarn_log_multiplier", 0.1f, "llama.rope.scaling.yarn_log_multiplier is 0.1; only 0 is supported"},
        {NULL, "rope.scaling.yarn_attn_factor", 1.2f, "llama.rope.scaling.yarn_attn_factor is 1.2; without yarn only 1"},
        {NULL, "rope.freq_base", 0, "llama.rope.freq_base is 0"},
        {NULL, "rope.freq_base", 0.5f, "llama.rope.freq_base is 0.5; above 1 and up to 1e+30 is supported"},
        {NULL, "rope.freq_base", 1e32f, "llama.rope.freq_base is 1e+32"},
        {NULL, "rope.freq_base", NAN, "llama.rope.freq_base is nan"},
        {NULL, "rope.freq_base_swa", 10000, "llama.rope.freq_base_swa is not supported in family llama"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model m = begin_llama();
        if (cases[i].kind != NULL) put_text(&m, "rope.scaling.type", cases[i].kind);
        if (cases[i].key != NULL) put_number(&m, cases[i].key, cases[i].value);
        expect_refused(&m, cases[i].words);
    }
}

Test(config_gguf, yarn_without_extrapolation_is_refused)
{
    model m = begin_llama();
    put_text(&m, "rope.scaling.type", "yarn");
    put_number(&m, "rope.scaling.factor", 4);
    put_number(&m, "rope.scaling.yarn_ext_factor", 0.5f);
    expect_refused(&m, "llama.rope.scaling.yarn_ext_factor is 0.5; 1 is supported");
}

/* rope_freqs.weight: one divisor a pair, Llama 3's scaling. */
static void put_factors(const model *m, int64_t count, const float *factors)
{
    gguf_put_tensor(m->writer, "rope_freqs.weight", 0, 1, &count, factors, count * 4);
}

Test(config_gguf, a_tensor_of_factors_scales_each_frequency)
{
    static const float factors[8] = {1, 1, 1, 2, 5, 8, 8, 8};
    const dw_config_overrides none = {.rope_scaling = "none"};
    dw_error err;
    model m = begin_llama();
    put_factors(&m, 8, factors);
    cr_assert_eq(memcmp(read_good(&m)->rope.factors, factors, sizeof factors), 0);
    cr_assert_eq(m.config.local_rope.factors, m.config.rope.factors);
    end(&m);
    m = begin_llama(); /* they are part of the model's scaling, which the command line replaces */
    put_factors(&m, 8, factors);
    cr_assert_eq(read_with(&m, &none, &err), DW_OK, "%s", err.message);
    cr_assert_null(m.config.rope.factors);
    end(&m);
}

Test(config_gguf, factors_of_another_number_or_without_sense_are_refused)
{
    static const float wrong[] = {0, -1, NAN, INFINITY, 1e-9f};
    float factors[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    model m = begin_llama();
    put_factors(&m, 9, factors);
    expect_refused(&m, "tensor rope_freqs.weight has");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        m = begin_llama();
        factors[5] = wrong[i];
        put_factors(&m, 8, factors);
        expect_refused(&m, "tensor rope_freqs.weight holds");
    }
}

Test(config_gguf, the_command_line_overrides_base_and_scaling)
{
    const dw_config_overrides both = {.rope_base = 500, .rope_scaling = "dynamic:2"};
    const dw_config_overrides low = {.rope_base = 0.5};
    dw_error err;
    model m = begin("gemma3", 6, 64);
    put_count(&m, "attention.head_count", 4);
    put_count(&m, "attention.sliding_window", 32);
    put_number(&m, "rope.freq_base", 1e6f);
    cr_assert_eq(read_with(&m, &both, &err), DW_OK, "%s", err.message);
    cr_assert(m.config.rope.kind == DW_ROPE_DYNAMIC && m.config.rope.base == 500 && m.config.rope.original_context == 1024);
    cr_assert(m.config.context == 2048);
    cr_assert(m.config.local_rope.base == 10000 && m.config.local_rope.kind == DW_ROPE_NONE,
              "layers with a window keep theirs");
    end(&m);
    m = begin_llama();
    cr_assert_eq(read_with(&m, &low, &err), DW_USAGE);
    cr_assert_not_null(strstr(err.message, "--rope-base 0.5: above 1 and up to 1e+30 is supported"), "%s", err.message);
    dw_checkpoint_close(m.checkpoint);
}

/* ---- windows ---- */

Test(config_gguf, a_window_of_llama_files_is_one_of_all_layers)
{
    model m = begin_llama();
    const dw_config *c;
    put_count(&m, "attention.sliding_window", 100);
    c = read_good(&m);
    for (int64_t i = 0; i < 3; i++) cr_assert_eq(c->window[i], 100);
    end(&m);
    m = begin_llama();
    put_count(&m, "attention.sliding_window", 100);
    put_count(&m, "attention.sliding_window_pattern", 2);
    expect_refused(&m, "llama.attention.sliding_window_pattern is not supported in family llama");
}

Test(config_gguf, gemma3_sees_everything_in_each_sixth_layer)
{
    static const struct {
        uint32_t pattern; /* 0: no key */
        const char *windows;
    } cases[] = {{0, "wwwww0wwwww0ww"}, {3, "ww0ww0ww0ww0ww"}, {1, "00000000000000"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model m = begin("gemma3", 14, 640);
        const dw_config *c;
        put_count(&m, "attention.head_count", 4);
        put_count(&m, "attention.key_length", 256);
        put_count(&m, "attention.value_length", 256);
        put_count(&m, "attention.sliding_window", 512);
        put_number(&m, "rope.freq_base", 1e6f);
        put_text(&m, "rope.scaling.type", "linear");
        put_number(&m, "rope.scaling.factor", 8);
        if (cases[i].pattern > 0) put_count(&m, "attention.sliding_window_pattern", cases[i].pattern);
        c = read_good(&m);
        for (int64_t l = 0; l < 14; l++) {
            cr_assert_eq(c->window[l], cases[i].windows[l] == 'w' ? 512 : 0, "pattern %u, layer %lld", cases[i].pattern,
                         (long long)l);
        }
        cr_assert(c->head_dim == 256 && c->rope.kind == DW_ROPE_LINEAR && c->rope.base == 1e6);
        cr_assert(c->local_rope.kind == DW_ROPE_NONE && c->local_rope.base == 10000);
        end(&m);
    }
}

Test(config_gguf, gemma3_may_state_the_base_of_layers_with_a_window)
{
    model m = begin("gemma3", 6, 64);
    put_count(&m, "attention.head_count", 4);
    put_number(&m, "rope.freq_base_swa", 20000);
    cr_assert_eq(read_good(&m)->local_rope.base, 20000);
    end(&m);
}

/* 5376 / 32 instead of head_dim 128. */
Test(config_gguf, gemma3_27b_scales_queries_by_its_width)
{
    model m = begin("gemma3", 62, 5376);
    put_count(&m, "attention.head_count", 32);
    put_count(&m, "attention.head_count_kv", 16);
    put_count(&m, "attention.key_length", 128);
    put_count(&m, "attention.value_length", 128);
    put_count(&m, "attention.sliding_window", 1024);
    cr_assert(fabs(read_good(&m)->query_scale - sqrt(128.0 / 168.0)) < 1e-15);
    end(&m);
}

/* ---- keys ---- */

Test(config_gguf, keys_that_are_unknown_or_of_another_family_are_refused)
{
    static const struct {
        const char *key;
        float value;
        const char *words;
    } cases[] = {
        {"expert_count", 8, "llama.expert_count is 8; only 0 is supported"},
        {"attn_logit_softcapping", 50, "llama.attn_logit_softcapping is 50; only 0 is supported"},
        {"final_logit_softcapping", 30, "llama.final_logit_softcapping is 30; only 0 is supported"},
        {"attention.scale", 0.1f, "metadata key llama.attention.scale is unknown and could change results"},
        {"use_parallel_residual", 1, "llama.use_parallel_residual is not supported in family llama"},
        {"vocab_size", 320, "llama.vocab_size is of kind f32; expected an integer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model m = begin_llama();
        put_number(&m, cases[i].key, cases[i].value);
        expect_refused(&m, cases[i].words);
    }
}

Test(config_gguf, architectures_that_are_unknown_are_refused)
{
    model m = {.writer = gguf_new(3)};
    gguf_put_string(m.writer, "general.architecture", "mistral");
    expect_refused(&m, "architecture 'mistral' is not supported; supported: gemma3, gpt2, gptneox, llama (Mistral, too)");
}
