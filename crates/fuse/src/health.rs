//! Whether a mount is well, from its status.
//!
//! `ok`, `degraded` (it works, and something below it does not) or `stopped` (it answers with errors only). Each
//! reason says what happened how often and what to do.

use bimetal_base::units::show_size;
use serde_json::{Map, Value, json};

/// The health that a status tells of, as `state` and `why`.
pub fn health(status: &Map<String, Value>) -> Value {
    let mut why: Vec<String> = Vec::new();
    let stopped = status.get("failure").and_then(Value::as_str);
    why.extend(stopped.map(|reason| format!("it has stopped: {reason}")));
    let lost = status.get("ssd_lost").and_then(Value::as_str);
    why.extend(lost.map(|reason| format!("the SSD is lost: {reason}")));
    for (role, device) in status.get("devices").and_then(Value::as_object).into_iter().flatten() {
        why.extend(device_errors(role, device));
    }
    let count = |name: &str| status.get("counters").and_then(|all| all[name].as_u64()).unwrap_or(0);
    let bad = count("bad_sums");
    if bad > 0 {
        why.push(format!(
            "{bad} reads met copies on the SSD whose checksums were wrong and were served by the disk: the SSD may be dying; see smartctl -a, and run bimetal scrub"
        ));
    }
    let scrubbed = count("scrub_bad");
    if scrubbed > 0 {
        why.push(format!(
            "scrubbing found {scrubbed} bad blocks among {} on the SSD",
            show_size(count("scrubbed_bytes"))
        ));
    }
    let state = match (stopped, why.is_empty()) {
        (Some(_), _) => "stopped",
        (None, false) => "degraded",
        (None, true) => "ok",
    };
    json!({ "state": state, "why": why })
}

fn device_errors(role: &str, device: &Value) -> Option<String> {
    let errors = &device["errors"];
    let count = |name: &str| errors[name].as_u64().unwrap_or(0);
    let kinds = ["reads", "writes", "flushes", "queued"];
    let all: u64 = kinds.iter().map(|kind| count(kind)).sum();
    let list = kinds.iter().filter(|kind| count(kind) > 0).map(|kind| format!("{} {kind}", count(kind)));
    let list = list.collect::<Vec<_>>().join(", ");
    let last = device["last_error"].as_str().unwrap_or("");
    (all > 0).then(|| format!("the device of the {role} half failed {all} requests ({list}), the last with: {last}; see dmesg and smartctl -a"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: Value) -> Value {
        health(status.as_object().unwrap())
    }

    #[test]
    fn what_happened_below_a_mount_makes_it_degraded_and_is_named() {
        assert_eq!(of(json!({"failure": null, "counters": {"bad_sums": 0}}))["state"], "ok");
        let bad = of(json!({"counters": {"bad_sums": 734}}));
        assert!(bad["state"] == "degraded" && bad["why"][0].as_str().unwrap().starts_with("734 reads"));
        let device = json!({"errors": {"reads": 2, "flushes": 1}, "last_error": "EIO"});
        let failed = of(json!({"devices": {"ssd": device}}));
        let why = failed["why"][0].as_str().unwrap();
        assert!(why.contains("failed 3 requests (2 reads, 1 flushes)") && why.contains("EIO"), "{why}");
        assert_eq!(of(json!({"failure": "the disk"}))["state"], "stopped");
        assert_eq!(of(json!({"ssd_lost": "EIO"}))["state"], "degraded");
    }
}
