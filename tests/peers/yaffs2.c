/*
 * YAFFS2 at the work of figures 15 and 16 of the CMFS paper: a thousand files made and removed, and 16 MiB written by 4 KiB in
 * order and at random, on 50 MB of 2048 + 64 byte pages in memory. It prints what crates/lab/src/reproduce/experiments/cmfs/
 * peers.rs holds: operations, and their time at 67.8 us a page read, 16.6 a spare area, 252.8 a program and 2000 an erase.
 *
 * To build it in YAFFS2's own sources (github.com/Aleph-One-Ltd/yaffs2, 474b3ac):
 *   cd direct && sh handle_common.sh copy && cp test-framework/yaffs_osglue.c . && cp .../yaffs2.c .
 *   cc -DCONFIG_YAFFS_DIRECT -DCONFIG_YAFFS_YAFFS2 -DCONFIG_YAFFS_DEFINES_TYPES -DCONFIG_YAFFS_PROVIDE_DEFS \
 *      -DCONFIG_YAFFSFS_PROVIDE_VALUES -D_GNU_SOURCE -O1 -I. -o yaffs2 *.c -lpthread && ./yaffs2
 */
#include "yaffs_guts.h"
#include "yaffs_trace.h"
#include "yaffsfs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 2048, SPARE = 64, PAGES = 64, MEGABYTES = 50, FILES = 1000, RECORD = 4096 };
static const long FILE_BYTES = 16 << 20;

unsigned int yaffs_trace_mask = 0;
static unsigned char *part;
static long reads, spares, programs, erases;
static struct yaffs_dev device;
static char bytes[16384];

static unsigned char *page(int chunk) { return part + (size_t)chunk * (PAGE + SPARE); }

static int nand_write(struct yaffs_dev *d, int chunk, const u8 *data, int len, const u8 *oob, int oob_len) {
    (void)d;
    programs++;
    if (data) memcpy(page(chunk), data, len);
    memset(page(chunk) + PAGE, 0xff, SPARE);
    if (oob) memcpy(page(chunk) + PAGE + 2, oob, oob_len);
    return YAFFS_OK;
}

static int nand_read(struct yaffs_dev *d, int chunk, u8 *data, int len, u8 *oob, int oob_len, enum yaffs_ecc_result *ecc) {
    (void)d;
    if (data) reads++;
    else spares++;
    if (data) memcpy(data, page(chunk), len);
    if (oob) memcpy(oob, page(chunk) + PAGE + 2, oob_len);
    if (ecc) *ecc = YAFFS_ECC_RESULT_NO_ERROR;
    return YAFFS_OK;
}

static int nand_erase(struct yaffs_dev *d, int block) {
    (void)d;
    erases++;
    memset(page(block * PAGES), 0xff, (size_t)PAGES * (PAGE + SPARE));
    return YAFFS_OK;
}

static int good(struct yaffs_dev *d, int block) { return (void)d, (void)block, YAFFS_OK; }
static int ready(struct yaffs_dev *d) { return (void)d, YAFFS_OK; }

static void must(int done, const char *what) {
    if (!done) {
        fprintf(stderr, "%s: error %d\n", what, yaffsfs_GetLastError());
        exit(1);
    }
}

static void begin(int summaries) {
    size_t size = (size_t)MEGABYTES * 8 * PAGES * (PAGE + SPARE);
    struct yaffs_param *p = &device.param;
    part = realloc(part, size);
    memset(part, 0xff, size);
    memset(&device, 0, sizeof device);
    p->name = "n";
    p->total_bytes_per_chunk = PAGE;
    p->chunks_per_block = PAGES;
    p->spare_bytes_per_chunk = SPARE;
    p->end_block = MEGABYTES * 8 - 1;
    p->n_reserved_blocks = 5;
    p->n_caches = 10;
    p->is_yaffs2 = p->use_nand_ecc = p->stored_endian = 1;
    p->refresh_period = 500;
    p->disable_summary = !summaries;
    device.drv = (struct yaffs_driver){nand_write, nand_read, nand_erase, good, good, ready, ready};
    yaffs_add_device(&device);
    must(yaffs_mount("n") >= 0, "mount");
    reads = spares = programs = erases = 0;
}

static void end(void) {
    yaffs_unmount("n");
    yaffs_remove_device(&device);
}

/* Milliseconds since the last call, and the operations behind them. */
static double took(const char *what) {
    double ms = (reads * 67.8 + spares * 16.6 + programs * 252.8 + erases * 2000.0) / 1000.0;
    printf("  %s: %.1f ms (%ld reads, %ld spare areas, %ld programs, %ld erases)\n", what, ms, reads, spares, programs, erases);
    reads = spares = programs = erases = 0;
    return ms;
}

static void name(char *to, int file) { sprintf(to, "n/d%d/f%06d", file / 100, file); }

static void files(int summaries, int size) {
    char path[64];
    begin(summaries);
    printf("%d files of %d bytes, %s summaries\n", FILES, size, summaries ? "with" : "without");
    for (int file = 0; file < FILES; file++) {
        sprintf(path, "n/d%d", file / 100);
        if (file % 100 == 0) must(yaffs_mkdir(path, 0755) >= 0, path);
        name(path, file);
        int handle = yaffs_open(path, O_CREAT | O_RDWR, 0644);
        must(handle >= 0, path);
        must(size == 0 || yaffs_write(handle, bytes, size) == size, "write");
        yaffs_close(handle);
    }
    took("created");
    for (int file = 0; file < FILES; file++) {
        name(path, file);
        must(yaffs_unlink(path) >= 0, path);
    }
    took("removed");
    end();
}

static void writes(int summaries, unsigned long long seed) {
    begin(summaries);
    printf("%ld bytes by %d, %s summaries, seed %llu\n", FILE_BYTES, RECORD, summaries ? "with" : "without", seed);
    int handle = yaffs_open("n/f", O_CREAT | O_RDWR, 0644);
    for (long at = 0; at < FILE_BYTES; at += RECORD) must(yaffs_write(handle, bytes, RECORD) == RECORD, "write");
    yaffs_fsync(handle);
    printf("    %.3f MB/s\n", FILE_BYTES / 1e3 / took("in order"));
    for (long done = 0; done < FILE_BYTES; done += RECORD) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        must(yaffs_pwrite(handle, bytes, RECORD, (long)((seed >> 33) % (FILE_BYTES / RECORD)) * RECORD) == RECORD, "write");
    }
    yaffs_fsync(handle);
    printf("    %.3f MB/s\n", FILE_BYTES / 1e3 / took("at random"));
    yaffs_close(handle);
    end();
}

int main(void) {
    static const int sizes[] = {0, 1024, 4096, 10240};
    for (int summaries = 0; summaries < 2; summaries++) {
        for (int at = 0; at < 4; at++) files(summaries, sizes[at]);
        for (unsigned long long seed = 1; seed <= 5; seed++) writes(summaries, seed);
    }
    return 0;
}
