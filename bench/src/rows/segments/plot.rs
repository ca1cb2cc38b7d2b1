//! Plot: bars for processing, and beside them for the throughput that follows from it.

use std::fmt::Write;

use super::tables::{Costs, RATIOS};
use crate::svg::{self, show, text, ticks};

const WIDTH: f64 = 1240.0;
const HEIGHT: f64 = 470.0;
/// Width of the space for names, width of a panel's bars, and position of the second panel.
const NAMES: f64 = 210.0;
const BARS: f64 = 370.0;
const SECOND: f64 = 640.0;
/// Space above the bars, and below them.
const ABOVE: f64 = 84.0;
const BELOW: f64 = 50.0;
/// Room at the end of a bar for its number.
const MARGIN: f64 = 1.12;

/// Bars of one unit, in groups.
struct Panel<'a> {
    title: &'a str,
    unit: &'a str,
    x: f64,
    /// Labels of the bars of a group, and their colors.
    series: &'a [(&'a str, &'a str)],
    /// Names, and a value for each series.
    groups: Vec<(&'a str, Vec<f64>)>,
}

/// Draws the plot.
pub(super) fn plot(costs: &Costs) -> String {
    let mut out = svg::begin(WIDTH, HEIGHT);
    svg::title(
        &mut out,
        (20.0, 26.0),
        "What a segment costs the machine in the middle, offloads off",
    );
    let groups = |values: &dyn Fn(&super::tables::Cost) -> Vec<f64>| {
        costs.0.iter().map(|cost| (cost.name, values(cost))).collect()
    };
    Panel {
        title: "Processing of a segment",
        unit: "µs of one core",
        x: 20.0,
        series: &[("1 byte", "#8fb3e0"), ("1,460 bytes", "#1f4e9c")],
        groups: groups(&|cost| cost.middle.into()),
    }
    .draw(&mut out);
    Panel {
        title: "Estimated maximum throughput, by segments for each acknowledgement",
        unit: "MB/s of one core",
        x: SECOND,
        series: &[("3:1", "#1f7a3a"), ("2:1", "#57b072"), ("1:1", "#a9d8b6")],
        groups: groups(&|cost| RATIOS.map(|ratio| cost.most(ratio)).into()),
    }
    .draw(&mut out);
    out + "</svg>\n"
}

impl Panel<'_> {
    fn draw(&self, out: &mut String) {
        let left = self.x + NAMES;
        let values = self.groups.iter().flat_map(|(_, values)| values);
        let most = values.fold(0.0f64, |most, value| most.max(*value)) * MARGIN;
        let wide = |value: f64| if most > 0.0 { value / most * BARS } else { 0.0 };
        let bottom = HEIGHT - BELOW;
        self.head(out, left);
        for tick in ticks(&(0.0..most)) {
            let x = left + wide(tick);
            let _ = writeln!(out, "<path d=\"M{x:.1} {ABOVE}V{bottom:.1}\" stroke=\"#ddd\"/>");
            text(out, (x, bottom + 16.0), "middle", &show(tick));
        }
        text(out, (left + BARS / 2.0, bottom + 34.0), "middle", self.unit);
        let group = (bottom - ABOVE) / self.groups.len().max(1) as f64;
        let bar = group * 0.8 / self.series.len() as f64;
        for (number, (name, values)) in self.groups.iter().enumerate() {
            let top = ABOVE + group * (number as f64 + 0.1);
            text(out, (left - 8.0, top + group * 0.4 + 4.0), "end", name);
            for ((value, (_, colour)), at) in values.iter().zip(self.series).zip(0u8..) {
                let y = top + bar * f64::from(at);
                let _ = writeln!(
                    out,
                    "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                    wide(*value),
                    bar - 1.0
                );
                let digits = if most > 100.0 { 0 } else { 2 };
                let number = format!("{value:.digits$}");
                text(
                    out,
                    (left + wide(*value) + 4.0, y + bar / 2.0 + 4.0),
                    "start",
                    &number,
                );
            }
        }
    }

    /// Draws title and legend.
    fn head(&self, out: &mut String, left: f64) {
        let title = format!("<tspan font-weight=\"bold\">{}</tspan>", self.title);
        text(out, (self.x, 52.0), "start", &title);
        for ((name, colour), at) in self.series.iter().zip(0u8..) {
            let x = left + 110.0 * f64::from(at);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"62\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
            );
            text(out, (x + 17.0, 72.0), "start", name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::of_the_papers;
    use super::plot;

    #[test]
    fn every_bar_is_drawn_with_its_number() {
        let picture = plot(&of_the_papers());
        // Five configurations with two bars and three, and their legends; one is the white ground.
        assert_eq!(picture.matches("<rect").count(), 1 + 5 * (2 + 3) + 2 + 3);
        assert!(
            picture.contains(">101.10<") || picture.contains(">101<"),
            "{picture}"
        );
        assert!(picture.ends_with("</svg>\n") && !picture.contains("NaN"));
    }
}
