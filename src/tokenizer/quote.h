/* Strings of a file in error messages: they may hold any bytes and be of any length. */
#ifndef DW_TOKENIZER_QUOTE_H
#define DW_TOKENIZER_QUOTE_H

#include "model/gguf.h"

enum { DW_QUOTE_SIZE = 72 };

/* "text" in quotes, bytes that are not printable ASCII as ?, shortened with ... ; returns buffer. */
static inline const char *dw_quote(dw_string text, char buffer[DW_QUOTE_SIZE])
{
    const int64_t shown = text.length < 64 ? text.length : 61;
    char *p = buffer;
    *p++ = '"';
    for (int64_t i = 0; i < shown; i++) *p++ = text.data[i] >= ' ' && text.data[i] <= '~' ? text.data[i] : '?';
    for (int i = 0; shown < text.length && i < 3; i++) *p++ = '.';
    *p++ = '"';
    *p = '\0';
    return buffer;
}

#endif
