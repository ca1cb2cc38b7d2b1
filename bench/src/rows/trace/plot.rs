//! Plots time-sequence diagrams as SVG. A few dozen lines of text replace the dependency on a plotting library.

use std::fmt::Write;
use std::ops::Range;

use super::lines::{Lines, Order};
use super::record::{Marks, Record};
use crate::svg::{self, show, text, ticks};

const WIDTH: f64 = 1240.0;
const LEFT: f64 = 70.0;
/// Space between two panels beside each other.
const BETWEEN: f64 = 80.0;
const OVERVIEW: f64 = 230.0;
const ZOOM: f64 = 340.0;
/// Space above a panel, for its title and the names of marks.
const ABOVE: f64 = 62.0;
/// Space below it, for the numbers.
const BELOW: f64 = 46.0;
/// Largest number of points of a line.
const MOST_POINTS: usize = 4000;

const DATA: &str = "#1f4e9c";
const ACK: &str = "#2a9d4a";
const EDGE: &str = "#c77d1e";
const LATE: &str = "#8a3fc4";
const AGAIN: &str = "#d11";

/// Diagram and its position.
struct Panel {
    title: String,
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    seconds: Range<f64>,
    /// Range of the stream, in megabytes.
    megabytes: Range<f64>,
}

/// Draws the plot.
pub(super) fn plot(record: &Record, depth: &str) -> String {
    let marks = record.marks;
    let zoom = (WIDTH - LEFT - BETWEEN - 20.0) / 2.0;
    let rows = [ABOVE + 26.0, OVERVIEW + 2.0 * ABOVE + BELOW + 26.0];
    let rows = [rows[0], rows[1], rows[1] + ZOOM + ABOVE + BELOW];
    let height = rows[2] + ZOOM + BELOW + 30.0;
    let mut out = svg::begin(WIDTH, height);
    let title = format!("Sequence numbers of a busy connection through a splice and the way back ({depth})");
    svg::title(&mut out, (LEFT, 24.0), &title);
    legend(&mut out, height - 14.0);

    let end = record.client.data.last().map_or(1.0, |data| data.at);
    let whole = 0.0..end * 1.02;
    let overview = Panel {
        title: "the whole transfer, at the client".into(),
        x: LEFT,
        y: rows[0],
        width: WIDTH - LEFT - 20.0,
        height: OVERVIEW,
        megabytes: span(&record.client, &whole, false),
        seconds: whole,
    };
    overview.draw(&mut out, &record.client, &marks, false);

    let windows = [
        ("around the splice", marks.coupling - 0.04..marks.spliced + 0.08),
        (
            "around the way back",
            marks.trap - 0.05..marks.returned.max(marks.trap) + 0.12,
        ),
    ];
    for ((name, seconds), y) in windows.into_iter().zip([rows[1], rows[2]]) {
        for (side, lines, x) in [
            ("at the client", &record.client, LEFT),
            ("at the server", &record.server, LEFT + zoom + BETWEEN),
        ] {
            let panel = Panel {
                title: format!("{name}, {side}"),
                x,
                y,
                width: zoom,
                height: ZOOM,
                megabytes: span(lines, &seconds, true),
                seconds: seconds.clone(),
            };
            panel.draw(&mut out, lines, &marks, true);
        }
    }
    out + "</svg>\n"
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

impl Panel {
    fn at(&self, seconds: f64, megabytes: f64) -> (f64, f64) {
        let part = |value: f64, range: &Range<f64>| (value - range.start) / (range.end - range.start);
        let x = self.x + part(seconds, &self.seconds) * self.width;
        let y = self.y + (1.0 - part(megabytes, &self.megabytes)) * self.height;
        (x, y)
    }

    fn draw(&self, out: &mut String, lines: &Lines, marks: &Marks, close: bool) {
        self.frame(out);
        let seen = |at: &f64| self.seconds.contains(at);
        // A line goes on from its last value before.
        let steps = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            let first = points.partition_point(|(at, _)| *at < self.seconds.start);
            let before = points[..first]
                .last()
                .map(|(_, value)| (self.seconds.start, *value));
            let shown = points[first..].iter().copied().take_while(|(at, _)| seen(at));
            before.into_iter().chain(shown).collect()
        };
        let clip = format!("clip{:.0}x{:.0}", self.x, self.y);
        let Panel {
            x, y, width, height, ..
        } = self;
        let _ = writeln!(
            out,
            "<clipPath id=\"{clip}\"><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/></clipPath>\n\
             <g clip-path=\"url(#{clip})\" fill=\"none\">"
        );
        if close {
            self.step_line(out, &steps(&lines.edges), EDGE);
            self.step_line(out, &steps(&lines.acks), ACK);
        }
        for (order, colour, thick) in [
            (Order::Next, DATA, 1.3),
            (Order::Late, LATE, 2.0),
            (Order::Again, AGAIN, 3.0),
        ] {
            let data = lines
                .data
                .iter()
                .filter(|data| data.order == order && seen(&data.at));
            let mut path = String::new();
            let every = if close {
                1
            } else {
                data.clone().count() / MOST_POINTS + 1
            };
            for data in data.step_by(if order == Order::Next { every } else { 1 }) {
                let (x, low) = self.at(data.at, data.from / 1e6);
                let (_, high) = self.at(data.at, data.to / 1e6);
                // Draw a piece that is lower than a point as a point.
                let _ = write!(path, "M{x:.1} {low:.1}V{:.1}", high.min(low - 1.0));
            }
            let _ = writeln!(
                out,
                "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"{thick}\"/>"
            );
        }
        out.push_str("</g>\n");
        self.marks(out, marks, close);
    }

    fn step_line(&self, out: &mut String, points: &[(f64, f64)], colour: &str) {
        let mut path = String::new();
        for (number, (at, value)) in points.iter().enumerate() {
            let (x, y) = self.at(*at, value / 1e6);
            let _ = match number {
                0 => write!(path, "M{x:.1} {y:.1}"),
                _ => write!(path, "H{x:.1}V{y:.1}"),
            };
        }
        let _ = writeln!(out, "<path d=\"{path}\" stroke=\"{colour}\"/>");
    }

    fn marks(&self, out: &mut String, marks: &Marks, close: bool) {
        let mut all = vec![
            (marks.spliced, "spliced"),
            (marks.trap, "trap"),
            (marks.returned, "returned"),
        ];
        if close {
            all.extend([(marks.coupling, "coupling"), (marks.drain, "drain")]);
        }
        all.retain(|(at, _)| self.seconds.contains(at));
        all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut level = 0.0;
        let mut last = f64::NEG_INFINITY;
        for (at, name) in all {
            let (x, _) = self.at(at, 0.0);
            // Put names that would overlap one above the other.
            level = if x - last < 60.0 { level + 13.0 } else { 0.0 };
            last = x;
            let top = self.y - 5.0 - level;
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {top:.1}V{:.1}\" stroke=\"#555\" stroke-dasharray=\"4 3\" fill=\"none\"/>",
                self.y + self.height
            );
            text(out, (x + 3.0, top + 2.0), "start", name);
        }
    }

    fn frame(&self, out: &mut String) {
        let Panel {
            x, y, width, height, ..
        } = self;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"none\" stroke=\"#999\"/>"
        );
        text(
            out,
            (*x, y - 44.0),
            "start",
            &format!("<tspan font-weight=\"bold\">{}</tspan>", self.title),
        );
        for tick in ticks(&self.seconds) {
            let (at, _) = self.at(tick, 0.0);
            let bottom = y + height;
            let _ = writeln!(out, "<path d=\"M{at:.1} {bottom:.1}v5\" stroke=\"#999\"/>");
            text(out, (at, bottom + 18.0), "middle", &show(tick));
        }
        text(out, (x + width / 2.0, y + height + 34.0), "middle", "seconds");
        for tick in ticks(&self.megabytes) {
            let (_, at) = self.at(0.0, tick);
            let _ = writeln!(out, "<path d=\"M{x:.1} {at:.1}h-5\" stroke=\"#999\"/>");
            text(out, (x - 8.0, at + 4.0), "end", &show(tick));
        }
        text(out, (x - 50.0, y - 10.0), "start", "MB");
    }
}

fn legend(out: &mut String, y: f64) {
    let names = [
        (DATA, "data"),
        (LATE, "data behind later data"),
        (AGAIN, "data sent again"),
        (ACK, "acknowledged"),
        (EDGE, "right edge of the window"),
    ];
    for (number, (colour, name)) in names.into_iter().enumerate() {
        let x = LEFT + 230.0 * number as f64;
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {:.1}h24\" stroke=\"{colour}\" stroke-width=\"3\"/>",
            y - 4.0
        );
        text(out, (x + 30.0, y), "start", name);
    }
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
        let picture = plot(&record, "dormant");
        assert!(picture.ends_with("</svg>\n") && !picture.contains("NaN"));
    }
}
