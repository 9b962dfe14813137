#define _GNU_SOURCE /* nftw */
#include "tests/shared/fixtures.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "base/memory.h"
#include "kernels/types.h"

/* ---- files ---- */

static char directory[256];
static pid_t owner;

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

/* Does not follow links. */
static void remove_directory(void)
{
    if (getpid() == owner) nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *fixture_path(const char *name)
{
    enum { PATHS = 64 };
    static char paths[PATHS][512];
    static int used;
    const char *base = getenv("TMPDIR");
    if (directory[0] == '\0') {
        snprintf(directory, sizeof directory, "%s/dewpoint-test-XXXXXX", base != NULL ? base : P_tmpdir);
        cr_assert(mkdtemp(directory) != NULL, "can not make %s", directory);
        owner = getpid();
        atexit(remove_directory);
    }
    cr_assert(used < PATHS, "a test uses at most %d fixture paths", PATHS);
    snprintf(paths[used], sizeof paths[used], "%s/%s", directory, name);
    return paths[used++];
}

const char *fixture_directory(const char *name)
{
    const char *path = fixture_path(name);
    cr_assert_eq(mkdir(path, 0700), 0, "can not make %s", path);
    return path;
}

void read_file(const char *path, uint8_t **data, int64_t *bytes)
{
    dw_error err;
    FILE *file = fopen(path, "rbe");
    cr_assert(file != NULL, "%s is missing; tests need it", path);
    cr_assert(fseek(file, 0, SEEK_END) == 0 && (*bytes = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0);
    cr_assert(DW_ALLOC(data, *bytes + 1, path, &err) == DW_OK, "%s", err.message);
    cr_assert(fread(*data, 1, (size_t)*bytes, file) == (size_t)*bytes, "can not read %s", path);
    fclose(file);
}

void check_no_leak(void)
{
#ifdef __SANITIZE_ADDRESS__
    cr_expect(__lsan_do_recoverable_leak_check() == 0, "memory has leaked; the sanitizer's report says where");
#endif
}

/* ---- random weights ---- */

float fixture_random(uint64_t s, int64_t i, double amplitude)
{
    uint64_t z = s + ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)((double)((int32_t)(z >> 40) - 8388608) * (amplitude / 8388608.0));
}

static void *allocate(int64_t bytes)
{
    void *pointer;
    dw_error err;
    cr_assert(dw_alloc_bytes(&pointer, bytes, 1, "fixture", &err) == DW_OK, "%s", err.message);
    return pointer;
}

static void put_half(uint8_t *to, float value)
{
    const _Float16 half = (_Float16)value;
    memcpy(to, &half, 2);
}

/* x: 32 numbers. out: f16 scale, 32 signed bytes. */
static void quantise_q8_0(uint8_t *out, const float *x)
{
    float largest = 0;
    for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(x[i]));
    put_half(out, largest / 127);
    for (int i = 0; i < 32; i++) out[2 + i] = (uint8_t)(int8_t)(largest > 0 ? lrintf(x[i] * 127 / largest) : 0);
}

