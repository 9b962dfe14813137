#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/json_file.h"

/* The length in front of the header, and the longest header that the format allows. */
enum { LENGTH_BYTES = 8, MAX_HEADER = 100000000 };

static const struct {
    const char *name;
    int bits; /* of a number */
    dw_type storage;
} types[] = {
    {"F32", 32, DW_F32},           {"F16", 16, DW_F16},        {"BF16", 16, DW_BF16},         {"BOOL", 8, DW_TYPE_COUNT},
    {"U8", 8, DW_TYPE_COUNT},      {"I8", 8, DW_TYPE_COUNT},   {"U16", 16, DW_TYPE_COUNT},    {"I16", 16, DW_TYPE_COUNT},
    {"U32", 32, DW_TYPE_COUNT},    {"I32", 32, DW_TYPE_COUNT}, {"U64", 64, DW_TYPE_COUNT},    {"I64", 64, DW_TYPE_COUNT},
    {"F64", 64, DW_TYPE_COUNT},    {"C64", 64, DW_TYPE_COUNT}, {"F8_E5M2", 8, DW_TYPE_COUNT}, {"F8_E4M3", 8, DW_TYPE_COUNT},
    {"F8_E8M0", 8, DW_TYPE_COUNT}, {"F4", 4, DW_TYPE_COUNT},   {"F6_E2M3", 6, DW_TYPE_COUNT}, {"F6_E3M2", 6, DW_TYPE_COUNT},
};
enum { TYPES = sizeof types / sizeof types[0] };

/* ---- one file ---- */

/* What the header says of a tensor, and the bytes of the file that it counts from. */
typedef struct {
    const dw_file *file;
    const json_t *value;
    int64_t data_bytes;
    dw_error *err;
    dw_printable_text name;
} entry;

#define REFUSE(e, ...) DW_REFUSE((e)->file->path, (e)->err, __VA_ARGS__)

static dw_status read_type(const entry *e, dw_tensor *tensor, int *bits)
{
    const char *name = json_string_value(json_object_get(e->value, "dtype"));
    if (name == NULL) return REFUSE(e, "damaged: tensor %s has no dtype", e->name.text);
    snprintf(tensor->type, sizeof tensor->type, "%.11s", dw_printable(dw_string_of(name)).text);
    tensor->storage = DW_TYPE_COUNT;
    *bits = 0;
    for (int t = 0; t < TYPES; t++) {
        if (strcmp(types[t].name, name) != 0) continue;
        tensor->storage = types[t].storage;
        *bits = types[t].bits;
    }
    return DW_OK;
}

/* The format has the slowest dimension first. */
static dw_status read_shape(const entry *e, dw_tensor *tensor)
{
    const json_t *shape = json_object_get(e->value, "shape");
    const size_t dims = json_array_size(shape);
    if (!json_is_array(shape)) return REFUSE(e, "damaged: tensor %s has no shape", e->name.text);
    if (dims > DW_TENSOR_DIMS) {
        return REFUSE(e, "tensor %s has %lld dimensions; 0 to %d are supported", e->name.text, (long long)dims, DW_TENSOR_DIMS);
    }
    tensor->dims = (int)dims;
    for (size_t d = 0; d < dims; d++) {
        const json_t *size = json_array_get(shape, d);
        const int64_t value = json_integer_value(size);
        if (!json_is_integer(size) || value < 0 || __builtin_mul_overflow(tensor->elements, value, &tensor->elements)) {
            return REFUSE(e,
                          "damaged: tensor %s has an impossible shape; dimensions are integers from 0, and their product is "
                          "below 2^63",
                          e->name.text);
        }
        tensor->size[dims - 1 - d] = value;
    }
    return DW_OK;
}

