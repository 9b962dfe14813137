#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "tokenizer/tokenizer.h"

/* ---- the commands ---- */

typedef struct {
    dw_command_id id;
    const char *name; /* one or two words */
    const char *summary;
} command_row;

static const command_row commands[] = {
    {DW_COMMAND_GENERATE, "generate", "continue a prompt; text on stdout, statistics on stderr"},
    {DW_COMMAND_TOKENIZE, "tokenize", "token ids of a text, and back with --decode"},
    {DW_COMMAND_LOGITS, "logits", "logits at chosen positions of a prompt"},
    {DW_COMMAND_COMPARE, "compare", "what a mode changes against dense attention: tokens, KL, perplexity, omitted mass"},
    {DW_COMMAND_PERPLEXITY, "perplexity", "how well the model expects a text, attending in some way"},
    {DW_COMMAND_NEEDLE, "needle", "whether the model finds sentences hidden in a long text"},
    {DW_COMMAND_TUNE, "tune", "find budgets for each layer and head on a text, and write them as a policy file"},
    {DW_COMMAND_INSPECT, "inspect", "what a model holds, and the memory that a context takes on these ranks"},
    {DW_COMMAND_BENCH_DECODE, "bench decode", "tokens a second of decoding at given depths of the cache"},
    {DW_COMMAND_BENCH_PREFILL, "bench prefill", "tokens a second of prefill at given depths of the cache"},
    {DW_COMMAND_BENCH_KERNELS, "bench kernels", "speed of each kernel, and its share of what this machine can do"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static const command_row *command_of(dw_command_id id)
{
    for (int i = 0; i < COMMANDS; i++) {
        if (commands[i].id == id) return &commands[i];
    }
    return NULL;
}

const char *dw_command_name(dw_command_id id)
{
    const command_row *command = command_of(id);
    return command == NULL ? "" : command->name;
}

/* ---- the options ---- */

typedef enum { FLAG, TEXT, INTEGER, REAL, WHEN, OTHER } option_kind;
typedef struct option_row option_row;
typedef dw_status option_reader(dw_options *options, const option_row *row, const char *value, dw_error *err);

struct option_row {
    const char *name;  /* without "--" */
    char letter;       /* of the short form, or 0 */
    unsigned commands; /* that take it; ALL: the program itself as well */
    option_kind kind;
    size_t offset;        /* of an int (FLAG), const char * (TEXT), int64_t (INTEGER), double (REAL), dw_when (WHEN) */
    double low, high;     /* legal numbers */
    option_reader *read;  /* OTHER */
    const char *argument; /* as in the help; NULL: none */
    const char *help;
};

static option_reader read_attention, read_kv_type, read_stop, read_depths, read_rope_scaling, read_on, read_tail, read_policy,
    read_lengths, read_needle_depths, read_rows, read_linear;

#define UNBOUNDED 0x1p62
#define FIELD(name) offsetof(dw_options, name)

enum {
    ALL = 0,
    GEN = DW_COMMAND_GENERATE,
    TOK = DW_COMMAND_TOKENIZE,
    LOG = DW_COMMAND_LOGITS,
    INS = DW_COMMAND_INSPECT,
    DEC = DW_COMMAND_BENCH_DECODE,
    PRE = DW_COMMAND_BENCH_PREFILL,
    KER = DW_COMMAND_BENCH_KERNELS,
    BENCHES = DEC | PRE,
    COM = DW_COMMAND_COMPARE,
    TUN = DW_COMMAND_TUNE,
    PER = DW_COMMAND_PERPLEXITY,
    NEE = DW_COMMAND_NEEDLE,
    READING = GEN | LOG | COM | TUN | PER | NEE, /* a model that computes reads a text */
    SPARSE = GEN | LOG | COM | PER | NEE | DEC,  /* rows may attend in several ways */
    PROMPTED = READING | TOK,
    COMPUTING = READING | BENCHES,
    EVERY = PROMPTED | BENCHES | INS
};

/* Rows: name, short letter or 0, commands that take it, ..., help. */
/* clang-format off */
#define FLAG_OPTION(name, letter, commands, field, help) {name, letter, commands, FLAG, FIELD(field), 0, 0, NULL, NULL, help}
#define TEXT_OPTION(name, letter, commands, field, argument, help) \
    {name, letter, commands, TEXT, FIELD(field), 0, 0, NULL, argument, help}
#define NUMBER_OPTION(name, letter, commands, kind, field, low, high, argument, help) \
    {name, letter, commands, kind, FIELD(field), low, high, NULL, argument, help}
#define WHEN_OPTION(name, letter, commands, field, help) \
    {name, letter, commands, WHEN, FIELD(field), 0, 0, NULL, "WHEN", help}
#define OTHER_OPTION(name, letter, commands, read, argument, help) \
    {name, letter, commands, OTHER, 0, 0, 0, read, argument, help}
/* clang-format on */

static const option_row table[] = {
    TEXT_OPTION("model", 'm', EVERY, model, "MODEL", "the model: a .gguf file or a Hugging Face directory"),
    TEXT_OPTION("prompt", 'p', PROMPTED, prompt, "TEXT", "the prompt"),
    TEXT_OPTION("prompt-file", 'f', PROMPTED, prompt_file, "FILE", "the prompt is the text of FILE (- is stdin)"),
    TEXT_OPTION("prompt-ids", 0, PROMPTED, prompt_ids, "FILE",
                "the prompt is token ids: numbers between white space or commas, or a JSON array"),
    FLAG_OPTION("lossy", 0, PROMPTED, lossy, "replace invalid UTF-8 by U+FFFD instead of refusing it"),
    FLAG_OPTION("parse-special", 0, PROMPTED, parse_special, "strings of control tokens in the text become those tokens"),
    FLAG_OPTION("chat", 0, GEN | LOG | COM, chat,
                "the prompt is what a user says, written for the model as its chat template has it"),
    TEXT_OPTION("system", 0, GEN | LOG | COM, system, "TEXT", "with --chat: the system text (default: the template's, if any)"),
    FLAG_OPTION("decode", 0, TOK, decode, "print the text of --prompt-ids"),
    NUMBER_OPTION("tokens", 'n', GEN | COM | TUN | PER, INTEGER, tokens, 0, UNBOUNDED, "N",
                  "new tokens (default: to end of text or context; compare, tune: tokens to look at, default 64;\n             "
                  "                  perplexity: all but the first 512)"),
    OTHER_OPTION("on", 0, COM, read_on, "WHAT",
                 "continuation (default): what dense attention generates behind the prompt; text: the prompt's last tokens"),
    TEXT_OPTION("output", 'o', TUN, output, "FILE", "where the policy is written"),
    NUMBER_OPTION("context", 'c', READING | INS, INTEGER, context, 1, UNBOUNDED, "N",
                  "positions of the KV cache (default: what is needed, at most the trained context; inspect: all of that)"),
    TEXT_OPTION("positions", 0, LOG, positions, "LIST", "0-based positions: 5,10 or all or last (default last)"),
    OTHER_OPTION("lengths", 0, NEE, read_lengths, "LIST", "tokens of the texts (default 2K,4K)"),
    OTHER_OPTION("needle-depths", 0, NEE, read_needle_depths, "LIST",
                 "where the needle stands, in per cent of the text (default 0,25,50,75,100)"),
    NUMBER_OPTION("needles", 0, NEE, INTEGER, needles, 1, 16, "N",
                  "needles in one text, evenly spread, asked for one by one (default 1)"),
    OTHER_OPTION("depths", 0, BENCHES, read_depths, "LIST", "positions in the cache before measuring (default 0,4K,8K)"),
    OTHER_OPTION("rows", 0, DEC, read_rows, "LIST", "rows of a pass, as when drafts are verified (default 1)"),
    NUMBER_OPTION("acceptance", 0, DEC, REAL, acceptance, 0, 1, "P",
                  "lossless: share of the drafts that are right; random keys can not tell (default 0.85)"),
    NUMBER_OPTION("repeat", 0, BENCHES, INTEGER, repeat, 1, 1000, "N",
                  "measurements of a case, the median is reported (default 3)"),
    OTHER_OPTION("attention", 0, SPARSE, read_attention, "MODE",
                 "lossless (generate, its default, and bench decode: drafts, checked by dense attention), dense (default of "
                 "the others),\n"
                 "                               condensate (default of compare and needle) or mass; compare, needle, bench "
                 "decode: a list"),
    NUMBER_OPTION("draft", 0, GEN | DEC, INTEGER, draft, 0, 16, "G",
                  "lossless: most tokens drafted at a time (default 16, on one host only such as the text repeats)"),
    OTHER_OPTION("policy", 0, SPARSE, read_policy, "FILE",
                 "attend by the policies of a YAML file, in place of --attention (compare, bench decode: besides; repeatable)"),
    NUMBER_OPTION("anchor", 0, SPARSE | TUN | INS, INTEGER, policy.anchor, 0, UNBOUNDED, "N",
                  "condensate: the first N positions (default 1)"),
    NUMBER_OPTION("window", 0, SPARSE | TUN | INS, INTEGER, policy.window, 0, UNBOUNDED, "N",
                  "condensate: the last N positions (default 64)"),
    NUMBER_OPTION("keys", 0, SPARSE | INS, INTEGER, policy.keys, 0, UNBOUNDED, "K",
                  "condensate: the best K positions by score (default 32)"),
    WHEN_OPTION("screen", 0, SPARSE, screen,
                "condensate: find the best keys by an int8 screen: same sets, wider omitted mass (auto: in contexts from 64K, "
                "not in compare)"),
    OTHER_OPTION("tail", 0, SPARSE | TUN, read_tail, "WHAT",
                 "condensate: none (default) drops what is not selected, mean represents it by the means of its blocks"),
    NUMBER_OPTION(
        "epsilon", 0, GEN | LOG | COM | TUN | DEC, REAL, policy.epsilon, 0, 1, "E",
        "mass: attention mass that a head may leave out (default 0.001); tune: that heads leave out on average (0.02)"),
    OTHER_OPTION("linear", 0, READING | DEC, read_linear, "WAY",
                 "who computes the linear layers of decoded rows: replicated (rank 0), split (all ranks, each a share of the\n"
                 "                               outputs) or auto (default: measured at the start); never changes a token"),
    OTHER_OPTION("kv-type", 0, COMPUTING | INS, read_kv_type, "K[,V]", "type of the KV cache: f32, f16 (default) or bf16"),
    NUMBER_OPTION("rope-base", 0, COMPUTING, REAL, rope_base, 1e-3, 1e12, "X",
                  "base of the rotary angles (default: the model's)"),
    OTHER_OPTION("rope-scaling", 0, COMPUTING, read_rope_scaling, "KIND",
                 "none, linear:FACTOR, dynamic:FACTOR or yarn:FACTOR[:ORIGINAL] (default: the model's)"),
    WHEN_OPTION("mmap", 0, COMPUTING, mmap,
                "auto (default), always or never: weights stay in the mapped file; never: a copy in large pages, faster"),
    NUMBER_OPTION("temperature", 0, GEN, REAL, sampling.temperature, 0, 1e6, "X", "0: greedy (default)"),
    NUMBER_OPTION("top-k", 0, GEN, INTEGER, sampling.top_k, 0, UNBOUNDED, "N",
                  "sample from the best N tokens (default 0: all)"),
    NUMBER_OPTION("top-p", 0, GEN, REAL, sampling.top_p, 0, 1, "X",
                  "sample from the best tokens with this probability (default 1)"),
    NUMBER_OPTION("min-p", 0, GEN, REAL, sampling.min_p, 0, 1, "X",
                  "sample from tokens with this share of the best one's probability (default 0)"),
    NUMBER_OPTION("seed", 0, GEN | NEE, INTEGER, sampling.seed, 0, UNBOUNDED, "N", "seed of the random numbers (default 0)"),
    OTHER_OPTION("stop", 0, GEN, read_stop, "TEXT", "end before this text (may be repeated)"),
    FLAG_OPTION("ignore-eos", 0, GEN, ignore_eos, "go on after an end token"),
    NUMBER_OPTION("threads", 0, EVERY | KER, INTEGER, threads, 1, 1024, "T",
                  "threads of a rank (default: cores of the host over ranks on it)"),
    NUMBER_OPTION("simulate-ranks", 0, EVERY, INTEGER, simulated_ranks, 1, 1024, "R", "R ranks in this process, without MPI"),
    NUMBER_OPTION("deadline", 0, EVERY, REAL, deadline, 1e-3, 1e9, "SECONDS", "longest wait for another rank (default 120)"),
    FLAG_OPTION("json", 0, EVERY | KER, json, "one JSON object on stdout, nothing else there"),
    FLAG_OPTION("csv", 0, BENCHES | KER, csv, "comma-separated values on stdout"),
    WHEN_OPTION("progress", 0, READING, progress, "auto (default), always or never: progress of the prefill on stderr"),
    FLAG_OPTION("quiet", 0, PROMPTED, quiet, "no statistics and no progress"),
    FLAG_OPTION("verbose", 0, READING | INS, verbose, "a table of the ranks on stderr; inspect: all metadata and tensors"),
    FLAG_OPTION("version", 0, ALL, version, "print the version"),
    FLAG_OPTION("help", 'h', ALL, help, "print this"),
};
enum { OPTIONS = sizeof table / sizeof table[0] };

static int takes(dw_command_id command, const option_row *row)
{
    return row->commands == ALL || (row->commands & command) != 0;
}

/* ---- values ---- */

int dw_parse_size(const char **text, int64_t *value)
{
    char *end;
    int64_t scale = 1;
    long long number;
    if (**text < '0' || **text > '9') return 0;
    errno = 0;
    number = strtoll(*text, &end, 10);
    if (errno != 0) return 0;
    if (*end == 'K' || *end == 'k') scale = 1 << 10;
    if (*end == 'M' || *end == 'm') scale = 1 << 20;
    if (__builtin_mul_overflow((int64_t)number, scale, value)) return 0;
    *text = end + (scale > 1);
    return 1;
}

static dw_status out_of_range(const option_row *row, const char *value, dw_error *err)
{
    if (row->high >= UNBOUNDED) {
        return dw_fail(err, DW_USAGE, "--%s %s is out of range (%.12g or more)", row->name, value, row->low);
    }
    return dw_fail(err, DW_USAGE, "--%s %s is out of range (%.12g..%.12g)", row->name, value, row->low, row->high);
}

static dw_status read_integer(int64_t *out, const option_row *row, const char *value, dw_error *err)
{
    const int negative = *value == '-';
    const char *text = value + negative;
    int64_t number;
    const int digits = *text >= '0' && *text <= '9';
    if (digits && !dw_parse_size(&text, &number)) return out_of_range(row, value, err);
    if (!digits || *text != '\0') {
        return dw_fail(err, DW_USAGE, "--%s '%s' is not a whole number (like 8192 or 8K)", row->name, value);
    }
    if (negative) number = -number;
    if ((double)number < row->low || (double)number > row->high) return out_of_range(row, value, err);
    *out = number;
    return DW_OK;
}

static dw_status read_real(double *out, const option_row *row, const char *value, dw_error *err)
{
    char *end;
    const double number = strtod(value, &end);
    if (end == value || *end != '\0') return dw_fail(err, DW_USAGE, "--%s '%s' is not a number", row->name, value);
    if (!(number >= row->low && number <= row->high)) return out_of_range(row, value, err);
    *out = number;
    return DW_OK;
}

/* Cuts the next piece off a comma-separated list. 0 at its end. */
static int next_piece(const char **list, const char **piece, int *length)
{
    if (*list == NULL) return 0;
    *piece = *list;
    *length = (int)strcspn(*list, ",");
    *list = (*list)[*length] == ',' ? *list + *length + 1 : NULL;
    return 1;
}

static int is(const char *piece, int length, const char *name)
{
    return (int)strlen(name) == length && strncmp(piece, name, (size_t)length) == 0;
}

const char *dw_mode_name(dw_attention_mode mode)
{
    static const char *const names[DW_ALL_MODES] = {"dense", "condensate", "mass",
                                                    "lossless"}; /* in the order of dw_attention_mode */
    return names[mode];
}

static int takes_several(const dw_options *options)
{
    return (options->command & (DW_COMMAND_BENCH_DECODE | DW_COMMAND_COMPARE | DW_COMMAND_NEEDLE)) != 0;
}

static dw_status read_attention(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    const int most = takes_several(options) ? DW_MAX_CHOICES : 1;
    const char *list = value;
    const char *piece;
    int length;
    options->mode_count = 0;
    options->has_modes = 1;
    while (next_piece(&list, &piece, &length)) {
        int mode = 0;
        while (mode < DW_ALL_MODES && !is(piece, length, dw_mode_name((dw_attention_mode)mode))) mode++;
        if (mode == DW_ALL_MODES) {
            return dw_fail(err, DW_USAGE, "--%s '%.*s' is not a mode; the modes are lossless, dense, condensate and mass",
                           row->name, length, piece);
        }
        if (mode == DW_LOSSLESS && (options->command & (DW_COMMAND_GENERATE | DW_COMMAND_BENCH_DECODE)) == 0) {
            return dw_fail(err, DW_USAGE, "--%s lossless is a way to generate; its numbers are those of dense", row->name);
        }
        if (options->mode_count == most) return dw_fail(err, DW_USAGE, "--%s %s has too many modes", row->name, value);
        options->modes[options->mode_count++] = (dw_attention_mode)mode;
    }
    options->policy.mode = options->modes[0];
    return DW_OK;
}

/* Files alone take the place of the default modes. */
static dw_status read_policy(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    const int most = takes_several(options) ? DW_MAX_CHOICES : 1;
    if (options->policy_count == most) return dw_fail(err, DW_USAGE, "--%s is given more than %d times", row->name, most);
    options->policy_files[options->policy_count++] = value;
    return DW_OK;
}

static dw_status read_kv_type(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    static const struct {
        const char *name;
        dw_type type;
    } types[] = {{"f32", DW_F32}, {"f16", DW_F16}, {"bf16", DW_BF16}};
    dw_type *const target[2] = {&options->key_type, &options->value_type};
    const char *list = value;
    const char *piece;
    int length;
    int count = 0;
    while (next_piece(&list, &piece, &length)) {
        int i = 0;
        while (i < 3 && !is(piece, length, types[i].name)) i++;
        if (i == 3 || count == 2) {
            return dw_fail(err, DW_USAGE, "--%s '%s' is not a type or a pair K,V; the types are f32, f16 and bf16", row->name,
                           value);
        }
        *target[count++] = types[i].type;
    }
    if (count == 1) options->value_type = options->key_type;
    return DW_OK;
}

static dw_status read_stop(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    if (*value == '\0') return dw_fail(err, DW_USAGE, "--%s is empty", row->name);
    if (dw_utf8_check(value, (int64_t)strlen(value)) >= 0) return dw_fail(err, DW_USAGE, "--%s is not valid UTF-8", row->name);
    if (options->stop_count == DW_MAX_STOPS) return dw_fail(err, DW_USAGE, "more than %d times --%s", DW_MAX_STOPS, row->name);
    options->stops[options->stop_count++] = value;
    return DW_OK;
}

/* Numbers from least to most, at most DW_MAX_DEPTHS of them. */
static dw_status read_list(const option_row *row, const char *value, int64_t least, int64_t most, int64_t *list, int *count,
                           dw_error *err)
{
    const char *text = value;
    *count = 0;
    for (;;) {
        int64_t number;
        if (*count == DW_MAX_DEPTHS) return dw_fail(err, DW_USAGE, "--%s has more than %d entries", row->name, DW_MAX_DEPTHS);
        if (!dw_parse_size(&text, &number) || (*text != ',' && *text != '\0')) {
            return dw_fail(err, DW_USAGE, "--%s '%s' is not a list of whole numbers (like 0,4K,8K)", row->name, value);
        }
        if (number < least || number > most) {
            return dw_fail(err, DW_USAGE, "--%s %s: %lld is out of range (%lld..%lld)", row->name, value, (long long)number,
                           (long long)least, (long long)most);
        }
        list[(*count)++] = number;
        if (*text == '\0') return DW_OK;
        text++;
    }
}

static dw_status read_depths(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    return read_list(row, value, 0, (int64_t)1 << 40, options->depths, &options->depth_count, err);
}

static dw_status read_rows(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    return read_list(row, value, 1, DW_MAX_ROWS, options->rows, &options->row_count, err);
}

static dw_status read_lengths(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    return read_list(row, value, 1, (int64_t)1 << 40, options->lengths, &options->length_count, err);
}

static dw_status read_needle_depths(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    return read_list(row, value, 0, 100, options->needle_depths, &options->needle_depth_count, err);
}

static dw_status read_tail(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    options->policy.has_tail = strcmp(value, "mean") == 0;
    if (options->policy.has_tail || strcmp(value, "none") == 0) return DW_OK;
    return dw_fail(err, DW_USAGE, "--%s '%s' is not none or mean", row->name, value);
}

static dw_status read_on(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    options->on = value;
    if (strcmp(value, "continuation") == 0 || strcmp(value, "text") == 0) return DW_OK;
    return dw_fail(err, DW_USAGE, "--%s '%s' is not continuation or text", row->name, value);
}

static dw_status read_rope_scaling(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    (void)row;
    options->rope_scaling = value;
    return dw_rope_scaling_parse(value, NULL, err);
}

const char *dw_linear_name(dw_linear_way way)
{
    static const char *const names[] = {"replicated", "split", "auto"}; /* in the order of dw_linear_way */
    return names[way];
}

static dw_status read_linear(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    for (int i = DW_LINEAR_REPLICATED; i <= DW_LINEAR_AUTO; i++) {
        if (strcmp(value, dw_linear_name((dw_linear_way)i)) == 0) {
            options->linear = (dw_linear_way)i;
            return DW_OK;
        }
    }
    return dw_fail(err, DW_USAGE, "--%s '%s' is not auto, replicated or split", row->name, value);
}

static dw_status read_when(dw_when *field, const option_row *row, const char *value, dw_error *err)
{
    static const char *const names[] = {"auto", "always", "never"}; /* in the order of dw_when */
    for (int i = 0; i < 3; i++) {
        if (strcmp(value, names[i]) == 0) {
            *field = (dw_when)i;
            return DW_OK;
        }
    }
    return dw_fail(err, DW_USAGE, "--%s '%s' is not auto, always or never", row->name, value);
}

static void *field_of(dw_options *options, const option_row *row)
{
    return (char *)options + row->offset;
}

/* Of an option that takes one. */
static dw_status read_value(dw_options *options, const option_row *row, const char *value, dw_error *err)
{
    void *field = field_of(options, row);
    switch (row->kind) {
    case TEXT: *(const char **)field = value; return DW_OK;
    case INTEGER: return read_integer(field, row, value, err);
    case REAL: return read_real(field, row, value, err);
    case WHEN: return read_when(field, row, value, err);
    default: return row->read(options, row, value, err);
    }
}

/* ---- the command line ---- */

/* argument: "--name", "--name=value" or "-x". *value: what follows "=", or NULL. */
static const option_row *find_option(const char *argument, const char **value)
{
    const size_t length = strcspn(argument, "=");
    *value = argument[length] == '=' ? argument + length + 1 : NULL;
    for (int i = 0; i < OPTIONS; i++) {
        const option_row *row = &table[i];
        if (strncmp(argument, "--", 2) == 0) {
            if (is(argument + 2, (int)length - 2, row->name)) return row;
        } else if (row->letter != 0 && argument[1] == row->letter && argument[2] == '\0') {
            *value = NULL;
            return row;
        }
    }
    return NULL;
}

static dw_status no_command(dw_error *err)
{
    return dw_fail(err, DW_USAGE, "no command; dewpoint --help lists them");
}

/* Reads argv[0] and, if the option takes a value, argv[1]. *used: arguments read. */
static dw_status read_option(dw_options *options, char **argv, int *used, dw_error *err)
{
    const char *name = dw_command_name(options->command);
    const char *space = options->command == DW_COMMAND_NONE ? "" : " ";
    const char *value;
    const option_row *row;
    if (argv[0][0] != '-' || argv[0][1] == '\0') return dw_fail(err, DW_USAGE, "unexpected argument '%.200s'", argv[0]);
    row = find_option(argv[0], &value);
    if (row == NULL) {
        return dw_fail(err, DW_USAGE, "unknown option '%.200s' (see dewpoint%s%s --help)", argv[0], space, name);
    }
    if (!takes(options->command, row)) {
        if (options->command == DW_COMMAND_NONE) return no_command(err);
        return dw_fail(err, DW_USAGE, "%s does not take --%s (see dewpoint %s --help)", name, row->name, name);
    }
    if (row->kind == FLAG && value != NULL) return dw_fail(err, DW_USAGE, "--%s takes no value", row->name);
    *used = 1;
    if (row->kind == FLAG) {
        *(int *)field_of(options, row) = 1;
        return DW_OK;
    }
    if (value == NULL) {
        value = argv[1];
        *used = 2;
        if (value == NULL) return dw_fail(err, DW_USAGE, "--%s needs a value (%s)", row->name, row->argument);
    }
    return read_value(options, row, value, err);
}

static dw_status unknown_command(const char *name, dw_error *err)
{
    char names[128] = "";
    for (int i = 0; i < COMMANDS; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", commands[i].name);
    }
    return dw_fail(err, DW_USAGE, "unknown command '%.200s'; there are %s", name, names);
}

/* *used: how many arguments the name of the command takes; none when an option comes first. */
static dw_status read_command(dw_options *options, char **argv, int *used, dw_error *err)
{
    char two_words[64] = "";
    *used = 0;
    if (argv[0] == NULL || argv[0][0] == '-') return DW_OK;
    if (argv[1] != NULL) snprintf(two_words, sizeof two_words, "%s %s", argv[0], argv[1]);
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[0]) == 0) *used = 1;
        if (strcmp(commands[i].name, two_words) == 0) *used = 2;
        if (*used > 0) {
            options->command = commands[i].id;
            return DW_OK;
        }
    }
    return unknown_command(argv[0], err);
}

