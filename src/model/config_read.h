/* What the two readers of a configuration share (config_gguf.c, config_json.c); config.c checks and completes what they read. */
#ifndef DW_MODEL_CONFIG_READ_H
#define DW_MODEL_CONFIG_READ_H

#include "model/config.h"

/* Bounds of hyperparameters: what no model comes near, but sizes computed from them can not overflow. DW_MOST_HIDDEN also keeps
   the rounding of a dot product within the slack of value_exponent.c, DW_MOST_CONTEXT angles in the range of dw_rope_angles. */
#define DW_MOST_LAYERS ((int64_t)1 << 12)
#define DW_MOST_HIDDEN ((int64_t)1 << 18)
#define DW_MOST_FEED_FORWARD ((int64_t)1 << 24)
#define DW_MOST_HEADS ((int64_t)1 << 16)
#define DW_MOST_VOCABULARY ((int64_t)INT32_MAX)
#define DW_MOST_CONTEXT ((int64_t)1 << 31)
#define DW_MOST_ROPE_FACTOR 1e6

/* Fill config from the checkpoint: context as stated, rope and local_rope without what the context implies (original_context 0
   where the checkpoint states none), window with dw_config_windows. */
dw_status dw_config_from_gguf(dw_config *config, const dw_checkpoint *checkpoint, dw_error *err);
dw_status dw_config_from_json(dw_config *config, const dw_checkpoint *checkpoint, dw_error *err);

/* config->window = [layers] zeros. */
dw_status dw_config_windows(dw_config *config, dw_error *err);

/* Frequencies are powers of the base: they must not grow, and yarn divides by its logarithm. */
int dw_config_is_rope_base(double base);
#define DW_ROPE_BASES "above 1 and up to 1e+30 is supported"

/* What Hugging Face calls an activation; DW_ACTIVATIONS for one that is not known. */
dw_activation dw_activation_named(dw_string name);
#define DW_ACTIVATION_NAMES "silu, gelu, gelu_new and gelu_pytorch_tanh"

#endif
