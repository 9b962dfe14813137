#include "model/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/integers.h"
#include "base/memory.h"
#include "model/ggml_type.h"
#include "model/gguf_directory.h"

/* Smallest entries that the format allows bound every count by the bytes that are left. */
enum {
    MIN_ENTRY = 8 + 1 + 4 + 1,          /* key of one byte, kind, value of one byte */
    MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8, /* name of one byte, number of dimensions, one of them, type, offset */
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 30
};

/* A cursor over a file. */
typedef struct {
    const dw_file *file;
    const uint8_t *data;
    int64_t size;
    int64_t at;
    const char *path;
    char where[128]; /* what is being read, for messages */
    dw_error *err;
} reader;

#define REFUSE(r, ...) DW_REFUSE((r)->path, (r)->err, __VA_ARGS__)

int64_t dw_gguf_kind_bytes(uint32_t kind)
{
    static const int bytes[KIND_COUNT] = {
        [KIND_U8] = 1,  [KIND_I8] = 1,   [KIND_U16] = 2, [KIND_I16] = 2, [KIND_U32] = 4, [KIND_I32] = 4,
        [KIND_F32] = 4, [KIND_BOOL] = 1, [KIND_U64] = 8, [KIND_I64] = 8, [KIND_F64] = 8,
    };
    return kind < KIND_COUNT ? bytes[kind] : 0;
}

/* ---- reading ---- */

/* *out = count elements of size bytes at the cursor, which moves behind them. */
static dw_status take(reader *r, uint64_t count, int64_t size, const uint8_t **out)
{
    const int64_t left = r->size - r->at;
    if (count > (uint64_t)(left / size)) {
        return REFUSE(r, "truncated or damaged in %s: %llu x %lld bytes at offset %lld, but the file has %lld", r->where,
                      (unsigned long long)count, (long long)size, (long long)r->at, (long long)r->size);
    }
    *out = r->data + r->at;
    r->at += (int64_t)count * size;
    return DW_OK;
}

static dw_status take_u32(reader *r, uint32_t *value)
{
    const uint8_t *p;
    DW_TRY(take(r, 1, sizeof *value, &p));
    memcpy(value, p, sizeof *value);
    return DW_OK;
}

static dw_status take_u64(reader *r, uint64_t *value)
{
    const uint8_t *p;
    DW_TRY(take(r, 1, sizeof *value, &p));
    memcpy(value, p, sizeof *value);
    return DW_OK;
}

static dw_status take_string(reader *r, dw_string *value)
{
    uint64_t length;
    const uint8_t *p;
    DW_TRY(take_u64(r, &length));
    DW_TRY(take(r, length, 1, &p));
    *value = (dw_string){(const char *)p, (int64_t)length};
    return DW_OK;
}

/* The name of entry or tensor number i; from here on messages say it. */
static dw_status take_name(reader *r, const char *what, int64_t i, dw_string *name)
{
    snprintf(r->where, sizeof r->where, "the name of %s number %lld", what, (long long)i);
    DW_TRY(take_string(r, name));
    if (name->length == 0) return REFUSE(r, "damaged: %s number %lld has no name", what, (long long)i);
    snprintf(r->where, sizeof r->where, "%s %s", what, dw_printable(*name).text);
    return DW_OK;
}

static dw_status take_array_head(reader *r, dw_gguf_entry *entry, uint32_t *kind)
{
    uint64_t count;
    DW_TRY(take_u32(r, kind));
    if (*kind == KIND_ARRAY) return REFUSE(r, "%s is an array of arrays, which is not supported", r->where);
    DW_TRY(take_u64(r, &count));
    /* Strings of any length take at least the 8 bytes of their length, the others one byte. */
    if (count > (uint64_t)((r->size - r->at) / (*kind == KIND_STRING ? 8 : 1))) {
        return REFUSE(r, "truncated or damaged: %s has %llu elements, more than the rest of the file can hold", r->where,
                      (unsigned long long)count);
    }
    entry->is_array = 1;
    entry->count = (int64_t)count;
    return DW_OK;
}

