#include "model/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/kernels.h"
#include "model/config_read.h"

#define REFUSE(checkpoint, err, ...) DW_REFUSE((checkpoint)->path, err, __VA_ARGS__)

dw_activation dw_activation_named(dw_string name)
{
    static const struct {
        const char *name;
        dw_activation activation;
    } table[] = {{"silu", DW_SILU},
                 {"swish", DW_SILU},
                 {"gelu", DW_GELU},
                 {"gelu_new", DW_GELU_TANH},
                 {"gelu_pytorch_tanh", DW_GELU_TANH}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (dw_string_is(name, table[i].name)) return table[i].activation;
    }
    return DW_ACTIVATIONS;
}

dw_status dw_config_windows(dw_config *config, dw_error *err)
{
    return DW_ALLOC(&config->window, config->layers, "layers", err);
}

void dw_config_free(dw_config *config)
{
    dw_free(config->window);
    config->window = NULL;
}

static int is_factor(double factor)
{
    return factor >= 1 && factor <= DW_MOST_ROPE_FACTOR;
}

/* ---- --rope-scaling ---- */

/* The number behind ':' at *text, which moves behind it. 0: none. */
static int next_number(const char **text, double *number)
{
    char *end;
    if (**text != ':') return 0;
    *number = strtod(*text + 1, &end);
    if (end == *text + 1 || !isfinite(*number)) return 0;
    *text = end;
    return 1;
}

dw_status dw_rope_scaling_parse(const char *text, dw_rope *rope, dw_error *err)
{
    static const dw_rope_kind kinds[] = {DW_ROPE_NONE, DW_ROPE_LINEAR, DW_ROPE_DYNAMIC, DW_ROPE_YARN};
    const size_t length = strcspn(text, ":");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const char *name = dw_rope_name(kinds[i]);
        const char *rest = text + length;
        dw_rope parsed = {.kind = kinds[i], .attention_factor = 1};
        if (strlen(name) != length || strncmp(name, text, length) != 0) continue;
        if (parsed.kind != DW_ROPE_NONE && (!next_number(&rest, &parsed.factor) || !is_factor(parsed.factor))) break;
        if (parsed.kind == DW_ROPE_YARN && *rest == ':' &&
            (!next_number(&rest, &parsed.original_context) || !(parsed.original_context >= 1))) {
            break;
        }
        if (*rest != '\0') break;
        if (parsed.kind == DW_ROPE_YARN) {
            parsed.attention_factor = dw_rope_yarn_magnitude(parsed.factor, 1);
            parsed.beta_fast = 32;
            parsed.beta_slow = 1;
            parsed.truncate = 1;
        }
        if (rope != NULL) *rope = parsed;
        return DW_OK;
    }
    return dw_fail(err, DW_USAGE,
                   "--rope-scaling '%.100s' is not none, linear:FACTOR, dynamic:FACTOR or yarn:FACTOR[:ORIGINAL] with factors "
                   "of 1 or more",
                   text);
}

/* ---- what the stated numbers imply ---- */

int dw_config_is_rope_base(double base)
{
    return base > 1 && base <= 1e30;
}

static dw_status apply_overrides(dw_config *c, const dw_config_overrides *overrides, dw_error *err)
{
    dw_rope fresh = {0};
    if (overrides->rope_base > 0 && !dw_config_is_rope_base(overrides->rope_base)) {
        return dw_fail(err, DW_USAGE, "--rope-base %g: " DW_ROPE_BASES, overrides->rope_base);
    }
    if (overrides->rope_scaling != NULL) {
        DW_TRY(dw_rope_scaling_parse(overrides->rope_scaling, &fresh, err));
        fresh.base = c->rope.base;
        if (fresh.kind == DW_ROPE_LINEAR) c->context = (int64_t)fmin((double)c->context * fresh.factor, DW_MOST_CONTEXT);
        c->rope = fresh;
    }
    if (overrides->rope_base > 0) c->rope.base = overrides->rope_base;
    return DW_OK;
}

/* The context that a scaling was made for: yarn and dynamic extend the one that the model states. */
static void complete_rope(dw_rope *rope, int64_t *context)
{
    const double stated = (double)*context;
    if (rope->kind == DW_ROPE_NONE || rope->kind == DW_ROPE_LINEAR) return;
    if (rope->original_context == 0 || rope->kind == DW_ROPE_DYNAMIC) rope->original_context = stated;
    if (rope->kind == DW_ROPE_LLAMA3) return;
    *context = (int64_t)fmin(fmax(stated, floor(rope->factor * rope->original_context)), (double)DW_MOST_CONTEXT);
}

/* ---- checks ---- */

static int is_positive(double x)
{
    return x > 0 && isfinite(x);
}