static dw_status check_choices(const dw_options *options, dw_error *err)
{
    int condensates = options->policy_count; /* files may leave fields to the command line */
    for (int i = 0; i < options->mode_count; i++) condensates += options->modes[i] == DW_CONDENSATE;
    if (options->policy.has_tail && condensates == 0 && options->command != DW_COMMAND_TUNE) {
        return dw_fail(err, DW_USAGE, "--tail mean belongs to --attention condensate");
    }
    if (takes_several(options) || options->mode_count + options->policy_count <= 1) return DW_OK;
    return dw_fail(err, DW_USAGE, "--attention and --policy exclude each other");
}

/* What no single option can see. */
static dw_status check_together(const dw_options *options, dw_error *err)
{
    const char *name;
    const int prompts = (options->prompt != NULL) + (options->prompt_file != NULL) + (options->prompt_ids != NULL);
    if (options->command == DW_COMMAND_NONE) return no_command(err);
    name = dw_command_name(options->command);
    if (options->model == NULL && options->command != DW_COMMAND_BENCH_KERNELS) {
        return dw_fail(err, DW_USAGE, "%s needs a model: -m MODEL", name);
    }
    if (options->policy.anchor == 0 && options->policy.window == 0 && options->policy.keys == 0) {
        return dw_fail(err, DW_USAGE, "--anchor, --window and --keys are all 0: the condensate would be empty");
    }
    DW_TRY(check_choices(options, err));
    if (options->command == DW_COMMAND_TUNE && options->output == NULL) {
        return dw_fail(err, DW_USAGE, "tune needs --output FILE");
    }
    if (options->json && options->csv) return dw_fail(err, DW_USAGE, "--json and --csv exclude each other");
    if ((options->command & PROMPTED) == 0) return DW_OK;
    if (prompts == 0) return dw_fail(err, DW_USAGE, "%s needs --prompt, --prompt-file or --prompt-ids", name);
    if (prompts > 1) return dw_fail(err, DW_USAGE, "--prompt, --prompt-file and --prompt-ids exclude each other");
    if (options->system != NULL && !options->chat) return dw_fail(err, DW_USAGE, "--system needs --chat");
    if (options->chat && options->prompt_ids != NULL) return dw_fail(err, DW_USAGE, "--chat needs a text, not --prompt-ids");
    if (options->chat && options->parse_special) {
        return dw_fail(err, DW_USAGE, "--chat and --parse-special exclude each other: what the user says is plain text");
    }
    if (options->decode && options->prompt_ids == NULL) return dw_fail(err, DW_USAGE, "--decode needs --prompt-ids");
    if (options->command == DW_COMMAND_TOKENIZE && options->prompt_ids != NULL && !options->decode) {
        return dw_fail(err, DW_USAGE, "tokenize takes --prompt-ids only with --decode");
    }
    return DW_OK;
}

