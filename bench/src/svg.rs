//! Parts of SVG pictures. SVG is text: a few dozen lines replace the dependency on a plotting library.

use std::fmt::Write;
use std::ops::Range;

/// Returns the beginning of a picture; `</svg>` ends it.
pub(crate) fn begin(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// Writes its title.
pub(crate) fn title(out: &mut String, at: (f64, f64), what: &str) {
    text(
        out,
        at,
        "start",
        &format!("<tspan font-size=\"16\">{what}</tspan>"),
    );
}

/// Writes `what`; `anchor` is its alignment to the position.
pub(crate) fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, what: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>"
    );
}

/// Returns about five round numbers in a range.
pub(crate) fn ticks(range: &Range<f64>) -> Vec<f64> {
    let rough = (range.end - range.start) / 5.0;
    if rough <= 0.0 || !rough.is_finite() {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let first = (range.start / step).ceil() as i64;
    let last = (range.end / step).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Formats a number with as many digits as it needs.
pub(crate) fn show(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let shown = |range| ticks(&range).into_iter().map(show).collect::<Vec<_>>();
        assert_eq!(shown(0.0..1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(shown(12.3..13.1), ["12.4", "12.6", "12.8", "13"]);
        assert!(ticks(&(1.0..1.0)).is_empty());
    }
}
