/* dewpoint inspect: what a model holds, whether this version runs it, and the memory that a context takes on these ranks. Reads
   the directories of the files, no weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/integers.h"
#include "base/memory.h"
#include "cache/shard.h"
#include "cli/command.h"
#include "cli/report.h"
#include "mpi/collective.h"

/* The tensors of one type. */
typedef struct {
    uint32_t id;      /* GGUF only */
    const char *name; /* "": no type of ggml */
    int supported;
    int64_t tensors;
    int64_t elements;
    int64_t bytes;
} type_row;

/* What a rank tells rank 0. */
typedef struct {
    char host[60];
    int64_t free_bytes;
} place;

/* The ranks of one host. */
typedef struct {
    const char *name;
    int ranks;
    int64_t kv;   /* of all of them */
    int64_t need; /* KV, and the weights once: the processes of a host share the pages of the file */
    int64_t free_bytes;
} host_row;

/* What rank 0 holds. Numbers that the file does not tell, or that no model can have, are -1. */
typedef struct {
    const dw_rank *rank;
    dw_checkpoint *checkpoint;
    const dw_gguf *gguf; /* NULL: a directory */
    int runs;
    dw_error problem;                               /* why not, when it does not run */
    dw_printable_text family, name, tokenizer, pre; /* "": unknown, none */
    int64_t layers, hidden, feed_forward, heads, kv_heads, head_dim, vocabulary, trained;
    double rope_base;
    const char *rope_scaling; /* NULL: unknown */
    type_row *types;
    int64_t type_count;
    int64_t elements;    /* of all tensors */
    int64_t weights;     /* bytes of all tensors */
    int64_t token_bytes; /* K and V of one position */
    int64_t context;     /* -1: no KV cache can be planned */
    place *places;       /* [ranks] */
    int64_t *kv;         /* [ranks] */
    host_row *hosts;     /* [host_count] */
    int host_count;
} view;

/* Sums and products that end at INT64_MAX: any number may stand in a file. */
static int64_t sum(int64_t a, int64_t b)
{
    int64_t result;
    return __builtin_add_overflow(a, b, &result) ? INT64_MAX : result;
}

