#include "cli/report.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

/* Sends a descriptor into a file between begin and end. */
typedef struct {
    FILE *file;
    int descriptor;
    int saved;
} capture;

static void begin(capture *c, int descriptor)
{
    *c = (capture){.file = tmpfile(), .descriptor = descriptor, .saved = dup(descriptor)};
    cr_assert(c->file != NULL && c->saved >= 0);
    fflush(NULL);
    dup2(fileno(c->file), descriptor);
}

static void end(capture *c, char *text, size_t capacity)
{
    size_t length;
    fflush(NULL);
    dup2(c->saved, c->descriptor);
    close(c->saved);
    rewind(c->file);
    length = fread(text, 1, capacity - 1, c->file);
    text[length] = '\0';
    fclose(c->file);
}

/* Keys long enough that the text grows while a key is written. */
static json_t *example(void)
{
    json_t *object = json_object();
    for (int i = 0; object != NULL && i < 100; i++) {
        char key[64];
        snprintf(key, sizeof key, "a key that is rather long %d", i);
        if (json_object_set_new(object, key, json_real(i / 3.0)) == 0) continue;
        json_decref(object);
        object = NULL;
    }
    return object;
}

Test(report, json_is_printed_whole_or_not_at_all)
{
    static char complete[16384], text[16384];
    int failures = 0;
    capture c;
    dw_status status;
    dw_error err;
    dw_report_init();
    begin(&c, STDOUT_FILENO);
    cr_assert_eq(dw_print_json(example(), &err), DW_OK);
    end(&c, complete, sizeof complete);
    cr_assert_gt(strlen(complete), 3000);
    do {
        begin(&c, STDOUT_FILENO);
        dw_memory_fail_at(failures + 1);
        status = dw_print_json(example(), &err);
        dw_memory_fail_at(0);
        end(&c, text, sizeof text);
        failures += status != DW_OK;
        cr_assert_str_eq(text, status == DW_OK ? complete : "", "allocation %d", failures + 1);
        cr_assert(status == DW_OK || status == DW_RESOURCE);
    } while (status != DW_OK);
    cr_assert_gt(failures, 200, "only %d allocations failed", failures);
}

Test(report, an_error_is_one_line_without_control_characters)
{
    char text[256];
    capture c;
    begin(&c, STDERR_FILENO);
    dw_report_error("rank 1 on h: ", "a\nb\t\x1B[0m\x7F \xC2\x9B \xC3\xA9");
    end(&c, text, sizeof text);
    cr_assert_str_eq(text, "dewpoint: rank 1 on h: a\\x0Ab\\x09\\x1B[0m\\x7F \\xC2\\x9B \xC3\xA9\n");
}

Test(report, a_long_error_is_cut_but_stays_one_line)
{
    static char message[8000], text[8192];
    capture c;
    memset(message, '\x01', sizeof message - 1);
    begin(&c, STDERR_FILENO);
    dw_report_error("", message);
    end(&c, text, sizeof text);
    cr_assert_gt(strlen(text), 4000);
    cr_assert_eq(strchr(text, '\n') - text, (long)strlen(text) - 1);
}

Test(report, bytes_that_are_not_utf8_are_replaced_in_json)
{
    json_t *value = dw_json_text("a\xFF\0z", 4);
    cr_assert_not_null(value);
    cr_assert_eq(json_string_length(value), 6);
    cr_assert_eq(memcmp(json_string_value(value), "a\xEF\xBF\xBD\0z", 6), 0);
    json_decref(value);
}
