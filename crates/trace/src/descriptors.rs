//! Where reads and writes through descriptors go, followed from the calls of a trace.
//!
//! As in a kernel, a descriptor of a process names an *open file*, which has the position and the append flag.
//! Duplicates and children name the same one, so that a position moves for all of them. Where files end is remembered
//! by path, from everything that tells: reads, writes, truncation, `lseek`, `stat`. What was never told begins at 0.
//!
//! Cost: a look-up or two in a hash table a call; a fork copies the parent's table. Memory: 40 bytes a descriptor, and
//! 16 a path.

use rustc_hash::FxHashMap;

/// An open file.
#[derive(Clone, Copy, Debug, Default)]
struct Opened {
    position: u64,
    /// Writes go to the end.
    append: bool,
}

/// The descriptors of all processes, and where files end.
#[derive(Default)]
pub(super) struct Descriptors {
    files: Vec<Opened>,
    /// Open files by descriptor, for each table.
    tables: FxHashMap<u32, FxHashMap<u32, u32>>,
    /// The table of a process that shares another's (a thread).
    shared: FxHashMap<u32, u32>,
    /// Ends by path.
    ends: FxHashMap<u32, u64>,
}

impl Descriptors {
    fn table(&self, process: u32) -> u32 {
        self.shared.get(&process).copied().unwrap_or(process)
    }

    fn file(&mut self, process: u32, fd: u32) -> &mut Opened {
        let table = self.table(process);
        let next = self.files.len() as u32;
        let number = *self.tables.entry(table).or_default().entry(fd).or_insert(next);
        if number == next {
            self.files.push(Opened::default());
        }
        &mut self.files[number as usize]
    }

    /// A descriptor was opened.
    pub fn opened(&mut self, process: u32, fd: u32, append: bool) {
        let (table, number) = (self.table(process), self.files.len() as u32);
        self.tables.entry(table).or_default().insert(fd, number);
        self.files.push(Opened { position: 0, append });
    }

    /// A descriptor was closed.
    pub fn closed(&mut self, process: u32, fd: u32) {
        let table = self.table(process);
        if let Some(known) = self.tables.get_mut(&table) {
            known.remove(&fd);
        }
    }

    /// A descriptor is another one's duplicate now.
    pub fn duplicated(&mut self, process: u32, from: u32, to: u32) {
        self.file(process, from);
        let table = self.table(process);
        if let Some(known) = self.tables.get_mut(&table)
            && let Some(number) = known.get(&from).copied()
        {
            known.insert(to, number);
        }
    }

    /// A process began with its parent's descriptors, or shares them. What it did before this was told stays.
    pub fn forked(&mut self, parent: u32, child: u32, shares: bool) {
        let table = self.table(parent);
        if parent == child {
            return;
        }
        let own = self.tables.remove(&child).unwrap_or_default();
        let all = self.tables.entry(table).or_default();
        if shares {
            all.extend(own);
            self.shared.insert(child, table);
            return;
        }
        let mut all = all.clone();
        all.extend(own);
        self.shared.remove(&child);
        self.tables.insert(child, all);
    }

    /// Whether writes through a descriptor go to the end was changed.
    pub fn set_append(&mut self, process: u32, fd: u32, append: bool) {
        self.file(process, fd).append = append;
    }

    /// The position of a descriptor was set.
    pub fn seek(&mut self, process: u32, fd: u32, position: u64) {
        self.file(process, fd).position = position;
    }

    /// Bytes were read; `at` if the call said where. Where that was.
    pub fn read(&mut self, process: u32, fd: u32, path: u32, at: Option<u64>, bytes: u64) -> u64 {
        let from = at.unwrap_or(self.file(process, fd).position);
        self.moved(process, fd, path, at.is_none(), from.saturating_add(bytes));
        from
    }

    /// Bytes were written; `at` if the call said where, which a file opened for appending does not heed. Where that was.
    pub fn written(&mut self, process: u32, fd: u32, path: u32, at: Option<u64>, bytes: u64) -> u64 {
        let end = self.ends.get(&path).copied().unwrap_or(0);
        let Opened { position, append } = *self.file(process, fd);
        let from = if append { end } else { at.unwrap_or(position) };
        self.moved(process, fd, path, at.is_none(), from.saturating_add(bytes));
        from
    }

    fn moved(&mut self, process: u32, fd: u32, path: u32, moves: bool, to: u64) {
        if moves {
            self.file(process, fd).position = to;
        }
        self.reaches(path, to);
    }

    /// A file ends here or later.
    pub fn reaches(&mut self, path: u32, end: u64) {
        let known = self.ends.entry(path).or_default();
        *known = end.max(*known);
    }

    /// A file ends here.
    pub fn ends_at(&mut self, path: u32, end: u64) {
        self.ends.insert(path, end);
    }

    /// A file has another name.
    pub fn renamed(&mut self, old: u32, new: u32) {
        match self.ends.remove(&old) {
            Some(end) => self.ends.insert(new, end),
            None => self.ends.remove(&new),
        };
    }

    /// A name is gone.
    pub fn removed(&mut self, path: u32) {
        self.ends.remove(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_bytes_go_to_the_end_as_known_so_far() {
        let mut known = Descriptors::default();
        known.ends_at(0, 100);
        known.opened(1, 3, true);
        assert_eq!(known.written(1, 3, 0, None, 10), 100);
        known.opened(2, 3, false);
        assert_eq!(known.written(2, 3, 0, Some(300), 20), 300);
        assert_eq!(known.written(1, 3, 0, Some(7), 1), 320, "a place is not heeded");
        known.ends_at(0, 50);
        assert_eq!(known.written(1, 3, 0, None, 1), 50);
        known.renamed(0, 1);
        assert_eq!(known.written(1, 3, 1, None, 1), 51);
    }

    #[test]
    fn duplicates_and_children_share_a_position_and_threads_a_table() {
        let mut known = Descriptors::default();
        known.opened(1, 3, false);
        assert_eq!(known.read(1, 3, 0, None, 10), 0);
        known.duplicated(1, 3, 1);
        known.forked(1, 2, false);
        assert_eq!(known.read(2, 1, 0, None, 10), 10);
        assert_eq!(known.read(1, 3, 0, None, 10), 20);
        known.forked(1, 9, true);
        known.opened(9, 4, true);
        assert_eq!(known.written(1, 4, 0, None, 5), 30);
        known.closed(1, 3);
        assert_eq!((known.read(2, 3, 0, None, 1), known.read(9, 3, 0, None, 1)), (30, 0));
    }
}
