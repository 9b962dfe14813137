#include "cache/screen.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/f16.h"

#define UPWARDS (1.0 + 0x1p-20) /* more than the roundings of a sum in double and of its root to float */

/* The numbers of a block that are not arrays. */
typedef struct {
    float residual, relative, offset_norm;
    int is_set;
} block_head;

struct dw_screen {
    const dw_kernels *kernels;
    dw_shard_config config;
    int64_t blocks;      /* local blocks per layer and kv head */
    int64_t channels;    /* padded head_dim */
    int64_t codes_bytes; /* of a block */
    int64_t rows_bytes;
    uint8_t *codes;    /* [layers][kv_heads][blocks][channels / 4][64][4] */
    uint16_t *numbers; /* [layers][kv_heads][blocks][2][channels] scale, lowest */
    char *rows;        /* [layers][kv_heads][blocks][64][head_dim] */
    block_head *head;  /* [layers][kv_heads][blocks] */
};

int64_t dw_screen_channels(const dw_shard_config *config)
{
    return dw_padded(config->head_dim);
}

int64_t dw_screen_bytes(const dw_shard_config *config)
{
    const int64_t channels = dw_screen_channels(config);
    const int64_t block = channels * DW_BLOCK + 2 * channels * (int64_t)sizeof(uint16_t) +
                          dw_row_bytes(config->key_type, config->head_dim) * DW_BLOCK + (int64_t)sizeof(block_head);
    int64_t bytes;
    if (__builtin_mul_overflow(config->layers * config->kv_heads, dw_shard_most_blocks(config), &bytes) ||
        __builtin_mul_overflow(bytes, block, &bytes)) {
        return INT64_MAX;
    }
    return bytes;
}

dw_status dw_screen_create(dw_screen **out, const dw_kernels *kernels, const dw_shard_config *config, dw_error *err)
{
    dw_screen *s;
    dw_status status;
    int64_t count;
    *out = NULL;
    DW_TRY(DW_ALLOC(&s, 1, "screen", err));
    s->kernels = kernels;
    s->config = *config;
    s->blocks = dw_shard_most_blocks(config);
    s->channels = dw_screen_channels(config);
    s->codes_bytes = s->channels * DW_BLOCK;
    s->rows_bytes = dw_row_bytes(config->key_type, config->head_dim) * DW_BLOCK;
    count = config->layers * config->kv_heads * s->blocks;
    DW_TRY_GOTO(status, dw_alloc_bytes((void **)&s->codes, count, s->codes_bytes, "screen", err), failed);
    DW_TRY_GOTO(status, dw_alloc_bytes((void **)&s->rows, count, s->rows_bytes, "screen (key rows)", err), failed);
    DW_TRY_GOTO(status,
                dw_alloc_bytes((void **)&s->numbers, count, 2 * s->channels * (int64_t)sizeof *s->numbers, "screen", err),
                failed);
    DW_TRY_GOTO(status, DW_ALLOC(&s->head, count, "screen", err), failed);
    *out = s;
    return DW_OK;
failed:
    dw_screen_destroy(s);
    return status;
}

void dw_screen_destroy(dw_screen *s)
{
    if (s == NULL) return;
    dw_free(s->codes);
    dw_free(s->rows);
    dw_free(s->numbers);
    dw_free(s->head);
    dw_free(s);
}

static int64_t block_index(const dw_screen *s, int64_t layer, int64_t kv_head, int64_t block)
{
    return (layer * s->config.kv_heads + kv_head) * s->blocks + block;
}

void dw_screen_forget(dw_screen *s, int64_t layer, dw_pos first, int64_t count)
{
    for (dw_pos block = first / DW_BLOCK; block <= (first + count - 1) / DW_BLOCK; block++) {
        if (block % s->config.ranks != s->config.rank) continue;
        for (int64_t g = 0; g < s->config.kv_heads; g++) s->head[block_index(s, layer, g, block / s->config.ranks)].is_set = 0;
    }
}

/* ---- screening a block ---- */

/* The bfloat16 next to x (a number that has no bits below it is itself): not above x, or not below it. */
static uint16_t bf16_below(float x)
{
    const uint32_t bits = dw_bits_of_float(x);
    const uint32_t rest = bits & 0xFFFFu;
    return (uint16_t)((bits >> 16) + (rest != 0 && bits >> 31 != 0)); /* truncation moves towards 0: up when negative */
}

static uint16_t bf16_above(float x)
{
    const uint32_t bits = dw_bits_of_float(x);
    const uint32_t rest = bits & 0xFFFFu;
    return (uint16_t)((bits >> 16) + (rest != 0 && bits >> 31 == 0));
}

/* The scale of a channel whose keys lie in lowest..high: 255 steps reach. */
static uint16_t find_scale(double lowest, double high)
{
    const float step = (float)((high - lowest) / 255.0 * UPWARDS);
    return bf16_above(high > lowest && step < 0x1p-120f ? 0x1p-120f : step); /* not so small that it has lost its bits */
}

/* The code nearest to each key, as near as float computes it. */
static void find_codes(int32_t *code, const float *keys, float lowest, float scale)
{
    const float steps = scale > 0.0f ? 1.0f / scale : 0.0f;
    const float middle = scale > 0.0f ? 0.5f : 128.0f;
    for (int j = 0; j < DW_BLOCK; j++) {
        const float step = (keys[j] - lowest) * steps + middle;
        code[j] = (int32_t)(step < 255.0f ? step : 255.0f);
    }
}

