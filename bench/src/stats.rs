//! Computes medians and spreads.

/// Summary of a number of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// Number of samples.
    pub(crate) n: usize,
    /// Least value.
    pub(crate) min: f64,
    /// 10th percentile.
    pub(crate) p10: f64,
    /// Median.
    pub(crate) median: f64,
    /// 90th percentile.
    pub(crate) p90: f64,
    /// 99th percentile.
    pub(crate) p99: f64,
    /// Greatest value.
    pub(crate) max: f64,
}

impl Spread {
    /// Summarizes `samples`; `None` without a sample.
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Spread {
            n: sorted.len(),
            min,
            p10: quantile(&sorted, 0.1),
            median: quantile(&sorted, 0.5),
            p90: quantile(&sorted, 0.9),
            p99: quantile(&sorted, 0.99),
            max,
        })
    }

    /// Formats the median and its surroundings for a reader.
    pub(crate) fn show(&self) -> String {
        format!("{:.2} ({:.2}–{:.2})", self.median, self.p10, self.p90)
    }
}

/// Returns the value below which a `fraction` of the sorted samples lies, interpolated between neighbors.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let at = fraction * (sorted.len() - 1) as f64;
    // Indices are small and not negative: `as` is exact.
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - at.floor())
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn quantiles_are_between_the_samples() {
        let spread = Spread::of([3.0, 1.0, 2.0, 5.0, 4.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 3.0, 5.0));
        assert!((spread.p10 - 1.4).abs() < 1e-9 && (spread.p90 - 4.6).abs() < 1e-9);
        assert_eq!(Spread::of([7.0]).unwrap().p99, 7.0);
        assert_eq!(Spread::of([]), None);
    }
}
