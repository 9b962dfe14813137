/* Good models load with the shapes and defaults that their files state. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/model.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"

static dw_error err;

static dw_model *load(const char *path, double rope_base)
{
    dw_model *m;
    cr_assert(dw_model_load(&m, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = rope_base}, &err) == DW_OK, "%s",
              err.message);
    return m;
}

static void check_matrix(const dw_matrix *w, dw_type type, int64_t outputs, int64_t inputs, const char *name)
{
    cr_expect(w->type == type && w->outputs == outputs && w->inputs == inputs, "%s: %s [%lld][%lld]", name,
              dw_types[w->type].name, (long long)w->outputs, (long long)w->inputs);
}

static void check_layers(const dw_model *m, dw_type type)
{
    for (int64_t i = 0; i < m->config.layers; i++) {
        const dw_layer *l = &m->layer[i];
        check_matrix(&l->q.w, type, m->config.heads * m->config.head_dim, m->config.hidden, "q");
        check_matrix(&l->k.w, type, m->config.kv_heads * m->config.head_dim, m->config.hidden, "k");
        check_matrix(&l->v.w, type, m->config.kv_heads * m->config.head_dim, m->config.hidden, "v");
        check_matrix(&l->output.w, type, m->config.hidden, m->config.heads * m->config.head_dim, "output");
        check_matrix(&l->gate.w, type, m->config.feed_forward, m->config.hidden, "gate");
        check_matrix(&l->up.w, type, m->config.feed_forward, m->config.hidden, "up");
        check_matrix(&l->down.w, type, m->config.hidden, m->config.feed_forward, "down");
        cr_expect(l->attention_norm.gain != l->feed_forward_norm.gain && l->q.w.data != l->k.w.data);
    }
}

Test(model_load, fixtures_of_every_storage_type)
{
    static const struct {
        fixture_type type;
        dw_type embedding, matrix, head;
        int tied;
    } cases[] = {
        {FIXTURE_F32, DW_F32, DW_F32, DW_F32, 0},
        {FIXTURE_Q8_0, DW_Q8_0, DW_Q8_0, DW_Q8_0, 0},
        {FIXTURE_Q4_1, DW_Q4_1, DW_Q4_1, DW_Q4_1, 0},
        {FIXTURE_MIXED, DW_Q8_0, DW_Q4_1, DW_Q8_0, 1},
    };
    const char *path = fixture_path("model.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_model *m;
        int64_t bytes;
        fixture_model(path, &(fixture_spec){.type = cases[i].type, .layers = 3, .heads = 6, .kv_heads = 2, .tokenizer = 1});
        m = load(path, 0);
        cr_expect(m->config.layers == 3 && m->config.hidden == 64 && m->config.heads == 6 && m->config.kv_heads == 2 &&
                  m->config.head_dim == 16);
        cr_expect(m->config.feed_forward == 96 && m->vocabulary == 320 && m->config.context == 4096 &&
                  m->config.rope_dims == 16);
        cr_expect(m->config.rope.base == 10000 && m->config.norm_epsilon == (double)1e-5f &&
                  strcmp(m->config.family->name, "llama") == 0);
        cr_expect(strcmp(m->checkpoint->path, path) == 0);
        check_layers(m, cases[i].matrix);
        check_matrix(&m->embedding, cases[i].embedding, 320, 64, "embedding");
        check_matrix(&m->head, cases[i].head, 320, 64, "head");
        cr_expect((m->head.data == m->embedding.data) == cases[i].tied);
        /* Rows of 64: 96 of q and output, 32 of k and v, 96 of gate, up, down a layer; 320 of embedding and head; 7 norms. */
        bytes = dw_row_bytes(cases[i].matrix, 3 * (2 * 96 + 2 * 32 + 3 * 96) * 64) + 7 * 64 * 4;
        bytes += dw_row_bytes(cases[i].embedding, 320 * 64) + (cases[i].tied ? 0 : dw_row_bytes(cases[i].head, 320 * 64));
        cr_expect(dw_model_weight_bytes(m) == bytes);
        dw_model_free(m);
    }
}

Test(model_load, rope_base_of_the_caller_overrides_the_file)
{
    const char *path = fixture_path("model.gguf");
    dw_model *m;
    fixture_model(path, &(fixture_spec){.rope_base = 50000});
    m = load(path, 0);
    cr_expect(m->config.rope.base == 50000);
    dw_model_free(m);
    m = load(path, 250000);
    cr_expect(m->config.rope.base == 250000);
    dw_model_free(m);
}

