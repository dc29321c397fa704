//! Runs that were repeated (`--runs`): rows of the same kind, and the spread of their figures.

use super::Row;

/// The minimum, median and maximum of several values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The least value.
    pub least: f64,
    /// The median. If the number of values is even, this is the mean of the two values in the middle.
    pub median: f64,
    /// The greatest value.
    pub greatest: f64,
}

impl Spread {
    /// The spread of `values`, or `None` if there is no value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { least, median: (low + high) / 2.0, greatest })
    }
}

/// Groups rows with equal message size, number of queue pairs and number of cores. The groups are in the
/// order of their first rows.
pub fn grouped<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Vec<&'a Row>> {
    let kind = |row: &Row| (row.size, row.queue_pairs, row.cores.len());
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| kind(group[0]) == kind(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { least: 1.0, median: 2.0, greatest: 3.0 }));
        assert_eq!(spread(&[1.0, 4.0]).unwrap().median, 2.5);
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn rows_of_one_kind_are_together() {
        let row = |size, queue_pairs| Row { size, queue_pairs, ..Row::default() };
        let rows = [row(64, 1), row(128, 1), row(64, 1), row(64, 2)];
        let sizes: Vec<_> = grouped(&rows).iter().map(|group| (group[0].size, group.len())).collect();
        assert_eq!(sizes, [(64, 2), (128, 1), (64, 1)]);
    }
}
