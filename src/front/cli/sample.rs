//! What a mount did between two looks at its status: rates, and what is as it is. What `bimetal top` shows.
//!
//! Everything comes from the status as the mount gives it; a part that a kind of file system does not have is `null`. A number
//! that was larger before (the mount is another one) counts from nothing.

use super::screen::Space;
use super::status;
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One look at a mount.
pub(super) struct Look {
    place: PathBuf,
    at: Instant,
    status: Value,
    space: Space,
}

impl Look {
    /// Looks now.
    ///
    /// # Errors
    /// No mount of ours is there, its server is dead, or what answers is an exported device.
    pub fn at(place: &Path) -> Result<Look> {
        let status = status::read(place)?;
        if status.get("front").is_none() {
            return Err(Error::invalid(format!(
                "{}: this is a device that bimetal export serves, no mount; see: bimetal status {0}",
                place.display()
            )));
        }
        Ok(Look { place: place.into(), at: Instant::now(), space: status::space(place)?, status })
    }

    /// What the mount said.
    pub fn status(&self) -> &Value {
        &self.status
    }

    /// Bytes of the file system, and those in use.
    pub fn space(&self) -> (u64, u64) {
        (self.space.size, self.space.used)
    }

    /// What was done since an earlier look at the same mount.
    pub fn since(&self, before: &Look) -> Value {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let change = Change { before: &before.status, now: &self.status, seconds };
        let (now, front) = (&self.status, &self.status["front"]);
        let is_hybrid = now["at_risk"].is_object();
        let mut sample = json!({
            "mount": null,
            "type": now["type"].as_str().unwrap_or("nfhybrid"),
            "health": now["health"],
            "interval_seconds": seconds,
            "space": { "size_bytes": self.space.size, "used_bytes": self.space.used },
            "requests_per_second": change.sum("/front/requests"),
            "written_bytes_per_second": change.rate("/front/written_bytes"),
            "at_risk": if is_hybrid { now["at_risk"].clone() } else { Value::Null },
            "hits": change.hits(),
            "read_bytes_per_second": change.several(&[
                ("memory", "/counters/read_bytes/0"),
                ("ssd", "/counters/read_bytes/1"),
                ("disk", "/counters/read_bytes/2"),
            ]),
            "fsyncs_per_second": change.several(&[
                ("ssd", "/counters/fsync_ssd"),
                ("disk", "/counters/fsync_disk"),
            ]),
            "devices": change.devices(),
            "flash": change.flash(),
            "evictions": change.evictions(),
            "wear": wear(now),
            "errors": {
                "devices": device_errors(now),
                "checksums": number(now, "/counters/bad_sums"),
                "flash": number(now, "/nand/failures"),
                "bugs": front["panics"].as_u64().unwrap_or(0),
            },
        });
        super::set_name(&mut sample, "mount", self.place.as_os_str().as_bytes());
        sample
    }
}

/// A number of a status by its JSON pointer; 0 where there is none.
fn number(status: &Value, pointer: &str) -> u64 {
    status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Two states of one mount.
struct Change<'a> {
    before: &'a Value,
    now: &'a Value,
    seconds: f64,
}

impl Change<'_> {
    fn growth(&self, pointer: &str) -> u64 {
        let (before, now) = (number(self.before, pointer), number(self.now, pointer));
        now.checked_sub(before).unwrap_or(now)
    }

    fn per_second(&self, growth: u64) -> f64 {
        if self.seconds > 0.0 { growth as f64 / self.seconds } else { 0.0 }
    }

    fn rate(&self, pointer: &str) -> f64 {
        self.per_second(self.growth(pointer))
    }

    /// What all numbers of an object grew by, a second.
    fn sum(&self, pointer: &str) -> f64 {
        let names = self.now.pointer(pointer).and_then(Value::as_object);
        let growth = names.into_iter().flatten().map(|(name, _)| self.growth(&format!("{pointer}/{name}")));
        self.per_second(growth.sum())
    }

    /// Rates by name; `null` where the status has none of them.
    fn several(&self, of: &[(&str, &str)]) -> Value {
        if of.iter().all(|(_, pointer)| self.now.pointer(pointer).is_none()) {
            return Value::Null;
        }
        of.iter()
            .map(|(name, pointer)| (name.to_string(), self.rate(pointer).into()))
            .collect::<Map<_, _>>()
            .into()
    }

    fn sections(&self) -> Option<usize> {
        Some(self.now.pointer("/ssd_half/sections")?.as_array()?.len())
    }

    fn over_sections(&self, field: &str) -> u64 {
        let sections = self.sections().unwrap_or(0);
        (0..sections).map(|index| self.growth(&format!("/ssd_half/sections/{index}/{field}"))).sum()
    }

    /// Reads that the SSD answered alone, and those that needed the disk.
    fn hits(&self) -> Value {
        if self.sections().is_none() {
            return Value::Null;
        }
        let (hits, misses) = (self.over_sections("hits"), self.over_sections("misses"));
        let ratio = (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64);
        json!({
            "hits_per_second": self.per_second(hits),
            "misses_per_second": self.per_second(misses),
            "ratio": ratio,
        })
    }

    fn evictions(&self) -> Value {
        let Some(sections) = self.sections() else { return Value::Null };
        let of = |index| number(self.now, &format!("/ssd_half/sections/{index}/evicted_inodes"));
        json!({
            "files_per_second": self.per_second(self.over_sections("evicted_inodes")),
            "files": (0..sections).map(of).sum::<u64>(),
        })
    }

    /// Each device's requests; its load is the time that was waited for it, a second: as many requests as were waited for at
    /// once, on average.
    fn devices(&self) -> Value {
        let names = self.now["devices"].as_object().into_iter().flatten().map(|(name, _)| name);
        let device = |name: &String| {
            let at = |field: &str| format!("/devices/{name}/{field}");
            let waits = self.sum(&at("waits"));
            let shown = json!({
                "reads_per_second": self.rate(&at("requests/reads")),
                "writes_per_second": self.rate(&at("requests/writes")),
                "flushes_per_second":
                    self.rate(&at("requests/flushes")) + self.rate(&at("requests/durable_writes")),
                "read_bytes_per_second": self.rate(&at("requests/read_bytes")),
                "written_bytes_per_second": self.rate(&at("requests/write_bytes")),
                "load": waits / 1e9,
            });
            (name.clone(), shown)
        };
        names.map(device).collect::<Map<_, _>>().into()
    }

    /// What a file system did to its flash.
    fn flash(&self) -> Value {
        if !self.now["nand"].is_object() {
            return Value::Null;
        }
        let page = number(self.now, "/nand/page_bytes") as f64;
        json!({
            "programmed_bytes_per_second": self.rate("/nand/programs") * page,
            "copied_pages_per_second": self.rate("/nand/copies"),
            "erases_per_second": self.rate("/nand/erases"),
        })
    }
}