/* A key is made unknown to Dewpoint, outside of llama.*, by its first letter. */
static void hide(gguf_writer *writer, const char *key)
{
    int64_t bytes;
    uint8_t *data = gguf_build(writer, &bytes);
    data[gguf_where(writer, GGUF_AT_KEY, key) + 8] = 'x';
}

Test(model_load, absent_keys_have_the_defaults_of_the_family)
{
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.rope_base = 50000, .kv_heads = 4});
    dw_model *m;
    hide(writer, "llama.attention.head_count_kv");
    hide(writer, "llama.attention.key_length");
    hide(writer, "llama.attention.value_length");
    hide(writer, "llama.rope.dimension_count");
    hide(writer, "llama.rope.freq_base");
    hide(writer, "llama.vocab_size");
    hide(writer, "general.quantization_version");
    gguf_write(writer, path);
    gguf_free(writer);
    m = load(path, 0);
    cr_expect(m->config.kv_heads == 4 && m->config.head_dim == 16 && m->config.rope_dims == 16 &&
              m->config.rope.base == 10000 && m->vocabulary == 320);
    dw_model_free(m);
}

Test(model_load, switches_at_the_value_that_changes_nothing_are_accepted)
{
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.layers = 1});
    gguf_put_string(writer, "llama.rope.scaling.type", "none");
    gguf_put_f32(writer, "llama.rope.scaling.factor", 1);
    gguf_put_u32(writer, "llama.expert_count", 0);
    gguf_put_u32(writer, "llama.attention.sliding_window", 0);
    gguf_write(writer, path);
    gguf_free(writer);
    dw_model_free(load(path, 0));
}

Test(model_load, qwen2_has_biases_that_its_bytes_count)
{
    const char *path = fixture_path("model.gguf");
    const int64_t bytes = (320 * 64 * 2 + 2 * ((2 * 64 + 2 * 32 + 3 * 96) * 64 + 2 * 64) + 64) * 4; /* without biases */
    gguf_writer *writer = fixture_writer(&(fixture_spec){.family = "qwen2"});
    int64_t size;
    const uint8_t *file = gguf_build(writer, &size);
    dw_model *m;
    gguf_write(writer, path);
    m = load(path, 0);
    cr_expect_str_eq(m->config.family->name, "qwen2");
    cr_expect(m->config.rope_pairs == DW_ROPE_HALVES);
    check_layers(m, DW_F32);
    for (int64_t i = 0; i < m->config.layers; i++) {
        const struct {
            const char *name;
            const float *bias;
            size_t count;
        } biases[] = {
            {"attn_q", m->layer[i].q.bias, 64},
            {"attn_k", m->layer[i].k.bias, 32},
            {"attn_v", m->layer[i].v.bias, 32},
        };
        for (size_t j = 0; j < 3; j++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%lld.%s.bias", (long long)i, biases[j].name);
            cr_expect(memcmp(biases[j].bias, file + gguf_where(writer, GGUF_AT_DATA, name), biases[j].count * 4) == 0, "%s",
                      name);
        }
    }
    cr_expect(dw_model_weight_bytes(m) == bytes + 2 * (64 + 32 + 32) * 4);
    dw_model_free(m);
    gguf_free(writer);
    fixture_model(path, &(fixture_spec){0});
    m = load(path, 0);
    cr_expect(m->layer[0].q.bias == NULL && m->layer[1].k.bias == NULL && m->layer[1].v.bias == NULL);
    cr_expect(dw_model_weight_bytes(m) == bytes);
    dw_model_free(m);
}

Test(model_load, qwen05)
{
    dw_model *m = load("data/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", 0);
    cr_expect(m->config.layers == 24 && m->config.hidden == 896 && m->config.heads == 14 && m->config.kv_heads == 2 &&
              m->config.head_dim == 64);
    cr_expect(m->config.feed_forward == 4864 && m->vocabulary == 151936 && m->config.context == 32768 &&
              m->config.rope_dims == 64);
    cr_expect(m->config.rope.base == 1000000 && m->config.norm_epsilon == (double)1e-6f);
    check_matrix(&m->embedding, DW_Q5_0, 151936, 896, "embedding");
    check_matrix(&m->head, DW_Q8_0, 151936, 896, "head");
    cr_expect(m->layer[23].q.bias != NULL && m->layer[23].k.bias != NULL && m->layer[23].v.bias != NULL);
    dw_model_free(m);
}

