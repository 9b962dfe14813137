/* A model that Dewpoint would compute wrongly, or not at all, is refused with a message that names the reason. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "tests/shared/fixtures.h"

/* Loading must fail as DW_INPUT with a one-line message that starts with the path and has the words in it. */
static void check_refused(const char *path, const char *words)
{
    dw_error err = {.message = ""};
    dw_model *m;
    const dw_status status = dw_model_load(&m, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err);
    cr_expect(status == DW_INPUT && m == NULL, "status %d where \"%s\" was expected", status, words);
    cr_expect(strstr(err.message, path) == err.message && strchr(err.message, '\n') == NULL, "\"%s\"", err.message);
    cr_expect(strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"", err.message, words);
    dw_model_free(m);
}

static void expect_loaded(const char *path)
{
    dw_error err = {.message = ""};
    dw_model *m;
    const dw_status status = dw_model_load(&m, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err);
    cr_expect(status == DW_OK, "%s", err.message);
    dw_model_free(m);
}

static uint64_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The fixture with `bytes` bytes over a field, `by` bytes behind its start, must be refused. */
static void check_patched_fixture(const fixture_spec *spec, gguf_field field, const char *name, int64_t by, uint64_t value,
                                  int64_t bytes, const char *words)
{
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer = fixture_writer(spec);
    int64_t size;
    uint8_t *data = gguf_build(writer, &size);
    memcpy(data + gguf_where(writer, field, name) + by, &value, (size_t)bytes);
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, words);
}

/* The same for a llama model. */
static void check_patched(gguf_field field, const char *name, int64_t by, uint64_t value, int64_t bytes, fixture_type type,
                          const char *words)
{
    check_patched_fixture(&(fixture_spec){.type = type}, field, name, by, value, bytes, words);
}

