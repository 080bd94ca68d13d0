//! The status of mounts as Prometheus reads it: text exposition format 0.0.4.
//!
//! One table says where in a status each number lies and what it is called; units are in the names, seconds and bytes. A
//! number that a kind of file system does not have is left out; of a mount that does not answer there is `bimetal_up 0`.

use super::sample::Look;
use crate::error::shown;
use serde_json::Value;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// Labels of one number.
type Labels<'a> = Vec<(&'a str, String)>;

/// A number of a status: its name, what it is, where it lies, a label of its own, by how much it is multiplied, what it means.
struct Number {
    name: &'static str,
    kind: &'static str,
    pointer: &'static str,
    label: Option<(&'static str, &'static str)>,
    scale: f64,
    help: &'static str,
}

const fn plain(name: &'static str, kind: &'static str, pointer: &'static str, help: &'static str) -> Number {
    Number { name, kind, pointer, label: None, scale: 1.0, help }
}

const fn labelled(
    name: &'static str,
    pointer: &'static str,
    label: (&'static str, &'static str),
    help: &'static str,
) -> Number {
    Number { name, kind: COUNTER, pointer, label: Some(label), scale: 1.0, help }
}

const READ: &str = "Bytes read in whole frames, by where they came from.";
const FSYNCS: &str = "Calls of fsync, by the half that answered them.";
const NOT_COPIED: &str = "Bytes read from the disk that were not copied to the SSD, by why.";

/// Of the mount as a whole.
const OF_MOUNT: &[Number] = &[
    plain("bimetal_mounted_seconds", GAUGE, "/front/mounted_seconds", "Time since the mount."),
    plain("bimetal_written_bytes_total", COUNTER, "/front/written_bytes", "Bytes that programs wrote."),
    plain("bimetal_panics_total", COUNTER, "/front/panics", "Requests that met a bug and failed."),
    plain(
        "bimetal_at_risk_bytes",
        GAUGE,
        "/at_risk/bytes",
        "Bytes of data that the disk alone does not have.",
    ),
    plain("bimetal_at_risk_limit_bytes", GAUGE, "/at_risk/limit_bytes", "Most bytes that the disk may lack."),
    plain(
        "bimetal_lag_seconds",
        GAUGE,
        "/at_risk/seconds",
        "Age of the oldest operation that the disk lacks.",
    ),
    plain("bimetal_lag_limit_seconds", GAUGE, "/at_risk/limit_seconds", "How far the disk may be behind."),
    plain(
        "bimetal_operations_total",
        COUNTER,
        "/operations/0",
        "Changing operations, over all mounts of the volume.",
    ),
    plain("bimetal_disk_operations_total", COUNTER, "/operations/1", "Of these, those that the disk has."),
    labelled("bimetal_read_bytes_total", "/counters/read_bytes/0", ("from", "memory"), READ),
    labelled("bimetal_read_bytes_total", "/counters/read_bytes/1", ("from", "ssd"), READ),
    labelled("bimetal_read_bytes_total", "/counters/read_bytes/2", ("from", "disk"), READ),
    labelled("bimetal_fsyncs_total", "/counters/fsync_ssd", ("by", "ssd"), FSYNCS),
    labelled("bimetal_fsyncs_total", "/counters/fsync_disk", ("by", "disk"), FSYNCS),
    plain("bimetal_commits_total", COUNTER, "/counters/cycles", "Commit cycles."),
    plain(
        "bimetal_throttled_total",
        COUNTER,
        "/counters/throttled",
        "Operations that waited for room or for the disk.",
    ),
    plain(
        "bimetal_bad_checksums_total",
        COUNTER,
        "/counters/bad_sums",
        "Reads whose copy on the SSD had a wrong checksum.",
    ),
    plain(
        "bimetal_promoted_bytes_total",
        COUNTER,
        "/counters/promoted_bytes",
        "Bytes copied to the SSD after a read.",
    ),
    labelled(
        "bimetal_not_promoted_bytes_total",
        "/promotion/refused_first_bytes",
        ("why", "first"),
        NOT_COPIED,
    ),
    labelled(
        "bimetal_not_promoted_bytes_total",
        "/promotion/refused_swept_bytes",
        ("why", "swept"),
        NOT_COPIED,
    ),
    labelled(
        "bimetal_not_promoted_bytes_total",
        "/promotion/refused_never_bytes",
        ("why", "never"),
        NOT_COPIED,
    ),
    labelled(
        "bimetal_not_promoted_bytes_total",
        "/promotion/refused_budget_bytes",
        ("why", "budget"),
        NOT_COPIED,
    ),
    labelled(
        "bimetal_not_promoted_bytes_total",
        "/promotion/refused_busy_bytes",
        ("why", "busy"),
        NOT_COPIED,
    ),
    plain("bimetal_log_size_bytes", GAUGE, "/ssd_half/log_bytes", "Size of the SSD's log."),
    plain("bimetal_log_used_bytes", GAUGE, "/ssd_half/log_used_bytes", "Bytes of the SSD's log in use."),
    plain(
        "bimetal_ssd_memory_bytes",
        GAUGE,
        "/ssd_half/memory/used_bytes",
        "Memory that the map of the SSD takes.",
    ),
    plain("bimetal_flash_page_bytes", GAUGE, "/nand/page_bytes", "Size of a page of the flash."),
    plain(
        "bimetal_flash_programs_total",
        COUNTER,
        "/nand/programs",
        "Pages of the flash that were programmed.",
    ),
    plain("bimetal_flash_copies_total", COUNTER, "/nand/copies", "Pages copied by cleaning."),
    plain(
        "bimetal_flash_erases_total",
        COUNTER,
        "/nand/erases",
        "Blocks of the flash that were erased since the mount.",
    ),
    plain("bimetal_flash_failures_total", COUNTER, "/nand/failures", "Requests that the flash failed."),
    plain(
        "bimetal_flash_corrected_bits_total",
        COUNTER,
        "/nand/corrected_bits",
        "Bits that were corrected in reads.",
    ),
    Number { label: Some(("of", "least")), ..plain("bimetal_flash_wear_erases", GAUGE, "/wear/min", WEAR) },
    Number { label: Some(("of", "most")), ..plain("bimetal_flash_wear_erases", GAUGE, "/wear/max", WEAR) },
    plain("bimetal_nvram_size_bytes", GAUGE, "/nvram/size_bytes", "Size of the NVRAM."),
    plain("bimetal_nvram_used_bytes", GAUGE, "/nvram/used_bytes", "Bytes of the NVRAM in use."),
    plain(
        "bimetal_nvram_written_bytes_total",
        COUNTER,
        "/nvram/written_bytes",
        "Bytes written to the NVRAM.",
    ),
];

