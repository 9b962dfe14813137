/* The configuration in the metadata of a GGUF file (keys: gguf-py's constants, meanings: llama.cpp's converter). */
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "model/config_read.h"

typedef struct {
    dw_config *config;
    const dw_checkpoint *checkpoint;
    const dw_gguf *file;
} reader;

#define REFUSE(r, err, ...) DW_REFUSE((r)->checkpoint->path, err, __VA_ARGS__)

typedef struct {
    char text[96];
} key_name;

/* "ARCHITECTURE.suffix" */
static key_name key_of(const reader *r, const char *suffix)
{
    key_name key;
    snprintf(key.text, sizeof key.text, "%s.%s", r->config->family->architecture, suffix);
    return key;
}

/* ---- scalars ---- */

static int is_array(const reader *r, const char *key)
{
    for (int64_t i = 0; i < dw_gguf_keys(r->file); i++) {
        if (dw_string_is(dw_gguf_key(r->file, i), key)) return dw_gguf_value_of(r->file, i).kind == DW_GGUF_ARRAY;
    }
    return 0;
}

/* A number, or an array of equal ones: some converters state a number of every layer. */
static dw_status read_integer(const reader *r, const char *key, int64_t *value, int *found, dw_error *err)
{
    int64_t *list;
    int64_t count;
    dw_status status = DW_OK;
    if (!is_array(r, key)) return dw_gguf_int(r->file, key, value, found, err);
    DW_TRY(dw_gguf_ints(r->file, key, &list, &count, found, err));
    for (int64_t i = 1; i < count && status == DW_OK; i++) {
        if (list[i] != list[0]) status = REFUSE(r, err, "%s differs from layer to layer, which is not supported", key);
    }
    if (status == DW_OK && count == 0) status = REFUSE(r, err, "%s is an empty array", key);
    if (status == DW_OK) *value = list[0];
    dw_free(list);
    return status;
}

/* A count of 1..most. otherwise: its value when the key is absent, 0 when it must be there. */
static dw_status read_count(const reader *r, const char *suffix, int64_t otherwise, int64_t most, int64_t *value, dw_error *err)
{
    const key_name key = key_of(r, suffix);
    int found;
    *value = otherwise;
    DW_TRY(read_integer(r, key.text, value, otherwise > 0 ? &found : NULL, err));
    if (*value < 1 || *value > most) {
        return REFUSE(r, err, "%s is %lld; 1 to %lld are supported", key.text, (long long)*value, (long long)most);
    }
    return DW_OK;
}

static dw_status read_float(const reader *r, const char *suffix, double *value, dw_error *err)
{
    int found;
    return dw_gguf_float(r->file, key_of(r, suffix).text, value, &found, err);
}

/* ---- shape ---- */

