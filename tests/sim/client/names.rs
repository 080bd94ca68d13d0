//! What a client does with names.

use super::*;

impl Client {
    pub(super) fn create(&mut self) -> Done {
        let name = self.fresh_name();
        let now = self.now();
        let free = self.story(|story| {
            let free = !story.names().contains_key(&name);
            if free {
                let file = story.new_file(now);
                story.begin_names(|names| {
                    names.insert(name.clone(), file);
                });
            }
            free
        });
        if !free {
            return Ok(());
        }
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let (dir, leaf) = self.place(&name);
        let made = self.world.fs.create(&CALLER, dir, leaf, &node);
        let Some(attr) = self.full(made, Story::undo_names)? else { return Ok(()) };
        let now = self.now();
        self.story(|story| story.names_done(now));
        self.world.fs.forget(attr.ino, 1);
        Ok(())
    }

    pub(super) fn link(&mut self) -> Done {
        let Some((from, file)) = self.pick() else { return Ok(()) };
        let to = self.fresh_name();
        if self.story(|story| story.names().contains_key(&to)) {
            return Ok(());
        }
        self.story(|story| {
            story.begin_names(|names| {
                names.insert(to.clone(), file);
            })
        });
        let ino = self.lookup(&from)?;
        let (dir, leaf) = self.place(&to);
        let linked = self.world.fs.link(ino, dir, leaf);
        if linked.is_ok() {
            self.world.fs.forget(ino, 1);
        }
        self.world.fs.forget(ino, 1);
        if self.full(linked, Story::undo_names)?.is_some() {
            let now = self.now();
            self.story(|story| story.names_done(now));
        }
        Ok(())
    }

    pub(super) fn exchange(&mut self) -> Done {
        let (Some((one, first)), Some((two, second))) = (self.pick(), self.pick()) else { return Ok(()) };
        if one == two {
            return Ok(());
        }
        self.story(|story| {
            story.begin_names(|names| {
                names.insert(one.clone(), second);
                names.insert(two.clone(), first);
            })
        });
        let ((from, name), (to, new_name)) = (self.place(&one), self.place(&two));
        self.world.fs.rename(from, name, to, new_name, Rename::Exchange)?;
        let now = self.now();
        self.story(|story| story.names_done(now));
        Ok(())
    }

    pub(super) fn rename(&mut self) -> Done {
        let Some((from, file)) = self.pick() else { return Ok(()) };
        let to = self.fresh_name();
        if from == to {
            return Ok(());
        }
        self.story(|story| {
            let over = story.names().get(&to).copied();
            story.begin_names(|names| {
                if over != Some(file) {
                    names.remove(&from);
                    names.insert(to.clone(), file);
                }
            });
            if over.is_some_and(|over| over != file) {
                story.carry(file);
            }
        });
        let ((dir, name), (new_dir, new_name)) = (self.place(&from), self.place(&to));
        let moved = self.world.fs.rename(dir, name, new_dir, new_name, Rename::Replace);
        if self.full(moved, Story::undo_names)?.is_some() {
            let now = self.now();
            self.story(|story| story.names_done(now));
        }
        Ok(())
    }

    pub(super) fn unlink(&mut self) -> Done {
        let Some((name, _)) = self.pick() else { return Ok(()) };
        self.unlink_name(&name)
    }

    pub(super) fn unlink_name(&self, name: &str) -> Done {
        self.story(|story| {
            story.begin_names(|names| {
                names.remove(name);
            })
        });
        let (dir, leaf) = self.place(name);
        self.world.fs.unlink(dir, leaf)?;
        let now = self.now();
        self.story(|story| story.names_done(now));
        Ok(())
    }

    /// As editors save: a new file, written, perhaps synced, renamed over the old one.
    pub(super) fn replace(&mut self) -> Done {
        let Some((to, _)) = self.pick() else { return Ok(()) };
        let from = "saved".to_string();
        if to == from {
            return Ok(());
        }
        if self.story(|story| story.names().contains_key(&from)) {
            // Left from before a cut.
            return self.unlink_name(&from);
        }
        let now = self.now();
        let (file, data) = self.story(|story| {
            let file = story.new_file(now);
            story.begin_names(|names| {
                names.insert(from.clone(), file);
            });
            (file, story.next_tag())
        });
        let data = pattern(self.world.noise, data, 0, 9_000);
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let made = self.world.fs.create(&CALLER, self.dir, from.as_bytes(), &node);
        let Some(attr) = self.full(made, Story::undo_names)? else { return Ok(()) };
        let now = self.now();
        self.story(|story| {
            story.names_done(now);
            story.begin_contents(file, data.clone());
        });
        let written = self.world.fs.write(attr.ino, 0, &data, false).and_then(|later| later.get());
        match self.full(written, |story| story.undo_contents(file))? {
            Some(9_000) => self.contents_done(file),
            Some(written) => {
                self.story(|story| {
                    story.undo_contents(file);
                    story.begin_contents(file, data[..written].to_vec());
                });
                self.contents_done(file);
            }
            None => {}
        }
        if self.random.chance(0.5) {
            let (version, states) = self.promise_begun(Some(file));
            self.world.fs.fsync(attr.ino, false)?.get()?;
            self.promised(Some((file, version)), &states);
        }
        self.world.fs.forget(attr.ino, 1);
        self.story(|story| {
            story.begin_names(|names| {
                names.remove(&from);
                names.insert(to.clone(), file);
            });
            story.carry(file);
        });
        let (dir, leaf) = self.place(&to);
        let moved = self.world.fs.rename(self.dir, from.as_bytes(), dir, leaf, Rename::Replace);
        if self.full(moved, Story::undo_names)?.is_some() {
            let now = self.now();
            self.story(|story| story.names_done(now));
        }
        Ok(())
    }

    /// Makes and removes many files and directories: more than a transaction takes where commits are slow, under few numbers.
    pub(super) fn crowd(&mut self) -> Done {
        let Some(crowd) = self.crowd else { return Ok(()) };
        for _ in 0..self.random.below(250) {
            if self.world.stop.load(Relaxed) {
                return Ok(());
            }
            let (name, dir) = (format!("c{}", self.random.below(200)), self.random.chance(0.5));
            let kind = if dir { Kind::Dir } else { Kind::File };
            let node = NewNode { kind, perm: 0o755, rdev: 0, target: b"" };
            let done = match self.world.fs.create(&CALLER, crowd, name.as_bytes(), &node) {
                Ok(attr) => {
                    let data = vec![7; self.random.below(9_000) as usize];
                    let written = || self.world.fs.write(attr.ino, 0, &data, false)?.get().map(drop);
                    let done = if dir { Ok(()) } else { written() };
                    self.world.fs.forget(attr.ino, 1);
                    done
                }
                Err(Error::Exists) => match self.world.fs.unlink(crowd, name.as_bytes()) {
                    Err(Error::IsDir) => self.world.fs.rmdir(crowd, name.as_bytes()),
                    done => done,
                },
                Err(error) => Err(error),
            };
            self.full(done, |_| ())?;
        }
        Ok(())
    }
}
