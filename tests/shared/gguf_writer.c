#include "tests/shared/gguf_writer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

typedef struct {
    uint8_t *data;
    int64_t size, capacity;
} bytes;

/* Where the fields of one metadata entry or tensor lie; offsets into the section until gguf_build moves them. */
typedef struct {
    char *name;
    int64_t first;  /* its length field: GGUF_AT_KEY, GGUF_AT_NAME */
    int64_t kind;   /* GGUF_AT_KIND, GGUF_AT_TYPE */
    int64_t value;  /* GGUF_AT_VALUE, GGUF_AT_DIMS */
    int64_t offset; /* tensors only: GGUF_AT_OFFSET */
    int64_t data;   /* tensors only: GGUF_AT_DATA */
} place;

typedef struct {
    bytes content;
    place *places;
    int64_t count, capacity;
} section;

struct gguf_writer {
    uint32_t version;
    int64_t alignment;
    section entries, tensors;
    bytes data; /* of all tensors */
    bytes file; /* empty until built */
};

static void append(bytes *to, const void *data, int64_t count)
{
    dw_error err;
    cr_assert(DW_GROW(&to->data, &to->capacity, to->size + count, "GGUF under construction", &err) == DW_OK, "%s", err.message);
    if (count > 0) memcpy(to->data + to->size, data, (size_t)count);
    to->size += count;
}

static void append_u32(bytes *to, uint32_t value)
{
    append(to, &value, sizeof value);
}

static void append_u64(bytes *to, uint64_t value)
{
    append(to, &value, sizeof value);
}

static void append_string(bytes *to, const char *text)
{
    const int64_t length = (int64_t)strlen(text);
    append_u64(to, (uint64_t)length);
    append(to, text, length);
}

static void pad(bytes *to, int64_t alignment)
{
    const uint8_t zero = 0;
    while (to->size % alignment != 0) append(to, &zero, 1);
}

static place *add_place(section *to, const char *name)
{
    dw_error err;
    place *added;
    cr_assert(DW_GROW(&to->places, &to->capacity, to->count + 1, "fields of a GGUF", &err) == DW_OK, "%s", err.message);
    added = &to->places[to->count++];
    added->name = strdup(name);
    cr_assert(added->name != NULL);
    added->first = to->content.size;
    append_string(&to->content, name);
    return added;
}

gguf_writer *gguf_new(uint32_t version)
{
    gguf_writer *writer;
    dw_error err;
    cr_assert(DW_ALLOC(&writer, 1, "GGUF writer", &err) == DW_OK, "%s", err.message);
    writer->version = version;
    writer->alignment = 32;
    return writer;
}

static void free_section(section *s)
{
    for (int64_t i = 0; i < s->count; i++) free(s->places[i].name);
    dw_free(s->places);
    dw_free(s->content.data);
}

void gguf_free(gguf_writer *writer)
{
    free_section(&writer->entries);
    free_section(&writer->tensors);
    dw_free(writer->data.data);
    dw_free(writer->file.data);
    dw_free(writer);
}

void gguf_align(gguf_writer *writer, uint32_t alignment)
{
    writer->alignment = alignment;
    gguf_put_u32(writer, "general.alignment", alignment);
}

void gguf_put_raw(gguf_writer *writer, const char *key, uint32_t kind, const void *value, int64_t count)
{
    bytes *content = &writer->entries.content;
    place *entry = add_place(&writer->entries, key);
    entry->kind = content->size;
    append_u32(content, kind);
    entry->value = content->size;
    append(content, value, count);
}

void gguf_put_u32(gguf_writer *writer, const char *key, uint32_t value)
{
    gguf_put_raw(writer, key, GGUF_U32, &value, sizeof value);
}

void gguf_put_f32(gguf_writer *writer, const char *key, float value)
{
    gguf_put_raw(writer, key, GGUF_F32, &value, sizeof value);
}

void gguf_put_bool(gguf_writer *writer, const char *key, int value)
{
    const uint8_t byte = (uint8_t)(value != 0);
    gguf_put_raw(writer, key, GGUF_BOOL, &byte, 1);
}

void gguf_put_string(gguf_writer *writer, const char *key, const char *value)
{
    gguf_put_raw(writer, key, GGUF_STRING, NULL, 0);
    append_string(&writer->entries.content, value);
}

