/* The configuration in the config.json of a Hugging Face directory, in both forms: the old one of published checkpoints
   (rope_theta, rope_scaling, rotary_pct) and that of transformers 5 (rope_parameters). What is absent has the default of the
   model's class in transformers. That class reads no other keys than those here and some without influence on results, so keys
   that are not named here are passed over; those that would change results in a way that Dewpoint does not compute are refused. */
#include <math.h>
#include <stdio.h>

#include "model/config_read.h"

/* What differs from class to class. */
typedef struct {
    const char *family;
    const char *layers, *hidden, *heads, *feed_forward, *context, *epsilon, *activation; /* keys */
    int64_t kv_heads; /* where num_key_value_heads is absent; 0: as many as heads */
    int64_t head_dim; /* where head_dim is absent; 0: hidden / heads */
    int64_t default_context;
    double default_epsilon;
    int tied;
    int64_t window;      /* where sliding_window is absent */
    double rotary_share; /* of a head, where the file does not say */
    double base, local_base;
} class_row;

#define LLAMA_KEYS                                                                                                             \
    "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings", "rms_norm_eps"

static const class_row classes[] = {
    {"llama", LLAMA_KEYS, "hidden_act", 0, 0, 2048, 1e-6, 0, 0, 1, 10000, 0},
    {"mistral", LLAMA_KEYS, "hidden_act", 8, 0, 131072, 1e-6, 0, 4096, 1, 10000, 0},
    {"qwen2", LLAMA_KEYS, "hidden_act", 32, 0, 32768, 1e-6, 0, 4096, 1, 10000, 0},
    {"qwen3", LLAMA_KEYS, "hidden_act", 32, 128, 32768, 1e-6, 0, 4096, 1, 10000, 0},
    {"gemma3", LLAMA_KEYS, "hidden_activation", 4, 256, 131072, 1e-6, 1, 4096, 1, 1000000, 10000},
    {"gpt_neox", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings",
     "layer_norm_eps", "hidden_act", 0, 0, 2048, 1e-5, 0, 0, 0.25, 10000, 0},
    {"gpt2", "n_layer", "n_embd", "n_head", "n_inner", "n_positions", "layer_norm_epsilon", "activation_function", 0, 0, 1024,
     1e-5, 1, 0, 0, 0, 0},
};

/* Keys that may only stand at this value, or be null or absent. */
static const struct {
    const char *key;
    const char *value; /* as JSON */
} neutral_keys[] = {
    {"mlp_bias", "false"},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {"use_bidirectional_attention", "false"},
    {"attn_logit_softcapping", "null"},
    {"final_logit_softcapping", "null"},
    {"num_experts", "0"},
    {"num_local_experts", "0"},
    {"quantization_config", "null"},
    {"pretraining_tp", "1"},
};

typedef struct {
    dw_config *config;
    const dw_checkpoint *checkpoint;
    const class_row *class;
    const json_t *json;
} reader;

/* Errors name the file: "DIRECTORY/config.json: ...". */
#define REFUSE(r, err, ...)                                                                                                    \
    (dw_fail((err), DW_INPUT, __VA_ARGS__), dw_fail_context((err), "%s/config.json", (r)->checkpoint->path), DW_INPUT)

/* ---- values ---- */

/* NULL when the key is absent or null. */
static const json_t *value_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static dw_status read_integer(const reader *r, const json_t *object, const char *key, int64_t low, int64_t high, int64_t *value,
                              dw_error *err)
{
    const json_t *json = value_of(object, key);
    if (json == NULL) return DW_OK;
    if (!json_is_integer(json))
        return REFUSE(r, err, "%s must be a whole number of %lld to %lld", key, (long long)low, (long long)high);
    *value = json_integer_value(json);
    if (*value >= low && *value <= high) return DW_OK;
    return REFUSE(r, err, "%s is %lld; %lld to %lld are supported", key, (long long)*value, (long long)low, (long long)high);
}

static dw_status read_count(const reader *r, const char *key, int64_t most, int64_t *value, dw_error *err)
{
    *value = 0;
    DW_TRY(read_integer(r, r->json, key, 1, most, value, err));
    return *value > 0 ? DW_OK : REFUSE(r, err, "%s is missing", key);
}

static dw_status read_number(const reader *r, const json_t *object, const char *key, double *value, dw_error *err)
{
    const json_t *json = value_of(object, key);
    if (json == NULL) return DW_OK;
    if (!json_is_number(json)) return REFUSE(r, err, "%s must be a number", key);
    *value = json_number_value(json);
    return DW_OK;
}

