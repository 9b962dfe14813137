#include "cli/options.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Arguments behind the program's name, ended by NULL. */
static dw_status parse(dw_options *options, dw_error *err, ...)
{
    static char *arguments[256];
    int count = 1;
    va_list list;
    arguments[0] = "dewpoint";
    va_start(list, err);
    do {
        arguments[count] = va_arg(list, char *);
    } while (arguments[count++] != NULL);
    va_end(list);
    return dw_options_parse(options, count - 1, arguments, err);
}

#define ACCEPTED(options, ...)                                                                                                 \
    do {                                                                                                                       \
        dw_error accepted_error = {.message = ""};                                                                             \
        const dw_status accepted = parse(options, &accepted_error, __VA_ARGS__, NULL);                                         \
        cr_assert_eq(accepted, DW_OK, "%s", accepted_error.message);                                                           \
    } while (0)

/* A usage error whose message holds `name`. */
#define REFUSED(name, ...)                                                                                                     \
    do {                                                                                                                       \
        dw_options refused_options;                                                                                            \
        dw_error refused_error = {.message = ""};                                                                              \
        cr_assert_eq(parse(&refused_options, &refused_error, __VA_ARGS__, NULL), DW_USAGE);                                    \
        cr_assert(strstr(refused_error.message, name) != NULL, "'%s' lacks '%s'", refused_error.message, name);                \
    } while (0)

#define GENERATE "generate", "-m", "x.gguf", "-p", "text"

Test(options, defaults_are_those_of_the_design)
{
    dw_options o;
    ACCEPTED(&o, GENERATE);
    cr_assert_eq(o.command, DW_COMMAND_GENERATE);
    cr_assert_str_eq(o.model, "x.gguf");
    cr_assert_str_eq(o.prompt, "text");
    cr_assert_eq(o.tokens, -1);
    cr_assert_eq(o.context, 0);
    cr_assert_eq(o.modes[0], DW_LOSSLESS);
    cr_assert_eq(o.policy.mode, DW_LOSSLESS);
    cr_assert_eq(o.draft, -1);
    cr_assert_eq(o.policy.anchor, 1);
    cr_assert_eq(o.policy.window, 64);
    cr_assert_eq(o.policy.keys, 32);
    cr_assert_eq(o.key_type, DW_F16);
    cr_assert_eq(o.value_type, DW_F16);
    cr_assert_eq(o.sampling.temperature, 0);
    cr_assert_eq(o.sampling.top_k, 0);
    cr_assert_eq(o.sampling.top_p, 1);
    cr_assert_eq(o.sampling.min_p, 0);
    cr_assert_eq(o.sampling.seed, 0);
    cr_assert_eq(o.threads, 0);
    cr_assert_eq(o.simulated_ranks, 0);
    cr_assert_eq(o.rope_base, 0);
    cr_assert_eq(o.stop_count, 0);
    cr_assert_eq(o.progress, DW_AUTO);
    cr_assert(!o.json && !o.quiet && !o.verbose && !o.lossy && !o.parse_special && !o.ignore_eos);
}

