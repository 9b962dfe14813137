/* Valid GGUF files give what was written; questions that a file can not answer are refused by name. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/unit/gguf_small.h"

static dw_error err;

#define OK(call) cr_assert((call) == DW_OK, "%s", err.message)

/* The call must fail as DW_INPUT with a one-line message that starts with the file's path and has the words in it. */
#define REFUSED(file, call, words)                                                                                             \
    do {                                                                                                                       \
        err.message[0] = '\0';                                                                                                 \
        cr_expect((call) == DW_INPUT, #call);                                                                                  \
        cr_expect(strstr(err.message, dw_gguf_path(file)) == err.message && strchr(err.message, '\n') == NULL);                \
        cr_expect(strstr(err.message, (words)) != NULL, "\"%s\" lacks \"%s\"", err.message, (words));                          \
    } while (0)

static dw_gguf *open_small_as(uint32_t version, uint32_t alignment, dw_file_way way)
{
    const char *path = fixture_path("small.gguf");
    gguf_writer *writer = gguf_small(version, alignment, -1);
    dw_gguf *file;
    gguf_write(writer, path);
    gguf_free(writer);
    OK(dw_gguf_open(&file, path, way, &err));
    return file;
}

static dw_gguf *open_small(uint32_t version, uint32_t alignment)
{
    return open_small_as(version, alignment, DW_FILE_MAP);
}

static void check_numbers(const dw_gguf *file)
{
    static const struct {
        const char *key;
        int64_t value;
    } integers[] = {
        {"a.u8", 200},
        {"a.i8", -100},
        {"a.u16", 60000},
        {"a.i16", -30000},
        {"a.u32", 4000000000},
        {"a.i32", -2000000000},
        {"a.u64", (int64_t)1 << 40},
        {"a.i64", -((int64_t)1 << 40)},
    };
    int64_t integer;
    double number;
    int flag;
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        OK(dw_gguf_int(file, integers[i].key, &integer, NULL, &err));
        cr_expect(integer == integers[i].value, "%s", integers[i].key);
        OK(dw_gguf_float(file, integers[i].key, &number, NULL, &err));
        cr_expect(number == (double)integers[i].value, "%s", integers[i].key);
    }
    OK(dw_gguf_float(file, "a.f32", &number, NULL, &err));
    cr_expect(number == (double)0.1f);
    OK(dw_gguf_float(file, "a.f64", &number, NULL, &err));
    cr_expect(number == 1.0 / 3);
    OK(dw_gguf_bool(file, "a.true", &flag, NULL, &err));
    cr_expect(flag == 1);
    OK(dw_gguf_bool(file, "a.false", &flag, NULL, &err));
    cr_expect(flag == 0);
}

static void check_arrays(const dw_gguf *file)
{
    dw_string text;
    dw_string *texts;
    int64_t *integers;
    float *numbers;
    int64_t count;
    OK(dw_gguf_string(file, "a.string", &text, NULL, &err));
    cr_expect(dw_string_is(text, "condensate"));
    OK(dw_gguf_strings(file, "b.strings", &texts, &count, NULL, &err));
    cr_expect(count == 3 && dw_string_is(texts[0], "dew") && dw_string_is(texts[1], "") && dw_string_is(texts[2], "point"));
    dw_free(texts);
    OK(dw_gguf_ints(file, "b.shorts", &integers, &count, NULL, &err));
    cr_expect(count == 3 && integers[0] == -1 && integers[1] == 2 && integers[2] == -3);
    dw_free(integers);
    OK(dw_gguf_floats(file, "b.shorts", &numbers, &count, NULL, &err));
    cr_expect(count == 3 && numbers[0] == -1 && numbers[1] == 2 && numbers[2] == -3);
    dw_free(numbers);
    OK(dw_gguf_floats(file, "b.doubles", &numbers, &count, NULL, &err));
    cr_expect(count == 2 && numbers[0] == 0.5f && numbers[1] == -2);
    dw_free(numbers);
    OK(dw_gguf_ints(file, "b.empty", &integers, &count, NULL, &err));
    cr_expect(count == 0 && integers != NULL);
    dw_free(integers);
    OK(dw_gguf_strings(file, "b.nothing", &texts, &count, NULL, &err));
    cr_expect(count == 0 && texts != NULL);
    dw_free(texts);
}

