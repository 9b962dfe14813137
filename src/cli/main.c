/* Dewpoint: the arguments become options, the launch starts the ranks, every rank runs the command.
   From here: launch.c -> generate.c -> decode/session.c. */
#include <stdio.h>

#include "cli/launch.h"
#include "cli/report.h"

static dw_status print_help(dw_rank *rank, dw_error *err)
{
    rank->alone = 1;
    if (rank->transport->rank != 0) return DW_OK;
    dw_options_help(rank->options->command);
    return dw_flush_output(err);
}

static dw_status print_version(dw_rank *rank, dw_error *err)
{
    rank->alone = 1;
    if (rank->transport->rank != 0) return DW_OK;
    puts("dewpoint " DW_VERSION);
    return dw_flush_output(err);
}

static dw_body *body_of(const dw_options *options)
{
    if (options->help) return print_help;
    if (options->version) return print_version;
    switch (options->command) {
    case DW_COMMAND_GENERATE: return dw_generate;
    case DW_COMMAND_TOKENIZE: return dw_tokenize_command;
    case DW_COMMAND_LOGITS: return dw_logits;
    case DW_COMMAND_COMPARE: return dw_compare;
    case DW_COMMAND_TUNE: return dw_tune;
    case DW_COMMAND_PERPLEXITY: return dw_perplexity_command;
    case DW_COMMAND_NEEDLE: return dw_needle;
    case DW_COMMAND_INSPECT: return dw_inspect;
    case DW_COMMAND_BENCH_DECODE: return dw_bench_decode;
    case DW_COMMAND_BENCH_PREFILL: return dw_bench_prefill;
    case DW_COMMAND_BENCH_KERNELS: return dw_bench_kernels;
    default: return NULL; /* a usage error */
    }
}

int main(int argc, char **argv)
{
    dw_options options;
    dw_error err;
    const dw_status parsed = dw_options_parse(&options, argc, argv, &err);
    return dw_launch(&options, body_of(&options), parsed, &err);
}
