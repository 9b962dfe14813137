/* Metadata values by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/gguf.h"
#include "model/gguf_directory.h"

static const char *const kind_names[KIND_COUNT] = {
    [KIND_U8] = "u8",   [KIND_I8] = "i8",   [KIND_U16] = "u16",   [KIND_I16] = "i16",       [KIND_U32] = "u32",
    [KIND_I32] = "i32", [KIND_F32] = "f32", [KIND_BOOL] = "bool", [KIND_STRING] = "string", [KIND_ARRAY] = "array",
    [KIND_U64] = "u64", [KIND_I64] = "i64", [KIND_F64] = "f64",
};

static const dw_gguf_entry *find_entry(const dw_gguf *file, const char *key)
{
    const dw_string name = dw_string_of(key);
    if (file->entry_count == 0) return NULL;
    return bsearch(&name, file->entries, (size_t)file->entry_count, sizeof *file->entries, dw_string_compare);
}

static dw_status wrong_kind(const dw_gguf *file, const char *key, const dw_gguf_entry *entry, const char *expected,
                            dw_error *err)
{
    return DW_REFUSE(dw_gguf_path(file), err, "metadata key %s is %s%s; expected %s", key,
                     entry->is_array ? "an array of " : "of kind ", kind_names[entry->kind], expected);
}

/* *entry = the value of a key, a scalar or an array as asked; NULL (and *found = 0) when an optional key is absent. */
static dw_status look_up(const dw_gguf *file, const char *key, int array, const char *expected, const dw_gguf_entry **entry,
                         int *found, dw_error *err)
{
    *entry = find_entry(file, key);
    if (found != NULL) *found = *entry != NULL;
    if (*entry == NULL) return found != NULL ? DW_OK : DW_REFUSE(dw_gguf_path(file), err, "metadata key %s is missing", key);
    if ((*entry)->is_array != array) return wrong_kind(file, key, *entry, expected, err);
    return DW_OK;
}

/* Element i as an integer. 0: not an integer kind, or beyond 63 bits. */
static int integer_at(const dw_gguf_entry *entry, int64_t i, int64_t *value)
{
    const uint8_t *p = entry->data + i * dw_gguf_kind_bytes(entry->kind);
#define WIDEN(type)                                                                                                            \
    do {                                                                                                                       \
        type x;                                                                                                                \
        memcpy(&x, p, sizeof x);                                                                                               \
        *value = (int64_t)x;                                                                                                   \
        return 1;                                                                                                              \
    } while (0)
    switch (entry->kind) {
    case KIND_U8: WIDEN(uint8_t);
    case KIND_I8: WIDEN(int8_t);
    case KIND_U16: WIDEN(uint16_t);
    case KIND_I16: WIDEN(int16_t);
    case KIND_U32: WIDEN(uint32_t);
    case KIND_I32: WIDEN(int32_t);
    case KIND_I64: WIDEN(int64_t);
    case KIND_U64: {
        uint64_t x;
        memcpy(&x, p, sizeof x);
        *value = (int64_t)x;
        return x <= INT64_MAX;
    }
    default: return 0;
    }
#undef WIDEN
}

/* Element i as a float. 0: not a number. */
static int float_at(const dw_gguf_entry *entry, int64_t i, double *value)
{
    const uint8_t *p = entry->data + i * dw_gguf_kind_bytes(entry->kind);
    int64_t integer;
    if (entry->kind == KIND_F32) {
        float x;
        memcpy(&x, p, sizeof x);
        *value = (double)x;
    } else if (entry->kind == KIND_F64) {
        memcpy(value, p, sizeof *value);
    } else {
        if (!integer_at(entry, i, &integer)) return 0;
        *value = (double)integer;
    }
    return 1;
}

/* The string at p (its length, then its bytes); returns what lies behind it. */
static const uint8_t *string_at(const uint8_t *p, dw_string *value)
{
    uint64_t length;
    memcpy(&length, p, sizeof length);
    *value = (dw_string){(const char *)p + sizeof length, (int64_t)length};
    return p + sizeof length + length;
}

/* ---- scalars ---- */

dw_status dw_gguf_int(const dw_gguf *file, const char *key, int64_t *value, int *found, dw_error *err)
{
    const dw_gguf_entry *entry;
    int64_t read;
    DW_TRY(look_up(file, key, 0, "an integer", &entry, found, err));
    if (entry == NULL) return DW_OK;
    if (!integer_at(entry, 0, &read)) return wrong_kind(file, key, entry, "an integer below 2^63", err);
    *value = read;
    return DW_OK;
}

