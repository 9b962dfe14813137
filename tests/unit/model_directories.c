/* Models from Hugging Face directories: their tensors are brought into the order of the forward pass, and a directory that would be
   computed wrongly, or not at all, is refused with a message that names the reason. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/f16.h"
#include "model/model.h"
#include "tests/shared/edited_directory.h"
#include "tests/shared/fixtures.h"

static const dw_config_overrides none;
static dw_error err;

static dw_model *load(const char *path)
{
    dw_model *m;
    cr_assert(dw_model_check(path, &err) == DW_OK, "%s", err.message);
    cr_assert(dw_model_load(&m, path, DW_FILE_MAP, &none, &err) == DW_OK, "%s", err.message);
    return m;
}

/* as_check: whether dw_model_check sees it as well, which looks at no number. */
static void check_refused(edited_directory *d, int as_check, const char *words)
{
    static int count;
    char name[32];
    const char *path;
    dw_model *m;
    snprintf(name, sizeof name, "model%d", count++);
    path = edited_directory_write(d, name);
    edited_directory_free(d);
    cr_expect(dw_model_load(&m, path, DW_FILE_MAP, &none, &err) == DW_INPUT && m == NULL, "\"%s\" was expected", words);
    cr_expect(strstr(err.message, path) == err.message && strchr(err.message, '\n') == NULL, "\"%s\"", err.message);
    cr_expect(strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"", err.message, words);
    cr_expect(dw_model_check(path, &err) == (as_check ? DW_INPUT : DW_OK), "%s: %s", words, err.message);
    if (as_check) cr_expect(strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"", err.message, words);
}

/* ---- layouts ---- */

static const float *floats(const edited_directory *d, const char *name)
{
    int64_t bytes;
    return (const float *)(const void *)edited_tensor(d, name, &bytes);
}

/* hidden 56, 4 heads of 14, feed forward 224; stored [inputs][outputs]. */
Test(model_directories, gpt2_matrices_are_turned_and_qkv_is_taken_apart)
{
    edited_directory d = edited_directory_read("gpt2");
    dw_model *m = load(edited_directory_write(&d, "model"));
    const dw_layer *l = &m->layer[1];
    const float *stored = floats(&d, "transformer.h.1.attn.c_attn.weight");
    const float *biases = floats(&d, "transformer.h.1.attn.c_attn.bias");
    const dw_linear_layer *parts[3] = {&l->q, &l->k, &l->v};
    const float *down = floats(&d, "transformer.h.1.mlp.c_proj.weight");
    for (int64_t p = 0; p < 3; p++) {
        const float *w = parts[p]->w.data;
        cr_assert(parts[p]->w.type == DW_F32 && parts[p]->w.outputs == 56 && parts[p]->w.inputs == 56);
        for (int64_t o = 0; o < 56; o++) {
            cr_assert(parts[p]->bias[o] == biases[56 * p + o]);
            for (int64_t i = 0; i < 56; i++) cr_assert(w[56 * o + i] == stored[168 * i + 56 * p + o]);
        }
    }
    cr_assert(l->down.w.outputs == 56 && l->down.w.inputs == 224);
    for (int64_t o = 0; o < 56; o++) {
        for (int64_t i = 0; i < 224; i++) cr_assert(((const float *)l->down.w.data)[224 * o + i] == down[56 * i + o]);
    }
    cr_assert(memcmp(m->positions.data, floats(&d, "transformer.wpe.weight"), 512 * 56 * 4) == 0 &&
              m->positions.outputs == 512);
    cr_assert(m->head.data == m->embedding.data && l->gate.w.data == NULL && l->q_norm.gain == NULL);
    /* What is turned is made; all the rest is read where it lies. */
    cr_assert_eq(m->owned_bytes, 3 * (168 + 56 + 224 + 224) * 56 * 4, "%lld", (long long)m->owned_bytes);
    cr_assert_eq(m->stored_bytes, d.bytes, "%lld", (long long)m->stored_bytes);
    cr_assert_eq(dw_model_weight_bytes(m), m->owned_bytes + m->stored_bytes);
    dw_model_free(m);
    edited_directory_free(&d);
}

