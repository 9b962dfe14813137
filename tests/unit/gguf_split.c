/* GGUF models in several files: any of them opens all; parts that do not belong together are refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/gguf.h"
#include "tests/shared/fixtures.h"
#include "tests/unit/gguf_small.h"

enum { PARTS = 3 };

/* What the parts say of themselves; a test changes one of these. absent: the key is left out. */
typedef struct {
    int64_t no[PARTS], count[PARTS], tensors[PARTS];
    const char *absent[PARTS];
    const char *tensor[PARTS]; /* name of the part's one tensor */
    uint32_t alignment[PARTS]; /* 0: no key */
} split;

static const split sound = {{0, 1, 2}, {3, 3, 3}, {3, 3, 3}, {NULL}, {"c", "a", "b"}, {64, 0, 8}};

static const char *part_path(int part)
{
    static const char *paths[PARTS];
    char name[64];
    snprintf(name, sizeof name, "model-0000%d-of-00003.gguf", part + 1);
    if (paths[part] == NULL) paths[part] = fixture_path(name);
    return paths[part];
}

static void put_key(gguf_writer *writer, const split *s, int part, const char *key, int64_t value)
{
    if (s->absent[part] != NULL && strcmp(s->absent[part], key) == 0) return;
    gguf_put_raw(writer, key, GGUF_I64, &value, sizeof value);
}

static void write_part(const split *s, int part)
{
    gguf_writer *writer = gguf_new(3);
    const float numbers[8] = {(float)part, 1, 2, 3, 4, 5, 6, 7};
    const int64_t size[] = {4, 2};
    if (s->alignment[part] > 0) gguf_align(writer, s->alignment[part]);
    if (part == 0) gguf_put_string(writer, "general.name", "first");
    put_key(writer, s, part, "split.no", s->no[part]);
    put_key(writer, s, part, "split.count", s->count[part]);
    put_key(writer, s, part, "split.tensors.count", s->tensors[part]);
    gguf_put_tensor(writer, s->tensor[part], 0, 2, size, numbers, sizeof numbers);
    gguf_write(writer, part_path(part));
    gguf_free(writer);
}

static void write_split(const split *s)
{
    for (int p = 0; p < PARTS; p++) write_part(s, p);
}

/* Opening by any part fails with words that name `file` (a part) first. */
static void check_refused(int file, const char *words)
{
    for (int p = 0; p < PARTS; p++) {
        dw_error err = {.message = ""};
        dw_gguf *gguf;
        cr_expect(dw_gguf_open(&gguf, part_path(p), DW_FILE_MAP, &err) == DW_INPUT && gguf == NULL, "%s", words);
        cr_expect(strstr(err.message, part_path(file)) == err.message && strchr(err.message, '\n') == NULL, "%s", err.message);
        cr_expect(strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"", err.message, words);
    }
}

Test(gguf_split, any_part_opens_all_of_them)
{
    write_split(&sound);
    for (int p = 0; p < 2 * PARTS; p++) {
        dw_gguf *gguf;
        dw_error err;
        dw_matrix w;
        dw_string name;
        int64_t files;
        const dw_tensors *tensors;
        cr_assert_eq(dw_gguf_open(&gguf, part_path(p / 2), p % 2 == 0 ? DW_FILE_MAP : DW_FILE_READ, &err), DW_OK, "%s",
                     err.message);
        tensors = dw_gguf_tensors_of(gguf);
        cr_assert(dw_gguf_files_of(gguf, &files) != NULL && files == PARTS && tensors->count == PARTS);
        cr_assert_str_eq(dw_gguf_path(gguf), part_path(0));
        cr_assert_eq(dw_gguf_string(gguf, "general.name", &name, NULL, &err), DW_OK, "metadata are the first part's");
        for (int t = 0; t < PARTS; t++) {
            cr_assert_eq(dw_tensors_matrix(tensors, sound.tensor[t], 2, 4, &w, NULL, &err), DW_OK, "%s", err.message);
            cr_assert(((const float *)w.data)[0] == (float)t && ((const float *)w.data)[7] == 7);
            cr_assert_str_eq(dw_tensors_find(tensors, sound.tensor[t])->file->path, part_path(t));
        }
        dw_gguf_close(gguf);
    }
    check_no_leak();
}

Test(gguf_split, a_missing_part_is_named)
{
    write_split(&sound);
    cr_assert_eq(unlink(part_path(2)), 0);
    for (int p = 0; p < PARTS; p++) {
        dw_error err = {.message = ""};
        dw_gguf *gguf;
        cr_expect_eq(dw_gguf_open(&gguf, part_path(p), DW_FILE_MAP, &err), DW_INPUT);
        cr_expect(strstr(err.message, part_path(2)) == err.message, "%s", err.message);
        cr_expect(strstr(err.message, "No such file or directory; part 3 of 3 of a split model") != NULL, "%s", err.message);
    }
    write_part(&sound, 2);
    cr_assert_eq(unlink(part_path(0)), 0);
    check_refused(0, "part 1 of 3 of a split model");
}

