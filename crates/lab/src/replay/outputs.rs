//! What a replay writes is none of what it reads, and no two reports are one file.

use super::{AdmissionRule, Args};
use crate::stack::profiles;
use bimetal_base::{Error, Result};
use std::fs::{canonicalize, metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Which file a path leads to, by whatever name: the file itself if there is one, else its place in its folder. None for
/// what is no file, such as a terminal, which several reports may go to.
fn identity(path: &Path) -> Option<(u64, u64, PathBuf)> {
    match metadata(path) {
        Ok(found) => found.is_file().then(|| (found.dev(), found.ino(), PathBuf::new())),
        Err(_) => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some((0, 0, canonicalize(dir).ok()?.join(path.file_name()?)))
        }
    }
}

/// Refuses to write over what is read, and two reports that are one file.
///
/// # Errors
/// [`Error::Invalid`] with the option and the file.
pub(super) fn check(args: &Args) -> Result<()> {
    let reports = [
        ("--csv", &args.csv),
        ("--parquet", &args.parquet),
        ("--html", &args.html),
        ("--series", &args.series),
        ("--request-log", &args.request_log),
    ];
    let reports = reports.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)));
    let outputs = reports.chain(args.plot.iter().map(|plot| ("--plot", plot.path())));
    let read = inputs(args);
    let mut before: Vec<(&str, (u64, u64, PathBuf))> = Vec::new();
    for (option, path) in outputs {
        let Some(of) = identity(path) else { continue };
        let refused = |why: String| {
            Err(Error::invalid(format!("{option} {}: {why}; name another file", path.display())))
        };
        if read.iter().any(|input| identity(input).as_ref() == Some(&of)) {
            return refused("it is what the replay reads".into());
        }
        if let Some((other, _)) = before.iter().find(|(_, other)| *other == of) {
            return refused(format!("{other} writes to it, too"));
        }
        before.push((option, of));
    }
    Ok(())
}

/// The files that runs read: of the trace, of profiles, and of the images that writes are told apart by.
fn inputs(args: &Args) -> Vec<PathBuf> {
    let trace = args.trace.iter().flat_map(|trace| bimetal_trace::files_of(trace));
    let profiles = [&args.device, &args.ssd, &args.disk].into_iter().flatten();
    let profiles = profiles.flat_map(|profile| profiles::files_of(profile));
    let images = [&args.nvram, &args.place].into_iter().flatten().filter_map(|rule| match rule {
        AdmissionRule::Fat(image) => Some(image.clone()),
        _ => None,
    });
    trace.chain(profiles).chain(images).collect()
}