Test(options, every_option_of_generate_reaches_its_field)
{
    dw_options o;
    ACCEPTED(&o, "generate", "--model=a.gguf", "--prompt-file", "-", "--lossy", "--parse-special", "-n", "3", "-c", "8K",
             "--attention", "condensate", "--anchor", "2", "--window=5", "--keys", "1M", "--kv-type", "f32,bf16", "--rope-base",
             "5e5", "--temperature", "0.5", "--top-k", "40", "--top-p", ".9", "--min-p", "0.05", "--seed",
             "4611686018427387904", "--stop", "a", "--stop", "--b", "--ignore-eos", "--threads", "2", "--simulate-ranks", "7",
             "--deadline", "1.5", "--json", "--progress", "never", "--quiet", "--verbose");
    cr_assert_str_eq(o.model, "a.gguf");
    cr_assert_str_eq(o.prompt_file, "-");
    cr_assert_eq(o.tokens, 3);
    cr_assert_eq(o.context, 8192);
    cr_assert_eq(o.modes[0], DW_CONDENSATE);
    cr_assert_eq(o.policy.mode, DW_CONDENSATE);
    cr_assert_eq(o.policy.anchor, 2);
    cr_assert_eq(o.policy.window, 5);
    cr_assert_eq(o.policy.keys, 1048576);
    cr_assert_eq(o.key_type, DW_F32);
    cr_assert_eq(o.value_type, DW_BF16);
    cr_assert_eq(o.rope_base, 5e5);
    cr_assert_eq(o.sampling.temperature, 0.5);
    cr_assert_eq(o.sampling.top_k, 40);
    cr_assert_eq(o.sampling.top_p, .9);
    cr_assert_eq(o.sampling.min_p, .05);
    cr_assert_eq(o.sampling.seed, (uint64_t)1 << 62);
    cr_assert_eq(o.stop_count, 2);
    cr_assert_str_eq(o.stops[0], "a");
    cr_assert_str_eq(o.stops[1], "--b");
    cr_assert_eq(o.threads, 2);
    cr_assert_eq(o.simulated_ranks, 7);
    cr_assert_eq(o.deadline, 1.5);
    cr_assert_eq(o.progress, DW_NEVER);
    cr_assert(o.json && o.quiet && o.verbose && o.lossy && o.parse_special && o.ignore_eos);
}

Test(options, the_other_commands_have_theirs)
{
    dw_options o;
    ACCEPTED(&o, "tokenize", "-m", "x", "--prompt-ids", "ids", "--decode");
    cr_assert_eq(o.command, DW_COMMAND_TOKENIZE);
    cr_assert(o.decode);
    cr_assert_str_eq(o.prompt_ids, "ids");
    ACCEPTED(&o, "logits", "-m", "x", "-p", "", "--positions", "5,10");
    cr_assert_eq(o.command, DW_COMMAND_LOGITS);
    cr_assert_str_eq(o.positions, "5,10");
    cr_assert_str_eq(o.prompt, "");
    ACCEPTED(&o, "bench", "decode", "-m", "x", "--depths", "0,8K,100", "--attention", "condensate,dense", "--repeat", "1",
             "--csv");
    cr_assert_eq(o.command, DW_COMMAND_BENCH_DECODE);
    cr_assert_eq(o.depth_count, 3);
    cr_assert(o.depths[0] == 0 && o.depths[1] == 8192 && o.depths[2] == 100);
    cr_assert(o.mode_count == 2 && o.modes[0] == DW_CONDENSATE && o.modes[1] == DW_DENSE);
    cr_assert(o.repeat == 1 && o.csv);
    ACCEPTED(&o, "inspect", "-m", "x", "-c", "1M", "--kv-type", "f32", "--anchor", "3", "--window", "4", "--keys", "5",
             "--verbose", "--json", "--simulate-ranks", "4");
    cr_assert_eq(o.command, DW_COMMAND_INSPECT);
    cr_assert(o.context == 1 << 20 && o.key_type == DW_F32 && o.simulated_ranks == 4 && o.verbose && o.json);
    cr_assert(o.policy.anchor == 3 && o.policy.window == 4 && o.policy.keys == 5);
    ACCEPTED(&o, "bench", "prefill", "-m", "x");
    cr_assert_eq(o.command, DW_COMMAND_BENCH_PREFILL);
    cr_assert(o.depth_count == 3 && o.depths[1] == 4096 && o.mode_count == 1 && o.modes[0] == DW_DENSE);
    ACCEPTED(&o, "bench", "kernels", "--threads", "2", "--csv");
    cr_assert(o.command == DW_COMMAND_BENCH_KERNELS && o.model == NULL && o.threads == 2 && o.csv);
    REFUSED("--model", "bench", "kernels", "-m", "x");
}