static int64_t product(int64_t a, int64_t b)
{
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

/* ---- the shape ---- */

/* The integer behind "FAMILY.suffix" if it is one of 1..most. */
static int64_t read_count(const view *v, const char *suffix, int64_t most)
{
    char key[160];
    int64_t value = -1;
    int found;
    dw_error unused;
    snprintf(key, sizeof key, "%s.%s", v->family.text, suffix);
    if (dw_gguf_int(v->gguf, key, &value, &found, &unused) != DW_OK) return -1;
    return value >= 1 && value <= most ? value : -1;
}

static int64_t count_elements(const view *v, const char *name)
{
    const int64_t keys = dw_gguf_keys(v->gguf);
    for (int64_t k = 0; k < keys; k++) {
        const dw_gguf_value value = dw_gguf_value_of(v->gguf, k);
        if (dw_string_is(dw_gguf_key(v->gguf, k), name)) return value.kind == DW_GGUF_ARRAY ? value.integer : -1;
    }
    return -1;
}

static dw_printable_text read_text(const view *v, const char *key)
{
    dw_string text = {"", 0};
    int found;
    dw_error unused;
    if (dw_gguf_string(v->gguf, key, &text, &found, &unused) != DW_OK) text.length = 0;
    return dw_printable(text);
}

/* The first of the files that a directory may have its tokenizer in. */
static dw_status find_tokenizer(view *v, dw_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    for (int i = 0; i < 2 && v->tokenizer.text[0] == '\0'; i++) {
        char *path;
        DW_TRY(dw_checkpoint_file(v->checkpoint, names[i], &path, err));
        if (access(path, F_OK) == 0) v->tokenizer = dw_printable(dw_string_of(names[i]));
        dw_free(path);
    }
    return DW_OK;
}

static dw_status read_names(view *v, dw_error *err)
{
    const char *family;
    if (v->gguf != NULL) {
        v->family = read_text(v, "general.architecture");
        v->name = read_text(v, "general.name");
        v->tokenizer = read_text(v, "tokenizer.ggml.model");
        v->pre = read_text(v, "tokenizer.ggml.pre");
        return DW_OK;
    }
    family = json_string_value(json_object_get(v->checkpoint->config, "model_type"));
    v->family = dw_printable(dw_string_of(family == NULL ? "" : family));
    return find_tokenizer(v, err);
}

/* Of a GGUF file whose configuration Dewpoint refuses. The bounds keep products of a few numbers within 63 bits. */
static void read_keys(view *v)
{
    const int64_t most = (int64_t)1 << 19;
    const int64_t longest = (int64_t)1 << 34;
    char key[160];
    int found = 0;
    int64_t value_dim;
    dw_error unused;
    v->layers = read_count(v, "block_count", most);
    v->hidden = read_count(v, "embedding_length", most);
    v->feed_forward = read_count(v, "feed_forward_length", longest);
    v->heads = read_count(v, "attention.head_count", most);
    v->kv_heads = read_count(v, "attention.head_count_kv", most);
    v->head_dim = read_count(v, "attention.key_length", most);
    value_dim = read_count(v, "attention.value_length", most);
    v->trained = read_count(v, "context_length", longest);
    v->vocabulary = read_count(v, "vocab_size", longest);
    if (v->kv_heads < 0) v->kv_heads = v->heads;
    if (v->head_dim < 0 && v->hidden > 0 && v->heads > 0) v->head_dim = v->hidden / v->heads;
    if (value_dim > 0 && value_dim != v->head_dim) v->head_dim = -1;
    snprintf(key, sizeof key, "%s.rope.freq_base", v->family.text);
    if (dw_gguf_float(v->gguf, key, &v->rope_base, &found, &unused) != DW_OK || !found) v->rope_base = -1;
}

static void take_config(view *v, const dw_config *config)
{
    v->layers = config->layers;
    v->hidden = config->hidden;
    v->feed_forward = config->feed_forward;
    v->heads = config->heads;
    v->kv_heads = config->kv_heads;
    v->head_dim = config->head_dim;
    v->trained = config->context;
    v->vocabulary = config->vocabulary;
    if (config->rope_pairs == DW_ROPE_ABSENT) return;
    v->rope_base = config->rope.base;
    v->rope_scaling = dw_rope_name(config->rope.kind);
}

static dw_status read_shape(view *v, dw_error *err)
{
    const dw_config_overrides none = {0};
    const dw_options *options = v->rank->options;
    dw_config config;
    dw_error problem;
    dw_status status;
    v->layers = v->hidden = v->feed_forward = v->heads = v->kv_heads = v->head_dim = v->trained = v->vocabulary = -1;
    v->rope_base = -1;
    DW_TRY(read_names(v, err));
    status = dw_config_read(&config, v->checkpoint, &none, &problem);
    if (status == DW_OK) {
        take_config(v, &config);
        dw_config_free(&config);
    } else if (status != DW_INPUT) {
        *err = problem;
        return status;
    } else if (v->gguf != NULL) {
        read_keys(v);
    }
    if (v->gguf != NULL && count_elements(v, "tokenizer.ggml.tokens") > 0) {
        v->vocabulary = count_elements(v, "tokenizer.ggml.tokens");
    }
    v->token_bytes = -1;
    if (v->layers < 0 || v->kv_heads < 0 || v->head_dim < 1) return DW_OK;
    v->token_bytes = product(v->layers * v->kv_heads,
                             dw_row_bytes(options->key_type, v->head_dim) + dw_row_bytes(options->value_type, v->head_dim));
    return DW_OK;
}

/* ---- the tensors ---- */

static int by_type(const void *a, const void *b)
{
    const type_row *x = a;
    const type_row *y = b;
    return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : strcmp(x->name, y->name);
}

static void add_row(type_row *to, const type_row *row)
{
    to->tensors += row->tensors;
    to->elements = sum(to->elements, row->elements);
    to->bytes = sum(to->bytes, row->bytes);
}

/* One row a tensor, sorted by type; then the rows of a type become one. */
static dw_status read_types(view *v, dw_error *err)
{
    const dw_tensors *tensors = v->checkpoint->tensors;
    DW_TRY(DW_ALLOC(&v->types, tensors->count, "tensor types", err));
    for (int64_t i = 0; i < tensors->count; i++) {
        const dw_tensor *t = &tensors->list[i];
        v->types[i] = (type_row){t->type_id, t->type, t->storage != DW_TYPE_COUNT, 1, t->elements, t->bytes};
        v->elements = sum(v->elements, t->elements);
        v->weights = sum(v->weights, t->bytes);
    }
    qsort(v->types, (size_t)tensors->count, sizeof *v->types, by_type);
    for (int64_t i = 0; i < tensors->count; i++) {
        const int64_t last = v->type_count - 1;
        if (last >= 0 && by_type(&v->types[last], &v->types[i]) == 0) {
            add_row(&v->types[last], &v->types[i]);
        } else {
            v->types[v->type_count++] = v->types[i];
        }
    }
    return DW_OK;
}

/* Sets runs and problem by asking what the other commands ask. Fails only for want of memory. */
static dw_status check_support(view *v, dw_error *err)
{
    dw_tokenizer *tokenizer = NULL;
    dw_status status = dw_model_check(v->rank->options->model, &v->problem);
    if (status == DW_OK) status = dw_tokenizer_load(&tokenizer, v->checkpoint, &v->problem);
    dw_tokenizer_free(tokenizer);
    v->runs = status == DW_OK;
    if (v->runs || status == DW_INPUT) return DW_OK;
    *err = v->problem;
    return status;
}

/* ---- the memory ---- */

static host_row *host_named(view *v, const char *name)
{
    for (int h = 0; h < v->host_count; h++) {
        if (strcmp(v->hosts[h].name, name) == 0) return &v->hosts[h];
    }
    v->hosts[v->host_count] = (host_row){.name = name, .need = v->weights, .free_bytes = INT64_MAX};
    return &v->hosts[v->host_count++];
}

/* Collective. */
static dw_status gather_places(view *v, dw_error *err)
{
    place mine = {.free_bytes = dw_memory_available()};
    dw_host_name(mine.host, (int64_t)sizeof mine.host);
    return dw_gather(v->rank->transport, &mine, (int64_t)sizeof mine, v->places, err);
}

static void plan_memory(view *v)
{
    const dw_options *options = v->rank->options;
    for (int r = 0; r < v->rank->transport->size; r++) {
        const dw_shard_config shape = {v->layers,           v->kv_heads, v->head_dim, options->key_type,
                                       options->value_type, v->context,  r,           v->rank->transport->size};
        host_row *host = host_named(v, v->places[r].host);
        v->kv[r] = dw_shard_bytes(&shape);
        host->ranks++;
        host->kv = sum(host->kv, v->kv[r]);
        host->need = sum(host->need, v->kv[r]);
        host->free_bytes = dw_smaller(host->free_bytes, v->places[r].free_bytes);
    }
}

static int fits(const host_row *host)
{
    return host->need <= host->free_bytes && host->need != INT64_MAX;
}

/* The condensate of one head, and the bytes of K and V that all layers and heads take of it (at most all there are). */
typedef struct {
    int64_t anchor, window, keys;
    int64_t positions;
    int64_t bytes;
    int64_t full; /* K and V of the whole context */
} working_set;

static working_set condensate(const view *v)
{
    const dw_policy *policy = &v->rank->options->policy;
    working_set c = {.anchor = dw_smaller(policy->anchor, v->context),
                     .window = dw_smaller(policy->window, v->context),
                     .keys = dw_smaller(policy->keys, v->context),
                     .full = product(v->token_bytes, v->context)};
    c.positions = dw_smaller(c.anchor + c.window + c.keys, v->context);
    c.bytes = dw_smaller(product(v->token_bytes / v->kv_heads, product(v->heads, c.positions)), c.full);
    return c;
}

/* ---- JSON ---- */

static json_t *number(int64_t value)
{
    return value < 0 ? json_null() : json_integer((json_int_t)value);
}

static json_t *text_or_null(const char *text)
{
    return text[0] == '\0' ? json_null() : dw_json_text(text, (int64_t)strlen(text));
}

/* NULL once an element could not be built or added. */
static json_t *append(json_t *array, json_t *element)
{
    if (json_array_append_new(array, element) == 0) return array;
    json_decref(array);
    return NULL;
}

static json_t *types_json(const view *v)
{
    json_t *array = json_array();
    for (int64_t t = 0; array != NULL && t < v->type_count; t++) {
        const type_row *row = &v->types[t];
        json_t *id = v->gguf != NULL ? json_integer((json_int_t)row->id) : json_null();
        array = append(array, json_pack("{s:o, s:o, s:I, s:I, s:I, s:b}", "type", text_or_null(row->name), "id", id, "tensors",
                                        (json_int_t)row->tensors, "parameters", (json_int_t)row->elements, "bytes",
                                        (json_int_t)row->bytes, "supported", row->supported));
    }
    return array;
}

static json_t *tensors_json(const view *v)
{
    const dw_tensors *tensors = v->checkpoint->tensors;
    json_t *array = json_array();
    for (int64_t i = 0; array != NULL && i < tensors->count; i++) {
        const dw_tensor *t = &tensors->list[i];
        json_t *shape = json_array();
        for (int d = 0; shape != NULL && d < t->dims; d++) shape = append(shape, json_integer((json_int_t)t->size[d]));
        array = append(array, json_pack("{s:o, s:o, s:o, s:I}", "name", dw_json_text(t->name.data, t->name.length), "type",
                                        text_or_null(t->type), "shape", shape, "bytes", (json_int_t)t->bytes));
    }
    return array;
}

static json_t *value_json(const dw_gguf_value *value)
{
    switch (value->kind) {
    case DW_GGUF_INTEGER: return json_integer((json_int_t)value->integer);
    case DW_GGUF_REAL: return isfinite(value->real) ? json_real(value->real) : json_null();
    case DW_GGUF_BOOL: return json_boolean(value->integer);
    case DW_GGUF_STRING: return dw_json_text(value->string.data, value->string.length);
    case DW_GGUF_ARRAY: return json_pack("{s:I}", "elements", (json_int_t)value->integer);
    }
    return NULL;
}

/* Of a directory: config.json. */
static json_t *metadata_json(const view *v)
{
    json_t *object;
    if (v->gguf == NULL) return json_incref(v->checkpoint->config);
    object = json_object();
    for (int64_t k = 0; object != NULL && k < dw_gguf_keys(v->gguf); k++) {
        const dw_string name = dw_gguf_key(v->gguf, k);
        const dw_gguf_value value = dw_gguf_value_of(v->gguf, k);
        json_t *key = dw_json_text(name.data, name.length);
        if (key == NULL || json_object_set_new(object, json_string_value(key), value_json(&value)) != 0) {
            json_decref(object);
            object = NULL;
        }
        json_decref(key);
    }
    return object;
}

static json_t *memory_json(const view *v)
{
    json_t *ranks;
    json_t *hosts;
    if (v->context < 0) return json_null();
    ranks = json_array();
    hosts = json_array();
    for (int r = 0; ranks != NULL && r < v->rank->transport->size; r++) {
        ranks = append(ranks, json_pack("{s:i, s:o, s:I, s:I}", "rank", r, "host", text_or_null(v->places[r].host), "weights",
                                        (json_int_t)v->weights, "kv", (json_int_t)v->kv[r]));
    }
    for (int h = 0; hosts != NULL && h < v->host_count; h++) {
        const host_row *host = &v->hosts[h];
        json_t *free_bytes = number(host->free_bytes == INT64_MAX ? -1 : host->free_bytes);
        hosts = append(hosts, json_pack("{s:o, s:i, s:I, s:I, s:I, s:o, s:b}", "host", text_or_null(host->name), "ranks",
                                        host->ranks, "weights", (json_int_t)v->weights, "kv", (json_int_t)host->kv, "need",
                                        (json_int_t)host->need, "free", free_bytes, "fits", fits(host)));
    }
    return json_pack("{s:I, s:o, s:o}", "context", (json_int_t)v->context, "ranks", ranks, "hosts", hosts);
}

static json_t *condensate_json(const view *v)
{
    working_set c;
    if (v->context < 0 || v->heads < 0) return json_null();
    c = condensate(v);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "anchor", (json_int_t)c.anchor, "window", (json_int_t)c.window,
                     "keys", (json_int_t)c.keys, "positions", (json_int_t)c.positions, "bytes", (json_int_t)c.bytes,
                     "full_bytes", (json_int_t)c.full, "share", (double)c.bytes / (double)c.full);
}