static dw_status read_flag(const reader *r, const json_t *object, const char *key, int *value, dw_error *err)
{
    const json_t *json = value_of(object, key);
    if (json == NULL) return DW_OK;
    if (!json_is_boolean(json)) return REFUSE(r, err, "%s must be true or false", key);
    *value = json_is_true(json);
    return DW_OK;
}

static dw_status read_text(const reader *r, const json_t *object, const char *key, dw_string *value, dw_error *err)
{
    const json_t *json = value_of(object, key);
    if (json == NULL) return DW_OK;
    if (!json_is_string(json)) return REFUSE(r, err, "%s must be a string", key);
    *value = (dw_string){json_string_value(json), (int64_t)json_string_length(json)};
    return DW_OK;
}

/* ---- shape and switches ---- */

static dw_status read_shape(const reader *r, dw_error *err)
{
    const class_row *class = r->class;
    dw_config *c = r->config;
    DW_TRY(read_count(r, class->layers, DW_MOST_LAYERS, &c->layers, err));
    DW_TRY(read_count(r, class->hidden, DW_MOST_HIDDEN, &c->hidden, err));
    DW_TRY(read_count(r, class->heads, DW_MOST_HEADS, &c->heads, err));
    if (c->family->is_gated || value_of(r->json, class->feed_forward) != NULL || class->rotary_share > 0) {
        DW_TRY(read_count(r, class->feed_forward, DW_MOST_FEED_FORWARD, &c->feed_forward, err));
    } else {
        c->feed_forward = 4 * c->hidden; /* GPT-2 */
    }
    c->context = class->default_context;
    DW_TRY(read_integer(r, r->json, class->context, 1, DW_MOST_CONTEXT, &c->context, err));
    c->kv_heads = class->kv_heads > 0 ? class->kv_heads : c->heads;
    if (json_is_null(json_object_get(r->json, "num_key_value_heads"))) c->kv_heads = c->heads;
    if (c->family->qkv == DW_QKV_SEPARATE) {
        DW_TRY(read_integer(r, r->json, "num_key_value_heads", 1, DW_MOST_HEADS, &c->kv_heads, err));
        c->head_dim = class->head_dim > 0 ? class->head_dim : c->hidden / c->heads;
        DW_TRY(read_integer(r, r->json, "head_dim", 1, DW_MAX_HEAD_DIM, &c->head_dim, err));
    } else {
        c->head_dim = c->hidden / c->heads;
        if (c->head_dim * c->heads != c->hidden) {
            return REFUSE(r, err, "%s %lld is not a multiple of %s %lld", class->hidden, (long long)c->hidden, class->heads,
                          (long long)c->heads);
        }
    }
    c->norm_epsilon = class->default_epsilon;
    DW_TRY(read_number(r, r->json, class->epsilon, &c->norm_epsilon, err));
    if (!(c->norm_epsilon > 0 && c->norm_epsilon < 1)) {
        return REFUSE(r, err, "%s is %g; it must lie between 0 and 1", class->epsilon, c->norm_epsilon);
    }
    return read_integer(r, r->json, "vocab_size", 1, DW_MOST_VOCABULARY, &c->vocabulary, err);
}

static dw_status read_switches(const reader *r, dw_error *err)
{
    dw_config *c = r->config;
    dw_string activation = {NULL, 0};
    double query = (double)c->head_dim;
    int bias = c->family->qkv_has_bias;
    c->activation = c->family->activation;
    DW_TRY(read_text(r, r->json, r->class->activation, &activation, err));
    if (activation.data != NULL) c->activation = dw_activation_named(activation);
    if (c->activation == DW_ACTIVATIONS) {
        return REFUSE(r, err, "%s is '%s'; there are " DW_ACTIVATION_NAMES, r->class->activation,
                      dw_printable(activation).text);
    }
    c->is_tied = r->class->tied;
    DW_TRY(read_flag(r, r->json, "tie_word_embeddings", &c->is_tied, err));
    if (dw_string_is(dw_string_of(c->family->name), "gpt_neox")) {
        c->is_parallel = 1;
        DW_TRY(read_flag(r, r->json, "use_parallel_residual", &c->is_parallel, err));
    }
    /* Qwen2 has its biases whatever attention_bias says. */
    if (!dw_string_is(dw_string_of(c->family->name), "qwen2")) DW_TRY(read_flag(r, r->json, "attention_bias", &bias, err));
    if (bias != c->family->qkv_has_bias) {
        return REFUSE(r, err, "attention_bias is %s; in family %s only %s is supported", bias ? "true" : "false",
                      c->family->name, bias ? "false" : "true");
    }
    if (!c->family->has_local_layers) return DW_OK;
    query = 256;
    DW_TRY(read_number(r, r->json, "query_pre_attn_scalar", &query, err));
    c->query_scale = sqrt((double)c->head_dim) / sqrt(query);
    return DW_OK;
}

