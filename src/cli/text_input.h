/* The prompt: --prompt, --prompt-file or --prompt-ids. Errors are DW_INPUT and name the option or the file. */
#ifndef DW_CLI_TEXT_INPUT_H
#define DW_CLI_TEXT_INPUT_H

#include "cli/options.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

/* The text of --prompt or --prompt-file, valid UTF-8 (with --lossy: made so). *text (dw_free) has *length bytes.
   Line ends are kept; a warning on stderr tells of CR LF (not with --quiet). */
dw_status dw_read_text(const dw_options *options, char **text, int64_t *length, dw_error *err);

/* The ids of --prompt-ids, each below vocabulary. *ids (dw_free). */
dw_status dw_read_ids(const dw_options *options, int64_t vocabulary, int32_t **ids, int64_t *count, dw_error *err);

/* The prompt of a model as ids, BOS in front of a text if the model wants one. At least one. tokenizer may be NULL. With --chat
   the text is written as the model's chat template has it; stderr says which format that is (not with --quiet). */
dw_status dw_read_prompt(const dw_options *options, const dw_model *model, const dw_tokenizer *tokenizer, int32_t **ids,
                         int64_t *count, dw_error *err);

/* "--prompt", the name of the file, or "stdin": the source of the prompt for messages. */
const char *dw_prompt_source(const dw_options *options);

#endif
