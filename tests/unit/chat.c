/* Chat formats against what Jinja makes of published templates (tests/reference/make_chat.py). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"
#include "tokenizer/chat.h"
#include "tokenizer/jinja.h"

static dw_string string_of(const json_t *value)
{
    return (dw_string){json_string_value(value), (int64_t)json_string_length(value)};
}

static const char *field(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* The pieces joined; what user and system say must be data as a whole, all else markup. */
static int64_t join(const dw_chat_piece *pieces, int64_t count, char text[2048])
{
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        cr_assert_gt(pieces[i].text.length, 0, "no empty pieces");
        memcpy(text + length, pieces[i].text.data, (size_t)pieces[i].text.length);
        length += pieces[i].text.length;
        cr_assert_lt(length, 2048);
    }
    return length;
}

static int data_pieces(const dw_chat_piece *pieces, int64_t count)
{
    int data = 0;
    for (int64_t i = 0; i < count; i++) data += !pieces[i].is_markup;
    return data;
}

static void check_case(const dw_chat_format *format, const char *name, const json_t *one)
{
    const json_t *expected = json_object_get(one, "text");
    const char *system = field(one, "system");
    const char *user = field(one, "user");
    dw_chat_piece pieces[DW_CHAT_PIECES];
    char text[2048];
    int64_t count, length;
    dw_error err = {.message = ""};
    const dw_status status = dw_chat_render(format, system, string_of(json_object_get(one, "user")), pieces, &count, &err);
    if (json_is_null(expected)) {
        cr_assert_eq(status, DW_INPUT, "%s: not refused", name);
        cr_assert(strstr(err.message, system == NULL ? "give one by --system" : "leave out --system") != NULL, "%s",
                  err.message);
        return;
    }
    cr_assert_eq(status, DW_OK, "%s: %s", name, err.message);
    length = join(pieces, count, text);
    cr_assert(length == string_of(expected).length && memcmp(text, json_string_value(expected), (size_t)length) == 0,
              "%s:\n%.*s\nis not\n%s", name, (int)length, text, json_string_value(expected));
    cr_assert_leq(data_pieces(pieces, count), (user[0] != '\0') + (system != NULL && system[0] != '\0'), "%s", name);
    cr_assert_geq(data_pieces(pieces, count), strchr(user, 'i') != NULL, "%s", name);
}

Test(chat, published_templates_give_what_jinja_makes_of_them)
{
    json_t *all = reference_json("chat.json");
    const json_t *one, *turn;
    size_t i, j;
    int cases = 0;
    json_array_foreach(all, i, one) {
        const char *name = field(one, "name");
        dw_chat_format *format;
        dw_error err;
        if (field(one, "format") == NULL) continue;
        cr_assert_eq(dw_chat_recognise(&format, string_of(json_object_get(one, "template")), &err), DW_OK, "%s: %s", name,
                     err.message);
        cr_assert_str_eq(dw_chat_name(format), field(one, "format"), "%s", name);
        json_array_foreach(json_object_get(one, "cases"), j, turn) {
            check_case(format, name, turn);
            cases++;
        }
        dw_chat_free(format);
    }
    cr_assert_eq(cases, 28 * 7);
    json_decref(all);
    check_no_leak();
}

Test(chat, templates_that_only_look_like_a_known_one_are_refused)
{
    json_t *all = reference_json("chat.json");
    const json_t *one;
    size_t i;
    int refused = 0;
    json_array_foreach(all, i, one) {
        dw_chat_format *format;
        dw_error err;
        if (field(one, "format") != NULL) continue;
        cr_assert_eq(dw_chat_recognise(&format, string_of(json_object_get(one, "template")), &err), DW_INPUT, "%s",
                     field(one, "name"));
        cr_assert(format == NULL && strstr(err.message, "none of ChatML") != NULL &&
                      strstr(err.message, "leave out --chat") != NULL,
                  "%s", err.message);
        refused++;
    }
    cr_assert_eq(refused, 13);
    json_decref(all);
    check_no_leak();
}

static void expect_plain(const char *jinja, const char *expected)
{
    char *plain;
    dw_error err;
    cr_assert_eq(dw_jinja_plain(&plain, dw_string_of(jinja), &err), DW_OK);
    if (expected == NULL) {
        cr_assert_null(plain, "%s is no template", jinja);
    } else {
        cr_assert_not_null(plain, "%s", jinja);
        cr_assert_str_eq(plain, expected);
    }
    dw_free(plain);
}