static dw_status take_entry(reader *r, int64_t i, dw_gguf_entry *entry)
{
    uint32_t kind;
    dw_string skipped;
    *entry = (dw_gguf_entry){.count = 1};
    DW_TRY(take_name(r, "metadata key", i, &entry->name));
    DW_TRY(take_u32(r, &kind));
    if (kind == KIND_ARRAY) DW_TRY(take_array_head(r, entry, &kind));
    if (kind >= KIND_COUNT) return REFUSE(r, "damaged: %s has the unknown kind %u", r->where, kind);
    entry->kind = (dw_gguf_kind)kind;
    entry->data = r->data + r->at;
    if (kind != KIND_STRING) return take(r, (uint64_t)entry->count, dw_gguf_kind_bytes(kind), &entry->data);
    for (int64_t n = 0; n < entry->count; n++) DW_TRY(take_string(r, &skipped));
    return DW_OK;
}

static dw_status take_dims(reader *r, dw_tensor *tensor)
{
    uint32_t dims;
    DW_TRY(take_u32(r, &dims));
    if (dims < 1 || dims > DW_TENSOR_DIMS) {
        return REFUSE(r, "damaged: %s has %u dimensions (1 to %d are legal)", r->where, dims, DW_TENSOR_DIMS);
    }
    tensor->dims = (int)dims;
    for (uint32_t d = 0; d < dims; d++) {
        uint64_t size;
        DW_TRY(take_u64(r, &size));
        if (size == 0 || size > INT64_MAX || __builtin_mul_overflow(tensor->elements, (int64_t)size, &tensor->elements)) {
            return REFUSE(r, "damaged: %s has the impossible dimension %llu", r->where, (unsigned long long)size);
        }
        tensor->size[d] = (int64_t)size;
    }
    return DW_OK;
}

/* All but the place of the data; *offset: where it begins in the data section, at most the size of the file. */
static dw_status take_tensor(reader *r, int64_t i, dw_tensor *tensor, int64_t *offset)
{
    uint64_t at;
    const dw_ggml_type *type;
    *tensor = (dw_tensor){.size = {1, 1, 1, 1}, .elements = 1, .file = r->file};
    DW_TRY(take_name(r, "tensor", i, &tensor->name));
    DW_TRY(take_dims(r, tensor));
    DW_TRY(take_u32(r, &tensor->type_id));
    DW_TRY(take_u64(r, &at));
    if (at > (uint64_t)r->size) {
        return REFUSE(r, "truncated or damaged: %s starts at offset %llu, but the file has %lld bytes", r->where,
                      (unsigned long long)at, (long long)r->size);
    }
    *offset = (int64_t)at;
    tensor->storage = dw_type_of_ggml(tensor->type_id);
    type = dw_ggml_type_by_id(tensor->type_id);
    if (type == NULL) return DW_OK;
    snprintf(tensor->type, sizeof tensor->type, "%s", type->name);
    if (tensor->size[0] % type->elements != 0) {
        return REFUSE(r, "damaged: %s has rows of %lld numbers, not a multiple of the %d of a %s block", r->where,
                      (long long)tensor->size[0], type->elements, type->name);
    }
    tensor->bytes = tensor->elements / type->elements;
    if (__builtin_mul_overflow(tensor->bytes, (int64_t)type->bytes, &tensor->bytes)) tensor->bytes = INT64_MAX;
    return DW_OK;
}

/* Magic, version and the two counts. */
static dw_status take_header(reader *r, uint64_t *tensors, uint64_t *entries)
{
    const uint8_t *magic = r->data;
    uint32_t version;
    if (r->size == 0) return REFUSE(r, "is empty; expected a GGUF file");
    if (r->size < 4 || memcmp(magic, "GGUF", 4) != 0) {
        const dw_string start = {(const char *)magic, r->size < 8 ? r->size : 8};
        return REFUSE(r, "not a GGUF file (starts with \"%s\")", dw_printable(start).text);
    }
    r->at = 4;
    snprintf(r->where, sizeof r->where, "the header");
    DW_TRY(take_u32(r, &version));
    if (__builtin_bswap32(version) >= 1 && __builtin_bswap32(version) <= 3) {
        return REFUSE(r, "a big-endian GGUF file (version %u), which is not supported; convert it to little-endian",
                      __builtin_bswap32(version));
    }
    if (version < 2 || version > 3) {
        return REFUSE(r, "GGUF version %u is not supported; supported: 2, 3", version);
    }
    DW_TRY(take_u64(r, tensors));
    DW_TRY(take_u64(r, entries));
    if (*tensors > (uint64_t)((r->size - r->at) / MIN_TENSOR) || *entries > (uint64_t)((r->size - r->at) / MIN_ENTRY)) {
        return REFUSE(r,
                      "truncated or damaged: the header counts %llu metadata keys and %llu tensors, "
                      "more than %lld bytes can hold",
                      (unsigned long long)*entries, (unsigned long long)*tensors, (long long)r->size);
    }
    return DW_OK;
}