/* alignment: of the data, as far as that of the memory goes. */
static void check_tensors(const dw_tensors *tensors, uint32_t alignment)
{
    dw_matrix w;
    const float *numbers;
    OK(dw_tensors_matrix(tensors, "matrix", 3, 8, &w, NULL, &err));
    cr_expect(w.type == DW_F32 && w.outputs == 3 && w.inputs == 8);
    numbers = w.data;
    cr_expect((uintptr_t)numbers % alignment == 0);
    for (int i = 0; i < 24; i++) cr_expect(numbers[i] == (float)i - 4.5f);
    OK(dw_tensors_matrix(tensors, "vector", 1, 5, &w, NULL, &err));
    cr_expect(w.outputs == 1 && w.inputs == 5 && ((const float *)w.data)[4] == -0.5f);
    OK(dw_tensors_matrix(tensors, "flat", -1, -1, &w, NULL, &err));
    cr_expect(w.outputs == 6 && w.inputs == 4 && ((const float *)w.data)[23] == 18.5f);
    OK(dw_tensors_matrix(tensors, "q8", 2, 32, &w, NULL, &err));
    cr_expect(w.type == DW_Q8_0 && ((const uint8_t *)w.data)[67] == (uint8_t)(7 * 67));
}

/* The key general.alignment (0: none), and the alignment of memory that follows from it: maps start at a page, what is read at
   64 bytes. */
static const struct {
    uint32_t key, mapped, read;
} alignments[] = {{0, 32, 32}, {8, 8, 8}, {24, 8, 8}, {32, 32, 32}, {64, 64, 64}, {4096, 4096, 64}};

Test(gguf_read, both_versions_and_all_alignments_give_what_was_written)
{
    for (uint32_t version = 2; version <= 3; version++) {
        for (size_t i = 0; i < 2 * (sizeof alignments / sizeof alignments[0]); i++) {
            const dw_file_way way = i % 2 == 0 ? DW_FILE_MAP : DW_FILE_READ;
            dw_gguf *file = open_small_as(version, alignments[i / 2].key, way);
            const dw_tensors *tensors = dw_gguf_tensors_of(file);
            cr_expect(tensors->count == 7 && dw_gguf_keys(file) == (alignments[i / 2].key > 0 ? 21 : 20));
            check_numbers(file);
            check_arrays(file);
            check_tensors(tensors, way == DW_FILE_MAP ? alignments[i / 2].mapped : alignments[i / 2].read);
            gguf_touch_all(file);
            dw_gguf_close(file);
        }
    }
}

Test(gguf_read, tensors_say_what_they_are)
{
    dw_gguf *file = open_small(3, 0);
    const dw_tensors *tensors = dw_gguf_tensors_of(file);
    const dw_tensor *cube = dw_tensors_find(tensors, "cube");
    const dw_tensor *iq = dw_tensors_find(tensors, "iq");
    const dw_tensor *future = dw_tensors_find(tensors, "future");
    int64_t files;
    cr_assert(cube->dims == 3 && cube->size[0] == 2 && cube->size[1] == 3 && cube->size[2] == 4 && cube->size[3] == 1);
    cr_assert(cube->elements == 24 && cube->bytes == 96 && cube->storage == DW_F32 && cube->type_id == 0);
    cr_assert_str_eq(cube->type, "F32");
    cr_assert(iq->elements == 512 && iq->bytes == 148 && iq->storage == DW_TYPE_COUNT && iq->type_id == 17);
    cr_assert_str_eq(iq->type, "IQ2_XS");
    cr_assert(future->elements == 32 && future->bytes == 0 && future->storage == DW_TYPE_COUNT && future->type_id == 99);
    cr_assert_str_empty(future->type);
    cr_assert(cube->file == dw_gguf_files_of(file, &files) && files == 1);
    cr_assert(cube->file->header_bytes > 0 && cube->file->data + cube->file->header_bytes <= cube->data);
    cr_assert_null(dw_tensors_find(tensors, "cub"));
    dw_gguf_close(file);
}