/* hidden 80, 5 heads of 16, in halves: rows of q, k, v of head 0, then of head 1, ... */
Test(model_directories, neox_rows_are_regrouped_and_vectors_widened)
{
    edited_directory d = edited_directory_read("neox-float16");
    dw_model *m = load(edited_directory_write(&d, "model"));
    const dw_layer *l = &m->layer[2];
    const dw_linear_layer *parts[3] = {&l->q, &l->k, &l->v};
    int64_t bytes;
    const uint8_t *stored = edited_tensor(&d, "gpt_neox.layers.2.attention.query_key_value.weight", &bytes);
    const uint8_t *biases = edited_tensor(&d, "gpt_neox.layers.2.attention.query_key_value.bias", &bytes);
    const uint8_t *gains = edited_tensor(&d, "gpt_neox.layers.2.input_layernorm.weight", &bytes);
    for (int64_t p = 0; p < 3; p++) {
        cr_assert(parts[p]->w.type == DW_F16 && parts[p]->w.outputs == 80 && parts[p]->w.inputs == 80);
        for (int64_t o = 0; o < 80; o++) {
            const int64_t row = o / 16 * 48 + p * 16 + o % 16;
            uint16_t half;
            memcpy(&half, biases + 2 * row, sizeof half);
            cr_assert(parts[p]->bias[o] == dw_f32_of_f16(half));
            cr_assert(memcmp((const uint8_t *)parts[p]->w.data + 160 * o, stored + 160 * row, 160) == 0);
        }
    }
    for (int64_t i = 0; i < 80; i++) {
        uint16_t half;
        memcpy(&half, gains + 2 * i, sizeof half);
        cr_assert(l->attention_norm.gain[i] == dw_f32_of_f16(half));
    }
    cr_assert_lt(m->stored_bytes, d.bytes, "ignored tensors are no weights");
    dw_model_free(m);
    edited_directory_free(&d);
}

Test(model_directories, gemma_gains_are_stored_less_1)
{
    edited_directory d = edited_directory_read("gemma3");
    dw_model *m = load(edited_directory_write(&d, "model"));
    int64_t bytes;
    const uint8_t *stored = edited_tensor(&d, "model.layers.3.self_attn.q_norm.weight", &bytes);
    cr_assert_eq(bytes, 2 * m->config.head_dim);
    for (int64_t i = 0; i < m->config.head_dim; i++) {
        uint16_t half;
        memcpy(&half, stored + 2 * i, sizeof half);
        cr_assert(m->layer[3].q_norm.gain[i] == 1 + dw_f32_of_bf16(half));
    }
    cr_assert(m->embedding_scale == sqrtf(48) && m->layer[0].attention_post_norm.gain != NULL);
    dw_model_free(m);
    edited_directory_free(&d);
}

static int is_at_multiple(const void *data, uintptr_t bytes)
{
    return (uintptr_t)data % bytes == 0;
}

