//! What a client does with the contents of files.

use super::*;

impl Client {
    pub(super) fn write(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return self.create() };
        let len_now = self.story(|story| story.contents(file).len() as u64);
        let offset = match self.random.below(4) {
            0 => len_now,
            1 => self.random.below(len_now + 1),
            2 => self.random.below(len_now + 1) / 4096 * 4096,
            _ => self.random.below(30_000),
        };
        let len = match self.random.below(5) {
            0 => 1 + self.random.below(300),
            1 | 2 => 4096,
            3 => 1 + self.random.below(20_000),
            _ => 1 + self.random.below(self.longest),
        };
        if offset + len > 3 << 20 {
            return Ok(());
        }
        let ino = self.lookup(&name)?;
        let done = self.write_to(ino, file, offset, len);
        self.world.fs.forget(ino, 1);
        done
    }

    pub(super) fn write_to(&mut self, ino: Ino, file: usize, offset: u64, len: u64) -> Done {
        let noise = self.world.noise;
        let data = self.story(|story| {
            let data = pattern(noise, story.next_tag(), offset, len);
            let mut contents = story.contents(file).to_vec();
            contents.resize(contents.len().max((offset + len) as usize), 0);
            contents[offset as usize..(offset + len) as usize].copy_from_slice(&data);
            story.begin_contents(file, contents);
            data
        });
        let written = self.world.fs.write(ino, offset, &data, false).and_then(|later| later.get());
        let Some(written) = self.full(written, |story| story.undo_contents(file))? else { return Ok(()) };
        if written as u64 != len {
            if !self.world.small {
                self.complain(format!("{written} of {len} bytes written"));
            }
            self.story(|story| {
                story.undo_contents(file);
                let mut contents = story.contents(file).to_vec();
                contents.resize(contents.len().max(offset as usize + written), 0);
                contents[offset as usize..offset as usize + written].copy_from_slice(&data[..written]);
                story.begin_contents(file, contents);
            });
        }
        self.contents_done(file);
        Ok(())
    }

    pub(super) fn contents_done(&self, file: usize) {
        let now = self.now();
        self.story(|story| story.contents_done(file, now));
    }

    pub(super) fn read(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let ino = self.lookup(&name)?;
        let done = self.read_from(ino, &name, file);
        self.world.fs.forget(ino, 1);
        done
    }

    pub(super) fn read_from(&mut self, ino: Ino, name: &str, file: usize) -> Done {
        let expected = self.story(|story| story.contents(file).to_vec());
        let offset = self.random.below(expected.len() as u64 + 1);
        let len = 1 + self.random.below(100_000);
        let found = self.world.fs.read(ino, offset, len as usize)?.get()?.concat();
        let end = (offset + len).min(expected.len() as u64);
        let part = &expected[offset as usize..end as usize];
        if found != part {
            let at = found.iter().zip(part).position(|(a, b)| a != b).unwrap_or(found.len().min(part.len()));
            let why = format!(
                "client {}: {name} (file {file}) read at {offset}: {} bytes for {}, byte {at} is {:?} and was {:?}",
                self.number,
                found.len(),
                part.len(),
                found.get(at),
                part.get(at)
            );
            self.world.errors.lock().push(why);
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let len = self.story(|story| story.contents(file).len() as u64);
        let size = if self.random.chance(0.3) { 0 } else { self.random.below(len * 5 / 4 + 10) };
        self.story(|story| {
            let mut contents = story.contents(file).to_vec();
            contents.resize(size as usize, 0);
            story.begin_contents(file, contents);
        });
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let done = self.with_file(&name, |ino| self.world.fs.setattr(ino, &set).map(drop));
        if self.full(done, |story| story.undo_contents(file))?.is_some() {
            self.contents_done(file);
        }
        Ok(())
    }

    pub(super) fn punch(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let len = self.story(|story| story.contents(file).len() as u64);
        let (offset, count) = (self.random.below(len + 1), 1 + self.random.below(30_000));
        self.story(|story| {
            let mut contents = story.contents(file).to_vec();
            let end = ((offset + count) as usize).min(contents.len());
            contents[offset as usize..end].fill(0);
            story.begin_contents(file, contents);
        });
        let done = self.with_file(&name, |ino| self.world.fs.fallocate(ino, offset, count, Fallocate::Punch));
        if self.full(done, |story| story.undo_contents(file))?.is_some() {
            self.contents_done(file);
        }
        Ok(())
    }

    /// A file kept open: read, written, cut, synced, whatever its names are.
    pub(super) fn hold(&mut self) -> Done {
        let Some((ino, file)) = self.held else {
            let Some((name, file)) = self.pick() else { return Ok(()) };
            self.held = Some((self.lookup(&name)?, file));
            return Ok(());
        };
        let len = self.story(|story| story.contents(file).len() as u64);
        match self.random.below(6) {
            0 => {
                self.held = None;
                self.world.fs.forget(ino, 1);
                Ok(())
            }
            1 => self.read_from(ino, "held", file),
            2 => {
                let (version, states) = self.promise_begun(Some(file));
                self.world.fs.fsync(ino, false)?.get()?;
                self.promised(Some((file, version)), &states);
                Ok(())
            }
            _ => {
                let offset = self.random.below(len + 1);
                let len = 1 + self.random.below(20_000);
                if offset + len > 3 << 20 { Ok(()) } else { self.write_to(ino, file, offset, len) }
            }
        }
    }

    /// Reads another client's file while that one works on it: each byte is one it had since the read began.
    pub(super) fn read_other(&mut self) -> Done {
        let other = {
            let clients = self.world.stories.lock().len() as u64;
            self.random.below(clients) as usize
        };
        let Ok(dir) = self.world.fs.lookup(Ino(2), format!("client{other}").as_bytes()) else {
            return Ok(());
        };
        let draw = self.random.next();
        let picked = {
            let stories = self.world.stories.lock();
            let story = &stories[other];
            let settled = story.last_done_state() + 1 == story.states();
            let names = story.names().iter().filter(|(name, _)| settled && !name.contains('/'));
            let names: Vec<_> = names.collect();
            let count = names.len().max(1) as u64;
            let picked = names.get((draw % count) as usize).map(|(name, file)| ((*name).clone(), **file));
            picked.map(|(name, file)| (name, file, story.states(), story.last_done_version(file)))
        };
        if let Some((name, file, states, first)) = picked
            && let Ok(attr) = self.world.fs.lookup(dir.ino, name.as_bytes())
        {
            let offset = self.random.below(attr.size + 5_000);
            let len = 1 + self.random.below(100_000);
            let found = self.world.fs.read(attr.ino, offset, len as usize).and_then(|later| later.get());
            self.world.fs.forget(attr.ino, 1);
            let found = found?.concat();
            let objection = {
                let stories = self.world.stories.lock();
                match stories[other].states() == states {
                    true => stories[other].objection_to_read(file, first, offset, len, &found),
                    false => None,
                }
            };
            if let Some(why) = objection {
                self.complain(format!(
                    "{name} of client {other} (file {file}) read at {offset} for {len}: {why}"
                ));
            }
        }
        self.world.fs.forget(dir.ino, 1);
        Ok(())
    }

    /// `O_TRUNC`, a new contents, and perhaps an fsync.
    pub(super) fn rewrite(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let ino = self.lookup(&name)?;
        let done = self.rewrite_at(ino, file);
        self.world.fs.forget(ino, 1);
        done
    }

    pub(super) fn rewrite_at(&mut self, ino: Ino, file: usize) -> Done {
        self.story(|story| story.begin_contents(file, Vec::new()));
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let cut = self.world.fs.setattr(ino, &set);
        if self.full(cut, |story| story.undo_contents(file))?.is_none() {
            return Ok(());
        }
        self.contents_done(file);
        let len = 1 + self.random.below(40_000);
        self.write_to(ino, file, 0, len)?;
        if self.random.chance(0.5) {
            let (version, states) = self.promise_begun(Some(file));
            self.world.fs.fsync(ino, false)?.get()?;
            self.promised(Some((file, version)), &states);
        }
        Ok(())
    }

    pub(super) fn allocate(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let len = self.story(|story| story.contents(file).len() as u64);
        let (offset, count) = (self.random.below(len + 20_000), 1 + self.random.below(60_000));
        let keep_size = self.random.chance(0.5);
        let zero = self.random.chance(0.5);
        let what = if zero { Fallocate::Zero { keep_size } } else { Fallocate::Reserve { keep_size } };
        if offset + count > 3 << 20 {
            return Ok(());
        }
        self.story(|story| {
            let mut contents = story.contents(file).to_vec();
            let end = (offset + count) as usize;
            if !keep_size {
                contents.resize(contents.len().max(end), 0);
            }
            if zero {
                let to = end.min(contents.len());
                let from = (offset as usize).min(to);
                contents[from..to].fill(0);
            }
            story.begin_contents(file, contents);
        });
        let done = self.with_file(&name, |ino| self.world.fs.fallocate(ino, offset, count, what));
        if self.full(done, |story| story.undo_contents(file))?.is_some() {
            self.contents_done(file);
        }
        Ok(())
    }
}
