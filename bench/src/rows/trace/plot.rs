//! Plots time-sequence diagrams.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::lines::{Lines, Order};
use super::record::{Marks, Record};

const WIDTH: i32 = 1240;
/// Heights of the title, of the panel with the whole transfer, of a row of the others, and of the legend.
const TITLE: i32 = 30;
const OVERVIEW: i32 = 330;
const ZOOM: i32 = 440;
const LEGEND: i32 = 30;
/// Largest number of data segments in the panel with the whole transfer.
const MOST_POINTS: usize = 4000;

const FONT: (&str, u32) = ("sans-serif", 12);
const DATA: RGBColor = RGBColor(31, 78, 156);
const ACK: RGBColor = RGBColor(42, 157, 74);
const EDGE: RGBColor = RGBColor(199, 125, 30);
const LATE: RGBColor = RGBColor(138, 63, 196);
const AGAIN: RGBColor = RGBColor(221, 17, 17);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the plot.
pub(super) fn plot(record: &Record, depth: &str) -> Result<String> {
    let marks = &record.marks;
    let mut out = String::new();
    let height = TITLE + OVERVIEW + 2 * ZOOM + LEGEND;
    let page = SVGBackend::with_string(&mut out, (WIDTH as u32, height as u32)).into_drawing_area();
    page.fill(&WHITE)?;
    let title = format!("Sequence numbers of a busy connection through a splice and the way back ({depth})");
    page.draw(&Text::new(title, (20, 10), ("sans-serif", 16)))?;
    let rows = page.split_by_breakpoints(
        [WIDTH / 2],
        [TITLE, TITLE + OVERVIEW, TITLE + OVERVIEW + ZOOM, height - LEGEND],
    );
    legend(&page)?;
    let end = record.client.data.last().map_or(1.0, |data| data.at);
    let overview = page.clone().margin(TITLE, 2 * ZOOM + LEGEND, 0, 0);
    panel(
        &overview,
        "the whole transfer, at the client",
        &record.client,
        marks,
        0.0..end * 1.02,
        false,
    )?;
    let windows = [
        ("around the splice", marks.coupling - 0.04..marks.spliced + 0.08),
        (
            "around the way back",
            marks.trap - 0.05..marks.returned.max(marks.trap) + 0.12,
        ),
    ];
    for ((name, seconds), row) in windows.into_iter().zip([4, 6]) {
        for ((side, lines), area) in [("client", &record.client), ("server", &record.server)]
            .into_iter()
            .zip(&rows[row..])
        {
            panel(
                area,
                &format!("{name}, at the {side}"),
                lines,
                marks,
                seconds.clone(),
                true,
            )?;
        }
    }
    page.present()?;
    drop((overview, rows, page));
    Ok(out)
}

/// Returns the range of data and acknowledgements at these times, and of the window's edge if `edges` is true.
fn span(lines: &Lines, when: &Range<f64>, edges: bool) -> Range<f64> {
    let data = lines.data.iter().map(|data| (data.at, data.to));
    let acks = lines.acks.iter().copied();
    let edges = lines.edges.iter().copied().filter(|_| edges);
    let all = data.chain(acks).chain(edges).filter(|(at, _)| when.contains(at));
    let (low, high) = all.fold((f64::INFINITY, 0.0f64), |(low, high), (_, value)| {
        (low.min(value), high.max(value))
    });
    let low = if low.is_finite() { low } else { 0.0 };
    let margin = ((high - low) * 0.04).max(1e3);
    (low - margin).max(0.0) / 1e6..(high + margin) / 1e6
}

