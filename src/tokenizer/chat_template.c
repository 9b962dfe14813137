#include "tokenizer/chat_template.h"

#include <unistd.h>

#include "base/memory.h"

static dw_status copy(dw_string text, char **jinja, int64_t *length, dw_error *err)
{
    DW_TRY(DW_ALLOC(jinja, text.length, "chat template", err));
    if (text.length > 0) memcpy(*jinja, text.data, (size_t)text.length);
    *length = text.length;
    return DW_OK;
}

static dw_string json_text(const json_t *string)
{
    return (dw_string){json_string_value(string), (int64_t)json_string_length(string)};
}

/* Older configurations hold one template, or a list of {"name", "template"}. NULL: none. */
static const json_t *default_template(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    const json_t *entry;
    size_t i;
    if (!json_is_array(value)) return json_is_string(value) ? value : NULL;
    json_array_foreach(value, i, entry) {
        const json_t *name = json_object_get(entry, "name");
        const json_t *text = json_object_get(entry, "template");
        if (json_is_string(name) && dw_string_is(json_text(name), "default") && json_is_string(text)) return text;
    }
    return NULL;
}

static dw_status read_file(const char *path, char **jinja, int64_t *length, dw_error *err)
{
    dw_file file;
    dw_status status;
    DW_TRY(dw_file_open(&file, path, "a chat template", DW_FILE_MAP, err));
    status = copy((dw_string){(const char *)file.data, file.bytes}, jinja, length, err);
    dw_file_close(&file);
    return status;
}

static dw_status read_directory(const dw_checkpoint *checkpoint, char **jinja, int64_t *length, dw_error *err)
{
    json_t *config;
    const json_t *text;
    char *path;
    dw_status status = DW_OK;
    DW_TRY(dw_checkpoint_file(checkpoint, "chat_template.jinja", &path, err));
    if (access(path, F_OK) == 0) {
        status = read_file(path, jinja, length, err);
        dw_free(path);
        return status;
    }
    dw_free(path);
    DW_TRY(dw_checkpoint_json(checkpoint, "tokenizer_config.json", 0, &config, err));
    text = default_template(config);
    if (text != NULL) status = copy(json_text(text), jinja, length, err);
    json_decref(config);
    return status;
}

dw_status dw_chat_template(const dw_checkpoint *checkpoint, char **jinja, int64_t *length, dw_error *err)
{
    dw_string text;
    int found;
    *jinja = NULL;
    *length = 0;
    if (checkpoint->gguf == NULL) return read_directory(checkpoint, jinja, length, err);
    DW_TRY(dw_gguf_string(checkpoint->gguf, "tokenizer.chat_template", &text, &found, err));
    return found ? copy(text, jinja, length, err) : DW_OK;
}