/* One byte of data in front moves all others: numbers are read from aligned places whatever the file looks like. */
Test(model_directories, data_at_odd_places_is_moved)
{
    edited_directory d = edited_directory_read("llama-headdim");
    dw_model *m = load(edited_directory_write(&d, "even"));
    const dw_layer *l;
    const json_t *tensor;
    const char *name;
    uint8_t *moved;
    int64_t bytes;
    dw_model_free(m);
    cr_assert(DW_ALLOC(&moved, d.bytes + 1, "checkpoint", &err) == DW_OK);
    memcpy(moved + 1, d.data, (size_t)d.bytes);
    dw_free(d.data);
    d.data = moved;
    d.bytes += 1;
    json_object_foreach(d.header, name, tensor) {
        json_t *offsets = json_object_get(tensor, "data_offsets");
        for (size_t i = 0; i < json_array_size(offsets); i++) {
            json_array_set_new(offsets, i, json_integer(json_integer_value(json_array_get(offsets, i)) + 1));
        }
    }
    json_object_set_new(d.header, "model.layers.0.self_attn.rotary_emb.inv_freq",
                        json_pack("{s:s, s:[i], s:[i, i]}", "dtype", "U8", "shape", 1, "data_offsets", 0, 1));
    m = load(edited_directory_write(&d, "odd"));
    l = &m->layer[0];
    cr_assert(is_at_multiple(m->embedding.data, 4) && is_at_multiple(l->v.w.data, 4) &&
              is_at_multiple(l->attention_norm.gain, 4));
    cr_assert(memcmp(l->v.w.data, edited_tensor(&d, "model.layers.0.self_attn.v_proj.weight", &bytes), 48 * 64 * 4) == 0);
    cr_assert(memcmp(l->attention_norm.gain, edited_tensor(&d, "model.layers.0.input_layernorm.weight", &bytes), 64 * 4) == 0);
    dw_model_free(m);
    edited_directory_free(&d);
}

/* ---- refusals ---- */

Test(model_directories, tensors_that_the_family_needs)
{
    static const struct {
        const char *model, *tensor;
    } cases[] = {
        {"gpt2", "transformer.wpe.weight"},
        {"gpt2", "transformer.ln_f.bias"},
        {"gpt2", "transformer.h.0.ln_1.bias"},
        {"gpt2", "transformer.h.2.attn.c_attn.bias"},
        {"gpt2", "transformer.h.1.attn.c_proj.bias"},
        {"gpt2", "transformer.h.1.mlp.c_fc.bias"},
        {"gpt2", "transformer.h.1.mlp.c_proj.weight"},
        {"gpt2-bare", "h.1.mlp.c_proj.bias"},
        {"neox-parallel", "gpt_neox.layers.0.post_attention_layernorm.weight"},
        {"neox-parallel", "gpt_neox.layers.2.attention.query_key_value.weight"},
        {"neox-parallel", "gpt_neox.layers.1.attention.query_key_value.bias"},
        {"qwen2-tied", "model.layers.1.self_attn.k_proj.bias"},
        {"qwen3", "model.layers.1.self_attn.k_norm.weight"},
        {"gemma3", "model.layers.4.pre_feedforward_layernorm.weight"},
        {"gemma3", "model.layers.5.post_feedforward_layernorm.weight"},
        {"llama-headdim", "model.embed_tokens.weight"},
        {"llama-headdim", "model.layers.2.mlp.gate_proj.weight"},
    };
    char words[128];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        edited_directory d = edited_directory_read(cases[i].model);
        edited_rename(&d, cases[i].tensor, "elsewhere");
        snprintf(words, sizeof words, "tensor %s is missing", cases[i].tensor);
        check_refused(&d, 1, words);
    }
}

Test(model_directories, tensors_that_would_be_left_out)
{
    static const struct {
        const char *model, *tensor, *family;
    } cases[] = {
        {"gpt2", "transformer.h.3.ln_1.weight", "gpt2"},
        {"gpt2", "transformer.h.0.attn.c_attn.weight_scale", "gpt2"},
        {"gpt2", "h.0.ln_1.weight", "gpt2"}, /* all have a prefix or none */
        {"neox-parallel", "gpt_neox.layers.1.attention.dense.scale", "gpt_neox"},
        {"llama-headdim", "model.layers.0.self_attn.q_proj.bias", "llama"},
        {"llama-headdim", "model.layers.0.attention.bias", "llama"}, /* which gpt_neox may have */
        {"qwen2-untied", "model.layers.0.self_attn.o_proj.bias", "qwen2"},
        {"qwen2-untied", "model.layers.0.self_attn.q_norm.weight", "qwen2"},
        {"mistral-window", "model.rotary_emb.inv_freq2", "mistral"},
    };
    char words[160];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        edited_directory d = edited_directory_read(cases[i].model);
        edited_add(&d, cases[i].tensor, "F32", "[0]", NULL, 0);
        snprintf(words, sizeof words, "tensor %s is not supported in family %s; results could be wrong without it",
                 cases[i].tensor, cases[i].family);
        check_refused(&d, 1, words);
    }
}

