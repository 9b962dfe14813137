/* Hugging Face checkpoints of families llama and qwen2 as GGUF. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/types.h"
#include "tests/shared/fixtures.h"

enum { MAX_FILES = 16 };

/* A safetensors file: u64 length of the header, a JSON header, the data that its offsets count from. */
typedef struct {
    uint8_t *bytes;
    const uint8_t *data;
    json_t *header;
} shard;

typedef struct {
    shard shards[MAX_FILES];
    int count;
    json_t *config;
    const char *family; /* of the config */
    gguf_writer *writer;
} conversion;

static json_t *parse(const char *text, size_t length, const char *path)
{
    json_error_t error;
    json_t *value = json_loadb(text, length, 0, &error);
    cr_assert(value != NULL, "%s: %s", path, error.text);
    return value;
}

static void open_shard(conversion *c, const char *path)
{
    shard *s = &c->shards[c->count++];
    int64_t bytes;
    uint64_t header;
    read_file(path, &s->bytes, &bytes);
    cr_assert(bytes >= 8, "%s is too short", path);
    memcpy(&header, s->bytes, 8);
    cr_assert(header <= (uint64_t)bytes - 8, "%s is too short", path);
    s->header = parse((const char *)s->bytes + 8, header, path);
    s->data = s->bytes + 8 + header;
}

static void open_directory(conversion *c, const char *directory)
{
    char path[1024];
    uint8_t *text;
    int64_t bytes;
    const struct dirent *entry;
    DIR *listing = opendir(directory);
    cr_assert(listing != NULL, "%s is missing; tests need it", directory);
    snprintf(path, sizeof path, "%s/config.json", directory);
    read_file(path, &text, &bytes);
    c->config = parse((const char *)text, (size_t)bytes, path);
    dw_free(text);
    while ((entry = readdir(listing)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strcmp(dot, ".safetensors") != 0) continue;
        cr_assert(c->count < MAX_FILES);
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        open_shard(c, path);
    }
    closedir(listing);
    cr_assert(c->count > 0, "%s holds no safetensors file", directory);
}

/* Its description {"dtype", "shape", "data_offsets"} and first byte. */
static const json_t *find(const conversion *c, const char *name, const uint8_t **data)
{
    for (int i = 0; i < c->count; i++) {
        const json_t *tensor = json_object_get(c->shards[i].header, name);
        if (tensor == NULL) continue;
        *data = c->shards[i].data + json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
        return tensor;
    }
    cr_assert_fail("no tensor %s", name);
    return NULL;
}

static dw_type type_of(const json_t *tensor)
{
    const char *type = json_string_value(json_object_get(tensor, "dtype"));
    for (int i = 0; i < DW_TYPE_COUNT; i++) {
        if (strcmp(type, dw_types[i].name) == 0) return (dw_type)i;
    }
    cr_assert_fail("no conversion of %s", type);
    return DW_F32;
}

static float widen(dw_type type, const uint8_t *data, int64_t i)
{
    float value = 0;
    if (type == DW_F32) {
        memcpy(&value, data + 4 * i, 4);
    } else if (type == DW_F16) {
        _Float16 half;
        memcpy(&half, data + 2 * i, 2);
        value = (float)half;
    } else {
        memcpy((uint8_t *)&value + 2, data + 2 * i, 2); /* bfloat16: the high half of a float */
    }
    return value;
}

/* A norm or a bias. */
static void put_vector(conversion *c, const char *name, const char *from)
{
    const uint8_t *data;
    const json_t *tensor = find(c, from, &data);
    const int64_t size = json_integer_value(json_array_get(json_object_get(tensor, "shape"), 0));
    float *x;
    dw_error err;
    cr_assert(DW_ALLOC(&x, size, "vector", &err) == DW_OK, "%s", err.message);
    for (int64_t i = 0; i < size; i++) x[i] = widen(type_of(tensor), data, i);
    gguf_put_tensor(c->writer, name, (uint32_t)dw_types[DW_F32].gguf_id, 1, &size, x, size * (int64_t)sizeof *x);
    dw_free(x);
}

/* heads > 0: row j * d/2 + i of each head becomes row 2i + j (j = 0, 1): rotation pairs (i, i + d/2) become neighbours. */
static void put_matrix(conversion *c, const char *name, const char *from, int64_t heads)
{
    const uint8_t *data;
    const json_t *tensor = find(c, from, &data);
    const json_t *shape = json_object_get(tensor, "shape");
    const int64_t outputs = json_integer_value(json_array_get(shape, 0));
    const int64_t inputs = json_integer_value(json_array_get(shape, 1));
    const int64_t size[2] = {inputs, outputs};
    const dw_type type = type_of(tensor);
    const int64_t row = dw_row_bytes(type, inputs);
    const int64_t d = heads > 0 ? outputs / heads : 0;
    uint8_t *rows;
    dw_error err;
    cr_assert(DW_ALLOC(&rows, outputs * row, "matrix", &err) == DW_OK, "%s", err.message);
    for (int64_t old = 0; old < outputs; old++) {
        const int64_t in_head = heads > 0 ? old % d : 0;
        const int64_t fresh = heads > 0 ? old - in_head + 2 * (in_head % (d / 2)) + in_head / (d / 2) : old;
        memcpy(rows + fresh * row, data + old * row, (size_t)row);
    }
    gguf_put_tensor(c->writer, name, (uint32_t)dw_types[type].gguf_id, 2, size, rows, outputs * row);
    dw_free(rows);
}

