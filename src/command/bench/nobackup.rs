//! The NOBACKUP paper's tables: the caches of its three systems, and what it shows, row by row.
//!
//! **Invariant**: what the paper says and what is found here stand in tables of their own, each with its kind of
//! evidence.

use ashlar_bench::report::page::Table;

pub(super) const TITLE: &str = "NOBACKUP: caches, and how not to benchmark";
const CACHES: &str = include_str!("../../../docs/papers/data/nobackup-caches.csv");
const ROWS: &str = include_str!("../../../docs/papers/data/nobackup-rows.csv");

fn lines(text: &str) -> Vec<Vec<String>> {
    let whole = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    whole
        .map(|line| {
            line.split(',')
                .map(|cell| cell.trim().to_string())
                .collect()
        })
        .collect()
}

fn table(title: &str, note: &str, titles: [&str; 4], text: &str) -> Table {
    Table {
        title: title.to_string(),
        note: note.to_string(),
        titles: titles.map(str::to_string).to_vec(),
        lines: lines(text),
    }
}

/// The paper's tables; what was found on a machine comes after them.
pub(super) fn tables() -> Vec<Table> {
    vec![
        table(
            "What the paper shows",
            "Evidence: named in the last column. *Closed form* is arithmetic on the paper's own numbers; *real* is what the program does on the machine that it runs on.",
            ["what", "the paper", "here", "evidence"],
            ROWS,
        ),
        table(
            "Caches of the paper's systems",
            "Evidence: published, from the client down. The paper gives no sizes, and says that there could be more.",
            ["layer", "Data", "NOBACKUP", "Memex Lustre"],
            CACHES,
        ),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_tables_are_whole_and_their_arithmetic_holds() {
        let tables = tables();
        for table in &tables {
            assert!(table.lines.len() >= 6);
            assert!(
                table
                    .lines
                    .iter()
                    .all(|line| line.len() == table.titles.len())
            );
        }
        let layers = |column: usize| {
            let cells = tables[1].lines.iter().map(|line| line[column].as_str());
            cells.filter(|cell| *cell != "-").count()
        };
        assert_eq!([1, 2, 3].map(layers), [6, 5, 3]);
        let gigabytes = |gigabits: f64| gigabits / 8.0;
        let all = gigabytes(4.0 * 10.0);
        let text = ROWS;
        assert!(text.contains(&format!("{all:.2} GB/s")));
        assert!(text.contains(&format!("{:.2} GB/s", gigabytes(10.0))));
        assert!(text.contains(&format!("{:.1} to {:.1} times", 13.0 / all, 17.0 / all)));
        assert!(text.contains(&format!("{:.1} GB/s at most", 2.0 * 0.55)));
    }

    #[test]
    fn the_page_in_docs_has_these_tables() {
        let page = include_str!("../../../docs/papers/nobackup.md");
        for table in tables() {
            assert!(page.contains(&table.note), "{}", table.title);
            for line in table.lines {
                let line = format!("| {} |", line.join(" | "));
                assert!(page.contains(&line), "docs/papers/nobackup.md lacks {line}");
            }
        }
    }
}