Test(model_directories, tensors_of_another_shape_or_type)
{
    static const struct {
        const char *model, *tensor, *key, *value, *words;
    } cases[] = {
        {"gpt2", "transformer.h.1.attn.c_attn.weight", "shape", "[168, 56]",
         "has 168 rows of 56 numbers; expected 56 rows of 168"},
        {"gpt2", "transformer.h.1.mlp.c_fc.bias", "shape", "[2, 112]", "has 2 rows of 112 numbers; expected 1 rows of 224"},
        {"gpt2", "transformer.wte.weight", "shape", "[280, 64]", "has 280 rows of 64 numbers; expected any rows of 56"},
        {"neox-parallel", "gpt_neox.layers.1.attention.query_key_value.weight", "shape", "[64, 192]",
         "has 64 rows of 192 numbers; expected 192 rows of 64"},
        {"qwen2-untied", "lm_head.weight", "shape", "[622, 32]", "has 622 rows of 32 numbers; expected 311 rows of 64"},
        {"qwen3", "model.layers.0.self_attn.q_norm.weight", "shape", "[2, 12]",
         "has 2 rows of 12 numbers; expected 1 rows of 24"},
        {"gpt2", "transformer.h.1.mlp.c_fc.weight", "dtype", "\"I32\"", "transformer.h.1.mlp.c_fc.weight has type I32"},
        {"gpt2", "transformer.h.1.ln_2.weight", "dtype", "\"U32\"", "transformer.h.1.ln_2.weight has type U32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        edited_directory d = edited_directory_read(cases[i].model);
        json_t *tensor = json_object_get(d.header, cases[i].tensor);
        cr_assert(json_object_set_new(tensor, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL)) == 0);
        check_refused(&d, 1, cases[i].words);
    }
}

