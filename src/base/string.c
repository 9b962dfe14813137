#include "base/string.h"

#include <stdio.h>

dw_printable_text dw_printable(dw_string s)
{
    dw_printable_text out;
    const int64_t most = (int64_t)sizeof out.text - 4;
    int64_t n = 0;
    for (; n < s.length && n < most; n++) out.text[n] = s.data[n] >= ' ' && s.data[n] <= '~' ? s.data[n] : '?';
    snprintf(out.text + n, sizeof out.text - (size_t)n, "%s", n < s.length ? "..." : "");
    return out;
}

int dw_string_compare(const void *a, const void *b)
{
    const dw_string *x = a;
    const dw_string *y = b;
    const int64_t shorter = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->data, y->data, (size_t)shorter);
    if (order != 0) return order;
    return (x->length > y->length) - (x->length < y->length);
}
