//! A simulation as an SVG: which host encodes when and what fails, and below it the seconds of phase 1 a token by length.

use plotters::{coord::Shift, prelude::*};

use super::run::Run;
use crate::cluster::size::{count, grouped};

const SIZE: (u32, u32) = (960, 840);
/// Share of the height that hosts have.
const HOSTS_HEIGHT: u32 = 500;
/// Okabe and Ito's colours, which the colour-blind tell apart: encoded, encoded again, failed.
const ENCODED: RGBColor = RGBColor(86, 180, 233);
const AGAIN: RGBColor = RGBColor(230, 159, 0);
const FAILED: RGBColor = RGBColor(213, 94, 0);
const DRAWS_IN_MEMORY: &str = "a drawing in memory does not fail";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The picture of a run; `by_length` has seconds of phase 1 a token, over all hosts.
pub fn svg(run: &Run, names: &[String], by_length: &[(usize, f64)]) -> String {
    let mut text = String::new();
    {
        let all = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        all.fill(&WHITE).expect(DRAWS_IN_MEMORY);
        let (above, below) = all.split_vertically(HOSTS_HEIGHT);
        hosts(&above, run, names);
        tokens(&below, by_length);
        all.present().expect(DRAWS_IN_MEMORY);
    }
    text
}

fn hosts(area: &Area<'_>, run: &Run, names: &[String]) {
    let last = run.stretches.iter().map(|stretch| stretch.to_s).fold(0.0, f64::max);
    let end = run.ended.as_ref().map_or(last, |(at, _)| at.max(last)).max(1e-9);
    let rows = run.stretches.iter().map(|stretch| stretch.host + 1).max().unwrap_or(0).max(run.hosts);
    let caption = format!("{}: encoded (blue), encoded again (orange), failed (red)", count(run.hosts, "host"));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end * 1.02, 0.0..rows as f64)
        .expect(DRAWS_IN_MEMORY);
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("seconds")
        .y_desc("host")
        .y_label_formatter(&|row| format!("{row:.0}"))
        .draw()
        .expect(DRAWS_IN_MEMORY);
    let bar = |from: f64, to: f64, row: usize, color: RGBColor| {
        Rectangle::new([(from, row as f64), (to, row as f64 + 1.0)], color.filled())
    };
    let worked =
        run.stretches.iter().map(|one| bar(one.from_s, one.to_s, one.host, if one.again { AGAIN } else { ENCODED }));
    chart.draw_series(worked).expect(DRAWS_IN_MEMORY);
    let row = |host: &str| names.iter().position(|name| name == host).unwrap_or_default() as f64 + 0.5;
    let failed = run.failures.iter().map(|one| Cross::new((one.at_s, row(&one.host)), 5, FAILED.stroke_width(2)));
    chart.draw_series(failed).expect(DRAWS_IN_MEMORY);
}

fn tokens(area: &Area<'_>, by_length: &[(usize, f64)]) {
    let lengths = || by_length.iter().map(|(length, _)| *length as f64);
    let (Some(first), Some(last)) = (lengths().reduce(f64::min), lengths().reduce(f64::max)) else { return };
    let points = by_length.iter().map(|(length, seconds)| (*length as f64, seconds * 1e6));
    let most = points.clone().map(|(_, micros)| micros).fold(1e-9, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("phase 1: microseconds a token, of all hosts together", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((first * 0.9..last * 1.1).log_scale(), 0.0..most * 1.15)
        .expect(DRAWS_IN_MEMORY);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("tokens")
        .x_labels(3)
        .y_desc("us")
        .x_label_formatter(&|length| grouped(length.round() as usize))
        .draw()
        .expect(DRAWS_IN_MEMORY);
    chart.draw_series(LineSeries::new(points.clone(), BLACK.stroke_width(2))).expect(DRAWS_IN_MEMORY);
    chart.draw_series(points.map(|point| Circle::new(point, 3, BLACK.filled()))).expect(DRAWS_IN_MEMORY);
}