static json_t *kv_json(const view *v)
{
    const dw_options *options = v->rank->options;
    return json_pack("{s:[s,s], s:o}", "types", dw_types[options->key_type].name, dw_types[options->value_type].name,
                     "bytes_per_token", number(v->token_bytes));
}

static int64_t file_bytes(const view *v)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < v->checkpoint->file_count; i++) bytes = sum(bytes, v->checkpoint->files[i].bytes);
    return bytes;
}

static json_t *shape_json(const view *v)
{
    json_t *rope_base = v->rope_base > 0 && isfinite(v->rope_base) ? json_real(v->rope_base) : json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s?}", "layers", number(v->layers), "hidden",
                     number(v->hidden), "feed_forward", number(v->feed_forward), "heads", number(v->heads), "kv_heads",
                     number(v->kv_heads), "head_dim", number(v->head_dim), "vocabulary", number(v->vocabulary), "context",
                     number(v->trained), "rope_base", rope_base, "rope_scaling", v->rope_scaling);
}

/* Adds the keys of `more`, which it takes. NULL once something could not be built. */
static json_t *join(json_t *object, json_t *more)
{
    if (json_object_update(object, more) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(more);
    return object;
}

static dw_status print_json(const view *v, dw_error *err)
{
    const char *path = v->checkpoint->path;
    json_t *object = json_pack("{s:s, s:o, s:s, s:I, s:I, s:o, s:o, s:b, s:o, s:I, s:o}", "dewpoint", DW_VERSION, "model",
                               dw_json_text(path, (int64_t)strlen(path)), "format", v->gguf != NULL ? "gguf" : "safetensors",
                               "files", (json_int_t)v->checkpoint->file_count, "bytes", (json_int_t)file_bytes(v), "name",
                               text_or_null(v->name.text), "family", text_or_null(v->family.text), "supported", v->runs,
                               "problem", v->runs ? json_null() : text_or_null(v->problem.message), "parameters",
                               (json_int_t)v->elements, "tokenizer", text_or_null(v->tokenizer.text));
    json_t *rest = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "types", types_json(v), "kv", kv_json(v), "memory",
                             memory_json(v), "condensate", condensate_json(v), "tensors", tensors_json(v), "metadata",
                             metadata_json(v));
    return dw_print_json(join(join(object, shape_json(v)), rest), err);
}