static dw_status read_entries(dw_gguf *part, reader *r, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        DW_TRY(DW_GROW(&part->entries, &part->entry_capacity, i + 1, "GGUF metadata", r->err));
        DW_TRY(take_entry(r, i, &part->entries[i]));
        part->entry_count = i + 1;
    }
    if (count > 0) qsort(part->entries, (size_t)count, sizeof *part->entries, dw_string_compare);
    for (int64_t i = 1; i < count; i++) {
        if (dw_string_compare(&part->entries[i - 1], &part->entries[i]) == 0) {
            return REFUSE(r, "damaged: metadata key %s occurs twice", dw_printable(part->entries[i].name).text);
        }
    }
    return DW_OK;
}

/* Appends the tensors; offsets: [count]. */
static dw_status read_tensors(dw_tensors *tensors, reader *r, int64_t count, int64_t *offsets)
{
    DW_TRY(DW_GROW(&tensors->list, &tensors->capacity, tensors->count + count, "GGUF tensors", r->err));
    for (int64_t i = 0; i < count; i++) {
        DW_TRY(take_tensor(r, i, &tensors->list[tensors->count], &offsets[i]));
        tensors->count++;
    }
    return DW_OK;
}

/* Finds the data of the last `count` tensors: those of this part. */
static dw_status place_tensors(const dw_gguf *part, const reader *r, dw_tensors *tensors, int64_t count, const int64_t *offsets)
{
    int64_t alignment = DEFAULT_ALIGNMENT;
    int found;
    int64_t start;
    DW_TRY(dw_gguf_int(part, "general.alignment", &alignment, &found, r->err));
    if (alignment < 8 || alignment % 8 != 0 || alignment > MAX_ALIGNMENT) {
        return REFUSE(r, "general.alignment is %lld; a multiple of 8 up to %d is legal", (long long)alignment, MAX_ALIGNMENT);
    }
    start = dw_round_up(r->at, alignment);
    for (int64_t i = 0; i < count; i++) {
        dw_tensor *tensor = &tensors->list[tensors->count - count + i];
        const int64_t left = r->size - start - offsets[i]; /* may be negative; no overflow: offset <= size */
        if (offsets[i] % alignment != 0) {
            return REFUSE(r, "damaged: tensor %s starts at offset %lld, not a multiple of the alignment %lld",
                          dw_printable(tensor->name).text, (long long)offsets[i], (long long)alignment);
        }
        if (tensor->bytes > left) {
            return REFUSE(r, "truncated or damaged: tensor %s has %lld bytes at offset %lld, but the file has %lld",
                          dw_printable(tensor->name).text, (long long)tensor->bytes, (long long)(start + offsets[i]),
                          (long long)r->size);
        }
        tensor->data = r->file->data + start + offsets[i];
    }
    return DW_OK;
}

/* The part's entries go to `part`, its tensors to `tensors`. */
static dw_status read_directory(dw_gguf *part, dw_tensors *tensors, dw_file *file, dw_error *err)
{
    reader r = {.file = file, .data = file->data, .size = file->bytes, .path = file->path, .err = err};
    uint64_t tensor_count;
    uint64_t entry_count;
    int64_t *offsets;
    dw_status status;
    DW_TRY(take_header(&r, &tensor_count, &entry_count));
    DW_TRY(read_entries(part, &r, (int64_t)entry_count));
    DW_TRY(DW_ALLOC(&offsets, (int64_t)tensor_count, "GGUF tensors", err));
    status = read_tensors(tensors, &r, (int64_t)tensor_count, offsets);
    if (status == DW_OK) status = place_tensors(part, &r, tensors, (int64_t)tensor_count, offsets);
    dw_free(offsets);
    file->header_bytes = r.at;
    return status;
}

