/* The command line. One table (options.c) says which options there are, which commands take them, what values they allow and
   what --help prints. Parsing touches nothing but the arguments: no file, no MPI. */
#ifndef DW_CLI_OPTIONS_H
#define DW_CLI_OPTIONS_H

#include <stdint.h>

#include "base/error.h"
#include "decode/sampler.h"
#include "decode/session.h"

/* Bits, so that the table can name several. */
typedef enum {
    DW_COMMAND_NONE = 0,
    DW_COMMAND_GENERATE = 1,
    DW_COMMAND_TOKENIZE = 2,
    DW_COMMAND_LOGITS = 4,
    DW_COMMAND_BENCH_DECODE = 8,
    DW_COMMAND_BENCH_PREFILL = 16,
    DW_COMMAND_INSPECT = 32,
    DW_COMMAND_BENCH_KERNELS = 64,
    DW_COMMAND_COMPARE = 128,
    DW_COMMAND_PERPLEXITY = 256,
    DW_COMMAND_NEEDLE = 512,
    DW_COMMAND_TUNE = 1024
} dw_command_id;

typedef enum { DW_AUTO, DW_ALWAYS, DW_NEVER } dw_when;

enum { DW_MAX_STOPS = 64, DW_MAX_DEPTHS = 64, DW_MAX_CHOICES = 16, DW_MAX_ROWS = 64, DW_ALL_MODES = 4 };

/* Strings point into argv. */
typedef struct {
    dw_command_id command;
    int help;    /* --help: print dw_options_help(command) and leave */
    int version; /* --version */

    const char *model;
    double rope_base;         /* 0: the model's */
    const char *rope_scaling; /* NULL: the model's; checked */
    dw_when mmap;             /* weights stay in the mapped file */
    int64_t threads;          /* per rank; 0: default */
    int64_t simulated_ranks;  /* 0: not given */
    double deadline;

    const char *prompt; /* exactly one of these three */
    const char *prompt_file;
    const char *prompt_ids;
    int lossy;
    int parse_special;
    int chat;           /* the prompt is a user turn of a conversation */
    const char *system; /* NULL: none */

    int64_t tokens;  /* -1: until end of text or context */
    int64_t context; /* 0: default */
    dw_attention_mode
        modes[DW_MAX_CHOICES]; /* compare and bench decode take several, as of policy files; the others one in all */
    int mode_count;
    int has_modes; /* --attention was given */
    const char *policy_files[DW_MAX_CHOICES];
    int policy_count;
    dw_policy policy; /* its mode is modes[0] */
    dw_linear_way linear;
    int64_t draft;  /* lossless: most tokens drafted at a time; -1: auto */
    dw_when screen; /* auto: not in compare, whose reports are exact */
    dw_type key_type;
    dw_type value_type;
    dw_sampling sampling;
    const char *stops[DW_MAX_STOPS];
    int stop_count;
    int ignore_eos;

    const char *output;    /* tune: file to write */
    const char *on;        /* compare: "continuation" or "text" */
    int decode;            /* tokenize */
    const char *positions; /* logits: "all", "last" or numbers; NULL: last */
    int64_t depths[DW_MAX_DEPTHS];
    int depth_count;
    int64_t rows[DW_MAX_DEPTHS]; /* bench decode: of a pass */
    int row_count;
    double acceptance; /* bench decode, lossless: chance that a draft is right */
    int64_t repeat;
    int64_t lengths[DW_MAX_DEPTHS]; /* needle */
    int length_count;
    int64_t needle_depths[DW_MAX_DEPTHS]; /* per cent */
    int needle_depth_count;
    int64_t needles;

    int json;
    int csv;
    int quiet;
    int verbose;
    dw_when progress;

    /* The environment variable DEWPOINT_FAIL_ALLOC=N[@RANK], a test aid: allocation N (1 = the first) after the start of the
       ranks fails, with @RANK only in the process of that MPI rank (without MPI there is only the process of rank 0). */
    int64_t fail_allocation; /* 0: none */
    int64_t fail_rank;       /* -1: every process */
} dw_options;

/* DW_USAGE with a message that names the option. With --help or --version nothing else is asked for. */
dw_status dw_options_parse(dw_options *options, int argc, char **argv, dw_error *err);

/* Text of --help, for one command or (DW_COMMAND_NONE) for the program, on stdout. */
void dw_options_help(dw_command_id command);

/* "generate", "bench decode"; "" for DW_COMMAND_NONE. */
const char *dw_command_name(dw_command_id command);

/* "dense", "condensate". */
const char *dw_mode_name(dw_attention_mode mode);

/* "replicated", "split", "auto". */
const char *dw_linear_name(dw_linear_way way);

/* Reads an integer with an optional suffix K (1024) or M (1024 * 1024) at *text, and moves *text behind it. 0 when there is
   none or it is too large. */
int dw_parse_size(const char **text, int64_t *value);

#endif