Test(model_refusals, hyperparameters_out_of_range)
{
    static const struct {
        const char *key;
        uint32_t value;
        const char *words;
    } cases[] = {
        {"llama.block_count", 0, "llama.block_count is 0; 1 to 4096 are supported"},
        {"llama.block_count", 5000, "llama.block_count is 5000; 1 to 4096 are supported"},
        {"llama.block_count", 3, "tensor blk.2.attn_norm.weight is missing"},
        {"llama.block_count", 1, "tensor blk.1.attn_k.weight is not supported in family llama"},
        {"llama.context_length", 0, "llama.context_length is 0"},
        {"llama.embedding_length", 0, "llama.embedding_length is 0"},
        {"llama.embedding_length", 1u << 19, "llama.embedding_length is 524288; 1 to 262144 are supported"},
        {"llama.embedding_length", 96, "tensor token_embd.weight has 320 rows of 64 numbers; expected any rows of 96"},
        {"llama.feed_forward_length", 0, "llama.feed_forward_length is 0"},
        {"llama.feed_forward_length", UINT32_MAX, "llama.feed_forward_length is 4294967295"},
        {"llama.feed_forward_length", 128, "tensor blk.0.ffn_gate.weight has 96 rows of 64 numbers; expected 128 rows of 64"},
        {"llama.attention.head_count", 0, "llama.attention.head_count is 0"},
        {"llama.attention.head_count", 1u << 17, "llama.attention.head_count is 131072"},
        {"llama.attention.head_count", 6, "tensor blk.0.attn_q.weight has 64 rows of 64 numbers; expected 96 rows of 64"},
        {"llama.attention.head_count_kv", 0, "llama.attention.head_count_kv is 0"},
        {"llama.attention.head_count_kv", 3, "4 heads are not a multiple of 3 KV heads"},
        {"llama.attention.head_count_kv", 8, "4 heads are not a multiple of 8 KV heads"},
        {"llama.attention.head_count_kv", 1, "tensor blk.0.attn_k.weight has 32 rows of 64 numbers; expected 16 rows"},
        {"llama.attention.key_length", 0, "llama.attention.key_length is 0; 1 to 512 are supported"},
        {"llama.attention.key_length", 514, "llama.attention.key_length is 514; 1 to 512 are supported"},
        {"llama.attention.value_length", 32, "keys of 16 and values of 32 numbers are not supported"},
        {"llama.rope.dimension_count", 0, "llama.rope.dimension_count is 0; 1 to 16 are supported"},
        {"llama.rope.dimension_count", 18, "llama.rope.dimension_count is 18; 1 to 16 are supported"},
        {"llama.rope.dimension_count", 15,
         "15 dimensions of a head of 16 rotate; an even number up to the head's is supported"},
        {"llama.vocab_size", 321, "vocab_size is 321, but token_embd.weight has 320 rows"},
        {"general.quantization_version", 1, "general.quantization_version is 1; 2 is supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_patched(GGUF_AT_VALUE, cases[i].key, 0, cases[i].value, 4, FIXTURE_F32, cases[i].words);
    }
}

Test(model_refusals, an_odd_number_of_rotated_dimensions)
{
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer;
    uint8_t *data;
    int64_t size;
    fixture_model(path, &(fixture_spec){.head_dim = 15});
    check_refused(path, "15 dimensions of a head of 15 rotate; an even number up to the head's is supported");
    writer = fixture_writer(&(fixture_spec){.head_dim = 15});
    data = gguf_build(writer, &size);
    data[gguf_where(writer, GGUF_AT_VALUE, "llama.rope.dimension_count")] = 14;
    gguf_write(writer, path);
    gguf_free(writer);
    expect_loaded(path); /* 14 of 15 rotate */
}

Test(model_refusals, numbers_that_are_none)
{
    const char *const epsilon = "llama.attention.layer_norm_rms_epsilon";
    check_patched(GGUF_AT_VALUE, epsilon, 0, 0, 4, FIXTURE_F32, "layer_norm_rms_epsilon is 0; it must lie between");
    check_patched(GGUF_AT_VALUE, epsilon, 0, float_bits(-1e-5f), 4, FIXTURE_F32, "layer_norm_rms_epsilon is -1e-05");
    check_patched(GGUF_AT_VALUE, epsilon, 0, 0x7FC00000, 4, FIXTURE_F32, "layer_norm_rms_epsilon is nan");
    check_patched(GGUF_AT_VALUE, "llama.rope.freq_base", 0, float_bits(-1), 4, FIXTURE_F32, "llama.rope.freq_base is -1");
    check_patched(GGUF_AT_VALUE, "llama.rope.freq_base", 0, 0x7F800000, 4, FIXTURE_F32, "llama.rope.freq_base is inf");
}

Test(model_refusals, required_keys_that_are_absent)
{
    static const char *const keys[] = {
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    };
    char words[128];
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        snprintf(words, sizeof words, "metadata key %s is missing", keys[i]);
        check_patched(GGUF_AT_KEY, keys[i], 8, 'x', 1, FIXTURE_F32, words); /* its first letter */
    }
}

Test(model_refusals, other_architectures)
{
    const uint64_t gemma = 0x616d6d6567; /* "gemma" in memory order */
    check_patched(
        GGUF_AT_VALUE, "general.architecture", 8, gemma, 5, FIXTURE_F32,
        "architecture 'gemma' is not supported; supported: gemma3, gpt2, gptneox, llama (Mistral, too), qwen2, qwen3");
}

Test(model_refusals, tensors_that_are_absent_or_of_an_unsupported_type)
{
    check_patched(GGUF_AT_NAME, "blk.1.ffn_up.weight", 8, 'x', 1, FIXTURE_F32, "tensor blk.1.ffn_up.weight is missing");
    check_patched(GGUF_AT_NAME, "output_norm.weight", 8 + 8, 'x', 1, FIXTURE_F32, "tensor output_norm.weight is missing");
    check_patched(
        GGUF_AT_TYPE, "blk.1.ffn_down.weight", 0, 39, 4, FIXTURE_Q4_1,
        "tensor blk.1.ffn_down.weight has type MXFP4 (39), which is not supported; supported: F32, F16, BF16, Q4_0, ");
    check_patched(GGUF_AT_TYPE, "blk.1.attn_norm.weight", 0, 8, 4, FIXTURE_F32, /* Q8_0 */
                  "tensor blk.1.attn_norm.weight has type Q8_0; norms and biases must be F32, F16 or BF16");
}

