//! Draws a chart as SVG with the crate `plotters`, without a font: the viewer's own is used.

use std::ops::Range;

use plotters::chart::SeriesLabelPosition;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::chart::{Axis, Chart, Series, Stroke};
use super::scale::Scale;

/// Width and height, pixels.
const SIZE: (u32, u32) = (860, 480);

/// Colours that people with colour blindness can distinguish (Okabe and Ito), in the order of use.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

/// Sizes of letters. `plotters` writes them 1.24 times smaller.
const TITLE: u32 = 21;
const AXIS: u32 = 17;
const LABEL: u32 = 15;

/// Space for the numbers beside the axes, pixels.
const LABELS_LEFT: u32 = 72;
const LABELS_BELOW: u32 = 48;

/// Radius of the mark at a point, pixels.
const MARK: i32 = 3;

/// Most points of a line with marks.
const MARKED_POINTS: usize = 40;

/// Length of a dash and of the gap after it, pixels.
const DASH: (i32, i32) = (7, 5);

/// Why a chart cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// No series has a point that its axes can show.
    #[error("{0}: nothing to draw")]
    Empty(String),
    /// An error of the drawing crate.
    #[error("{0}: {1}")]
    Backend(String, String),
}

/// Points by their positions on the axes.
type Places = Vec<(f64, f64)>;

impl Chart {
    /// As an SVG document.
    ///
    /// # Errors
    /// [`DrawError`]: no point has a place, or the drawing crate refuses.
    pub fn svg(&self) -> Result<String, DrawError> {
        svg(self)
    }
}

fn svg(chart: &Chart) -> Result<String, DrawError> {
    let lines: Vec<Places> = chart.series.iter().map(|series| places(chart, series)).collect();
    let empty = || DrawError::Empty(chart.title.clone());
    if lines.iter().all(Vec::is_empty) {
        return Err(empty());
    }
    let of = |pick: fn(&(f64, f64)) -> f64| lines.iter().flatten().map(pick);
    let x = Ruler::new(&chart.x, of(|p| p.0)).ok_or_else(empty)?;
    let y = Ruler::new(&chart.y, of(|p| p.1)).ok_or_else(empty)?;
    let mut out = String::new();
    draw(chart, &lines, x, y, &mut out)
        .map_err(|error| DrawError::Backend(chart.title.clone(), error.to_string()))?;
    Ok(out)
}

fn places(chart: &Chart, series: &Series) -> Places {
    let place = |&(x, y): &(f64, f64)| Some((chart.x.scale.place(x)?, chart.y.scale.place(y)?));
    series.points.iter().filter_map(place).collect()
}

/// An axis over the positions of its data.
struct Ruler {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    scale: Scale,
    label: fn(f64) -> String,
}

impl Ruler {
    fn new(axis: &Axis, places: impl Iterator<Item = f64>) -> Option<Self> {
        let Axis { scale, label, .. } = *axis;
        let covered = axis.covers.iter().filter_map(|&value| scale.place(value));
        let (low, high) = scale.range(places.chain(covered))?;
        Some(Self { low, high, ticks: scale.ticks(low, high), scale, label })
    }
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (place - self.low) / (self.high - self.low);
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, place: &f64) -> String {
        (self.label)(self.scale.value(*place))
    }
}

fn draw(
    chart: &Chart,
    lines: &[Places],
    x: Ruler,
    y: Ruler,
    out: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(out, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut plane = ChartBuilder::on(&root)
        .caption(&chart.title, ("sans-serif", TITLE))
        .margin(14)
        .set_label_area_size(LabelAreaPosition::Left, LABELS_LEFT)
        .set_label_area_size(LabelAreaPosition::Bottom, LABELS_BELOW)
        .build_cartesian_2d(x, y)?;
    plane
        .configure_mesh()
        .x_desc(&chart.x.title)
        .y_desc(&chart.y.title)
        .label_style(("sans-serif", LABEL))
        .axis_desc_style(("sans-serif", AXIS))
        .bold_line_style(BLACK.mix(0.12))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, (series, line)) in chart.series.iter().zip(lines).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let style = colour.stroke_width(2);
        let drawn = match series.stroke {
            Stroke::Solid => plane.draw_series(LineSeries::new(line.iter().copied(), style))?,
            Stroke::Dashed => {
                let (dash, gap) = DASH;
                plane.draw_series(DashedLineSeries::new(line.iter().copied(), dash, gap, style))?
            }
        };
        drawn.label(&series.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if series.stroke == Stroke::Solid && line.len() <= MARKED_POINTS {
            plane.draw_series(line.iter().map(|&point| Circle::new(point, MARK, colour.filled())))?;
        }
    }
    plane
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", LABEL))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Series;

    fn chart(series: Vec<Series>) -> Chart {
        Chart { title: "Goodput".into(), x: Axis::bytes("message, bytes"), y: Axis::linear("Gb/s"), series }
    }

    #[test]
    fn a_chart_has_its_words_ticks_and_lines() {
        let ours = Series::new("iwarp <&> \"us\"", vec![(2.0, 0.1), (1024.0, 20.0), (65536.0, 38.0)]);
        let limit = Series::reference("memcpy", vec![(2.0, 40.0), (65536.0, 40.0)]);
        let svg = chart(vec![ours, limit]).svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for word in ["Goodput", "message, bytes", "Gb/s", "64", "64K", "40", "memcpy", "iwarp &lt;&amp;&gt;"]
        {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(!svg.contains("<&>"), "not escaped");
        // A mark at each measured point, and none on a reference line.
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        let make = || chart(vec![Series::new("a", vec![(2.0, 1.0), (4.0, 2.0)])]).svg().unwrap();
        assert_eq!(make(), make());
    }

    #[test]
    fn a_higher_value_is_drawn_higher() {
        let svg = chart(vec![Series::new("a", vec![(2.0, 1.0), (4.0, 9.0)])]).svg().unwrap();
        let heights: Vec<f64> = svg
            .split("<circle")
            .skip(1)
            .map(|mark| mark.split("cy=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(heights[1] < heights[0], "{heights:?}");
    }

    #[test]
    fn one_point_and_points_without_a_place_are_drawn_or_left_out() {
        let one = chart(vec![Series::new("a", vec![(0.0, 1.0), (4.0, 2.0)])]).svg().unwrap();
        assert_eq!(one.matches("<circle").count(), 1);
        for series in [vec![], vec![Series::new("a", vec![(0.0, 1.0)])]] {
            assert_eq!(chart(series).svg().unwrap_err().to_string(), "Goodput: nothing to draw");
        }
    }
}
