/* Writing results and errors. */
#ifndef DW_CLI_REPORT_H
#define DW_CLI_REPORT_H

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"
#include "decode/session.h"

/* Local. "dewpoint: PREFIXMESSAGE" as one line on stderr in one write; control characters are escaped. prefix: "", or "rank R on HOST: ". */
void dw_report_error(const char *prefix, const char *message);

/* Lets jansson allocate through base/memory.h. Before any other use of it. */
void dw_report_init(void);

/* Prints object, which it takes, as one line on stdout. NULL stands for an object that could not be built. */
dw_status dw_print_json(json_t *object, dw_error *err);

/* A JSON string; bytes that are not UTF-8 become U+FFFD. NULL without memory. */
json_t *dw_json_text(const char *bytes, int64_t length);

/* {"linear", "score", "reduce", "attend", "wait"}: seconds, divided by passes. */
json_t *dw_json_times(const dw_times *times, int64_t passes);

/* Flushes stdout and reports whether all that was written to it has arrived. */
dw_status dw_flush_output(dw_error *err);

/* "98.4 MB", for people; "unlimited" for INT64_MAX. */
typedef struct {
    char text[24];
} dw_size_text;
dw_size_text dw_size_of(int64_t bytes);

dw_times dw_times_since(const dw_times *start, const dw_times *end);

#endif