Test(model_refusals, weights_that_are_not_finite)
{
    check_patched(GGUF_AT_DATA, "blk.1.attn_norm.weight", 4 * 63, 0x7FC00000, 4, FIXTURE_F32,
                  "tensor blk.1.attn_norm.weight holds non-finite values");
    check_patched(GGUF_AT_DATA, "blk.0.ffn_norm.weight", 0, 0x7F800000, 4, FIXTURE_F32,
                  "tensor blk.0.ffn_norm.weight holds non-finite values");
    check_patched(GGUF_AT_DATA, "output_norm.weight", 0, 0xFF800000, 4, FIXTURE_F32,
                  "tensor output_norm.weight holds non-finite values");
    check_patched(GGUF_AT_DATA, "blk.1.attn_v.weight", 4 * (32 * 64 - 1), 0x7F800000, 4, FIXTURE_F32,
                  "tensor blk.1.attn_v.weight holds non-finite values");
    check_patched(GGUF_AT_DATA, "blk.1.attn_v.weight", 34 * 5, 0x7E00, 2, FIXTURE_Q8_0, /* the scale of block 5 */
                  "tensor blk.1.attn_v.weight holds non-finite values");
    check_patched(GGUF_AT_DATA, "blk.0.attn_v.weight", 20 * 7 + 2, 0xFC00, 2, FIXTURE_Q4_1, /* the minimum of block 7 */
                  "tensor blk.0.attn_v.weight holds non-finite values");
    check_patched(GGUF_AT_DATA, "blk.0.attn_v.weight", 0, float_bits(3e38f), 4, FIXTURE_F32,
                  "tensor blk.0.attn_v.weight is too large: values could reach 2^13");
}

Test(model_refusals, switches_that_would_change_results)
{
    static const struct {
        const char *key;
        float value;
        const char *words;
    } cases[] = {
        {"llama.rope.scale_linear", 0.5f, "the factor of RoPE scaling 'linear' is 0.5; it must be 1 or more"},
        {"llama.expert_count", 8, "llama.expert_count is 8; only 0 is supported"},
        {"llama.attention.sliding_window", 4096, "llama.attention.sliding_window is of kind f32; expected an integer"},
        {"llama.logit_scale", 1, "metadata key llama.logit_scale is unknown and could change results"},
        {"split.count", 1, "metadata key split.count is of kind f32; expected an integer"},
    };
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        writer = fixture_writer(&(fixture_spec){.layers = 1});
        gguf_put_f32(writer, cases[i].key, cases[i].value);
        gguf_write(writer, path);
        gguf_free(writer);
        check_refused(path, cases[i].words);
    }
    writer = fixture_writer(&(fixture_spec){.layers = 1});
    gguf_put_string(writer, "llama.rope.scaling.type", "yarn");
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "llama.rope.scaling.type is 'yarn', but rope.scaling.factor is missing");
    writer = fixture_writer(&(fixture_spec){.layers = 1});
    gguf_put_u32(writer, "split.count", 3);
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "metadata key split.count is 3: a part of a split model");
}

Test(model_refusals, tensors_that_would_be_left_out)
{
    static const char *const names[] = {
        "blk.0.attn_q.bias",
        "blk.0.attn_k.bias",
        "blk.0.attn_v.bias",
        "blk.0.attn_output.bias",
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.1.attn_q.weight",
        "blk.00.attn_q.weight",
        "blk.-1.attn_q.weight",
        "blk.99999999999999999999.attn_q.weight",
        "output.bias",
    };
    const char *path = fixture_path("model.gguf");
    const float numbers[64] = {0};
    const int64_t size = 64;
    char words[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gguf_writer *writer = fixture_writer(&(fixture_spec){.layers = 1});
        gguf_put_tensor(writer, names[i], 0, 1, &size, numbers, sizeof numbers);
        gguf_write(writer, path);
        gguf_free(writer);
        snprintf(words, sizeof words, "tensor %s is not supported in family llama", names[i]);
        check_refused(path, words);
    }
}

