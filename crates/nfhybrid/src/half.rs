//! The SSD half's device, whose errors say which half they are of; and what is no half any more.
//!
//! The SSD may be given up for what *it* did, never for what the disk, a full log or a bug did. So whatever its device
//! answers is marked here, at the one place all requests pass. Cost: one more call a request.

use super::mount::copy_has_pairing;
use super::ssd::Ssd;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_ext4::Ext4;
use bimetal_media::file::FileDevice;
use bimetal_media::guard::{self, Role};
use bimetal_media::placed::Placed;
use bimetal_media::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;

/// A device whose errors are [`Error::Ssd`].
pub(super) struct SsdHalf(Arc<dyn BlockDevice>);

impl SsdHalf {
    /// Over `device`, whose parts are overwritten as `ssd` lays them out.
    pub fn over(device: Arc<dyn BlockDevice>, ssd: Option<&Ssd>) -> Arc<dyn BlockDevice> {
        let placed = Placed::new(device, ssd.map(Ssd::lifetimes).unwrap_or_default());
        Arc::new(SsdHalf(Arc::new(placed)))
    }
}

fn marked(completion: Completion) -> Completion {
    let result: Result<Bytes> = completion.result.map_err(Error::of_ssd);
    Completion { result, ..completion }
}

impl BlockDevice for SsdHalf {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.0)
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        match self.0.submit(at, request) {
            Ticket::Done(completion) => Ticket::Done(marked(completion)),
            pending => pending,
        }
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match ticket {
            Ticket::Done(completion) => completion,
            pending => marked(self.0.wait(pending)),
        }
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        marked(self.0.run(at, request))
    }
}

/// What a command that changes a volume does to its SSD half: changes it; or reads it, where it takes no writes any more and
/// the user said what is to become of its log (`only_read`). The mount goes on without it then, as it does when an SSD fails.
///
/// # Errors
/// [`Error::Invalid`] for an SSD half that takes no writes, without that word.
pub fn role_of_ssd(path: &Path, writable: bool, only_read: bool) -> Result<Role> {
    if !writable || !guard::is_read_only(path) {
        return Ok(Role::changed_if(writable));
    }
    if only_read {
        return Ok(Role::Read);
    }
    let name = path.display();
    let (what, how) = match path.is_file() {
        true => ("on a file system that is mounted read-only", "mount -o remount,rw of that".into()),
        false => ("a read-only device", format!("blockdev --setrw {name}")),
    };
    Err(Error::invalid(format!(
        "{name} is {what}. If it can be made writable, do that ({how}). If it takes no writes any more, mount both halves with -o recover=whole, or say bimetal \
         fsck --yes: what its log holds is brought to the disk, the SSD is only read, and left out from then on. To only look: \
         mount -o ro, fsck -n, ls or get"
    )))
}

/// What stands in the place of the first superblock of an SSD half of which the second one is left: whoever gave the device to
/// something else since may still need that. One that is only damaged carries no signature.
pub fn reused_for(ssd: &dyn BlockDevice, path: &Path) -> Option<String> {
    let is_left = Ssd::goes_by_second(ssd);
    // What cannot be read is no signature.
    is_left.then(|| guard::other_than_ssd_half(path).ok().flatten()).flatten()
}

/// An error if a half of ours carries the mark of another beside its own superblocks: what is behind that is another's.
///
/// # Errors
/// [`Error::Invalid`] says whose, and what can be done.
pub fn refuse_marked(half: &FileDevice) -> Result<()> {
    if !Ext4::is_one(half) && !Ssd::is_one(half) {
        // What it is instead is told by whoever opens it.
        return Ok(());
    }
    let mark = half.claim().and_then(|claim| guard::mark_beside(claim).ok().flatten());
    let (Some(mark), name) = (mark, &half.info().name) else { return Ok(()) };
    let (guard::Mark { what, at }, away) = (&mark, mark.taken_away_by(name));
    Err(Error::invalid(format!(
        "{name} is {what} (its mark is at byte {at}), and has a superblock of ours: it was given to something else, or the mark was left \
         there before. Nothing was changed. If something else uses it now, it is no half any more: to look at what it held, mount -o ro, ls or get, \
         or bimetal rescue for an SSD half. If it is the half all the same, take that one mark away: {away}"
    )))
}

/// Takes the marks of others away from what is to be overwritten: left beside a new superblock they would say that it is theirs.
///
/// # Errors
/// As the device's.
pub fn unmark(half: &FileDevice) -> Result<()> {
    let Some(claim) = half.claim() else { return Ok(()) };
    while let Some(mark) = guard::mark_beside(claim)? {
        let device: &dyn BlockDevice = half;
        device.write(mark.at / 512 * 512, vec![0; 512])?;
        device.flush()?;
    }
    Ok(())
}

/// An error if a disk half was given to something else, which has its superblock's place: a copy further back is left.
///
/// # Errors
/// [`Error::Invalid`] says to what, and what can be done.
pub fn refuse_reused_disk(disk: &FileDevice) -> Result<()> {
    if Ext4::is_one(disk) || !copy_has_pairing(disk, None) {
        return Ok(());
    }
    let other = disk.claim().and_then(|claim| guard::signature_of(claim).ok().flatten());
    let (Some(other), name) = (other, &disk.info().name) else { return Ok(()) };
    Err(Error::invalid(format!(
        "{name} holds {other}; only a copy of the superblock further back says that it was a disk half. Nothing was changed. If it is \
         used for something else now, bimetal rescue gets off the SSD half what that holds. If it is the disk half all the same, take \
         that signature away (wipefs --all {name}), then repair it: bimetal fsck --yes"
    )))
}

/// An error if an SSD half was given to something else, see [`reused_for`].
///
/// # Errors
/// [`Error::Invalid`] says to what, and what can be done.
pub fn refuse_reused_ssd(ssd: &FileDevice) -> Result<()> {
    let Some(other) = ssd.claim().and_then(|claim| reused_for(ssd, &claim.path())) else { return Ok(()) };
    let name = &ssd.info().name;
    Err(Error::invalid(format!(
        "{name} holds {other}; only the second superblock, at its end, says that it was an SSD half. Nothing was changed. If it is \
         used for something else now, go on without it, and without what only its log held, if the disk lacks anything: bimetal mount \
         --without-ssd --disk DISK, bimetal fsck --without-ssd --disk DISK (bimetal rescue gets off it what is left). If it is the SSD \
         half all the same, take that signature away: wipefs --all {name}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::faulty::{Effect, Faulty, Kind, When};
    use bimetal_media::ram::Ram;

    #[test]
    fn its_errors_are_marked_once_and_its_answers_are_as_they_were() {
        let faulty = Arc::new(Faulty::new(Arc::new(Ram::new("ssd", 8192))));
        let half = SsdHalf(faulty.clone());
        let half: &dyn BlockDevice = &half;
        assert_eq!(half.read(0, 512).unwrap(), vec![0; 512]);
        faulty.plan(Kind::Read, When::Nth(1), Effect::Error(libc::EIO));
        let ticket = half.submit(Time::ZERO, Request::Read { offset: 0, len: 512 });
        let error = half.wait(ticket).result.unwrap_err();
        assert!(matches!(&error, Error::Ssd(inner) if matches!(**inner, Error::Io { .. })), "{error}");
    }
}