static void put_array_head(gguf_writer *writer, const char *key, gguf_kind element, int64_t count)
{
    gguf_put_raw(writer, key, GGUF_ARRAY, NULL, 0);
    append_u32(&writer->entries.content, element);
    append_u64(&writer->entries.content, (uint64_t)count);
}

void gguf_put_strings(gguf_writer *writer, const char *key, const char *const *values, int64_t count)
{
    put_array_head(writer, key, GGUF_STRING, count);
    for (int64_t i = 0; i < count; i++) append_string(&writer->entries.content, values[i]);
}

void gguf_put_array(gguf_writer *writer, const char *key, gguf_kind element, int64_t element_bytes, const void *values,
                    int64_t count)
{
    put_array_head(writer, key, element, count);
    append(&writer->entries.content, values, count * element_bytes);
}

void gguf_put_tensor(gguf_writer *writer, const char *name, uint32_t type, int dims, const int64_t *size, const void *data,
                     int64_t count)
{
    bytes *content = &writer->tensors.content;
    place *tensor = add_place(&writer->tensors, name);
    tensor->value = content->size;
    append_u32(content, (uint32_t)dims);
    for (int i = 0; i < dims; i++) append_u64(content, (uint64_t)size[i]);
    tensor->kind = content->size;
    append_u32(content, type);
    tensor->offset = content->size;
    pad(&writer->data, writer->alignment);
    append_u64(content, (uint64_t)writer->data.size);
    tensor->data = writer->data.size;
    append(&writer->data, data, count);
}

static void move_places(section *s, int64_t by, int64_t data_by)
{
    for (int64_t i = 0; i < s->count; i++) {
        s->places[i].first += by;
        s->places[i].kind += by;
        s->places[i].value += by;
        s->places[i].offset += by;
        s->places[i].data += data_by;
    }
}

uint8_t *gguf_build(gguf_writer *writer, int64_t *count)
{
    bytes *file = &writer->file;
    int64_t entries;
    int64_t tensors;
    if (file->size == 0) {
        append(file, "GGUF", 4);
        append_u32(file, writer->version);
        append_u64(file, (uint64_t)writer->tensors.count);
        append_u64(file, (uint64_t)writer->entries.count);
        entries = file->size;
        append(file, writer->entries.content.data, writer->entries.content.size);
        tensors = file->size;
        append(file, writer->tensors.content.data, writer->tensors.content.size);
        pad(file, writer->alignment);
        move_places(&writer->entries, entries, 0);
        move_places(&writer->tensors, tensors, file->size);
        append(file, writer->data.data, writer->data.size);
        pad(file, writer->alignment);
    }
    *count = file->size;
    return file->data;
}

static const place *find_place(const section *s, const char *name)
{
    for (int64_t i = 0; i < s->count; i++) {
        if (strcmp(s->places[i].name, name) == 0) return &s->places[i];
    }
    cr_assert_fail("the GGUF under construction has no %s", name);
    return NULL;
}

int64_t gguf_where(const gguf_writer *writer, gguf_field field, const char *name)
{
    switch (field) {
    case GGUF_AT_VERSION: return 4;
    case GGUF_AT_TENSOR_COUNT: return 8;
    case GGUF_AT_ENTRY_COUNT: return 16;
    case GGUF_AT_KEY: return find_place(&writer->entries, name)->first;
    case GGUF_AT_KIND: return find_place(&writer->entries, name)->kind;
    case GGUF_AT_VALUE: return find_place(&writer->entries, name)->value;
    case GGUF_AT_NAME: return find_place(&writer->tensors, name)->first;
    case GGUF_AT_DIMS: return find_place(&writer->tensors, name)->value;
    case GGUF_AT_TYPE: return find_place(&writer->tensors, name)->kind;
    case GGUF_AT_OFFSET: return find_place(&writer->tensors, name)->offset;
    case GGUF_AT_DATA: return find_place(&writer->tensors, name)->data;
    }
    cr_assert_fail("unknown field %d", (int)field);
    return -1;
}

void gguf_write(gguf_writer *writer, const char *path)
{
    int64_t count;
    const uint8_t *data = gguf_build(writer, &count);
    write_file(path, data, count);
}

void write_file(const char *path, const void *data, int64_t count)
{
    FILE *file = fopen(path, "wbe");
    cr_assert(file != NULL, "can not write %s", path);
    cr_assert(fwrite(data, 1, (size_t)count, file) == (size_t)count, "can not write %s", path);
    cr_assert(fclose(file) == 0, "can not write %s", path);
}
