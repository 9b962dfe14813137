#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/ggml_type.h"
#include "model/gguf_directory.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF files are little-endian and their data are used in place"
#endif

/* Smallest entries that the format allows bound every count by the bytes that are left. */
enum {
    MIN_ENTRY = 8 + 1 + 4 + 1,          /* key of one byte, kind, value of one byte */
    MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8, /* name of one byte, number of dimensions, one of them, type, offset */
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 30
};

/* A cursor over the mapped file. */
typedef struct {
    const uint8_t *data;
    int64_t size;
    int64_t at;
    const char *path;
    char where[128]; /* what is being read, for messages */
    dw_error *err;
} reader;

#define REFUSE(r, ...) DW_GGUF_REFUSE((r)->path, (r)->err, __VA_ARGS__)

void dw_gguf_report(const char *path, dw_error *err, const char *format, ...)
{
    char message[400];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    dw_fail(err, DW_INPUT, "%s", message);
    dw_fail_context(err, "%s", path);
}

dw_gguf_text dw_gguf_printable(dw_string name)
{
    dw_gguf_text out;
    const int64_t most = (int64_t)sizeof out.text - 4;
    int64_t n = 0;
    for (; n < name.length && n < most; n++) out.text[n] = name.data[n] >= ' ' && name.data[n] <= '~' ? name.data[n] : '?';
    snprintf(out.text + n, sizeof out.text - (size_t)n, "%s", n < name.length ? "..." : "");
    return out;
}

int dw_gguf_compare(const void *a, const void *b)
{
    const dw_string *x = a;
    const dw_string *y = b;
    const int64_t shorter = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->data, y->data, (size_t)shorter);
    if (order != 0) return order;
    return (x->length > y->length) - (x->length < y->length);
}

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
    snprintf(r->where, sizeof r->where, "%s %s", what, dw_gguf_printable(*name).text);
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

