#include "tests/unit/gguf_small.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/gguf_directory.h"

static void put_numbers(gguf_writer *w)
{
    const uint8_t u8 = 200;
    const int8_t i8 = -100;
    const uint16_t u16 = 60000;
    const int16_t i16 = -30000;
    const int32_t i32 = -2000000000;
    const uint64_t u64 = (uint64_t)1 << 40;
    const uint64_t huge = (uint64_t)1 << 63;
    const int64_t i64 = -((int64_t)1 << 40);
    const double f64 = 1.0 / 3;
    gguf_put_raw(w, "a.u8", GGUF_U8, &u8, sizeof u8);
    gguf_put_raw(w, "a.i8", GGUF_I8, &i8, sizeof i8);
    gguf_put_raw(w, "a.u16", GGUF_U16, &u16, sizeof u16);
    gguf_put_raw(w, "a.i16", GGUF_I16, &i16, sizeof i16);
    gguf_put_u32(w, "a.u32", 4000000000u);
    gguf_put_raw(w, "a.i32", GGUF_I32, &i32, sizeof i32);
    gguf_put_raw(w, "a.u64", GGUF_U64, &u64, sizeof u64);
    gguf_put_raw(w, "a.huge", GGUF_U64, &huge, sizeof huge);
    gguf_put_raw(w, "a.i64", GGUF_I64, &i64, sizeof i64);
    gguf_put_f32(w, "a.f32", 0.1f);
    gguf_put_raw(w, "a.f64", GGUF_F64, &f64, sizeof f64);
    gguf_put_bool(w, "a.true", 1);
    gguf_put_bool(w, "a.false", 0);
}

static void put_arrays(gguf_writer *w)
{
    static const char *const words[] = {"dew", "", "point"};
    const int16_t shorts[] = {-1, 2, -3};
    const double doubles[] = {0.5, -2};
    gguf_put_string(w, "a.string", "condensate");
    gguf_put_strings(w, "b.strings", words, 3);
    gguf_put_array(w, "b.shorts", GGUF_I16, sizeof *shorts, shorts, 3);
    gguf_put_array(w, "b.doubles", GGUF_F64, sizeof *doubles, doubles, 2);
    gguf_put_array(w, "b.empty", GGUF_U32, 4, NULL, 0);
    gguf_put_strings(w, "b.nothing", NULL, 0);
}

static void put_tensors(gguf_writer *w)
{
    float numbers[24];
    uint8_t blocks[148];
    for (int i = 0; i < 24; i++) numbers[i] = (float)i - 4.5f;
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(7 * i);
    gguf_put_tensor(w, "matrix", 0, 2, (const int64_t[]){8, 3}, numbers, 96);
    gguf_put_tensor(w, "vector", 0, 1, (const int64_t[]){5}, numbers, 20);
    gguf_put_tensor(w, "cube", 0, 3, (const int64_t[]){2, 3, 4}, numbers, 96);
    gguf_put_tensor(w, "flat", 0, 4, (const int64_t[]){4, 6, 1, 1}, numbers, 96);
    gguf_put_tensor(w, "iq", 17, 2, (const int64_t[]){256, 2}, blocks, 148);
    gguf_put_tensor(w, "future", 99, 1, (const int64_t[]){32}, blocks, 20);
    gguf_put_tensor(w, "q8", 8, 2, (const int64_t[]){32, 2}, blocks, 68);
}

gguf_writer *gguf_small(uint32_t version, uint32_t alignment, int64_t padding)
{
    gguf_writer *w = gguf_new(version);
    if (padding >= 0) {
        char *text;
        dw_error err;
        cr_assert(DW_ALLOC(&text, padding + 1, "padding", &err) == DW_OK);
        memset(text, 'x', (size_t)padding);
        gguf_put_string(w, "padding", text);
        dw_free(text);
    }
    gguf_put_string(w, "general.architecture", "none");
    if (alignment > 0) gguf_align(w, alignment);
    put_numbers(w);
    put_arrays(w);
    put_tensors(w);
    return w;
}

/* count bytes at data must lie in the file. */
static void check_inside(const dw_gguf *file, const void *data, int64_t count)
{
    const int64_t at = (int64_t)((uintptr_t)data - (uintptr_t)file->files[0].data);
    const int64_t bytes = file->files[0].bytes;
    cr_assert(at >= 0 && count >= 0 && count <= bytes && at <= bytes - count, "data outside the file");
}

static void touch_key(const dw_gguf *file, const char *key)
{
    int64_t integer;
    int64_t *integers = NULL;
    int64_t count;
    double number;
    float *numbers = NULL;
    int flag;
    int found;
    dw_string text;
    dw_string *texts = NULL;
    dw_error err;
    (void)dw_gguf_int(file, key, &integer, NULL, &err);
    (void)dw_gguf_float(file, key, &number, NULL, &err);
    if (dw_gguf_bool(file, key, &flag, NULL, &err) == DW_OK) cr_assert(flag == 0 || flag == 1);
    if (dw_gguf_string(file, key, &text, NULL, &err) == DW_OK) check_inside(file, text.data, text.length);
    if (dw_gguf_strings(file, key, &texts, &count, &found, &err) == DW_OK && found) {
        for (int64_t i = 0; i < count; i++) check_inside(file, texts[i].data, texts[i].length);
        dw_free(texts);
    }
    if (dw_gguf_ints(file, key, &integers, &count, &found, &err) == DW_OK && found) dw_free(integers);
    if (dw_gguf_floats(file, key, &numbers, &count, &found, &err) == DW_OK && found) dw_free(numbers);
}

void gguf_touch_all(const dw_gguf *file)
{
    const dw_tensors *tensors = dw_gguf_tensors_of(file);
    char name[4096];
    dw_matrix w;
    dw_error err;
    for (int64_t i = 0; i < dw_gguf_keys(file); i++) {
        const dw_string key = dw_gguf_key(file, i);
        check_inside(file, key.data, key.length);
        snprintf(name, sizeof name, "%.*s", (int)(key.length < 4095 ? key.length : 4095), key.data);
        touch_key(file, name);
    }
    for (int64_t i = 0; i < tensors->count; i++) {
        const dw_tensor *tensor = &tensors->list[i];
        check_inside(file, tensor->name.data, tensor->name.length);
        check_inside(file, tensor->data, tensor->bytes);
        snprintf(name, sizeof name, "%.*s", (int)(tensor->name.length < 4095 ? tensor->name.length : 4095), tensor->name.data);
        if (dw_tensors_matrix(tensors, name, -1, -1, &w, NULL, &err) != DW_OK) continue;
        check_inside(file, w.data, w.outputs * dw_row_bytes(w.type, w.inputs));
    }
}