static dw_status check_rope(const dw_checkpoint *checkpoint, const dw_rope *rope, dw_error *err)
{
    const char *kind = dw_rope_name(rope->kind);
    if (!dw_config_is_rope_base(rope->base)) {
        return REFUSE(checkpoint, err, "the RoPE base is %g; " DW_ROPE_BASES, rope->base);
    }
    if (rope->kind == DW_ROPE_NONE) return DW_OK;
    if (!is_factor(rope->factor)) {
        return REFUSE(checkpoint, err, "the factor of RoPE scaling '%s' is %g; it must be 1 or more, up to %g", kind,
                      rope->factor, DW_MOST_ROPE_FACTOR);
    }
    if (rope->kind != DW_ROPE_LINEAR && !(rope->original_context >= 1 && rope->original_context <= (double)DW_MOST_CONTEXT)) {
        return REFUSE(checkpoint, err, "the original context of RoPE scaling '%s' is %g; it must be positive", kind,
                      rope->original_context);
    }
    if (rope->kind == DW_ROPE_LLAMA3 && !(is_positive(rope->low_freq_factor) &&
                                          rope->high_freq_factor > rope->low_freq_factor && isfinite(rope->high_freq_factor))) {
        return REFUSE(checkpoint, err,
                      "RoPE scaling 'llama3' has low_freq_factor %g and high_freq_factor %g; they must ascend from above 0",
                      rope->low_freq_factor, rope->high_freq_factor);
    }
    if (rope->kind == DW_ROPE_YARN && !(is_positive(rope->attention_factor) && is_positive(rope->beta_slow) &&
                                        rope->beta_fast > rope->beta_slow && isfinite(rope->beta_fast))) {
        return REFUSE(checkpoint, err,
                      "RoPE scaling 'yarn' has attention factor %g, beta_slow %g and beta_fast %g; they must be "
                      "positive and the last two ascend",
                      rope->attention_factor, rope->beta_slow, rope->beta_fast);
    }
    return DW_OK;
}

static dw_status check_config(const dw_checkpoint *checkpoint, const dw_config *c, dw_error *err)
{
    const int rotates = c->rope_pairs != DW_ROPE_ABSENT;
    if (c->heads % c->kv_heads != 0) {
        return REFUSE(checkpoint, err, "%lld heads are not a multiple of %lld KV heads", (long long)c->heads,
                      (long long)c->kv_heads);
    }
    if (c->head_dim < 1 || c->head_dim > DW_MAX_HEAD_DIM) {
        return REFUSE(checkpoint, err, "the head dimension is %lld; 1 to %d are supported", (long long)c->head_dim,
                      DW_MAX_HEAD_DIM);
    }
    if (rotates && (c->rope_dims < 2 || c->rope_dims > c->head_dim || c->rope_dims % 2 != 0)) {
        return REFUSE(checkpoint, err, "%lld dimensions of a head of %lld rotate; an even number up to the head's is supported",
                      (long long)c->rope_dims, (long long)c->head_dim);
    }
    if (!is_positive(c->query_scale)) {
        return REFUSE(checkpoint, err, "the scale of the queries is %g; it must be positive", c->query_scale);
    }
    if (!rotates) return DW_OK;
    DW_TRY(check_rope(checkpoint, &c->rope, err));
    return check_rope(checkpoint, &c->local_rope, err);
}

/* ---- the whole ---- */

static dw_status read_config(dw_config *c, const dw_checkpoint *checkpoint, const dw_config_overrides *overrides, dw_error *err)
{
    int64_t unused;
    int same;
    if (checkpoint->gguf != NULL) {
        DW_TRY(dw_config_from_gguf(c, checkpoint, err));
    } else {
        DW_TRY(dw_config_from_json(c, checkpoint, err));
    }
    if (c->rope_pairs == DW_ROPE_ABSENT) {
        if (overrides->rope_base > 0 || overrides->rope_scaling != NULL) {
            return dw_fail(err, DW_USAGE, "%s: the model has learned positions; --rope-base and --rope-scaling do not apply",
                           checkpoint->path);
        }
        return check_config(checkpoint, c, err);
    }
    same = memcmp(&c->rope, &c->local_rope, sizeof c->rope) == 0;
    DW_TRY(apply_overrides(c, overrides, err));
    unused = c->context;
    complete_rope(&c->local_rope, &unused);
    complete_rope(&c->rope, &c->context);
    if (same) c->local_rope = c->rope;
    return check_config(checkpoint, c, err);
}

dw_status dw_config_read(dw_config *config, const dw_checkpoint *checkpoint, const dw_config_overrides *overrides,
                         dw_error *err)
{
    dw_status status;
    memset(config, 0, sizeof *config); /* with the padding: ropes are compared */
    config->is_tied = -1;
    config->vocabulary = -1;
    config->query_scale = 1;
    config->rope.attention_factor = 1;
    config->local_rope.attention_factor = 1;
    status = read_config(config, checkpoint, overrides, err);
    if (status != DW_OK) dw_config_free(config);
    return status;
}
