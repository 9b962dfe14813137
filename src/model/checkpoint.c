#include "model/checkpoint.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/json_file.h"

static int ends_with(const char *text, const char *ending)
{
    const size_t length = strlen(text);
    return length >= strlen(ending) && strcmp(text + length - strlen(ending), ending) == 0;
}

static dw_status open_gguf(dw_checkpoint *checkpoint, dw_file_way way, dw_error *err)
{
    if (ends_with(checkpoint->path, ".safetensors") || ends_with(checkpoint->path, ".json")) {
        return DW_REFUSE(checkpoint->path, err, "a file of a Hugging Face directory; give the directory that it is in");
    }
    DW_TRY(dw_gguf_open(&checkpoint->gguf, checkpoint->path, way, err));
    checkpoint->tensors = dw_gguf_tensors_of(checkpoint->gguf);
    checkpoint->files = dw_gguf_files_of(checkpoint->gguf, &checkpoint->file_count);
    return DW_OK;
}

static dw_status open_directory(dw_checkpoint *checkpoint, dw_file_way way, dw_error *err)
{
    char *config;
    dw_status status;
    DW_TRY(dw_checkpoint_file(checkpoint, "config.json", &config, err));
    if (access(config, F_OK) == 0) {
        status = dw_json_read(&checkpoint->config, config, &checkpoint->config_hash, err);
    } else {
        status = DW_REFUSE(
            checkpoint->path, err,
            "has no config.json; expected a .gguf file, or a directory with config.json and model.safetensors or "
            "model.safetensors.index.json");
    }
    dw_free(config);
    DW_TRY(status);
    DW_TRY(dw_safetensors_open(&checkpoint->safetensors, checkpoint->path, way, err));
    checkpoint->tensors = &checkpoint->safetensors.tensors;
    checkpoint->files = checkpoint->safetensors.files;
    checkpoint->file_count = checkpoint->safetensors.count;
    return DW_OK;
}

static dw_status load(dw_checkpoint *checkpoint, const char *path, dw_file_way way, dw_error *err)
{
    const size_t length = strlen(path);
    struct stat status;
    DW_TRY(DW_ALLOC(&checkpoint->path, (int64_t)length + 1, "path", err));
    memcpy(checkpoint->path, path, length);
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) return open_directory(checkpoint, way, err);
    return open_gguf(checkpoint, way, err);
}

dw_status dw_checkpoint_open(dw_checkpoint **out, const char *path, dw_file_way way, dw_error *err)
{
    dw_checkpoint *checkpoint;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&checkpoint, 1, "checkpoint", err));
    status = load(checkpoint, path, way, err);
    if (status != DW_OK) {
        dw_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return DW_OK;
}

void dw_checkpoint_close(dw_checkpoint *checkpoint)
{
    if (checkpoint == NULL) return;
    dw_gguf_close(checkpoint->gguf);
    dw_safetensors_close(&checkpoint->safetensors);
    json_decref(checkpoint->config);
    dw_free(checkpoint->path);
    dw_free(checkpoint);
}

dw_status dw_checkpoint_file(const dw_checkpoint *checkpoint, const char *name, char **path, dw_error *err)
{
    return dw_path_join(path, checkpoint->path, name, err);
}

dw_status dw_checkpoint_json(const dw_checkpoint *checkpoint, const char *name, int required, json_t **json, dw_error *err)
{
    char *path;
    dw_status status = DW_OK;
    *json = NULL;
    DW_TRY(dw_checkpoint_file(checkpoint, name, &path, err));
    if (required || access(path, F_OK) == 0) status = dw_json_read(json, path, NULL, err);
    dw_free(path);
    return status;
}