/// What has been written to the SSD since the mount, for what programs wrote and for its size; or how often the blocks of a flash
/// were erased.
fn wear(status: &Value) -> Value {
    if status["wear"].is_object() {
        return json!({
            "erases_min": number(status, "/wear/min"),
            "erases_max": number(status, "/wear/max"),
        });
    }
    let Some(ssd) = status.pointer("/devices/ssd") else { return Value::Null };
    let written = number(ssd, "/requests/write_bytes");
    let times = |of: u64| (of > 0).then(|| written as f64 / of as f64);
    json!({
        "ssd_written_bytes": written,
        "times_what_programs_wrote": times(number(status, "/front/written_bytes")),
        "times_its_size": times(number(ssd, "/size_bytes")),
    })
}

/// Requests that the devices below failed.
fn device_errors(status: &Value) -> u64 {
    let devices = status["devices"].as_object().into_iter().flatten();
    let kinds = devices.filter_map(|(_, device)| device["errors"].as_object()).flatten();
    kinds.filter_map(|(_, count)| count.as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn look(seconds: u64, began: Instant, status: Value) -> Look {
        let at = began + Duration::from_secs(seconds);
        Look { place: "/mnt".into(), at, status, space: Space { used: 1, size: 4 } }
    }

    fn status(times: u64) -> Value {
        json!({
            "at_risk": {"bytes": 5, "limit_bytes": 50, "seconds": 0.5, "limit_seconds": 5.0},
            "health": {"state": "ok", "why": []},
            "counters": {"read_bytes": [0, 4096 * times, 0], "fsync_ssd": times, "fsync_disk": 0, "bad_sums": 2},
            "ssd_half": {"sections": [
                {"hits": 3 * times, "misses": times, "evicted_inodes": 0},
                {"hits": 0, "misses": 0, "evicted_inodes": 6 * times}]},
            "devices": {"ssd": {"size_bytes": 1000, "errors": {"reads": 1, "writes": 2},
                "requests": {"reads": 8 * times, "writes": 0, "flushes": times, "durable_writes": times,
                    "read_bytes": 100 * times, "write_bytes": 500 * times},
                "waits": {"read_ns": 1_000_000_000 * times, "write_ns": 2_000_000_000 * times}}},
            "front": {"requests": {"read": 2 * times, "write": 2 * times}, "written_bytes": 1000 * times, "panics": 0},
        })
    }

    #[test]
    fn numbers_become_rates_over_the_time_between() {
        let began = Instant::now();
        let change = look(2, began, status(5)).since(&look(0, began, status(1)));
        assert_eq!(change["interval_seconds"], 2.0);
        assert_eq!(
            (&change["requests_per_second"], &change["written_bytes_per_second"]),
            (&json!(8.0), &json!(2000.0))
        );
        assert_eq!(change["hits"], json!({"hits_per_second": 6.0, "misses_per_second": 2.0, "ratio": 0.75}));
        assert_eq!(change["evictions"], json!({"files_per_second": 12.0, "files": 30}));
        assert_eq!(change["devices"]["ssd"]["load"], 6.0);
        assert_eq!(change["devices"]["ssd"]["flushes_per_second"], 4.0);
        assert_eq!(change["fsyncs_per_second"], json!({"ssd": 2.0, "disk": 0.0}));
        assert_eq!(change["read_bytes_per_second"]["ssd"], 8192.0);
        assert_eq!(change["wear"]["times_its_size"], 2.5);
        assert_eq!(change["wear"]["times_what_programs_wrote"], 0.5);
        assert_eq!((&change["errors"]["devices"], &change["errors"]["checksums"]), (&json!(3), &json!(2)));
        assert!(change["flash"].is_null());
    }

    #[test]
    fn a_mount_that_began_anew_counts_from_nothing_and_no_reads_have_no_ratio() {
        let began = Instant::now();
        let change = look(1, began, status(2)).since(&look(0, began, status(9)));
        assert_eq!(change["requests_per_second"], 8.0);
        let still = look(1, began, status(2)).since(&look(0, began, status(2)));
        assert!(still["hits"]["ratio"].is_null() && still["requests_per_second"] == 0.0);
    }
}