static dw_status read_environment(dw_options *options, dw_error *err)
{
    const char *value = getenv("DEWPOINT_FAIL_ALLOC");
    const char *text = value;
    int complete;
    options->fail_rank = -1;
    if (value == NULL || *value == '\0') return DW_OK;
    complete = dw_parse_size(&text, &options->fail_allocation);
    if (complete && *text == '@') {
        text++;
        complete = dw_parse_size(&text, &options->fail_rank);
    }
    if (!complete || *text != '\0') return dw_fail(err, DW_USAGE, "DEWPOINT_FAIL_ALLOC='%.200s' is not N or N@RANK", value);
    return DW_OK;
}

dw_status dw_options_parse(dw_options *options, int argc, char **argv, dw_error *err)
{
    int at = argc > 0 ? 1 : 0;
    int used;
    *options = (dw_options){
        .deadline = 120,
        .tokens = -1,
        .modes = {DW_DENSE, DW_CONDENSATE},
        .mode_count = 1,
        .policy = {DW_DENSE, 1, 64, 32, 1e-3, 0},
        .key_type = DW_F16,
        .value_type = DW_F16,
        .sampling = {.top_p = 1},
        .depths = {0, 4096, 8192},
        .depth_count = 3,
        .rows = {1},
        .row_count = 1,
        .acceptance = 0.85,
        .linear = DW_LINEAR_AUTO,
        .repeat = 3,
        .draft = -1,
        .lengths = {2048, 4096},
        .length_count = 2,
        .needle_depths = {0, 25, 50, 75, 100},
        .needle_depth_count = 5,
        .needles = 1,
        .on = "continuation",
        .fail_rank = -1,
    };
    DW_TRY(read_command(options, argv + at, &used, err));
    if (options->command == DW_COMMAND_GENERATE) options->modes[0] = options->policy.mode = DW_LOSSLESS;
    if (options->command == DW_COMMAND_NEEDLE) options->modes[0] = options->policy.mode = DW_CONDENSATE;
    if (options->command == DW_COMMAND_COMPARE) {
        options->modes[0] = options->policy.mode = DW_CONDENSATE;
        options->tokens = 64;
    }
    if (options->command == DW_COMMAND_BENCH_DECODE) options->mode_count = 2;
    if (options->command == DW_COMMAND_TUNE) {
        options->modes[0] = DW_MASS;
        options->tokens = 64;
        options->policy.epsilon = 0.02;
    }
    for (at += used; at < argc; at += used) {
        DW_TRY(read_option(options, argv + at, &used, err));
        if (options->help || options->version) return DW_OK;
    }
    if (options->policy_count > 0 && !options->has_modes) options->mode_count = 0;
    DW_TRY(read_environment(options, err));
    return check_together(options, err);
}

