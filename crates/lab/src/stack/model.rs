//! A device that is to be like another: its bytes on a real one, its times those of a profile.

use super::file::DeviceKeys;
use super::{Contents, Medium, NONE};
use bimetal_base::Result;
use bimetal_media::BlockDevice;
use bimetal_media::timed::Timed;
use std::sync::Arc;

/// Requests to a model without pages are counted in so many bytes.
const PAGE_BYTES: u64 = 4096;

/// What the halves of a volume are like, where a stack file says it.
#[derive(Clone, Debug, Default)]
pub struct Models {
    /// The SSD half.
    pub ssd: Option<Model>,
    /// The disk half.
    pub disk: Option<Model>,
}

/// A device that a half is to be like.
#[derive(Clone, Debug)]
pub struct Model {
    profile: String,
    ftl: Option<String>,
    seed: u64,
}

impl Model {
    /// What a table of a stack file describes, if it names a profile.
    pub fn of(device: &DeviceKeys, seed: u64) -> Option<Model> {
        let profile = device.profile.clone().filter(|profile| profile != NONE)?;
        Some(Model { profile, ftl: device.ftl.as_ref().map(ToString::to_string), seed })
    }

    /// The device that is like it, in real time, with its bytes on `storage`.
    ///
    /// # Errors
    /// There is no such device, or not on `storage`.
    pub fn over(&self, storage: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>> {
        let medium = Medium::framed(&self.profile, self.ftl.as_deref())?;
        let stack = medium.build(Contents::On(storage), None, PAGE_BYTES, self.seed)?;
        Ok(Arc::new(Timed::live(stack.device)))
    }
}
