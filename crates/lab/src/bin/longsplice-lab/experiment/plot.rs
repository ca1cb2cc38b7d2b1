//! Pictures of figures. What counts is a filled mark; what does not count is left out.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::figure::{Axis, Figure, Point, Series, Source, number};
use super::raster::Raster;

/// Width and height of a picture.
const SIZE: (u32, u32) = (800, 500);

/// Colours of the measured series, then of the others.
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
];
const OTHERS: [RGBColor; 3] = [
    RGBColor(90, 90, 90),
    RGBColor(150, 150, 150),
    RGBColor(190, 150, 60),
];

/// Size of the legend's text: its frame is as wide as plotters' estimate, which is too small for a smaller text.
const LEGEND: u32 = 16;

/// Most numbers at an axis: more of them overlap on a logarithmic one.
const LABELS: usize = 8;

/// Most points of a series that have marks; more of them are a line only.
const MOST_MARKS: usize = 30;

/// Returns the picture as text.
pub(crate) fn svg(figure: &Figure) -> Result<String> {
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, SIZE), figure)?;
    Ok(text)
}

/// Returns the picture as a PNG file.
pub(crate) fn png(figure: &Figure) -> Result<Vec<u8>> {
    let mut raster = Raster::new(SIZE);
    draw(&mut raster, figure)?;
    Ok(raster.encode()?)
}

/// Draws on a backend: the axes are linear or logarithmic, each by itself.
fn draw<B: DrawingBackend>(backend: B, figure: &Figure) -> Result<()> {
    let (x, y) = (range(figure, |point| point.x), range(figure, |point| point.y));
    let from_zero = |range: Range<f64>| 0.0..range.end * 1.1;
    let around = |range: Range<f64>| {
        let start = if range.start > 0.0 {
            range.start
        } else {
            range.end / 1000.0
        };
        start / 1.3..range.end * 1.3
    };
    let [log_x, log_y] = [figure.x, figure.y].map(|axis: Axis| axis.is_logarithmic);
    match (log_x, log_y) {
        (false, false) => chart(backend, figure, from_zero(x), from_zero(y)),
        (true, false) => chart(backend, figure, around(x).log_scale(), from_zero(y)),
        (false, true) => chart(backend, figure, from_zero(x), around(y).log_scale()),
        (true, true) => chart(backend, figure, around(x).log_scale(), around(y).log_scale()),
    }
}

fn chart<B, X, Y>(backend: B, figure: &Figure, x: X, y: Y) -> Result<()>
where
    B: DrawingBackend,
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("cannot draw: {error}");
    let root = backend.into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(figure.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(60)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    let label = |value: &f64| number(*value);
    chart
        .configure_mesh()
        .x_desc(figure.x.label)
        .y_desc(figure.y.label)
        .x_labels(LABELS)
        .y_labels(LABELS)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()
        .map_err(failed)?;
    let (mut ours, mut others) = (COLOURS.iter().cycle(), OTHERS.iter().cycle());
    for series in &figure.series {
        let is_ours = series.source == Source::Measured;
        let colour = if is_ours { ours.next() } else { others.next() };
        let colour = *colour.unwrap_or(&BLACK);
        let points: Vec<(f64, f64)> = shown(series).map(|point| (point.x, point.y)).collect();
        let style = ShapeStyle {
            color: colour.into(),
            filled: is_ours,
            stroke_width: if is_ours { 2 } else { 1 },
        };
        let line = if is_cloud(&points) { &[] } else { points.as_slice() };
        chart
            .draw_series(LineSeries::new(line.iter().copied(), style))
            .map_err(failed)?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        if points.len() <= MOST_MARKS || is_cloud(&points) {
            let marks = points.iter().map(|point| Circle::new(*point, 4, style));
            chart.draw_series(marks).map_err(failed)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", LEGEND))
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .draw()
        .map_err(failed)?;
    root.present().map_err(failed)
}

/// Returns true if the points are no line: they are not in the order of their places.
fn is_cloud(points: &[(f64, f64)]) -> bool {
    !points.is_sorted_by(|(one, _), (next, _)| one < next)
}

/// Returns the points of a series that count.
fn shown(series: &Series) -> impl Iterator<Item = &Point> {
    series.points.iter().filter(|point| point.counts)
}

/// Returns the smallest and the largest value of all points that count.
fn range(figure: &Figure, value: fn(&Point) -> f64) -> Range<f64> {
    let values = figure.series.iter().flat_map(shown).map(value);
    let (mut start, mut end) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (start, end) = (start.min(value), end.max(value));
    }
    if end > 0.0 && start.is_finite() {
        start..end
    } else {
        0.0..1.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::figure::example;
    use super::*;

    #[test]
    fn a_picture_has_the_title_the_axes_and_all_series() {
        for is_logarithmic in [false, true] {
            let mut figure = example();
            figure.x.is_logarithmic = is_logarithmic;
            figure.y.is_logarithmic = is_logarithmic;
            let text = svg(&figure).unwrap();
            for word in ["<svg", "Example", "nodes", "speed-up", "reno", "paper", "</svg>"] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }

    #[test]
    fn a_picture_is_a_png_file() {
        let bytes = png(&example()).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n"));
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), SIZE);
        assert!(pixels.contains(&0), "there is black text");
    }

    #[test]
    fn points_without_order_are_a_cloud() {
        assert!(!is_cloud(&[(1.0, 5.0), (2.0, 1.0)]));
        assert!(is_cloud(&[(1.0, 5.0), (1.0, 1.0)]));
        assert!(!is_cloud(&[]));
    }

    #[test]
    fn what_does_not_count_is_left_out() {
        let figure = example();
        assert_eq!(shown(&figure.series[0]).count(), 1);
        assert_eq!(range(&figure, |point| point.y), 2.0..2.0);
        let mut empty = figure;
        empty.series.clear();
        assert_eq!(range(&empty, |point| point.y), 0.0..1.0);
        assert!(svg(&empty).is_ok());
    }
}