static dw_status check_neutral(const reader *r, dw_error *err)
{
    for (size_t i = 0; i < sizeof neutral_keys / sizeof neutral_keys[0]; i++) {
        const json_t *value = value_of(r->json, neutral_keys[i].key);
        json_t *neutral;
        int equal;
        if (value == NULL) continue;
        neutral = json_loads(neutral_keys[i].value, JSON_DECODE_ANY, NULL);
        if (neutral == NULL) return dw_fail(err, DW_RESOURCE, "not enough memory for config.json");
        equal = json_equal(value, neutral);
        json_decref(neutral);
        if (!equal) return REFUSE(r, err, "%s is not supported; it may only be %s", neutral_keys[i].key, neutral_keys[i].value);
    }
    return DW_OK;
}

/* ---- RoPE ---- */

static dw_status read_kind(const reader *r, const json_t *scaling, dw_rope_kind *kind, dw_error *err)
{
    dw_string type = {NULL, 0};
    dw_string older = {NULL, 0};
    DW_TRY(read_text(r, scaling, "rope_type", &type, err));
    DW_TRY(read_text(r, scaling, "type", &older, err));
    if (type.data == NULL) type = older;
    if (older.data != NULL && dw_string_compare(&type, &older) != 0) {
        return REFUSE(r, err, "RoPE scaling has rope_type '%s' and type '%s'", dw_printable(type).text,
                      dw_printable(older).text);
    }
    *kind = DW_ROPE_NONE;
    if (type.data == NULL || dw_string_is(type, "default")) return DW_OK;
    for (int k = DW_ROPE_LINEAR; k < DW_ROPE_KINDS; k++) {
        if (!dw_string_is(type, dw_rope_name((dw_rope_kind)k))) continue;
        *kind = (dw_rope_kind)k;
        return DW_OK;
    }
    return REFUSE(r, err, "RoPE scaling '%s' is not supported; there are default, linear, dynamic, llama3 and yarn",
                  dw_printable(type).text);
}

/* As transformers' _compute_yarn_parameters; zeros count as absent there. */
static dw_status read_yarn(const reader *r, const json_t *scaling, dw_rope *rope, dw_error *err)
{
    double attention = 0;
    double mscale = 0;
    double mscale_all_dim = 0;
    rope->truncate = 1;
    DW_TRY(read_number(r, scaling, "attention_factor", &attention, err));
    DW_TRY(read_number(r, scaling, "mscale", &mscale, err));
    DW_TRY(read_number(r, scaling, "mscale_all_dim", &mscale_all_dim, err));
    DW_TRY(read_number(r, scaling, "beta_fast", &rope->beta_fast, err));
    DW_TRY(read_number(r, scaling, "beta_slow", &rope->beta_slow, err));
    DW_TRY(read_flag(r, scaling, "truncate", &rope->truncate, err));
    if (rope->beta_fast == 0) rope->beta_fast = 32;
    if (rope->beta_slow == 0) rope->beta_slow = 1;
    rope->attention_factor = dw_rope_yarn_magnitude(rope->factor, 1);
    if (mscale != 0 && mscale_all_dim != 0) {
        rope->attention_factor = dw_rope_yarn_magnitude(rope->factor, mscale) /
                                 dw_rope_yarn_magnitude(rope->factor, mscale_all_dim);
    }
    if (value_of(scaling, "attention_factor") != NULL) rope->attention_factor = attention;
    return DW_OK;
}

/* All of them, so that none is left out: also not one that other models nest or add (full_attention, mrope_section). */
static dw_status check_rope_keys(const reader *r, const json_t *scaling, dw_error *err)
{
    static const char *const known[] = {
        "rope_type",       "type",
        "rope_theta",      "partial_rotary_factor",
        "factor",          "original_max_position_embeddings",
        "beta_fast",       "beta_slow",
        "low_freq_factor", "high_freq_factor",
        "mscale",          "mscale_all_dim",
        "truncate",        "attention_factor",
        "finetuned",
    };
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)scaling, key, value) {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(known[i], key) != 0) i++;
        if (i < sizeof known / sizeof known[0] || json_is_null(value)) continue;
        return REFUSE(r, err, "RoPE scaling has the key %s, which is unknown and could change results",
                      dw_printable(dw_string_of(key)).text);
    }
    return DW_OK;
}

