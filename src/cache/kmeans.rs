//! Lloyd's k-means on numbers, exactly.
//!
//! In one dimension a cluster is a run of the sorted numbers, so that an assignment is a set of cuts: the number
//! x belongs to the lower of two neighbouring means a < b while 2x ≤ a + b (a tie goes to the lower mean). Means
//! are kept as sum and count and compared by cross-multiplication; nothing is rounded.
//!
//! Steps: assign every number to its nearest mean; drop clusters without numbers; take the means anew; stop when
//! none has changed. Source: Lloyd 1982, as used by Ramasamy and Karantharaj.
//! Cost: O(n + k log n) for a first pass over n numbers, O(k log n) for each iteration.

/// Sum and count of the numbers of a cluster; the mean is their quotient.
#[derive(Clone, Copy, Debug)]
struct Mean {
    sum: u128,
    count: u64,
}

impl PartialEq for Mean {
    fn eq(&self, other: &Mean) -> bool {
        self.sum * u128::from(other.count) == other.sum * u128::from(self.count)
    }
}

impl Mean {
    /// Whether `x` is nearer to this mean than to the higher mean `above`, or as near.
    fn keeps(&self, x: u64, above: &Mean) -> bool {
        let (n, m) = (u128::from(self.count), u128::from(above.count));
        2 * u128::from(x) * n * m <= self.sum * m + above.sum * n
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
    let mut means: Vec<Mean> = seeds.iter().map(|&seed| Mean { sum: seed.into(), count: 1 }).collect();
    let sums: Vec<u128> = std::iter::once(0)
        .chain(numbers.iter().scan(0u128, |sum, &number| {
            *sum += u128::from(number);
            Some(*sum)
        }))
        .collect();
    let mut iterations = 0;
    loop {
        iterations += 1;
        let starts = assign(numbers, &means);
        let ends = starts.iter().skip(1).copied().chain([numbers.len()]);
        let moved: Vec<Mean> = starts
            .iter()
            .zip(ends)
            .map(|(&start, end)| Mean { sum: sums[end] - sums[start], count: (end - start) as u64 })
            .collect();
        if moved == means || moved.len() < 2 {
            return Clustering { starts, len: numbers.len(), iterations };
        }
        means = moved;
    }
}

/// Where the numbers of each mean start; means without numbers are left out.
fn assign(numbers: &[u64], means: &[Mean]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(means.len());
    let mut from = 0;
    for (at, mean) in means.iter().enumerate() {
        let end = match means.get(at + 1) {
            Some(above) => from + numbers[from..].partition_point(|&number| mean.keeps(number, above)),
            None => numbers.len(),
        };
        if end > from {
            starts.push(from);
        }
        from = end;
    }
    if starts.is_empty() && !numbers.is_empty() {
        starts.push(0);
    }
    starts
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
        assert!((spread(&three) - 14574.916_666).abs() < 1e-3);
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
        assert!((spread(&three) - 95336.555_555).abs() < 1e-3);
    }

    #[test]
    fn any_two_seeds_find_the_printed_pair_and_three_may_leave_a_cluster_empty() {
        let mut printed = 0;
        let mut empty = 0;
        for a in 0..16 {
            for b in a + 1..16 {
                assert_eq!(lloyd(&EXAMPLE, &[EXAMPLE[a], EXAMPLE[b]]).starts, [0, 12]);
                for c in b + 1..16 {
                    let three = lloyd(&EXAMPLE, &[EXAMPLE[a], EXAMPLE[b], EXAMPLE[c]]);
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