/* ---- text ---- */

static void print_number(const char *name, int64_t value)
{
    if (value < 0) {
        printf("%s unknown", name);
    } else {
        printf("%s %lld", name, (long long)value);
    }
}

static void print_tokenizer(const view *v)
{
    if (v->tokenizer.text[0] == '\0') {
        printf("\ntokenizer   none");
    } else {
        printf("\ntokenizer   %s%s%s", v->tokenizer.text, v->pre.text[0] == '\0' ? "" : ", ", v->pre.text);
    }
    print_number(", vocabulary", v->vocabulary);
}

static void print_model(const view *v)
{
    const int64_t files = v->checkpoint->file_count;
    printf("file        %s", dw_size_of(file_bytes(v)).text);
    if (files > 1) printf(" in %lld files", (long long)files);
    if (v->name.text[0] != '\0') printf("\nname        %s", v->name.text);
    printf("\nfamily      %s\n", v->family.text[0] == '\0' ? "unknown" : v->family.text);
    printf("parameters  %lld in %lld tensors\n", (long long)v->elements, (long long)v->checkpoint->tensors->count);
    print_number("layers     ", v->layers);
    print_number(", hidden size", v->hidden);
    print_number(", feed-forward size", v->feed_forward);
    print_number("\nheads      ", v->heads);
    print_number(", KV heads", v->kv_heads);
    print_number(", head dimension", v->head_dim);
    print_number("\ncontext    ", v->trained);
    printf(" (trained)");
    if (v->rope_base > 0) printf(", RoPE base %g", v->rope_base);
    if (v->rope_scaling != NULL && strcmp(v->rope_scaling, "none") != 0) printf(", scaling %s", v->rope_scaling);
    print_tokenizer(v);
}

