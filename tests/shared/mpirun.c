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

/* In the child. Every process of the job inherits the mark. */
static void become_mpirun(const char *mark, int ranks, int seconds, const char *const *argv, FILE *out, FILE *err)
{
    char ranks_text[16], seconds_text[16];
    const char *arguments[MOST_ARGUMENTS] = {"mpirun", "-q", "--timeout", seconds_text, "-n", ranks_text};
    int n = 6;
    const int null = open("/dev/null", O_RDONLY);
    snprintf(ranks_text, sizeof ranks_text, "%d", ranks);
    snprintf(seconds_text, sizeof seconds_text, "%d", seconds);
    while (*argv != NULL && n < MOST_ARGUMENTS - 1) arguments[n++] = *argv++;
    for (size_t i = 0; i < sizeof environment / sizeof environment[0]; i++) setenv(environment[i][0], environment[i][1], 0);
    setenv(mark_name, mark, 1);
    unsetenv("BXFI_MAP"); /* makes a program that is linked with Criterion take itself for the test's sandbox */
    if (null < 0 || dup2(null, 0) < 0 || dup2(fileno(out), 1) < 0 || dup2(fileno(err), 2) < 0) _exit(126);
    execvp("mpirun", (char *const *)(const void *)arguments);
    _exit(127);
}

/* Whether the process carries "DEWPOINT_TEST_JOB=mark". Zombies have no environment any more. */
static int carries_mark(const char *pid, const char *mark)
{
    char path[64], expected[sizeof mark_name + MARK_BYTES];
    char *line = NULL;
    size_t capacity = 0;
    int found = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
    snprintf(expected, sizeof expected, "%s=%s", mark_name, mark);
    file = fopen(path, "re");
    if (file == NULL) return 0;
    while (!found && getdelim(&line, &capacity, '\0', file) > 0) found = strcmp(line, expected) == 0;
    free(line);
    fclose(file);
    return found;
}

/* Sends a signal (0: none) to every process with the mark; returns how many there are. */
static int signal_marked(const char *mark, int signal)
{
    int count = 0;
    struct dirent *entry;
    DIR *processes = opendir("/proc");
    if (processes == NULL) return -1;
    while ((entry = readdir(processes)) != NULL) {
        const long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || !carries_mark(entry->d_name, mark)) continue;
        kill((pid_t)pid, signal);
        count++;
    }
    closedir(processes);
    return count;
}

/* A process that was just killed needs a moment to be gone. */
static int kill_left_processes(const char *mark)
{
    for (int i = 0; i < 500 && signal_marked(mark, 0) > 0; i++) nanosleep(&moment, NULL);
    return signal_marked(mark, SIGKILL);
}

/* mpirun ends its job after `seconds`, but Open MPI 4.1.4 was seen to lock itself up on its way out. */
static dw_status wait_for_mpirun(pid_t child, int seconds, int *status, dw_error *err)
{
    const double limit = dw_now() + seconds + 30;
    pid_t ended;
    while ((ended = waitpid(child, status, WNOHANG)) == 0 && dw_now() < limit) nanosleep(&moment, NULL);
    if (ended == child) return DW_OK;
    if (ended < 0) return dw_fail(err, DW_RUNTIME, "lost mpirun: %s", strerror(errno));
    kill(child, SIGKILL);
    waitpid(child, status, 0);
    return dw_fail(err, DW_RUNTIME, "mpirun did not end %d seconds after its timeout and was killed", 30);
}

static dw_status run_job(mpirun_result *result, int ranks, int seconds, const char *const *argv, FILE *out, FILE *err_file,
                         dw_error *err)
{
    static int jobs;
    char mark[MARK_BYTES];
    int status = 0;
    pid_t child;
    dw_status waited;
    snprintf(mark, sizeof mark, "%ld.%d", (long)getpid(), jobs++);
    child = fork();
    if (child < 0) return dw_fail(err, DW_RUNTIME, "can not fork: %s", strerror(errno));
    if (child == 0) become_mpirun(mark, ranks, seconds, argv, out, err_file);
    waited = wait_for_mpirun(child, seconds, &status, err);
    result->left_processes = kill_left_processes(mark);
    DW_TRY(waited);
    result->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (result->status == 126 || result->status == 127) return dw_fail(err, DW_RUNTIME, "can not run mpirun: is it installed?");
    DW_TRY(read_all(&result->out, out, err));
    return read_all(&result->err, err_file, err);
}

dw_status mpirun(mpirun_result *result, int ranks, int seconds, const char *const *argv, dw_error *err)
{
    FILE *out = tmpfile();
    FILE *err_file = tmpfile();
    dw_status status;
    *result = (mpirun_result){.status = -1};
    if (out == NULL || err_file == NULL) {
        status = dw_fail(err, DW_RUNTIME, "can not create a temporary file: %s", strerror(errno));
    } else {
        status = run_job(result, ranks, seconds, argv, out, err_file, err);
    }
    if (out != NULL) fclose(out);
    if (err_file != NULL) fclose(err_file);
    return status;
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