#define S DW_JINJA_STRING
#define TEXT DW_JINJA_TEXT

Test(chat, one_statement_has_one_plain_form)
{
    expect_plain("{{ 'a' + \"b\" ~ x [ 'y' ] }}", "{{" S("ab") "+x.y}}");
    expect_plain("{{- x['y z'] -}}", "{{x[" S("y z") "]}}");
    expect_plain("{%- if  not a   and b -%}{%+ endif +%}", "{%if not a and b%}{%endif%}");
    expect_plain("{{ '\\n\\t\\'\\\"\\\\\\d' }}", "{{" S("\n\t'\"\\\\d") "}}");
    expect_plain("{{ {'a': {'b': '}}'}} }}", "{{{" S("a") ":{" S("b") ":" S("}}") "}}}}");
    expect_plain("a{# {{ x }} #}b", TEXT("a") TEXT("b"));
}

/* The same as jinja2 with trim_blocks and lstrip_blocks prints between the tags. */
Test(chat, white_space_around_tags_is_what_jinja_prints)
{
    expect_plain("  {% if a %}\n b\n  {% endif %}\n\nc\n", "{%if a%}" TEXT(" b\n") "{%endif%}" TEXT("\nc"));
    expect_plain("x  {% if a %} {{ b }}\n", TEXT("x  ") "{%if a%}" TEXT(" ") "{{b}}");
    expect_plain("{{ a }}\n\n {%- if b -%}\n\n c {{- d -}} \n{{ e }}", "{{a}}{%if b%}" TEXT("c") "{{d}}{{e}}");
    expect_plain(" {%+ if a +%}\n{# b #}\n  {# c -#}\n\n d", TEXT(" ") "{%if a%}" TEXT("\n") TEXT("d"));
    expect_plain("{{ a }}\n  {% if b %}\r\n  {% endif %}", "{{a}}" TEXT("\n") "{%if b%}{%endif%}");
}

Test(chat, what_is_no_template_has_no_plain_form)
{
    expect_plain("", "");
    expect_plain("{{ a", NULL);
    expect_plain("{{ 'a }}", NULL);
    expect_plain("{% a }}", NULL);
    expect_plain("{# a", NULL);
    expect_plain("a\2b", NULL);
    expect_plain("{", TEXT("{"));
}

/* Templates come from files: whatever bytes they hold, nothing is read or written outside them (run with sanitizers). */
Test(chat, damaged_templates_do_no_harm)
{
    json_t *all = reference_json("chat.json");
    const json_t *one;
    size_t i;
    int64_t recognised = 0, tried = 0;
    json_array_foreach(all, i, one) {
        const dw_string whole = string_of(json_object_get(one, "template"));
        for (int64_t k = 0; k < 100 && whole.length > 0; k++, tried++) {
            const int64_t at = (int64_t)((0.5 + 0.5 * (double)fixture_random(3, 1000 * (int64_t)i + k, 1)) *
                                         (double)whole.length);
            const int64_t length = k % 4 == 0 ? at : whole.length;
            dw_chat_piece pieces[DW_CHAT_PIECES];
            dw_chat_format *format;
            char *copy;
            int64_t count;
            dw_error err;
            cr_assert_eq(DW_ALLOC(&copy, length, "template", &err), DW_OK);
            memcpy(copy, whole.data, (size_t)length);
            if (at < length) copy[at] = (char)(128 * (double)fixture_random(4, 1000 * (int64_t)i + k, 1));
            if (dw_chat_recognise(&format, (dw_string){copy, length}, &err) == DW_OK) {
                recognised++;
                dw_free(copy); /* no longer read */
                copy = NULL;
                (void)dw_chat_render(format, k % 2 ? "s" : NULL, dw_string_of("u"), pieces, &count, &err);
            }
            dw_chat_free(format);
            dw_free(copy);
        }
    }
    cr_assert(tried > 3000 && recognised > 0 && recognised < tried, "%lld of %lld", (long long)recognised, (long long)tried);
    json_decref(all);
    check_no_leak();
}

Test(chat, failing_allocations_are_reported)
{
    const dw_string jinja = dw_string_of("{{ 'a' }}");
    for (int64_t n = 1; n <= 2; n++) {
        dw_chat_format *format;
        dw_error err;
        dw_memory_fail_at(n);
        cr_assert_eq(dw_chat_recognise(&format, jinja, &err), DW_RESOURCE, "allocation %lld", (long long)n);
        cr_assert_null(format);
        dw_memory_fail_at(0);
    }
    check_no_leak();
}
