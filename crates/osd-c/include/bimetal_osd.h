/*
 * The object store of bimetal: objects by 64-bit numbers on (an image of) raw NAND.
 *
 * Functions return 0 or a count, or a negative errno: -ENOENT where there is no such object, -EEXIST, -ENOSPC, -EINVAL,
 * -ENODATA where there is no such attribute, -ERANGE where a buffer is too small, -EUCLEAN where the flash is damaged,
 * -EIO, -EROFS after an error of the flash. A store is used by one thread at a time.
 *
 *   cargo build --release -p osd-c        gives libbimetal_osd.a; link with -lpthread -ldl -lm
 */
#ifndef BIMETAL_OSD_H
#define BIMETAL_OSD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bimetal_osd bimetal_osd;

/* An instant: seconds since 1970 and nanoseconds. */
struct bimetal_osd_time {
    int64_t sec;
    uint32_t nsec;
};

/* The state of an object. `stored`: bytes that take space. */
struct bimetal_osd_stat {
    uint64_t size, stored;
    struct bimetal_osd_time created, modified, changed, accessed;
    uint8_t hint;
};

/* Space of a store, bytes. */
struct bimetal_osd_capacity {
    uint64_t total, used, objects;
};

/* Makes an image of `size` bytes (0: the part's own) with an empty store. `device` and `placement` may be NULL. */
int bimetal_osd_make(const char *image, const char *device, uint64_t size, const char *placement);
/* Opens a store; `*store` is set on success. Not writable, nothing in the image changes. `device` may be NULL. */
int bimetal_osd_open(const char *image, const char *device, int writable, bimetal_osd **store);
/* Ends cleanly and frees the store, whatever it returns. */
int bimetal_osd_close(bimetal_osd *store);

/* Makes an empty object. `hint`: 0, or from 1 (shortest) to 255 how long its bytes will live. */
int bimetal_osd_create(bimetal_osd *store, uint8_t hint, uint64_t *id);
int bimetal_osd_create_as(bimetal_osd *store, uint64_t id, uint8_t hint);
int bimetal_osd_remove(bimetal_osd *store, uint64_t id);
int bimetal_osd_stat(bimetal_osd *store, uint64_t id, struct bimetal_osd_stat *stat);
/* Bytes read: fewer than `len` only at the end. */
int64_t bimetal_osd_read(bimetal_osd *store, uint64_t id, uint64_t offset, void *bytes, size_t len);
int bimetal_osd_write(bimetal_osd *store, uint64_t id, uint64_t offset, const void *bytes, size_t len);
/* Where it was written to. */
int bimetal_osd_append(bimetal_osd *store, uint64_t id, const void *bytes, size_t len, uint64_t *offset);
int bimetal_osd_truncate(bimetal_osd *store, uint64_t id, uint64_t size);
int bimetal_osd_punch(bimetal_osd *store, uint64_t id, uint64_t offset, uint64_t len);

/* The length of an attribute's value; -ERANGE if `room` is less, with nothing written. */
int64_t bimetal_osd_get_attribute(bimetal_osd *store, uint64_t id, const char *name, void *value, size_t room);
int bimetal_osd_set_attribute(bimetal_osd *store, uint64_t id, const char *name, const void *value, size_t len);
int bimetal_osd_remove_attribute(bimetal_osd *store, uint64_t id, const char *name);

/* Shows the objects from `from` on, in order, until `visit` returns other than 0. `visit` calls nothing here. */
int bimetal_osd_list(bimetal_osd *store, uint64_t from, int (*visit)(void *context, uint64_t id), void *context);
/* What was done so far survives a power cut. */
int bimetal_osd_flush(bimetal_osd *store);
int bimetal_osd_capacity(bimetal_osd *store, struct bimetal_osd_capacity *capacity);

#ifdef __cplusplus
}
#endif
#endif
