#include "cli/text_output.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Feeds pieces (ended by NULL) without printing; returns the text, valid until the next call. */
static const char *feed(const char *const *stops, int stop_count, const char *const *pieces, int *stopped)
{
    static char text[256];
    dw_text_output output = {.stops = stops, .stop_count = stop_count};
    dw_error err;
    for (int i = 0; pieces[i] != NULL; i++) {
        const dw_string bytes = {.data = pieces[i], .length = (int64_t)strlen(pieces[i])};
        cr_assert_eq(dw_text_output_add(&output, bytes, pieces[i + 1] == NULL, &err), DW_OK);
    }
    cr_assert_lt(output.length, (int64_t)sizeof text);
    snprintf(text, sizeof text, "%.*s", (int)output.length, output.length == 0 ? "" : output.text);
    *stopped = output.stopped;
    dw_text_output_free(&output);
    return text;
}

#define PIECES(...) ((const char *const[]){__VA_ARGS__, NULL})

Test(text_output, a_stop_string_is_found_within_and_across_tokens)
{
    static const char *const stops[] = {"STOP", "\n\n"};
    int stopped;
    cr_assert_str_eq(feed(stops, 2, PIECES("ab", "cSTOPd", "ef"), &stopped), "abc");
    cr_assert(stopped);
    cr_assert_str_eq(feed(stops, 2, PIECES("ab", "cS", "T", "OPxyz"), &stopped), "abc");
    cr_assert(stopped);
    cr_assert_str_eq(feed(stops, 2, PIECES("a\n", "\nb"), &stopped), "a");
    cr_assert(stopped);
    cr_assert_str_eq(feed(stops, 2, PIECES("S", "S", "T", "S", "T", "O", "P"), &stopped), "SST");
    cr_assert(stopped);
    cr_assert_str_eq(feed(stops, 2, PIECES("STOP", "more"), &stopped), "");
    cr_assert(stopped);
}

Test(text_output, the_earliest_stop_string_wins)
{
    static const char *const stops[] = {"cd", "bcde", "d"};
    int stopped;
    cr_assert_str_eq(feed(stops, 3, PIECES("a", "bcdef"), &stopped), "a");
    cr_assert_str_eq(feed(stops, 3, PIECES("a", "bc", "d"), &stopped), "ab");
}

Test(text_output, what_only_looked_like_a_stop_string_is_kept)
{
    static const char *const stops[] = {"STOP"};
    int stopped;
    cr_assert_str_eq(feed(stops, 1, PIECES("a", "STO", "X"), &stopped), "aSTOX");
    cr_assert_not(stopped);
    cr_assert_str_eq(feed(stops, 1, PIECES("a", "STO"), &stopped), "aSTO");
    cr_assert_not(stopped);
}

Test(text_output, characters_of_several_tokens_come_whole)
{
    int stopped;
    cr_assert_str_eq(feed(NULL, 0, PIECES("\xE2", "\x82", "\xAC!"), &stopped), "\xE2\x82\xAC!");
    cr_assert_str_eq(feed(NULL, 0, PIECES("a\xE2", "\x82"), &stopped), "a\xEF\xBF\xBD");
}

/* Standard output after each piece. */
Test(text_output, printing_holds_back_the_beginning_of_a_stop_string_and_of_a_character)
{
    static const char *const stops[] = {"STOP"};
    static const char *const pieces[] = {"ab", "S", "T", "x", "\xE2\x82", "\xAC", "cST", "OPd", "e"};
    static const int printed[] = {2, 2, 2, 5, 5, 8, 9, 9, 9};
    dw_text_output output = {.stops = stops, .stop_count = 1, .print = 1};
    char text[64] = "";
    dw_error err;
    FILE *file = tmpfile();
    const int saved = dup(STDOUT_FILENO);
    int lengths[9];
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    for (int i = 0; i < 9; i++) {
        const dw_string bytes = {.data = pieces[i], .length = (int64_t)strlen(pieces[i])};
        cr_assert_eq(dw_text_output_add(&output, bytes, 0, &err), DW_OK);
        lengths[i] = (int)lseek(STDOUT_FILENO, 0, SEEK_CUR);
    }
    dup2(saved, STDOUT_FILENO);
    rewind(file);
    cr_assert_eq(fread(text, 1, sizeof text - 1, file), 9);
    for (int i = 0; i < 9; i++) cr_assert_eq(lengths[i], printed[i], "after piece %d: %d bytes", i, lengths[i]);
    cr_assert_str_eq(text, "abSTx\xE2\x82\xAC"
                           "c");
    cr_assert(output.stopped);
    dw_text_output_free(&output);
    fclose(file);
}