static void print_types(const view *v)
{
    printf("\n\n%-10s %8s %16s %16s\n", "type", "tensors", "parameters", "bytes");
    for (int64_t t = 0; t < v->type_count; t++) {
        const type_row *row = &v->types[t];
        char unknown[24];
        snprintf(unknown, sizeof unknown, "type %u", row->id);
        printf("%-10s %8lld %16lld %16lld%s\n", row->name[0] == '\0' ? unknown : row->name, (long long)row->tensors,
               (long long)row->elements, (long long)row->bytes, row->supported ? "" : "   not supported");
    }
}

static void print_condensate(const view *v)
{
    const working_set c = condensate(v);
    printf("condensate  %lld + %lld + %lld: at most %lld of %lld positions a head; K and V of these for all heads and layers "
           "are\n",
           (long long)c.anchor, (long long)c.window, (long long)c.keys, (long long)c.positions, (long long)v->context);
    printf("            at most %s of the %s of all positions (%.1f %%)\n", dw_size_of(c.bytes).text, dw_size_of(c.full).text,
           100 * (double)c.bytes / (double)c.full);
}

static void print_memory(const view *v)
{
    const dw_options *options = v->rank->options;
    const int ranks = v->rank->transport->size;
    if (v->token_bytes < 0) {
        printf("\nKV cache    unknown: the model does not tell its shape as one that Dewpoint knows\n");
        return;
    }
    printf("\nKV cache    %lld bytes a token (K %s, V %s)\n", (long long)v->token_bytes, dw_types[options->key_type].name,
           dw_types[options->value_type].name);
    if (v->context < 0) return;
    printf("memory      for a context of %lld on %d %s, buffers of computing not counted; KV of a rank: at most %s\n",
           (long long)v->context, ranks, ranks == 1 ? "rank" : "ranks", dw_size_of(v->kv[0]).text);
    printf("            %-20s %5s %10s %10s %10s %10s\n", "host", "ranks", "weights", "kv", "need", "free");
    for (int h = 0; h < v->host_count; h++) {
        const host_row *host = &v->hosts[h];
        printf("            %-20s %5d %10s %10s %10s %10s  %s\n", host->name, host->ranks, dw_size_of(v->weights).text,
               dw_size_of(host->kv).text, dw_size_of(host->need).text, dw_size_of(host->free_bytes).text,
               fits(host) ? "fits" : "does not fit");
    }
    if (v->heads > 0) print_condensate(v);
}

