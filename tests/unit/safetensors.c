/* Safetensors files and their index: sound ones give what was written, each fault is named, no damage does harm. */
#include "model/safetensors.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/safetensors_small.h"

static dw_error err;

static void open_small(dw_safetensors *s, dw_file_way way)
{
    cr_assert_eq(dw_safetensors_open(s, small_directory(), way, &err), DW_OK, "%s", err.message);
}

/* Opening fails with one line that begins with the path of `file` and has the words in it. */
static void check_refused(const char *file, const char *words)
{
    dw_safetensors s;
    char path[512];
    snprintf(path, sizeof path, "%s%s%s: ", small_directory(), file[0] == '\0' ? "" : "/", file);
    err.message[0] = '\0';
    cr_expect_eq(dw_safetensors_open(&s, small_directory(), DW_FILE_MAP, &err), DW_INPUT, "%s", words);
    cr_expect(s.files == NULL && s.tensors.list == NULL && s.headers == NULL);
    cr_expect(strstr(err.message, path) == err.message && strchr(err.message, '\n') == NULL, "\"%s\" of %s", err.message, file);
    cr_expect(strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"", err.message, words);
}

/* ---- what is there ---- */

Test(safetensors, shapes_types_and_places_are_those_of_the_header)
{
    for (int w = 0; w < 2; w++) {
        dw_safetensors s;
        const dw_tensor *t;
        small_shards();
        open_small(&s, w == 0 ? DW_FILE_MAP : DW_FILE_READ);
        cr_assert(s.count == 2 && s.tensors.count == 3);
        t = dw_tensors_find(&s.tensors, "a");
        cr_assert(t->dims == 2 && t->size[0] == 3 && t->size[1] == 2 && t->size[2] == 1 && t->size[3] == 1);
        cr_assert(t->elements == 6 && t->bytes == 24 && t->storage == DW_F32 && t->type_id == 0);
        cr_assert(strcmp(t->type, "F32") == 0 && t->data[0] == 0 && t->data[23] == 23);
        cr_assert_str_eq(strrchr(t->file->path, '/'), "/one.safetensors");
        t = dw_tensors_find(&s.tensors, "b");
        cr_assert(t->dims == 1 && t->size[0] == 4 && t->storage == DW_F16 && t->bytes == 8 && t->data[0] == 0);
        cr_assert_str_eq(strrchr(t->file->path, '/'), "/two.safetensors");
        t = dw_tensors_find(&s.tensors, "c");
        cr_assert(t->dims == 0 && t->size[0] == 1 && t->elements == 1 && t->storage == DW_BF16 && t->data[1] == 25);
        dw_safetensors_close(&s);
        cr_assert(s.files == NULL && s.count == 0);
    }
    check_no_leak();
}

Test(safetensors, a_matrix_is_rows_of_the_last_dimension)
{
    dw_safetensors s;
    dw_matrix m;
    int found = 1;
    small_shards();
    open_small(&s, DW_FILE_MAP);
    cr_assert_eq(dw_tensors_matrix(&s.tensors, "a", 2, 3, &m, NULL, &err), DW_OK, "%s", err.message);
    cr_assert(m.type == DW_F32 && m.outputs == 2 && m.inputs == 3 && ((const uint8_t *)m.data)[12] == 12);
    cr_assert_eq(dw_tensors_matrix(&s.tensors, "d", 2, 3, &m, &found, &err), DW_OK);
    cr_assert_eq(found, 0);
#define REFUSED(file, call, words)                                                                                             \
    do {                                                                                                                       \
        cr_expect_eq(call, DW_INPUT);                                                                                          \
        cr_expect(strstr(err.message, file ": " words) != NULL, "%s", err.message);                                            \
    } while (0)
    REFUSED("one.safetensors", dw_tensors_matrix(&s.tensors, "a", 3, 2, &m, NULL, &err),
            "tensor a has 2 rows of 3 numbers; expected 3 rows of 2");
    REFUSED("one.safetensors", dw_tensors_matrix(&s.tensors, "c", -1, -1, &m, NULL, &err),
            "tensor c has 0 dimensions; expected a matrix");
    REFUSED(".", dw_tensors_matrix(&s.tensors, "d", 2, 3, &m, NULL, &err), "tensor d is missing");
    dw_safetensors_close(&s);
}

