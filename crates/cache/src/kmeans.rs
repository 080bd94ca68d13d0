//! Lloyd's k-means on numbers, exactly.
//!
//! In one dimension a cluster is a run of the sorted numbers, so that an assignment is a set of cuts: the number
//! x belongs to the lower of two neighbouring means a < b while 2x ≤ a + b (a tie goes to the lower mean). Means
//! are kept as sum and count, a cut as the highest x for which this holds; nothing is rounded.
//!
//! Steps: assign every number to its nearest mean; drop clusters without numbers; take the means anew; stop when
//! none has changed. Source: Lloyd 1982, as used by Ramasamy and Karantharaj.
//! Cost: O(n + k log n) for a first pass over n numbers and k means; later, O(log n) for each mean that changed.

/// Sum and count of the numbers of a cluster; the mean is their quotient.
#[derive(Clone, Copy, Debug)]
struct Mean {
    sum: u128,
    count: u64,
}

impl PartialEq for Mean {
    fn eq(&self, other: &Mean) -> bool {
        if self.count == other.count {
            return self.sum == other.sum;
        }
        self.sum * u128::from(other.count) == other.sum * u128::from(self.count)
    }
}

impl Mean {
    /// The highest number that is nearer to this mean than to the higher mean `above`, or as near.
    fn keeps_to(&self, above: &Mean) -> u64 {
        let (n, m) = (u128::from(self.count), u128::from(above.count));
        let (over, under) = (self.sum * m + above.sum * n, 2 * n * m);
        match (u64::try_from(over), u64::try_from(under)) {
            // Three times as fast as dividing 128 bits.
            (Ok(over), Ok(under)) => over / under,
            _ => (over / under) as u64,
        }
    }
}

/// A clustering of sorted numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clustering {
    /// Where each cluster starts in the numbers; the first is 0.
    pub starts: Vec<usize>,
    /// How many numbers there are.
    pub len: usize,
    /// How many iterations it took, the one that changed nothing included.
    pub iterations: u32,
}

impl Clustering {
    /// The clusters as ranges of the numbers, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let ends = self.starts.iter().skip(1).copied().chain([self.len]);
        self.starts.iter().copied().zip(ends).map(|(start, end)| start..end)
    }

    /// The cluster that holds number `at`.
    pub fn range_of(&self, at: usize) -> std::ops::Range<usize> {
        let cluster = self.starts.partition_point(|&start| start <= at) - 1;
        self.starts[cluster]..self.starts.get(cluster + 1).copied().unwrap_or(self.len)
    }
}

/// Clusters `numbers`, which are ascending, starting from the means `seeds`, which are ascending too.
///
/// Numbers are below 2⁶³ and fewer than 2³¹, so that no product overflows. Without seeds there is one cluster.
pub fn lloyd(numbers: &[u64], seeds: &[u64]) -> Clustering {
    let mut lloyd = Lloyd::default();
    lloyd.start(numbers, seeds);
    let mut iterations = 1;
    while lloyd.step(numbers) {
        iterations += 1;
    }
    Clustering { starts: lloyd.starts, len: numbers.len(), iterations }
}

/// The iteration step by step, with buffers that are used again.
#[derive(Default)]
pub struct Lloyd {
    sums: Vec<u128>,
    clusters: Vec<Cluster>,
    last: Vec<Cluster>,
    starts: Vec<usize>,
}

/// A cluster while the iteration goes on.
#[derive(Clone, Copy)]
struct Cluster {
    mean: Mean,
    /// Which cluster of the step before this one was.
    origin: usize,
    /// One past its last number.
    end: usize,
    /// The last step left its mean as it was.
    is_steady: bool,
}

impl Lloyd {
    /// Starts over with other numbers and means.
    pub fn start(&mut self, numbers: &[u64], seeds: &[u64]) {
        let seed = |(origin, &seed): (usize, &u64)| {
            let mean = Mean { sum: seed.into(), count: 1 };
            Cluster { mean, origin, end: 0, is_steady: false }
        };
        self.clusters.clear();
        self.clusters.extend(seeds.iter().enumerate().map(seed));
        if seeds.is_empty() && !numbers.is_empty() {
            self.clusters.push(seed((0, &numbers[0])));
        }
        self.sums.clear();
        self.sums.push(0);
        let mut sum = 0u128;
        self.sums.extend(numbers.iter().map(|&number| {
            sum += u128::from(number);
            sum
        }));
    }

    /// One iteration; whether any mean changed.
    pub fn step(&mut self, numbers: &[u64]) -> bool {
        std::mem::swap(&mut self.clusters, &mut self.last);
        self.clusters.clear();
        self.starts.clear();
        let mut from = 0;
        for (at, old) in self.last.iter().enumerate() {
            let end = match self.last.get(at + 1) {
                None => numbers.len(),
                Some(above) if old.is_steady && above.is_steady && above.origin == old.origin + 1 => old.end,
                Some(above) => from + upto(&numbers[from..], old.mean.keeps_to(&above.mean)),
            };
            if end > from {
                let mean = Mean { sum: self.sums[end] - self.sums[from], count: (end - from) as u64 };
                self.starts.push(from);
                self.clusters.push(Cluster { mean, origin: at, end, is_steady: mean == old.mean });
            }
            from = end;
        }
        self.clusters.len() != self.last.len() || self.clusters.iter().any(|cluster| !cluster.is_steady)
    }