static void print_value(const dw_gguf_value *value)
{
    switch (value->kind) {
    case DW_GGUF_INTEGER: printf("%lld\n", (long long)value->integer); break;
    case DW_GGUF_REAL: printf("%.9g\n", value->real); break;
    case DW_GGUF_BOOL: printf("%s\n", value->integer ? "true" : "false"); break;
    case DW_GGUF_STRING: printf("\"%s\"\n", dw_printable(value->string).text); break;
    case DW_GGUF_ARRAY: printf("[%lld elements]\n", (long long)value->integer); break;
    }
}

static void print_config(const view *v)
{
    const char *key;
    json_t *value;
    json_object_foreach(v->checkpoint->config, key, value) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        printf("  %-44s %s\n", dw_printable(dw_string_of(key)).text, text == NULL ? "" : dw_printable(dw_string_of(text)).text);
        dw_free(text);
    }
}

static void print_directory(const view *v)
{
    const dw_tensors *tensors = v->checkpoint->tensors;
    printf("\nmetadata\n");
    if (v->gguf == NULL) print_config(v);
    for (int64_t k = 0; v->gguf != NULL && k < dw_gguf_keys(v->gguf); k++) {
        const dw_gguf_value value = dw_gguf_value_of(v->gguf, k);
        printf("  %-44s ", dw_printable(dw_gguf_key(v->gguf, k)).text);
        print_value(&value);
    }
    printf("\ntensors\n");
    for (int64_t i = 0; i < tensors->count; i++) {
        const dw_tensor *t = &tensors->list[i];
        printf("  %-44s %-8s", dw_printable(t->name).text, t->type[0] == '\0' ? "unknown" : t->type);
        for (int d = 0; d < t->dims; d++) printf("%s%lld", d == 0 ? " " : " x ", (long long)t->size[d]);
        printf("\n");
    }
}