/* Whatever the length of the header; the data are then not aligned. */
Test(safetensors, headers_of_any_length_and_with_spaces_behind_are_read)
{
    char header[128] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const size_t length = strlen(header);
    for (size_t spaces = 0; spaces < 16; spaces++) {
        dw_safetensors s;
        small_safetensors("model.safetensors", header, 4);
        open_small(&s, DW_FILE_READ);
        cr_assert_eq(s.files[0].header_bytes, (int64_t)(8 + length + spaces));
        cr_assert(s.tensors.list[0].data == s.files[0].data + s.files[0].header_bytes);
        cr_assert(memcmp(s.tensors.list[0].data, "\0\1\2\3", 4) == 0);
        dw_safetensors_close(&s);
        strncat(header, " ", 2);
    }
}

Test(safetensors, types_without_kernels_are_listed_and_refused_when_asked_for)
{
    static const struct {
        const char *name;
        int bytes; /* of 8 numbers */
    } others[] = {{"BOOL", 8}, {"U8", 8},      {"I8", 8},      {"I16", 16},    {"U16", 16},    {"I32", 32},
                  {"U32", 32}, {"I64", 64},    {"U64", 64},    {"F64", 64},    {"C64", 64},    {"F8_E4M3", 8},
                  {"F4", 4},   {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"Q77", 5}}; /* no such type */
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char header[256];
        char words[128];
        dw_safetensors s;
        dw_matrix m;
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%d]}}", others[i].name,
                 others[i].bytes);
        small_safetensors("model.safetensors", header, others[i].bytes);
        open_small(&s, DW_FILE_MAP);
        cr_assert(s.tensors.list[0].storage == DW_TYPE_COUNT && s.tensors.list[0].bytes == others[i].bytes);
        cr_assert_str_eq(s.tensors.list[0].type, others[i].name);
        cr_expect_eq(dw_tensors_matrix(&s.tensors, "x", 2, 4, &m, NULL, &err), DW_INPUT);
        snprintf(words, sizeof words, "tensor x has type %s, which is not supported; supported: F32, F16, BF16",
                 others[i].name);
        cr_expect(strstr(err.message, words) != NULL, "%s", err.message);
        dw_safetensors_close(&s);
    }
}

Test(safetensors, empty_tensors_hold_no_bytes)
{
    dw_safetensors s;
    dw_matrix m;
    small_safetensors("model.safetensors",
                      "{\"x\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[2,2]},"
                      "\"y\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
                      2);
    open_small(&s, DW_FILE_MAP);
    cr_assert(s.tensors.list[0].elements == 0 && s.tensors.list[0].bytes == 0);
    cr_assert_eq(dw_tensors_matrix(&s.tensors, "x", -1, -1, &m, NULL, &err), DW_INPUT);
    cr_assert(strstr(err.message, "tensor x is empty") != NULL, "%s", err.message);
    dw_safetensors_close(&s);
    small_safetensors("model.safetensors", "{}", 0);
    open_small(&s, DW_FILE_MAP);
    cr_assert(s.tensors.count == 0 && dw_tensors_find(&s.tensors, "x") == NULL);
    dw_safetensors_close(&s);
}

Test(safetensors, model_safetensors_goes_before_an_index)
{
    dw_safetensors s;
    small_shards();
    small_safetensors("model.safetensors", SMALL_TWO, SMALL_TWO_BYTES);
    open_small(&s, DW_FILE_MAP);
    cr_assert(s.count == 1 && s.tensors.count == 1);
    dw_safetensors_close(&s);
}

/* ---- faults of a file ---- */

#define X(dtype, shape, offsets) "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define XY(x, y) "{\"x\":{\"dtype\":\"U8\"," x "},\"y\":{\"dtype\":\"U8\"," y "}}"
#define U8(n, a, b) "\"shape\":[" #n "],\"data_offsets\":[" #a "," #b "]"

