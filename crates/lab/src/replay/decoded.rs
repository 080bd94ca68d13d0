//! Traces that several runs play, decoded once.
//!
//! What of a trace fits is kept as records, 32 bytes each, and every run reads these; a trace that is longer is decoded by
//! each run, so that memory stays bounded. A trace that is damaged is decoded by each run, too, which then says so.

use bimetal_trace::{Record, Source};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Records of all traces that are kept: 512 MiB.
const RECORDS_MAX: usize = (512 << 20) / size_of::<Record>();

/// A trace, or that it is not kept.
type Slot = Arc<OnceLock<Option<Source>>>;

/// The traces of a grid. Nothing is kept by default.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    slots: Mutex<HashMap<String, Slot>>,
    /// How many records may still be kept.
    room: AtomicUsize,
}

impl Decoded {
    /// Keeps traces if there are `runs` to play them.
    pub fn for_runs(runs: usize) -> Arc<Decoded> {
        let room = if runs > 1 { RECORDS_MAX } else { 0 };
        Arc::new(Decoded { slots: Mutex::default(), room: AtomicUsize::new(room) })
    }

    /// The same trace in memory, where it is kept. Who asks while it is being decoded waits.
    pub fn share(&self, source: Source) -> Source {
        if !source.is_repeatable() || self.room.load(Relaxed) == 0 {
            return source;
        }
        let slot = Arc::clone(self.slots.lock().entry(format!("{source:?}")).or_default());
        let kept = slot.get_or_init(|| {
            let kept = source.in_memory(self.room.load(Relaxed)).ok().flatten()?;
            // Two that are decoded at the same time may take a little more than there is room.
            let left = self.room.load(Relaxed).saturating_sub(kept.records());
            self.room.store(left, Relaxed);
            Some(kept)
        });
        kept.clone().unwrap_or(source)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Args, one, replay};
    use super::*;
    use std::fs;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_trace_is_read_from_its_file_once_and_gives_the_same_report() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        let lines = (0..3000).map(|n| {
            format!("0.{n:04},{},{},4096\n", if n % 3 == 0 { "W" } else { "R" }, n * 77 % 900 * 4096)
        });
        fs::write(
            &path,
            format!("time_s,op,offset_bytes,length_bytes\n# a comment\n{}", lines.collect::<String>()),
        )
        .unwrap();
        let line = format!("{} --cache lru --cache-size 64KiB --ftl page", path.display());
        let args = Args::parse(&line).unwrap();
        let alone = one(&args, &AtomicBool::new(false)).unwrap();
        let shared = Args { decoded: Decoded::for_runs(2), ..args };
        let first = one(&shared, &AtomicBool::new(false)).unwrap();
        fs::remove_file(&path).unwrap();
        let second = one(&shared, &AtomicBool::new(false)).unwrap();
        assert_eq!((alone.trace_lines.lines, alone.trace_lines.skipped), (3002, 2));
        let text = |report| serde_json::to_string(report).unwrap();
        assert_eq!(text(&alone), text(&first));
        assert_eq!(text(&alone), text(&second));
    }

    #[test]
    fn what_is_too_long_or_damaged_is_read_by_each_run() {
        let room = |records| Decoded { slots: Mutex::default(), room: AtomicUsize::new(records) };
        let source = || Source::parse("gen:zipf:pages=10:requests=2000", Default::default()).unwrap();
        assert_eq!(room(1999).share(source()).records(), 0);
        assert_eq!(room(2000).share(source()).records(), 2000);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        fs::write(&path, "0,R,0,512\n0,R,x,512\n").unwrap();
        let args =
            Args::parse(&format!("{} --cache lru,arc --cache-size 64KiB --format csv", path.display()))
                .unwrap();
        let told = replay(&args).unwrap_err().to_string();
        assert!(told.contains("line 2"), "{told}");
    }
}
