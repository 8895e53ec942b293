//! Results as an SVG: accuracy against length, a line a method with interval whiskers; for niah a heat map a method.

use std::ops::Range;

use plotters::{
    coord::{
        Shift,
        ranged1d::{DefaultFormatting, KeyPointHint},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{Block, MethodScore};
use crate::{cluster::size::grouped, eval::Results};

const WIDTH: u32 = 960;
const LINES_HEIGHT: u32 = 420;
const MAP_HEIGHT: u32 = 320;
const MAPS_A_ROW: usize = 3;
/// Okabe and Ito's colours, which the colour-blind tell apart.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const DRAWS_IN_MEMORY: &str = "a drawing in memory does not fail";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An axis with labels at the places named, and nowhere else.
struct Axis {
    range: Range<f64>,
    labels: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// One panel a suite, below each other.
pub fn svg(results: &Results) -> String {
    let mut suites: Vec<Vec<&Block>> = Vec::new();
    for block in &results.blocks {
        match suites.last_mut() {
            Some(suite) if suite[0].suite == block.suite => suite.push(block),
            _ => suites.push(vec![block]),
        }
    }
    let heights: Vec<u32> = suites.iter().map(|blocks| height(blocks, results)).collect();
    let mut text = String::new();
    {
        let mut rest =
            SVGBackend::with_string(&mut text, (WIDTH, heights.iter().sum::<u32>().max(1))).into_drawing_area();
        rest.fill(&WHITE).expect(DRAWS_IN_MEMORY);
        for (blocks, height) in suites.iter().zip(heights) {
            let (panel, below) = rest.split_vertically(height);
            if is_grid(blocks) {
                maps(&panel, blocks, results)
            } else {
                lines(&panel, blocks, results)
            }
            rest = below;
        }
        rest.present().expect(DRAWS_IN_MEMORY);
    }
    text
}

fn is_grid(blocks: &[&Block]) -> bool {
    blocks[0].suite == "niah"
}

fn height(blocks: &[&Block], results: &Results) -> u32 {
    match is_grid(blocks) {
        true => MAP_HEIGHT * results.methods.len().div_ceil(MAPS_A_ROW) as u32,
        false => LINES_HEIGHT,
    }
}

fn lines(area: &Area<'_>, blocks: &[&Block], results: &Results) {
    let count = blocks.len();
    let places = Axis { range: -0.5..count as f64 - 0.5, labels: (0..count).map(|at| at as f64).collect() };
    let percents = Axis { range: 0.0..102.0, labels: (0..=5).map(|fifth| 20.0 * f64::from(fifth)).collect() };
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{} with {}: average score and 95% interval", blocks[0].suite, results.models.join(", ")),
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(places, percents)
        .expect(DRAWS_IN_MEMORY);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("tokens")
        .y_desc("percent")
        .x_label_formatter(&|at| axis_name(blocks[(at.round().max(0.0) as usize).min(count - 1)].length))
        .y_label_formatter(&|percent| format!("{percent:.0}"))
        .draw()
        .expect(DRAWS_IN_MEMORY);
    for (index, method) in results.methods.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        // Whiskers of methods that score alike stand beside each other.
        let shift = (index as f64 - (results.methods.len() - 1) as f64 / 2.0) * 0.02;
        let points: Vec<(f64, &MethodScore)> = blocks
            .iter()
            .enumerate()
            .filter_map(|(at, block)| {
                Some((at as f64 + shift, block.methods.iter().find(|score| score.method == *method)?))
            })
            .collect();
        let means = points.iter().map(|(at, score)| (*at, score.average.mean));
        chart
            .draw_series(LineSeries::new(means.clone(), color.stroke_width(2)))
            .expect(DRAWS_IN_MEMORY)
            .label(method.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(means.map(|point| Circle::new(point, 3, color.filled()))).expect(DRAWS_IN_MEMORY);
        let whiskers = points.iter().filter_map(|(at, score)| {
            Some(PathElement::new([(*at, score.average.low?), (*at, score.average.high?)], color.stroke_width(1)))
        });
        chart.draw_series(whiskers).expect(DRAWS_IN_MEMORY);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .expect(DRAWS_IN_MEMORY);
}

fn maps(area: &Area<'_>, blocks: &[&Block], results: &Results) {
    let rows = results.methods.len().div_ceil(MAPS_A_ROW);
    let areas = area.split_evenly((rows, MAPS_A_ROW.min(results.methods.len())));
    for (method, area) in results.methods.iter().zip(&areas) {
        map(area, blocks, method);
    }
}

/// Depths from above to below, lengths from left to right.
fn map(area: &Area<'_>, blocks: &[&Block], method: &str) {
    let depths = blocks.iter().map(|block| &block.tasks).max_by_key(|tasks| tasks.len()).expect("a suite has a block");
    let (columns, rows) = (blocks.len(), depths.len());
    let across = Axis { range: -0.5..columns as f64 - 0.5, labels: (0..columns).map(|at| at as f64).collect() };
    let down = Axis { range: 0.5 - rows as f64..0.5, labels: (0..rows).map(|at| -(at as f64)).collect() };
    let mut chart = ChartBuilder::on(area)
        .caption(method, ("sans-serif", 14))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(76)
        .build_cartesian_2d(across, down)
        .expect(DRAWS_IN_MEMORY);
    chart
        .configure_mesh()
        .disable_mesh()
        .x_label_formatter(&|at| axis_name(blocks[(at.round().max(0.0) as usize).min(columns - 1)].length))
        .y_label_formatter(&|at| depths[((-at).round().max(0.0) as usize).min(rows - 1)].clone())
        .draw()
        .expect(DRAWS_IN_MEMORY);
    for (x, block) in blocks.iter().enumerate() {
        let Some(scores) = block.methods.iter().find(|score| score.method == method) else { continue };
        for score in &scores.tasks {
            let Some(y) = depths.iter().position(|depth| *depth == score.task) else { continue };
            let Some(percent) = score.score else { continue };
            let (x, y) = (x as f64, -(y as f64));
            let corners = [(x - 0.5, y - 0.5), (x + 0.5, y + 0.5)];
            let cell = Rectangle::new(corners, shade(percent.mean).filled());
            let ink = if percent.mean > 55.0 { WHITE } else { BLACK };
            let style = ("sans-serif", 13).into_font().color(&ink).pos(Pos::new(HPos::Center, VPos::Center));
            chart.draw_series([cell, Rectangle::new(corners, WHITE.stroke_width(1))]).expect(DRAWS_IN_MEMORY);
            chart.draw_series([Text::new(format!("{:.0}", percent.mean), (x, y), style)]).expect(DRAWS_IN_MEMORY);
        }
    }
}

/// `128k` where that is exact.
fn axis_name(length: usize) -> String {
    match length {
        0 => "as given".into(),
        _ if length.is_multiple_of(1024) => format!("{}k", length / 1024),
        _ => grouped(length),
    }
}

/// From near white (0%) to dark blue (100%).
fn shade(percent: f64) -> RGBColor {
    let mix = |from: f64, to: f64| (from + (to - from) * percent.clamp(0.0, 100.0) / 100.0).round() as u8;
    RGBColor(mix(247.0, 8.0), mix(251.0, 81.0), mix(255.0, 156.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Answer, Scoring, answer::tests::answered};

    #[test]
    fn a_line_a_method_and_a_map_for_the_grid() {
        let mut answers = Vec::new();
        for method in ["dense", "star"] {
            for length in [4096, 8192] {
                answers.push(Answer { length, ..answered("vt", method, 1, method == "dense") });
                for depth in ["depth 0%", "depth 100%"] {
                    answers.push(Answer { suite: "niah".into(), length, ..answered(depth, method, 1, true) });
                }
            }
        }
        let text = svg(&Results::of(&answers, Scoring::Benchmark));
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for words in ["ruler with asterism-7m: average score", ">\n8k\n<", "star", "depth 100%"] {
            assert!(text.contains(words), "{words}");
        }
        assert_eq!(text.matches(&format!("fill=\"#{:02X}{:02X}{:02X}\"", 8, 81, 156)).count(), 8, "a cell an answer");
        assert!(!svg(&Results::of(&[], Scoring::Exact)).is_empty());
    }
}
