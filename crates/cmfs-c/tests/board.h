/* A NAND part and an NVRAM in memory, with a power supply, for test programs. SHAPE macros may be set before. */
#ifndef BOARD_H
#define BOARD_H

#include "cmfs.h"

#include <string.h>

#ifndef BOARD_BLOCKS
#define BOARD_BLOCKS 64
#endif
#ifndef BOARD_NVRAM
#define BOARD_NVRAM 16384
#endif
#ifndef BOARD_SECTION
#define BOARD_SECTION
#endif

enum { PAGE = 2048, SPARE = 64, PAGES = 64 };

struct board {
    uint8_t data[BOARD_BLOCKS * PAGES][PAGE];
    uint8_t spare[BOARD_BLOCKS * PAGES][SPARE];
    uint8_t bad[BOARD_BLOCKS];
    uint8_t nvram[BOARD_NVRAM];
    int powered, synced;
};

static struct board board BOARD_SECTION;

static int nand_is_bad(void *context, uint32_t block) { return ((struct board *)context)->bad[block]; }

static int nand_mark_bad(void *context, uint32_t block) {
    ((struct board *)context)->bad[block] = 1;
    return CMFS_NAND_OK;
}

static int nand_read(void *context, uint32_t page, uint8_t *data, uint8_t *spare) {
    struct board *b = context;
    memcpy(data, b->data[page], PAGE);
    memcpy(spare, b->spare[page], SPARE);
    return b->powered ? CMFS_NAND_OK : CMFS_NAND_GONE;
}

static int nand_read_spare(void *context, uint32_t page, uint8_t *spare) {
    memcpy(spare, ((struct board *)context)->spare[page], SPARE);
    return CMFS_NAND_OK;
}

static int nand_program(void *context, uint32_t page, const uint8_t *data, const uint8_t *spare) {
    struct board *b = context;
    if (!b->powered)
        return CMFS_NAND_GONE;
    memcpy(b->data[page], data, PAGE);
    memcpy(b->spare[page], spare, SPARE);
    return CMFS_NAND_OK;
}

static int nand_erase(void *context, uint32_t block) {
    struct board *b = context;
    if (!b->powered)
        return CMFS_NAND_GONE;
    memset(b->data[block * PAGES], 0xff, (size_t)PAGES * PAGE);
    memset(b->spare[block * PAGES], 0xff, (size_t)PAGES * SPARE);
    return CMFS_NAND_OK;
}

static int nand_sync(void *context) {
    ((struct board *)context)->synced++;
    return CMFS_NAND_OK;
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

static const struct cmfs_nand nand = {&board,    PAGE,            SPARE,        PAGES,      BOARD_BLOCKS, nand_is_bad, nand_mark_bad,
                                      nand_read, nand_read_spare, nand_program, nand_erase, nand_sync,    4,           1};
static const struct cmfs_nvram nvram = {&board, BOARD_NVRAM, nvram_read, nvram_write, nvram_persist};

#endif
