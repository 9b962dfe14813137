/* JSON in files that come with models. */
#ifndef DW_MODEL_JSON_FILE_H
#define DW_MODEL_JSON_FILE_H

#include <jansson.h>

#include "model/file.h"

/* Lets jansson allocate through base/memory.h. Once, before any other use of it. */
void dw_json_init(void);

/* *json (json_decref) = the object that `bytes` at text hold. DW_INPUT names the file, what (unless "") and the place when it is
   not JSON, no object, or an object has a key twice. */
dw_status dw_json_parse(json_t **json, const char *path, const char *what, const void *text, int64_t bytes, dw_error *err);

/* The same of a whole file. hash (may be NULL): of its bytes. */
dw_status dw_json_read(json_t **json, const char *path, uint64_t *hash, dw_error *err);

#endif
