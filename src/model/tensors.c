#include "model/tensors.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

void dw_tensors_free(dw_tensors *tensors)
{
    dw_free(tensors->list);
    *tensors = (dw_tensors){0};
}

dw_status dw_tensors_sort(dw_tensors *tensors, dw_error *err)
{
    if (tensors->count > 0) qsort(tensors->list, (size_t)tensors->count, sizeof *tensors->list, dw_string_compare);
    for (int64_t i = 1; i < tensors->count; i++) {
        const dw_tensor *a = &tensors->list[i - 1];
        const dw_tensor *b = &tensors->list[i];
        const dw_printable_text name = dw_printable(a->name);
        if (dw_string_compare(a, b) != 0) continue;
        if (a->file == b->file) return DW_REFUSE(a->file->path, err, "damaged: tensor %s occurs twice", name.text);
        return DW_REFUSE(tensors->path, err, "tensor %s occurs twice, in %s and %s", name.text, a->file->path, b->file->path);
    }
    return DW_OK;
}

const dw_tensor *dw_tensors_find(const dw_tensors *tensors, const char *name)
{
    const dw_string key = dw_string_of(name);
    if (tensors->count == 0) return NULL;
    return bsearch(&key, tensors->list, (size_t)tensors->count, sizeof *tensors->list, dw_string_compare);
}

/* A tensor without a number of its type is not from a GGUF file. */
static dw_status refuse_type(const dw_tensor *tensor, const char *name, dw_error *err)
{
    char supported[128] = "";
    if (tensor->type_id == 0) {
        return DW_REFUSE(tensor->file->path, err, "tensor %s has type %s, which is not supported; supported: F32, F16, BF16",
                         name, tensor->type);
    }
    for (int t = 0; t < DW_TYPE_COUNT; t++) {
        const size_t used = strlen(supported);
        snprintf(supported + used, sizeof supported - used, "%s%s", t > 0 ? ", " : "", dw_types[t].name);
    }
    return DW_REFUSE(tensor->file->path, err, "tensor %s has type %s (%u), which is not supported; supported: %s", name,
                     tensor->type[0] == '\0' ? "unknown" : tensor->type, tensor->type_id, supported);
}

/* "any" for -1 */
static const char *size_text(char text[24], int64_t size)
{
    if (size < 0) return "any";
    snprintf(text, 24, "%lld", (long long)size);
    return text;
}

dw_status dw_tensors_matrix(const dw_tensors *tensors, const char *name, int64_t outputs, int64_t inputs, dw_matrix *value,
                            int *found, dw_error *err)
{
    const dw_tensor *t = dw_tensors_find(tensors, name);
    char rows[24];
    char columns[24];
    if (found != NULL) *found = t != NULL;
    if (t == NULL) return found != NULL ? DW_OK : DW_REFUSE(tensors->path, err, "tensor %s is missing", name);
    if (t->dims == 0 || t->size[2] != 1 || t->size[3] != 1) {
        return DW_REFUSE(t->file->path, err, "tensor %s has %d dimensions; expected a matrix", name, t->dims);
    }
    if ((outputs >= 0 && outputs != t->size[1]) || (inputs >= 0 && inputs != t->size[0])) {
        return DW_REFUSE(t->file->path, err, "tensor %s has %lld rows of %lld numbers; expected %s rows of %s", name,
                         (long long)t->size[1], (long long)t->size[0], size_text(rows, outputs), size_text(columns, inputs));
    }
    if (t->elements == 0) return DW_REFUSE(t->file->path, err, "tensor %s is empty", name);
    if (t->storage == DW_TYPE_COUNT) return refuse_type(t, name, err);
    *value = (dw_matrix){t->storage, t->size[1], t->size[0], t->data};
    return DW_OK;
}