static const struct {
    const char *header; /* with 8 data bytes behind */
    const char *words;
} faults[] = {
    {"[1]", "not a safetensors file: no JSON object behind the first 8 bytes"},
    {"", "not a safetensors file: no JSON object"},
    {"{", "header: line 1, column 1: string or '}' expected"},
    {"{}x", "header: line 1, column 3: end of file expected"},
    {"{\"\xff\":1}", "header: line 1, column 2: unable to decode byte 0xff"},
    {"{\"x\":1,\"x\":2}", "duplicate object key"},
    {X("\"F32\"", "[2],\"shape\":[2]", "[0,8]"), "duplicate object key"},
    {"{\"x\":7}", "tensor x is no JSON object"},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "a tensor has no name"},
    {"{\"__metadata__\":[1]}", "__metadata__ is no JSON object of strings"},
    {"{\"__metadata__\":{\"format\":1}}", "__metadata__ is no JSON object of strings"},
    {"{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "tensor x has no dtype"},
    {X("32", "[2]", "[0,8]"), "tensor x has no dtype"},
    {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "tensor x has no shape"},
    {X("\"F32\"", "2", "[0,8]"), "tensor x has no shape"},
    {X("\"F32\"", "[-2]", "[0,8]"), "tensor x has an impossible shape; dimensions are integers from 0"},
    {X("\"F32\"", "[2.0]", "[0,8]"), "tensor x has an impossible shape"},
    {X("\"F32\"", "[\"2\"]", "[0,8]"), "tensor x has an impossible shape"},
    {X("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "tensor x has an impossible shape"},
    {X("\"F32\"", "[18446744073709551616]", "[0,8]"), "too big integer"},
    {X("\"F32\"", "[1,1,1,1,2]", "[0,8]"), "tensor x has 5 dimensions; 0 to 4 are supported"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", "tensor x has no data_offsets [begin, end] with 0 <= begin <= end"},
    {X("\"F32\"", "[2]", "[0]"), "tensor x has no data_offsets"},
    {X("\"F32\"", "[2]", "[0,8,8]"), "tensor x has no data_offsets"},
    {X("\"F32\"", "[2]", "[8,0]"), "tensor x has no data_offsets"},
    {X("\"F32\"", "[2]", "[-8,0]"), "tensor x has no data_offsets"},
    {X("\"F32\"", "[2]", "[0,8.0]"), "tensor x has no data_offsets"},
    {X("\"F32\"", "[2]", "{\"0\":0,\"1\":8}"), "tensor x has no data_offsets"},
    {X("\"F32\"", "[2]", "[0,9]"), "truncated or damaged: tensor x ends at byte 9 of the data, but the file has 8"},
    {X("\"F32\"", "[2]", "[0,9223372036854775807]"),
     "tensor x ends at byte 9223372036854775807 of the data, but the file has 8"},
    {X("\"F32\"", "[3]", "[0,8]"), "tensor x has 8 bytes, which are not those of 3 numbers of type F32"},
    {X("\"F16\"", "[2]", "[0,8]"), "tensor x has 8 bytes, which are not those of 2 numbers of type F16"},
    {X("\"F32\"", "[4611686018427387904]", "[0,8]"), "tensor x has 8 bytes, which are not those of 4611686018427387904"},
    {X("\"F4\"", "[17]", "[0,8]"), "tensor x has 8 bytes, which are not those of 17 numbers of type F4"},
    {X("\"F32\"", "[1]", "[0,4]"), "4 bytes at the end of the file belong to no tensor"},
    {X("\"F32\"", "[1]", "[4,8]"), "4 bytes in front of tensor x belong to no tensor"},
    {"{}", "8 bytes at the end of the file belong to no tensor"},
    {XY(U8(4, 0, 4), U8(3, 5, 8)), "1 bytes in front of tensor y belong to no tensor"},
    {XY(U8(5, 3, 8), U8(4, 0, 4)), "tensors y and x overlap"},
    {XY(U8(8, 0, 8), U8(8, 0, 8)), "overlap"},
    {XY(U8(8, 0, 8), U8(0, 4, 4)), "tensors x and y overlap"},
};

Test(safetensors, every_fault_of_a_header_is_named)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        small_safetensors("model.safetensors", faults[i].header, 8);
        check_refused("model.safetensors", faults[i].words);
    }
    check_no_leak();
}

Test(safetensors, lengths_that_the_file_can_not_hold_are_named)
{
    static const struct {
        uint64_t length;
        const char *words;
    } cases[] = {
        {61, "it states a header of 61 bytes, but has 68 bytes"},
        {100000001, "it states a header of 100000001 bytes, but has 68 bytes; headers have at most 100000000"},
        {(uint64_t)1 << 63, "it states a header of 9223372036854775808 bytes"},
        {UINT64_MAX, "it states a header of 18446744073709551615 bytes"},
        {0, "no JSON object behind the first 8 bytes"},
        {1, "header: line 1, column 1"},
    };
    const char *path = fixture_path("model.safetensors");
    char bytes[69] = "12345678{                                                          }";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(bytes, &cases[i].length, 8);
        write_file(path, bytes, 68);
        check_refused("model.safetensors", cases[i].words);
    }
    /* A file with as long a header, all but its start a hole. */
    memcpy(bytes, &cases[1].length, 8);
    write_file(path, bytes, 68);
    cr_assert_eq(truncate(path, 100000020), 0);
    check_refused("model.safetensors", "it states a header of 100000001 bytes, but has 100000020 bytes; headers have at most");
    write_file(path, "version https://git-lfs.github.com/spec/v1", 42);
    check_refused("model.safetensors", "not a safetensors file, or truncated");
    write_file(path, "", 0);
    check_refused("model.safetensors", "is empty; expected a safetensors file");
}