/* ---- the help ---- */

static void print_options(dw_command_id command)
{
    for (int i = 0; i < OPTIONS; i++) {
        const option_row *row = &table[i];
        char left[64];
        char letter[8] = "    ";
        if (!takes(command, row)) continue;
        if (row->letter != 0) snprintf(letter, sizeof letter, "-%c, ", row->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, row->name, row->argument == NULL ? "" : " ",
                 row->argument == NULL ? "" : row->argument);
        printf("  %-28s %s\n", left, row->help);
    }
}

void dw_options_help(dw_command_id id)
{
    const command_row *command = command_of(id);
    if (command != NULL) {
        const int alone = id == DW_COMMAND_BENCH_KERNELS;
        printf("usage: %sdewpoint %s%s [options]\n%s\n\n", alone ? "" : "[mpirun -n N] ", command->name,
               alone ? "" : " -m MODEL", command->summary);
        print_options(id);
        printf("\nNumbers take the suffixes K (1024) and M (1024 K).\n");
        return;
    }
    printf("usage: [mpirun -n N] dewpoint COMMAND -m MODEL [options]\n"
           "Dewpoint decodes very long contexts on clusters of CPUs.\n\n");
    for (int i = 0; i < COMMANDS; i++) printf("  %-28s %s\n", commands[i].name, commands[i].summary);
    printf("\n");
    print_options(DW_COMMAND_NONE);
    printf("\ndewpoint COMMAND --help lists the options of a command.\n\n"
           "exit status: 0 done, 1 run-time failure, 2 usage, 3 bad model or input, 4 not enough memory or disk,\n"
           "5 a rank was lost or timed out, 130 interrupted\n");
}
