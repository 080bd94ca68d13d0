//! A program in C, compiled against the header and the library, does everything once.

use std::path::Path;
use std::process::Command;

const PROGRAM: &str = r#"
#include "bimetal_osd.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

static int visit(void *context, uint64_t id) { *(uint64_t *)context += id; return 0; }

int main(int argc, char **argv) {
    bimetal_osd *store;
    uint64_t id, offset, sum = 0;
    char bytes[16] = {0};
    struct bimetal_osd_stat stat;
    struct bimetal_osd_capacity capacity;
    assert(argc == 2);
    assert(bimetal_osd_make(argv[1], NULL, 32 << 20, "split") == 0);
    assert(bimetal_osd_make(argv[1], NULL, 0, NULL) == -EINVAL);
    assert(bimetal_osd_open(argv[1], NULL, 1, &store) == 0);
    assert(bimetal_osd_create(store, 0, &id) == 0 && bimetal_osd_create_as(store, 70, 1) == 0);
    assert(bimetal_osd_create_as(store, 70, 1) == -EEXIST);
    assert(bimetal_osd_write(store, id, 2, "hello", 5) == 0);
    assert(bimetal_osd_append(store, id, "!", 1, &offset) == 0 && offset == 7);
    assert(bimetal_osd_read(store, id, 0, bytes, sizeof bytes) == 8 && !memcmp(bytes, "\0\0hello!", 8));
    assert(bimetal_osd_punch(store, id, 2, 1) == 0 && bimetal_osd_truncate(store, id, 4) == 0);
    assert(bimetal_osd_set_attribute(store, id, "color", "red", 3) == 0);
    assert(bimetal_osd_get_attribute(store, id, "color", bytes, 2) == -ERANGE);
    assert(bimetal_osd_flush(store) == 0 && bimetal_osd_close(store) == 0);
    assert(bimetal_osd_open(argv[1], NULL, 0, &store) == 0);
    assert(bimetal_osd_write(store, id, 0, "x", 1) == -EROFS);
    assert(bimetal_osd_stat(store, id, &stat) == 0 && stat.size == 4 && stat.created.sec > 0);
    assert(bimetal_osd_get_attribute(store, id, "color", bytes, 3) == 3 && !memcmp(bytes, "red", 3));
    assert(bimetal_osd_list(store, 0, visit, &sum) == 0 && sum == id + 70);
    assert(bimetal_osd_capacity(store, &capacity) == 0 && capacity.objects == 2);
    assert(bimetal_osd_close(store) == 0);
    assert(bimetal_osd_open(argv[1], NULL, 1, &store) == 0);
    assert(bimetal_osd_remove_attribute(store, id, "color") == 0);
    assert(bimetal_osd_remove(store, id) == 0 && bimetal_osd_remove(store, id) == -ENOENT);
    return -bimetal_osd_close(store);
}
"#;

#[test]
fn a_program_in_c_uses_every_function() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("t.c"), dir.path().join("t"));
    std::fs::write(&source, PROGRAM).unwrap();
    // The library lies above this test's own program.
    let own = std::env::current_exe().unwrap();
    let library = own.ancestors().skip(1).map(|dir| dir.join("libbimetal_osd.a")).find(|path| path.exists());
    let Some(library) = library else {
        println!("skipped: libbimetal_osd.a is not built");
        return;
    };
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include)
        .arg(&source)
        .arg(&library)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).arg(dir.path().join("nand")).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
