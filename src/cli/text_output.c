#define _GNU_SOURCE /* memmem */
#include "cli/text_output.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/report.h"

/* Offset of the first stop string that ends behind `known`, where text had ended before; -1: none. */
static int64_t find_stop(const dw_text_output *output, int64_t known)
{
    int64_t first = -1;
    for (int i = 0; i < output->stop_count; i++) {
        const int64_t length = (int64_t)strlen(output->stops[i]);
        const int64_t from = known < length ? 0 : known - length + 1;
        const char *found = NULL;
        if (from < output->length) {
            found = memmem(output->text + from, (size_t)(output->length - from), output->stops[i], (size_t)length);
        }
        if (found != NULL && (first < 0 || found - output->text < first)) first = found - output->text;
    }
    return first;
}

/* Bytes at the end of the text that may be the beginning of a stop string. */
static int64_t possible_stop(const dw_text_output *output)
{
    int64_t longest = 0;
    for (int i = 0; i < output->stop_count; i++) {
        int64_t length = (int64_t)strlen(output->stops[i]) - 1;
        if (length > output->length) length = output->length;
        for (; length > longest; length--) {
            if (memcmp(output->text + output->length - length, output->stops[i], (size_t)length) == 0) longest = length;
        }
    }
    return longest;
}

static dw_status show(dw_text_output *output, int64_t until, dw_error *err)
{
    if (!output->print || until <= output->shown) return DW_OK;
    fwrite(output->text + output->shown, 1, (size_t)(until - output->shown), stdout);
    output->shown = until;
    return dw_flush_output(err);
}

dw_status dw_text_output_add(dw_text_output *output, dw_string bytes, int last, dw_error *err)
{
    const int64_t known = output->length;
    int64_t stop;
    if (output->stopped) return DW_OK;
    DW_TRY(
        dw_utf8_feed(&output->stream, bytes.data, bytes.length, last, &output->text, &output->length, &output->capacity, err));
    stop = find_stop(output, known);
    if (stop >= 0) {
        output->stopped = 1;
        output->length = stop;
    }
    return show(output, output->length - (output->stopped || last ? 0 : possible_stop(output)), err);
}

void dw_text_output_free(dw_text_output *output)
{
    dw_free(output->text);
}