dw_status dw_gguf_float(const dw_gguf *file, const char *key, double *value, int *found, dw_error *err)
{
    const dw_gguf_entry *entry;
    double read;
    DW_TRY(look_up(file, key, 0, "a number", &entry, found, err));
    if (entry == NULL) return DW_OK;
    if (!float_at(entry, 0, &read)) return wrong_kind(file, key, entry, "a number", err);
    *value = read;
    return DW_OK;
}

dw_status dw_gguf_bool(const dw_gguf *file, const char *key, int *value, int *found, dw_error *err)
{
    const dw_gguf_entry *entry;
    DW_TRY(look_up(file, key, 0, "a bool", &entry, found, err));
    if (entry == NULL) return DW_OK;
    if (entry->kind != KIND_BOOL) return wrong_kind(file, key, entry, "a bool", err);
    if (entry->data[0] > 1) {
        return DW_REFUSE(dw_gguf_path(file), err, "metadata key %s is the bool %d; 0 and 1 are legal", key, entry->data[0]);
    }
    *value = entry->data[0];
    return DW_OK;
}

dw_status dw_gguf_string(const dw_gguf *file, const char *key, dw_string *value, int *found, dw_error *err)
{
    const dw_gguf_entry *entry;
    DW_TRY(look_up(file, key, 0, "a string", &entry, found, err));
    if (entry == NULL) return DW_OK;
    if (entry->kind != KIND_STRING) return wrong_kind(file, key, entry, "a string", err);
    string_at(entry->data, value);
    return DW_OK;
}

/* ---- arrays ---- */

dw_status dw_gguf_strings(const dw_gguf *file, const char *key, dw_string **out, int64_t *count, int *found, dw_error *err)
{
    const dw_gguf_entry *entry;
    const uint8_t *p;
    DW_TRY(look_up(file, key, 1, "an array of strings", &entry, found, err));
    if (entry == NULL) return DW_OK;
    if (entry->kind != KIND_STRING) return wrong_kind(file, key, entry, "an array of strings", err);
    DW_TRY(DW_ALLOC(out, entry->count, key, err));
    p = entry->data;
    for (int64_t i = 0; i < entry->count; i++) p = string_at(p, &(*out)[i]);
    *count = entry->count;
    return DW_OK;
}

dw_status dw_gguf_ints(const dw_gguf *file, const char *key, int64_t **out, int64_t *count, int *found, dw_error *err)
{
    const dw_gguf_entry *entry;
    int64_t *values;
    DW_TRY(look_up(file, key, 1, "an array of integers", &entry, found, err));
    if (entry == NULL) return DW_OK;
    DW_TRY(DW_ALLOC(&values, entry->count, key, err));
    for (int64_t i = 0; i < entry->count; i++) {
        if (integer_at(entry, i, &values[i])) continue;
        dw_free(values);
        return wrong_kind(file, key, entry, "an array of integers below 2^63", err);
    }
    *out = values;
    *count = entry->count;
    return DW_OK;
}

dw_status dw_gguf_floats(const dw_gguf *file, const char *key, float **out, int64_t *count, int *found, dw_error *err)
{
    const dw_gguf_entry *entry;
    float *values;
    DW_TRY(look_up(file, key, 1, "an array of numbers", &entry, found, err));
    if (entry == NULL) return DW_OK;
    DW_TRY(DW_ALLOC(&values, entry->count, key, err));
    for (int64_t i = 0; i < entry->count; i++) {
        double value;
        if (!float_at(entry, i, &value)) {
            dw_free(values);
            return wrong_kind(file, key, entry, "an array of numbers", err);
        }
        values[i] = (float)value;
    }
    *out = values;
    *count = entry->count;
    return DW_OK;
}

/* ---- listing ---- */

int64_t dw_gguf_keys(const dw_gguf *file)
{
    return file->entry_count;
}

dw_string dw_gguf_key(const dw_gguf *file, int64_t i)
{
    return file->entries[i].name;
}

dw_gguf_value dw_gguf_value_of(const dw_gguf *file, int64_t i)
{
    const dw_gguf_entry *entry = &file->entries[i];
    dw_gguf_value value = {.kind = DW_GGUF_ARRAY, .integer = entry->count};
    if (entry->is_array) return value;
    if (entry->kind == KIND_STRING) {
        value.kind = DW_GGUF_STRING;
        string_at(entry->data, &value.string);
    } else if (entry->kind == KIND_BOOL) {
        value.kind = DW_GGUF_BOOL;
        value.integer = entry->data[0] != 0;
    } else if (integer_at(entry, 0, &value.integer)) {
        value.kind = DW_GGUF_INTEGER;
    } else {
        value.kind = DW_GGUF_REAL;
        if (!float_at(entry, 0, &value.real)) value.real = (double)(uint64_t)value.integer; /* above 2^63 */
    }
    return value;
}
