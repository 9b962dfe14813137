/* Chat formats: how a conversation is written for a model. They are recognised from the statements of the model's template,
   never guessed: an unknown template is refused. */
#ifndef DW_TOKENIZER_CHAT_H
#define DW_TOKENIZER_CHAT_H

#include "base/error.h"
#include "base/string.h"

typedef struct dw_chat_format dw_chat_format;

/* The format of a Jinja template (tokenizer.chat_template, tokenizer_config.json or chat_template.jinja), which is only read
   here. DW_INPUT: none that is known; says which are, and that a raw prompt (without --chat) works. */
dw_status dw_chat_recognise(dw_chat_format **format, dw_string jinja, dw_error *err);
void dw_chat_free(dw_chat_format *format);

/* "ChatML", "Llama 2", "Llama 3", "Mistral", "Zephyr", "Gemma". */
const char *dw_chat_name(const dw_chat_format *format);

/* A part of the text. What user and system say is data: markup in it is plain text. */
typedef struct {
    dw_string text;
    int is_markup;
} dw_chat_piece;

enum { DW_CHAT_PIECES = 12 };

/* One user turn up to where the model answers, without BOS. system NULL: what the template does without one (its default system
   text where it states one). *count of pieces, their texts those of the format and of the caller. A template that asks for the
   date of the day gets the one that it states for where there is no clock: the same prompt gives the same tokens every day.
   DW_INPUT when the format has no place for a system text, or its default one can not be told (it holds the day's date). */
dw_status dw_chat_render(const dw_chat_format *format, const char *system, dw_string user, dw_chat_piece pieces[DW_CHAT_PIECES],
                         int64_t *count, dw_error *err);

#endif
