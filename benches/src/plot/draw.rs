//! Draws a chart as SVG with the crate `plotters`. The SVG embeds no font and names only the generic family
//! `sans-serif`, so the viewer chooses the font.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::chart::{Axis, Chart, Stroke};
use super::scale::Scale;

/// Width and height in pixels of a chart without the lines above the plot.
const SIZE: (u32, u32) = (860, 430);

/// Space around the chart in pixels.
const MARGIN: i32 = 14;

/// Width of a letter relative to its height. The value is larger than in usual fonts, since the viewer's font
/// is not known.
const LABEL_WIDTH: f64 = 0.5;

/// The legend in pixels: the length of the line before a name, the space around a name, and the height of a
/// line.
const SAMPLE: i32 = 20;
const GAP: i32 = 7;
const LEGEND_LINE: i32 = 20;

/// Opacity of a band.
const BAND: f64 = 0.2;

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

/// Sizes of letters. `plotters` writes letters 1.24 times smaller than these sizes.
const TITLE: i32 = 21;
const AXIS: i32 = 17;
const LABEL: i32 = 15;
const NOTE: i32 = 14;
const NOTE_LINE: i32 = 16;

/// Space in pixels for the numbers beside the axes.
const LABELS_LEFT: u32 = 72;
const LABELS_BELOW: u32 = 48;

/// Radius in pixels of the mark at a point.
const MARK: i32 = 3;

/// Maximum number of points up to which a line has marks.
const MARKED_POINTS: usize = 40;

/// Lengths in pixels of a dash and of the gap after it.
const DASH: (i32, i32) = (7, 5);

/// Why a chart cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// No series has a point that the axes of the chart can show.
    #[error("{0}: nothing to draw")]
    Empty(String),
    /// An error of the drawing crate.
    #[error("{0}: {1}")]
    Backend(String, String),
}

/// Points as positions on the axes.
type Places = Vec<(f64, f64)>;

impl Chart {
    /// Draws the chart as an SVG document.
    ///
    /// # Errors
    /// Returns a [`DrawError`] if no point has a place on the axes, or if the drawing crate fails.
    pub fn svg(&self) -> Result<String, DrawError> {
        svg(self)
    }
}

fn svg(chart: &Chart) -> Result<String, DrawError> {
    let lines: Vec<Places> = chart.series.iter().map(|series| places(chart, &series.points)).collect();
    let bands: Vec<Places> = chart.series.iter().map(|series| outline(chart, &series.band)).collect();
    let empty = || DrawError::Empty(chart.title.clone());
    if lines.iter().all(Vec::is_empty) {
        return Err(empty());
    }
    let of = |pick: fn(&(f64, f64)) -> f64| lines.iter().chain(&bands).flatten().map(pick);
    let x = Ruler::new(&chart.x, of(|p| p.0)).ok_or_else(empty)?;
    let y = Ruler::new(&chart.y, of(|p| p.1)).ok_or_else(empty)?;
    let mut out = String::new();
    draw(chart, (&lines, &bands), x, y, &mut out)
        .map_err(|error| DrawError::Backend(chart.title.clone(), error.to_string()))?;
    Ok(out)
}

fn places(chart: &Chart, points: &[(f64, f64)]) -> Places {
    let place = |&(x, y): &(f64, f64)| Some((chart.x.scale.place(x)?, chart.y.scale.place(y)?));
    points.iter().filter_map(place).collect()
}