/* A JSON text that nests deeper than a stack can follow. */
Test(safetensors, deep_nesting_is_refused)
{
    enum { DEPTH = 1000000 };
    char *header;
    cr_assert_eq(DW_ALLOC(&header, DEPTH + 8, "header", &err), DW_OK);
    memset(header, '[', DEPTH + 7);
    memcpy(header, "{\"x\":", 5);
    small_safetensors("model.safetensors", header, 8);
    dw_free(header);
    check_refused("model.safetensors", "maximum parsing depth reached");
}

Test(safetensors, names_of_any_bytes_stay_on_one_line_of_the_message)
{
    small_safetensors("model.safetensors", "{\"a\\nb\\u001b\xc3\xa9\":{\"dtype\":\"F32\\n\",\"shape\":7}}", 8);
    check_refused("model.safetensors", "tensor a?b??? has no shape");
    small_safetensors("model.safetensors", "{\"a\n", 8);
    check_refused("model.safetensors", "header: line 1, column 3: ");
}

/* ---- faults of an index ---- */

#define MAP(text) "{\"weight_map\":{" text "}}"
#define SOUND "\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"one.safetensors\""

Test(safetensors, every_fault_of_an_index_is_named)
{
    static const char *const index = "model.safetensors.index.json";
    static const struct {
        const char *text, *file, *words;
    } cases[] = {
        {"", index, "is empty; expected a JSON file"},
        {"[]", index, "is no JSON object"},
        {"{\"a\":\n oops}", index, "line 2, column 5: invalid token near 'oops'"},
        {MAP("\"a\":\"one.safetensors\",\"a\":\"one.safetensors\""), index, "duplicate object key"},
        {"{}", index, "weight_map is missing or names no tensor"},
        {"{\"weight_map\":7}", index, "weight_map is missing or names no tensor"},
        {MAP(""), index, "weight_map is missing or names no tensor"},
        {MAP("\"a\":7"), index, "weight_map names '' for tensor a; it must be a file of the same directory"},
        {MAP("\"a\":\"\""), index, "weight_map names '' for tensor a"},
        {MAP("\"a\":\"..\""), index, "weight_map names '..' for tensor a"},
        {MAP("\"a\":\".\""), index, "weight_map names '.' for tensor a"},
        {MAP("\"a\":\"../one.safetensors\""), index, "weight_map names '../one.safetensors' for tensor a"},
        {MAP("\"a\":\"/etc/passwd\""), index, "weight_map names '/etc/passwd' for tensor a"},
        {MAP(SOUND ",\"d\":\"three.safetensors\""), "three.safetensors", "No such file or directory"},
        {MAP(SOUND ",\"d\":\"one.safetensors\""), index, "tensor d is not in one.safetensors, nor in another file"},
        {MAP("\"a\":\"two.safetensors\",\"b\":\"two.safetensors\",\"c\":\"one.safetensors\""), index,
         "tensor a is in one.safetensors, not in two.safetensors"},
        {MAP("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""), index,
         "tensor c of one.safetensors is missing in weight_map"},
    };
    small_shards();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        small_text(index, cases[i].text);
        check_refused(cases[i].file, cases[i].words);
    }
    small_shards();
    small_safetensors("two.safetensors", "{\"a\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8);
    check_refused("", "tensor a occurs twice, in ");
    small_shards();
    small_remove("two.safetensors");
    check_refused("two.safetensors", "No such file or directory");
    small_remove(index);
    check_refused("", "has neither model.safetensors nor model.safetensors.index.json");
    check_no_leak();
}

/* ---- damage ---- */

/* The last byte of a tensor and the header's length are of the same file, so that no prefix is a file. */
Test(safetensors, truncation_at_every_byte_is_noticed)
{
    static const char *const names[] = {"one.safetensors", "two.safetensors", "model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        char path[512];
        uint8_t *bytes;
        int64_t size;
        small_shards();
        snprintf(path, sizeof path, "%s/%s", small_directory(), names[i]);
        read_file(path, &bytes, &size);
        for (int64_t n = 0; n < size; n++) {
            write_file(path, bytes, n);
            check_refused(names[i], "");
        }
        dw_free(bytes);
    }
    check_no_leak();
}

/* All bytes of names and data must lie where they may. */
static void touch(const dw_safetensors *s)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < s->tensors.count; i++) {
        const dw_tensor *t = &s->tensors.list[i];
        cr_assert(t->data >= t->file->data && t->data + t->bytes <= t->file->data + t->file->bytes);
        for (int64_t b = 0; b < t->bytes; b++) sum += t->data[b];
        for (int64_t b = 0; b < t->name.length; b++) sum += (uint8_t)t->name.data[b];
    }
    cr_assert(sum > 0 || s->tensors.count == 0);
}