static int64_t count_of(const conversion *c, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(c->config, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static void put_hyperparameters(conversion *c)
{
    static const struct {
        const char *to, *from;
    } counts[] = {
        {"block_count", "num_hidden_layers"},
        {"context_length", "max_position_embeddings"},
        {"embedding_length", "hidden_size"},
        {"feed_forward_length", "intermediate_size"},
        {"attention.head_count", "num_attention_heads"},
        {"vocab_size", "vocab_size"},
    };
    const json_t *rope = json_object_get(c->config, "rope_parameters");
    const json_t *base = json_object_get(json_is_object(rope) ? rope : c->config, "rope_theta");
    const int64_t heads = count_of(c, "num_attention_heads", 0);
    const int64_t head_dim = count_of(c, "head_dim", heads > 0 ? count_of(c, "hidden_size", 0) / heads : 0);
    gguf_writer *w = c->writer;
    char key[96];
#define KEY(suffix) (snprintf(key, sizeof key, "%s.%s", c->family, suffix), key)
    cr_assert(!json_is_object(json_object_get(c->config, "rope_scaling")), "no conversion of RoPE scaling");
    cr_assert(!json_is_true(json_object_get(c->config, "use_sliding_window")), "no conversion of a sliding window");
    gguf_put_string(w, "general.architecture", c->family);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        gguf_put_u32(w, KEY(counts[i].to), (uint32_t)count_of(c, counts[i].from, 0));
    }
    gguf_put_u32(w, KEY("attention.head_count_kv"), (uint32_t)count_of(c, "num_key_value_heads", heads));
    gguf_put_u32(w, KEY("attention.key_length"), (uint32_t)head_dim);
    gguf_put_u32(w, KEY("attention.value_length"), (uint32_t)head_dim);
    gguf_put_f32(w, KEY("rope.freq_base"), json_is_number(base) ? (float)json_number_value(base) : 10000);
    gguf_put_f32(w, KEY("attention.layer_norm_rms_epsilon"),
                 (float)json_number_value(json_object_get(c->config, "rms_norm_eps")));
#undef KEY
}

static void put_layer(conversion *c, int64_t layer)
{
    static const struct {
        const char *to, *from;
    } plain[] = {
        {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"}, {"ffn_gate", "mlp.gate_proj"},
        {"ffn_up", "mlp.up_proj"},      {"ffn_down", "mlp.down_proj"},
    };
    static const struct {
        const char *to, *from;
    } biases[] = {{"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"}, {"attn_v", "self_attn.v_proj"}};
    const int qwen2 = strcmp(c->family, "qwen2") == 0;
    const int64_t heads = count_of(c, "num_attention_heads", 0);
    char to[128];
    char from[128];
#define TO(suffix, kind) (snprintf(to, sizeof to, "blk.%lld.%s." kind, (long long)layer, suffix), to)
#define FROM(suffix, kind) (snprintf(from, sizeof from, "model.layers.%lld.%s." kind, (long long)layer, suffix), from)
    put_vector(c, TO("attn_norm", "weight"), FROM("input_layernorm", "weight"));
    put_vector(c, TO("ffn_norm", "weight"), FROM("post_attention_layernorm", "weight"));
    put_matrix(c, TO("attn_q", "weight"), FROM("self_attn.q_proj", "weight"), qwen2 ? 0 : heads);
    put_matrix(c, TO("attn_k", "weight"), FROM("self_attn.k_proj", "weight"),
               qwen2 ? 0 : count_of(c, "num_key_value_heads", heads));
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        put_matrix(c, TO(plain[i].to, "weight"), FROM(plain[i].from, "weight"), 0);
    }
    for (size_t i = 0; qwen2 && i < sizeof biases / sizeof biases[0]; i++) {
        put_vector(c, TO(biases[i].to, "bias"), FROM(biases[i].from, "bias"));
    }
#undef TO
#undef FROM
}

void fixture_from_safetensors(const char *path, const char *directory)
{
    conversion c = {.writer = gguf_new(3)};
    open_directory(&c, directory);
    c.family = json_string_value(json_object_get(c.config, "model_type"));
    cr_assert(strcmp(c.family, "llama") == 0 || strcmp(c.family, "qwen2") == 0, "no conversion of %s", c.family);
    put_hyperparameters(&c);
    put_matrix(&c, "token_embd.weight", "model.embed_tokens.weight", 0);
    for (int64_t layer = 0; layer < count_of(&c, "num_hidden_layers", 0); layer++) put_layer(&c, layer);
    put_vector(&c, "output_norm.weight", "model.norm.weight");
    if (!json_is_true(json_object_get(c.config, "tie_word_embeddings"))) put_matrix(&c, "output.weight", "lm_head.weight", 0);
    gguf_write(c.writer, path);
    gguf_free(c.writer);
    json_decref(c.config);
    for (int i = 0; i < c.count; i++) {
        json_decref(c.shards[i].header);
        dw_free(c.shards[i].bytes);
    }
}
