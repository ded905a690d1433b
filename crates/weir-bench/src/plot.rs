//! The plots: what happens as connections rise.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::plan::Group;
use crate::summary::{Comparison, Row};

/// Who is drawn, in colours that those see apart too who do not see all (the palette
/// of Okabe and Ito, without its yellow), and with marks.
const SERIES: [(&str, RGBColor, Mark); 8] = [
    ("none", RGBColor(0, 0, 0), Mark::Square),
    ("limit-req", RGBColor(130, 130, 130), Mark::Square),
    ("glue-eval", RGBColor(213, 94, 0), Mark::Cross),
    ("glue-evalsha", RGBColor(230, 159, 0), Mark::Cross),
    ("sliding-log", RGBColor(0, 114, 178), Mark::Circle),
    ("token-bucket", RGBColor(86, 180, 233), Mark::Circle),
    ("refused", RGBColor(0, 158, 115), Mark::Triangle),
    ("embedded-log", RGBColor(204, 121, 167), Mark::Triangle),
];

#[derive(Clone, Copy)]
enum Mark {
    Square,
    Cross,
    Circle,
    Triangle,
}

const FONT: &str = "sans-serif";
const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;
/// Of the legend, at the right.
const LEGEND: u32 = 230;
const BACKGROUND: RGBColor = WHITE;

/// One diagram.
struct Panel {
    title: &'static str,
    unit: &'static str,
    figure: fn(&Row) -> f64,
}

/// A file, what it shows, and its diagrams side by side.
const PLOTS: [(&str, &str, &[Panel]); 3] = [
    (
        "throughput.svg",
        "Throughput by connections",
        &[Panel { title: "Throughput", unit: "requests/s", figure: |row| row.rate.median }],
    ),
    (
        "cpu.svg",
        "CPU of the limiter for each decision, by connections",
        &[Panel {
            title: "CPU of the limiter for each decision: nginx worker and Redis",
            unit: "µs",
            figure: |row| row.limiter_us.median,
        }],
    ),
    (
        "latency.svg",
        "Latency by connections",
        &[
            Panel { title: "Latency, p50", unit: "µs", figure: |row| row.p50_us.median },
            Panel { title: "Latency, p99", unit: "µs", figure: |row| row.p99_us.median },
        ],
    ),
];

/// A plot that was written.
pub struct Plot {
    /// Its file's name.
    pub file: String,
    /// What it shows.
    pub title: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes all plots into this directory: of the comparisons that differ from the first
/// in connections only.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write(comparisons: &[Comparison], directory: &Path) -> Result<Vec<Plot>> {
    let Some(first) = comparisons.first().map(|first| first.group) else { return Ok(Vec::new()) };
    let mut shown: Vec<&Comparison> = comparisons
        .iter()
        .filter(|comparison| comparison.group.workers == first.workers)
        .filter(|comparison| comparison.group.clients == first.clients)
        .collect();
    shown.sort_by_key(|comparison| comparison.group.connections);
    let written = PLOTS.iter().map(|(name, title, panels)| {
        let file = directory.join(name);
        draw(&shown, panels, &file)
            .map_err(|error| anyhow!("{} is not written: {error}", file.display()))?;
        Ok(Plot { file: (*name).to_owned(), title: (*title).to_owned() })
    });
    written.collect()
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(shown: &[&Comparison], panels: &[Panel], file: &Path) -> Drawn {
    let root = SVGBackend::new(file, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&BACKGROUND)?;
    let (left, right) = root.split_horizontally(WIDTH - LEGEND);
    let mut drawn: Vec<&str> = Vec::new();
    for (panel, area) in panels.iter().zip(left.split_evenly((1, panels.len()))) {
        drawn.extend(draw_panel(shown, panel, &area)?);
    }
    legend(shown, &drawn, &right)?;
    root.present()?;
    Ok(())
}

/// Draws the lines, and returns whose there are.
fn draw_panel(
    shown: &[&Comparison],
    panel: &Panel,
    area: &Area<'_>,
) -> Result<Vec<&'static str>, Box<dyn std::error::Error>> {
    let lines: Vec<_> = SERIES
        .iter()
        .map(|&(id, colour, mark)| (id, colour, mark, points(shown, panel, id)))
        .filter(|(.., points)| points.iter().any(Option::is_some))
        .collect();
    let values =
        lines.iter().flat_map(|(.., points)| points.iter().flatten().map(|&(_, value)| value));
    let (least, most) = values
        .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    let connections: Vec<f64> =
        shown.iter().map(|comparison| f64::from(comparison.group.connections)).collect();
    let (fewest, many) = (connections[0], connections[connections.len() - 1]);

    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, (FONT, 17))
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(68)
        .build_cartesian_2d(
            (fewest / 1.4..many * 1.4).log_scale().with_key_points(connections),
            (least / 1.3..most * 1.3).log_scale().with_key_points(ticks(least / 1.3, most * 1.3)),
        )?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc("connections")
        .y_desc(panel.unit)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| thousands(*value))
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .draw()?;
    for (_, colour, mark, points) in &lines {
        // Not over a point that is missing.
        for run in points.split(Option::is_none) {
            let run = run.iter().copied().flatten();
            chart.draw_series(LineSeries::new(run, colour.stroke_width(2)))?;
        }
        let marks =
            points.iter().flatten().map(|&point| EmptyElement::at(point) + marked(*mark, *colour));
        chart.draw_series(marks)?;
    }
    Ok(lines.into_iter().map(|(id, ..)| id).collect())
}

