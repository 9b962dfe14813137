/* Strings that belong to somebody else, as files hold them: any bytes, not terminated. */
#ifndef DW_BASE_STRING_H
#define DW_BASE_STRING_H

#include <stdint.h>
#include <string.h>

typedef struct {
    const char *data;
    int64_t length;
} dw_string;

/* The text of a C string. */
static inline dw_string dw_string_of(const char *text)
{
    return (dw_string){text, (int64_t)strlen(text)};
}

static inline int dw_string_is(dw_string s, const char *text)
{
    return s.length == (int64_t)strlen(text) && memcmp(s.data, text, (size_t)s.length) == 0;
}

/* A string as messages show it: nothing but printable ASCII, '?' for the rest, "..." after 80 characters. */
typedef struct {
    char text[84];
} dw_printable_text;
dw_printable_text dw_printable(dw_string s);

/* Orders strings, and structures that begin with one, by their bytes (for qsort and bsearch). */
int dw_string_compare(const void *a, const void *b);

#endif