Test(options, unknown_commands_and_options_are_refused_by_name)
{
    dw_error err = {.message = ""};
    dw_options o;
    cr_assert_eq(parse(&o, &err, NULL), DW_USAGE);
    cr_assert(strstr(err.message, "no command") != NULL, "%s", err.message);
    REFUSED("'frobnicate'", "frobnicate");
    REFUSED("generate, tokenize, logits, compare, perplexity, needle, tune, inspect, bench decode", "frobnicate");
    REFUSED("--prompt", "inspect", "-m", "x", "-p", "y");
    REFUSED("needs a model", "inspect");
    REFUSED("'bench'", "bench");
    REFUSED("'bench'", "bench", "fly");
    REFUSED("'--frobnicate'", GENERATE, "--frobnicate");
    REFUSED("'--frobnicate=1'", GENERATE, "--frobnicate=1");
    REFUSED("'-z'", GENERATE, "-z");
    REFUSED("'--'", GENERATE, "--");
    REFUSED("'stray'", GENERATE, "stray");
    REFUSED("'--mod'", "generate", "--mod", "x"); /* no abbreviations */
    REFUSED("--stop", "tokenize", "-m", "x", "-p", "y", "--stop", "z");
    REFUSED("--tokens", "logits", "-m", "x", "-p", "y", "-n", "3");
    REFUSED("--prompt", "bench", "decode", "-m", "x", "-p", "y");
}

Test(options, policies_take_the_place_of_the_default_modes_and_follow_those_that_are_given)
{
    dw_options o;
    ACCEPTED(&o, "generate", "-m", "x", "-p", "y", "--policy", "f", "--tail", "mean", "--screen", "always");
    cr_assert(o.mode_count == 0 && o.policy_count == 1 && o.policy.has_tail && o.screen == DW_ALWAYS);
    cr_assert_str_eq(o.policy_files[0], "f");
    ACCEPTED(&o, "compare", "-m", "x", "-p", "y", "--policy", "f", "--policy", "g");
    cr_assert(o.mode_count == 0 && o.policy_count == 2);
    ACCEPTED(&o, "compare", "-m", "x", "-p", "y", "--attention", "condensate,mass", "--policy", "f");
    cr_assert(o.mode_count == 2 && o.modes[1] == DW_MASS && o.policy_count == 1);
    ACCEPTED(&o, "bench", "decode", "-m", "x", "--attention", "mass");
    cr_assert(o.mode_count == 1 && o.modes[0] == DW_MASS);
}

Test(options, modes_that_do_not_exist_are_refused_with_those_that_do)
{
    REFUSED("lossless, dense, condensate and mass", GENERATE, "--attention", "sparse");
    REFUSED("lossless is a way to generate", "logits", "-m", "x", "-p", "y", "--attention", "lossless");
    REFUSED("lossless is a way to generate", "compare", "-m", "x", "-p", "y", "--attention", "mass,lossless");
    REFUSED("--draft 17 is out of range (0..16)", GENERATE, "--draft", "17");
    REFUSED("--tail 'median' is not none or mean", GENERATE, "--tail", "median");
    REFUSED("--tail mean belongs to --attention condensate", GENERATE, "--tail", "mean");
    REFUSED("--tail mean belongs to --attention condensate", GENERATE, "--attention", "mass", "--tail", "mean");
    REFUSED("--epsilon 2 is out of range (0..1)", GENERATE, "--epsilon", "2");
    REFUSED("''", GENERATE, "--attention", "");
    REFUSED("too many", GENERATE, "--attention", "dense,condensate");
    REFUSED("too many", "bench", "decode", "-m", "x", "--attention",
            "mass,mass,mass,mass,mass,mass,mass,mass,mass,mass,mass,mass,mass,mass,mass,mass,mass");
    REFUSED("--attention and --policy exclude each other", GENERATE, "--attention", "mass", "--policy", "f");
    REFUSED("--policy is given more than 1 times", GENERATE, "--policy", "f", "--policy", "g");
    REFUSED("--screen 'perhaps'", GENERATE, "--screen", "perhaps");
    REFUSED("--kv-type 'q8_0'", GENERATE, "--kv-type", "q8_0");
    REFUSED("--kv-type 'f16,f16,f16'", GENERATE, "--kv-type", "f16,f16,f16");
    REFUSED("--kv-type 'f16,'", GENERATE, "--kv-type", "f16,");
    REFUSED("--progress 'often'", GENERATE, "--progress", "often");
}

