//! The output on a terminal: the rows of a run, and during the run the dashboard below them.

use std::process::{Command, Stdio};

use testkit::folder::Folder;

/// Numbers of columns and lines of the terminal.
const COLUMNS: usize = 130;
const LINES: usize = 60;

/// The screen of a terminal that receives bytes: text, ends of lines, and the sequences of ECMA-48 that move
/// the cursor and erase.
struct Screen {
    cells: Vec<Vec<char>>,
    line: usize,
    column: usize,
}

impl Screen {
    fn showing(bytes: &str) -> Self {
        let mut screen = Self { cells: vec![vec![' '; COLUMNS]; LINES], line: 0, column: 0 };
        let mut chars = bytes.chars();
        while let Some(char) = chars.next() {
            match char {
                '\r' => screen.column = 0,
                '\n' => screen.feed(),
                '\u{8}' => screen.column = screen.column.saturating_sub(1),
                '\u{1b}' => screen.obey(&mut chars),
                _ => screen.put(char),
            }
        }
        screen
    }

    fn feed(&mut self) {
        if self.line + 1 < LINES {
            self.line += 1;
        } else {
            self.cells.remove(0);
            self.cells.push(vec![' '; COLUMNS]);
        }
    }

    fn put(&mut self, char: char) {
        if self.column == COLUMNS {
            self.column = 0;
            self.feed();
        }
        self.cells[self.line][self.column] = char;
        self.column += 1;
    }

    /// Executes the rest of a control sequence (ECMA-48 section 5.4).
    fn obey(&mut self, chars: &mut impl Iterator<Item = char>) {
        assert_eq!(chars.next(), Some('['), "no control sequence");
        let mut parameters = String::new();
        let last = loop {
            match chars.next().expect("a control sequence ends") {
                last @ '@'..='~' => break last,
                other => parameters.push(other),
            }
        };
        let count = parameters.trim_start_matches('?').parse().unwrap_or(0);
        let steps = usize::max(count, 1);
        match last {
            'A' => self.line = self.line.saturating_sub(steps),
            'B' => self.line = (self.line + steps).min(LINES - 1),
            'C' => self.column = (self.column + steps).min(COLUMNS - 1),
            'D' => self.column = self.column.saturating_sub(steps),
            'G' => self.column = steps - 1,
            'K' => {
                let erased = match count {
                    0 => self.column..COLUMNS,
                    1 => 0..self.column + 1,
                    _ => 0..COLUMNS,
                };
                self.cells[self.line][erased].fill(' ');
            }
            'J' => {
                if count == 0 {
                    self.cells[self.line][self.column..].fill(' ');
                    self.cells[self.line + 1..].iter_mut().for_each(|line| line.fill(' '));
                } else {
                    self.cells.iter_mut().for_each(|line| line.fill(' '));
                }
            }
            // These sequences set colours, or show or hide the cursor.
            'm' | 'h' | 'l' => {}
            other => panic!("the sequence {parameters}{other} is not known here"),
        }
    }

    fn lines(&self) -> Vec<String> {
        self.cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}

/// Runs `iwperf` in the terminal of `script`, and returns all text that `iwperf` writes to the terminal. If
/// `seconds` is not 0, `iwperf` is interrupted after this time.
fn on_a_terminal(words: &str, seconds: u32) -> String {
    let program = env!("CARGO_BIN_EXE_iwperf");
    let line = format!(
        "stty rows {LINES} cols {COLUMNS}; timeout --foreground -k 60 -s INT {seconds} {program} {words}"
    );
    let folder = Folder::new("iwperf-terminal");
    let file = folder.join("typescript");
    let status = Command::new("script")
        .args(["--quiet", "--command", &line])
        .arg(&file)
        .env("TERM", "xterm")
        .env("UWARP_DIR", &*folder)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .expect("script is a part of every Debian");
    assert!(status.success(), "{status}");
    let text = std::fs::read_to_string(&file).unwrap();
    // The first line and the last lines are written by `script` itself.
    let (_, text) = text.split_once('\n').unwrap();
    text.rsplit_once("\nScript done").map_or(text, |(text, _)| text).to_owned()
}

/// Returns the lines of a screen that are rows of a table.
fn rows(screen: &Screen) -> Vec<String> {
    let is_row = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() == 5 && words.iter().all(|word| word.parse::<f64>().is_ok())
    };
    screen.lines().into_iter().filter(is_row).collect()
}

/// Each row of an endless run stays on the screen, although the dashboard is drawn below it five times per
/// second. At the end the dashboard is gone.
#[test]
fn rows_of_an_endless_run_stay_above_the_dashboard() {
    let text = on_a_terminal("local write-bw --run_infinitely -D 1 -s 4096", 5);
    assert!(text.contains("average"), "there is no dashboard:\n{text:?}");
    let screen = Screen::showing(&text);
    let seen = screen.lines().join("\n");
    let rows = rows(&screen);
    // The output has one line per interval, and one line for the whole run. A busy machine may miss some
    // intervals.
    let printed = text.matches("\n 4096 ").count().max(text.matches(" 4096    ").count());
    assert!(rows.len() >= 3, "{} rows are seen:\n{seen}\n{text:?}", rows.len());
    assert_eq!(rows.len(), printed, "rows are written, and not seen:\n{seen}");
    assert!(!seen.contains("average      ") && !seen.contains("retransmits"), "the dashboard stays:\n{seen}");
    let of_table = ["interrupted", "#bytes", "BW average"];
    assert!(of_table.iter().all(|word| seen.contains(word)), "{seen}");
}

/// A table of many sizes appears on the screen as it would appear in a file.
#[test]
fn a_table_is_whole_on_the_screen() {
    let text = on_a_terminal("local write-bw -a -n 300", 120);
    let screen = Screen::showing(&text);
    let seen = screen.lines().join("\n");
    let sizes: Vec<u64> =
        rows(&screen).iter().map(|row| row.split_whitespace().next().unwrap().parse().unwrap()).collect();
    let wanted: Vec<u64> = (1..=23).map(|power| 1 << power).collect();
    assert_eq!(sizes, wanted, "{seen}");
}