Test(gguf_split, keys_that_contradict_the_name_are_named)
{
    for (int p = 0; p < PARTS; p++) {
        char words[128];
        split s = sound;
        s.no[p] = 7;
        write_split(&s);
        snprintf(words, sizeof words, "split.no is 7; the name says part %d of 3, so that it must be %d", p + 1, p);
        check_refused(p, words);
        s = sound;
        s.count[p] = 4;
        write_split(&s);
        snprintf(words, sizeof words, "split.count is 4; the name says part %d of 3, so that it must be 3", p + 1);
        check_refused(p, words);
        s = sound;
        s.absent[p] = "split.no";
        write_split(&s);
        check_refused(p, "split.no is missing, but the name says part");
        s.absent[p] = "split.count";
        write_split(&s);
        check_refused(p, "split.count is missing, but the name says part");
    }
}

Test(gguf_split, the_count_of_all_tensors_is_checked)
{
    split s = sound;
    dw_gguf *gguf;
    dw_error err;
    s.tensors[0] = s.tensors[1] = s.tensors[2] = 4;
    write_split(&s);
    check_refused(0, "split.tensors.count is 4, but the 3 parts have 3 tensors");
    s.tensors[0] = 3;
    write_split(&s);
    check_refused(1, "split.tensors.count is 4, but that of another part is 3");
    s = sound;
    s.tensors[1] = -3;
    write_split(&s);
    check_refused(1, "split.tensors.count is -3");
    for (int p = 0; p < PARTS; p++) s.absent[p] = "split.tensors.count";
    write_split(&s);
    cr_assert_eq(dw_gguf_open(&gguf, part_path(0), DW_FILE_MAP, &err), DW_OK, "%s", err.message);
    dw_gguf_close(gguf);
}

Test(gguf_split, a_tensor_in_two_parts_is_named_with_both)
{
    split s = sound;
    s.tensor[2] = "a";
    write_split(&s);
    check_refused(0, "tensor a occurs twice, in ");
    check_refused(0, part_path(1));
    check_refused(0, part_path(2));
}

Test(gguf_split, damage_of_a_later_part_names_it)
{
    write_split(&sound);
    cr_assert_eq(truncate(part_path(1), 150), 0);
    check_refused(1, "truncated or damaged");
    write_part(&sound, 1);
    write_file(part_path(2), "", 0);
    check_refused(2, "is empty; expected a GGUF file");
}

/* A part under another name can not be completed; a whole file may have any name. */
Test(gguf_split, names_tell_parts)
{
    static const char *const whole[] = {"model-00001-of-00001.gguf", "-0001-of-0002.gguf",        "model-00003-of-00002.gguf",
                                        "model-00000-of-00002.gguf", "model-00001-of-0000x.gguf", "x.gguf"};
    split s = sound;
    dw_gguf *gguf;
    dw_error err;
    write_split(&s);
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        const char *path = fixture_path(whole[i]);
        gguf_writer *writer = gguf_small(3, 0, -1);
        gguf_write(writer, path);
        gguf_free(writer);
        cr_assert_eq(dw_gguf_open(&gguf, path, DW_FILE_MAP, &err), DW_OK, "%s", err.message);
        dw_gguf_close(gguf);
        cr_assert_eq(rename(part_path(1), path), 0);
        cr_expect_eq(dw_gguf_open(&gguf, path, DW_FILE_MAP, &err), DW_INPUT);
        cr_expect(strstr(err.message, path) == err.message &&
                      strstr(err.message, "split.count is 3: a part of a split model, and its name must say which, as in "
                                          "NAME-00001-of-00003.gguf") != NULL,
                  "%s", err.message);
        write_part(&sound, 1);
    }
}

Test(gguf_split, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    int64_t allocations;
    dw_gguf *gguf;
    dw_error err;
    write_split(&sound);
    allocations = dw_memory_allocations();
    cr_assert_eq(dw_gguf_open(&gguf, part_path(1), DW_FILE_READ, &err), DW_OK);
    allocations = dw_memory_allocations() - allocations;
    dw_gguf_close(gguf);
    cr_assert_geq(allocations, 15);
    for (int64_t n = 1; n <= allocations; n++) {
        dw_memory_fail_at(n);
        cr_expect(dw_gguf_open(&gguf, part_path(1), DW_FILE_READ, &err) == DW_RESOURCE && gguf == NULL, "allocation %lld",
                  (long long)n);
        cr_expect(strstr(err.message, "not enough memory") != NULL, "%s", err.message);
    }
    dw_memory_fail_at(0);
    check_no_leak();
}