/* x: 32 numbers. out: f16 step, f16 minimum, 16 bytes: number i in the low half of byte i, number 16 + i in the high half. */
static void quantise_q4_1(uint8_t *out, const float *x)
{
    float low = x[0];
    float high = x[0];
    for (int i = 1; i < 32; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    put_half(out, (high - low) / 15);
    put_half(out + 2, low);
    for (int i = 0; i < 16; i++) {
        const long first = high > low ? lrintf((x[i] - low) * 15 / (high - low)) : 0;
        const long second = high > low ? lrintf((x[16 + i] - low) * 15 / (high - low)) : 0;
        out[4 + i] = (uint8_t)(first | second << 4);
    }
}

/* Random tensors of one model: each has the next stream of the seed. */
typedef struct {
    gguf_writer *writer;
    uint64_t stream;
    const char *without; /* name of a tensor that is not written, or NULL */
} source;

/* Adds x [outputs][inputs] (outputs 0: a vector) as `type`. */
static void put_floats(const source *to, const char *name, dw_type type, int64_t outputs, int64_t inputs, const float *x)
{
    const int64_t count = inputs * (outputs > 0 ? outputs : 1);
    const int64_t size[2] = {inputs, outputs};
    const int64_t bytes = dw_row_bytes(type, count);
    uint8_t *data;
    if (to->without != NULL && strcmp(to->without, name) == 0) return;
    data = allocate(bytes);
    cr_assert(inputs % dw_types[type].elements == 0, "%s: rows of %lld do not fit %s", name, (long long)inputs,
              dw_types[type].name);
    if (type == DW_F32) memcpy(data, x, (size_t)bytes);
    for (int64_t i = 0; type == DW_Q8_0 && i < count / 32; i++) quantise_q8_0(data + 34 * i, x + 32 * i);
    for (int64_t i = 0; type == DW_Q4_1 && i < count / 32; i++) quantise_q4_1(data + 20 * i, x + 32 * i);
    gguf_put_tensor(to->writer, name, (uint32_t)dw_types[type].gguf_id, outputs > 0 ? 2 : 1, size, data, bytes);
    dw_free(data);
}

static void put_matrix(source *from, const char *name, dw_type type, int64_t outputs, int64_t inputs, double deviation)
{
    float *x = allocate(outputs * inputs * (int64_t)sizeof *x);
    const uint64_t stream = from->stream++;
    for (int64_t i = 0; i < outputs * inputs; i++) x[i] = fixture_random(stream, i, deviation * sqrt(3.0));
    put_floats(from, name, type, outputs, inputs, x);
    dw_free(x);
}

/* Uniform between (1 - spread) * middle and (1 + spread) * middle, or, with middle 0, between -spread and spread. */
static void put_vector(source *from, const char *name, int64_t size, float middle, double spread)
{
    float *x = allocate(size * (int64_t)sizeof *x);
    const uint64_t stream = from->stream++;
    for (int64_t i = 0; i < size; i++) {
        const float random = fixture_random(stream, i, spread);
        x[i] = middle > 0 ? middle * (1 + random) : random;
    }
    put_floats(from, name, DW_F32, 0, size, x);
    dw_free(x);
}

/* ---- the random model ---- */

static void put_hyperparameters(gguf_writer *writer, const fixture_spec *s)
{
    const struct {
        const char *key;
        int64_t value;
    } counts[] = {
        {"block_count", s->layers},
        {"context_length", s->context},
        {"embedding_length", s->hidden},
        {"feed_forward_length", s->feed_forward},
        {"attention.head_count", s->heads},
        {"attention.head_count_kv", s->kv_heads},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim},
        {"rope.dimension_count", s->head_dim},
        {"vocab_size", s->vocabulary},
    };
    char key[96];
#define KEY(suffix) (snprintf(key, sizeof key, "%s.%s", s->family, suffix), key)
    gguf_put_string(writer, "general.architecture", s->family);
    gguf_put_u32(writer, "general.quantization_version", 2);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        gguf_put_u32(writer, KEY(counts[i].key), (uint32_t)counts[i].value);
    }
    gguf_put_f32(writer, KEY("rope.freq_base"), (float)s->rope_base);
    gguf_put_f32(writer, KEY("attention.layer_norm_rms_epsilon"), 1e-5f);
#undef KEY
}

/* Biases as large as what they are added to, so that a lost one shows. */
static void put_biases(source *from, const fixture_spec *s, int64_t layer)
{
    char name[64];
#define NAME(suffix) (snprintf(name, sizeof name, "blk.%lld." suffix ".bias", (long long)layer), name)
    put_vector(from, NAME("attn_q"), s->heads * s->head_dim, 0, 2);
    put_vector(from, NAME("attn_k"), s->kv_heads * s->head_dim, 0, s->equal_scores ? 0 : 2);
    put_vector(from, NAME("attn_v"), s->kv_heads * s->head_dim, 0, 2);
#undef NAME
}

