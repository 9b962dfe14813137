/* Damaged GGUF files: each broken field gives its message, no truncation and no flipped byte does harm. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/unit/gguf_small.h"

#define P(n) ((uint64_t)1 << (n))

/* `bytes` bytes of value are written over the field, `by` bytes behind its start. */
typedef struct {
    gguf_field field;
    const char *name;
    int64_t by;
    uint64_t value;
    int bytes;
    const char *words; /* that the message must have */
} damage;

static const damage damages[] = {
    {GGUF_AT_VERSION, "", -4, 0x4747474c, 4, "not a GGUF file (starts with \"LGGG"},
    {GGUF_AT_VERSION, "", 0, 0, 4, "GGUF version 0 is not supported; supported: 2, 3"},
    {GGUF_AT_VERSION, "", 0, 1, 4, "GGUF version 1 is not supported"},
    {GGUF_AT_VERSION, "", 0, 4, 4, "GGUF version 4 is not supported"},
    {GGUF_AT_VERSION, "", 0, 0x03000000, 4, "a big-endian GGUF file (version 3), which is not supported"},
    {GGUF_AT_VERSION, "", 0, 0x02000000, 4, "a big-endian GGUF file (version 2), which is not supported"},
    {GGUF_AT_TENSOR_COUNT, "", 0, P(60), 8, "the header counts 21 metadata keys and 1152921504606846976 tensors"},
    {GGUF_AT_TENSOR_COUNT, "", 0, P(63) + 7, 8, "and 9223372036854775815 tensors, more than"},
    {GGUF_AT_ENTRY_COUNT, "", 0, P(60), 8, "the header counts 1152921504606846976 metadata keys"},
    {GGUF_AT_ENTRY_COUNT, "", 0, UINT64_MAX, 8, "the header counts 18446744073709551615 metadata keys"},
    {GGUF_AT_TENSOR_COUNT, "", 0, 8, 8, "tensor number 7 has no name"}, /* what follows is zero padding */
    {GGUF_AT_KEY, "a.u8", 0, P(60), 8, "in the name of metadata key number 2: 1152921504606846976 x 1 bytes"},
    {GGUF_AT_KEY, "a.u8", 0, UINT64_MAX, 8, "in the name of metadata key number 2: 18446744073709551615 x 1 bytes"},
    {GGUF_AT_KEY, "a.u8", 0, 0, 8, "metadata key number 2 has no name"},
    {GGUF_AT_KIND, "a.u8", 0, 13, 4, "metadata key a.u8 has the unknown kind 13"},
    {GGUF_AT_KIND, "a.u8", 0, UINT32_MAX, 4, "metadata key a.u8 has the unknown kind 4294967295"},
    {GGUF_AT_VALUE, "a.string", 0, P(60), 8, "in metadata key a.string: 1152921504606846976 x 1 bytes"},
    {GGUF_AT_VALUE, "b.shorts", 0, 9, 4, "metadata key b.shorts is an array of arrays, which is not supported"},
    {GGUF_AT_VALUE, "b.shorts", 0, 14, 4, "metadata key b.shorts has the unknown kind 14"},
    {GGUF_AT_VALUE, "b.shorts", 4, P(60), 8, "metadata key b.shorts has 1152921504606846976 elements, more than"},
    {GGUF_AT_VALUE, "b.shorts", 4, P(63), 8, "metadata key b.shorts has 9223372036854775808 elements, more than"},
    {GGUF_AT_VALUE, "b.shorts", 4, 1000, 8, "truncated or damaged in metadata key b.shorts: 1000 x 2 bytes"},
    {GGUF_AT_VALUE, "b.strings", 4, P(60), 8, "metadata key b.strings has 1152921504606846976 elements, more than"},
    {GGUF_AT_VALUE, "b.strings", 12, P(62), 8, "in metadata key b.strings: 4611686018427387904 x 1 bytes"},
    {GGUF_AT_VALUE, "general.alignment", 0, 0, 4, "general.alignment is 0; a multiple of 8"},
    {GGUF_AT_VALUE, "general.alignment", 0, 4, 4, "general.alignment is 4; a multiple of 8"},
    {GGUF_AT_VALUE, "general.alignment", 0, 12, 4, "general.alignment is 12; a multiple of 8"},
    {GGUF_AT_VALUE, "general.alignment", 0, P(31), 4, "general.alignment is 2147483648; a multiple of 8 up to 1073741824"},
    {GGUF_AT_VALUE, "general.alignment", 0, 64, 4, "tensor vector starts at offset 96, not a multiple of the alignment 64"},
    {GGUF_AT_VALUE, "general.alignment", 0, 65536, 4, "tensor matrix has 96 bytes at offset 65536, but the file has"},
    {GGUF_AT_KIND, "general.alignment", 0, GGUF_F32, 4, "general.alignment is of kind f32; expected an integer"},
    {GGUF_AT_NAME, "q8", 0, P(61), 8, "in the name of tensor number 6: 2305843009213693952 x 1 bytes"},
    {GGUF_AT_NAME, "q8", 0, 0, 8, "tensor number 6 has no name"},
    {GGUF_AT_DIMS, "q8", 0, 0, 4, "tensor q8 has 0 dimensions (1 to 4 are legal)"},
    {GGUF_AT_DIMS, "q8", 0, 5, 4, "tensor q8 has 5 dimensions"},
    {GGUF_AT_DIMS, "q8", 0, UINT32_MAX, 4, "tensor q8 has 4294967295 dimensions"},
    {GGUF_AT_DIMS, "q8", 4, 0, 8, "tensor q8 has the impossible dimension 0"},
    {GGUF_AT_DIMS, "q8", 4, P(63), 8, "tensor q8 has the impossible dimension 9223372036854775808"},
    {GGUF_AT_DIMS, "q8", 4, P(62), 8, "tensor q8 has the impossible dimension 2"}, /* the product passes 2^63 */
    {GGUF_AT_DIMS, "q8", 4, P(61), 8, "tensor q8 has 4899916394579099648 bytes at offset"},
    {GGUF_AT_DIMS, "matrix", 4, P(61) - 8, 8, "tensor matrix has 9223372036854775807 bytes"}, /* the size in bytes does */
    {GGUF_AT_DIMS, "q8", 4, 33, 8, "tensor q8 has rows of 33 numbers, not a multiple of the 32 of a Q8_0 block"},
    {GGUF_AT_DIMS, "q8", 12, 3, 8, "truncated or damaged: tensor q8 has 102 bytes at offset"},
    {GGUF_AT_TYPE, "q8", 0, 14, 4, "tensor q8 has rows of 32 numbers, not a multiple of the 256 of a Q6_K block"},
    {GGUF_AT_TYPE, "q8", 0, 0, 4, "truncated or damaged: tensor q8 has 256 bytes at offset"},
    {GGUF_AT_OFFSET, "q8", 0, 4, 8, "tensor q8 starts at offset 4, not a multiple of the alignment 32"},
    {GGUF_AT_OFFSET, "q8", 0, 1024, 8, "truncated or damaged: tensor q8 has 68 bytes at offset"},
    {GGUF_AT_OFFSET, "future", 0, 1024, 8, "truncated or damaged: tensor future has 0 bytes at offset"},
    {GGUF_AT_OFFSET, "q8", 0, P(40), 8, "tensor q8 starts at offset 1099511627776, but the file has"},
    {GGUF_AT_OFFSET, "q8", 0, UINT64_MAX - 31, 8, "tensor q8 starts at offset 18446744073709551584"},
};