Test(model_directories, configurations_that_contradict_the_tensors)
{
    static const struct {
        const char *model, *key;
        int64_t value;
        const char *words;
    } cases[] = {
        {"gpt2", "n_positions", 513, "tensor transformer.wpe.weight has rows for 512 positions, but the context is 513"},
        {"gpt2", "vocab_size", 319, "vocab_size is 319, but transformer.wte.weight has 320 rows"},
        {"llama-headdim", "vocab_size", 321, "vocab_size is 321, but model.embed_tokens.weight has 320 rows"},
        {"neox-parallel", "num_hidden_layers", 2, "tensor gpt_neox.layers.2.attention.dense.bias is not supported"},
        {"neox-parallel", "num_hidden_layers", 4, "tensor gpt_neox.layers.3.input_layernorm.weight is missing"},
        {"neox-parallel", "intermediate_size", 120, "has 128 rows of 64 numbers; expected 120 rows of 64"},
        {"llama-headdim", "head_dim", 16,
         "tensor model.layers.0.self_attn.q_proj.weight has 96 rows of 64 numbers; expected 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        edited_directory d = edited_directory_read(cases[i].model);
        json_object_set_new(d.config, cases[i].key, json_integer(cases[i].value));
        check_refused(&d, 1, cases[i].words);
    }
}

/* The table of GPT-2 may be longer than the context, not shorter. */
Test(model_directories, a_longer_table_of_positions_is_accepted)
{
    edited_directory d = edited_directory_read("gpt2");
    dw_model *m;
    json_object_set_new(d.config, "n_positions", json_integer(511));
    m = load(edited_directory_write(&d, "model"));
    cr_assert(m->config.context == 511 && m->positions.outputs == 512);
    dw_model_free(m);
    edited_directory_free(&d);
}

Test(model_directories, a_head_beside_a_tied_embedding_must_be_equal)
{
    edited_directory d = edited_directory_read("qwen2-tied");
    int64_t bytes;
    const uint8_t *embedding = edited_tensor(&d, "model.embed_tokens.weight", &bytes);
    dw_model *m;
    edited_add(&d, "lm_head.weight", "F32", "[320, 72]", embedding, bytes);
    m = load(edited_directory_write(&d, "equal"));
    cr_assert(m->head.data == m->embedding.data);
    dw_model_free(m);
    edited_tensor(&d, "lm_head.weight", &bytes)[bytes - 1] ^= 0x80; /* the sign of the last number */
    check_refused(&d, 0, "tensor lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings is true");
}

Test(model_directories, a_head_of_its_own_must_be_there)
{
    edited_directory d = edited_directory_read("qwen2-tied");
    json_object_set_new(d.config, "tie_word_embeddings", json_false());
    check_refused(&d, 1, "tensor lm_head.weight is missing, and tie_word_embeddings is false");
    d = edited_directory_read("neox-parallel");
    edited_rename(&d, "embed_out.weight", "elsewhere");
    check_refused(&d, 1, "tensor embed_out.weight is missing, and tie_word_embeddings is false");
}

/* The number at `index` of a tensor in halves or floats becomes NaN. */
static void check_nan(const char *model, const char *tensor, int64_t index, int size)
{
    static const uint32_t nan32 = 0x7FC00000;
    static const uint16_t nan16 = 0x7E00;
    edited_directory d = edited_directory_read(model);
    int64_t bytes;
    char words[160];
    uint8_t *at = edited_tensor(&d, tensor, &bytes) + index * size;
    cr_assert(index * size < bytes);
    memcpy(at, size == 4 ? (const void *)&nan32 : (const void *)&nan16, (size_t)size);
    snprintf(words, sizeof words, "tensor %s holds non-finite values", tensor);
    check_refused(&d, 0, words);
}

Test(model_directories, weights_that_are_not_finite)
{
    check_nan("gpt2", "transformer.h.1.ln_1.bias", 55, 4);
    check_nan("gpt2", "transformer.ln_f.weight", 0, 4);
    check_nan("gpt2", "transformer.h.2.mlp.c_proj.bias", 3, 4);
    check_nan("gpt2", "transformer.h.2.attn.c_attn.weight", 167, 4); /* the last column is of V */
    check_nan("neox-float16", "gpt_neox.layers.1.input_layernorm.weight", 7, 2);
    check_nan("neox-float16", "gpt_neox.layers.1.attention.query_key_value.bias", 239, 2);
    check_nan("neox-float16", "gpt_neox.layers.0.attention.query_key_value.weight", 32 * 80, 2); /* V of head 0 */
}

static void check_allocations(const char *name)
{
    edited_directory d = edited_directory_read(name);
    const char *path = edited_directory_write(&d, name);
    dw_model *m;
    int64_t allocations;
    edited_directory_free(&d);
    allocations = dw_memory_allocations();
    cr_assert(dw_model_load(&m, path, DW_FILE_MAP, &none, &err) == DW_OK, "%s", err.message);
    dw_model_free(m);
    allocations = dw_memory_allocations() - allocations;
    for (int64_t n = 1; n <= allocations; n++) {
        dw_memory_fail_at(n);
        cr_expect(dw_model_load(&m, path, DW_FILE_MAP, &none, &err) == DW_RESOURCE && m == NULL, "allocation %lld",
                  (long long)n);
    }
    dw_memory_fail_at(0);
}

Test(model_directories, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    check_allocations("gpt2");
    check_allocations("neox-float16");
    check_no_leak();
}
