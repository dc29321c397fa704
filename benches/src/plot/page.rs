//! A page of charts, tables and text: one self-contained HTML file.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::{Chart, DrawError};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\
     h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}svg{max-width:100%;height:auto}\
     table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
     th,td{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}th{font-weight:600}\
     th:first-child,td:first-child{text-align:left}\
     .bars{width:100%;margin:1.2em 0}.bars caption{text-align:left;font-weight:600;padding:.2em .7em}\
     .bars td{border:0;white-space:nowrap;text-align:left}.bars td:nth-child(2){width:60%}\
     .bars div{background:#9ab;height:1em;min-width:2px}.bars tr:first-of-type div{background:#2463c9}pre{background:#f5f5f5;padding:.6em;overflow-x:auto}";

/// A figure that is drawn as a bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The name on the left.
    pub name: String,
    /// The length, in the unit of all bars of one group. It is not negative.
    pub value: f64,
    /// The text on the right.
    pub note: String,
}

/// A page that is built from the top down.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
    /// Charts with their file names.
    drawings: Vec<(String, String)>,
}

impl Page {
    /// Makes an empty page under `title`.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), body: String::new(), drawings: Vec::new() }
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: &str) {
        self.put(format_args!("<h2>{}</h2>\n", escaped(text)));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.put(format_args!("<p>{}</p>\n", escaped(text)));
    }

    /// Adds a command or an output verbatim.
    pub fn verbatim(&mut self, text: &str) {
        self.put(format_args!("<pre>{}</pre>\n", escaped(text)));
    }

    /// Adds a table with the heads of its columns and its rows.
    pub fn table(&mut self, heads: &[&str], rows: &[Vec<String>]) {
        let line = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
            let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let head = line("th", &mut heads.iter().copied());
        let body: String = rows.iter().map(|row| line("td", &mut row.iter().map(String::as_str))).collect();
        self.put(format_args!("<table>\n{head}{body}</table>\n"));
    }

    /// Adds a group of bars under `title`. The longest bar has the whole width, and the first one another
    /// colour.
    pub fn bars(&mut self, title: &str, bars: &[Bar]) {
        let longest = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        let line = |bar: &Bar| {
            let (name, note) = (escaped(&bar.name), escaped(&bar.note));
            let share = 100.0 * bar.value / longest;
            format!(
                "<tr><td>{name}</td><td><div style=\"width:{share:.1}%\"></div></td><td>{note}</td></tr>\n"
            )
        };
        let lines: String = bars.iter().map(line).collect();
        let title = escaped(title);
        self.put(format_args!("<table class=\"bars\">\n<caption>{title}</caption>\n{lines}</table>\n"));
    }

    /// Adds a chart, which [`write`](Self::write) also writes as `NAME.svg`.
    ///
    /// # Errors
    /// Returns the errors of [`Chart::svg`].
    pub fn chart(&mut self, name: &str, chart: &Chart) -> Result<(), DrawError> {
        let svg = chart.svg()?;
        self.put(format_args!("<figure>{svg}</figure>\n"));
        self.drawings.push((format!("{name}.svg"), svg));
        Ok(())
    }

    /// The whole page as HTML.
    pub fn html(&self) -> String {
        let (title, body) = (escaped(&self.title), &self.body);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}</body></html>\n"
        )
    }

    /// Writes `index.html` and each chart into `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// Returns the error of a system call that failed.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        for (name, svg) in &self.drawings {
            std::fs::write(directory.join(name), svg)?;
        }
        std::fs::write(directory.join("index.html"), self.html())
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _never = self.body.write_fmt(text);
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Axis, Series};

    fn page() -> Page {
        let mut page = Page::new("a < b");
        page.paragraph("5 > 4");
        page.table(&["size", "rate"], &[vec!["64".into(), "<1>".into()]]);
        let series = vec![Series::new("s", vec![(1.0, 1.0), (2.0, 4.0)])];
        let chart =
            Chart { title: "t".into(), notes: Vec::new(), x: Axis::count("n"), y: Axis::linear("y"), series };
        page.chart("rate", &chart).unwrap();
        page
    }

    #[test]
    fn a_page_holds_everything_and_refers_to_nothing() {
        let html = page().html();
        for part in ["<h1>a &lt; b</h1>", "<p>5 &gt; 4</p>", "<th>rate</th>", "<td>&lt;1&gt;</td>", "<svg"] {
            assert!(html.contains(part), "{part}: {html}");
        }
        for reference in ["src=", "href=", "@import", "url("] {
            assert!(!html.contains(reference), "{reference}");
        }
    }

    #[test]
    fn bars_are_shares_of_the_longest() {
        let bar = |name: &str, value| Bar { name: name.into(), value, note: format!("{value} <us>") };
        let mut page = Page::new("t");
        page.bars("us & less", &[bar("a", 1.0), bar("<b>", 4.0)]);
        let html = page.html();
        for part in ["width:25.0%", "width:100.0%", "us &amp; less", "&lt;b&gt;", "<td>4 &lt;us&gt;</td>"] {
            assert!(html.contains(part), "{part}: {html}");
        }
        page.bars("nothing", &[bar("a", 0.0)]);
        assert!(page.html().contains("width:0.0%"));
    }

    #[test]
    fn files_are_the_page_and_each_chart() {
        let directory = std::env::temp_dir().join(format!("plot-page-{}", std::process::id()));
        page().write(&directory.join("deep/er")).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.join("deep/er").join(name)).unwrap();
        assert!(read("rate.svg").starts_with("<svg"));
        assert_eq!(read("index.html"), page().html());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