/* Opening must fail with a one-line message that names the file and has the words in it. */
static void check_refused(const char *path, const char *words)
{
    dw_error err = {.message = ""};
    dw_gguf *file;
    const dw_status status = dw_gguf_open(&file, path, DW_FILE_MAP, &err);
    cr_expect(status == DW_INPUT && file == NULL, "status %d where \"%s\" was expected", status, words);
    cr_expect(strstr(err.message, path) == err.message && strchr(err.message, '\n') == NULL, "\"%s\"", err.message);
    cr_expect(strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"", err.message, words);
    if (status == DW_OK) dw_gguf_close(file);
}

Test(gguf_damage, every_field_out_of_range_is_named)
{
    const char *path = fixture_path("damaged.gguf");
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const damage *d = &damages[i];
        gguf_writer *writer = gguf_small(3, 32, -1);
        int64_t bytes;
        uint8_t *data = gguf_build(writer, &bytes);
        memcpy(data + gguf_where(writer, d->field, d->name) + d->by, &d->value, (size_t)d->bytes);
        gguf_write(writer, path);
        gguf_free(writer);
        check_refused(path, d->words);
    }
}

Test(gguf_damage, duplicates_are_refused)
{
    const char *path = fixture_path("damaged.gguf");
    const float number = 1;
    const int64_t size = 1;
    gguf_writer *writer = gguf_small(3, 0, -1);
    gguf_put_u32(writer, "a.u8", 1);
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "metadata key a.u8 occurs twice");
    writer = gguf_small(3, 0, -1);
    gguf_put_tensor(writer, "cube", 0, 1, &size, &number, 4);
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "tensor cube occurs twice");
}

