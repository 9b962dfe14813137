#include "tests/shared/mpirun.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

enum { MARK_BYTES = 64, MOST_ARGUMENTS = 64 };

static const char mark_name[] = "DEWPOINT_TEST_JOB";
static const struct timespec moment = {.tv_nsec = 10000000}; /* between two looks */

/* One run of mpirun. */
typedef struct {
    char mark[MARK_BYTES]; /* every process of the job inherits it */
    pid_t mpirun;
    FILE *out, *err;
    const mpirun_fault *fault; /* NULL: none */
    int fault_done;
} job;

/* Settings that make Open MPI 4 run as root, on one machine, with any number of ranks, and quietly. */
static const char *const environment[][2] = {
    {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
    {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
    {"OMPI_MCA_mpi_yield_when_idle", "1"},
    {"OMPI_MCA_btl_tcp_if_include", "lo"},
    {"OMPI_MCA_oob_tcp_if_include", "lo"},
    {"ASAN_OPTIONS", "detect_leaks=0"}, /* Open MPI has leaks of its own; simulated ranks are checked for ours */
};

/* Reads a whole temporary file. */
static dw_status read_all(char **out, FILE *file, dw_error *err)
{
    long bytes;
    fseek(file, 0, SEEK_END);
    bytes = ftell(file);
    rewind(file);
    if (bytes < 0) return dw_fail(err, DW_RUNTIME, "can not read the output of mpirun");
    DW_TRY(DW_ALLOC(out, bytes + 1, "the output of mpirun", err));
    if (fread(*out, 1, (size_t)bytes, file) == (size_t)bytes) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "can not read the output of mpirun");
}

/* In the child. */
static void become_mpirun(const job *j, int ranks, int seconds, const char *const *argv)
{
    char ranks_text[16], seconds_text[16];
    const char *arguments[MOST_ARGUMENTS] = {"mpirun", "--timeout", seconds_text};
    int n = 3;
    const int null = open("/dev/null", O_RDONLY);
    snprintf(ranks_text, sizeof ranks_text, "%d", ranks);
    snprintf(seconds_text, sizeof seconds_text, "%d", seconds);
    if (j->fault == NULL) arguments[n++] = "-q";
    arguments[n++] = "-n";
    arguments[n++] = ranks_text;
    while (*argv != NULL && n < MOST_ARGUMENTS - 1) arguments[n++] = *argv++;
    for (size_t i = 0; i < sizeof environment / sizeof environment[0]; i++) setenv(environment[i][0], environment[i][1], 0);
    setenv(mark_name, j->mark, 1);
    unsetenv("BXFI_MAP"); /* makes a program that is linked with Criterion take itself for the test's sandbox */
    if (null < 0 || dup2(null, 0) < 0 || dup2(fileno(j->out), 1) < 0 || dup2(fileno(j->err), 2) < 0) _exit(126);
    execvp("mpirun", (char *const *)(const void *)arguments);
    _exit(127);
}

/* Whether the process has "NAME=VALUE" in its environment. Zombies have none any more. */
static int has_in_environment(const char *pid, const char *name, const char *value)
{
    char path[64], expected[128];
    char *line = NULL;
    size_t capacity = 0;
    int found = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
    snprintf(expected, sizeof expected, "%s=%s", name, value);
    file = fopen(path, "re");
    if (file == NULL) return 0;
    while (!found && getdelim(&line, &capacity, '\0', file) > 0) found = strcmp(line, expected) == 0;
    free(line);
    fclose(file);
    return found;
}

/* Sends a signal (0: none) to the processes of the job, or to those of one rank (-1: all); returns how many there are. */
static int signal_job(const job *j, int rank, int signal)
{
    char rank_text[16];
    int count = 0;
    struct dirent *entry;
    DIR *processes = opendir("/proc");
    if (processes == NULL) return -1;
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    while ((entry = readdir(processes)) != NULL) {
        const long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || !has_in_environment(entry->d_name, mark_name, j->mark)) continue;
        if (rank >= 0 && !has_in_environment(entry->d_name, "OMPI_COMM_WORLD_RANK", rank_text)) continue;
        kill((pid_t)pid, signal);
        count++;
    }
    closedir(processes);
    return count;
}

/* A process that was just killed needs a moment to be gone. */
static int kill_left_processes(const job *j)
{
    for (int i = 0; i < 500 && signal_job(j, -1, 0) > 0; i++) nanosleep(&moment, NULL);
    return signal_job(j, -1, SIGKILL);
}

