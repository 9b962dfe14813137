#include "model/fingerprint.h"

#include <criterion/criterion.h>

#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"

static dw_fingerprint fingerprint(const char *path)
{
    dw_gguf *file;
    dw_error err;
    dw_fingerprint print;
    cr_assert_eq(dw_gguf_open(&file, path, &err), DW_OK, "%s", err.message);
    print = dw_fingerprint_of(file);
    dw_gguf_close(file);
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