static dw_status take_tensor(reader *r, int64_t i, dw_gguf_tensor *tensor)
{
    uint32_t dims;
    uint64_t offset;
    int64_t elements = 1;
    *tensor = (dw_gguf_tensor){.size = {1, 1, 1, 1}};
    DW_TRY(take_name(r, "tensor", i, &tensor->name));
    DW_TRY(take_u32(r, &dims));
    if (dims < 1 || dims > DW_GGUF_DIMS) {
        return REFUSE(r, "damaged: %s has %u dimensions (1 to %d are legal)", r->where, dims, DW_GGUF_DIMS);
    }
    tensor->dims = (int)dims;
    for (uint32_t d = 0; d < dims; d++) {
        uint64_t size;
        DW_TRY(take_u64(r, &size));
        if (size == 0 || size > INT64_MAX || __builtin_mul_overflow(elements, (int64_t)size, &elements)) {
            return REFUSE(r, "damaged: %s has the impossible dimension %llu", r->where, (unsigned long long)size);
        }
        tensor->size[d] = (int64_t)size;
    }
    DW_TRY(take_u32(r, &tensor->type));
    DW_TRY(take_u64(r, &offset));
    if (offset > (uint64_t)r->size) {
        return REFUSE(r, "truncated or damaged: %s starts at offset %llu, but the file has %lld bytes", r->where,
                      (unsigned long long)offset, (long long)r->size);
    }
    tensor->offset = (int64_t)offset;
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
        return REFUSE(r, "not a GGUF file (starts with \"%s\")", dw_gguf_printable(start).text);
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

static dw_status read_directory(dw_gguf *file, reader *r)
{
    uint64_t tensors;
    uint64_t entries;
    DW_TRY(take_header(r, &tensors, &entries));
    for (int64_t i = 0; i < (int64_t)entries; i++) {
        DW_TRY(DW_GROW(&file->entries, &file->entry_capacity, i + 1, "GGUF metadata", r->err));
        DW_TRY(take_entry(r, i, &file->entries[i]));
        file->entry_count = i + 1;
    }
    for (int64_t i = 0; i < (int64_t)tensors; i++) {
        DW_TRY(DW_GROW(&file->tensors, &file->tensor_capacity, i + 1, "GGUF tensors", r->err));
        DW_TRY(take_tensor(r, i, &file->tensors[i]));
        file->tensor_count = i + 1;
    }
    return DW_OK;
}

/* ---- checks of the whole ---- */

static dw_status refuse_duplicate(const reader *r, const char *what, dw_string name)
{
    return REFUSE(r, "damaged: %s %s occurs twice", what, dw_gguf_printable(name).text);
}

static dw_status sort_directory(dw_gguf *file, const reader *r)
{
    if (file->entry_count > 0) qsort(file->entries, (size_t)file->entry_count, sizeof *file->entries, dw_gguf_compare);
    if (file->tensor_count > 0) qsort(file->tensors, (size_t)file->tensor_count, sizeof *file->tensors, dw_gguf_compare);
    for (int64_t i = 1; i < file->entry_count; i++) {
        if (dw_gguf_compare(&file->entries[i - 1], &file->entries[i]) == 0) {
            return refuse_duplicate(r, "metadata key", file->entries[i].name);
        }
    }
    for (int64_t i = 1; i < file->tensor_count; i++) {
        if (dw_gguf_compare(&file->tensors[i - 1], &file->tensors[i]) == 0) {
            return refuse_duplicate(r, "tensor", file->tensors[i].name);
        }
    }
    return DW_OK;
}

/* Bytes of the data; those of an unknown type count as 0. */
static dw_status tensor_bytes(const reader *r, const dw_gguf_tensor *tensor, int64_t *bytes)
{
    const dw_ggml_type *type = dw_ggml_type_by_id(tensor->type);
    *bytes = 0;
    if (type == NULL) return DW_OK;
    if (tensor->size[0] % type->elements != 0) {
        return REFUSE(r, "damaged: tensor %s has rows of %lld numbers, not a multiple of the %d of a %s block",
                      dw_gguf_printable(tensor->name).text, (long long)tensor->size[0], type->elements, type->name);
    }
    /* The product of the sizes is known to fit. */
    *bytes = tensor->size[0] * tensor->size[1] * tensor->size[2] * tensor->size[3] / type->elements;
    if (__builtin_mul_overflow(*bytes, (int64_t)type->bytes, bytes)) *bytes = INT64_MAX;
    return DW_OK;
}

static dw_status place_tensors(dw_gguf *file, const reader *r)
{
    int64_t alignment = DEFAULT_ALIGNMENT;
    int found;
    int64_t start;
    DW_TRY(dw_gguf_int(file, "general.alignment", &alignment, &found, r->err));
    if (alignment < 8 || alignment % 8 != 0 || alignment > MAX_ALIGNMENT) {
        return REFUSE(r, "general.alignment is %lld; a multiple of 8 up to %d is legal", (long long)alignment, MAX_ALIGNMENT);
    }
    start = (r->at + alignment - 1) / alignment * alignment;
    for (int64_t i = 0; i < file->tensor_count; i++) {
        dw_gguf_tensor *tensor = &file->tensors[i];
        const int64_t left = r->size - start - tensor->offset; /* may be negative; no overflow: offset <= size */
        int64_t bytes;
        if (tensor->offset % alignment != 0) {
            return REFUSE(r, "damaged: tensor %s starts at offset %lld, not a multiple of the alignment %lld",
                          dw_gguf_printable(tensor->name).text, (long long)tensor->offset, (long long)alignment);
        }
        DW_TRY(tensor_bytes(r, tensor, &bytes));
        if (bytes > left) {
            return REFUSE(r, "truncated or damaged: tensor %s has %lld bytes at offset %lld, but the file has %lld",
                          dw_gguf_printable(tensor->name).text, (long long)bytes, (long long)(start + tensor->offset),
                          (long long)r->size);
        }
        tensor->data = r->data + start + tensor->offset;
    }
    return DW_OK;
}

/* ---- the file ---- */

static dw_status map_file(dw_gguf *file, int descriptor, dw_error *err)
{
    struct stat status;
    void *map;
    if (fstat(descriptor, &status) != 0) return DW_GGUF_REFUSE(file->path, err, "%s", strerror(errno));
    if (S_ISDIR(status.st_mode)) return DW_GGUF_REFUSE(file->path, err, "is a directory; expected a GGUF file");
    if (!S_ISREG(status.st_mode)) return DW_GGUF_REFUSE(file->path, err, "is not a regular file; expected a GGUF file");
    if (status.st_size == 0) return DW_OK;
    map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (map == MAP_FAILED) {
        return dw_fail(err, DW_RESOURCE, "%s: can not map %lld bytes: %s", file->path, (long long)status.st_size,
                       strerror(errno));
    }
    file->map = map;
    file->bytes = status.st_size;
    return DW_OK;
}

static dw_status open_and_map(dw_gguf *file, dw_error *err)
{
    dw_status status;
    /* Without O_NONBLOCK the open of a pipe that nobody writes would never return. */
    const int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return DW_GGUF_REFUSE(file->path, err, "%s", strerror(errno));
    status = map_file(file, descriptor, err);
    close(descriptor);
    return status;
}

static dw_status load(dw_gguf *file, const char *path, dw_error *err)
{
    reader r = {.err = err};
    const int64_t length = (int64_t)strlen(path);
    DW_TRY(DW_ALLOC(&file->path, length + 1, "path", err));
    memcpy(file->path, path, (size_t)length);
    DW_TRY(open_and_map(file, err));
    r.path = file->path;
    r.data = file->map;
    r.size = file->bytes;
    DW_TRY(read_directory(file, &r));
    DW_TRY(sort_directory(file, &r));
    return place_tensors(file, &r);
}

dw_status dw_gguf_open(dw_gguf **out, const char *path, dw_error *err)
{
    dw_gguf *file;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&file, 1, "GGUF file", err));
    status = load(file, path, err);
    if (status != DW_OK) {
        dw_gguf_close(file);
        return status;
    }
    *out = file;
    return DW_OK;
}

void dw_gguf_close(dw_gguf *file)
{
    if (file == NULL) return;
    if (file->map != NULL) munmap((void *)file->map, (size_t)file->bytes);
    dw_free(file->entries);
    dw_free(file->tensors);
    dw_free(file->path);
    dw_free(file);
}

const char *dw_gguf_path(const dw_gguf *file)
{
    return file->path;
}

int64_t dw_gguf_bytes(const dw_gguf *file)
{
    return file->bytes;
}