/* scaling: an object or NULL. base: where it does not state one. */
static dw_status read_rope(const reader *r, const json_t *scaling, double base, dw_rope *rope, dw_error *err)
{
    rope->base = base;
    rope->attention_factor = 1;
    if (scaling == NULL) return DW_OK;
    if (!json_is_object(scaling)) return REFUSE(r, err, "rope_scaling and rope_parameters must be objects");
    DW_TRY(check_rope_keys(r, scaling, err));
    DW_TRY(read_kind(r, scaling, &rope->kind, err));
    DW_TRY(read_number(r, scaling, "rope_theta", &rope->base, err));
    if (rope->kind == DW_ROPE_NONE) return DW_OK;
    DW_TRY(read_number(r, scaling, "factor", &rope->factor, err));
    if (rope->factor == 0) return REFUSE(r, err, "RoPE scaling '%s' has no factor", dw_rope_name(rope->kind));
    if (rope->kind == DW_ROPE_LLAMA3 || rope->kind == DW_ROPE_YARN) {
        DW_TRY(read_number(r, scaling, "original_max_position_embeddings", &rope->original_context, err));
        DW_TRY(read_number(r, r->json, "original_max_position_embeddings", &rope->original_context, err)); /* has priority */
    }
    if (rope->kind == DW_ROPE_LLAMA3) {
        DW_TRY(read_number(r, scaling, "low_freq_factor", &rope->low_freq_factor, err));
        DW_TRY(read_number(r, scaling, "high_freq_factor", &rope->high_freq_factor, err));
    }
    return rope->kind == DW_ROPE_YARN ? read_yarn(r, scaling, rope, err) : DW_OK;
}

/* Of all keys that name it, the innermost counts. */
static dw_status read_rotary_dims(const reader *r, const json_t *scaling, dw_error *err)
{
    dw_config *c = r->config;
    double share = r->class->rotary_share;
    const int is_partial = share < 1;
    if (is_partial) DW_TRY(read_number(r, r->json, "rotary_pct", &share, err));
    DW_TRY(read_number(r, r->json, "partial_rotary_factor", &share, err));
    if (json_is_object(scaling)) DW_TRY(read_number(r, scaling, "partial_rotary_factor", &share, err));
    if (!(share > 0 && share <= 1) || (!is_partial && share != 1)) {
        return REFUSE(r, err, "a rotary share of %g is not supported in family %s; %s", share, c->family->name,
                      is_partial ? "it must lie between 0 and 1" : "it may only be 1");
    }
    c->rope_dims = (int64_t)((double)c->head_dim * share);
    return DW_OK;
}

static dw_status read_ropes(const reader *r, dw_error *err)
{
    dw_config *c = r->config;
    const json_t *scaling = value_of(r->json, "rope_scaling");
    const json_t *parameters = value_of(r->json, "rope_parameters");
    const json_t *local = NULL;
    double base = r->class->base;
    double local_base = r->class->local_base;
    c->rope_pairs = c->family->gguf_pairs == DW_ROPE_ABSENT ? DW_ROPE_ABSENT : DW_ROPE_HALVES;
    if (c->rope_pairs == DW_ROPE_ABSENT) return DW_OK;
    DW_TRY(read_number(r, r->json, r->class->rotary_share < 1 ? "rotary_emb_base" : "rope_theta", &base, err));
    DW_TRY(read_number(r, r->json, "rope_local_base_freq", &local_base, err));
    if (c->family->has_local_layers && json_is_object(parameters)) {
        local = value_of(parameters, "sliding_attention");
        if (local != NULL || value_of(parameters, "full_attention") != NULL)
            parameters = value_of(parameters, "full_attention");
    }
    if (json_is_object(scaling) && json_object_size(scaling) > 0) parameters = scaling;
    if (scaling != NULL && !json_is_object(scaling)) return REFUSE(r, err, "rope_scaling must be an object or null");
    DW_TRY(read_rope(r, parameters, base, &c->rope, err));
    DW_TRY(read_rotary_dims(r, parameters, err));
    c->local_rope = c->rope;
    if (!c->family->has_local_layers) return DW_OK;
    c->local_rope = (dw_rope){0};
    return read_rope(r, local, local_base, &c->local_rope, err);
}

/* ---- windows ---- */