Test(gguf_read, names_are_listed_in_order)
{
    static const char *const names[] = {"cube", "flat", "future", "iq", "matrix", "q8", "vector"};
    dw_gguf *file = open_small(3, 0);
    for (int i = 0; i < 7; i++) cr_expect(dw_string_is(dw_gguf_tensors_of(file)->list[i].name, names[i]), "%s", names[i]);
    cr_expect(dw_string_is(dw_gguf_key(file, 0), "a.f32"));
    cr_expect(dw_string_is(dw_gguf_key(file, dw_gguf_keys(file) - 1), "general.architecture"));
    dw_gguf_close(file);
}

Test(gguf_read, absent_keys_and_tensors_are_an_error_only_when_required)
{
    dw_gguf *file = open_small(3, 0);
    int64_t integer = 7;
    int found = 1;
    dw_matrix w = {.inputs = 7};
    OK(dw_gguf_int(file, "a.u9", &integer, &found, &err));
    cr_expect(found == 0 && integer == 7);
    REFUSED(file, dw_gguf_int(file, "a.u9", &integer, NULL, &err), "metadata key a.u9 is missing");
    OK(dw_gguf_int(file, "a.u8", &integer, &found, &err));
    cr_expect(found == 1 && integer == 200);
    OK(dw_tensors_matrix(dw_gguf_tensors_of(file), "matri", 1, 1, &w, &found, &err));
    cr_expect(found == 0 && w.inputs == 7);
    REFUSED(file, dw_tensors_matrix(dw_gguf_tensors_of(file), "matrix2", 1, 1, &w, NULL, &err), "tensor matrix2 is missing");
    dw_gguf_close(file);
}

Test(gguf_read, values_of_another_kind_are_refused_by_name)
{
    dw_gguf *file = open_small(3, 0);
    int64_t integer;
    int64_t count;
    int64_t *integers;
    float *numbers;
    double number;
    int flag;
    int found;
    dw_string text;
    dw_string *texts;
    REFUSED(file, dw_gguf_int(file, "a.huge", &integer, &found, &err), "a.huge is of kind u64; expected an integer below 2^63");
    REFUSED(file, dw_gguf_int(file, "a.f32", &integer, &found, &err), "a.f32 is of kind f32; expected an integer");
    REFUSED(file, dw_gguf_int(file, "a.true", &integer, &found, &err), "a.true is of kind bool");
    REFUSED(file, dw_gguf_int(file, "b.shorts", &integer, &found, &err), "b.shorts is an array of i16; expected an integer");
    REFUSED(file, dw_gguf_float(file, "a.string", &number, &found, &err), "a.string is of kind string; expected a number");
    REFUSED(file, dw_gguf_bool(file, "a.u8", &flag, &found, &err), "a.u8 is of kind u8; expected a bool");
    REFUSED(file, dw_gguf_string(file, "b.strings", &text, &found, &err), "b.strings is an array of string; expected a string");
    REFUSED(file, dw_gguf_string(file, "a.i64", &text, &found, &err), "a.i64 is of kind i64; expected a string");
    REFUSED(file, dw_gguf_strings(file, "b.shorts", &texts, &count, &found, &err), "expected an array of strings");
    REFUSED(file, dw_gguf_strings(file, "a.string", &texts, &count, &found, &err), "expected an array of strings");
    REFUSED(file, dw_gguf_ints(file, "b.doubles", &integers, &count, &found, &err), "expected an array of integers");
    REFUSED(file, dw_gguf_ints(file, "a.u8", &integers, &count, &found, &err), "expected an array of integers");
    REFUSED(file, dw_gguf_floats(file, "b.strings", &numbers, &count, &found, &err), "expected an array of numbers");
    dw_gguf_close(file);
}

