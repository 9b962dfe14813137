/* Whole files in memory, and the strings in them. */
#include "model/file.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/string.h"
#include "tests/shared/fixtures.h"

static const dw_file_way ways[] = {DW_FILE_MAP, DW_FILE_READ};

static void check_fails(const char *path, dw_file_way way, const char *words)
{
    dw_error err = {.message = ""};
    dw_file file;
    cr_expect_eq(dw_file_open(&file, path, "a GGUF file", way, &err), DW_INPUT);
    cr_expect(file.path == NULL && file.data == NULL && file.bytes == 0);
    cr_expect(strstr(err.message, path) == err.message && strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"",
              err.message, words);
}

/* Longer than a page and than the largest piece of small memory, so that both kinds of memory are used. */
Test(file, both_ways_give_the_bytes_of_the_file)
{
    static const int64_t sizes[] = {1, 63, 64, 4096, 100001, 9 << 20};
    const char *path = fixture_path("bytes");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint8_t *bytes;
        dw_error err;
        cr_assert_eq(DW_ALLOC(&bytes, sizes[s], "bytes", &err), DW_OK);
        for (int64_t i = 0; i < sizes[s]; i++) bytes[i] = (uint8_t)((uint64_t)i * 2654435761u >> 13);
        write_file(path, bytes, sizes[s]);
        for (int w = 0; w < 2; w++) {
            dw_file file;
            cr_assert_eq(dw_file_open(&file, path, "bytes", ways[w], &err), DW_OK, "%s", err.message);
            cr_assert(file.bytes == sizes[s] && file.way == ways[w] && file.header_bytes == 0);
            cr_assert(memcmp(file.data, bytes, (size_t)sizes[s]) == 0);
            cr_assert_eq((uintptr_t)file.data % 64, 0);
            cr_assert(file.path != path && strcmp(file.path, path) == 0);
            dw_file_close(&file);
            cr_assert(file.data == NULL && file.path == NULL);
        }
        dw_free(bytes);
    }
    check_no_leak();
}

/* Longer than what is read at once; all but three pieces is a hole of zeros. */
Test(file, a_long_file_is_read_to_its_end)
{
    static const int64_t places[] = {0, (64 << 20) - 3, (128 << 20) + 100};
    const char *path = fixture_path("long");
    const int64_t bytes = places[2] + 6;
    dw_error err;
    dw_file file;
    int descriptor;
    write_file(path, "", 0);
    descriptor = open(path, O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < 3; i++) cr_assert_eq(pwrite(descriptor, "\1\2\3\4\5\6", 6, places[i]), 6);
    close(descriptor);
    cr_assert_eq(dw_file_open(&file, path, "bytes", DW_FILE_READ, &err), DW_OK, "%s", err.message);
    cr_assert_eq(file.bytes, bytes);
    for (int64_t i = 0, place = 0; i < bytes; i++) {
        if (place < 2 && i == places[place + 1]) place++;
        cr_assert(file.data[i] == (i - places[place] < 6 ? i - places[place] + 1 : 0), "byte %lld", (long long)i);
    }
    dw_file_close(&file);
}

Test(file, what_was_read_stays_when_the_file_changes)
{
    const char *path = fixture_path("bytes");
    dw_error err;
    dw_file file;
    write_file(path, "dew", 3);
    cr_assert_eq(dw_file_open(&file, path, "bytes", DW_FILE_READ, &err), DW_OK);
    cr_assert_eq(truncate(path, 1), 0);
    cr_assert(memcmp(file.data, "dew", 3) == 0);
    dw_file_close(&file);
}

Test(file, an_empty_file_has_no_bytes)
{
    const char *path = fixture_path("empty");
    write_file(path, "", 0);
    for (int w = 0; w < 2; w++) {
        dw_error err;
        dw_file file;
        cr_assert_eq(dw_file_open(&file, path, "bytes", ways[w], &err), DW_OK);
        cr_assert(file.bytes == 0 && file.data == NULL);
        dw_file_close(&file);
    }
}

Test(file, what_is_no_file_is_refused_by_name)
{
    const char *pipe = fixture_path("pipe");
    cr_assert_eq(mkfifo(pipe, 0600), 0);
    for (int w = 0; w < 2; w++) {
        check_fails(fixture_path("absent"), ways[w], "No such file");
        check_fails("src", ways[w], "is a directory; expected a GGUF file");
        check_fails(pipe, ways[w], "is not a regular file; expected a GGUF file"); /* and does not wait for a writer */
    }
    check_no_leak();
}

/* Files of sysfs state a page and hold less. */
Test(file, a_file_that_is_shorter_than_it_states_is_refused)
{
    check_fails("/sys/devices/system/cpu/online", DW_FILE_READ, " of its 4096 bytes");
}

Test(file, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    const char *path = fixture_path("bytes");
    write_file(path, "dew", 3);
    for (int64_t n = 1; n <= 2; n++) {
        dw_error err = {.message = ""};
        dw_file file;
        dw_memory_fail_at(n);
        cr_expect_eq(dw_file_open(&file, path, "bytes", DW_FILE_READ, &err), DW_RESOURCE);
        cr_expect(strstr(err.message, "not enough memory") != NULL && file.path == NULL, "%s", err.message);
    }
    dw_memory_fail_at(0);
    check_no_leak();
}

Test(file, paths_are_joined_by_one_slash)
{
    static const char *const cases[][3] = {{"models/qwen", "config.json", "models/qwen/config.json"},
                                           {"models/", "a", "models/a"},
                                           {"/", "a", "/a"},
                                           {".", "a", "./a"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path;
        cr_assert_eq(dw_path_join(&path, cases[i][0], cases[i][1], NULL), DW_OK);
        cr_expect_str_eq(path, cases[i][2]);
        dw_free(path);
    }
}

Test(string, messages_show_printable_ascii_and_80_characters_of_it)
{
    char expected[96] = "";
    char long_text[96];
    memset(long_text, 'x', 81);
    memset(expected, 'x', 80);
    cr_expect_str_eq(dw_printable((dw_string){long_text, 80}).text, expected);
    strncat(expected, "...", 4);
    cr_expect_str_eq(dw_printable((dw_string){long_text, 81}).text, expected);
    cr_expect_str_eq(dw_printable((dw_string){"a\n\x1b\x7f\0\xc3\xa9~ z", 10}).text, "a??????~ z");
    cr_expect_str_empty(dw_printable((dw_string){NULL, 0}).text);
}

Test(string, order_is_that_of_the_bytes_and_a_prefix_comes_first)
{
    static const char *const ordered[] = {"", "A", "AB", "B", "a", "a.b", "ab", "\x80", "\xff"};
    enum { COUNT = sizeof ordered / sizeof ordered[0] };
    for (int i = 0; i < COUNT; i++) {
        for (int j = 0; j < COUNT; j++) {
            const dw_string a = dw_string_of(ordered[i]);
            const dw_string b = dw_string_of(ordered[j]);
            const int order = dw_string_compare(&a, &b);
            cr_expect((order > 0) - (order < 0) == (i > j) - (i < j), "'%s' and '%s'", ordered[i], ordered[j]);
            cr_expect_eq(dw_string_is(a, ordered[j]), i == j);
        }
    }
}
