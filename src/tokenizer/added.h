/* Added tokens: strings of a text that are tokens as they stand, found before anything else is done to the text around them. */
#ifndef DW_TOKENIZER_ADDED_H
#define DW_TOKENIZER_ADDED_H

#include "base/error.h"
#include "base/string.h"

typedef struct {
    dw_string text; /* first: see dw_string_compare */
    int32_t id;
    unsigned char is_control;
    unsigned char flags; /* DW_TOKEN_STRIPS_LEFT, DW_TOKEN_STRIPS_RIGHT */
} dw_added_token;

/* Sorted by text. Texts belong to somebody else. Read-only after dw_added_sort. */
typedef struct {
    dw_added_token *list;
    int64_t count, capacity;
} dw_added;

dw_status dw_added_put(dw_added *added, const dw_added_token *token, dw_error *err);
void dw_added_sort(dw_added *added);
void dw_added_free(dw_added *added);

/* The longest token that text begins with, control tokens only if control is set; NULL: none. */
const dw_added_token *dw_added_at(const dw_added *added, const char *text, int64_t length, int control);

#endif