Test(model_load, smollm2)
{
    dw_model *m = load("data/SmolLM2-135M-Instruct.Q4_1.gguf", 0);
    cr_expect(m->config.layers == 30 && m->config.hidden == 576 && m->config.heads == 9 && m->config.kv_heads == 3 &&
              m->config.head_dim == 64);
    cr_expect(m->config.feed_forward == 1536 && m->vocabulary == 49152 && m->config.context == 8192 &&
              m->config.rope_dims == 64);
    cr_expect(m->config.rope.base == 100000 && m->config.norm_epsilon == (double)1e-5f);
    check_layers(m, DW_Q4_1);
    check_matrix(&m->embedding, DW_Q8_0, 49152, 576, "embedding");
    cr_expect(m->head.data == m->embedding.data);
    cr_expect(dw_model_weight_bytes(m) == 96576768);
    dw_model_free(m);
}

Test(model_load, converted_checkpoints_keep_shape_and_type)
{
    static const struct {
        const char *name;
        dw_type type;
        int64_t layers, hidden, heads, kv_heads, head_dim;
        double rope_base;
        int64_t vocabulary;
        int tied;
    } cases[] = {
        {"models/llama-headdim", DW_F32, 3, 64, 4, 2, 24, 10000, 320, 0},
        {"models/llama-float16", DW_F16, 4, 72, 9, 3, 8, 100000, 320, 0},
        {"models/llama-bf16-shards", DW_BF16, 3, 80, 5, 5, 16, 10000, 320, 0},
        {"models/qwen2-tied", DW_F32, 3, 72, 6, 2, 12, 1000000, 320, 1},
        {"models/qwen2-untied", DW_F32, 3, 64, 4, 4, 16, 10000, 311, 0},
    };
    const char *path = fixture_path("model.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_model *m;
        fixture_from_safetensors(path, reference_path(cases[i].name));
        m = load(path, 0);
        cr_expect(m->config.layers == cases[i].layers && m->config.hidden == cases[i].hidden &&
                  m->config.heads == cases[i].heads);
        cr_expect(m->config.kv_heads == cases[i].kv_heads && m->config.head_dim == cases[i].head_dim &&
                  m->config.rope.base == cases[i].rope_base);
        cr_expect(m->vocabulary == cases[i].vocabulary && m->config.context == 1024);
        cr_expect((m->head.data == m->embedding.data) == cases[i].tied);
        check_layers(m, cases[i].type);
        dw_model_free(m);
    }
}

Test(model_load, converted_checkpoints_have_interleaved_rotation_pairs)
{
    enum { ROW = 64 * 4, HALF = 12 };
    const int64_t q_proj = 8 + 3072 + 287232; /* of layer 0: behind the header, at its offset */
    const char *path = fixture_path("model.gguf");
    const uint8_t *converted;
    uint8_t *checkpoint;
    int64_t bytes;
    dw_model *m;
    fixture_from_safetensors(path, reference_path("models/llama-headdim"));
    read_file(reference_path("models/llama-headdim/model.safetensors"), &checkpoint, &bytes);
    m = load(path, 0);
    converted = m->layer[0].q.w.data;
    for (int64_t head = 0; head < 4; head++) {
        for (int64_t i = 0; i < HALF; i++) {
            const uint8_t *pair = converted + (head * 2 * HALF + 2 * i) * ROW;
            const uint8_t *first = checkpoint + q_proj + (head * 2 * HALF + i) * ROW;
            cr_expect(memcmp(pair, first, ROW) == 0 && memcmp(pair + ROW, first + HALF * ROW, ROW) == 0);
        }
    }
    dw_model_free(m);
    dw_free(checkpoint);
}

Test(model_load, truncation_is_noticed)
{
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.layers = 1, .hidden = 32, .head_dim = 8, .feed_forward = 32});
    int64_t size;
    int64_t end;
    dw_model *m;
    (void)gguf_build(writer, &size);
    end = gguf_where(writer, GGUF_AT_DATA, "output.weight") + 320 * 32 * 4;
    gguf_write(writer, path);
    cr_assert(end == size, "no padding");
    dw_model_free(load(path, 0));
    for (int64_t n = size - 1; n >= 0; n -= n > 4096 ? 61 : 1) {
        cr_assert(truncate(path, n) == 0);
        cr_assert(dw_model_load(&m, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err) == DW_INPUT && m == NULL,
                  "%lld bytes", (long long)n);
        cr_assert(strstr(err.message, path) == err.message, "\"%s\"", err.message);
    }
    gguf_free(writer);
}

