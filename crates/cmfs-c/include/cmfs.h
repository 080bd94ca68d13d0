/*
 * cmfs: a file system for raw NAND with a little NVRAM, for firmware. docs/porting-cmfs.md goes through a port.
 *
 * The library is Rust without its standard library. Its memory is what cmfs_give_memory() was given; where nothing was given
 * it comes from malloc and free (aligned to 8 bytes) in firmware, and from the system elsewhere. In firmware it calls
 * cmfs_panic(), which must not return, should it find itself broken; elsewhere the call returns CMFS_EIO, and so do all
 * later ones of that volume. Nothing is thread-safe: one volume, one thread at a time.
 *
 * Functions return 0, a number of bytes or of things, or a negative number of CMFS_E..., which are Linux' errno. An
 * error changes nothing, unless a medium failed in the middle. Paths are absolute and end with NUL; names are bytes.
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

/* What NAND callbacks return: no power or no device, a program or an erase failed, too many bits are wrong, done. */
enum { CMFS_NAND_OK = 0, CMFS_NAND_UNREADABLE = -1, CMFS_NAND_FAILED = -2, CMFS_NAND_GONE = -3 };

/* What functions return. CMFS_ENXIO: no data or hole there; CMFS_ENODATA: no such attribute. */
enum {
    CMFS_ENOENT = -2, CMFS_EIO = -5, CMFS_ENXIO = -6, CMFS_ENOMEM = -12, CMFS_EEXIST = -17, CMFS_ENODEV = -19,
    CMFS_ENOTDIR = -20, CMFS_EISDIR = -21, CMFS_EINVAL = -22, CMFS_EFBIG = -27, CMFS_ENOSPC = -28,
    CMFS_ENAMETOOLONG = -36, CMFS_ENOTEMPTY = -39, CMFS_ENODATA = -61, CMFS_ENOTSUP = -95, CMFS_ESTALE = -116
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
    /* Returns when what was programmed and erased stays; NULL where that is so at once. */
    int (*sync)(void *context);
    /* Wrong bits of a codeword that can be corrected; 0: not known. A block of which three quarters of them were wrong
     * is rewritten by cmfs_tick() or the next writes. */
    uint32_t correctable;
    /* Bits of a cell; 0 is 1. Parts with more are refused: they lose pages at power cuts. */
    uint32_t cell_bits;
};

/* A byte-addressable non-volatile memory; callbacks return 0 when it is done. Aligned words of eight bytes are never torn. */
struct cmfs_nvram {
    void *context;
    size_t size_bytes;
    int (*read)(void *context, size_t offset, uint8_t *bytes, size_t len);
    int (*write)(void *context, size_t offset, const uint8_t *bytes, size_t len);
    int (*persist)(void *context);
};

/* Flags of a configuration: no names in the NVRAM; no summaries of blocks; the paper's layout of the NVRAM; a part of
 * YAFFS2, which has no format record (mounting only); where the controller corrects nothing, a Hamming code by software in
 * the spare area, at its end (CMFS_ENOTSUP where it has no room). The paper's and YAFFS2's need the library's features of
 * these names. */
enum { CMFS_NO_NAMES = 1, CMFS_NO_SUMMARIES = 2, CMFS_PAPER = 4, CMFS_PLAIN = 8, CMFS_CORRECT = 16 };

/* What can be chosen; cmfs_config_default() has the usual. Where a configuration is NULL, the usual is meant. */
struct cmfs_config {
    /* Bytes of memory that objects, page tables, names and what is known of the NVRAM's records may take; 0: any. With a bound
     * (24 KiB or more, an NVRAM, not the paper's layout) objects stay in the NVRAM until they are asked for. What would
     * need more is refused with CMFS_ENOMEM. */
    size_t memory_bytes;
    uint32_t cache_pages;    /* partly written pages that wait; 8 */
    uint32_t update_ms;      /* time between updates of the NVRAM; 5000 */
    uint32_t reserve_blocks; /* blocks kept free for cleaning; 5 */
    uint32_t copies_max;     /* pages that cleaning copies for one page written, at most: bounds the pause; 16 */
    uint32_t wear_limit;     /* erases that the most worn block may be ahead; 32 */
    uint32_t refresh_reads;  /* reads of a block after which it is rewritten; 0: never for that; 100000 */
    uint32_t refresh_copies; /* pages of such blocks that are rewritten at once, at most; 0: never; 64 */
    uint32_t flags;
};
int cmfs_config_default(struct cmfs_config *config);