Test(model_refusals, tensors_that_the_family_needs)
{
    static const char *const names[] = {
        "token_embd.weight",     "output_norm.weight",       "blk.1.attn_q.weight",   "blk.0.attn_k.weight",
        "blk.0.attn_v.weight",   "blk.1.attn_output.weight", "blk.1.ffn_gate.weight", "blk.0.ffn_up.weight",
        "blk.1.ffn_down.weight", "blk.0.attn_norm.weight",   "blk.1.ffn_norm.weight", "blk.0.attn_q.bias",
        "blk.1.attn_k.bias",     "blk.1.attn_v.bias", /* of qwen2 */
    };
    const char *path = fixture_path("model.gguf");
    char words[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        fixture_model(path, &(fixture_spec){.family = "qwen2", .without = names[i]});
        snprintf(words, sizeof words, "tensor %s is missing", names[i]);
        check_refused(path, words);
    }
}

/* Q: 4 heads of 16; K and V: 2. */
Test(model_refusals, biases_of_another_size_or_type_or_not_finite)
{
    const fixture_spec qwen2 = {.family = "qwen2"};
    const uint64_t infinity = 0x7F800000;
    check_patched_fixture(&qwen2, GGUF_AT_DIMS, "blk.1.attn_q.bias", 4, 32, 8, "blk.1.attn_q.bias has 1 rows of 32 numbers");
    check_patched_fixture(&qwen2, GGUF_AT_DIMS, "blk.0.attn_k.bias", 4, 16, 8, "blk.0.attn_k.bias has 1 rows of 16 numbers");
    check_patched_fixture(&qwen2, GGUF_AT_DIMS, "blk.1.attn_v.bias", 4, 31, 8, "blk.1.attn_v.bias has 1 rows of 31 numbers");
    check_patched_fixture(&qwen2, GGUF_AT_TYPE, "blk.0.attn_q.bias", 0, 8, 4,
                          "tensor blk.0.attn_q.bias has type Q8_0; norms and biases must be F32, F16 or BF16");
    check_patched_fixture(&qwen2, GGUF_AT_DATA, "blk.0.attn_q.bias", 4 * 63, infinity, 4,
                          "tensor blk.0.attn_q.bias holds non-finite values");
    check_patched_fixture(&qwen2, GGUF_AT_DATA, "blk.1.attn_k.bias", 0, 0x7FC00000, 4,
                          "tensor blk.1.attn_k.bias holds non-finite values");
    check_patched_fixture(&qwen2, GGUF_AT_DATA, "blk.1.attn_v.bias", 4 * 31, infinity, 4,
                          "tensor blk.1.attn_v.bias holds non-finite values");
    check_patched_fixture(&qwen2, GGUF_AT_DATA, "blk.1.attn_v.bias", 0, float_bits(3e38f), 4,
                          "tensor blk.1.attn_v.weight is too large: values could reach 2^12");
}

Test(model_refusals, what_qwen2_does_not_know)
{
    const char *path = fixture_path("model.gguf");
    const float numbers[64] = {0};
    const int64_t size = 64;
    gguf_writer *writer = fixture_writer(&(fixture_spec){.family = "qwen2"});
    gguf_put_tensor(writer, "blk.0.attn_output.bias", 0, 1, &size, numbers, sizeof numbers);
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "tensor blk.0.attn_output.bias is not supported in family qwen2");
    writer = fixture_writer(&(fixture_spec){.family = "qwen2"});
    gguf_put_string(writer, "qwen2.rope.scaling.type", "longrope");
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "qwen2.rope.scaling.type is 'longrope'; none, linear and yarn are supported");
    writer = fixture_writer(&(fixture_spec){.family = "qwen2"});
    gguf_put_u32(writer, "qwen2.attention.causal", 0);
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "metadata key qwen2.attention.causal is unknown and could change results");
}
