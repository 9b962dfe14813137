/* Where a checkpoint keeps its chat template. */
#ifndef DW_TOKENIZER_CHAT_TEMPLATE_H
#define DW_TOKENIZER_CHAT_TEMPLATE_H

#include "model/checkpoint.h"

/* The Jinja template: metadata key tokenizer.chat_template of a GGUF file; of a directory chat_template.jinja, else
   chat_template in tokenizer_config.json (of several, the one named "default"). *jinja (dw_free) has *length bytes; NULL when
   there is none. Local. */
dw_status dw_chat_template(const dw_checkpoint *checkpoint, char **jinja, int64_t *length, dw_error *err);

#endif
