//! Plot: bars for processing, and beside them for the throughput that follows from it.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::tables::{Cost, Costs, RATIOS};

const FONT: (&str, u32) = ("sans-serif", 12);
/// Part of a group that its bars take.
const BARS: f64 = 0.8;
/// Room below the bars for the legend, in groups.
const LEGEND: f64 = 0.8;
/// Room at the end of a bar for its number.
const MARGIN: f64 = 1.12;

/// Bars of one unit, in groups.
struct Panel<'a> {
    title: &'a str,
    unit: &'a str,
    /// Labels of the bars of a group, and their colors.
    series: &'a [(&'a str, RGBColor)],
    /// Names, and a value for each series.
    groups: Vec<(&'a str, Vec<f64>)>,
}

/// Draws the plot.
pub(super) fn plot(costs: &Costs) -> Result<String> {
    let mut out = String::new();
    let page = SVGBackend::with_string(&mut out, (1240, 470)).into_drawing_area();
    page.fill(&WHITE)?;
    let title = "What a segment costs the machine in the middle, offloads off";
    let (left, right) = page.titled(title, ("sans-serif", 16))?.split_horizontally(610);
    let groups =
        |values: &dyn Fn(&Cost) -> Vec<f64>| costs.0.iter().map(|cost| (cost.name, values(cost))).collect();
    Panel {
        title: "Processing of a segment",
        unit: "µs of one core",
        series: &[
            ("1 byte", RGBColor(143, 179, 224)),
            ("1,460 bytes", RGBColor(31, 78, 156)),
        ],
        groups: groups(&|cost| cost.middle.into()),
    }
    .draw(&left)?;
    Panel {
        title: "Estimated maximum throughput, by segments for each acknowledgement",
        unit: "MB/s of one core",
        series: &[
            ("3:1", RGBColor(31, 122, 58)),
            ("2:1", RGBColor(87, 176, 114)),
            ("1:1", RGBColor(169, 216, 182)),
        ],
        groups: groups(&|cost| RATIOS.map(|ratio| cost.most(ratio)).into()),
    }
    .draw(&right)?;
    page.present()?;
    drop((left, right, page));
    Ok(out)
}

impl Panel<'_> {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        let values = self.groups.iter().flat_map(|(_, values)| values);
        let most = values.fold(1e-9f64, |most, value| most.max(*value)) * MARGIN;
        let groups = self.groups.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 13, FontStyle::Bold))
            .margin(10)
            .x_label_area_size(46)
            .y_label_area_size(190)
            .build_cartesian_2d(0.0..most, -LEGEND..groups)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(221, 221, 221))
            .x_labels(6)
            .x_label_style(FONT)
            .x_label_formatter(&f64::to_string)
            .x_desc(self.unit)
            .draw()?;
        let beside = |text: String, at: (f64, f64), offset: i32, side: HPos| {
            let style = FONT.into_text_style(area).pos(Pos::new(side, VPos::Center));
            EmptyElement::at(at) + Text::new(text, (offset, 0), style)
        };
        let thick = BARS / self.series.len() as f64;
        // Groups go down from the top; bars go down within their group.
        let top = |group: usize, bar: f64| groups - group as f64 - (1.0 - BARS) / 2.0 - bar * thick;
        let names = self.groups.iter().enumerate();
        chart.draw_series(names.map(|(group, (name, _))| {
            beside(
                (*name).to_owned(),
                (0.0, groups - group as f64 - 0.5),
                -8,
                HPos::Right,
            )
        }))?;
        let digits = if most > 100.0 { 0 } else { 2 };
        for (bar, (name, colour)) in self.series.iter().enumerate() {
            let of_it = self.groups.iter().enumerate();
            let of_it: Vec<_> = of_it
                .map(|(group, (_, values))| (values[bar], top(group, bar as f64)))
                .collect();
            let bars = of_it.iter().map(|&(value, top)| {
                Rectangle::new([(0.0, top), (value, top - thick * 0.95)], colour.filled())
            });
            chart
                .draw_series(bars)?
                .label(*name)
                .legend(|(x, y)| Rectangle::new([(x, y - 6), (x + 12, y + 6)], colour.filled()));
            chart.draw_series(of_it.iter().map(|&(value, top)| {
                beside(
                    format!("{value:.digits$}"),
                    (value, top - thick / 2.0),
                    4,
                    HPos::Left,
                )
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE)
            .label_font(FONT)
            .draw()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::of_the_papers;
    use super::plot;

    #[test]
    fn every_bar_is_drawn_with_its_number() {
        let picture = plot(&of_the_papers()).unwrap();
        // Five configurations with two bars and three, and their legends with a ground each; one is the white ground.
        assert_eq!(
            picture.matches("<rect").count(),
            1 + 5 * (2 + 3) + 2 + 3 + 2,
            "{picture}"
        );
        assert!(picture.contains("101.10") || picture.contains("101"), "{picture}");
        assert!(picture.ends_with("</svg>\n") && !picture.contains("NaN"));
    }
}