static dw_status no_window(const reader *r, int64_t layer, dw_error *err)
{
    return REFUSE(r, err, "layer %lld has sliding_attention, but there is no sliding_window in use", (long long)layer);
}

/* layer_types: "full_attention" or "sliding_attention" of each layer. */
static dw_status read_layer_types(const reader *r, const json_t *types, int64_t window, dw_error *err)
{
    dw_config *c = r->config;
    if (!json_is_array(types) || (int64_t)json_array_size(types) != c->layers) {
        return REFUSE(r, err, "layer_types must be an array of %lld strings", (long long)c->layers);
    }
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (type != NULL && strcmp(type, "sliding_attention") == 0) {
            if (window == 0) return no_window(r, i, err);
            c->window[i] = window;
        } else if (type == NULL || strcmp(type, "full_attention") != 0) {
            return REFUSE(r, err, "layer_types holds '%s' for layer %lld; full_attention and sliding_attention are supported",
                          type == NULL ? "no string" : dw_printable(dw_string_of(type)).text, (long long)i);
        }
    }
    return DW_OK;
}

/* Mistral's class passes over layer_types, so it may only say the same. */
static dw_status read_mistral_types(const reader *r, const json_t *types, int64_t window, dw_error *err)
{
    DW_TRY(read_layer_types(r, types, window, err));
    for (int64_t i = 0; i < r->config->layers; i++) {
        if (r->config->window[i] == window) continue;
        return REFUSE(r, err, "layer_types holds 'full_attention' for layer %lld, but sliding_window is %lld", (long long)i,
                      (long long)window);
    }
    return DW_OK;
}

/* mistral: all layers; qwen2, qwen3: with use_sliding_window, from layer max_window_layers on; gemma3: all but every sixth; of
   the latter three layer_types says more. */
static dw_status read_windows(const reader *r, dw_error *err)
{
    dw_config *c = r->config;
    const json_t *types = value_of(r->json, "layer_types");
    const int is_mistral = dw_string_is(dw_string_of(c->family->name), "mistral");
    int64_t window = json_object_get(r->json, "sliding_window") == NULL ? r->class->window : 0;
    int64_t from = 28;
    int64_t pattern = 6;
    int uses = 0;
    DW_TRY(dw_config_windows(c, err));
    if (r->class->window == 0) {
        if (types != NULL) DW_TRY(read_layer_types(r, types, 0, err));
        return DW_OK;
    }
    DW_TRY(read_integer(r, r->json, "sliding_window", 1, DW_MOST_CONTEXT, &window, err));
    DW_TRY(read_flag(r, r->json, "use_sliding_window", &uses, err));
    DW_TRY(read_integer(r, r->json, "max_window_layers", 0, DW_MOST_LAYERS, &from, err));
    DW_TRY(read_integer(r, r->json, "sliding_window_pattern", 1, DW_MOST_LAYERS, &pattern, err));
    if (!is_mistral && !c->family->has_local_layers && !uses) window = 0;
    if (types != NULL && is_mistral) return read_mistral_types(r, types, window, err);
    if (types != NULL) return read_layer_types(r, types, window, err);
    for (int64_t i = 0; i < c->layers; i++) {
        const int is_full = c->family->has_local_layers ? (i + 1) % pattern == 0 : !is_mistral && i < from;
        if (!is_full && window == 0 && c->family->has_local_layers) return no_window(r, i, err);
        c->window[i] = is_full ? 0 : window;
    }
    return DW_OK;
}

/* ---- the whole ---- */

static dw_status find_class(reader *r, dw_error *err)
{
    dw_string type = {NULL, 0};
    DW_TRY(read_text(r, r->json, "model_type", &type, err));
    if (type.data == NULL) return REFUSE(r, err, "model_type is missing; supported: %s", dw_family_hf_names());
    r->config->family = dw_family_of_hf(type);
    if (r->config->family == NULL) {
        return REFUSE(r, err, "model_type '%s' is not supported; supported: %s", dw_printable(type).text, dw_family_hf_names());
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        if (strcmp(classes[i].family, r->config->family->name) == 0) r->class = &classes[i];
    }
    return DW_OK;
}

dw_status dw_config_from_json(dw_config *config, const dw_checkpoint *checkpoint, dw_error *err)
{
    reader r = {.config = config, .checkpoint = checkpoint, .json = checkpoint->config};
    DW_TRY(find_class(&r, err));
    DW_TRY(check_neutral(&r, err));
    DW_TRY(read_shape(&r, err));
    DW_TRY(read_switches(&r, err));
    DW_TRY(read_ropes(&r, err));
    return read_windows(&r, err);
}
