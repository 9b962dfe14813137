#include "model/json_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/string.h"

/* jansson's parser goes on without the bytes that it had no memory for, and may then read behind what it has. So it gets memory
   even where it must not, and what it made is thrown away afterwards. */
static _Thread_local int is_parsing;
static _Thread_local int has_failed;

static void *allocate(size_t bytes)
{
    void *pointer;
    if (dw_alloc_bytes(&pointer, (int64_t)bytes, 1, "JSON", NULL) == DW_OK || !is_parsing) return pointer;
    has_failed = 1;
    return malloc(bytes);
}

void dw_json_init(void)
{
    json_set_alloc_funcs(allocate, dw_free);
}

dw_status dw_json_parse(json_t **json, const char *path, const char *what, const void *text, int64_t bytes, dw_error *err)
{
    json_error_t error;
    json_t *read;
    int is_value;
    memset(&error, 0, sizeof error);
    *json = NULL;
    has_failed = 0;
    is_parsing = 1;
    read = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    is_parsing = 0;
    if (!has_failed && json_is_object(read)) {
        *json = read;
        return DW_OK;
    }
    is_value = read != NULL;
    json_decref(read);
    /* Without an error and without a value there was no memory. */
    if (has_failed || (!is_value && error.text[0] == '\0')) {
        return dw_fail(err, DW_RESOURCE, "not enough memory for the JSON of %s", path);
    }
    if (is_value) return DW_REFUSE(path, err, "%sis no JSON object", what);
    return DW_REFUSE(path, err, "%sline %d, column %d: %s", what, error.line, error.column,
                     dw_printable(dw_string_of(error.text)).text);
}

dw_status dw_json_read(json_t **json, const char *path, uint64_t *hash, dw_error *err)
{
    dw_file file;
    dw_status status;
    *json = NULL;
    DW_TRY(dw_file_open(&file, path, "a JSON file", DW_FILE_MAP, err));
    if (hash != NULL) *hash = dw_hash(0, file.data, file.bytes);
    status = file.bytes == 0 ? DW_REFUSE(path, err, "is empty; expected a JSON file")
                             : dw_json_parse(json, path, "", file.data, file.bytes, err);
    dw_file_close(&file);
    return status;
}
