/* Shows how a VM writes the files of one folder, and makes its disk hang. It is loaded before the C library
 * (LD_PRELOAD) and replaces write, fsync, fdatasync and rename. CANAL_LOCK_DISK is the folder, without symbolic links.
 *
 * FOLDER.calls: gets a line for each call that has succeeded for a file in the folder, or for the folder itself
 * FOLDER.hang:  while it exists, syncs in the folder do not return */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_US 1000

static const char *folder;

__attribute__((constructor)) static void begin(void)
{
    folder = getenv("CANAL_LOCK_DISK");
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* Whether the path is the folder or in it. */
static int is_inside(const char *path)
{
    size_t length = folder == NULL ? 0 : strlen(folder);

    return length > 0 && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int is_file_inside(int file, char *path)
{
    char link[64];

    if (folder == NULL)
        return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return is_inside(path);
}

static void record(const char *call, const char *path)
{
    char text[PATH_MAX + 64];
    ssize_t (*true_write)(int, const void *, size_t) = next("write");

    snprintf(text, sizeof(text), "%s.calls", folder);
    int file = open(text, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    int length = snprintf(text, sizeof(text), "%s %s\n", call, path);
    if (file < 0 || true_write(file, text, length) != length)
        abort();
    close(file);
}

ssize_t write(int file, const void *bytes, size_t size)
{
    ssize_t (*true_write)(int, const void *, size_t) = next("write");
    ssize_t written = true_write(file, bytes, size);
    char path[PATH_MAX];

    if (written >= 0 && is_file_inside(file, path))
        record("write", path);
    return written;
}

static int sync_by(const char *name, int file)
{
    int (*true_sync)(int) = next(name);
    char path[PATH_MAX], hang[PATH_MAX];

    if (!is_file_inside(file, path))
        return true_sync(file);
    snprintf(hang, sizeof(hang), "%s.hang", folder);
    while (access(hang, F_OK) == 0)
        usleep(POLL_US);
    int answer = true_sync(file);
    if (answer == 0)
        record("sync", path);
    return answer;
}

int fsync(int file)
{
    return sync_by("fsync", file);
}

int fdatasync(int file)
{
    return sync_by("fdatasync", file);
}

int rename(const char *from, const char *to)
{
    int (*true_rename)(const char *, const char *) = next("rename");
    int answer = true_rename(from, to);

    if (answer == 0 && is_inside(to))
        record("rename", to);
    return answer;
}
