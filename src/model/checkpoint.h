/* A model as it lies on disk: a GGUF file (or the parts of a split one), or a Hugging Face directory. */
#ifndef DW_MODEL_CHECKPOINT_H
#define DW_MODEL_CHECKPOINT_H

#include <jansson.h>

#include "model/gguf.h"
#include "model/safetensors.h"

typedef struct dw_checkpoint {
    char *path;
    dw_gguf *gguf;              /* NULL: a directory */
    json_t *config;             /* config.json of a directory, an object; else NULL */
    uint64_t config_hash;       /* of the bytes of config.json; 0: none */
    dw_safetensors safetensors; /* of a directory */
    const dw_tensors *tensors;  /* of either */
    const dw_file *files;       /* [file_count] that hold the tensors */
    int64_t file_count;
} dw_checkpoint;

/* Opens the files and checks their directories; reads no tensor (DW_FILE_READ: reads all bytes, but looks at none). */
dw_status dw_checkpoint_open(dw_checkpoint **out, const char *path, dw_file_way way, dw_error *err);
void dw_checkpoint_close(dw_checkpoint *checkpoint);

/* The JSON object of file `name` in a directory. *json = NULL when there is no such file and `required` is not set. DW_INPUT names the file,
   line and column when it is not a JSON object, and refuses duplicate keys. Free with json_decref. */
dw_status dw_checkpoint_json(const dw_checkpoint *checkpoint, const char *name, int required, json_t **json, dw_error *err);

/* "directory/name", DW_ALLOC'ed. */
dw_status dw_checkpoint_file(const dw_checkpoint *checkpoint, const char *name, char **path, dw_error *err);

#endif
