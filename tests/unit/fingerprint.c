#include "model/fingerprint.h"

#include <criterion/criterion.h>

#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"
#include "tests/shared/safetensors_small.h"

static dw_fingerprint fingerprint(const char *path)
{
    dw_checkpoint *checkpoint;
    dw_error err;
    dw_fingerprint print;
    cr_assert_eq(dw_checkpoint_open(&checkpoint, path, DW_FILE_MAP, &err), DW_OK, "%s", err.message);
    print = dw_fingerprint_of(checkpoint);
    dw_checkpoint_close(checkpoint);
    return print;
}

/* The fixture with one bit changed, `offset` bytes behind the start of a field. */
static dw_fingerprint changed(gguf_field field, const char *name, int64_t offset)
{
    const char *path = fixture_path("changed.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.tokenizer = 1});
    int64_t bytes;
    uint8_t *data = gguf_build(writer, &bytes);
    data[gguf_where(writer, field, name) + offset] ^= 1;
    gguf_write(writer, path);
    gguf_free(writer);
    return fingerprint(path);
}

static dw_fingerprint original(void)
{
    const char *path = fixture_path("model.gguf");
    fixture_model(path, &(fixture_spec){.tokenizer = 1});
    return fingerprint(path);
}

Test(fingerprint, the_same_file_under_another_name_has_the_same)
{
    const char *path = fixture_path("again.gguf");
    const dw_fingerprint a = original();
    dw_fingerprint b;
    fixture_model(path, &(fixture_spec){.tokenizer = 1});
    b = fingerprint(path);
    cr_assert(a.header == b.header && a.weights == b.weights);
}

Test(fingerprint, metadata_and_shapes_are_part_of_the_header_s)
{
    const dw_fingerprint a = original();
    const dw_fingerprint value = changed(GGUF_AT_VALUE, "tokenizer.ggml.eos_token_id", 0);
    const dw_fingerprint name = changed(GGUF_AT_NAME, "blk.1.ffn_up.weight", 8 + 6);
    cr_assert(a.header != value.header && a.weights == value.weights);
    cr_assert(a.header != name.header);
}

/* Matrices of [96][64] f32 and vectors of [64]: 24,576 and 256 bytes. */
Test(fingerprint, the_ends_of_every_tensor_are_part_of_the_weights)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } tensors[] = {{"token_embd.weight", 320 * 64 * 4},  {"blk.0.attn_q.weight", 64 * 64 * 4},
                   {"blk.1.ffn_up.weight", 96 * 64 * 4}, {"blk.1.attn_norm.weight", 64 * 4},
                   {"output_norm.weight", 64 * 4},       {"output.weight", 320 * 64 * 4}};
    const dw_fingerprint a = original();
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        const dw_fingerprint first = changed(GGUF_AT_DATA, tensors[i].name, 0);
        const dw_fingerprint last = changed(GGUF_AT_DATA, tensors[i].name, tensors[i].bytes - 1);
        cr_assert(first.weights != a.weights && first.header == a.header, "%s, first byte", tensors[i].name);
        cr_assert(last.weights != a.weights && last.header == a.header, "%s, last byte", tensors[i].name);
        cr_assert_neq(first.weights, last.weights);
    }
}

/* ---- directories ---- */

static dw_fingerprint directory(void)
{
    return fingerprint(small_directory());
}

static int same(dw_fingerprint a, dw_fingerprint b)
{
    return a.header == b.header && a.weights == b.weights;
}

Test(fingerprint, a_directory_has_the_same_whatever_its_files_are_called)
{
    dw_fingerprint a, b;
    small_shards();
    small_text("config.json", "{}");
    a = directory();
    small_safetensors("z.safetensors", SMALL_ONE, SMALL_ONE_BYTES);
    small_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"z.safetensors\",\"b\":\"two.safetensors\",\"c\":\"z.safetensors\"}}");
    b = directory();
    cr_assert(same(a, b) && a.header != 0 && a.weights != 0);
}

Test(fingerprint, configuration_headers_and_weights_of_a_directory_are_told_apart)
{
    dw_fingerprint a, b;
    small_shards();
    small_text("config.json", "{\"rope_theta\": 10000}");
    a = directory();
    small_text("config.json", "{\"rope_theta\": 10001}");
    b = directory();
    cr_assert(a.header != b.header && a.weights == b.weights);
    small_text("config.json", "{\"rope_theta\": 10000}");
    cr_assert(same(a, directory()));
    small_safetensors("two.safetensors", "{\"b\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}", 8);
    b = directory();
    cr_assert(a.header != b.header && a.weights == b.weights);
    small_safetensors("two.safetensors", "{\"b\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[0,10]}}", 10);
    b = directory();
    cr_assert(a.header != b.header && a.weights != b.weights);
}

Test(fingerprint, parts_of_a_split_file_are_all_in_it)
{
    static const char *const names[] = {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"};
    dw_fingerprint first = {0};
    for (int change = 0; change < 3; change++) { /* of nothing, of part 1, of part 2 */
        dw_fingerprint print;
        for (int part = 0; part < 2; part++) {
            gguf_writer *writer = gguf_new(3);
            const int64_t size = 2;
            const float numbers[] = {1, change == part + 1 ? 3 : 2};
            gguf_put_u32(writer, "split.no", (uint32_t)part);
            gguf_put_u32(writer, "split.count", 2);
            gguf_put_tensor(writer, part == 0 ? "a" : "b", 0, 1, &size, numbers, sizeof numbers);
            gguf_write(writer, fixture_path(names[part]));
            gguf_free(writer);
        }
        print = fingerprint(fixture_path(names[1]));
        if (change == 0) first = print;
        cr_assert(print.header == first.header && (print.weights == first.weights) == (change == 0), "change %d", change);
    }
}
