//! What a client does beside names and contents: rules, attributes, scrubs, looks at the status.

use super::*;

impl Client {
    pub(super) fn map(&mut self) -> Done {
        let dir = self.some_dir();
        let rule = ["small", "large", "bypass", "inherit"][self.random.below(4) as usize];
        match self.world.fs.control_set(dir, "bimetal.section", rule.as_bytes()) {
            // Without its SSD.
            Err(Error::Invalid(_)) => Ok(()),
            done => self.full(done, |_| ()).map(drop),
        }
    }

    pub(super) fn durability(&mut self) -> Done {
        if self.world.both {
            return Ok(());
        }
        let dir = self.some_dir();
        let rule = ["either", "both", "inherit"][self.random.below(3) as usize];
        let done = self.world.fs.control_set(dir, "bimetal.durability", rule.as_bytes());
        self.full(done, |_| ()).map(drop)
    }

    pub(super) fn scrub(&mut self) -> Done {
        let root = Ino(2);
        let (anew, ends) = (self.random.chance(0.3), self.random.chance(0.3));
        let bytes = (1 + self.random.below(1_000_000)).to_string();
        // Only one of them is at it.
        let order = |what: &str| {
            let order = format!("{what} {}", self.number);
            match self.world.fs.control_set(root, "bimetal.scrub", order.as_bytes()) {
                Err(Error::InUse(_)) => Ok(false),
                // Without an SSD there is nothing to be verified.
                Err(Error::Gone { .. }) if !self.has_ssd()? => Ok(false),
                done => done.map(|()| true),
            }
        };
        let goes_on = !anew && order(&bytes)?;
        let is_on = goes_on || order("start")? && order(&bytes)?;
        if !is_on {
            return Ok(());
        }
        let found = self.world.fs.control_get(root, "bimetal.scrub")?;
        let found = String::from_utf8_lossy(&found).into_owned();
        if !found.contains("\"bad\":[]")
            && !self.world.excused.load(Relaxed)
            && !self.world.stop.load(Relaxed)
        {
            self.complain(format!("a scrub found {found}"));
        }
        if ends {
            // Whoever has been silent for too long meanwhile has nothing to end.
            let order = format!("end {}", self.number);
            match self.world.fs.control_set(root, "bimetal.scrub", order.as_bytes()) {
                Err(Error::InUse(_)) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Some or all of the SSD's clean extents are discarded, while others take them.
    pub(super) fn trim(&mut self) -> Done {
        let all = self.random.chance(0.5);
        let (offset, len) =
            if all { (0, u64::MAX) } else { (self.random.below(1 << 20), self.random.below(1 << 20)) };
        match self.world.fs.trim(Trim { offset, len, least: self.random.below(64 << 10) }) {
            Err(Error::Unsupported { .. }) if !self.has_ssd()? => Ok(()),
            done => done?.get().map(drop),
        }
    }

    fn has_ssd(&self) -> Result<bool, Error> {
        let status = self.world.fs.control_get(Ino(2), "bimetal.status")?;
        let status: serde_json::Value = serde_json::from_slice(&status).expect("a status is JSON");
        Ok(!status["ssd_half"].is_null())
    }

    pub(super) fn status(&mut self) -> Done {
        self.world.fs.control_get(Ino(2), "bimetal.status").map(drop)
    }

    pub(super) fn attributes(&mut self) -> Done {
        let Some((name, _)) = self.pick() else { return Ok(()) };
        let ino = self.lookup(&name)?;
        let len = [10, 300, 900][self.random.below(3) as usize];
        let key = format!("user.k{}", self.random.below(3));
        let value = vec![b'x'; len];
        let done = match self.random.chance(0.3) {
            true => match self.world.fs.removexattr(ino, key.as_bytes()) {
                Err(Error::NoAttribute) => Ok(()),
                done => done,
            },
            false => match self.world.fs.setxattr(ino, key.as_bytes(), &value, SetXattr::Either, false) {
                // All of an inode's attributes in one block.
                Err(Error::NoSpace(_)) => Ok(()),
                done => done,
            },
        };
        self.world.fs.forget(ino, 1);
        done
    }

    pub(super) fn chmod(&mut self) -> Done {
        let Some((name, _)) = self.pick() else { return Ok(()) };
        let set = SetAttr { perm: Some(0o600 + self.random.below(0o100) as u16), ..SetAttr::default() };
        self.with_file(&name, |ino| self.world.fs.setattr(ino, &set)).map(drop)
    }

    pub(super) fn some_dir(&mut self) -> Ino {
        let which = self.random.below(self.dirs.len() as u64 + 1) as usize;
        self.dirs.get(which).copied().unwrap_or(self.dir)
    }
}