/* bits: of a number; 0: unknown */
static dw_status read_place(const entry *e, dw_tensor *tensor, int bits)
{
    const json_t *offsets = json_object_get(e->value, "data_offsets");
    const json_t *first = json_array_get(offsets, 0);
    const json_t *last = json_array_get(offsets, 1);
    const int64_t begin = json_integer_value(first);
    const int64_t end = json_integer_value(last);
    int64_t needed;
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) || begin < 0 || end < begin) {
        return REFUSE(e, "damaged: tensor %s has no data_offsets [begin, end] with 0 <= begin <= end", e->name.text);
    }
    if (end > e->data_bytes) {
        return REFUSE(e, "truncated or damaged: tensor %s ends at byte %lld of the data, but the file has %lld", e->name.text,
                      (long long)end, (long long)e->data_bytes);
    }
    tensor->bytes = end - begin;
    tensor->data = e->file->data + e->file->header_bytes + begin;
    if (bits == 0) return DW_OK;
    if (__builtin_mul_overflow(tensor->elements, (int64_t)bits, &needed) || needed % 8 != 0 || needed / 8 != tensor->bytes) {
        return REFUSE(e, "damaged: tensor %s has %lld bytes, which are not those of %lld numbers of type %s", e->name.text,
                      (long long)tensor->bytes, (long long)tensor->elements, tensor->type);
    }
    return DW_OK;
}

/* tensor->name is set. */
static dw_status read_tensor(dw_tensor *tensor, const json_t *value, int64_t data_bytes, dw_error *err)
{
    const entry e = {tensor->file, value, data_bytes, err, dw_printable(tensor->name)};
    int bits;
    if (!json_is_object(value)) return REFUSE(&e, "damaged: tensor %s is no JSON object", e.name.text);
    DW_TRY(read_type(&e, tensor, &bits));
    DW_TRY(read_shape(&e, tensor));
    return read_place(&e, tensor, bits);
}

