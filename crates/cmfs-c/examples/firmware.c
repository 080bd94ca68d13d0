/*
 * cmfs in firmware: a NAND part and an NVRAM behind the two tables of callbacks, a file system made and mounted, files
 * written, the power cut, and everything found again. Here both media are arrays; on a board the callbacks drive the
 * chip and the FRAM, and the rest stays.
 *
 *   cargo build --release -p cmfs-c && cc -Iinclude examples/firmware.c -L../../target/release -lcmfs
 *
 * `cargo test -p cmfs-c` builds and runs it. It ends with 0, or with the number of the line that was not as it should.
 */
#include "cmfs.h"

#include <stdio.h>
#include <string.h>

enum { PAGE = 2048, SPARE = 64, PAGES = 64, BLOCKS = 64, NVRAM = 8192 };

struct board {
    uint8_t data[BLOCKS * PAGES][PAGE];
    uint8_t spare[BLOCKS * PAGES][SPARE];
    uint8_t bad[BLOCKS];
    uint8_t nvram[NVRAM];
    int powered;
};

static struct board board;

static int nand_is_bad(void *context, uint32_t block) {
    return ((struct board *)context)->bad[block];
}

static int nand_mark_bad(void *context, uint32_t block) {
    ((struct board *)context)->bad[block] = 1;
    return 0;
}

static int nand_read(void *context, uint32_t page, uint8_t *data, uint8_t *spare) {
    struct board *b = context;
    memcpy(data, b->data[page], PAGE);
    memcpy(spare, b->spare[page], SPARE);
    return 0;
}

static int nand_read_spare(void *context, uint32_t page, uint8_t *spare) {
    memcpy(spare, ((struct board *)context)->spare[page], SPARE);
    return 0;
}

static int nand_program(void *context, uint32_t page, const uint8_t *data, const uint8_t *spare) {
    struct board *b = context;
    int i;
    if (!b->powered)
        return -3;
    /* Programming clears bits; the file system programs erased pages only. */
    for (i = 0; i < SPARE; i++)
        if (b->spare[page][i] != 0xff)
            return -2;
    memcpy(b->data[page], data, PAGE);
    memcpy(b->spare[page], spare, SPARE);
    return 0;
}

static int nand_erase(void *context, uint32_t block) {
    struct board *b = context;
    if (!b->powered)
        return -3;
    memset(b->data[block * PAGES], 0xff, PAGES * PAGE);
    memset(b->spare[block * PAGES], 0xff, PAGES * SPARE);
    return 0;
}

static int nvram_read(void *context, size_t offset, uint8_t *bytes, size_t len) {
    memcpy(bytes, ((struct board *)context)->nvram + offset, len);
    return 0;
}

static int nvram_write(void *context, size_t offset, const uint8_t *bytes, size_t len) {
    struct board *b = context;
    if (!b->powered)
        return -1;
    memcpy(b->nvram + offset, bytes, len);
    return 0;
}

static int nvram_persist(void *context) {
    (void)context;
    return 0;
}

#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) {                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);  \
            return __LINE__;                                         \
        }                                                            \
    } while (0)

/* A file is as it was written: `size` bytes that count up from `first`. */
static int holds(cmfs_volume *volume, const char *path, int first, int size) {
    uint32_t object;
    uint8_t bytes[512];
    int at = 0, i, there = 1;
    if (cmfs_open(volume, path, 0, &object) != 0)
        return 0;
    while (there > 0 && (there = cmfs_read(volume, object, (uint64_t)at, bytes, sizeof bytes)) > 0) {
        for (i = 0; i < there; i++)
            if (bytes[i] != (uint8_t)(first + at + i))
                at = size + 1;
        at += there;
    }
    return cmfs_close(volume, object) == 0 && there == 0 && at == size;
}

/* Closing makes it durable. */
static int put(cmfs_volume *volume, const char *path, int first, int size) {
    uint32_t object;
    uint8_t bytes[700];
    int at, i, part, done, closed;
    done = cmfs_open(volume, path, CMFS_CREATE, &object);
    if (done != 0)
        return done;
    for (at = 0; done == 0 && at < size; at += part) {
        part = size - at < (int)sizeof bytes ? size - at : (int)sizeof bytes;
        for (i = 0; i < part; i++)
            bytes[i] = (uint8_t)(first + at + i);
        done = cmfs_write(volume, object, (uint64_t)at, bytes, (size_t)part) == part ? 0 : -1;
    }
    closed = cmfs_close(volume, object);
    return done == 0 ? closed : done;
}

