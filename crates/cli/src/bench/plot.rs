//! A run as a picture: what viewers got each second, and how old it was.

use plotters::prelude::*;
use spaceport_types::{Error, Kind, Result};

use super::report::{Report, name};

const SIZE: (u32, u32) = (960, 640);

/// Draws it as SVG.
pub(crate) fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| {
        Error::new(Kind::Internal, "the plot cannot be drawn").with("reason", error)
    })?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!(
        "{} viewers over {}, {:.2} % of frames complete; recovery: {}",
        report.joined,
        name(report.transport),
        report.frames.completeness * 100.0,
        report.recovery()
    );
    let root = root.titled(&title, ("sans-serif", 20))?;
    let (above, below) = root.split_vertically(SIZE.1 / 2 - 20);
    let seconds = &report.seconds;
    let end = seconds.len().max(1) as f64;
    let each = |value: u64, watching: usize| value as f64 / watching.max(1) as f64;

    let frames: Vec<_> =
        seconds.iter().map(|it| (it.second as f64 + 0.5, each(it.frames, it.watching))).collect();
    let missing: Vec<_> =
        seconds.iter().map(|it| (it.second as f64 + 0.5, each(it.missing, it.watching))).collect();
    let top = frames.iter().map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(&above)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().y_desc("frames a second, each").x_desc("seconds").draw()?;
    line(&mut chart, "complete", &frames, BLUE)?;
    line(&mut chart, "missing", &missing, RED)?;
    legend(&mut chart)?;

    let known = || seconds.iter().filter_map(|it| Some((it.second as f64 + 0.5, it.latency_ms?)));
    let p50: Vec<_> = known().map(|(at, latency)| (at, latency.p50)).collect();
    let p95: Vec<_> = known().map(|(at, latency)| (at, latency.p95)).collect();
    let top = p95.iter().map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(&below)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().y_desc("latency, ms").x_desc("seconds").draw()?;
    line(&mut chart, "p50", &p50, BLUE)?;
    line(&mut chart, "p95", &p95, RED)?;
    legend(&mut chart)?;
    root.present()?;
    Ok(())
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn line<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    label: &str,
    points: &[(f64, f64)],
    colour: RGBColor,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let series = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
    let key = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
    chart.draw_series(series).map_err(|error| error.to_string())?.label(label).legend(key);
    Ok(())
}

fn legend<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(|error| error.to_string())?;
    Ok(())
}