static dw_status print_text(const view *v, dw_error *err)
{
    const char *path = v->checkpoint->path;
    const size_t length = strlen(path);
    const char *problem = v->problem.message;
    if (!v->runs && strncmp(problem, path, length) == 0 && strncmp(problem + length, ": ", 2) == 0) problem += length + 2;
    print_model(v);
    print_types(v);
    print_memory(v);
    if (v->rank->options->verbose) print_directory(v);
    printf("\n%s%s\n", v->runs ? "This version of Dewpoint runs the model." : "NOT SUPPORTED: ", v->runs ? "" : problem);
    return dw_flush_output(err);
}

/* ---- the run ---- */

static dw_status examine(view *v, dw_error *err)
{
    const dw_options *options = v->rank->options;
    const int ranks = v->rank->transport->size;
    DW_TRY(dw_checkpoint_open(&v->checkpoint, options->model, DW_FILE_MAP, err));
    v->gguf = v->checkpoint->gguf;
    DW_TRY(read_shape(v, err));
    DW_TRY(read_types(v, err));
    DW_TRY(check_support(v, err));
    if (v->trained > 0) DW_TRY(dw_check_context(options, v->trained, err));
    v->context = options->context > 0 ? options->context : v->trained;
    if (v->token_bytes < 0) v->context = -1;
    DW_TRY(DW_ALLOC(&v->places, ranks, "memory report", err));
    DW_TRY(DW_ALLOC(&v->kv, ranks, "memory report", err));
    return DW_ALLOC(&v->hosts, ranks, "memory report", err);
}

static dw_status report(view *v, dw_error *err)
{
    if (v->context > 0) plan_memory(v);
    return v->rank->options->json ? print_json(v, err) : print_text(v, err);
}

static void release(view *v)
{
    dw_checkpoint_close(v->checkpoint);
    dw_free(v->types);
    dw_free(v->places);
    dw_free(v->kv);
    dw_free(v->hosts);
}

dw_status dw_inspect(dw_rank *rank, dw_error *err)
{
    const int coordinator = rank->transport->rank == 0;
    view v = {.rank = rank};
    dw_status status = dw_rank_agree(rank, coordinator ? examine(&v, err) : DW_OK, err);
    if (status == DW_OK) status = gather_places(&v, err);
    if (status == DW_OK) {
        rank->alone = 1;
        if (coordinator) status = report(&v, err);
    }
    release(&v);
    return status;
}
