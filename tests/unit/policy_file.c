/* Policy files: what they mean, and what a wrong one is told. */
#include "attention/policy_file.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/shared/fixtures.h"

enum { LAYERS = 30, HEADS = 9 };

static const dw_policy defaults = {DW_DENSE, 1, 64, 32, 1e-3};

static const char *policy_text(const char *text, size_t length)
{
    static const char *path;
    if (path == NULL) path = fixture_path("policy.yaml");
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL && fwrite(text, 1, length, file) == length && fclose(file) == 0);
    return path;
}

static dw_policy_plan read_text(const char *text)
{
    dw_policy_plan plan;
    dw_error err = {.message = ""};
    cr_assert_eq(dw_policy_file_read(&plan, policy_text(text, strlen(text)), &defaults, LAYERS, HEADS, &err), DW_OK, "%s",
                 err.message);
    return plan;
}

Test(policy_file, fields_of_later_entries_override_those_of_earlier_ones)
{
    dw_policy_plan plan = read_text("description: a test\nmodel: any\nlayers:\n"
                                    "  - range: all\n    keys: 100\n    window: 32\n"
                                    "  - {range: 0-3, mode: dense}\n"
                                    "  - range: 29\n    mode: mass\n    epsilon: 0.01\n"
                                    "  - keys: [1, 2, 3, 4, 5, 6, 7, 8, 0]\n    range: 5-6\n    tail: mean\n");
    cr_assert(plan.layer_count == LAYERS && plan.pillar == 1 && plan.reuse == 1 && plan.selector == DW_SELECT_TOKENS);
    cr_assert(plan.layers[3].mode == DW_DENSE && plan.layers[3].keys == 100 && plan.layers[4].mode == DW_CONDENSATE);
    cr_assert(plan.layers[4].keys == 100 && plan.layers[4].window == 32 && plan.layers[4].anchor == 1);
    cr_assert(plan.layers[4].head_keys == NULL && !plan.layers[4].has_tail);
    cr_assert(plan.layers[29].mode == DW_MASS && plan.layers[29].epsilon == 0.01 && plan.layers[28].epsilon == 1e-3);
    for (int l = 5; l <= 6; l++) {
        cr_assert(plan.layers[l].keys == 8 && plan.layers[l].has_tail && plan.layers[l].head_keys[7] == 8);
        cr_assert(dw_policy_keys(&plan.layers[l], 8) == 0 && dw_policy_keys(&plan.layers[l], 0) == 1);
    }
    dw_policy_plan_free(&plan);
}

Test(policy_file, what_is_shared_is_read)
{
    dw_policy_plan plan = read_text("pillar: every 4\nreuse: 16\nselector: block\n");
    cr_assert(plan.pillar == 4 && plan.reuse == 16 && plan.selector == DW_SELECT_BLOCKS && plan.layers[7].keys == 32);
    dw_policy_plan_free(&plan);
}

static const struct {
    const char *text;
    const char *said; /* behind the path */
} wrong[] = {
    {"", ": the file is empty"},
    {"# nothing\n", ": the file is empty"},
    {"- 1\n", ":1: a policy file is not a mapping"},
    {"pillar: 4\n", ":1: pillar '4' is not 'every N'"},
    {"pillar: every 0\n", ":1: pillar 'every 0' is not 'every N'"},
    {"\nreuse: 0\n", ":2: reuse '0' is not a whole number from 1 to 1048576"},
    {"reuse: [1]\n", ":1: reuse '(a list or mapping)' is not a whole number"},
    {"selector: page\n", ":1: selector 'page' is not token or block"},
    {"layers: 5\n", ":1: layers is not a list"},
    {"layers:\n  - 5\n", ":2: a layer is not a mapping"},
    {"layers:\n  - keys: 5\n", ":2: an entry of layers has no range"},
    {"layers:\n  - range: 30\n", ":2: layer 30 is outside the model, which has layers 0 to 29"},
    {"layers:\n  - range: 3-2\n", ":2: range '3-2' ends before it begins"},
    {"layers:\n  - range: 3-\n", ":2: range '3-' is not all, a layer (5) or layers (0-3)"},
    {"layers:\n  - range: all\n    windw: 3\n", ":3: unknown field 'windw' of a layer; the fields are range, mode, anchor"},
    {"layers:\n  - range: all\n    keys: 3\n    keys: 4\n", ":4: a layer has 'keys' twice, first in line 3"},
    {"layers:\n  - range: all\n    keys: [1, 2]\n", ":3: keys lists 2 numbers, the model has 9 query heads"},
    {"layers:\n  - range: all\n    keys:\n      - 1\n      - x\n      - 1\n      - 1\n      - 1\n      - 1\n      - 1\n      - "
     "1\n"
     "      - 1\n",
     ":5: keys 'x' is not a whole number"},
    {"layers:\n  - range: all\n    keys: -3\n", ":3: keys '-3' is not a whole number"},
    {"layers:\n  - range: all\n    keys: 3K\n", ":3: keys '3K' is not a whole number"},
    {"layers:\n  - range: all\n    epsilon: 2\n", ":3: epsilon '2' is not a number from 0 to 1"},
    {"layers:\n  - range: all\n    epsilon: nan\n", ":3: epsilon 'nan' is not a number from 0 to 1"},
    {"layers:\n  - range: all\n    mode: sparse\n", ":3: mode 'sparse' is not dense, condensate or mass"},
    {"layers:\n  - {range: 2, keys: 0, anchor: 0, window: 0}\n", ": layer 2: anchor, window and keys are all 0"},
    {"pillar: every 2\nlayers:\n  - {range: 4, mode: dense}\n", ": layer 5 would use the selection of its pillar, layer 4"},
    {"pillar: every 2\nlayers:\n  - {range: 5, keys: 9}\n", ": layer 5 uses the selection of its pillar, layer 4"},
    {"reuse: 2\nlayers:\n  - {range: 5, tail: mean}\n", ": layer 5: tail mean needs the score of every key"},
    {"a: &x 1\nb: *x\n", ":2: aliases"},
    {"reuse: 1\n---\nreuse: 2\n", ":2: a second document begins here"},
    {"reuse: [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]\n", ":1: more than 16 lists and mappings in each other"},
    {"reuse: [1\n", ":2: did not find expected ',' or ']'"},
    {"reuse: \xff\n", ":1: "},
};

