//! A Zipf trace in libCacheSim's oracleGeneral format.

/// 64-bit linear congruential generator with a mixing step.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0;
        (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 32)
    }

    /// A number from 0 up to 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `requests` accesses to ids 1 to `ids`, the r-th of a random order with probability proportional to 1/r.
pub fn trace(requests: usize, ids: u64, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut order: Vec<u64> = (1..=ids).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=ids)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut bytes = Vec::with_capacity(requests * super::ours::RECORD);
    for at in 0..requests {
        let wanted = random.fraction() * sum;
        let rank = cumulated.partition_point(|&upto| upto < wanted).min(order.len() - 1);
        bytes.extend((at as u32).to_le_bytes());
        bytes.extend(order[rank].to_le_bytes());
        bytes.extend(4096u32.to_le_bytes());
        // Nobody needs the next access; its low byte says which share of accesses are writes (0 to 99).
        bytes.extend((random.next() as i64 >> 20 & 0xffff).rem_euclid(100).to_le_bytes());
    }
    bytes
}
