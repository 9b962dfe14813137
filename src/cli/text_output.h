/* The text of generated tokens: whole characters only, cut at the first stop string, printed as it comes. */
#ifndef DW_CLI_TEXT_OUTPUT_H
#define DW_CLI_TEXT_OUTPUT_H

#include "tokenizer/tokenizer.h"

/* Zero but for the first group. Free with dw_text_output_free. */
typedef struct {
    const char *const *stops; /* not empty strings, borrowed */
    int stop_count;
    int print; /* write to stdout, flushed, as soon as no stop string can begin there any more */

    char *text; /* all text so far; the stop string and what follows it is cut off */
    int64_t length;
    int64_t shown; /* bytes of it that are printed */
    int stopped;   /* a stop string has come; nothing is added any more */

    int64_t capacity;
    dw_utf8_stream stream;
} dw_text_output;

/* Adds the bytes of a token. last: no more will follow. */
dw_status dw_text_output_add(dw_text_output *output, dw_string bytes, int last, dw_error *err);

void dw_text_output_free(dw_text_output *output);

#endif
