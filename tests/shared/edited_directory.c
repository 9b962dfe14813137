#include "tests/shared/edited_directory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"

edited_directory edited_directory_read(const char *name)
{
    edited_directory d;
    char path[128];
    uint8_t *file;
    uint64_t header;
    int64_t bytes;
    dw_error err;
    snprintf(path, sizeof path, "models/%s/config.json", name);
    d.config = reference_json(path);
    snprintf(path, sizeof path, "models/%s/model.safetensors", name);
    read_file(reference_path(path), &file, &bytes);
    cr_assert(bytes >= 8);
    memcpy(&header, file, sizeof header);
    cr_assert(header <= (uint64_t)bytes - 8, "%s is too short", path);
    d.header = json_loadb((const char *)file + 8, header, 0, NULL);
    d.bytes = bytes - 8 - (int64_t)header;
    cr_assert(json_is_object(d.header) && DW_ALLOC(&d.data, d.bytes, "checkpoint", &err) == DW_OK);
    memcpy(d.data, file + 8 + header, (size_t)d.bytes);
    dw_free(file);
    return d;
}

void edited_directory_free(edited_directory *d)
{
    json_decref(d->config);
    json_decref(d->header);
    dw_free(d->data);
}

const char *edited_directory_write(const edited_directory *d, const char *name)
{
    const char *directory = fixture_directory(name);
    char path[600];
    char *config = json_dumps(d->config, 0);
    char *header = json_dumps(d->header, JSON_COMPACT);
    const uint64_t header_bytes = strlen(header);
    const int64_t bytes = 8 + (int64_t)header_bytes + d->bytes;
    uint8_t *file;
    dw_error err;
    snprintf(path, sizeof path, "%s/config.json", directory);
    write_file(path, config, (int64_t)strlen(config));
    cr_assert(DW_ALLOC(&file, bytes, "checkpoint", &err) == DW_OK, "%s", err.message);
    memcpy(file, &header_bytes, sizeof header_bytes);
    memcpy(file + 8, header, header_bytes);
    memcpy(file + 8 + header_bytes, d->data, (size_t)d->bytes);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    write_file(path, file, bytes);
    dw_free(file);
    free(config);
    free(header);
    return directory;
}

uint8_t *edited_tensor(const edited_directory *d, const char *name, int64_t *bytes)
{
    const json_t *offsets = json_object_get(json_object_get(d->header, name), "data_offsets");
    const int64_t begin = json_integer_value(json_array_get(offsets, 0));
    cr_assert(offsets != NULL, "there is no tensor %s", name);
    *bytes = json_integer_value(json_array_get(offsets, 1)) - begin;
    return d->data + begin;
}

void edited_rename(const edited_directory *d, const char *from, const char *to)
{
    cr_assert(json_object_set(d->header, to, json_object_get(d->header, from)) == 0, "there is no tensor %s", from);
    json_object_del(d->header, from);
}

void edited_add(edited_directory *d, const char *name, const char *type, const char *shape, const void *data, int64_t bytes)
{
    json_t *tensor = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type, "shape", json_loads(shape, 0, NULL), "data_offsets",
                               (json_int_t)d->bytes, (json_int_t)(d->bytes + bytes));
    uint8_t *grown;
    dw_error err;
    cr_assert(tensor != NULL && json_object_set_new(d->header, name, tensor) == 0);
    cr_assert(DW_ALLOC(&grown, d->bytes + bytes, "checkpoint", &err) == DW_OK, "%s", err.message);
    memcpy(grown, d->data, (size_t)d->bytes);
    if (bytes > 0) memcpy(grown + d->bytes, data, (size_t)bytes);
    dw_free(d->data);
    d->data = grown;
    d->bytes += bytes;
}
