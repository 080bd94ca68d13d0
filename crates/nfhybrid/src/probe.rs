//! Which half of a volume a device is, told from a few blocks of it; of one that is in use, too.
//!
//! 1. What begins with the magic number of an SSD half is one, and its superblock, or the copy at the end, says whose.
//! 2. What has the magic number of an ext4, and a pairing in its superblock, is a disk half. So is one without a pairing
//!    whose first copy of the superblock has one: the superblock is damaged.
//!
//! What does not begin so is none of ours, whatever is left further back: whoever formats a device anew, or wipes it, leaves
//! copies. Nothing is written, locked or replayed. Cost: two reads of a device that is neither an SSD half nor an ext4.

use super::mount::copy_has_pairing;
use super::pairing::{NoPairing, Pairing, Saved};
use super::ssd::Ssd;
use bimetal_base::Error;
use bimetal_ext4::Ext4;
use bimetal_media::BlockDevice;

/// A half of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// Which.
    pub role: Role,
    /// Its own UUID, where that can be read.
    pub uuid: Option<[u8; 16]>,
    /// That of the half that it belongs to.
    pub other: Option<[u8; 16]>,
    /// How it was left, as far as its superblock says.
    pub state: State,
}

/// Which half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The SSD half.
    Ssd,
    /// The disk half.
    Disk,
}

/// How a half was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In order.
    Clean,
    /// In use, or it was when the power failed.
    Open,
    /// The disk half goes on without its SSD.
    Degraded,
    /// What it says of itself cannot be believed.
    Damaged,
    /// It is of a version that this program does not know.
    Unknown,
}

impl Half {
    /// The UUID of the volume: that of the disk half's ext4.
    pub fn volume(&self) -> Option<[u8; 16]> {
        match self.role {
            Role::Ssd => self.other,
            Role::Disk => self.uuid,
        }
    }
}

/// Which half a device is, if it is one. One that cannot be read is none.
pub fn probe(device: &dyn BlockDevice) -> Option<Half> {
    if Ssd::is_one(device) {
        return Some(ssd(device));
    }
    if Ext4::is_one(device) { disk(device) } else { None }
}

fn ssd(device: &dyn BlockDevice) -> Half {
    let role = Role::Ssd;
    match Ssd::peek(device) {
        Ok((uuid, pairing, clean)) => {
            let state = if clean { State::Clean } else { State::Open };
            Half { role, uuid: Some(uuid), other: Some(pairing.disk_uuid), state }
        }
        Err(Error::Unsupported { .. }) => Half { role, uuid: None, other: None, state: State::Unknown },
        Err(_) => Half { role, uuid: None, other: None, state: State::Damaged },
    }
}

fn disk(device: &dyn BlockDevice) -> Option<Half> {
    let role = Role::Disk;
    let said = match Ext4::look_at_super(device) {
        Ok(said) => Some(said),
        Err(Error::Corrupt { .. }) => None,
        Err(_) => return None,
    };
    let pairing = said.map_or(Err(NoPairing::None), |(look, _)| Pairing::decode(look.pairing.as_ref()));
    let uuid = said.map(|(look, _)| look.identity.uuid);
    match pairing {
        Ok(pairing) => {
            let state = match pairing.state {
                _ if said.is_some_and(|(_, sound)| !sound) => State::Damaged,
                // The journal may have a later state.
                _ if said.is_some_and(|(look, _)| look.identity.in_use) => State::Open,
                Saved::Clean => State::Clean,
                Saved::LogOpen | Saved::Recovering => State::Open,
                Saved::Degraded => State::Degraded,
            };
            Some(Half { role, uuid, other: Some(pairing.ssd).filter(|ssd| *ssd != [0; 16]), state })
        }
        Err(NoPairing::None) => {
            let is_half = copy_has_pairing(device, uuid);
            is_half.then_some(Half { role, uuid, other: None, state: State::Damaged })
        }
        Err(NoPairing::Damaged) => Some(Half { role, uuid, other: None, state: State::Damaged }),
        Err(NoPairing::Version(_)) => Some(Half { role, uuid, other: None, state: State::Unknown }),
    }
}