static int by_place(const void *a, const void *b)
{
    const dw_tensor *x = a;
    const dw_tensor *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Every byte of the data must belong to one tensor. Leaves the tensors in the order of their places. */
static dw_status check_places(const dw_file *file, dw_tensor *list, int64_t count, dw_error *err)
{
    const uint8_t *at = file->data + file->header_bytes;
    const uint8_t *end = file->data + file->bytes;
    if (count > 0) qsort(list, (size_t)count, sizeof *list, by_place);
    for (int64_t i = 0; i < count; i++) {
        if (list[i].data < at) {
            const dw_printable_text before = dw_printable(list[i - 1].name);
            return DW_REFUSE(file->path, err, "damaged: tensors %s and %s overlap", before.text,
                             dw_printable(list[i].name).text);
        }
        if (list[i].data > at) {
            return DW_REFUSE(file->path, err, "damaged: %lld bytes in front of tensor %s belong to no tensor",
                             (long long)(list[i].data - at), dw_printable(list[i].name).text);
        }
        at += list[i].bytes;
    }
    if (at == end) return DW_OK;
    return DW_REFUSE(file->path, err, "damaged: %lld bytes at the end of the file belong to no tensor", (long long)(end - at));
}

/* "__metadata__": text by text. */
static dw_status check_metadata(const dw_file *file, json_t *metadata, dw_error *err)
{
    const char *key;
    json_t *value;
    int fits = json_is_object(metadata);
    json_object_foreach(metadata, key, value) {
        fits = fits && json_is_string(value);
    }
    return fits ? DW_OK : DW_REFUSE(file->path, err, "damaged: __metadata__ is no JSON object of strings");
}

/* *header (json_decref) = the JSON at the start of the file. */
static dw_status parse_header(dw_file *file, json_t **header, dw_error *err)
{
    uint64_t length;
    *header = NULL;
    if (file->bytes == 0) return DW_REFUSE(file->path, err, "is empty; expected a safetensors file");
    if (file->bytes <= LENGTH_BYTES) {
        return DW_REFUSE(file->path, err, "not a safetensors file, or truncated: %lld bytes", (long long)file->bytes);
    }
    memcpy(&length, file->data, LENGTH_BYTES);
    if (length > MAX_HEADER || length > (uint64_t)(file->bytes - LENGTH_BYTES)) {
        return DW_REFUSE(file->path, err,
                         "not a safetensors file, or truncated: it states a header of %llu bytes, but has %lld bytes; headers "
                         "have at most %d",
                         (unsigned long long)length, (long long)file->bytes, MAX_HEADER);
    }
    if (length == 0 || file->data[LENGTH_BYTES] != '{') {
        return DW_REFUSE(file->path, err, "not a safetensors file: no JSON object behind the first %d bytes", LENGTH_BYTES);
    }
    file->header_bytes = LENGTH_BYTES + (int64_t)length;
    return dw_json_parse(header, file->path, "header: ", file->data + LENGTH_BYTES, (int64_t)length, err);
}

/* Appends the tensors of a file; their names lie in the header. */
static dw_status read_header(dw_tensors *tensors, const dw_file *file, json_t *header, dw_error *err)
{
    const int64_t first = tensors->count;
    const char *name;
    json_t *value;
    DW_TRY(DW_GROW(&tensors->list, &tensors->capacity, first + (int64_t)json_object_size(header), "tensors", err));
    json_object_foreach(header, name, value) {
        dw_tensor *tensor = &tensors->list[tensors->count];
        if (strcmp(name, "__metadata__") == 0) {
            DW_TRY(check_metadata(file, value, err));
            continue;
        }
        *tensor = (dw_tensor){.name = dw_string_of(name), .size = {1, 1, 1, 1}, .elements = 1, .file = file};
        if (tensor->name.length == 0) return DW_REFUSE(file->path, err, "damaged: a tensor has no name");
        DW_TRY(read_tensor(tensor, value, file->bytes - file->header_bytes, err));
        tensors->count++;
    }
    return check_places(file, tensors->list + first, tensors->count - first, err);
}

/* safetensors->files has room for it. */
static dw_status open_file(dw_safetensors *safetensors, const char *path, dw_file_way way, dw_error *err)
{
    dw_file *file = &safetensors->files[safetensors->count];
    json_t *header;
    DW_TRY(dw_file_open(file, path, "a safetensors file", way, err));
    safetensors->count++;
    DW_TRY(parse_header(file, &header, err));
    if (json_array_append_new(safetensors->headers, header) != 0) {
        return dw_fail(err, DW_RESOURCE, "not enough memory for the header of %s", path);
    }
    return read_header(&safetensors->tensors, file, header, err);
}

/* ---- an index of files ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A file name of an index must not lead out of the directory. */
static int is_plain(const char *name)
{
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* names: [tensors of the map], *count of them become the files, each once, in the order of their bytes. */
static dw_status list_files(const char *index, json_t *map, const char **names, int64_t *count, dw_error *err)
{
    const char *tensor;
    json_t *value;
    int64_t n = 0;
    *count = 0;
    json_object_foreach(map, tensor, value) {
        const char *name = json_string_value(value);
        if (name == NULL || !is_plain(name)) {
            const dw_printable_text shown = dw_printable(dw_string_of(tensor));
            return DW_REFUSE(index, err, "weight_map names '%s' for tensor %s; it must be a file of the same directory",
                             name == NULL ? "" : dw_printable(dw_string_of(name)).text, shown.text);
        }
        names[n++] = name;
    }
    if (n == 0) return DW_REFUSE(index, err, "weight_map is missing or names no tensor");
    qsort(names, (size_t)n, sizeof *names, by_text);
    for (int64_t i = 0; i < n; i++) {
        if (*count == 0 || strcmp(names[*count - 1], names[i]) != 0) names[(*count)++] = names[i];
    }
    return DW_OK;
}

static const char *file_name(const dw_file *file)
{
    const char *slash = strrchr(file->path, '/');
    return slash == NULL ? file->path : slash + 1;
}

/* The tensors of the files must be those of the map, each where it says. */
static dw_status check_index(const char *index, json_t *map, const dw_tensors *tensors, dw_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value) {
        const dw_tensor *tensor = dw_tensors_find(tensors, name);
        const dw_printable_text shown = dw_printable(dw_string_of(name));
        const char *file = json_string_value(value);
        if (tensor == NULL) return DW_REFUSE(index, err, "tensor %s is not in %s, nor in another file", shown.text, file);
        if (strcmp(file_name(tensor->file), file) != 0) {
            return DW_REFUSE(index, err, "tensor %s is in %s, not in %s", shown.text, file_name(tensor->file), file);
        }
    }
    /* Each of the map is found, and names are unique: if there are as many, they are the same. */
    for (int64_t i = 0; tensors->count > (int64_t)json_object_size(map) && i < tensors->count; i++) {
        const dw_tensor *tensor = &tensors->list[i];
        if (json_object_getn(map, tensor->name.data, (size_t)tensor->name.length) != NULL) continue;
        return DW_REFUSE(index, err, "tensor %s of %s is missing in weight_map", dw_printable(tensor->name).text,
                         file_name(tensor->file));
    }
    return DW_OK;
}

static dw_status open_listed(dw_safetensors *safetensors, const char *directory, const char *const *names, int64_t count,
                             dw_file_way way, dw_error *err)
{
    DW_TRY(DW_ALLOC(&safetensors->files, count, "safetensors files", err));
    for (int64_t i = 0; i < count; i++) {
        char *path;
        dw_status status;
        DW_TRY(dw_path_join(&path, directory, names[i], err));
        status = open_file(safetensors, path, way, err);
        dw_free(path);
        DW_TRY(status);
    }
    return dw_tensors_sort(&safetensors->tensors, err);
}

static dw_status open_indexed(dw_safetensors *safetensors, const char *directory, const char *index, dw_file_way way,
                              dw_error *err)
{
    json_t *json;
    json_t *map;
    const char **names = NULL;
    int64_t count;
    dw_status status;
    DW_TRY(dw_json_read(&json, index, NULL, err));
    map = json_object_get(json, "weight_map");
    DW_TRY_GOTO(status, DW_ALLOC(&names, (int64_t)json_object_size(map), "names of files", err), done);
    DW_TRY_GOTO(status, list_files(index, map, names, &count, err), done);
    DW_TRY_GOTO(status, open_listed(safetensors, directory, names, count, way, err), done);
    status = check_index(index, map, &safetensors->tensors, err);
done:
    dw_free(names);
    json_decref(json);
    return status;
}

/* ---- the directory ---- */

static dw_status open_directory(dw_safetensors *safetensors, const char *directory, dw_file_way way, dw_error *err)
{
    const char *const single = "model.safetensors";
    char *index = NULL;
    char *path = NULL;
    dw_status status;
    safetensors->tensors.path = directory;
    safetensors->headers = json_array();
    if (safetensors->headers == NULL) return dw_fail(err, DW_RESOURCE, "not enough memory for safetensors headers");
    DW_TRY_GOTO(status, dw_path_join(&path, directory, single, err), done);
    DW_TRY_GOTO(status, dw_path_join(&index, directory, "model.safetensors.index.json", err), done);
    if (access(path, F_OK) == 0) {
        status = open_listed(safetensors, directory, &single, 1, way, err);
    } else if (access(index, F_OK) == 0) {
        status = open_indexed(safetensors, directory, index, way, err);
    } else {
        status = DW_REFUSE(directory, err,
                           "has neither model.safetensors nor model.safetensors.index.json; other formats of "
                           "weights are not read");
    }
done:
    dw_free(path);
    dw_free(index);
    return status;
}

dw_status dw_safetensors_open(dw_safetensors *out, const char *directory, dw_file_way way, dw_error *err)
{
    dw_status status;
    *out = (dw_safetensors){0};
    status = open_directory(out, directory, way, err);
    if (status != DW_OK) dw_safetensors_close(out);
    return status;
}

void dw_safetensors_close(dw_safetensors *safetensors)
{
    for (int64_t i = 0; i < safetensors->count; i++) dw_file_close(&safetensors->files[i]);
    dw_free(safetensors->files);
    dw_tensors_free(&safetensors->tensors);
    json_decref(safetensors->headers);
    *safetensors = (dw_safetensors){0};
}
