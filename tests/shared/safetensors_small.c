#include "tests/shared/safetensors_small.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"

const char *small_directory(void)
{
    static char path[512];
    if (path[0] == '\0') snprintf(path, sizeof path, "%s", fixture_path("."));
    return path;
}

/* Valid until the next call. */
static const char *path_of(const char *name)
{
    static char path[768];
    snprintf(path, sizeof path, "%s/%s", small_directory(), name);
    return path;
}

void small_safetensors(const char *name, const char *header, int64_t bytes)
{
    const int64_t length = (int64_t)strlen(header);
    uint8_t *file;
    dw_error err;
    cr_assert_eq(DW_ALLOC(&file, 8 + length + bytes, "file", &err), DW_OK, "%s", err.message);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, (size_t)length);
    for (int64_t i = 0; i < bytes; i++) file[8 + length + i] = (uint8_t)i;
    write_file(path_of(name), file, 8 + length + bytes);
    dw_free(file);
}

void small_text(const char *name, const char *text)
{
    write_file(path_of(name), text, (int64_t)strlen(text));
}

void small_remove(const char *name)
{
    (void)unlink(path_of(name));
}

void small_shards(void)
{
    small_remove("model.safetensors");
    small_safetensors("one.safetensors", SMALL_ONE, SMALL_ONE_BYTES);
    small_safetensors("two.safetensors", SMALL_TWO, SMALL_TWO_BYTES);
    small_text("model.safetensors.index.json", SMALL_INDEX);
}
