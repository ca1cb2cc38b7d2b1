//! Writes families of metrics from values that were counted elsewhere.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType, TypedMetric, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram, info::Info,
    },
};

/// Returns a value without labels.
pub(super) fn alone<T>(value: T) -> [([(&'static str, &'static str); 0], T); 1] {
    [([], value)]
}

/// Writer of metrics.
pub(super) struct Out<'a>(DescriptorEncoder<'a>);

impl<'a> Out<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Out<'a> {
        Out(encoder)
    }

    fn family<const N: usize, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        of: MetricType,
        values: impl IntoIterator<Item = ([(&'static str, impl AsRef<str>); N], M)>,
    ) -> fmt::Result {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, None, of)?;
        for (labels, value) in values {
            if labels.is_empty() {
                return value.encode(encoder);
            }
            let labels = labels.each_ref().map(|(key, value)| (*key, value.as_ref()));
            value.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a value that only grows; `_total` is added to the name.
    pub(super) fn counter<const N: usize, V>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, impl AsRef<str>); N], V)>,
    ) -> fmt::Result
    where
        ConstCounter<V>: EncodeMetric,
    {
        let values = values
            .into_iter()
            .map(|(labels, n)| (labels, ConstCounter::new(n)));
        self.family(name, help, MetricType::Counter, values)
    }

    /// Writes a value that goes up and down.
    pub(super) fn gauge<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, impl AsRef<str>); N], f64)>,
    ) -> fmt::Result {
        let values = values.into_iter().map(|(labels, n)| (labels, ConstGauge::new(n)));
        self.family(name, help, ConstGauge::<f64>::TYPE, values)
    }

    /// Writes a distribution.
    pub(super) fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, impl AsRef<str>); N], Histogram)>,
    ) -> fmt::Result {
        self.family(name, help, Histogram::TYPE, values)
    }

    /// Writes constant labels; `_info` is added to the name.
    pub(super) fn info(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&'static str, &'static str)],
    ) -> fmt::Result {
        let info = Info::new(labels.to_vec());
        let encoder = self.0.encode_descriptor(name, help, None, info.metric_type())?;
        info.encode(encoder)
    }
}
