#include "tests/shared/reference.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "base/memory.h"

const char *reference_path(const char *name)
{
    static const char *const places[] = {"../shared/reference", "tests/reference/data"};
    static char path[512];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", places[i], name);
        if (access(path, R_OK) == 0) return path;
    }
    cr_assert_fail("reference data %s is missing: neither in ../shared/reference nor in tests/reference/data (tests run in the "
                   "repository root)",
                   name);
    return NULL;
}

json_t *reference_json(const char *name)
{
    json_error_t error;
    json_t *value = json_load_file(reference_path(name), 0, &error);
    cr_assert(value != NULL, "%s, line %d: %s", name, error.line, error.text);
    return value;
}

double *reference_doubles(const char *name, int64_t count)
{
    dw_error err;
    double *numbers;
    FILE *file = fopen(reference_path(name), "rb");
    cr_assert(file != NULL, "can not open %s", name);
    cr_assert(DW_ALLOC(&numbers, count, name, &err) == DW_OK, "%s", err.message);
    cr_assert((int64_t)fread(numbers, sizeof *numbers, (size_t)count, file) == count, "%s is too short", name);
    fclose(file);
    return numbers;
}

static const char *present(const char *path, const char *how)
{
    cr_assert(access(path, R_OK) == 0, "%s is missing: %s", path, how);
    return path;
}

const char *reference_smollm2(void)
{
    return present("data/SmolLM2-135M-Instruct.Q4_1.gguf", "make fetch-models");
}

const char *reference_qwen05(void)
{
    return present("data/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "make fetch-models");
}

const char *reference_gemma3(void)
{
    return present("data/gemma-3-270m.Q4_K_M.gguf", "make fetch-models");
}

const char *reference_qwen15(void)
{
    return present("data/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf", "make fetch-models LARGE=1");
}