const WEAR: &str = "Erases of the block that was erased least and most often, over the life of the flash.";

/// Of each section of the SSD.
const OF_SECTION: &[Number] = &[
    plain("bimetal_section_size_bytes", GAUGE, "/size_bytes", "Size of a section of the SSD."),
    plain("bimetal_section_resident_bytes", GAUGE, "/resident_bytes", "Bytes of files in a section."),
    plain("bimetal_section_files", GAUGE, "/inodes", "Files with contents in a section."),
    plain("bimetal_section_hits_total", COUNTER, "/hits", "Reads that the SSD answered alone."),
    plain("bimetal_section_misses_total", COUNTER, "/misses", "Reads that needed the disk."),
    plain(
        "bimetal_section_evicted_files_total",
        COUNTER,
        "/evicted_inodes",
        "Files pushed out of a section.",
    ),
];

const REQUESTS: &str = "Requests to a device, by kind; a durable write is also a write.";
const MOVED: &str = "Bytes read from and written to a device.";
const WAITED: &str =
    "Time spent waiting for a device, by kind of request; its rate is how many are waited for at once.";
const ERRORS: &str = "Requests that a device failed, by kind.";

const fn waited(pointer: &'static str, kind: &'static str) -> Number {
    let name = "bimetal_device_waited_seconds_total";
    Number { name, kind: COUNTER, pointer, label: Some(("kind", kind)), scale: 1e-9, help: WAITED }
}

/// Of each device.
const OF_DEVICE: &[Number] = &[
    plain("bimetal_device_size_bytes", GAUGE, "/size_bytes", "Size of a device."),
    labelled("bimetal_device_requests_total", "/requests/reads", ("kind", "read"), REQUESTS),
    labelled("bimetal_device_requests_total", "/requests/writes", ("kind", "write"), REQUESTS),
    labelled(
        "bimetal_device_requests_total",
        "/requests/durable_writes",
        ("kind", "durable_write"),
        REQUESTS,
    ),
    labelled("bimetal_device_requests_total", "/requests/flushes", ("kind", "flush"), REQUESTS),
    labelled("bimetal_device_bytes_total", "/requests/read_bytes", ("kind", "read"), MOVED),
    labelled("bimetal_device_bytes_total", "/requests/write_bytes", ("kind", "write"), MOVED),
    waited("/waits/read_ns", "read"),
    waited("/waits/write_ns", "write"),
    waited("/waits/durable_ns", "durable"),
    waited("/waits/queued_ns", "queued"),
    labelled("bimetal_device_errors_total", "/errors/reads", ("kind", "read"), ERRORS),
    labelled("bimetal_device_errors_total", "/errors/writes", ("kind", "write"), ERRORS),
    labelled("bimetal_device_errors_total", "/errors/flushes", ("kind", "flush"), ERRORS),
    labelled("bimetal_device_errors_total", "/errors/queued", ("kind", "queued"), ERRORS),
    plain(
        "bimetal_device_failed_discards_total",
        COUNTER,
        "/failed_discards",
        "Discards that a device failed, which harms nothing.",
    ),
];

