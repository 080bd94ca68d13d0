//! What YAFFS2 and littlefs take for the same work: operations counted while the real programs ran on a NAND in memory, times the
//! latencies of [`PART`](super::bed::PART) (read 15 µs, program 200 µs, erase 2 ms, 25 ns a byte).
//!
//! YAFFS2 474b3ac (2026), direct interface, ten caches; littlefs 2.11 with caches of 2 KiB. `tests/peers/yaffs2.c` counts those
//! of figures 15 and 16 again. These are no figures of any paper: their names say *measured peer*.

/// What figures of YAFFS2 begin with.
pub const YAFFS2: &str = "YAFFS2 (measured peer)";

/// Percent of 128 MB in use by files of 100 KB, and the milliseconds a mount without checkpoint and summaries takes, as YAFFS
/// of the paper's time mounted.
pub const YAFFS2_MOUNT: [(f64, f64); 10] = [
    (0.0, 34.0),
    (10.0, 155.0),
    (20.0, 274.8),
    (30.0, 394.6),
    (40.0, 515.5),
    (50.0, 635.3),
    (60.0, 756.3),
    (70.0, 876.1),
    (80.0, 997.0),
    (90.0, 1116.8),
];

/// KB of a file, and the microseconds it takes to create and to delete one of a thousand on 50 MB, without summaries.
pub const YAFFS2_FILES: [(usize, f64, f64); 4] =
    [(0, 583.4, 705.4), (1, 1161.0, 1090.2), (4, 1416.0, 1122.2), (10, 2180.8, 1216.2)];

/// MB/s of writing 16 MiB by 4 KiB, in order and then at random, on 50 MB, without summaries (the mean of five draws, which are
/// 0.1 % apart).
pub const YAFFS2_WRITES: (f64, f64) = (8.030, 6.353);

/// What YAFFS2 takes: clean from its checkpoint, crashed with summaries, first `ls -lR`; ms.
pub struct Yaffs2 {
    /// From its checkpoint.
    pub clean: f64,
    /// With summaries.
    pub crashed: f64,
    /// The first one after the mount.
    pub listing: f64,
}

/// What littlefs takes, as full in blocks: mount (after a crash the same), first write, listing; ms.
pub struct Littlefs {
    /// After a crash the same.
    pub mount: f64,
    /// It looks for free blocks.
    pub first_write: f64,
    /// All names.
    pub listing: f64,
}

/// Of YAFFS2, where it was measured.
pub const fn yaffs2(clean: f64, crashed: f64, listing: f64) -> Option<Yaffs2> {
    Some(Yaffs2 { clean, crashed, listing })
}

/// Of littlefs, where it was measured.
pub const fn littlefs(mount: f64, first_write: f64, listing: f64) -> Option<Littlefs> {
    Some(Littlefs { mount, first_write, listing })
}
