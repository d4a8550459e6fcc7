//! Columns that line up, and script output that does not need to.
//!
//! **Invariants**: widths are counted in characters; a row may be shorter than another.

/// Lines of aligned columns; those whose number is in `right` are set flush right.
pub(crate) fn columns(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| {
        rows.iter()
            .filter_map(|r| r.get(i))
            .map(|c| c.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..count).map(|i| width(i).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let mut out = String::new();
        for (i, cell) in row.iter().enumerate() {
            let pad = widths[i] - cell.chars().count();
            if i > 0 {
                out.push_str("  ");
            }
            if right.contains(&i) {
                out.extend(std::iter::repeat_n(' ', pad));
                out.push_str(cell);
            } else {
                out.push_str(cell);
                out.extend(std::iter::repeat_n(' ', pad));
            }
        }
        out.truncate(out.trim_end().len());
        out
    };
    rows.iter().map(line).collect()
}

/// A table for people (a title row, aligned) or for scripts (`-H`: no title, tabs).
pub(crate) fn table(
    titles: &[&str],
    rows: Vec<Vec<String>>,
    right: &[usize],
    script: bool,
) -> String {
    let lines = if script {
        rows.into_iter().map(|row| row.join("\t")).collect()
    } else {
        let mut all = vec![titles.iter().map(ToString::to_string).collect()];
        all.extend(rows);
        columns(&all, right)
    };
    lines.into_iter().map(|line: String| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_scripts_get_tabs() {
        let rows = vec![
            vec!["a".to_string(), "100".to_string(), "x".to_string()],
            vec!["long".to_string(), "1".to_string()],
        ];
        assert_eq!(columns(&rows, &[1]), ["a     100  x", "long    1"]);
        assert_eq!(table(&["T", "N"], rows, &[1], true), "a\t100\tx\nlong\t1\n");
    }
}
