#include "cache/shard.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "kernels/f16.h"

struct dw_shard {
    dw_shard_config config;
    int64_t blocks;            /* local blocks per layer and kv head */
    int64_t key_block_bytes;   /* [head_dim][64] */
    int64_t value_block_bytes; /* [64][head_dim] */
    char *keys;                /* [layers][kv_heads][blocks][key_block_bytes] */
    char *values;              /* [layers][kv_heads][blocks][value_block_bytes] */
    float *key_norms;          /* [layers][kv_heads][blocks][64] upper bounds of |K[j]|_2 */
    float *block_norms;        /* [layers][kv_heads][blocks] the largest of each block */
};

static int64_t local_blocks(const dw_shard_config *config)
{
    const int64_t all = (config->context + DW_BLOCK - 1) / DW_BLOCK;
    return (all - config->rank + config->ranks - 1) / config->ranks;
}

static int64_t block_bytes(const dw_shard_config *config, dw_type type)
{
    return dw_row_bytes(type, config->head_dim) * DW_BLOCK;
}

int64_t dw_shard_bytes(const dw_shard_config *config)
{
    const int64_t block = block_bytes(config, config->key_type) + block_bytes(config, config->value_type) +
                          (DW_BLOCK + 1) * (int64_t)sizeof(float);
    int64_t bytes;
    if (__builtin_mul_overflow(config->layers * config->kv_heads, local_blocks(config), &bytes) ||
        __builtin_mul_overflow(bytes, block, &bytes)) {
        return INT64_MAX;
    }
    return bytes;
}

dw_status dw_shard_create(dw_shard **out, const dw_shard_config *config, dw_error *err)
{
    dw_shard *shard;
    dw_status status;
    int64_t count;
    *out = NULL;
    if (dw_shard_bytes(config) == INT64_MAX) {
        return dw_fail(err, DW_RESOURCE, "a KV cache of %lld positions is more than this machine can address; use a smaller -c",
                       (long long)config->context);
    }
    DW_TRY(DW_ALLOC(&shard, 1, "KV cache", err));
    shard->config = *config;
    shard->blocks = local_blocks(config);
    shard->key_block_bytes = block_bytes(config, config->key_type);
    shard->value_block_bytes = block_bytes(config, config->value_type);
    count = config->layers * config->kv_heads * shard->blocks;
    DW_TRY_GOTO(status, dw_alloc_bytes((void **)&shard->keys, count, shard->key_block_bytes, "KV cache (keys)", err), failed);
    DW_TRY_GOTO(status, dw_alloc_bytes((void **)&shard->values, count, shard->value_block_bytes, "KV cache (values)", err),
                failed);
    DW_TRY_GOTO(status, DW_ALLOC(&shard->key_norms, count * DW_BLOCK, "KV cache (key norms)", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&shard->block_norms, count, "KV cache (key norms)", err), failed);
    *out = shard;
    return DW_OK;
failed:
    dw_shard_destroy(shard);
    return status;
}

void dw_shard_destroy(dw_shard *shard)
{
    if (shard == NULL) return;
    dw_free(shard->keys);
    dw_free(shard->values);
    dw_free(shard->key_norms);
    dw_free(shard->block_norms);
    dw_free(shard);
}

const dw_shard_config *dw_shard_shape(const dw_shard *shard)
{
    return &shard->config;
}

void dw_cache_round(void *out, const float *x, int64_t n, dw_type type)
{
    uint16_t *half = out;
    if (type == DW_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
    } else if (type == DW_F16) {
        for (int64_t i = 0; i < n; i++) half[i] = dw_f16_of_f32(x[i]);
    } else {
        for (int64_t i = 0; i < n; i++) half[i] = dw_bf16_of_f32(x[i]);
    }
}

void dw_cache_widen(float *out, const void *x, int64_t n, dw_type type)
{
    const uint16_t *half = x;
    if (type == DW_F32) {
        memcpy(out, x, (size_t)n * sizeof *out);
    } else if (type == DW_F16) {
        for (int64_t i = 0; i < n; i++) out[i] = dw_f32_of_f16(half[i]);
    } else {
        for (int64_t i = 0; i < n; i++) out[i] = dw_f32_of_bf16(half[i]);
    }
}

int64_t dw_shard_key_row_bytes(const dw_shard_config *config)
{
    return dw_row_bytes(config->key_type, config->kv_heads * config->head_dim);
}

int64_t dw_shard_value_row_bytes(const dw_shard_config *config)
{
    return dw_row_bytes(config->value_type, config->kv_heads * config->head_dim);
}

/* Index of a block in the arrays of all layers and heads. */
static int64_t block_index(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block)
{
    return (layer * shard->config.kv_heads + kv_head) * shard->blocks + block.index;
}