Test(gguf_damage, names_of_any_bytes_stay_on_one_line_of_the_message)
{
    const char *path = fixture_path("damaged.gguf");
    const uint32_t kind = 77;
    gguf_writer *writer = gguf_small(3, 0, -1);
    gguf_put_raw(writer, "line\nfeed \x1b[31m and 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789", kind,
                 NULL, 0);
    gguf_write(writer, path);
    gguf_free(writer);
    check_refused(path, "key line?feed ?[31m and 0123456789 0123456789 0123456789 0123456789 0123456789 01234... has the "
                        "unknown kind 77");
}

/* Opens the file and touches all of it; a failure must name the file. Returns whether it could be opened. */
static int open_and_touch(const char *path)
{
    dw_error err = {.message = ""};
    dw_gguf *file;
    if (dw_gguf_open(&file, path, DW_FILE_MAP, &err) != DW_OK) {
        cr_assert(err.status == DW_INPUT && strstr(err.message, path) == err.message, "\"%s\"", err.message);
        return 0;
    }
    gguf_touch_all(file);
    dw_gguf_close(file);
    return 1;
}

Test(gguf_damage, truncation_at_every_byte_is_noticed)
{
    const char *path = fixture_path("truncated.gguf");
    for (uint32_t version = 2; version <= 3; version++) {
        gguf_writer *writer = gguf_small(version, 64, -1);
        int64_t size;
        int64_t end; /* of the last tensor's data; zero padding follows */
        (void)gguf_build(writer, &size);
        end = gguf_where(writer, GGUF_AT_DATA, "q8") + 68;
        gguf_write(writer, path);
        cr_assert(end < size);
        for (int64_t n = size; n >= 0; n--) {
            cr_assert(truncate(path, n) == 0);
            cr_assert(open_and_touch(path) == (n >= end), "version %u, %lld of %lld bytes", version, (long long)n,
                      (long long)size);
        }
        gguf_free(writer);
    }
}

/* The mapped file ends with a page, so that reading one byte too much is a fault: the string in front shifts the rest
   over that end byte by byte. */
Test(gguf_damage, truncated_files_are_not_read_beyond_their_end)
{
    enum { END = 8192 };
    const char *path = fixture_path("truncated.gguf");
    gguf_writer *writer = gguf_small(3, 0, 0);
    int64_t size;
    (void)gguf_build(writer, &size);
    gguf_free(writer);
    cr_assert(size < END - 64);
    for (int64_t padding = END - size; padding <= END - 64; padding++) {
        int64_t bytes;
        const uint8_t *data;
        writer = gguf_small(3, 0, padding);
        data = gguf_build(writer, &bytes);
        cr_assert(bytes >= END);
        write_file(path, data, END);
        (void)open_and_touch(path);
        gguf_free(writer);
    }
}

Test(gguf_damage, random_bytes_do_no_harm)
{
    enum { FILES = 4000, MOST_FLIPS = 4 };
    const char *path = fixture_path("flipped.gguf");
    gguf_writer *writer = gguf_small(3, 32, -1);
    int64_t size;
    int64_t directory;
    int64_t opened = 0;
    uint8_t *data = gguf_build(writer, &size);
    uint8_t *copy;
    dw_error err;
    directory = gguf_where(writer, GGUF_AT_DATA, "matrix");
    cr_assert(DW_ALLOC(&copy, size, "copy", &err) == DW_OK);
    for (int64_t i = 0; i < FILES; i++) {
        memcpy(copy, data, (size_t)size);
        for (int64_t f = 0; f <= i % MOST_FLIPS; f++) {
            const double where = 0.5 + 0.5 * (double)fixture_random(1, MOST_FLIPS * i + f, 1);
            const double value = 128 + 128 * (double)fixture_random(2, MOST_FLIPS * i + f, 1);
            copy[(int64_t)(where * (double)directory)] = (uint8_t)value;
        }
        write_file(path, copy, size);
        opened += open_and_touch(path);
    }
    cr_expect(opened > FILES / 20 && opened < FILES / 2, "%lld of %d damaged files could be opened", (long long)opened, FILES);
    dw_free(copy);
    gguf_free(writer);
}