/* One channel of a block: codes and numbers, and its share in the squares of residuals, [64] each. Returns a^2. */
static double screen_channel(const dw_screen *s, int64_t index, int64_t c, const float *keys, double *residual,
                             double *relative)
{
    uint8_t *codes = s->codes + index * s->codes_bytes + c / 4 * DW_BLOCK * 4 + c % 4;
    uint16_t *numbers = s->numbers + index * 2 * s->channels;
    int32_t code[DW_BLOCK];
    float low = keys[0];
    float high = keys[0];
    for (int j = 1; j < DW_BLOCK; j++) {
        low = keys[j] < low ? keys[j] : low;
        high = keys[j] > high ? keys[j] : high;
    }
    numbers[s->channels + c] = bf16_below(low);
    const float lowest = dw_f32_of_bf16(numbers[s->channels + c]);
    numbers[c] = find_scale((double)lowest, (double)high);
    const float scale = dw_f32_of_bf16(numbers[c]);
    const double a = (double)fmaf(128.0f, scale, lowest);
    const double share = scale > 0.0f ? 1.0 / (double)scale : 0.0; /* a constant channel has no residual */
    find_codes(code, keys, lowest, scale);
    for (int j = 0; j < DW_BLOCK; j++) {
        const double r = (double)keys[j] - (a + (double)scale * (double)(code[j] - 128));
        residual[j] += r * r;
        relative[j] += (r * share) * (r * share);
    }
    for (int64_t j = 0; j < DW_BLOCK; j++) codes[j * 4] = (uint8_t)code[j];
    return a * a;
}

static float largest_root(const double *squares)
{
    double largest = 0.0;
    for (int j = 0; j < DW_BLOCK; j++) largest = squares[j] > largest ? squares[j] : largest;
    return (float)(sqrt(largest) * UPWARDS);
}

/* 64 numbers to where the rows of d numbers have them. */
static void copy_channel(char *row, const char *stored, int64_t d, int64_t key_bytes)
{
    if (key_bytes == 2) {
        for (int64_t j = 0; j < DW_BLOCK; j++) memcpy(row + j * d * 2, stored + j * 2, 2);
    } else {
        for (int64_t j = 0; j < DW_BLOCK; j++) memcpy(row + j * d * 4, stored + j * 4, 4);
    }
}

static void screen_block(const dw_screen *s, int64_t index, const char *keys)
{
    const int64_t d = s->config.head_dim;
    const int64_t key_bytes = dw_types[s->config.key_type].bytes;
    char *rows = s->rows + index * s->rows_bytes;
    uint8_t *codes = s->codes + index * s->codes_bytes;
    block_head *head = &s->head[index];
    double residual[DW_BLOCK] = {0};
    double relative[DW_BLOCK] = {0};
    double offset = 0.0;
    float channel[DW_BLOCK];
    for (int64_t c = 0; c < d; c++) {
        const char *stored = keys + c * DW_BLOCK * key_bytes;
        dw_cache_widen(channel, stored, DW_BLOCK, s->config.key_type);
        offset += screen_channel(s, index, c, channel, residual, relative);
        copy_channel(rows + c * key_bytes, stored, d, key_bytes);
    }
    for (int64_t c = d; c < s->channels; c++) {
        for (int64_t j = 0; j < DW_BLOCK; j++) codes[(c / 4 * DW_BLOCK + j) * 4 + c % 4] = 128;
    }
    *head = (block_head){largest_root(residual), largest_root(relative), (float)(sqrt(offset) * UPWARDS), 1};
}

dw_screen_block dw_screen_of(dw_screen *s, const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block)
{
    const int64_t index = block_index(s, layer, kv_head, block.index);
    const uint16_t *numbers = s->numbers + index * 2 * s->channels;
    const block_head *head = &s->head[index];
    if (!head->is_set) screen_block(s, index, dw_shard_keys(shard, layer, kv_head, block));
    return (dw_screen_block){.codes = s->codes + index * s->codes_bytes,
                             .scale = numbers,
                             .lowest = numbers + s->channels,
                             .rows = s->rows + index * s->rows_bytes,
                             .residual = head->residual,
                             .relative = head->relative,
                             .offset_norm = head->offset_norm,
                             .key_norm = dw_shard_key_norm(shard, layer, kv_head, block, 0, DW_BLOCK - 1)};
}

const char *dw_screen_row(const dw_screen *s, int64_t layer, int64_t kv_head, dw_pos position)
{
    const int64_t index = block_index(s, layer, kv_head, position / DW_BLOCK / s->config.ranks);
    return s->rows + index * s->rows_bytes + position % DW_BLOCK * (s->rows_bytes / DW_BLOCK);
}

int64_t dw_screen_block_bytes(const dw_shard_config *config)
{
    return dw_screen_channels(config) * (DW_BLOCK + 2 * (int64_t)sizeof(uint16_t)) + (int64_t)sizeof(block_head);
}

float dw_screen_error(const dw_screen_block *block, const dw_screen_query *query, float query_norm, int64_t head_dim)
{
    const double d = (double)head_dim;
    const double p_norm = (double)query->unit * sqrt((double)query->squares) *
                          (1.0 + 0x1p-16); /* a sum of d squares in float */
    const double by_key = (double)query_norm * (double)block->residual;
    const double by_channel = query->unit > 0.0f ? p_norm * (double)block->relative : INFINITY;
    const double step = query->unit > 0.0f ? 0.51 * (double)query->unit : (double)query->largest;
    const double sizes = (double)block->key_norm + (double)block->offset_norm + (double)block->residual;
    const double error = (by_key < by_channel ? by_key : by_channel) + step * 128.0 * d +
                         1.02 * (d + 16.0) * 0x1p-24 * (double)query_norm * sizes;
    return (float)(error * UPWARDS);
}