/* ---- the file, or its parts ---- */

/* Opens one file; what its metadata say of the split must be what its name says (see dw_gguf_part_check). */
static dw_status open_part(dw_gguf *gguf, const char *path, dw_file_way way, dw_gguf_part part, int64_t *declared,
                           dw_error *err)
{
    dw_file *file = &gguf->files[gguf->file_count];
    dw_gguf later = {.files = file, .file_count = 1};
    dw_gguf *entries = part.number == 1 ? gguf : &later;
    dw_status status;
    DW_TRY(dw_file_open(file, path, "a GGUF file", way, err));
    gguf->file_count++;
    status = read_directory(entries, &gguf->tensors, file, err);
    if (status == DW_OK) status = dw_gguf_part_check(entries, part, declared, err);
    dw_free(later.entries);
    return status;
}

/* Part 1 of 5 may take long to read: whether there is a part 5 is asked before. */
static dw_status find_parts(const char *path, int64_t count, dw_error *err)
{
    for (int64_t i = 1; i <= count; i++) {
        char *part;
        dw_status status = dw_gguf_part_path(&part, path, i, err);
        if (status == DW_OK && access(part, R_OK) != 0) {
            status = DW_REFUSE(part, err, "%s; part %lld of %lld of a split model", strerror(errno), (long long)i,
                               (long long)count);
        }
        dw_free(part);
        DW_TRY(status);
    }
    return DW_OK;
}

static dw_status open_parts(dw_gguf *gguf, const char *path, int64_t count, dw_file_way way, dw_error *err)
{
    int64_t declared = -1;
    DW_TRY(find_parts(path, count, err));
    for (int64_t i = 1; i <= count; i++) {
        char *part;
        dw_status status = dw_gguf_part_path(&part, path, i, err);
        if (status == DW_OK) status = open_part(gguf, part, way, (dw_gguf_part){i, count}, &declared, err);
        dw_free(part);
        DW_TRY(status);
    }
    if (declared < 0 || declared == gguf->tensors.count) return DW_OK;
    return DW_REFUSE(dw_gguf_path(gguf), err, "metadata key split.tensors.count is %lld, but the %lld parts have %lld tensors",
                     (long long)declared, (long long)count, (long long)gguf->tensors.count);
}

static dw_status load(dw_gguf *gguf, const char *path, dw_file_way way, dw_error *err)
{
    const dw_gguf_part named = dw_gguf_part_named(path);
    int64_t declared = -1;
    DW_TRY(DW_ALLOC(&gguf->files, named.count, "GGUF files", err));
    if (named.count > 1) {
        DW_TRY(open_parts(gguf, path, named.count, way, err));
    } else {
        DW_TRY(open_part(gguf, path, way, named, &declared, err));
    }
    gguf->tensors.path = dw_gguf_path(gguf);
    return dw_tensors_sort(&gguf->tensors, err);
}

dw_status dw_gguf_open(dw_gguf **out, const char *path, dw_file_way way, dw_error *err)
{
    dw_gguf *gguf;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&gguf, 1, "GGUF file", err));
    status = load(gguf, path, way, err);
    if (status != DW_OK) {
        dw_gguf_close(gguf);
        return status;
    }
    *out = gguf;
    return DW_OK;
}

void dw_gguf_close(dw_gguf *file)
{
    if (file == NULL) return;
    for (int64_t i = 0; i < file->file_count; i++) dw_file_close(&file->files[i]);
    dw_free(file->files);
    dw_free(file->entries);
    dw_tensors_free(&file->tensors);
    dw_free(file);
}

const char *dw_gguf_path(const dw_gguf *file)
{
    return file->files[0].path;
}

const dw_tensors *dw_gguf_tensors_of(const dw_gguf *file)
{
    return &file->tensors;
}

const dw_file *dw_gguf_files_of(const dw_gguf *file, int64_t *count)
{
    *count = file->file_count;
    return file->files;
}