/* Gives the library all the memory it will ever have, once, before anything else. CMFS_EINVAL: less than 1 KiB, or a
 * second time. */
int cmfs_give_memory(void *memory, size_t bytes);
/* Bytes to give for one volume with this part; 0 where `nand` or `config` make no sense. Less is refused with CMFS_ENOMEM. */
size_t cmfs_memory_needed(const struct cmfs_nand *nand, const struct cmfs_config *config);
/* The most that was in use of what was given, bytes, since the start or the last call with `reset`. */
size_t cmfs_memory_most(int reset);

typedef struct cmfs_volume cmfs_volume;

/* Makes a file system; every good block is erased. `identity` are 16 random bytes. `nvram` may be NULL. */
int cmfs_format(const struct cmfs_nand *nand, const struct cmfs_nvram *nvram, const struct cmfs_config *config,
                const uint8_t identity[16]);
/* Opens one; `*volume` is set on success. CMFS_ENODEV: the part holds no file system of ours, or the NVRAM is another
 * part's; nothing was written. */
int cmfs_mount(const struct cmfs_nand *nand, const struct cmfs_nvram *nvram, const struct cmfs_config *config,
               cmfs_volume **volume);
/* 0: clean, 1: recovered after a crash, 2: scanned, 3: from a checkpoint of YAFFS2. */
int cmfs_mounted_how(const cmfs_volume *volume);
/* Ends cleanly and frees the volume, whatever it returns. */
int cmfs_unmount(cmfs_volume *volume);
/* Makes everything durable, and the NVRAM agree. */
int cmfs_sync_all(cmfs_volume *volume);
/* To be called now and then with a clock in milliseconds: updates the NVRAM every `update_ms`; 1 if it did. */
int cmfs_tick(cmfs_volume *volume, uint64_t now_ms);
/* Says what time it is: what is changed from now on is stamped with it. */
int cmfs_set_time(cmfs_volume *volume, int64_t seconds, uint32_t nanoseconds);
/* Reads the next pages of the part in turn, so that bits that rot are found; 1 at the end of the part. */
int cmfs_scrub(cmfs_volume *volume, uint32_t pages);
/* Compares what is known with the part, with `data` whole pages with their checksums; how many things are wrong. */
int cmfs_check(cmfs_volume *volume, int data);
/* Writes a new header for each object whose header cannot be read; how many. */
int cmfs_repair(cmfs_volume *volume);
/* Leaves a checkpoint for YAFFS2 on a machine with pointers of 4 or 8 bytes; 1 if there was room. The next write erases it. */
int cmfs_checkpoint(cmfs_volume *volume, size_t pointer_bytes);

struct cmfs_statfs {
    uint32_t page_bytes, objects;
    uint64_t pages, pages_free;           /* pages that can be live at once, and how many more */
    uint64_t nvram_bytes, nvram_used;     /* 0 without NVRAM */
    uint64_t memory_bytes;                /* what struct cmfs_config bounds, now */
    uint32_t session, nvram_overflows;    /* nvram_overflows: it is too small, the next mount scans */
    uint64_t programs, erases, copies;    /* since the mount; copies: pages moved by cleaning */
    uint64_t corrected_bits, failures, lost_pages;
    uint64_t fetched;                     /* objects fetched from the NVRAM since memory is bounded */
};
int cmfs_statfs(cmfs_volume *volume, struct cmfs_statfs *statfs);

/* Kinds of objects. */
enum { CMFS_FILE = 1, CMFS_SYMLINK = 2, CMFS_DIR = 3, CMFS_SPECIAL = 5 };
/* Flags of cmfs_open(): make the file if it is not there; fail with CMFS_EEXIST if it is; cut it to nothing. */
enum { CMFS_CREATE = 1, CMFS_EXCLUSIVE = 2, CMFS_TRUNCATE = 4 };

