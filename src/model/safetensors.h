/* Weights of a Hugging Face directory: model.safetensors, or the files that model.safetensors.index.json names
   (https://huggingface.co/docs/safetensors: u64 length of a JSON header, the header, the data). */
#ifndef DW_MODEL_SAFETENSORS_H
#define DW_MODEL_SAFETENSORS_H

#include <jansson.h>

#include "model/tensors.h"

typedef struct {
    dw_file *files; /* [count] */
    int64_t count;
    dw_tensors tensors;
    json_t *headers; /* [count] of the files; the tensors' names lie in them */
} dw_safetensors;

/* Opens all files of the directory; model.safetensors goes before an index. A tensor of the index must lie in the file that the
   index names, a tensor that the index does not name is an error too. Every offset is checked against its file, every size against
   type and shape; overlaps and bytes that belong to no tensor are errors. Types that Dewpoint does not compute with are listed. */
dw_status dw_safetensors_open(dw_safetensors *out, const char *directory, dw_file_way way, dw_error *err);
void dw_safetensors_close(dw_safetensors *safetensors);

#endif