static dw_status read_shape(const reader *r, dw_error *err)
{
    dw_config *c = r->config;
    const int rms = c->family->norm == DW_NORM_RMS;
    const key_name epsilon = key_of(r, rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon");
    int64_t value_length;
    int found;
    DW_TRY(read_count(r, "block_count", 0, DW_MOST_LAYERS, &c->layers, err));
    DW_TRY(read_count(r, "embedding_length", 0, DW_MOST_HIDDEN, &c->hidden, err));
    DW_TRY(read_count(r, "feed_forward_length", 0, DW_MOST_FEED_FORWARD, &c->feed_forward, err));
    DW_TRY(read_count(r, "context_length", 0, DW_MOST_CONTEXT, &c->context, err));
    DW_TRY(read_count(r, "attention.head_count", 0, DW_MOST_HEADS, &c->heads, err));
    DW_TRY(read_count(r, "attention.head_count_kv", c->heads, DW_MOST_HEADS, &c->kv_heads, err));
    DW_TRY(read_count(r, "attention.key_length", c->hidden / c->heads, DW_MAX_HEAD_DIM, &c->head_dim, err));
    DW_TRY(read_count(r, "attention.value_length", c->hidden / c->heads, DW_MAX_HEAD_DIM, &value_length, err));
    DW_TRY(read_integer(r, key_of(r, "vocab_size").text, &c->vocabulary, &found, err));
    DW_TRY(dw_gguf_float(r->file, epsilon.text, &c->norm_epsilon, NULL, err));
    if (!(c->norm_epsilon > 0 && c->norm_epsilon < 1)) {
        return REFUSE(r, err, "%s is %g; it must lie between 0 and 1", epsilon.text, c->norm_epsilon);
    }
    if (value_length == c->head_dim) return DW_OK;
    return REFUSE(r, err, "keys of %lld and values of %lld numbers are not supported; they must be as long",
                  (long long)c->head_dim, (long long)value_length);
}

static int has_parallel_switch(const dw_family *family)
{
    return strcmp(family->architecture, "gptneox") == 0;
}

/* The format does not say which of the GELUs a model has; Dewpoint also takes a key hidden_act, in Hugging Face's words. */
static dw_status read_switches(const reader *r, dw_error *err)
{
    dw_config *c = r->config;
    const key_name act = key_of(r, "hidden_act");
    const key_name parallel = key_of(r, "use_parallel_residual");
    dw_string name;
    int found;
    c->activation = c->family->activation;
    DW_TRY(dw_gguf_string(r->file, act.text, &name, &found, err));
    if (found) c->activation = dw_activation_named(name);
    if (c->activation == DW_ACTIVATIONS) {
        return REFUSE(r, err, "%s is '%s'; there are " DW_ACTIVATION_NAMES, act.text, dw_printable(name).text);
    }
    c->rope_pairs = c->family->gguf_pairs;
    if (!has_parallel_switch(c->family)) return DW_OK;
    return dw_gguf_bool(r->file, parallel.text, &c->is_parallel, NULL, err);
}

/* ---- RoPE ---- */

/* A factor without a type is one of linear scaling, as in files from before there were types. */
static dw_status read_scaling(const reader *r, dw_rope *rope, dw_error *err)
{
    const key_name key = key_of(r, "rope.scaling.type");
    const key_name older = key_of(r, "rope.scale_linear");
    dw_string kind = dw_string_of("none");
    int found;
    int has_factor;
    DW_TRY(dw_gguf_string(r->file, key.text, &kind, &found, err));
    DW_TRY(dw_gguf_float(r->file, key_of(r, "rope.scaling.factor").text, &rope->factor, &has_factor, err));
    if (!has_factor) DW_TRY(dw_gguf_float(r->file, older.text, &rope->factor, &has_factor, err));
    if (dw_string_is(kind, "linear") || (!found && has_factor && rope->factor != 1)) {
        rope->kind = DW_ROPE_LINEAR;
    } else if (dw_string_is(kind, "yarn")) {
        rope->kind = DW_ROPE_YARN;
    } else if (!dw_string_is(kind, "none")) {
        return REFUSE(r, err, "%s is '%s'; none, linear and yarn are supported", key.text, dw_printable(kind).text);
    }
    if (rope->kind == DW_ROPE_NONE) {
        if (has_factor && rope->factor != 1) {
            return REFUSE(r, err, "%s is 'none', but the factor is %g", key.text, rope->factor);
        }
        rope->factor = 0;
    } else if (!has_factor) {
        return REFUSE(r, err, "%s is '%s', but rope.scaling.factor is missing", key.text, dw_rope_name(rope->kind));
    }
    return DW_OK;
}

/* yarn_attn_factor is the attention_factor of config.json, which stands for 1 + 0.1 ln factor; attn_factor multiplies either. */
static dw_status read_yarn(const reader *r, dw_rope *rope, dw_error *err)
{
    static const char *const only_yarn[] = {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"};
    double magnitude = dw_rope_yarn_magnitude(rope->factor, 1);
    double multiplier = 1;
    double extrapolation = 1;
    for (int i = 0; i < 2 && rope->kind != DW_ROPE_YARN; i++) {
        double value = 1;
        DW_TRY(read_float(r, only_yarn[i], &value, err));
        if (value == 1) continue;
        return REFUSE(r, err, "%s is %g; without yarn only 1 is supported", key_of(r, only_yarn[i]).text, value);
    }
    if (rope->kind != DW_ROPE_YARN) return DW_OK;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->truncate = 1;
    DW_TRY(read_float(r, "rope.scaling.original_context_length", &rope->original_context, err));
    DW_TRY(read_float(r, "rope.scaling.attn_factor", &multiplier, err));
    DW_TRY(read_float(r, "rope.scaling.yarn_attn_factor", &magnitude, err));
    DW_TRY(read_float(r, "rope.scaling.yarn_ext_factor", &extrapolation, err));
    DW_TRY(read_float(r, "rope.scaling.yarn_beta_fast", &rope->beta_fast, err));
    DW_TRY(read_float(r, "rope.scaling.yarn_beta_slow", &rope->beta_slow, err));
    if (extrapolation != 1 && extrapolation != -1) { /* -1: the default */
        return REFUSE(r, err, "%s is %g; 1 is supported", key_of(r, "rope.scaling.yarn_ext_factor").text, extrapolation);
    }
    rope->attention_factor = magnitude * multiplier;
    return DW_OK;
}

/* One factor of each frequency (Llama 3). None may be so small that angles leave the range of dw_rope_angles. */
static dw_status read_factors(const reader *r, dw_rope *rope, int64_t pairs, dw_error *err)
{
    const char *const name = "rope_freqs.weight";
    dw_matrix factors;
    int found;
    DW_TRY(dw_tensors_matrix(r->checkpoint->tensors, name, 1, pairs, &factors, &found, err));
    if (!found) return DW_OK;
    if (factors.type != DW_F32)
        return REFUSE(r, err, "tensor %s has type %s; it must be F32", name, dw_types[factors.type].name);
    rope->factors = factors.data;
    for (int64_t i = 0; i < pairs; i++) {
        const double factor = (double)rope->factors[i];
        if (factor > 0 && isfinite(factor) && (double)r->config->context / factor <= (double)DW_MOST_CONTEXT) continue;
        return REFUSE(r, err, "tensor %s holds %g; factors must be positive, finite and not close to 0", name, factor);
    }
    return DW_OK;
}

static dw_status read_rope(const reader *r, dw_error *err)
{
    dw_config *c = r->config;
    if (c->rope_pairs == DW_ROPE_ABSENT) return DW_OK;
    DW_TRY(read_count(r, "rope.dimension_count", c->head_dim, c->head_dim, &c->rope_dims, err));
    c->rope.base = 10000;
    DW_TRY(read_float(r, "rope.freq_base", &c->rope.base, err));
    if (!dw_config_is_rope_base(c->rope.base)) {
        return REFUSE(r, err, "%s is %g; " DW_ROPE_BASES, key_of(r, "rope.freq_base").text, c->rope.base);
    }
    DW_TRY(read_scaling(r, &c->rope, err));
    DW_TRY(read_yarn(r, &c->rope, err));
    if (c->rope_dims % 2 == 0) DW_TRY(read_factors(r, &c->rope, c->rope_dims / 2, err));
    c->local_rope = c->rope;
    if (!c->family->has_local_layers) return DW_OK;
    c->local_rope = (dw_rope){.base = 10000, .attention_factor = 1};
    return read_float(r, "rope.freq_base_swa", &c->local_rope.base, err);
}

/* ---- windows ---- */

/* Every `pattern`-th layer of Gemma 3 sees everything, the others have a window; Mistral's files (architecture llama) may state
   a window of all layers. */
static dw_status read_windows(const reader *r, dw_error *err)
{
    dw_config *c = r->config;
    int64_t window = 0;
    int64_t pattern = c->family->has_local_layers ? 6 : 0;
    int found;
    DW_TRY(read_integer(r, key_of(r, "attention.sliding_window").text, &window, &found, err));
    if (window < 0 || window > DW_MOST_CONTEXT) {
        return REFUSE(r, err, "%s is %lld; 0 (none) or a number of positions is legal",
                      key_of(r, "attention.sliding_window").text, (long long)window);
    }
    if (pattern > 0) DW_TRY(read_count(r, "attention.sliding_window_pattern", pattern, DW_MOST_LAYERS, &pattern, err));
    DW_TRY(dw_config_windows(c, err));
    for (int64_t i = 0; i < c->layers; i++) c->window[i] = pattern > 0 && (i + 1) % pattern == 0 ? 0 : window;
    return DW_OK;
}

/* Scores are q.k / sqrt(hidden / heads) in the 27B model of Gemma 3, which no key says; llama.cpp goes by its 62 layers. */
static void set_query_scale(dw_config *c)
{
    if (!c->family->has_local_layers || c->layers != 62) return;
    c->query_scale = sqrt((double)c->head_dim) / sqrt((double)c->hidden / (double)c->heads);
}

/* ---- what this program would leave out ---- */

/* Read above, or without influence on results. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
    "tensor_data_layout",
    "hidden_act",
};

/* Read above in some families only. */
static const char *const local_keys[] = {"attention.sliding_window_pattern", "rope.freq_base_swa"};
static const char *const parallel_key = "use_parallel_residual";

/* May only stand at the value that changes nothing. */
static const struct {
    const char *key;
    double value;
} neutral_keys[] = {
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"rope.scaling.yarn_log_multiplier", 0},
};

/* Whether a key has a meaning in this family and no other; *ours: this one. */
static int is_of_a_family(const dw_family *family, const char *suffix, int *ours)
{
    for (size_t i = 0; i < sizeof local_keys / sizeof local_keys[0]; i++) {
        *ours = family->has_local_layers;
        if (strcmp(local_keys[i], suffix) == 0) return 1;
    }
    *ours = has_parallel_switch(family);
    return strcmp(parallel_key, suffix) == 0;
}

static dw_status check_key(const reader *r, const char *key, const char *suffix, dw_error *err)
{
    double value;
    int ours;
    if (is_of_a_family(r->config->family, suffix, &ours)) {
        return ours ? DW_OK : REFUSE(r, err, "%s is not supported in family %s", key, r->config->family->name);
    }
    for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0]; i++) {
        if (strcmp(known_keys[i], suffix) == 0) return DW_OK;
    }
    for (size_t i = 0; i < sizeof neutral_keys / sizeof neutral_keys[0]; i++) {
        if (strcmp(neutral_keys[i].key, suffix) != 0) continue;
        DW_TRY(dw_gguf_float(r->file, key, &value, NULL, err));
        if (value == neutral_keys[i].value) return DW_OK;
        return REFUSE(r, err, "%s is %g; only %g is supported", key, value, neutral_keys[i].value);
    }
    return REFUSE(r, err, "metadata key %s is unknown and could change results", key);
}