int main(void) {
    struct cmfs_nand nand = {&board,    PAGE,      SPARE,           PAGES,        BLOCKS,    nand_is_bad,
                             nand_mark_bad, nand_read, nand_read_spare, nand_program, nand_erase, NULL,
                             0,         1};
    struct cmfs_nvram nvram = {&board, NVRAM, nvram_read, nvram_write, nvram_persist};
    const uint8_t identity[16] = {1, 2, 3};
    cmfs_volume *volume = NULL;
    uint32_t object;
    uint8_t byte = 0;
    int i;

    board.powered = 1;
    board.bad[5] = 1;
    CHECK(cmfs_format(&nand, &nvram, NULL, identity) == 0);
    CHECK(cmfs_mount(&nand, &nvram, NULL, &volume) == 0 && volume != NULL);
    CHECK(cmfs_mounted_how(volume) == 0);
    CHECK(cmfs_scrub(volume, 1) == 0 && cmfs_scrub(volume, PAGES * BLOCKS) == 1);
    CHECK(cmfs_set_time(volume, 1700000000, 0) == 0);

    CHECK(cmfs_mkdir(volume, "/log") == 0);
    CHECK(cmfs_mkdir(volume, "/log") == -17);
    CHECK(put(volume, "/log/today", 1, 100000) == 0);
    CHECK(put(volume, "/settings", 7, 300) == 0);
    CHECK(cmfs_open(volume, "/log/never", 0, &object) == -2);
    CHECK(cmfs_open(volume, "/settings/x", CMFS_CREATE, &object) == CMFS_ENOTDIR);
    CHECK(cmfs_tick(volume, 6000) >= 0);
    CHECK(cmfs_unmount(volume) == 0);

    /* What was written is there; then the power goes without an unmount. */
    CHECK(cmfs_mount(&nand, &nvram, NULL, &volume) == 0 && cmfs_mounted_how(volume) == 0);
    CHECK(holds(volume, "/log/today", 1, 100000) && holds(volume, "/settings", 7, 300));
    for (i = 0; i < 40; i++)
        CHECK(put(volume, "/log/tomorrow", i, 30000 + i) == 0);
    CHECK(cmfs_rename(volume, "/log/tomorrow", "/log/today") == 0);
    CHECK(cmfs_remove(volume, "/settings") == 0);
    CHECK(cmfs_remove(volume, "/log") == -39);
    CHECK(cmfs_open(volume, "/log/today", 0, &object) == 0);
    board.powered = 0;
    CHECK(cmfs_write(volume, object, 0, &byte, 1) < 0 || cmfs_sync(volume, object) < 0);
    CHECK(cmfs_unmount(volume) != 0);
    board.powered = 1;

    CHECK(cmfs_mount(&nand, &nvram, NULL, &volume) == 0 && cmfs_mounted_how(volume) == 1);
    CHECK(holds(volume, "/log/today", 39, 30039));
    CHECK(cmfs_open(volume, "/settings", 0, &object) == -2);
    CHECK(cmfs_open(volume, "/log/today", 0, &object) == 0 && cmfs_truncate(volume, object, 5) == 0);
    CHECK(cmfs_close(volume, object) == 0);
    CHECK(cmfs_unmount(volume) == 0);

    /* The NVRAM is lost: the NAND is all there is. */
    memset(board.nvram, 0x5a, NVRAM);
    CHECK(cmfs_mount(&nand, &nvram, NULL, &volume) == 0 && cmfs_mounted_how(volume) == 2);
    CHECK(holds(volume, "/log/today", 39, 5));
    CHECK(cmfs_unmount(volume) == 0);
    CHECK(cmfs_mount(&nand, NULL, NULL, &volume) == 0 && cmfs_mounted_how(volume) == 2);
    CHECK(holds(volume, "/log/today", 39, 5));
    CHECK(cmfs_unmount(volume) == 0);

    /* Mistakes of the caller are errors, not crashes. */
    CHECK(cmfs_mount(NULL, &nvram, NULL, &volume) == -22 && cmfs_mount(&nand, &nvram, NULL, NULL) == -22);
    CHECK(cmfs_unmount(NULL) == -22 && cmfs_mkdir(NULL, "/x") == -22);
    puts("all is well");
    return 0;
}