/* |key|_2 rounded up, so that it bounds the exact norm. */
static float norm_bound(const float *key, int64_t d)
{
    double sum = 0.0;
    for (int64_t c = 0; c < d; c++) sum += (double)key[c] * (double)key[c];
    return (float)(sqrt(sum) * (1.0 + 0x1p-20));
}

static float largest_norm(const float *norms, int64_t count)
{
    float largest = 0.0f;
    for (int64_t j = 0; j < count; j++) largest = norms[j] > largest ? norms[j] : largest;
    return largest;
}

void dw_shard_put(dw_shard *shard, int64_t layer, int64_t kv_head, dw_pos position, const void *key_row, const void *value_row)
{
    const dw_shard_config *config = &shard->config;
    const int64_t d = config->head_dim;
    const int64_t block = position / DW_BLOCK;
    const int64_t offset = position % DW_BLOCK;
    const int64_t index = block_index(shard, layer, kv_head, (dw_block_slot){block / config->ranks});
    const int64_t key_bytes = dw_types[config->key_type].bytes; /* the cache types store one number an element */
    const int64_t value_bytes = dw_row_bytes(config->value_type, d);
    const char *key = (const char *)key_row + kv_head * d * key_bytes;
    char *keys = shard->keys + index * shard->key_block_bytes + offset * key_bytes;
    float wide[DW_MAX_HEAD_DIM];
    if (block % config->ranks != config->rank) return;
    for (int64_t c = 0; c < d; c++) memcpy(keys + c * DW_BLOCK * key_bytes, key + c * key_bytes, (size_t)key_bytes);
    memcpy(shard->values + index * shard->value_block_bytes + offset * value_bytes,
           (const char *)value_row + kv_head * value_bytes, (size_t)value_bytes);
    dw_cache_widen(wide, key, d, config->key_type);
    shard->key_norms[index * DW_BLOCK + offset] = norm_bound(wide, d);
    shard->block_norms[index] = largest_norm(shard->key_norms + index * DW_BLOCK, DW_BLOCK);
}

void dw_shard_get(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_pos position, void *key, void *value)
{
    const dw_shard_config *config = &shard->config;
    const int64_t index = block_index(shard, layer, kv_head, (dw_block_slot){position / DW_BLOCK / config->ranks});
    const int64_t offset = position % DW_BLOCK;
    const int64_t key_bytes = dw_types[config->key_type].bytes;
    const int64_t value_bytes = dw_row_bytes(config->value_type, config->head_dim);
    const char *keys = shard->keys + index * shard->key_block_bytes + offset * key_bytes;
    for (int64_t c = 0; c < config->head_dim; c++) {
        memcpy((char *)key + c * key_bytes, keys + c * DW_BLOCK * key_bytes, (size_t)key_bytes);
    }
    memcpy(value, shard->values + index * shard->value_block_bytes + offset * value_bytes, (size_t)value_bytes);
}

uint64_t dw_shard_checksum(const dw_shard *shard, dw_pos positions)
{
    const dw_shard_config *config = &shard->config;
    char row[2][4 * DW_MAX_HEAD_DIM];
    uint64_t sum = 0;
    for (dw_pos p = 0; p < positions; p++) {
        if (p / DW_BLOCK % config->ranks != config->rank) continue;
        for (int64_t i = 0; i < config->layers * config->kv_heads; i++) {
            uint64_t hash = (uint64_t)(p * config->layers * config->kv_heads + i);
            dw_shard_get(shard, i / config->kv_heads, i % config->kv_heads, p, row[0], row[1]);
            hash = dw_hash(hash, row[0], dw_row_bytes(config->key_type, config->head_dim));
            sum += dw_hash(hash, row[1], dw_row_bytes(config->value_type, config->head_dim));
        }
    }
    return sum;
}

int64_t dw_shard_blocks(const dw_shard *shard, dw_pos positions)
{
    const int64_t all = (positions + DW_BLOCK - 1) / DW_BLOCK;
    return (all - shard->config.rank + shard->config.ranks - 1) / shard->config.ranks;
}

dw_pos dw_shard_block_start(const dw_shard *shard, dw_block_slot block)
{
    return (block.index * shard->config.ranks + shard->config.rank) * DW_BLOCK;
}

const void *dw_shard_keys(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block)
{
    return shard->keys + block_index(shard, layer, kv_head, block) * shard->key_block_bytes;
}

const void *dw_shard_values(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block)
{
    return shard->values + block_index(shard, layer, kv_head, block) * shard->value_block_bytes;
}

float dw_shard_key_norm(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block, int first, int last)
{
    const int64_t index = block_index(shard, layer, kv_head, block);
    if (first == 0 && last == DW_BLOCK - 1) return shard->block_norms[index];
    return largest_norm(shard->key_norms + index * DW_BLOCK + first, last - first + 1);
}
