#include "model/family.h"

#include <stddef.h>
#include <string.h>

static const dw_family families[] = {
    {.name = "llama", .rope_pairs = DW_ROPE_NEIGHBOURS},
    {.name = "qwen2", .rope_pairs = DW_ROPE_HALVES, .has_qkv_bias = 1},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

const dw_family *dw_family_named(const char *name, long long length)
{
    for (int i = 0; i < FAMILIES; i++) {
        if ((long long)strlen(families[i].name) == length && memcmp(families[i].name, name, (size_t)length) == 0)
            return &families[i];
    }
    return NULL;
}

const char *dw_family_names(void)
{
    return "llama, qwen2";
}
