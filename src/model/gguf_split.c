/* Split GGUF files: NAME-00001-of-00003.gguf and so on, each a GGUF file of its own. Metadata split.no (from 0), split.count and
   split.tensors.count (of all parts together) say in each what it is a part of; the others' are in the first. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/gguf_directory.h"

/* "-00001-of-00003.gguf" */
enum { DIGITS = 5, NUMBER_AT = 1, COUNT_AT = NUMBER_AT + DIGITS + 4, ENDING = COUNT_AT + DIGITS + 5 };

/* -1: not five digits */
static int64_t number_at(const char *text)
{
    int64_t value = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = 10 * value + (text[i] - '0');
    }
    return value;
}

dw_gguf_part dw_gguf_part_named(const char *path)
{
    const dw_gguf_part whole = {1, 1};
    const size_t length = strlen(path);
    const char *ending = path + length - ENDING;
    dw_gguf_part part;
    if (length < ENDING || ending[0] != '-' || memcmp(ending + NUMBER_AT + DIGITS, "-of-", 4) != 0) return whole;
    if (memcmp(ending + COUNT_AT + DIGITS, ".gguf", 5) != 0) return whole;
    part = (dw_gguf_part){number_at(ending + NUMBER_AT), number_at(ending + COUNT_AT)};
    return part.number >= 1 && part.number <= part.count ? part : whole;
}

dw_status dw_gguf_part_path(char **out, const char *path, int64_t number, dw_error *err)
{
    const size_t length = strlen(path);
    char digits[24];
    DW_TRY(DW_ALLOC(out, (int64_t)length + 1, "path", err));
    memcpy(*out, path, length);
    snprintf(digits, sizeof digits, "%05lld", (long long)number);
    memcpy(*out + length - ENDING + NUMBER_AT, digits, DIGITS);
    return DW_OK;
}

/* The metadata key must say `expected`. */
static dw_status check_key(const dw_gguf *file, const char *key, int64_t expected, dw_gguf_part part, dw_error *err)
{
    int64_t value;
    int found;
    DW_TRY(dw_gguf_int(file, key, &value, &found, err));
    if (found && value == expected) return DW_OK;
    if (!found) {
        return DW_REFUSE(dw_gguf_path(file), err, "metadata key %s is missing, but the name says part %lld of %lld", key,
                         (long long)part.number, (long long)part.count);
    }
    return DW_REFUSE(dw_gguf_path(file), err,
                     "metadata key %s is %lld; the name says part %lld of %lld, so that it must be %lld", key, (long long)value,
                     (long long)part.number, (long long)part.count, (long long)expected);
}

dw_status dw_gguf_part_check(const dw_gguf *file, dw_gguf_part part, int64_t *tensors, dw_error *err)
{
    int64_t value = 0;
    int found;
    if (part.count == 1) {
        DW_TRY(dw_gguf_int(file, "split.count", &value, &found, err));
        if (value <= 1) return DW_OK;
        return DW_REFUSE(dw_gguf_path(file), err,
                         "metadata key split.count is %lld: a part of a split model, and its name must say which, as in "
                         "NAME-00001-of-%05lld.gguf",
                         (long long)value, (long long)value);
    }
    DW_TRY(check_key(file, "split.count", part.count, part, err));
    DW_TRY(check_key(file, "split.no", part.number - 1, part, err));
    DW_TRY(dw_gguf_int(file, "split.tensors.count", &value, &found, err));
    if (!found) return DW_OK;
    if (*tensors >= 0 && value != *tensors) {
        return DW_REFUSE(dw_gguf_path(file), err, "metadata key split.tensors.count is %lld, but that of another part is %lld",
                         (long long)value, (long long)*tensors);
    }
    if (value < 0) return DW_REFUSE(dw_gguf_path(file), err, "metadata key split.tensors.count is %lld", (long long)value);
    *tensors = value;
    return DW_OK;
}