/* The job writes through descriptors of its own; here the file is only looked at, and its position, which they share, stays. */
static int shows(FILE *file, const char *sign)
{
    char text[1 << 16];
    const ssize_t bytes = pread(fileno(file), text, sizeof text - 1, 0);
    if (bytes <= 0) return 0;
    text[bytes] = '\0';
    return sign == NULL || strstr(text, sign) != NULL;
}

static void try_fault(job *j)
{
    const mpirun_fault *fault = j->fault;
    if (fault == NULL || j->fault_done || !shows(fault->sign == NULL ? j->out : j->err, fault->sign)) return;
    j->fault_done = signal_job(j, fault->rank, fault->signal) > 0;
}

/* mpirun ends its job after `seconds`, but Open MPI 4.1.4 was seen to lock itself up on its way out. */
static dw_status wait_for_mpirun(job *j, int seconds, int *status, dw_error *err)
{
    const double limit = dw_now() + seconds + 30;
    pid_t ended;
    while ((ended = waitpid(j->mpirun, status, WNOHANG)) == 0 && dw_now() < limit) {
        try_fault(j);
        nanosleep(&moment, NULL);
    }
    if (ended == j->mpirun) return DW_OK;
    if (ended < 0) return dw_fail(err, DW_RUNTIME, "lost mpirun: %s", strerror(errno));
    kill(j->mpirun, SIGKILL);
    waitpid(j->mpirun, status, 0);
    return dw_fail(err, DW_RUNTIME, "mpirun did not end %d seconds after its timeout and was killed", 30);
}

static dw_status run_job(mpirun_result *result, job *j, int ranks, int seconds, const char *const *argv, dw_error *err)
{
    static int jobs;
    int status = 0;
    dw_status waited;
    snprintf(j->mark, sizeof j->mark, "%ld.%d", (long)getpid(), jobs++);
    j->mpirun = fork();
    if (j->mpirun < 0) return dw_fail(err, DW_RUNTIME, "can not fork: %s", strerror(errno));
    if (j->mpirun == 0) become_mpirun(j, ranks, seconds, argv);
    waited = wait_for_mpirun(j, seconds, &status, err);
    result->left_processes = kill_left_processes(j);
    DW_TRY(waited);
    result->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (result->status == 126 || result->status == 127) return dw_fail(err, DW_RUNTIME, "can not run mpirun: is it installed?");
    DW_TRY(read_all(&result->out, j->out, err));
    DW_TRY(read_all(&result->err, j->err, err));
    if (j->fault == NULL || j->fault_done) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "the job ended with status %d before rank %d could get its signal: %.300s", result->status,
                   j->fault->rank, result->err);
}

dw_status mpirun_with_fault(mpirun_result *result, int ranks, int seconds, const char *const *argv, const mpirun_fault *fault,
                            dw_error *err)
{
    job j = {.out = tmpfile(), .err = tmpfile(), .fault = fault};
    dw_status status;
    *result = (mpirun_result){.status = -1};
    if (j.out == NULL || j.err == NULL) {
        status = dw_fail(err, DW_RUNTIME, "can not create a temporary file: %s", strerror(errno));
    } else {
        status = run_job(result, &j, ranks, seconds, argv, err);
    }
    if (j.out != NULL) fclose(j.out);
    if (j.err != NULL) fclose(j.err);
    return status;
}

dw_status mpirun(mpirun_result *result, int ranks, int seconds, const char *const *argv, dw_error *err)
{
    return mpirun_with_fault(result, ranks, seconds, argv, NULL, err);
}

void mpirun_free(mpirun_result *result)
{
    dw_free(result->out);
    dw_free(result->err);
}

dw_status program_beside_this(char *path, int64_t capacity, const char *name, dw_error *err)
{
    char self[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;
    if (length < 0) return dw_fail(err, DW_RUNTIME, "can not find the running test program: %s", strerror(errno));
    self[length] = '\0';
    slash = strrchr(self, '/');
    if (slash == NULL || snprintf(path, (size_t)capacity, "%.*s/%s", (int)(slash - self), self, name) >= capacity) {
        return dw_fail(err, DW_RUNTIME, "the path of the running test program is too long");
    }
    if (access(path, X_OK) != 0) return dw_fail(err, DW_RUNTIME, "%s: %s", path, strerror(errno));
    return DW_OK;
}
