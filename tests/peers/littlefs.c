/*
 * littlefs under the single faults of crates/cmfs-core/src/fs/faults.rs: each written page unreadable, each with a wrong
 * bit, one at a time. tests/peers/faults.py builds it with littlefs' own sources and says what it prints.
 *
 * A part of 64 blocks of 8 pages of 2048 bytes; 22 files and 2 directories. Wrong bits are what is left after whatever
 * correction is below: littlefs has checksums of its metadata, and none of files.
 */
#include "lfs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 2048, PAGES = 8, BLOCKS = 64, FILES = 22, SIZE_MAX_ = 12000 };

static uint8_t part[BLOCKS * PAGES * PAGE], whole[sizeof part], written[BLOCKS * PAGES];
static int unreadable = -1; /* a page */
static uint32_t seed = 1;

static uint32_t chance(void) { return (seed = seed * 1664525u + 1013904223u) >> 8; }

static int bd_read(const struct lfs_config *c, lfs_block_t b, lfs_off_t off, void *to, lfs_size_t n) {
    uint32_t at = b * c->block_size + off;
    if (unreadable >= 0 && at / PAGE <= (uint32_t)unreadable && (at + n - 1) / PAGE >= (uint32_t)unreadable) return LFS_ERR_CORRUPT;
    memcpy(to, part + at, n);
    return 0;
}

static int bd_prog(const struct lfs_config *c, lfs_block_t b, lfs_off_t off, const void *from, lfs_size_t n) {
    uint32_t at = b * c->block_size + off;
    memcpy(part + at, from, n);
    memset(written + at / PAGE, 1, (n + PAGE - 1) / PAGE);
    if (unreadable >= 0 && at / PAGE <= (uint32_t)unreadable && (at + n - 1) / PAGE >= (uint32_t)unreadable) unreadable = -1;
    return 0;
}

static int bd_erase(const struct lfs_config *c, lfs_block_t b) {
    memset(part + b * c->block_size, 0xff, c->block_size);
    memset(written + b * PAGES, 0, PAGES);
    if (unreadable >= 0 && (uint32_t)unreadable / PAGES == b) unreadable = -1;
    return 0;
}

static int bd_sync(const struct lfs_config *c) { (void)c; return 0; }

static const struct lfs_config config = {
    .read = bd_read, .prog = bd_prog, .erase = bd_erase, .sync = bd_sync, .read_size = PAGE, .prog_size = PAGE,
    .block_size = PAGE * PAGES, .block_count = BLOCKS, .block_cycles = 500, .cache_size = PAGE, .lookahead_size = 16,
};

static int size_of(int file) { return 100 + file * 531 % SIZE_MAX_; }
static uint8_t byte_of(int file, int at) { return (uint8_t)(file * 37 + at / 7 + at); }
static void name_of(int file, char *to) { sprintf(to, "d%d/f%d", file % 2, file); }

static int make(lfs_t *fs) {
    static uint8_t bytes[SIZE_MAX_ + 100];
    lfs_format(fs, &config);
    if (lfs_mount(fs, &config) || lfs_mkdir(fs, "d0") || lfs_mkdir(fs, "d1")) return -1;
    for (int file = 0; file < FILES; file++) {
        lfs_file_t open;
        char name[16];
        name_of(file, name);
        for (int at = 0; at < size_of(file); at++) bytes[at] = byte_of(file, at);
        if (lfs_file_open(fs, &open, name, LFS_O_WRONLY | LFS_O_CREAT)) return -1;
        if (lfs_file_write(fs, &open, bytes, size_of(file)) != size_of(file) || lfs_file_close(fs, &open)) return -1;
    }
    return lfs_unmount(fs);
}

/* 0: whole, 1: an error, 2: wrong without a word. */
static int look(lfs_t *fs, int file) {
    static uint8_t bytes[SIZE_MAX_ + 200];
    lfs_file_t open;
    char name[16];
    name_of(file, name);
    if (lfs_file_open(fs, &open, name, LFS_O_RDONLY)) return 1;
    lfs_ssize_t got = lfs_file_read(fs, &open, bytes, sizeof bytes);
    lfs_file_close(fs, &open);
    if (got < 0) return 1;
    if (got != size_of(file)) return 2;
    for (int at = 0; at < got; at++)
        if (bytes[at] != byte_of(file, at)) return 2;
    return 0;
}

struct tally { int faults, no_mount, strikes, errors, silent, most, no_create, listing; };

static void strike(struct tally *t) {
    lfs_t fs;
    int struck = 0;
    t->faults++;
    if (lfs_mount(&fs, &config)) {
        t->no_mount++;
        return;
    }
    for (int file = 0; file < FILES; file++) {
        int how = look(&fs, file);
        struck += how != 0;
        t->errors += how == 1;
        t->silent += how == 2;
    }
    t->strikes += struck > 0;
    t->most = struck > t->most ? struck : t->most;
    lfs_file_t open;
    if (lfs_file_open(&fs, &open, "new", LFS_O_WRONLY | LFS_O_CREAT)) t->no_create++;
    else if (lfs_file_write(&fs, &open, "new", 3) != 3 || lfs_file_close(&fs, &open)) t->no_create++;
    lfs_unmount(&fs);
}

static void tell(const char *what, const struct tally *t) {
    printf("%s: %d faults, %d without a mount, %d that struck files (the most: %d); %d files with an error, %d wrong without a "
           "word; %d times no file could be made\n",
           what, t->faults, t->no_mount, t->strikes, t->most, t->errors, t->silent, t->no_create);
}

int main(void) {
    static lfs_t fs;
    static uint8_t pages[BLOCKS * PAGES];
    struct tally reads = {0}, flips = {0};
    if (make(&fs)) return 1;
    memcpy(whole, part, sizeof part);
    memcpy(pages, written, sizeof pages);
    for (int page = 0; page < BLOCKS * PAGES; page++) {
        if (!pages[page]) continue;
        memcpy(part, whole, sizeof part);
        unreadable = page;
        strike(&reads);
        unreadable = -1;
        for (int turn = 0; turn < 24; turn++) {
            memcpy(part, whole, sizeof part);
            part[page * PAGE + chance() % PAGE] ^= 1 << chance() % 8;
            strike(&flips);
        }
    }
    printf("littlefs %d.%d: ", LFS_VERSION >> 16, LFS_VERSION & 0xffff);
    tell("unreadable pages", &reads);
    printf("littlefs %d.%d: ", LFS_VERSION >> 16, LFS_VERSION & 0xffff);
    tell("one wrong bit", &flips);
    return 0;
}
