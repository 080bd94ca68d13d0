/*
 * cmfs on a Cortex-M4 under QEMU: memory of a size that is stated, a part and an NVRAM in other memory, a life of files, a
 * cut, the NVRAM kept and lost. Prints how much memory and stack it took; semihosting stands in for a console.
 */
#define BOARD_BLOCKS 100
#define BOARD_NVRAM 13824 /* a thousandth of the NAND */
#define BOARD_SECTION __attribute__((section(".nand")))
#include "../board.h"

enum { MEMORY = 96 * 1024, FILES = 500, FILE_BYTES = 3000, LARGE = 1000000 };

static uint8_t memory[MEMORY] __attribute__((aligned(8)));

static int semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void print(const char *text) { semihost(4, text); }

static void print_number(const char *what, unsigned long number) {
    char digits[16];
    int at = sizeof digits - 1;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    print(what);
    print(" ");
    print(digits + at);
    print("\n");
}

static void leave(int status) {
    const uint32_t block[2] = {0x20026, (uint32_t)status};
    semihost(0x20, block);
    for (;;) {
    }
}

/* What tables for unwinding would name. */
void __aeabi_unwind_cpp_pr0(void) {}
void __aeabi_unwind_cpp_pr1(void) {}

void cmfs_panic(void) {
    print("cmfs_panic\n");
    leave(2);
    for (;;) {
    }
}

#define CHECK(condition)                    \
    do {                                    \
        int checked = (condition);          \
        if (!checked) {                     \
            print(#condition);              \
            print_number("\nline", __LINE__); \
            leave(1);                       \
        }                                   \
    } while (0)

static uint8_t bytes[FILE_BYTES], back[FILE_BYTES];

static void path_of(char *path, int number) {
    memcpy(path, "/dir0/file000", 14);
    path[4] = (char)('0' + number / 100);
    path[10] = (char)('0' + number / 100);
    path[11] = (char)('0' + number / 10 % 10);
    path[12] = (char)('0' + number % 10);
}

static void fill(int number) {
    int i;
    for (i = 0; i < FILE_BYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + number);
}

static void make_files(cmfs_volume *volume) {
    char path[16], dir[6] = "/dir0";
    uint32_t object;
    int number, at;
    for (number = 0; number < FILES; number++) {
        dir[4] = (char)('0' + number / 100);
        if (number % 100 == 0)
            CHECK(cmfs_mkdir(volume, dir) == 0);
        path_of(path, number);
        fill(number);
        CHECK(cmfs_open(volume, path, CMFS_CREATE, &object) == 0);
        CHECK(cmfs_write(volume, object, 0, bytes, FILE_BYTES) == FILE_BYTES);
        CHECK(cmfs_close(volume, object) == 0);
    }
    CHECK(cmfs_open(volume, "/large", CMFS_CREATE, &object) == 0);
    for (at = 0; at < LARGE; at += FILE_BYTES)
        CHECK(cmfs_write(volume, object, (uint64_t)at, bytes, FILE_BYTES) == FILE_BYTES);
    CHECK(cmfs_close(volume, object) == 0);
}

static void check_files(cmfs_volume *volume) {
    char path[16];
    uint32_t object;
    int step, number;
    for (step = 0; step < FILES; step++) {
        number = step * 7 % FILES;
        path_of(path, number);
        fill(number);
        CHECK(cmfs_open(volume, path, 0, &object) == 0);
        CHECK(cmfs_read(volume, object, 0, back, FILE_BYTES) == FILE_BYTES && memcmp(bytes, back, FILE_BYTES) == 0);
        CHECK(cmfs_close(volume, object) == 0);
    }
}

static int work(void) {
    const uint8_t identity[16] = {1, 2, 3};
    struct cmfs_config config;
    struct cmfs_statfs statfs;
    cmfs_volume *volume;
    uint32_t object;
    CHECK(cmfs_config_default(&config) == 0);
    config.memory_bytes = 32 * 1024;
    config.cache_pages = 2;
    CHECK(cmfs_give_memory(memory, sizeof memory) == 0);
    print_number("needed", cmfs_memory_needed(&nand, &config));
    memset(&board, 0xff, sizeof board);
    memset(board.bad, 0, sizeof board.bad);
    board.powered = 1;
    CHECK(cmfs_format(&nand, &nvram, &config, identity) == 0);
    print_number("format", cmfs_memory_most(1));
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0 && cmfs_mounted_how(volume) == 0);
    print_number("mount", cmfs_memory_most(1));
    make_files(volume);
    check_files(volume);
    CHECK(cmfs_statfs(volume, &statfs) == 0 && statfs.memory_bytes <= config.memory_bytes && statfs.fetched > 0);
    CHECK(cmfs_unmount(volume) == 0);
    print_number("work", cmfs_memory_most(1));
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0 && cmfs_mounted_how(volume) == 0);
    check_files(volume);
    CHECK(cmfs_open(volume, "/dir1/more", CMFS_CREATE, &object) == 0);
    CHECK(cmfs_write(volume, object, 0, bytes, FILE_BYTES) == FILE_BYTES && cmfs_close(volume, object) == 0);
    board.powered = 0;
    CHECK(cmfs_unmount(volume) == CMFS_EIO);
    board.powered = 1;
    CHECK(cmfs_mount(&nand, &nvram, &config, &volume) == 0 && cmfs_mounted_how(volume) == 1);
    CHECK(cmfs_open(volume, "/dir1/more", 0, &object) == 0 && cmfs_size(volume, object) == FILE_BYTES);
    CHECK(cmfs_close(volume, object) == 0);
    check_files(volume);
    CHECK(cmfs_check(volume, 1) == 0 && cmfs_unmount(volume) == 0);
    print_number("again", cmfs_memory_most(1));
    return 0;
}

enum { STACK = 64 * 1024, PAINT = 0x5a };
extern uint8_t stack_end[];

static void __attribute__((noinline)) paint(void) {
    volatile uint8_t *at = stack_end - STACK, *here = (volatile uint8_t *)__builtin_frame_address(0) - 64;
    while (at < here)
        *at++ = PAINT;
}

void reset(void) {
    const uint8_t *at = stack_end - STACK;
    paint();
    CHECK(work() == 0);
    while (*at == PAINT)
        at++;
    print_number("stack", (unsigned long)(stack_end - at));
    print("all is well\n");
    leave(0);
}

static void fault(void) {
    print("fault\n");
    leave(3);
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_end, reset, fault, fault, fault, fault, fault, 0, 0, 0, 0, fault, fault, 0, fault, fault,
};
