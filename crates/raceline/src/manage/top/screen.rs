//! The screen of `top`: its state, its keys, and how it is drawn. Names from a peer are printed without control
//! characters.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell as TableCell, Paragraph, Row, Table};

use super::sample::Interval;
use super::view::{Cell, Inventory, Order, View, arrange, rows, summary};

/// The width of a column of numbers.
const NUMBER_WIDTH: u16 = 8;
/// The longest filter.
const MAX_FILTER: usize = 60;
const KEYS: &str =
    "q end  1-5 view  s sort  r reverse  / filter  p pause  h latencies  +/- interval";

/// What a key asks of the loop that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    End,
    Latencies,
    Faster,
    Slower,
}

/// What is shown.
pub(super) struct Screen {
    pub(super) title: String,
    pub(super) interval: Interval,
    pub(super) inventory: Inventory,
    pub(super) is_paused: bool,
    /// Why the last look brought nothing.
    pub(super) problem: Option<String>,
    view: View,
    orders: [Order; View::ALL.len()],
    filter: String,
    is_typing: bool,
    top: usize,
    colors: bool,
}

impl Screen {
    pub(super) fn new(title: String, colors: bool) -> Self {
        let by_iops = |view: View| {
            let column = view.columns().iter().position(|name| ["iops", "useful"].contains(name));
            Order { column: column.unwrap_or(0), is_reversed: false }
        };
        Self {
            title,
            interval: Interval::default(),
            inventory: Inventory::default(),
            is_paused: false,
            problem: None,
            view: View::Devices,
            orders: View::ALL.map(by_iops),
            filter: String::new(),
            is_typing: false,
            top: 0,
            colors,
        }
    }

    fn order(&mut self) -> &mut Order {
        let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        &mut self.orders[at]
    }

