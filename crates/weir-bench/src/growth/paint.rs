//! The curves as SVG.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{Distance, Growth, Place, Point};
use crate::contenders::GLUE_BY_SHA;
use crate::plot::Plot;
use crate::table::whole;

const WIDTH: u32 = 640;
const HEIGHT: u32 = 400;
/// Of the names, at the right.
const LEGEND: u32 = 240;
const FONT: &str = "sans-serif";

/// The palette of Okabe and Ito, without its yellow, and three more for those who see
/// all colours.
const COLORS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(120, 200, 160),
    RGBColor(204, 121, 167),
    RGBColor(150, 70, 120),
    RGBColor(0, 0, 0),
    RGBColor(130, 130, 130),
];

/// One picture: what it is called, and of what the axes are.
struct Picture<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
}

/// A line: its name, and its points.
type Line = (String, Vec<(f64, f64)>);

/// A picture of each curve that was measured.
pub fn all(out: &Path, growth: &Growth) -> Result<Vec<Plot>> {
    let limits = lines(&growth.limits, |point| point.time_us.median);
    let memory = lines(&growth.limits, |point| point.bytes_per_client);
    let batches = lines(&growth.batches, |point| point.time_us.median);
    let several = lines(&growth.several, |point| point.time_us.median);
    let clients = lines(&growth.clients, |point| point.time_us.median);
    // Not of the glue: of many connections that would be a picture of the proxy, which
    // carries each of its calls by itself.
    let mut delay: Vec<Line> = Vec::new();
    let drawn = growth.delay.iter().filter(|distance| distance.id != GLUE_BY_SHA);
    for Distance { name, place: Place { delay_ms, connections }, limited_us, .. } in drawn {
        let name = format!("{name}, {delay_ms} ms");
        add(&mut delay, &name, (f64::from(*connections), limited_us.median));
    }
    let curves = [
        ("limits", "Time for a decision, by the limit", ("units", "µs"), limits),
        ("memory", "Memory of a client at its limit", ("units", "bytes"), memory),
        ("batches", "Time for a decision, by the batch", ("requests", "µs"), batches),
        ("several", "Time for a request, by its limits", ("limits", "µs"), several),
        ("clients", "Time for a decision, by clients", ("clients", "µs"), clients),
        ("delay", "p50, by the distance of Redis", ("connections", "µs"), delay),
    ];
    let mut plots = Vec::new();
    for (part, title, (x, y), lines) in curves {
        // Without a line, no picture.
        if lines.is_empty() {
            continue;
        }
        let file = format!("growth-{part}.svg");
        let path = out.join(&file);
        draw(&path, &Picture { title, x, y }, &lines)
            .map_err(|error| anyhow!("{} is not written: {error}", path.display()))?;
        plots.push(Plot { file, title: title.to_owned() });
    }
    Ok(plots)
}

fn lines(points: &[Point], y: impl Fn(&Point) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for point in points {
        add(&mut lines, &point.series, (point.x as f64, y(point)));
    }
    lines
}

fn add(lines: &mut Vec<Line>, name: &str, at: (f64, f64)) {
    match lines.iter_mut().find(|(known, _)| known == name) {
        Some((_, line)) => line.push(at),
        None => lines.push((name.to_owned(), vec![at])),
    }
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Both axes by powers.
fn draw(file: &Path, picture: &Picture<'_>, lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|(_, line)| line);
    let range = |values: Vec<f64>| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        (least / 1.3)..(most * 1.3)
    };
    let xs: Vec<f64> = lines[0].1.iter().map(|at| at.0).collect();
    let across = range(points().map(|at| at.0).collect()).log_scale().with_key_points(xs);
    let up = range(points().map(|at| at.1).collect());
    let marks = ticks(&up);

    let root = SVGBackend::new(file, (WIDTH + LEGEND, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .caption(picture.title, (FONT, 17))
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(68)
        .build_cartesian_2d(across, up.log_scale().with_key_points(marks))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(picture.x)
        .y_desc(picture.y)
        .x_label_formatter(&|value| whole(*value))
        .y_label_formatter(&|value| number(*value))
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .draw()?;
    for (index, (name, line)) in lines.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        chart.draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(line.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
        let y = 48 + 24 * index as i32;
        right.draw(&PathElement::new([(4, y), (28, y)], color.stroke_width(2)))?;
        let beside = Pos::new(HPos::Left, VPos::Center);
        right.draw(&Text::new(
            &**name,
            (36, y),
            (FONT, 14).into_font().color(&BLACK).pos(beside),
        ))?;
    }
    root.present()
}

/// 1, 2 and 5 times the powers of ten in a range.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    (-3..10)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)))
        .filter(|tick| range.contains(tick))
        .collect()
}

fn number(value: f64) -> String {
    if value < 1.0 { format!("{value:.1}") } else { whole(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Spread;

    #[test]
    fn a_curve_is_painted_and_none_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let point = |x| Point {
            series: "token-bucket".to_owned(),
            x,
            time_us: Spread::of([1.5]),
            yardsticks: None,
            yardstick_us: None,
            redis_cpu_us: None,
            bytes_per_client: 120.0,
        };
        let growth = Growth { batches: vec![point(1), point(128)], ..Growth::default() };
        let plots = all(dir.path(), &growth).unwrap();
        assert_eq!(
            plots.iter().map(|plot| &*plot.file).collect::<Vec<_>>(),
            ["growth-batches.svg"]
        );
        let picture = std::fs::read_to_string(dir.path().join("growth-batches.svg")).unwrap();
        assert!(picture.contains("token-bucket"));
        assert!(!dir.path().join("growth-limits.svg").exists());
    }
}