Test(policy_file, errors_name_the_file_the_line_and_what_is_wrong)
{
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *path = policy_text(wrong[i].text, strlen(wrong[i].text));
        dw_policy_plan plan;
        dw_error err = {.message = ""};
        cr_assert_eq(dw_policy_file_read(&plan, path, &defaults, LAYERS, HEADS, &err), DW_INPUT, "accepted: %s", wrong[i].text);
        cr_assert(strncmp(err.message, path, strlen(path)) == 0 &&
                      strncmp(err.message + strlen(path), wrong[i].said, strlen(wrong[i].said)) == 0,
                  "'%s', not '%s'", err.message, wrong[i].said);
        cr_assert(plan.layers == NULL);
    }
}

Test(policy_file, files_that_can_not_be_read_are_named)
{
    static char large[(1 << 20) + 2];
    dw_policy_plan plan;
    dw_error err = {.message = ""};
    cr_assert_eq(dw_policy_file_read(&plan, "/no/such/file", &defaults, LAYERS, HEADS, &err), DW_INPUT);
    cr_assert(strncmp(err.message, "/no/such/file: can not be opened", 32) == 0, "%s", err.message);
    cr_assert_eq(dw_policy_file_read(&plan, "/", &defaults, LAYERS, HEADS, &err), DW_INPUT);
    memset(large, '[', 400000); /* would take minutes if it were read to the end */
    cr_assert_eq(dw_policy_file_read(&plan, policy_text(large, 400000), &defaults, LAYERS, HEADS, &err), DW_INPUT);
    cr_assert(strstr(err.message, "in each other") != NULL, "%s", err.message);
    memset(large, '#', sizeof large);
    cr_assert_eq(dw_policy_file_read(&plan, policy_text(large, sizeof large), &defaults, LAYERS, HEADS, &err), DW_INPUT);
    cr_assert(strstr(err.message, "at most 1048576 bytes") != NULL, "%s", err.message);
}

static uint64_t next_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Damaged files are read or refused with a message, never more. */
Test(policy_file, any_bytes_end_in_a_plan_or_a_message)
{
    static const char good[] =
        "pillar: every 2\nreuse: 3\nlayers:\n  - range: all\n    keys: 12\n  - {range: 2-3, tail: none}\n"
        "  - range: 4\n    mode: mass\n    epsilon: 0.1\n  - range: 5\n    mode: dense\n";
    uint64_t state = 6;
    int accepted = 0;
    for (int trial = 0; trial < 4000; trial++) {
        char text[sizeof good + 8];
        size_t length = sizeof good - 1;
        dw_policy_plan plan;
        dw_error err = {.message = ""};
        memcpy(text, good, length);
        for (uint64_t n = trial % 2 ? 1 : 1 + next_bits(&state) % 3; n > 0; n--) {
            const size_t at = (size_t)(next_bits(&state) % length);
            const uint64_t kind = next_bits(&state) % 3;
            if (kind == 0) text[at] = (char)next_bits(&state);
            if (kind == 1) memmove(text + at, text + at + 1, --length - at);
            if (kind == 2) text[at] = good[next_bits(&state) % (sizeof good - 1)];
        }
        if (dw_policy_file_read(&plan, policy_text(text, length), &defaults, LAYERS, HEADS, &err) == DW_OK) {
            accepted++;
            cr_assert(plan.layer_count == LAYERS && plan.pillar >= 1 && plan.reuse >= 1);
            dw_policy_plan_free(&plan);
        } else {
            cr_assert(err.status == DW_INPUT && err.message[0] == '/', "'%s'", err.message);
        }
    }
    cr_assert(accepted > 50 && accepted < 3900, "%d of 4000 accepted", accepted);
}

/* The files that come with the program; those of a model with its layers and heads. */
Test(policy_file, every_example_is_read)
{
    static const struct {
        const char *path;
        int64_t layers, heads;
    } files[] = {{"configs/default.yaml", LAYERS, HEADS},      {"configs/pillar.yaml", LAYERS, HEADS},
                 {"configs/blocks.yaml", LAYERS, HEADS},       {"configs/mixed.yaml", LAYERS, HEADS},
                 {"configs/smollm2-135m.yaml", LAYERS, HEADS}, {"configs/qwen2.5-coder-0.5b.yaml", 24, 14}};
    for (int i = 0; i < 6; i++) {
        dw_policy_plan plan;
        dw_error err = {.message = ""};
        cr_assert_eq(dw_policy_file_read(&plan, files[i].path, &defaults, files[i].layers, files[i].heads, &err), DW_OK, "%s",
                     err.message);
        dw_policy_plan_free(&plan);
    }
}
