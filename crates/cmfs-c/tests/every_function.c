/*
 * Every function of cmfs.h, what it promises and how it refuses. With an argument all memory is given, as much as
 * cmfs_memory_needed() says and no more, and bounded. Ends with 0 and "all is well", or says which line was not as it should.
 */
#include "board.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) {                                         \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1);                                                \
        }                                                           \
    } while (0)

static const uint8_t identity[16] = {1, 2, 3};

static void refuses_what_makes_no_sense(const struct cmfs_config *config) {
    struct cmfs_nand other = nand;
    struct cmfs_config wrong = *config;
    cmfs_volume *volume = NULL;
    CHECK(cmfs_config_default(NULL) == CMFS_EINVAL);
    CHECK(cmfs_format(NULL, &nvram, config, identity) == CMFS_EINVAL);
    CHECK(cmfs_format(&nand, &nvram, config, NULL) == CMFS_EINVAL);
    CHECK(cmfs_mount(&nand, &nvram, config, NULL) == CMFS_EINVAL);
    other.read = NULL;
    CHECK(cmfs_mount(&other, &nvram, config, &volume) == CMFS_EINVAL);
    CHECK(cmfs_memory_needed(NULL, config) == 0);
    other = nand;
    other.spare_bytes = 16;
    CHECK(cmfs_mount(&other, &nvram, config, &volume) == CMFS_ENOTSUP && cmfs_memory_needed(&other, config) == 0);
    other = nand;
    other.cell_bits = 2;
    CHECK(cmfs_mount(&other, &nvram, config, &volume) == CMFS_ENOTSUP);
    wrong.flags = 1u << 30;
    CHECK(cmfs_mount(&nand, &nvram, &wrong, &volume) == CMFS_EINVAL);
    wrong = *config;
    wrong.memory_bytes = 100;
    CHECK(cmfs_mount(&nand, &nvram, &wrong, &volume) == CMFS_ENOTSUP);
    CHECK(cmfs_mount(&nand, &nvram, config, &volume) == CMFS_ENODEV && volume == NULL);
    CHECK(cmfs_unmount(NULL) == CMFS_EINVAL && cmfs_sync_all(NULL) == CMFS_EINVAL);
    CHECK(cmfs_mounted_how(NULL) == CMFS_EINVAL && cmfs_size(NULL, 1) == CMFS_EINVAL);
}

