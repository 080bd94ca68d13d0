/*
 * cmfs: a file system for raw NAND with a little NVRAM, for firmware.
 *
 * The library is Rust without its standard library. It takes memory from malloc and free (aligned to 8 bytes),
 * which the firmware provides, and calls cmfs_panic(), which must not return, should it find itself
 * broken. Nothing is thread-safe: one volume, one thread at a time.
 *
 * Functions return 0 or a number of bytes, or a negative errno (see CMFS_E...).
 *
 *   cargo build --release -p cmfs-c --target thumbv7em-none-eabi      gives libcmfs.a
 */
#ifndef CMFS_H
#define CMFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What NAND callbacks return. */
enum { CMFS_NAND_OK = 0, CMFS_NAND_UNREADABLE = -1, CMFS_NAND_FAILED = -2, CMFS_NAND_GONE = -3 };

/* What functions return. */
enum {
    CMFS_ENOENT = -2, CMFS_EIO = -5, CMFS_ENOMEM = -12, CMFS_EEXIST = -17, CMFS_ENODEV = -19, CMFS_ENOTDIR = -20,
    CMFS_EISDIR = -21, CMFS_EINVAL = -22, CMFS_EFBIG = -27, CMFS_ENOSPC = -28, CMFS_ENAMETOOLONG = -36,
    CMFS_ENOTEMPTY = -39, CMFS_ENOTSUP = -95, CMFS_ESTALE = -116
};

/* A NAND part. `context` is handed to every callback. A page's number is block * pages_per_block + page. */
struct cmfs_nand {
    void *context;
    uint32_t page_bytes, spare_bytes, pages_per_block, blocks;
    int (*is_bad)(void *context, uint32_t block); /* 1, 0, or CMFS_NAND_... */
    int (*mark_bad)(void *context, uint32_t block);
    /* Wrong bits that were corrected, of the codeword that had the most (0 where that is not known), or CMFS_NAND_... */
    int (*read)(void *context, uint32_t page, uint8_t *data, uint8_t *spare);
    int (*read_spare)(void *context, uint32_t page, uint8_t *spare);
    int (*program)(void *context, uint32_t page, const uint8_t *data, const uint8_t *spare);
    int (*erase)(void *context, uint32_t block);
    /* Wrong bits of a codeword that can be corrected; 0: not known. A block of which three quarters of them were wrong
     * is rewritten by cmfs_tick() or the next writes. One bit a cell: MLC parts lose pages at power cuts. */
    uint32_t correctable;
};

/* A byte-addressable non-volatile memory; callbacks return 0 when it is done. */
struct cmfs_nvram {
    void *context;
    size_t size_bytes;
    int (*read)(void *context, size_t offset, uint8_t *bytes, size_t len);
    int (*write)(void *context, size_t offset, const uint8_t *bytes, size_t len);
    int (*persist)(void *context);
};

typedef struct cmfs_volume cmfs_volume;

/* Makes a file system; every good block is erased. `identity` are 16 random bytes. `nvram` may be NULL. */
int cmfs_format(const struct cmfs_nand *nand, const struct cmfs_nvram *nvram, const uint8_t identity[16]);
/* Opens one; `*volume` is set on success. CMFS_ENODEV: the part holds no file system of ours, or the NVRAM is another
 * part's; nothing was written. */
int cmfs_mount(const struct cmfs_nand *nand, const struct cmfs_nvram *nvram, cmfs_volume **volume);
/* 0: clean, 1: recovered after a crash, 2: scanned, 3: from a checkpoint of YAFFS2. */
int cmfs_mounted_how(const cmfs_volume *volume);
/* Ends cleanly and frees the volume. */
int cmfs_unmount(cmfs_volume *volume);

/* The object of an absolute path; a file is made if `create` is not 0 and it is not there. */
int cmfs_open(cmfs_volume *volume, const char *path, int create, uint32_t *object);
int cmfs_mkdir(cmfs_volume *volume, const char *path);
int cmfs_remove(cmfs_volume *volume, const char *path);
int cmfs_rename(cmfs_volume *volume, const char *from, const char *to);
int64_t cmfs_size(cmfs_volume *volume, uint32_t object);
int32_t cmfs_read(cmfs_volume *volume, uint32_t object, uint64_t offset, uint8_t *bytes, size_t len);
int32_t cmfs_write(cmfs_volume *volume, uint32_t object, uint64_t offset, const uint8_t *bytes, size_t len);
int cmfs_truncate(cmfs_volume *volume, uint32_t object, uint64_t size);
/* Makes one object durable. */
int cmfs_sync(cmfs_volume *volume, uint32_t object);
/* Reads the next pages of the part in turn, so that bits that rot are found; 1 at the end of the part. */
int cmfs_scrub(cmfs_volume *volume, uint32_t pages);
/* To be called now and then with a clock in milliseconds: updates the NVRAM every five seconds. */
int cmfs_tick(cmfs_volume *volume, uint64_t now_ms);
/* Says what time it is, seconds since 1970. */
void cmfs_set_time(cmfs_volume *volume, int64_t seconds);

#ifdef __cplusplus
}
#endif
#endif
