#include "tests/shared/prompts.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"

void prompt_random(int32_t *ids, int64_t count, int64_t vocabulary)
{
    const double half = (double)vocabulary / 2;
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)((double)fixture_random(7, i, 1) * half + half);
}

void prompt_king_james(int32_t *ids, int64_t count, const dw_tokenizer *tokenizer)
{
    static char text[1 << 15];
    int32_t *all;
    int64_t found;
    dw_error err;
    FILE *bible = popen("bible -f Gen1:1-Gen4:26", "re");
    const size_t length = bible != NULL ? fread(text, 1, sizeof text, bible) : 0;
    cr_assert(bible != NULL && pclose(bible) == 0 && length > 0,
              "the program bible (Debian package bible-kjv) is missing: make deps");
    cr_assert_eq(dw_tokenize(tokenizer, text, (int64_t)length, 0, &all, &found, &err), DW_OK, "%s", err.message);
    cr_assert(found >= count, "the text has %lld tokens, %lld are wanted", (long long)found, (long long)count);
    memcpy(ids, all, (size_t)count * sizeof *ids);
    dw_free(all);
}

const char *prompt_file(const char *name, const int32_t *ids, int64_t count)
{
    const char *path = fixture_path(name);
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file, "can not write %s", path);
    for (int64_t i = 0; i < count; i++) fprintf(file, "%d\n", ids[i]);
    cr_assert_eq(fclose(file), 0, "can not write %s", path);
    return path;
}