Test(safetensors, any_flipped_byte_does_no_harm)
{
    static const char *const names[] = {"one.safetensors", "model.safetensors.index.json"};
    static const uint8_t flips[] = {0x01, 0x02, 0x10, 0x20, 0x80, 0xff};
    int64_t opened = 0;
    int64_t tried = 0;
    for (int i = 0; i < 2; i++) {
        char path[512];
        uint8_t *bytes;
        int64_t size;
        small_shards();
        snprintf(path, sizeof path, "%s/%s", small_directory(), names[i]);
        read_file(path, &bytes, &size);
        for (int64_t at = 0; at < size; at++) {
            for (size_t f = 0; f < sizeof flips; f++, tried++) {
                dw_safetensors s;
                dw_status status;
                bytes[at] ^= flips[f];
                write_file(path, bytes, size);
                status = dw_safetensors_open(&s, small_directory(), DW_FILE_MAP, &err);
                cr_assert(status == DW_OK || status == DW_INPUT, "byte %lld: %s", (long long)at, err.message);
                if (status == DW_OK) {
                    touch(&s);
                    dw_safetensors_close(&s);
                    opened++;
                }
                bytes[at] ^= flips[f];
            }
        }
        dw_free(bytes);
    }
    cr_expect(opened > tried / 20 && opened < tried / 2, "%lld of %lld could be opened", (long long)opened, (long long)tried);
    check_no_leak();
}

Test(safetensors, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    int64_t allocations;
    dw_safetensors s;
    small_shards();
    allocations = dw_memory_allocations();
    open_small(&s, DW_FILE_READ);
    allocations = dw_memory_allocations() - allocations;
    dw_safetensors_close(&s);
    cr_assert_geq(allocations, 12);
    for (int64_t n = 1; n <= allocations; n++) {
        dw_memory_fail_at(n);
        cr_expect_eq(dw_safetensors_open(&s, small_directory(), DW_FILE_READ, &err), DW_RESOURCE, "allocation %lld",
                     (long long)n);
        cr_expect(strstr(err.message, "not enough memory") != NULL, "%s", err.message);
    }
    dw_memory_fail_at(0);
    check_no_leak();
}
