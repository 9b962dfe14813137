/* The table of families: every row is complete, and the messages name all of them. */
#include "model/family.h"

#include <criterion/criterion.h>

static const char *const architectures[] = {"gemma3", "gpt2", "gptneox", "llama", "qwen2", "qwen3"};
static const char *const types[] = {"gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"};
enum {
    ARCHITECTURES = sizeof architectures / sizeof architectures[0],
    TYPES = sizeof types / sizeof types[0],
};

Test(family, is_found_by_architecture_and_by_model_type)
{
    for (int i = 0; i < ARCHITECTURES; i++) {
        const dw_family *family = dw_family_of_gguf(dw_string_of(architectures[i]));
        cr_assert_not_null(family, "%s", architectures[i]);
        cr_assert_str_eq(family->architecture, architectures[i]);
        cr_assert_not_null(strstr(dw_family_gguf_names(), architectures[i]));
    }
    for (int i = 0; i < TYPES; i++) {
        cr_assert_not_null(dw_family_of_hf(dw_string_of(types[i])), "%s", types[i]);
        cr_assert_not_null(strstr(dw_family_hf_names(), types[i]));
    }
    cr_assert_str_eq(dw_family_of_hf(dw_string_of("mistral"))->name, "mistral");
    cr_assert_str_eq(dw_family_of_hf(dw_string_of("gpt_neox"))->name, "gpt_neox");
}

Test(family, names_that_merely_begin_alike_are_not_found)
{
    static const char *const others[] = {"", "llam", "llama4", "qwen2moe", "gemma", "gemma3n", "GPT2", "mistral3"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        cr_assert_null(dw_family_of_gguf(dw_string_of(others[i])), "%s", others[i]);
        cr_assert_null(dw_family_of_hf(dw_string_of(others[i])), "%s", others[i]);
    }
    cr_assert_null(dw_family_of_gguf(dw_string_of("mistral")), "its GGUF files say llama");
    cr_assert_null(dw_family_of_hf(dw_string_of("gemma3")), "the one that also sees pictures");
}

/* A part that the switches ask for has a name, and only such a part. */
static void check_row(const dw_family *f)
{
    const int packed = f->qkv != DW_QKV_SEPARATE;
    int wanted[DW_PARTS] = {0};
    static const dw_part always[] = {DW_PART_EMBEDDING,        DW_PART_OUTPUT_NORM,       DW_PART_HEAD, DW_PART_ATTENTION_NORM,
                                     DW_PART_ATTENTION_OUTPUT, DW_PART_FEED_FORWARD_NORM, DW_PART_UP,   DW_PART_DOWN};
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) wanted[always[i]] = 1;
    wanted[DW_PART_POSITIONS] = f->gguf_pairs == DW_ROPE_ABSENT;
    wanted[DW_PART_QKV] = packed;
    wanted[DW_PART_Q] = wanted[DW_PART_K] = wanted[DW_PART_V] = !packed;
    wanted[DW_PART_Q_NORM] = wanted[DW_PART_K_NORM] = f->has_qk_norm;
    wanted[DW_PART_ATTENTION_POST_NORM] = wanted[DW_PART_FEED_FORWARD_POST_NORM] = f->has_post_norms;
    wanted[DW_PART_GATE] = f->is_gated;
    for (int part = 0; part < DW_PARTS; part++) {
        cr_assert_eq(f->hf_names[part] != NULL, wanted[part], "%s: part %d", f->name, part);
        for (int other = 0; f->hf_names[part] != NULL && other < part; other++) {
            cr_assert(f->hf_names[other] == NULL || strcmp(f->hf_names[part], f->hf_names[other]) != 0, "%s: two parts are %s",
                      f->name, f->hf_names[part]);
        }
    }
    cr_assert(f->hf_prefix != NULL && f->hf_layers != NULL && f->hf_ignored != NULL && f->types[0] != NULL, "%s", f->name);
    cr_assert_eq(f->gguf_qkv_is_one, packed, "%s", f->name);
}

Test(family, rows_name_the_parts_that_their_switches_ask_for)
{
    for (int i = 0; i < TYPES; i++) check_row(dw_family_of_hf(dw_string_of(types[i])));
}

/* Names of gguf-py's tensor_mapping, no two alike. */
Test(family, every_part_has_a_name_of_its_own_in_gguf_files)
{
    for (int part = 0; part < DW_PARTS; part++) {
        cr_assert_not_null(dw_part_gguf_name((dw_part)part));
        for (int other = 0; other < part; other++) {
            cr_assert_str_neq(dw_part_gguf_name((dw_part)part), dw_part_gguf_name((dw_part)other));
        }
    }
    cr_assert_str_eq(dw_part_gguf_name(DW_PART_ATTENTION_POST_NORM), "post_attention_norm");
    cr_assert_str_eq(dw_part_gguf_name(DW_PART_FEED_FORWARD_POST_NORM), "post_ffw_norm");
}