static void files(cmfs_volume *volume) {
    static uint8_t bytes[20000], back[20000];
    uint32_t object, again;
    int i;
    for (i = 0; i < (int)sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    CHECK(cmfs_open(volume, "/a", 0, &object) == CMFS_ENOENT);
    CHECK(cmfs_open(volume, "/a", 64, &object) == CMFS_EINVAL && cmfs_open(volume, NULL, 0, &object) == CMFS_EINVAL);
    CHECK(cmfs_open(volume, "/a", CMFS_CREATE, NULL) == CMFS_EINVAL);
    CHECK(cmfs_open(volume, "/a", CMFS_CREATE | CMFS_EXCLUSIVE, &object) == 0);
    CHECK(cmfs_open(volume, "/a", CMFS_CREATE | CMFS_EXCLUSIVE, &again) == CMFS_EEXIST);
    CHECK(cmfs_write(volume, object, 0, bytes, sizeof bytes) == (int)sizeof bytes);
    CHECK(cmfs_write(volume, object, 0, NULL, 5) == CMFS_EINVAL && cmfs_write(volume, object, 0, NULL, 0) == 0);
    CHECK(cmfs_write(volume, object, UINT64_MAX, bytes, 5) == CMFS_EFBIG);
    CHECK(cmfs_write(volume, object, 0, bytes, SIZE_MAX) == CMFS_EINVAL);
    CHECK(cmfs_size(volume, object) == (int)sizeof bytes && cmfs_sync(volume, object) == 0);
    CHECK(cmfs_read(volume, object, 0, back, sizeof back) == (int)sizeof back && memcmp(bytes, back, sizeof back) == 0);
    CHECK(cmfs_read(volume, object, sizeof bytes - 3, back, sizeof back) == 3);
    CHECK(cmfs_read(volume, object, 0, NULL, 3) == CMFS_EINVAL && cmfs_read(volume, 77777, 0, back, 3) == CMFS_ESTALE);
    CHECK(cmfs_punch(volume, object, 4096, 8192) == 0 && cmfs_seek(volume, object, 0, 1) == 4096);
    CHECK(cmfs_seek(volume, object, 4096, 0) == 8192 && cmfs_seek(volume, object, 1 << 20, 0) == CMFS_ENXIO);
    CHECK(cmfs_read(volume, object, 4096, back, 4096) == 4096 && back[0] == 0 && back[4095] == 0);
    CHECK(cmfs_reserve(volume, object, 20000, 60000) == 0);
    CHECK(cmfs_reserve(volume, object, 0, UINT64_C(1) << 28) == CMFS_ENOSPC);
    CHECK(cmfs_truncate(volume, object, 100) == 0 && cmfs_size(volume, object) == 100);
    CHECK(cmfs_close(volume, object) == 0 && cmfs_close(volume, object) == CMFS_ESTALE);
    CHECK(cmfs_open(volume, "/a", CMFS_TRUNCATE, &object) == 0 && cmfs_size(volume, object) == 0);
    CHECK(cmfs_close(volume, object) == 0);
    CHECK(cmfs_open(volume, "/", 0, &object) == 0 && cmfs_read(volume, object, 0, back, 1) == CMFS_EISDIR);
    CHECK(cmfs_close(volume, object) == 0);
    /* What is open outlives its name. */
    CHECK(cmfs_open(volume, "/a", 0, &object) == 0 && cmfs_open(volume, "/a", 0, &again) == 0 && again == object);
    CHECK(cmfs_write(volume, object, 0, bytes, 5000) == 5000 && cmfs_remove(volume, "/a") == 0);
    CHECK(cmfs_open(volume, "/a", 0, &again) == CMFS_ENOENT);
    CHECK(cmfs_close(volume, object) == 0 && cmfs_read(volume, object, 0, back, 5000) == 5000);
    CHECK(memcmp(bytes, back, 5000) == 0 && cmfs_close(volume, object) == 0);
    CHECK(cmfs_read(volume, object, 0, back, 1) == CMFS_ESTALE);
}

static void names(cmfs_volume *volume) {
    struct cmfs_entry entry;
    struct cmfs_stat stat;
    uint8_t target[8];
    char long_name[300];
    uint32_t dir, object;
    int count = 0, seen = 0;
    CHECK(cmfs_mkdir(volume, "/d") == 0 && cmfs_mkdir(volume, "/d") == CMFS_EEXIST && cmfs_mkdir(volume, "/") == CMFS_EINVAL);
    CHECK(cmfs_mkdir(volume, "/none/x") == CMFS_ENOENT);
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[0] = '/';
    long_name[sizeof long_name - 1] = 0;
    CHECK(cmfs_mkdir(volume, long_name) == CMFS_ENAMETOOLONG);
    CHECK(cmfs_open(volume, "/d/one", CMFS_CREATE, &object) == 0 && cmfs_close(volume, object) == 0);
    CHECK(cmfs_link(volume, "/d/one", "/d/two") == 0 && cmfs_link(volume, "/d", "/e") == CMFS_EISDIR);
    CHECK(cmfs_symlink(volume, "one", "/d/three") == 0);
    CHECK(cmfs_readlink(volume, "/d/three", target, sizeof target) == 3 && memcmp(target, "one", 3) == 0);
    CHECK(cmfs_readlink(volume, "/d/one", target, sizeof target) == CMFS_EINVAL);
    CHECK(cmfs_open(volume, "/d", 0, &dir) == 0);
    memset(&entry, 0, sizeof entry);
    while (cmfs_readdir(volume, dir, &entry) == 1) {
        count++;
        seen |= strcmp(entry.name, "one") == 0 && entry.kind == CMFS_FILE && entry.object == object ? 1 : 0;
        seen |= strcmp(entry.name, "two") == 0 && entry.kind == CMFS_FILE && entry.object == object ? 2 : 0;
        seen |= strcmp(entry.name, "three") == 0 && entry.kind == CMFS_SYMLINK ? 4 : 0;
    }
    CHECK(count == 3 && seen == 7 && cmfs_readdir(volume, dir, &entry) == 0);
    CHECK(cmfs_readdir(volume, dir, NULL) == CMFS_EINVAL && cmfs_readdir(volume, object, &entry) == CMFS_ENOTDIR);
    CHECK(cmfs_close(volume, dir) == 0);
    CHECK(cmfs_remove(volume, "/d") == CMFS_ENOTEMPTY && cmfs_remove(volume, "/d/four") == CMFS_ENOENT);
    CHECK(cmfs_rename(volume, "/d/three", "/three") == 0 && cmfs_rename(volume, "/d/four", "/x") == CMFS_ENOENT);
    CHECK(cmfs_exchange(volume, "/three", "/d/one") == 0 && cmfs_stat(volume, "/three", &stat) == 0);
    CHECK(stat.kind == CMFS_FILE && stat.links == 2 && stat.object == object);
    CHECK(cmfs_remove(volume, "/d/one") == 0 && cmfs_remove(volume, "/d/two") == 0 && cmfs_remove(volume, "/d") == 0);
    /* What is replaced while it is open is there until it is closed. */
    CHECK(cmfs_open(volume, "/three", 0, &object) == 0 && cmfs_write(volume, object, 0, target, 3) == 3);
    CHECK(cmfs_open(volume, "/new", CMFS_CREATE, &dir) == 0 && cmfs_close(volume, dir) == 0);
    CHECK(cmfs_rename(volume, "/new", "/three") == 0 && cmfs_size(volume, object) == 3);
    CHECK(cmfs_close(volume, object) == 0 && cmfs_size(volume, object) == CMFS_ESTALE);
}

static void attributes(cmfs_volume *volume) {
    struct cmfs_stat stat, same;
    uint8_t bytes[3000];
    uint32_t object;
    CHECK(cmfs_set_time(volume, 1700000000, 5) == 0 && cmfs_set_time(volume, 0, 1000000000) == CMFS_EINVAL);
    CHECK(cmfs_open(volume, "/at", CMFS_CREATE, &object) == 0 && cmfs_stat(volume, "/at", &stat) == 0);
    CHECK(cmfs_fstat(volume, object, &same) == 0 && memcmp(&stat, &same, sizeof stat) == 0);
    CHECK(stat.mtime == 1700000000 && stat.mtime_ns == 5 && stat.kind == CMFS_FILE && stat.mode == 0100644);
    CHECK(stat.links == 1 && stat.size == 0 && cmfs_stat(volume, "/", &same) == 0 && same.kind == CMFS_DIR);
    CHECK(cmfs_stat(volume, "/at", NULL) == CMFS_EINVAL && cmfs_stat(volume, "/none", &stat) == CMFS_ENOENT);
    CHECK(cmfs_chmod(volume, object, 0600) == 0 && cmfs_chown(volume, object, 7, 8) == 0);
    CHECK(cmfs_utime(volume, object, 11, -12) == 0 && cmfs_fstat(volume, object, &stat) == 0);
    CHECK(stat.mode == 0100600 && stat.uid == 7 && stat.gid == 8 && stat.atime == 11 && stat.mtime == -12);
    CHECK(cmfs_getxattr(volume, object, "user.a", bytes, 10) == CMFS_ENODATA);
    CHECK(cmfs_setxattr(volume, object, "user.a", (const uint8_t *)"hello", 5) == 0);
    CHECK(cmfs_setxattr(volume, object, "user.b", NULL, 0) == 0 && cmfs_setxattr(volume, object, "", NULL, 0) == CMFS_EINVAL);
    CHECK(cmfs_setxattr(volume, object, "user.c", bytes, sizeof bytes) == CMFS_ENOSPC);
    CHECK(cmfs_getxattr(volume, object, "user.a", bytes, 2) == 5 && memcmp(bytes, "he", 2) == 0);
    CHECK(cmfs_listxattr(volume, object, NULL, 0) == 14 && cmfs_listxattr(volume, object, bytes, sizeof bytes) == 14);
    CHECK(memcmp(bytes, "user.a\0user.b\0", 14) == 0);
    CHECK(cmfs_removexattr(volume, object, "user.a") == 0 && cmfs_removexattr(volume, object, "user.a") == CMFS_ENODATA);
    CHECK(cmfs_close(volume, object) == 0);
}

static void as_a_whole(cmfs_volume *volume, size_t memory_bytes) {
    struct cmfs_statfs before, after;
    uint8_t bytes[3000];
    char path[32];
    uint32_t object;
    int i;
    memset(bytes, 9, sizeof bytes);
    CHECK(cmfs_statfs(volume, NULL) == CMFS_EINVAL && cmfs_statfs(volume, &before) == 0);
    CHECK(before.page_bytes == PAGE && before.nvram_bytes == BOARD_NVRAM && before.session > 0 && before.nvram_overflows == 0);
    for (i = 0; i < 300; i++) {
        sprintf(path, "/many%03d", i);
        CHECK(cmfs_open(volume, path, CMFS_CREATE, &object) == 0);
        CHECK(cmfs_write(volume, object, 0, bytes, sizeof bytes) == (int)sizeof bytes && cmfs_close(volume, object) == 0);
    }
    CHECK(cmfs_sync_all(volume) == 0 && cmfs_statfs(volume, &after) == 0 && board.synced > 0);
    CHECK(after.objects == before.objects + 300 && after.pages_free < before.pages_free && after.programs > before.programs);
    CHECK(memory_bytes == 0 || after.memory_bytes <= memory_bytes);
    for (i = 299; i >= 0; i--) {
        sprintf(path, "/many%03d", i);
        CHECK(cmfs_open(volume, path, 0, &object) == 0 && cmfs_size(volume, object) == (int)sizeof bytes);
        CHECK(cmfs_close(volume, object) == 0);
    }
    CHECK(cmfs_statfs(volume, &after) == 0 && (memory_bytes == 0) == (after.fetched == 0));
    CHECK(cmfs_tick(volume, 6000) == 0 && cmfs_remove(volume, "/many000") == 0 && cmfs_tick(volume, 20000) == 1);
    CHECK(cmfs_scrub(volume, 1) == 0 && cmfs_scrub(volume, PAGES * BOARD_BLOCKS) == 1);
    CHECK(cmfs_check(volume, 0) == 0 && cmfs_check(volume, 1) == 0 && cmfs_repair(volume) == 0);
}

int main(int argc, char **argv) {
    struct cmfs_config config;
    cmfs_volume *volume = NULL;
    uint32_t object;
    size_t needed = 0;
    static uint8_t bytes[PAGE];
    int page;
    (void)argv;
    board.powered = 1;
    CHECK(strlen(cmfs_version()) > 0 && strcmp(cmfs_error_text(CMFS_ENOSPC), "no space left") == 0);
    CHECK(strcmp(cmfs_error_text(-9999), "unknown error") == 0 && strcmp(cmfs_error_text(5), "no error") == 0);
    CHECK(cmfs_config_default(&config) == 0 && config.cache_pages == 8 && config.memory_bytes == 0);
    CHECK(cmfs_give_memory(NULL, 4096) == CMFS_EINVAL);
    if (argc > 1) {
        config.memory_bytes = 32 << 10;
        config.cache_pages = 4;
        needed = cmfs_memory_needed(&nand, &config);
        CHECK(needed > config.memory_bytes && needed < 4 * config.memory_bytes);
        CHECK(cmfs_give_memory(malloc(needed), needed) == 0);
        CHECK(cmfs_give_memory(&config, sizeof config) == CMFS_EINVAL);
        config.memory_bytes = 1 << 20;
        CHECK(cmfs_format(&nand, &nvram, &config, identity) == CMFS_ENOMEM);
        config.memory_bytes = 32 << 10;
    }
    memset(board.data, 0xff, sizeof board.data);
    memset(board.spare, 0xff, sizeof board.spare);
    refuses_what_makes_no_sense(&config);
    board.bad[5] = 1;
    CHECK(cmfs_format(&nand, &nvram, &config, identity) == 0);
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0 && cmfs_mounted_how(volume) == 0);
    files(volume);
    names(volume);
    attributes(volume);
    as_a_whole(volume, config.memory_bytes);
    CHECK(cmfs_checkpoint(volume, 3) == CMFS_EINVAL);
    if (argc == 1)
        CHECK(cmfs_checkpoint(volume, 8) == 1);
    CHECK(cmfs_unmount(volume) == 0);

    /* Software corrects a wrong bit, if it is asked to when the page is written. */
    config.flags |= CMFS_CORRECT;
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0);
    CHECK(cmfs_open(volume, "/coded", CMFS_CREATE, &object) == 0);
    CHECK(cmfs_write(volume, object, 0, board.data[0], PAGE) == PAGE && cmfs_close(volume, object) == 0);
    CHECK(cmfs_unmount(volume) == 0);
    for (page = 0; page < BOARD_BLOCKS * PAGES; page++)
        if (board.spare[page][SPARE - 1] != 0xff)
            board.data[page][77] ^= 4;
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0 && cmfs_open(volume, "/coded", 0, &object) == 0);
    CHECK(cmfs_read(volume, object, 0, bytes, PAGE) == PAGE && cmfs_check(volume, 1) == 0);
    CHECK(cmfs_close(volume, object) == 0 && cmfs_unmount(volume) == 0);
    config.flags = 0;

    /* A cut, and what was synced is there; then without the NVRAM. */
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0);
    CHECK(cmfs_open(volume, "/cut", CMFS_CREATE, &object) == 0 && cmfs_write(volume, object, 0, identity, 16) == 16);
    CHECK(cmfs_close(volume, object) == 0);
    CHECK(cmfs_open(volume, "/cut", 0, &object) == 0 && cmfs_remove(volume, "/cut") == 0);
    board.powered = 0;
    CHECK(cmfs_open(volume, "/lost", CMFS_CREATE, &object) < 0 || cmfs_sync_all(volume) == CMFS_EIO);
    CHECK(cmfs_unmount(volume) == CMFS_EIO);
    board.powered = 1;
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0 && cmfs_mounted_how(volume) == 1);
    CHECK(cmfs_open(volume, "/cut", 0, &object) == CMFS_ENOENT && cmfs_open(volume, "/lost", 0, &object) == CMFS_ENOENT);
    CHECK(cmfs_check(volume, 1) == 0 && cmfs_unmount(volume) == 0);
    if (argc == 1) {
        CHECK(cmfs_mount(&nand, NULL, &config, &volume) == 0 && cmfs_mounted_how(volume) >= 2);
        CHECK(cmfs_unmount(volume) == 0);
    }
    printf("all is well%s\n", argc > 1 ? ", in bounded memory" : "");
    if (argc > 1)
        fprintf(stderr, "%lu bytes given, most in use: %lu\n", (unsigned long)needed, (unsigned long)cmfs_memory_most(1));
    return 0;
}