/* Opens the object of a path, a directory, too; its number. An object that is open keeps its contents when its last name
 * goes, until it is closed. */
int cmfs_open(cmfs_volume *volume, const char *path, int flags, uint32_t *object);
/* Makes the object durable and ends its use: as often as it was opened. */
int cmfs_close(cmfs_volume *volume, uint32_t object);
int64_t cmfs_size(cmfs_volume *volume, uint32_t object);
/* How many bytes there were: fewer than `len` at the end only. */
int32_t cmfs_read(cmfs_volume *volume, uint32_t object, uint64_t offset, uint8_t *bytes, size_t len);
/* All or an error; durable after cmfs_sync(), cmfs_close() or cmfs_sync_all(). */
int32_t cmfs_write(cmfs_volume *volume, uint32_t object, uint64_t offset, const uint8_t *bytes, size_t len);
int cmfs_truncate(cmfs_volume *volume, uint32_t object, uint64_t size);
/* Makes a hole of the bytes from `from` to `to`; promises room for them in this mount; finds the next data, or hole. */
int cmfs_punch(cmfs_volume *volume, uint32_t object, uint64_t from, uint64_t to);
int cmfs_reserve(cmfs_volume *volume, uint32_t object, uint64_t from, uint64_t to);
int64_t cmfs_seek(cmfs_volume *volume, uint32_t object, uint64_t offset, int hole);
/* Makes one object durable, with the names that lead to it. */
int cmfs_sync(cmfs_volume *volume, uint32_t object);

/* Names. Removing and moving are durable when they return, making is after a sync. */
int cmfs_mkdir(cmfs_volume *volume, const char *path);
int cmfs_remove(cmfs_volume *volume, const char *path); /* a directory must be empty */
int cmfs_rename(cmfs_volume *volume, const char *from, const char *to);
int cmfs_exchange(cmfs_volume *volume, const char *one, const char *two);
int cmfs_link(cmfs_volume *volume, const char *from, const char *to);
int cmfs_symlink(cmfs_volume *volume, const char *target, const char *path);
/* How many bytes the target has; those that fit are there, without NUL. Links are not followed by any function. */
int cmfs_readlink(cmfs_volume *volume, const char *path, uint8_t *bytes, size_t len);

struct cmfs_entry {
    uint64_t position; /* 0 before the first; each call goes on behind it */
    uint32_t object, kind;
    char name[256];
};
/* The next entry of a directory: 1, or 0 behind the last. */
int cmfs_readdir(cmfs_volume *volume, uint32_t dir, struct cmfs_entry *entry);

struct cmfs_stat {
    uint64_t size, pages;
    int64_t atime, mtime, ctime, crtime;
    uint32_t atime_ns, mtime_ns, ctime_ns, crtime_ns;
    uint32_t object, kind, mode, uid, gid, links, rdev, reserved;
};
int cmfs_stat(cmfs_volume *volume, const char *path, struct cmfs_stat *stat);
int cmfs_fstat(cmfs_volume *volume, uint32_t object, struct cmfs_stat *stat);
int cmfs_chmod(cmfs_volume *volume, uint32_t object, uint32_t mode);
int cmfs_chown(cmfs_volume *volume, uint32_t object, uint32_t uid, uint32_t gid);
int cmfs_utime(cmfs_volume *volume, uint32_t object, int64_t atime, int64_t mtime);

/* Extended attributes; all of an object's must fit one page. How many bytes there are; those that fit are there. */
int cmfs_getxattr(cmfs_volume *volume, uint32_t object, const char *name, uint8_t *value, size_t len);
int cmfs_setxattr(cmfs_volume *volume, uint32_t object, const char *name, const uint8_t *value, size_t len);
int cmfs_removexattr(cmfs_volume *volume, uint32_t object, const char *name);
/* The names, each with its NUL. */
int cmfs_listxattr(cmfs_volume *volume, uint32_t object, uint8_t *names, size_t len);

/* What an error number says; the library's version. */
const char *cmfs_error_text(int error);
const char *cmfs_version(void);

#ifdef __cplusplus
}
#endif
#endif
