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

/* Sorted by text. Texts (not empty, valid UTF-8) belong to somebody else. Read-only after dw_added_sort. */
typedef struct {
    dw_added_token *list;
    int64_t count, capacity;
    int64_t first[257]; /* those that begin with byte b are list[first[b]] up to before list[first[b + 1]] */
} dw_added;

dw_status dw_added_put(dw_added *added, const dw_added_token *token, dw_error *err);
void dw_added_sort(dw_added *added);
void dw_added_free(dw_added *added);

static inline int dw_added_begin_with(const dw_added *added, char byte)
{
    const unsigned char b = (unsigned char)byte;
    return added->first[b] < added->first[b + 1];
}

/* The longest token that text (length >= 1) begins with; NULL: none. */
const dw_added_token *dw_added_at(const dw_added *added, const char *text, int64_t length);

/* Bytes of the white space character (Unicode's White_Space) that text begins or ends with; 0: it is another one, or none. */
int64_t dw_white_space_at(const char *text, int64_t length);
int64_t dw_white_space_before(const char *text, int64_t length);

#endif
