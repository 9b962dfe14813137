#include "cli/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/json_file.h"
#include "tokenizer/tokenizer.h"

/* Appends text with control characters (C0, DEL, and C1 in UTF-8) as \xNN. */
static void append_escaped(char *line, int64_t capacity, int64_t *length, const char *text)
{
    for (const char *c = text; *c != '\0' && *length + 5 < capacity; c++) {
        const unsigned char byte = (unsigned char)*c;
        const int c1_begins = byte == 0xC2 && (unsigned char)c[1] >= 0x80 && (unsigned char)c[1] < 0xA0;
        const int c1_ends = byte >= 0x80 && byte < 0xA0 && c > text && (unsigned char)c[-1] == 0xC2;
        if (byte < 0x20 || byte == 0x7F || c1_begins || c1_ends) {
            *length += snprintf(line + *length, (size_t)(capacity - *length), "\\x%02X", byte);
        } else {
            line[(*length)++] = *c;
        }
    }
}

void dw_report_error(const char *prefix, const char *message)
{
    char line[4096] = "dewpoint: ";
    int64_t length = (int64_t)strlen(line);
    append_escaped(line, (int64_t)sizeof line, &length, prefix);
    append_escaped(line, (int64_t)sizeof line, &length, message);
    line[length++] = '\n';
    fflush(stderr);
    for (int64_t done = 0; done < length;) {
        const ssize_t written = write(STDERR_FILENO, line + done, (size_t)(length - done));
        if (written < 0 && errno != EINTR) return;
        if (written > 0) done += written;
    }
}

void dw_report_init(void)
{
    dw_json_init();
}

dw_status dw_flush_output(dw_error *err)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return DW_OK;
    return dw_fail(err, errno == ENOSPC ? DW_RESOURCE : DW_RUNTIME, "can not write to standard output: %s",
                   errno == 0 ? "an earlier write failed" : strerror(errno));
}

/* What json_dump_callback writes to. jansson 2.14 does not look at every result of its writer (keys), so failures stay. */
typedef struct {
    char *text;
    int64_t length;
    int64_t capacity;
    dw_status status;
} json_buffer;

static int append_json(const char *bytes, size_t count, void *data)
{
    json_buffer *buffer = data;
    const int64_t length = buffer->length + (int64_t)count;
    if (buffer->status == DW_OK) buffer->status = DW_GROW(&buffer->text, &buffer->capacity, length, "JSON", NULL);
    if (buffer->status != DW_OK) return -1;
    memcpy(buffer->text + buffer->length, bytes, count);
    buffer->length = length;
    return 0;
}

dw_status dw_print_json(json_t *object, dw_error *err)
{
    json_buffer buffer = {.status = DW_OK};
    int failed = object == NULL || json_dump_callback(object, append_json, &buffer, JSON_REAL_PRECISION(17)) != 0;
    failed |= append_json("\n", 1, &buffer) != 0;
    json_decref(object);
    if (!failed) fwrite(buffer.text, 1, (size_t)buffer.length, stdout);
    dw_free(buffer.text);
    if (failed) return dw_fail(err, DW_RESOURCE, "not enough memory for the JSON output");
    return dw_flush_output(err);
}

json_t *dw_json_text(const char *bytes, int64_t length)
{
    dw_utf8_stream stream = {.held_count = 0};
    json_t *value = NULL;
    char *text = NULL;
    int64_t used = 0;
    int64_t capacity = 0;
    if (dw_utf8_feed(&stream, bytes, length, 1, &text, &used, &capacity, NULL) == DW_OK) {
        value = json_stringn_nocheck(text == NULL ? "" : text, (size_t)used);
    }
    dw_free(text);
    return value;
}

json_t *dw_json_times(const dw_times *times, int64_t passes)
{
    const double n = passes > 0 ? (double)passes : 1;
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "linear", times->linear / n, "score", times->score / n, "reduce",
                     times->reduce / n, "attend", times->attend / n, "wait", times->wait / n);
}

dw_size_text dw_size_of(int64_t bytes)
{
    const double mb = (double)bytes / 1e6;
    dw_size_text size = {"unlimited"};
    if (bytes == INT64_MAX) return size;
    snprintf(size.text, sizeof size.text, mb < 1000 ? "%.1f MB" : "%.1f GB", mb < 1000 ? mb : mb / 1000);
    return size;
}

dw_times dw_times_since(const dw_times *start, const dw_times *end)
{
    return (dw_times){
        .linear = end->linear - start->linear,
        .score = end->score - start->score,
        .reduce = end->reduce - start->reduce,
        .attend = end->attend - start->attend,
        .wait = end->wait - start->wait,
    };
}