static void put_layer(source *from, const fixture_spec *s, int64_t layer, dw_type type)
{
    const double by_hidden = 1 / sqrt((double)s->hidden); /* inputs of deviation 1 give outputs of deviation 1 */
    const double sharp = sqrt(3.0) * by_hidden;           /* scores q.k / sqrt(d) then have deviation sqrt(3) * sqrt(3) */
    char name[64];
#define NAME(suffix) (snprintf(name, sizeof name, "blk.%lld." suffix ".weight", (long long)layer), name)
    put_vector(from, NAME("attn_norm"), s->hidden, 1, 0.25);
    put_matrix(from, NAME("attn_q"), type, s->heads * s->head_dim, s->hidden, sharp);
    put_matrix(from, NAME("attn_k"), type, s->kv_heads * s->head_dim, s->hidden, s->equal_scores ? 0 : sharp);
    put_matrix(from, NAME("attn_v"), type, s->kv_heads * s->head_dim, s->hidden, by_hidden);
    put_matrix(from, NAME("attn_output"), type, s->hidden, s->heads * s->head_dim, 1 / sqrt((double)(s->heads * s->head_dim)));
    put_vector(from, NAME("ffn_norm"), s->hidden, 1, 0.25);
    put_matrix(from, NAME("ffn_gate"), type, s->feed_forward, s->hidden, 2 * by_hidden);
    put_matrix(from, NAME("ffn_up"), type, s->feed_forward, s->hidden, by_hidden);
    put_matrix(from, NAME("ffn_down"), type, s->hidden, s->feed_forward, 1 / sqrt((double)s->feed_forward));
    if (strcmp(s->family, "qwen2") == 0) put_biases(from, s, layer);
#undef NAME
}

static fixture_spec with_defaults(const fixture_spec *spec)
{
    fixture_spec s = *spec;
    if (s.family == NULL) s.family = "llama";
    if (s.layers == 0) s.layers = 2;
    if (s.hidden == 0) s.hidden = 64;
    if (s.heads == 0) s.heads = 4;
    if (s.kv_heads == 0) s.kv_heads = 2;
    if (s.head_dim == 0) s.head_dim = 16;
    if (s.feed_forward == 0) s.feed_forward = 96;
    if (s.vocabulary == 0) s.vocabulary = 320;
    if (s.context == 0) s.context = 4096;
    if (s.rope_base <= 0) s.rope_base = 10000;
    if (s.seed == 0) s.seed = 1;
    return s;
}

gguf_writer *fixture_writer(const fixture_spec *spec)
{
    const fixture_spec s = with_defaults(spec);
    const int tied = s.type == FIXTURE_MIXED;
    const dw_type embedding = s.type == FIXTURE_F32 ? DW_F32 : s.type == FIXTURE_Q4_1 ? DW_Q4_1 : DW_Q8_0;
    const dw_type matrix = s.type == FIXTURE_F32 ? DW_F32 : s.type == FIXTURE_Q8_0 ? DW_Q8_0 : DW_Q4_1;
    const double by_hidden = 1 / sqrt((double)s.hidden);
    gguf_writer *writer = gguf_new(3);
    source from = {writer, s.seed * 0x2545F4914F6CDD1Du, s.without};

    put_hyperparameters(writer, &s);
    if (s.tokenizer) fixture_tokenizer(writer, s.vocabulary);
    /* A tied head must not just repeat the last token: its own layers have to outweigh the embedding. */
    put_matrix(&from, "token_embd.weight", embedding, s.vocabulary, s.hidden, tied ? 0.25 : 1);
    for (int64_t layer = 0; layer < s.layers; layer++) put_layer(&from, &s, layer, matrix);
    put_vector(&from, "output_norm.weight", s.hidden, tied ? (float)(12 * by_hidden) : 1, 0.25);
    if (!tied) put_matrix(&from, "output.weight", matrix, s.vocabulary, s.hidden, 3 * by_hidden);
    return writer;
}

void fixture_model(const char *path, const fixture_spec *spec)
{
    gguf_writer *writer = fixture_writer(spec);
    gguf_write(writer, path);
    gguf_free(writer);
}