Test(model_load, random_bytes_do_no_harm)
{
    enum { FILES = 2000 };
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.layers = 1, .hidden = 32, .head_dim = 8, .vocabulary = 32});
    int64_t size;
    int64_t loaded = 0;
    uint8_t *data = gguf_build(writer, &size);
    const int64_t directory = gguf_where(writer, GGUF_AT_DATA, "token_embd.weight");
    for (int64_t i = 0; i < FILES; i++) {
        /* Half of the flips hit the directory, the rest the numbers. */
        const double range = (double)(i % 2 == 0 ? directory : size);
        const int64_t where = (int64_t)((0.5 + 0.5 * (double)fixture_random(1, i, 1)) * range);
        const uint8_t saved = data[where];
        dw_model *m;
        data[where] = (uint8_t)(128 + 128 * (double)fixture_random(2, i, 1));
        write_file(path, data, size);
        if (dw_model_load(&m, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err) == DW_OK) {
            loaded++;
            dw_model_free(m);
        } else {
            cr_assert(err.status == DW_INPUT && strstr(err.message, path) == err.message, "\"%s\"", err.message);
        }
        data[where] = saved;
    }
    cr_expect(loaded > FILES / 4 && loaded < FILES * 3 / 4, "%lld of %d", (long long)loaded, FILES);
    gguf_free(writer);
}

Test(model_load, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    const char *path = fixture_path("model.gguf");
    dw_model *m;
    int64_t allocations;
    fixture_model(path, &(fixture_spec){0});
    allocations = dw_memory_allocations();
    dw_model_free(load(path, 0));
    allocations = dw_memory_allocations() - allocations;
    cr_assert(allocations >= 8);
    for (int64_t n = 1; n <= allocations; n++) {
        dw_memory_fail_at(n);
        cr_expect(dw_model_load(&m, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err) == DW_RESOURCE &&
                      m == NULL,
                  "allocation %lld", (long long)n);
        cr_expect(strstr(err.message, "not enough memory") != NULL, "%s", err.message);
    }
    dw_memory_fail_at(0);
    check_no_leak();
}

/* ---- yarn in GGUF files ---- */

typedef struct {
    const char *key;
    float value;
} yarn_key;

static dw_rope yarn_of(const yarn_key *keys, int count)
{
    const char *path = fixture_path("yarn.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.layers = 1});
    dw_model *m;
    dw_rope rope;
    gguf_put_string(writer, "llama.rope.scaling.type", "yarn");
    gguf_put_f32(writer, "llama.rope.scaling.factor", 4);
    for (int i = 0; i < count; i++) gguf_put_f32(writer, keys[i].key, keys[i].value);
    gguf_write(writer, path);
    gguf_free(writer);
    m = load(path, 0);
    rope = m->config.rope;
    dw_model_free(m);
    return rope;
}

/* As converters write it: yarn_attn_factor is the attention_factor of config.json. */
Test(model_load, yarn_settings_of_gguf_files)
{
    static const yarn_key multiplied[] = {{"llama.rope.scaling.attn_factor", 2}};
    static const yarn_key whole[] = {{"llama.rope.scaling.yarn_attn_factor", 1.5F}};
    static const yarn_key bounds[] = {{"llama.rope.scaling.yarn_beta_fast", 8}, {"llama.rope.scaling.yarn_beta_slow", 2}};
    const double magnitude = dw_rope_yarn_magnitude(4, 1);
    const dw_rope plain = yarn_of(NULL, 0);
    const dw_rope bounded = yarn_of(bounds, 2);
    cr_assert_eq(plain.attention_factor, magnitude);
    cr_assert(plain.factor == 4 && plain.beta_fast == 32 && plain.beta_slow == 1 && plain.truncate);
    cr_assert_eq(yarn_of(multiplied, 1).attention_factor, 2 * magnitude);
    cr_assert_eq(yarn_of(whole, 1).attention_factor, 1.5);
    cr_assert(bounded.beta_fast == 8 && bounded.beta_slow == 2 && bounded.attention_factor == magnitude);
}