Test(options, numbers_are_read_whole_and_in_range)
{
    REFUSED("--tokens -1 is out of range", GENERATE, "-n", "-1");
    REFUSED("--tokens '5x'", GENERATE, "-n", "5x");
    REFUSED("--tokens '5KK'", GENERATE, "-n", "5KK");
    REFUSED("--tokens ''", GENERATE, "-n", "");
    REFUSED("--tokens '1e3'", GENERATE, "-n", "1e3");
    REFUSED("--tokens ' 5'", GENERATE, "-n", " 5");
    REFUSED("--tokens 99999999999999999999 is out of range", GENERATE, "-n", "99999999999999999999");
    REFUSED("--tokens 9007199254740993M is out of range", GENERATE, "-n", "9007199254740993M");
    REFUSED("--context 0 is out of range", GENERATE, "-c", "0");
    REFUSED("--window -1 is out of range", GENERATE, "--window", "-1");
    REFUSED("the condensate would be empty", GENERATE, "--anchor", "0", "--window", "0", "--keys", "0");
    REFUSED("--threads 0 is out of range (1..1024)", GENERATE, "--threads", "0");
    REFUSED("--simulate-ranks 1025", GENERATE, "--simulate-ranks", "1025");
    REFUSED("--temperature -0.1", GENERATE, "--temperature", "-0.1");
    REFUSED("--temperature nan", GENERATE, "--temperature", "nan");
    REFUSED("--temperature 'hot'", GENERATE, "--temperature", "hot");
    REFUSED("--top-p 1.5 is out of range (0..1)", GENERATE, "--top-p", "1.5");
    REFUSED("--min-p '0.1,'", GENERATE, "--min-p", "0.1,");
    REFUSED("--deadline 0", GENERATE, "--deadline", "0");
    REFUSED("--deadline inf", GENERATE, "--deadline", "inf");
    REFUSED("--depths '4K,'", "bench", "decode", "-m", "x", "--depths", "4K,");
    REFUSED("--depths '-1'", "bench", "decode", "-m", "x", "--depths", "-1");
    REFUSED("out of range", "bench", "decode", "-m", "x", "--depths", "1,99999999M");
    REFUSED("--repeat 0", "bench", "prefill", "-m", "x", "--repeat", "0");
}

Test(options, values_are_required_where_they_belong_and_refused_elsewhere)
{
    REFUSED("--stop needs a value", GENERATE, "--stop");
    REFUSED("--stop is empty", GENERATE, "--stop", "");
    REFUSED("--stop is not valid UTF-8", GENERATE, "--stop", "a\xFF");
    REFUSED("--model needs a value", "generate", "-m");
    REFUSED("--json takes no value", GENERATE, "--json=yes");
    REFUSED("'-p=x'", "generate", "-p=x");
}

Test(options, what_belongs_together_is_checked)
{
    REFUSED("needs a model", "generate", "-p", "x");
    REFUSED("needs --prompt", "generate", "-m", "x");
    REFUSED("exclude each other", GENERATE, "-f", "y");
    REFUSED("exclude each other", GENERATE, "--prompt-ids", "y");
    REFUSED("--decode needs --prompt-ids", "tokenize", "-m", "x", "-p", "y", "--decode");
    REFUSED("only with --decode", "tokenize", "-m", "x", "--prompt-ids", "y");
    REFUSED("--json and --csv", "bench", "decode", "-m", "x", "--json", "--csv");
    REFUSED("no command", "--quiet");
}