Test(gguf_read, unsuitable_tensors_are_refused_by_name_and_type)
{
    dw_gguf *file = open_small(3, 0);
    dw_matrix w;
    int found;
    REFUSED(file, dw_tensors_matrix(dw_gguf_tensors_of(file), "iq", 2, 256, &w, &found, &err),
            "tensor iq has type IQ2_XS (17), which is not supported; supported: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
            "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS");
    REFUSED(file, dw_tensors_matrix(dw_gguf_tensors_of(file), "future", 1, 32, &w, &found, &err),
            "tensor future has type unknown (99), which is not");
    REFUSED(file, dw_tensors_matrix(dw_gguf_tensors_of(file), "cube", -1, -1, &w, &found, &err),
            "tensor cube has 3 dimensions; expected a matrix");
    REFUSED(file, dw_tensors_matrix(dw_gguf_tensors_of(file), "matrix", 8, 3, &w, &found, &err),
            "has 3 rows of 8 numbers; expected 8 rows of 3");
    REFUSED(file, dw_tensors_matrix(dw_gguf_tensors_of(file), "matrix", -1, 9, &w, &found, &err),
            "has 3 rows of 8 numbers; expected any rows of 9");
    REFUSED(file, dw_tensors_matrix(dw_gguf_tensors_of(file), "vector", 5, 1, &w, &found, &err),
            "has 1 rows of 5 numbers; expected 5 rows of 1");
    dw_gguf_close(file);
}

static void check_open_fails(const char *path, const char *words)
{
    dw_gguf *file;
    cr_expect(dw_gguf_open(&file, path, DW_FILE_MAP, &err) == DW_INPUT && file == NULL);
    cr_expect(strstr(err.message, path) == err.message && strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"",
              err.message, words);
}

Test(gguf_read, what_is_no_gguf_file_is_refused_by_name)
{
    const char *path = fixture_path("other");
    const char *pipe = fixture_path("pipe");
    check_open_fails(fixture_path("absent"), "No such file");
    check_open_fails("src", "is a directory");
    cr_assert(mkfifo(pipe, 0600) == 0);
    check_open_fails(pipe, "is not a regular file"); /* and does not wait for a writer */
    write_file(path, "", 0);
    check_open_fails(path, "is empty");
    write_file(path, "PK\x03\x04", 4);
    check_open_fails(path, "not a GGUF file (starts with \"PK??\")");
    write_file(path, "version https://git-lfs", 23);
    check_open_fails(path, "not a GGUF file (starts with \"version \")");
    write_file(path, "GG", 2);
    check_open_fails(path, "not a GGUF file");
    write_file(path, "GGUF\3", 5);
    check_open_fails(path, "truncated or damaged in the header");
}

Test(gguf_read, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    const char *path = fixture_path("small.gguf");
    gguf_writer *writer = gguf_small(3, 0, -1);
    dw_gguf *file;
    int64_t allocations;
    gguf_write(writer, path);
    gguf_free(writer);
    allocations = dw_memory_allocations();
    OK(dw_gguf_open(&file, path, DW_FILE_MAP, &err));
    allocations = dw_memory_allocations() - allocations;
    dw_gguf_close(file);
    cr_assert(allocations >= 4);
    for (int64_t n = 1; n <= allocations; n++) {
        dw_memory_fail_at(n);
        cr_expect(dw_gguf_open(&file, path, DW_FILE_MAP, &err) == DW_RESOURCE && file == NULL, "allocation %lld", (long long)n);
        cr_expect(strstr(err.message, "not enough memory") != NULL, "%s", err.message);
    }
    dw_memory_fail_at(0);
    check_no_leak();
}