    /// Where each cluster starts in the numbers, after the last step.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// How many clusters of the step before lie below `origin` and still have numbers.
    pub fn survivors_below(&self, origin: usize) -> usize {
        self.clusters.partition_point(|cluster| cluster.origin < origin)
    }

    /// Whether the last step left the means of clusters `low` to `high` as they were.
    pub fn are_steady(&self, low: usize, high: usize) -> bool {
        self.clusters[low..=high].iter().all(|cluster| cluster.is_steady)
    }
}

/// How many of the ascending `numbers` are at most `limit`, in steps that double: the answer is mostly near the front.
fn upto(numbers: &[u64], limit: u64) -> usize {
    let mut step = 4;
    while step < numbers.len() && numbers[step] <= limit {
        step *= 2;
    }
    let from = if step == 4 { 0 } else { step / 2 };
    let to = step.min(numbers.len());
    from + numbers[from..to].partition_point(|&number| number <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's example, sorted.
    const EXAMPLE: [u64; 16] = [1, 2, 3, 5, 8, 11, 12, 13, 25, 45, 52, 60, 432, 489, 571, 834];

    fn first_of_blocks(block: u64) -> Vec<u64> {
        let mut seeds: Vec<u64> = Vec::new();
        for page in EXAMPLE {
            if seeds.last().is_none_or(|last| last / block != page / block) {
                seeds.push(page);
            }
        }
        seeds
    }

    fn groups(clustering: &Clustering) -> Vec<Vec<u64>> {
        clustering.ranges().map(|range| EXAMPLE[range].to_vec()).collect()
    }

    /// Sum of squared distances to the means.
    fn spread(clustering: &Clustering) -> f64 {
        let one = |group: Vec<u64>| {
            let mean = group.iter().sum::<u64>() as f64 / group.len() as f64;
            group.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>()
        };
        groups(clustering).into_iter().map(one).sum()
    }

    #[test]
    fn the_two_printed_clusterings_come_out() {
        let low = EXAMPLE[..12].to_vec();
        let two = lloyd(&EXAMPLE, &first_of_blocks(512));
        assert_eq!(groups(&two), [low.clone(), vec![432, 489, 571, 834]]);
        assert_eq!((spread(&two), two.iterations), (99583.25, 2));
        let three = lloyd(&EXAMPLE, &first_of_blocks(320));
        assert_eq!(groups(&three), [low, vec![432, 489, 571], vec![834]]);
        assert!((spread(&three) - 14_574.916_666).abs() < 1e-3);
        assert_eq!(three.iterations, 2);
    }

    #[test]
    fn the_printed_clusterings_come_out_for_the_stated_block_sizes() {
        for block in 418..=834 {
            assert_eq!(lloyd(&EXAMPLE, &first_of_blocks(block)).starts, [0, 12], "block of {block}");
        }
        for block in (143..=144).chain(191..=216).chain(279..=417) {
            assert_eq!(lloyd(&EXAMPLE, &first_of_blocks(block)).starts, [0, 12, 15], "block of {block}");
        }
    }

    #[test]
    fn smaller_blocks_give_more_clusters() {
        let four = lloyd(&EXAMPLE, &first_of_blocks(128));
        assert_eq!((four.starts.clone(), spread(&four), four.iterations), (vec![0, 12, 14, 15], 6434.75, 2));
        let five = lloyd(&EXAMPLE, &first_of_blocks(64));
        assert_eq!(
            (five.starts.clone(), spread(&five), five.iterations),
            (vec![0, 12, 13, 14, 15], 4810.25, 2)
        );
    }

    #[test]
    fn other_seeds_take_longer_or_find_a_local_optimum() {
        let two = lloyd(&EXAMPLE, &[1, 3]);
        assert_eq!((two.starts, two.iterations), (vec![0, 12], 3));
        let three = lloyd(&EXAMPLE, &[1, 3, 5]);
        assert_eq!((three.starts.clone(), three.iterations), (vec![0, 9, 12], 6));
        assert!((spread(&three) - 95_336.555_555).abs() < 1e-3);
    }

    #[test]
    fn any_two_seeds_find_the_printed_pair_and_three_may_leave_a_cluster_empty() {
        let mut printed = 0;
        let mut empty = 0;
        for (at, &a) in EXAMPLE.iter().enumerate() {
            for (next, &b) in EXAMPLE.iter().enumerate().skip(at + 1) {
                assert_eq!(lloyd(&EXAMPLE, &[a, b]).starts, [0, 12]);
                for &c in &EXAMPLE[next + 1..] {
                    let three = lloyd(&EXAMPLE, &[a, b, c]);
                    printed += u32::from(three.starts == [0, 12, 15]);
                    empty += u32::from(three.starts.len() < 3);
                }
            }
        }
        assert_eq!((printed, empty), (78, 28));
    }

    #[test]
    fn nothing_and_one_number_are_clustered_too() {
        assert_eq!(lloyd(&[], &[]).starts, [0usize; 0]);
        assert_eq!(lloyd(&[7], &[7]).starts, [0]);
        assert_eq!(lloyd(&[7], &[]).starts, [0]);
    }
}