/// A contender's points. What cost nothing, or less by the noise of the machine, has no
/// place on a logarithmic axis.
fn points(shown: &[&Comparison], panel: &Panel, id: &str) -> Vec<Option<(f64, f64)>> {
    shown
        .iter()
        .map(|comparison| {
            let value = (panel.figure)(comparison.row(id)?);
            (value > 0.0).then_some((f64::from(comparison.group.connections), value))
        })
        .collect()
}

/// 1, 2 and 5 times the powers of ten between these.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    (-3..10)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)))
        .filter(|tick| (least..=most).contains(tick))
        .collect()
}

fn thousands(value: f64) -> String {
    if value >= 1000.0 { format!("{}k", value / 1000.0) } else { format!("{value}") }
}

fn marked<'a>(mark: Mark, colour: RGBColor) -> DynElement<'static, SVGBackend<'a>, (i32, i32)> {
    let style = colour.filled();
    match mark {
        Mark::Square => Rectangle::new([(-3, -3), (3, 3)], style).into_dyn(),
        Mark::Cross => Cross::new((0, 0), 4, colour.stroke_width(2)).into_dyn(),
        Mark::Circle => Circle::new((0, 0), 4, style).into_dyn(),
        Mark::Triangle => TriangleMarker::new((0, 0), 5, style).into_dyn(),
    }
}

fn legend(shown: &[&Comparison], drawn: &[&str], area: &Area<'_>) -> Drawn {
    let beside = Pos::new(HPos::Left, VPos::Center);
    let text = (FONT, 14).into_font().color(&BLACK).pos(beside);
    let mut y = 48;
    let line = 24;
    for (id, colour, mark) in SERIES {
        let name = shown.iter().find_map(|comparison| comparison.row(id)).map(|row| row.name);
        let (Some(name), true) = (name, drawn.contains(&id)) else { continue };
        area.draw(&PathElement::new([(4, y), (32, y)], colour.stroke_width(2)))?;
        area.draw(&(EmptyElement::at((18, y)) + marked(mark, colour)))?;
        area.draw(&Text::new(name, (40, y), text.clone()))?;
        y += line;
    }
    let Some(Group { clients, workers, .. }) = shown.first().map(|first| first.group) else {
        return Ok(());
    };
    let rounds = shown[0].rows[0].rounds.len();
    for said in [
        format!("Clients: {clients}. Workers of nginx: {workers}."),
        format!("Medians of {rounds} rounds."),
    ] {
        y += line;
        area.draw(&Text::new(said, (4, y), text.clone()))?;
    }
    Ok(())
}