static dw_status check_keys(const reader *r, dw_error *err)
{
    const char *prefix = r->config->family->architecture;
    const size_t length = strlen(prefix);
    for (int64_t i = 0; i < dw_gguf_keys(r->file); i++) {
        const dw_printable_text key = dw_printable(dw_gguf_key(r->file, i));
        if (strncmp(key.text, prefix, length) != 0 || key.text[length] != '.') continue;
        DW_TRY(check_key(r, key.text, key.text + length + 1, err));
    }
    return DW_OK;
}

dw_status dw_config_from_gguf(dw_config *config, const dw_checkpoint *checkpoint, dw_error *err)
{
    const reader r = {config, checkpoint, checkpoint->gguf};
    dw_string name;
    int64_t version = 2;
    int found;
    DW_TRY(dw_gguf_string(r.file, "general.architecture", &name, NULL, err));
    config->family = dw_family_of_gguf(name);
    if (config->family == NULL) {
        return REFUSE(&r, err, "architecture '%s' is not supported; supported: %s", dw_printable(name).text,
                      dw_family_gguf_names());
    }
    DW_TRY(dw_gguf_int(r.file, "general.quantization_version", &version, &found, err));
    if (version != 2) {
        return REFUSE(&r, err, "general.quantization_version is %lld; 2 is supported", (long long)version);
    }
    DW_TRY(check_keys(&r, err));
    DW_TRY(read_shape(&r, err));
    DW_TRY(read_switches(&r, err));
    DW_TRY(read_rope(&r, err));
    set_query_scale(config);
    return read_windows(&r, err);
}