/// Numbers of one name.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    lines: String,
}

/// All families, in the order in which they came up.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(
        &mut self,
        name: &'static str,
        kind: &'static str,
        help: &'static str,
        labels: &Labels,
        value: f64,
    ) {
        let at = self.0.iter().position(|family| family.name == name).unwrap_or_else(|| {
            self.0.push(Family { name, kind, help, lines: String::new() });
            self.0.len() - 1
        });
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(self.0[at].lines, "{name}{{{}}} {value}", labels.join(","));
    }

    /// The numbers of a table that lie in `part` of a status.
    fn table(&mut self, table: &[Number], part: &Value, labels: &Labels) {
        for number in table {
            let Some(value) = part.pointer(number.pointer).and_then(Value::as_f64) else { continue };
            let mut labels = labels.clone();
            labels.extend(number.label.map(|(label, value)| (label, value.to_string())));
            self.add(number.name, number.kind, number.help, &labels, value * number.scale);
        }
    }

    fn mount(&mut self, look: &Look, labels: &Labels) {
        let status = look.status();
        let with = |label, value: &str| [&labels[..], &[(label, value.to_string())]].concat();
        let mut info = with("type", status["type"].as_str().unwrap_or("nfhybrid"));
        info.push(("version", status["front"]["version"].as_str().unwrap_or("?").into()));
        self.add("bimetal_info", GAUGE, "What is mounted; always 1.", &info, 1.0);
        let state = status["health"]["state"].as_str().unwrap_or("?");
        for known in ["ok", "degraded", "stopped"] {
            let is = f64::from(u8::from(state == known));
            self.add(
                "bimetal_health",
                GAUGE,
                "1 for the state that the mount is in.",
                &with("state", known),
                is,
            );
        }
        let (size, used) = look.space();
        self.add("bimetal_space_size_bytes", GAUGE, "Size of the file system.", labels, size as f64);
        self.add("bimetal_space_used_bytes", GAUGE, "Bytes of it in use.", labels, used as f64);
        for (request, count) in status["front"]["requests"].as_object().into_iter().flatten() {
            let count = count.as_f64().unwrap_or(0.0);
            let labels = with("request", request);
            self.add("bimetal_requests_total", COUNTER, "Requests of the kernel, by kind.", &labels, count);
        }
        self.table(OF_MOUNT, status, labels);
        for section in status["ssd_half"]["sections"].as_array().into_iter().flatten() {
            self.table(OF_SECTION, section, &with("section", section["name"].as_str().unwrap_or("?")));
        }
        for (device, of) in status["devices"].as_object().into_iter().flatten() {
            self.table(OF_DEVICE, of, &with("device", device));
        }
    }
}

/// What the looks at mounts say, one that did not answer included.
pub(super) fn exposition(looks: Vec<(&Path, Option<&Look>)>) -> String {
    let mut families = Families::default();
    for (place, look) in &looks {
        let labels = vec![("mount", shown(place.as_os_str().as_bytes()))];
        let up = f64::from(u8::from(look.is_some()));
        families.add("bimetal_up", GAUGE, "Whether the mount answers.", &labels, up);
        if let Some(look) = look {
            families.mount(look, &labels);
        }
    }
    let text =
        |Family { name, kind, help, lines }| format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    families.0.into_iter().map(text).collect()
}

/// A label's value: backslash, quote and line end as the format wants them.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_kind_and_one_help_and_counters_end_so() {
        let mut seen = std::collections::BTreeMap::new();
        for number in OF_MOUNT.iter().chain(OF_SECTION).chain(OF_DEVICE) {
            let told = (number.kind, number.help);
            assert_eq!(*seen.entry(number.name).or_insert(told), told, "{}", number.name);
            assert_eq!(number.name.ends_with("_total"), number.kind == COUNTER, "{}", number.name);
        }
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
