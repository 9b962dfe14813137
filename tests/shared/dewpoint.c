#include "tests/shared/dewpoint.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/shared/mpirun.h"

enum { SECONDS = 120, MOST_ARGUMENTS = 60 };

const char *dewpoint_program(void)
{
    const char *named = getenv("DEWPOINT");
    const char *program = named != NULL ? named : "./dewpoint";
    cr_assert_eq(access(program, X_OK), 0, "%s is missing; build it first", program);
    return program;
}

/* argv: [MOST_ARGUMENTS] */
static void join_arguments(const char **argv, const char *const *arguments)
{
    int count = 1;
    argv[0] = dewpoint_program();
    for (int i = 0; arguments[i] != NULL; i++) {
        cr_assert_lt(count, MOST_ARGUMENTS - 1);
        argv[count++] = arguments[i];
    }
    argv[count] = NULL;
}

static dewpoint_result run_under_mpirun(int ranks, const char *const *argv)
{
    mpirun_result job;
    dewpoint_result result;
    dw_error err;
    cr_assert_eq(mpirun(&job, ranks, SECONDS, argv, &err), DW_OK, "%s", err.message);
    cr_assert_eq(job.left_processes, 0, "%d processes are left", job.left_processes);
    result = (dewpoint_result){.status = job.status, .out = job.out, .err = job.err};
    return result;
}

/* The child writes into out and err; its alarm ends a program that hangs. */
static pid_t start(const char *const *argv, FILE *input, int out, int err)
{
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child > 0) return child;
    alarm(SECONDS);
    unsetenv("BXFI_MAP"); /* Criterion's; not for the program */
    if (dup2(fileno(input), 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    execv(argv[0], (char *const *)(const void *)argv);
    _exit(127);
}

static int wait_for(pid_t child)
{
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static char *read_stream(FILE *file)
{
    char *text;
    long bytes;
    dw_error err;
    fseek(file, 0, SEEK_END);
    bytes = ftell(file);
    rewind(file);
    cr_assert_eq(DW_ALLOC(&text, bytes + 1, "output", &err), DW_OK);
    cr_assert_eq(fread(text, 1, (size_t)bytes, file), (size_t)bytes);
    fclose(file);
    return text;
}

static FILE *stdin_with(const char *text)
{
    FILE *file = tmpfile();
    cr_assert_not_null(file);
    fputs(text == NULL ? "" : text, file);
    fflush(file);
    rewind(file);
    return file;
}

dewpoint_result dewpoint_run(int ranks, const char *input, const char *const *arguments)
{
    const char *argv[MOST_ARGUMENTS];
    dewpoint_result result;
    FILE *in, *out, *err;
    join_arguments(argv, arguments);
    if (ranks > 0) return run_under_mpirun(ranks, argv);
    in = stdin_with(input);
    out = tmpfile();
    err = tmpfile();
    cr_assert(out != NULL && err != NULL);
    result.status = wait_for(start(argv, in, fileno(out), fileno(err)));
    fclose(in);
    result.out = read_stream(out);
    result.err = read_stream(err);
    return result;
}

/* Copies what comes from a pipe to a file until both pipes end; sends the signal at the first bytes of the watched one. */
static void copy_and_signal(const int pipes[2], FILE *const files[2], int watched, pid_t child, int signal)
{
    struct pollfd waiting[2] = {{.fd = pipes[0], .events = POLLIN}, {.fd = pipes[1], .events = POLLIN}};
    int sent = 0;
    while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
        cr_assert_gt(poll(waiting, 2, SECONDS * 1000), 0);
        for (int i = 0; i < 2; i++) {
            char bytes[4096];
            ssize_t count;
            if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
            count = read(waiting[i].fd, bytes, sizeof bytes);
            if (count <= 0) {
                waiting[i].fd = -1;
                continue;
            }
            fwrite(bytes, 1, (size_t)count, files[i]);
            if (i == watched && !sent) {
                kill(child, signal);
                sent = 1;
            }
        }
    }
}

dewpoint_result dewpoint_signalled(int signal, int descriptor, const char *const *arguments)
{
    const char *argv[MOST_ARGUMENTS];
    dewpoint_result result;
    FILE *in = stdin_with(NULL);
    FILE *const files[2] = {tmpfile(), tmpfile()};
    int out[2], err[2];
    pid_t child;
    join_arguments(argv, arguments);
    cr_assert(pipe(out) == 0 && pipe(err) == 0 && files[0] != NULL && files[1] != NULL);
    child = start(argv, in, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    copy_and_signal((const int[2]){out[0], err[0]}, files, descriptor - 1, child, signal);
    close(out[0]);
    close(err[0]);
    fclose(in);
    result.status = wait_for(child);
    result.out = read_stream(files[0]);
    result.err = read_stream(files[1]);
    return result;
}

void dewpoint_free(dewpoint_result *result)
{
    dw_free(result->out);
    dw_free(result->err);
}

json_t *dewpoint_json(const char *const *arguments)
{
    dewpoint_result result = dewpoint_run(0, NULL, arguments);
    json_error_t error;
    json_t *object;
    cr_assert_eq(result.status, 0, "status %d: %s", result.status, result.err);
    object = json_loads(result.out, JSON_ALLOW_NUL, &error);
    cr_assert(json_is_object(object), "no JSON object (%s): %.200s", error.text, result.out);
    dewpoint_free(&result);
    return object;
}