/// The outline of a band: along the lower edge of the band, and back along the upper edge.
fn outline(chart: &Chart, band: &[(f64, f64, f64)]) -> Places {
    let lower: Vec<_> = band.iter().map(|&(x, low, _)| (x, low)).collect();
    let upper: Vec<_> = band.iter().rev().map(|&(x, _, high)| (x, high)).collect();
    [places(chart, &lower), places(chart, &upper)].concat()
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

/// The lines above the plot: the title, the notes, and the legend, which may need several lines.
struct Head {
    notes: Vec<String>,
    /// The entries of the legend with their places.
    legend: Vec<(usize, (i32, i32))>,
    height: i32,
}

impl Head {
    fn new(chart: &Chart) -> Self {
        let most = (f64::from(SIZE.0 as i32 - 2 * MARGIN) / (LABEL_WIDTH * f64::from(NOTE))) as usize;
        let notes: Vec<String> = chart.notes.iter().flat_map(|note| wrapped(note, most)).collect();
        let mut at = (MARGIN, MARGIN + TITLE + 10 + notes.len() as i32 * NOTE_LINE);
        let mut legend = Vec::new();
        for (index, series) in chart.series.iter().enumerate() {
            let text = f64::from(LABEL) * LABEL_WIDTH * series.name.chars().count() as f64;
            let width = SAMPLE + 3 * GAP + text as i32;
            if at.0 > MARGIN && at.0 + width > SIZE.0 as i32 - MARGIN {
                at = (MARGIN, at.1 + LEGEND_LINE);
            }
            legend.push((index, at));
            at.0 += width;
        }
        Self { notes, legend, height: at.1 + LEGEND_LINE }
    }
}

/// Splits `text` between words into lines of at most `most` characters.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn draw(
    chart: &Chart,
    (lines, bands): (&[Places], &[Places]),
    x: Ruler,
    y: Ruler,
    out: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let head = Head::new(chart);
    let size = (SIZE.0, SIZE.1 + head.height as u32);
    let root = SVGBackend::with_string(out, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(head.height);
    above.draw(&Text::new(chart.title.clone(), (MARGIN, MARGIN), ("sans-serif", TITLE)))?;
    let grey = BLACK.mix(0.6);
    let small = TextStyle::from(("sans-serif", NOTE)).color(&grey);
    for (index, note) in head.notes.iter().enumerate() {
        let at = (MARGIN, MARGIN + TITLE + 6 + index as i32 * NOTE_LINE);
        above.draw(&Text::new(note.clone(), at, small.clone()))?;
    }
    for &(index, (left, top)) in &head.legend {
        let (series, style) = (&chart.series[index], colour(index).stroke_width(2));
        let (middle, right) = (top + LABEL / 2, left + SAMPLE);
        let strokes = match series.stroke {
            Stroke::Solid => vec![(left, right)],
            Stroke::Dashed => vec![(left, left + DASH.0), (right - DASH.0, right)],
        };
        for (from, to) in strokes {
            above.draw(&PathElement::new([(from, middle), (to, middle)], style))?;
        }
        above.draw(&Text::new(series.name.clone(), (left + SAMPLE + GAP, top), ("sans-serif", LABEL)))?;
    }
    let mut plane = ChartBuilder::on(&below)
        .margin(MARGIN)
        .margin_right(2 * MARGIN)
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
    for (index, band) in bands.iter().enumerate().filter(|(_, band)| !band.is_empty()) {
        plane.draw_series([Polygon::new(band.clone(), colour(index).mix(BAND))])?;
    }
    for (index, (series, line)) in chart.series.iter().zip(lines).enumerate() {
        let style = colour(index).stroke_width(2);
        match series.stroke {
            Stroke::Solid => plane.draw_series(LineSeries::new(line.iter().copied(), style))?,
            Stroke::Dashed => {
                plane.draw_series(DashedLineSeries::new(line.iter().copied(), DASH.0, DASH.1, style))?
            }
        };
        if series.stroke == Stroke::Solid && line.len() <= MARKED_POINTS {
            plane.draw_series(line.iter().map(|&point| Circle::new(point, MARK, colour(index).filled())))?;
        }
    }
    root.present()?;
    Ok(())
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Series;

    fn chart(series: Vec<Series>) -> Chart {
        let notes = vec!["write-bw, 8 queue pairs".into(), "a machine".into()];
        Chart {
            title: "Goodput".into(),
            notes,
            x: Axis::bytes("message, bytes"),
            y: Axis::linear("Gb/s"),
            series,
        }
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
        // Each measured point has a mark, and reference lines have no marks.
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
    }

    #[test]
    fn the_legend_and_the_notes_are_above_the_plot() {
        let many: Vec<Series> = (0..9)
            .map(|n| Series::new(format!("a series with a long name {n}"), vec![(2.0, 1.0), (4.0, 9.0)]))
            .collect();
        let svg = chart(many).svg().unwrap();
        let tops = |tag: &str, key: &str| -> Vec<f64> {
            let after = svg.split(tag).skip(1);
            after
                .map(|part| part.split(key).nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
                .collect()
        };
        let highest_mark = tops("<circle", "cy=\"").into_iter().fold(f64::INFINITY, f64::min);
        let text = |word: &str| {
            let before = &svg[..svg.find(word).unwrap()];
            let element = &before[before.rfind("<text").unwrap()..];
            element.split(" y=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        for word in ["name 0", "name 8", "8 queue pairs", "a machine"] {
            assert!(text(word) < highest_mark, "{word}: {svg}");
        }
        assert!(text("name 8") > text("name 0"), "one line is too short for all names");
    }

    #[test]
    fn a_band_is_an_area_around_the_line() {
        let line = Series::new("a", vec![(2.0, 2.0), (4.0, 3.0)]);
        let plain = chart(vec![line.clone()]).svg().unwrap();
        let svg = chart(vec![line.with_band(vec![(2.0, 1.0, 3.0), (4.0, 2.0, 4.0)])]).svg().unwrap();
        assert_eq!((plain.matches("<polygon").count(), svg.matches("<polygon").count()), (0, 1), "{svg}");
    }

    #[test]
    fn notes_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 9), ["one two", "three"]);
        assert!(wrapped("", 9).is_empty());
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