Test(options, too_many_stops_and_depths_are_refused)
{
    char depths[4 * DW_MAX_DEPTHS + 8] = "0";
    char *arguments[8 + 2 * (DW_MAX_STOPS + 1)] = {"dewpoint", GENERATE};
    int count = 6;
    dw_options o;
    dw_error err;
    for (int i = 0; i < DW_MAX_STOPS; i++) {
        arguments[count++] = "--stop";
        arguments[count++] = "x";
    }
    cr_assert_eq(dw_options_parse(&o, count, arguments, &err), DW_OK, "%s", err.message);
    cr_assert_eq(o.stop_count, DW_MAX_STOPS);
    arguments[count++] = "--stop";
    arguments[count++] = "x";
    cr_assert_eq(dw_options_parse(&o, count, arguments, &err), DW_USAGE);
    for (int i = 1; i < DW_MAX_DEPTHS; i++) snprintf(depths + 2 * i - 1, 4, ",0");
    ACCEPTED(&o, "bench", "decode", "-m", "x", "--depths", depths);
    cr_assert_eq(o.depth_count, DW_MAX_DEPTHS);
    snprintf(depths + 2 * DW_MAX_DEPTHS - 1, 4, ",0");
    REFUSED("--depths", "bench", "decode", "-m", "x", "--depths", depths);
}

Test(options, help_and_version_need_nothing_else)
{
    dw_options o;
    ACCEPTED(&o, "--help");
    cr_assert(o.help && o.command == DW_COMMAND_NONE);
    ACCEPTED(&o, "-h");
    cr_assert(o.help);
    ACCEPTED(&o, "--version");
    cr_assert(o.version);
    ACCEPTED(&o, "bench", "decode", "--help");
    cr_assert(o.help && o.command == DW_COMMAND_BENCH_DECODE);
}

/* What dw_options_help prints, at most capacity - 1 bytes of it. */
static void capture_help(dw_command_id command, char *text, size_t capacity)
{
    FILE *file = tmpfile();
    const int saved = dup(STDOUT_FILENO);
    size_t length;
    cr_assert(file != NULL && saved >= 0);
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    dw_options_help(command);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    length = fread(text, 1, capacity - 1, file);
    text[length] = '\0';
    fclose(file);
}

Test(options, help_lists_what_a_command_takes_and_nothing_else)
{
    char text[16384];
    capture_help(DW_COMMAND_NONE, text, sizeof text);
    cr_assert(strstr(text, "bench prefill") != NULL && strstr(text, "--version") != NULL && strstr(text, "--stop") == NULL);
    capture_help(DW_COMMAND_GENERATE, text, sizeof text);
    cr_assert(strstr(text, "-n, --tokens N") != NULL && strstr(text, "--stop TEXT") != NULL);
    cr_assert(strstr(text, "--depths") == NULL);
    capture_help(DW_COMMAND_TOKENIZE, text, sizeof text);
    cr_assert(strstr(text, "--decode") != NULL && strstr(text, "--stop") == NULL);
}

Test(options, the_test_aid_of_failing_allocations_is_read_from_the_environment)
{
    dw_options o;
    setenv("DEWPOINT_FAIL_ALLOC", "12", 1);
    ACCEPTED(&o, GENERATE);
    cr_assert(o.fail_allocation == 12 && o.fail_rank == -1);
    setenv("DEWPOINT_FAIL_ALLOC", "12@3", 1);
    ACCEPTED(&o, GENERATE);
    cr_assert(o.fail_allocation == 12 && o.fail_rank == 3);
    setenv("DEWPOINT_FAIL_ALLOC", "12@", 1);
    REFUSED("DEWPOINT_FAIL_ALLOC='12@'", GENERATE);
    unsetenv("DEWPOINT_FAIL_ALLOC");
    ACCEPTED(&o, GENERATE);
    cr_assert_eq(o.fail_allocation, 0);
}