    /// Obeys a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Asked {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Asked::End;
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => {
                    let _ = self.filter.pop();
                }
                KeyCode::Char(typed) if self.filter.len() < MAX_FILTER => self.filter.push(typed),
                _ => {}
            }
            self.top = 0;
            return Asked::Nothing;
        }
        let columns = self.view.columns().len();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Asked::End,
            KeyCode::Char('h') => return Asked::Latencies,
            KeyCode::Char('+') => return Asked::Slower,
            KeyCode::Char('-') => return Asked::Faster,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s' | '>') => self.order().column = (self.order().column + 1) % columns,
            KeyCode::Char('<') => {
                self.order().column = (self.order().column + columns - 1) % columns;
            }
            KeyCode::Char('r') => self.order().is_reversed = !self.order().is_reversed,
            KeyCode::Char(digit @ '1'..='5') => {
                let at = usize::try_from(u32::from(digit) - u32::from('1')).unwrap_or(0);
                self.show(View::ALL[at]);
            }
            KeyCode::Tab | KeyCode::Right => self.step(1),
            KeyCode::BackTab | KeyCode::Left => self.step(View::ALL.len() - 1),
            KeyCode::Down => self.top = self.top.saturating_add(1),
            KeyCode::Up => self.top = self.top.saturating_sub(1),
            KeyCode::PageDown => self.top = self.top.saturating_add(10),
            KeyCode::PageUp => self.top = self.top.saturating_sub(10),
            KeyCode::Home => self.top = 0,
            KeyCode::End => self.top = usize::MAX,
            _ => {}
        }
        Asked::Nothing
    }

    fn step(&mut self, by: usize) {
        let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        self.show(View::ALL[(at + by) % View::ALL.len()]);
    }

    fn show(&mut self, view: View) {
        (self.view, self.top) = (view, 0);
    }

    /// Draws everything. A screen of any size will do; on a small one, less is seen.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ]);
        let [title, sums, tabs, table, keys] = areas.areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let state = if self.is_paused { "  PAUSED" } else { "" };
        frame.render_widget(Line::styled(format!("{}{state}", self.title), bold), title);
        let sum = match &self.problem {
            Some(problem) => Line::styled(problem.clone(), self.color(Color::Red, bold)),
            None => Line::raw(summary(&self.interval)),
        };
        frame.render_widget(Paragraph::new(sum), sums);
        frame.render_widget(self.tabs(), tabs);
        let order = *self.order();
        let all = rows(self.view, &self.interval, &self.inventory);
        let all = arrange(all, order, &self.filter);
        let seen = usize::from(table.height.saturating_sub(1));
        self.top = self.top.min(all.len().saturating_sub(seen));
        let last = (self.top + seen).min(all.len());
        frame.render_widget(self.table(&all[self.top..last], order), table);
        let foot = if self.is_typing {
            format!("filter: {}_  (Enter keeps it, Esc drops it)", self.filter)
        } else if self.filter.is_empty() && all.len() <= seen {
            KEYS.to_owned()
        } else {
            let first = if all.is_empty() { 0 } else { self.top + 1 };
            format!("{first}-{last} of {}  filter [{}]  {KEYS}", all.len(), self.filter)
        };
        frame.render_widget(Line::raw(foot), keys);
    }

    fn color(&self, color: Color, otherwise: Style) -> Style {
        if self.colors { Style::new().fg(color) } else { otherwise }
    }

    fn tabs(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for (number, view) in View::ALL.into_iter().enumerate() {
            let is_shown = view == self.view;
            // Without colours and without reverse video, brackets say which one it is.
            let (open, close) = if is_shown { ("[", "]") } else { (" ", " ") };
            let text = format!("{open}{} {}{close}", number + 1, view.name());
            let style =
                if is_shown { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            spans.push(Span::styled(text, style));
        }
        Line::from(spans)
    }

    fn table(&self, shown: &[Vec<Cell>], order: Order) -> Table<'static> {
        let is_name = |column: usize| column < self.view.names();
        let right =
            |text: String, width: u16| format!("{text:>width$}", width = usize::from(width));
        let heading = self.view.columns().iter().enumerate().map(|(column, name)| {
            let mark = match (column == order.column, order.is_reversed) {
                (true, false) => "*",
                (true, true) => "^",
                _ => "",
            };
            let text = format!("{}{mark}", name.to_uppercase());
            TableCell::new(if is_name(column) { text } else { right(text, NUMBER_WIDTH) })
        });
        let rows = shown.iter().map(|row| {
            let is_idle = row.iter().all(|cell| match cell {
                Cell::Rate(rate) | Cell::Bytes(rate) => *rate == 0.0,
                _ => true,
            });
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let text = cell.text();
                TableCell::new(if is_name(column) { text } else { right(text, NUMBER_WIDTH) })
            });
            let style =
                if is_idle { self.color(Color::DarkGray, Style::new()) } else { Style::new() };
            Row::new(cells).style(style)
        });
        let widths = (0..self.view.columns().len()).map(|column| match is_name(column) {
            true => Constraint::Fill(1),
            false => Constraint::Length(NUMBER_WIDTH),
        });
        let rows: Vec<Row<'static>> = rows.collect();
        let header = Row::new(heading).style(Style::new().add_modifier(Modifier::BOLD));
        Table::new(rows, widths).header(header).column_spacing(1)
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;
    use crate::manage::top::sample::Sample;

    fn screen() -> Screen {
        let mut screen = Screen::new("raceline top".to_owned(), false);
        let activity = |seconds: u64, reads: u64| {
            Sample::read(&json!({
                "time_ns": seconds * 1_000_000_000u64, "cpu_ns": seconds * 100_000_000u64,
                "cores": [{ "name": "nvmf_tgt_poll_group_000", "busy_ns": seconds * 50_000_000u64 }],
                "bdevs": { "busy": [reads, 0, 0, reads * 4096, 0, reads * 12_300, 0, 0] },
                "hosts": [{ "subnqn": "nqn.2026-01.io.raceline:one", "hostnqn": "nqn.host\u{1b}[31m",
                    "controllers": 1, "io_qpairs": 4, "statistics": { "num_read_ops": reads } }],
            }))
        };
        screen.interval = activity(11, 90_000).since(&activity(10, 5_000));
        let namespaces =
            json!([{ "nsid": 1, "bdev_name": "busy" }, { "nsid": 2, "bdev_name": "idle" }]);
        let subsystems = json!([{ "nqn": "nqn.2026-01.io.raceline:one", "subtype": "NVMe",
            "namespaces": namespaces, "listen_addresses": [{}] }]);
        let devices: Vec<_> = ["busy", "idle"]
            .map(|name| json!({ "name": name, "num_blocks": 2048, "block_size": 512 }))
            .into();
        screen.inventory = Inventory::read(&subsystems, &json!(devices));
        screen
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, keys: &str) -> Asked {
        let mut asked = Asked::Nothing;
        for key in keys.chars() {
            asked = screen.key(KeyEvent::from(KeyCode::Char(key)));
        }
        asked
    }

    #[test]
    fn a_small_screen_has_it_all() {
        let lines = drawn(&mut screen(), 80, 24);
        assert_eq!(lines[0], "raceline top");
        assert_eq!(
            lines[1],
            "85000 IOPS  r 332 w 0 MiB/s  avg 12.3us p50 - p99 -  cpu 10% useful 5%"
        );
        assert_eq!(lines[2], "[1 devices] 2 namespaces  3 subsystems  4 hosts  5 cores");
        assert_eq!(
            lines[3],
            "DEVICE               IOPS*     READ    WRITE      AVG      P50      P99      ERR"
        );
        assert_eq!(
            lines[4],
            "busy                 85000      332        0   12.3us        -        -        0"
        );
        assert!(lines[5].starts_with("idle "), "{lines:?}");
        assert!(lines[23].starts_with("q end"), "{lines:?}");
    }

    #[test]
    fn keys_change_view_order_filter_and_pause() {
        let mut screen = screen();
        assert_eq!(press(&mut screen, "2ss"), Asked::Nothing);
        let lines = drawn(&mut screen, 100, 24);
        assert!(lines[2].contains("[2 namespaces]"), "{lines:?}");
        assert!(lines[3].contains("WRITE*"), "{lines:?}");
        press(&mut screen, "4");
        assert!(drawn(&mut screen, 80, 24)[4].contains("nqn.host\u{fffd}[31m"));
        press(&mut screen, "1/idle");
        screen.key(KeyEvent::from(KeyCode::Enter));
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[4].starts_with("idle") && lines[5].is_empty(), "{lines:?}");
        assert!(lines[23].starts_with("1-1 of 1  filter [idle]"), "{lines:?}");
        press(&mut screen, "p");
        assert!(drawn(&mut screen, 80, 24)[0].ends_with("PAUSED"));
        assert_eq!(press(&mut screen, "h"), Asked::Latencies);
        assert_eq!(press(&mut screen, "q"), Asked::End);
    }

    #[test]
    fn any_size_and_any_scrolling_can_be_drawn() {
        let mut screen = screen();
        screen.inventory.sizes = (0..1000).map(|n| (format!("d{n:04}"), 1)).collect();
        screen.key(KeyEvent::from(KeyCode::End));
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[22].starts_with("d0999"), "{lines:?}");
        for (width, height) in [(1, 1), (3, 2), (10, 5), (300, 80)] {
            for view in "12345".chars() {
                press(&mut screen, &view.to_string());
                drawn(&mut screen, width, height);
            }
        }
    }
}