/// Draws a diagram of these seconds; a close one also shows acknowledgements and the window.
fn panel(
    area: &Area<'_>,
    title: &str,
    lines: &Lines,
    marks: &Marks,
    seconds: Range<f64>,
    close: bool,
) -> Result<()> {
    let megabytes = span(lines, &seconds, close);
    let mut chart = ChartBuilder::on(&area.titled(title, ("sans-serif", 12, FontStyle::Bold))?)
        .margin(10)
        .margin_top(46)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(seconds.clone(), megabytes.clone())?;
    let mesh = &mut chart.configure_mesh();
    mesh.disable_mesh()
        .x_desc("seconds")
        .y_desc("MB")
        .label_style(FONT)
        .draw()?;
    let seen = |at: &f64| seconds.contains(at);
    // A line goes on from its last value before; a step goes right, then up.
    let steps = |points: &[(f64, f64)]| {
        let first = points.partition_point(|(at, _)| *at < seconds.start);
        let before = points[..first].last().map(|(_, value)| (seconds.start, *value));
        let shown = points[first..].iter().copied().take_while(|(at, _)| seen(at));
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (at, value) in before.into_iter().chain(shown) {
            line.extend(line.last().map(|(_, last)| (at, *last)));
            line.push((at, (value / 1e6).max(megabytes.start)));
        }
        line
    };
    if close {
        chart.draw_series([
            PathElement::new(steps(&lines.edges), EDGE),
            PathElement::new(steps(&lines.acks), ACK),
        ])?;
    }
    for (order, colour, thick) in [
        (Order::Next, DATA, 1),
        (Order::Late, LATE, 2),
        (Order::Again, AGAIN, 3),
    ] {
        let data = lines
            .data
            .iter()
            .filter(|data| data.order == order && seen(&data.at));
        let every = match (close, order) {
            (false, Order::Next) => data.clone().count() / MOST_POINTS + 1,
            _ => 1,
        };
        let shown: Vec<_> = data
            .step_by(every)
            .map(|data| (data.at, data.from / 1e6, data.to / 1e6))
            .collect();
        let height =
            |low: (f64, f64), high: (f64, f64)| chart.backend_coord(&low).1 - chart.backend_coord(&high).1;
        // Draw a piece that is lower than a point as a point.
        let pieces = shown.into_iter().map(|(at, low, high)| {
            let points = height((at, low.max(megabytes.start)), (at, high)).max(1);
            EmptyElement::at((at, high)) + Rectangle::new([(0, 0), (thick, points)], colour.filled())
        });
        chart.draw_series(pieces.collect::<Vec<_>>())?;
    }
    let mut all = vec![
        (marks.spliced, "spliced"),
        (marks.trap, "trap"),
        (marks.returned, "returned"),
    ];
    if close {
        all.extend([(marks.coupling, "coupling"), (marks.drain, "drain")]);
    }
    all.retain(|(at, _)| seen(at));
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let (mut level, mut last) = (0, i32::MIN);
    for (at, name) in all {
        let top = (at, megabytes.end);
        let (x, _) = chart.backend_coord(&top);
        // Put names that would overlap one above the other.
        level = if x.saturating_sub(last) < 60 {
            level + 13
        } else {
            0
        };
        last = x;
        let line = [top, (at, megabytes.start)];
        chart.draw_series([PathElement::new(line, RGBColor(85, 85, 85))])?;
        chart.draw_series([EmptyElement::at(top) + Text::new(name, (3, -12 - level), FONT)])?;
    }
    Ok(())
}

fn legend(page: &Area<'_>) -> Result<()> {
    let names = [
        (DATA, "data"),
        (LATE, "data behind later data"),
        (AGAIN, "data sent again"),
        (ACK, "acknowledged"),
        (EDGE, "right edge of the window"),
    ];
    let y = (page.get_pixel_range().1.end) - 16;
    for ((colour, name), x) in names.into_iter().zip((70..).step_by(230)) {
        page.draw(&PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)))?;
        page.draw(&Text::new(name, (x + 30, y - 6), FONT))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_record_is_drawn_without_harm() {
        let record = Record {
            client: Lines::default(),
            server: Lines::default(),
            marks: Marks::default(),
            missed: 0,
        };
        let picture = plot(&record, "dormant").unwrap();
        assert!(picture.ends_with("</svg>\n") && !picture.contains("NaN"));
    }
}
